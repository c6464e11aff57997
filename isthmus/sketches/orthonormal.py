"""Orthonormal bases: of given columns, and drawn from a key."""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus import randomness
from isthmus.sketches import base

SAFE = 1e-10
"""Smallest pivot (relative, squared) for which two Cholesky passes are orthonormal to rounding."""
SIGNS_FROM = 1024
"""From this length on, drawn rows are whitened signs, which cost a fifth of normals and a QR."""
SLIM = 16
"""Signs are used for at most a 1/16 of their length in rows: those are always well conditioned."""


def orthonormal(columns: Tensor) -> Tensor:
    """Orthonormal columns with the same span: the Q of a QR with positive diagonal, which is unique.

    Two Cholesky passes over chunks of rows, in float64 products whatever the dtype; nearly dependent columns
    (and wide inputs) go through Householder QR.

    >>> orthonormal(torch.tensor([[3.0, 3.0], [0.0, -2.0]]))
    tensor([[ 1.,  0.],
            [ 0., -1.]])
    """
    source, out = columns, torch.empty_like(columns)
    step = max(1, base.CHUNK_BYTES // (8 * max(1, columns.shape[1])))
    spans = [slice(lo, lo + step) for lo in range(0, len(columns), step)]
    for _ in range(2):
        inverse = _inverse_factor(
            sum((part.T @ part for part in (source[s].double() for s in spans)), 0 * _eye(source))
        )
        if inverse is None:
            q, r = torch.linalg.qr(columns)
            return q * torch.where(r.diagonal() < 0, -1.0, 1.0).to(q)
        for span in spans:
            out[span] = source[span].double() @ inverse
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
        inverse = _inverse_factor((signs.T @ signs).double(), smallest=0.05)
        if inverse is not None:
            return (signs.double() @ inverse).T
        attempt += 1


def _inverse_factor(gram: Tensor, smallest: float = SAFE) -> Tensor | None:
    """R^-1 for the Cholesky factor gram = R'R; None when a pivot is too small."""
    factor, failed = torch.linalg.cholesky_ex(gram)
    pivots, limit = factor.diagonal().square(), smallest * gram.diagonal().max()
    if not bool((failed == 0) & (pivots.min() > limit)):
        return None
    return torch.linalg.solve_triangular(factor.T, _eye(gram), upper=True)


def _eye(like: Tensor) -> Tensor:
    return torch.eye(like.shape[1], dtype=torch.float64, device=like.device)
