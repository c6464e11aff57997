"""(epsilon, delta) of a private recipe: how it is split over what is released, and what the run then promises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Required, TypedDict, Unpack

from isthmus.base import validate
from isthmus.core.minimize import Binding
from isthmus.core.parts import Step
from isthmus.core.pipeline import Pipeline, Promise, Stage, StepSize
from isthmus.privacy import Adjacency, Charge, FixedSize, FullBatch, Poisson, PrivacyPlan
from isthmus.privacy.plan import default_delta

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

    @property
    def relation(self) -> Adjacency:
        """The adjacency as its type."""
        return Adjacency.of(self.adjacency)

    def records(self, binding: Binding) -> int:
        """The public number of records."""
        if self.n == "exact":
            return binding.n
        return int(self.n or 1)

    def sampler(self, binding: Binding, batch_size: int | None) -> FullBatch | Poisson:
        """All records, or Poisson batches of an expected size; the sum is divided by a public constant."""
        n = self.records(binding)
        if batch_size is None and self.n == "exact":
            return FullBatch()
        if batch_size is None:
            return Poisson(1.0, float(n))
        validate.positive_int(batch_size=batch_size)
        validate.at_most(n, "the public number of records", batch_size=batch_size)
        return Poisson(batch_size / n, float(batch_size))

    def plan(self, binding: Binding, items: Sequence[Charge]) -> PrivacyPlan:
        """The split of the budget over what is released, what was charged before the recipe's own items among it."""
        remaining = 1 - sum(charge.share for charge in binding.before)
        items = [*binding.before, *(replace(item, share=item.share * remaining) for item in items)]
        delta = self.delta or default_delta(self.records(binding))
        return PrivacyPlan(self.epsilon, delta, self.relation, items=items)

    def promise(self, plan: PrivacyPlan, binding: Binding) -> Promise:
        """What the pipeline promises under a plan."""
        records, delta, n = self.records(binding), float(plan.delta or 0), None
        if self.n == "exact":
            n = records
        return Promise(self.epsilon, delta, self.relation, n, _ASSUMPTIONS, plan, records)

    def pipeline(
        self, binding: Binding, plan: PrivacyPlan, rounds: int, stages: Sequence[Stage], step: StepSize, **slots: Any
    ) -> Pipeline:
        """The stages in a loop of so many rounds under a plan, with projected steps unless the slots say otherwise."""
        slots.setdefault("update", Step(binding.constraint, binding.penalty))
        return Pipeline(stages, step, rounds=rounds, promise=self.promise(plan, binding), **slots)


def _published_budget(**terms: Unpack[_BudgetOptions]) -> Budget:
    """The budget of a mechanism run as printed: replace-one, and its formulas use the true number of records."""
    n = terms.get("n")
    validate.check(n == "exact", "n", n, 'give n="exact": as published, the number of records is fixed and public')
    return replace(Budget(**terms), adjacency=Adjacency.REPLACE_ONE)


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
