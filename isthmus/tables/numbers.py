"""Numbers in text, one entry at a time, by the signs that a file was declared to have.

The decimal sign is never also a sign between thousands, digits are grouped by threes or not at all, and an entry that
looks like a number written with other signs is refused with what to declare: read as missing, or as a thousand times
itself, it would be wrong without a word.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

import numpy as np

OTHER = {".": ",", ",": "."}
_SPACES = "'\u2019 \u00a0\u202f"
"""Signs between thousands that can be nothing else."""
_MONEY = "$€£¥%"


@dataclass(frozen=True)
class Signs:
    """The signs in the numbers of a file.

    decimal    the decimal sign
    thousands  the sign between thousands; None takes the other one of "." and ",", "" takes neither
    declared   whether somebody said so; else entries that only another decimal sign explains are refused
    """

    decimal: str = "."
    thousands: str | None = None
    declared: bool = False

    @staticmethod
    def of(decimal: str | None, separator: str | None) -> Signs:
        """Those of a file with this declared decimal sign (None: undeclared) and this separator of columns.

        Where columns are not separated by commas a comma in a number may be either sign, and nothing but a declaration
        can tell: then none is taken for a sign of thousands.

        >>> Signs.of(None, ","), Signs.of(None, ";"), Signs.of(",", ";")
        (Signs(decimal='.', thousands=None, declared=False), Signs(decimal='.', thousands='', declared=False), \
Signs(decimal=',', thousands=None, declared=True))
        """
        if decimal is not None:
            return Signs(decimal, None, True)
        return Signs(".", None if separator in (None, ",") else "")


def number(word: str, decimal: str = ".", thousands: str | None = None) -> float:
    """The number in a text, NaN where there is none; signs of currency and per cent are ignored.

    >>> number("31.275"), number("1,234.5"), number("$ 1'200"), number("-€3"), number("4%")
    (31.275, 1234.5, 1200.0, -3.0, 4.0)
    >>> number("1,5"), number("0,338"), number("1.234", ","), number("1.234,5", ",")
    (nan, nan, 1234.0, 1234.5)
    """
    if "_" in word:  # Python's own way to group digits
        return np.nan
    if decimal == ".":
        try:
            return float(word)
        except ValueError:
            pass
    bare = word.strip(_MONEY + " ").replace("\u2212", "-")
    if bare[:1] in ("+", "-"):
        bare = bare[0] + bare[1:].lstrip(_MONEY + " ")
    match = _pattern(decimal, thousands).fullmatch(bare)
    if match is None:
        return np.nan
    sign, whole, fraction, power = match.group("sign", "whole", "fraction", "power")
    return float(f"{sign}{re.sub(_NO_DIGIT, '', whole)}.{fraction or '0'}{power or ''}")


_NO_DIGIT = re.compile(r"[^0-9]")


@functools.lru_cache(maxsize=64)
def _pattern(decimal: str, thousands: str | None) -> re.Pattern[str]:
    """Digits, or groups of three after one to three that do not begin with 0; then a fraction and a power of ten."""
    separator = OTHER.get(decimal, "") if thousands is None else thousands
    between = f"[{re.escape(_SPACES + separator)}]"
    grouped = rf"[1-9][0-9]{{0,2}}(?P<group>{between})[0-9]{{3}}(?:(?P=group)[0-9]{{3}})*"
    tail = rf"(?:{re.escape(decimal)}(?P<fraction>[0-9]*))?(?P<power>[eE][+-]?[0-9]+)?"
    begun = rf"(?=[0-9]|{re.escape(decimal)}[0-9])"
    return re.compile(rf"(?P<sign>[+-]?){begun}(?P<whole>{grouped}|[0-9]*){tail}")


def grouping(word: str, decimal: str, thousands: str | None) -> str:
    """The sign between the thousands of a number in text, "" where it has none."""
    bare = word.strip(_MONEY + " ").lstrip("+-").lstrip(_MONEY + " ")
    match = _pattern(decimal, thousands).fullmatch(bare)
    return "" if match is None else match.group("group") or ""
