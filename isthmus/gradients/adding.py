"""Sums that are certain: the COMPUTED sum of clipped records moves by at most C (1 + kappa) with one record.

A clipped record has norm at most C, but the floating-point sum of n of them can move by far more when one comes or
goes: near a power of two, one record changes how every later addition rounds.  What holds in any order of additions
(Higham, Accuracy and Stability, section 4.2): a sum in which no term takes part in more than k roundings is off, entry
by entry, by at most gamma_k times the sum of the terms' absolute values.  Hence, in every norm,

    || computed - true || <= gamma_k * mass,    mass = sum_i c_i M_i,

where M_i is the norm of the absolute sum of the terms that record i is made of: its own norm where it is one term,
sum_t ||a_t|| ||b_t|| where it is sum_t b_t a_t', whose terms may cancel.  `Rows.sum_to(weights, rho)` chooses k so that
gamma_k <= rho: one product where its length allows it, else chunks of terms whose sums are added in float64, else
float64 throughout, chunked and compensated where even that is needed.  With rho = (kappa / 2) C / mass the computed
sum of EVERY data set is within (kappa / 2) C of its true one, so that two neighbours' differ by at most C (1 + kappa).

The choice may look at the data: what is promised is the error, and that does not depend on the choice.  `kappa` itself
is public; it is part of the bound that the noise is scaled to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

import torch
from torch import Tensor

from isthmus.base.matrix import CACHE_BYTES, Total
from isthmus.gradients.rounding import CHUNK_BYTES, unit, working

KAPPA = 2.0**-10
"""What rounding may add to the bound of one record in sums of codes and of float64 rows, relative."""
WIDE, NETWORK = 1 / 20, 1 / 100
"""The most and the least of it in float32 sums of whole gradients: one product serves batches of up to some 500."""
RATIO = 2.0**16
"""A record's terms may add up, in absolute value, to at most this many times the clip bound: else it is shortened."""
MIN_ROUNDINGS = 16
"""Chunks of fewer terms cost more than float64."""
SPARE = 6
"""Roundings kept for what comes after the chunks: their sum in float64, and its cast."""


def kappa(batch: float | None, dtype: torch.dtype, encoded: bool) -> float:
    """What rounding may add to the bound of one record, relative: from public things only.

    batch    the expected number of records in a sum; None for a linear model, whose sums are float64 in any case
    dtype    of the rows
    encoded  whether a sketch stands before the clip

    >>> [round(kappa(b, torch.float32, False), 4) for b in (64, 256, 4096)], kappa(1e6, torch.float64, False)
    ([0.01, 0.0117, 0.05], 0.0009765625)
    """
    if batch is None or encoded or dtype == torch.float64:
        return KAPPA
    return min(WIDE, max(NETWORK, 3 * batch**2 * unit(dtype)))


@lru_cache(1 << 10)
def roundings(rho: float, dtype: torch.dtype) -> int:
    """The largest k with gamma_k = k u / (1 - k u) <= rho.

    >>> roundings(100 * 2.0**-24, torch.float32)
    99
    """
    return int(min(rho / (1 + rho) / unit(dtype), 2.0**52))


def holds(rho: float, dtype: torch.dtype) -> bool:
    """Whether a sum within rho may be kept in this dtype: its last rounding is small beside it."""
    return roundings(rho, dtype) > 2 * SPARE


def in_float64(
    n: int, rho: float, shape: tuple[int, ...], device: torch.device, add: Callable[[int, int], Tensor], most: int
) -> Tensor:
    """The sum of n rows within rho, from `add(lo, hi)`: float64 sums of rows lo..hi-1.

    At most `most` rows are taken at a time.  Where additions in any order are too many, chunks are as short as they
    must be and their sum is compensated.
    """
    few = roundings(rho, torch.float64) - SPARE
    total, step = Total(shape, device, exact=n > few), max(1, min(most, few))
    for lo in range(0, n, step):
        total.add(add(lo, min(lo + step, n)))
    return total.result()


def _outer_sum(a: Tensor, b: Tensor, rho: float, out: Tensor) -> None:
    """out = sum_k b_k a_k', a (K, p) and b (K, q), within rho sum_k |b_k||a_k|' in every entry.

    Call it among `exact_products`: in reduced precision the bound means nothing.

    >>> out = torch.empty(1, 1)
    >>> _outer_sum(torch.ones(4, 1), torch.full((4, 1), 0.25), 1e-6, out)
    >>> float(out)
    1.0
    """
    work, k = working(a.dtype, b.dtype), len(a)
    few = roundings(rho, work) - SPARE
    if k <= few:
        if out.dtype == work and (out.is_cuda or out.is_contiguous()):
            torch.mm(b.to(work).T, a.to(work), out=out)
        else:
            out.copy_(b.to(work).T @ a.to(work))
    elif work == torch.float32 and few >= MIN_ROUNDINGS:
        out.copy_(_chunked(a.to(work), b.to(work), few))
    else:
        small = not out.is_cuda and 64 * out.numel() <= CACHE_BYTES  # adding sums up costs next to nothing
        most = max(1, (CACHE_BYTES if small else CHUNK_BYTES) // (8 * (a.shape[1] + b.shape[1])))

        def add(lo: int, hi: int) -> Tensor:
            return b[lo:hi].to(torch.float64).T @ a[lo:hi].to(torch.float64)

        out.copy_(in_float64(k, rho, (b.shape[1], a.shape[1]), out.device, add, most))


def _row_sum(b: Tensor, rho: float, out: Tensor) -> None:
    """out = sum_k b_k for b (K, q), within rho sum_k |b_k|."""
    if not b.is_cuda and len(b) <= roundings(rho, b.dtype) - SPARE:  # products with 1 are exact
        out[:, None].copy_(b.T @ b.new_ones(len(b), 1))
        return
    most = max(1, CHUNK_BYTES // (8 * max(1, b.shape[1])))

    def add(lo: int, hi: int) -> Tensor:
        return b[lo:hi].sum(0, dtype=torch.float64)

    out.copy_(in_float64(len(b), rho, tuple(b.shape[1:]), out.device, add, most))


def _chunked(a: Tensor, b: Tensor, few: int) -> Tensor:
    """Products of `few` terms each in the working dtype, added in float64; as many together as `CHUNK_BYTES` holds."""
    (k, p), q = a.shape, b.shape[1]
    at_once = max(1, CHUNK_BYTES // (a.element_size() * p * q))
    total = Total((q, p), a.device)
    for lo, hi, pieces in _spans(k, few, at_once):
        x, y = a[lo:hi], b[lo:hi]
        if pieces == 1:
            total.add(y.T @ x)
        else:
            parts = torch.bmm(y.reshape(pieces, -1, q).mT, x.reshape(pieces, -1, p))
            total.add(parts.sum(0, dtype=torch.float64))
    return total.result()


def _spans(k: int, few: int, at_once: int) -> Iterable[tuple[int, int, int]]:
    """`(lo, hi, pieces)`: ranges that cover 0..k-1, each of equal pieces of at most `few`, at most `at_once` of them.

    >>> list(_spans(10, 3, 2)), list(_spans(2, 3, 2))
    ([(0, 6, 2), (6, 9, 1), (9, 10, 1)], [(0, 2, 1)])
    """
    lo = 0
    while lo < k:
        pieces = max(1, min(at_once, (k - lo) // few))
        hi = min(lo + pieces * few, k)
        yield lo, hi, pieces
        lo = hi
