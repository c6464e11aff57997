"""The private side of one run: its secret noise, its ledger, and what it states afterwards."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor

from isthmus.base import validate
from isthmus.base.space import Space
from isthmus.core.group import Aggregator, Group
from isthmus.core.parts import said
from isthmus.core.pipeline import Pipeline, Promise, RunContext, Stage, look
from isthmus.core.sound import assumed, stopped
from isthmus.core.wire import Keys, Memo, State
from isthmus.gradients.layers.forward_guard import KEPT, MIXING, PIECES, RANDOM
from isthmus.privacy import event_json
from isthmus.privacy.event_json import DpEvent
from isthmus.privacy.leaks import leak, warn_of_large_delta
from isthmus.privacy.ledger import Chargeable, Ledger, opened
from isthmus.privacy.noise import SecretSource, SeededSource, Source
from isthmus.privacy.statement import Account, PrivacyStatement

Given = Ledger | str | os.PathLike[str] | None
"""A ledger, its path, or none."""
GONE = "nobody has seen what the interrupted run released after the round it was resumed from"


class PrivateSide:
    """_Pays for every release of a run before it happens, and says afterwards what was promised.

    ledger      a `Ledger` or its path, perhaps shared by several runs; None: one of this run alone with its promise
    noise_seed  for tests only: the noise can then be subtracted, and the statement says "not private"
    whole       how many records all holders of data have together; 0 where this process has them all
    leads       whether this process has the ledger: another one charges nothing, and states the same
    """

    def __init__(
        self, promise: Promise, ledger: Given = None, noise_seed: int | None = None, whole: int = 0, leads: bool = True
    ) -> None:
        self.promise, self.whole, self.leads = promise, whole, leads
        self.noise: Source = SecretSource() if noise_seed is None else SeededSource(noise_seed)
        self.seeded, self.leaks = self.noise.seeded, tuple[str, ...]()
        budget = (promise.epsilon, promise.delta) if math.isfinite(promise.epsilon) else None
        remedy = "leave it out: a mechanism without a guarantee cannot share a budget"
        validate.check(budget is not None or ledger is None, "ledger", ledger, remedy)
        if ledger is None:
            ledger = Ledger(budget=budget, adjacency=promise.adjacency)
        self.ledger: Ledger | Chargeable = opened(ledger, promise.adjacency)
        """Of one that is none of this library's nothing is asked but to charge."""
        self._bought: list[Stage] = []
        self._objectives: tuple[object, ...] = ()
        """Who holds the records: networks say what the promise rests on with them, and what their passes have kept."""
        if isinstance(self.ledger, Ledger):
            counted = self.ledger.adjacency
            remedy = f"give a ledger for {promise.adjacency.value}, as this run is: this one counts {counted.value}"
            validate.check(counted == promise.adjacency, "ledger", self.ledger, remedy)

    def warn(self, *objectives: object) -> None:
        """Warn, before anything is spent, of what the promise does not cover."""
        deltas = [self.promise.delta]
        if isinstance(self.ledger, Ledger) and self.ledger.budget is not None:
            deltas.append(self.ledger.budget[1])
        for delta in dict.fromkeys(deltas):
            warn_of_large_delta(delta, self.promise.records or self.promise.n)
        self._objectives = objectives
        self.leaks = tuple(leak(*read) for read in self._said("read_off"))

    def _said(self, name: str) -> list[Any]:
        """What the holders of the records say under a name, each thing once."""
        return list(dict.fromkeys(each for objective in self._objectives for each in said(objective, name)))

    def require(self, pipe: Pipeline, rounds: int) -> None:
        """Refuse a run that costs more than it promises, or than its ledger's budget holds, before it looks."""
        if not math.isfinite(self.promise.epsilon):
            return
        account = self._account(pipe, rounds)
        for item in pipe.before:
            account.add(item.event(self.promise.adjacency))
        if self.leads and isinstance(self.ledger, Ledger):
            self.ledger.require(account.event())
        cost, promised = account.epsilon(), self.promise.epsilon
        remedy = f"promise at least {cost:.6g}, which {rounds} rounds cost, or plan the run by its budget"
        validate.check(cost <= promised, "promise.epsilon", promised, remedy)

    def look(self, stage: Stage, holders: Aggregator, space: Space) -> Tensor:
        """One look at the data outside the loop: charged, then released."""
        with self._run({stage.name: stage.event(self.promise.adjacency)}) as run:
            context = RunContext(holders, space, Keys(0, self.noise), ledger=run, whole=self.whole or None)
            (value,) = look(stage, context, self.promise).values()
        self.recall(stage)
        return value

    def recall(self, stage: Stage) -> None:
        """State a look that was taken and charged, now or before an interruption."""
        self._bought.append(stage)

    def open(self, pipe: Pipeline, first: int, rounds: int) -> AbstractContextManager[Chargeable | None]:
        """What charges rounds first..rounds-1, as a context: some are reserved at a time, so few wait for the disk.

        At its end those that were never begun are given back.
        """
        private = [stage for stage in pipe.stages if stage.private]
        reserve = {stage.name: _reserve(stage.looks(rounds) - stage.looks(first)) for stage in private}
        return self._run({stage.name: stage.event(self.promise.adjacency) for stage in private}, reserve)

    def _run(
        self, events: dict[str, DpEvent], reserve: int | Mapping[str, int] = 1
    ) -> AbstractContextManager[Chargeable | None]:
        """A hold on the ledger, which is told of noise that can be subtracted; one that only charges is its own."""
        if not self.leads:
            return nullcontext(None)
        if isinstance(self.ledger, Ledger):
            return self.ledger.run(events, reserve, seeded=self.seeded)
        return nullcontext(self.ledger)

    def terms(self, pipe: Pipeline, planned: int) -> str:
        """What was bought, what a round of each stage costs and how many are planned: a run goes on on these terms."""

        def cost(stage: Stage) -> event_json.Json:
            return event_json.to_json(stage.event(self.promise.adjacency))

        terms = {
            "rounds": {stage.name: cost(stage) for stage in pipe.stages if stage.private},
            "every": {stage.name: stage.every for stage in pipe.stages},
            "planned": planned,
            "before": [cost(stage) for stage in self._bought],
            "n": self.promise.n,
        }
        return event_json.canonical(terms)

    def go_on(self, pipe: Pipeline, planned: int, resume: State | None) -> Memo:
        """What the state of the run keeps of these terms, with what an earlier part says of noise and leaks."""
        earlier = {} if resume is None else resume.parts
        self.seeded = self.seeded or bool(earlier.get("seeded"))
        self.leaks = tuple(dict.fromkeys([*earlier.get("leaks", ()), *self.leaks]))
        return {"terms": self.terms(pipe, planned), "seeded": self.seeded, "leaks": list(self.leaks)}

    def check_same(self, group: Group, pipe: Pipeline, planned: int) -> None:
        """Refuse processes that promise something else than the one that pays: each states what it was told."""
        promised, terms = [self.promise.epsilon, self.promise.delta, self.seeded], self.terms(pipe, planned)
        theirs, agreed = group.on_leader(lambda: (promised, terms))
        remedy = f"give all ranks the same budget, rounds and seeds: rank 0 pays for {theirs[:2]}"
        same = _near(theirs, promised) and _near(json.loads(agreed), json.loads(terms))
        validate.check(same, "epsilon, delta", promised[:2], remedy)

    def statement(
        self, pipe: Pipeline, planned: int, done: int, resumed: int | None = None, cut: bool = False
    ) -> PrivacyStatement:
        """What this run promises: all its planned releases, those before the loop included.

        A run that was stopped earlier states its whole plan too: what it had released may have decided when to stop,
        and then only the plan's epsilon holds (see "Stopping" in docs/privacy.md).  `cut` says whether batches went
        through in physical pieces.
        """
        account, networks, kept = self._account(pipe, planned), self._said("assumptions"), self._said("kept")
        if MIXING in networks and cut:
            networks.append(PIECES)
        assumptions = [line for line in networks if line != RANDOM or not self.seeded]
        assumptions += [*assumed(pipe, self._bought), *stopped(planned, done)]
        if resumed is not None:
            assumptions.append(f"{GONE}, {resumed}: its ledger has what that cost")
        account.assumptions = (*self.promise.assumptions, *assumptions)
        if kept:
            account.leaks = (*self.leaks, f"{KEPT}: {kept}")
        return account.statement()

    def epsilon(self, pipe: Pipeline, rounds: int) -> float:
        """What so many rounds cost where their number was fixed beforehand."""
        return self._account(pipe, rounds).epsilon()

    def _account(self, pipe: Pipeline, rounds: int) -> Account:
        """Everything that so many rounds release, after the looks before the loop."""
        promise, noise = self.promise, self.noise.describe()
        account = Account(promise.delta, promise.adjacency, promise.n, self.seeded, leaks=self.leaks)
        looks = [(stage, 1, "") for stage in self._bought]
        looks += [(stage, stage.looks(rounds), stage.sampler.describe()) for stage in pipe.stages if stage.private]
        for stage, count, sampler in looks:
            mechanisms = [release.mechanism for release in stage.releases]
            names = [release.name for release in stage.releases]
            event = stage.event(promise.adjacency)
            account.add(event, *mechanisms, names=names, count=count, sampler=sampler, noise=noise)
        return account


def _same_terms(old: str | None, new: str | None) -> bool:
    """Whether a run goes on on the terms it was begun with (see `PrivateSide.terms`).

    States of an earlier form say `sound` besides, and their noise was calibrated to 12 digits less: where that is all
    that differs they go on.
    """
    if old == new or old is None or new is None:
        return old == new
    terms = json.loads(old)
    return terms.pop("sound", None) is True and _near(terms, json.loads(new))


def _near(old: object, new: object) -> bool:
    """Equal values, numbers within 1e-9 of each other."""
    if isinstance(old, dict) and isinstance(new, dict):
        return old.keys() == new.keys() and all(_near(old[key], new[key]) for key in old)
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_near, old, new))
    if isinstance(old, float) and isinstance(new, float):
        return math.isclose(old, new, rel_tol=1e-9)
    return bool(old == new)


def unspent(terms: str, done: int) -> DpEvent:
    """The event of the rounds that a run on these terms has planned and not made after `done` of them."""
    plan = json.loads(terms)
    remaining = {name: -(-plan["planned"] // k) - -(-done // k) for name, k in plan["every"].items()}
    return event_json.composed(
        (event, remaining[name]) for name, event in plan["rounds"].items() if remaining[name] > 0
    )


def _reserve(looks: int) -> int:
    """The largest divisor of a number of rounds, at most 100 and a tenth of it: reservations end with the run."""
    return max(k for k in range(1, max(1, min(100, looks // 10)) + 1) if looks % k == 0)
