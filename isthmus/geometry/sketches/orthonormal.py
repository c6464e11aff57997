"""Orthonormal bases: of given columns, and drawn from a key."""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus.base import randomness
from isthmus.geometry.sketches import base

SMALL = 1 << 15
"""Up to this many entries Householder QR is as fast."""
SAFE = 1e-10
"""Smallest pivot (relative, squared) for which two Cholesky passes are orthonormal to rounding."""
GOOD = 0.2
"""Smallest pivot for which one pass is."""
SIGNS_FROM = 1024
"""From this length on, drawn rows are whitened signs, which cost a quarter of normals and a QR."""
SLIM = 16
"""Signs are used for at most a 1/16 of their length in rows: those are always well conditioned."""


def orthonormal(columns: Tensor) -> Tensor:
    """Orthonormal columns with the same span: the Q of a QR with positive diagonal, which is unique.

    Large ones by Cholesky factors of their float64 Gram matrix, once or twice, over chunks of rows; small ones and
    nearly dependent ones by Householder QR.

    >>> orthonormal(torch.tensor([[3.0], [4.0]]))
    tensor([[0.6000],
            [0.8000]])
    """
    if columns.numel() <= SMALL:
        return _householder(columns)
    source, out = columns, torch.empty_like(columns)
    step = max(1, base.CHUNK_BYTES // (8 * columns.shape[1]))
    spans = [slice(lo, lo + step) for lo in range(0, len(columns), step)]
    for smallest in (SAFE, GOOD):
        parts = (source[span].double() for span in spans)
        inverse, pivot = _whitening(sum((part.T @ part for part in parts), 0 * _eye(columns)))
        if pivot < smallest:
            return _householder(columns)
        for span in spans:
            out[span] = source[span].double() @ inverse  # reduced float32 products would not be orthonormal
        if pivot >= GOOD:
            return out
        source = out
    return out


def random_rows(rank: int, size: int, key: int) -> Tensor:
    """rank x size with orthonormal rows P, float64, and E[P'P] = (rank / size) I.

    Short ones are uniformly distributed (normals, QR).  Long ones span random sign vectors: their law does not change
    under sign flips and permutations of the columns, so E[P'P] is a multiple of the identity, as before.

    >>> rows = random_rows(2, 5000, key=1)
    >>> bool(torch.allclose(rows @ rows.T, torch.eye(2, dtype=torch.float64)))
    True
    """
    if size < SIGNS_FROM or SLIM * rank > size:
        return orthonormal(torch.from_numpy(randomness.generator(key).standard_normal((size, rank)))).T
    attempt = 0
    while True:
        bits = torch.from_numpy(randomness.bit_range(randomness.key(key, attempt), 0, size * rank)).view(size, rank)
        signs = bits.to(torch.float32).mul_(-2).add_(1)  # products of signs are exact in float32 below 2^24 rows
        inverse, pivot = _whitening((signs.T @ signs).double())
        if pivot >= GOOD:
            return (signs.double() @ inverse).T
        attempt += 1


def _householder(columns: Tensor) -> Tensor:
    q, r = torch.linalg.qr(columns)
    basis: Tensor = (q * torch.where(r.diagonal() < 0, -1.0, 1.0).to(q)).contiguous()
    return basis


def _whitening(gram: Tensor) -> tuple[Tensor, float]:
    """R^-1 for the Cholesky factor gram = R'R, and the smallest pivot as a share of the largest diagonal entry."""
    factor, failed = torch.linalg.cholesky_ex(gram)
    smallest = torch.where(failed == 0, factor.diagonal().square().min() / gram.diagonal().max(), 0.0)
    return torch.linalg.solve_triangular(factor.T, _eye(gram), upper=True), float(smallest.nan_to_num(0.0))


def _eye(like: Tensor) -> Tensor:
    return torch.eye(like.shape[1], dtype=torch.float64, device=like.device)
