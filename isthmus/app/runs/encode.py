"""From a table to numbers, row by row and by public rules only.

Every row is encoded by itself: no mean, vocabulary or range of the rows enters, so encoding costs no privacy.  Nor does
the type that a reader would give a column: text is parsed entry by entry, and comes to what the number itself would.
A missing number becomes a public constant (and, if asked, a mark in a column of its own), a missing word has its own
column, an unknown word goes to "(other)" or into one of a fixed number of buckets by a fixed hash.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import numpy as np

from isthmus.app.runs.schema import Column, Schema, Target
from isthmus.base import validate

BOOLEANS = {
    "true": 1.0,
    "false": 0.0,
    "yes": 1.0,
    "no": 0.0,
    "t": 1.0,
    "f": 0.0,
    "y": 1.0,
    "n": 0.0,
    "1": 1.0,
    "0": 0.0,
}
ABSENT = frozenset({"", "?", "-", "--", "na", "n/a", "nan", "null", "none", "<na>"})
"""Entries that count as missing, in lower case; the csv reader has some more of its own."""
MOST_BYTES = 1 << 33
_GROUPED = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?")
_CLOCK = re.compile(r"\D*|\d{1,2}:\d.*")
"""No date, though pandas would take "now" and "12:30" for one of today."""


def encode(frame: Any, schema: Schema) -> np.ndarray:
    """The rows as an n x len(schema.features) float64 array.

    >>> import pandas
    >>> from isthmus.app.runs.schema import Schema
    >>> schema = Schema.from_toml('[columns]\\nage = [0, 100]\\nsex = ["f", "m"]')
    >>> encode(pandas.DataFrame({"sex": ["m", None], "age": [30, None]}), schema)
    array([[30.,  0.,  1.,  0.,  0.],
           [50.,  0.,  0.,  0.,  1.]])
    """
    missing = [c.name for c in schema.columns if c.type != "drop" and c.name not in frame.columns]
    have = ", ".join(map(repr, list(frame.columns)[:20]))
    validate.check(not missing, "columns", missing, f"the table has no such columns; it has {have}")
    size = 8 * len(frame) * len(schema.features)
    remedy = "the encoded table would not fit: hash into fewer buckets, drop columns, or give a CSR npz"
    validate.check(size <= MOST_BYTES, "encoded bytes", size, remedy)
    out = np.zeros((len(frame), len(schema.features)))
    at = 0
    for column in schema.columns:
        width = len(column.features)
        if width:
            _fill(out[:, at : at + width], frame[column.name], column)
        at += width
    return out


def bounds_of(schema: Schema) -> tuple[np.ndarray, np.ndarray]:
    """Public ranges of the encoded columns; NaN where a range has to be bought."""
    low, high = [], []
    for column in schema.columns:
        numeric = column.type in ("number", "date")
        own = column.bounds if numeric else (0.0, 1.0)
        first = (np.nan, np.nan) if own is None else own
        rest = len(column.features) - 1
        if rest >= 0:
            low += [first[0]] + [0.0] * rest
            high += [first[1]] + [1.0] * rest
    return np.array(low), np.array(high)


def _fill(out: np.ndarray, values: Any, column: Column) -> None:
    """Write one column's features."""
    if column.type in ("number", "bool", "date"):
        numbers = as_days(values) if column.type == "date" else as_numbers(values, column)
        absent = ~np.isfinite(numbers)
        _check_readable(values, absent, column)
        numbers = np.where(absent, column.filled, numbers)
        bounds = (0.0, 1.0) if column.type == "bool" else column.bounds
        numbers = numbers if bounds is None else np.clip(numbers, *bounds)
        out[:, 0] = numbers
        if column.missing == "indicator":
            out[:, 1] = absent
        return
    distinct, codes = _distinct(values)
    place = {word: k for k, word in enumerate(column.categories)}
    last = out.shape[1] - 1
    hot = np.empty(len(distinct), dtype=np.int64)
    for k, word in enumerate(distinct):
        known = bucket(column.name, word, column.buckets) if column.type == "hash" else place.get(word, len(place))
        hot[k] = last if word.lower() in ABSENT else known
    out[np.arange(len(out)), hot[codes]] = 1.0


def _check_readable(values: Any, absent: np.ndarray, column: Column) -> None:
    """Refuse a column that cannot be what it was declared to be, before anything is released."""
    if not absent.any() or getattr(values.dtype, "kind", "O") in "iufbM":
        return
    _, nothing = as_words(values)
    strange = int((absent & ~nothing).sum())
    remedy = f'more than half of its entries are no {column.type}: declare it as "category", "hash" or "drop"'
    validate.check(strange <= (~nothing).sum() / 2, f"columns.{column.name}", column.type, remedy)


def bucket(column: str, word: str, buckets: int) -> int:
    """The fixed public bucket of a word.

    >>> bucket("city", "Rome", 16), bucket("city", "Paris", 16), bucket("town", "Rome", 16)
    (5, 13, 13)
    """
    digest = hashlib.blake2b(f"{column}\x00{word}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % buckets


# ---------------------------------------------------------------- one column as words, numbers, days


def as_words(values: Any) -> tuple[np.ndarray, np.ndarray]:
    """The entries as stripped text, and where nothing is; 3.0 reads as "3"."""
    distinct, codes = _distinct(values)
    absent = np.array([word.lower() in ABSENT for word in distinct], dtype=bool)
    return np.array(distinct, dtype=object)[codes], absent[codes]


def _distinct(values: Any) -> tuple[list[str], np.ndarray]:
    """The different words of a column, the empty one first, and which of them each entry is."""
    if hasattr(values, "factorize"):
        codes, found = values.factorize()  # -1 where nothing is
        return ["", *map(_word, found.tolist())], codes + 1
    found, codes = np.unique([_word(value) for value in values], return_inverse=True)
    return ["", *map(str, found)], codes.reshape(-1) + 1


def _word(value: Any) -> str:
    if isinstance(value, str):
        return "" if value in ("<NA>", "NaT") else value.strip()
    if value is None or value is False or value is True:
        return "" if value is None else str(value).lower()
    if isinstance(value, (float, np.floating)):
        return "" if not np.isfinite(value) else str(int(value)) if value == int(value) else repr(float(value))
    return "" if str(value) in ("<NA>", "NaT") else str(value).strip()


def as_numbers(values: Any, column: Column) -> np.ndarray:
    """The entries as float64, NaN where there is no finite number."""
    kind = getattr(getattr(values, "dtype", None), "kind", "O")
    if kind in "iufb":
        missing = hasattr(values.dtype, "na_value")  # a column of pandas that knows missing integers
        numbers = values.to_numpy(np.float64, na_value=np.nan) if missing else np.asarray(values, dtype=np.float64)
    else:
        read = _boolean if column.type == "bool" else _number
        distinct, codes = _distinct(values)
        numbers = np.array([read(word, column) for word in distinct], dtype=np.float64)[codes]
    return np.where(np.isfinite(numbers), numbers, np.nan)


def _boolean(word: str, column: Column) -> float:
    found = BOOLEANS.get(word.lower())
    return _number(word, column) if found is None else found


def _number(word: str, column: Column) -> float:
    """A number in text; signs of currency and per cent are ignored, and so is a comma between thousands."""
    if "_" in word:  # Python's own way to group digits
        return np.nan
    try:
        if column.decimal == "." and column.thousands != ".":
            return float(word)
    except ValueError:
        pass
    bare = word.strip("$€£¥% ").replace("\u2212", "-")
    if column.thousands or (column.decimal == "." and _GROUPED.fullmatch(bare)):
        bare = bare.replace(column.thousands or ",", "")
    bare = bare.replace(column.decimal, ".") if column.decimal != "." else bare
    try:
        return float(bare)
    except ValueError:
        return np.nan


def as_days(values: Any) -> np.ndarray:
    """Days since 1970, NaN where there is no date; text must be ISO (2024-12-31) or have the day before the month."""
    import pandas

    if getattr(getattr(values, "dtype", None), "kind", "O") != "M":
        distinct, codes = _distinct(values)
        return np.array([_day(word, pandas) for word in distinct], dtype=np.float64)[codes]
    series = pandas.Series(values)
    if getattr(series.dt, "tz", None) is not None:
        series = series.dt.tz_convert("UTC").dt.tz_localize(None)
    days = (series - pandas.Timestamp("1970-01-01")) / pandas.Timedelta(days=1)
    return days.to_numpy(np.float64, na_value=np.nan)


def _day(word: str, pandas: Any) -> float:
    """One date in text, in days; read alone, for pandas takes the unit of many from the finest of them."""
    if word.lower() in ABSENT or _CLOCK.fullmatch(word):
        return np.nan
    try:
        found = datetime.fromisoformat(word)
    except ValueError:
        found = pandas.to_datetime(word, errors="coerce", format="ISO8601")
    if found is pandas.NaT:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a month that cannot be a day
            found = pandas.to_datetime(word, errors="coerce", dayfirst=True, format="mixed")
    if found is pandas.NaT:
        return np.nan
    away = found.utcoffset()
    seconds = 3600 * found.hour + 60 * found.minute + found.second + found.microsecond / 1e6
    seconds -= 0.0 if away is None else away.total_seconds()
    return found.toordinal() - _EPOCH + seconds / 86400


_EPOCH = datetime(1970, 1, 1).toordinal()


# ---------------------------------------------------------------- the target


def encode_target(values: Any, target: Target) -> tuple[np.ndarray, np.ndarray]:
    """The targets of the rows that have one, and which rows those are.

    Labels are words of `target.classes`; a label that is none of them is refused, for dropping it silently would
    train on other rows than was meant.  Numbers stay as they are: an estimator clips what it learns to `target.bounds`,
    and figures of test rows are those of the targets themselves.
    """
    if target.task == "classification":
        assert target.classes is not None
        distinct, codes = _distinct(values)
        absent = np.array([word.lower() in ABSENT for word in distinct], dtype=bool)
        labels = _labels(distinct, target.classes)
        unknown = np.array([label is None for label in labels], dtype=bool) & ~absent
        remedy = f"some rows have other labels than {list(target.classes)}: name all of them, or remove those rows"
        validate.check(not bool(unknown[codes].any()), "classes", list(target.classes), remedy)
        kept = ~absent[codes]
        return np.array([label or "" for label in labels])[codes][kept], kept
    numbers = as_numbers(values, Column(target.name, "number", decimal=target.decimal))
    kept = np.isfinite(numbers)
    return numbers[kept], kept


def as_labels(words: Iterable[str]) -> set[str]:
    """The different labels among words; where all are numbers, 1 and 1.0 are one."""
    found = set(words)
    numbers = all(np.isfinite(_number(word, Column("y", "number"))) for word in found)
    return {_plain(word) for word in found} if numbers else found


def _labels(words: list[str], classes: tuple[str, ...]) -> list[str | None]:
    """The class of each word: the same text, else the same number or truth value (1 and 1.0, True and true)."""
    same = {_plain(label): label for label in reversed(classes)}
    return [word if word in classes else same.get(_plain(word)) for word in words]


def _plain(word: str) -> str:
    """One way to write a number or a truth value."""
    number = _number(word, Column("y", "number"))
    return _word(number) if np.isfinite(number) else word.lower() if word.lower() in ("true", "false") else word
