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
    ("noise_multiplier", "noise multiplier", _words._number, "the noise, in units of the most a record can contribute"),
    ("noise_norm", "noise in a step", _words._number, "the expected length of the noise in one step"),
    (
        "margin_noise",
        "noise in a prediction",
        _words._number,
        "what has built up in the score of one record at the end",
    ),
    ("dims", "numbers a round", _words._number, "how many numbers leave the data in one round"),
    ("bytes", "bytes", _words._size, "what they weigh in the whole run"),
    ("memory", "memory", _words._size, "an estimate, beside the data"),
    ("passes", "passes", _words._number, "how often the data is read through"),
    ("seconds", "time", _words._duration, "an estimate, on one core"),
)


def render(record: Record) -> str:
    """The report of a record, as HTML text: complete in itself, without scripts, everything escaped.

    Every figure in it is a figure of the record, or follows from one by a formula that is named beside it.  What is not
    in the record is left out, and the end of the report says that it is.
    """
    sections = {
        "verdict": _verdict(record),
        "paragraphs": _statement(record),
        "budget": _budget(record),
        "expectation": expectation(record),
        "comparison": _comparison(record),
        "noise": _noise(record),
        "energy": _energy(record),
        "plan": _plan(record),
        "curves": _curves(record),
    }
    return _template().render({**vars(record), **sections, "record": record, "format": FORMAT})


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
    filters = ["number", "duration", "moment", "first_up", "decimals", "one_in", "times", "listed", "argument"]
    environment.filters |= {name: vars(_words)[f"_{name}"] for name in (*filters, "measured", "spread", "meaning")}
    environment.filters |= {"fact": _fact, "epsilon": _epsilon, "rounded_up": rounded_up}
    css = (_HERE / "report.css").read_text(encoding="utf-8")
    environment.globals["css"] = Markup(re.sub(r"/\*.*?\*/", "", css, flags=re.DOTALL).strip())
    return environment.get_template("report.html.jinja")


def _epsilon(value: float | None) -> str:
    return "none" if value is None else rounded_up(value).replace("inf", "\u221e")


# ---------------------------------------------------------------- the sections


def _verdict(record: Record) -> Section:
    """How good the promise is: a tone ("good", "weak" or "bad"), a headline, and what an attacker can reach."""
    privacy = record.privacy
    if privacy is None:
        return {"tone": "bad", "headline": "NOT private"}
    relation = privacy["adjacency"]
    change = _CHANGES.get(relation, (relation, "which of two neighbouring sets of records was used"))
    if not privacy["private"]:
        return {"tone": "bad", "headline": "NOT private", "change": change}
    epsilon = privacy["epsilon"]
    headline, tone = "Private: a reasonable promise", "good"
    if epsilon <= _STRONG:
        headline = "Private: a strong promise"
    if epsilon > _REASONABLE:
        headline, tone = "Private, but the promise is weak", "weak"
    if privacy["leaks"]:
        headline, tone = f"{headline}, but not all that was read is covered", "weak"
    if record.warnings:
        headline, tone = f"{headline}, subject to the warnings below", "weak"
    best = _words._best_guess(epsilon, privacy["delta"])
    guess = _words._at_most(best)
    odds = [(0.5, "a coin toss: 50%", "soft"), (best - 0.5, f"what the results add, at most: up to {guess}", "strong")]
    factor = rounded_up(math.exp(epsilon)) if epsilon < 700 else "1e304 or more"
    return {"tone": tone, "headline": headline, "change": change, "guess": guess, "odds": odds, "factor": factor}


def _statement(record: Record) -> list[list[str]]:
    """The paragraphs of the statement, leaks without the advice for whoever trains the next model."""
    words, privacy = record.words, record.privacy
    if privacy is None:
        return []
    for leak in privacy["leaks"]:
        words = words.replace(leak, _fact(leak))
    return _words._paragraphs(words, privacy["assumptions"], bool(privacy["releases"]))


def _fact(leak: str) -> str:
    """What was read off, without the advice that follows it, which is for whoever trains the next model.

    >>> _fact("the classes ['a', 'b'] were read from the target column 'y': give --classes a,b.")
    "the classes ['a', 'b'] were read from the target column 'y'"
    >>> _fact("the labels (classes) were read from the data and treated as public; give classes=[...]")
    'the labels (classes) were read from the data and treated as public'
    """
    return _REMEDY.sub("", leak).rstrip(" .")


def expectation(record: Record) -> str:
    """An honest line where the records are too few, or epsilon too small, for anything to be learned.

    n mu is of public facts: n the number of records, or its estimate, and mu the Gaussian parameter of the budget.
    """
    strength = record.model["strength"]
    if record.privacy is None or strength is None or strength >= _LITTLE:
        return ""
    answer = {"classification": "the most frequent class", "regression": "the mean"}[record.model["task"]]
    return (
        f"Expect no better than always answering {answer}: so few records at so small an epsilon (n mu = "
        f"{strength:.3g}; {_LITTLE} is little) leave the training mostly noise. More records or a larger epsilon help."
    )


def _budget(record: Record) -> Section | None:
    """Asked, spent and shared; None where nothing of it is in the record."""
    budget, privacy = record.budget, record.privacy
    target, curve, shared = budget["epsilon"], budget["curve"], budget["shared"]
    if privacy is None or (target is None and not curve and shared is None):
        return None
    section = {"asked": target, "spent": privacy["epsilon"], "shared": shared, "chart": "", "parts": [], "ends": ()}
    if len(curve) > 1:
        levels = []
        if target is not None and math.isfinite(target):
            levels = [(target, f"asked for: {_words._number(target)}")]
        words, line = ("Privacy spent, by round", [("epsilon spent", curve)]), ("round", "epsilon spent")
        section["chart"] = svg.lines("budget", *words, *line, levels=levels, zero=True)
    if shared is not None and shared["epsilon"] > 0:
        whole, spent = shared["epsilon"], shared["spent"]
        left = max(0.0, whole - spent)
        told = f"spent so far, by all runs: epsilon {rounded_up(spent)}"
        section["parts"] = [(spent / whole, told, "strong"), (left / whole, f"left: epsilon {rounded_down(left)}", "")]
        section["ends"] = ("0", f"epsilon {_words._number(whole)}")
    return section


def _comparison(record: Record) -> Section | None:
    """The other runs and this one, which is found among them or put before them from its own figures."""
    rows: list[Section] = [{**row, "own": False, "share": None} for row in record.comparison]
    if not rows:
        return None
    measure, dims = rows[0]["metric"], record.model["dims"]
    kind = _words._metric_key(measure)
    mine = [m["value"] for m in record.metrics if _words._metric_key(m["name"]) == kind and m["value"] is not None]
    if mine:
        own = next((row for row in rows if row["score"] == mine[0] and row["dims"] in (None, dims)), None)
        if own is None:
            epsilon = math.inf if record.privacy is None else record.privacy["epsilon"]
            own = {"name": record.model["algorithm"], "epsilon": epsilon, "score": mine[0], "metric": measure}
            own |= {"dims": dims, "seconds": record.model["seconds"], "note": None, "share": None}
            rows.insert(0, own)
        own["own"] = True
    same = [row for row in rows if row["score"] is not None and _words._metric_key(row["metric"]) == kind]
    scores = [row["score"] for row in same]
    most = max(float(_words._is_share(measure, scores)), 0.0, *scores)
    for row in same:  # the length of its bar
        row["share"] = max(0.0, row["score"] / (most or 1.0))
    names = "\n".join(row["name"].lower() for row in rows)
    found = {peer: any(key in names for key in keys) for peer, keys in _PEERS.items()}
    measures = {row["metric"] for row in rows}
    return {
        "rows": rows,
        "found": found,
        "missing": [peer for peer, there in found.items() if not there],
        "measure": _words._first_up(measure or "") * (len(measures) == 1),
        "unprotected": any(row["epsilon"] == math.inf for row in rows),
        "gaps": any(row[name] is None for row in rows for name in ("epsilon", "score", "dims", "seconds")),
    }


def _curves(record: Record) -> list[tuple[Fields, Markup]]:
    drawn = []
    for i, curve in enumerate(record.curves):
        series = [(line["name"], list(zip(line["x"], line["y"], strict=True))) for line in curve["series"]]
        if any(y is not None for _, points in series for _, y in points):
            labels = curve["x_label"] or "x", curve["y_label"] or "y"
            drawn.append((curve, svg.lines(f"curve{i}", curve["title"], series, *labels, shares=bool(curve["shares"]))))
    return drawn


def _noise(record: Record) -> Section | None:
    """How long the noise is beside the steps, drawn as root mean squares over stretches of the rounds."""
    rows = [(row["t"], row["moved"], row["noise"]) for row in record.history if None not in row.values()]
    ratios = [noise / moved for _, moved, noise in rows if moved > 0]
    if not ratios:
        return None
    stretch, label = -(-len(rows) // 60), "length"  # single steps jump, and there may be thousands
    if stretch > 1:
        label = f"length, averaged over {stretch} rounds"
    pieces = [rows[at : at + stretch] for at in range(0, len(rows), stretch)]
    series = [
        (name, [(piece[-1][0], math.hypot(*(row[k] for row in piece)) / math.sqrt(len(piece))) for piece in pieces])
        for k, name in ((1, "step"), (2, "noise in it"))
    ]
    chart = svg.lines("noise", "Length of each step and of its noise", series, "round", label, zero=True)
    return {"ratio": f"{median(ratios):.2g}", "rounds": len(ratios), "chart": chart}


def _energy(record: Record) -> Section | None:
    """What the chosen number of directions keeps, where the curve says so."""
    energy = record.energy
    if energy is None or not energy["k"]:
        return None
    points, chosen, marks = list(zip(energy["k"], energy["captured"], strict=True)), energy["chosen"], []
    kept = next((f"{100 * share:.3g}%" for k, share in points if k == chosen), None)
    if chosen is not None:
        marks = [(chosen, f"used: k = {chosen}")]
    labels = ("directions kept, k", "share of the gradient kept")
    chart = svg.lines("energy", "Captured energy", [("kept", points)], *labels, marks=marks, shares=True, decades=True)
    return {"chosen": chosen, "kept": kept, "source": energy["source"], "chart": chart}


def _plan(record: Record) -> Section | None:
    """The choices with the one that was run marked, and the columns that they have figures for."""
    if record.plan is None:
        return None
    choices, model = record.plan["choices"], record.model
    same = [i for i, choice in enumerate(choices) if choice["algorithm"] == model["algorithm"]]
    exact = [i for i in same if choices[i]["name"] == model["choice"]]
    columns = [column for column in _COLUMNS if any(choice[column[0]] is not None for choice in choices)]
    return {**record.plan, "chosen": next(iter(exact + same), None), "columns": columns}
