"""What every private recipe takes: its budget, and the public number of records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from isthmus.base import validate
from isthmus.core.minimize import Binding
from isthmus.core.pipeline import Promise
from isthmus.privacy.adjacency import Adjacency
from isthmus.privacy.budget import default_delta
from isthmus.privacy.plan import Charge, PrivacyPlan
from isthmus.privacy.sampling import FixedSize, FullBatch, Poisson

ASSUMPTIONS = (
    "one record belongs to one person",
    "nothing about the data was published except what is stated here: step, clip, set, number of rounds and the sketch "
    "are public choices",
)


@dataclass(frozen=True)
class Budget:
    """(epsilon, delta), the adjacency, and what is public about the number of records.

    n  "exact": the true number of records is declared public; a number: a public estimate of it, which fixes the
       divisors and the sampling rate while the true number stays private
    """

    epsilon: float
    delta: float | None
    adjacency: Adjacency | str
    n: int | str | None

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
        return binding.n if self.n == "exact" else int(self.n or 1)

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
        delta = default_delta(self.records(binding)) if self.delta is None else self.delta
        return PrivacyPlan(self.epsilon, delta, self.relation, items=items)

    def promise(self, plan: PrivacyPlan, binding: Binding) -> Promise:
        """What the pipeline promises under a plan."""
        n = binding.n if self.n == "exact" else None
        delta = float(plan.delta or 0)
        return Promise(self.epsilon, delta, self.relation, n, ASSUMPTIONS, plan, self.records(binding))


def published_budget(epsilon: float, delta: float | None, n: int | str | None) -> Budget:
    """The budget of a mechanism run as printed: replace-one, and its formulas use the true number of records."""
    validate.check(n == "exact", "n", n, 'give n="exact": as published, the number of records is fixed and public')
    return Budget(epsilon, delta, Adjacency.REPLACE_ONE, n)


def rounds_of(binding: Binding, sampler: FullBatch | Poisson | FixedSize, n: int, scheduled: int | None = None) -> int:
    """How many rounds the run is planned for, as asked or as `scheduled`: it may stop earlier, never go on."""
    if binding.steps is not None:
        return binding.steps
    if binding.epochs is None:
        if scheduled is not None:
            return scheduled
        validate.refuse("steps, epochs", (None, None), "give one of the two: a private run is planned beforehand")
    return max(1, round(binding.epochs * sampler.rounds(n)))
