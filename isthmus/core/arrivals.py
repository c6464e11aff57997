"""The gradients of one physical batch, kept until the backward pass has ended.

On a device the host is what a small step waits for.  So a tap does nothing inside backward but keep the gradient; when
all of them have come, the rows are made, encoded, clipped and summed in one piece of work, which the device may have
recorded (see `isthmus.base.recording`) and then runs by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

from isthmus.base.recording import Replay
from isthmus.core.pipeline import Round
from isthmus.core.wire import Message
from isthmus.sketches.base import Movable, Sketch

Arrived = tuple[str, Callable[[Tensor], None], Tensor, Sequence[Tensor]]
"""The name of a layer, what makes its rows, the gradient of its output, and what else that reads."""


class Arrivals:
    """Gradients in the order they came."""

    def __init__(self) -> None:
        self.items: list[Arrived] = []
        self.replay = Replay(Message.fresh, Message.near)
        """Has a device run a sum again that it has computed before, of memory in the same places."""
        self._idle: dict[Hashable, list[str]] = {}
        self._maps: dict[str, list[Tensor]] = {}
        """Memory for the maps of the slots, which stays where it is."""

    def __len__(self) -> int:
        return len(self.items)

    def keep(self, layer: str, push: Callable[[Tensor], None], b: Tensor, inputs: Sequence[Tensor]) -> None:
        """A gradient, inside backward."""
        self.items.append((layer, push, b, inputs))

    def tell(self) -> None:
        """Make the rows of all of them."""
        for _, push, b, _ in self.items:
            push(b)

    def message(self, round: Round, key: Hashable, compute: Callable[[], Message]) -> Message:
        """What `compute` makes of the gradients at hand; `key` has whatever else that depends on."""
        maps = [sketch for sketch in round.sketches.values() if isinstance(sketch, Movable)]
        if len(maps) < len(round.sketches):
            return compute()
        inputs = [x for _, _, b, reads in self.items for x in (b, *reads)]
        inputs += [x for sketch in maps for x in sketch.tensors()]
        sizes = tuple((slot, sketch.m, sketch.norm) for slot, sketch in round.sketches.items())
        return self.replay((key, self.layers(), sizes, tuple(sorted(round.bounds.items()))), inputs, compute)

    def placed(self, slot: str, sketch: Sketch) -> Sketch:
        """A map on a device in memory that stays where it is: the one before it there is overwritten."""
        if not isinstance(sketch, Movable):
            return sketch
        memory = sketch.tensors()
        if not memory or not all(x.is_cuda for x in memory):
            return sketch
        shapes = [(x.shape, x.dtype) for x in memory]
        if [(x.shape, x.dtype) for x in self._maps.get(slot, [])] != shapes:
            self._maps[slot] = [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in memory]
        torch._foreach_copy_(self._maps[slot], list(memory))
        return sketch.placed(self._maps[slot])

    def layers(self) -> Hashable:
        """Who has told something, in order."""
        return tuple((layer, len(reads)) for layer, _, _, reads in self.items)

    def idle(self, otherwise: list[str]) -> list[str]:
        """The leaves that took no part, as they were when the same layers told something before."""
        return self._idle.setdefault(self.layers(), otherwise)
