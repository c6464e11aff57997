"""Per-example gradients of a torch module, as factors taken during the backward pass.

A linear layer `z = W a + c` has the per-example gradient `sum_t b_t [a_t, 1]'` with `b = d loss / d z`: one
leaf `[W | c]`.  A `Tap`, an identity on the layer's output, hands (a, b) to whoever listens; the weights
themselves ask for no gradient, so that the weight-gradient product is never done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from isthmus import _validate
from isthmus.gradients.outer import Outer
from isthmus.gradients.stack import Stack
from isthmus.penalties import NoPenalty, Penalty
from isthmus.space import Space

Listener = Callable[[str, Outer], None]


class Tap(torch.autograd.Function):
    """Identity forward; backward, the gradient of the output goes to `push` on its way."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, anchor: Tensor, push: Callable[[Tensor], None]) -> Tensor:
        """The output itself; the anchor makes it need a gradient although no weight does."""
        ctx.push = push
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Pass the gradient on, and show it."""
        ctx.push(gradients[0])
        return gradients[0], None, None


class Layers:
    """The trainable linear layers of a module as one flat space, with taps on their outputs.

    >>> layers = Layers(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2, bias=False)))
    >>> [(leaf.name, leaf.shape) for leaf in layers.space.leaves]
    [('0', (3, 5)), ('2', (2, 3))]
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.layers = _trainable_linears(module)
        first = next(iter(self.layers.values()))
        self.space = Space.of({name: _leaf_shape(layer) for name, layer in self.layers.items()})
        self._anchor = torch.zeros((), device=first.weight.device, requires_grad=True)
        self.listener: Listener | None = None

    def attach(self) -> list[Any]:
        """Put taps on every layer and silence the weights; returns the hook handles."""
        for parameter in self.parameters():
            parameter.requires_grad_(False)
        return [
            layer.register_forward_hook(lambda _, inputs, output, name=name: self._tap(name, inputs[0], output))
            for name, layer in self.layers.items()
        ]

    @contextmanager
    def listening(self, listener: Listener | None) -> Iterator[None]:
        """Send the factors of every backward pass to `listener` meanwhile."""
        before, self.listener = self.listener, listener
        try:
            yield
        finally:
            self.listener = before

    def parameters(self) -> Iterator[nn.Parameter]:
        """The parameters the space is made of."""
        for layer in self.layers.values():
            yield from layer.parameters(recurse=False)

    def pack(self) -> Tensor:
        """The parameters as one flat vector."""
        pieces = []
        for layer in self.layers.values():
            columns = [layer.weight] if layer.bias is None else [layer.weight, layer.bias[:, None]]
            pieces.append(torch.cat(columns, 1).reshape(-1))
        return torch.cat(pieces).detach()

    @torch.no_grad()
    def unpack(self, w: Tensor) -> None:
        """Write a flat vector into the parameters."""
        for name, layer in self.layers.items():
            leaf = self.space.view(w, name)
            layer.weight.copy_(leaf[:, : layer.in_features])
            if layer.bias is not None:
                layer.bias.copy_(leaf[:, -1])

    def set_gradients(self, direction: Tensor) -> None:
        """Write a flat direction into the parameters' `.grad`."""
        for name, layer in self.layers.items():
            leaf = self.space.view(direction, name)
            layer.weight.grad = leaf[:, : layer.in_features].to(layer.weight.dtype).contiguous()
            if layer.bias is not None:
                layer.bias.grad = leaf[:, -1].to(layer.bias.dtype).contiguous()

    def _tap(self, name: str, a: Tensor, output: Tensor) -> Tensor:
        if self.listener is None or not torch.is_grad_enabled():
            return output
        listener = self.listener
        has_bias = self.layers[name].bias is not None
        held = a.detach()

        def push(b: Tensor) -> None:
            factor = torch.cat([held, held.new_ones(*held.shape[:-1], 1)], -1) if has_bias else held
            listener(name, Outer(_three(factor), _three(b.detach())))

        return Tap.apply(output, self._anchor, push)


class ModuleObjective:
    """The mean loss of a torch module on data, as an objective over its flat parameter vector.

    `loss(output, target)` is a batch loss with the given reduction.  Per-example gradients stay factored.

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
        layers: Layers | None = None,
    ) -> None:
        _validate.one_of(("mean", "sum"), reduction=reduction)
        self.x, self.y = data
        _validate.check(
            len(self.x) == len(self.y) > 0,
            "data",
            (len(self.x), len(self.y)),
            "give as many targets as inputs, at least one",
        )
        self.n, self.reduction, self.penalty, self._loss = len(self.x), reduction, penalty or NoPenalty(), loss
        if layers is None:
            layers = Layers(module)
            layers.attach()
        self.layers, self.space, self.d = layers, layers.space, layers.space.d
        self.dtype = next(layers.parameters()).dtype

    def start(self) -> Tensor:
        """The module's parameters as they are."""
        return self.layers.pack()

    def on(self, data: tuple[Tensor, Tensor]) -> ModuleObjective:
        """The same loss of the same module on other data."""
        return ModuleObjective(
            self.layers.module, self._loss, data, reduction=self.reduction, penalty=self.penalty, layers=self.layers
        )

    def rows(self, w: Tensor, index: Tensor | None = None) -> Stack:
        """The per-example gradients of the loss."""
        self.layers.unpack(w)
        x, y = (self.x, self.y) if index is None else (self.x[index], self.y[index])
        return captured(self.layers, self._loss, x, y, self.reduction)

    @torch.no_grad()
    def loss(self, w: Tensor, index: Tensor | None = None) -> float:
        """The mean loss plus the penalty."""
        self.layers.unpack(w)
        x, y = (self.x, self.y) if index is None else (self.x[index], self.y[index])
        value = float(self._loss(self.layers.module(x), y))
        return (value if self.reduction == "mean" else value / len(x)) + float(self.penalty.value(w))

    def gradient(self, w: Tensor, index: Tensor | None = None) -> Tensor:
        """The mean gradient plus that of the penalty's smooth part."""
        rows = self.rows(w, index)
        return rows.sum() / rows.n + self.penalty.gradient(w)


def captured(layers: Layers, loss: Any, x: Tensor, y: Tensor, reduction: str = "mean") -> Stack:
    """Forward and backward once; the per-example gradients of every layer as factors."""
    seen: dict[str, list[Outer]] = {leaf.name: [] for leaf in layers.space.leaves}
    with layers.listening(lambda name, rows: seen[name].append(rows)), torch.enable_grad():
        value = loss(layers.module(x), y)
        (value * len(x) if reduction == "mean" else value).backward()
    return Stack([(name, merged(name, pieces)) for name, pieces in seen.items()])


def merged(name: str, pieces: list[Any]) -> Any:
    """One piece from all the times a layer was used in the pass."""
    if not pieces:
        raise RuntimeError(f"layer {name!r} took no part in the loss: freeze it (requires_grad_(False)) or use it")
    first, *rest = pieces
    return first.plus(rest) if rest else first


def _trainable_linears(module: nn.Module) -> dict[str, nn.Linear]:
    """Every layer that has trainable parameters, in order; what is not a linear layer is refused by name."""
    found: dict[str, nn.Linear] = {}
    for name, layer in module.named_modules():
        own = [parameter for parameter in layer.parameters(recurse=False) if parameter.requires_grad]
        if not own:
            continue
        if not isinstance(layer, nn.Linear):
            kind = type(layer).__name__
            _validate.refuse(
                "module", kind, f"layer {name!r} is a {kind} with trainable parameters: freeze it, or use nn.Linear"
            )
        trainable = all(parameter.requires_grad for parameter in layer.parameters())
        _validate.check(trainable, "module", name, "freeze weight and bias of a layer together, or neither")
        found[name] = layer
    _validate.check(bool(found), "module", type(module).__name__, "give a module with at least one trainable nn.Linear")
    weights = [id(layer.weight) for layer in found.values()]
    _validate.check(
        len(set(weights)) == len(weights), "module", type(module).__name__, "untie the weights of its layers"
    )
    return found


def _leaf_shape(layer: nn.Linear) -> tuple[int, int]:
    return layer.out_features, layer.in_features + (layer.bias is not None)


def _three(x: Tensor) -> Tensor:
    """(n, p) as it is; (n, ..., p) with every position in the middle."""
    return x if x.ndim <= 2 else x.reshape(x.shape[0], -1, x.shape[-1])
