"""Rows that are the products a device computes, in the precision the network trains in.

A record's gradient sum_t b_t a_t' may be ANY function of the record: the guarantee asks that what is added of it is no
longer than C, not that it is an exact derivative.  So the row of a record is taken to be the q x p matrix that one
batched product of its factors gives, in TF32, in bfloat16 with float32 sums, or in float32, and

  * its norm is measured on that matrix itself, a slab of rows of it at a time: no bound of the product's own rounding
    is needed, however much its terms cancel, only that of adding squares (gamma_p / 2,
    relative; gamma_512 / 2 where kernels of our own add them);
  * its share of the sum is that matrix again, times a weight: n terms, added as `isthmus.gradients.adding` adds rows.

Slabs cut the output q, never the examples or the terms, so both passes run the same product on the same numbers and
get the same bits (a library call on equal arguments is a function of them; a few rows of the first slab are compared,
of one leaf after the other, one a step): where they are not the same, the sum becomes NaN and nothing is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from copy import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from isthmus.base.matrix import precision, with_precision
from isthmus.gradients import adding, fused, rounding
from isthmus.gradients._products import cheaper_ghost
from isthmus.gradients.base import KINDS, Dense, Rows
from isthmus.gradients.grids import gridded
from isthmus.gradients.lookup import Lookup
from isthmus.gradients.outer import Outer
from isthmus.gradients.rounding import CHUNK_BYTES, Bounds
from isthmus.gradients.tied import Sum
from isthmus.sketches.base import OuterForm, Sketch

if TYPE_CHECKING:
    from typing_extensions import TypeIs

SLAB_BYTES = {"cuda": 1 << 28, "cpu": 1 << 22}
"""The matrices of all examples that are held at once: rows lo, ..., hi - 1 of each."""
FAINT = 2.0**-60
"""Entries whose squares may be lost add up to less than this times sqrt(d)."""


PROBE = 4
"""Rows of the first slab that are compared between the two passes."""


class Computed(Rows):
    """Rows g_i = sum_k (matrix of piece k), as computed: pieces are `Outer` of several terms, or a `Lookup`.

    factor   every row is multiplied by it (a mean loss divided the rows by the size of the batch)

    >>> a, b = torch.ones(1, 2, 3), torch.tensor([[[1.0], [1.0]]])
    >>> rows = Computed([Outer(a, b)])
    >>> rows.norms(), rows.sum()
    (tensor([3.4641]), tensor([2., 2., 2.]))
    """

    def __init__(self, pieces: Sequence[Outer | Lookup], factor: float = 1.0) -> None:
        self.pieces = [piece.distinct() if isinstance(piece, Lookup) else piece for piece in pieces]
        self.factor, first = factor, pieces[0]
        self.n, self.d, self.device = first.n, first.d, first.device
        self.dtype = rounding.working(*(piece.dtype for piece in pieces))
        self.ones = isinstance(first, Outer) and first.ones
        self.q, p = (first.q, first.p) if isinstance(first, Outer) else (first.vocabulary, first.width)
        self.width = p - self.ones
        self._precision = precision()
        self.hold = False
        """Whether the matrices are kept from the measuring of their norms to their sum, where one slab holds them."""
        self._held: Tensor | None = None
        self.watched = False
        """Whether the two passes over the matrices are compared."""
        self._bias: Tensor | None = None
        self._out: Tensor | None = None
        """Which rows are zero, whatever their factors hold."""
        self._blank = False
        """Whether rows of weight 0 count as zero in a sum, whatever they hold."""
        self._upper: Tensor | None = None
        """The norms as they were measured."""
        self._seen: Tensor | None = None
        """A few rows of all matrices as their norms were measured."""

    # ------------------------------------------------------------ the matrices

    def slabs(self) -> Iterator[tuple[int, int]]:
        """Ranges of output rows whose matrices fit in `SLAB_BYTES`, for all examples together."""
        limit = SLAB_BYTES.get(self.device.type, SLAB_BYTES["cpu"])
        step = max(1, limit // (self.dtype.itemsize * max(1, self.n * self.width)))
        step = min(self.q, step if step < 16 else step - step % 16)
        return ((lo, min(lo + step, self.q)) for lo in range(0, self.q, step))

    def slab(self, lo: int, hi: int, masked: bool = True) -> Tensor:
        """(n, hi - lo, p): rows lo, ..., hi - 1 of every example's matrix, without the bias; inside `_as_trained`."""
        parts = [piece for piece in self.pieces if isinstance(piece, Outer)]
        total = _product(parts[0], lo, hi, self.dtype) if parts else self._zeros(self.n, hi - lo, self.width)
        for piece in parts[1:]:
            total += _product(piece, lo, hi, self.dtype)
        for table in self.pieces:
            if isinstance(table, Lookup):
                table.add_to(total, lo, hi)
        return total if self._out is None or not masked else total.masked_fill_(self._out[:, None, None], 0.0)

    def bias(self) -> Tensor:
        """(n, q): the last column, sum_t b_t."""
        if self._bias is None:
            parts = [piece.b.sum(1, dtype=self.dtype) for piece in self.pieces if isinstance(piece, Outer)]
            self._bias = sum(parts[1:], parts[0])
            if self._out is not None:
                self._bias.masked_fill_(self._out[:, None], 0.0)
        return self._bias

    def _as_trained(self) -> AbstractContextManager[None]:
        """Products as precise as the network's own."""
        return with_precision(self._precision, self.device)

    # ------------------------------------------------------------ what clips and sums ask

    def norm_upper(self, ord: float = 2) -> Tensor:
        if ord != 2:
            return self.plain().norm_upper(ord)
        self._upper = self._gram_upper() if self._by_gram() else self._measured_upper()
        return self._upper

    def _measured_upper(self) -> Tensor:
        """The norms of the matrices themselves."""
        sizes = []
        with self._as_trained():
            for lo, hi in self.slabs():
                g = self.slab(lo, hi)
                sizes.append(fused.square_sums(g) if self._skips else torch.linalg.vector_norm(g, dim=2))
                if self.hold and hi - lo == self.q:
                    self._held = g
                elif lo == 0 and self.watched:
                    self._seen = g[:, :PROBE].clone()
        scale = abs(self.factor) * (1 + 2 * rounding.gamma(self._terms, self.dtype))
        faint = FAINT * abs(self.factor) * self.d**0.5
        if self._skips:
            squares = sizes[0] if len(sizes) == 1 else torch.cat(sizes, 1)
            return fused.lengths(squares, self.bias() if self.ones else None, scale, faint)
        sizes += [self.bias()] if self.ones else []
        lengths: Tensor = torch.linalg.vector_norm(torch.cat(sizes, 1), dim=1, dtype=torch.float64)
        return lengths.mul_(scale).add_(faint)

    @property
    def _terms(self) -> int:
        """Squares that are added up in the working dtype, and a few roundings more."""
        return (fused.SQUARES if self._skips else self.width) + 8

    def _by_gram(self) -> bool:
        """Whether norms come from T x T products of the factors: on the host, where these are much fewer.

        On a device products are cheap and what they write is not: there the matrices are measured themselves.
        """
        (first, *rest), exact = self.pieces, self._precision[0] == "highest" and self.dtype != torch.float64
        short = isinstance(first, Outer) and cheaper_ghost(2 * first.positions, first.p, first.q)
        return short and not rest and exact and self.device.type == "cpu" and self._out is None

    def _gram_upper(self) -> Tensor:
        """The norm of the exact sum of terms, and what T roundings of each entry may add to it: gamma_T M.

        Where that and the rounding of the products cost more than a percent, the matrices are measured themselves.
        """
        (outer,) = self.pieces
        assert isinstance(outer, Outer) and isinstance(outer.a, Tensor)
        step = max(1, CHUNK_BYTES // (2 * self.dtype.itemsize * outer.positions**2))
        parts = [
            gram_upper(outer.a[lo : lo + step].to(self.dtype), outer.b[lo : lo + step].to(self.dtype), self.ones)
            for lo in range(0, self.n, step)
        ] or [(torch.zeros(0, dtype=torch.float64), torch.zeros(0, dtype=torch.bool))]
        upper, sure = (torch.cat([part[side] for part in parts]) for side in (0, 1))
        upper = upper.mul_(abs(self.factor)).add_(FAINT * abs(self.factor) * self.d**0.5)
        # the whole batch again, not the unsure alone: fewer records may be multiplied in another order
        return upper if bool(sure.all()) else torch.where(sure, upper, self._measured_upper())

    def norm_bounds(self, ord: float = 2) -> Bounds:
        if ord != 2:
            return self.plain().norm_bounds(ord)
        if self._by_gram():
            return self.plain().norm_bounds(ord)[0] * (1 - 2.0**-12), self.norm_upper(ord)
        upper = self.norm_upper(ord)
        slack = 5 * rounding.gamma(self._terms, self.dtype)
        return (upper * (1 - slack) - 2 * FAINT * abs(self.factor) * self.d**0.5).clamp_min(0), upper

    def sum(self, weights: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        c = self._weights(weights)
        total = self.sum_to(c, 1.0)
        return self._into(out, total.to(self.dtype))

    def sum_to(self, weights: Tensor, rho: float, out: Tensor | None = None) -> Tensor:
        room, c = self._room(rho, out), self._weights(weights)
        few = self.n <= adding.roundings(rho, self.dtype) - adding.SPARE
        skips = self._skips and room.dtype == self.dtype and few
        if self._blank and not skips:
            return self.masked(c > 0).sum_to(c, rho, room)
        matrix, shares = room.view(self.q, -1), c if self._out is None else torch.where(self._out, 0.0, c)
        gone = (c == 0) if self._blank and self._seen is not None else self._out
        for lo, hi in self.slabs():
            g = self._slab_again(lo, hi, skips)
            same = None if lo or self._seen is None else self._as_seen(g[:, :PROBE], gone)
            self._add_up(g, shares, rho, matrix[lo:hi, : self.width], skips)
            if same is not None:
                matrix[lo : lo + 1, : self.width] += torch.where(same, 0.0, torch.nan)
        if self.ones:
            self._add_up(self.bias()[:, :, None], shares, rho, matrix[:, -1:], skips)
        return room

    def _add_up(self, g: Tensor, c: Tensor, rho: float, place: Tensor, skips: bool) -> None:
        """place = sum_i c_i g_i, times the factor; rows of weight 0 are not read where the sum `skips` them."""
        if skips:
            fused.weighted_sum_of(g, c, place, self.factor)
            return
        c = c if self.factor == 1.0 else rounding.times(c, self.factor)
        whole = place.is_contiguous()
        flat = place.view(1, -1) if whole else place.new_empty(1, place.numel())
        adding.outer_sum(g.flatten(1), c[:, None], rho, flat)
        if not whole:
            place.copy_(flat.view(place.shape))

    def _slab_again(self, lo: int, hi: int, skips: bool) -> Tensor:
        """The matrices as they were measured: kept since, or computed by the same call."""
        if self._held is not None:
            slab, self._held = self._held, None
            return slab if skips or self._out is None else slab.masked_fill_(self._out[:, None, None], 0.0)
        with self._as_trained():
            return self.slab(lo, hi, masked=not skips)

    def _as_seen(self, g: Tensor, gone: Tensor | None) -> Tensor:
        """Whether the first rows of all matrices that count are what they were when their norms were measured."""
        assert self._seen is not None
        same: Tensor = g == self._seen
        return (same if gone is None else same | gone[:, None, None]).all()

    @property
    def _skips(self) -> bool:
        """Whether rows of weight 0 need not be masked: the sum does not read them."""
        return fused.can_sum(self.device, self.dtype)

    @property
    def small(self) -> bool:
        return self._skips

    def masked(self, keep: Tensor) -> Computed:
        """The matrices are blanked when they have been computed, if at all: factors are not copied."""
        bias = None if self._bias is None else self._bias.masked_fill(~keep[:, None], 0.0)
        out = ~keep if self._out is None else self._out | ~keep
        return self._but(_out=out, _bias=bias, _upper=None, _blank=False)

    def without(self, weights: Tensor) -> Computed:
        """As they are, where the sum does not read them."""
        return self._but(_blank=True) if self._skips and self._out is None else self.masked(weights > 0)

    def sound(self) -> Tensor:
        """Of the matrices as they are added: other products of the same factors may overflow elsewhere."""
        return torch.isfinite(self.norm_upper() if self._upper is None else self._upper)

    def scaled(self, factor: float) -> Computed:
        return self._but(factor=self.factor * factor)

    def _but(self, **changed: object) -> Computed:
        twin = copy(self)
        vars(twin).update(changed)
        return twin

    def dense(self) -> Tensor:
        with self._as_trained():
            whole = self.slab(0, self.q)
        if self.ones:
            whole = torch.cat([whole, self.bias()[:, :, None]], 2)
        return whole.flatten(1) if self.factor == 1.0 else whole.flatten(1) * self.factor

    # ------------------------------------------------------------ everything else is asked of the pieces

    def plain(self) -> Rows:
        """The same rows as sums of exact terms."""
        first, *rest = self.pieces if self._out is None else [piece.masked(~self._out) for piece in self.pieces]
        rows: Rows = first.plus(rest) if rest else first
        return rows if self.factor == 1.0 else rows.scaled(self.factor)

    def part(self, lo: int, hi: int) -> Rows:
        return self.plain().part(lo, hi)

    def take(self, index: Tensor, factors: Tensor) -> Rows:
        return self.plain().take(index, factors)

    def minus(self, other: Rows) -> Rows:
        return self.plain().minus(other)

    def plus(self, others: Sequence[Rows]) -> Rows:
        return self.plain().plus([other.plain() if isinstance(other, Computed) else other for other in others])

    def grouped(self, size: int) -> Rows:
        return self.plain().grouped(size)

    def through(self, sketch: Sketch, lo: int = 0) -> Rows:
        return self.plain().through(sketch, lo)

    def outer_form(self) -> OuterForm | None:
        return self.plain().outer_form()


def as_computed(rows: Rows, bound: float | None = None) -> Rows:
    """Rows of several terms as the products of a device; where these are smaller than their factors, made at once.

    >>> as_computed(Outer(torch.ones(1, 8, 2), torch.ones(1, 8, 2)))
    Dense(n=1, d=4, float32)
    """
    if isinstance(rows, Lookup):
        return rows.distinct()
    rows = gridded(rows, bound)
    pieces = [piece for piece in (rows.pieces if isinstance(rows, Sum) else [rows]) if _fits(piece)]
    if len(pieces) < (len(rows.pieces) if isinstance(rows, Sum) else 1):
        return rows
    computed = Computed(pieces)
    small = computed.d * computed.dtype.itemsize <= sum(_bytes(piece) for piece in pieces)
    return Dense(computed.dense()) if small else computed


def gram_upper(a: Tensor, b: Tensor, ones: bool) -> tuple[Tensor, Tensor]:
    """Upper bounds of the norms of sums b_t a_t' as computed, by Gram matrices, and which cost a percent at most.

    ||g||^2 = sum_{s,t} (a_s'a_t)(b_s'b_t) is off by gamma_{p+q} M^2, M = sum_t ||a_t|| ||b_t||, and by what underflows.

    >>> upper, sure = gram_upper(torch.ones(1, 2, 3), torch.ones(1, 2, 1), False)
    >>> bool(12**0.5 <= upper <= 12**0.5 * 1.001), bool(sure)
    (True, True)
    """
    t, k = a.shape[1], a.shape[2] + b.shape[2] + 8
    left, right = torch.bmm(a, a.mT), torch.bmm(b, b.mT)
    left = left.add_(1.0) if ones else left
    inputs, outputs = (x.diagonal(dim1=1, dim2=2).double() for x in (left, right))
    mass = (inputs * outputs).sqrt().sum(1) * (1 + 2 * rounding.gamma(k, a.dtype))
    square = left.mul_(right).sum((1, 2), dtype=torch.float64)
    lost = 64.0 * t * t * k * torch.finfo(a.dtype).tiny * (1 + inputs.amax(1) + outputs.amax(1))
    guard = (rounding.gamma(k, a.dtype) + rounding.gamma(t * t, torch.float64)) * mass.square() * (1 + 2.0**-20) + lost
    upper = (square.clamp_min(0) + guard).sqrt() + rounding.gamma(t + 2, a.dtype) * mass
    return upper * (1 + 2.0**-20), (guard <= 0.02 * square) & (mass < 2.0**60)  # NaN is not


def _fits(piece: Rows) -> TypeIs[Outer | Lookup]:
    many = isinstance(piece, Outer) and isinstance(piece.a, Tensor) and piece.positions > 1
    return many or isinstance(piece, Lookup)


def _bytes(piece: Outer | Lookup) -> int:
    """What the factors of one row take."""
    if isinstance(piece, Lookup):
        return piece.positions * piece.width * piece.values.element_size()
    return piece.positions * (piece.p + piece.q) * piece.b.element_size()


def _product(piece: Outer, lo: int, hi: int, dtype: torch.dtype) -> Tensor:
    """sum_t b_t[lo:hi] a_t' of every example, with sums in `dtype`."""
    a, b, part = piece.a, piece.b, (lo, hi) != (0, piece.q)
    assert isinstance(a, Tensor)
    odd = b.is_cuda and b.stride(1) * b.element_size() % 16  # rows that begin nowhere in particular are slow to read
    if part:
        b = fused.columns(b, lo, hi) if odd else b[..., lo:hi]
    elif odd:
        b = torch.nn.functional.pad(b, (0, -piece.q % 16))[..., : piece.q]
    b = b.mT
    if a.dtype == b.dtype and a.dtype.itemsize < 4 and a.is_cuda:
        return torch.bmm(b, a, out_dtype=dtype)
    return torch.bmm(b.to(dtype), a.to(dtype))


KINDS["computed"] = as_computed
