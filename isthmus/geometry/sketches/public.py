"""Subspaces learned from public gradients: one for the whole vector, or one for each side of every layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from isthmus.base import randomness, validate
from isthmus.base.space import Leaf
from isthmus.geometry.sketches.base import CodeRows, Context, Encoder, Sketch, State, read
from isthmus.geometry.sketches.identity import IdentityMap
from isthmus.geometry.sketches.kronecker import KroneckerMap, Ranks, check_ranks, leaf_ranks, matrix_shape
from isthmus.geometry.sketches.principal import METHODS, completed, leaf_pieces, learned, side_directions
from isthmus.geometry.sketches.principal import NEGLIGIBLE as NEGLIGIBLE
from isthmus.geometry.sketches.principal import top_directions as top_directions
from isthmus.geometry.sketches.subspace import SubspaceMap as SubspaceMap
from isthmus.geometry.sketches.subspace import map_of


@dataclass(frozen=True, eq=False)
class PublicSubspace(Encoder):
    """Phi = V_k': the top-k eigenvectors of the second moment sum_i g_i g_i' of per-example public gradients.

    V_k comes from the n x n Gram matrix of the public gradients at the current point, anew every `refresh` rounds;
    `method="lanczos"` finds its top k eigenvectors only, which pays from some hundred public examples on.  Before
    `start_epoch` the map is the identity.  Tight with norm 1 and coverage 1.  If fewer than k directions
    carry energy, k shrinks to their number (see `learned`).  Large linear layers and embeddings keep the factors of
    the public rows in place of their part of V_k: memory about that of the public activations.

    `data` (and `loss`) go to the context, which turns public data into rows; without `data` it uses the public data it
    was given itself.  `clip` says whether private gradients are clipped after the projection or before it.

    >>> import torch
    >>> from types import SimpleNamespace
    >>> from isthmus.base.space import Space
    >>> from isthmus.gradients import Dense
    >>> public = Dense(torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
    >>> context = SimpleNamespace(space=Space.flat(3), t=0, epoch=0, seed=0, w=torch.zeros(3), rows=lambda data: data)
    >>> sketch, state = PublicSubspace(1, data=public).bind(context, None)
    >>> sketch.dense().abs().round().tolist()
    [[1.0, 0.0, 0.0]]
    """

    k: int
    data: object = None
    loss: object = None
    refresh: int = 10
    start_epoch: int = 0
    clip: str = "after"
    method: str = "gram"

    public = True

    @property
    def clips_before(self) -> bool:
        """As `clip` says."""
        return self.clip == "before"

    def __post_init__(self) -> None:
        validate.positive_int(k=self.k, refresh=self.refresh)
        validate.non_negative_int(start_epoch=self.start_epoch)
        validate.one_of(("after", "before"), clip=self.clip)
        validate.one_of(METHODS, method=self.method)

    def bind(self, context: Context, state: State) -> tuple[Sketch, State]:
        """The map of the round and its basis, kept until the next refresh."""
        validate.at_most(context.space.d, "the dimension d", k=self.k)
        if context.epoch < self.start_epoch:
            return IdentityMap(context.space), None
        if state is None or context.t - read(state, "t", int) >= self.refresh:
            rows = _public_rows(context, self.data, self.loss)
            state = {**learned(context.space, rows, self.k, context.w.dtype, self.method), "t": context.t}
        return map_of(context.space, state), state


@dataclass(frozen=True, eq=False)
class KroneckerSubspace(Encoder):
    """Phi = blockdiag(P_out (x) P_in) with the top public eigenvectors on each side of every layer.

    For the public gradients G_i of a leaf, the rows of P_in are the top eigenvectors of sum_i G_i' G_i and those of
    P_out the top ones of sum_i G_i G_i'.  When fewer directions than the rank carry energy, seeded random ones
    complete them, so that full ranks are always a rotation of the whole space.  Tight, norm 1, coverage 1;
    learned anew every `refresh` rounds.  Without `data` the context uses the public data it was given itself.

    >>> import torch
    >>> from types import SimpleNamespace
    >>> from isthmus.base.space import Space
    >>> from isthmus.gradients import Dense
    >>> public, space = Dense(torch.tensor([[0.0, 3.0, 0.0, 0.0]])), Space.of({"w": (2, 2)})
    >>> context = SimpleNamespace(space=space, t=0, epoch=0, seed=0, w=torch.zeros(4), rows=lambda data: data)
    >>> KroneckerSubspace(1, 1, data=public).bind(context, None)[0].dense().abs().round().tolist()
    [[0.0, 1.0, 0.0, 0.0]]
    """

    rank_in: int
    rank_out: int
    data: object = None
    loss: object = None
    refresh: int = 20
    ranks: Ranks | None = None

    keeps_layers = public = True

    def __post_init__(self) -> None:
        check_ranks(self.rank_in, self.rank_out, self.ranks)
        validate.positive_int(refresh=self.refresh)

    def bind(self, context: Context, state: State) -> tuple[Sketch, State]:
        """The map of the round and its factors, kept until the next refresh."""
        if state is None or context.t - read(state, "t", int) >= self.refresh:
            rows = _public_rows(context, self.data, self.loss)
            pieces = leaf_pieces(context.space, rows)
            factors = {leaf.name: self._factors(context, leaf, pieces[leaf.name]) for leaf in context.space.leaves}
            state = {"factors": factors, "t": context.t}
        return KroneckerMap(context.space, read(state, "factors", dict)), state

    def _factors(self, context: Context, leaf: Leaf, rows: CodeRows | Tensor) -> tuple[Tensor, Tensor]:
        ranks = leaf_ranks(leaf, self.rank_in, self.rank_out, self.ranks)
        key = randomness.key(context.seed, context.t, type(self).__name__, leaf.name)
        sides = side_directions(rows, matrix_shape(leaf), ranks)
        left, right = (
            completed(top, rank, randomness.key(key, i)).T.contiguous().to(context.w)
            for i, (top, rank) in enumerate(zip(sides, ranks, strict=True))
        )
        return left, right


def _public_rows(context: Context, data: object, loss: object) -> CodeRows:
    rows = context.rows(data if loss is None else (data, loss))
    validate.check(rows.n > 0, "data", rows.n, "give at least one public example")
    return rows
