"""Factored rows: g_i = vec(sum_t b_it a_it'), the per-example gradient of a linear layer or of a linear model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.matrix import Matrix, dtype_of, exact_products, is_lazy, is_sparse, matmul, rmatmul, to_dense
from isthmus.geometry.sketches.base import Sketch
from isthmus.geometry.sketches.kronecker import is_outer
from isthmus.gradients import _products, adding, rounding
from isthmus.gradients.base import KINDS, Dense, Rows, join_bounds, row_spans
from isthmus.gradients.rounding import CHUNK_BYTES, Bounds


class Outer(Rows):
    """Rows g_i = vec(sum_t b_it a_it') of R^(q p), laid out row-major as a q x p matrix.

    A linear layer with inputs a (p numbers) and output gradients b (q numbers) at T positions has these
    per-example gradients; a linear model is q = T = 1.  The n x qp matrix is never built:

      * norms: ||a|| ||b|| for T = 1, else ghost products or the q x p sums, whichever is cheaper, in chunks;
      * sum: one matrix product;
      * codes: `sketch.rows(a)` times b when q = T = 1, else `sketch.outer`.

    Args:
        a: (n, p) or (n, T, p) tensor, or an (n, p) CSR matrix, which is never densified.
        b: (n, q) or (n, T, q) tensor; its dtype, raised to float32 at least, is that of the results.
        ones: a has one more column than it shows, of ones (the input of a layer's bias); p counts it.

    >>> rows = Outer(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]))
    >>> rows.sum(), rows.norms(1)
    (tensor([3., 6., 4., 8.]), tensor([21.0000]))
    """

    def __init__(self, a: Matrix, b: Tensor, ones: bool = False) -> None:
        ndims = (2,) if is_sparse(a) else (2, 3)
        validate.check(a.ndim in ndims, "a.shape", tuple(a.shape), "give (n, p) or, dense, (n, T, p)")
        validate.check(
            b.ndim == a.ndim and tuple(b.shape[:-1]) == tuple(a.shape[:-1]),
            "b.shape",
            tuple(b.shape),
            f"give {(*a.shape[:-1], 'q')} to match a of shape {tuple(a.shape)}",
        )
        validate.check(not (ones and is_sparse(a)), "ones", ones, "a CSR factor carries its own column of ones")
        self.a, self.b, self.ones = a if is_sparse(a) else a.detach(), b.detach(), ones
        self.n, self.p, self.q = a.shape[0], a.shape[-1] + ones, b.shape[-1]
        self.positions = 1 if a.ndim == 2 else a.shape[1]
        self.d = self.p * self.q
        self.dtype, self.device = rounding.working(b.dtype), b.device
        self._known: dict[float, Tensor] = {}

    def norm_bounds(self, ord: float = 2) -> Bounds:
        rounding.check_ord(ord)
        if self.positions == 1:
            factor = self._factor_bounds(ord)
            self._known[ord] = factor[1]
            return rounding.product(factor, rounding.matrix_bounds(self._flat(self.b), ord))
        work = self.dtype  # that of `sum`, which adds a rounded to it
        step = _products.rows_at_once(self.positions, self.p, self.q, work.itemsize)
        spans = [(lo, min(lo + step, self.n)) for lo in range(0, self.n, step)]
        parts = [_products.bounds(self._shown(self.a[lo:hi]), self.b[lo:hi], ord, work) for lo, hi in spans]
        return join_bounds(parts, self.device)

    def norm_upper(self, ord: float = 2) -> Tensor:
        if self.positions > 1 or self.ones or is_sparse(self.a) or is_lazy(self.a):
            return super().norm_upper(ord)
        if self.device.type != "cuda" and not rounding.narrow(self.a, self.b):
            return super().norm_upper(ord)
        rounding.check_ord(ord)
        return self._sizes(ord) * rounding.device_upper(self._flat(self.b), ord) * (1 + 2.0**-50)

    def underflow(self) -> Tensor:
        """What c b loses is multiplied by a: a long a beside a short b loses much."""
        longest = self._sizes(2).view(self.n, self.positions).sum(1)
        return super().underflow() * (self.positions + longest)

    def sum(self, weights: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        b = self._wide(self.b)
        if weights is not None:
            b = b * self._weights(weights).view(-1, *[1] * (b.ndim - 1))
        with exact_products(self.device):
            if is_sparse(self.a) or is_lazy(self.a):
                return self._into(out, rmatmul(self.a, b).T.reshape(-1))
            a, b = self._flat(self.a).to(self.dtype), self._flat(b)
            total = self._empty(self.d) if out is None else out
            matrix = total.view(self.q, self.p)
            torch.mm(b.T, a, out=matrix[:, : a.shape[1]])
            if self.ones:
                torch.sum(b, 0, out=matrix[:, -1])
            return total

    def mass(self, ord: float = 2) -> Tensor | None:
        """sum_t ||a_t|| ||b_t|| where there are several terms, or one that is seen through a centring map."""
        if is_lazy(self.a):
            size = self.a.mass()
            if size is None:
                return None
            size = size * (self.p**0.5 if ord == 1 else 1.0)
            return size * rounding.matrix_bounds(self._flat(self.b), ord)[1] * (1 + 2.0**-40)
        if self.positions == 1:
            return None
        sizes = self._sizes(ord) * rounding.matrix_bounds(self._flat(self.b), ord)[1]
        return sizes.view(self.n, self.positions).sum(1) * (1 + 2.0**-20)

    def sum_to(self, weights: Tensor, rho: float, out: Tensor | None = None) -> Tensor:
        if is_sparse(self.a) or is_lazy(self.a):
            return self._seen_sum(weights, rho, out)
        b = self._wide(self.b) * self._weights(weights).view(-1, *[1] * (self.b.ndim - 1))
        a, b = self._flat(self.a).to(self.dtype), self._flat(b)
        room = self._room(rho, out)
        matrix = room.view(self.q, self.p)
        adding.outer_sum(a, b, rho, matrix[:, : a.shape[1]])
        if self.ones:
            adding.row_sum(b, rho, matrix[:, -1])
        return room

    def _seen_sum(self, weights: Tensor, rho: float, out: Tensor | None) -> Tensor:
        """The same for sparse and mapped factors: in float64 unless they are few."""
        if is_lazy(self.a):  # a map has roundings of its own
            rho = max(0.0, rho - rounding.gamma(2 * self.a.U.shape[1] + 16, torch.float64))
        if not is_lazy(self.a) and self.n <= adding.roundings(rho, self.dtype) - adding.SPARE:
            return self._room(rho, out).copy_(self.sum(weights))
        b = self.b.to(torch.float64) * weights.to(self.b.device, torch.float64)[:, None]

        def add(lo: int, hi: int) -> Tensor:
            a = self.a if (lo, hi) == (0, self.n) else self.a[lo:hi]
            return rmatmul(a, b[lo:hi]).T.reshape(-1)

        value = adding.in_float64(self.n, rho, (self.d,), self.device, add, max(1, self.n))
        return self._room(rho, out).copy_(value)

    def part(self, lo: int, hi: int) -> Outer:
        return Outer(self.a[lo:hi], self.b[lo:hi], self.ones)

    def finite(self) -> Rows:
        if is_lazy(self.a) or is_sparse(self.a):
            return super().finite()
        a, b = (torch.nan_to_num(x, 0.0, 0.0, 0.0) for x in (self.a, self.b))
        return Outer(a, b, self.ones)

    def masked(self, keep: Tensor) -> Rows:
        if is_lazy(self.a):
            return super().masked(keep)
        shape = (-1, *[1] * (self.b.ndim - 1))
        kept = [x for x in (self.a, self.b) if not is_sparse(x)]
        *a, b = (torch.where(keep.view(shape), x, torch.zeros((), dtype=x.dtype, device=x.device)) for x in kept)
        return Outer(_kept_rows(self.a, keep) if is_sparse(self.a) else a[0], b, self.ones)

    def dense(self) -> Tensor:
        a, b = self._shown(to_dense(self.a)).to(self.dtype), self._wide(self.b)
        with exact_products(self.device):
            rule = "nq,np->nqp" if a.ndim == 2 else "ntq,ntp->nqp"
            return torch.einsum(rule, b, a).reshape(self.n, self.d)

    def through(self, sketch: Sketch, lo: int = 0) -> Rows:
        if is_lazy(self.a):
            return super().through(sketch, lo)
        a = self.a if is_sparse(self.a) else self.a.to(rounding.working(self.a.dtype))
        a = self._shown(a)
        if self.q == 1 and self.positions == 1:
            return Outer(sketch.rows(self._flat(a), lo), self._flat(self.b))
        return Dense(sketch.outer(a, self._wide(self.b), lo))

    def inner(self, other: Rows) -> Tensor:
        """sum_{s,t} (a_is'a_jt)(b_is'b_jt): two products of factors, where that is cheaper than the q x p matrices."""
        mate: Any = other
        if not is_outer(mate) or (mate.q, mate.p) != (self.q, self.p):
            return super().inner(other)
        pairs, m = self.positions * mate.positions, mate.n
        if pairs > 1 and pairs * (self.p + self.q) > self.p * self.q:
            return super().inner(other)
        dtype = rounding.working(self.dtype, mate.dtype)
        shown = mate.a if not mate.ones else torch.cat([mate.a, mate.a.new_ones(*mate.a.shape[:-1], 1)], -1)
        inputs, outputs = self._flat(shown), self._flat(mate.b)
        width = self.positions * (self.p + self.q) + 3 * pairs * m
        parts = [torch.zeros(0, m, dtype=dtype, device=self.device)]
        with exact_products(self.device):
            for lo, hi in row_spans(self.n, width * dtype.itemsize):
                a = self.a[lo:hi] if is_sparse(self.a) else self._flat(self._shown(self.a[lo:hi]))
                terms = _cross(a, inputs, dtype).to(self.device) * _cross(self._flat(self.b[lo:hi]), outputs, dtype)
                parts.append(terms if pairs == 1 else terms.view(hi - lo, self.positions, m, -1).sum((1, 3)))
        return torch.cat(parts)

    def compact(self) -> Rows:
        """The q x p products themselves where they are smaller than their factors (and below `CHUNK_BYTES`)."""
        smaller = self.positions > 1 and self.d <= self.positions * (self.p + self.q)
        return Dense(self.dense()) if smaller and self.n * self.d * self.dtype.itemsize <= CHUNK_BYTES else self

    def plus(self, others: Sequence[Rows]) -> Rows:
        mates = [self, *(other for other in others if isinstance(other, Outer) and self._same_shape(other))]
        if len(mates) <= len(others):
            return KINDS["sum"]([self, *others])
        positions = sum(rows.positions for rows in mates)
        if positions * (self.p + self.q) >= self.d or any(is_sparse(r.a) or is_lazy(r.a) for r in mates):
            return super().plus(others)
        return _joined(mates)

    def minus(self, other: Rows) -> Rows:
        self._check_alike(other)
        if not isinstance(other, Outer) or not self._same_shape(other):
            return super().minus(other)
        if is_lazy(self.a) and self.a is not other.a:
            return super().minus(other)
        if _same(self.a, other.a):
            return Outer(self.a, self._wide(self.b) - other.b, self.ones)
        if not is_sparse(self.a) and not is_sparse(other.a):
            return _joined([self, other.scaled(-1.0)])
        if is_sparse(self.a) and is_sparse(other.a):
            return _sparse_rows(self._times(1) - other._times(1), self)
        return super().minus(other)

    def grouped(self, size: int) -> Rows:
        validate.positive_int(size=size)
        groups = -(-self.n // size)
        counts = torch.full((groups,), float(size), dtype=self.dtype, device=self.device)
        if self.n % size:
            counts[-1] = self.n % size
        if is_lazy(self.a):
            return super().grouped(size)
        share = counts.repeat_interleave(size)[: self.n].view(-1, *[1] * (self.b.ndim - 1))
        b = self._wide(self.b) / share
        if is_sparse(self.a):
            return _sparse_rows(Outer(self.a, b)._times(size), self)
        return Outer(_fold(self.a, size, groups), _fold(b, size, groups), self.ones)

    def take(self, index: Tensor, factors: Tensor) -> Rows:
        if is_sparse(self.a) or is_lazy(self.a):
            return super().take(index, factors)
        index, shape = index.to(self.device), (-1, *[1] * (self.b.ndim - 1))
        return Outer(
            self.a[index], self._wide(self.b)[index] * factors.to(self.b.device, self.dtype).view(shape), self.ones
        )

    def scaled(self, factor: float) -> Outer:
        return Outer(self.a, self._wide(self.b) * factor, self.ones)

    def _sizes(self, ord: float) -> Tensor:
        """Upper bounds of the norms of all a_t, computed once."""
        if ord not in self._known:
            quick = isinstance(self.a, Tensor) and not self.ones and (self.a.is_cuda or rounding.narrow(self.a))
            upper = rounding.device_upper(self._flat(self.a), ord) if quick else self._factor_bounds(ord)[1]
            self._known[ord] = upper
        return self._known[ord]

    def _factor_bounds(self, ord: float) -> Bounds:
        low, high = rounding.matrix_bounds(self.a if is_sparse(self.a) else self._flat(self.a), ord)
        if self.ones:
            one = torch.ones_like(low)
            low, high = rounding.combine([(low, high), (one, one)], ord)
        return low.to(self.device), high.to(self.device)

    def _shown(self, a: Tensor) -> Tensor:
        """A dense factor with its column of ones."""
        return torch.cat([a, a.new_ones(*a.shape[:-1], 1)], -1) if self.ones else a

    def _wide(self, x: Tensor) -> Tensor:
        return x.to(self.dtype)

    def _flat(self, x: Any) -> Any:
        return x if x.ndim == 2 else x.reshape(-1, x.shape[-1])

    def _same_shape(self, other: Outer) -> bool:
        return (other.n, other.p, other.q, other.ones) == (self.n, self.p, self.q, self.ones)

    def _times(self, size: int) -> sp.csr_array:
        """The sums of `size` consecutive sparse rows, as a CSR matrix with q p columns."""
        groups = -(-self.n // size)
        rows = (np.arange(self.n) // size)[:, None] * self.q + np.arange(self.q)
        examples = np.repeat(np.arange(self.n), self.q)
        values = self._wide(self.b).cpu().numpy().ravel()
        mix = sp.csr_array((values, (rows.ravel(), examples)), shape=(groups * self.q, self.n))
        return sp.csr_array((mix @ self.a).tocoo().reshape((groups, self.d)).tocsr())


def Glm(r: Tensor, X: Matrix) -> Outer:
    """The per-example gradients g_i = r_i x_i of a linear model with residuals r_i = dl_i / d margin.

    >>> Glm(torch.tensor([2.0, -1.0]), sp.csr_array([[1.0, 0.0], [0.0, 3.0]])).sum()
    tensor([ 2., -3.])
    """
    validate.shape((X.shape[0],), r=r)
    return Outer(X, r[:, None])


def _cross(x: Matrix, y: Matrix, dtype: torch.dtype) -> Tensor:
    """x y' in a dtype, for dense or CSR factors with as many columns."""
    if is_sparse(x) and is_sparse(y):
        return to_dense(x.astype(str(dtype).removeprefix("torch.")) @ y.T, dtype)
    if is_sparse(y):
        return _cross(y, x, dtype).T
    return matmul(x if is_sparse(x) else x.to(dtype), y.to(dtype).T)


def _joined(rows: Sequence[Outer]) -> Outer:
    """The row-wise sum of factored rows, by laying their positions one after the other."""
    dtype = rounding.working(*(r.a.dtype for r in rows))
    a = [r.a.to(dtype).reshape(r.n, r.positions, r.p - r.ones) for r in rows]
    b = [r._wide(r.b).reshape(r.n, r.positions, r.q) for r in rows]
    return Outer(torch.cat(a, dim=1), torch.cat(b, dim=1), rows[0].ones)


def _fold(x: Tensor, size: int, groups: int) -> Tensor:
    """(n, ..., k) to (groups, size * T, k), with zeros for the rows a last group lacks."""
    missing = groups * size - x.shape[0]
    x = torch.cat([x, x.new_zeros(missing, *x.shape[1:])]) if missing else x
    positions = size if x.ndim == 2 else size * x.shape[1]
    return x.reshape(groups, positions, x.shape[-1])


def _kept_rows(a: sp.csr_array, keep: Tensor) -> sp.csr_array:
    """A CSR matrix with zeros for the numbers of every row that is not kept."""
    data = np.where(np.repeat(keep.cpu().numpy(), np.diff(a.indptr)), a.data, a.data.dtype.type(0))
    return sp.csr_array((data, a.indices, a.indptr), shape=a.shape)


def _sparse_rows(values: sp.csr_array, like: Outer) -> Outer:
    """Rows held as a CSR matrix: one factor is 1."""
    return Outer(values, torch.ones(values.shape[0], 1, dtype=like.dtype, device=like.device))


def _same(x: Matrix, y: Matrix) -> bool:
    """Whether two factors hold the same numbers."""
    if x is y:
        return True
    if is_sparse(x) != is_sparse(y) or tuple(x.shape) != tuple(y.shape) or dtype_of(x) != dtype_of(y):
        return False
    if not is_sparse(x):
        return torch.equal(x, y)
    return all(np.array_equal(getattr(x, k), getattr(y, k)) for k in ("indptr", "indices", "data"))


KINDS["factors"] = lambda a, b: Outer(a, b).compact()
