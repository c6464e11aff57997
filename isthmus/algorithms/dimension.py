"""Rules for the narrow dimension m_t."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from isthmus.base import validate
from isthmus.core.minimize import Binding
from isthmus.sets import ConvexSet
from isthmus.sketches.base import Size, resolve
from isthmus.theory import Rule, Schedule, narrow_dimension


@dataclass(frozen=True)
class WidthRule:
    """m_t = min(d, c w^2 / beta_t^2), the theorems' rule; w is the Gaussian width of the constraint, taken to radius 1.

    Gordon's theorem speaks of directions, which have no length: what counts is w(C) / (||C|| / 2), the same for a ball
    of any radius, where the papers' sets have diameter 2.

    constant  c
    beta      the distortion of round t (from 0); by default 1/(t + 1)
    per       what t counts: every "step", or every "epoch" as in the experiments of paper 001
    width     w, where the constraint's own is not the right one (the cone at a sparse point is far narrower)

    >>> from isthmus.sets import L1Ball
    >>> WidthRule(width=2.0).rule(L1Ball(), d=1000, per_epoch=10)(2)
    36
    >>> [WidthRule().rule(L1Ball(radius), d=10_000, per_epoch=1)(1) for radius in (1.0, 150.0)]
    [65, 65]
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

    def rule(self, constraint: ConvexSet, d: int, per_epoch: int) -> Callable[[int], int]:
        """t -> m_t for a set in R^d."""
        width = relative_width(constraint, d) if self.width is None else self.width
        every = 1 if self.per == "step" else per_epoch
        return lambda t: narrow_dimension(d, width, self.beta(t // every), self.constant)


def relative_width(constraint: ConvexSet, d: int) -> float:
    """w(C) over half the diameter of C: the width of a set of that shape and radius 1.

    >>> from isthmus.sets import L2Ball
    >>> abs(relative_width(L2Ball(7.0), 400) - 20) < 0.02
    True
    """
    size = constraint.diameter(d)
    validate.check(
        size > 0,
        "constraint",
        constraint,
        "give a set of more than one point: a width rule needs a set with directions",
    )
    return 2 * float(constraint.gaussian_width(d)) / size


def bound_size(m: Size | WidthRule, binding: Binding, per_epoch: int) -> Size:
    """A size, with a width rule turned into its numbers."""
    return m.rule(binding.constraint, binding.d, per_epoch) if isinstance(m, WidthRule) else m


def scheduled_size(m: Size | WidthRule | None, schedule: Schedule | None) -> Size | WidthRule | None:
    """The size that was given, else the width rule of a schedule that has a distortion."""
    if m is not None or schedule is None or schedule.beta is None:
        return m
    return WidthRule(beta=schedule.beta)


def largest_size(m: Size | WidthRule, binding: Binding, per_epoch: int, rounds: int) -> int:
    """m_T of the theorems, the largest dimension of a run of so many rounds."""
    size = bound_size(m, binding, per_epoch)
    return max(resolve(size, binding.d, t) for t in (range(rounds) if callable(size) else (0,)))
