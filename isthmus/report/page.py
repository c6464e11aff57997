"""The page: a record, put into words, tables and charts, as one HTML file that loads nothing.

What the report says first: whether the run is private, how far that goes, and on what it rests.  A function for each
section makes its words and its charts, None where the record has nothing of it; the template puts them together.
"""

from __future__ import annotations

import math
import os
import re
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from isthmus.base.atomic import atomic_write
from isthmus.report import _words, svg
from isthmus.report.record import FORMAT, Fields, Record, rounded_down, rounded_up

Section = dict[str, Any]

_HERE = Path(__file__).parent
_PEERS = {"Plain DP-SGD": ("dp-sgd", "dp_sgd", "dpsgd"), "Public labels alone": ("public labels", "public alone")}
_STRONG, _REASONABLE = 1.0, 10.0
_RULE = (
    "A common rule of thumb (Ponomareva et al., How to DP-fy ML, 2023): an epsilon of at most 1 is a strong promise, "
    "of at most 10 a reasonable one, above 10 a weak one."
)
_CHANGES = {
    "add-remove": ("Adding or removing one record", "whether one given record was used"),
    "replace-one": ("Replacing one record by another", "which of two given records was used"),
}
_LITTLE = 100
"""n mu below which the noise leaves next to nothing to learn."""
_REMEDY = re.compile(
    r"(?:[.;:]|, or) (?:review|give|declare|name|scale by|use|put|write|see)\b.*", re.IGNORECASE | re.DOTALL
)
_COLUMNS = (
    ("noise_multiplier", "noise multiplier", _words.number, "the noise, in units of the most a record can contribute"),
    ("noise_norm", "noise in a step", _words.number, "the expected length of the noise in one step"),
    ("margin_noise", "noise in a prediction", _words.number, "what has built up in the score of one record at the end"),
    ("dims", "numbers a round", _words.number, "how many numbers leave the data in one round"),
    ("bytes", "bytes", _words.size, "what they weigh in the whole run"),
    ("memory", "memory", _words.size, "an estimate, beside the data"),
    ("passes", "passes", _words.number, "how often the data is read through"),
    ("seconds", "time", _words.duration, "an estimate, on one core"),
)


def render(record: Record) -> str:
    """The report of a record, as HTML text: complete in itself, without scripts, everything escaped.

    Every figure in it is a figure of the record, or follows from one by a formula that is named beside it.  What is not
    in the record is left out, and the end of the report says that it is.
    """
    comparison, noise, energy = _comparison(record), _noise(record), _energy(record)
    promised = record.privacy is not None
    missing = {
        "figures of quality on held-out records": not record.metrics,
        "a comparison with other methods": comparison is None,
        "the privacy spent, by round": len(record.budget["curve"]) < 2 and promised,
        "the length of each step and of its noise": noise is None and promised,
        "captured energy (no directions were learned from public data)": energy is None,
        "a plan": record.plan is None,
        "versions of the software": not record.versions,
    }
    return _template().render(
        record=record,
        verdict=_verdict(record),
        rule=_RULE,
        statement=_statement(record),
        budget=_budget(record),
        trained=_trained(record),
        lede=_lede(record),
        card=_card(record),
        expectation=expectation(record),
        warnings=[fact(warning) + "." for warning in record.warnings],
        metrics=_metrics(record),
        comparison=comparison,
        noise=noise,
        energy=energy,
        plan=_plan(record),
        absent=[name for name, absent in missing.items() if absent],
        curves=_curves(record),
        format=FORMAT,
    )


def write(record: Record, path: str | os.PathLike[str]) -> Path:
    """Write the report of a record to a file; returns its path."""
    text = render(record)
    with atomic_write(Path(path)) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")
    return Path(path)


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {word.__name__: word for word in (_words.number, _words.duration, _words.moment)}
    environment.filters |= {"first_up": _words.first_up, "epsilon": _epsilon}
    environment.filters["measured_as"] = lambda value, name: _words.measured(name, value)
    css = (_HERE / "report.css").read_text(encoding="utf-8")
    environment.globals["css"] = Markup(re.sub(r"/\*.*?\*/", "", css, flags=re.DOTALL).strip())
    return environment.get_template("report.html.jinja")


def _epsilon(value: float | None) -> str:
    return "none" if value is None else rounded_up(value).replace("inf", "\u221e")


# ---------------------------------------------------------------- what comes first


def _verdict(record: Record) -> Section:
    """`tone` is "good", "weak" or "bad"; `cautions` are what a reader must know beside the headline."""
    privacy = record.privacy
    nothing: Section = {"tone": "bad", "headline": "NOT private", "cautions": (), "figures": (), "chart": ""}
    if privacy is None:
        summary = (
            "The run was made without privacy: no noise was added and nothing is promised. What was released may "
            "reveal records that it was trained on."
        )
        return nothing | {"summary": summary}
    delta, (change, question) = privacy["delta"], _change(privacy)
    if not privacy["private"]:
        summary = "Something computed from the data was released without noise that hides it: no finite epsilon holds."
        if privacy["noise"] and "seeded" in privacy["noise"]:
            summary = (
                "The noise was drawn from a seed. Whoever knows the seed can repeat the noise and subtract it, so the "
                "results protect nobody. This is a test run: do not publish its results."
            )
        elif privacy["guarantee"]:
            summary = (
                "The mechanism was run as it was published, and that one does not keep its promise. Nothing holds for "
                "the people in the data."
            )
        loss = "There is no limit to what the results may reveal about one record."
        if privacy["nominal"] is not None and math.isfinite(privacy["nominal"]):
            loss += f" With secret noise the same releases would have epsilon {rounded_up(privacy['nominal'])}."
        figures = [
            ("epsilon", "\u221e", loss),
            ("delta", _words.decimals(delta), "The slack of the plan: it helps nobody where there is no epsilon."),
            ("not protected against", change, "The change that the noise was meant to hide, and does not."),
            *_sampler(privacy, "."),
        ]
        return nothing | {"summary": summary, "figures": figures}
    epsilon, cautions = privacy["epsilon"], [f"Not covered by epsilon: {fact(leak)}." for leak in privacy["leaks"]]
    headline, tone = "Private: a reasonable promise", "good"
    if epsilon <= _STRONG:
        headline = "Private: a strong promise"
    if epsilon > _REASONABLE:
        headline, tone = "Private, but the promise is weak", "weak"
        cautions.append(
            "At this epsilon an attacker can be nearly certain: the guarantee exists on paper and says little."
        )
    if privacy["n"] and delta >= 1 / privacy["n"]:
        cautions.append(
            f"delta is not below 1 in {privacy['n']:,}, the number of records: publishing a record picked at random "
            "would be allowed by it. It should be smaller."
        )
    best = _words.best_guess(epsilon, delta)
    guess = _words.at_most(best)
    summary = (
        f"Somebody who knows everything else and guesses, from even odds, {question} is right at most {guess} of the "
        "time, whatever they compute from the results. Tossing a coin is right 50% of the time."
    )
    if privacy["leaks"]:
        headline, tone = headline + ", but not all that was read is covered", "weak"
        summary += (
            " That holds for what was released with noise. It does not hold for what was read from the data without "
            "any:"
        )
    if record.warnings:
        headline, tone = headline + ", subject to the warnings below", "weak"
    factor = rounded_up(math.exp(epsilon)) if epsilon < 700 else "1e304 or more"
    chance = _words.one_in(delta)
    figures = [
        (
            "epsilon",
            rounded_up(epsilon),
            f"The privacy loss: one record makes no result more than {factor} times as likely. Less is better.",
        ),
        (
            "delta",
            _words.decimals(delta),
            f"The slack in that promise: roughly a chance of {chance} that it fails. Less is better.",
        ),
        (
            "protected against",
            change,
            "The change of the data that must not show: with one record a person, this protects each person.",
        ),
        *_sampler(privacy, "; epsilon was computed for exactly this."),
    ]
    odds = [
        (0.5, "a coin toss: 50%", "soft"),
        (best - 0.5, f"what the results add, at most: up to {guess}", "strong"),
    ]
    chart = svg.meter("odds", "How often a guess about one record can be right", odds, 1.0, ("never", "always right"))
    return {
        **{"tone": tone, "headline": headline, "summary": summary},
        **{"cautions": cautions, "figures": figures, "chart": chart},
    }


def _change(privacy: Fields) -> tuple[str, str]:
    """The change that must not show, and what an attacker asks of it."""
    relation = privacy["adjacency"]
    return _CHANGES.get(relation, (relation, "which of two neighbouring sets of records was used"))


def _sampler(privacy: Fields, end: str) -> list[tuple[str, str, str]]:
    if not privacy["sampler"]:
        return []
    meaning = "How a round chose the records it looked at (the sampler)"
    return [("records taken", _words.first_up(privacy["sampler"]), meaning + end)]


def _statement(record: Record) -> Section | None:
    if record.privacy is None:
        return None
    assumptions, words = record.privacy["assumptions"], record.words
    for leak in record.privacy["leaks"]:
        words = words.replace(leak, fact(leak))
    releases = [{**row, "times": _words.times(row["times"])} for row in record.privacy["releases"]]
    paragraphs = _words.paragraphs(words, assumptions, table=bool(releases))
    return {"paragraphs": paragraphs, "assumptions": assumptions, "releases": releases}


def _lede(record: Record) -> str:
    """One sentence: what was trained, on what, how."""
    data, model = record.data, record.model
    subject = f"A {model['task']} model" + (f" that predicts \u201c{data['target']}\u201d" if data["target"] else "")
    width = (len(data["fields"]), "fields") if data["fields"] else (data["d"], "columns")
    size = ", ".join(f"{count:,} {what}" for count, what in ((data["n"], "records"), width) if count)
    rounds = f" in {model['rounds']:,} rounds" if model["rounds"] else ""
    return f"{subject}, trained by {model['algorithm']}{rounds} on {data['name']}{f' ({size})' if size else ''}."


# ---------------------------------------------------------------- the model card


def _card(record: Record) -> list[tuple[str, list[str]]]:
    """The parts of the card, each with its sentences: what the model is for, what it promises, and where it ends."""
    data, model, privacy = record.data, record.model, record.privacy
    counts = [
        (data["n"], "records"),
        (len(data["fields"]), "fields"),
        (data["test_rows"], "records kept out for the figures"),
        (data["public_rows"], "public records"),
    ]
    sizes = [f"{count:,} {what}" for count, what in counts if count]
    if privacy is not None and privacy["n"] is None:
        sizes.insert(0, "a number of records that is not published")
    target = f", to predict \u201c{data['target']}\u201d" if data["target"] else ""
    kind = f"A linear model with {model['loss']} loss" if model["loss"] else f"A model for {model['task']}"
    how = f": {model['how']}" if model["how"] else ""
    rounds = f", {model['rounds']:,} rounds" if model["rounds"] else ""
    guarantee = "None: this model is not private."
    if privacy is not None and record.private:
        relations = {"add-remove": "adding or removing one record", "replace-one": "replacing one record"}
        guarantee = (
            f"Differentially private with epsilon {rounded_up(privacy['epsilon'])} and delta "
            f"{_words.decimals(privacy['delta'])}, for {relations.get(privacy['adjacency'], privacy['adjacency'])}."
        )
    figures = []
    for metric in record.metrics:
        if metric["value"] is not None:
            figures.append(f"{metric['name']} {_words.measured(metric['name'], metric['value'])}")
            if metric["baseline"] is not None and metric["than"]:
                figures[-1] += f" ({metric['than']}: {_words.measured(metric['name'], metric['baseline'])})"
    measured = _words.first_up("; ".join(figures)) + "." if figures else "Nothing was measured."
    return [
        ("Intended use", [_words.first_up(record.purpose or "It was not stated.")]),
        ("Who answers for it", [_words.first_up(record.owner or "It was not stated.")]),
        ("Data", [f"{data['name']}{': ' + ', '.join(sizes) if sizes else ''}{target}."]),
        ("Training", [f"{kind}, by {model['algorithm']}{how}{rounds}."]),
        ("Guarantee", [guarantee]),
        ("Figures", [measured]),
        ("Limits", _limits(record)),
    ]


def _limits(record: Record) -> list[str]:
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
    if record.privacy is None or strength is None or strength >= _LITTLE:
        return ""
    answer = "the most frequent class" if record.model["task"] == "classification" else "the mean"
    return (
        f"Expect no better than always answering {answer}: so few records at so small an epsilon (n mu = "
        f"{strength:.3g}; {_LITTLE} is little) leave the training mostly noise. More records or a larger epsilon help."
    )


def fact(leak: str) -> str:
    """What was read off, without the advice that follows it, which is for whoever trains the next model.

    >>> fact("the classes ['a', 'b'] were read from the target column 'y': give --classes a,b.")
    "the classes ['a', 'b'] were read from the target column 'y'"
    >>> fact("the labels (classes) were read from the data and treated as public; give classes=[...]")
    'the labels (classes) were read from the data and treated as public'
    """
    return _REMEDY.sub("", leak).rstrip(" .")


# ---------------------------------------------------------------- the sections


def _budget(record: Record) -> Section | None:
    """Asked, spent and shared; None where nothing of it is in the record."""
    budget, privacy = record.budget, record.privacy
    target, curve, shared = budget["epsilon"], budget["curve"], budget["shared"]
    if privacy is None or (target is None and not curve and shared is None):
        return None
    section = {"asked": target, "spent": privacy["epsilon"], "shared": shared, "chart": "", "shared_chart": ""}
    if len(curve) > 1:
        levels = []
        if target is not None and math.isfinite(target):
            levels = [(target, f"asked for: {_words.number(target)}")]
        line = ("epsilon spent", curve)
        section["chart"] = svg.lines(
            "budget", "Privacy spent, by round", [line], "round", "epsilon spent", levels=levels, zero=True
        )
    if shared is not None and shared["epsilon"] > 0:
        unspent = max(0.0, shared["epsilon"] - shared["spent"])
        parts = [
            (shared["spent"], f"spent so far, by all runs: epsilon {rounded_up(shared['spent'])}", "strong"),
            (unspent, f"left: epsilon {rounded_down(unspent)}", "empty"),
        ]
        ends = ("0", f"epsilon {_words.number(shared['epsilon'])}")
        section["shared_chart"] = svg.meter("shared", "The shared budget", parts, shared["epsilon"], ends)
    return section


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


def _comparison(record: Record) -> Section | None:
    """The other runs and this one, which is found among them or put before them from its own figures."""
    rows: list[Section] = [{**row, "own": False} for row in record.comparison]
    if not rows:
        return None
    measure = rows[0]["metric"]
    kind = _words.metric_key(measure)
    mine = [m["value"] for m in record.metrics if _words.metric_key(m["name"]) == kind and m["value"] is not None]
    if mine:
        dims = record.model["dims"]
        own = next((row for row in rows if row["score"] == mine[0] and row["dims"] in (None, dims)), None)
        if own is None:
            epsilon = math.inf if record.privacy is None else record.privacy["epsilon"]
            own = {"name": record.model["algorithm"], "epsilon": epsilon, "score": mine[0], "metric": measure}
            own |= {"dims": dims, "seconds": record.model["seconds"], "note": None}
            rows.insert(0, own)
        own["own"] = True
    names = [row["name"].lower() for row in rows]
    found = {peer: any(key in name for key in keys for name in names) for peer, keys in _PEERS.items()}
    scored = [row for row in rows if row["score"] is not None]
    same = [row for row in scored if _words.metric_key(row["metric"]) == _words.metric_key(scored[0]["metric"])]
    bars = [(f"{row['name']} (this run)" if row["own"] else row["name"], row["score"], row["own"]) for row in same]
    chart = ""
    if len(bars) > 1:
        percent = _words.is_share(same[0]["metric"], [score for _, score, _ in bars])
        chart = svg.bars("comparison", "Scores side by side", bars, percent)
    return {
        "rows": rows,
        "chart": chart,
        "found": found,
        "missing": [peer for peer, there in found.items() if not there],
        "measure": _words.first_up(measure or "") if len({row["metric"] for row in rows}) == 1 else "",
        "unprotected": any(row["epsilon"] == math.inf for row in rows),
        "gaps": any(row[name] is None for row in rows for name in ("epsilon", "score", "dims", "seconds")),
    }


def _curves(record: Record) -> list[tuple[Fields, Markup]]:
    drawn = []
    for i, curve in enumerate(record.curves):
        series = [(line["name"], list(zip(line["x"], line["y"], strict=True))) for line in curve["series"]]
        if any(y is not None for _, points in series for _, y in points):
            shares: dict[str, Any] = {"zero": True, "percent": True, "top": 1.0} if curve["shares"] else {}
            labels = curve["x_label"] or "x", curve["y_label"] or "y"
            drawn.append((curve, svg.lines(f"curve{i}", curve["title"], series, *labels, **shares)))
    return drawn


def _noise(record: Record) -> Section | None:
    """How long the noise is beside the steps, drawn as root mean squares over stretches of the rounds."""
    rows = [(row["t"], row["moved"], row["noise"]) for row in record.history]
    rows = [row for row in rows if None not in row]
    ratios = [noise / moved for _, moved, noise in rows if moved > 0]
    if not rows:
        return None
    stretch = -(-len(rows) // 60)  # single steps jump, and there may be thousands
    pieces = [rows[i : i + stretch] for i in range(0, len(rows), stretch)]
    series = [
        (name, [(piece[-1][0], math.hypot(*(row[i] for row in piece)) / math.sqrt(len(piece))) for piece in pieces])
        for i, name in ((1, "step"), (2, "noise in it"))
    ]
    label = "length" if stretch == 1 else f"length, averaged over {stretch} rounds"
    chart = svg.lines("noise", "Length of each step and of its noise", series, "round", label, zero=True)
    return {"ratio": f"{median(ratios):.2g}", "rounds": len(ratios), "chart": chart} if ratios else None


def _energy(record: Record) -> Section | None:
    """What the chosen number of directions keeps, where the curve says so."""
    energy = record.energy
    if energy is None or not energy["k"]:
        return None
    k, shares, chosen = energy["k"], energy["captured"], energy["chosen"]
    kept = f"{100 * shares[k.index(chosen)]:.3g}%" if chosen in k else None
    marks = [] if chosen is None else [(chosen, f"used: k = {chosen}")]
    options: dict[str, Any] = {"marks": marks, "zero": True, "percent": True, "top": 1.0, "decades": True}
    labels = "directions kept, k", "share of the gradient kept"
    chart = svg.lines("energy", "Captured energy", [("kept", list(zip(k, shares, strict=True)))], *labels, **options)
    return {"chosen": chosen, "kept": kept, "source": energy["source"], "chart": chart}


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
