"""DP-FW: Frank-Wolfe whose vertex is chosen by the exponential mechanism; only the choice is released."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isthmus.algorithms.budget import Budget, rounds_of
from isthmus.algorithms.private import Relation
from isthmus.base import validate
from isthmus.base.matrix import matmul
from isthmus.geometry.lifts import Lifted
from isthmus.geometry.sets import ConvexHull, L1Ball, Simplex
from isthmus.geometry.sketches import Context, Encoder, Identity, Sketch
from isthmus.geometry.sketches.identity import IdentityMap
from isthmus.papers import Rule
from isthmus.privacy import Charge, Clip, NoisyMax
from isthmus.round.minimize import Binding, Recipe
from isthmus.round.parts import FrankWolfe
from isthmus.round.pipeline import Pipeline, Release, Stage


def dp_fw(
    *,
    epsilon: float,
    delta: float | None = None,
    clip: float,
    step: Callable[[int], float] | None = None,
    n: int | str | None = None,
    adjacency: Relation = "add-remove",
) -> Recipe:
    """DP-FW over a polytope (l1 ball, simplex, convex hull): w+ = w + gamma (s - w), s a privately chosen vertex.

    clip  a bound of a record's score at every vertex: of every entry of its gradient (l1 ball and simplex, at
          radius 1), of <vertex, gradient> (hull)
    step  gamma_t; by default 2/(t+2)

    The cost does not depend on d, and hardly on the number of vertices.  All records every round.

    >>> dp_fw(epsilon=1.0, clip=1.0, n="exact").name
    'dp_fw'
    """
    budget, bound = Budget(epsilon, delta, adjacency, n), Clip(clip, ord=float("inf"))
    rule = step or Rule(2.0, power=1.0, offset=2)

    def build(binding: Binding) -> Pipeline:
        sampler = budget.sampler(binding, None)
        rounds = rounds_of(binding, sampler, budget.records(binding))
        plan = budget.plan(binding, [Charge("vertex", "noisy-max", rounds)])
        encode, lift, signed = _polytope(binding.constraint)
        mechanism = NoisyMax(plan.multiplier("vertex"), signed=signed)
        return Pipeline(
            [Stage(sampler, [Release("vertex", encode, bound, mechanism=mechanism, lift=lift)])],
            rule,
            FrankWolfe(binding.constraint),
            rounds=rounds,
            promise=budget.promise(plan, binding),
        )

    return Recipe("dp_fw", build, {"epsilon": epsilon, "delta": delta, "clip": clip})


def _polytope(constraint: Any) -> tuple[Encoder, Any, bool]:
    """Scores of the vertices, the vertex of a choice, and whether both signs are candidates."""
    if isinstance(constraint, L1Ball):
        return Identity(), _Vertex(constraint.radius, -1.0), True
    if isinstance(constraint, Simplex):
        return Negated(), _Vertex(constraint.radius, 1.0), False
    if isinstance(constraint, ConvexHull):
        return VertexScores(constraint), _HullVertex(constraint), False
    validate.refuse("constraint", constraint, "private Frank-Wolfe needs a polytope: L1Ball, Simplex or ConvexHull")


@dataclass(frozen=True)
class _Vertex:
    """A signed coordinate as the vertex `sign radius e_j`."""

    radius: float
    sign: float

    def __call__(self, sketch: Sketch, y: Tensor, w: Tensor, eta: Any) -> Lifted:
        """The vertex itself; a choice has no length, so the divisor does not matter."""
        return Lifted(-self.sign * y.sign(), self.sign * self.radius * y.sign())


@dataclass(frozen=True)
class _HullVertex:
    """A chosen row of the vertices."""

    hull: ConvexHull

    def __call__(self, sketch: Sketch, y: Tensor, w: Tensor, eta: Any) -> Lifted:
        """The vertex itself."""
        vertex = self.hull.vertices[int(y.argmax())].to(w)
        return Lifted(w - vertex, vertex)


class _NegatedMap(IdentityMap):
    """v -> -v: the largest score is the smallest product with the gradient."""

    def forward(self, v: Tensor) -> Tensor:
        """-v."""
        return -v

    def adjoint(self, y: Tensor) -> Tensor:
        """-y."""
        return -y

    def encode(self, rows: Any) -> Any:
        """Minus the rows."""
        return rows.scaled(-1.0)


@dataclass(frozen=True)
class Negated(Encoder):
    """v -> -v."""

    def bind(self, context: Context, state: Any) -> tuple[Sketch, Any]:
        """The map, the same every round."""
        return _NegatedMap(context.space), None


class _ScoresMap(Sketch):
    """g -> -V g for the rows V of a hull: the score of each vertex."""

    def __init__(self, space: Any, vertices: Tensor) -> None:
        self.space, self.d, self.m, self.vertices = space, space.d, len(vertices), vertices

    @property
    def norm(self) -> float:
        """||V||_2, rounded up."""
        return float(torch.linalg.matrix_norm(self.vertices.double(), 2)) * (1 + 1e-12)

    def rows(self, x: Any, lo: int = 0) -> Tensor:
        """Scores of rows, dense or CSR."""
        part = self.vertices[:, lo : lo + x.shape[1]].T
        return -matmul(x, part.contiguous())

    def adjoint(self, y: Tensor) -> Tensor:
        """-V' y."""
        return -(self.vertices.to(y).T @ y)


@dataclass(frozen=True, eq=False)
class VertexScores(Encoder):
    """The scores of a hull's vertices."""

    hull: ConvexHull

    def bind(self, context: Context, state: Any) -> tuple[Sketch, Any]:
        """The map, the same every round."""
        return _ScoresMap(context.space, self.hull.vertices), None
