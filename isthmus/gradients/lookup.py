"""Rows of a table: the per-example gradient of an embedding."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.matrix import exact_products
from isthmus.gradients import adding, rounding
from isthmus.gradients.base import KINDS, Rows, join_bounds, row_spans
from isthmus.gradients.block_outer import one_leaf_factors
from isthmus.gradients.rounding import CHUNK_BYTES, Bounds
from isthmus.sketches.base import Mate, Sketch, TableForm

Entries = tuple[Tensor, Tensor, Tensor]
"""Places (ascending), the examples they belong to, and the sums of values there: no pair of the first two is twice."""
SHARED = 8
"""A place is taken by a matrix product where more than 1/8 of all pairs of examples meet at it."""


class Lookup(Rows):
    """Rows g_i = vec(sum_t e_{k_it} c_it') of R^(V D), laid out row-major as a V x D table.

    An embedding read at the places k_i1, ..., k_iT with output gradients c_it has these per-example gradients: at
    most T rows of the table are not zero.  No n x V x D tensor is built:

      * norms: the c_it of equal places of an example are added, in float64, by sorting them;
      * sum: one `index_add_` into the table;
      * codes of a Kronecker sketch: sum_t (P_out e_{k_it})(P_in c_it)', again outer products.

    Args:
        index: (n, T) integers in [0, V).
        values: (n, T, D) tensor, the c_it; its dtype, raised to float32 at least, is that of the results.
        vocabulary: V.
        apart: no example has values other than zero at two equal places (`distinct` makes it so).

    >>> rows = Lookup(torch.tensor([[0, 2, 0]]), torch.tensor([[[1.0], [4.0], [2.0]]]), vocabulary=3)
    >>> rows.sum(), rows.norms()
    (tensor([3., 0., 4.]), tensor([5.0000]))
    """

    def __init__(self, index: Tensor, values: Tensor, vocabulary: int, apart: bool = False) -> None:
        validate.positive_int(vocabulary=vocabulary)
        validate.check(index.ndim == 2, "index.shape", tuple(index.shape), "give (n, T) integers")
        same = values.ndim == 3 and values.shape[:2] == index.shape
        remedy = f"give {(*index.shape, 'D')} to match index of shape {tuple(index.shape)}"
        validate.check(same, "values.shape", tuple(values.shape), remedy)
        self.index, self.values, self.vocabulary, self.apart = index.long(), values.detach(), vocabulary, apart
        self.n, self.positions, self.width = values.shape
        self.d = vocabulary * self.width
        self.dtype, self.device = rounding.working(values.dtype), values.device

    def norm_bounds(self, ord: float = 2) -> Bounds:
        """Sums of at most T numbers in the dtype of `sum` are off by gamma_T times their absolute sums: added."""
        rounding.check_ord(ord)
        if self.apart:
            return rounding.matrix_bounds(self.values.flatten(1), ord)
        spans = row_spans(self.n, 16 * self.positions * self.width)
        return join_bounds([self._bounds(lo, hi, ord) for lo, hi in spans], self.device)

    def sum(self, weights: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        values = self.values.to(self.dtype)
        if weights is not None:
            values = values * self._weights(weights)[:, None, None]
        total = self._zeros(self.d) if out is None else out.zero_()
        total.view(self.vocabulary, self.width).index_add_(0, self.index.flatten(), values.flatten(0, 1))
        return total

    def distinct(self) -> Lookup:
        """The same rows with the values of equal places added up, in float64, at one of them: no terms that cancel.

        The sum of such rows is one of n terms a place, and their norm is that of the values.

        >>> rows = Lookup(torch.tensor([[7, 4, 7]]), torch.tensor([[[1.0], [2.0], [3.0]]]), vocabulary=9).distinct()
        >>> rows.values.flatten().tolist(), rows.norms()
        ([4.0, 2.0, 0.0], tensor([4.4721]))
        """
        if self.apart:
            return self
        places, order = self.index.sort(dim=1, stable=True)
        first = torch.ones_like(places, dtype=torch.bool)
        first[:, 1:] = places[:, 1:] != places[:, :-1]
        ids = torch.arange(self.positions, device=self.device).expand_as(order)
        start = torch.where(first, ids, 0).cummax(1).values  # the first of equal places, in sorted order
        slot = torch.empty_like(order).scatter_(1, order, order.gather(1, start))
        slot = slot + torch.arange(self.n, device=self.device)[:, None] * self.positions
        total = torch.zeros(self.n * self.positions, self.width, dtype=torch.float64, device=self.device)
        total.index_add_(0, slot.flatten(), self.values.flatten(0, 1).to(torch.float64))
        return Lookup(self.index, total.to(self.dtype).view_as(self.values), self.vocabulary, apart=True)

    def add_to(self, matrices: Tensor, lo: int, hi: int) -> None:
        """Add rows lo, ..., hi - 1 of every example's table to (n, hi - lo, D) matrices: no value meets another."""
        inside = (self.index >= lo) & (self.index < hi)
        slot = (self.index - lo).clamp(0, hi - lo - 1)
        slot = slot + torch.arange(self.n, device=self.device)[:, None] * (hi - lo)
        zero = torch.zeros((), dtype=matrices.dtype, device=self.device)
        values = torch.where(inside[:, :, None], self.values.to(matrices.dtype), zero)
        matrices.view(-1, self.width).index_add_(0, slot.flatten(), values.flatten(0, 1))

    def mass(self, ord: float = 2) -> Tensor | None:
        """sum_t ||c_t||: the values of equal places may cancel."""
        if self.apart:
            return None
        sizes = rounding.matrix_bounds(self.values.flatten(0, 1), ord)[1]
        return sizes.view(self.n, self.positions).sum(1) * (1 + 2.0**-20)

    def sum_to(self, weights: Tensor, rho: float, out: Tensor | None = None) -> Tensor:
        """Only the places that were read are added up in float64; the table is written once."""
        room = self._room(rho, out)
        terms = self.n * (1 if self.apart else self.positions)
        if terms <= adding.roundings(rho, self.dtype) - adding.SPARE:
            return self.sum(weights, room) if room.dtype == self.dtype else room.copy_(self.sum(weights))
        places, slots = torch.unique(self.index, return_inverse=True)
        c, shape = self._weights(weights).to(torch.float64)[:, None, None], (len(places), self.width)

        def add(lo: int, hi: int) -> Tensor:
            values = (self.values[lo:hi].to(torch.float64) * c[lo:hi]).flatten(0, 1)
            part = torch.zeros(shape, dtype=torch.float64, device=self.device)
            return part.index_add_(0, slots[lo:hi].flatten(), values)

        most = max(1, CHUNK_BYTES // (8 * max(1, self.positions * self.width)))
        total = adding.in_float64(self.n, rho, shape, self.device, add, most, max(1, self.positions))
        room.zero_().view(self.vocabulary, self.width)[places] = total.to(room.dtype)
        return room

    def part(self, lo: int, hi: int) -> Lookup:
        return Lookup(self.index[lo:hi], self.values[lo:hi], self.vocabulary, self.apart)

    def dense(self) -> Tensor:
        whole = self._zeros(self.n * self.vocabulary, self.width)
        first = torch.arange(self.n, device=self.device)[:, None] * self.vocabulary
        whole.index_add_(0, (first + self.index).flatten(), self.values.to(self.dtype).flatten(0, 1))
        return whole.view(self.n, self.d)

    @property
    def small(self) -> bool:
        return self.values.nbytes <= CHUNK_BYTES

    def masked(self, keep: Tensor) -> Lookup:
        zero = torch.zeros((), dtype=self.values.dtype, device=self.device)
        return self._with(torch.where(keep[:, None, None], self.values, zero))

    def take(self, index: Tensor, factors: Tensor) -> Lookup:
        index, factors = index.to(self.device), factors.to(self.device, self.dtype)
        values = self.values.to(self.dtype)[index] * factors[:, None, None]
        return Lookup(self.index[index], values, self.vocabulary, self.apart)

    def scaled(self, factor: float) -> Lookup:
        return self._with(self.values.to(self.dtype) * factor)

    def minus(self, other: Rows) -> Rows:
        self._check_alike(other)
        return self.plus([other.scaled(-1.0)]) if isinstance(other, Lookup) else super().minus(other)

    def grouped(self, size: int) -> Lookup:
        validate.positive_int(size=size)
        groups = -(-self.n // size)
        missing = groups * size - self.n
        counts = torch.full((groups,), float(size), dtype=self.dtype, device=self.device)
        if missing:
            counts[-1] = size - missing
        share = counts.repeat_interleave(size)[: self.n]
        values = self.values.to(self.dtype) / share[:, None, None]
        values = torch.cat([values, values.new_zeros(missing, *values.shape[1:])])
        index = torch.cat([self.index, self.index.new_zeros(missing, self.positions)])
        shape = (groups, size * self.positions)
        return Lookup(index.reshape(shape), values.reshape(*shape, self.width), self.vocabulary)

    def through(self, sketch: Sketch, lo: int = 0) -> Rows:
        pair = one_leaf_factors(sketch, (self.vocabulary, self.width))
        if pair is None:
            return super().through(sketch, lo)
        left, right, scale = pair
        values = self.values.to(self.dtype)
        with exact_products(self.device):
            codes = values @ right.to(values).T
        return Rows.with_factors(codes, (scale * left).to(values).T[self.index])

    def table_form(self) -> TableForm:
        return TableForm(self.index, self.values, self.vocabulary)

    def inner(self, other: Mate) -> Tensor:
        """The products of what two examples hold at equal places; places that many share go by a matrix product."""
        mate = other.table_form()
        if mate is None or mate.vocabulary != self.vocabulary or other.d != self.d:
            return super().inner(other)
        dtype = rounding.working(self.dtype, other.dtype)
        theirs = _entries(mate.places, mate.values.to(dtype))
        parts = [torch.zeros(0, other.n, dtype=dtype, device=self.device)]
        with exact_products(self.device):
            for lo, hi in row_spans(self.n, 4 * dtype.itemsize * self.positions * self.width):
                mine = _entries(self.index[lo:hi], self.values[lo:hi].to(dtype))
                parts.append(_matched(mine, theirs, (hi - lo, other.n)))
        return torch.cat(parts)

    def plus(self, others: Sequence[Rows]) -> Rows:
        return KINDS["sum"]([self, *others])

    def _bounds(self, lo: int, hi: int, ord: float) -> Bounds:
        values = self.values[lo:hi].to(torch.float64)
        merged = _merged(self.index[lo:hi], values)
        low, high = rounding.matrix_bounds(merged.flatten(1), ord)
        most = rounding.matrix_bounds(_merged(self.index[lo:hi], values.abs()).flatten(1), ord)[1]
        error = most * rounding.gamma(self.positions + 4, self.dtype) * (1 + 2.0**-30)
        return (low - error).clamp_min(0), high + error

    def _with(self, values: Tensor) -> Lookup:
        return Lookup(self.index, values, self.vocabulary, self.apart)


def _merged(index: Tensor, values: Tensor) -> Tensor:
    """(n, T, D): the sums over equal places of each example, in some order, and zeros.

    >>> _merged(torch.tensor([[7, 4, 7]]), torch.tensor([[[1.0], [2.0], [3.0]]])).flatten().tolist()
    [2.0, 4.0, 0.0]
    """
    n, positions, width = values.shape
    places, order = index.sort(dim=1)
    new = torch.zeros_like(places)
    new[:, 1:] = places[:, 1:] != places[:, :-1]
    slot = torch.empty_like(places).scatter_(1, order, new.cumsum(1))
    slot += torch.arange(n, device=index.device)[:, None] * positions
    total = torch.zeros(n * positions, width, dtype=values.dtype, device=values.device)
    return total.index_add_(0, slot.flatten(), values.flatten(0, 1)).view(n, positions, width)


def _entries(index: Tensor, values: Tensor) -> Entries:
    """What each example holds at each of its places, values of equal places added.

    >>> _entries(torch.tensor([[7, 4, 7]]), torch.tensor([[[1.0], [2.0], [3.0]]]))
    (tensor([4, 7]), tensor([0, 0]), tensor([[2.],
            [4.]]))
    """
    n = max(1, len(index))
    keys, slots = torch.unique(index * n + torch.arange(len(index), device=index.device)[:, None], return_inverse=True)
    total = torch.zeros(len(keys), values.shape[2], dtype=values.dtype, device=values.device)
    return keys // n, keys % n, total.index_add_(0, slots.flatten(), values.flatten(0, 1))


def _matched(mine: Entries, theirs: Entries, shape: tuple[int, int]) -> Tensor:
    """The n x m sums of products over equal places."""
    places = mine[0]
    first, last = (torch.searchsorted(theirs[0], places, right=side) for side in (False, True))
    own = torch.searchsorted(places, places, right=True) - torch.searchsorted(places, places)
    shared = SHARED * own * (last - first) > shape[0] * shape[1]
    result = _shared(mine, theirs, places[shared].unique(), shape)
    rare = ~shared & (last > first)
    ends = (last - first)[rare].cumsum(0)
    values, owner, start = mine[2][rare], mine[1][rare], last[rare] - ends
    pairs = int(ends[-1]) if len(ends) else 0
    step = max(1, CHUNK_BYTES // (3 * values.element_size() * max(1, values.shape[1])))
    for lo in range(0, pairs, step):
        number = torch.arange(lo, min(lo + step, pairs), device=places.device)
        own_at = torch.searchsorted(ends, number, right=True)
        their_at = start[own_at] + number
        dots = (values[own_at] * theirs[2][their_at]).sum(1)
        result.view(-1).index_add_(0, owner[own_at] * shape[1] + theirs[1][their_at], dots)
    return result


def _shared(mine: Entries, theirs: Entries, places: Tensor, shape: tuple[int, int]) -> Tensor:
    """The part of some places, by products of dense blocks."""
    width = mine[2].shape[1]
    result = torch.zeros(shape, dtype=mine[2].dtype, device=mine[2].device)
    step = max(1, CHUNK_BYTES // (result.element_size() * max(1, sum(shape) * width)))
    for some in places.split(step) if len(places) else ():
        blocks = []
        for (place, owner, values), n in zip((mine, theirs), shape, strict=True):
            slot = torch.searchsorted(some, place).clamp_max(len(some) - 1)
            here = some[slot] == place
            block = torch.zeros(n, len(some), width, dtype=values.dtype, device=values.device)
            block[owner[here], slot[here]] = values[here]
            blocks.append(block.flatten(1))
        result += blocks[0] @ blocks[1].T
    return result
