"""Data matrices: a dense tensor, a SciPy CSR matrix or a view of one, behind one small set of functions.

CSR is never densified.  Products with it run in SciPy on memory shared with the tensors, which is some
forty times faster on a CPU than torch's own sparse products.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.base import validate
from isthmus.base.parallel import Found, in_order, share_out

if TYPE_CHECKING:
    from typing_extensions import TypeIs

Array: TypeAlias = NDArray[np.float64]
Index: TypeAlias = slice | NDArray[np.int64] | tuple[slice, slice | NDArray[np.int64]]


Csr: TypeAlias = sp.csr_array
"""A SciPy csr_array or csr_matrix."""


class View(ABC):
    """A matrix on the CPU that is not held as it is: seen through a public map of its rows, in float64
    (`isthmus.problems.scaling.Scaled`), or read in slices (`isthmus.base.streamed`).  Here as if it was dense."""

    ndim, device = 2, torch.device("cpu")
    dtype: torch.dtype = torch.float64
    shape: tuple[int, int]
    far = False
    """Whether rows are small differences of long vectors."""
    roundings: int = 0
    """How many roundings an entry has of its own, at most."""
    _upper: Tensor | None = None

    @property
    def measured(self) -> bool:
        """Whether `upper` is known already."""
        return self._upper is not None

    def forget(self) -> None:
        """Forget what was computed of the rows: they may have been written to since."""
        self._upper = None

    @property
    def upper(self) -> Tensor:
        """An upper bound of each row's l2 norm, computed once."""
        if self._upper is None:
            slack = 1 + (self.shape[1] + 64) * 2.0**-51
            self._upper = torch.cat([torch.zeros(0).double(), *self.over(lambda x: row_norms(x.double()) * slack)])
            self._upper += 1e-150  # squares of what is smaller vanish
        return self._upper

    def mass(self) -> Tensor | None:
        """An upper bound of what the terms of each row do to a sum; None: its own norm."""
        return None

    def spans(self) -> list[tuple[int, int]] | None:
        """Ranges of rows that are looked at together, by their number and width alone; None: all."""
        return _slices(self.shape)

    def over(self, look: Callable[[Tensor], Found]) -> list[Found]:
        """`look(rows)` of every slice, in order, several at a time."""
        return list(in_order(lambda span: look(to_dense(self[slice(*span)])), self.spans() or []))

    @abstractmethod
    def chunks(self) -> Iterator[tuple[int, int, Tensor]]:
        """`(lo, hi, rows)`: dense rows, a few at a time; the next may overwrite the last."""

    @abstractmethod
    def take(self, index: Tensor) -> Matrix:
        """Some rows, in the given order."""

    @abstractmethod
    def __getitem__(self, span: slice) -> Matrix: ...

    def times(self, w: Tensor) -> Tensor:
        """S w for a vector or a matrix w."""
        return torch.cat([w.new_zeros(0, *w.shape[1:]), *self.over(lambda x: margins(x, w))])

    def transposed_times(self, v: Tensor) -> Tensor:
        """S' v for a vector or a matrix v."""
        total = Total((self.shape[1], *v.shape[1:]))
        for lo, hi, rows in self.chunks():
            total.add(rmatmul(rows, v[lo:hi].to(torch.float64)))
        return total.result().to(v.dtype)

    def gram(self) -> Tensor:
        """S'S."""
        total = Total((self.shape[1], self.shape[1]), exact=True)
        for _, _, rows in self.chunks():
            wide = rows.to(torch.float64)
            total.add_product(wide, wide)
        return total.result()

    def dense(self) -> Tensor:
        """All rows in memory, several slices at a time."""
        copy = torch.empty(self.shape, dtype=self.dtype)

        def fill(span: tuple[int, int]) -> None:
            copy[slice(*span)] = to_dense(self[slice(*span)])

        for _ in in_order(fill, self.spans() or []):
            pass
        return copy

    def plain(self) -> Matrix:
        """A copy of the rows that is held itself, where memory holds it."""
        return self

    def check_finite(self, name: str) -> None:  # noqa: B027  # most views are of what was checked
        """Refuse NaN and infinite entries, where that was not done before."""


Stored: TypeAlias = Tensor | Csr
"""A matrix that is held itself: dense or CSR."""
Matrix: TypeAlias = Stored | View
"""A dense tensor, a SciPy csr_array or csr_matrix, or one of them seen through a public map of its rows."""

CHUNK_BYTES = 1 << 26
"""Temporary copies stay near this size."""
SLICE_BYTES = 1 << 26
"""A slice of a large matrix has so many bytes, in float64."""
CACHE_BYTES, ALONE = 1 << 21, 1 << 22
"""Rows that are converted to be looked at once stay near this size: in a cache.  So few products are one thread's."""


def is_sparse(x: object) -> TypeIs[Csr]:
    """Whether `x` is a SciPy sparse matrix."""
    return bool(sp.issparse(x))


def as_matrix(name: str, x: object) -> Matrix:
    """A 2-d tensor or a CSR matrix of finite numbers; other sparse formats are converted to CSR.

    Integers become float32 when sparse (counts) and float64 when dense.  Entries stored twice are added up.
    """
    if isinstance(x, View):
        x.check_finite(name)
        return x
    if isinstance(x, Tensor) and x.layout != torch.strided:
        validate.refuse(f"{name}.layout", x.layout, "give a dense tensor or a SciPy CSR matrix")
    if not is_sparse(x):
        return validate.as_tensor(name, x, ndim=2)
    validate.check(x.ndim == 2, f"{name}.ndim", x.ndim, "give a 2-d matrix")
    csr = x.tocsr()
    validate.check(csr.dtype.kind in "fiub", f"{name}.dtype", str(csr.dtype), "give real numbers")
    if csr.dtype.kind != "f" or csr.dtype.itemsize < 4:
        csr = csr.astype(np.float32)
    elif csr.dtype.itemsize > 8:
        csr = csr.astype(np.float64)
    if not np.isfinite(csr.data).all():
        bad = int((~np.isfinite(csr.data)).sum())
        raise validate.InvalidInput(f"{name} holds {bad} NaN or infinite entries: remove or impute them first")
    return canonical(csr)


def dtype_of(x: Matrix) -> torch.dtype:
    """The torch dtype of a dense or CSR matrix."""
    return torch.from_numpy(x.data[:0]).dtype if is_sparse(x) else x.dtype


def device_of(x: Matrix) -> torch.device:
    """The device of a matrix; CSR lies on the CPU."""
    return torch.device("cpu") if is_sparse(x) else x.device


def code_room(x: Stored, m: int) -> Tensor:
    """n x m zeros in the dtype and on the device of an n x k matrix."""
    return torch.zeros(x.shape[0], m, dtype=dtype_of(x), device=device_of(x))


def as_dtype(x: Csr, dtype: torch.dtype) -> Csr:
    """A CSR matrix in a torch dtype."""
    return x.astype(str(dtype).removeprefix("torch."))


def with_data(x: Csr, data: Array) -> Csr:
    """Other numbers in the pattern of a CSR matrix, which is shared."""
    make: Callable[..., Csr] = type(x)
    return make((data, x.indices, x.indptr), shape=x.shape)


def take(x: Matrix, index: Tensor | slice) -> Matrix:
    """Some rows, in the given order; a range of them without a copy, where that can be."""
    if isinstance(index, slice):
        return x[index]
    if isinstance(x, View):
        return x.take(index)
    if is_sparse(x):
        return x[index.cpu().numpy()]
    return x[index]


def spans_of(x: Matrix) -> list[tuple[int, int]] | None:
    """Ranges of rows of a large matrix that are looked at together: by their number and width alone; None: all.

    Vectors of so many numbers stay in a cache while one operation after the other reads them.
    """
    if isinstance(x, View):
        return x.spans()
    if is_sparse(x) or x.device.type != "cpu" or 8 * x.shape[0] * x.shape[1] < CHUNK_BYTES:
        return None
    return _slices((x.shape[0], x.shape[1]))


def _slices(shape: tuple[int, int]) -> list[tuple[int, int]]:
    """Slices of `SLICE_BYTES` in float64."""
    n, step = shape[0], max(1, SLICE_BYTES // (8 * max(1, shape[1])))
    return [(lo, min(lo + step, n)) for lo in range(0, n, step)]


def matmul(x: Matrix, w: Tensor) -> Tensor:
    """X w, for a vector or a matrix w, in the dtype of w.

    >>> matmul(torch.eye(2, dtype=torch.float32), torch.tensor([1.0, 2.0], dtype=torch.float64))
    tensor([1., 2.], dtype=torch.float64)
    """
    if isinstance(x, View):
        return x.times(w)
    if is_sparse(x):
        return torch.from_numpy(np.asarray(x @ _numpy(w))).to(w)
    if x.dtype == w.dtype:
        return x @ w
    parts = [x[lo:hi].to(w.dtype) @ w for lo, hi in _row_chunks(x)]
    return torch.cat([w.new_zeros((0, *w.shape[1:])), *parts])


def margins(x: Matrix, w: Tensor) -> Tensor:
    """X w, computed so that a row's last digit does not depend on the other rows: tested, no standard promises it.

    BLAS rounds the last rows of a block, or of a thread's share, in another way than the rest, and so does any product
    with a matrix that is stored column by column: one record more or less would change others.  A product with one
    vector or with several is therefore taken row by row here (`numpy.einsum`), and on a device with two columns.
    """
    if isinstance(x, View) or is_sparse(x):
        return matmul(x, w)
    if w.ndim <= 2 and not x.is_cuda and w.dtype in (torch.float32, torch.float64):
        return _row_products(x, w)
    if not x.is_contiguous():
        parts = [margins(x[lo:hi].contiguous(), w) for lo, hi in _row_chunks(x)]
        return torch.cat([matmul(x[:0], w), *parts])
    if w.ndim > 1:
        return matmul(x, w)
    return matmul(x, w[:, None].expand(-1, 2).contiguous())[:, 0]


def _row_products(x: Tensor, w: Tensor) -> Tensor:
    """x_i'w for every row by itself, w a vector or columns (one of which is a vector), in its dtype: on the CPU."""
    if w.ndim == 2 and w.shape[1] == 1:
        return _row_products(x, w[:, 0])[:, None]
    products, how = torch.empty(x.shape[0], *w.shape[1:], dtype=w.dtype), "ij,j->i"
    if w.ndim == 2:
        how, w = "ij,kj->ik", w.T
    vectors = w.contiguous().numpy()

    def part(rows: tuple[int, int]) -> None:
        at = slice(*rows)
        np.einsum(how, x[at].to(w.dtype).contiguous().numpy(), vectors, out=products[at].numpy())

    if x.shape[0] * w.numel() > ALONE:
        share_out(part, _row_chunks(x))
    else:
        part((0, x.shape[0]))
    return products


def rmatmul(x: Matrix, r: Tensor) -> Tensor:
    """X' r, for a vector or a matrix r, in the dtype of r.

    >>> rmatmul(sp.csr_array([[1.0, 0.0], [2.0, 3.0]]), torch.tensor([1.0, 1.0]))
    tensor([3., 3.])
    """
    if isinstance(x, View):
        return x.transposed_times(r)
    if is_sparse(x):
        return torch.from_numpy(np.asarray(x.T @ _numpy(r))).to(r)
    if x.dtype == r.dtype:
        return x.T @ r
    total = r.new_zeros((x.shape[1], *r.shape[1:]))
    for lo, hi in _row_chunks(x):
        total += x[lo:hi].to(r.dtype).T @ r[lo:hi]
    return total


def columns(x: Stored, lo: int, hi: int) -> Stored:
    """The columns lo..hi-1."""
    if lo == 0 and hi == x.shape[1]:
        return x
    return x[:, lo:hi]


@np.errstate(over="ignore", invalid="ignore")  # a norm beyond the numbers is infinite, and no warning tells of it
def row_norms(x: Stored, ord: float = 2) -> Tensor:
    """The l1, l2 or linf norm of each row, not yet rounded up: in float64 when sparse, else in float32 or better.

    >>> row_norms(sp.csr_array([[3.0, -4.0], [0.0, 0.0]]), 1)
    tensor([7., 0.], dtype=torch.float64)
    """
    if not is_sparse(x):
        norms: Tensor = torch.linalg.vector_norm(x, ord, dim=1, dtype=torch.promote_types(x.dtype, torch.float32))
        return norms
    x = canonical(x)
    magnitude = np.abs(x.data).astype(np.float64, copy=False)
    largest = _reduce_rows(np.maximum, magnitude, x.indptr)
    if ord == np.inf:
        return torch.from_numpy(largest)
    if ord == 1:
        return torch.from_numpy(_reduce_rows(np.add, magnitude, x.indptr))
    scale = np.where((largest > 1e-140) & (largest < 1e140) | (largest == 0), 1.0, largest)
    if (scale != 1.0).any():
        with np.errstate(invalid="ignore"):  # infinity by infinity is NaN, which is no finite norm either
            magnitude = magnitude / np.repeat(scale, np.diff(x.indptr))
    return torch.from_numpy(scale * np.sqrt(_reduce_rows(np.add, magnitude * magnitude, x.indptr)))


def canonical(x: Csr) -> Csr:
    """The same CSR matrix with no entry stored twice (a copy only where one was)."""
    if x.has_canonical_format:
        return x
    x = x.copy()
    x.sum_duplicates()
    return x


def to_dense(x: Matrix, dtype: torch.dtype | None = None) -> Tensor:
    """A dense tensor: for tests, public data and chunks under a stated limit."""
    if isinstance(x, View):
        dense = x.dense()
    elif is_sparse(x):
        dense = torch.from_numpy(x.toarray())
    else:
        dense = x
    return dense.to(dtype or dense.dtype)


def _reduce_rows(ufunc: np.ufunc, values: Array, indptr: NDArray[np.int64]) -> Array:
    """A reduction of the stored values of each CSR row; 0 for an empty one."""
    out = np.zeros(len(indptr) - 1)
    full = np.diff(indptr) > 0
    if full.any():
        out[full] = ufunc.reduceat(values, indptr[:-1][full])
    return out


def _row_chunks(x: Tensor) -> list[tuple[int, int]]:
    """Row ranges whose converted copy stays near `CACHE_BYTES`."""
    step = max(1, CACHE_BYTES // (8 * max(1, x.shape[1])))
    return [(lo, min(lo + step, x.shape[0])) for lo in range(0, x.shape[0], step)]


def _numpy(w: Tensor) -> Array:
    """A NumPy view of a tensor (a float32 copy of half-precision ones)."""
    w = w.detach().cpu()
    if w.dtype not in (torch.float32, torch.float64):
        w = w.float()
    return w.numpy()


class Total:
    """A float64 accumulator of chunk sums; `exact` also keeps what each addition loses (Neumaier).

    >>> total = Total((1,), exact=True)
    >>> for part in (1.0, 1e-17, -1.0):
    ...     total.add(torch.tensor([part], dtype=torch.float64))
    >>> float(total.result())
    1e-17
    """

    def __init__(self, shape: tuple[int, ...], device: torch.device | None = None, exact: bool = False) -> None:
        self.value = torch.zeros(shape, dtype=torch.float64, device=device)
        self._lost = None
        if exact:
            self._lost = torch.zeros_like(self.value)

    def add(self, part: Tensor) -> None:
        """One more chunk."""
        if self._lost is None:
            self.value += part
            return
        part = part.to(torch.float64)
        total = self.value + part
        difference = total - self.value
        self._lost += (self.value - (total - difference)) + (part - difference)
        self.value = total

    def add_product(self, x: Tensor, y: Tensor) -> None:
        """One more chunk x'y; where nothing is compensated it is added in place."""
        if self._lost is None:
            self.value.addmm_(x.T, y)
        else:
            self.add(x.T @ y)

    def result(self) -> Tensor:
        """What was added."""
        return self.value if self._lost is None else self.value + self._lost
