"""The page: a record, put into words, tables and charts, as one HTML file that loads nothing.

What the report says first: whether the run is private, how far that goes, and on what it rests.  A function for each
section makes its words and its charts, None where the record has nothing of it; the template puts them together.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from jinja2.filters import do_filesizeformat
from markupsafe import Markup

from isthmus.base.atomic import atomic_write
from isthmus.base.notebook import rounded_down, rounded_up
from isthmus.report import svg
from isthmus.report.record import FORMAT, Fields, Record

Section = dict[str, Any]

_HERE = Path(__file__).parent
_STRONG, _REASONABLE = 1.0, 10.0
_CHANGES = {
    "add-remove": ("Adding or removing one record", "whether one given record was used"),
    "replace-one": ("Replacing one record by another", "which of two given records was used"),
}
_NOTHING, _LITTLE = 15, 50
"""n mu below which next to no model, and below which two in five, were better than none (docs/planner.md)."""
_REMEDY = re.compile(
    r"(?:[.;:]|, or) (?:review|give|declare|name|scale by|use|put|write|see)\b.*", re.IGNORECASE | re.DOTALL
)
NONE = "\u2013"
_TABLE = "What was released:"

METRICS = {
    "accuracy": "the share of records whose class was predicted rightly",
    "balanced accuracy": "the share predicted rightly, averaged over the classes",
    "r2": "the share of the target's variation that is explained; 0 is no better than always guessing the mean",
    "auc": "how often a positive record scores above a negative one; 50% is guessing",
    "log loss": "the cost of confident mistakes; lower is better",
    "mean squared error": "the average squared mistake; lower is better",
    "mean absolute error": "the average size of a mistake; lower is better",
    "root mean squared error": "the size of a mistake, large ones counting more; lower is better",
    "recall": "the share of the records of this class that were found",
    "precision": "the share of the records called so that are",
    "calibration error": "how far probabilities and what happened lie apart on average; 0% is none",
}
_ALIASES = {"r2 score": "r2", "r^2": "r2", "roc auc": "auc", "mse": "mean squared error", "mae": "mean absolute error"}
_ALIASES |= {"rmse": "root mean squared error"}
_SHARES = ("accuracy", "balanced accuracy", "auc", "recall", "precision", "calibration error")


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
    filters: list[Callable[..., str]] = [_number, _duration, _moment, _first_up, _decimals, _one_in, _times, _listed]
    filters += [_argument, _measured, _spread, _meaning, _fact, _epsilon, rounded_up]
    environment.filters |= {words.__name__.lstrip("_"): words for words in filters}
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
    best = _best_guess(epsilon, privacy["delta"])
    guess = _at_most(best)
    odds = [(0.5, "a coin toss: 50%", "soft"), (best - 0.5, f"what the results add, at most: up to {guess}", "strong")]
    factor = rounded_up(math.exp(epsilon)) if epsilon < 700 else "1e304 or more"
    return {"tone": tone, "headline": headline, "change": change, "guess": guess, "odds": odds, "factor": factor}


def _statement(record: Record) -> list[list[str]]:
    """The statement's paragraphs as lines: leaks without the advice for whoever trains the next model, and without the
    assumptions and the table of releases, which are shown on their own.
    """
    words, privacy = record.words, record.privacy
    if privacy is None:
        return []
    for leak in privacy["leaks"]:
        words = words.replace(leak, _fact(leak))
    shown_below = "\n".join(f"- {assumption}" for assumption in privacy["assumptions"])
    paragraphs = [part.strip("\n") for part in words.split("\n\n") if part.strip()]
    paragraphs = [part for part in paragraphs if not shown_below or part.partition("\n")[2] != shown_below]
    return [part.splitlines() for part in paragraphs if not (privacy["releases"] and part.startswith(_TABLE))]


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
    expect = "Expect no better" if strength < _NOTHING else "It may be no better"
    return (
        f"{expect} than always answering {answer}: so few records at so small an epsilon (n mu = "
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
            levels = [(target, f"asked for: {_number(target)}")]
        words, line = ("Privacy spent, by round", [("epsilon spent", curve)]), ("round", "epsilon spent")
        section["chart"] = svg.lines("budget", *words, *line, levels=levels, zero=True)
    if shared is not None and shared["epsilon"] > 0:
        whole, spent = shared["epsilon"], shared["spent"]
        left = max(0.0, whole - spent)
        told = f"spent so far, by all runs: epsilon {rounded_up(spent)}"
        section["parts"] = [(spent / whole, told, "strong"), (left / whole, f"left: epsilon {rounded_down(left)}", "")]
        section["ends"] = ("0", f"epsilon {_number(whole)}")
    return section


def _comparison(record: Record) -> Section | None:
    """The other runs and this one, which is found among them or put before them from its own figures."""
    rows: list[Section] = [{**row, "own": False, "share": None} for row in record.comparison]
    if not rows:
        return None
    measure, dims = rows[0]["metric"], record.model["dims"]
    kind = _metric_key(measure)
    mine = [m["value"] for m in record.metrics if _metric_key(m["name"]) == kind and m["value"] is not None]
    if mine:
        own = next((row for row in rows if row["score"] == mine[0] and row["dims"] in (None, dims)), None)
        if own is None:
            epsilon = math.inf if record.privacy is None else record.privacy["epsilon"]
            own = {"name": record.model["algorithm"], "epsilon": epsilon, "score": mine[0], "metric": measure}
            own |= {"dims": dims, "seconds": record.model["seconds"], "note": None, "share": None}
            rows.insert(0, own)
        own["own"] = True
    same = [row for row in rows if row["score"] is not None and _metric_key(row["metric"]) == kind]
    scores = [row["score"] for row in same]
    most = max(float(_is_share(measure, scores)), 0.0, *scores)
    for row in same:  # the length of its bar
        row["share"] = max(0.0, row["score"] / (most or 1.0))
    measures = {row["metric"] for row in rows}
    return {
        "rows": rows,
        "measure": _first_up(measure or "") * (len(measures) == 1),
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


# ---------------------------------------------------------------- figures and facts in plain words


def _metric_key(name: str | None) -> str:
    """A measure's usual name.

    >>> _metric_key("Test accuracy"), _metric_key("R2"), _metric_key("roc_auc"), _metric_key("recall of yes")
    ('accuracy', 'r2', 'auc', 'recall')
    """
    plain = (name or "").replace("_", " ").lower().removeprefix("test ").strip()
    kind = next((start for start in ("recall", "precision") if plain.startswith((f"{start} of ", f"{start}, "))), plain)
    return _ALIASES.get(kind, kind)


def _is_share(name: str | None, values: Sequence[float]) -> bool:
    """Whether a measure is written in percent."""
    return _metric_key(name) in _SHARES and all(0 <= value <= 1 for value in values)


def _meaning(name: str) -> str:
    """What a measure says, where it is a usual one."""
    return METRICS.get(_metric_key(name), "")


def _measured(value: float | None, name: str | None) -> str:
    """A measure's value.

    >>> _measured(0.8473, "accuracy"), _measured(0.5912, "R2"), _measured(None, "R2")
    ('84.73%', '0.5912', '\u2013')
    """
    if value is not None and _is_share(name, [value]):
        return f"{100 * value:.2f}%"
    return _number(value)


def _spread(value: float | None, name: str | None) -> str:
    """The size of the noise in a measure, in the measure's unit: two digits say enough.

    >>> _spread(0.003294, "accuracy"), _spread(0.02731, "R2"), _spread(None, "R2")
    ('0.33%', '0.027', '')
    """
    if not value:
        return ""
    return f"{100 * value:.2g}%" if _is_share(name, [value]) else f"{value:.2g}"


def _first_up(words: str) -> str:
    """The first letter as a capital, the others as they are."""
    return words[:1].upper() + words[1:]


def _number(value: float | None) -> str:
    """Four digits, thousands apart.

    >>> _number(1234567), _number(0.123456), _number(None), _number(math.inf)
    ('1,234,567', '0.1235', '\u2013', '\u221e')
    """
    if value is None:
        return NONE
    if math.isinf(value):
        return "\u221e"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def _decimals(value: float) -> str:
    """A small number with all its zeros, as long as they can be counted.

    >>> _decimals(1e-5), _decimals(4.31e-06), _decimals(1e-9)
    ('0.00001', '0.00000431', '1e-09')
    """
    return f"{value:.10f}".rstrip("0") if value >= 1e-6 else f"{value:.3g}"


def _one_in(share: float) -> str:
    """A small probability as a chance, never rounded to a smaller one.

    >>> _one_in(1e-5), _one_in(3e-6)
    ('1 in 100,000', '1 in 333,333')
    >>> _one_in(5e-324)
    'less than 1 in 10^300'
    """
    chance = 1 / share
    return f"1 in {math.floor(chance + 1e-6):,}" if math.isfinite(chance) else "less than 1 in 10^300"


def _size(value: float | None) -> str:
    """Bytes."""
    return NONE if value is None else do_filesizeformat(value)


def _duration(seconds: float | None) -> str:
    """Seconds, minutes or hours.

    >>> _duration(0.2234), _duration(200), _duration(9000)
    ('0.22 s', '3 min 20 s', '2 h 30 min')
    """
    if seconds is None:
        return NONE
    if seconds < 99.5:
        return f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _moment(created: str | None) -> str:
    """A date and time to read; with a zone it is told in UTC.

    >>> _moment("2026-05-04T10:30:00+02:00")
    '4 May 2026, 08:30 UTC'
    """
    if created is None:
        return ""
    when, zone = datetime.fromisoformat(created), ""
    if when.tzinfo is not None:
        when, zone = when.astimezone(UTC), " UTC"
    return f"{when.day} {when:%B %Y, %H:%M}{zone}"


def _listed(names: Sequence[str] | None, most: int = 24) -> str:
    """The first names, and how many more there are.

    >>> _listed(["age", "sex", "city"], most=2)
    'age, sex and 1 more'
    """
    if not names:
        return ""
    listing = ", ".join(_shortened(name, 60) for name in names[:most])
    return listing + f" and {len(names) - most:,} more" * (len(names) > most)


def _shortened(words: str, most: int) -> str:
    return words if len(words) <= most else words[: most - 1] + "\u2026"


def _argument(value: object) -> str:
    """An argument's value; long lists by their length."""
    if isinstance(value, Mapping):
        inner = ", ".join(f"{key} {_argument(item)}" for key, item in value.items())
        return inner if len(inner) <= 120 else f"{len(value)} settings"
    if isinstance(value, tuple):
        return ", ".join(map(_argument, value)) if len(value) <= 6 else f"{len(value):,} values"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _number(value)
    return _shortened({"True": "yes", "False": "no", "None": "none"}.get(str(value), str(value)), 160)


def _times(count: int) -> str:
    """How often something happened.

    >>> _times(1), _times(2000)
    ('once', '2,000 times')
    """
    return "once" if count == 1 else f"{count:,} times"


def _best_guess(epsilon: float, delta: float) -> float:
    """How often a guess between neighbouring data sets, from even odds, can be right: (e^eps + delta) / (e^eps + 1).

    >>> round(_best_guess(1.0, 1e-5), 4), _best_guess(math.inf, 1e-5)
    (0.7311, 1.0)
    """
    likely = math.exp(min(epsilon, 700.0))
    return min(1.0, (likely + delta) / (likely + 1))


def _at_most(share: float) -> str:
    """A share in percent, never rounded down; 100% is said only of 1.

    >>> _at_most(0.73106), _at_most(0.99999), _at_most(1.0)
    ('73.2%', '99.999%', '100%')
    """
    rounded = ((digits, math.ceil(share * 10 ** (digits + 2) - 1e-6) / 10**digits) for digits in range(1, 7))
    digits, up = next((pair for pair in rounded if pair[1] < 100), (1, 100.0))
    return f"{up:.{digits}f}".rstrip("0").rstrip(".") + "%"


_COLUMNS = (
    ("noise_multiplier", "noise multiplier", _number, "the noise, in units of the most a record can contribute"),
    ("noise_norm", "noise in a step", _number, "the expected length of the noise in one step"),
    (
        "margin_noise",
        "noise in a prediction",
        _number,
        "what has built up in the score of one record at the end",
    ),
    ("dims", "numbers a round", _number, "how many numbers leave the data in one round"),
    ("bytes", "bytes", _size, "what they weigh in the whole run"),
    ("memory", "memory", _size, "an estimate, beside the data"),
    ("passes", "passes", _number, "how often the data is read through"),
    ("seconds", "time", _duration, "an estimate, on one core"),
)
"""What the plan says of an algorithm: the field, its name, how it is written, what it means."""
