"""Rows: n vectors of some R^d, held in whatever form is cheapest.  The one type for gradients AND codes.

What the library asks of per-example gradients is small: their norms (to clip them), one weighted sum (to
use them) and their codes through a sketch.  None of these needs the n x d matrix, so a kind of rows keeps
its factors and answers from them.  `dense()` builds the matrix, as the slow reference.

`Rows.norms` never lies below the true norm: a clip that divides by it keeps its promise in floating point.

Rows of different kinds are added as a `Sum`: the output layer of a language model is often tied to its embedding, and
the gradient of the shared V x D table is then sum_s b_s a_s' + sum_t e_{k_t} c_t', an `Outer` plus a `Lookup`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from functools import cached_property
from typing import Protocol

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from isthmus.base import matrix, validate
from isthmus.base.matrix import Csr, Matrix, Stored, View, is_sparse, to_dense
from isthmus.base.space import Space
from isthmus.gradients import fused, rounding
from isthmus.gradients.rounding import CHUNK_BYTES, exact_products


class _LinearMap(Protocol):
    """What rows ask of a sketch (see `isthmus.sketches.base.Sketch`)."""

    d: int
    m: int
    tight: bool

    @property
    def norm(self) -> float: ...
    def rows(self, x: Stored, lo: int = 0) -> Tensor: ...
    def outer(self, a: Stored, b: Tensor, lo: int = 0) -> Tensor: ...
    def pinv(self, y: Tensor) -> Tensor: ...


class Rows(ABC):
    """n vectors g_1, ..., g_n of R^d.

    A kind supplies `n`, `d`, `dtype`, `device`, `norm_upper`, `sum_to`, `part` and `dense`; everything else
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
    skips: bool = False
    """Whether `sum_to` reads no row of weight 0, whatever it holds: nobody need be masked."""
    one_term: bool = False
    """Whether each is one product of two factors on the host, than which nothing is smaller or faster."""

    @abstractmethod
    def norm_upper(self, ord: float = 2) -> Tensor:
        """Upper bounds of the norms of the rows that `sum_to` adds up, float64."""

    @abstractmethod
    def sum_to(self, weights: Tensor, rho: float, out: Tensor | None = None) -> Tensor:
        """sum_i c_i g_i, off by at most rho sum_i c_i M_i in the norm of `mass` (see `isthmus.gradients.rounding`).

        In the rows' own dtype where that can hold it, else in float64.
        """

    @abstractmethod
    def part(self, lo: int, hi: int) -> Rows:
        """The rows lo, ..., hi - 1."""

    @abstractmethod
    def dense(self) -> Tensor:
        """The n x d matrix: a slow reference, for tests, public data and small chunks."""

    def norms(self, ord: float = 2) -> Tensor:
        """||g_i||_ord for ord 1, 2 or inf: shape (n,), float32 or better.

        Guarantees:
          * never below the true norm of the row that `sum` adds up, whatever the dtype of the factors;
          * `C / norms` may be rounded once more and cast: a reserve of `RESERVE` roundings is included;
          * a zero row has norm exactly 0; a row with NaN or infinite entries has norm infinity.
        """
        upper = self.norm_upper(ord)
        return rounding.round_up(upper * (1 + rounding.RESERVE * rounding.unit(self.dtype)), self.dtype)

    def sum(self, weights: Tensor | None = None) -> Tensor:
        """sum_i c_i g_i, a vector of R^d (c = 1 when no weights are given), in the rows' own dtype."""
        if weights is None:
            weights = torch.ones(self.n, dtype=self.dtype, device=self.device)
        validate.shape((self.n,), weights=weights)
        with exact_products(self.device):
            return self.sum_to(weights.to(dtype=self.dtype, device=self.device), 1.0)

    def mass(self, ord: float = 2) -> Tensor | None:
        """M_i, not below the norm of the absolute sum of the terms of row i; None where that is the row's own norm.

        A row that is a sum of terms may cancel: its norm says nothing about what its terms do to a sum.
        """
        return None

    def underflow(self) -> float | Tensor:
        """What the weighted share of a row may be off by, in the l1 norm, below the normal numbers: of all, or of each.

        Above them rounding is relative, and `norms` has a reserve for it; a number below them may be taken for 0.
        """
        return self.d * torch.finfo(self.dtype).tiny

    def masked(self, keep: Tensor) -> Rows:
        """Zero in place of every row that is not kept, whatever it holds: no 0 times infinity."""
        return self._chunkwise(lambda lo, hi: _kept(self.part(lo, hi).dense(), keep[lo:hi]))

    def mixed(self, index: Tensor, shares: Tensor) -> Rows:
        """Row j is sum_s shares[j, s] times the row index[j, s], for two (m, s) tensors.

        >>> Dense(torch.tensor([[1.0], [3.0]])).mixed(torch.tensor([[0, 1]]), torch.tensor([[0.5, 0.5]])).dense()
        tensor([[2.]])
        """
        return Dense(self.dense()).mixed(index, shares)

    def scaled(self, factor: float) -> Rows:
        """Every row times a number."""
        return self._chunkwise(lambda lo, hi: self.part(lo, hi).dense() * factor)

    def leaves(self) -> list[tuple[str, Rows]]:
        """The named pieces these rows are made of, side by side."""
        return [("w", self)]

    def through(self, sketch: _LinearMap, lo: int = 0) -> Rows:
        """The codes Phi[:, lo:lo+d] g_i."""
        codes = [sketch.rows(self.part(*span).dense(), lo) for span in self._spans()]
        return Dense(torch.cat([self._zeros(0, sketch.m), *codes]))

    def plain(self) -> Rows:
        """The same rows as sums of exact terms."""
        return self

    def _spans(self) -> list[tuple[int, int]]:
        """Row ranges whose dense form stays near `CHUNK_BYTES`."""
        return row_spans(self.n, self.d * self.dtype.itemsize)

    def _chunkwise(self, chunk: Callable[[int, int], Tensor]) -> Rows:
        return Lazy(chunk, self.n, self.d, dtype=self.dtype, device=self.device)

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(*shape, dtype=self.dtype, device=self.device)

    def _room(self, rho: float, out: Tensor | None) -> Tensor:
        """Where a sum within rho is written."""
        if out is not None:
            return out
        dtype = self.dtype if rounding.holds(rho, self.dtype) else torch.float64
        return torch.empty(self.d, dtype=dtype, device=self.device)

    def _cast(self, x: Tensor) -> Tensor:
        return x.to(dtype=self.dtype, device=self.device)

    def _check_alike(self, other: Rows) -> None:
        same = (other.n, other.d) == (self.n, self.d)
        validate.check(same, "rows (n, d)", (other.n, other.d), f"give rows with (n, d) = {(self.n, self.d)}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(n={self.n}, d={self.d}, {str(self.dtype).removeprefix('torch.')})"


class Dense(Rows):
    """Rows held as an n x d tensor.

    >>> Dense(torch.tensor([[3.0, 4.0]])).norms()
    tensor([5.0000])
    """

    def __init__(self, values: Tensor) -> None:
        validate.check(values.ndim == 2, "values.shape", tuple(values.shape), "give an n x d tensor")
        self.values = values.detach()
        self.n, self.d = values.shape
        self.dtype, self.device = rounding.working(values.dtype), values.device
        self.skips = fused.few(values)

    def norm_upper(self, ord: float = 2) -> Tensor:
        return rounding.upper_norms(self.values, ord)

    def sum_to(self, weights: Tensor, rho: float, out: Tensor | None = None) -> Tensor:
        room, c, values = self._room(rho, out), self._cast(weights), self.values
        if self.skips and room.dtype == self.dtype and self.n <= rounding.most_terms(rho, self.dtype):
            fused._weighted_sum_of(values[:, None], c, room.view(1, -1))
            return room
        if self.skips:
            values = _kept(values, c != 0)
        rounding._outer_sum(values, c[:, None], rho, room.view(1, -1))
        return room

    def part(self, lo: int, hi: int) -> Dense:
        return Dense(self.values[lo:hi])

    def dense(self) -> Tensor:
        return self.values.to(self.dtype)

    def through(self, sketch: _LinearMap, lo: int = 0) -> Dense:
        return Dense(sketch.rows(self.dense(), lo))

    def masked(self, keep: Tensor) -> Dense:
        return Dense(_kept(self.dense(), keep))

    def mixed(self, index: Tensor, shares: Tensor) -> Dense:
        values = self.dense()[index.to(self.device)]
        return Dense((values * self._cast(shares)[:, :, None]).sum(1))

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

    def norm_upper(self, ord: float = 2) -> Tensor:
        rounding._check_ord(ord)
        return _joined([rounding.upper_norms(self._rows(*span), ord) for span in self._spans()], self.device)

    def sum_to(self, weights: Tensor, rho: float, out: Tensor | None = None) -> Tensor:
        c, exact = self._cast(weights), self.n > rounding.most_terms(rho, torch.float64)
        total, piece = matrix.Total((1, self.d), self.device, exact), self._zeros(1, self.d).double()
        for lo, hi in self._spans():
            rounding._outer_sum(self._rows(lo, hi), c[lo:hi, None], rho, piece)
            total.add(piece)
        return self._room(rho, out).copy_(total.result()[0])

    def part(self, lo: int, hi: int) -> Lazy:
        return self._derived(lambda i, j: self._rows(lo + i, lo + j), hi - lo, self.d, self.space)

    def masked(self, keep: Tensor) -> Lazy:
        return self._derived(lambda lo, hi: _kept(self._rows(lo, hi), keep[lo:hi]), self.n, self.d, self.space)

    def dense(self) -> Tensor:
        return torch.cat([self._zeros(0, self.d), *(self._rows(*span) for span in self._spans())])

    def leaves(self) -> list[tuple[str, Rows]]:
        if self.space is None:
            return [("w", self)]
        if len(self.space.leaves) == 1:
            return [(self.space.leaves[0].name, self)]
        return [(leaf.name, self._columns(leaf.start, leaf.start + leaf.size)) for leaf in self.space.leaves]

    def _spans(self) -> list[tuple[int, int]]:
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


class Counts(Rows):
    """Row i has a 1 at bin `bins[i, j]` of block j and zeros elsewhere: its sum counts records, exactly.

    Args:
        bins: `(lo, hi) -> (hi - lo, blocks)` integer tensor, the bins 0 .. width - 1 of rows lo .. hi - 1.
        n: how many rows.
        blocks, width: how many blocks, of how many bins each; d is their product.

    Every row has norm sqrt(blocks) in l2, `blocks` in l1 and 1 in l-infinity, whatever the records are.

    >>> rows = Counts(lambda lo, hi: torch.tensor([[0, 2], [1, 2]])[lo:hi], 2, blocks=2, width=3)
    >>> rows.sum().tolist(), rows.d
    ([1.0, 1.0, 0.0, 0.0, 0.0, 2.0], 6)
    """

    exact = True
    dtype = torch.float64
    device = torch.device("cpu")

    def __init__(self, bins: Callable[[int, int], Tensor], n: int, blocks: int, width: int) -> None:
        self.bins, self.n, self.blocks, self.width = bins, n, blocks, width
        self.d = blocks * width

    def norm_upper(self, ord: float = 2) -> Tensor:
        rounding._check_ord(ord)
        return torch.full((self.n,), float(self.blocks) ** (1 / ord) * (1 + 2.0**-50), dtype=torch.float64)

    def sum_to(self, weights: Tensor, rho: float, out: Tensor | None = None) -> Tensor:
        whole = bool(((weights == 0) | (weights == 1)).all())  # sums of ones are exact below 2^53
        validate.check(whole, "clip", "shares of a count", "clip a count by the one norm that all its rows share")
        total = self._zeros(self.d)
        for lo, hi in row_spans(self.n, 64 * max(1, self.blocks)):
            places = self._places(lo, hi)
            shares = self._cast(weights)[lo:hi, None].expand_as(places)
            total += torch.bincount(places.reshape(-1), weights=shares.reshape(-1), minlength=self.d)
        return self._room(rho, out).copy_(total)

    def part(self, lo: int, hi: int) -> Counts:
        return Counts(lambda i, j: self.bins(lo + i, lo + j), hi - lo, self.blocks, self.width)

    def dense(self) -> Tensor:
        return self._zeros(self.n, self.d).scatter_(1, self._places(0, self.n), 1.0)

    def _places(self, lo: int, hi: int) -> Tensor:
        return self.bins(lo, hi) + torch.arange(self.blocks) * self.width


class _Composite(Rows):
    """Rows that are made of others: what is done to them is done to each of these."""

    @abstractmethod
    def each(self, change: Callable[[Rows], Rows]) -> Rows:
        """The same rows, made of what each piece becomes."""

    def part(self, lo: int, hi: int) -> Rows:
        return self.each(lambda piece: piece.part(lo, hi))

    def masked(self, keep: Tensor) -> Rows:
        return self.each(lambda piece: piece.masked(keep))

    def mixed(self, index: Tensor, shares: Tensor) -> Rows:
        return self.each(lambda piece: piece.mixed(index, shares))

    def scaled(self, factor: float) -> Rows:
        return self.each(lambda piece: piece.scaled(factor))


class Stack(_Composite):
    """Named rows side by side: g_i = (g_i^1, ..., g_i^L), the layers of a network, all multiplied by a factor.

    >>> rows = Stack([("a", Dense(torch.tensor([[3.0]]))), ("b", Dense(torch.tensor([[0.0, 4.0]])))])
    >>> rows.d, rows.norms(), rows.sum()
    (3, tensor([5.0000]), tensor([3., 0., 4.]))
    """

    skips = True

    def __init__(self, items: Sequence[tuple[str, Rows]], factor: float = 1.0) -> None:
        if not items:
            validate.refuse("items", items, "give at least one (name, rows)")
        self.items, self.factor = list(items), factor
        first = self.items[0][1]
        self.n, self.d, self.dtype, self.device = first.n, 0, first.dtype, first.device
        for name, piece in self.items:
            if piece.n != self.n:
                validate.refuse(f"items[{name!r}].n", piece.n, f"give {self.n} rows in every leaf")
            self.d += piece.d
            if piece.dtype != self.dtype:
                self.dtype = rounding.working(self.dtype, piece.dtype)

    def norm_upper(self, ord: float = 2) -> Tensor:
        by_leaf = []
        for _, piece in self.items:
            by_leaf.append(piece.norm_upper(ord))
        uppers = torch.stack(by_leaf)
        scale = uppers.new_ones(self.n)
        if self.dtype == torch.float64 and self.device.type != "cuda":  # whose squares may leave the range
            scale = rounding._power_of_two(uppers.T, 1000)
        norms = torch.linalg.vector_norm(uppers / scale, ord, dim=0) * (1 + 2 * (len(uppers) + 2) * 2.0**-52)
        return rounding._product_upper(norms, scale * abs(self.factor))

    def sum_to(self, weights: Tensor, rho: float, out: Tensor | None = None) -> Tensor:
        room, scaled, lo = self._room(rho, out), weights, 0
        if self.factor != 1.0:
            scaled = rounding.times(self._cast(weights), self.factor)
        for _, piece in self.items:
            place, lo = room[lo : lo + piece.d], lo + piece.d
            if weights.is_cuda and not piece.skips:
                piece = piece.masked(weights != 0)
            piece.sum_to(scaled, rho, place)
        return room

    def mass(self, ord: float = 2) -> Tensor | None:
        """That of the leaves whose rows are several terms; the others are no longer than the rows."""
        sizes = []
        for _, piece in self.items:
            size = piece.mass(ord)
            if size is not None:
                sizes.append(size)
        if not sizes:
            return None
        whole: Tensor = torch.linalg.vector_norm(torch.stack(sizes), ord, dim=0)
        return whole * (abs(self.factor) * (1 + 2.0**-40))

    def underflow(self) -> float | Tensor:
        total: float | Tensor = 0.0
        for _, piece in self.items:
            total = total + piece.underflow()
        return total * max(1.0, abs(self.factor))

    def dense(self) -> Tensor:
        return torch.cat([piece.dense().to(self.dtype) for _, piece in self.items], dim=1) * self.factor

    def scaled(self, factor: float) -> Stack:
        """Norms and weights take the factor: the leaves stay as they are."""
        scaled = copy(self)
        scaled.items, scaled.factor = list(self.items), self.factor * factor
        return scaled

    def leaves(self) -> list[tuple[str, Rows]]:
        if self.factor == 1.0:
            return list(self.items)
        return [(name, piece.scaled(self.factor)) for name, piece in self.items]

    def through(self, sketch: _LinearMap, lo: int = 0) -> Rows:
        codes = []
        for _, piece in self.leaves():
            codes.append(piece.through(sketch, lo))
            lo += piece.d
        return total(codes)

    def each(self, change: Callable[[Rows], Rows]) -> Stack:
        return Stack([(name, change(piece)) for name, piece in self.items], self.factor)


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
        sizes: ord -> upper bounds of the norms of the rows of a 2-d factor a, where they are known already.
        grid: the bound that single terms are clipped to, where many are summed in whole numbers (`gradients.rounding`).

    >>> rows = Outer(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]))
    >>> rows.sum(), rows.norms(1)
    (tensor([3., 6., 4., 8.]), tensor([21.0000]))
    """

    def __init__(
        self,
        a: Matrix,
        b: Tensor,
        ones: bool = False,
        sizes: Callable[[float], Tensor] | None = None,
        grid: float | None = None,
    ) -> None:
        sparse = not isinstance(a, (Tensor, View))
        if a.ndim not in (2, 3) or (sparse and a.ndim == 3):
            validate.refuse("a.shape", tuple(a.shape), "give shape (n, p), or (n, T, p) if it is dense")
        if b.ndim != a.ndim or tuple(b.shape[:-1]) != tuple(a.shape[:-1]):
            remedy = f"give {(*a.shape[:-1], 'q')} to match a of shape {tuple(a.shape)}"
            validate.refuse("b.shape", tuple(b.shape), remedy)
        if ones and sparse:
            validate.refuse("ones", ones, "give ones=False: a CSR factor carries its own column of ones")
        self.a: Matrix = a.detach() if isinstance(a, Tensor) else a
        self.b, self.ones, self.grid = b.detach(), ones, grid
        self.n, self.p, self.q = a.shape[0], a.shape[-1] + ones, b.shape[-1]
        self.positions = 1 if a.ndim == 2 else a.shape[1]
        self.d = self.p * self.q
        self.dtype, self.device = rounding.working(b.dtype), b.device
        self.one_term = self.positions == 1 and not sparse and self.device.type == "cpu"
        self.skips = grid is not None and fused.can_sum(self.device, self.dtype)
        self._known: dict[float, Tensor] = {}
        self._given = sizes

    def norm_upper(self, ord: float = 2) -> Tensor:
        if self.positions == 1:
            b = self.b if self.b.ndim == 2 else _flat(self.b)
            return rounding._product_upper(self._sizes(ord), rounding.upper_norms(b, ord))
        rounding._check_ord(ord)
        assert isinstance(self.a, Tensor)
        (t, p, q), again = (self.positions, self.p, self.q), torch.arange(self.n, device=self.device)
        high = torch.full((self.n,), math.inf, dtype=torch.float64, device=self.device)
        if t and ord == 2 and rounding._cheaper_ghost(t, p, q):
            high, mass, off = rounding.ghost_norms(self.a, self.b, self.ones)
            sure = (off <= 1 - 2 / (rounding.LOOSE**2 + 1)) & (mass < 2.0**60)  # NaN is not
            again = (~sure).nonzero()[:, 0]
        for rows in again.split(max(1, rounding.CHUNK_BYTES // (16 * p * q + 16 * t * (p + q)))):
            high[rows] = _direct(Outer(self.a[rows], self.b[rows], self.ones), ord, torch.float64)
        return high

    def underflow(self) -> float | Tensor:
        """What c b loses is multiplied by a: a long a beside a short b loses much."""
        longest = self._sizes(2).view(self.n, self.positions).sum(1)
        return self.d * torch.finfo(self.dtype).tiny * (self.positions + longest)

    def mass(self, ord: float = 2) -> Tensor | None:
        """sum_t ||a_t|| ||b_t|| where there are several terms, or one that is seen through a centring map."""
        if isinstance(self.a, View):
            size = self.a.mass()
            if size is None:
                return None
            size = size * (self.p**0.5 if ord == 1 else 1.0)
            return size * rounding.upper_norms(_flat(self.b), ord) * (1 + 2.0**-40)
        if self.positions == 1:
            return None
        sizes = self._sizes(ord) * rounding.upper_norms(_flat(self.b), ord)
        return sizes.view(self.n, self.positions).sum(1) * (1 + 2.0**-20)

    def sum_to(self, weights: Tensor, rho: float, out: Tensor | None = None) -> Tensor:
        room = out
        if room is None:
            room = self._room(rho, None)
        if not isinstance(self.a, Tensor):
            return room.copy_(self._seen_sum(weights, rho))
        c, place = weights.to(dtype=self.dtype, device=self.device), room.view(self.q, self.p)
        if self.grid is not None and rounding._fits_grid(self.n, rho, self.dtype):
            a, b = self.a.flatten(1).to(self.dtype), self.b.flatten(1).to(self.dtype)
            rounding._integer_sum(a, b, c, self.grid, place[:, : a.shape[1]])
            if self.ones:
                shares = torch.where(c[:, None] != 0, b * c[:, None], 0.0)
                rounding._outer_sum(b.new_ones(self.n, 1), shares, rho, place[:, -1:])
            return room
        if self.skips:
            return self.masked(c != 0).sum_to(c, rho, room)
        a, b = self.a.to(self.dtype), self.b.to(self.dtype)
        if b.ndim == 2:
            b = b * c.view(-1, 1)
        else:
            a, b = _flat(a), _flat(b * c.view(-1, 1, 1))
        rounding._outer_sum(a, b, rho, place[:, : a.shape[1]])
        if self.ones:  # products with 1 are exact
            rounding._outer_sum(b.new_ones(len(b), 1), b, rho, place[:, -1:])
        return room

    def _seen_sum(self, weights: Tensor, rho: float) -> Tensor:
        """The same for sparse and mapped factors: in float64 unless they are few."""
        a = self.a
        if isinstance(a, View):  # a map has roundings of its own
            rho = max(0.0, rho - rounding.gamma(a.roundings, torch.float64))
        elif self.n <= rounding.most_terms(rho, self.dtype):
            return matrix.rmatmul(a, self._cast(self.b) * self._cast(weights)[:, None]).T.reshape(-1)
        b = self.b.to(torch.float64) * weights.to(self.b.device, torch.float64)[:, None]

        def add(lo: int, hi: int) -> Tensor:
            part = a if (lo, hi) == (0, self.n) else a[lo:hi]
            return matrix.rmatmul(part, b[lo:hi]).T.reshape(-1)

        return rounding.in_float64(self.n, rho, (self.d,), self.device, add, max(1, self.n))

    def part(self, lo: int, hi: int) -> Outer:
        return Outer(self.a[lo:hi], self.b[lo:hi], self.ones)

    def dense(self, dtype: torch.dtype | None = None) -> Tensor:
        dtype = dtype or self.dtype
        a, b = self._shown(to_dense(self.a)).to(dtype), self.b.to(dtype)
        with exact_products(self.device):
            rule = "nq,np->nqp" if a.ndim == 2 else "ntq,ntp->nqp"
            return torch.einsum(rule, b, a).reshape(self.n, self.d)

    def masked(self, keep: Tensor) -> Rows:
        if isinstance(self.a, View):
            return super().masked(keep)
        rows = keep.view(-1, *[1] * (self.b.ndim - 1))
        b = torch.where(rows, self.b, 0.0)
        if is_sparse(self.a):
            kept = np.repeat(keep.cpu().numpy(), np.diff(self.a.indptr))
            return Outer(matrix.with_data(self.a, np.where(kept, self.a.data, self.a.data.dtype.type(0))), b)
        return Outer(torch.where(rows, self.a, 0.0), b, self.ones)

    def mixed(self, index: Tensor, shares: Tensor) -> Rows:
        if isinstance(self.a, View):
            return super().mixed(index, shares)
        (m, k), index = index.shape, index.to(self.device)
        b = self._cast(self.b)[index] * self._cast(shares).view(m, k, *[1] * (self.b.ndim - 1))
        if is_sparse(self.a) and k > 1:
            return _sums(self.a, b, index.numpy())
        if is_sparse(self.a):
            return Outer(self.a[index[:, 0].numpy()], b[:, 0])
        assert isinstance(self.a, Tensor)
        taken = (shares != 0).to(self.device).view(m, k, *[1] * (self.a.ndim - 1))
        a = torch.where(taken, self.a[index], 0.0)  # a row of share 0 leaves no trace, not even in a factor
        if k == 1:
            return Outer(a[:, 0], b[:, 0], self.ones)
        return Outer(a.flatten(1, -2), b.flatten(1, -2), self.ones)

    def scaled(self, factor: float) -> Outer:
        return Outer(self.a, self._cast(self.b) * factor, self.ones, self._given, self.grid)

    def through(self, sketch: _LinearMap, lo: int = 0) -> Rows:
        if isinstance(self.a, View):
            return super().through(sketch, lo)
        a = self.a if is_sparse(self.a) else self._shown(self.a.to(rounding.working(self.a.dtype)))
        if self.q == 1 and self.positions == 1:
            return Outer(sketch.rows(a if is_sparse(a) else _flat(a), lo), _flat(self.b))
        return Dense(sketch.outer(a, self._cast(self.b), lo))

    def _sizes(self, ord: float) -> Tensor:
        """Upper bounds of the norms of all a_t, computed once."""
        if ord not in self._known:
            if self._given is not None:
                upper = self._given(ord)
            elif isinstance(self.a, Tensor) and self.a.ndim == 3:
                upper = rounding.upper_norms(_flat(self.a), ord)
            else:
                upper = rounding.upper_norms(self.a, ord)
            if self.ones:
                whole: Tensor = torch.linalg.vector_norm(torch.stack([upper, torch.ones_like(upper)]), ord, dim=0)
                upper = whole * (1 + 2.0**-50)
            self._known[ord] = upper.to(self.device)
        return self._known[ord]

    def whole_a(self) -> Stored:
        """The factor a with its column of ones."""
        assert not isinstance(self.a, View)
        return self._shown(self.a) if isinstance(self.a, Tensor) else self.a

    def _shown(self, a: Tensor) -> Tensor:
        """A dense factor with its column of ones."""
        return torch.cat([a, a.new_ones(*a.shape[:-1], 1)], -1) if self.ones else a


def Glm(r: Tensor, X: Matrix, sizes: Callable[[float], Tensor] | None = None) -> Outer:
    """The per-example gradients g_i = r_i x_i of a linear model with residuals r_i = dl_i / d margin.

    `sizes` gives upper bounds of the norms of the rows of X, where they are known already.

    >>> Glm(torch.tensor([2.0, -1.0]), sp.csr_array([[1.0, 0.0], [0.0, 3.0]])).sum()
    tensor([ 2., -3.])
    """
    if r.shape != X.shape[:1]:
        validate.shape(X.shape[:1], r=r)
    return Outer(X, r[:, None], sizes=sizes)


class Lookup(Rows):
    """Rows g_i = vec(sum_t e_{k_it} c_it') of R^(V D), laid out row-major as a V x D table.

    An embedding read at the places k_i1, ..., k_iT with output gradients c_it has these per-example gradients: at
    most T rows of the table are not zero.  No n x V x D tensor is built:

      * norms: the c_it of equal places of an example are added, in float64, by sorting them;
      * sum: one `index_add_` into the table;
      * codes of a Kronecker sketch: sum_t (P_out e_{k_it})(P_in c_it)', again outer products (it sees to that).

    Args:
        index: (n, T) integers in [0, V).
        values: (n, T, D) tensor, the c_it; its dtype, raised to float32 at least, is that of the results.
        vocabulary: V.
        apart: no example has values other than zero at two equal places (`distinct` makes it so).

    >>> rows = Lookup(torch.tensor([[0, 2, 0]]), torch.tensor([[[1.0], [4.0], [2.0]]]), vocabulary=3)
    >>> rows.sum(), rows.norms()
    (tensor([3., 0., 4.]), tensor([5.0000]))
    """

    ones = False
    """There is no bias: with q = V and p = D, the table is as large as the matrix of an `Outer`."""

    def __init__(self, index: Tensor, values: Tensor, vocabulary: int, apart: bool = False) -> None:
        validate.positive_int(vocabulary=vocabulary)
        validate.check(index.ndim == 2, "index.shape", tuple(index.shape), "give (n, T) integers")
        same = values.ndim == 3 and values.shape[:2] == index.shape
        remedy = f"give {(*index.shape, 'D')} to match index of shape {tuple(index.shape)}"
        validate.check(same, "values.shape", tuple(values.shape), remedy)
        self.index, self.values, self.q, self.apart = index.long(), values.detach(), vocabulary, apart
        self.n, self.positions, self.p = values.shape
        self.d = self.q * self.p
        self.dtype, self.device = rounding.working(values.dtype), values.device

    @property
    def distinct(self) -> Lookup:
        """The same rows with the values of equal places added up, in float64, at one of them: no terms that cancel.

        The sum of such rows is one of n terms a place, and their norm is that of the values.

        >>> rows = Lookup(torch.tensor([[7, 4, 7]]), torch.tensor([[[1.0], [2.0], [3.0]]]), vocabulary=9).distinct
        >>> rows.values.flatten().tolist(), rows.norms()
        ([4.0, 2.0, 0.0], tensor([4.4721]))
        """
        return self if self.apart else self._distinct

    @cached_property
    def _distinct(self) -> Lookup:  # never the rows themselves: in a cycle their memory waits for the collector
        places, order = self.index.sort(dim=1, stable=True)
        first = torch.ones_like(places, dtype=torch.bool)
        first[:, 1:] = places[:, 1:] != places[:, :-1]
        ids = torch.arange(self.positions, device=self.device).expand_as(order)
        start = torch.where(first, ids, 0).cummax(1).values  # the first of equal places, in sorted order
        slot = torch.empty_like(order).scatter_(1, order, order.gather(1, start))
        slot = slot + torch.arange(self.n, device=self.device)[:, None] * self.positions
        total = torch.zeros(self.n * self.positions, self.p, dtype=torch.float64, device=self.device)
        total.index_add_(0, slot.flatten(), self.values.flatten(0, 1).to(torch.float64))
        return Lookup(self.index, total.to(self.dtype).view_as(self.values), self.q, apart=True)

    def norm_upper(self, ord: float = 2) -> Tensor:
        return rounding.upper_norms(self.distinct.values.flatten(1), ord)

    def sum_to(self, weights: Tensor, rho: float, out: Tensor | None = None) -> Tensor:
        """Only the places that were read are added up; the table is written once."""
        room, values = self._room(rho, out), self.distinct.values
        if self.n <= rounding.most_terms(rho, self.dtype) and room.dtype == self.dtype:
            values = values * self._cast(weights)[:, None, None]
            table = room.zero_().view(self.q, self.p)
            table.index_add_(0, self.index.flatten(), values.flatten(0, 1))
            return room
        places, slots = torch.unique(self.index, return_inverse=True)
        c, shape = self._cast(weights).to(torch.float64)[:, None, None], (len(places), self.p)

        def add(lo: int, hi: int) -> Tensor:
            part = torch.zeros(shape, dtype=torch.float64, device=self.device)
            return part.index_add_(0, slots[lo:hi].flatten(), (values[lo:hi] * c[lo:hi]).flatten(0, 1))

        most = max(1, CHUNK_BYTES // (8 * max(1, self.positions * self.p)))
        total = rounding.in_float64(self.n, rho, shape, self.device, add, most)
        room.zero_().view(self.q, self.p)[places] = total.to(room.dtype)
        return room

    def add_to(self, matrices: Tensor, lo: int, hi: int) -> None:
        """Add rows lo, ..., hi - 1 of every example's table to (n, hi - lo, D) matrices."""
        inside = (self.index >= lo) & (self.index < hi)
        slot = (self.index - lo).clamp(0, hi - lo - 1)
        slot = slot + torch.arange(self.n, device=self.device)[:, None] * (hi - lo)
        values = torch.where(inside[:, :, None], self.values, 0.0).to(matrices.dtype)
        matrices.view(-1, self.p).index_add_(0, slot.flatten(), values.flatten(0, 1))

    def part(self, lo: int, hi: int) -> Lookup:
        return Lookup(self.index[lo:hi], self.values[lo:hi], self.q, self.apart)

    def dense(self, dtype: torch.dtype | None = None) -> Tensor:
        whole = torch.zeros(self.n, self.q, self.p, dtype=dtype or self.dtype, device=self.device)
        self.add_to(whole, 0, self.q)
        return whole.view(self.n, self.d)

    def masked(self, keep: Tensor) -> Lookup:
        return self._with(torch.where(keep[:, None, None], self.values, 0.0))

    def mixed(self, index: Tensor, shares: Tensor) -> Lookup:
        index = index.to(self.device)
        values = self.values.to(self.dtype)[index] * self._cast(shares)[:, :, None, None]
        apart = self.apart and index.shape[1] == 1
        return Lookup(self.index[index].flatten(1), values.flatten(1, 2), self.q, apart)

    def scaled(self, factor: float) -> Lookup:
        return self._with(self.values.to(self.dtype) * factor)

    def _with(self, values: Tensor) -> Lookup:
        return Lookup(self.index, values, self.q, self.apart)


class Sum(_Composite):
    """Rows g_i = g_i^1 + ... + g_i^K of pieces of one space, `Outer` or `Lookup`, held as the pieces.

    Norms are taken in float64, with gamma_k of its roundoff: of an `Outer` and a `Lookup` by ghost products, in which
    a place k is the vector e_k, so that <b_s, e_k> = b_s[k] and <e_j, e_k> = [j = k] are exact; otherwise from chunks
    of the d numbers themselves, which are off by gamma_T M.

    >>> one = Lookup(torch.tensor([[1]]), torch.tensor([[[3.0, 0.0]]]), vocabulary=2)
    >>> two = Outer(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 4.0]]))
    >>> rows = Sum([one, two])
    >>> rows.sum(), rows.norms()
    (tensor([0., 0., 3., 4.]), tensor([5.0000]))
    """

    def __init__(self, pieces: Sequence[Outer | Lookup]) -> None:
        validate.check(len(pieces) > 0, "pieces", pieces, "give at least one piece")
        first = pieces[0]
        for piece in pieces[1:]:
            first._check_alike(piece)
        self.pieces = list(pieces)
        self.n, self.d, self.device = first.n, first.d, first.device
        self.dtype = rounding.working(*(piece.dtype for piece in pieces))
        self.positions = sum(piece.positions for piece in pieces)

    def norm_upper(self, ord: float = 2) -> Tensor:
        rounding._check_ord(ord)
        tied = self._tied() if ord == 2 else None
        if tied is None:
            parts = [Sum([piece.part(lo, hi) for piece in self.pieces]) for lo, hi in row_spans(self.n, 16 * self.d)]
            return _joined([_direct(part, ord, self.dtype) for part in parts], self.device)
        outer, lookup = tied
        numbers = 3 * self.positions**2 + outer.positions * outer.q + self.positions * outer.p
        spans = row_spans(self.n, 8 * numbers)
        return _joined([self._ghost(outer.part(*span), lookup.part(*span)) for span in spans], self.device)

    def mass(self, ord: float = 2) -> Tensor:
        """The sum of the pieces' own."""
        return torch.stack([_whole_mass(piece, ord) for piece in self.pieces]).sum(0) * (1 + 2.0**-40)

    def underflow(self) -> float | Tensor:
        return sum(piece.underflow() for piece in self.pieces)

    def sum_to(self, weights: Tensor, rho: float, out: Tensor | None = None) -> Tensor:
        first, *rest = self.pieces
        total = first.sum_to(weights, rho)
        if len(rest) > rounding.SPARE - 4:  # each addition is one more rounding
            total = total.to(torch.float64)
        for more in rest:
            total += more.sum_to(weights, rho)
        return self._room(rho, out).copy_(total)

    def dense(self, dtype: torch.dtype | None = None) -> Tensor:
        return sum((piece.dense(dtype) for piece in self.pieces), self._zeros(self.n, self.d))

    def each(self, change: Callable[[Rows], Rows]) -> Rows:
        return total([change(piece) for piece in self.pieces])

    def through(self, sketch: _LinearMap, lo: int = 0) -> Rows:
        return self.each(lambda piece: piece.through(sketch, lo))

    def _tied(self) -> tuple[Outer, Lookup] | None:
        """An output layer and an embedding of one table, where their products are fewer than the table's numbers."""
        for outer, lookup in (self.pieces, self.pieces[::-1]) if len(self.pieces) == 2 else ():
            if isinstance(outer, Outer) and isinstance(lookup, Lookup) and isinstance(outer.a, Tensor):
                alike = (outer.q, outer.p, outer.ones) == (lookup.q, lookup.p, False)
                if alike and rounding._cheaper_ghost(self.positions, outer.p, outer.q):
                    return outer, lookup
        return None

    def _ghost(self, outer: Outer, lookup: Lookup) -> Tensor:
        """Norms of sum_s b_s a_s' + sum_t e_{k_t} c_t' from the Gram matrices of both sides."""
        assert isinstance(outer.a, Tensor)
        (n, s, p, q), index = (outer.n, outer.positions, outer.p, outer.q), lookup.index
        most = 500 * (self.dtype == torch.float64)  # products of other numbers stay in the range
        scale_a, scale_b = (rounding._power_of_two(x, most) for x in (outer.a, outer.b))
        a = outer.a.double().reshape(n, s, p) / scale_a[:, None, None]
        b = outer.b.double().reshape(n, s, q) / scale_b[:, None, None]
        inner = torch.cat([a, lookup.values.double() / (scale_a * scale_b)[:, None, None]], 1)
        cross = b.gather(2, index[:, None, :].expand(n, s, -1))
        equal = (index[:, :, None] == index[:, None, :]).double()
        with exact_products(self.device):
            right = torch.cat([torch.cat([b @ b.mT, cross], 2), torch.cat([cross.mT, equal], 2)], 1)
            upper, mass, _ = rounding._from_grams(inner @ inner.mT, right, p + q + 8)
        upper += rounding.gamma(self.positions + 4, self.dtype) * mass  # of the sum, which is not float64
        live = (a.any(2) & b.any(2)).any(1) | lookup.values.flatten(1).any(1) | upper.isnan()
        upper = torch.where(live, upper, 0.0)
        return rounding._product_upper(rounding._product_upper(upper, scale_a), scale_b)


class ResidualRows(_Composite):
    """Rows r_i = g_i - Phi^+ c_i for a tight sketch (Phi Phi' = norm^2 I) and codes c_i = Phi g_i.

    Phi^+ Phi is an orthogonal projector, so by Pythagoras ||r||^2 = ||g||^2 - ||c||^2 / norm^2, and no
    n x d matrix is needed.  In floating point the difference cancels.  Let the computed code be
    c = Phi g + e with ||e|| <= eta norm ||g||.  The row that `sum` adds is g - Phi^+ c, and

        ||g - Phi^+ c||^2 = ||g||^2 - ||c||^2 / norm^2 + 2 <Phi g, e> / norm^2 + 2 ||e||^2 / norm^2
                         <= ||g||^2 - ||c||^2 / norm^2 + (2 eta + 2 eta^2) ||g||^2.

    The two norms enter as certified bounds (||g|| from above, ||c|| from below).  The codes' own error is
    covered by a guard of 2 eps (4 + log2 d) ||g||^2 under the root, eps of the coarser dtype of rows and
    codes: more than the 8 eps that measurements ask for, and enough for eta <= (3 + log2 d) eps, that is for
    codes summed pairwise, with 2 eps left for a sketch that is not tight to the last bit.  (The worst case of
    a code summed in plain order is d eps / 2; signs of rounding errors would all have to agree.)  The guard is
    at least (8 eps)^(1/2) of ||g||, 0.1 % in float32: no residual is found smaller than that.

    >>> class Half:
    ...     d, m, tight, norm = 2, 1, True, 1.0
    ...     def rows(self, x, lo=0):
    ...         return x[:, :1]
    ...     def pinv(self, y):
    ...         return torch.cat([y, 0 * y])
    >>> g = Dense(torch.tensor([[3.0, 4.0]], dtype=torch.float64))
    >>> r = ResidualRows(g, g.through(Half()), Half())
    >>> r.norms(), r.sum()
    (tensor([4.0000], dtype=torch.float64), tensor([0., 4.], dtype=torch.float64))
    """

    def __init__(self, rows: Rows, codes: Rows, sketch: _LinearMap) -> None:
        validate.check(sketch.tight, "sketch", sketch, "give a tight sketch: other ones have no cheap pseudo-inverse")
        expected = (rows.n, sketch.m)
        shape = (codes.n, codes.d)
        validate.check(shape == expected, "codes (n, d)", shape, f"give the codes of these rows: {expected}")
        self.rows, self.codes, self.sketch = rows, codes, sketch
        self.n, self.d, self.dtype, self.device = rows.n, rows.d, rows.dtype, rows.device

    def norm_upper(self, ord: float = 2) -> Tensor:
        if ord != 2:
            rounding._check_ord(ord)
            return self._chunkwise(lambda lo, hi: self.part(lo, hi).dense()).norm_upper(ord)
        rows, eps = self.rows.norm_upper(), max(torch.finfo(piece.dtype).eps for piece in (self.rows, self.codes))
        codes = torch.linalg.vector_norm(self.codes.dense().double(), dim=1).to(rows.device)
        share = codes * (1 - 2 * eps) / self.sketch.norm / rows  # never above that of the codes
        left = (1 - share) * (1 + share) + 2 * eps * (4 + math.log2(max(self.d, 2)))
        high = rows * left.clamp_min(0.0).sqrt() * (1 + 2.0**-48)
        high = torch.where(torch.isfinite(rows) & torch.isfinite(codes), high, math.inf)  # nothing to subtract
        return torch.where(rows == 0, 0.0, high)

    def mass(self, ord: float = 2) -> Tensor:
        """A residual is small beside what it is the difference of: M(g) + 2 M(c) / norm (and more in other norms)."""
        wide = 1.0 if ord == 2 else max(1.0, self.d**0.5)
        codes = _whole_mass(self.codes).to(self.device)
        return (_whole_mass(self.rows) + 2 * codes / self.sketch.norm) * (wide * (1 + 2.0**-40))

    def underflow(self) -> float | Tensor:
        """That of the rows, and that of the codes through Phi^+, whose l1 norm is at most sqrt(d) / norm."""
        return self.rows.underflow() + self.codes.underflow() * (math.sqrt(self.d) / self.sketch.norm)

    def sum_to(self, weights: Tensor, rho: float, out: Tensor | None = None) -> Tensor:
        """The rounding of the lift, in float64, is within rho too: sqrt(m) gamma_m of the codes' sum."""
        lift = math.sqrt(self.sketch.m) * rounding.gamma(self.sketch.m + 64, torch.float64)
        if lift > rho:
            whole = self._chunkwise(lambda lo, hi: self.part(lo, hi).dense())
            return whole.sum_to(weights, rho, out)
        lifted = self.sketch.pinv(self.codes.sum_to(weights, rho).to(torch.float64))
        total = self.rows.sum_to(weights, rho, out)
        return total.copy_(total.to(torch.float64) - lifted)

    def dense(self) -> Tensor:
        lifted = [self.sketch.pinv(code)[None] for code in self.codes.dense()]
        return self.rows.dense() - torch.cat([self._zeros(0, self.d), *lifted]).to(self.dtype)

    def each(self, change: Callable[[Rows], Rows]) -> ResidualRows:
        return ResidualRows(change(self.rows), change(self.codes), self.sketch)


def compact(rows: Rows) -> Rows:
    """The q x p products of several terms themselves, where they are smaller than their factors and `CHUNK_BYTES`."""
    if not isinstance(rows, Outer) or rows.positions < 2 or rows.d > rows.positions * (rows.p + rows.q):
        return rows
    return Dense(rows.dense()) if rows.n * rows.d * rows.dtype.itemsize <= CHUNK_BYTES else rows


def outer_of(rows: Rows) -> Outer | None:
    """Rows that are held as sums of outer products, whose factors are stored themselves; None for others."""
    plain = rows.plain()
    return plain if isinstance(plain, Outer) and not isinstance(plain.a, View) else None


def row_spans(n: int, row_bytes: int, limit: int = CHUNK_BYTES) -> list[tuple[int, int]]:
    """Ranges that cover 0..n-1, each of at most `limit` bytes (but at least one row).

    >>> row_spans(5, 40, limit=100)
    [(0, 2), (2, 4), (4, 5)]
    """
    step = max(1, limit // max(1, row_bytes))
    return [(lo, min(lo + step, n)) for lo in range(0, n, step)]


def _joined(parts: Sequence[Tensor], device: torch.device) -> Tensor:
    """The bounds of consecutive rows, one after the other."""
    return torch.cat([torch.zeros(0, dtype=torch.float64, device=device), *parts])


def _kept(values: Tensor, keep: Tensor) -> Tensor:
    return torch.where(keep[:, None], values, 0.0)


def _direct(rows: Outer | Sum, ord: float, dtype: torch.dtype) -> Tensor:
    """Norms of sums of several terms, built in float64; their error is that of the sum in a dtype."""
    whole, mass = rows.dense(torch.float64), _whole_mass(rows, ord)
    tiny = 16.0 * rows.positions * rows.d * torch.finfo(torch.float64).tiny
    error = rounding.gamma(rows.positions + 8, dtype) * mass * (1 + 2.0**-30)
    return rounding.upper_norms(whole, ord) + error + torch.where(mass == 0, 0.0, tiny)


def _whole_mass(rows: Rows, ord: float = 2) -> Tensor:
    """M_i, also where it is the row's own norm."""
    sizes = rows.mass(ord)
    return rows.norm_upper(ord) if sizes is None else sizes


def total(pieces: Sequence[Rows]) -> Rows:
    """The row-wise sum of rows of one space, in the cheapest form that holds it exactly.

    Rows of one kind are joined by their positions; a sum with rows that have no factors is the n x d matrix.
    """
    for piece in pieces[1:]:
        pieces[0]._check_alike(piece)
    if len(pieces) == 1:
        return pieces[0]
    groups: dict[object, list[Rows]] = {}
    for piece in [inner for rows in pieces for inner in (rows.pieces if isinstance(rows, Sum) else [rows])]:
        kind: object = id(piece)  # not joined with any other
        if isinstance(piece, Lookup) or (isinstance(piece, Outer) and isinstance(piece.a, Tensor)):
            kind = type(piece), piece.q, piece.p, piece.ones
        groups.setdefault(kind, []).append(piece)
    joined = [_laid(group) for group in groups.values()]
    factored = [piece for piece in joined if isinstance(piece, (Outer, Lookup))]
    if len(joined) == 1:
        return joined[0]
    if len(factored) == len(joined):
        return Sum(factored)
    first, *rest = (piece.dense() for piece in joined)
    return Dense(sum(rest, first))


def difference(rows: Rows, other: Rows) -> Rows:
    """The row-wise difference g_i - h_i: leaf by leaf, and of one term where both have the same factor."""
    rows._check_alike(other)
    if isinstance(rows, Stack) and isinstance(other, Stack):
        pairs = list(zip(rows.leaves(), other.leaves(), strict=False))
        if len(rows.items) == len(other.items) and all((k, g.d) == (m, h.d) for (k, g), (m, h) in pairs):
            return Stack([(name, difference(mine, theirs)) for (name, mine), (_, theirs) in pairs])
    elif isinstance(rows, Outer) and isinstance(other, Outer):
        if other.q == rows.q and other.ones == rows.ones and _same(rows.a, other.a):
            return Outer(rows.a, rows._cast(rows.b) - other.b, rows.ones, rows._given)
    return total([rows, other.scaled(-1.0)])


def regrouped(rows: Rows, groups: Tensor) -> Rows:
    """Micro-batches by name: row j is the mean of the rows i with groups[i] = j, zero where there is none.

    A row that is not finite, or longer than `2^-40` of the largest float, counts as zero: whatever the other rows
    are, no mean overflows, and a row touches no group but its own.

    >>> regrouped(Dense(torch.tensor([[1.0], [3.0], [8.0]])), torch.tensor([2, 2, 0])).dense()
    tensor([[8.],
            [0.],
            [2.]])
    """
    validate.shape((rows.n,), groups=groups)
    counts = torch.bincount(groups) if rows.n else groups.new_zeros(0)
    # a power of two: a mean is then rounded as its own group's size says, whatever the largest one is
    most = 1 << (int(counts.max()) - 1).bit_length() if len(counts) else 1
    order = torch.argsort(groups, stable=True)
    within = torch.arange(rows.n) - (counts.cumsum(0) - counts)[groups[order]]
    index, share = torch.zeros(len(counts), most, dtype=torch.long), torch.zeros(len(counts), most).double()
    index[groups[order], within] = order
    share[groups[order], within] = 1 / counts[groups[order]].to(share)
    sound = rows.masked(rows.norm_upper() <= torch.finfo(rows.dtype).max * 2.0**-40)
    return sound.mixed(index, share)  # what is filled up has share 0, of a row that is finite


def inner(rows: Rows, other: Rows, dtype: torch.dtype | None = None) -> Tensor:
    """<g_i, h_j> of n and m rows of one space: n x m, never an n x d matrix.

    The products are done in a dtype, the wider one of both if none is given: leaf by leaf where both have the same
    ones, from factors where these are cheaper than the rows, else from blocks of dense rows.

    >>> inner(Dense(torch.tensor([[1.0, 2.0]])), Dense(torch.tensor([[3.0, 0.0], [0.0, 4.0]])))
    tensor([[3., 8.]])
    """
    validate.check(other.d == rows.d, "other.d", other.d, f"give rows of the same space, d = {rows.d}")
    dtype = dtype or rounding.working(rows.dtype, other.dtype)
    if isinstance(rows, Stack):
        theirs = dict(other.leaves())
        if {name: piece.d for name, piece in rows.items} == {name: piece.d for name, piece in theirs.items()}:
            first, *rest = (inner(piece, theirs[name], dtype) for name, piece in rows.leaves())
            return sum(rest, first)
    mine, mate = rows.plain(), other.plain()
    if isinstance(mine, Lookup) and isinstance(mate, Lookup) and mine.q == mate.q:
        return _inner_of_places(mine, mate, dtype)
    left, right = outer_of(mine), outer_of(mate)
    if left is not None and right is not None and (left.q, left.p) == (right.q, right.p):
        pairs = left.positions * right.positions
        if pairs == 1 or pairs * (left.p + left.q) <= left.d:
            return _inner_of_factors(left, right, dtype)
    result = torch.empty(rows.n, other.n, dtype=dtype, device=rows.device)
    with exact_products(rows.device):
        for lo, hi in row_spans(rows.n, rows.d * dtype.itemsize):
            block = rows.part(lo, hi).dense().to(dtype)
            for start, end in row_spans(other.n, rows.d * dtype.itemsize):
                result[lo:hi, start:end] = block @ other.part(start, end).dense().to(dtype).T
    return result


def _inner_of_factors(mine: Outer, mate: Outer, dtype: torch.dtype) -> Tensor:
    """sum_{s,t} (a_is'a_jt)(b_is'b_jt): two products of factors."""
    s, t, inputs = mine.positions, mate.positions, mate.whole_a()
    parts = [torch.zeros(0, mate.n, dtype=dtype, device=mine.device)]
    with exact_products(mine.device):
        for lo, hi in row_spans(mine.n, (s * (mine.p + mine.q) + 3 * s * t * mate.n) * dtype.itemsize):
            part = mine.part(lo, hi)
            terms = _cross(part.whole_a(), inputs, dtype).to(mine.device) * _cross(part.b, mate.b, dtype)
            parts.append(terms.view(hi - lo, s, mate.n, t).sum((1, 3)))
    return torch.cat(parts)


def _cross(x: Stored, y: Stored, dtype: torch.dtype) -> Tensor:
    """x y' in a dtype, for dense or CSR factors with as many columns; every position is a row of its own."""
    if is_sparse(y):
        return to_dense(matrix.as_dtype(x, dtype) @ y.T, dtype) if is_sparse(x) else _cross(y, x, dtype).T
    return matrix.matmul(x if is_sparse(x) else _flat(x).to(dtype), _flat(y).to(dtype).T)


def _inner_of_places(mine: Lookup, mate: Lookup, dtype: torch.dtype) -> Tensor:
    """The products of what two examples hold at equal places."""
    places, slots = torch.unique(torch.cat([mine.index.flatten(), mate.index.flatten()]), return_inverse=True)
    left, right = slots.split([mine.index.numel(), mate.index.numel()])
    d = len(places) * mine.p
    product = _sparse(left, mine.values.to(dtype), d) @ _sparse(right, mate.values.to(dtype), d).T
    return torch.from_numpy(product.toarray()).to(mine.device)


def _laid(group: Sequence[Rows]) -> Rows:
    """One piece from pieces of one kind, by laying their positions one after the other."""
    first, dtype = group[0], rounding.working(*(piece.dtype for piece in group))
    if len(group) == 1:
        return first
    if isinstance(first, Lookup):
        index = torch.cat([r.index for r in group if isinstance(r, Lookup)], 1)
        values = torch.cat([r.values.to(dtype) for r in group if isinstance(r, Lookup)], 1)
        return Lookup(index, values, first.q)
    outers = [r for r in group if isinstance(r, Outer)]
    p, q, ones = outers[0].p, outers[0].q, outers[0].ones
    if sum(r.positions for r in outers) * (p + q) >= first.d:
        return Dense(sum((r.dense() for r in outers[1:]), outers[0].dense()))
    wide = rounding.working(*(r.a.dtype for r in outers if isinstance(r.a, Tensor)))
    a = [r.a.to(wide).reshape(r.n, r.positions, p - ones) for r in outers if isinstance(r.a, Tensor)]
    return Outer(torch.cat(a, 1), torch.cat([r.b.to(dtype).reshape(r.n, r.positions, q) for r in outers], 1), ones)


def _flat(x: Tensor) -> Tensor:
    """(n, p), or (n, T, p) with every position as a row of its own."""
    return x.reshape(-1, x.shape[-1])


def _sums(a: Csr, b: Tensor, index: np.ndarray) -> Outer:
    """Rows sum_s b[j, s] a[index[j, s]]' of CSR rows, as a CSR matrix with q p columns: one factor is 1."""
    m, _, q = b.shape
    places = np.broadcast_to(np.arange(m * q).reshape(m, 1, q), b.shape).ravel(), np.repeat(index.ravel(), q)
    mix = sp.csr_array((b.cpu().numpy().ravel(), places), shape=(m * q, a.shape[0]))
    sums: Csr = sp.csr_array((mix @ a).tocoo().reshape((m, q * a.shape[1])).tocsr())
    return Outer(sums, b.new_ones(m, 1))


def _same(x: Matrix, y: Matrix) -> bool:
    """Whether two factors hold the same numbers."""
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        return x is y or (x.dtype == y.dtype and torch.equal(x, y))
    if is_sparse(x) and is_sparse(y) and x.shape == y.shape and x.nnz == y.nnz:
        pairs = ((x.indptr, y.indptr), (x.indices, y.indices), (x.data, y.data))
        return all(np.array_equal(mine, theirs) for mine, theirs in pairs)
    return x is y


def _sparse(slots: Tensor, values: Tensor, d: int) -> Csr:
    """Values (n, T, D) as the rows of a CSR matrix, each D of them at a slot of d / D; those of equal slots count both.

    >>> _sparse(torch.tensor([1, 0]), torch.tensor([[[2.0]], [[3.0]]]), 2).toarray().tolist()
    [[0.0, 2.0], [3.0, 0.0]]
    """
    n, t, width = values.shape
    columns = slots[:, None] * width + torch.arange(width, device=slots.device)
    starts = np.arange(n + 1) * (t * width)
    return sp.csr_array((values.flatten().cpu().numpy(), columns.flatten().cpu().numpy(), starts), shape=(n, d))
