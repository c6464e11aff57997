"""Per-example gradients of a torch module, as factors taken during the backward pass.

A linear layer `z = W a + c` has the per-example gradient `sum_t b_t [a_t, 1]'` with `b = d loss / d z`: one
leaf `[W | c]`.  A tap on the layer's output hands b to whoever listens; in the layer's pass its weights ask for no
gradient, so that the weight-gradient product is never done.  `isthmus.gradients.layers` has the other kinds of layers.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from isthmus.base import validate
from isthmus.gradients.layers import Layers as Layers
from isthmus.gradients.layers import forward_guard
from isthmus.gradients.layers.trial import Pieces, look
from isthmus.gradients.rows import Rows, Stack, compact, total
from isthmus.objectives.base import Index, Objective
from isthmus.penalties import NoPenalty, Penalty


class ModuleObjective(Objective):
    """The mean loss of a torch module on data, as an objective over its flat parameter vector.

    `loss(output, target)` is a batch loss with the given reduction.  Per-example gradients stay factored.  A module
    or a loss in which examples meet has none, and is refused (`isthmus.gradients.layers.trial`).

    >>> module, x, y = nn.Linear(3, 1), torch.randn(5, 3), torch.randn(5, 1)
    >>> objective = ModuleObjective(module, nn.functional.mse_loss, (x, y))
    >>> objective.rows(objective.start()).norms().shape
    torch.Size([5])
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        data: tuple[Tensor, Tensor],
        *,
        reduction: str = "mean",
        penalty: Penalty | None = None,
    ) -> None:
        validate.one_of(("mean", "sum"), reduction=reduction)
        self._load(data)
        self.reduction, self.penalty, self._loss = reduction, penalty or NoPenalty(), loss
        self.layers = Layers(module)
        self.layers.attach()
        self.space = self.layers.space
        self.guard = forward_guard.Guard(module, False, self.layers.parameters())
        self.dtype = next(self.layers.parameters()).dtype

    def start(self) -> Tensor:
        """The module's parameters as they are."""
        return self.layers.pack()

    def on(self, data: tuple[Tensor, Tensor]) -> ModuleObjective:
        """The same loss of the same module on other data."""
        other = copy.copy(self)
        other._load(data)
        return other

    def _load(self, data: tuple[Tensor, Tensor]) -> None:
        self.x, self.y = data
        self.n = len(self.x)
        remedy = "give as many targets as inputs, at least one"
        validate.check(self.n == len(self.y) > 0, "data", (self.n, len(self.y)), remedy)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the promise of a private run rests on here."""
        mean = (forward_guard.MEAN,) if self.reduction == "mean" else ()
        return (forward_guard.MIXING, forward_guard.RANDOM, *mean, forward_guard.SHAPES)

    @property
    def kept(self) -> list[str]:
        """The buffers and attributes of the module that private passes have changed."""
        return list(self.guard.changed)

    def rows(self, w: Tensor, index: Index = None) -> Stack:
        """The per-example gradients of the loss."""
        x, y = self._batch(w, index)
        private, idle = forward_guard.present(), list[str]()
        with self.guard.around(private):
            pieces = look(self.layers, (x, y), {}, len(x), lambda module, args, _: self._loss(module(args[0]), args[1]))
            rows = captured(self.layers, self._loss, x, y, self.reduction, pieces, idle)
        if private is not None and private.cut:
            forward_guard.check_idle(idle, private.idle.setdefault(id(w), idle))
        return rows

    @torch.no_grad()
    def data_loss(self, w: Tensor, index: Index = None) -> float:
        """The mean loss."""
        x, y = self._batch(w, index)
        with self.guard.around(forward_guard.present()):
            value = float(self._loss(self.layers.module(x), y))
        if self.reduction == "sum":
            value /= len(x)
        return value

    def _batch(self, w: Tensor, index: Index) -> tuple[Tensor, Tensor]:
        """The examples of a batch, which are about to pass at a point."""
        self.layers.unpack(w)
        if index is None:
            return self.x, self.y
        return self.x[index], self.y[index]


def captured(
    layers: Layers,
    loss: Any,
    x: Tensor,
    y: Tensor,
    reduction: str = "mean",
    pieces: Pieces = None,
    idle: list[str] | None = None,
) -> Stack:
    """Forward and backward once; the per-example gradients of every layer as factors.

    The layers that took no part are added to `idle`; `pieces` is what `look` has returned.
    """
    if not len(x):  # many modules cannot be run on no example
        return layers.no_rows()
    told: dict[str, list[Rows]] = {name: [] for name in layers.bindings}
    listener = layers.listening(lambda name, rows: told[name].append(compact(rows)), len(x), pieces)
    with listener, torch.enable_grad():
        value = loss(layers.module(x), y)
        if reduction == "mean":
            value = value * len(x)
        value.backward()
    silent = [name for name, rows in told.items() if not rows]
    if idle is not None:
        idle += silent
    for name, rows in unused(layers, silent, len(x)):
        told[name].append(rows)
    return Stack([(name, total(rows)) for name, rows in told.items()])


def unused(layers: Layers, names: Sequence[str], n: int, warned: set[str] | None = None) -> Iterable[tuple[str, Rows]]:
    """The rows of layers that took no part in a pass of n examples (left out, or in a branch not taken): zeros.

    That is the gradient which every example has there.  `warned` has the layers that were warned about before.

    >>> layers, unused_names = Layers(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))), {"1"}
    >>> [(name, rows.norms().tolist()) for name, rows in unused(layers, ["1"], 2, unused_names)]
    [('1', [0.0, 0.0])]
    """
    new = [name for name in names if warned is None or name not in warned]
    if new:
        if warned is not None:
            warned.update(new)
        warnings.warn(
            f"the layers {new} took no part in a batch: their gradients are zero there, and noise is added to them all "
            "the same; freeze (requires_grad_(False)) what is never used",
            stacklevel=4,
        )
    return layers.zeros(names, n)
