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

SIDE = 128
GRID = 127 * SIDE
MAX_RECORDS = 1 << 16
"""Records whose products a 32-bit sum holds: 2 * 127^2 * MAX_RECORDS < 2^31."""
MIN_COLUMNS = 1 << 20
"""Entries of a matrix below which the ordinary sum is as fast."""
ROUNDINGS = 24
"""Roundings of the three integer sums on their way to one float32 sum, their parts being at most three times it."""


def applies(n: int, rho: float, dtype: torch.dtype) -> bool:
    """Whether so many records are summed in whole numbers: more than one product adds up within rho."""
    few = adding.roundings(rho, dtype) - adding.SPARE
    return few < n <= MAX_RECORDS and few >= ROUNDINGS


def _integer_sum(a: Tensor, b: Tensor, c: Tensor, bound: float, out: Tensor) -> None:
    """out = sum_i c_i b_i a_i' on the grid, for a (n, p), b (n, q) with c_i |a_i||b_i| <= bound.

    >>> out = torch.empty(1, 2)
    >>> _integer_sum(torch.tensor([[3.0, 4.0]] * 2), torch.tensor([[1.0], [-0.5]]), torch.ones(2), 5.0, out)
    >>> [round(value, 3) for value in out[0].tolist()]
    [1.5, 2.0]
    """
    # in float64: squares, and products of a small weight with a small norm, leave the normal numbers of float32
    longest_a, longest_b = (rounding.upper_norms(x) for x in (a, b))
    share = (c * longest_a * longest_b / bound).clamp_max(1.0).sqrt()
    (ah, al), (bh, bl) = (_digits(x, _usable(share / y, x.dtype)) for x, y in ((a, longest_a), (b, longest_b)))
    middle = torch.cat([al, ah], 1)
    for lo in range(0, len(bh), MAX_RECORDS // 8):
        rows = slice(lo, lo + MAX_RECORDS // 8)
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
