"""Rows: n vectors of some R^d, held in whatever form is cheapest.  The one type for gradients AND codes.

What the library asks of per-example gradients is small: their norms (to clip them), one weighted sum (to
use them) and their codes through a sketch.  None of these needs the n x d matrix, so a kind of rows keeps
its factors and answers from them.  `dense()` builds the matrix, as the slow reference.

`Rows.norms` never lies below the true norm: a clip that divides by it keeps its promise in floating point.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.matrix import Total, exact_products
from isthmus.base.space import Space
from isthmus.gradients import adding, fused, rounding
from isthmus.gradients.rounding import CHUNK_BYTES, Bounds
from isthmus.sketches.base import Mate, OuterForm, Sketch, TableForm

KINDS: dict[str, Callable[..., Rows]] = {}
"""What makes the kinds that methods of all rows return: each is added by its own file, which imports this one."""


class Rows(ABC):
    """n vectors g_1, ..., g_n of R^d.

    A kind supplies `n`, `d`, `dtype`, `device`, `norm_bounds`, `sum`, `part` and `dense`; everything else
    follows, and kinds override it where their factors allow something cheaper.

    >>> rows = Dense(torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    >>> rows.n, rows.d, rows.sum(torch.tensor([1.0, 2.0]))
    (2, 2, tensor([3., 6.]))
    """

    n: int
    d: int
    dtype: torch.dtype
    device: torch.device
    exact: bool = False
    """Whether sums of whole rows are exact, as counts are."""
    positions: int = 1
    """How many terms a row is the sum of."""

    @abstractmethod
    def norm_bounds(self, ord: float = 2) -> Bounds:
        """`(lower, upper)` with lower_i <= ||g_i|| <= upper_i, float64."""

    @abstractmethod
    def sum(self, weights: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """sum_i c_i g_i, a vector of R^d: the only reduction there is (c = 1 when no weights are given)."""

    @abstractmethod
    def part(self, lo: int, hi: int) -> Rows:
        """The rows lo, ..., hi - 1."""

    @abstractmethod
    def dense(self) -> Tensor:
        """The n x d matrix: a slow reference, for tests, public data and small chunks."""

    def mass(self, ord: float = 2) -> Tensor | None:
        """M_i, not below the norm of the absolute sum of the terms of row i; None where that is the row's own norm.

        A row that is a sum of terms may cancel: its norm says nothing about what its terms do to a sum.
        """
        return None

    def sum_to(self, weights: Tensor, rho: float, out: Tensor | None = None) -> Tensor:
        """sum_i c_i g_i, off by at most rho sum_i c_i M_i in the norm of `mass` (see `isthmus.gradients.adding`).

        In the rows' own dtype where that can hold it, else in float64.
        """
        c = weights.to(device=self.device, dtype=torch.float64)

        def add(lo: int, hi: int) -> Tensor:
            return c[lo:hi] @ self.part(lo, hi).dense().to(torch.float64)

        most = max(1, CHUNK_BYTES // (8 * self.d))
        return self._room(rho, out).copy_(adding.in_float64(self.n, rho, (self.d,), self.device, add, most))

    def finite(self) -> Rows:
        """The same rows with 0 in place of what is not finite: such rows have weight 0, and 0 times 0 is 0."""
        return self.masked(torch.isfinite(self.norm_upper()))

    def masked(self, keep: Tensor) -> Rows:
        """Zero in place of every row that is not kept, whatever it holds: no 0 times infinity."""
        return self._chunkwise(lambda lo, hi: _kept(self.part(lo, hi).dense(), keep[lo:hi]))

    def without(self, weights: Tensor) -> Rows:
        """The rows for a sum with these weights, in which those of weight 0 count as zero, whatever they hold."""
        return self.masked(weights > 0)

    @property
    def small(self) -> bool:
        """Whether `masked` costs next to nothing, whoever is masked."""
        return False

    def sound(self) -> Tensor:
        """Which rows are finite as they are added: (n,)."""
        parts = [self.part(*span).dense().isfinite().all(1) for span in self.spans()]
        return torch.cat(parts) if parts else torch.ones(0, dtype=torch.bool, device=self.device)

    def norms(self, ord: float = 2) -> Tensor:
        """||g_i||_ord for ord 1, 2 or inf: shape (n,), float32 or better.

        Guarantees:
          * never below the true norm of the row that `sum` adds up, whatever the dtype of the factors;
          * `C / norms` may be rounded once more and cast: a reserve of `RESERVE` roundings is included;
          * a zero row has norm exactly 0; a row with NaN or infinite entries has norm infinity.
        """
        upper = self.norm_upper(ord)
        return rounding.round_up(upper * (1 + rounding.RESERVE * rounding.unit(self.dtype)), self.dtype)

    def norm_upper(self, ord: float = 2) -> Tensor:
        """The upper half of `norm_bounds`: kinds whose rows are on a device answer it with fewer kernels."""
        return self.norm_bounds(ord)[1]

    def underflow(self) -> Tensor:
        """What the weighted share of each row may be off by, in the l1 norm, below the normal numbers: (n,), float64.

        Above them rounding is relative, and `norms` has a reserve for it; a number below them may be taken for 0.
        """
        return torch.full((self.n,), self.lost, dtype=torch.float64, device=self.device)

    @property
    def lost(self) -> float:
        """What all entries of a weighted row may lose below the normal numbers."""
        return self.d * torch.finfo(self.dtype).tiny

    def leaves(self) -> list[tuple[str, Rows]]:
        """The named pieces these rows are made of, side by side."""
        return [("w", self)]

    def through(self, sketch: Sketch, lo: int = 0) -> Rows:
        """The codes Phi[:, lo:lo+d] g_i."""
        codes = [sketch.rows(self.part(*span).dense(), lo) for span in self.spans()]
        return Dense(torch.cat(codes) if codes else self._zeros(0, sketch.m))

    def outer_form(self) -> OuterForm | None:
        """The factors of rows that are held as sums of outer products; None where they are not."""
        return None

    def table_form(self) -> TableForm | None:
        """The places and values of rows of a table; None where they are not."""
        return None

    def inner(self, other: Mate) -> Tensor:
        """<g_i, h_j> with m rows of the same space (or what holds their factors): n x m, never an n x d matrix.

        The products are done in the wider dtype of both, float32 at least; here from blocks of dense rows.

        >>> Dense(torch.tensor([[1.0, 2.0]])).inner(Dense(torch.tensor([[3.0, 0.0], [0.0, 4.0]])))
        tensor([[3., 8.]])
        """
        validate.check(other.d == self.d, "other.d", other.d, f"give rows of the same space, d = {self.d}")
        dtype = rounding.working(self.dtype, other.dtype)
        result = torch.empty(self.n, other.n, dtype=dtype, device=self.device)
        with exact_products(self.device):
            for lo, hi in row_spans(self.n, self.d * dtype.itemsize):
                mine = self.part(lo, hi).dense().to(dtype)
                for left, right in row_spans(other.n, self.d * dtype.itemsize):
                    result[lo:hi, left:right] = mine @ other.part(left, right).dense().to(dtype).T
        return result

    def plus(self, others: Sequence[Rows]) -> Rows:
        """Row-wise sum with rows of the same space (codes of leaves that share one code space)."""
        total = self.dense()
        for other in others:
            self._check_alike(other)
            total = total + other.dense()
        return Dense(total)

    def minus(self, other: Rows) -> Rows:
        """Row-wise difference g_i - h_i."""
        self._check_alike(other)
        return self._chunkwise(lambda lo, hi: self.part(lo, hi).dense() - other.part(lo, hi).dense())

    def grouped(self, size: int) -> Rows:
        """Micro-batches: row j is the mean of rows j*size, ..., (j+1)*size - 1; a remainder is a smaller group."""
        validate.positive_int(size=size)

        def means(lo: int, hi: int) -> Tensor:
            groups = [self.part(j * size, min((j + 1) * size, self.n)) for j in range(lo, hi)]
            return torch.stack([group.sum() / group.n for group in groups])

        return Lazy(means, -(-self.n // size), self.d, dtype=self.dtype, device=self.device)

    def regrouped(self, groups: Tensor) -> Rows:
        """Micro-batches by name: row j is the mean of the rows i with groups[i] = j, zero where there is none.

        A row that is not finite, or longer than `2^-40` of the largest float, counts as zero: whatever the other rows
        are, no mean overflows, and a row touches no group but its own.

        >>> Dense(torch.tensor([[1.0], [3.0], [8.0]])).regrouped(torch.tensor([2, 2, 0])).dense()
        tensor([[8.],
                [0.],
                [2.]])
        """
        validate.shape((self.n,), groups=groups)
        counts = torch.bincount(groups) if self.n else groups.new_zeros(0)
        # a power of two: a mean is then rounded as its own group's size says, whatever the largest one is
        most = 1 << (int(counts.max()) - 1).bit_length() if len(counts) else 1
        order = torch.argsort(groups, stable=True)
        within = torch.arange(self.n) - (counts.cumsum(0) - counts)[groups[order]]
        index, share = torch.zeros(len(counts), most, dtype=torch.long), torch.zeros(len(counts), most).double()
        index[groups[order], within] = order
        share[groups[order], within] = most / counts[groups[order]].to(share)
        sound = self.masked(self.norm_upper() <= torch.finfo(self.dtype).max * 2.0**-40)
        filled = (share.reshape(-1) != 0).to(self.device)  # the rest points at row 0, which must leave no trace
        return sound.take(index.reshape(-1), share.reshape(-1)).masked(filled).grouped(most)

    def take(self, index: Tensor, factors: Tensor) -> Rows:
        """Row j is factors[j] times the row index[j]."""
        return Dense(self.dense()[index.to(self.device)] * factors.to(self.dtype).to(self.device)[:, None])

    def scaled(self, factor: float) -> Rows:
        """Every row times a number."""
        return self._chunkwise(lambda lo, hi: self.part(lo, hi).dense() * factor)

    def compact(self) -> Rows:
        """The same rows in less room, where that is known."""
        return self

    def computed(self, bound: float | None = None) -> Rows:
        """The rows as a device adds them up fastest (see `isthmus.gradients.computed` and `grids`).

        Sums of several terms are the products that it computes; single terms, clipped to `bound`, whole numbers.
        """
        return KINDS["computed"](self, bound)

    def residual(self, codes: Rows, sketch: Sketch) -> Rows:
        """g_i - Phi^+ c_i, what a tight sketch loses, given the codes c_i = Phi g_i."""
        return KINDS["residual"](self, codes, sketch)

    @staticmethod
    def stack(items: Sequence[tuple[str, Rows]]) -> Rows:
        """Named rows side by side."""
        return KINDS["stack"](items)

    @staticmethod
    def with_factors(a: Tensor, b: Tensor) -> Rows:
        """Rows vec(sum_t b_t a_t') from their factors, or the products where these are smaller."""
        return KINDS["factors"](a, b)

    @staticmethod
    def of(values: Tensor) -> Rows:
        """Rows held as an n x d tensor."""
        return Dense(values)

    def spans(self) -> list[tuple[int, int]]:
        """Row ranges whose dense form stays near `CHUNK_BYTES`."""
        return row_spans(self.n, self.d * self.dtype.itemsize)

    def _chunkwise(self, chunk: Callable[[int, int], Tensor]) -> Rows:
        return Lazy(chunk, self.n, self.d, dtype=self.dtype, device=self.device)

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(*shape, dtype=self.dtype, device=self.device)

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(*shape, dtype=self.dtype, device=self.device)

    def _room(self, rho: float, out: Tensor | None) -> Tensor:
        """Where a sum within rho is written."""
        if out is not None:
            return out
        dtype = self.dtype if adding.holds(rho, self.dtype) else torch.float64
        return torch.empty(self.d, dtype=dtype, device=self.device)

    @staticmethod
    def _into(out: Tensor | None, value: Tensor) -> Tensor:
        """The value, in `out` where one is given."""
        return value if out is None else out.copy_(value)

    def _weights(self, weights: Tensor | None) -> Tensor:
        """The weights in the working dtype; ones where none are given."""
        if weights is None:
            return torch.ones(self.n, dtype=self.dtype, device=self.device)
        validate.shape((self.n,), weights=weights)
        return weights.to(dtype=self.dtype, device=self.device)

    def _check_alike(self, other: Rows) -> None:
        same = (other.n, other.d) == (self.n, self.d)
        validate.check(same, "rows (n, d)", (other.n, other.d), f"give rows with (n, d) = {(self.n, self.d)}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(n={self.n}, d={self.d}, {str(self.dtype).removeprefix('torch.')})"


class Dense(Rows):
    """Rows held as an n x d tensor; `blank` ones of weight 0 count as zero in a sum, whatever they hold.

    >>> Dense(torch.tensor([[3.0, 4.0]])).norms()
    tensor([5.0000])
    """

    def __init__(self, values: Tensor, blank: bool = False) -> None:
        validate.check(values.ndim == 2, "values.shape", tuple(values.shape), "give an n x d tensor")
        self.values, self._blank = values.detach(), blank
        self.n, self.d = values.shape
        self.dtype, self.device = rounding.working(values.dtype), values.device

    def norm_bounds(self, ord: float = 2) -> Bounds:
        return rounding.matrix_bounds(self.values, ord)

    def sum(self, weights: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        if weights is None:
            return self._into(out, self.values.sum(0, dtype=self.dtype))
        with exact_products(self.device):
            return self._into(out, self._weights(weights) @ self.dense())

    def norm_upper(self, ord: float = 2) -> Tensor:
        quick = self.values.is_cuda and ord == 2
        return rounding.device_upper(self.values, ord) if quick else super().norm_upper(ord)

    def sum_to(self, weights: Tensor, rho: float, out: Tensor | None = None) -> Tensor:
        room, c = self._room(rho, out), self._weights(weights)
        within = room.dtype == self.dtype and self.n <= adding.roundings(rho, self.dtype) - adding.SPARE
        if within and fused.few(self.values):
            fused.weighted_sum_of(self.values[:, None], c, room.view(1, -1))
            return room
        values = _kept(self.values, c > 0) if self._blank else self.values
        adding.outer_sum(values, c[:, None], rho, room.view(1, -1))
        return room

    def without(self, weights: Tensor) -> Dense:
        return Dense(self.values, blank=True) if fused.few(self.values) else self.masked(weights > 0)

    def part(self, lo: int, hi: int) -> Dense:
        return Dense(self.values[lo:hi], self._blank)

    def finite(self) -> Dense:
        return Dense(torch.nan_to_num(self.values, 0.0, 0.0, 0.0))

    def dense(self) -> Tensor:
        return self.values.to(self.dtype)

    def through(self, sketch: Sketch, lo: int = 0) -> Dense:
        return Dense(sketch.rows(self.dense(), lo))

    @property
    def small(self) -> bool:
        return self.values.nbytes <= CHUNK_BYTES

    def masked(self, keep: Tensor) -> Dense:
        return Dense(_kept(self.dense(), keep))

    def minus(self, other: Rows) -> Rows:
        self._check_alike(other)
        return Dense(self.dense() - other.values) if isinstance(other, Dense) else super().minus(other)

    def grouped(self, size: int) -> Dense:
        validate.positive_int(size=size)
        whole = self.n - self.n % size
        means = self.values[:whole].view(-1, size, self.d) if whole else self.values.new_zeros(0, 1, self.d)
        rest = [self.values[whole:].mean(0, keepdim=True, dtype=self.dtype)] if whole < self.n else []
        return Dense(torch.cat([means.mean(1, dtype=self.dtype), *rest]))

    def scaled(self, factor: float) -> Dense:
        return Dense(self.dense() * factor)


class Lazy(Rows):
    """Rows that a function produces a chunk at a time: never more than about `CHUNK_BYTES` of them at once.

    Args:
        chunk: `(lo, hi) -> (hi - lo, d)` tensor, the rows lo, ..., hi - 1; called as often as needed.
        n, d: how many rows, of what length.
        space: the named leaves of R^d, when `leaves()` should tell them apart.
        dtype, device: of the tensors `chunk` returns (below float32 the rows are raised to float32).

    The last chunk is remembered, so that the leaves of a batch that fits in one are computed once.

    >>> rows = Lazy(lambda lo, hi: torch.arange(lo, hi).float()[:, None] * torch.ones(3), n=4, d=3)
    >>> rows.sum(), rows.norms(1)
    (tensor([6., 6., 6.]), tensor([0.0000, 3.0000, 6.0000, 9.0000]))
    """

    def __init__(
        self,
        chunk: Callable[[int, int], Tensor],
        n: int,
        d: int,
        *,
        space: Space | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        validate.non_negative_int(n=n)
        validate.positive_int(d=d)
        if space is not None:
            validate.check(space.d == d, "space.d", space.d, f"give a space of dimension d = {d}")
        self.chunk, self.n, self.d, self.space = chunk, n, d, space
        self.dtype, self.device = rounding.working(dtype), torch.device(device)
        self._width = d
        self._last: tuple[tuple[int, int], Tensor] | None = None

    def norm_bounds(self, ord: float = 2) -> Bounds:
        rounding.check_ord(ord)
        return join_bounds([rounding.matrix_bounds(self._rows(*span), ord) for span in self.spans()], self.device)

    def sum(self, weights: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        c, total = self._weights(weights), self._zeros(self.d)
        with exact_products(self.device):
            for lo, hi in self.spans():
                total += c[lo:hi] @ self._rows(lo, hi)
        return self._into(out, total)

    def sum_to(self, weights: Tensor, rho: float, out: Tensor | None = None) -> Tensor:
        c, exact = self._weights(weights), self.n > adding.roundings(rho, torch.float64) - adding.SPARE
        total, piece = Total((1, self.d), self.device, exact), self._zeros(1, self.d).double()
        for lo, hi in self.spans():
            adding.outer_sum(self._rows(lo, hi), c[lo:hi, None], rho, piece)
            total.add(piece)
        return self._room(rho, out).copy_(total.result()[0])

    def part(self, lo: int, hi: int) -> Lazy:
        return self._derived(lambda i, j: self._rows(lo + i, lo + j), hi - lo, self.d, self.space)

    def masked(self, keep: Tensor) -> Lazy:
        return self._derived(lambda lo, hi: _kept(self._rows(lo, hi), keep[lo:hi]), self.n, self.d, self.space)

    def dense(self) -> Tensor:
        return torch.cat([self._rows(*span) for span in self.spans()]) if self.n else self._zeros(0, self.d)

    def leaves(self) -> list[tuple[str, Rows]]:
        if self.space is None:
            return [("w", self)]
        if len(self.space.leaves) == 1:
            return [(self.space.leaves[0].name, self)]
        return [(leaf.name, self._columns(leaf.start, leaf.start + leaf.size)) for leaf in self.space.leaves]

    def spans(self) -> list[tuple[int, int]]:
        return row_spans(self.n, self._width * self.dtype.itemsize)

    def _columns(self, lo: int, hi: int) -> Lazy:
        piece = self._derived(lambda i, j: self._rows(i, j)[:, lo:hi], self.n, hi - lo, None)
        piece._width = self._width
        return piece

    def _derived(self, chunk: Callable[[int, int], Tensor], n: int, d: int, space: Space | None) -> Lazy:
        return Lazy(chunk, n, d, space=space, dtype=self.dtype, device=self.device)

    def _rows(self, lo: int, hi: int) -> Tensor:
        if self._last is None or self._last[0] != (lo, hi):
            values = self.chunk(lo, hi).detach()
            validate.shape((hi - lo, self.d), chunk=values)
            self._last = (lo, hi), values.to(self.dtype)
        return self._last[1]


def _kept(values: Tensor, keep: Tensor) -> Tensor:
    return torch.where(keep[:, None], values, 0.0)


def Difference(a: Rows, b: Rows) -> Rows:
    """Rows a_i - b_i, with exact norms: factored kinds stay factored, leaves are taken one by one.

    >>> one, two = Dense(torch.tensor([[1.0, 2.0]])), Dense(torch.tensor([[1.0, -2.0]]))
    >>> Difference(one, two).norms()
    tensor([4.0000])
    """
    return a.minus(b)


def Grouped(rows: Rows, size: int) -> Rows:
    """Micro-batches: the means of `size` consecutive rows, the last of them possibly over fewer.

    >>> Grouped(Dense(torch.tensor([[1.0], [3.0], [7.0]])), 2).dense()
    tensor([[2.],
            [7.]])
    """
    return rows.grouped(size)


def row_spans(n: int, row_bytes: int, limit: int = CHUNK_BYTES) -> list[tuple[int, int]]:
    """Ranges that cover 0..n-1, each of at most `limit` bytes (but at least one row).

    >>> row_spans(5, 40, limit=100)
    [(0, 2), (2, 4), (4, 5)]
    """
    step = max(1, limit // max(1, row_bytes))
    return [(lo, min(lo + step, n)) for lo in range(0, n, step)]


def join_bounds(parts: list[Bounds], device: torch.device) -> Bounds:
    """Bounds of consecutive rows, one after the other."""
    if not parts:
        empty = torch.zeros(0, dtype=torch.float64, device=device)
        return empty, empty
    lows, highs = zip(*parts, strict=True)
    return torch.cat(lows), torch.cat(highs)
