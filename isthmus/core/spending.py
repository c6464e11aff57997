"""The private side of one run: its secret noise, its ledger, and what it states afterwards."""

from __future__ import annotations

import json
import math
import os
from contextlib import nullcontext
from typing import Any

from torch import Tensor

from isthmus.base import validate
from isthmus.base.space import Space
from isthmus.core.group import Aggregator, Group
from isthmus.core.pipeline import Pipeline, Promise, RunContext, Stage, look
from isthmus.core.sound import assumed, stopped
from isthmus.core.wire import Keys
from isthmus.gradients.layers.passes import KEPT, MIXING, PIECES, RANDOM
from isthmus.privacy import event_json
from isthmus.privacy.leaks import leak, warn_of_large_delta
from isthmus.privacy.ledger import Ledger, opened
from isthmus.privacy.noise import SecretSource, SeededSource
from isthmus.privacy.statement import Account, PrivacyStatement

GONE = "nobody has seen what the interrupted run released after the round it was resumed from"


class Spending:
    """Pays for every release of a run before it happens, and says afterwards what was promised.

    ledger      a `Ledger` or its path, perhaps shared by several runs; None: one of this run alone with its promise
    noise_seed  for tests only: the noise can then be subtracted, and the statement says "not private"
    whole       how many records all holders of data have together; None where this process has them all
    leads       whether this process has the ledger: another one charges nothing, and states the same
    """

    def __init__(
        self,
        promise: Promise,
        ledger: Ledger | str | os.PathLike[str] | None = None,
        noise_seed: int | None = None,
        *,
        whole: int | None = None,
        leads: bool = True,
    ) -> None:
        self.promise, self.noise = promise, SecretSource() if noise_seed is None else SeededSource(noise_seed)
        self.whole, self.leads = whole, leads
        budget = None
        if math.isfinite(promise.epsilon):
            budget = promise.epsilon, promise.delta
        else:
            remedy = "leave it out: a mechanism without a guarantee cannot share a budget"
            validate.check(ledger is None, "ledger", ledger, remedy)
        if ledger is None:
            ledger = Ledger(budget=budget, adjacency=promise.adjacency)
        self.ledger: Ledger = opened(ledger, promise.adjacency)
        self.seeded = self.noise.seeded
        self.leaks: tuple[str, ...] = ()
        self._before: list[Stage] = []
        self._objectives: tuple[Any, ...] = ()
        """Who holds the records: networks say what the promise rests on with them, and what their passes have kept."""
        counted = getattr(self.ledger, "adjacency", promise.adjacency)
        remedy = f"give a ledger for {promise.adjacency.value}, as this run is: this one counts {counted.value}"
        validate.check(counted == promise.adjacency, "ledger", self.ledger, remedy)

    def warn(self, *objectives: object) -> None:
        """Warn, before anything is spent, of what the promise does not cover."""
        n = self.promise.records or self.promise.n
        _, delta = getattr(self.ledger, "budget", None) or (None, self.promise.delta)
        for each in dict.fromkeys((self.promise.delta, delta)):
            warn_of_large_delta(each, n)
        facts = dict.fromkeys(fact for objective in objectives for fact in getattr(objective, "read_off", ()))
        self.leaks = tuple(leak(*fact) for fact in facts)
        self._objectives = objectives

    def require(self, pipe: Pipeline, rounds: int) -> None:
        """Refuse a run that costs more than it promises, or than its ledger's budget holds, before it looks."""
        if not math.isfinite(self.promise.epsilon):
            return
        account = self._account(pipe, rounds)
        for item in pipe.before:
            account.add(item.event(self.promise.adjacency))
        if self.leads and hasattr(self.ledger, "require"):
            self.ledger.require(account.event())
        cost, promised = account.epsilon(), self.promise.epsilon
        remedy = f"promise at least {cost:.6g}, which {rounds} rounds cost, or plan the run by its budget"
        validate.check(cost <= promised, "promise.epsilon", promised, remedy)

    def look(self, stage: Stage, holders: Aggregator, space: Space) -> Tensor:
        """One look at the data outside the loop: charged, then released."""
        event = stage.event(self.promise.adjacency)
        with self._run({stage.name: event}) as run:
            context = RunContext(holders, space, Keys(0, self.noise), ledger=run, whole=self.whole)
            (value,) = look(stage, context, self.promise).values()
        self.recall(stage)
        return value

    def recall(self, stage: Stage) -> None:
        """State a look that was taken and charged, now or before an interruption."""
        self._before.append(stage)

    def open(self, pipe: Pipeline, first: int, rounds: int) -> Any:
        """What charges rounds first..rounds-1, as a context: some are reserved at a time, so few wait for the disk.

        At its end those that were never begun are given back.
        """
        looks = {stage.name: -(-rounds // stage.every) - -(-first // stage.every) for stage in pipe.stages}
        events = self._events(pipe)
        return self._run(events, reserve={name: _reserve(looks[name]) for name in events})

    def terms(self, pipe: Pipeline, planned: int) -> str:
        """What was bought, what a round of each stage costs and how many are planned: a run goes on on these terms."""
        rounds = {name: event_json.to_json(event) for name, event in self._events(pipe).items()}
        every = {stage.name: stage.every for stage in pipe.stages}
        bought = [event_json.to_json(stage.event(self.promise.adjacency)) for stage in self._before]
        terms = {"rounds": rounds, "every": every, "planned": planned, "before": bought}
        return event_json.canonical({**terms, "n": self.promise.n})

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
        account = self._account(pipe, planned)
        networks = [line for objective in self._objectives for line in getattr(objective, "assumptions", ())]
        networks += [PIECES] if MIXING in networks and cut else []
        said = [line for line in networks if line != RANDOM or not self.seeded]
        account.assumptions = (*self.promise.assumptions, *said, *assumed(pipe, self._before), *stopped(planned, done))
        kept = dict.fromkeys(name for objective in self._objectives for name in getattr(objective, "kept", ()))
        account.leaks = (*self.leaks, *([f"{KEPT}: {list(kept)}"] if kept else []))
        if resumed is not None:
            account.assumptions = (*account.assumptions, f"{GONE}, {resumed}: its ledger has what that cost")
        return account.statement()

    def epsilon(self, pipe: Pipeline, rounds: int) -> float:
        """What so many rounds cost where their number was fixed beforehand."""
        return self._account(pipe, rounds).epsilon()

    def _account(self, pipe: Pipeline, rounds: int) -> Account:
        """Everything that so many rounds release, after the looks before the loop."""
        promise, noise = self.promise, self.noise.describe()
        account = Account(promise.delta, promise.adjacency, promise.n, self.seeded, leaks=self.leaks)
        looks = [(stage, 1, "") for stage in self._before]
        for stage in pipe.stages:
            if stage.private:
                looks.append((stage, -(-rounds // stage.every), stage.sampler.describe()))
        for stage, count, sampler in looks:
            mechanisms = [release.mechanism for release in stage.releases]
            names = [release.name for release in stage.releases]
            event = stage.event(promise.adjacency)
            account.add(event, *mechanisms, names=names, count=count, sampler=sampler, noise=noise)
        return account

    def _run(self, events: dict[str, Any], **reserve: Any) -> Any:
        """A hold on the ledger, which is told of noise that can be subtracted; one that only charges is its own."""
        if not self.leads:
            return nullcontext(None)
        if not hasattr(self.ledger, "run"):
            return nullcontext(self.ledger)
        return self.ledger.run(events, **reserve, seeded=self.seeded)

    def _events(self, pipe: Pipeline) -> dict[str, Any]:
        return {stage.name: stage.event(self.promise.adjacency) for stage in pipe.stages if stage.private}


def same_terms(old: str | None, new: str | None) -> bool:
    """Whether a run goes on on the terms it was begun with (see `Spending.terms`).

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


def unspent(terms: str, done: int) -> Any:
    """The event of the rounds that a run on these terms has planned and not made after `done` of them."""
    plan = json.loads(terms)
    remaining = {name: -(-plan["planned"] // k) - -(-done // k) for name, k in plan["every"].items()}
    return event_json.composed(
        (event, remaining[name]) for name, event in plan["rounds"].items() if remaining[name] > 0
    )


def _reserve(looks: int) -> int:
    """The largest divisor of a number of rounds, at most 100 and a tenth of it: reservations end with the run."""
    return max(k for k in range(1, max(1, min(100, looks // 10)) + 1) if looks % k == 0)
