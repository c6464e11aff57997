"""Numbers in text, one entry at a time, by the signs that a file was declared to have.

The decimal sign is never also a sign between thousands, digits are grouped by threes or not at all, and an entry that
looks like a number written with other signs is refused with what to declare: read as missing, or as a thousand times
itself, it would be wrong without a word.

Dates in text, one entry at a time and in one format a column: ISO, or the one that was declared.

`01/02/2024` is the first of February or the second of January, and nothing in the entry says which: no order of day and
month is ever tried.  A column has the format that its schema declares, or ISO (2024-12-31, 2024/12/31, also with a time
and a zone); any other entry with digits is refused with what to declare.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta

import numpy as np

from isthmus.base import validate

OTHER = {".": ",", ",": "."}

_SPACES = "'\u2019 \u00a0\u202f"
"""Signs between thousands that can be nothing else."""

_MONEY = "$€£¥%"


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


def _grouping(word: str, decimal: str, thousands: str | None) -> str:
    """The sign between the thousands of a number in text, "" where it has none."""
    bare = word.strip(_MONEY + " ").lstrip("+-").lstrip(_MONEY + " ")
    match = _pattern(decimal, thousands).fullmatch(bare)
    return (match and match.group("group")) or ""


_EPOCH = date(1970, 1, 1).toordinal()

START = datetime(1970, 1, 1)

_DAY = 86_400e6
"""Microseconds."""

FORMATS = tuple(
    f"{order}{time}"
    for order in (
        *("%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%d/%m/%y", "%m/%d/%y", "%d.%m.%y"),
        *("%d %b %Y", "%b %d %Y", "%b %d, %Y", "%d-%b-%Y", "%b-%d-%Y", "%d-%b-%y", "%d %B %Y", "%B %d, %Y", "%B %d %Y"),
    )
    for time in ("", " %H:%M", " %H:%M:%S")
)
"""What is tried on public rows; on private ones nothing is."""

_MONTH = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"

LOOKS = re.compile(
    r"(\d{4}[-/]\d{1,2}[-/]\d{1,2}|\d{1,2}[./-]\d{1,2}[./-]\d{2,4}"
    rf"|\d{{1,2}}[ ./-]{_MONTH}[ ./,-]+\d{{2,4}}|{_MONTH}[ ./-]\d{{1,2}}[ ./,-]+\d{{2,4}})([T ].*)?",
    re.I,
)

_ISO = re.compile(r"\d{4}[-/]\d{1,2}[-/]\d{1,2}")


def day(word: str, form: str = "") -> float:
    """One date in text, in days since 1970; NaN where there is none in this format ("": ISO).

    >>> day("2024-01-02"), day("02/01/2024"), day("02/01/2024", "%d/%m/%Y"), day("2024-01-01T12:00:00+12:00")
    (19724.0, nan, 19724.0, 19723.0)
    """
    read_date = _read(word, form)
    if read_date is None:
        return np.nan
    since = read_date.replace(tzinfo=None) - START - (read_date.utcoffset() or timedelta())
    return (since // timedelta(microseconds=1)) / _DAY  # one division, as of a column of dates


def _read(word: str, form: str) -> datetime | None:
    try:
        if form:
            return datetime.strptime(word, form)
        begun = _ISO.match(word)
        if begun is None:
            return datetime.fromisoformat(word)
        year, month, first = re.split("[-/]", begun.group())
        return datetime.fromisoformat(f"{year}-{int(month):02d}-{int(first):02d}{word[begun.end() :]}")
    except ValueError:
        return None


def _formats_of(words: Iterable[str]) -> list[str]:
    """The formats that read every one of these public words; "" is ISO."""
    entries = list(words)
    return [form for form in ("", *FORMATS) if all(np.isfinite(day(word, form)) for word in entries)]


def _check_format(where: str, form: object) -> str:
    """Refuse what is no format of a date with a day, a month and a year."""
    remedy = "give a format such as %d/%m/%Y (day first) or %m/%d/%Y (month first), with day, month and year"
    there = datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC)
    try:
        valid = isinstance(form, str) and datetime.strptime(there.strftime(form), form).date() == there.date()
    except (ValueError, re.error):  # a directive that stands there twice
        valid = False
    validate.check(valid, where, form, remedy)
    return str(form)


def from_days(days: float) -> date:
    """The date of a number of days since 1970."""
    return date.fromordinal(_EPOCH + int(days))
