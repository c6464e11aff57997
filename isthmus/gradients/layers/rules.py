"""What a kind of layer tells: its leaves, and their rows from its input and the gradient of its output.

A `LayerRule` keeps what it needs of the forward pass and, when the gradient b of the output arrives, answers with
the rows of the layer's leaves, factored where they can be.  In its own pass the weights ask for no gradient.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from isthmus.gradients.base import Dense, Rows
from isthmus.gradients.layers.binding import LeafBinding
from isthmus.gradients.outer import Outer

Trainable = Callable[[nn.Parameter | None], bool]
"""Whether a parameter was asked to be trained when the layers were read."""


class LayerRule(ABC):
    """One kind of layer.  Leaves are named by a suffix: "" is the layer's own leaf, [W | c] or W alone.

    `batch_dim` is where a tensor of the module keeps its examples; rows always count examples first.
    """

    kinds: ClassVar[tuple[type[nn.Module], ...]]

    def __init__(self, batch_dim: int = 0) -> None:
        self.batch_dim = batch_dim

    def bindings(self, layer: Any, trainable: Trainable, split: bool) -> dict[str, LeafBinding]:
        """The trainable leaves by suffix; `split` asks for weight and bias apart, because one of them is tied."""
        weight, bias = layer.weight, getattr(layer, "bias", None)
        if trainable(weight) and trainable(bias) and not split:
            return {"": self.bind(weight, bias)}
        found = {"weight" if split else "": self.bind(weight)} if trainable(weight) else {}
        return found | ({"bias": LeafBinding(bias)} if bias is not None and trainable(bias) else {})

    def bind(self, weight: nn.Parameter, bias: nn.Parameter | None = None) -> LeafBinding:
        """How a weight and its bias lie in a leaf."""
        return LeafBinding(weight, bias)

    def check(self, name: str, layer: Any) -> None:
        """Refuse a layer that has no per-example gradient, with the remedy."""
        return None

    def install(self, site: Any, layers: Any) -> list[Any]:
        """Put the hooks of a layer in place; returns their handles.

        They stand as close to the layer's own forward as can be: what other hooks do with its output or its weights
        is seen as done by others.
        """
        mine = lambda layer: layer is site.layer  # noqa: E731  # a copy of the layer has its hooks too
        before = lambda layer, args: layers.before(site, args) if mine(layer) else None  # noqa: E731
        after = lambda layer, args, kwargs, out: layers.after(site, args, kwargs, out) if mine(layer) else out  # noqa: E731
        passes: list[Any] = []

        def enter(layer: nn.Module, args: tuple[Any, ...]) -> None:
            if mine(layer):
                passes.append(layers.silence(site.parameters))

        def leave(layer: nn.Module, *_: Any) -> None:
            if mine(layer) and passes:
                passes.pop()()

        return [
            site.layer.register_forward_pre_hook(before),
            site.layer.register_forward_pre_hook(enter),
            site.layer.register_forward_hook(leave, prepend=True, always_call=True),
            site.layer.register_forward_hook(after, with_kwargs=True, prepend=True),
        ]

    def prepare(self, layer: Any, args: tuple[Any, ...], batch: int | None) -> tuple[Any, ...] | None:
        """Other arguments for the layer, where it must see every example apart (None: as they are)."""
        return None

    @abstractmethod
    def keep(self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What of the forward pass the rows need."""

    @abstractmethod
    def rows(self, layer: Any, kept: Any, b: Tensor, wanted: Mapping[str, LeafBinding]) -> dict[str, Rows]:
        """The rows of the wanted leaves (those of `bindings`), by suffix."""

    def dim(self, layer: Any, output: Tensor) -> int:
        """Where an output of the layer keeps its examples."""
        return 0 if output.ndim < 3 else self.batch_dim

    def first(self, x: Tensor, least: int = 3) -> Tensor:
        """Examples in front: a tensor with fewer than `least` dimensions has them there already."""
        return x.detach() if self.batch_dim == 0 or x.ndim < least else x.detach().transpose(0, 1)


class LinearRule(LayerRule):
    """z = W a + c at any number of positions: g = sum_t b_t [a_t, 1]'."""

    kinds = (nn.Linear,)

    def keep(self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """The input."""
        return self.first(args[0] if args else kwargs["input"])

    def rows(self, layer: Any, kept: Tensor, b: Tensor, wanted: Mapping[str, LeafBinding]) -> dict[str, Rows]:
        """Outer products, or their sums where these are smaller; a bias alone is the sum of b over positions."""
        return factored(kept, self.first(b), wanted)


def factored(a: Tensor, b: Tensor, wanted: Mapping[str, LeafBinding]) -> dict[str, Rows]:
    """The rows of a weight and its bias from a (n, ..., p) and b (n, ..., q)."""
    a, b = positions(a), positions(b)
    found: dict[str, Rows] = {}
    for suffix, binding in wanted.items():
        if suffix == "bias":
            found[suffix] = Dense(b if b.ndim == 2 else b.sum(1, dtype=torch.promote_types(b.dtype, torch.float32)))
        else:
            found[suffix] = Outer(a, b, ones=binding.bias is not None).compact()
    return found


def positions(x: Tensor) -> Tensor:
    """(n, p) as it is; (n, ..., p) with every position in the middle."""
    return x if x.ndim <= 2 else x.flatten(1, -2)
