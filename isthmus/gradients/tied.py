"""Sums of rows of different kinds: one parameter that several layers use.

The output layer of a language model is often tied to its embedding: the gradient of the shared V x D table is then
sum_s b_s a_s' + sum_t e_{k_t} c_t', an `Outer` plus a `Lookup`.  Rows of one kind are joined; what is left is a `Sum`.

Norms are taken in float64, with u its unit roundoff and gamma_k = k u / (1 - k u):

* **ghost** (an `Outer` and a `Lookup`): a place k is the vector e_k, so that all positions are outer products and
  ||g||^2 = sum over pairs of (Gram of [a; c]) (Gram of [b; e]), where <b_s, e_k> = b_s[k] and <e_j, e_k> = [j = k] are
  exact.  With M = sum_s ||a_s|| ||b_s|| + sum_t ||c_t|| the sum is off by gamma_{p+q+8} M^2, added UNDER the root.
* **direct** (anything else, and the other norms): row chunks of the d numbers themselves, near `CHUNK_BYTES`.  They are
  off by gamma_T d^(1/ord) sum max|a_t| max|b_t|, which is added.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.matrix import exact_products
from isthmus.gradients import _products, adding, rounding
from isthmus.gradients.base import KINDS, Dense, Rows, join_bounds, row_spans
from isthmus.gradients.block_outer import BlockOuter
from isthmus.gradients.lookup import Lookup
from isthmus.gradients.outer import Outer
from isthmus.gradients.rounding import Bounds, gamma
from isthmus.sketches.base import Sketch, leaf_code

ROUNDOFF = 2.0**-30
"""Slack for the computation of an error bound itself, relative."""


class Sum(Rows):
    """Rows g_i = g_i^1 + ... + g_i^K of pieces of one space, held as the pieces.

    >>> one = Lookup(torch.tensor([[1]]), torch.tensor([[[3.0, 0.0]]]), vocabulary=2)
    >>> two = Outer(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 4.0]]))
    >>> rows = Sum([one, two])
    >>> rows.sum(), rows.norms()
    (tensor([0., 0., 3., 4.]), tensor([5.0000]))
    """

    def __init__(self, pieces: Sequence[Rows]) -> None:
        validate.check(len(pieces) > 0, "pieces", pieces, "give at least one piece")
        first = pieces[0]
        for piece in pieces[1:]:
            first._check_alike(piece)
        self.pieces = list(pieces)
        self.n, self.d, self.device = first.n, first.d, first.device
        self.dtype = rounding.working(*(piece.dtype for piece in pieces))

    def norm_bounds(self, ord: float = 2) -> Bounds:
        rounding.check_ord(ord)
        pair = self._tied()
        if ord == 2 and pair is not None:
            outer, lookup = pair
            t = outer.positions + lookup.positions
            if _products.cheaper_ghost(t, outer.p, outer.q):
                numbers = 3 * t * t + outer.positions * outer.q + t * outer.p
                spans = row_spans(self.n, 8 * numbers)
                parts = [_ghost(outer.part(lo, hi), lookup.part(lo, hi)) for lo, hi in spans]
                return join_bounds(parts, self.device)
        spans = row_spans(self.n, 16 * self.d)
        parts = [_direct([piece.part(lo, hi) for piece in self.pieces], ord) for lo, hi in spans]
        return join_bounds(parts, self.device)

    def underflow(self) -> Tensor:
        return torch.stack([piece.underflow() for piece in self.pieces]).sum(0)

    def sum(self, weights: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        first, *rest = (piece.sum(weights).to(self.dtype) for piece in self.pieces)
        for more in rest:
            first += more
        return self._into(out, first)

    def mass(self, ord: float = 2) -> Tensor:
        """The sum of the pieces' own."""
        sizes = (piece.norm_upper(ord) if (size := piece.mass(ord)) is None else size for piece in self.pieces)
        return torch.stack(list(sizes)).sum(0) * (1 + 2.0**-40)

    def sum_to(self, weights: Tensor, rho: float, out: Tensor | None = None) -> Tensor:
        first, *rest = self.pieces
        total = first.sum_to(weights, rho)
        if len(rest) > adding.SPARE - 4:  # each addition is one more rounding
            total = total.to(torch.float64)
        for more in rest:
            total += more.sum_to(weights, rho)
        return self._into(out, total)

    def part(self, lo: int, hi: int) -> Sum:
        return self._each(lambda piece: piece.part(lo, hi))

    def dense(self) -> Tensor:
        whole = self._zeros(self.n, self.d)
        for piece in self.pieces:
            for lo, hi in self.spans():
                whole[lo:hi] += piece.part(lo, hi).dense()
        return whole

    def masked(self, keep: Tensor) -> Sum:
        return self._each(lambda piece: piece.masked(keep))

    def take(self, index: Tensor, factors: Tensor) -> Sum:
        return self._each(lambda piece: piece.take(index, factors))

    def scaled(self, factor: float) -> Sum:
        return self._each(lambda piece: piece.scaled(factor))

    def grouped(self, size: int) -> Sum:
        return self._each(lambda piece: piece.grouped(size))

    def through(self, sketch: Sketch, lo: int = 0) -> Rows:
        """The sum of the codes; a sketch of this leaf alone takes the pieces as it takes leaves, factored."""
        whole = len(sketch.space.leaves) == 1 and sketch.d == self.d
        name = sketch.space.leaves[0].name
        codes = [leaf_code(sketch, name, r) if whole else r.through(sketch, lo) for r in self.pieces]
        first, *rest = (code for code in codes if code is not None)
        return first.plus(rest) if rest else first

    def plus(self, others: Sequence[Rows]) -> Rows:
        return total([*self.pieces, *others])

    def _each(self, change: Callable[[Rows], Rows]) -> Sum:
        return Sum([change(piece) for piece in self.pieces])

    def _tied(self) -> tuple[Outer, Lookup] | None:
        """An output layer and an embedding of one table, when that is what the pieces are."""
        if len(self.pieces) != 2:
            return None
        for outer, lookup in (self.pieces, self.pieces[::-1]):
            if isinstance(outer, Outer) and isinstance(lookup, Lookup) and isinstance(outer.a, Tensor):
                same = (outer.q, outer.p, outer.ones) == (lookup.vocabulary, lookup.width, False)
                return (outer, lookup) if same else None
        return None


def total(pieces: Sequence[Rows]) -> Rows:
    """The row-wise sum of rows of one space, in the cheapest form that holds it exactly.

    Rows of one kind are joined by their positions; where one piece is an n x d matrix already, so is the sum.
    """
    first = pieces[0]
    for piece in pieces[1:]:
        first._check_alike(piece)
    flat = [inner for piece in pieces for inner in (piece.pieces if isinstance(piece, Sum) else [piece])]
    groups: dict[object, list[Rows]] = {}
    for piece in flat:
        groups.setdefault(_kind(piece), []).append(piece)
    joined = [_joined(group) for group in groups.values()]
    if len(joined) == 1:
        return joined[0]
    return Dense(Sum(joined).dense()) if any(isinstance(piece, Dense) for piece in joined) else Sum(joined)


def _kind(piece: Rows) -> object:
    """Pieces with the same answer are joined."""
    if isinstance(piece, Outer) and isinstance(piece.a, Tensor):
        return Outer, piece.q, piece.p, piece.ones
    if isinstance(piece, Lookup):
        return Lookup, piece.vocabulary, piece.width
    if isinstance(piece, BlockOuter):
        return BlockOuter, piece.blocks, piece.q, piece.p, piece.ones
    return Dense if isinstance(piece, Dense) else id(piece)


def _joined(group: list[Rows]) -> Rows:
    """One piece from pieces of one kind, by laying their positions one after the other."""
    first = group[0]
    if len(group) == 1:
        return first
    if isinstance(first, Lookup):
        index = torch.cat([r.index for r in group if isinstance(r, Lookup)], 1)
        values = torch.cat([r.values.to(r.dtype) for r in group if isinstance(r, Lookup)], 1)
        return Lookup(index, values, first.vocabulary)
    if isinstance(first, BlockOuter):
        inputs = torch.cat([r.inputs for r in group if isinstance(r, BlockOuter)], 1)
        outputs = torch.cat([r.outputs.to(r.dtype) for r in group if isinstance(r, BlockOuter)], 1)
        return BlockOuter(inputs, outputs, first.ones).compact()
    return first.plus(group[1:])


def _ghost(outer: Outer, lookup: Lookup) -> Bounds:
    """Norms of sum_s b_s a_s' + sum_t e_{k_t} c_t' from the Gram matrices of both sides.

    Factors are divided by powers of two first: nothing of a row underflows but what is below tiny times its largest.
    """
    assert isinstance(outer.a, Tensor)
    n, s, p, q = outer.n, outer.positions, outer.p, outer.q
    (_, scale_a), (_, scale_b) = (rounding.power_of_two(x, 500) for x in (outer.a, outer.b))
    scale = scale_a * scale_b
    a = outer.a.to(torch.float64).reshape(n, s, p) / scale_a[:, None, None]
    b = outer.b.to(torch.float64).reshape(n, s, q) / scale_b[:, None, None]
    index, c = lookup.index, lookup.values.to(torch.float64) / scale[:, None, None]
    inner = torch.cat([a, c], 1)
    with exact_products(outer.device):
        grams = inner @ inner.mT
        grams[:, :s, :s] *= b @ b.mT
    cross = b.gather(2, index[:, None, :].expand(n, s, -1))
    grams[:, :s, s:] *= cross
    grams[:, s:, :s] *= cross.mT
    # A product with 0 or 1 would turn an infinite gradient at another place into NaN, which is infinity as well.
    grams[:, s:, s:] *= index[:, :, None] == index[:, None, :]
    square = grams.sum((1, 2))
    sizes = torch.linalg.vector_norm(a, dim=2) * torch.linalg.vector_norm(b, dim=2)
    most = sizes.sum(1) + torch.linalg.vector_norm(c, dim=2).sum(1)
    t = s + lookup.positions
    guard = gamma(p + q + t * t + 8, torch.float64) * (1 + ROUNDOFF) * most.square()
    alive = ((a != 0).any(2) & (b != 0).any(2)).any(1) | (lookup.values != 0).any(2).any(1)
    guard += torch.where(alive, 64.0 * t * t * p * q * torch.finfo(torch.float64).tiny, 0.0)
    low, high = (square - guard).clamp_min(0).sqrt(), (square.clamp_min(0) + guard).sqrt()
    rounded = gamma(t + 4, rounding.working(outer.dtype, lookup.dtype)) * most  # of the sum, which is not float64
    low, high = (low - rounded).clamp_min(0), high + rounded
    bounds = low * (1 - 2.0**-50), torch.where(alive | high.isnan(), high * (1 + 2.0**-50), 0.0)
    return rounding.product(bounds, (scale, scale))


def _direct(pieces: Sequence[Rows], ord: float) -> Bounds:
    """Norms of the sum itself, built in float64; the error is that of the sum in its own dtype, entry by entry."""
    whole, size, positions = None, None, 0
    for piece in map(_wide, pieces):
        part, most = piece.dense().to(torch.float64), _absolute(piece)
        whole = part if whole is None else whole.add_(part)
        size = most if size is None else size.add_(most)
        positions += piece.positions
    assert whole is not None and size is not None
    low, high = rounding.matrix_bounds(whole, ord)
    work = rounding.working(*(piece.dtype for piece in pieces))
    most = rounding.matrix_bounds(size, ord)[1]
    error = gamma(positions + len(pieces) + 4, work) * most * (1 + ROUNDOFF)
    entries = 1.0 if ord == math.inf else float(whole.shape[1]) ** (1 / ord)
    error += torch.where(most == 0, 0.0, 16 * positions * entries * torch.finfo(torch.float64).tiny)
    return (low - error).clamp_min(0), high + error


def _wide(piece: Rows) -> Rows:
    """The same rows with float64 factors."""
    if isinstance(piece, Outer) and isinstance(piece.a, Tensor):
        return Outer(piece.a.double(), piece.b.double(), piece.ones)
    if isinstance(piece, BlockOuter):
        return BlockOuter(piece.inputs.double(), piece.outputs.double(), piece.ones)
    return Lookup(piece.index, piece.values.double(), piece.vocabulary) if isinstance(piece, Lookup) else piece


def _absolute(piece: Rows) -> Tensor:
    """sum_t |b_t||a_t|' and the like: what the terms of every entry add up to without their signs, float64."""
    if isinstance(piece, Outer) and isinstance(piece.a, Tensor):
        return Outer(piece.a.abs(), piece.b.abs(), piece.ones).dense()
    if isinstance(piece, BlockOuter):
        return BlockOuter(piece.inputs.abs(), piece.outputs.abs(), piece.ones).dense()
    if isinstance(piece, Lookup):
        return Lookup(piece.index, piece.values.abs(), piece.vocabulary).dense()
    return piece.dense().to(torch.float64).abs()


KINDS["sum"] = total
