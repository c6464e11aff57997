"""Rows that are the products a device computes, in the precision the network trains in.

A record's gradient sum_t b_t a_t' may be ANY function of the record: the guarantee asks that what is added of it is no
longer than C, not that it is an exact derivative.  So the row of a record is taken to be the q x p matrix that one
batched product of its factors gives, in TF32, in bfloat16 with float32 sums, or in float32, and

  * its norm is measured on that matrix itself, a slab of rows of it at a time: no bound of the product's own rounding
    is needed, however much its terms cancel, only that of adding squares (gamma_p / 2,
    relative; gamma_512 / 2 where kernels of our own add them);
  * its share of the sum is that matrix again, times a weight: n terms, added as `isthmus.gradients.rounding` adds rows.

Slabs cut the output q, never the examples or the terms, so both passes run the same product on the same numbers and
get the same bits (a library call on equal arguments is a function of them; a few rows of the first slab are compared,
of one leaf after the other, one a step): where they are not the same, the sum becomes NaN and nothing is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy

import torch
from torch import Tensor

from isthmus.gradients import fused, rounding
from isthmus.gradients.rounding import precision, with_precision
from isthmus.gradients.rows import Dense, Lookup, Outer, Rows, Sum, _LinearMap, total

SLAB_BYTES = {"cuda": 1 << 28, "cpu": 1 << 22}
"""The matrices of all examples that are held at once: rows lo, ..., hi - 1 of each."""
FAINT = 2.0**-60
"""Entries whose squares may be lost add up to less than this times sqrt(d)."""
PROBE = 4
"""Rows of the first slab that are compared between the two passes."""


class Computed(Rows):
    """Rows g_i = sum_k (matrix of piece k), as computed: pieces are `Outer` of several terms, or a `Lookup`.

    factor   every row is multiplied by it (a mean loss divided the rows by the size of the batch)
    hold     whether the matrices are kept from the measuring of their norms to their sum, where one slab holds them
    watched  whether the two passes over the matrices are compared

    >>> a, b = torch.ones(1, 2, 3), torch.tensor([[[1.0], [1.0]]])
    >>> rows = Computed([Outer(a, b)])
    >>> rows.norms(), rows.sum()
    (tensor([3.4641]), tensor([2., 2., 2.]))
    """

    hold = watched = False
    _held: Tensor | None = None
    _bias: Tensor | None = None
    _out: Tensor | None = None
    """Which rows are zero, whatever their factors hold."""
    _seen: Tensor | None = None
    """A few rows of all matrices as their norms were measured."""

    def __init__(self, pieces: Sequence[Outer | Lookup], factor: float = 1.0) -> None:
        self.pieces = [piece.distinct if isinstance(piece, Lookup) else piece for piece in pieces]
        self.factor, first = factor, pieces[0]
        self.n, self.d, self.device = first.n, first.d, first.device
        self.dtype = rounding.working(*(piece.dtype for piece in pieces))
        self.q, self.ones, self.width = first.q, first.ones, first.p - first.ones
        self.skips = fused.can_sum(self.device, self.dtype)
        self._precision = precision()

    # ------------------------------------------------------------ the matrices

    def slabs(self) -> Iterator[tuple[int, int]]:
        """Ranges of output rows whose matrices fit in `SLAB_BYTES`, for all examples together."""
        limit = SLAB_BYTES.get(self.device.type, SLAB_BYTES["cpu"])
        step = max(1, limit // (self.dtype.itemsize * max(1, self.n * self.width)))
        step = min(self.q, step if step < 16 else step - step % 16)
        return ((lo, min(lo + step, self.q)) for lo in range(0, self.q, step))

    def slab(self, lo: int, hi: int, masked: bool = True) -> Tensor:
        """(n, hi - lo, p): rows lo, ..., hi - 1 of every example's matrix, without the bias."""
        with with_precision(self._precision, self.device):  # as precise as the network's own products
            parts = [piece for piece in self.pieces if isinstance(piece, Outer)]
            total = _product(parts[0], lo, hi, self.dtype) if parts else self._zeros(self.n, hi - lo, self.width)
            for piece in parts[1:]:
                total += _product(piece, lo, hi, self.dtype)
        for table in self.pieces:
            if isinstance(table, Lookup):
                table.add_to(total, lo, hi)
        return self._blanked(total) if masked else total

    def bias(self) -> Tensor:
        """(n, q): the last column, sum_t b_t."""
        if self._bias is None:
            parts = [piece.b.sum(1, dtype=self.dtype) for piece in self.pieces if isinstance(piece, Outer)]
            self._bias = self._blanked(sum(parts[1:], parts[0]))
        return self._bias

    def _blanked(self, x: Tensor) -> Tensor:
        """In place, with zeros for the rows that are none."""
        return x if self._out is None else x.masked_fill_(self._out.view(-1, *[1] * (x.ndim - 1)), 0.0)

    # ------------------------------------------------------------ what clips and sums ask

    def norm_upper(self, ord: float = 2) -> Tensor:
        """Of the matrices themselves; on the host from T x T products of the factors, where these are much fewer.

        Then it is the norm of the exact sum of terms, and what T roundings of each entry may add to it: gamma_T M.  On
        a device products are cheap, and what they write is not.
        """
        if ord != 2:
            return self.plain().norm_upper(ord)
        (first, *rest), host = self.pieces, self.device.type == "cpu" and self.dtype != torch.float64
        whole = not rest and self._out is None and self._precision[0] == "highest"
        if not (host and whole and isinstance(first, Outer) and isinstance(first.a, Tensor)):
            return self._measured_upper()
        if not rounding._cheaper_ghost(2 * first.positions, first.p, first.q):
            return self._measured_upper()
        upper, mass, off = rounding.ghost_norms(first.a, first.b, self.ones)
        upper = (upper + rounding.gamma(first.positions + 2, self.dtype) * mass) * (1 + 2.0**-20)
        upper = upper * abs(self.factor) + FAINT * abs(self.factor) * self.d**0.5
        sure = (off <= 0.02) & (mass < 2.0**60)  # NaN is not; others are known to a percent
        if not bool(sure.all()):  # the whole batch again: fewer records may be multiplied in another order
            upper = torch.where(sure, upper, self._measured_upper())
        return upper

    def _measured_upper(self) -> Tensor:
        """The norms of the matrices themselves."""
        sizes = []
        for lo, hi in self.slabs():
            g = self.slab(lo, hi)
            sizes.append(fused.square_sums(g).sqrt_() if self.skips else torch.linalg.vector_norm(g, dim=2))
            if self.hold and hi - lo == self.q:
                self._held = g
            elif lo == 0 and self.watched:
                self._seen = g[:, :PROBE].clone()
        terms = 8 + (fused.SQUARES if self.skips else self.width)  # squares that are added up in the working dtype
        sizes += [self.bias()] if self.ones else []
        lengths: Tensor = torch.linalg.vector_norm(torch.cat(sizes, 1), dim=1, dtype=torch.float64)
        scale = abs(self.factor) * (1 + 2 * rounding.gamma(terms, self.dtype))
        return lengths.mul_(scale).add_(FAINT * abs(self.factor) * self.d**0.5)

    def sum_to(self, weights: Tensor, rho: float, out: Tensor | None = None) -> Tensor:
        room, c = self._room(rho, out), self._cast(weights)
        quick = self.skips and room.dtype == self.dtype and self.n <= rounding.most_terms(rho, self.dtype)
        if self.skips and not quick and self._out is None:
            return self.masked(c != 0).sum_to(c, rho, room)
        gone, shares = self._out, c
        if gone is not None:
            shares = torch.where(gone, 0.0, c)
        elif quick:
            gone = c == 0
        matrix = room.view(self.q, -1)
        for lo, hi in self.slabs():
            # as they were measured: kept since, or computed by the same call
            g, self._held = self._held, None
            if g is None:
                g = self.slab(lo, hi, masked=not quick)
            elif not quick:
                g = self._blanked(g)
            self._add_up(g, shares, rho, matrix[lo:hi, : self.width], quick)
            if lo == 0 and self._seen is not None:
                same = g[:, :PROBE] == self._seen
                if gone is not None:
                    same |= gone[:, None, None]
                matrix[:1, : self.width] += torch.where(same.all(), 0.0, torch.nan)
        if self.ones:
            self._add_up(self.bias()[:, :, None], shares, rho, matrix[:, -1:], quick)
        return room

    def _add_up(self, g: Tensor, c: Tensor, rho: float, place: Tensor, quick: bool) -> None:
        """place = sum_i c_i g_i, times the factor; a `quick` sum does not read rows of weight 0."""
        if quick:
            fused._weighted_sum_of(g, c, place, self.factor)
            return
        if self.factor != 1.0:
            c = rounding.times(c, self.factor)
        flat = place.view(1, -1) if place.is_contiguous() else place.new_empty(1, place.numel())
        rounding._outer_sum(g.flatten(1), c[:, None], rho, flat)
        if not place.is_contiguous():
            place.copy_(flat.view(place.shape))

    def masked(self, keep: Tensor) -> Computed:
        """The matrices are blanked when they have been computed, if at all: factors are not copied."""
        bias = None if self._bias is None else self._bias.masked_fill(~keep[:, None], 0.0)
        return self._but(_out=~keep if self._out is None else self._out | ~keep, _bias=bias)

    def scaled(self, factor: float) -> Computed:
        return self._but(factor=self.factor * factor)

    def _but(self, **changed: object) -> Computed:
        twin = copy(self)
        vars(twin).update(changed)
        return twin

    def dense(self) -> Tensor:
        whole = self.slab(0, self.q)
        if self.ones:
            whole = torch.cat([whole, self.bias()[:, :, None]], 2)
        return whole.flatten(1) * self.factor

    # ------------------------------------------------------------ everything else is asked of the pieces

    def plain(self) -> Rows:
        """The same rows as sums of exact terms."""
        pieces = self.pieces if self._out is None else [piece.masked(~self._out) for piece in self.pieces]
        return total(pieces).scaled(self.factor)

    def part(self, lo: int, hi: int) -> Rows:
        return self.plain().part(lo, hi)

    def mixed(self, index: Tensor, shares: Tensor) -> Rows:
        return self.plain().mixed(index, shares)

    def through(self, sketch: _LinearMap, lo: int = 0) -> Rows:
        return self.plain().through(sketch, lo)


def as_computed(rows: Rows, bound: float | None = None) -> Rows:
    """The rows as a device adds them up fastest: sums of several terms are the products that it computes, at once where
    these are smaller than their factors; large matrices of single terms, clipped to `bound`, are summed on a grid.

    >>> as_computed(Outer(torch.ones(1, 8, 2), torch.ones(1, 8, 2)))
    Dense(n=1, d=4, float32)
    """
    if isinstance(rows, Lookup):
        return rows.distinct
    if isinstance(rows, Outer) and isinstance(rows.a, Tensor) and rows.positions == 1:
        large = rows.device.type == "cuda" and rows.d >= rounding.MIN_COLUMNS and rows.dtype == torch.float32
        return Outer(rows.a, rows.b, rows.ones, grid=bound) if large else rows
    pieces = rows.pieces if isinstance(rows, Sum) else [rows]
    fitting: list[Outer | Lookup] = []
    for piece in pieces:
        if isinstance(piece, Lookup) or (
            isinstance(piece, Outer) and isinstance(piece.a, Tensor) and piece.positions > 1
        ):
            fitting.append(piece)
    if len(fitting) < len(pieces):
        return rows
    computed = Computed(fitting)
    small = computed.d * computed.dtype.itemsize <= sum(_bytes(piece) for piece in fitting)
    return Dense(computed.dense()) if small else computed


def _bytes(piece: Outer | Lookup) -> int:
    """What the factors of one row take."""
    if isinstance(piece, Lookup):
        return piece.positions * piece.p * piece.values.element_size()
    return piece.positions * (piece.p + piece.q) * piece.b.element_size()


def _product(piece: Outer, lo: int, hi: int, dtype: torch.dtype) -> Tensor:
    """sum_t b_t[lo:hi] a_t' of every example, with sums in `dtype`."""
    a, b, part = piece.a, piece.b, (lo, hi) != (0, piece.q)
    assert isinstance(a, Tensor)
    odd = b.is_cuda and b.stride(1) * b.element_size() % 16  # rows that begin nowhere in particular are slow to read
    if part:
        b = b[..., lo:hi].contiguous() if odd else b[..., lo:hi]
    elif odd:
        b = torch.nn.functional.pad(b, (0, -piece.q % 16))[..., : piece.q]
    b = b.mT
    if a.dtype == b.dtype and a.dtype.itemsize < 4 and a.is_cuda:
        return torch.bmm(b, a, out_dtype=dtype)
    return torch.bmm(b.to(dtype), a.to(dtype))
