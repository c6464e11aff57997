"""What is fixed while a round lasts: its step, its maps and its clip bounds, from public things only."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NoReturn

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.space import Space
from isthmus.core.group import ALONE, Group
from isthmus.core.pipeline import Pipeline, Stage, slots
from isthmus.core.state import Held, State
from isthmus.gradients import Rows
from isthmus.sketches import Encoder, Sketch

Kept = dict[str, tuple[Hashable, Sketch]]
"""The maps a run holds between rounds, by slot: a convenience that any machine can rebuild, never part of the state."""


class RoundContext:
    """What an encoder may look at when it is bound; an encoder is bound once a round, however often it is asked."""

    def __init__(
        self,
        round: Round,
        slots: Sequence[tuple[str, Encoder]],
        parts: Mapping[str, Any],
        maps: Kept,
        group: Group = ALONE,
    ) -> None:
        self._round: Round = weakref.proxy(round)  # the round holds the context: no cycle keeps its tensors alive
        self._slots, self._parts, self._kept, self._group = slots, parts, maps, group
        self._bound: dict[str, Sketch] = {}
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
        """The map of this round: one for all slots that share an encoder."""
        slot = next(slot for slot, candidate in self._slots if candidate is encoder)
        if slot not in self._bound:
            self._bound[slot] = self._draw(encoder, slot)
        return self._bound[slot]

    def state_of(self, slot: str) -> Any:
        """What the encoder of a slot remembers after it was bound; None where it remembers nothing."""
        return self.changed.get(slot, self._parts.get(slot))

    def _learned(self, encoder: Encoder, state: Any) -> Any:
        """What one machine learned, for all of them; sent only in rounds in which it learned something."""

        def learn() -> Any:
            following = encoder.bind(self, state)[1]
            return None if following is state else following

        learned = self._group.on_leader(learn)
        return state if learned is None else learned

    def _draw(self, encoder: Encoder, slot: str) -> Sketch:
        token = encoder.token(self)
        if token is not None and slot in self._kept and self._kept[slot][0] == token:
            return self._kept[slot][1]
        before = self._parts.get(slot)
        if encoder.public and self._group.size > 1:  # no two machines need learn the same bits: one does
            before = self._learned(encoder, before)
        sketch, state = encoder.bind(self, before)
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
    maps: Kept | None = None,
    device: torch.device | None = None,
    group: Group = ALONE,
    place: Callable[[str, Sketch], Sketch] | None = None,
) -> Round:
    """A new round: its step size and what its encoders may look at.  Public things only."""
    step = pipe.step(state.t) if eta is None else eta
    round = Round(pipe, space, state.t, epoch, seed, step, read, public_rows, dict(state.held), device)
    round.context = RoundContext(round, pipe.encoders, state.parts, {} if maps is None else maps, group)
    round.context.place = place
    return round


def bind_stage(round: Round, stage: Stage, state: State) -> None:
    """Bind the encoders of a stage, which may look at what earlier stages released, and look up its clip bounds."""
    for _, release, slot in slots([stage]):
        if release.clip is not None:
            round.bounds[slot] = state.parts.get(clip_slot(slot), release.clip.init())
    for _, release, slot in slots([stage]):
        round.sketches[slot] = round.context.bind(release.encode)


def clip_slot(slot: str) -> str:
    """Where a state keeps the clip bound of a slot."""
    return f"{slot}/clip"


def lift_slot(slot: str) -> str:
    """Where a state keeps the memory of a slot's lift."""
    return f"{slot}/lift"


def no_public(w: Tensor, data: Any) -> NoReturn:
    """Refuse a sketch that asks for public examples where there are none."""
    validate.refuse("public", type(data).__name__, "give a sketch that needs no public examples: there are none here")
