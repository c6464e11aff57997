"""Stop rules: they return the point before the step that fired them, and check their promise afterwards."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from isthmus import _validate
from isthmus.sets import ConvexSet
from isthmus.state import State


@dataclass(frozen=True)
class FirstOrderStationary:
    """Stop at the first w_t whose round moves it by at most `threshold`: an alpha-FOSP of the theorem.

    Under compression a round moves the iterate by about sqrt(m/d) of what the full gradient would, and the
    rule as printed fires early; the move is therefore multiplied by sqrt(d/m_t) unless `rescale=False`
    (for an m_t that meets the theorem).
    """

    threshold: float
    constraint: ConvexSet
    rescale: bool = True

    def __post_init__(self) -> None:
        _validate.positive(threshold=self.threshold)

    def __call__(self, round: Any, old: State, new: State) -> bool:
        """Whether w_t is the point."""
        m = min(sketch.m for sketch in round.sketches.values())
        factor = math.sqrt(round.space.d / m) if self.rescale else 1.0
        return float(torch.linalg.vector_norm(old.w - new.w)) * factor <= self.threshold

    def certify(self, objective: Any, x: torch.Tensor) -> dict[str, float]:
        """The true first-order gap and the unit-step gradient mapping, from one full gradient."""
        return first_order(objective, x, self.constraint)


@dataclass(frozen=True)
class GapBelow:
    """Stop at the first w_t whose (compressed) Frank-Wolfe gap is at most alpha."""

    alpha: float
    constraint: ConvexSet

    def __post_init__(self) -> None:
        _validate.positive(alpha=self.alpha)

    def __call__(self, round: Any, old: State, new: State) -> bool:
        """Whether w_t is the point; the update has kept its gap."""
        return new.update["gap"] <= self.alpha

    def certify(self, objective: Any, x: torch.Tensor) -> dict[str, float]:
        """The true first-order gap and the unit-step gradient mapping, from one full gradient."""
        return first_order(objective, x, self.constraint)


def first_order(objective: Any, x: torch.Tensor, constraint: ConvexSet) -> dict[str, float]:
    """`gap` = max over u in C of <grad, x - u> (x is an alpha-FOSP when it is at most alpha) and
    `mapping` = ||x - P_C(x - grad)||.

    >>> from isthmus import LeastSquares, L2Ball
    >>> f = LeastSquares(torch.eye(2).double(), torch.tensor([2.0, 0.0]).double())
    >>> {k: round(v, 6) for k, v in first_order(f, torch.zeros(2).double(), L2Ball(1.0)).items()}
    {'gap': 1.0, 'mapping': 1.0}
    """
    g = objective.gradient(x)
    found = {"mapping": float(torch.linalg.vector_norm(x - constraint.project(x - g)))}
    if constraint.can("support"):
        found["gap"] = float(g @ x) + float(constraint.support(-g))
    return dict(sorted(found.items()))
