"""Matrices that outgrow memory: rows that are read, or computed, a slice at a time and never held whole.

| kind | where the rows are |
|---|---|
| `FileRows` | a memory-mapped array, a .npy file: read with plain reads, so that no page of it stays with us |
| `ArrowRows` (`isthmus.base.arrow`) | Parquet files, a pyarrow dataset |
| `DerivedRows` | another matrix, through a public function of single rows |
| `ChosenRows` | some rows of another one |

A slice is a dense tensor in memory, and everything that is known of dense tensors holds for it.  How rows are cut
depends on their number and width alone.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import NoReturn, TypeAlias

import numpy as np
import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.matrix import CHUNK_BYTES, Matrix, View, spans_of, to_dense
from isthmus.base.parallel import ahead

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


def _large(array: Mapped) -> bool:
    """Whether a mapped array is worth reading in slices: by its size alone."""
    return array.nbytes >= CHUNK_BYTES


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
