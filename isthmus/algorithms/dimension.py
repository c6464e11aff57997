"""Rules for the narrow dimension m_t."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from isthmus.base import validate
from isthmus.geometry.sketches.base import Size
from isthmus.papers import Rule, narrow_dimension
from isthmus.round.minimize import Binding


@dataclass(frozen=True)
class WidthRule:
    """m_t = min(d, c w(C)^2 / beta_t^2), the theorems' rule; w(C) is the Gaussian width of the constraint.

    constant  c
    beta      the distortion of round t (from 0); by default 1/(t + 1)
    per       what t counts: every "step", or every "epoch" as in the experiments of paper 001
    width     w(C), where the constraint's own is not the right one (the cone at a sparse point is far narrower)

    >>> from isthmus.geometry.sets import L1Ball
    >>> WidthRule(width=2.0).rule(L1Ball(), d=1000, per_epoch=10)(2)
    36
    """

    constant: float = 1.0
    beta: Callable[[int], float] = field(default_factory=lambda: Rule(1.0, power=1.0))
    per: str = "step"
    width: float | None = None

    def __post_init__(self) -> None:
        validate.positive(constant=self.constant)
        validate.one_of(("step", "epoch"), per=self.per)
        if self.width is not None:
            validate.positive(width=self.width)

    def rule(self, constraint: Any, d: int, per_epoch: int) -> Callable[[int], int]:
        """t -> m_t for a set in R^d."""
        width = float(constraint.gaussian_width(d)) if self.width is None else self.width
        every = 1 if self.per == "step" else per_epoch
        return lambda t: narrow_dimension(d, width, self.beta(t // every), self.constant)


def bound_size(m: Size | WidthRule, binding: Binding, per_epoch: int) -> Size:
    """A size, with a width rule turned into its numbers."""
    return m.rule(binding.constraint, binding.d, per_epoch) if isinstance(m, WidthRule) else m
