"""Orthonormal bases: of given columns, and drawn from a key."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from isthmus.base import randomness
from isthmus.base.matrix import exact_products
from isthmus.sketches import base

SMALL = 1 << 15
"""Up to this many entries Householder QR is as fast."""
SAFE = 1e-10
"""Smallest pivot (relative, squared) for which two Cholesky passes are orthonormal to rounding."""
GOOD = 0.2
"""Smallest pivot for which one pass is."""
SIGNS_FROM = 256
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
    return frames([(rank, size, 1)], key)[0][0]


def frames(shapes: Sequence[tuple[int, int, int]], key: int, device: torch.device | None = None) -> list[Tensor]:
    """For each (rank, size, count) as many such matrices, independent of one another: a tensor (count, rank, size).

    All signs are drawn together and all matrices of one shape are whitened together: some ten launches a shape on a
    device, where they are float32 (elsewhere float64).  Signs are the same on every machine, whitened up to rounding.

    >>> [tuple(x.shape) for x in frames([(2, 300, 3), (2, 2, 1)], key=1)]
    [(3, 2, 300), (1, 2, 2)]
    """
    where = torch.device("cpu") if device is None else device
    long = [shape for shape in shapes if _long(*shape[:2])]
    ends = [0, *accumulate(rank * size * count for rank, size, count in long)]
    drawn = randomness.sign_range(key, 0, ends[-1], where) if long else torch.empty(0)
    signs = [
        drawn[lo:hi].view(count, rank, size) for (lo, hi), (rank, size, count) in zip(pairwise(ends), long, strict=True)
    ]
    whitened, frames_made = iter(_whitened(signs)), []
    dtype = torch.float64 if device is None else torch.float32
    for number, (rank, size, count) in enumerate(shapes):
        if _long(rank, size):
            frames_made.append(next(whitened))
        else:
            normals = randomness.generator(key, number).standard_normal((count, size, rank))
            frames_made.append(_householder(torch.from_numpy(normals)).mT.to(where, dtype))
    return frames_made


def _long(rank: int, size: int) -> bool:
    return size >= SIGNS_FROM and SLIM * rank <= size


def _whitened(signs: Sequence[Tensor]) -> list[Tensor]:
    """Orthonormal rows with the span of rows of signs, at least `SLIM` times as long as they are many.

    Their Gram matrices, size times the identity up to some sqrt(rank / size), are exact in float32 below 2^24 columns
    and never near singular (a pivot below a fifth has a probability below 2^-100).  On a device the inverse root comes
    from products alone, those of all matrices of one rank together.
    """
    rows = [x.to(torch.float32) for x in signs]
    if not rows:
        return []
    with exact_products(rows[0].device):
        grams = [(x @ x.mT).double() for x in rows]
        if rows[0].is_cuda:
            roots = _roots([gram / x.shape[-1] for x, gram in zip(rows, grams, strict=True)])
            return [root.float() @ (x * x.shape[-1] ** -0.5) for x, root in zip(rows, roots, strict=True)]
        whitened = []
        for x, gram in zip(rows, grams, strict=True):
            factor: Tensor = torch.linalg.cholesky(gram)
            inverse: Tensor = torch.linalg.solve_triangular(factor, _eye(factor).expand_as(factor), upper=False)
            whitened.append(inverse @ x.double())
        return whitened


def _roots(grams: Sequence[Tensor]) -> list[Tensor]:
    """The inverse roots of matrices, those of one size together.

    >>> [x.flatten().tolist() for x in _roots([torch.ones(2, 1, 1).double(), torch.eye(2).double()[None]])]
    [[1.0, 1.0], [1.0, 0.0, 0.0, 1.0]]
    """
    roots: dict[int, Tensor] = {}
    for size in {gram.shape[-1]: None for gram in grams}:
        alike = [number for number, gram in enumerate(grams) if gram.shape[-1] == size]
        parts = _inverse_root(torch.cat([grams[number] for number in alike])).split(
            [len(grams[number]) for number in alike]
        )
        roots.update(zip(alike, parts, strict=True))
    return [roots[number] for number in range(len(grams))]


def _inverse_root(y: Tensor, steps: int = 9) -> Tensor:
    """y^(-1/2) by the coupled Newton-Schulz iteration, for matrices within a factor two of the identity.

    With e the largest |1 - eigenvalue|, a step leaves at most 3/4 e^2 + 1/4 e^3: from .8, eight leave 10^-18.

    >>> _inverse_root(torch.tensor([[[1.44]]], dtype=torch.float64)).item()
    0.8333333333333334
    """
    eye = _eye(y)
    z = eye.expand_as(y)
    for _ in range(steps):
        half = 1.5 * eye - 0.5 * (z @ y)
        y, z = y @ half, half @ z
    return z


def _householder(columns: Tensor) -> Tensor:
    q, r = torch.linalg.qr(columns)
    signs = torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(q)
    basis: Tensor = (q * signs[..., None, :]).contiguous()
    return basis


def _whitening(gram: Tensor) -> tuple[Tensor, float]:
    """R^-1 for the Cholesky factor gram = R'R, and the smallest pivot as a share of the largest diagonal entry."""
    factor, failed = torch.linalg.cholesky_ex(gram)
    smallest = torch.where(failed == 0, factor.diagonal().square().min() / gram.diagonal().max(), 0.0)
    return torch.linalg.solve_triangular(factor.T, _eye(gram), upper=True), float(smallest.nan_to_num(0.0))


def _eye(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=torch.float64, device=like.device)
