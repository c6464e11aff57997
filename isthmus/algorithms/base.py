"""What recipes share: step rules, maps of a narrow dimension and the way back, outputs; and budgets of private ones.

    theta_t = Pi_{Phi C}(Phi w_t - eta_t Phi g),   w_{t+1} in C with Phi w_{t+1} = theta_t

The two lines are one solve, `min over w in C of ||Phi w - (Phi w_t - eta_t Phi g)||^2`, started at w_t.  The narrow
dimension m_t may follow a `WidthRule`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Required, TypedDict

from isthmus.base import validate
from isthmus.core.minimize import Binding
from isthmus.core.parts import FirstOrderStationary, Mirror, Step, average_of
from isthmus.core.pipeline import Pipeline, Promise, Release, Round, Stage, StepSize, constant
from isthmus.core.wire import State
from isthmus.lifts import Lift, ProjectAndLift, pinv
from isthmus.penalties import NoPenalty
from isthmus.privacy import Adjacency, Charge, FixedSize, FullBatch, Poisson, PrivacyPlan
from isthmus.privacy.plan import default_delta
from isthmus.sets import ConvexSet, Simplex, Whole
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
        width, every = self.width, 1
        if width is None:  # that of a set of the same shape and radius 1
            size, remedy = constraint.diameter(d), "give a set of more than one point, which a width rule needs"
            validate.check(size > 0, "constraint", constraint, remedy)
            width = 2 * float(constraint.gaussian_width(d)) / size
        if self.per == "epoch":
            every = per_epoch
        return lambda t: narrow_dimension(d, width, self.beta(t // every), self.constant)


SIMPLEX_ONLY = "for a simplex only: planned where it is asked for by name"

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
    return constant(float(rule))


def _unless_bought(step: StepRule | str | None) -> StepRule | None:
    """A given step; None of one that is bought before the loop: "auto"."""
    if isinstance(step, str):
        validate.one_of(("auto",), step=step)
        return None
    return step


class _DescentOptions(TypedDict, total=False):
    """What descents share; see `sgd`."""

    step: StepRule | None
    schedule: Schedule | None
    output: str


class _NarrowOptions(_DescentOptions, total=False):
    """What those through maps share; see `comp_sgd`."""

    m: Size | WidthRule | None
    sketch: Family
    tol: float
    pick: str


@dataclass(frozen=True, kw_only=True)
class _Descent:
    """A step on C by gradients as they are, or through maps of a narrow dimension m.

    sketch    the family of maps, as a function of m; None compresses nothing
    optional  whether gradients may be taken as they are where no m is given
    """

    step: StepRule | None = None
    schedule: Schedule | None = None
    output: str = "last"
    momentum: float = 0.0
    stop: Stop | None = None
    m: Size | WidthRule | None = None
    sketch: Family | None = None
    optional: bool = False
    tol: float = 1e-2
    pick: str = "nearest"

    def __post_init__(self) -> None:
        validate.positive(tol=self.tol)
        validate.one_of(("nearest", "min_gauge"), pick=self.pick)
        average_of(self.output)
        if self.step is not None:
            _step_rule(self.step, None)
        narrow = self.m is not None or (self.schedule is not None and self.schedule.beta is not None)
        if not narrow:
            remedy = "give the narrow dimension, or a schedule that has one"
            validate.check(self.sketch is None or self.optional, "m", self.m, remedy)
            object.__setattr__(self, "sketch", None)

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
        stop, update = self.stop, Step(binding.constraint, binding.penalty, self.momentum)
        if stop is None and self.schedule is not None and self.schedule.threshold is not None:
            stop = FirstOrderStationary(self.schedule.threshold, binding.constraint)
        slots = {"stop": stop, "update": update, "average": average_of(self.output), "rounds": self.scheduled}
        output = "last" if self.output == "last" else "average"
        return Pipeline(stages, step, output=output, **{**slots, **more})


def _mirror_of(binding: Binding) -> Mirror:
    """The multiplicative step of a simplex."""
    constraint, bare = binding.constraint, isinstance(binding.penalty, NoPenalty)
    simplex = isinstance(constraint, Simplex)
    validate.check(simplex, "constraint", constraint, "give Simplex(radius), over which mirror descent runs")
    validate.check(bare, "penalty", binding.penalty, "leave it out: a multiplicative step has no proximal map")
    assert isinstance(constraint, Simplex)
    return Mirror(constraint.radius)


# ---------------------------------------------------------------- budgets of private recipes


_ASSUMPTIONS = (
    "one record belongs to one person",
    "nothing about the data was published except what is stated here: step, clip, set, number of rounds and the sketch "
    "are public choices",
)

PrivateSampler = FullBatch | Poisson | FixedSize


class _BudgetOptions(TypedDict, total=False):
    """What every private recipe takes: the arguments of `Budget`."""

    epsilon: Required[float]
    delta: float | None
    n: int | str | None
    adjacency: Adjacency | str


@dataclass(frozen=True)
class Budget:
    """(epsilon, delta), the adjacency, and what is public about the number of records.

    n  "exact": the true number of records is declared public; a number: a public estimate of it, which fixes the
       divisors and the sampling rate while the true number stays private
    """

    epsilon: float
    delta: float | None = None
    adjacency: Adjacency | str = "add-remove"
    n: int | str | None = None

    def __post_init__(self) -> None:
        validate.positive(epsilon=self.epsilon)
        if self.delta is not None:
            validate.open_unit(delta=self.delta)
        Adjacency.of(self.adjacency)
        valid = self.n == "exact" or (isinstance(self.n, int) and not isinstance(self.n, bool) and self.n > 0)
        remedy = 'declare the number of records: n="exact" makes it public, a number estimates it'
        validate.check(valid, "n", self.n, remedy)

    def as_published(self) -> Budget:
        """That of a mechanism run as printed: replace-one, and its formulas use the true number of records."""
        remedy = 'give n="exact": as published, the number of records is fixed and public'
        validate.check(self.n == "exact", "n", self.n, remedy)
        return replace(self, adjacency=Adjacency.REPLACE_ONE)

    def records(self, binding: Binding) -> int:
        """The public number of records."""
        if self.n == "exact":
            return binding.n
        return int(self.n or 1)

    def sampler(self, binding: Binding, batch_size: int | None) -> FullBatch | Poisson:
        """All records, or Poisson batches of an expected size; the sum is divided by a public constant."""
        n = self.records(binding)
        if batch_size is None:
            return FullBatch() if self.n == "exact" else Poisson(1.0, float(n))
        validate.positive_int(batch_size=batch_size)
        validate.at_most(n, "the public number of records", batch_size=batch_size)
        return Poisson(batch_size / n, float(batch_size))

    def plan(self, binding: Binding, items: Sequence[Charge]) -> PrivacyPlan:
        """The split of the budget over what is released, what was charged before the recipe's own items among it."""
        remaining = 1 - sum(charge.share for charge in binding.before)
        items = [*binding.before, *(replace(item, share=item.share * remaining) for item in items)]
        delta = self.delta or default_delta(self.records(binding))
        return PrivacyPlan(self.epsilon, delta, Adjacency.of(self.adjacency), items=items)

    def promise(self, plan: PrivacyPlan, binding: Binding) -> Promise:
        """What the pipeline promises under a plan."""
        n = binding.n if self.n == "exact" else None
        return Promise(self.epsilon, plan.delta, plan.adjacency, n, _ASSUMPTIONS, plan, self.records(binding))

    def pipeline(
        self, binding: Binding, plan: PrivacyPlan, rounds: int, stages: Sequence[Stage], step: StepSize, **slots: Any
    ) -> Pipeline:
        """The stages in a loop of so many rounds under a plan, with projected steps unless the slots say otherwise."""
        slots.setdefault("update", Step(binding.constraint, binding.penalty))
        return Pipeline(stages, step, rounds=rounds, promise=self.promise(plan, binding), **slots)

    def descent(
        self, release: Release, step: StepSize, *, batch_size: int | None = None, **slots: Any
    ) -> Callable[[Binding], Pipeline]:
        """What builds a loop with one release a round, with as much of its mechanism's noise as the budget asks for."""

        def build(binding: Binding) -> Pipeline:
            sampler = self.sampler(binding, batch_size)
            rounds = rounds_of(binding, sampler, self.records(binding))
            plan = self.plan(binding, [Charge(release.name, release.mechanism, rounds, sampler=sampler)])
            stage = Stage(sampler, [replace(release, mechanism=plan.mechanism(release.name))])
            return self.pipeline(binding, plan, rounds, [stage], step, **slots)

        return build


def rounds_of(binding: Binding, sampler: PrivateSampler, n: int, scheduled: int | None = None) -> int:
    """How many rounds the run is planned for, as asked or as `scheduled`: it may stop earlier, never go on."""
    if binding.steps is not None:
        return binding.steps
    if binding.epochs is None:
        if scheduled is not None:
            return scheduled
        validate.refuse("steps, epochs", (None, None), "give one of the two: a private run is planned beforehand")
    return max(1, round(binding.epochs * sampler.rounds(n)))


def _diameter_of(binding: Binding) -> float:
    """||C||, of which default steps are made."""
    bounded = binding.constraint.bounded and binding.constraint.can("diameter")
    validate.check(bounded, "step", None, "give a step: the default needs a bounded set, for its diameter")
    return float(binding.constraint.diameter(binding.d))
