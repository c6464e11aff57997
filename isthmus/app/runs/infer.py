"""A schema for columns that nobody declared: taken from public rows, or guessed from the private ones.

From public rows everything may be taken: types, words, ranges, and whether something is missing.  From private rows
only the type of a column is guessed, by what most entries are: words are hashed into fixed buckets, ranges are left for
the estimator to buy, a missing number is filled and never marked.  Even the type is read off the data, which no budget
pays for: the caller warns, the statement says that it is not covered, and the schema is written down for review.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from isthmus.app.runs.encode import ABSENT, BOOLEANS, as_days, as_numbers, as_words
from isthmus.app.runs.schema import Column
from isthmus.base import validate

LOOK = 2000
"""How many rows are looked at for dates, numbers in text and the like."""
MOSTLY = 0.95
MOST_WORDS = 100
"""A public column with more words than this is hashed all the same."""
_GROUPED = re.compile(r"[+-]?\d{1,3}(?:([,.' \u00a0\u202f])\d{3})+(?:[.,]\d+)?")
_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([T ].*)?|\d{1,2}[./-]\d{1,2}[./-]\d{2,4}([T ].*)?|\d{4}/\d{1,2}/\d{1,2}")
_ID = re.compile(
    r"(^|[_\-. ])(id|uuid|guid|key|index|nr|no|number)$|^(id|uuid|guid|index)([_\-. ]|$)|^unnamed: \d+$", re.I
)


@dataclass(frozen=True)
class Guess:
    """A column and, where something was decided that a user should know, why."""

    column: Column
    why: str = ""


def infer(name: str, values: Any, *, public: bool = False, decimal: str = ".") -> Guess:
    """How to encode a column that was not declared; dates of private rows are refused with what to do."""
    kind = _kind(name, values, decimal)
    source = "public" if public else "data"
    if kind.column.type == "date":
        return _date(name, values, public)
    column = replace(kind.column, source=source)
    if public and column.type in ("number", "bool") and bool(_missing(values, column).any()):
        column = replace(column, missing="indicator")  # of private rows one empty cell would add a column
    return replace(kind, column=_filled_in(column, values) if public else column)


def _kind(name: str, values: Any, decimal: str) -> Guess:
    """The type alone."""
    dtype = values.dtype
    kind = getattr(dtype, "kind", "O")
    known = values.dropna()
    if not len(known):
        return Guess(Column(name, "drop"), "it is empty")
    if kind == "b" or str(dtype) == "boolean":
        return Guess(Column(name, "bool"))
    if kind == "M" or "datetime" in str(dtype) or "date" in str(dtype):
        return Guess(Column(name, "date"))
    if kind in "iuf" and not _is_id(name, known):
        return Guess(Column(name, "number"))
    if _is_id(name, known):
        return Guess(Column(name, "drop"), "it looks like an identifier: every row has its own")
    return _kind_of_text(name, known, decimal)


def _kind_of_text(name: str, known: Any, decimal: str) -> Guess:
    plain = known.map(lambda value: isinstance(value, (str, int, float, bool)))
    if not bool(plain.all()):
        return Guess(Column(name, "drop"), "its entries are neither numbers nor words")
    words = [str(value).strip() for value in known.iloc[:LOOK]]
    truths = _share(words, lambda word: word.lower() in BOOLEANS) >= MOSTLY
    if truths and _share(words, lambda word: word in ("0", "1")) < MOSTLY:
        return Guess(Column(name, "bool"))
    if _share(words, lambda word: bool(_DATE.fullmatch(word))) >= MOSTLY:
        return Guess(Column(name, "date"))
    column = _number_in_text(name, words, decimal)
    if column is not None:
        return Guess(column, f"numbers with {column.thousands!r} between thousands" if column.thousands else "")
    if np.mean([len(word) for word in words]) > 40 and len(set(words)) > len(words) / 2:
        return Guess(Column(name, "drop"), "it is free text: turn it into numbers first (bags of words as npz, say)")
    return Guess(Column(name, "hash"))


def _number_in_text(name: str, words: list[str], decimal: str) -> Column | None:
    """A number column whose entries were read as text: grouped thousands, currency signs, a few strange entries."""
    grouped = [found for found in map(_GROUPED.fullmatch, map(_bare, words)) if found]
    sign = max({found.group(1) for found in grouped}, key=lambda s: sum(s == f.group(1) for f in grouped), default="")
    sign = "" if sign == decimal == "," else sign  # 1,234 is a number of this file, and no thousand
    column = Column(name, "number", thousands=sign, decimal="," if sign == "." else decimal)
    numbers = as_numbers(words, column)
    blank = np.array([word.lower() in ABSENT for word in words])
    return column if np.mean(np.isfinite(numbers) | blank) >= MOSTLY else None


def _bare(word: str) -> str:
    return word.strip("$€£¥% ")


def _date(name: str, values: Any, public: bool) -> Guess:
    if not public:
        validate.refuse(
            f"columns.{name}",
            "dates",
            f'leave it out (--drop "{name}"), or declare its public range (--bounds "{name}=2010-01-01,2024-12-31")',
        )
    days = as_days(values)
    days = days[np.isfinite(days)]
    missing = "indicator" if len(days) < len(values) else "fill"
    bounds = (float(days.min()), float(max(days.max(), days.min() + 1)))
    return Guess(Column(name, "date", bounds=bounds, missing=missing, source="public"))


def _filled_in(column: Column, values: Any) -> Column:
    """Words and ranges of public rows."""
    if column.type == "hash":
        words, missing = as_words(values)
        found = sorted(set(words[~missing]))
        return replace(column, type="category", categories=tuple(found)) if len(found) <= MOST_WORDS else column
    if column.type != "number":
        return column
    numbers = as_numbers(values, column)
    numbers = numbers[np.isfinite(numbers)]
    if not len(numbers):
        return column
    low, high = float(numbers.min()), float(numbers.max())
    return replace(column, bounds=(low, high if high > low else low + 1.0))


def _missing(values: Any, column: Column) -> np.ndarray:
    return ~np.isfinite(as_numbers(values, column))


def _is_id(name: str, known: Any) -> bool:
    """Named like an identifier and different in every row (numbers: whole ones)."""
    if not _ID.search(name.strip()) or not known.is_unique:
        return False
    numbers = as_numbers(known, Column(name, "number"))
    return not bool((np.isfinite(numbers) & (numbers % 1 != 0)).any())


def _share(words: list[str], test: Any) -> float:
    return float(np.mean([test(word) for word in words]))
