"""Read this first: the pipeline, its round and the only loop.

    where the data is                        over the wire     where the noise is
    [rows -> encode -> clip -> sum -> codec] -> added over ->  [noise -> lift -> update -> average]
     per-example      R^d -> R^m                batches,        R^m -> C in R^d
     gradients, factored, never materialised    ranks, clients

Every algorithm is one filling of these slots; the plain case is the general case with identities in them.
A `Pipeline` is a list of `Stage`s (each looks at one sample of the data), a stage a list of `Release`s
(each one encode, clip, mechanism and lift).  A step of the algorithm is a **round**:

    Round        the step size, and what encoders may look at: public things only
    bind_stage   this round's maps and clip bounds
    contribute   sample, take per-example rows, `measure` them: where the data is (`isthmus.core.measuring`)
    (add)        messages are a monoid: physical batches, ranks and clients add up
    close_stage  charge the ledger, release, lift: where the noise is
    advance      update, average, adapt: post-processing of what was released

`step` strings them together and `run` repeats `step`; a user's own torch loop calls the same functions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.secret import released as released_by
from isthmus.base.space import Space
from isthmus.core.group import ALONE, Aggregator, Group
from isthmus.core.parts import Average, Last, RowSource, Step, Update, current
from isthmus.core.sound import check_sound
from isthmus.core.wire import Keys, Message, StageOutput, State, Wire
from isthmus.gradients import Rows
from isthmus.lifts import Lift, Lifted, pinv
from isthmus.privacy.accounting import Adjacency, joint
from isthmus.privacy.clips import ClippedSum, Clipping
from isthmus.privacy.event_json import DpEvent, dpa
from isthmus.privacy.ledger import Chargeable
from isthmus.privacy.mechanisms import Exact, Mechanism, check_bounded
from isthmus.privacy.noise import Source
from isthmus.privacy.plan import PrivacyPlan
from isthmus.privacy.sampling import Sampler
from isthmus.sketches import Encoder, Identity, Sketch

if TYPE_CHECKING:
    from isthmus.core.minimize import Purchased

StepSize = Callable[[int], float | Tensor]
Maps = dict[str, tuple[Hashable, Sketch]]
"""The maps a run holds between rounds, by slot: a convenience that any machine can rebuild, never part of the state."""


# ---------------------------------------------------------------- what fills the slots


@dataclass(frozen=True)
class Release:
    """One value that leaves the data: encode, clip, mechanism, lift."""

    name: str = "gradient"
    encode: Encoder = field(default_factory=Identity)
    clip: Clipping | None = None
    mechanism: Mechanism = field(default_factory=Exact)
    lift: Lift = pinv

    @property
    def clipped(self) -> Clipping:
        """The clip, of a release that has one, as every private one does."""
        if self.clip is None:
            validate.refuse("clip", None, f"give a clip: without one, release {self.name!r} has no bound")
        return self.clip


@dataclass(frozen=True)
class Stage:
    """Releases that look at ONE sample of the data, every `every` rounds.

    groups  micro-batches: every drawn record is put into one of so many groups, independently of every other and
            secretly, and the rows that are clipped are the means of groups (`GroupClip`)
    """

    sampler: Sampler
    releases: Sequence[Release] = (Release(),)
    name: str = "main"
    every: int = 1
    source: RowSource = current
    groups: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "releases", tuple(self.releases))  # what was checked stays as it was

    @cached_property
    def private(self) -> bool:
        """Whether any release hides its data behind noise."""
        return any(release.mechanism.private for release in self.releases)

    @cached_property
    def slots(self) -> tuple[tuple[Release, str], ...]:
        """Every release with its slot `stage/release`."""
        return tuple((release, f"{self.name}/{release.name}") for release in self.releases)

    def event(self, adjacency: Adjacency) -> DpEvent:
        """What one round of the stage releases, for the accountant: its releases together, seen through its sampler."""
        return self.sampler.event(joint([release.mechanism.event(adjacency) for release in self.releases]))


@dataclass(frozen=True)
class Promise:
    """What a private pipeline guarantees, and what must hold for it.

    epsilon    of the whole run; infinite where a budget is kept elsewhere, or where a mechanism gives none
    n          the number of records, where it was declared public
    plan       how the budget is split over what is released
    records    the number of records, or its public estimate
    """

    epsilon: float
    delta: float
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    n: int | None = None
    assumptions: tuple[str, ...] = ()
    plan: PrivacyPlan | None = None
    records: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "adjacency", Adjacency.of(self.adjacency))


class Purchase(Protocol):
    """One purchase: a look at the data before the loop, and what follows from what it released (`core.minimize`)."""

    @property
    def name(self) -> str:
        """Under which it is charged."""
        ...

    def check(self, objective: object) -> None:
        """Refuse a problem that it cannot be released for, before anything is."""
        return

    def stage(self, objective: object) -> tuple[Stage, Space] | None:
        """The look, and the space of what it releases; None where nothing is looked at."""
        return None

    def event(self, adjacency: Adjacency) -> DpEvent:
        """What the look costs: nothing, where there is none."""
        return dpa.NoOpDpEvent()

    def apply(self, prepared: Purchased, bought: Tensor | None) -> Purchased:
        """The `Purchased` problem with what follows from the released values."""
        ...


@dataclass(frozen=True)
class Pipeline:
    """An algorithm: stages of releases, a step rule `t -> eta` (t from 0), an update and an average.

    `output` says what a run returns as its point, the "last" iterate or the "average"; `rounds` how many it
    takes where the algorithm says so itself; `promise` what a private one guarantees; `before` what is released
    before the loop.  Unsound fillings, and private ones that the accountant cannot account
    for, are refused when it is built; one that claims privacy may hold no look at the data without noise.
    """

    stages: Sequence[Stage]
    step: StepSize
    update: Update = field(default_factory=Step)
    average: Average = field(default_factory=Last)
    wire: Wire = field(default_factory=Wire)
    stop: Callable[[Round, State, State], bool] | None = None
    output: str = "last"
    rounds: int | None = None
    promise: Promise | None = None
    before: Sequence[Purchase] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", tuple(self.stages))  # what was checked stays as it was
        object.__setattr__(self, "before", tuple(self.before))
        check_sound(self)

    @cached_property
    def private(self) -> bool:
        """Whether any release hides its data behind noise."""
        return any(stage.private for stage in self.stages)

    @cached_property
    def encoders(self) -> tuple[tuple[str, Encoder], ...]:
        """Every encoder, nested ones included, with the slot where its state is kept: the first that holds it."""
        found: list[tuple[str, Encoder]] = []

        def visit(encoder: Encoder, path: str) -> None:
            found.append((path, encoder))
            if is_dataclass(encoder):
                for item in fields(encoder):
                    inner = getattr(encoder, item.name)
                    if isinstance(inner, Encoder):
                        visit(inner, f"{path}.{item.name}")

        for _, release, slot in slots(self.stages):
            visit(release.encode, slot)
        return tuple(found)

    @cached_property
    def slot_of(self) -> dict[int, str]:
        """The slot of every encoder, by its id."""
        return {id(encoder): slot for slot, encoder in reversed(self.encoders)}


def slots(stages: Sequence[Stage]) -> list[tuple[Stage, Release, str]]:
    """Every release with its stage and its slot `stage/release`."""
    return [(stage, release, slot) for stage in stages for release, slot in stage.slots]


# ---------------------------------------------------------------- a round


def no_public(w: Tensor, data: object) -> NoReturn:
    """Refuse a sketch that asks for public examples where there are none."""
    validate.refuse("public", type(data).__name__, "give a sketch that needs no public examples: there are none here")


class Round:
    """Everything that is fixed while a round lasts, public things only: what an encoder may look at when it is bound.

    eta, read   the step size; the iterate, which is read at most once
    held        what stages that do not run every round last released
    parts       what encoders, clips and lifts remember of earlier rounds, by slot; `changed` what this one adds
    memory      what senders keep of what a sketch lost, by client and slot (runs without noise only)
    maps        what is held between rounds; `place` puts a new map where a driver holds memory for it
    sketches, bounds   this round's maps and clip bounds, by slot: public, given or paid for
    released, paid     what its stages released, by stage and release; which of them were charged
    """

    def __init__(
        self,
        pipe: Pipeline,
        state: State,
        *,
        space: Space,
        seed: int,
        epoch: int = 0,
        read: Callable[[], Tensor] | None = None,
        public_rows: Callable[[Tensor, Any], Rows] = no_public,
        eta: float | Tensor | None = None,
        maps: Maps | None = None,
        group: Group = ALONE,
        device: torch.device | None = None,
        place: Callable[[str, Sketch], Sketch] = lambda slot, sketch: sketch,
    ) -> None:
        self.pipe, self.space, self.t, self.epoch, self.seed = pipe, space, state.t, epoch, seed
        self.eta: float | Tensor = eta  # type: ignore[assignment]
        if eta is None:
            self.eta = pipe.step(state.t)
        self.read, self.public_rows, self.place = read or (lambda: state.w), public_rows, place
        self.held, self.parts, self.memory = dict(state.held), state.parts, dict(state.memory)
        self.maps: Maps = {} if maps is None else maps
        self.group, self.device = group, device
        self.active = [stage for stage in pipe.stages if state.t % stage.every == 0]
        self.changed: dict[str, Any] = {}
        self.sketches: dict[str, Sketch] = {}
        self.bounds: dict[str, float] = {}
        self.released: dict[str, dict[str, Tensor]] = {}
        self.paid: set[str] = set()
        self._bound: dict[str, Sketch] = {}

    @cached_property
    def w(self) -> Tensor:
        """The iterate."""
        return self.read()

    def rows(self, data: Any) -> Rows:
        """Per-example gradients at the iterate on public data."""
        return self.public_rows(self.w, data)

    def state_of(self, slot: str) -> Any:
        """What the encoder of a slot remembers after it was bound; None where it remembers nothing."""
        return self.changed.get(slot, self.parts.get(slot))

    def bind(self, encoder: Encoder) -> Sketch:
        """The map of this round: one for all slots that share an encoder, bound once however often it is asked for."""
        slot = self.pipe.slot_of.get(id(encoder), self.pipe.encoders[-1][0])
        if slot in self._bound:
            return self._bound[slot]
        token, (kept, sketch) = encoder.token(self), self.maps.get(slot, (None, None))
        if token is None or kept != token or sketch is None:
            before = self.parts.get(slot)
            if self.group.size > 1 and encoder.public:  # no two machines need learn the same bits: one does
                learned = self.group.on_leader(lambda: self._learned(encoder, before))
                before = before if learned is None else learned
            sketch, state = encoder.bind(self, before)
            sketch = self.place(slot, sketch)
            self.maps[slot] = (token, sketch)
            if state is not None:
                self.changed[slot] = state
        self._bound[slot] = sketch
        return sketch

    def _learned(self, encoder: Encoder, state: Any) -> Any:
        """What one machine learned, for all of them; None in rounds in which it learned nothing."""
        following = encoder.bind(self, state)[1]
        return None if following is state else following


def bind_stage(round: Round, stage: Stage) -> None:
    """Look up the clip bounds of a stage and bind its encoders, which may look at what earlier stages released."""
    for release, slot in stage.slots:
        if release.clip is not None:
            bound = round.parts.get(f"{slot}/clip")
            round.bounds[slot] = release.clip.init() if bound is None else bound
    for release, slot in stage.slots:
        round.sketches[slot] = round.bind(release.encode)


def pay(round: Round, stage: Stage, ledger: Chargeable | None) -> None:
    """Charge a private stage of a round, once: at its release, or before where sums come with their noise."""
    if not stage.private or stage.name in round.paid:
        return
    if ledger is None:
        remedy = f"give a ledger: stage {stage.name!r} is private, and nothing is released without one"
        validate.refuse("ledger", None, remedy)
    ledger.charge(stage, round.t)
    round.paid.add(stage.name)


def close_stage(
    round: Round, stage: Stage, message: Message, keys: Keys, ledger: Chargeable | None = None
) -> dict[str, Tensor]:
    """Where the noise is: charge BEFORE the release, release, lift; the lifted values are held in the round.

    What has no bound, or one in a norm that its mechanism does not take, is refused before anything is charged.
    """
    settled = {}
    for release, slot in stage.slots:
        settled[release.name] = message.values[release.name].settled(round.sketches[slot])
        if release.mechanism.private:
            check_bounded(release.mechanism, settled[release.name])
    pay(round, stage, ledger)
    released = {}
    for release, slot in stage.slots:
        bounded = settled.pop(release.name)
        value = _noised(release, f"{slot} of round {round.t}", bounded, keys.noise)
        fresh = bounded.spare or value is not bounded.value  # what a mechanism made may be divided in place
        # cast first, so that the precision of the output does not depend on the data
        value = value.to(bounded.dtype or value.dtype)
        released[release.name] = value.div_(message.divisor) if fresh else value / message.divisor
    _take_stage(round, stage, released)
    return released


def _noised(release: Release, name: str, bounded: ClippedSum, noise: Source | None) -> Tensor:
    """What a mechanism makes of a bounded value: the only place where it is asked to."""
    return released_by(name, bounded, lambda: release.mechanism.release(bounded, noise))


def close_together(round: Round, stage: Stage, message: Message, keys: Keys, ledger: Chargeable | None) -> None:
    """Close a stage where the ledger and the noise are; other ranks take what was released there."""
    released = round.group.on_leader(lambda: close_stage(round, stage, message, keys, ledger), met=True)
    if stage.name not in round.released:
        where = next(iter(message.values.values())).value.device
        _take_stage(round, stage, {name: value.to(where) for name, value in released.items()})


def _take_stage(round: Round, stage: Stage, released: Mapping[str, Tensor]) -> None:
    """What was released, here or elsewhere, lifted to R^d and held in the round."""
    lifted: list[Lifted] = []
    for release, slot in stage.slots:
        w = round.w if getattr(release.lift, "reads_w", True) else None  # lifts may be plain functions
        inputs = round.sketches[slot], released[release.name], w, round.eta
        remember = getattr(release.lift, "remember", None)
        if remember is None:
            result = release.lift(*inputs)
        else:  # a lift with a memory of codes: post-processing of what was released, kept with the state
            result, round.changed[f"{slot}/lift"] = remember(*inputs, round.state_of(f"{slot}/lift"))
        if result is not None:
            lifted.append(result)
    anchor = round.w if stage.every > 1 else None
    round.held[stage.name], round.released[stage.name] = StageOutput(anchor, tuple(lifted)), dict(released)


def advance(round: Round, state: State, sent: Sequence[Message]) -> State:
    """Post-processing of what was released: update, average, the next clip bounds."""
    pipe, held = round.pipe, {}
    lifted: list[Lifted] = []
    for stage in pipe.stages:
        if stage.name in round.held:
            lifted += round.held[stage.name].lifted
            if stage.every > 1:
                held[stage.name] = round.held[stage.name]
    update, w = pipe.update.apply(state.update, state.w, lifted, round.eta)
    w = w.to(state.w.dtype)  # whatever a map of one's own computes in
    average, w = pipe.average.observe(state.average, w, round.eta, round.t)
    parts = {**state.parts, **round.changed}
    for stage in round.active:
        for release, slot in stage.slots:
            if release.clip is not None:
                parts[f"{slot}/clip"] = release.clip.next(round.bounds[slot], round.released[stage.name])
    dims = state.dims + sum(map(attrgetter("dims"), sent))
    size = state.bytes + sum(map(attrgetter("bytes"), sent))
    return State(w, round.t + 1, update, average, parts, round.memory, held, dims, size)


# ---------------------------------------------------------------- the loop


@dataclass(frozen=True)
class RunContext:
    """What a run needs beside its pipeline: where the data is, its space, and how long an epoch is."""

    aggregator: Aggregator
    space: Space
    keys: Keys
    public_rows: Callable[[Tensor, Any], Rows] = no_public
    per_epoch: int = 1
    physical: int | None = None
    ledger: Chargeable | None = None
    maps: Maps = field(default_factory=dict)
    whole: int | None = None
    """How many records all holders of data have together; None where this process has them all."""

    def open(self, pipe: Pipeline, state: State) -> Round:
        """The round that follows a state."""
        public = {"space": self.space, "seed": self.keys.seed, "epoch": state.t // self.per_epoch, "maps": self.maps}
        return Round(pipe, state, public_rows=self.public_rows, group=self.aggregator.group, **public)  # type: ignore[arg-type]


def start(pipe: Pipeline, w: Tensor, seed: int = 0) -> State:
    """The state before the first round."""
    return State(w=w, update=pipe.update.init(w), average=pipe.average.init(w, seed))


def step(pipe: Pipeline, state: State, context: RunContext) -> tuple[Round, State]:
    """One round."""
    round = context.open(pipe, state)
    sent = [_through(round, stage, context) for stage in round.active]
    with round.group.alike():
        return round, advance(round, state, sent)


def _through(round: Round, stage: Stage, context: RunContext) -> Message:
    """One stage of a round: its maps, everybody's contributions, its release."""
    bind_stage(round, stage)
    message = context.aggregator.collect(round, stage, context)
    with round.group.alike():
        close_together(round, stage, message, context.keys, context.ledger)
    return message


def look(stage: Stage, context: RunContext, promise: Promise | None = None) -> dict[str, Tensor]:
    """One look at the data outside the loop, through the same functions as a round: what it released, by name."""
    round = context.open(Pipeline([stage], lambda t: 1.0, promise=promise), State(w=torch.empty(0)))
    _through(round, stage, context)
    return round.released[stage.name]


def run(
    pipe: Pipeline,
    state: State,
    steps: int,
    context: RunContext,
    observe: Callable[[State, float], bool] = lambda state, seconds: False,
) -> tuple[State, Tensor | None, str]:
    """The only loop: rounds until `state.t == steps`, a stop rule fires, or an observer asks to stop.

    Returns the final state, the point found and a status.  A pipeline with a stop rule that never fired
    found no point: None, never silently the last iterate.
    """
    began, status = time.perf_counter(), "finished" if pipe.stop is None else "none found"
    while state.t < steps:
        round, new = step(pipe, state, context)
        if pipe.stop is not None and pipe.stop(round, state, new):
            return new, state.w, "stopped"  # the point before the step, but the round that told us was released
        state = new
        if observe(state, time.perf_counter() - began):
            status = "interrupted"
            break
    if pipe.stop is not None:
        return state, None, status
    return state, state.w if pipe.output == "last" else pipe.average.output(state.average, state.w), status


def opened_again(pipe: Pipeline, state: State, x: Tensor, context: RunContext) -> Round:
    """The round that led to a state, at the point x that it started from, with its maps bound: public things only."""
    round = context.open(pipe, replace(state, w=x, t=state.t - 1))
    for stage in round.active:
        bind_stage(round, stage)
    return round
