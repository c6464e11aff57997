"""The second driver: a user's own torch loop through the same round as ours.

    for x, y in batches:                 # as many physical batches as memory asks
        loss(module(x), y).backward()
    driver.step()                        # one round: measure, close, advance, optimiser

The hooks open a round at the first forward pass, take the per-example factors layer by layer during the
backward pass and encode them there; `step` releases what was summed and gives the lifted direction to the
optimiser as its gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from isthmus import _validate
from isthmus.gradients import Outer
from isthmus.gradients.module import Layers, captured, merged
from isthmus.gradients.stack import Stack
from isthmus.parts.sources import current
from isthmus.parts.updates import Delegate
from isthmus.pipeline import (
    Kept,
    Keys,
    Ledger,
    Message,
    Pipeline,
    Release,
    Round,
    advance,
    bind_stage,
    close_stage,
    fragment,
    open_round,
    slots,
    start,
)
from isthmus.sketches import Sketch


class TorchDriver:
    """Runs a one-stage pipeline from a user's loop; the optimiser is any of torch's.

    >>> from isthmus.parts import Shuffle
    >>> from isthmus.pipeline import Stage
    >>> module = nn.Linear(3, 1)
    >>> sgd = torch.optim.SGD(module.parameters(), lr=0.1)
    >>> driver = TorchDriver(Pipeline([Stage(Shuffle(4))], step=lambda t: 0.1), module, sgd, n=4)
    >>> nn.functional.mse_loss(module(torch.ones(4, 3)), torch.zeros(4, 1)).backward()
    >>> driver.step()
    >>> driver.state.t, driver.state.dims
    (1, 4)
    """

    def __init__(
        self,
        pipe: Pipeline,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        n: int,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
        reduction: str = "mean",
        seed: int = 0,
        noise: Any = None,
        ledger: Ledger | None = None,
        reduce: Callable[[Message], Message] = lambda message: message,
    ) -> None:
        _check_drivable(pipe)
        _validate.positive_int(n=n)
        _validate.one_of(("mean", "sum"), reduction=reduction)
        self.layers, self.optimizer, self.stage = Layers(module), optimizer, pipe.stages[0]
        self.n, self.loss, self.reduction, self.keys, self.ledger = n, loss, reduction, Keys(seed, noise), ledger
        self.pipe = replace(pipe, update=Delegate(self._give))
        self.state = start(self.pipe, self.layers.pack(), seed)
        self._reduce, self._busy = reduce, False
        self._round: Round | None = None
        self._sum: Message | None = None
        self._batch = 0
        self._kept: Kept = {}
        self._rows: dict[str, list[Any]] = {}
        self._codes: dict[str, dict[str, list[Any]]] = {}
        self.layers.attach()
        self.layers.listener = self._push
        module.register_forward_pre_hook(self._before_forward)

    def step(self) -> None:
        """Close the round: release, lift, and let the optimiser move (an empty batch still takes its round)."""
        round = self._open()
        self._finish_backward()
        message = self._sum if self._sum is not None else self._nothing(round)
        divisor = self.stage.sampler.divisor(self.n, round.t)
        message = self._reduce(replace(_counted(message), divisor=divisor))
        close_stage(round, self.stage, message, self.keys, self.ledger)
        self.state = advance(round, self.state, [message])
        self._round = self._sum = None

    def _open(self) -> Round:
        if self._round is None:
            self._busy = True
            self._round = open_round(
                self.pipe,
                self.state,
                space=self.layers.space,
                seed=self.keys.seed,
                epoch=self.state.t // self.stage.sampler.rounds(self.n),
                read=self.layers.pack,
                public_rows=self._public_rows,
                eta=self.optimizer.param_groups[0]["lr"],
                kept=self._kept,
            )
            bind_stage(self._round, self.stage, self.state)
            self._busy = False
        return self._round

    def _before_forward(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if self._busy or not (torch.is_grad_enabled() and module.training):
            return
        self._open()
        self._finish_backward()
        self._batch = len(inputs[0])

    def _push(self, name: str, rows: Any) -> None:
        """One layer's factors, inside backward: encoded at once where a release clips codes, else kept."""
        if self._round is None:
            return
        if self.reduction == "mean":
            rows = rows.scaled(float(self._batch))
        for _, release, slot in slots([self.stage]):
            if _encodes_rows(release, self._round.sketches[slot]):
                pieces = self._codes.setdefault(release.name, {})
                pieces.setdefault(name, []).append(self._round.sketches[slot].leaf(name, rows))
        if not all(_encodes_rows(r, self._round.sketches[slot]) for _, r, slot in slots([self.stage])):
            self._rows.setdefault(name, []).append(rows)

    def _finish_backward(self) -> None:
        """Add the physical batch whose backward pass has ended to the round's sum."""
        if self._round is None or not (self._rows or self._codes):
            return
        names = [leaf.name for leaf in self.layers.space.leaves]
        rows = Stack([(name, merged(name, self._rows.get(name, []))) for name in names]) if self._rows else None
        codes = {}
        for _, release, slot in slots([self.stage]):
            if _encodes_rows(release, self._round.sketches[slot]):
                pieces = {name: merged(name, self._codes[release.name].get(name, [])) for name in names}
                codes[release.name] = self._round.sketches[slot].join(pieces)
        message = fragment(self._round, self.stage, rows, codes)
        self._sum = message if self._sum is None else self._sum + message
        self._rows, self._codes = {}, {}

    def _nothing(self, round: Round) -> Message:
        """The message of a batch with no records."""
        weight = next(self.layers.parameters())
        empty = []
        for leaf in self.layers.space.leaves:
            q, p = leaf.shape
            empty.append((leaf.name, Outer(weight.new_zeros(0, p), weight.new_zeros(0, q))))
        return fragment(round, self.stage, Stack(empty))

    def _public_rows(self, w: Tensor, data: Any) -> Stack:
        """Per-example gradients on public data; `data` is (x, y), or ((x, y), loss)."""
        pair, loss = data if callable(data[1]) else (data, self.loss)
        _validate.check(
            loss is not None, "loss", loss, "a public subspace needs the loss: pass loss= to it or to the driver"
        )
        return captured(self.layers, loss, pair[0], pair[1], self.reduction)

    def _give(self, direction: Tensor) -> None:
        self.layers.set_gradients(direction)
        self.optimizer.step()


def _encodes_rows(release: Release, sketch: Sketch) -> bool:
    """Whether a release needs only the codes of the rows, leaf by leaf, and never the rows themselves."""
    return sketch.leafwise and release.clip is not None and not release.clip.before and not release.between


def _counted(message: Message) -> Message:
    values = [bounded.value for bounded in message.values.values()]
    return replace(
        message,
        dims=sum(value.numel() for value in values),
        bytes=sum(value.numel() * value.element_size() for value in values),
    )


def _check_drivable(pipe: Pipeline) -> None:
    """What a user's loop cannot hold is refused when the driver is made."""
    stage = pipe.stages[0]
    remedy = "several stages, variance reduction, codecs and error feedback run in `minimize` only"
    simple = len(pipe.stages) == 1 and stage.every == 1 and stage.source is current
    _validate.check(simple, "pipe.stages", [s.name for s in pipe.stages], remedy)
    _validate.check(not pipe.wire.feedback and pipe.wire.codec is None, "pipe.wire", pipe.wire, remedy)
    _validate.check(pipe.stop is None, "pipe.stop", pipe.stop, remedy)
