"""From a table to numbers, row by row and by public rules only.

Every row is encoded by itself: no mean, vocabulary or range of the rows enters, so encoding costs no privacy.  A
missing number becomes a public constant (and, if asked, a mark in a column of its own), a missing word has its own
column, an unknown word goes to "(other)" or into one of a fixed number of buckets by a fixed hash.

There is one view of the tables that people have, pandas, polars or a dict of columns: a column is handed on as a pandas
Series or a numpy array, with None or NaN where nothing is.  Only names and types are looked at here, never an entry;
polars is not imported, for whoever has a polars frame has imported it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from isthmus.base import validate
from isthmus.tables.columns import TYPES, _distinct, _is_absent, _labels, readable
from isthmus.tables.schema import Column, Schema, Target

if TYPE_CHECKING:  # pandas is an extra; polars and numpy have what is asked of its columns and tables too
    from pandas import DataFrame as Table
    from pandas import Series

_MOST_BYTES = 1 << 33


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
        TYPES[column.type].encode(frame[column.name], column, out[:, at : at + width])
        at += width
    return out


def bounds_of(schema: Schema) -> tuple[np.ndarray, np.ndarray]:
    """Public ranges of the encoded columns; NaN where a range has to be bought."""
    ranges = [ends for column in schema.columns for ends in TYPES[column.type].ranges(column)]
    low, high = np.array(ranges, dtype=np.float64).reshape(-1, 2).T
    return low.copy(), high.copy()


def encode_target(
    values: Series, target: Target, separator: str | None = None, missing: tuple[str, ...] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """The targets of the rows that have one, and which rows those are.

    Labels are words of `target.classes`; a label that is none of them is refused, for dropping it silently would
    train on other rows than was meant.  Numbers stay as they are: an estimator clips what it learns to `target.bounds`,
    and figures of test rows are those of the targets themselves.
    separator   that of the file they come from, by which the signs in numbers are judged
    missing     entries that count as missing, beside the usual ones
    """
    if target.task == "classification":
        assert target.classes is not None
        distinct, codes = _distinct(values)
        labels = _labels(distinct, target.classes)
        unnamed = np.array([label is None for label in labels])
        absent = np.array([_is_absent(word, missing) for word in distinct]) & unnamed
        unknown = unnamed & ~absent
        remedy = "name all labels, or remove the rows that have others: some rows have other labels"
        validate.check(not bool(unknown[codes].any()), "classes", list(target.classes), remedy)
        present = ~absent[codes]
        return np.array([label or "" for label in labels])[codes][present], present
    numbers = readable(values, Column(target.name, "number", absent=missing).read_by(separator, target.decimal))
    present = ~np.isnan(numbers)
    return numbers[present], present


# ---------------------------------------------------------------- tables


class NamedColumns:
    """Columns by their names, and how many rows they have."""

    def __init__(self, series: Mapping[str, Series], rows: int) -> None:
        self.series, self.rows = series, rows

    @property
    def columns(self) -> list[str]:
        """The names, in order."""
        return list(self.series)

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, name: str) -> Series:
        """A column as a pandas Series or a numpy array."""
        series = self.series[name]
        return _from_polars(series) if _is_polars(series) else series

    def chosen(self, mask: np.ndarray) -> NamedColumns:
        """The rows that a mask keeps."""
        return NamedColumns({name: self[name][mask] for name in self.columns}, int(mask.sum()))

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
    if _is_polars(table):
        kind = type(table).__name__
        validate.check(kind == "DataFrame", what, kind, "give a DataFrame, which its collect() returns")
        columns = {series.name: series for series in table.get_columns()}
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


def _from_polars(series: Any) -> np.ndarray:
    """A polars series as numpy holds it."""
    kind = _kind(series)
    if kind == "number":
        return np.asarray(series.cast(type(series)([0.0]).dtype).to_numpy())  # NaN where nothing is
    if kind == "date":
        return np.asarray(series.to_numpy())
    return np.fromiter(series.to_list(), dtype=object, count=len(series))
