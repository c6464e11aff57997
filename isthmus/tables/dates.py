"""Dates in text, one entry at a time and in one format a column: ISO, or the one that was declared.

`01/02/2024` is the first of February or the second of January, and nothing in the entry says which: no order of day and
month is ever tried.  A column has the format that its schema declares, or ISO (2024-12-31, 2024/12/31, also with a time
and a zone); any other entry with digits is refused with what to declare.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta

import numpy as np

from isthmus.base import validate

EPOCH = date(1970, 1, 1).toordinal()
START = datetime(1970, 1, 1)
DAY = 86_400e6
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
    return (since // timedelta(microseconds=1)) / DAY  # one division, as of a column of dates


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


def formats_of(words: Iterable[str]) -> list[str]:
    """The formats that read every one of these public words; "" is ISO."""
    entries = list(words)
    return [form for form in ("", *FORMATS) if all(np.isfinite(day(word, form)) for word in entries)]


def check_format(where: str, form: object) -> str:
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
    return date.fromordinal(EPOCH + int(days))
