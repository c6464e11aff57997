"""One view of the tables that people have: pandas, polars, or a dict of columns.

A column is handed on as a pandas Series or a numpy array, with None or NaN where nothing is.  Only names and types are
looked at here, never an entry; polars is not imported, for whoever has a polars frame has imported it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from isthmus.base import validate

KINDS = "a pandas or polars DataFrame, or a dict of columns"


@dataclass(frozen=True)
class NamedColumns:
    """Columns by their names, and how many rows they have."""

    series: Mapping[str, Any]
    rows: int

    @property
    def columns(self) -> list[str]:
        """The names, in order."""
        return list(self.series)

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, name: str) -> Any:
        """A column as a pandas Series or a numpy array."""
        return _plain(self.series[name])

    def kind(self, name: str) -> str:
        """What the type of a column says: "number", "bool", "date", "words" (a closed list), or "" for anything."""
        return _kind(self.series[name])

    def words(self, name: str) -> tuple[str, ...]:
        """The closed list of words that is part of a column's type: pandas categories, a polars Enum; else none."""
        if self.kind(name) != "words":  # a polars Categorical among them, which collects its words from the rows
            return ()
        return tuple(str(word).strip() for word in self.series[name].dtype.categories)


def as_frame(table: Any, what: str = "X") -> NamedColumns:
    """The view of a table; anything else is refused.

    >>> as_frame({"age": [30, 40], "sex": ["f", None]}).columns
    ['age', 'sex']
    >>> as_frame([[30, "f"]])
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: X='list' is not allowed: give a pandas or polars DataFrame, or a dict of ...
    """
    if isinstance(table, NamedColumns):
        return table
    if is_polars(table):
        validate.check(
            hasattr(table, "get_columns"), what, type(table).__name__, "give a DataFrame, which its collect() returns"
        )
        columns = {series.name: series for series in table.get_columns()}
    elif isinstance(table, Mapping):
        columns = {str(name): values if hasattr(values, "dtype") else _array(values) for name, values in table.items()}
    else:
        like_pandas = hasattr(table, "iloc") and hasattr(table, "columns")
        validate.check(like_pandas, what, type(table).__name__, f"give {KINDS}")
        names = [str(name) for name in table.columns]
        validate.check(len(set(names)) == len(names), what, names, "rename one of two columns that have the same name")
        columns = {name: table.iloc[:, k] for k, name in enumerate(names)}
    rows = {len(series) for series in columns.values()}
    validate.check(len(rows) < 2, what, sorted(rows), "give columns of one length")
    return NamedColumns(columns, rows.pop() if rows else 0)


def is_frame(table: Any) -> bool:
    """Whether it is a frame of pandas or polars (a dict may also be a sparse matrix)."""
    return is_polars(table) or (hasattr(table, "iloc") and table.ndim == 2)


def is_polars(table: Any) -> bool:
    """Whether it belongs to polars."""
    return type(table).__module__.partition(".")[0] == "polars"


def _array(values: Any) -> np.ndarray:
    """A list as numbers where all entries are numbers, else as it is."""
    entries = list(values)
    numbers = all(isinstance(entry, (int, float)) and not isinstance(entry, bool) for entry in entries)
    try:
        return np.fromiter(entries, dtype=np.float64 if numbers else object, count=len(entries))
    except OverflowError:  # a whole number that float64 does not reach
        return np.fromiter(entries, dtype=object, count=len(entries))


def _kind(series: Any) -> str:
    dtype = series.dtype
    if is_polars(series):
        if dtype.is_numeric():
            return "number"
        if str(dtype).startswith(("Date", "Datetime")):
            return "date"
        return {"Boolean": "bool", "Enum": "words"}.get(str(dtype).partition("(")[0], "")
    if hasattr(dtype, "categories"):
        return "words"
    kind = getattr(dtype, "kind", "O")
    if kind == "M" or str(dtype).startswith(("date32", "date64")):
        return "date"
    return "number" if kind in "iuf" else "bool" if kind == "b" else ""


def _plain(series: Any) -> Any:
    """A polars series as numpy holds it; all else as it is."""
    if not is_polars(series):
        return series.astype(object) if hasattr(series.dtype, "categories") else series
    kind = _kind(series)
    if kind == "number":
        return series.cast(type(series)([0.0]).dtype).to_numpy()  # NaN where nothing is
    if kind == "date":
        return series.to_numpy()
    return np.fromiter(series.to_list(), dtype=object, count=len(series))
