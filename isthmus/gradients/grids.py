"""Sums of outer products in whole numbers: exact, whatever the number of records.

One product b' a of thousands of records cannot be added up in float32 to within a part of one record's bound, and
chunks that can are slow.  Integers can: the row of a record is taken to be its clipped gradient with factors rounded
towards zero on a public grid, and integer products of the grid's numbers are added without any rounding.

With c_i the weight of record i, C the bound, r_i = c_i |a_i||b_i| / C <= 1 its share of it, and N = 127 * 128,

    x_i = trunc(N sqrt(r_i) b_i / |b_i|),   y_i = trunc(N sqrt(r_i) a_i / |a_i|),
    sum_i c_i b_i a_i'  ~  (C / N^2) sum_i x_i y_i'.

Rounding towards zero makes no entry larger, so the row x_i y_i' C / N^2 is no longer than c_i |a_i||b_i| <= C.  Every
number is 128 h + l with |h|, |l| <= 127: three products of 8-bit integers with 32-bit sums, which GPUs multiply several
times as fast as TF32.  A factor loses less than 1 / N of its longest possible entry.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus.gradients import adding, fused, rounding
from isthmus.gradients.base import Rows
from isthmus.gradients.outer import Outer
from isthmus.gradients.rounding import Bounds
from isthmus.sketches.base import OuterForm, Sketch

SIDE = 128
GRID = 127 * SIDE
MOST = 1 << 16
"""Records whose products a 32-bit sum holds: 2 * 127^2 * MOST < 2^31."""
LEAST = 1 << 20
"""Entries of a matrix below which the ordinary sum is as fast."""
ROUNDINGS = 24
"""Roundings of the three integer sums on their way to one float32 sum, their parts being at most three times it."""


class Gridded(Rows):
    """Rows of one term each, b_i a_i', that are clipped to `bound` and summed in whole numbers where they are many.

    >>> rows = Gridded(Outer(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0]])), bound=5.0)
    >>> rows.norms(), rows.sum()
    (tensor([5.0000]), tensor([3., 4.]))
    """

    def __init__(self, outer: Outer, bound: float) -> None:
        self.outer, self.bound = outer, bound
        self.n, self.d, self.dtype, self.device = outer.n, outer.d, outer.dtype, outer.device

    def norm_bounds(self, ord: float = 2) -> Bounds:
        return self.outer.norm_bounds(ord)

    def norm_upper(self, ord: float = 2) -> Tensor:
        return self.outer.norm_upper(ord)

    def underflow(self) -> Tensor:
        return self.outer.underflow()

    def sum(self, weights: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        return self.outer.sum(weights, out)

    def sum_to(self, weights: Tensor, rho: float, out: Tensor | None = None) -> Tensor:
        few = adding.roundings(rho, self.dtype) - adding.SPARE
        if self.n <= few or self.n > MOST or few < ROUNDINGS:
            return self.outer.without(weights).sum_to(weights, rho, out)
        room, outer = self._room(rho, out), self.outer
        assert isinstance(outer.a, Tensor)
        a, b, c = (x.to(self.dtype) for x in (outer.a.flatten(1), outer.b.flatten(1), weights.to(self.device)))
        matrix = room.view(outer.q, outer.p)
        integer_sum(a, b, c, self.bound, matrix[:, : a.shape[1]])
        if outer.ones:
            self._bias_sum(b, c, rho, matrix[:, -1])
        return room

    def _bias_sum(self, b: Tensor, c: Tensor, rho: float, place: Tensor) -> None:
        if self.small:
            place.copy_(fused.column_sums(b, c))
        else:
            adding.row_sum(b * c[:, None], rho, place)

    @property
    def small(self) -> bool:
        """Kernels read no row of weight 0, and take what is no number for 0."""
        return fused.can_sum(self.device, self.dtype)

    def without(self, weights: Tensor) -> Rows:
        return self if self.small else self.masked(weights > 0)

    def masked(self, keep: Tensor) -> Rows:
        masked = self.outer.masked(keep)
        return Gridded(masked, self.bound) if isinstance(masked, Outer) else masked

    def part(self, lo: int, hi: int) -> Rows:
        return self.outer.part(lo, hi)

    def dense(self) -> Tensor:
        return self.outer.dense()

    def scaled(self, factor: float) -> Gridded:
        return Gridded(self.outer.scaled(factor), self.bound)

    def take(self, index: Tensor, factors: Tensor) -> Rows:
        return self.outer.take(index, factors)

    def minus(self, other: Rows) -> Rows:
        return self.outer.minus(other)

    def grouped(self, size: int) -> Rows:
        return self.outer.grouped(size)

    def through(self, sketch: Sketch, lo: int = 0) -> Rows:
        return self.outer.through(sketch, lo)

    def outer_form(self) -> OuterForm | None:
        return self.outer.outer_form()


def gridded(rows: Rows, bound: float | None) -> Rows:
    """Large matrices of single terms on a GPU, which are clipped to a known bound; other rows as they are."""
    if not isinstance(rows, Outer) or bound is None or rows.positions > 1 or not isinstance(rows.a, Tensor):
        return rows
    large = rows.device.type == "cuda" and rows.d >= LEAST and rows.dtype == torch.float32
    return Gridded(rows, bound) if large else rows


def integer_sum(a: Tensor, b: Tensor, c: Tensor, bound: float, out: Tensor) -> None:
    """out = sum_i c_i b_i a_i' on the grid, for a (n, p), b (n, q) with c_i |a_i||b_i| <= bound.

    >>> out = torch.empty(1, 2)
    >>> integer_sum(torch.tensor([[3.0, 4.0]] * 2), torch.tensor([[1.0], [-0.5]]), torch.ones(2), 5.0, out)
    >>> [round(value, 3) for value in out[0].tolist()]
    [1.5, 2.0]
    """
    # in float64: squares, and products of a small weight with a small norm, leave the normal numbers of float32
    longest_a, longest_b = (rounding.device_upper(x, 2) for x in (a, b))
    share = (c * longest_a * longest_b / bound).clamp_max(1.0).sqrt()
    (ah, al), (bh, bl) = (_digits(x, _usable(share / y, x.dtype)) for x, y in ((a, longest_a), (b, longest_b)))
    middle = torch.cat([al, ah], 1)
    for lo in range(0, len(bh), MOST // 8):
        rows = slice(lo, lo + MOST // 8)
        mixed = torch._int_mm(torch.cat([bh[rows], bl[rows]], 1), middle.T)
        _join(torch._int_mm(bh[rows], ah.T), mixed, torch._int_mm(bl[rows], al.T), bound / GRID**2, out[rows])


def _usable(scale: Tensor, dtype: torch.dtype) -> Tensor:
    """The scales of rows, 0 where they are no normal number of the dtype: rounding up may double others, or is endless.

    >>> _usable(torch.tensor([0.5, 1e-40, 1e40, torch.nan], dtype=torch.float64), torch.float32)
    tensor([0.5000, 0.0000, 0.0000, 0.0000])
    """
    near, info = scale.to(dtype), torch.finfo(dtype)
    return torch.where((near >= info.tiny) & (near <= info.max), near, 0.0)


def _join(high: Tensor, mixed: Tensor, low: Tensor, scale: float, place: Tensor) -> None:
    """place = scale (128^2 high + 128 mixed + low), without the zeros that rows and columns were filled up with."""
    if fused.can_sum(place.device, place.dtype):
        fused.joined(high, mixed, low, SIDE, scale, place)
        return
    high, mixed, low = (x[: len(place), : place.shape[1]] for x in (high, mixed, low))
    total = high.to(place.dtype).mul_(float(SIDE**2)).add_(mixed, alpha=SIDE).add_(low)
    place.copy_(total.mul_(scale))


def _digits(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """trunc(N scale_i x_i) = 128 h + l by its digits, transposed and filled up with zeros to multiples of 32: int8."""
    if fused.can_sum(x.device, x.dtype):
        return fused.digits(x, scale, GRID, SIDE)
    whole = (x * scale[:, None] * GRID).nan_to_num_(0.0).trunc_().clamp_(-GRID, GRID)
    high = (whole / SIDE).trunc_()
    low = whole.sub_(high, alpha=SIDE)
    n, k = x.shape
    parts = []
    for digits in (high, low):
        room = torch.zeros(k + -k % 32, n + -n % 32, dtype=torch.int8, device=x.device)
        room[:k, :n] = digits.T
        parts.append(room)
    return parts[0], parts[1]
