"""The front door of optimisation: a recipe, bound to a problem, run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from isthmus.base import notebook, validate
from isthmus.base.randomness import key
from isthmus.base.space import Space
from isthmus.core.group import Aggregator, Clients, Local
from isthmus.core.parts import Update
from isthmus.core.pipeline import Pipeline, Release, RunContext, StepSize, opened_again, run, start
from isthmus.core.sound import claims
from isthmus.core.spending import Spending, same_terms
from isthmus.core.wire import Keys, State
from isthmus.penalties import NoPenalty, Penalty
from isthmus.privacy.clips import Clip
from isthmus.privacy.plan import Charge
from isthmus.privacy.statement import PrivacyStatement
from isthmus.problems.scaling import RowMaps
from isthmus.sets import ConvexSet, Whole
from isthmus.sketches import Encoder, Identity

_Callback = Callable[[dict[str, Any], State], bool | None]


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
    arguments: Mapping[str, Any] = field(default_factory=dict)

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
    history: Sequence[dict[str, Any]]
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

    def plot(self, name: str = "loss", against: str = "dims", ax: Any = None, label: str | None = None) -> Any:
        """Draw a column of the history with matplotlib; returns the axes."""
        import matplotlib.pyplot as plt

        ax = plt.subplots()[1] if ax is None else ax
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
        stages = [
            replace(stage, releases=[self._filled(release) for release in stage.releases]) for stage in pipe.stages
        ]
        return replace(pipe, stages=stages, step=self.step or pipe.step, update=self.update or pipe.update)

    def _filled(self, release: Release) -> Release:
        if self.clip is not None and type(release.clip) is Clip:
            release = replace(release, clip=replace(release.clip, bound=self.clip))
        if self.encode is not None and isinstance(release.encode, Identity):
            release = replace(release, encode=self.encode)
        return release


def prepare(
    pipe: Pipeline, objective: object, spending: Spending | None, resume: State | None, aggregator: Aggregator
) -> tuple[Purchased, dict[str, Any], Aggregator]:
    """Take every purchase of the pipeline, or what an interrupted run has bought, and what follows from it.

    Gives what follows here, the released values by name for the state, and the holders of records: what was released
    is public, and every holder sees its own records through the same maps.
    """
    prepared = Purchased(objective)
    if spending is None or not pipe.before:
        return prepared, {}, aggregator
    for item in pipe.before:
        item.check(objective)
    bought: dict[str, Tensor | None] = {}
    earlier: dict[str, Tensor] = {} if resume is None else resume.parts["prepare"]
    holders = [prepared if problem is objective else Purchased(problem) for problem in aggregator.problems]
    for item in pipe.before:
        look, value = item.stage(prepared.objective), None
        if look is not None and resume is None:
            value = bought[item.name] = spending.look(look[0], aggregator, look[1])
        elif look is not None:
            value = bought[item.name] = earlier[item.name]
            spending.recall(look[0])
        with aggregator.group.alike():
            before, prepared = prepared, item.apply(prepared, value)
            holders = [prepared if holder is before else item.apply(holder, value) for holder in holders]
        aggregator = aggregator.holding([holder.objective for holder in holders])
    return prepared, {"prepare": bought}, aggregator


# ---------------------------------------------------------------- the front door


def minimize(
    objective: Any,
    recipe: Recipe | Pipeline,
    constraint: ConvexSet | None = None,
    *,
    steps: int | None = None,
    epochs: float | None = None,
    seed: int = 0,
    x0: Any = None,
    resume: State | None = None,
    callbacks: Iterable[_Callback] = (),
    record: int | str | None = "epoch",
    progress: bool | None = None,
    physical_batch_size: int | None = None,
    clients: Sequence[Any] | Aggregator | None = None,
    ledger: Any = None,
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
    group = aggregator.group
    with group.joined("minimize"):
        constraint = Whole() if constraint is None else constraint
        _check_arguments(constraint, steps, epochs, record, objective.space.d)
        if physical_batch_size is not None:
            validate.positive_int(physical_batch_size=physical_batch_size)
        for problem in (objective, *aggregator.problems):
            getattr(problem, "forget", int)()  # rows may have been written to since the last run
        n = sum(header[0] for header in group.agree("records", [objective.n]))
        validate.check(n > 0, "objective.n", n, "give at least one record")
        view, penalty = _View(objective, aggregator), getattr(objective, "penalty", None) or NoPenalty()
        binding = Binding(constraint, penalty, objective.space, n, steps, epochs, view.loss, view.gradient)
        remedy = "give a recipe, isthmus.algorithms.<name>(...), or a Pipeline"
        validate.check(isinstance(recipe, (Recipe, Pipeline)), "recipe", recipe, remedy)
        pipe = recipe.bind(binding) if isinstance(recipe, Recipe) else recipe
        if clients is not None and not isinstance(clients, Aggregator):
            aggregator = Clients(list(clients), pipe.wire.per_round)
        if claims(pipe):
            view.close(recipe)
        per_epoch = pipe.stages[-1].sampler.rounds(n)
        rounds = _rounds(pipe, steps, epochs, per_epoch)
        validate.check(x0 is None or not pipe.before, "x0", x0, "leave it out: this recipe finds its own start")
        spending = _spending(pipe, objective, ledger, noise_seed, aggregator, n)
        if spending is not None:
            spending.check_same(group, pipe, rounds)
            if resume is None:
                group.on_leader(lambda: spending.require(pipe, rounds))
        prepared, bought, aggregator = prepare(pipe, objective, spending, resume, aggregator)
        pipe, objective = prepared.fill(pipe), prepared.objective
        terms = _terms(spending, pipe, resume, rounds)
        if resume is not None:
            state = _on_terms(resume, terms, objective.space.d)
        else:
            first = _start_point(objective, constraint, x0) if prepared.start is None else prepared.start
            state = replace(start(pipe, first, seed), parts={**bought, **terms})
        watch = _Watch(_View(objective, aggregator), pipe, rounds, per_epoch, record, state)
        visible = False if group.rank else progress
        bar = notebook.bar(rounds, visible, initial=state.t, leave=False, unit="round")
        observe = watch.follow(list(callbacks), bar, spending)
        with bar, nullcontext(ledger) if spending is None else spending.open(pipe, state.t, rounds) as book:
            keys = Keys(seed, None if spending is None else spending.noise)
            public = partial(_public_rows, objective)
            where = (aggregator, objective.space, keys, public, per_epoch, physical_batch_size)
            context = RunContext(*where, ledger=book, whole=n)
            state, x, status = run(pipe, state, rounds, context, observe)
        with group.alike():
            average = pipe.average.output(state.average, state.w)
        certificate, certify = {}, getattr(pipe.stop, "certify", None)
        if x is not None and certify is not None and not pipe.private and not view.elsewhere:
            certificate = certify(view.mean(view.slope(x)), x, opened_again(pipe, state, x, context))
        privacy = None
        if spending is not None:
            resumed = None if resume is None else resume.t
            privacy = spending.statement(pipe, rounds, state.t, resumed, physical_batch_size is not None)
        bought_facts = prepared.transform, prepared.target, prepared.centre
        counts = state.dims, state.bytes, watch.seconds
        return Result(x, average, status, tuple(watch.history), privacy, *counts, state, certificate, *bought_facts)


def _holders(objective: Any, clients: Any) -> Aggregator:
    """Who holds the records: this process, several objectives in it, or whoever an aggregator says."""
    if clients is None:
        return Local(objective)
    if isinstance(clients, Aggregator):
        return clients.holding([objective if problem is None else problem for problem in clients.problems])
    remedy = "give a list of objectives, isthmus.Clients(...), or AllReduce()"
    validate.check(isinstance(clients, Sequence), "clients", clients, remedy)
    return Clients(list(clients))


def _rounds(pipe: Pipeline, steps: int | None, epochs: float | None, per_epoch: int) -> int:
    """How many rounds: as asked, else as many as the algorithm's own schedule says."""
    if steps is not None:
        return steps
    if epochs is not None:
        return max(1, round(epochs * per_epoch))
    if pipe.rounds is None:
        validate.refuse("steps, epochs", (None, None), "give one of the two: the recipe does not say how long it runs")
    return pipe.rounds


def _check_arguments(constraint: Any, steps: Any, epochs: Any, record: Any, d: int) -> None:
    validate.check(steps is None or epochs is None, "steps, epochs", (steps, epochs), "give one of the two")
    if steps is not None:
        validate.positive_int(steps=steps)
    if epochs is not None:
        validate.positive(epochs=epochs)
    if record not in (None, "epoch"):
        validate.positive_int(record=record)
    validate.check(hasattr(constraint, "project"), "constraint", constraint, "give a set from isthmus.sets")
    dim = getattr(constraint, "dim", None)
    remedy = f"give a set of dimension {d}, which is that of the objective: this one has {dim}"
    validate.check(dim in (None, d), "constraint", constraint, remedy)


def _spending(
    pipe: Pipeline, objective: Any, ledger: Any, noise_seed: int | None, aggregator: Aggregator, n: int
) -> Spending | None:
    """The private side of the run, where it has one; the ledger is in one process only."""
    if pipe.promise is None:
        return None
    aggregator.check_private(n, [stage.sampler for stage in pipe.stages])
    rank = aggregator.group.rank
    if noise_seed is not None and rank:  # other coins for other records
        noise_seed = key(noise_seed, rank)
    spending = Spending(pipe.promise, None if rank else ledger, noise_seed, whole=n, leads=not rank)
    spending.warn(objective, *aggregator.problems)
    return spending


def _terms(spending: Spending | None, pipe: Pipeline, resume: State | None, rounds: int) -> dict[str, Any]:
    """On what terms the run is made: what a round costs, whether any noise can be subtracted, what was not paid for."""
    if spending is None:
        return {}
    earlier = {} if resume is None else resume.parts
    spending.seeded = spending.seeded or bool(earlier.get("seeded"))
    spending.leaks = tuple(dict.fromkeys([*earlier.get("leaks", ()), *spending.leaks]))
    return {"terms": spending.terms(pipe, rounds), "seeded": spending.seeded, "leaks": list(spending.leaks)}


def _on_terms(state: State, terms: dict[str, Any], d: int) -> State:
    """The state that a run goes on from; one of other terms, or of another dimension, is refused."""
    same = same_terms(state.parts.get("terms"), terms.get("terms"))
    remedy = "continue with the recipe and the number of rounds that the run was begun with"
    validate.check(same, "resume", f"round {state.t}", remedy)
    validate.check(state.w.shape == (d,), "resume", tuple(state.w.shape), f"give a state of dimension {d}")
    validate.non_negative_int(**{"resume.t": state.t})
    return replace(state, parts={**state.parts, **terms})


def _start_point(objective: Any, constraint: ConvexSet, x0: Any) -> Tensor:
    d = objective.space.d
    if x0 is None:
        zero = torch.zeros(d, dtype=getattr(objective, "dtype", torch.float64))
        return constraint.project(zero)
    w = validate.as_tensor("x0", x0, ndim=1)
    validate.shape((d,), x0=w)
    remedy = f"start inside {constraint}, at `constraint.project(x0)` for instance"
    validate.check(bool(constraint.contains(w)), "x0", w, remedy)
    return w.clone()


def _public_rows(objective: Any, w: Tensor, data: Any) -> Any:
    """Gradients of the objective on public examples, which are never its own."""
    public = objective.on(data)
    remedy = "give the sketch public examples, which are not those that it is to protect"
    validate.check(public is not objective, "data", type(data).__name__, remedy)
    return public.rows(w)


class _View:
    """Looks at the objective itself, for recipes that are not private; closed as soon as one turns out to be."""

    def __init__(self, objective: Any, aggregator: Aggregator) -> None:
        self.objective, self.group, self.used, self.closed = objective, aggregator.group, False, False
        self.elsewhere = bool(getattr(objective, "elsewhere", False))

    def mean(self, value: Any) -> Any:
        """Of all holders, weighted by their records."""
        return self.group.mean(value, self.objective.n)

    def slope(self, w: Tensor) -> Any:
        """The mean gradient of any objective, from its rows where it has no method of its own."""
        if hasattr(self.objective, "gradient"):
            return self.objective.gradient(w)
        return self.objective.rows(w).sum() / self.objective.n

    def loss(self, w: Tensor) -> Any:
        """What a line search asks."""
        self._open()
        return self.mean(self.objective.loss(w))

    def gradient(self, w: Tensor) -> Any:
        """What a stop rule asks."""
        self._open()
        return self.mean(self.slope(w))

    def _open(self) -> None:
        remedy = "use what the pipeline releases: a private one may not read the loss or a gradient without noise"
        validate.check(not self.closed, "recipe", "a look at the objective", remedy)
        self.used = True

    def close(self, recipe: object) -> None:
        """No look from now on; one that was taken while the recipe was bound is refused."""
        self.closed = True
        remedy = "use public facts only: the recipe claims to be private, and read the loss or a gradient when set up"
        validate.check(not self.used, "recipe", getattr(recipe, "name", recipe), remedy)


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

    def __call__(self, record: dict[str, Any], state: State | None) -> bool:
        """Whether to stop; a private run records no loss and is never stopped by this."""
        if "loss" not in record:
            return False
        self.waited += 1
        if record["loss"] < self.best - self.min_delta:
            self.best, self.waited = record["loss"], 0
        return self.waited >= self.patience


class _Watch:
    """Records, callbacks and the progress bar; its own time does not count as the run's."""

    def __init__(
        self, view: _View, pipe: Pipeline, rounds: int, per_epoch: int, record: int | str | None, state: State
    ) -> None:
        self.view, self.pipe, self.rounds, self.per_epoch = view, pipe, rounds, per_epoch
        self.every: Any = per_epoch if record == "epoch" else record
        self.seconds = self.aside = 0.0
        self.history: list[dict[str, Any]] = []
        if self.every is not None and state.t == 0:
            self.history.append(self._record(state))

    def follow(
        self, callbacks: Sequence[_Callback], bar: Any, spending: Spending | None
    ) -> Callable[[State, float], bool]:
        """What is called after every round: whether to stop."""

        def observe(state: State, seconds: float) -> bool:
            self.seconds = seconds - self.aside
            bar.update(1)
            if spending is not None and not bar.disable and state.t % max(1, self.rounds // 20) == 0:
                spent, promised = (spending.epsilon(self.pipe, t) for t in (state.t, self.rounds))
                bar.set_postfix(epsilon=f"{spent:.4g} of {promised:.4g}", refresh=False)
            if self.every is None or (state.t % self.every and state.t != self.rounds):
                return False
            began = time.perf_counter()
            record = self._record(state)
            self.history.append(record)
            if "loss" in record:
                bar.set_postfix(loss=f"{record['loss']:.4g}", refresh=False)
            answers = [callback(record, state) for callback in callbacks]  # every callback is called
            self.aside += time.perf_counter() - began
            return any(answers)

        return observe

    def _record(self, state: State) -> dict[str, Any]:
        counts = {"dims": state.dims, "bytes": state.bytes}
        record = {"t": state.t, "epoch": state.t / self.per_epoch, "seconds": self.seconds, **counts}
        if isinstance(eta := self.pipe.step(max(0, state.t - 1)), (int, float)):
            record["eta"] = float(eta)
        if not self.pipe.private and not self.view.elsewhere:
            record["loss"] = float(self.view.mean(float(self.view.objective.loss(state.w))))
        return record
