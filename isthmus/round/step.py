"""The functions of a round, and the only loop (see `isthmus.round.pipeline` for the picture)."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NoReturn

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.matrix import exact_products
from isthmus.base.randomness import key
from isthmus.base.space import Space
from isthmus.geometry.sketches import Encoder, Sketch
from isthmus.gradients import Rows
from isthmus.gradients.adding import kappa
from isthmus.privacy.bounded import Bounded, Rounding, encoded_sum, part_of_error, weighted_sum
from isthmus.privacy.clips import Clipping
from isthmus.privacy.ledger import Purse
from isthmus.privacy.mechanisms import check_bounded
from isthmus.problems.queries import Query
from isthmus.round.aggregators import Aggregator, Client
from isthmus.round.pipeline import Pipeline, Promise, Release, Stage, slots
from isthmus.round.state import Held, State
from isthmus.round.wire import Keys, Message

# ---------------------------------------------------------------- what an encoder sees, what a round holds


Kept = dict[str, tuple[Hashable, Sketch]]
"""The maps a run holds between rounds, by slot: a convenience that any machine can rebuild, never part of the state."""


class RoundContext:
    """What an encoder may look at when it is bound; an encoder is bound once a round, however often it is asked."""

    def __init__(self, round: Round, slots: Mapping[int, str], parts: Mapping[str, Any], kept: Kept) -> None:
        self._round: Round = weakref.proxy(round)  # the round holds the context: no cycle keeps its tensors alive
        self._slots, self._parts, self._kept = slots, parts, kept
        self._bound: dict[int, Sketch] = {}
        self.changed: dict[str, Any] = {}
        self.space, self.t, self.epoch, self.seed = round.space, round.t, round.epoch, round.seed
        self.device = round.device
        self.place: Callable[[str, Sketch], Sketch] | None = None
        """Where the map of a slot is put, by a driver that holds memory for it."""

    @property
    def w(self) -> Tensor:
        """The iterate."""
        return self._round.w

    @property
    def released(self) -> Mapping[str, Mapping[str, Tensor]]:
        """What the earlier stages of this round released."""
        return self._round.released

    @property
    def bounds(self) -> Mapping[str, float]:
        """The clip bounds of this round's releases, by slot: public, given or paid for."""
        return self._round.bounds

    def rows(self, data: Any) -> Rows:
        """Per-example gradients at the iterate on public data."""
        return self._round.public_rows(self._round.w, data)

    def bind(self, encoder: Encoder) -> Sketch:
        """The map of this round."""
        if id(encoder) not in self._bound:
            self._bound[id(encoder)] = self._draw(encoder, self._slots[id(encoder)])
        return self._bound[id(encoder)]

    def _draw(self, encoder: Encoder, slot: str) -> Sketch:
        token = encoder.token(self)
        if token is not None and slot in self._kept and self._kept[slot][0] == token:
            return self._kept[slot][1]
        sketch, state = encoder.bind(self, self._parts.get(slot))
        sketch = sketch if self.place is None else self.place(slot, sketch)
        self._kept[slot] = (token, sketch)
        if state is not None:
            self.changed[slot] = state
        return sketch


@dataclass
class Round:
    """Everything that is fixed while a round lasts."""

    pipe: Pipeline
    space: Space
    t: int
    epoch: int
    seed: int
    eta: float | Tensor
    read: Callable[[], Tensor]
    public_rows: Callable[[Tensor, Any], Rows]
    held: dict[str, Held]
    device: torch.device | None = None
    sketches: dict[str, Sketch] = field(default_factory=dict)
    bounds: dict[str, float] = field(default_factory=dict)
    released: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    context: RoundContext = field(init=False)

    @cached_property
    def w(self) -> Tensor:
        """The iterate, read at most once."""
        return self.read()

    @property
    def active(self) -> list[Stage]:
        """The stages of this round."""
        return [stage for stage in self.pipe.stages if self.t % stage.every == 0]


# ---------------------------------------------------------------- the five functions


def measure(
    release: Release,
    sketch: Sketch,
    bound: float,
    rows: Rows | Query | None,
    codes: Rows | None = None,
    rounding: Rounding | None = None,
) -> Bounded:
    """The only code that reads per-example values: the clipped sum of codes, with its bound.

    With no clip, or a clip before the sketch, the sum is encoded and never the rows (the map is linear).  What is no
    sum over records is a `Query`, whose proven bound must be within that of the clip.
    """
    clip = release.clip
    if isinstance(rows, Query):
        validate.check(clip is not None, "clip", clip, f"{type(rows).__name__} is released with its bound only")
        assert clip is not None
        proven = clip.ord == 2 and rows.bound <= clip.total(bound)
        validate.check(proven, "clip", clip, f"{type(rows).__name__} moves by up to {rows.bound} in the norm 2")
        return Bounded(rows.value(), clip.ord, clip.total(bound))
    whole = codes if rows is None else rows
    assert whole is not None
    if clip is None:
        return Bounded(sketch.forward_sum(whole), 2, math.inf)
    with exact_products(whole.device):  # a bound means nothing in reduced precision
        if not clip.before:
            whole = sketch.encode(whole) if codes is None else codes
        return _clipped(clip, sketch, bound, whole, rounding or Rounding())


def _clipped(clip: Clipping, sketch: Sketch, bound: float, rows: Rows, rounding: Rounding) -> Bounded:
    exact = rows.exact and not clip.before  # counts are, and what a map makes of their sum is not
    extra = 0.0 if exact else rounding.kappa(rows, encoded=rows.d < sketch.d)
    share, weights = clip.total(bound) * (1 + extra), clip.weights(rows, bound)
    if clip.before:
        value = encoded_sum(sketch, rows, weights, clip.each(bound), extra * rounding.share, clip.ord)
        return Bounded(value, clip.ord, share * sketch.gain(clip.ord), dtype=rows.dtype)
    value = weighted_sum(rows, weights, clip.each(bound), extra * rounding.share, clip.ord)
    return Bounded(value, clip.ord, share, dtype=rows.dtype)


def measure_leaf(clip: Clipping, bound: float, name: str, rows: Rows, rounding: Rounding) -> Bounded:
    """The clipped sum of one leaf, where leaves are clipped by themselves: no other has to be known."""
    extra = rounding.kappa(rows, encoded=False)
    with exact_products(rows.device):
        weights, own = clip.leaf_weights(name, rows, bound)
        value = weighted_sum(rows, weights, own, extra * rounding.share, clip.ord, wait=False)
    return Bounded(value, clip.ord, own * (1 + extra), dtype=rows.dtype)


def measured_leaves(clip: Clipping, bound: float, sums: Sequence[Bounded], rounding: Rounding) -> Bounded:
    """The sums of all leaves, in their order, as one that is bounded as `measure` says.

    The dtype is that of the rows: in what dtype they were added up depends on how many there are, and must not tell.
    """
    dtype = min((leaf.dtype for leaf in sums if leaf.dtype is not None), key=lambda each: each.itemsize)
    extra = kappa(rounding.batch, dtype, encoded=False)
    value = torch.cat([leaf.value for leaf in sums])
    return Bounded(value, clip.ord, clip.total(bound) * (1 + extra), dtype=dtype)


def open_round(
    pipe: Pipeline,
    state: State,
    *,
    space: Space,
    seed: int,
    epoch: int,
    read: Callable[[], Tensor],
    public_rows: Callable[[Tensor, Any], Rows],
    eta: float | Tensor | None = None,
    kept: Kept | None = None,
    device: torch.device | None = None,
    place: Callable[[str, Sketch], Sketch] | None = None,
) -> Round:
    """A new round: its step size and what its encoders may look at.  Public things only."""
    step = pipe.step(state.t) if eta is None else eta
    round = Round(pipe, space, state.t, epoch, seed, step, read, public_rows, dict(state.held), device)
    round.context = RoundContext(round, pipe.encoders, state.parts, {} if kept is None else kept)
    round.context.place = place
    return round


def bind_stage(round: Round, stage: Stage, state: State) -> None:
    """Bind the encoders of a stage, which may look at what earlier stages released, and look up its clip bounds."""
    for _, release, slot in slots([stage]):
        if release.clip is not None:
            round.bounds[slot] = state.parts.get(f"{slot}/clip", release.clip.init())
    for _, release, slot in slots([stage]):
        round.sketches[slot] = round.context.bind(release.encode)


def contribute(
    round: Round, stage: Stage, client: Client, keys: Keys, memory: dict[str, Tensor], physical: int | None = None
) -> Message:
    """Where the data is: sample, take the rows, measure them, send.  `physical` bounds the rows held at once."""
    n = client.problem.n
    index = stage.sampler.draw(n, round.t, keys, client.role)
    divisor, total = stage.sampler.divisor(n, round.t), None
    batch = None if getattr(client.problem, "linear", False) else divisor
    parts = _physical_batches(index, n, physical)
    for number, part in enumerate(parts, start=1):
        rows = stage.source(client.problem, round.w, part, round.held)
        split = physical is not None and isinstance(rows, Query)  # whatever the number of records: it may be private
        remedy = f"leave it out: {type(rows).__name__} is no sum, and one record more would shift every batch after it"
        validate.check(not split, "physical_batch_size", physical, remedy)
        share = part_of_error(number, number == len(parts))
        message = fragment(round, stage, rows, rounding=Rounding(batch, share))
        total = message if total is None else total + message
    assert total is not None
    return _send(round, stage, replace(total, divisor=divisor), client, memory)


def close_stage(
    round: Round, stage: Stage, message: Message, keys: Keys, ledger: Purse | None = None
) -> dict[str, Tensor]:
    """Where the noise is: charge BEFORE the release, release, lift; the lifted values are held in the round.

    What has no bound, or one in a norm that its mechanism does not take, is refused before anything is charged.
    """
    settled = {}
    for _, release, slot in slots([stage]):
        settled[release.name] = message.values[release.name].settled(round.sketches[slot])
        if release.mechanism.private:
            check_bounded(release.mechanism, settled[release.name])
    if stage.private:
        if ledger is None:
            validate.refuse("ledger", None, f"stage {stage.name!r} is private: nothing is released without a ledger")
        ledger.charge(stage, round.t)
    released, lifted = {}, []
    for _, release, slot in slots([stage]):
        sketch, bounded = round.sketches[slot], settled.pop(release.name)
        value = release.mechanism.release(bounded, keys.noise)
        fresh = bounded.spare or value is not bounded.value  # what a mechanism made may be divided in place
        # cast first: the digits of what is released must not tell in which dtype the data made the sum be added up
        value = value.to(bounded.dtype or value.dtype)
        released[release.name] = value.div_(message.divisor) if fresh else value / message.divisor
        w = round.w if getattr(release.lift, "reads_w", True) else None
        result = release.lift(sketch, released[release.name], w, round.eta)
        lifted += [] if result is None else [result]
    anchor = round.w if stage.every > 1 else None
    round.held[stage.name], round.released[stage.name] = Held(anchor, tuple(lifted)), released
    return released


def advance(round: Round, state: State, sent: Sequence[Message]) -> State:
    """Post-processing of what was released: update, average, the next clip bounds."""
    pipe = round.pipe
    lifted = [piece for stage in pipe.stages if stage.name in round.held for piece in round.held[stage.name].lifted]
    update, w = pipe.update.apply(state.update, state.w, lifted, round.eta)
    average, w = pipe.average.observe(state.average, w, round.eta, round.t)
    parts = {**state.parts, **round.context.changed}
    for stage, release, slot in slots(round.active):
        if release.clip is not None:
            parts[f"{slot}/clip"] = release.clip.next(round.bounds[slot], round.released[stage.name])
    return replace(
        state,
        w=w,
        t=round.t + 1,
        update=update,
        average=average,
        parts=parts,
        held={stage.name: round.held[stage.name] for stage in pipe.stages if stage.every > 1},
        dims=state.dims + sum(message.dims for message in sent),
        bytes=state.bytes + sum(message.bytes for message in sent),
    )


# ---------------------------------------------------------------- the loop


def no_public(w: Tensor, data: Any) -> NoReturn:
    """Refuse a sketch that asks for public examples where there are none."""
    validate.refuse("public", data, "this look at the data has no public examples: give a sketch that needs none")


@dataclass(frozen=True)
class Setting:
    """What a run needs beside its pipeline: where the data is, its space, and how long an epoch is."""

    aggregator: Aggregator
    space: Space
    keys: Keys
    public_rows: Callable[[Tensor, Any], Rows] = no_public
    per_epoch: int = 1
    physical: int | None = None
    ledger: Purse | None = None
    kept: Kept = field(default_factory=dict)


def start(pipe: Pipeline, w: Tensor, seed: int = 0) -> State:
    """The state before the first round."""
    return State(w=w, update=pipe.update.init(w), average=pipe.average.init(w, seed))


def step(pipe: Pipeline, state: State, setting: Setting) -> tuple[Round, State]:
    """One round."""
    round = _opened(pipe, state, setting)
    memory = dict(state.memory)
    sent = [_through(round, stage, state, setting, memory) for stage in round.active]
    return round, advance(round, replace(state, memory=memory), sent)


def look(stage: Stage, setting: Setting, promise: Promise | None = None) -> dict[str, Tensor]:
    """One look at the data outside the loop, through the same functions as a round: what it released, by name."""
    pipe, state = Pipeline([stage], lambda t: 1.0, promise=promise), State(w=torch.empty(0))
    round = _opened(pipe, state, setting)
    _through(round, stage, state, setting, {})
    return round.released[stage.name]


def _opened(pipe: Pipeline, state: State, setting: Setting) -> Round:
    return open_round(
        pipe,
        state,
        space=setting.space,
        seed=setting.keys.seed,
        epoch=state.t // setting.per_epoch,
        read=lambda: state.w,
        public_rows=setting.public_rows,
        kept=setting.kept,
    )


def _through(round: Round, stage: Stage, state: State, setting: Setting, memory: dict[str, Tensor]) -> Message:
    """One stage of a round: its maps, everybody's contributions, its release."""
    bind_stage(round, stage, state)

    def answer(client: Client) -> Message:
        return contribute(round, stage, client, setting.keys, memory, setting.physical)

    message = setting.aggregator.collect(answer, state.t, setting.keys.seed)
    close_stage(round, stage, message, setting.keys, setting.ledger)
    return message


def run(
    pipe: Pipeline,
    state: State,
    steps: int,
    setting: Setting,
    observe: Callable[[State, float], bool] = lambda state, seconds: False,
) -> tuple[State, Tensor | None, str]:
    """The only loop: rounds until `state.t == steps`, a stop rule fires, or an observer asks to stop.

    Returns the final state, the point found and a status.  A pipeline with a stop rule that never fired
    found no point: None, never silently the last iterate.
    """
    began = time.perf_counter()
    while state.t < steps:
        round, new = step(pipe, state, setting)
        if pipe.stop is not None and pipe.stop(round, state, new):
            return new, state.w, "stopped"  # the point before the step, but the round that told us was released
        state = new
        if observe(state, time.perf_counter() - began):
            return state, _found(pipe, state), "interrupted"
    return state, _found(pipe, state), "finished" if pipe.stop is None else "none found"


def _found(pipe: Pipeline, state: State) -> Tensor | None:
    if pipe.stop is not None:
        return None
    return state.w if pipe.output == "last" else pipe.average.output(state.average, state.w)


# ---------------------------------------------------------------- small helpers


def fragment(
    round: Round,
    stage: Stage,
    rows: Rows | Query | None,
    codes: Mapping[str, Rows] | None = None,
    rounding: Rounding | None = None,
    ready: Mapping[str, Bounded] | None = None,
) -> Message:
    """The message of one physical batch; its divisor is set once for the whole stage.  What is `ready` was measured."""
    values = {}
    for _, release, slot in slots([stage]):
        if ready is not None and release.name in ready:
            values[release.name] = ready[release.name]
        elif round.pipe.wire.feedback:  # the sender's memory lives in R^d: encoded when it is sent
            assert isinstance(rows, Rows)
            values[release.name] = Bounded(rows.sum(), 2, math.inf)
        else:
            given = None if codes is None else codes.get(release.name)
            bound = round.bounds.get(slot, math.inf)
            values[release.name] = measure(release, round.sketches[slot], bound, rows, given, rounding)
    return Message(values, 0.0)


def _send(round: Round, stage: Stage, message: Message, client: Client, memory: dict[str, Tensor]) -> Message:
    """Feedback and codec, and the count of what goes over the wire."""
    wire, values, dims, size = round.pipe.wire, dict(message.values), 0, 0
    for _, release, slot in slots([stage]):
        sketch, bounded = round.sketches[slot], values[release.name]
        value, name = bounded.value, f"{client.name}/{slot}"
        if wire.feedback:
            kept = memory.get(name)
            corrected = value if kept is None else value + kept * (message.divisor / round.eta)
            value = sketch.forward(corrected)
        dims += value.numel()
        if wire.codec is None:
            size += value.numel() * value.element_size()
        else:
            data = wire.codec.encode(value, key(round.seed, round.t, "codec", client.role, slot))
            size += len(data)
            value = wire.codec.decode(data, value)
        if wire.feedback:
            if wire.codec is not None:  # an unbiased codec is a contraction only after this shrink
                value = value / (1 + wire.codec.chi(value.numel()))
            memory[name] = torch.sub(corrected, sketch.pinv(value)).mul_(round.eta / message.divisor)
        values[release.name] = replace(bounded, value=value)
    return replace(message, values=values, dims=dims, bytes=size)


def _physical_batches(index: Tensor | None, n: int, physical: int | None) -> list[Tensor | None]:
    count = n if index is None else len(index)
    if physical is None or count <= physical:
        return [index]
    return list((torch.arange(n) if index is None else index).split(physical))
