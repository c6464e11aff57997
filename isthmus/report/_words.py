"""Figures and facts in plain words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

_SUPERSCRIPT = str.maketrans("0123456789-", "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207b")
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
    if 0 < abs(value) < 1e-4:
        return _power(value)
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def _power(value: float) -> str:
    """Small numbers by their power of ten.

    >>> _power(1e-5), _power(4.31e-06)
    ('10\u207b\u2075', '4.31 \u00d7 10\u207b\u2076')
    """
    mantissa, exponent = f"{value:.2e}".split("e")
    digits = mantissa.rstrip("0").rstrip(".")
    ten = "10" + str(int(exponent)).translate(_SUPERSCRIPT)
    return ten if digits == "1" else f"{digits} \u00d7 {ten}"


def _decimals(value: float) -> str:
    """A small number with all its zeros, as long as they can be counted.

    >>> _decimals(1e-5), _decimals(4.31e-06), _decimals(1e-9)
    ('0.00001', '0.00000431', '10\u207b\u2079')
    """
    return f"{value:.10f}".rstrip("0") if value >= 1e-6 else _power(value)


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
    """Bytes.

    >>> _size(832), _size(4_160_000)
    ('832 B', '4.16 MB')
    """
    if value is None:
        return NONE
    for unit in ("B", "KB", "MB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} GB"


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
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, int | float):
        return _number(value)
    return _shortened(str(value), 160)


def _times(count: int) -> str:
    """How often something happened.

    >>> _times(1), _times(2000)
    ('once', '2,000 times')
    """
    return "once" if count == 1 else f"{count:,} times"


def _paragraphs(words: str, assumptions: Sequence[str], table: bool = False) -> list[list[str]]:
    """The statement's paragraphs as lines, without the list of assumptions and the table that are shown on their own.

    >>> _paragraphs("It holds.\\nAlways.\\n\\nIt rests on these assumptions:\\n- one record each", ["one record each"])
    [['It holds.', 'Always.']]
    """
    listing = [f"- {assumption}" for assumption in assumptions]
    parts = [part.splitlines() for part in words.split("\n\n") if part.strip()]
    parts = [lines for lines in parts if not (assumptions and lines[1:] == listing)]
    return [lines for lines in parts if not (table and lines[0] == _TABLE)]


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
