"""Parquet files and pyarrow datasets as matrices that are read in slices (the extra `table`)."""

from __future__ import annotations

import bisect
import os
import re
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.streamed import FileRows, Streamed, _large

if TYPE_CHECKING:
    from pyarrow import Schema, Table
    from pyarrow.dataset import Dataset, Fragment

_NUMBERS = ("int", "uint", "float", "double", "bool", "half")
"""How pyarrow's names of the types of numbers begin."""


class ArrowTable:
    """The row groups of a pyarrow dataset of Parquet files, and which rows each of them has.

    Row groups are often large.  They are read forward, a few rows at a time with buffered reads, and never held whole;
    rows that were passed by on the way are kept for a moment, as several threads ask for the slices of a pass.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        names = column_names(dataset.schema)
        twice = sorted({name for name in names if names.count(name) > 1})
        validate.check(not twice, "X", f"columns {twice}", "rename these columns: each name may occur once")
        self.names = names
        groups = ((piece, group) for piece in dataset.get_fragments() for group in _groups(piece))
        self.groups = [(piece, group.id, group.num_rows) for piece, group in groups]
        self.starts = list(accumulate((rows for _, _, rows in self.groups), initial=0))
        self.n = self.starts[-1]
        self._readers: dict[tuple[str, ...], _Reader] = {}
        self._lock = threading.Lock()

    def table(self, lo: int, hi: int, columns: Sequence[str], step: int = 1 << 16) -> Table:
        """The rows lo, ..., hi - 1 of some columns, as a pyarrow table; about `step` rows are decoded at a time."""
        import pyarrow

        pieces = [pyarrow.schema([self.dataset.schema.field(name) for name in columns]).empty_table()]
        with self._lock:
            reader = self._readers.setdefault(tuple(columns), _Reader(self, tuple(columns)))
            pieces += reader.rows(lo, hi, step)
        return pyarrow.concat_tables(pieces, promote_options="permissive")

    def column(self, name: str) -> np.ndarray:
        """A whole column, as numpy has it."""
        values: np.ndarray = self.table(0, self.n, [name]).column(0).to_numpy()
        return values


class _Reader:
    """Where the reading of some columns stands: the next row that is decoded, and what was passed by."""

    def __init__(self, table: ArrowTable, columns: tuple[str, ...]) -> None:
        self.table, self.columns, self.next, self.batches = table, columns, -1, iter(())
        self.passed: deque[tuple[int, Table]] = deque(maxlen=8)

    def rows(self, lo: int, hi: int, step: int) -> list[Table]:
        """The rows lo, ..., hi - 1, as tables."""
        pieces = []
        for begin, table in self.passed:
            if begin <= lo < begin + table.num_rows:
                pieces.append(table.slice(lo - begin, hi - lo))
                lo += pieces[-1].num_rows
        group = bisect.bisect_right(self.table.starts, lo) - 1
        if lo < hi and not self.table.starts[group] <= self.next <= lo:
            self.next, self.batches = self.table.starts[group], self._decoded(group, step)
            self.passed.clear()
        while self.next < hi and lo < hi:
            table = next(self.batches)
            begin, self.next = self.next, self.next + table.num_rows
            self.passed.append((begin, table))
            if self.next > lo:
                pieces.append(table.slice(max(0, lo - begin), hi - max(lo, begin)))
        return pieces

    def _decoded(self, group: int, step: int) -> Iterator[Table]:
        """Tables of about `step` rows, from a row group on."""
        import pyarrow
        from pyarrow import parquet

        columns = list(self.columns)
        for piece, own, rows in self.table.groups[group:]:
            file = parquet.ParquetFile(piece.open(), buffer_size=1 << 16, pre_buffer=False)
            missing = [name for name in columns if name not in file.schema_arrow.names]
            remedy = f"give files with the same columns: {piece.path} does not have these"
            validate.check(not missing, "X", f"columns {missing}", remedy)
            for batch in file.iter_batches(batch_size=step, row_groups=[own], columns=columns):
                rows -= batch.num_rows
                yield pyarrow.Table.from_batches([batch]).select(columns)
            validate.check(rows == 0, "X", str(piece.path), "open the file again: it has changed since it was opened")


class ArrowRows(Streamed):
    """The columns of a pyarrow dataset but some, as rows of float32 (where all columns are) or float64.

    Nulls are refused like NaN.
    """

    names: tuple[str, ...]

    def __init__(self, table: ArrowTable, without: Sequence[str] = ()) -> None:
        names = [name for name in table.names if name not in without]
        kinds = {name: str(table.dataset.schema.field(name).type) for name in names}
        others = [name for name, kind in kinds.items() if not kind.startswith(_NUMBERS)]
        remedy = "leave them out, or encode them (isthmus train, TableEncoder): they do not hold numbers"
        validate.check(not others, "X", f"columns {others}", remedy)
        validate.check(bool(names), "X", "no columns", "give a table with columns of numbers")
        self.table, self.names = table, tuple(names)
        self.dtype = torch.float64
        if all(kind in ("float", "halffloat") for kind in kinds.values()):
            self.dtype = torch.float32
        self.shape = (table.n, len(names))

    def read(self, lo: int, hi: int) -> Tensor:
        """The rows lo, ..., hi - 1."""
        import pyarrow

        name = str(self.dtype).removeprefix("torch.")
        kind = {"float64": pyarrow.float64(), "float32": pyarrow.float32()}[name]
        piece = self.table.table(lo, hi, self.names, max((hi - lo for lo, hi in self.spans()), default=1))
        rows = np.empty((hi - lo, self.shape[1]), dtype=name)
        for place, column in enumerate(piece.columns):
            rows[:, place] = column.cast(kind, safe=False).to_numpy()  # nulls become NaN
        return torch.from_numpy(rows)


def _groups(piece: Fragment) -> list[Fragment]:
    """The row groups of one file."""
    try:
        return list(piece.row_groups)
    except AttributeError:
        validate.refuse("X", str(piece), "give a dataset of Parquet files")


def column_names(schema: Schema) -> list[str]:
    """The names of a file's columns; the row labels of a frame, which pandas saves under names of its own, are none."""
    return [str(name) for name in schema.names if not re.fullmatch(r"__index_level_\d+__", str(name))]


def _is_dataset(x: object) -> bool:
    """Whether `x` is a pyarrow dataset; pyarrow is not imported to find out."""
    return any(kind.__module__.split(".")[0] == "pyarrow" and kind.__name__ == "Dataset" for kind in type(x).__mro__)


def parquet_dataset(path: str | Path, argument: str = "X") -> Dataset:
    """The pyarrow dataset of a Parquet file or a folder of them; `argument` is what errors name."""
    try:
        from pyarrow import ArrowException, dataset
    except ImportError:
        validate.refuse(argument, str(path), f"install pyarrow, which is needed to read it: {validate.extra('table')}")
    validate.present(os.path.exists(path), path, kind="File or folder")
    try:
        data = dataset.dataset(str(path), format="parquet")
    except (ArrowException, OSError, ValueError) as error:
        why = str(error).splitlines()[0]
        validate.unreadable(path, f"give a folder of Parquet files and no others, or one file ({why})")
    if not data.files:
        validate.unreadable(path, "give a folder with Parquet files; this one has none")
    return data


def opened(X: object, y: object = None) -> tuple[object, object]:
    """Rows and targets as a problem takes them: tables on disk as matrices that are read in slices, others as they are.

    X  a memory-mapped array, the path of a .npy file, of a Parquet file or of a folder of these, or a pyarrow dataset
    y  the targets, or the name of the column that holds them: the other columns are then X
    """
    if isinstance(X, Streamed):
        return X, y
    if isinstance(X, np.memmap) and _large(X):
        return FileRows(X), y
    if isinstance(X, (str, Path)) and str(X).endswith(".npy"):
        validate.present(os.path.isfile(X), X)
        return FileRows(np.load(X, mmap_mode="r")), y
    if isinstance(X, (str, Path)):
        X = parquet_dataset(X)
    if _is_dataset(X):
        table = ArrowTable(X)
        if not isinstance(y, str):
            return ArrowRows(table), y
        validate.check(y in table.names, "y", y, f"name a column of the table, which has {table.names[:20]}")
        return ArrowRows(table, without=(y,)), table.column(y)
    return X, y
