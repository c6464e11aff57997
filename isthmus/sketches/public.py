"""Subspaces learned from public gradients: one for the whole vector, or one for each side of every layer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isthmus import _validate, randomness
from isthmus.matrix import Matrix, is_sparse, matmul, to_dense
from isthmus.sketches import base
from isthmus.sketches.base import Context, Encoder, Sketch, check_block, check_vector, round_up
from isthmus.sketches.identity import IdentityMap
from isthmus.sketches.kronecker import KroneckerMap, Ranks, check_ranks, is_outer, leaf_ranks, matrix_shape, orthonormal
from isthmus.space import Leaf, Space

NEGLIGIBLE = 1e-12
"""Directions with less than this share of the largest eigenvalue carry no energy."""


@dataclass(frozen=True, eq=False)
class PublicSubspace(Encoder):
    """Phi = V_k': the top-k eigenvectors of the second moment sum_i g_i g_i' of per-example public gradients.

    V_k comes from the n x n Gram matrix of the public gradients at the current point, anew every `refresh` rounds;
    before `start_epoch` the map is the identity.  Tight with norm 1 and coverage 1.  If fewer than k directions
    carry energy, k shrinks to their number.  `data` (and `loss`) go to the context, which turns public data into
    rows; `clip` says whether private gradients are clipped after the projection or before it.

    >>> from types import SimpleNamespace
    >>> from isthmus.gradients import Dense
    >>> public = Dense(torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
    >>> context = SimpleNamespace(space=Space.flat(3), t=0, epoch=0, seed=0, w=torch.zeros(3), rows=lambda data: data)
    >>> sketch, state = PublicSubspace(1, data=public).bind(context, None)
    >>> sketch.dense().abs().round().tolist()
    [[1.0, 0.0, 0.0]]
    """

    k: int
    data: Any
    loss: Any = None
    refresh: int = 10
    start_epoch: int = 0
    clip: str = "after"

    def __post_init__(self) -> None:
        _validate.positive_int(k=self.k, refresh=self.refresh)
        _validate.non_negative_int(start_epoch=self.start_epoch)
        _validate.one_of(("after", "before"), clip=self.clip)
        _check_data(self.data)

    def bind(self, context: Context, state: Any) -> tuple[Sketch, Any]:
        """The map of the round and its basis, kept until the next refresh."""
        _validate.at_most(context.space.d, "the dimension d", k=self.k)
        if context.epoch < self.start_epoch:
            return IdentityMap(context.space), None
        if state is None or context.t - state["t"] >= self.refresh:
            rows = _public_rows(context, self.data, self.loss)
            state = {"basis": top_directions(rows, self.k).to(context.w), "t": context.t}
        return SubspaceMap(context.space, state["basis"]), state


class SubspaceMap(Sketch):
    """Phi = V' for a basis V (d x k) with orthonormal columns."""

    tight = True

    def __init__(self, space: Space, basis: Tensor):
        self.space, self.d, self.m, self.basis = space, space.d, basis.shape[1], basis
        self.norm = round_up(1.0) * (1 + 64 * torch.finfo(basis.dtype).eps)

    def forward(self, v: Tensor) -> Tensor:
        """V' v."""
        check_vector(self, v, "v", self.d)
        return self.basis.to(v).T @ v

    def adjoint(self, y: Tensor) -> Tensor:
        """V y."""
        check_vector(self, y, "y", self.m)
        return self.basis.to(y) @ y

    def rows(self, x: Matrix, lo: int = 0) -> Tensor:
        """X V[lo:hi]."""
        part = self.basis[lo : check_block(self, x, lo)]
        return matmul(x, part.to(x) if isinstance(x, Tensor) else part.to(getattr(torch, x.dtype.name)))

    def outer(self, a: Matrix, b: Tensor, lo: int = 0) -> Tensor:
        """sum_{ij} b_i a_j V_ij, the longer side first, in chunks of rows; T > 1 goes through the products."""
        if a.ndim == 3 and a.shape[1] == 1:
            a, b = a[:, 0], b[:, 0]
        if a.ndim == 3:
            return super().outer(a, b, lo)
        p, q = a.shape[1], b.shape[1]
        cube = self.basis[lo : lo + q * p].to(b).view(q, p, self.m)
        first, second = a, b
        if p < q and not is_sparse(a):
            first, second, cube = b, a.to(b.dtype), cube.transpose(0, 1)
        table = cube.transpose(0, 1).reshape(first.shape[1], -1)
        step = max(1, base.CHUNK_BYTES // (8 * table.shape[1]))
        codes = [b.new_zeros(0, self.m)]
        for start in range(0, b.shape[0], step):
            half = matmul(first[start : start + step], table).view(-1, second.shape[1], self.m)
            codes.append((second[start : start + step, None, :] @ half).squeeze(1))
        return torch.cat(codes)

    def captured(self, rows: Any) -> float:
        """The share sum ||V' g_i||^2 / sum ||g_i||^2 of energy in the subspace (public rows: it is not noised)."""
        inside, whole = (float(r.norms(2).double().square().sum()) for r in (self.encode(rows), rows))
        return inside / whole if whole else 1.0

    def _matrix_gain(self, ord: float) -> float:
        return float(self.basis.double().abs().sum(1 if ord == 1 else 0).max())


@dataclass(frozen=True, eq=False)
class KroneckerSubspace(Encoder):
    """Phi = blockdiag(P_out (x) P_in) with the top public eigenvectors on each side of every layer.

    For the public gradients G_i of a leaf, the rows of P_in are the top eigenvectors of sum_i G_i' G_i and those of
    P_out the top ones of sum_i G_i G_i'.  When fewer directions than the rank carry energy, seeded random ones
    complete them, so that full ranks are always a rotation of the whole space.  Tight, norm 1, coverage 1;
    learned anew every `refresh` rounds.

    >>> from types import SimpleNamespace
    >>> from isthmus.gradients import Dense
    >>> public, space = Dense(torch.tensor([[0.0, 3.0, 0.0, 0.0]])), Space.of({"w": (2, 2)})
    >>> context = SimpleNamespace(space=space, t=0, epoch=0, seed=0, w=torch.zeros(4), rows=lambda data: data)
    >>> KroneckerSubspace(1, 1, data=public).bind(context, None)[0].dense().abs().round().tolist()
    [[0.0, 1.0, 0.0, 0.0]]
    """

    rank_in: int
    rank_out: int
    data: Any
    loss: Any = None
    refresh: int = 20
    ranks: Ranks | None = None

    def __post_init__(self) -> None:
        check_ranks(self.rank_in, self.rank_out, self.ranks)
        _validate.positive_int(refresh=self.refresh)
        _check_data(self.data)

    def bind(self, context: Context, state: Any) -> tuple[Sketch, Any]:
        """The map of the round and its factors, kept until the next refresh."""
        if state is None or context.t - state["t"] >= self.refresh:
            rows = _public_rows(context, self.data, self.loss)
            pieces = _pieces(context.space, rows)
            factors = {leaf.name: self._factors(context, leaf, pieces[leaf.name]) for leaf in context.space.leaves}
            state = {"factors": factors, "t": context.t}
        return KroneckerMap(context.space, state["factors"]), state

    def _factors(self, context: Context, leaf: Leaf, rows: Any) -> tuple[Tensor, Tensor]:
        ranks = leaf_ranks(leaf, self.rank_in, self.rank_out, self.ranks)
        key = randomness.key(context.seed, context.t, type(self).__name__, leaf.name)
        left, right = (
            _completed(top_right(side, rank), rank, randomness.key(key, i)).T.to(context.w)
            for i, (side, rank) in enumerate(zip(_sides(rows, *matrix_shape(leaf)), ranks, strict=True))
        )
        return left, right


def top_directions(rows: Any, k: int) -> Tensor:
    """d x min(k, rank) orthonormal float64: the top eigenvectors of sum_i g_i g_i', through the Gram matrix."""
    gram = sum((_gram(piece) for _, piece in rows.leaves()), torch.zeros(()))
    values, vectors = torch.linalg.eigh(gram)
    keep = _energetic(values)[-k:].flip(0)
    weights = (vectors[:, keep] / values[keep].sqrt()).T
    first = [rows.sum(weight) for weight in weights]
    return orthonormal(torch.stack(first, 1).double())


def top_right(x: Matrix, rank: int) -> Tensor:
    """The top right singular vectors of x as columns (at most `rank`), from its smaller Gram matrix."""
    wide = x.shape[0] < x.shape[1]
    values, vectors = torch.linalg.eigh(to_dense(x @ x.T if wide else x.T @ x))
    keep = _energetic(values)[-rank:].flip(0)
    top = vectors[:, keep]
    if not wide:
        return top
    lifted = torch.from_numpy(x.T @ top.numpy()) if is_sparse(x) else x.T @ top
    return orthonormal(lifted / values[keep].sqrt())


def _gram(rows: Any) -> Tensor:
    """<g_i, g_j> in float64; an outer product with one term needs its factors only."""
    if _is_single(rows):
        a, b = _flat_factors(rows)
        return to_dense(a @ a.T) * (b @ b.T)
    whole = rows.dense().double()
    return whole @ whole.T


def _sides(rows: Any, q: int, p: int) -> tuple[Matrix, Matrix]:
    """Matrices whose second moments are those of the two sides: sum G G' (q x q) and sum G' G (p x p)."""
    if _is_single(rows):
        a, b = _flat_factors(rows)
        squares = a.multiply(a).sum(1) if is_sparse(a) else a.square().sum(1)
        a_norm, b_norm = torch.as_tensor(squares).view(-1, 1).sqrt(), b.norm(dim=1, keepdim=True)
        return b * a_norm, a.multiply(b_norm.numpy()).tocsr() if is_sparse(a) else a * b_norm
    whole = (rows if isinstance(rows, Tensor) else rows.dense()).double().reshape(-1, q, p)
    return whole.transpose(1, 2).reshape(-1, q), whole.reshape(-1, p)


def _pieces(space: Space, rows: Any) -> dict[str, Any]:
    """The rows of each leaf; rows without leaves are cut (they are public, so their matrix may be built)."""
    found = rows.leaves()
    if len(found) > 1 or rows.d != space.d:
        return dict(found)
    if len(space.leaves) == 1:
        return {space.leaves[0].name: rows}
    whole = rows.dense()
    return {leaf.name: whole[:, space.slice(leaf.name)] for leaf in space.leaves}


def _is_single(rows: Any) -> bool:
    """Whether rows are outer products b a' with one term."""
    return is_outer(rows) and (rows.b.ndim == 2 or rows.b.shape[1] == 1)


def _flat_factors(rows: Any) -> tuple[Any, Tensor]:
    """The factors of rows b a' as n x p and n x q, float64."""
    b = rows.b.double().reshape(rows.n, -1)
    return rows.a.astype("float64") if is_sparse(rows.a) else rows.a.double().reshape(rows.n, -1), b


def _energetic(values: Tensor) -> Tensor:
    """Indices (ascending) of the eigenvalues that are not rounding noise; at least one."""
    largest = float(values[-1])
    _validate.check(
        math.isfinite(largest) and largest > 0, "largest eigenvalue", largest, "public gradients are all zero"
    )
    return (values > NEGLIGIBLE * largest).nonzero().squeeze(1)


def _completed(columns: Tensor, rank: int, key: int) -> Tensor:
    """`rank` orthonormal columns that start with the given ones."""
    missing = rank - columns.shape[1]
    if missing <= 0:
        return columns
    extra = torch.from_numpy(randomness.generator(key).standard_normal((len(columns), missing)))
    for _ in range(2):
        extra = orthonormal(extra - columns @ (columns.T @ extra))
    return torch.cat([columns, extra], 1)


def _check_data(data: Any) -> None:
    _validate.check(data is not None, "data", data, "give public data, such as (X, y)")


def _public_rows(context: Context, data: Any, loss: Any) -> Any:
    rows = context.rows(data if loss is None else (data, loss))
    _validate.check(rows.n > 0, "data", rows.n, "give at least one public example")
    return rows
