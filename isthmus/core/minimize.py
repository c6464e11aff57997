"""The front door of optimisation: a recipe, bound to a problem, run."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from isthmus.base import notebook, validate
from isthmus.base.randomness import key
from isthmus.base.space import Space
from isthmus.core import pipeline
from isthmus.core.group import Aggregator, Group
from isthmus.core.parts import Problem, Threshold, Update, said
from isthmus.core.pipeline import Clients, Local, Pipeline, Promise, Release, RunContext, Stage, StepSize
from isthmus.core.wire import Keys, Memo, State
from isthmus.gradients import Rows
from isthmus.gradients.layers.forward_guard import KEPT, MIXING, PIECES, RANDOM
from isthmus.penalties import NoPenalty, Penalty
from isthmus.privacy import event_json
from isthmus.privacy.clips import Clip
from isthmus.privacy.event_json import DpEvent
from isthmus.privacy.leaks import leak, warn_of_large_delta
from isthmus.privacy.ledger import Ledger, RunLedger, opened
from isthmus.privacy.noise import SecretSource, SeededSource, Source
from isthmus.privacy.plan import Charge
from isthmus.privacy.statement import Account, PrivacyStatement
from isthmus.problems.scaling import RowMaps
from isthmus.sets import ConvexSet, Whole
from isthmus.sketches import Encoder, Identity

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Record = dict[str, float]
_Callback = Callable[[Record, State], bool | None]
Given = Ledger | str | os.PathLike[str] | None
"""A ledger, its path, or none."""
GONE = "nobody has seen what the interrupted run released after the round it was resumed from"


@dataclass(frozen=True)
class Binding:
    """The public facts a recipe is bound to."""

    constraint: ConvexSet
    penalty: Penalty
    space: Space
    n: int
    steps: int | None
    epochs: float | None
    loss: Callable[[Tensor], float] | None = None
    """The objective itself, for line searches of runs that are not private."""
    gradient: Callable[[Tensor], Tensor] | None = None
    """Its full gradient, for stop rules of runs that are not private."""
    before: tuple[Charge, ...] = ()
    """Charges of releases before the loop that share a private recipe's budget (see `algorithms.purchases`)."""

    @property
    def d(self) -> int:
        return self.space.d


@dataclass(frozen=True)
class Recipe:
    """A named algorithm with its arguments: frozen, and without any data until it is bound."""

    name: str
    build: Callable[[Binding], Pipeline] = field(repr=False, compare=False)
    arguments: Mapping[str, object] = field(default_factory=dict)

    def bind(self, binding: Binding) -> Pipeline:
        """The pipeline for these public facts."""
        return self.build(binding)


@dataclass(frozen=True)
class Result:
    """The outcome of `minimize`.

    x         the point found; None when a stop rule was asked for and never fired
    average   the averaged point of the pipeline's average slot
    status    "finished", "stopped" (a stop rule fired), "none found", or "interrupted" (a callback asked)
    history   one record for each time the run was looked at
    privacy   the privacy statement of a private run, else None
    dims      gradient numbers used: the narrow dimension, added over rounds and senders
    bytes     what those numbers weigh on the wire
    seconds   time in the loop, records not counted
    certificate  for a stop rule: what it promised, checked on one full gradient
    transform  for a run that scaled its columns first: the public map from given rows to those x belongs to
    target    for a run that bought the range of its targets: that range
    centre    for a run that bought how they are distributed: (shift, width), learned was (y - shift) / width
    state     everything needed to go on: `minimize(..., resume=result.state)`
    """

    x: Tensor | None
    average: Tensor
    status: str
    history: Sequence[Record]
    privacy: PrivacyStatement | None
    dims: int
    bytes: int
    seconds: float
    state: State
    certificate: Mapping[str, float] = field(default_factory=dict)
    transform: RowMaps | None = None
    target: tuple[float, float] | None = None
    centre: tuple[float, float] | None = None

    def _repr_html_(self) -> str:
        """The run as a card of a notebook: what came out, what it took, and what it guarantees."""
        losses = self.curve()[1]
        rows = [
            ("outcome", self.status),
            ("rounds", f"{self.state.t:,}"),
            ("parameters", f"{len(self.average):,}"),
            ("last loss", f"{losses[-1]:.6g}" if losses else None),
            ("gradient numbers used", f"{self.dims:,}"),
            ("bytes sent", f"{self.bytes:,}"),
            ("seconds", f"{self.seconds:.3g}"),
        ]
        if self.privacy is not None:
            return notebook.card("Result of a run", notebook.facts(rows)) + self.privacy._repr_html_()
        return notebook.card("Result of a run without privacy: nothing is guaranteed", notebook.facts(rows))

    def curve(self, name: str = "loss", against: str = "t") -> tuple[list[float], list[float]]:
        """Two columns of the history, for plotting."""
        rows = [record for record in self.history if name in record]
        return [record[against] for record in rows], [record[name] for record in rows]

    def plot(self, name: str = "loss", against: str = "dims", ax: Axes | None = None, label: str | None = None) -> Axes:
        """Draw a column of the history with matplotlib; returns the axes."""
        import matplotlib.pyplot as plt

        ax = ax or plt.subplots()[1]
        ax.plot(*self.curve(name, against), label=label)
        ax.set_xlabel({"dims": "gradient numbers used", "bytes": "bytes sent", "t": "round"}.get(against, against))
        ax.set_ylabel(name)
        return ax


# ---------------------------------------------------------------- what is bought before the loop


@dataclass(frozen=True)
class Purchased:
    """What follows from purchases: another problem, a step, a start, an update, a map for new rows.

    target  the range that targets were clipped to, where it was bought
    centre  (shift, width): targets that were mapped into [-1, 1] are learned as (y - shift) / width
    clip    of the gradients, in place of the pipeline's own: what was bought is public, and so is what follows from it
    spread  the usual size of a margin, where it is known
    encode  of the gradients, in place of the pipeline's own: directions that were bought
    """

    objective: Any
    step: StepSize | None = None
    start: Tensor | None = None
    update: Update | None = None
    transform: RowMaps | None = None
    target: tuple[float, float] | None = None
    centre: tuple[float, float] | None = None
    clip: float | None = None
    spread: float | None = None
    encode: Encoder | None = None

    def fill(self, pipe: Pipeline) -> Pipeline:
        """The pipeline with what was bought in its slots; a clip that follows the norms keeps its own bound."""

        def filled(release: Release) -> Release:
            if self.clip is not None and type(release.clip) is Clip:
                release = replace(release, clip=replace(release.clip, bound=self.clip))
            if self.encode is not None and isinstance(release.encode, Identity):
                release = replace(release, encode=self.encode)
            return release

        stages = [replace(stage, releases=[*map(filled, stage.releases)]) for stage in pipe.stages]
        return replace(pipe, stages=stages, step=self.step or pipe.step, update=self.update or pipe.update)


def _take_purchases(
    pipe: Pipeline, objective: Problem, side: PrivateSide | None, resume: State | None, aggregator: Aggregator
) -> tuple[Purchased, Memo, Aggregator]:
    """Take every purchase of the pipeline, or what an interrupted run has bought, and what follows from it.

    Gives what follows here, the released values by name for the state, and the holders of records: what was released
    is public, and every holder sees its own records through the same maps.
    """
    purchased = Purchased(objective)
    if side is None or not pipe.before:
        return purchased, {}, aggregator
    for item in pipe.before:
        item.check(objective)
    values: dict[str, Tensor | None] = {}
    holders = [purchased if problem is objective else Purchased(problem) for problem in aggregator.problems]
    for item in pipe.before:
        looks = item.stage(purchased.objective)
        if looks is not None:
            stage, space = looks
            if resume is None:
                values[item.name] = side.look(stage, aggregator, space)
            else:
                values[item.name] = resume.parts["prepare"][item.name]
            side.bought.append(stage)
        value = values.get(item.name)
        with aggregator.group.alike():
            before, purchased = purchased, item.apply(purchased, value)
            holders = [purchased if holder is before else item.apply(holder, value) for holder in holders]
        aggregator = aggregator.holding([holder.objective for holder in holders])
    return purchased, {"prepare": values}, aggregator


# ---------------------------------------------------------------- what a private run pays and states


class PrivateSide:
    """Pays for every release of a run before it happens, and says afterwards what was promised.

    ledger      a `Ledger` or its path, perhaps shared by several runs; None: one of this run alone with its promise
    noise_seed  for tests only: the noise can then be subtracted, and the statement says "not private"
    whole       how many records all holders of data have together; 0 where this process has them all
    leads       whether this process has the ledger: another one charges nothing, and states the same
    """

    def __init__(
        self, promise: Promise, ledger: Given = None, noise_seed: int | None = None, whole: int = 0, leads: bool = True
    ) -> None:
        self.promise, self.whole = promise, whole
        self.noise: Source = SecretSource() if noise_seed is None else SeededSource(noise_seed)
        self.seeded, self.leaks = self.noise.seeded, tuple[str, ...]()
        budget = (promise.epsilon, promise.delta) if math.isfinite(promise.epsilon) else None
        remedy = "leave it out: a mechanism without a guarantee cannot share a budget"
        validate.check(budget is not None or ledger is None, "ledger", ledger, remedy)
        if ledger is None and leads:
            ledger = Ledger(budget=budget, adjacency=promise.adjacency)
        self.ledger: Ledger | RunLedger | None = opened(ledger, promise.adjacency)
        """Of one that is a run's already nothing is asked but to charge."""
        self.bought: list[Stage] = []
        """Looks before the loop that were taken and charged, now or before an interruption."""
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
        account = self.account(pipe, rounds)
        for item in pipe.before:
            account.add(item.event(self.promise.adjacency))
        if isinstance(self.ledger, Ledger):
            self.ledger.require(account.event())
        cost, promised = account.epsilon(), self.promise.epsilon
        remedy = f"promise at least {cost:.6g}, which {rounds} rounds cost, or plan the run by its budget"
        validate.check(cost <= promised, "promise.epsilon", promised, remedy)

    def look(self, stage: Stage, holders: Aggregator, space: Space) -> Tensor:
        """One look at the data outside the loop: charged, then released."""
        with self._run([stage]) as book:
            context = RunContext(holders, space, Keys(0, self.noise), ledger=book, whole=self.whole or None)
            (value,) = pipeline.look(stage, context, self.promise).values()
        return value

    def open(self, pipe: Pipeline, first: int, rounds: int) -> AbstractContextManager[RunLedger | None]:
        """What charges rounds first..rounds-1, as a context: some are reserved at a time, so few wait for the disk.

        At its end those that were never begun are given back.
        """
        private = [stage for stage in pipe.stages if stage.private]
        reserve = {stage.name: _reserve(stage.looks(rounds) - stage.looks(first)) for stage in private}
        return self._run(private, reserve)

    def _run(
        self, stages: Sequence[Stage], reserve: int | Mapping[str, int] = 1
    ) -> AbstractContextManager[RunLedger | None]:
        """A hold on the ledger, which is told of noise that can be subtracted; a hold is its own."""
        if not isinstance(self.ledger, Ledger):
            return nullcontext(self.ledger)
        events = {stage.name: stage.event(self.promise.adjacency) for stage in stages}
        return self.ledger.run(events, reserve, seeded=self.seeded)

    def terms(self, pipe: Pipeline, planned: int) -> str:
        """What was bought, what a round of each stage costs and how many are planned: a run goes on on these terms."""

        def cost(stage: Stage) -> event_json.Json:
            return event_json.to_json(stage.event(self.promise.adjacency))

        terms = {
            "rounds": {stage.name: cost(stage) for stage in pipe.stages if stage.private},
            "every": {stage.name: stage.every for stage in pipe.stages},
            "planned": planned,
            "before": [cost(stage) for stage in self.bought],
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
        account, networks, kept = self.account(pipe, planned), self._said("assumptions"), self._said("kept")
        if MIXING in networks and cut:
            networks.append(PIECES)
        assumptions = [line for line in networks if line != RANDOM or not self.seeded]
        assumptions += [*pipeline.assumed(pipe, self.bought), *pipeline.stopped(planned, done)]
        if resumed is not None:
            assumptions.append(f"{GONE}, {resumed}: its ledger has what that cost")
        account.assumptions = (*self.promise.assumptions, *assumptions)
        if kept:
            account.leaks = (*self.leaks, f"{KEPT}: {kept}")
        return account.statement()

    def account(self, pipe: Pipeline, rounds: int) -> Account:
        """Everything that so many rounds release, after the looks before the loop."""
        promise, noise = self.promise, self.noise.describe()
        account = Account(promise.delta, promise.adjacency, promise.n, self.seeded, leaks=self.leaks)
        looks = [(stage, 1, "") for stage in self.bought]
        looks += [(stage, stage.looks(rounds), stage.sampler.describe()) for stage in pipe.stages if stage.private]
        for stage, count, sampler in looks:
            mechanisms = [release.mechanism for release in stage.releases]
            names = [release.name for release in stage.releases]
            event = stage.event(promise.adjacency)
            account.add(event, *mechanisms, names=names, count=count, sampler=sampler, noise=noise)
        return account


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


# ---------------------------------------------------------------- the front door


def minimize(
    objective: Problem,
    recipe: Recipe | Pipeline,
    constraint: ConvexSet | None = None,
    *,
    steps: int | None = None,
    epochs: float | None = None,
    seed: int = 0,
    x0: object = None,
    resume: State | None = None,
    callbacks: Iterable[_Callback] = (),
    record: int | str | None = "epoch",
    progress: bool | None = None,
    physical_batch_size: int | None = None,
    clients: Sequence[Problem] | Aggregator | None = None,
    ledger: Given = None,
    noise_seed: int | None = None,
) -> Result:
    """Minimise an objective over a set: `min over w in C of (1/n) sum_i l_i(w) + penalty(w)`.

    objective   anything with `n`, `space`, `penalty`, `rows(w, index)` and `loss(w)`.  What it read off its data (see
                `Objective.read_off`: undeclared classes) is warned of in a private run, and stated as not covered
    recipe      `isthmus.algorithms.comp_sgd(...)` and the like, or a ready `Pipeline`
    steps       how many rounds; or `epochs`, how many passes over the data; or as the recipe's schedule says
    seed        public randomness: sketches, and batches of runs that are not private
    x0          where to start; by default the point of C nearest to 0
    resume      the state of an earlier result: goes on to the same `steps` as if never interrupted
    callbacks   called with (record, state) at each record; return True to stop (a private run states its whole plan:
                what was released may have decided)
    record      "epoch", a number of rounds, or None.  Private runs record nothing computed from private data.
    progress    a progress bar; None shows it on a terminal and in a notebook
    clients     objectives of several holders of data, or an aggregator; the objective is then their whole, in which
                every record counts the same (`isthmus.Clients(problems, uniform=True)`: every client)
    ledger      of a private run: a `privacy.Ledger` or its path, or None for one in memory
    noise_seed  of a private run, for tests only: the statement then says "not private"

    >>> from isthmus import LeastSquares, L1Ball, algorithms
    >>> X = torch.eye(4, dtype=torch.float64)
    >>> result = minimize(LeastSquares(X, X @ torch.tensor([1.0, 0, 0, 0]).double()),
    ...                   algorithms.gd(step=2.0), L1Ball(0.5), steps=50)
    >>> [round(v, 3) for v in result.x.tolist()]
    [0.5, 0.0, 0.0, 0.0]
    """
    aggregator = _holders(objective, clients)
    group, constraint = aggregator.group, Whole() if constraint is None else constraint
    with group.joined("minimize"):
        d = objective.space.d
        validate.check(steps is None or epochs is None, "steps, epochs", (steps, epochs), "give one of the two")
        for name, number in {"steps": steps, "physical_batch_size": physical_batch_size, "record": record}.items():
            if isinstance(number, str):
                validate.one_of(("epoch",), **{name: number})
            elif number is not None:
                validate.positive_int(**{name: number})
        if epochs is not None:
            validate.positive(epochs=epochs)
        projects, dim = said(constraint, "project") is not None, said(constraint, "dim")
        validate.check(projects, "constraint", constraint, "give a set from isthmus.sets")
        remedy = f"give a set of dimension {d}, which is that of the objective: this one has {dim}"
        validate.check(dim in (None, d), "constraint", constraint, remedy)
        for problem in (objective, *aggregator.problems):
            said(problem, "forget")()  # rows may have been written to since the last run
        n = sum(header[0] for header in group.agree("records", [objective.n]))
        validate.check(n > 0, "objective.n", n, "give at least one record")
        view, penalty = _View(objective, aggregator), said(objective, "penalty") or NoPenalty()
        remedy = "give a recipe, isthmus.algorithms.<name>(...), or a Pipeline"
        validate.check(isinstance(recipe, (Recipe, Pipeline)), "recipe", recipe, remedy)
        pipe, name = recipe, "Pipeline"
        if isinstance(recipe, Recipe):
            binding = Binding(constraint, penalty, objective.space, n, steps, epochs, view.loss, view.gradient)
            pipe, name = recipe.bind(binding), recipe.name
        assert isinstance(pipe, Pipeline)
        if clients is not None and not isinstance(clients, Aggregator):
            aggregator = Clients(list(clients), pipe.wire.per_round)
        if pipe.promise is not None:  # no stage adds noise without one
            view.close(name)
        per_epoch = pipe.stages[-1].sampler.rounds(n)
        rounds = steps if epochs is None else max(1, round(epochs * per_epoch))
        if rounds is None:
            rounds = pipe.rounds
        if rounds is None:
            remedy = "give one of the two: the recipe does not say how long it runs"
            validate.refuse("steps, epochs", (None, None), remedy)
        validate.check(x0 is None or not pipe.before, "x0", x0, "leave it out: this recipe finds its own start")
        side = None
        if pipe.promise is not None:
            aggregator.check_private(n, [stage.sampler for stage in pipe.stages])
            if group.rank:  # the ledger is in one process only, and other records have other coins
                ledger, noise_seed = None, None if noise_seed is None else key(noise_seed, group.rank)
            side = PrivateSide(pipe.promise, ledger, noise_seed, whole=n, leads=not group.rank)
            side.warn(objective, *aggregator.problems)
            side.check_same(group, pipe, rounds)
            if resume is None:
                group.on_leader(partial(side.require, pipe, rounds))
        purchased, parts, aggregator = _take_purchases(pipe, objective, side, resume, aggregator)
        pipe, objective = purchased.fill(pipe), purchased.objective
        if side is not None:
            parts |= side.go_on(pipe, rounds, resume)
        if resume is None:
            first = purchased.start
            if first is None:
                first = _start_point(objective, constraint, x0)
            state = replace(pipeline.start(pipe, first, seed), parts=parts)
        else:
            state = _resumed(resume, parts, objective.space.d)
        if group.rank:
            progress = False
        bar = notebook.bar(rounds, progress, initial=state.t, leave=False, unit="round")
        every = per_epoch if isinstance(record, str) else record
        watch = _Watch(view, pipe, rounds, per_epoch, every, list(callbacks), bar, side)
        if every is not None and state.t == 0:
            watch.add(state, 0.0)
        with bar, nullcontext() if side is None else side.open(pipe, state.t, rounds) as book:
            keys = Keys(seed, None if side is None else side.noise)
            where = (aggregator, objective.space, keys, partial(_public_rows, objective), per_epoch)
            context = RunContext(*where, physical_batch_size, ledger=book, whole=n)
            watch.began = time.perf_counter()
            seen = every is not None or not bar.disable  # what nobody looks at is not called
            state, x, status = pipeline.run(pipe, state, rounds, context, watch.observe if seen else None)
            seconds = watch.seconds
        with group.alike():
            average = pipe.average.output(state.average, state.w)
        certificate: Mapping[str, float] = {}
        if x is not None and isinstance(pipe.stop, Threshold) and not pipe.private and not view.elsewhere:
            again = context.open(pipe, replace(state, w=x, t=state.t - 1))  # the round that fired: public things only
            for stage in again.active:
                pipeline.bind_stage(again, stage)
            certificate = pipe.stop.certify(view.gradient(x), x, again)
        privacy = None
        if side is not None:
            resumed = None if resume is None else resume.t
            privacy = side.statement(pipe, rounds, state.t, resumed, physical_batch_size is not None)
        counts, facts = (state.dims, state.bytes, seconds), (purchased.transform, purchased.target, purchased.centre)
        return Result(x, average, status, tuple(watch.history), privacy, *counts, state, certificate, *facts)


def _holders(objective: Problem, clients: Sequence[Problem] | Aggregator | None) -> Aggregator:
    """Who holds the records: this process, several objectives in it, or whoever an aggregator says."""
    if clients is None:
        return Local(objective)
    if isinstance(clients, Aggregator):
        return clients.holding([objective if problem is None else problem for problem in clients.problems])
    remedy = "give a list of objectives, isthmus.Clients(...), or AllReduce()"
    validate.check(isinstance(clients, Sequence), "clients", clients, remedy)
    return Clients(list(clients))


def _resumed(state: State, parts: Memo, d: int) -> State:
    """The state that a run goes on from; one of other terms (see `PrivateSide.terms`) or dimension is refused."""
    old, new = state.parts.get("terms"), parts.get("terms")
    same = old == new
    if not same and old is not None and new is not None:
        # states of an earlier form say `sound` besides, and their noise was calibrated to 12 digits less
        terms = json.loads(old)
        same = terms.pop("sound", None) is True and _near(terms, json.loads(new))
    remedy = "continue with the recipe and the number of rounds that the run was begun with"
    validate.check(same, "resume", f"round {state.t}", remedy)
    validate.check(state.w.shape == (d,), "resume", tuple(state.w.shape), f"give a state of dimension {d}")
    validate.non_negative_int(**{"resume.t": state.t})
    return replace(state, parts=state.parts | parts)


def _start_point(objective: Problem, constraint: ConvexSet, x0: object) -> Tensor:
    d = objective.space.d
    if x0 is None:
        return constraint.project(torch.zeros(d, dtype=said(objective, "dtype")))
    w = validate.as_tensor("x0", x0, ndim=1)
    validate.shape((d,), x0=w)
    remedy = f"start inside {constraint}, at `constraint.project(x0)` for instance"
    validate.check(bool(constraint.contains(w)), "x0", w, remedy)
    return w.clone()


def _public_rows(objective: Any, w: Tensor, data: object) -> Rows:
    """Gradients of the objective on public examples, which are never its own."""
    public = objective.on(data)
    remedy = "give the sketch public examples, which are not those that it is to protect"
    validate.check(public is not objective, "data", type(data).__name__, remedy)
    rows: Rows = public.rows(w)
    return rows


class _View:
    """Looks at the objective itself, for recipes that are not private; closed as soon as one turns out to be."""

    def __init__(self, objective: Problem, aggregator: Aggregator) -> None:
        self.objective, self.group, self.used, self.closed = objective, aggregator.group, False, False
        self.elsewhere = bool(said(objective, "elsewhere"))

    def loss(self, w: Tensor) -> float:
        """What a line search and a record ask: the mean of all holders, weighted by their records."""
        self._open()
        return self.group.mean(float(self.objective.loss(w)), self.objective.n)

    def gradient(self, w: Tensor) -> Tensor:
        """What a stop rule asks; from the rows of an objective that has no method of its own."""
        self._open()
        own: Callable[[Tensor], Tensor] | None = said(self.objective, "gradient")
        if own is not None:
            return self.group.mean(own(w), self.objective.n)
        return self.group.mean(self.objective.rows(w).sum() / self.objective.n, self.objective.n)

    def _open(self) -> None:
        remedy = "use what the pipeline releases: a private one may not read the loss or a gradient without noise"
        validate.check(not self.closed, "recipe", "a look at the objective", remedy)
        self.used = True

    def close(self, recipe: str) -> None:
        """No look from now on; one that was taken while the recipe was bound is refused."""
        self.closed = True
        remedy = "use public facts only: the recipe claims to be private, and read the loss or a gradient when set up"
        validate.check(not self.used, "recipe", recipe, remedy)


class EarlyStop:
    """A callback that stops when the recorded loss has not fallen by `min_delta` for `patience` records.

    >>> stop = EarlyStop(patience=2)
    >>> [stop({"loss": value}, None) for value in (3.0, 2.0, 2.5, 2.0)]
    [False, False, False, True]
    """

    def __init__(self, patience: int = 3, min_delta: float = 0.0) -> None:
        validate.positive_int(patience=patience)
        validate.non_negative(min_delta=min_delta)
        self.patience, self.min_delta = patience, min_delta
        self.best, self.waited = float("inf"), 0

    def __call__(self, record: Record, state: State | None) -> bool:
        """Whether to stop; a private run records no loss and is never stopped by this."""
        if "loss" not in record:
            return False
        self.waited += 1
        if record["loss"] < self.best - self.min_delta:
            self.best, self.waited = record["loss"], 0
        return self.waited >= self.patience


@dataclass
class _Watch:
    """Records, callbacks and the progress bar; its own time does not count as the run's."""

    view: _View
    pipe: Pipeline
    rounds: int
    per_epoch: int
    every: int | None
    callbacks: Sequence[_Callback]
    bar: Any
    side: PrivateSide | None
    history: list[Record] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        """The time of the run up to now."""
        return time.perf_counter() - self.began

    def observe(self, state: State) -> bool:
        """Whether to stop."""
        self.bar.update(1)
        if self.side is not None and not self.bar.disable and state.t % max(1, self.rounds // 20) == 0:
            spent, promised = (self.side.account(self.pipe, t).epsilon() for t in (state.t, self.rounds))
            self.bar.set_postfix(epsilon=f"{spent:.4g} of {promised:.4g}", refresh=False)
        if self.every is None or (state.t % self.every and state.t != self.rounds):
            return False
        seconds = self.seconds
        record = self.add(state, seconds)
        if "loss" in record:
            self.bar.set_postfix(loss=f"{record['loss']:.4g}", refresh=False)
        answers = [callback(record, state) for callback in self.callbacks]  # every callback is called
        self.began += self.seconds - seconds
        return any(answers)

    def add(self, state: State, seconds: float) -> Record:
        """One record more."""
        record: Record = {"t": state.t, "epoch": state.t / self.per_epoch, "seconds": seconds}
        record |= {"dims": state.dims, "bytes": state.bytes}
        eta = self.pipe.step(max(0, state.t - 1))
        if isinstance(eta, (int, float)):
            record["eta"] = float(eta)
        if not self.pipe.private and not self.view.elsewhere:
            record["loss"] = self.view.loss(state.w)
        self.history.append(record)
        return record
