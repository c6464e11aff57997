"""The functions of a round where the noise is, and the only loop (see `isthmus.core.pipeline` for the picture)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.secret import released as released_by
from isthmus.base.space import Space
from isthmus.core.aggregators import Aggregator, alone
from isthmus.core.measuring import contribute, fragment, measure, measure_leaf, measured_leaves
from isthmus.core.opened import Kept, Round, RoundContext, bind_stage, clip_slot, lift_slot, no_public, open_round
from isthmus.core.order import DataSite, order_of
from isthmus.core.pipeline import Pipeline, Promise, Release, Stage, slots
from isthmus.core.state import Held, State
from isthmus.core.wire import Keys, Message
from isthmus.gradients import Rows
from isthmus.privacy.clips import ClippedSum
from isthmus.privacy.ledger import Chargeable
from isthmus.privacy.mechanisms import check_bounded
from isthmus.privacy.noise import Noise

__all__ = [
    "Kept",
    "Round",
    "RoundContext",
    "Setting",
    "advance",
    "bind_stage",
    "close_stage",
    "contribute",
    "fragment",
    "look",
    "measure",
    "measure_leaf",
    "measured_leaves",
    "no_public",
    "open_round",
    "opened_again",
    "run",
    "start",
    "step",
    "take_stage",
]


def close_stage(
    round: Round, stage: Stage, message: Message, keys: Keys, ledger: Chargeable | None = None
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
        _needed(ledger, stage).charge(stage, round.t)
    released = {}
    for _, release, slot in slots([stage]):
        bounded = settled.pop(release.name)
        value = _noised(release, f"{slot} of round {round.t}", bounded, keys.noise)
        fresh = bounded.spare or value is not bounded.value  # what a mechanism made may be divided in place
        # cast first: the digits of what is released must not tell in which dtype the data made the sum be added up
        value = value.to(bounded.dtype or value.dtype)
        released[release.name] = value.div_(message.divisor) if fresh else value / message.divisor
    take_stage(round, stage, released)
    return released


def _noised(release: Release, name: str, bounded: ClippedSum, noise: Noise | None) -> Tensor:
    """What a mechanism makes of a bounded value: the only place where it is asked to."""
    return released_by(name, bounded, lambda: release.mechanism.release(bounded, noise))


def _needed(ledger: Chargeable | None, stage: Stage) -> Chargeable:
    if ledger is None:
        validate.refuse(
            "ledger", None, f"give a ledger: stage {stage.name!r} is private, and nothing is released without one"
        )
    return ledger


def take_stage(round: Round, stage: Stage, released: Mapping[str, Tensor]) -> None:
    """What was released, here or elsewhere, lifted to R^d and held in the round."""
    lifted = []
    for _, release, slot in slots([stage]):
        w = round.w if getattr(release.lift, "reads_w", True) else None
        inputs = round.sketches[slot], released[release.name], w, round.eta
        remember = getattr(release.lift, "remember", None)
        if remember is None:
            result = release.lift(*inputs)
        else:  # a lift with a memory of codes: post-processing of what was released, kept with the state
            result, memory = remember(*inputs, round.context.state_of(lift_slot(slot)))
            round.context.changed[lift_slot(slot)] = memory
        lifted += [] if result is None else [result]
    anchor = round.w if stage.every > 1 else None
    round.held[stage.name], round.released[stage.name] = Held(anchor, tuple(lifted)), dict(released)


def advance(round: Round, state: State, sent: Sequence[Message]) -> State:
    """Post-processing of what was released: update, average, the next clip bounds."""
    pipe = round.pipe
    lifted = [piece for stage in pipe.stages if stage.name in round.held for piece in round.held[stage.name].lifted]
    update, w = pipe.update.apply(state.update, state.w, lifted, round.eta)
    average, w = pipe.average.observe(state.average, w, round.eta, round.t)
    parts = {**state.parts, **round.context.changed}
    for stage, release, slot in slots(round.active):
        if release.clip is not None:
            parts[clip_slot(slot)] = release.clip.next(round.bounds[slot], round.released[stage.name])
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


@dataclass(frozen=True)
class Setting:
    """What a run needs beside its pipeline: where the data is, its space, and how long an epoch is."""

    aggregator: Aggregator
    space: Space
    keys: Keys
    public_rows: Callable[[Tensor, Any], Rows] = no_public
    per_epoch: int = 1
    physical: int | None = None
    ledger: Chargeable | None = None
    maps: Kept = field(default_factory=dict)
    whole: int | None = None
    """How many records all holders of data have together; None where this process has them all."""


def start(pipe: Pipeline, w: Tensor, seed: int = 0) -> State:
    """The state before the first round."""
    return State(w=w, update=pipe.update.init(w), average=pipe.average.init(w, seed))


def step(pipe: Pipeline, state: State, setting: Setting) -> tuple[Round, State]:
    """One round."""
    site = _opened(pipe, state, setting)
    round = site.round
    assert round is not None
    sent = [_through(site, round, stage, state, setting) for stage in round.active]
    with setting.aggregator.alike():
        return round, advance(round, replace(state, memory=site.memory), sent)


def opened_again(pipe: Pipeline, state: State, x: Tensor, setting: Setting) -> Round:
    """The round that led to a state, at the point x that it started from, with its maps bound: public things only."""
    before = replace(state, w=x, t=state.t - 1)
    round = _opened(pipe, before, setting).round
    assert round is not None
    for stage in round.active:
        bind_stage(round, stage, before)
    return round


def look(stage: Stage, setting: Setting, promise: Promise | None = None) -> dict[str, Tensor]:
    """One look at the data outside the loop, through the same functions as a round: what it released, by name."""
    pipe, state = Pipeline([stage], lambda t: 1.0, promise=promise), State(w=torch.empty(0))
    site = _opened(pipe, state, setting)
    assert site.round is not None
    _through(site, site.round, stage, state, setting)
    return site.round.released[stage.name]


def _opened(pipe: Pipeline, state: State, setting: Setting) -> DataSite:
    """The place where the server is, with a new round: the maps that it binds are those its own clients use."""
    round = open_round(
        pipe,
        state,
        space=setting.space,
        seed=setting.keys.seed,
        epoch=state.t // setting.per_epoch,
        read=lambda: state.w,
        public_rows=setting.public_rows,
        maps=setting.maps,
        lead=setting.aggregator.lead if setting.aggregator.shared else alone,
    )
    return DataSite(
        pipe,
        setting.space,
        setting.keys,
        setting.public_rows,
        setting.physical,
        setting.maps,
        dict(state.memory),
        round=round,
        whole=setting.whole,
    )


def _through(site: DataSite, round: Round, stage: Stage, state: State, setting: Setting) -> Message:
    """One stage of a round: its maps, everybody's contributions, its release."""
    aggregator, ledger = setting.aggregator, setting.ledger
    if ledger is not None:
        ledger = _OncePaid(ledger)
    bind_stage(round, stage, state)
    site.purse = ledger
    message = aggregator.collect(order_of(round, stage, state), site)
    with aggregator.alike():
        released = aggregator.publish(lambda: close_stage(round, stage, message, setting.keys, ledger))
        if stage.name not in round.released:  # it was released elsewhere
            take_stage(round, stage, released)
    return message


class _OncePaid:
    """The purse of one stage of one round: charged at its release, or before where sums come with their noise."""

    def __init__(self, purse: Chargeable) -> None:
        self.purse, self.paid = purse, False

    def charge(self, stage: Any, t: int) -> None:
        """The first time only."""
        if not self.paid:
            self.purse.charge(stage, t)
            self.paid = True


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
            return state, _point_of(pipe, state), "interrupted"
    return state, _point_of(pipe, state), "finished" if pipe.stop is None else "none found"


def _point_of(pipe: Pipeline, state: State) -> Tensor | None:
    if pipe.stop is not None:
        return None
    return state.w if pipe.output == "last" else pipe.average.output(state.average, state.w)
