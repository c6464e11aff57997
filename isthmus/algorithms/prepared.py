"""DP-GD for linear models that first buys what it needs to know: column moments, lambda_max, sufficient statistics.

At moderate budgets the scale of the columns and the step, not the noise, hold plain DP-GD back.  A small share of the
budget buys them; what is bought is public, and everything derived from it costs nothing more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from isthmus import _validate
from isthmus.algorithms.budget import Budget, rounds_of
from isthmus.algorithms.first_order import StepRule, step_rule
from isthmus.bounded import Bounded
from isthmus.gradients import Glm, Outer, Stack
from isthmus.matrix import Matrix, is_sparse, row_norms
from isthmus.objectives.linear import top_eigenvalue
from isthmus.parts import Step, Weighted
from isthmus.parts.updates import Preconditioned
from isthmus.penalties import NoPenalty
from isthmus.pipeline import Pipeline, Release, Stage
from isthmus.privacy import Charge, Clip, PrivacyPlan
from isthmus.privacy._library import dpa
from isthmus.sets import Whole
from isthmus.solve import Binding, Recipe
from isthmus.spending import Prepared, Spending

SCALES = ("none", "columns", "moments")
SHARES = {"scale": 0.10, "lambda": 0.02, "statistics": 0.45}
SMALL = 300
"""Up to this many columns moments are centred and sufficient statistics are affordable."""


@dataclass(frozen=True)
class Transform:
    """A public map of rows to the unit ball: (x - shift) * weight, perhaps a bias, clipped at `limit`, divided by it.

    `limit=None` gives every row length 1.  CSR is neither shifted nor given a bias.
    """

    shift: Tensor | None
    weight: Tensor
    limit: float | None
    bias: bool = False

    def __call__(self, X: Matrix) -> Matrix:
        """The transformed rows; CSR stays CSR (it is never shifted)."""
        if is_sparse(X):
            scaled = (X @ sp.diags_array(self.weight.numpy().astype(X.dtype))).tocsr()
            norms = np.maximum(row_norms(scaled).numpy(), 1e-12 if self.limit is None else self.limit)
            return sp.csr_matrix(sp.diags_array((1 / norms).astype(X.dtype)) @ scaled)
        rows = X if self.shift is None else X - self.shift.to(X)
        rows = rows * self.weight.to(X)
        rows = torch.cat([rows, X.new_ones(len(X), 1)], 1) if self.bias else rows
        norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        return rows / norms.clamp(min=1e-12 if self.limit is None else self.limit)


def prepared_gd(
    budget: Budget, clip: float, step: StepRule | str, scale: str, precondition: bool, tau: float | None, output: str
) -> Recipe:
    """The recipe behind `dp_gd(scale=..., step="auto", precondition=...)`."""
    Clip(clip)
    _validate.one_of(SCALES, scale=scale)
    automatic = isinstance(step, str)
    if automatic:
        _validate.one_of(("auto",), step=step)
    if tau is not None:
        _validate.positive(tau=tau)
    _validate.one_of(("last", "average"), output=output)

    def build(binding: Binding) -> Pipeline:
        free = isinstance(binding.constraint, Whole)
        remedy = "leave it out: scaled columns change what a set means"
        _validate.check(free or scale == "none", "constraint", binding.constraint, remedy)
        plain = free and isinstance(binding.penalty, NoPenalty)
        alone = "leave out the set and the penalty: preconditioned steps have no proximal map"
        _validate.check(plain or not precondition, "precondition", precondition, alone)
        sampler = budget.sampler(binding, None)
        rounds = rounds_of(binding, sampler, budget.records(binding))
        plan = budget.plan(binding, _charges(scale, automatic, precondition, rounds))
        preparation = GlmPreparation(plan, budget.records(binding), rounds, clip, scale, automatic, precondition, tau)
        release = Release(clip=Clip(clip), mechanism=plan.mechanism("steps"))
        return Pipeline(
            [Stage(sampler, [release])],
            (lambda t: 1.0) if isinstance(step, str) else step_rule(step, None),
            Step(binding.constraint, binding.penalty),
            Weighted(start=rounds // 2),
            output="last" if output == "last" else "average",
            rounds=rounds,
            promise=budget.promise(plan, binding),
            prepare=preparation,
        )

    shown = {"epsilon": budget.epsilon, "delta": budget.delta, "clip": clip, "scale": scale, "step": step}
    return Recipe("dp_gd", build, {**shown, "precondition": precondition})


def _charges(scale: str, automatic: bool, precondition: bool, rounds: int) -> list[Charge]:
    items = [] if scale == "none" else [Charge("scale", share=SHARES["scale"])]
    if precondition:
        items.append(Charge("statistics", share=SHARES["statistics"]))
    elif automatic:
        items.append(Charge("lambda", share=SHARES["lambda"]))
    spent = sum(item.share for item in items)
    return [*items, Charge("steps", rounds=rounds, share=1 - spent)]


@dataclass(frozen=True)
class GlmPreparation:
    """What is bought before the loop, and what follows from it."""

    plan: PrivacyPlan
    n: int
    rounds: int
    clip: float
    scale: str
    automatic: bool
    precondition: bool
    tau: float | None

    def release(self, objective: Any, spending: Spending) -> dict[str, Tensor]:
        """Charge and release everything that is bought; sums, not means."""
        _check_linear(objective, self.scale, self.precondition)
        bought: dict[str, Tensor] = {}
        X = objective.X
        ones = torch.ones(objective.n, dtype=torch.float64)
        if self.scale != "none":
            squares = X.multiply(X).tocsr() if is_sparse(X) else X * X
            second = Glm(ones, squares)
            rows = second if self.scale == "columns" else Stack([("first", Glm(ones, X)), ("second", second)])
            bound = 1.0 if self.scale == "columns" else math.sqrt(2)
            bought["scale"] = spending.release(self._release("scale", bound), rows)
        moved = self._transformed(objective, bought)
        if self.precondition:
            rows = moved.X
            pairs = Stack([("gram", Outer(rows, rows)), ("cross", Outer(rows, moved.y.to(rows)[:, None]))])
            bought["statistics"] = spending.release(self._release("statistics", math.sqrt(2)), pairs)
        elif self.automatic:
            # rows were clipped to norm 1: one record moves every eigenvalue of X'X by at most 1 (Weyl)
            top = torch.tensor([top_eigenvalue(moved.X)], dtype=torch.float64)
            bought["lambda"] = spending.publish("lambda", Bounded(top, 2, 1.0 + 1e-6), self.plan.mechanism("lambda"))
        return bought

    def apply(self, objective: Any, bought: Mapping[str, Tensor]) -> Prepared:
        """The transformed problem, its step and its start, from what was bought."""
        moved = self._transformed(objective, bought)
        transform = self._transform(objective, bought)
        if self.precondition:
            return self._statistics(moved, bought["statistics"], transform)
        if not self.automatic:
            return Prepared(moved, transform=transform)
        eta = self._step(moved.curvature, float(bought["lambda"]))
        return Prepared(moved, transform=transform, step=lambda t: eta)

    def events(self, bought: Mapping[str, Tensor]) -> list[Any]:
        """What those releases cost."""
        return [self.plan.mechanism(name).event(self.plan.adjacency) for name in bought]

    def _release(self, name: str, bound: float) -> Release:
        return Release(name, clip=Clip(bound), mechanism=self.plan.mechanism(name))

    @property
    def mu(self) -> float:
        """The Gaussian-DP parameter of the whole budget."""
        return 1 / (dpa.get_sigma_gaussian(self.plan.epsilon, self.plan.delta) * self.plan.adjacency.factor)

    def _step(self, curvature: float, top: float) -> float:
        """min(1.8 / (h lambda / n), tau n mu / (C T)): stable, and with accumulated noise of about tau in a margin."""
        cap = 1.8 / (curvature * max(top, 1.0) / self.n)
        tau = 0.3 if self.tau is None else self.tau
        return min(cap, tau * self.n * self.mu / (self.clip * self.rounds))

    def _transform(self, objective: Any, bought: Mapping[str, Tensor]) -> Transform:
        if self.scale == "none":
            return Transform(None, torch.ones(objective.X.shape[1], dtype=torch.float64), 1.0)
        noise = self.plan.multiplier("scale")
        if self.scale == "columns":
            second = bought["scale"].clamp(min=3 * noise)
            return Transform(None, second.rsqrt(), None)
        d = objective.X.shape[1]
        noise *= math.sqrt(2)
        mean, second = bought["scale"][:d] / self.n, bought["scale"][d:] / self.n
        variance = (second - mean**2).clamp(min=3 * noise / self.n)
        return Transform(mean, variance.rsqrt(), math.sqrt(d + 1), bias=True)

    def _transformed(self, objective: Any, bought: Mapping[str, Tensor]) -> Any:
        return objective.with_inputs(self._transform(objective, bought)(objective.X))

    def _statistics(self, moved: Any, bought: Tensor, transform: Transform) -> Prepared:
        """Start at the noisy ridge solution; step with its inverse: Hessian .2 X'X (logistic) or X'X (squared)."""
        d = moved.X.shape[1]
        noise = self.plan.multiplier("statistics") * math.sqrt(2)
        gram = bought[: d * d].view(d, d)
        gram = (gram + gram.T) / 2 + noise * math.sqrt(d) * torch.eye(d, dtype=gram.dtype)
        values, vectors = torch.linalg.eigh(gram)
        inverse = (vectors / values.clamp(min=noise * math.sqrt(d))) @ vectors.T
        logistic = moved.curvature == 0.25
        start = inverse @ bought[d * d :] * (2.0 if logistic else 1.0)
        hessian = 0.2 if logistic else 1.0
        update = Preconditioned(inverse * (self.n / hessian))
        return Prepared(moved, transform=transform, start=start, update=update, step=lambda t: 1.0)


def _check_linear(objective: Any, scale: str, precondition: bool) -> None:
    linear = hasattr(objective, "X") and hasattr(objective, "curvature") and objective.curvature is not None
    _validate.check(linear, "objective", objective, "give a smooth linear model such as Logistic or LeastSquares")
    _validate.check(objective.space.d == objective.X.shape[1], "objective", objective, "with one output")
    small = not is_sparse(objective.X) and objective.X.shape[1] <= SMALL
    remedy = f"give dense data with at most {SMALL} columns"
    _validate.check(small or scale != "moments", "scale", scale, f'{remedy}, or use "columns"')
    _validate.check(small or not precondition, "precondition", precondition, remedy)
