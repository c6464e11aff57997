"""From a table to numbers, row by row and by public rules only.

Every row is encoded by itself: no mean, vocabulary or range of the rows enters, so encoding costs no privacy.  Nor does
the type that a reader would give a column: text is parsed entry by entry, and comes to what the number itself would.
A missing number becomes a public constant (and, if asked, a mark in a column of its own), a missing word has its own
column, an unknown word goes to "(other)" or into one of a fixed number of buckets by a fixed hash.

One view of the tables that people have: pandas, polars, or a dict of columns.

A column is handed on as a pandas Series or a numpy array, with None or NaN where nothing is.  Only names and types are
looked at here, never an entry; polars is not imported, for whoever has a polars frame has imported it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, SupportsFloat

import numpy as np

from isthmus.base import validate
from isthmus.tables.entries import _DAY, day, number
from isthmus.tables.schema import Column, Schema, Target

if TYPE_CHECKING:  # pandas is an extra; polars and numpy have what is asked of its columns and tables too
    from pandas import DataFrame as Table
    from pandas import Series

_BOOLEANS = dict.fromkeys(("true", "yes", "t", "y", "1"), 1.0) | dict.fromkeys(("false", "no", "f", "n", "0"), 0.0)
ABSENT = frozenset(
    "? - -- na n/a nan null none <na> #n/a #na -1.#ind 1.#ind -1.#qnan 1.#qnan -nan".split() + ["", "#n/a n/a"]
)
"""Entries that count as missing, in lower case, unless they are declared words of their column."""
_MOST_BYTES = 1 << 33
_EXACT = 1 << 53
"""Whole numbers up to this are float64 numbers."""
_NUMBERS = (int, float, Decimal, np.number, np.bool_)


def encode(frame: Table, schema: Schema) -> np.ndarray:
    """The rows of a table (`isthmus.tables.encode`) as an n x len(schema.features) float64 array.

    >>> import pandas
    >>> from isthmus.tables.schema import Schema
    >>> schema = Schema.from_toml('[columns]\\nage = [0, 100]\\nsex = ["f", "m"]')
    >>> encode(pandas.DataFrame({"sex": ["m", None], "age": [30, None]}), schema)
    array([[30.,  0.,  1.,  0.,  0.],
           [50.,  0.,  0.,  0.,  1.]])
    """
    frame = as_frame(frame, "data")
    columns = [column for column in schema.columns if column.features]
    missing = [column.name for column in columns if column.name not in frame.columns]
    have = ", ".join(map(repr, list(frame.columns)[:20]))
    validate.check(not missing, "columns", missing, f"name columns of the table, which has {have}")
    size = 8 * len(frame) * len(schema.features)
    remedy = "hash into fewer buckets, drop columns, or give sparse rows as npz: the encoded table exceeds the memory"
    validate.check(size <= _MOST_BYTES, "encoded bytes", size, remedy)
    out = np.zeros((len(frame), len(schema.features)))
    at = 0
    for column in columns:
        width = len(column.features)
        _fill(out[:, at : at + width], frame[column.name], column)
        at += width
    return out


def bounds_of(schema: Schema) -> tuple[np.ndarray, np.ndarray]:
    """Public ranges of the encoded columns; NaN where a range has to be bought."""
    ranges = []
    for column in schema.columns:
        own = [(0.0, 1.0)] * len(column.features)
        if column.type in ("number", "date"):
            own[0] = column.bounds or (np.nan, np.nan)
        ranges += own
    low, high = np.array(ranges, dtype=np.float64).reshape(-1, 2).T
    return low.copy(), high.copy()


def _fill(out: np.ndarray, values: Series, column: Column) -> None:
    """Write one column's features."""
    if column.type in ("number", "bool", "date"):
        numbers = readable(values, column)
        absent = np.isnan(numbers)
        limits = {"bool": (0.0, 1.0)}.get(column.type, column.bounds) or (-np.inf, np.inf)
        out[:, 0] = np.clip(np.where(absent, column.filled, numbers), *limits)
        if column.missing == "indicator":
            out[:, 1] = absent
        return
    distinct, codes = _distinct(values)
    place = {word: k for k, word in enumerate(column.categories)}
    hot = np.full(len(distinct), len(place))
    for k, (word, label) in enumerate(zip(distinct, _labels(distinct, column.categories), strict=True)):
        if label is not None:
            hot[k] = place[label]
        elif _is_absent(word, column.absent):
            hot[k] = out.shape[1] - 1
        elif column.type == "hash":
            hot[k] = _bucket(column.name, _whole(word), column.buckets)
    out[np.arange(len(out)), hot[codes]] = 1.0


def _is_absent(word: str, absent: Collection[str]) -> bool:
    return word.lower() in ABSENT or _whole(word) in absent


def _whole(word: str) -> str:
    """3.0 as 3: a column of whole numbers gets the point as soon as one of them is missing."""
    return word[:-2] if re.fullmatch(r"[+-]?\d+\.0", word) else word


_REMEDIES = {
    "number": "other signs than the decimal sign {decimal!r} and well-formed thousands, or with other marks: give the "
    "signs (--decimal CHAR, or decimal and thousands of the column in the schema), write plain numbers, or declare the "
    'column as "category", "hash" or "drop"',
    "bool": 'other words than true/false, yes/no and 1/0: declare it as "category", "hash" or "drop"',
    "date": "another format than {format}: give the one format of the column (--date-format '{name}=%d/%m/%Y' or "
    "%m/%d/%Y; or format in the schema), and write all dates in it",
}


def readable(values: Series, column: Column) -> np.ndarray:
    """A column as numbers (dates: days since 1970), NaN where nothing is; refused where it is not what was declared.

    An entry with digits that is not read, such as 1,5 where the decimal sign is a point, is no missing one: as missing
    it would be filled by a constant without a word.
    """
    own: tuple[type, ...] = _NUMBERS  # such an entry is missing only where it was declared to be
    if column.type == "date":
        numbers, typed, own = _as_days(values, column.format, column.absent), "M", (date,)
    else:
        numbers, typed = as_numbers(values, column), "iufbM"
    absent = np.isnan(numbers)
    if not absent.any() or values.dtype.kind in typed:
        return numbers
    entries, codes = _entries(values)
    words = [_word(entry) for entry in entries]
    there = np.array([not _is_absent(word, column.absent) for word in words])
    text = np.array([not isinstance(entry, own) for entry in entries])
    digits = np.array([any(sign.isdigit() for sign in word) for word in words])
    strange = absent & (there & text)[codes]
    where, form = f"columns.{column.name}", column.format or "ISO (2024-12-31)"
    written = _REMEDIES[column.type].format(name=column.name, decimal=column.decimal, format=form)
    unread = bool((strange & digits[codes]).any())
    validate.check(not unread, where, column.type, f"some of its entries are written with {written}")
    remedy = f'declare it as "category", "hash" or "drop": more than half of its entries are no {column.type}'
    validate.check(int(strange.sum()) <= there[codes].sum() / 2, where, column.type, remedy)
    return numbers


def _bucket(column: str, word: str, buckets: int) -> int:
    """The fixed public bucket of a word.

    >>> _bucket("city", "Rome", 16), _bucket("city", "Paris", 16), _bucket("town", "Rome", 16)
    (5, 13, 13)
    """
    digest = hashlib.blake2b(f"{column}\x00{word}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % buckets


# ---------------------------------------------------------------- one column as words, numbers, days


def as_words(values: Series) -> tuple[np.ndarray, np.ndarray]:
    """The entries as stripped text, and where nothing is; 3.0 reads as "3"."""
    distinct, codes = _distinct(values)
    absent = np.array([word.lower() in ABSENT for word in distinct], dtype=bool)
    return np.array(distinct, dtype=object)[codes], absent[codes]


def _distinct(values: Series) -> tuple[list[str], np.ndarray]:
    """The different words of a column, the empty one first, and which of them each entry is."""
    entries, codes = _entries(values)
    return [_word(value) for value in entries], codes


def _entries(values: Series) -> tuple[list[object], np.ndarray]:
    """The different entries of a column, None first, and which of them each is.

    Entries that are equal and written differently (True and 1, two decimals, one moment in two zones) are different:
    else the first of them would say how all others are read.
    """
    if str(values.dtype) == "category":
        values = values.astype(object)
    if not isinstance(values, np.ndarray) and _written_alike(values):
        codes, distinct = values.factorize()  # -1 where nothing is
        return [None, *distinct.tolist()], codes + 1
    place: dict[tuple[type, object], int] = {}
    entries: list[object] = [None]

    def code(entry: object) -> int:
        if entry is None or (isinstance(entry, float) and entry != entry):
            return 0
        alike = entry if isinstance(entry, (str, int, float)) else str(entry)
        at = place.setdefault((type(entry), alike), len(entries))
        if at == len(entries):
            entries.append(entry)
        return at

    return entries, np.fromiter(map(code, values.tolist()), np.int64, len(values))


def _written_alike(values: Series) -> bool:
    """Whether equal entries of a pandas column are written alike: they have one type, or all of them are text."""
    if values.dtype != object:
        return True
    return bool(importlib.import_module("pandas").api.types.infer_dtype(values, skipna=True) == "string")


def _word(value: object) -> str:
    """The text of an entry, the same in every type that a column may get from its other entries.

    Whole numbers beyond 2^53 are those of float64, which a column of them becomes as soon as one is missing.
    """
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value)).lower()
    if isinstance(value, (complex, np.complexfloating)) and value.imag == 0:
        value = value.real  # what all numbers of a column become as soon as one of them is complex
    if isinstance(value, (int, np.integer)) and abs(int(value)) > _EXACT:
        value = _float(value)
    if isinstance(value, (float, np.floating)):
        if not np.isfinite(value):
            return ""
        return str(int(value)) if value == int(value) else repr(float(value))
    text = str(value)
    return "" if value is None or text in ("<NA>", "NaT") else text.strip()


def _float(value: SupportsFloat) -> float:
    """A number as float64, infinite beyond its range."""
    try:
        return float(value)
    except OverflowError:
        return np.inf


def as_numbers(values: Series, column: Column) -> np.ndarray:
    """The entries as float64, NaN where there is no finite number."""
    gone = [number(word) for word in column.absent]  # among entries that are numbers
    if values.dtype.kind in "iufb":
        plain = isinstance(values, np.ndarray)  # pandas may know missing integers
        numbers = values.astype(np.float64) if plain else values.to_numpy(np.float64, na_value=np.nan)
        numbers = np.where(np.isin(numbers, gone), np.nan, numbers)
    else:
        distinct, codes = _entries(values)
        numbers = np.array([_number(entry, column, gone) for entry in distinct], dtype=np.float64)[codes]
    return np.where(np.isfinite(numbers), numbers, np.nan)


def _number(entry: object, column: Column, gone: list[float]) -> float:
    """A number as it is, one in text by the signs of its column; a word for truth where it holds truth values."""
    if isinstance(entry, _NUMBERS):  # as in a column of numbers alone
        value = _float(entry)
        return np.nan if value in gone else value
    word = _word(entry)
    if column.absent and _is_absent(word, column.absent):
        return np.nan
    if column.type == "bool" and word.lower() in _BOOLEANS:
        return _BOOLEANS[word.lower()]
    return number(word, column.decimal, column.thousands)


def _as_days(values: Series, form: str = "", absent: Collection[str] = ()) -> np.ndarray:
    """Days since 1970, NaN where there is no date; text has the one format that is given, ISO (2024-12-31) if none."""
    gone = [day(word, own) for word in absent for own in {form, ""}]
    if values.dtype.kind == "M":
        moments = values if isinstance(values, np.ndarray) else values.to_numpy(dtype="datetime64[us]")
        plain = moments.astype("datetime64[us]")
        days = np.where(np.isnat(plain), np.nan, plain.astype(np.int64) / _DAY)
        return np.where(np.isin(days, gone), np.nan, days)

    def days_of(entry: object) -> float:
        word = _word(entry)
        if isinstance(entry, date):  # as it is, as in a column of dates alone
            at = day(word)
            return np.nan if at in gone else at
        return np.nan if word in absent else day(word, form)

    distinct, codes = _entries(values)
    return np.array([days_of(entry) for entry in distinct], dtype=np.float64)[codes]


# ---------------------------------------------------------------- the target


def encode_target(values: Series, target: Target, separator: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The targets of the rows that have one, and which rows those are.

    Labels are words of `target.classes`; a label that is none of them is refused, for dropping it silently would
    train on other rows than was meant.  Numbers stay as they are: an estimator clips what it learns to `target.bounds`,
    and figures of test rows are those of the targets themselves.
    separator   that of the file they come from, by which the signs in numbers are judged
    """
    if target.task == "classification":
        assert target.classes is not None
        distinct, codes = _distinct(values)
        labels = _labels(distinct, target.classes)
        unnamed = np.array([label is None for label in labels])
        absent = np.array([word.lower() in ABSENT for word in distinct]) & unnamed
        unknown = unnamed & ~absent
        remedy = "name all labels, or remove the rows that have others: some rows have other labels"
        validate.check(not bool(unknown[codes].any()), "classes", list(target.classes), remedy)
        present = ~absent[codes]
        return np.array([label or "" for label in labels])[codes][present], present
    numbers = readable(values, Column(target.name, "number").read_by(separator, target.decimal))
    present = ~np.isnan(numbers)
    return numbers[present], present


def as_labels(words: Iterable[str]) -> set[str]:
    """The different labels among words; where all are numbers, 1 and 1.0 are one."""
    labels = set(words)
    if all(np.isfinite(number(word)) for word in labels):
        return {_plain(word) for word in labels}
    return labels


def _labels(words: list[str], classes: tuple[str, ...]) -> list[str | None]:
    """The class of each word: the same text, else the same number or truth value (1 and 1.0, True and true)."""
    same = {_plain(label): label for label in reversed(classes)}
    exact = dict(zip(classes, classes, strict=True))
    return [exact.get(word, same.get(_plain(word))) for word in words]


def _plain(word: str) -> str:
    """One way to write a number or a truth value."""
    value = number(word, thousands="")
    if np.isfinite(value):
        return _word(value)
    return word.lower() if word.lower() in ("true", "false") else word


@dataclass(frozen=True)
class NamedColumns:
    """Columns by their names, and how many rows they have."""

    series: Mapping[str, Series]
    rows: int

    @property
    def columns(self) -> list[str]:
        """The names, in order."""
        return list(self.series)

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, name: str) -> Series:
        """A column as a pandas Series or a numpy array."""
        return _as_held(self.series[name])

    def kind(self, name: str) -> str:
        """What the type of a column says: "number", "bool", "date", "words" (a closed list), or "" for anything."""
        return _kind(self.series[name])

    def words(self, name: str) -> tuple[str, ...]:
        """The closed list of words that is part of a column's type: pandas categories, a polars Enum; else none."""
        if self.kind(name) != "words":  # a polars Categorical among them, which collects its words from the rows
            return ()
        return tuple(str(word).strip() for word in self.series[name].dtype.categories)


def as_frame(table: Table, what: str = "X") -> NamedColumns:
    """The view of a table; anything else is refused.

    >>> as_frame({"age": [30, 40], "sex": ["f", None]}).columns
    ['age', 'sex']
    >>> as_frame([[30, "f"]])
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: X='list' is not allowed: give a pandas or polars DataFrame, or a dict of ...
    """
    if isinstance(table, NamedColumns):
        return table
    columns: Mapping[str, Series] = {}
    if _is_polars(table) and hasattr(table, "get_columns"):
        columns = {series.name: series for series in table.get_columns()}
    elif _is_polars(table):
        validate.refuse(what, type(table).__name__, "give a DataFrame, which its collect() returns")
    elif isinstance(table, Mapping):
        columns = {str(name): values if hasattr(values, "dtype") else _array(values) for name, values in table.items()}
    elif is_frame(table):
        names = [str(name) for name in table.columns]
        validate.check(len(set(names)) == len(names), what, names, "rename one of two columns that have the same name")
        columns = {name: table.iloc[:, k] for k, name in enumerate(names)}
    else:
        validate.refuse(what, type(table).__name__, "give a pandas or polars DataFrame, or a dict of columns")
    rows = {len(series) for series in columns.values()}
    validate.check(len(rows) < 2, what, sorted(rows), "give columns of one length")
    return NamedColumns(columns, max(rows, default=0))


def is_frame(table: Table) -> bool:
    """Whether it is a frame of pandas or polars (a dict may also be a sparse matrix)."""
    return _is_polars(table) or (hasattr(table, "iloc") and table.ndim == 2)


def _is_polars(table: Table) -> bool:
    """Whether it belongs to polars."""
    return type(table).__module__.partition(".")[0] == "polars"


def _array(values: Iterable[object]) -> np.ndarray:
    """A list as numbers where all entries are numbers, else as it is."""
    entries = list(values)
    if all(isinstance(entry, (int, float)) and not isinstance(entry, bool) for entry in entries):
        with contextlib.suppress(OverflowError):  # a whole number that float64 does not reach
            return np.array(entries, dtype=np.float64)
    return np.fromiter(entries, dtype=object, count=len(entries))


def _kind(series: Series) -> str:
    """ "number", "bool", "date", "words" (a closed list), or "" for anything; of polars, numpy, pandas and pyarrow."""
    text = str(series.dtype)
    if text.lower().startswith("date"):
        return "date"
    if text.startswith(("category", "Enum")):
        return "words"
    if _is_polars(series):
        return {"Boolean": "bool"}.get(text, "number" * series.dtype.is_numeric())
    return {"M": "date", "i": "number", "u": "number", "f": "number", "b": "bool"}.get(series.dtype.kind, "")


def _as_held(series: Series) -> Series:
    """A polars series as numpy holds it; all else as it is."""
    kind = _kind(series)
    if not _is_polars(series):
        return series.astype(object) if kind == "words" else series
    if kind == "number":
        return series.cast(type(series)([0.0]).dtype).to_numpy()  # NaN where nothing is
    if kind == "date":
        return series.to_numpy()
    return np.fromiter(series.to_list(), dtype=object, count=len(series))
