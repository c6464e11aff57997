"""Norms that are never below the true ones: the error bounds of the package, in one place.

Notation: `u` is the unit roundoff of a dtype (2^-24 for float32), `gamma = k u / (1 - k u)` bounds the relative
error of k roundings in any order (Higham, Accuracy and Stability, Lemma 3.1).  An upper bound is a float64 tensor;
`round_up` turns it into a number of the wanted dtype without ever going below it.

An l2 norm of k entries squares each (one rounding) and adds k of them (at most k - 1 roundings each), in any
order: the sum is off by `gamma_k`, its root by `gamma_k / 2`, plus one rounding of the root.  Everything is added up
in float64, where no square of a float32 leaves the range; rows of float64 near either end of theirs are done again,
divided by a power of two.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.matrix import Matrix, View, row_norms
from isthmus.gradients import fused

ORDS = (1, 2, math.inf)
"""The norms rows have."""
CHUNK_BYTES = 1 << 26
"""Temporary buffers of one call stay near this size."""
_CACHED = 1 << 18
"""Numbers that are converted to float64 together: they stay in a core's cache."""
RESERVE = 4
"""Roundings, relative, that `Rows.norms` adds for what comes after it: the division C / norm, the cast of the
weight and of the factors, the product with the row."""


@cache
def unit(dtype: torch.dtype) -> float:
    """The unit roundoff u: half the distance from 1 to the next number."""
    return torch.finfo(dtype).eps / 2


@cache
def gamma(k: float, dtype: torch.dtype) -> float:
    """k u / (1 - k u): the relative error of k roundings."""
    ku = k * unit(dtype)
    return ku / (1 - ku) if ku < 1 else math.inf


@cache
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


def _check_ord(ord: float) -> None:
    """Refuse norms that rows do not have."""
    if ord not in ORDS:
        validate.one_of(ORDS, ord=ord)


def upper_norms(x: Matrix, ord: float = 2) -> Tensor:
    """Upper bounds of the norms of the rows of a matrix, float64; exactly 0 for a row of zeros on the host.

    >>> upper_norms(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).round(decimals=9).tolist()
    [5.0, 0.0]
    """
    if ord not in ORDS:
        _check_ord(ord)
    if isinstance(x, View):
        return _seen_upper(x, ord)
    k = x.shape[1]
    slack = 1 + 2 * gamma(k + 8, torch.float64)
    norms: Tensor
    if not isinstance(x, Tensor):
        norms = row_norms(x, ord)
        return norms if ord == math.inf else _above(norms * slack, norms)
    if k == 0:
        return torch.zeros(x.shape[0], dtype=torch.float64, device=x.device)
    if k == 1 or ord == math.inf:
        norms = torch.linalg.vector_norm(x, math.inf, dim=1)
        return norms.to(torch.float64)
    if x.dtype == torch.float64:
        return _wide_upper(x, ord, slack)
    if ord == 2 and fused.can_sum(x.device, x.dtype):
        return fused.norms(x) * slack
    if x.is_cuda:
        norms = torch.linalg.vector_norm(x, ord, dim=1, dtype=torch.float64)
        return norms * slack
    if x.numel() <= _CACHED:
        norms = torch.linalg.vector_norm(x.double(), ord, dim=1)
    else:
        parts = x.split(max(1, _CACHED // k))
        norms = torch.cat([torch.linalg.vector_norm(part.double(), ord, dim=1) for part in parts])
    return norms * slack


def _above(upper: Tensor, value: Tensor) -> Tensor:
    """An upper bound of a value that is not 0 and may have lost what lies below the normal numbers."""
    return torch.where(value == 0, 0.0, upper + torch.finfo(torch.float64).tiny)


def _wide_upper(x: Tensor, ord: float, slack: float) -> Tensor:
    """Of float64 rows, whose squares leave the range: on a device, where the host waits for nothing, more is added."""
    norms: Tensor = torch.linalg.vector_norm(x, ord, dim=1)
    if x.is_cuda:
        return norms * slack + math.sqrt(x.shape[1]) * 2.0**-500
    usual = (norms > math.sqrt(x.shape[1]) * 2.0**-480) & (norms < 2.0**500)
    for rows in (~usual).nonzero()[:, 0].split(max(1, CHUNK_BYTES // (8 * x.shape[1]))):
        scale = _power_of_two(x[rows], 1000)
        norms[rows] = scale * torch.linalg.vector_norm(x[rows] / scale[:, None], ord, dim=1)
    return _above(norms * slack, norms)


def _seen_upper(x: View, ord: float) -> Tensor:
    """A matrix seen through a map knows a bound of its rows' l2 norms; other norms are those of its chunks."""
    if ord == 2 or not x.shape[0]:
        return x.upper
    high = torch.cat([upper_norms(rows.clone(), ord) for _, _, rows in x.chunks()])
    if x.far:  # entries are what is left of much longer ones: fall back on the l2 norm, which knows
        high = torch.maximum(high, x.upper * (x.shape[1] ** 0.5 if ord == 1 else 1.0))
    return high * (1 + 1e-9)  # each entry of a chunk has a few roundings of its own


def _product_upper(a: Tensor, b: Tensor) -> Tensor:
    """An upper bound of the product of two non-negative bounds; zero only if one is zero and the other finite."""
    high = a * b * (1 + 2.0**-50)
    return torch.where((a == 0) | (b == 0), high, high + torch.finfo(torch.float64).tiny)


def _with_one(upper: Tensor, ord: float) -> Tensor:
    """Upper bounds of norms when one more entry is 1: that of a bias.

    >>> _with_one(torch.tensor([3**0.5], dtype=torch.float64), 2).round(decimals=3)
    tensor([2.], dtype=torch.float64)
    """
    whole: Tensor = torch.linalg.vector_norm(torch.stack([upper, torch.ones_like(upper)]), ord, dim=0)
    return whole * (1 + 2.0**-50)


def _power_of_two(x: Tensor, limit: int) -> Tensor:
    """2^e with the largest |entry| of x[i] in [2^e, 2^(e+1)), |e| <= `limit`; float64.

    >>> _power_of_two(torch.tensor([[3.0, -5.0]]), 100)
    tensor([4.], dtype=torch.float64)
    """
    if not x[0:1].numel():
        return torch.ones(len(x), dtype=torch.float64, device=x.device)
    largest = x.flatten(1).abs().amax(1).to(torch.float64)
    exponent = torch.frexp(torch.nan_to_num(largest, nan=1.0, posinf=1.0))[1] - 1
    return torch.ldexp(torch.ones_like(largest), exponent.clamp(-limit, limit))


class Lengths:
    """Upper bounds of the norms of n rows of a matrix: each is computed when it is first asked for, and kept.

    A clip of a linear model multiplies ||x_i|| by the size of a slope: only the second changes from round to round.

    >>> lengths, x = Lengths(2), torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    >>> lengths.of(x[:1], 2, slice(0, 1)).round(decimals=3)
    tensor([5.], dtype=torch.float64)
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self._kept: dict[float, Tensor] = {}

    def of(self, rows: Matrix, ord: float, where: slice | Tensor | None = None) -> Tensor:
        """Of `rows`, which are those at `where` (a range, positions, or all): never below the true norms, float64."""
        if isinstance(rows, View) and rows.measured and ord == 2:  # a view keeps its own
            return upper_norms(rows, ord)
        if ord not in self._kept:  # NaN: not known yet
            self._kept[ord] = torch.full((self.n,), torch.nan, dtype=torch.float64)
        if where is None:
            where = slice(None)
        lengths = self._kept[ord][where]
        if bool(lengths.isnan().any()):
            lengths = upper_norms(rows, ord).cpu()
            self._kept[ord][where] = lengths
        return lengths
