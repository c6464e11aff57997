"""The page: a record, put into words, tables and charts, as one HTML file that loads nothing.

What the report says first: whether the run is private, how far that goes, and on what it rests.

The model card: what the model is for, what it was made of, what it promises and reaches, and where it ends.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from isthmus.base.atomic import atomic_write
from isthmus.report import _words, svg
from isthmus.report.record import FORMAT, Record, rounded_down, rounded_up

_HERE = Path(__file__).parent

_PEERS = {"Plain DP-SGD": ("dp-sgd", "dp_sgd", "dpsgd"), "Public labels alone": ("public labels", "public alone")}


def render(record: Record) -> str:
    """The report of a record, as HTML text: complete in itself, without scripts, everything escaped.

    Every figure in it is a figure of the record, or follows from one by a formula that is named beside it.  What is not
    in the record is left out, and the end of the report says that it is.
    """
    judgement = verdict(record)
    return _template().render(
        record=record,
        verdict=judgement,
        odds=Markup(judgement.chart),
        rule=RULE,
        statement=_statement(record),
        budget=_budget(record),
        trained=_trained(record),
        lede=_lede(record),
        card=card(record),
        expectation=expectation(record),
        warnings=[fact(warning) + "." for warning in record.warnings],
        fields=record.data["fields"] or (),
        metrics=_metrics(record),
        comparison=_comparison(record),
        noise=_noise(record),
        energy=_energy(record),
        plan=_plan(record),
        absent=_absent(record),
        charts={name: Markup(drawn) for name, drawn in _charts(record).items()},
        curves=[(curve, Markup(drawn)) for curve, drawn in _curves(record)],
        css=Markup(_css()),
        format=FORMAT,
    )


def write(record: Record, path: str | os.PathLike[str]) -> Path:
    """Write the report of a record to a file; returns its path."""
    where = Path(path)
    text = render(record)
    with atomic_write(where) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")
    return where


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    names = ("number", "duration", "moment", "first_up")
    environment.filters |= {name: getattr(_words, name) for name in names}
    environment.filters["measured_as"] = lambda value, name: _words.measured(name, value)
    environment.filters["figure"] = lambda value, kind: getattr(_words, kind)(value)
    environment.filters["epsilon"] = lambda value: (
        "none" if value is None else rounded_up(value).replace("inf", "\u221e")
    )
    return environment.get_template("report.html.jinja")


@cache
def _css() -> str:
    text = (_HERE / "report.css").read_text(encoding="utf-8")
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL).strip()


def _charts(record: Record) -> dict[str, str]:
    """The charts whose figures the record has; the others are empty."""
    charts = dict.fromkeys(("budget", "shared", "noise", "energy", "comparison"), "")
    if len(record.budget["curve"]) > 1:
        charts["budget"] = _budget_chart(record)
    shared = record.budget["shared"]
    if shared is not None and shared["epsilon"] > 0:
        unspent = max(0.0, shared["epsilon"] - shared["spent"])
        parts = [
            svg.Part(shared["spent"], f"spent so far, by all runs: epsilon {rounded_up(shared['spent'])}"),
            svg.Part(unspent, f"left: epsilon {rounded_down(unspent)}", "empty"),
        ]
        ends = ("0", f"epsilon {_words.number(shared['epsilon'])}")
        charts["shared"] = svg.meter("shared", "The shared budget", parts, shared["epsilon"], ends)
    if _moves(record):
        charts["noise"] = _noise_chart(record)
    if record.energy is not None and record.energy["k"]:
        charts["energy"] = _energy_chart(record)
    bars = _comparison_bars(record)
    if len(bars) > 1:
        own = next(row for row in _compared(record) if row["score"] is not None)
        percent = _words.is_share(own["metric"], [value for _, value, _ in bars])
        charts["comparison"] = svg.bars("comparison", "Scores side by side", bars, percent)
    return charts


def _budget_chart(record: Record) -> str:
    curve, target = record.budget["curve"], record.budget["epsilon"]
    series = svg.Series("epsilon spent", [t for t, _ in curve], [epsilon for _, epsilon in curve])
    finite = target is not None and math.isfinite(target)
    levels = [(target, f"asked for: {_words.number(target)}")] if finite else []
    frame = svg.Frame("round", "epsilon spent", levels=levels, zero=True)
    return svg.lines("budget", "Privacy spent, by round", [series], frame)


def _noise_chart(record: Record) -> str:
    """Root mean squares over stretches of rounds: single steps jump, and there may be thousands."""
    rows = _moves(record)
    stretch = -(-len(rows) // 60)
    pieces = [rows[i : i + stretch] for i in range(0, len(rows), stretch)]
    at = [piece[-1][0] for piece in pieces]
    step, noise = ([math.hypot(*(row[i] for row in piece)) / math.sqrt(len(piece)) for piece in pieces] for i in (1, 2))
    label = "length" if stretch == 1 else f"length, averaged over {stretch} rounds"
    series = [svg.Series("step", at, step), svg.Series("noise in it", at, noise)]
    return svg.lines("noise", "Length of each step and of its noise", series, svg.Frame("round", label, zero=True))


def _energy_chart(record: Record) -> str:
    energy = record.energy
    assert energy is not None
    marks = [] if energy["chosen"] is None else [(energy["chosen"], f"used: k = {energy['chosen']}")]
    options: dict[str, Any] = {"marks": marks, "zero": True, "percent": True, "top": 1.0, "decades": True}
    frame = svg.Frame("directions kept, k", "share of the gradient kept", **options)
    return svg.lines("energy", "Captured energy", [svg.Series("kept", energy["k"], energy["captured"])], frame)


def _curves(record: Record) -> list[tuple[Any, str]]:
    drawn = []
    for i, curve in enumerate(record.curves):
        series = [svg.Series(line["name"], line["x"], line["y"]) for line in curve["series"]]
        if any(line.points() for line in series):
            shares: dict[str, Any] = {"zero": True, "percent": True, "top": 1.0} if curve["shares"] else {}
            frame = svg.Frame(curve["x_label"] or "x", curve["y_label"] or "y", **shares)
            drawn.append((curve, svg.lines(f"curve{i}", curve["title"], series, frame)))
    return drawn


def _statement(record: Record) -> dict[str, Any] | None:
    if record.privacy is None:
        return None
    assumptions = record.privacy["assumptions"]
    words = record.words
    for leak in record.privacy["leaks"]:
        words = words.replace(leak, fact(leak))
    releases = [row | {"times": _words.times(row["times"])} for row in map(dict, record.privacy["releases"])]
    paragraphs = _words.paragraphs(words, assumptions, table=bool(releases))
    return {"paragraphs": paragraphs, "assumptions": assumptions, "releases": releases}


def _budget(record: Record) -> dict[str, Any] | None:
    """Asked, spent and shared; None where nothing of it is in the record."""
    budget, privacy = record.budget, record.privacy
    if privacy is None or (budget["epsilon"] is None and not budget["curve"] and budget["shared"] is None):
        return None
    return {"asked": budget["epsilon"], "spent": privacy["epsilon"], "shared": budget["shared"]}


def _lede(record: Record) -> str:
    """One sentence: what was trained, on what, how."""
    data, model = record.data, record.model
    subject = f"A {model['task']} model" + (f" that predicts \u201c{data['target']}\u201d" if data["target"] else "")
    counts = [(data["n"], "records"), (len(data["fields"] or ()), "fields")]
    if not data["fields"]:
        counts.append((data["d"], "columns"))
    size = ", ".join(f"{count:,} {what}" for count, what in counts if count)
    rounds = f" in {model['rounds']:,} rounds" if model["rounds"] else ""
    return f"{subject}, trained by {model['algorithm']}{rounds} on {data['name']}{f' ({size})' if size else ''}."


def _trained(record: Record) -> list[tuple[str, str]]:
    """The facts of the data and the model, those that are there."""
    data, model = record.data, record.model
    hidden = record.privacy is not None and record.privacy["n"] is None
    saw = "as they are."
    if record.private:
        saw = "each with noise added; no value of a single record was released."
    rows = [
        ("Data", data["name"]),
        ("Target", data["target"]),
        ("Records", "not published" if hidden else data["n"] and f"{data['n']:,}"),
        ("Columns of numbers" if data["fields"] else "Columns", data["d"] and f"{data['d']:,}"),
        ("Their names", "" if data["fields"] else _words.listed(data["features"])),
        ("Classes", _words.listed(data["classes"])),
        ("Held-out records", data["test_rows"] and f"{data['test_rows']:,}"),
        ("Public records", data["public_rows"] and f"{data['public_rows']:,}"),
        ("Loss", model["loss"]),
        ("Algorithm", f"{model['algorithm']}: {model['how']}" if model["how"] else model["algorithm"]),
        ("Settings", "; ".join(f"{key}: {_words.argument(value)}" for key, value in model["arguments"].items())),
        ("Rounds", model["rounds"] and f"{model['rounds']:,}"),
        ("Constraint", model["constraint"]),
        ("Penalty", model["penalty"]),
        ("What the training saw", model["dims"] and f"{model['dims']:,} sums over many records, {saw}"),
        ("Training time", model["seconds"] is not None and _words.duration(model["seconds"])),
    ]
    return [(name, value) for name, value in rows if value]


def _metrics(record: Record) -> list[dict[str, Any]]:
    return [
        {
            "name": metric["name"],
            "value": _words.measured(metric["name"], metric["value"]),
            "noise": _words.spread(metric["name"], metric["noise"]) if metric["value"] is not None else "",
            "exact": not metric["noise"],
            "baseline": "" if metric["baseline"] is None else _words.measured(metric["name"], metric["baseline"]),
            "than": metric["than"] or "",
            "note": metric["note"] or "",
            "on": metric["on"],
            "meaning": _words.METRICS.get(_words.metric_key(metric["name"]), ""),
        }
        for metric in record.metrics
    ]


def _compared(record: Record) -> list[dict[str, Any]]:
    """The other runs and this one, which is found among them or put before them from its own figures."""
    rows = [{**row, "own": False} for row in record.comparison]
    if not rows:
        return []
    metric = _words.metric_key(rows[0]["metric"])
    own = next((m for m in record.metrics if _words.metric_key(m["name"]) == metric and m["value"] is not None), None)
    if own is None:
        return rows
    epsilon = math.inf if record.privacy is None else record.privacy["epsilon"]
    for row in rows:
        if row["score"] == own["value"] and row["dims"] in (None, record.model["dims"]):
            row["own"] = True
            return rows
    mine = {"name": record.model["algorithm"], "epsilon": epsilon, "score": own["value"], "metric": rows[0]["metric"]}
    return [
        {**mine, "dims": record.model["dims"], "seconds": record.model["seconds"], "note": None, "own": True},
        *rows,
    ]


def _comparison(record: Record) -> dict[str, Any] | None:
    rows = _compared(record)
    if not rows:
        return None
    names = [row["name"].lower() for row in rows]
    measured_peers = {peer: any(key in name for key in keys for name in names) for peer, keys in _PEERS.items()}
    measures = {row["metric"] for row in rows}
    measure = _words.first_up(rows[0]["metric"] or "") if len(measures) == 1 else ""
    missing = [peer for peer, there in measured_peers.items() if not there]
    unprotected = any(row["epsilon"] == math.inf for row in rows)
    gaps = any(row[name] is None for row in rows for name in ("epsilon", "score", "dims", "seconds"))
    told = {"missing": missing, "measure": measure, "unprotected": unprotected, "gaps": gaps}
    return {"rows": rows, "found": measured_peers, **told}


def _comparison_bars(record: Record) -> list[tuple[str, float, bool]]:
    """Rows with one measure, side by side."""
    rows = [row for row in _compared(record) if row["score"] is not None]
    same = [row for row in rows if _words.metric_key(row["metric"]) == _words.metric_key(rows[0]["metric"])]
    return [(f"{row['name']} (this run)" if row["own"] else row["name"], row["score"], row["own"]) for row in same]


def _moves(record: Record) -> list[tuple[float, float, float]]:
    """Rounds whose step and noise are both known."""
    rows = [(entry["t"], entry["moved"], entry["noise"]) for entry in record.history]
    return [row for row in rows if row[1] is not None and row[2] is not None]


def _noise(record: Record) -> dict[str, Any] | None:
    rows = [(moved, noise) for _, moved, noise in _moves(record) if moved > 0]
    return {"ratio": f"{median(noise / moved for moved, noise in rows):.2g}", "rounds": len(rows)} if rows else None


def _energy(record: Record) -> dict[str, Any] | None:
    """What the chosen number of directions keeps, where the curve says so."""
    if record.energy is None or not record.energy["k"]:
        return None
    k, shares = list(record.energy["k"]), record.energy["captured"]
    chosen = record.energy["chosen"]
    share = f"{100 * shares[k.index(chosen)]:.3g}%" if chosen in k else None
    return {"chosen": chosen, "kept": share, "source": record.energy["source"]}


def _plan(record: Record) -> dict[str, Any] | None:
    """The choices with the one that was run marked, and the columns that they have figures for."""
    if record.plan is None:
        return None
    choices, model = record.plan["choices"], record.model
    same = [i for i, choice in enumerate(choices) if choice["algorithm"] == model["algorithm"]]
    exact = [i for i in same if choices[i]["name"] == model["choice"]]
    chosen = next(iter(exact or same), None)
    columns = [column for column in _COLUMNS if any(choice[column[0]] is not None for choice in choices)]
    return {**record.plan, "chosen": chosen, "columns": columns}


_COLUMNS = (
    (
        "noise_multiplier",
        "noise multiplier",
        "number",
        "the noise, in units of the most that one record can contribute",
    ),
    ("noise_norm", "noise in a step", "number", "the expected length of the noise in one step"),
    (
        "margin_noise",
        "noise in a prediction",
        "number",
        "what has built up of it in the score of one record at the end",
    ),
    ("dims", "numbers a round", "number", "how many numbers leave the data in one round"),
    ("bytes", "bytes", "size", "what they weigh in the whole run"),
    ("memory", "memory", "size", "an estimate, beside the data"),
    ("passes", "passes", "number", "how often the data is read through"),
    ("seconds", "time", "duration", "an estimate, on one core"),
)


def _absent(record: Record) -> list[str]:
    """What a reader might look for and the record does not have."""
    compared = _comparison(record)
    parts = {
        "figures of quality on held-out records": not record.metrics,
        "a comparison with other methods": compared is None,
        "the privacy spent, by round": len(record.budget["curve"]) < 2 and record.privacy is not None,
        "the length of each step and of its noise": not _moves(record) and record.privacy is not None,
        "captured energy (no directions were learned from public data)": _energy(record) is None,
        "a plan": record.plan is None,
        "versions of the software": not record.versions,
    }
    return [name for name, missing in parts.items() if missing]


STRONG, REASONABLE = 1.0, 10.0

RULE = (
    "A common rule of thumb (Ponomareva et al., How to DP-fy ML, 2023): an epsilon of at most 1 is a strong promise, "
    "of at most 10 a reasonable one, above 10 a weak one."
)

_CHANGES = {
    "add-remove": ("Adding or removing one record", "whether one given record was used"),
    "replace-one": ("Replacing one record by another", "which of two given records was used"),
}

_EXCEPT = "That holds for what was released with noise. It does not hold for what was read from the data without any:"


@dataclass(frozen=True)
class KeyFigure:
    """A key figure: its name, its value, one sentence about it; `wide` where the value is words."""

    name: str
    value: str
    meaning: str
    wide: bool = False


@dataclass(frozen=True)
class Verdict:
    """`tone` is "good", "weak" or "bad"; `cautions` are what a reader must know beside the headline."""

    tone: str
    headline: str
    summary: str
    cautions: tuple[str, ...]
    figures: tuple[KeyFigure, ...]
    chart: str


def verdict(record: Record) -> Verdict:
    """The verdict of a record."""
    privacy = record.privacy
    if privacy is None:
        summary = (
            "The run was made without privacy: no noise was added and nothing is promised. What was released may "
            "reveal records that it was trained on."
        )
        return Verdict("bad", "NOT private", summary, (), (), "")
    if not privacy["private"]:
        return Verdict("bad", "NOT private", _reason(privacy), (), _key_figures(privacy), "")
    epsilon, delta = privacy["epsilon"], privacy["delta"]
    weak = epsilon > REASONABLE
    if weak:
        headline = "Private, but the promise is weak"
    elif epsilon <= STRONG:
        headline = "Private: a strong promise"
    else:
        headline = "Private: a reasonable promise"
    best = _words.best_guess(epsilon, delta)
    guess = _words.at_most(best)
    odds = [
        svg.Part(0.5, "a coin toss: 50%", "soft"),
        svg.Part(best - 0.5, f"what the results add, at most: up to {guess}"),
    ]
    _, question = _changes(privacy)
    summary = (
        f"Somebody who knows everything else and guesses, from even odds, {question} is right at most {guess} of the "
        "time, whatever they compute from the results. Tossing a coin is right 50% of the time."
    )
    leaked = bool(privacy["leaks"])
    if leaked:
        headline += ", but not all that was read is covered"
        summary += f" {_EXCEPT}"
    if record.warnings:
        headline += ", subject to the warnings below"
    return Verdict(
        "weak" if weak or leaked or record.warnings else "good",
        headline,
        summary,
        _cautions(privacy),
        _key_figures(privacy),
        svg.meter("odds", "How often a guess about one record can be right", odds, 1.0, ("never", "always right")),
    )


def _changes(privacy: Mapping[str, Any]) -> tuple[str, str]:
    """The change that must not show, and what an attacker asks of it."""
    relation = privacy["adjacency"]
    return _CHANGES.get(relation, (relation, "which of two neighbouring sets of records was used"))


def _reason(privacy: Mapping[str, Any]) -> str:
    """Why nothing holds."""
    if privacy["noise"] and "seeded" in privacy["noise"]:
        return (
            "The noise was drawn from a seed. Whoever knows the seed can repeat the noise and subtract it, so the "
            "results protect nobody. This is a test run: do not publish its results."
        )
    if privacy["guarantee"]:
        return (
            "The mechanism was run as it was published, and that one does not keep its promise. Nothing holds for the "
            "people in the data."
        )
    return "Something computed from the data was released without noise that hides it: no finite epsilon holds."


def _cautions(privacy: Mapping[str, Any]) -> tuple[str, ...]:
    cautions = [f"Not covered by epsilon: {fact(leak)}." for leak in privacy["leaks"]]
    if privacy["epsilon"] > REASONABLE:
        cautions.append(
            "At this epsilon an attacker can be nearly certain: the guarantee exists on paper and says little."
        )
    if privacy["n"] and privacy["delta"] >= 1 / privacy["n"]:
        cautions.append(
            f"delta is not below 1 in {privacy['n']:,}, the number of records: publishing a record picked at random "
            "would be allowed by it. It should be smaller."
        )
    return tuple(cautions)


def _key_figures(privacy: Mapping[str, Any]) -> tuple[KeyFigure, ...]:
    figures = _holding(privacy) if privacy["private"] else _void(privacy)
    if privacy["sampler"]:
        sentence = "How a round chose the records it looked at (the sampler)"
        sentence += "; epsilon was computed for exactly this." if privacy["private"] else "."
        figures.append(KeyFigure("records taken", _words.first_up(privacy["sampler"]), sentence, wide=True))
    return tuple(figures)


def _holding(privacy: Mapping[str, Any]) -> list[KeyFigure]:
    epsilon, delta = privacy["epsilon"], privacy["delta"]
    factor = rounded_up(math.exp(epsilon)) if epsilon < 700 else "1e304 or more"
    loss = f"The privacy loss: one record makes no result more than {factor} times as likely. Less is better."
    slack = f"The slack in that promise: roughly a chance of {_words.one_in(delta)} that it fails. Less is better."
    sentence = "The change of the data that must not show: with one record a person, this protects each person."
    return [
        KeyFigure("epsilon", rounded_up(epsilon), loss),
        KeyFigure("delta", _words.decimals(delta), slack),
        KeyFigure("protected against", _changes(privacy)[0], sentence, wide=True),
    ]


def _void(privacy: Mapping[str, Any]) -> list[KeyFigure]:
    loss = "There is no limit to what the results may reveal about one record."
    if privacy["nominal"] is not None and math.isfinite(privacy["nominal"]):
        loss += f" With secret noise the same releases would have epsilon {rounded_up(privacy['nominal'])}."
    slack = "The slack that the run was planned with: it helps nobody where there is no epsilon."
    sentence = "The change of the data that the noise was meant to hide, and does not."
    return [
        KeyFigure("epsilon", "\u221e", loss),
        KeyFigure("delta", _words.decimals(privacy["delta"]), slack),
        KeyFigure("not protected against", _changes(privacy)[0], sentence, wide=True),
    ]


LITTLE = 100
"""n mu below which the noise leaves next to nothing to learn."""

UNSAID = "It was not stated."

_REMEDY = re.compile(
    r"(?:[.;:]|, or) (?:review|give|declare|name|scale by|use|put|write|see)\b.*", re.IGNORECASE | re.DOTALL
)


def card(record: Record) -> list[tuple[str, list[str]]]:
    """The parts of the card, each with its sentences."""
    parts = [
        ("Intended use", [record.purpose or UNSAID]),
        ("Who answers for it", [record.owner or UNSAID]),
        ("Data", [_data(record)]),
        ("Training", [_training(record)]),
        ("Guarantee", [_guarantee(record)]),
        ("Figures", figures(record) or ["Nothing was measured."]),
        ("Limits", limits(record)),
    ]
    return [
        (name, sentences if name == "Data" else [_words.first_up(sentence) for sentence in sentences])
        for name, sentences in parts
    ]


def figures(record: Record) -> list[str]:
    """The measures that were told, in one unit each, beside what a model without inputs reaches."""
    measures = []
    for metric in record.metrics:
        if metric["value"] is None:
            continue
        measure = f"{metric['name']} {_words.measured(metric['name'], metric['value'])}"
        if metric["baseline"] is not None and metric["than"]:
            measure += f" ({metric['than']}: {_words.measured(metric['name'], metric['baseline'])})"
        measures.append(measure)
    return ["; ".join(measures) + "."] if measures else []


def limits(record: Record) -> list[str]:
    """What the model is not good for, in the record's own figures."""
    sentences = [expectation(record)]
    hidden = [metric["name"] for metric in record.metrics if metric["value"] is None and metric["note"]]
    if hidden:
        sentences.append(f"Too few rows were measured to tell: {', '.join(hidden)}.")
    if not record.metrics:
        sentences.append("How well it does on other records is not known.")
    if record.privacy is not None and record.privacy["leaks"]:
        sentences.append(f"The guarantee does not cover: {'; '.join(fact(leak) for leak in record.privacy['leaks'])}.")
    if record.private:
        sentences.append("Its coefficients carry noise: a single one may be off, even in its sign.")
        sentences.append("It protects the records it was made from, not those that it is applied to.")
    sentences.append("It was made for records like those above; of others nothing is known.")
    return [sentence for sentence in sentences if sentence]


def expectation(record: Record) -> str:
    """An honest line where the records are too few, or epsilon too small, for anything to be learned.

    n mu is of public facts: n the number of records, or its estimate, and mu the Gaussian parameter of the budget.
    """
    strength = record.model["strength"]
    if record.privacy is None or strength is None or strength >= LITTLE:
        return ""
    answer = "the most frequent class" if record.model["task"] == "classification" else "the mean"
    return (
        f"Expect no better than always answering {answer}: so few records at so small an epsilon (n mu = "
        f"{strength:.3g}; {LITTLE} is little) leave the training mostly noise. More records or a larger epsilon help."
    )


def fact(leak: str) -> str:
    """What was read off, without the advice that follows it, which is for whoever trains the next model.

    >>> fact("the classes ['a', 'b'] were read from the target column 'y': give --classes a,b.")
    "the classes ['a', 'b'] were read from the target column 'y'"
    >>> fact("the labels (classes) were read from the data and treated as public; give classes=[...]")
    'the labels (classes) were read from the data and treated as public'
    """
    return _REMEDY.sub("", leak).rstrip(" .")


def _data(record: Record) -> str:
    data = record.data
    hidden = record.privacy is not None and record.privacy["n"] is None
    counts = [
        (data["n"], "records"),
        (len(data["fields"] or ()), "fields"),
        (data["test_rows"], "records kept out for the figures"),
        (data["public_rows"], "public records"),
    ]
    sizes = [f"{count:,} {what}" for count, what in counts if count]
    if hidden:
        sizes.insert(0, "a number of records that is not published")
    target = f", to predict \u201c{data['target']}\u201d" if data["target"] else ""
    return f"{data['name']}{': ' + ', '.join(sizes) if sizes else ''}{target}."


def _training(record: Record) -> str:
    model = record.model
    how = f": {model['how']}" if model["how"] else ""
    rounds = f", {model['rounds']:,} rounds" if model["rounds"] else ""
    loss = f"a linear model with {model['loss']} loss" if model["loss"] else f"a model for {model['task']}"
    return f"{loss}, by {model['algorithm']}{how}{rounds}."


def _guarantee(record: Record) -> str:
    if record.privacy is None or not record.private:
        return "None: this model is not private."
    epsilon, delta = rounded_up(record.privacy["epsilon"]), _words.decimals(record.privacy["delta"])
    relations = {"add-remove": "adding or removing one record", "replace-one": "replacing one record"}
    relation = relations.get(record.privacy["adjacency"], record.privacy["adjacency"])
    return f"Differentially private with epsilon {epsilon} and delta {delta}, for {relation}."
