"""Norms of sums of outer products, g = sum_t b_t a_t', from the factors.

With M = sum_t ||a_t|| ||b_t||, u the unit roundoff and gamma_k = k u / (1 - k u):

* **ghost**: ||g||^2 = sum_{s,t} (a_s'a_t)(b_s'b_t).  A computed a_s'a_t is off by at most
  gamma_p ||a_s|| ||a_t|| (Cauchy-Schwarz), so every term is off by gamma_{p+q+1} times
  ||a_s|| ||a_t|| ||b_s|| ||b_t||, and the whole by k u M^2 with k = p + q + 1 roundings.  A sum that nearly
  cancels has ||g|| << M, so the error is added UNDER the root: sqrt(S + k u M^2) is never too small.
  Inner products are cut in `BLOCK` columns, hence k = min(p, BLOCK) + p / BLOCK + the same of q + 8; the
  T^2 terms are added in float64.
  Rows whose enclosure is wider than a factor `LOOSE` are done again by the direct route.
* **direct**: the q x p entries are dot products of length T, off by gamma_T sum_t |b_t||a_t|', so the norm
  of any ord is off by gamma_T M_ord, which is added to it.

Factors are divided by powers of two first, so that nothing overflows and the only underflow is below
tiny(dtype) times the largest |a| |b| of the row: it is added too.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from isthmus.base.matrix import exact_products
from isthmus.gradients import rounding
from isthmus.gradients.rounding import CHUNK_BYTES, Bounds, gamma

BLOCK = 512
"""Columns of one inner product; more are added block by block."""
LOOSE = 1.25
"""A ghost norm known less well than within this factor is computed directly."""


def cheaper_ghost(t: int, p: int, q: int) -> bool:
    """Whether T^2 (p + q) multiplications are fewer than T p q."""
    return t * (p + q) < p * q


def rows_at_once(t: int, p: int, q: int, itemsize: int, limit: int = CHUNK_BYTES) -> int:
    """Rows whose converted factors and products fit in half the limit each (at least one)."""
    products = 2 * t * t if cheaper_ghost(t, p, q) else p * q
    return max(1, limit // (2 * itemsize * max(products, t * (p + q), 1)))


def bounds(a: Tensor, b: Tensor, ord: float, work: torch.dtype, limit: int = CHUNK_BYTES) -> Bounds:
    """Enclosures of ||sum_t b_it a_it'||_ord for a chunk: a (n, T, p), b (n, T, q).

    >>> a, b = torch.ones(1, 2, 3), torch.tensor([[[1.0], [1.0]]])
    >>> low, high = bounds(a, b, 2, torch.float32)
    >>> bool(low <= 12**0.5 <= high)
    True
    """
    limit_exponent = 100 if work == torch.float32 else 900
    (most_a, scale_a), (most_b, scale_b) = (rounding.power_of_two(x, limit_exponent) for x in (a, b))
    zero = (most_a == 0) | (most_b == 0)
    a = a.to(work) / scale_a.to(work)[:, None, None]
    b = b.to(work) / scale_b.to(work)[:, None, None]
    with exact_products(a.device):
        if ord == 2 and cheaper_ghost(a.shape[1], a.shape[2], b.shape[2]):
            low, high = _refined(a, b, limit, _ghost(a, b, limit), ~zero)
        else:
            low, high = _direct(a, b, ord, limit)
    high = torch.where(zero & ~high.isnan(), 0.0, high)
    scale = scale_a * scale_b
    return rounding.product((low, high), (scale, scale))


def _magnitude(a: Tensor, b: Tensor, ord: float) -> Tensor:
    """An upper bound of sum_t ||a_t||_ord ||b_t||_ord, float64."""
    first: Tensor = torch.linalg.vector_norm(a, ord, dim=-1).to(torch.float64)
    second: Tensor = torch.linalg.vector_norm(b, ord, dim=-1).to(torch.float64)
    slack = gamma(a.shape[2] + b.shape[2] + 8, a.dtype)
    tiny = math.sqrt(torch.finfo(a.dtype).tiny) * (a.shape[2] + b.shape[2])
    return (first * second).sum(1) * (1 + 2 * slack) + 4 * a.shape[1] * tiny


def _ghost(a: Tensor, b: Tensor, limit: int) -> Bounds:
    (n, t, p), q = a.shape, b.shape[2]
    total = torch.zeros(n, dtype=torch.float64, device=a.device)
    width = max(1, limit // (4 * a.element_size() * n * t))
    for lo in range(0, t, width):
        terms = _gram(a[:, lo : lo + width], a) * _gram(b[:, lo : lo + width], b)
        total += terms.sum((1, 2), dtype=torch.float64)
    k = min(p, BLOCK) + p / BLOCK + min(q, BLOCK) + q / BLOCK + 8
    relative = gamma(k, a.dtype) + gamma(t * t, torch.float64)
    guard = relative * _magnitude(a, b, 2) ** 2 + 64 * t * t * p * q * torch.finfo(a.dtype).tiny
    return (total - guard).clamp_min(0).sqrt() * (1 - 2.0**-50), (total.clamp_min(0) + guard).sqrt() * (1 + 2.0**-50)


def _refined(a: Tensor, b: Tensor, limit: int, ghost: Bounds, live: Tensor) -> Bounds:
    """Ghost norms, with the rows that nearly cancel done again by the direct route."""
    low, high = ghost
    again = (live & (high > LOOSE * low)).nonzero()[:, 0]
    if len(again):
        better_low, better_high = _direct(a[again], b[again], 2, limit)
        low[again] = torch.maximum(low[again], better_low)
        high[again] = torch.minimum(high[again], better_high)
    return low, high


def _gram(x: Tensor, y: Tensor) -> Tensor:
    """x y' for each row, `BLOCK` columns at a time."""
    total = x[..., :BLOCK] @ y[..., :BLOCK].mT
    for lo in range(BLOCK, x.shape[2], BLOCK):
        total += x[..., lo : lo + BLOCK] @ y[..., lo : lo + BLOCK].mT
    return total


def _direct(a: Tensor, b: Tensor, ord: float, limit: int) -> Bounds:
    (n, t, p), q = a.shape, b.shape[2]
    width = max(1, limit // (2 * a.element_size() * n * p))
    pieces = [rounding.matrix_bounds((b[..., lo : lo + width].mT @ a).flatten(1), ord) for lo in range(0, q, width)]
    low, high = rounding.combine(pieces, ord)
    entries = 1.0 if ord == math.inf else float(p * q) ** (1 / ord)
    error = gamma(t + 2, a.dtype) * _magnitude(a, b, ord) + 16 * t * entries * torch.finfo(a.dtype).tiny
    return (low - error).clamp_min(0), high + error * (1 + 2.0**-50)
