"""What `engine.accountant` shows: the ledger, with the names Opacus users know; and what a target epsilon allows."""

from __future__ import annotations

from typing import Any

from isthmus.base import validate
from isthmus.privacy import Charge, PrivacyPlan, accounting, event_json
from isthmus.privacy.adjacency import Adjacency
from isthmus.privacy.calibrate import solve
from isthmus.privacy.ledger import BudgetExceeded, Ledger
from isthmus.privacy.library import dpa

ACCOUNTANTS = ("pld", "prv", "rdp")


class Accountant:
    """Epsilon of everything the ledger holds.

    "pld" (and "prv", the same distribution composed numerically) is tight; "rdp" is looser.

    >>> Accountant(Ledger()).get_epsilon(1e-5)
    0.0
    """

    def __init__(self, ledger: Ledger, kind: str = "pld") -> None:
        validate.check(
            kind != "gdp", "accountant", kind, 'its central limit is no upper bound and under-reports: take "pld"'
        )
        validate.one_of(ACCOUNTANTS, accountant=kind)
        self.ledger, self.kind = ledger, kind

    @classmethod
    def mechanism(cls) -> str:
        """The name of the default accountant."""
        return "pld"

    def get_epsilon(self, delta: float) -> float:
        """Epsilon at delta of everything released so far, its number of rounds taken as fixed beforehand."""
        validate.open_unit(delta=delta)
        tight = self.kind != "rdp" or not len(self)
        return self.ledger.spent(delta) if tight else self.cost(self.ledger.event(), delta)

    def cost(self, event: Any, delta: float) -> float:
        """Epsilon at delta of an event."""
        if self.kind != "rdp" or self.ledger.adjacency is not Adjacency.ADD_REMOVE:
            return accounting.epsilon_of(event, delta, self.ledger.adjacency)  # by Renyi's where the tight one cannot
        return float(dpa.rdp.RdpAccountant().compose(event).get_epsilon(delta))

    def multiplier(self, sampler: Any, rounds: int, epsilon: float, delta: float) -> float:
        """The noise multiplier with which that many rounds cost epsilon at delta, from below within 0.01 %.

        >>> from isthmus.privacy import Poisson
        >>> [round(Accountant(Ledger(), each).multiplier(Poisson(0.01), 99, 1.0, 1e-5), 2) for each in ("pld", "rdp")]
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

    @property
    def history(self) -> list[tuple[float, float, int]]:
        """(noise multiplier, sampling rate, steps) for each kind of round that is a sampled Gaussian."""
        found = []
        for record, count in event_json.flatten(event_json.to_json(self.ledger.event()), 1) if len(self) else []:
            event = event_json.from_json(record)
            rate = getattr(event, "sampling_probability", 1.0)
            inner = getattr(event, "event", event)
            found.append((float(getattr(inner, "noise_multiplier", float("nan"))), float(rate), int(count)))
        return found

    def __len__(self) -> int:
        return sum(self.ledger.rounds().values())


class Limited:
    """A run's charges up to the rounds that its target pays for, whatever the ledger it shares has left.

    >>> event = dpa.GaussianDpEvent(9.0)
    >>> limited = Limited(Ledger().run({"main": event}), event, 1, (1.0, 1e-5), "pld")
    >>> limited.charge("main", 0)
    >>> limited.charge("main", 1)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    isthmus.privacy.ledger.BudgetExceeded: 'main' is refused: 1 more round(s) would bring epsilon from 0.382... to ...
    """

    def __init__(self, run: Any, event: Any, rounds: int, budget: tuple[float, float], kind: str) -> None:
        self.run, self.event, self.rounds, self.budget, self.id = run, event, rounds, budget, run.id
        self._accountant, self._used = Accountant(run.ledger, kind), 0

    def charge(self, stage: Any, t: int = 0) -> None:
        """Pay for one round of a stage, or refuse."""
        if max(t, self._used) >= self.rounds:
            delta, more = self.budget[1], accounting.compose([self.run.ledger.event(), self.event])
            spent, asked = self._accountant.get_epsilon(delta), self._accountant.cost(more, delta)
            raise BudgetExceeded(getattr(stage, "name", stage), 1, spent, asked, self.budget)
        self.run.charge(stage, t)
        self._used += 1
