"""Matrices that outgrow memory: rows that are read, or computed, a slice at a time and never held whole.

| kind | where the rows are |
|---|---|
| `FileRows` | a memory-mapped array, a .npy file: read with plain reads, so that no page of it stays with us |
| `ArrowRows` | Parquet files, a pyarrow dataset (the extra `table`) |
| `DerivedRows` | another matrix, through a public function of single rows |
| `ChosenRows` | some rows of another one |

A slice is a dense tensor in memory, and everything that is known of dense tensors holds for it.  How rows are cut
depends on their number and width alone.
"""

from __future__ import annotations

import bisect
import os
import re
import tempfile
import threading
import weakref
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeAlias

import numpy as np
import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.matrix import CHUNK_BYTES, Matrix, View, spans_of, to_dense
from isthmus.base.parallel import ahead

if TYPE_CHECKING:
    from pyarrow import Schema, Table
    from pyarrow.dataset import Dataset, Fragment

Mapped: TypeAlias = "np.memmap[tuple[int, ...], np.dtype[np.generic]]"
Where = slice | Tensor
"""Which rows: a range or positions."""


class Streamed(View):
    """A dense n x p matrix whose rows are read when they are asked for.

    `names` are those of its columns, where it has some.
    """

    names: tuple[str, ...] | None = None
    _finite = False

    @abstractmethod
    def read(self, lo: int, hi: int) -> Tensor:
        """The rows lo, ..., hi - 1."""

    def take(self, index: Tensor) -> Tensor:
        """Some rows, in the given order: each slice that has one of them is read once."""
        order = torch.argsort(index, stable=True)
        places, rows = index[order], torch.empty(len(index), self.shape[1], dtype=self.dtype)
        ends = torch.searchsorted(places, torch.tensor([hi for _, hi in self.spans()], dtype=places.dtype)).tolist()
        begin = 0
        for end in ends:
            if end > begin:
                lo, hi = int(places[begin]), int(places[end - 1]) + 1
                rows[order[begin:end]] = self.read(lo, hi)[places[begin:end] - lo]
            begin = end
        return rows

    def __getitem__(self, span: slice) -> Tensor:
        lo, hi, step = span.indices(self.shape[0])
        validate.check(step == 1, "step", step, "take a slice with step 1: rows are read one after the other")
        return self.read(lo, max(lo, hi))

    def spans(self) -> list[tuple[int, int]]:
        """Ranges of rows that are read together."""
        return super().spans() or []

    def chunks(self) -> Iterator[tuple[int, int, Tensor]]:
        """`(lo, hi, rows)` of every slice, in order; the next is read meanwhile."""
        spans = self.spans()
        for (lo, hi), rows in zip(spans, ahead(lambda span: self.read(*span), spans), strict=True):
            yield lo, hi, rows

    def mapped(self, function: Callable[[Tensor, Where], Tensor], columns: int | None = None) -> DerivedRows:
        """The same rows through a function of single rows, and of where they are."""
        return DerivedRows(self, function, columns or self.shape[1], self.dtype)

    def check_finite(self, name: str) -> None:
        """Refuse NaN and infinite entries: one pass, once."""
        if not self._finite:
            bad = sum(self.over(_not_finite))
            if bad:
                raise validate.InvalidInput(f"{name} holds {bad} NaN or infinite entries: remove or impute them first")
            self._finite = True

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.shape[0]} x {self.shape[1]}, {str(self.dtype).removeprefix('torch.')})"


class FileRows(Streamed):
    """A 2-d array in a file, memory-mapped by NumPy: `numpy.load(path, mmap_mode="r")` or `numpy.memmap`.

    Rows that lie one after the other are read by plain reads: what a mapping touches would count as this process's
    memory.  Others, and those of a copy-on-write mapping, are copied from the mapping.

    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "x.npy"
    ...     np.save(path, np.arange(6.0).reshape(3, 2))
    ...     FileRows(np.load(path, mmap_mode="r")).read(1, 3)
    tensor([[2., 3.],
            [4., 5.]], dtype=torch.float64)
    """

    def __init__(self, array: Mapped) -> None:
        validate.check(array.ndim == 2, "X.shape", array.shape, "give a 2-d array")
        validate.check(array.dtype.kind in "fiub", "X.dtype", str(array.dtype), "give real numbers")
        self.array, self.shape = array, (int(array.shape[0]), int(array.shape[1]))
        self._kept, self.dtype = "float64", torch.float64
        if array.dtype in (np.float32, np.float16):
            self._kept, self.dtype = "float32", torch.float32
        self._start, self._file = _file_offset(array), None
        if self._start is not None:
            self._file = os.open(str(_mapping(array).filename), os.O_RDONLY)
            weakref.finalize(self, os.close, self._file)
            self._seen = _stamp(self._file)
            if not self._is_the_mapped_one():
                self._start = None  # the name belongs to another file by now: the mapping has the rows

    def read(self, lo: int, hi: int) -> Tensor:
        """The rows lo, ..., hi - 1, in memory of their own."""
        return torch.from_numpy(np.ascontiguousarray(self._raw(lo, hi), dtype=self._kept))

    def _raw(self, lo: int, hi: int) -> np.ndarray:
        if self._start is None or self._file is None or hi <= lo:
            return np.array(self.array[lo:hi])
        name = str(_mapping(self.array).filename)
        remedy = "open the file again: it was written to since it was opened, so what was checked no longer holds"
        validate.check(_stamp(self._file) == self._seen, "X", name, remedy)
        rows = np.empty((hi - lo, self.shape[1]), dtype=self.array.dtype)
        view, filled = memoryview(rows.data).cast("B"), 0
        while filled < len(view):
            count = os.preadv(self._file, [view[filled:]], self._start + lo * self.array.strides[0] + filled)
            validate.check(count > 0, "X", name, "open the file again: it has become shorter")
            filled += count
        return rows

    def _is_the_mapped_one(self) -> bool:
        """Whether the file under the name is the one that is mapped, by its first and last row."""
        n = self.shape[0]
        ends = [(lo, lo + 1) for lo in {0, n - 1} if 0 <= lo < n]
        try:
            return all(self._raw(*span).tobytes() == np.array(self.array[slice(*span)]).tobytes() for span in ends)
        except validate.InvalidInput:
            return False

    def __getstate__(self) -> NoReturn:
        remedy = "open the file in the process that reads it: rows of a file are not sent between processes"
        validate.refuse("X", type(self).__name__, remedy)


class DerivedRows(Streamed):
    """A matrix through a public function of its single rows, computed whenever rows are read.

    function  (rows, where) -> a dense tensor of as many rows: each from its own row alone
    """

    def __init__(
        self, source: View | Tensor, function: Callable[..., Tensor], columns: int, dtype: torch.dtype
    ) -> None:
        self.source, self.function = source, function
        self.shape, self.dtype = (int(source.shape[0]), columns), dtype

    def read(self, lo: int, hi: int) -> Tensor:
        """The function of the rows lo, ..., hi - 1."""
        span = slice(lo, hi)
        return self.function(self.source[span], span)

    def take(self, index: Tensor) -> Tensor:
        """The function of some rows, in the given order."""
        return self.function(self.source.take(index), index)


class ChosenRows(Streamed):
    """Some rows of another matrix, in rising order: those of a part of the data."""

    def __init__(self, source: Streamed, index: Tensor) -> None:
        rising = len(index) < 2 or bool((index[1:] > index[:-1]).all())
        validate.require(rising, "index does not rise: give positions in rising order, each of them once")
        self.source, self.index, self.dtype, self.names = source, index, source.dtype, source.names
        self.shape, self._finite = (len(index), source.shape[1]), source._finite

    def read(self, lo: int, hi: int) -> Tensor:
        """The chosen rows lo, ..., hi - 1."""
        return self.source.take(self.index[lo:hi])

    def take(self, index: Tensor) -> Tensor:
        """Some of the chosen rows."""
        return self.source.take(self.index[index])


def _not_finite(x: Tensor) -> int:
    """How many entries are NaN or infinite."""
    return 0 if bool(x.sum().isfinite()) else int((~x.isfinite()).sum())


def _stamp(file: int) -> tuple[int, int]:
    """Size of a file and when it was last written to."""
    status = os.fstat(file)
    return status.st_size, status.st_mtime_ns


def _mapping(array: np.ndarray) -> Mapped:
    """The mapping, or the array, that a mapped array is a view of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array  # type: ignore[return-value]


def _file_offset(array: Mapped) -> int | None:
    """Where in its file the rows of a mapped array begin; None where they do not lie there one after the other."""
    root = _mapping(array)
    plain = isinstance(root, np.memmap) and root.mode != "c" and root.filename is not None
    together = array.flags.c_contiguous and array.dtype.isnative
    if not plain or not together or os.name == "nt":  # which has no preadv
        return None
    inside = array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    return int(root.offset) + int(inside)


def kept_on_disk(x: Streamed) -> FileRows:
    """The same rows in a file without a name: made once where reading them is dear, gone with the process."""
    with tempfile.NamedTemporaryFile(suffix=".rows") as file:
        for _, _, rows in x.chunks():
            file.write(np.ascontiguousarray(rows.numpy()).data)
        file.flush()
        kind = str(x.dtype).removeprefix("torch.")
        return FileRows(np.memmap(file.name, dtype=kind, mode="r", shape=x.shape))


def dense_parts(x: Matrix) -> Iterator[Tensor]:
    """Rows of a dense matrix or of a table in float64, a slice at a time; none where there are none."""
    for lo, hi in spans_of(x) or [(0, x.shape[0])]:
        if hi > lo:
            yield to_dense(x[lo:hi], torch.float64)


# ---------------------------------------------------------------- Parquet files


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
    if isinstance(X, np.memmap) and X.nbytes >= CHUNK_BYTES:
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
