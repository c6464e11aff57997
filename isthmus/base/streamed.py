"""Matrices that outgrow memory: rows that are read, or computed, a slice at a time and never held whole.

| kind | where the rows are |
|---|---|
| `FileRows` | a memory-mapped array, a .npy file; a scratch file with the rows of Parquet files (extra `table`) |
| `DerivedRows` | another matrix, through a public function of single rows |
| `ChosenRows` | some rows of another one |

A slice is a dense tensor in memory, and everything that is known of dense tensors holds for it.  How rows are cut
depends on their number and width alone.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeAlias

import numpy as np
import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.matrix import CHUNK_BYTES, Matrix, View, spans_of, to_dense
from isthmus.base.parallel import ahead
from isthmus.base.parquet import column_names, parquet_dataset, tables_of

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset

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
            bad = sum(self.over(lambda x: 0 if bool(x.sum().isfinite()) else int((~x.isfinite()).sum())))
            if bad:
                raise validate.InvalidInput(f"{name} holds {bad} NaN or infinite entries: remove or impute them first")
            self._finite = True

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.shape[0]} x {self.shape[1]}, {str(self.dtype).removeprefix('torch.')})"


class FileRows(Streamed):
    """A 2-d array in a file, memory-mapped by NumPy: `numpy.load(path, mmap_mode="r")` or `numpy.memmap`.

    Rows are copied from the mapping, whose pages are given back at once: they would count as this process's memory.

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
        root = array
        while isinstance(root.base, np.ndarray):
            root = root.base  # type: ignore[assignment]
        self._mapping, self._path, self._pages = root, root.filename, root.base
        self._seen = self._stamp()

    def read(self, lo: int, hi: int) -> Tensor:
        """The rows lo, ..., hi - 1, in memory of their own."""
        remedy = "open the file again: it was written to since it was opened, so what was checked no longer holds"
        validate.check(self._stamp() == self._seen, "X", str(self._path), remedy)
        rows = np.array(self.array[lo:hi], dtype=self._kept, order="C")
        if self._mapping.mode != "c" and isinstance(self._pages, mmap.mmap) and os.name != "nt":
            self._pages.madvise(mmap.MADV_DONTNEED)  # of a copy-on-write mapping this would drop what was written
        return torch.from_numpy(rows)

    def _stamp(self) -> tuple[int, int] | None:
        """Size of the file and when it was last written to; None for a scratch file, which has no name."""
        with contextlib.suppress(FileNotFoundError, TypeError):
            status = os.stat(self._path)  # type: ignore[arg-type]
            return status.st_size, status.st_mtime_ns
        return None

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


def kept_on_disk(parts: Iterable[np.ndarray], columns: int, kind: str = "float64") -> FileRows:
    """Rows that come in parts, in a file without a name that is gone with the process: making them again is dear."""
    count = 0
    with tempfile.NamedTemporaryFile(suffix=".rows") as file:
        for part in parts:
            file.write(np.ascontiguousarray(part, dtype=kind).data)
            count += len(part)
        file.write(b"\0")  # no rows at all could not be mapped
        file.flush()
        rows = np.memmap(file.name, dtype=kind, mode="r", shape=(count, columns))
    return FileRows(rows)


def dense_parts(x: Matrix) -> Iterator[Tensor]:
    """Rows of a dense matrix or of a table in float64, a slice at a time; none where there are none."""
    for lo, hi in spans_of(x) or [(0, x.shape[0])]:
        if hi > lo:
            yield to_dense(x[lo:hi], torch.float64)


# ---------------------------------------------------------------- Parquet files


_NUMBERS = ("int", "uint", "float", "double", "bool", "half")
"""How pyarrow's names of the types of numbers begin."""


def _rows_of(dataset: Dataset, target: str | None) -> tuple[FileRows, np.ndarray | None]:
    """The columns of numbers of a dataset but the target, in a scratch file, and the target; nulls become NaN."""
    import pyarrow

    names = column_names(dataset.schema)
    twice = sorted({name for name in names if names.count(name) > 1})
    validate.check(not twice, "X", f"columns {twice}", "rename these columns: each name may occur once")
    values = None
    if target is not None:
        validate.check(target in names, "y", target, f"name a column of the table, which has {names[:20]}")
        column = pyarrow.concat_tables(tables_of(dataset, [target]), promote_options="permissive").column(0)
        names, values = [name for name in names if name != target], column.to_numpy()
    kinds = {name: str(dataset.schema.field(name).type) for name in names}
    others = [name for name, stored in kinds.items() if not stored.startswith(_NUMBERS)]
    remedy = "leave them out, or encode them (isthmus train, TableEncoder): they do not hold numbers"
    validate.check(not others, "X", f"columns {others}", remedy)
    validate.check(bool(names), "X", "no columns", "give a table with columns of numbers")
    kind = "float64"
    if set(kinds.values()) <= {"float", "halffloat"}:
        kind = "float32"
    wide = pyarrow.from_numpy_dtype(kind)

    def parts() -> Iterator[np.ndarray]:
        for table in tables_of(dataset, names, (1 << 23) // len(names) + 1):
            yield np.column_stack([column.cast(wide, safe=False).to_numpy() for column in table.columns])

    rows = kept_on_disk(parts(), len(names), kind)
    rows.names = tuple(names)
    return rows, values


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
    if any(kind.__module__.split(".")[0] == "pyarrow" and kind.__name__ == "Dataset" for kind in type(X).__mro__):
        if not isinstance(y, str):
            return _rows_of(X, None)[0], y
        return _rows_of(X, y)
    return X, y
