"""Norms that are never below the true ones: the error bounds of the package, in one place.

Notation: `u` is the unit roundoff of a dtype (2^-24 for float32), `gamma = k u / (1 - k u)` bounds the relative
error of k roundings in any order (Higham, Accuracy and Stability, Lemma 3.1).  A bound is a pair
`(lower, upper)` of float64 tensors that enclose the true value; `round_up` turns `upper` into a number of the
wanted dtype without ever going below it.

An l2 norm of k entries squares each (one rounding) and adds k of them (at most k - 1 roundings each), in any
order: the sum is off by `gamma_k`, its root by `gamma_k / 2`, plus one rounding of the root.  Columns are
taken `BLOCK` at a time and the blocks are added in float64, so that k never exceeds `BLOCK`.  Squares of
float32 numbers underflow below 2^-63 and overflow above 2^64: rows near either end are done again in
float64, divided by a power of two, where neither happens.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.matrix import Matrix, View, is_sparse, row_norms
from isthmus.gradients import fused

Bounds = tuple[Tensor, Tensor]

ORDS = (1, 2, math.inf)
"""The norms rows have."""
BLOCK = 128
"""Columns added up in the working dtype before float64 takes over."""
SPAN = 512 * BLOCK
"""Columns looked at together."""
CHUNK_BYTES = 1 << 26
"""Temporary buffers of one call stay near this size."""
RESERVE = 4
"""Roundings, relative, that `Rows.norms` adds for what comes after it: the division C / norm, the cast of the
weight and of the factors, the product with the row."""


def unit(dtype: torch.dtype) -> float:
    """The unit roundoff u: half the distance from 1 to the next number."""
    return torch.finfo(dtype).eps / 2


def gamma(k: float, dtype: torch.dtype) -> float:
    """k u / (1 - k u): the relative error of k roundings."""
    ku = k * unit(dtype)
    return ku / (1 - ku) if ku < 1 else math.inf


def working(*dtypes: torch.dtype) -> torch.dtype:
    """The dtype products of these are done in: the widest of them and of float32."""
    result = torch.float32
    for dtype in dtypes:
        result = torch.promote_types(result, dtype)
    return result


def round_up(value: Tensor, dtype: torch.dtype) -> Tensor:
    """The smallest numbers of `dtype` that are not below `value` (float64); NaN becomes infinity.

    >>> x = torch.tensor([0.1, 0.0, 1e-60, 1e60], dtype=torch.float64)
    >>> y = round_up(x, torch.float32)
    >>> bool((y.double() >= x).all()), float(y[1]), float(y[3])
    (True, 0.0, inf)
    """
    value = torch.where(value.isnan(), math.inf, value)
    near = value.to(dtype)
    return torch.where(near.to(torch.float64) < value, torch.nextafter(near, torch.full_like(near, math.inf)), near)


def times(weights: Tensor, factor: float) -> Tensor:
    """Weights times a number; 0 below the normal numbers, where rounding up may double one.

    >>> times(torch.tensor([1.0, 1e-37]), 2.0**-10)
    tensor([0.0010, 0.0000])
    """
    scaled = weights * factor
    return torch.where(scaled.abs() >= torch.finfo(scaled.dtype).tiny, scaled, 0.0)


def widen(value: Tensor, relative: float, absolute: float | Tensor = 0.0) -> Bounds:
    """The interval of the true value, given the computed one and bounds of its error.

    Zero stays zero when there is no absolute error; anything else grows by at least the smallest normal number.
    """
    slack = value * (relative / (1 - relative) if relative < 1 else math.inf) + absolute
    tiny = torch.finfo(torch.float64).tiny
    upper = torch.where((value == 0) & (slack == 0), 0.0, value + slack * (1 + 1e-12) + tiny)
    return (value - slack).clamp_min(0.0), upper


def matrix_bounds(x: Matrix, ord: float) -> Bounds:
    """Enclosures of the norms of the rows of a dense or CSR matrix.

    >>> low, high = matrix_bounds(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), 2)
    >>> bool((low[0] <= 5) & (high[0] >= 5)), float(high[1])
    (True, 0.0)
    """
    if ord not in ORDS:
        check_ord(ord)
    if isinstance(x, View):
        return _seen_bounds(x, ord)
    if is_sparse(x):
        return widen(row_norms(x, ord), 0.0 if ord == math.inf else gamma(x.shape[1] + 8, torch.float64))
    if x.shape[1] == 0:
        zero = torch.zeros(x.shape[0], dtype=torch.float64, device=x.device)
        return zero, zero
    if x.shape[1] == 1:
        size = x[:, 0].abs().to(torch.float64)
        return size, size
    if ord == math.inf:
        least, most = torch.aminmax(x, dim=1)
        largest = torch.maximum(-least, most).to(torch.float64)
        return largest, largest
    if x.is_cuda:
        return _on_device(x, ord)
    work = working(x.dtype)
    value = _blocked(x, ord, work)
    roundings = min(x.shape[1], BLOCK) / ord + 4
    relative = gamma(roundings, work) + gamma(x.shape[1] / BLOCK + 8, torch.float64)
    again = _extreme(value, x.shape[1], work).nonzero()[:, 0]
    for rows in again.split(max(1, CHUNK_BYTES // (8 * x.shape[1]))) if len(again) else ():
        value[rows] = _scaled_norms(x[rows], ord)
    return widen(value, relative)


def _seen_bounds(x: View, ord: float) -> Bounds:
    """A matrix seen through a map knows a bound of its rows' l2 norms; other norms are those of its chunks."""
    if ord == 2 or not x.shape[0]:
        return torch.zeros_like(x.upper), x.upper
    parts = [matrix_bounds(rows.clone(), ord) for _, _, rows in x.chunks()]
    low, high = (torch.cat([part[side] for part in parts]) for side in (0, 1))
    if x.far:  # entries are what is left of much longer ones: fall back on the l2 norm, which knows
        high = torch.maximum(high, x.upper * (x.shape[1] ** 0.5 if ord == 1 else 1.0))
    # each entry of a chunk has a few roundings of its own
    return low * (1 - 1e-9), high * (1 + 1e-9)


def product(a: Bounds, b: Bounds) -> Bounds:
    """The enclosure of the product of two non-negative values; zero only if one is zero and the other finite."""
    return a[0] * b[0] * (1 - 2.0**-50), product_upper(a[1], b[1])


def product_upper(a: Tensor, b: Tensor) -> Tensor:
    """The upper half of `product` alone."""
    high = a * b * (1 + 2.0**-50)
    return torch.where((a == 0) | (b == 0), high, high + torch.finfo(torch.float64).tiny)


def combine(parts: list[Bounds], ord: float) -> Bounds:
    """The enclosure of the norm of vectors laid side by side, from the norms of the pieces.

    >>> three, four = (torch.tensor([v], dtype=torch.float64) for v in (3.0, 4.0))
    >>> low, high = combine([(three, three), (four, four)], 2)
    >>> bool(low <= 5 <= high)
    True
    """
    joins: dict[float, Callable[[Tensor, Tensor], Tensor]] = {1: torch.add, 2: torch.hypot, math.inf: torch.maximum}
    join = joins[ord]
    low, high = parts[0]
    for more_low, more_high in parts[1:]:
        low, high = join(low, more_low), join(high, more_high)
    relative = 0.0 if ord == math.inf else len(parts) * 2.0**-50
    return low * (1 - relative), high * (1 + relative)


def power_of_two(x: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """The largest |entry| of each x[i], and 2^e with that entry in [2^e, 2^(e+1)), |e| <= `limit`; float64.

    >>> power_of_two(torch.tensor([[3.0, -5.0]]), 100)
    (tensor([5.], dtype=torch.float64), tensor([4.], dtype=torch.float64))
    """
    empty = x[0:1].numel() == 0
    largest = x.new_zeros(x.shape[0]) if empty else x.flatten(1).abs().amax(1)
    largest = largest.to(torch.float64)
    exponent = torch.frexp(torch.nan_to_num(largest, nan=1.0, posinf=1.0))[1] - 1
    return largest, torch.ldexp(torch.ones_like(largest), exponent.clamp(-limit, limit))


def check_ord(ord: float) -> None:
    """Refuse norms that rows do not have."""
    if ord not in ORDS:
        validate.one_of(ORDS, ord=ord)


def _blocked(x: Tensor, ord: float, work: torch.dtype) -> Tensor:
    """Norms of rows in `work`, `BLOCK` columns at a time, added in float64."""
    total = torch.zeros(x.shape[0], dtype=torch.float64, device=x.device)
    whole = x.shape[1] - x.shape[1] % BLOCK
    for lo in [*range(0, whole, SPAN), whole]:
        piece = x[:, lo : min(lo + SPAN, whole)].unflatten(1, (-1, BLOCK)) if lo < whole else x[:, None, whole:]
        part = torch.linalg.vector_norm(piece, ord, dim=2, dtype=work).to(torch.float64)
        total += (part if ord == 1 else part * part).sum(1)
    return total if ord == 1 else total.sqrt()


def _on_device(x: Tensor, ord: float) -> Bounds:
    """Norms added up in float64 in one kernel: no square of a float32 leaves its range, so nothing is done twice.

    Squares of float64 numbers below 2^-511 vanish: the bound grows by what they could have been.  The host never
    waits for the device here.
    """
    value = torch.linalg.vector_norm(x, ord, dim=1, dtype=torch.float64)
    relative = gamma(x.shape[1] + 8, torch.float64)
    if x.dtype != torch.float64:
        return value * (1 - relative), value * (1 + relative)
    return widen(value, relative, 0.0 if ord == 1 else math.sqrt(x.shape[1]) * 2.0**-500)


def narrow(*factors: Tensor) -> bool:
    """Whether factors are so small, and of so few bits, that adding their squares in float64 costs nothing."""
    return all(x.dtype != torch.float64 and x.shape[-1] <= 2 * BLOCK for x in factors)


def device_upper(x: Tensor, ord: float) -> Tensor:
    """The upper bound alone, in a kernel or two where the numbers are float32 or less."""
    if x.dtype == torch.float64 or x.shape[1] == 0:
        return matrix_bounds(x, ord)[1]
    if ord == 2 and fused.can_sum(x.device, x.dtype):
        norms = fused.norms(x)
    else:
        norms = torch.linalg.vector_norm(x, ord, dim=1, dtype=torch.float64)
    return norms * (1 + 2 * gamma(x.shape[1] + 8, torch.float64))


def with_one(upper: Tensor, ord: float) -> Tensor:
    """Upper bounds of norms when one more entry is 1: that of a bias.

    >>> with_one(torch.tensor([3**0.5], dtype=torch.float64), 2).round(decimals=3)
    tensor([2.], dtype=torch.float64)
    """
    if ord == 1:
        return (upper + 1) * (1 + 2.0**-50)
    return torch.hypot(upper, torch.ones_like(upper)) * (1 + 2.0**-50) if ord == 2 else upper.clamp_min(1.0)


def _extreme(value: Tensor, k: int, work: torch.dtype) -> Tensor:
    """Which rows have squares outside the range of `work` (or are not finite)."""
    info = torch.finfo(work)
    least = math.sqrt(k * info.tiny / unit(work))
    return ~((value > least) & (value < math.sqrt(info.max) / 4))


def _scaled_norms(x: Tensor, ord: float) -> Tensor:
    """Norms of rows in float64 after division by a power of two near their largest entry."""
    _, scale = power_of_two(x, 1000)
    norms: Tensor = torch.linalg.vector_norm(x.to(torch.float64) / scale[:, None], ord, dim=1)
    return scale * norms
