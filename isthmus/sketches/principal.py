"""The top directions of public gradients, from their Gram matrices: float64, on the device of the rows.

Rows held as outer products are read in blocks of columns, so that no n x d matrix is ever built.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from isthmus import _validate, randomness
from isthmus.matrix import Matrix, is_sparse, rmatmul, to_dense
from isthmus.sketches import base
from isthmus.sketches.kronecker import is_outer
from isthmus.sketches.orthonormal import orthonormal
from isthmus.space import Space

NEGLIGIBLE = 1e-12
"""Directions with less than this share of the largest eigenvalue carry no energy."""


def top_directions(rows: Any, k: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """d x min(k, rank) orthonormal: the top eigenvectors of sum_i g_i g_i', through the n x n Gram matrix.

    With G = (g_1, ..., g_n)' and GG' u = lambda u, the direction is G'u / sqrt(lambda); all k of them come from one
    pass over the columns of G.  The Gram matrices are float64; `dtype` is that of the result.

    >>> from isthmus.gradients import Dense
    >>> top_directions(Dense(torch.tensor([[0.0, 2.0], [0.0, 1.0]])), 2).abs()
    tensor([[0.],
            [1.]], dtype=torch.float64)
    """
    leaves = [piece for _, piece in rows.leaves()]
    gram = sum((_gram(piece) for piece in leaves), torch.zeros(()))
    values, vectors = torch.linalg.eigh(gram)
    keep = _energetic(values)[-k:].flip(0)
    weights = (vectors[:, keep] / values[keep].sqrt()).to(torch.promote_types(dtype, rows.dtype))
    basis, start = torch.empty(rows.d, len(keep), dtype=dtype, device=weights.device), 0
    for piece in leaves:
        for part in _combined(piece, weights):
            basis[start : start + len(part)] = part
            start += len(part)
    return orthonormal(basis)


def side_directions(rows: Any, shape: tuple[int, int], ranks: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The top eigenvectors (as columns) of sum_i G_i G_i' and of sum_i G_i' G_i, for gradients G_i of a shape."""
    if _is_single(rows):
        a, b = _factors(rows)
        squares = a.multiply(a).sum(1) if is_sparse(a) else a.square().sum(1)
        a_norm, b_norm = torch.as_tensor(squares).view(-1, 1).sqrt(), b.norm(dim=1, keepdim=True)
        right = a.multiply(b_norm.numpy()).tocsr() if is_sparse(a) else a * b_norm
        return top_right(b * a_norm, ranks[0]), top_right(right, ranks[1])
    return _side_top(rows, shape, 0, ranks[0]), _side_top(rows, shape, 1, ranks[1])


def completed(columns: Tensor, rank: int, key: int) -> Tensor:
    """`rank` orthonormal columns that start with the given ones; keyed random directions fill up."""
    missing = rank - columns.shape[1]
    if missing <= 0:
        return columns
    extra = torch.from_numpy(randomness.generator(key).standard_normal((len(columns), missing))).to(columns)
    for _ in range(2):
        extra = orthonormal(extra - columns @ (columns.T @ extra))
    return torch.cat([columns, extra], 1)


def leaf_pieces(space: Space, rows: Any) -> dict[str, Any]:
    """The rows of each leaf; rows without leaves are cut (they are public, so their matrix may be built)."""
    found = rows.leaves()
    if len(found) > 1 or rows.d != space.d:
        return dict(found)
    if len(space.leaves) == 1:
        return {space.leaves[0].name: rows}
    whole = rows.dense()
    return {leaf.name: whole[:, space.slice(leaf.name)] for leaf in space.leaves}


def top_right(x: Matrix, rank: int) -> Tensor:
    """The top right singular vectors of x as columns (at most `rank`), from its smaller Gram matrix."""
    if x.shape[0] >= x.shape[1]:
        return _top(to_dense(x.T @ x), rank)[1]
    values, top = _top(to_dense(x @ x.T), rank)
    lifted = torch.from_numpy(x.T @ top.numpy()) if is_sparse(x) else x.T @ top
    return orthonormal(lifted / values.sqrt())


def _top(moment: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The largest eigenvalues that carry energy, descending, and their eigenvectors."""
    values, vectors = torch.linalg.eigh(moment)
    keep = _energetic(values)[-rank:].flip(0)
    return values[keep], vectors[:, keep]


def _side_top(rows: Any, shape: tuple[int, int], side: int, rank: int) -> Tensor:
    """The top directions of one side of dense gradients, read a chunk of rows at a time.

    The unfolding has n q (or n p) rows of the side's length: its second moment is summed up when that is the smaller
    matrix, else the unfolding itself is kept.
    """
    n = len(rows) if isinstance(rows, Tensor) else rows.n
    step = max(1, base.CHUNK_BYTES // (8 * math.prod(shape)))
    spans = [(lo, min(lo + step, n)) for lo in range(0, n, step)]
    chunks = (rows[lo:hi] if isinstance(rows, Tensor) else rows.part(lo, hi).dense() for lo, hi in spans)
    parts = (_unfold(chunk.double().reshape(-1, *shape), side) for chunk in chunks)
    if n * shape[1 - side] < shape[side]:
        return top_right(torch.cat(list(parts)), rank)
    return _top(sum((part.T @ part for part in parts), torch.zeros(())), rank)[1]


def _unfold(cube: Tensor, side: int) -> Tensor:
    """n x q x p as rows of length q (side 0) or p (side 1)."""
    return (cube.transpose(1, 2) if side == 0 else cube).reshape(-1, cube.shape[1 + side])


def _gram(rows: Any) -> Tensor:
    """<g_i, g_j> in float64; an outer product with one term needs its factors only."""
    if _is_single(rows):
        a, b = _factors(rows)
        return to_dense(a @ a.T) * (b @ b.T)
    return sum((part @ part.T for part in _blocks(rows)), torch.zeros(()))


def _combined(rows: Any, weights: Tensor) -> Iterator[Tensor]:
    """G' weights (d x k), some rows of it at a time."""
    if is_outer(rows) and is_sparse(rows.a):
        a, b = _factors(rows, weights.dtype)
        yield from (rmatmul(a, b[:, j : j + 1] * weights) for j in range(b.shape[1]))
    else:
        yield from (part.T @ weights for part in _blocks(rows, weights.dtype))


def _blocks(rows: Any, dtype: torch.dtype = torch.float64) -> Iterator[Tensor]:
    """The n x d matrix of dense rows, some columns at a time; outer products build those columns only."""
    if not is_outer(rows):
        whole = rows.dense()
        step = max(1, base.CHUNK_BYTES // (8 * max(1, rows.n)))
        yield from (whole[:, lo : lo + step].to(dtype) for lo in range(0, rows.d, step))
        return
    a, b = _factors(rows, dtype)
    step = max(1, base.CHUNK_BYTES // (8 * max(1, rows.n) * a.shape[-1]))
    equation = "nq,np->nqp" if a.ndim == 2 else "ntq,ntp->nqp"
    for lo in range(0, b.shape[-1], step):
        yield torch.einsum(equation, b[..., lo : lo + step], a).reshape(rows.n, -1)


def _is_single(rows: Any) -> bool:
    """Whether rows are outer products b a' with one term."""
    return is_outer(rows) and (rows.b.ndim == 2 or rows.b.shape[1] == 1)


def _factors(rows: Any, dtype: torch.dtype = torch.float64) -> tuple[Any, Tensor]:
    """The factors of outer products in a dtype, a column of ones shown; those of a single term as n x p and n x q."""
    b, a = rows.b.to(dtype), rows.a
    if is_sparse(a):
        return a.astype(str(dtype).removeprefix("torch.")), b.reshape(rows.n, -1)
    a = a.to(dtype)
    if getattr(rows, "ones", False):
        a = torch.cat([a, a.new_ones(*a.shape[:-1], 1)], -1)
    return (a.reshape(rows.n, -1), b.reshape(rows.n, -1)) if _is_single(rows) else (a, b)


def _energetic(values: Tensor) -> Tensor:
    """Indices (ascending) of the eigenvalues that are not rounding noise; at least one."""
    largest = float(values[-1])
    _validate.check(
        math.isfinite(largest) and largest > 0, "largest eigenvalue", largest, "public gradients are all zero"
    )
    return (values > NEGLIGIBLE * largest).nonzero().squeeze(1)
