"""Stop rules: they return the point before the step that fired them, and check their promise afterwards."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.core.state import State
from isthmus.lifts import compressed_gradient_mapping
from isthmus.sets import ConvexSet

if TYPE_CHECKING:
    from isthmus.core.step import Round


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
        validate.positive(threshold=self.threshold)

    def __call__(self, round: Round, old: State, new: State) -> bool:
        """Whether w_t is the point."""
        m = min(sketch.m for sketch in round.sketches.values())
        factor = math.sqrt(round.space.d / m) if self.rescale else 1.0
        return float(torch.linalg.vector_norm(old.w - new.w)) * factor <= self.threshold

    def certify(self, gradient: Tensor, x: Tensor, round: Round | None = None) -> dict[str, float]:
        """The true first-order gap and the unit-step gradient mapping, from one full gradient."""
        return first_order(gradient, x, self.constraint)


@dataclass(frozen=True)
class GapBelow:
    """Stop at the first w_t whose (compressed) Frank-Wolfe gap is at most alpha.

    Where the full `gradient` may be asked for (runs that are not private), the rule only fires when the true gap
    is at most alpha too: what it returns is an alpha-FOSP.
    """

    alpha: float
    constraint: ConvexSet
    gradient: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        validate.positive(alpha=self.alpha)

    def __call__(self, round: Round, old: State, new: State) -> bool:
        """Whether w_t is the point; the update has kept its compressed gap."""
        if new.update["gap"] > self.alpha:
            return False
        return self.gradient is None or self.certify(self.gradient(old.w), old.w)["gap"] <= self.alpha

    def certify(self, gradient: Tensor, x: Tensor, round: Round | None = None) -> dict[str, float]:
        """The true first-order gap and the unit-step gradient mapping, from one full gradient."""
        return first_order(gradient, x, self.constraint)


@dataclass(frozen=True)
class MappingBelow:
    """Stop at the first w_t with a compressed gradient mapping (w_t - w_{t+1}) / eta of at most alpha: 001, Def. 8.

    The rule sees the gradient that the round released.  The certificate has what it promised of the full gradient:
    `compressed` (Definition 8 with the map and the step of the round that fired), `mapping` (without compression) and
    the first-order `gap`.  As `FirstOrderStationary` it multiplies by sqrt(d/m_t), or fires early; the definition as
    printed is `rescale=False`.
    """

    alpha: float
    constraint: ConvexSet
    rescale: bool = True

    def __post_init__(self) -> None:
        validate.positive(alpha=self.alpha)

    def __call__(self, round: Round, old: State, new: State) -> bool:
        """Whether w_t is the point."""
        moved = torch.linalg.vector_norm((old.w - new.w) / round.eta)
        return float(moved) * self._factor(round) <= self.alpha

    def certify(self, gradient: Tensor, x: Tensor, round: Round | None = None) -> dict[str, float]:
        """The compressed gradient mapping, the plain one at the same step, and the gap, from one full gradient."""
        certificate = first_order(gradient, x, self.constraint)
        if round is None:
            return certificate
        eta, sketch = float(round.eta), next(iter(round.sketches.values()))
        compressed = compressed_gradient_mapping(self.constraint, sketch, sketch.forward(gradient), x, eta)
        plain = (x - self.constraint.project(x - eta * gradient)) / eta
        certificate["compressed"] = float(torch.linalg.vector_norm(compressed)) * self._factor(round)
        return dict(sorted((certificate | {"mapping": float(torch.linalg.vector_norm(plain))}).items()))

    def _factor(self, round: Round) -> float:
        m = min(sketch.m for sketch in round.sketches.values())
        return math.sqrt(round.space.d / m) if self.rescale else 1.0


def first_order(g: Tensor, x: Tensor, constraint: ConvexSet) -> dict[str, float]:
    """`gap` = max over u in C of <grad, x - u> (x is an alpha-FOSP when it is at most alpha) and
    `mapping` = ||x - P_C(x - grad)||.

    >>> from isthmus.sets import L2Ball
    >>> first_order(torch.tensor([-1.0, 0.0]), torch.zeros(2), L2Ball(1.0))
    {'gap': 1.0, 'mapping': 1.0}
    """
    certificate = {"mapping": float(torch.linalg.vector_norm(x - constraint.project(x - g)))}
    if constraint.can("support"):
        certificate["gap"] = float(g @ x) + float(constraint.support(-g))
    return dict(sorted(certificate.items()))
