"""The front door of optimisation: a recipe, bound to a problem, run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.notebook import bar
from isthmus.base.randomness import key
from isthmus.base.space import Space
from isthmus.core.aggregators import Aggregator, Clients, Local
from isthmus.core.before import Prepared, prepare
from isthmus.core.pipeline import Pipeline, Stage
from isthmus.core.result import Result
from isthmus.core.sound import claims
from isthmus.core.spending import Spending, same_terms
from isthmus.core.state import State
from isthmus.core.step import Setting, opened_again, run, start
from isthmus.core.wire import Keys
from isthmus.penalties import NoPenalty, Penalty
from isthmus.privacy.plan import Charge
from isthmus.sets import ConvexSet, Whole

Callback = Callable[[dict[str, Any], State], bool | None]


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
    """Charges of releases before the loop that share a private recipe's budget (see `algorithms.before`)."""

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
    callbacks: Iterable[Callback] = (),
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
    aggregator = _aggregator(objective, clients)
    request = _Request(steps, epochs, seed, x0, resume, tuple(callbacks), record, progress, physical_batch_size)
    with aggregator.group.joined("minimize"):
        return _minimized(objective, recipe, constraint, request, aggregator, clients, ledger, noise_seed)


@dataclass(frozen=True)
class _Request:
    """How long a run is, where it starts and who watches it."""

    steps: int | None
    epochs: float | None
    seed: int
    x0: Any
    resume: State | None
    callbacks: tuple[Callback, ...]
    record: int | str | None
    progress: bool | None
    physical: int | None


def _minimized(
    objective: Any,
    recipe: Recipe | Pipeline,
    constraint: ConvexSet | None,
    request: _Request,
    aggregator: Aggregator,
    clients: Any,
    ledger: Any,
    noise_seed: int | None,
) -> Result:
    constraint = Whole() if constraint is None else constraint
    space, penalty = objective.space, getattr(objective, "penalty", None) or NoPenalty()
    steps, epochs, seed, x0, resume = request.steps, request.epochs, request.seed, request.x0, request.resume
    _check_arguments(constraint, steps, epochs, request.record, request.physical, space.d)
    elsewhere = getattr(objective, "elsewhere", False)
    value, slope, mine, group = objective.loss, _gradient(objective), objective.n, aggregator.group
    loss, gradient = _Look(lambda w: group.mean(value(w), mine)), _Look(lambda w: group.mean(slope(w), mine))
    for problem in (objective, *aggregator.problems):
        getattr(problem, "forget", int)()  # rows may have been written to since the last run
    n = sum(header[0] for header in group.agree("records", [mine]))
    validate.check(n > 0, "objective.n", n, "give at least one record")
    pipe = _bound(recipe, Binding(constraint, penalty, space, n, steps, epochs, loss, gradient))
    aggregator = _aggregator_of(aggregator, clients, pipe)
    if claims(pipe):
        loss.close(recipe)
        gradient.close(recipe)
    per_epoch = pipe.stages[-1].sampler.rounds(n)
    rounds = _rounds(pipe, steps, epochs, per_epoch)
    validate.check(x0 is None or not pipe.before, "x0", x0, "leave it out: this recipe finds its own start")
    spending = _spending(pipe, objective, ledger, noise_seed, aggregator, n)
    if spending is not None:
        spending.check_same(aggregator, pipe, rounds)
    if spending is not None and resume is None:
        group.on_leader(lambda: spending.require(pipe, rounds))
    prepared, bought, aggregator = _prepare(pipe, objective, spending, resume, aggregator)
    pipe, objective, space = prepared.fill(pipe), prepared.objective, prepared.objective.space
    state = _first_state(pipe, prepared, constraint, request, bought, _terms(spending, pipe, resume, rounds))
    spent = None if spending is None else (lambda t: spending.epsilon(pipe, t))
    watch = _Watch(objective, pipe, rounds, per_epoch, request, state, spent, aggregator)
    hold = nullcontext(ledger) if spending is None else spending.open(pipe, state.t, rounds)
    with watch, hold as book:
        setting = Setting(
            aggregator=aggregator,
            space=space,
            keys=Keys(seed, None if spending is None else spending.noise),
            public_rows=lambda w, data: _public(objective, data).rows(w),
            per_epoch=per_epoch,
            physical=request.physical,
            ledger=book,
            whole=n,
        )
        state, x, status = run(pipe, state, rounds, setting, watch)
    with group.alike():
        average = pipe.average.output(state.average, state.w)
    resumed = None if resume is None else resume.t
    return Result(
        x=x,
        average=average,
        status=status,
        history=tuple(watch.history),
        privacy=None
        if spending is None
        else spending.statement(pipe, rounds, state.t, resumed, request.physical is not None),
        dims=state.dims,
        bytes=state.bytes,
        seconds=watch.seconds,
        state=state,
        certificate=_certificate(pipe, None if elsewhere else lambda w: group.mean(slope(w), mine), x, state, setting),
        transform=prepared.transform,
        target=prepared.target,
        centre=prepared.centre,
    )


def _first_state(
    pipe: Pipeline, prepared: Prepared, constraint: ConvexSet, request: _Request, bought: Any, terms: Any
) -> State:
    """Where the loop begins: at the start that was found or given, or where an earlier run was stopped."""
    begun = request.resume
    if begun is None:
        own = prepared.start if request.x0 is None else None
        first = _start_point(prepared.objective, constraint, request.x0) if own is None else own
        begun = start(pipe, first, request.seed).replace(parts={**bought, **terms})
    return _on_terms(begun, terms, prepared.objective.space.d)


def _spending(
    pipe: Pipeline, objective: Any, ledger: Any, noise_seed: int | None, aggregator: Aggregator, n: int
) -> Spending | None:
    """The private side of the run, where it has one; the ledger is in one process only."""
    if pipe.promise is None:
        return None
    aggregator.check_private(n, [stage.sampler for stage in pipe.stages])
    rank = aggregator.group.rank
    own, seed = None if rank else ledger, noise_seed
    if noise_seed is not None and rank:  # other coins for other records
        seed = key(noise_seed, rank)
    spending = Spending(pipe.promise, own, seed, whole=n, leads=not rank)
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
    validate.check(
        same,
        "resume",
        f"round {state.t}",
        "continue with the recipe and the number of rounds that the run was begun with",
    )
    validate.check(state.w.shape == (d,), "resume", tuple(state.w.shape), f"give a state of dimension {d}")
    validate.non_negative_int(**{"resume.t": state.t})
    return state.replace(parts={**state.parts, **terms})


def _prepare(
    pipe: Pipeline, objective: Any, spending: Spending | None, resume: State | None, aggregator: Aggregator
) -> tuple[Prepared, dict[str, Any], Aggregator]:
    """Buy what the pipeline needs to know before its loop, or take what an interrupted run has bought."""
    if spending is None or not pipe.before:
        return Prepared(objective), {}, aggregator
    if resume is None:
        prepared, bought, aggregator = prepare(pipe, objective, spending.look, aggregator)
        return prepared, {"prepare": bought}, aggregator
    earlier = resume.parts["prepare"]

    def recall(stage: Stage, holders: Aggregator, space: Space) -> Tensor:
        spending.recall(stage)
        value: Tensor = earlier[stage.name]
        return value

    prepared, _, aggregator = prepare(pipe, objective, recall, aggregator)
    return prepared, {"prepare": earlier}, aggregator


class _Look:
    """A look at the objective itself, for recipes that are not private; closed as soon as one turns out to be."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        self.function, self.used, self.closed = function, False, False

    def __call__(self, w: Tensor) -> Any:
        remedy = "use what the pipeline releases: a private one may not read the loss or a gradient without noise"
        validate.check(not self.closed, "recipe", "a look at the objective", remedy)
        self.used = True
        return self.function(w)

    def close(self, recipe: Any) -> None:
        """No look from now on; one that was taken while the recipe was bound is refused."""
        name, self.closed = getattr(recipe, "name", type(recipe).__name__), True
        remedy = (
            "use public facts only: the recipe claims to be private, and read the loss or a gradient while it was "
            "set up"
        )
        validate.check(not self.used, "recipe", name, remedy)


def _public(objective: Any, data: Any) -> Any:
    """The objective on public examples, which are never its own."""
    public = objective.on(data)
    remedy = "give the sketch public examples, which are not those that it is to protect"
    validate.check(public is not objective, "data", type(data).__name__, remedy)
    return public


def _gradient(objective: Any) -> Callable[[Tensor], Tensor]:
    """The mean gradient of any objective, from its rows where it has no method of its own."""
    return getattr(objective, "gradient", None) or (lambda w: objective.rows(w).sum() / objective.n)


def _bound(recipe: Recipe | Pipeline, binding: Binding) -> Pipeline:
    """The pipeline of a recipe, or the one that was given."""
    if isinstance(recipe, Recipe):
        return recipe.bind(binding)
    if not isinstance(recipe, Pipeline):
        validate.refuse("recipe", recipe, "give a recipe, isthmus.algorithms.<name>(...), or a Pipeline")
    return recipe


def _certificate(
    pipe: Pipeline,
    gradient: Callable[[Tensor], Tensor] | None,
    x: Tensor | None,
    state: State,
    setting: Setting,
) -> dict[str, float]:
    """What a stop rule promised, checked on one full gradient; never on the data of a private run."""
    certify = getattr(pipe.stop, "certify", None)
    if x is None or certify is None or gradient is None or pipe.private:
        return {}
    figures: dict[str, float] = certify(gradient(x), x, opened_again(pipe, state, x, setting))
    return figures


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
        if record["loss"] < self.best - self.min_delta:
            self.best, self.waited = record["loss"], 0
        else:
            self.waited += 1
        return self.waited >= self.patience


class _Watch:
    """Records, callbacks and the progress bar; its own time does not count as the run's."""

    def __init__(
        self,
        objective: Any,
        pipe: Pipeline,
        rounds: int,
        per_epoch: int,
        request: _Request,
        state: State,
        spent: Callable[[int], float] | None,
        aggregator: Aggregator,
    ) -> None:
        self.group, progress = aggregator.group, request.progress
        self.objective, self.pipe, self.rounds, self.per_epoch = objective, pipe, rounds, per_epoch
        self.every: Any = per_epoch if request.record == "epoch" else request.record
        self.callbacks, self.aside, self.spent = request.callbacks, 0.0, spent
        self.history: list[dict[str, Any]] = []
        self.seconds = 0.0
        self.bar = bar(rounds, False if self.group.rank else progress, initial=state.t, leave=False, unit="round")
        if self.every is not None and state.t == 0:
            self.history.append(self._record(state))

    def __enter__(self) -> _Watch:
        return self

    def __exit__(self, *error: Any) -> None:
        self.bar.close()

    def __call__(self, state: State, seconds: float) -> bool:
        self.seconds = seconds - self.aside
        self.bar.update(1)
        if self.spent is not None and not self.bar.disable and state.t % max(1, self.rounds // 20) == 0:
            spent = f"{self.spent(state.t):.4g} of {self.spent(self.rounds):.4g}"
            self.bar.set_postfix(epsilon=spent, refresh=False)
        if self.every is None or (state.t % self.every and state.t != self.rounds):
            return False
        began = time.perf_counter()
        record = self._record(state)
        self.history.append(record)
        if "loss" in record:
            self.bar.set_postfix(loss=f"{record['loss']:.4g}", refresh=False)
        answers = [callback(record, state) for callback in self.callbacks]  # every callback is called
        self.aside += time.perf_counter() - began
        return any(answers)

    def _record(self, state: State) -> dict[str, Any]:
        record = {
            "t": state.t,
            "epoch": state.t / self.per_epoch,
            "seconds": self.seconds,
            "dims": state.dims,
            "bytes": state.bytes,
        }
        if isinstance(eta := self.pipe.step(max(0, state.t - 1)), (int, float)):
            record["eta"] = float(eta)
        if not self.pipe.private and not getattr(self.objective, "elsewhere", False):
            record["loss"] = float(self.group.mean(float(self.objective.loss(state.w)), self.objective.n))
        return record


def _start_point(objective: Any, constraint: ConvexSet, x0: Any) -> Tensor:
    d = objective.space.d
    if x0 is None:
        zero = torch.zeros(d, dtype=getattr(objective, "dtype", torch.float64))
        return constraint.project(zero)
    w = validate.as_tensor("x0", x0, ndim=1)
    validate.shape((d,), x0=w)
    validate.check(
        bool(constraint.contains(w)), "x0", w, f"start inside {constraint}, at `constraint.project(x0)` for instance"
    )
    return w.clone()


def _rounds(pipe: Pipeline, steps: int | None, epochs: float | None, per_epoch: int) -> int:
    """How many rounds: as asked, else as many as the algorithm's own schedule says."""
    if steps is not None:
        return steps
    if epochs is not None:
        return max(1, round(epochs * per_epoch))
    if pipe.rounds is None:
        validate.refuse("steps, epochs", (None, None), "give one of the two: the recipe does not say how long it runs")
    return pipe.rounds


def _aggregator(objective: Any, clients: Any) -> Aggregator:
    """Who holds the records: this process, several objectives in it, or whoever an aggregator says."""
    if clients is None:
        return Local(objective)
    if isinstance(clients, Aggregator):
        return clients.holding([objective if problem is None else problem for problem in clients.problems])
    remedy = "give a list of objectives, isthmus.Clients(...), or AllReduce()"
    validate.check(isinstance(clients, Sequence), "clients", clients, remedy)
    return Clients(list(clients))


def _aggregator_of(aggregator: Aggregator, clients: Any, pipe: Pipeline) -> Aggregator:
    """How clients that were given as a list are asked: as many as the pipeline says."""
    if isinstance(clients, Aggregator) or not isinstance(aggregator, Clients):
        return aggregator
    return replace(aggregator, per_round=pipe.wire.per_round)


def _check_arguments(constraint: Any, steps: Any, epochs: Any, record: Any, physical: Any, d: int) -> None:
    validate.check(steps is None or epochs is None, "steps, epochs", (steps, epochs), "give one of the two")
    if steps is not None:
        validate.positive_int(steps=steps)
    if epochs is not None:
        validate.positive(epochs=epochs)
    if physical is not None:
        validate.positive_int(physical_batch_size=physical)
    if record not in (None, "epoch"):
        validate.positive_int(record=record)
    validate.check(hasattr(constraint, "project"), "constraint", constraint, "give a set from isthmus.sets")
    dim = getattr(constraint, "dim", None)
    validate.check(
        dim is None or dim == d,
        "constraint",
        constraint,
        f"give a set of dimension {d}, which is that of the objective: this one has {dim}",
    )
