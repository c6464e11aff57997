"""Norms of sums of outer products, g = sum_t b_t a_t', from the factors.

With M = sum_t ||a_t|| ||b_t||, u the unit roundoff and gamma_k = k u / (1 - k u):

* **ghost**: ||g||^2 = sum_{s,t} (a_s'a_t)(b_s'b_t).  A computed a_s'a_t is off by at most
  gamma_p ||a_s|| ||a_t|| (Cauchy-Schwarz), so every term is off by gamma_{p+q+1} times
  ||a_s|| ||a_t|| ||b_s|| ||b_t||, and the whole by gamma_{p+q+8} M^2.  A sum that nearly cancels has ||g|| << M, so
  the error is added UNDER the root: it is never too small.  The T^2 terms are added in float64.
  Rows that are not known within a factor `LOOSE`, or whose numbers leave the range, are done again by the direct route.
* **direct**: the q x p entries are dot products of length T in float64, off by gamma_T sum_t |b_t||a_t|', so the norm
  of any ord is off by gamma_T M_ord, which is added to it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from isthmus.base.matrix import exact_products
from isthmus.gradients import rounding
from isthmus.gradients.rounding import CHUNK_BYTES, gamma

LOOSE = 1.25
"""A ghost norm known less well than within this factor is computed directly."""


def _cheaper_ghost(t: int, p: int, q: int) -> bool:
    """Whether T^2 (p + q) multiplications are fewer than T p q."""
    return t * (p + q) < p * q


def upper(a: Tensor, b: Tensor, ord: float, ones: bool = False) -> Tensor:
    """Upper bounds of ||sum_t b_it a_it'||_ord: a (n, T, p), with one more column of ones, and b (n, T, q).

    >>> bound = upper(torch.ones(1, 2, 3), torch.ones(1, 2, 1), 2)
    >>> bool(12**0.5 <= bound <= 12**0.5 * 1.001)
    True
    """
    (n, t, p), q = a.shape, b.shape[2]
    high = torch.full((n,), math.inf, dtype=torch.float64, device=a.device)
    again = torch.arange(n, device=a.device)
    if not t:
        return torch.zeros_like(high)
    work = rounding.working(b.dtype)
    with exact_products(a.device):
        if ord == 2 and _cheaper_ghost(t, p + ones, q):
            sure = torch.zeros(n, dtype=torch.bool, device=a.device)
            for rows in again.split(max(1, CHUNK_BYTES // (2 * work.itemsize * t * (2 * t + p + q)))):
                left, right = _grams(a[rows].to(work), b[rows].to(work), ones)
                high[rows], mass, off = _from_grams(left, right, p + q + 9)
                sure[rows] = (off <= 1 - 2 / (LOOSE**2 + 1)) & (mass < 2.0**60)  # NaN is not
            again = (~sure).nonzero()[:, 0]
        for rows in again.split(max(1, CHUNK_BYTES // (16 * (p + ones) * q + 16 * t * (p + q)))):
            high[rows] = _direct(a[rows], b[rows], ord, ones)
    return high


def _grams(a: Tensor, b: Tensor, ones: bool) -> tuple[Tensor, Tensor]:
    """The T x T inner products of the a_t, with a column of ones or not, and of the b_t."""
    left = torch.bmm(a, a.mT)
    return left.add_(1.0) if ones else left, torch.bmm(b, b.mT)


def _from_grams(left: Tensor, right: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The ghost norms of products of at most k roundings: `(upper, M, error / ||g||^2)`; overwrites `left`."""
    t, dtype = left.shape[1], left.dtype
    inputs, outputs = (x.diagonal(dim1=1, dim2=2).double() for x in (left, right))
    mass = (inputs * outputs).sqrt().sum(1) * (1 + 2 * gamma(k, dtype))
    square = left.mul_(right).sum((1, 2), dtype=torch.float64)
    lost = 64.0 * t * t * k * torch.finfo(dtype).tiny * (1 + inputs.amax(1) + outputs.amax(1))
    error = (gamma(k, dtype) + gamma(t * t, torch.float64)) * mass.square() * (1 + 2.0**-20) + lost
    return (square.clamp_min(0) + error).sqrt() * (1 + 2.0**-50), mass, error / square.clamp_min(0)


def _direct(a: Tensor, b: Tensor, ord: float, ones: bool) -> Tensor:
    """From the products themselves, in float64; factors of float64 are divided by powers of two, so that none leaves
    the range."""
    scale_a, scale_b = (rounding._power_of_two(x, 900 * (x.dtype == torch.float64)) for x in (a, b))
    live = a.flatten(1).any(1) & b.flatten(1).any(1)
    a, b = a.double() / scale_a[:, None, None], b.double() / scale_b[:, None, None]
    if ones:
        live = b.flatten(1).any(1)
        a = torch.cat([a, (1 / scale_a)[:, None, None].expand(*a.shape[:2], 1)], 2)
    lengths = (torch.linalg.vector_norm(x, ord, dim=2) for x in (a, b))
    mass = torch.stack(list(lengths)).prod(0).sum(1)
    norms = rounding.upper_norms(torch.bmm(b.mT, a).flatten(1), ord)
    high = norms + 2 * gamma(a.shape[1] + a.shape[2] + b.shape[2] + 8, torch.float64) * mass
    high += torch.where(live, 16.0 * a.shape[1] * a.shape[2] * b.shape[2] * torch.finfo(torch.float64).tiny, 0.0)
    return rounding._product_upper(rounding._product_upper(high, scale_a), scale_b)
