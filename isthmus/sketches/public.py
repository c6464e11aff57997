"""Subspaces learned from public gradients: one for the whole vector, or one for each side of every layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isthmus import _validate, randomness
from isthmus.matrix import Matrix, dtype_of, is_sparse, matmul
from isthmus.sketches import base
from isthmus.sketches.base import Context, Encoder, Sketch, check_block, check_vector, round_up
from isthmus.sketches.identity import IdentityMap
from isthmus.sketches.kronecker import KroneckerMap, Ranks, check_ranks, leaf_ranks, matrix_shape
from isthmus.sketches.principal import NEGLIGIBLE as NEGLIGIBLE
from isthmus.sketches.principal import completed, leaf_pieces, side_directions, top_directions
from isthmus.space import Leaf, Space


@dataclass(frozen=True, eq=False)
class PublicSubspace(Encoder):
    """Phi = V_k': the top-k eigenvectors of the second moment sum_i g_i g_i' of per-example public gradients.

    V_k comes from the n x n Gram matrix of the public gradients at the current point, anew every `refresh` rounds;
    before `start_epoch` the map is the identity.  Tight with norm 1 and coverage 1.  If fewer than k directions
    carry energy, k shrinks to their number.  `data` (and `loss`) go to the context, which turns public data into
    rows; without `data` it uses the public data it was given itself.  `clip` says whether private gradients are
    clipped after the projection or before it.

    >>> from types import SimpleNamespace
    >>> from isthmus.gradients import Dense
    >>> public = Dense(torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
    >>> context = SimpleNamespace(space=Space.flat(3), t=0, epoch=0, seed=0, w=torch.zeros(3), rows=lambda data: data)
    >>> sketch, state = PublicSubspace(1, data=public).bind(context, None)
    >>> sketch.dense().abs().round().tolist()
    [[1.0, 0.0, 0.0]]
    """

    k: int
    data: Any = None
    loss: Any = None
    refresh: int = 10
    start_epoch: int = 0
    clip: str = "after"

    def __post_init__(self) -> None:
        _validate.positive_int(k=self.k, refresh=self.refresh)
        _validate.non_negative_int(start_epoch=self.start_epoch)
        _validate.one_of(("after", "before"), clip=self.clip)

    def bind(self, context: Context, state: Any) -> tuple[Sketch, Any]:
        """The map of the round and its basis, kept until the next refresh."""
        _validate.at_most(context.space.d, "the dimension d", k=self.k)
        if context.epoch < self.start_epoch:
            return IdentityMap(context.space), None
        if state is None or context.t - state["t"] >= self.refresh:
            rows = _public_rows(context, self.data, self.loss)
            state = {"basis": top_directions(rows, self.k, context.w.dtype).to(context.w), "t": context.t}
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
        return self._basis(v.device, v.dtype).T @ v

    def adjoint(self, y: Tensor) -> Tensor:
        """V y."""
        check_vector(self, y, "y", self.m)
        return self._basis(y.device, y.dtype) @ y

    def adjoint_leaf(self, name: str, y: Tensor) -> Tensor:
        """The rows of V of one leaf, times y."""
        check_vector(self, y, "y", self.m)
        return self._basis(y.device, y.dtype)[self.space.slice(name)] @ y

    def rows(self, x: Matrix, lo: int = 0) -> Tensor:
        """X V[lo:hi]."""
        hi = check_block(self, x, lo)
        device = x.device if isinstance(x, Tensor) else torch.device("cpu")
        return matmul(x, self._basis(device, dtype_of(x))[lo:hi])

    def outer(self, a: Matrix, b: Tensor, lo: int = 0) -> Tensor:
        """sum_{ij} b_i a_j V_ij, without a copy of V: the shorter side stays to the end, in chunks of rows.

        With T > 1 positions the q x p products come first: 2 n q p (T + k) operations, against 2 n q p T k.
        """
        if a.ndim == 3 and a.shape[1] == 1:
            a, b = a[:, 0], b[:, 0]
        if a.ndim == 3 or is_sparse(a):
            return super().outer(a, b, lo)
        (n, p), q, k = a.shape, b.shape[1], self.m
        flat = self._basis(b.device, b.dtype)[lo : lo + q * p]
        step = max(1, base.CHUNK_BYTES // (8 * min(p, q) * k))
        codes = [b.new_zeros(0, k)]
        for start in range(0, n, step):
            left, right = b[start : start + step], a[start : start + step].to(b.dtype)
            if p <= q:
                half = (left @ flat.view(q, p * k)).view(-1, p, k)
                codes.append((right.unsqueeze(1) @ half).squeeze(1))
            else:
                half = right @ flat.view(q, p, k)
                codes.append((left.T.unsqueeze(2) * half).sum(0))
        return torch.cat(codes)

    def _basis(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        return self.once("basis", lambda: self.basis.contiguous(), device, dtype)

    def describe(self) -> str:
        """One sentence for reports."""
        return f"the top {self.m} directions of public gradients, of {self.d} parameters"

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
    learned anew every `refresh` rounds.  Without `data` the context uses the public data it was given itself.

    >>> from types import SimpleNamespace
    >>> from isthmus.gradients import Dense
    >>> public, space = Dense(torch.tensor([[0.0, 3.0, 0.0, 0.0]])), Space.of({"w": (2, 2)})
    >>> context = SimpleNamespace(space=space, t=0, epoch=0, seed=0, w=torch.zeros(4), rows=lambda data: data)
    >>> KroneckerSubspace(1, 1, data=public).bind(context, None)[0].dense().abs().round().tolist()
    [[0.0, 1.0, 0.0, 0.0]]
    """

    rank_in: int
    rank_out: int
    data: Any = None
    loss: Any = None
    refresh: int = 20
    ranks: Ranks | None = None

    def __post_init__(self) -> None:
        check_ranks(self.rank_in, self.rank_out, self.ranks)
        _validate.positive_int(refresh=self.refresh)

    def bind(self, context: Context, state: Any) -> tuple[Sketch, Any]:
        """The map of the round and its factors, kept until the next refresh."""
        if state is None or context.t - state["t"] >= self.refresh:
            rows = _public_rows(context, self.data, self.loss)
            pieces = leaf_pieces(context.space, rows)
            factors = {leaf.name: self._factors(context, leaf, pieces[leaf.name]) for leaf in context.space.leaves}
            state = {"factors": factors, "t": context.t}
        return KroneckerMap(context.space, state["factors"]), state

    def _factors(self, context: Context, leaf: Leaf, rows: Any) -> tuple[Tensor, Tensor]:
        ranks = leaf_ranks(leaf, self.rank_in, self.rank_out, self.ranks)
        key = randomness.key(context.seed, context.t, type(self).__name__, leaf.name)
        found = side_directions(rows, matrix_shape(leaf), ranks)
        left, right = (
            completed(top, rank, randomness.key(key, i)).T.contiguous().to(context.w)
            for i, (top, rank) in enumerate(zip(found, ranks, strict=True))
        )
        return left, right


def _public_rows(context: Context, data: Any, loss: Any) -> Any:
    rows = context.rows(data if loss is None else (data, loss))
    _validate.check(rows.n > 0, "data", rows.n, "give at least one public example")
    return rows
