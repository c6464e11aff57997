"""What `engine.accountant` shows: the ledger, with the names Opacus users know; and what a target epsilon allows."""

from __future__ import annotations

from collections.abc import Callable

from isthmus.base import validate
from isthmus.gradients.layers.forward_guard import MEAN, MIXING, RANDOM, SHAPES
from isthmus.privacy import Charge, FixedSize, FullBatch, Poisson, PrivacyPlan, accounting, event_json
from isthmus.privacy.accounting import Adjacency, solve
from isthmus.privacy.event_json import DpEvent, dpa
from isthmus.privacy.leaks import warn_of_large_delta
from isthmus.privacy.ledger import BudgetExceeded, Ledger

_ACCOUNTANTS = ("pld", "prv", "rdp")


class Accountant:
    """Epsilon of everything the ledger holds.

    "pld" (and "prv", the same distribution composed numerically) is tight; "rdp" is looser.  Of n records, where their
    number is public, a delta of 1/n or more is warned of.

    >>> Accountant(Ledger()).get_epsilon(1e-5)
    0.0
    """

    name = "pld"

    def __init__(self, ledger: Ledger, kind: str = "pld", n: int | None = None) -> None:
        remedy = 'use "pld": the central limit theorem of this one is no upper bound, and reports too little'
        validate.check(kind != "gdp", "accountant", kind, remedy)
        validate.one_of(_ACCOUNTANTS, accountant=kind)
        self.ledger, self.kind, self.n = ledger, kind, n

    @classmethod
    def mechanism(cls) -> str:
        """The name of the default accountant."""
        return cls.name

    def get_epsilon(self, delta: float) -> float:
        """Epsilon at delta of everything released so far, its number of rounds taken as fixed beforehand."""
        validate.open_unit(delta=delta)
        warn_of_large_delta(delta, self.n)
        if self.kind != "rdp" or not len(self):
            return self.ledger.spent(delta)
        return self.cost(self.ledger.event(), delta)

    def cost(self, event: DpEvent, delta: float) -> float:
        """Epsilon at delta of an event."""
        if self.kind != "rdp" or self.ledger.adjacency is not Adjacency.ADD_REMOVE:
            return accounting.epsilon_of(event, delta, self.ledger.adjacency)  # by Renyi's where the tight one cannot
        return float(dpa.rdp.RdpAccountant().compose(event).get_epsilon(delta))

    def multiplier(self, sampler: FullBatch | Poisson | FixedSize, rounds: int, epsilon: float, delta: float) -> float:
        """The noise multiplier with which that many rounds cost epsilon at delta, from below within 0.01 %.

        >>> from isthmus.privacy import Poisson
        >>> [round(Accountant(Ledger(), name).multiplier(Poisson(0.01), 99, 1.0, 1e-5), 2) for name in ("pld", "rdp")]
        [0.9, 1.08]
        """
        charge = Charge("gradient", rounds=rounds, sampler=sampler)
        plan = PrivacyPlan(epsilon, delta, self.ledger.adjacency, items=[charge])
        tight = plan.multiplier("gradient")
        if self.kind != "rdp":
            return tight

        def cost(z: float) -> float:
            return self.cost(dpa.SelfComposedDpEvent(sampler.event(dpa.GaussianDpEvent(z)), rounds), delta)

        return solve(cost, epsilon, tight)[0]

    def limit(self, rounds: int, budget: tuple[float, float]) -> Callable[[str, event_json.Json, int], None]:
        """What refuses more rounds than a target (epsilon, delta) pays for, in this accountant's numbers.

        >>> ledger = Ledger()
        >>> run = ledger.run({"main": dpa.GaussianDpEvent(9.0)}, limit=Accountant(ledger).limit(1, (1.0, 1e-5)))
        >>> run.charge("main", 0)
        >>> run.charge("main", 1)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        isthmus.privacy.ledger.BudgetExceeded: 'main' needs epsilon 0...
        """

        def refuse_more(stage: str, event: event_json.Json, made: int) -> None:
            if made >= rounds:
                held = self.ledger.event()
                more = accounting.compose([held, event_json.from_json(event)])
                spent, asked = (self.cost(total, budget[1]) for total in (held, more))
                raise BudgetExceeded(stage, 1, spent, asked, budget)

        return refuse_more

    @property
    def history(self) -> list[tuple[float, float, int]]:
        """(noise multiplier, sampling rate, steps) for each kind of round that is a sampled Gaussian."""
        entries: list[tuple[float, float, int]] = []
        records = event_json.flatten(event_json.to_json(self.ledger.event()), 1) if len(self) else []
        for record, count in records:
            inner, rate, z = event_json.from_json(record), 1.0, float("nan")
            if isinstance(inner, dpa.PoissonSampledDpEvent):
                inner, rate = inner.event, inner.sampling_probability
            elif isinstance(inner, dpa.SampledWithoutReplacementDpEvent):
                inner = inner.event
            if isinstance(inner, dpa.GaussianDpEvent):
                z = inner.noise_multiplier
            elif isinstance(inner, dpa.NonPrivateDpEvent):
                z = 0.0
            entries.append((float(z), float(rate), int(count)))
        return entries

    def __len__(self) -> int:
        return sum(self.ledger.rounds().values())


# ---------------------------------------------------------------- what the promise of a training rests on, in words

_ASSUMPTIONS = (
    "one record belongs to one person",
    MIXING,
    "whether a step is taken does not depend on the private data beyond what was released",
    "model, sketch, clip, normaliser, number of rounds and learning rates are public choices",
)
FIXED = (
    "the number of steps was fixed before training, whatever was released: stopping on results costs a planned budget"
)
UNSEEN = (
    "training went on from a checkpoint without the ledger that it was begun with: nobody has seen what was released "
    "after the checkpoint was written, by the training that wrote it or by others that went on from it (one ledger "
    "file for all of them counts that)"
)
COLLATED = (
    "what collate_fn makes of a record does not depend on the other records of its batch (nor what __getitems__ of the "
    "dataset makes of it, where it reads a batch in one call), or the module and the loss make nothing of the "
    "difference (compared on first and on random batches, where the module is given the tensors of the batch; not "
    "proven): pad to a public length, or mask padding in the module and in the loss"
)
SHARED = (
    "all ranks read the same dataset in the same order, so that a record belongs to one rank; rank 0's ledger is the "
    "one that counts"
)
_NORMALISER = "the number of records is public: it sets the sampling rate"
PUBLIC = "the public examples are not private records, and were chosen without looking at those"


def claims(*, seeded: bool, mean: bool, public: bool, collated: bool, shared: bool) -> tuple[str, ...]:
    """The assumptions of a training: with or without seeded noise, a loss that is a mean, public examples, a collate
    function of the user's own, and several ranks.

    >>> RANDOM in claims(seeded=True, mean=True, public=False, collated=False, shared=False)
    False
    >>> PUBLIC in claims(seeded=True, mean=True, public=True, collated=False, shared=False)
    True
    """
    conditions = {RANDOM: not seeded, MEAN: mean, SHAPES: True, COLLATED: collated, _NORMALISER: True}
    conditions |= {PUBLIC: public, SHARED: shared}
    return *_ASSUMPTIONS, *(words for words, holds in conditions.items() if holds)
