"""The private side of one run: its secret noise, its ledger, and what it releases before the loop."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor

from isthmus.base import validate
from isthmus.base.space import Space
from isthmus.geometry.sketches.identity import IdentityMap
from isthmus.privacy import event_json
from isthmus.privacy.bounded import Bounded
from isthmus.privacy.leaks import leak, warn_of_large_delta
from isthmus.privacy.ledger import Ledger
from isthmus.privacy.library import dpa
from isthmus.privacy.noise import SecretSource, SeededSource
from isthmus.privacy.statement import Account, PrivacyStatement
from isthmus.round.pipeline import Pipeline, Promise, Release, StepSize, measure
from isthmus.round.sound import assumed, check_costs


@dataclass(frozen=True)
class Prepared:
    """What follows from releases before the loop: another problem, a step, a start, an update, a map for new rows.

    `target` is the range that targets were clipped to, where it was bought.
    """

    objective: Any
    step: StepSize | None = None
    start: Tensor | None = None
    update: Any = None
    transform: Any = None
    target: tuple[float, float] | None = None

    def fill(self, pipe: Pipeline) -> Pipeline:
        """The pipeline with what was prepared in its slots."""
        changes = {"step": self.step, "update": self.update}
        return replace(pipe, **{name: value for name, value in changes.items() if value is not None})


class Preparation(Protocol):
    """Releases before the loop."""

    def release(self, objective: Any, spending: Spending) -> tuple[dict[str, Tensor], Prepared]:
        """Charge and release: what was bought, which is public, and what follows from it (as `apply` would say)."""
        ...

    def events(self, bought: Mapping[str, Tensor]) -> list[Any]:
        """What those releases cost."""
        ...

    def apply(self, objective: Any, bought: Mapping[str, Tensor]) -> Prepared:
        """What follows from it: no further look at private data but through the transformed problem."""
        ...


class Spending:
    """Pays for every release of a run before it happens, and says afterwards what was promised.

    ledger      a `Ledger` shared by several runs, or None for one of this run alone with the promise as its budget
    noise_seed  for tests only: the noise can then be subtracted, and the statement says "not private"
    """

    def __init__(self, promise: Promise, ledger: Any = None, noise_seed: int | None = None) -> None:
        self.promise, self.noise = promise, SecretSource() if noise_seed is None else SeededSource(noise_seed)
        validate.check(
            promise.sound or ledger is None, "ledger", ledger, "a mechanism without a guarantee cannot share a budget"
        )
        budget = (promise.epsilon, promise.delta) if promise.sound else None
        self.ledger = Ledger(budget=budget, adjacency=promise.adjacency) if ledger is None else ledger
        self.seeded = self.noise.seeded
        self.leaks: tuple[str, ...] = ()
        self._before: list[tuple[Any, ...]] = []
        """Of each release before the loop its event, and its mechanism where that is known."""
        kept = getattr(self.ledger, "adjacency", promise.adjacency)
        remedy = f"its charges are counted for {kept.value}, this run's for {promise.adjacency.value}"
        validate.check(kept == promise.adjacency, "ledger", self.ledger, remedy)

    def warn(self, objective: Any) -> None:
        """Warn, before anything is spent, of what the promise does not cover."""
        warn_of_large_delta(self.promise.delta, self.promise.records or self.promise.n)
        self.leaks = tuple(leak(*each) for each in getattr(objective, "read_off", ()))

    def require(self) -> None:
        """Refuse a run that its ledger's budget does not hold, before anything is looked at."""
        plan, require = self.promise.plan, getattr(self.ledger, "require", None)
        if plan is not None and require is not None and self.promise.sound and self.promise.published is None:
            require(plan.total())

    def release(self, release: Release, rows: Any) -> Tensor:
        """One clipped sum of rows, outside the loop: charged, then released.  It is a sum, not a mean."""
        bounded = measure(release, IdentityMap(Space.flat(rows.d)), release.clip.init(), rows)
        return self.publish(release.name, bounded, release.mechanism)

    def publish(self, name: str, bounded: Bounded, mechanism: Any) -> Tensor:
        """A value whose bound was proven elsewhere: charged, then released."""
        check_costs(mechanism, self.promise.adjacency)
        event = mechanism.event(self.promise.adjacency)
        self.ledger.pay(name, event, **self._marks())
        self._before.append((event, mechanism))
        return mechanism.release(bounded, self.noise)

    def recall(self, events: list[Any]) -> None:
        """Releases of the run before it was interrupted: charged then, stated now."""
        self._before += [(event,) for event in events]

    def open(self, pipe: Pipeline, first: int, rounds: int) -> Any:
        """The charges of rounds first..rounds-1, reserved some at a time so that few of them wait for the disk."""
        if not hasattr(self.ledger, "run"):
            return self.ledger
        looks = {stage.name: -(-rounds // stage.every) - -(-first // stage.every) for stage in pipe.stages}
        events = self._events(pipe)
        return self.ledger.run(events, reserve={name: _reserve(looks[name]) for name in events}, **self._marks())

    def terms(self, pipe: Pipeline, planned: int) -> str:
        """What was bought, what a round of each stage costs and how many are planned: a run goes on on these terms."""
        rounds = {name: event_json.to_json(event) for name, event in self._events(pipe).items()}
        every = {stage.name: stage.every for stage in pipe.stages}
        bought = [event_json.to_json(event) for event, *_ in self._before]
        told = {"rounds": rounds, "every": every, "planned": planned, "before": bought}
        return event_json.canonical({**told, "n": self.promise.n, "sound": self.promise.sound})

    def statement(self, pipe: Pipeline, planned: int, done: int) -> PrivacyStatement:
        """What this run promises: all its planned releases, those before the loop included.

        A run that was stopped earlier states its whole plan too: what it had released may have decided when to stop,
        and then only the plan's epsilon holds (see "Stopping" in docs/privacy.md).
        """
        account = self._account(pipe, planned)
        account.assumptions = (*self.promise.assumptions, *assumed(pipe), *stopped(planned, done))
        return account.statement()

    def epsilon(self, pipe: Pipeline, rounds: int) -> float:
        """What so many rounds cost where their number was fixed beforehand."""
        return self._account(pipe, rounds).epsilon()

    def _account(self, pipe: Pipeline, rounds: int) -> Account:
        """Everything that so many rounds release, those before the loop included."""
        promise, noise = self.promise, self.noise.describe()
        account = Account(promise.delta, promise.adjacency, promise.n, self.seeded, leaks=self.leaks)
        for event, *mechanism in self._before:
            account.add(event, *mechanism, noise=noise if mechanism else "")
        for stage in (stage for stage in pipe.stages if stage.private):
            made, looks = [release.mechanism for release in stage.releases], -(-rounds // stage.every)
            how = stage.sampler.describe()
            account.add(stage.event(promise.adjacency), *made, count=looks, sampler=how, noise=noise)
        if promise.published:
            account.guarantees.append(promise.published)
        if not promise.sound:
            account.add(dpa.NonPrivateDpEvent())
        return account

    def _marks(self) -> dict[str, Any]:
        """A ledger is told of noise that can be subtracted, this run's or that of the run it goes on with."""
        return {"seeded": True} if self.seeded else {}

    def _events(self, pipe: Pipeline) -> dict[str, Any]:
        return {stage.name: stage.event(self.promise.adjacency) for stage in pipe.stages if stage.private}


def stopped(planned: int, done: int) -> list[str]:
    """What a statement says of a run that was stopped before its last round.

    >>> stopped(10, 10), len(stopped(10, 4))
    ([], 1)
    """
    if done >= planned:
        return []
    return [
        f"{done} of {planned} planned rounds were made, and all planned ones are counted: what was released may have "
        "decided when to stop"
    ]


def unspent(terms: str, done: int) -> Any:
    """The event of the rounds that a run on these terms has planned and not made after `done` of them."""
    told = json.loads(terms)
    left = {name: -(-told["planned"] // k) - -(-done // k) for name, k in told["every"].items()}
    return event_json.composed((event, left[name]) for name, event in told["rounds"].items() if left[name] > 0)


def _reserve(looks: int) -> int:
    """The largest divisor of a number of rounds, at most 100 and a tenth of it: reservations end with the run."""
    return max(k for k in range(1, max(1, min(100, looks // 10)) + 1) if looks % k == 0)
