"""What projected descents share: the step, a map of a narrow dimension and the way back from it, and the output.

    theta_t = Pi_{Phi C}(Phi w_t - eta_t Phi g),   w_{t+1} in C with Phi w_{t+1} = theta_t

The two lines are one solve, `min over w in C of ||Phi w - (Phi w_t - eta_t Phi g)||^2`, started at w_t.  The narrow
dimension m_t may follow a `WidthRule`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from isthmus.base import validate
from isthmus.core.minimize import Binding
from isthmus.core.parts import FirstOrderStationary, Step, average_of
from isthmus.core.pipeline import Pipeline, Round, Stage, StepSize
from isthmus.core.wire import State
from isthmus.lifts import Lift, ProjectAndLift, pinv
from isthmus.sets import ConvexSet, Whole
from isthmus.sketches import Encoder, Identity, Size
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
        width, every = self.width or _relative_width(constraint, d), 1
        if self.per == "epoch":
            every = per_epoch
        return lambda t: narrow_dimension(d, width, self.beta(t // every), self.constant)


def _relative_width(constraint: ConvexSet, d: int) -> float:
    """w(C) over half the diameter of C: the width of a set of that shape and radius 1.

    >>> from isthmus.sets import L2Ball
    >>> abs(_relative_width(L2Ball(7.0), 400) - 20) < 0.02
    True
    """
    size = constraint.diameter(d)
    validate.check(size > 0, "constraint", constraint, "give a set of more than one point, which a width rule needs")
    return 2 * float(constraint.gaussian_width(d)) / size


StepRule = float | Callable[[int], float]

Family = Callable[[Size], Encoder]
Stop = Callable[[Round, State, State], bool]


def _step_rule(step: StepRule | None, schedule: Schedule | None) -> StepSize:
    """A rule `t -> eta` from a number, a rule or a schedule."""
    rule: StepRule | None = step
    if rule is None and schedule is not None:
        rule = schedule.step
    if rule is None:
        validate.refuse("step", step, "give a step, or a schedule that has one")
    if callable(rule):
        return rule
    validate.positive(step=rule)
    eta = float(rule)
    return lambda t: eta


@dataclass(frozen=True, kw_only=True)
class _Descent:
    """A step on C by gradients as they are, or through maps of a narrow dimension m.

    sketch  the family of maps, as a function of m; None compresses nothing
    """

    step: StepRule | None = None
    schedule: Schedule | None = None
    output: str = "last"
    momentum: float = 0.0
    stop: Stop | None = None
    m: Size | WidthRule | None = None
    sketch: Family | None = None
    tol: float = 1e-2
    pick: str = "nearest"

    def __post_init__(self) -> None:
        validate.positive(tol=self.tol)
        validate.one_of(("nearest", "min_gauge"), pick=self.pick)
        average_of(self.output)
        if self.step is not None:
            _step_rule(self.step, None)
        validate.check(
            self.sketch is None or self.narrowed, "m", self.m, "give the narrow dimension, or a schedule that has one"
        )

    @property
    def narrowed(self) -> bool:
        """Whether a narrow dimension was given, or a schedule that has a distortion."""
        return self.m is not None or (self.schedule is not None and self.schedule.beta is not None)

    @property
    def scheduled(self) -> int | None:
        """The number of rounds of the schedule."""
        return None if self.schedule is None else self.schedule.rounds

    def size(self, binding: Binding, per_epoch: int) -> Size | None:
        """m, or its rule of rounds, as given or as a schedule's distortion has it; None where nothing is compressed."""
        m = self.m
        if m is None and self.sketch is not None and self.schedule is not None and self.schedule.beta is not None:
            m = WidthRule(beta=self.schedule.beta)
        if isinstance(m, WidthRule):
            return m.rule(binding.constraint, binding.d, per_epoch)
        return m

    def encode(self, binding: Binding, per_epoch: int) -> Encoder:
        """The map."""
        size = self.size(binding, per_epoch)
        if self.sketch is None or size is None:
            return Identity()
        return self.sketch(size)

    def lift(self, binding: Binding) -> Lift:
        """Onto the set, where there is a set and a map: else the nearest point is the pseudo-inverse's."""
        if self.sketch is None or isinstance(binding.constraint, Whole):
            return pinv
        return ProjectAndLift(binding.constraint, self.pick, self.tol)

    def pipeline(self, binding: Binding, stages: Sequence[Stage], step: StepSize, **more: Any) -> Pipeline:
        """The stages in their loop; `more` has other slots of the pipeline."""
        slots: dict[str, Any] = {
            "stop": self.stop,
            "update": Step(binding.constraint, binding.penalty, self.momentum),
            "average": average_of(self.output),
            "rounds": self.scheduled,
        }
        if self.stop is None and self.schedule is not None and self.schedule.threshold is not None:
            slots["stop"] = FirstOrderStationary(self.schedule.threshold, binding.constraint)
        if self.output != "last":
            slots["output"] = "average"
        return Pipeline(stages, step, **{**slots, **more})
