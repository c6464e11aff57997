"""DP-FW: Frank-Wolfe whose vertex is chosen by the exponential mechanism; only the choice is released."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from isthmus.algorithms.budget import Budget, rounds_of
from isthmus.algorithms.declare import algorithm
from isthmus.algorithms.filling import CONSTANTS, Choice, Facts, Refusal, Run, costs, full_rounds
from isthmus.algorithms.private import Relation
from isthmus.base import validate
from isthmus.base.matrix import matmul
from isthmus.base.space import Space
from isthmus.core.minimize import Binding, Recipe
from isthmus.core.pipeline import Pipeline, Release, Stage
from isthmus.lifts import Lifted
from isthmus.parts import FrankWolfe
from isthmus.privacy import Charge, Clip, NoisyMax
from isthmus.sets import ConvexSet, VertexForm
from isthmus.sketches import Context, Encoder, Sketch
from isthmus.sketches.compose import IdentityMap
from isthmus.theory import Rule


@algorithm(
    direct=True,
    needs=("lmo",),
    words="each round picks one corner of the allowed set by a noisy choice and moves towards it",
)
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
        form = form_of(binding.constraint)
        remedy = (
            "give a polytope that knows its vertices, such as L1Ball, Simplex or ConvexHull, which private "
            "Frank-Wolfe needs"
        )
        validate.check(form is not None, "constraint", binding.constraint, remedy)
        assert form is not None
        mechanism = NoisyMax(plan.multiplier("vertex"), signed=form.signed)
        encode, lift = VertexScores(form), Vertex(form)
        return Pipeline(
            [Stage(sampler, [Release("vertex", encode, bound, mechanism=mechanism, lift=lift)])],
            rule,
            FrankWolfe(binding.constraint),
            rounds=rounds,
            promise=budget.promise(plan, binding),
        )

    return Recipe("dp_fw", build, {"epsilon": epsilon, "delta": delta, "clip": clip})


def form_of(constraint: ConvexSet | None) -> VertexForm | None:
    """The vertices of a set that brings them; None of others."""
    return constraint.vertex_form() if constraint is not None and constraint.can("vertex_form") else None


@dataclass(frozen=True)
class Vertex:
    """The vertex of a chosen score: where both signs are candidates, the one against the largest product."""

    form: VertexForm
    reads_w: ClassVar[bool] = False

    def __call__(self, sketch: Sketch, y: Tensor, w: Tensor | None, eta: float | Tensor) -> Lifted:
        """The vertex itself; a choice has no length, so the divisor does not matter."""
        vertex = self.form.vertex(-y.sign() if self.form.signed else y.sign())
        return Lifted(-vertex / self.form.radius, vertex)


@dataclass(frozen=True, eq=False)
class VertexScores(Encoder):
    """g -> <v, g> of every vertex at radius 1, with the sign that makes the best one the largest."""

    form: VertexForm

    def bind(self, context: Context, state: object) -> tuple[Sketch, None]:
        """The map, the same every round."""
        sign = 1.0 if self.form.signed else -1.0  # of both signs one is tried anyway
        if self.form.rows is None:
            return _AxisScores(context.space, sign), None
        return _RowScores(context.space, sign * self.form.rows), None


class _AxisScores(IdentityMap):
    """g -> sign g: the coordinate axes."""

    def __init__(self, space: Space, sign: float) -> None:
        super().__init__(space)
        self.sign = sign

    def forward(self, v: Tensor) -> Tensor:
        """sign v."""
        return self.sign * v

    def adjoint(self, y: Tensor) -> Tensor:
        """sign y."""
        return self.sign * y

    def encode(self, rows: Any) -> Any:
        """sign times the rows."""
        return rows if self.sign == 1 else rows.scaled(self.sign)


class _RowScores(Sketch):
    """g -> V g for the rows V, one a vertex."""

    def __init__(self, space: Space, vertices: Tensor) -> None:
        self.space, self.d, self.m, self.vertices = space, space.d, len(vertices), vertices

    @property
    def norm(self) -> float:
        """||V||_2, rounded up."""
        return float(torch.linalg.matrix_norm(self.vertices.double(), 2)) * (1 + 1e-12)

    def rows(self, x: Any, lo: int = 0) -> Tensor:
        """Scores of rows, dense or CSR."""
        return matmul(x, self.vertices[:, lo : lo + x.shape[1]].T.contiguous())

    def adjoint(self, y: Tensor) -> Tensor:
        """V' y."""
        return self.vertices.to(y).T @ y


# ---------------------------------------------------------------- how it is filled from public facts


GUMBEL = math.pi / math.sqrt(6)
"""s.d. of a Gumbel variable of scale 1."""


def reach(facts: Facts) -> float | None:
    """The largest margin of a row at a vertex: radius times |x_ij| on the axes; None without a polytope."""
    form = form_of(facts.constraint)
    if form is None:
        return None
    longest = facts.entry if form.rows is None else float(form.rows.double().norm(dim=1).max())
    return form.radius * longest


def vertex_bound(facts: Facts, rounds: int) -> float:
    """Excess loss of DP-FW, 2 h (2 r)^2 / (T + 2) + C r ln(vertices) sqrt(T) / (n mu), r the reach of a vertex."""
    r, count = reach(facts) or math.inf, 2 * facts.parameters
    return 8 * facts.smooth * r**2 / (rounds + 2) + facts.the_clip * r * math.log(count) * math.sqrt(rounds) / facts.b


def ball_bound(facts: Facts) -> float:
    """Excess loss of DP-GD over the same set, C ||C||_2 / 2 sqrt(d) / (n mu)."""
    radius = facts.constraint.diameter(facts.parameters) / 2
    return facts.the_clip * radius * math.sqrt(facts.parameters) / facts.b


@dp_fw.filling(shortfall=(0.013, 0.126))
def _fill(facts: Facts) -> Choice | Refusal:
    """A vertex chosen by the exponential mechanism; nothing else is released."""
    r = reach(facts)
    form = form_of(facts.constraint)
    if r is None or form is None:
        return Refusal("it needs a polytope as constraint: L1Ball, Simplex or ConvexHull")
    if facts.step is not None:
        return Refusal("its steps are 2 / (t + 2): leave step out")
    low, high = CONSTANTS.vertices
    best = min(range(low, high + 1, 10), key=lambda rounds: vertex_bound(facts, rounds))
    rounds = full_rounds(facts, best)
    if rounds < 1:
        return Refusal(f"it takes more than max_passes = {facts.max_passes:g} passes over the data")
    clip = facts.the_clip * r / form.radius  # of a score, at radius 1
    spent = costs.split(facts, Charge("vertex", "noisy-max", rounds))["vertex"]
    dims = facts.parameters if form.rows is None else len(form.rows)
    run = Run(facts, rounds, None, clip, spent, dims)
    return run.choice(
        {"clip": clip},
        noise_norm=GUMBEL * 2 * clip / (spent * facts.n),
        evidence=f"excess loss at most {vertex_bound(facts, rounds):.2g} (DP-GD: {ball_bound(facts):.2g}), hardly "
        "growing with d; measured: 1.00 where DP-GD has .59 (n = d = 2000), IMDB .722 against .811",
    )
