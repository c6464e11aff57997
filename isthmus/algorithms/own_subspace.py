"""The subspace of PDP-SGD without public data: found privately, for a share of the budget (paper 004's next step).

    Y = X'X Omega + noise,   V_k = the top left singular vectors of Y,   then noise in R^k as PDP-SGD has it

The gradients of a linear model are multiples of its rows, so the top eigenspace of X'X is theirs.  One record moves
x x' Omega by at most |x|^2 <= 1 when the columns of Omega are orthonormal: one look, d (k + 10) numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from isthmus.algorithms.budget import Budget
from isthmus.algorithms.declare import algorithm
from isthmus.algorithms.first_order import StepRule
from isthmus.algorithms.private import Relation, _Private
from isthmus.algorithms.purchases import Lambda, Purchased, Terms, unit
from isthmus.base import validate
from isthmus.base.matrix import matmul
from isthmus.core.before import Prepared
from isthmus.core.minimize import Recipe
from isthmus.gradients import Outer
from isthmus.privacy import AdaptiveClip, Clip
from isthmus.problems.scaling import unit_rows
from isthmus.sketches import Context, Encoder, Sketch
from isthmus.sketches.dense import random_rows
from isthmus.sketches.public import SubspaceMap

MORE = 10
"""Directions that are tried beyond k: the span of a few more holds the top k far better."""


@algorithm(
    left_out="for linear models with far fewer directions than columns: planned where it is asked for by name",
    words="the few directions that matter are found with noise, and then noise is added in those alone",
)
def dp_subspace_gd(
    *,
    epsilon: float,
    delta: float | None = None,
    k: int,
    clip: float | AdaptiveClip,
    step: StepRule | str = "auto",
    share: float = 0.3,
    n: int | str | None = None,
    adjacency: Relation = "add-remove",
    output: str = "last",
) -> Recipe:
    """PDP-SGD on all records, in a subspace that is bought first: for linear models whose rows have norm at most 1.

    k      at most so many directions; those that do not stand out of the noise of their purchase are left out
    share  of the budget, for the directions
    step   a number or a rule; "auto" takes 2 % more and finds the longest stable step, as `dp_gd` does

    Other arguments as for `dp_gd`.  Where rows lie near few directions, and n is large against d sqrt(k) / epsilon, a
    round sends k numbers in place of d at the accuracy of `dp_gd`; where all directions matter `dp_gd` is better.

    >>> dp_subspace_gd(epsilon=1.0, k=5, clip=1.0, n="exact").arguments["k"]
    5
    """
    validate.positive_int(k=k)
    validate.open_unit(share=share)
    if isinstance(step, str):
        validate.one_of(("auto",), step=step)
    fixed = not isinstance(clip, AdaptiveClip)
    validate.check(fixed, "clip", clip, "give a number: the step that is bought depends on it")
    directions = Directions(k, share=share)
    buys = (directions, Lambda()) if isinstance(step, str) else (directions,)
    rule = None if isinstance(step, str) else step
    filling = _Private(Budget(epsilon, delta, adjacency, n), clip, rule, None, output, 0.0, m=k, buys=buys)
    return filling.recipe("dp_subspace_gd", k=k, step=step, share=share)


@dataclass(frozen=True)
class Basis(Encoder):
    """g -> V' g for a basis that was paid for."""

    basis: Tensor

    def bind(self, context: Context, state: object) -> tuple[Sketch, None]:
        """The same map every round."""
        return _FoundMap(context.space, self.basis), None


class _FoundMap(SubspaceMap):
    def describe(self) -> str:
        """One sentence for reports."""
        return f"{self.m} directions that were found with noise, of {self.d} parameters"


@dataclass(frozen=True)
class Directions(Purchased):
    """X'X Omega for k + 10 random orthonormal columns, and the top directions of what was released."""

    k: int
    share: float = 0.3
    name: str = "directions"

    def check(self, objective: Any) -> None:
        """One output, and at most as many directions as columns."""
        super().check(objective)
        d = objective.space.d
        single = d == objective.X.shape[1]
        validate.check(
            single, "objective", objective, "give one with a single output: directions are not learned for several"
        )
        validate.at_most(d, "the number of columns", k=self.k)

    def clip(self, objective: Any) -> Clip:
        """1: |x| |Omega' x| for rows of norm at most 1."""
        return Clip(1.0)

    def rows(self, objective: Any) -> Outer:
        """x (Omega' x)'."""
        X = unit_rows(objective.X).plain()
        return Outer(X, matmul(X, self._omega(X.shape[1]).T))

    def numbers(self, objective: Any) -> int:
        """A column of d for each."""
        d = int(objective.X.shape[1])
        return d * self._tried(d)

    def apply(self, prepared: Prepared, bought: Tensor, noise: float, terms: Terms) -> Prepared:
        """The top directions that stand out of the noise."""
        prepared = unit(prepared)
        d = int(prepared.objective.X.shape[1])
        tried = self._tried(d)
        _, sizes, directions = torch.linalg.svd(bought.double().view(tried, d), full_matrices=False)
        # a matrix of noise has no singular value above this, but for a chance that falls like exp(-x^2 / 2)
        clear = int((sizes[: self.k] > noise * (math.sqrt(d) + math.sqrt(tried))).sum())
        basis = directions[: max(1, clear)].T.contiguous()
        return replace(prepared, encode=Basis(basis))

    def _tried(self, d: int) -> int:
        return min(d, self.k + MORE)

    def _omega(self, d: int) -> Tensor:
        """Orthonormal rows from a public key."""
        return random_rows(self._tried(d), d, key=self.k)


__all__ = ["Directions", "dp_subspace_gd"]
