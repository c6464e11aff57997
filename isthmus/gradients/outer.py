"""Factored rows: g_i = vec(sum_t b_it a_it'), the per-example gradient of a linear layer or of a linear model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.matrix import (
    Csr,
    Matrix,
    Stored,
    View,
    as_dtype,
    dtype_of,
    exact_products,
    is_sparse,
    matmul,
    rmatmul,
    to_dense,
    with_data,
)
from isthmus.gradients import _products, adding, rounding
from isthmus.gradients.base import KINDS, Dense, Rows, join_bounds, row_spans
from isthmus.gradients.rounding import CHUNK_BYTES, Bounds
from isthmus.sketches.base import Mate, OuterForm, Sketch, outer_codes


class Outer(Rows):
    """Rows g_i = vec(sum_t b_it a_it') of R^(q p), laid out row-major as a q x p matrix.

    A linear layer with inputs a (p numbers) and output gradients b (q numbers) at T positions has these
    per-example gradients; a linear model is q = T = 1.  The n x qp matrix is never built:

      * norms: ||a|| ||b|| for T = 1, else ghost products or the q x p sums, whichever is cheaper, in chunks;
      * sum: one matrix product;
      * codes: `sketch.rows(a)` times b when q = T = 1, else `outer_codes`.

    Args:
        a: (n, p) or (n, T, p) tensor, or an (n, p) CSR matrix, which is never densified.
        b: (n, q) or (n, T, q) tensor; its dtype, raised to float32 at least, is that of the results.
        ones: a has one more column than it shows, of ones (the input of a layer's bias); p counts it.
        sizes: ord -> upper bounds of the norms of the rows of a 2-d factor a, where they are known already.

    >>> rows = Outer(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]))
    >>> rows.sum(), rows.norms(1)
    (tensor([3., 6., 4., 8.]), tensor([21.0000]))
    """

    def __init__(
        self, a: Matrix, b: Tensor, ones: bool = False, sizes: Callable[[float], Tensor] | None = None
    ) -> None:
        sparse = is_sparse(a)
        if a.ndim not in (2, 3) or (sparse and a.ndim == 3):
            validate.refuse("a.shape", tuple(a.shape), "give shape (n, p), or (n, T, p) if it is dense")
        if b.ndim != a.ndim or tuple(b.shape[:-1]) != tuple(a.shape[:-1]):
            remedy = f"give {(*a.shape[:-1], 'q')} to match a of shape {tuple(a.shape)}"
            validate.refuse("b.shape", tuple(b.shape), remedy)
        if ones and sparse:
            validate.refuse("ones", ones, "give ones=False: a CSR factor carries its own column of ones")
        self.a: Matrix = a.detach() if isinstance(a, Tensor) else a
        self.b, self.ones = b.detach(), ones
        self.n, self.p, self.q = a.shape[0], a.shape[-1] + ones, b.shape[-1]
        self.positions = 1 if a.ndim == 2 else a.shape[1]
        self.d = self.p * self.q
        self.dtype, self.device = rounding.working(b.dtype), b.device
        self._known: dict[float, Tensor] = {}
        self._given = sizes

    def norm_bounds(self, ord: float = 2) -> Bounds:
        rounding.check_ord(ord)
        if self.positions == 1:
            factor = self._factor_bounds(ord)
            self._known[ord] = factor[1]
            return rounding.product(factor, rounding.matrix_bounds(_flat(self.b), ord))
        if self.positions == 0:
            nothing = torch.zeros(self.n, dtype=torch.float64, device=self.device)
            return nothing, nothing
        work = self.dtype  # that of `sum`, which adds a rounded to it
        step = _products.rows_at_once(self.positions, self.p, self.q, work.itemsize)
        spans = [(lo, min(lo + step, self.n)) for lo in range(0, self.n, step)]
        a = self._dense_a()
        parts = [_products.bounds(self._shown(a[lo:hi]), self.b[lo:hi], ord, work) for lo, hi in spans]
        return join_bounds(parts, self.device)

    def norm_upper(self, ord: float = 2) -> Tensor:
        if self._given is not None:
            rounding.check_ord(ord)
            return rounding.product_upper(self._sizes(ord), rounding.matrix_bounds(_flat(self.b), ord)[1])
        if self.positions != 1 or not isinstance(self.a, Tensor):
            return super().norm_upper(ord)
        if self.device.type != "cuda" and not rounding.narrow(self.a, self.b):
            return super().norm_upper(ord)
        rounding.check_ord(ord)
        return self._sizes(ord) * rounding.device_upper(_flat(self.b), ord) * (1 + 2.0**-50)

    def underflow(self) -> Tensor:
        """What c b loses is multiplied by a: a long a beside a short b loses much."""
        longest = self._sizes(2).view(self.n, self.positions).sum(1)
        return super().underflow() * (self.positions + longest)

    def sum(self, weights: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        b = self._wide(self.b)
        if weights is not None:
            b = b * self._weights(weights).view(-1, *[1] * (b.ndim - 1))
        with exact_products(self.device):
            if not isinstance(self.a, Tensor):
                return self._into(out, rmatmul(self.a, b).T.reshape(-1))
            a, b = _flat(self.a).to(self.dtype), _flat(b)
            total = self._empty(self.d) if out is None else out
            matrix = total.view(self.q, self.p)
            adding.product_into(matrix[:, : a.shape[1]], b.T, a)
            if self.ones:
                torch.sum(b, 0, out=matrix[:, -1])
            return total

    def mass(self, ord: float = 2) -> Tensor | None:
        """sum_t ||a_t|| ||b_t|| where there are several terms, or one that is seen through a centring map."""
        if isinstance(self.a, View):
            size = self.a.mass()
            if size is None:
                return None
            size = size * (self.p**0.5 if ord == 1 else 1.0)
            return size * rounding.matrix_bounds(_flat(self.b), ord)[1] * (1 + 2.0**-40)
        if self.positions == 1:
            return None
        sizes = self._sizes(ord) * rounding.matrix_bounds(_flat(self.b), ord)[1]
        return sizes.view(self.n, self.positions).sum(1) * (1 + 2.0**-20)

    def sum_to(self, weights: Tensor, rho: float, out: Tensor | None = None) -> Tensor:
        if not isinstance(self.a, Tensor):
            return self._seen_sum(self.a, weights, rho, out)
        b = self._wide(self.b) * self._weights(weights).view(-1, *[1] * (self.b.ndim - 1))
        a, b = _flat(self.a).to(self.dtype), _flat(b)
        room = self._room(rho, out)
        matrix = room.view(self.q, self.p)
        adding.outer_sum(a, b, rho, matrix[:, : a.shape[1]])
        if self.ones:
            adding.row_sum(b, rho, matrix[:, -1])
        return room

    def _seen_sum(self, whole: Csr | View, weights: Tensor, rho: float, out: Tensor | None) -> Tensor:
        """The same for sparse and mapped factors: in float64 unless they are few."""
        if isinstance(whole, View):  # a map has roundings of its own
            rho = max(0.0, rho - rounding.gamma(whole.roundings, torch.float64))
        elif self.n <= adding.roundings(rho, self.dtype) - adding.SPARE:
            return self._room(rho, out).copy_(self.sum(weights))
        b = self.b.to(torch.float64) * weights.to(self.b.device, torch.float64)[:, None]

        def add(lo: int, hi: int) -> Tensor:
            a = whole if (lo, hi) == (0, self.n) else whole[lo:hi]
            return rmatmul(a, b[lo:hi]).T.reshape(-1)

        value = adding.in_float64(self.n, rho, (self.d,), self.device, add, max(1, self.n))
        return self._room(rho, out).copy_(value)

    def part(self, lo: int, hi: int) -> Outer:
        return Outer(self.a[lo:hi], self.b[lo:hi], self.ones)

    def finite(self) -> Rows:
        if not isinstance(self.a, Tensor):
            return super().finite()
        a, b = (torch.nan_to_num(x, 0.0, 0.0, 0.0) for x in (self.a, self.b))
        return Outer(a, b, self.ones)

    @property
    def small(self) -> bool:
        return isinstance(self.a, Tensor) and self.a.nbytes + self.b.nbytes <= 3 * CHUNK_BYTES

    def masked(self, keep: Tensor) -> Rows:
        if isinstance(self.a, View):
            return super().masked(keep)
        rows = keep.view(-1, *[1] * (self.b.ndim - 1))
        a = _kept_rows(self.a, keep) if is_sparse(self.a) else _zero_unless(rows, self.a)
        return Outer(a, _zero_unless(rows, self.b), self.ones)

    def dense(self) -> Tensor:
        a, b = self._shown(to_dense(self.a)).to(self.dtype), self._wide(self.b)
        with exact_products(self.device):
            rule = "nq,np->nqp" if a.ndim == 2 else "ntq,ntp->nqp"
            return torch.einsum(rule, b, a).reshape(self.n, self.d)

    def through(self, sketch: Sketch, lo: int = 0) -> Rows:
        if isinstance(self.a, View):
            return super().through(sketch, lo)
        a = self.a if is_sparse(self.a) else self._shown(self.a.to(rounding.working(self.a.dtype)))
        if self.q == 1 and self.positions == 1:
            return Outer(sketch.rows(a if is_sparse(a) else _flat(a), lo), _flat(self.b))
        return Dense(outer_codes(sketch, a, self._wide(self.b), lo))

    def outer_form(self) -> OuterForm | None:
        return None if isinstance(self.a, View) else OuterForm(self.a, self.b, self.ones)

    def inner(self, other: Mate) -> Tensor:
        """sum_{s,t} (a_is'a_jt)(b_is'b_jt): two products of factors, where that is cheaper than the q x p matrices."""
        mate = other.outer_form()
        if mate is None or isinstance(self.a, View):
            return super().inner(other)
        view = mate.whole_a()
        if (mate.b.shape[-1], view.shape[-1]) != (self.q, self.p):
            return super().inner(other)
        pairs, m = self.positions * (1 if mate.b.ndim == 2 else mate.b.shape[1]), other.n
        if pairs > 1 and pairs * (self.p + self.q) > self.p * self.q:
            return super().inner(other)
        dtype = rounding.working(self.dtype, other.dtype)
        inputs, outputs = view if is_sparse(view) else _flat(view), _flat(mate.b)
        width = self.positions * (self.p + self.q) + 3 * pairs * m
        parts = [torch.zeros(0, m, dtype=dtype, device=self.device)]
        with exact_products(self.device):
            for lo, hi in row_spans(self.n, width * dtype.itemsize):
                a = self.a[lo:hi] if is_sparse(self.a) else _flat(self._shown(self.a[lo:hi]))
                terms = _cross(a, inputs, dtype).to(self.device) * _cross(_flat(self.b[lo:hi]), outputs, dtype)
                parts.append(terms if pairs == 1 else terms.view(hi - lo, self.positions, m, -1).sum((1, 3)))
        return torch.cat(parts)

    def compact(self) -> Rows:
        """The q x p products themselves where they are smaller than their factors (and below `CHUNK_BYTES`)."""
        smaller = self.positions > 1 and self.d <= self.positions * (self.p + self.q)
        return Dense(self.dense()) if smaller and self.n * self.d * self.dtype.itemsize <= CHUNK_BYTES else self

    def plus(self, others: Sequence[Rows]) -> Rows:
        mates = [self, *(rows for rows in others if isinstance(rows, Outer) and self._same_shape(rows))]
        if len(mates) <= len(others):
            return KINDS["sum"]([self, *others])
        positions = sum(rows.positions for rows in mates)
        if positions * (self.p + self.q) >= self.d or not all(isinstance(r.a, Tensor) for r in mates):
            return super().plus(others)
        return _joined(mates)

    def minus(self, other: Rows) -> Rows:
        self._check_alike(other)
        if not isinstance(other, Outer) or not self._same_shape(other):
            return super().minus(other)
        if isinstance(self.a, View) and self.a is not other.a:
            return super().minus(other)
        if _same(self.a, other.a):
            return Outer(self.a, self._wide(self.b) - other.b, self.ones, self._given)
        if isinstance(self.a, Tensor) and isinstance(other.a, Tensor):
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
        if isinstance(self.a, View):
            return super().grouped(size)
        share = counts.repeat_interleave(size)[: self.n].view(-1, *[1] * (self.b.ndim - 1))
        b = self._wide(self.b) / share
        if is_sparse(self.a):
            return _sparse_rows(Outer(self.a, b)._times(size), self)
        return Outer(_fold(self.a, size, groups), _fold(b, size, groups), self.ones)

    def take(self, index: Tensor, factors: Tensor) -> Rows:
        if is_sparse(self.a):
            times = factors.to(self.b.device, self.dtype)[:, None]
            return Outer(self.a[index.cpu().numpy()], self._wide(self.b)[index.to(self.device)] * times)
        if not isinstance(self.a, Tensor):
            return super().take(index, factors)
        index, shape = index.to(self.device), (-1, *[1] * (self.b.ndim - 1))
        return Outer(
            self.a[index], self._wide(self.b)[index] * factors.to(self.b.device, self.dtype).view(shape), self.ones
        )

    def scaled(self, factor: float) -> Outer:
        return Outer(self.a, self._wide(self.b) * factor, self.ones, self._given)

    def _sizes(self, ord: float) -> Tensor:
        """Upper bounds of the norms of all a_t, computed once."""
        if self._given is not None and ord not in self._known:
            self._known[ord] = self._given(ord).to(self.device)
        if ord not in self._known:
            quick = isinstance(self.a, Tensor) and (self.a.is_cuda or rounding.narrow(self.a))
            upper = rounding.device_upper(_flat(self._dense_a()), ord) if quick else self._factor_bounds(ord)[1]
            if quick and self.ones:
                upper = rounding.with_one(upper, ord)
            self._known[ord] = upper
        return self._known[ord]

    def _factor_bounds(self, ord: float) -> Bounds:
        low, high = rounding.matrix_bounds(_flat(self.a) if isinstance(self.a, Tensor) else self.a, ord)
        if self.ones:
            ones = torch.ones_like(low)
            low, high = rounding.combine([(low, high), (ones, ones)], ord)
        return low.to(self.device), high.to(self.device)

    def _shown(self, a: Tensor) -> Tensor:
        """A dense factor with its column of ones."""
        return torch.cat([a, a.new_ones(*a.shape[:-1], 1)], -1) if self.ones else a

    def _wide(self, x: Tensor) -> Tensor:
        return x.to(self.dtype)

    def _dense_a(self) -> Tensor:
        """The factor of rows with several terms, which is always a tensor."""
        assert isinstance(self.a, Tensor)
        return self.a

    def _same_shape(self, other: Outer) -> bool:
        return (other.n, other.p, other.q, other.ones) == (self.n, self.p, self.q, self.ones)

    def _times(self, size: int) -> Csr:
        """The sums of `size` consecutive sparse rows, as a CSR matrix with q p columns."""
        groups = -(-self.n // size)
        rows = (np.arange(self.n) // size)[:, None] * self.q + np.arange(self.q)
        examples = np.repeat(np.arange(self.n), self.q)
        values = self._wide(self.b).cpu().numpy().ravel()
        mix = sp.csr_array((values, (rows.ravel(), examples)), shape=(groups * self.q, self.n))
        sums: Csr = sp.csr_array((mix @ self.a).tocoo().reshape((groups, self.d)).tocsr())
        return sums


def Glm(r: Tensor, X: Matrix, sizes: Callable[[float], Tensor] | None = None) -> Outer:
    """The per-example gradients g_i = r_i x_i of a linear model with residuals r_i = dl_i / d margin.

    `sizes` gives upper bounds of the norms of the rows of X, where they are known already.

    >>> Glm(torch.tensor([2.0, -1.0]), sp.csr_array([[1.0, 0.0], [0.0, 3.0]])).sum()
    tensor([ 2., -3.])
    """
    validate.shape((X.shape[0],), r=r)
    return Outer(X, r[:, None], sizes=sizes)


def _flat(x: Tensor) -> Tensor:
    """(n, p), or (n, T, p) with every position as a row of its own."""
    return x if x.ndim == 2 else x.reshape(-1, x.shape[-1])


def _zero_unless(keep: Tensor, x: Tensor) -> Tensor:
    return torch.where(keep, x, torch.zeros((), dtype=x.dtype, device=x.device))


def _cross(x: Stored, y: Stored, dtype: torch.dtype) -> Tensor:
    """x y' in a dtype, for dense or CSR factors with as many columns."""
    if is_sparse(y):
        return to_dense(as_dtype(x, dtype) @ y.T, dtype) if is_sparse(x) else _cross(y, x, dtype).T
    return matmul(x if is_sparse(x) else x.to(dtype), y.to(dtype).T)


def _joined(rows: Sequence[Outer]) -> Outer:
    """The row-wise sum of factored rows, by laying their positions one after the other."""
    dtype = rounding.working(*(r._dense_a().dtype for r in rows))
    a = [r._dense_a().to(dtype).reshape(r.n, r.positions, r.p - r.ones) for r in rows]
    b = [r._wide(r.b).reshape(r.n, r.positions, r.q) for r in rows]
    return Outer(torch.cat(a, dim=1), torch.cat(b, dim=1), rows[0].ones)


def _fold(x: Tensor, size: int, groups: int) -> Tensor:
    """(n, ..., k) to (groups, size * T, k), with zeros for the rows a last group lacks."""
    missing = groups * size - x.shape[0]
    x = torch.cat([x, x.new_zeros(missing, *x.shape[1:])]) if missing else x
    positions = size if x.ndim == 2 else size * x.shape[1]
    return x.reshape(groups, positions, x.shape[-1])


def _kept_rows(a: Csr, keep: Tensor) -> Csr:
    """A CSR matrix with zeros for the numbers of every row that is not kept."""
    return with_data(a, np.where(np.repeat(keep.cpu().numpy(), np.diff(a.indptr)), a.data, a.data.dtype.type(0)))


def _sparse_rows(values: Csr, like: Outer) -> Outer:
    """Rows held as a CSR matrix: one factor is 1."""
    return Outer(values, torch.ones(values.shape[0], 1, dtype=like.dtype, device=like.device))


def _same(x: Matrix, y: Matrix) -> bool:
    """Whether two factors hold the same numbers."""
    if x is y:
        return True
    if tuple(x.shape) != tuple(y.shape) or dtype_of(x) != dtype_of(y):
        return False
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        return torch.equal(x, y)
    if not is_sparse(x) or not is_sparse(y):
        return False
    pairs = ((x.indptr, y.indptr), (x.indices, y.indices), (x.data, y.data))
    return all(np.array_equal(mine, theirs) for mine, theirs in pairs)


KINDS["factors"] = lambda a, b: Outer(a, b).compact()
