"""What a kind of layer tells: its leaves, and their rows from its input and the gradient of its output.

A `LayerRule` keeps what it needs of the forward pass and, when the gradient b of the output arrives, answers with
the rows of the layer's leaves, factored where they can be.  In its own pass the weights ask for no gradient.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from isthmus.gradients.layers.binding import LeafBinding
from isthmus.gradients.rows import Dense, Outer, Rows

if TYPE_CHECKING:
    from isthmus.gradients.layers.layers import Layers

Handle: TypeAlias = "RemovableHandle | _Replaced"
"""What takes a hook away again."""
Trainable = Callable[[nn.Parameter | None], bool]
"""Whether a parameter was asked to be trained when the layers were read."""
Args: TypeAlias = tuple[Any, ...]
Kwargs: TypeAlias = dict[str, Any]
L = TypeVar("L", bound=nn.Module)

AnyRule: TypeAlias = "LayerRule[Any]"
"""A rule of any kind of layer."""
Found: TypeAlias = "list[tuple[AnyRule, str, Rows]]"
"""Rows of leaves: the layer, the suffix, and what was found."""
RowsOf: TypeAlias = Callable[[Tensor], Found]
"""The rows of leaves from the gradient of an output."""
_ABSENT = object()


class _Replaced:
    """A handle of an attribute of one object: `remove` puts back what was there."""

    def __init__(self, owner: nn.Module, name: str, value: object) -> None:
        self.owner, self.name, self.before = owner, name, owner.__dict__.get(name, _ABSENT)
        setattr(owner, name, value)

    def remove(self) -> None:
        """Put back what was there."""
        if self.before is _ABSENT:
            self.owner.__dict__.pop(self.name, None)
        else:
            setattr(self.owner, self.name, self.before)


def _replaced_forward(layer: nn.Module, run: Callable[..., object]) -> _Replaced:
    """Another forward of this one object; a copy of it has its own again."""

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> object:
        return run(*args, **kwargs) if self is layer else type(self).forward(self, *args, **kwargs)

    forward.tapped = True  # type: ignore[attr-defined]
    # trainers read from it which columns a model takes
    forward.__signature__ = inspect.signature(type(layer).forward)  # type: ignore[attr-defined]
    return _Replaced(layer, "forward", MethodType(forward, layer))


class LayerRule(Generic[L]):
    """One layer of some kind.  Its leaves are named by a suffix: "" is the layer's own leaf, [W | c] or W alone.

    `batch_dim` is where a tensor of the module keeps its examples; rows always count examples first.
    """

    kinds: ClassVar[tuple[type[nn.Module], ...]] = ()

    def __init__(self, name: str, layer: L, batch_dim: int = 0) -> None:
        self.name, self.layer, self.batch_dim = name, layer, batch_dim
        self.wanted: dict[str, LeafBinding] = {}
        """The leaves that are trained, by suffix."""
        self.leaves: dict[str, str] = {}
        """What those are called (a tied parameter is one leaf, which several layers feed)."""
        self.parameters: list[nn.Parameter] = []
        """The parameters whose gradients the rule tells."""

    def own(self, wanted: dict[str, LeafBinding]) -> None:
        """Take these leaves for what the layer trains."""
        self.wanted = wanted
        self.parameters = [parameter for binding in wanted.values() for parameter in binding.parameters]

    def bindings(self, trainable: Trainable, split: bool) -> dict[str, LeafBinding]:
        """The trainable leaves by suffix; `split` asks for weight and bias apart, because one of them is tied."""
        owned = self.layer._parameters.items()
        parts = {name: p for name, p in owned if p is not None and name in ("weight", "bias") and trainable(p)}
        if len(parts) == 2 and not split:
            return {"": self.bind(parts["weight"], parts["bias"])}
        by_suffix = {}
        if "weight" in parts:
            by_suffix["weight" if split else ""] = self.bind(parts["weight"])
        if "bias" in parts:
            by_suffix["bias"] = LeafBinding(parts["bias"])
        return by_suffix

    def bind(self, weight: nn.Parameter, bias: nn.Parameter | None = None) -> LeafBinding:
        """How a weight and its bias lie in a leaf."""
        return LeafBinding(weight, bias)

    def check(self) -> None:
        """Refuse a layer that has no per-example gradient, with the remedy."""
        return None

    def install(self, layers: Layers) -> list[Handle]:
        """Put the hooks of the layer in place; returns their handles."""
        return layers.tap_layer(self)

    def given(self, args: Args, kwargs: Kwargs) -> tuple[Tensor, int] | None:
        """The tensor that should hold examples, and where; None where its shape does not tell whether it does."""
        x = self.input(args, kwargs)
        return (x, self.dim(x)) if isinstance(x, Tensor) and x.ndim else None

    def input(self, args: Args, kwargs: Kwargs) -> Any:
        """What the layer is called with."""
        return args[0] if args else kwargs.get("input")

    def prepare(self, args: Args) -> Args:
        """The arguments of the layer, or others with which it computes the same."""
        return args

    def watch(self, args: Args, kwargs: Kwargs) -> RowsOf:
        """What makes rows of the gradient of the output; it keeps what of the forward pass they need."""
        raise NotImplementedError

    def dim(self, output: Tensor) -> int:
        """Where an output of the layer keeps its examples."""
        return _examples_dim(output.ndim, self.batch_dim)

    def first(self, x: Tensor, least: int = 3) -> Tensor:
        """Examples in front: a tensor with fewer than `least` dimensions has them there already."""
        x = x.detach()
        if self.batch_dim and x.ndim >= least:
            return x.transpose(0, 1)
        return x


def _examples_dim(ndim: int, batch_dim: int) -> int:
    """Where a tensor of so many dimensions keeps its examples: in front where there is nothing between."""
    if ndim < 3:
        return 0
    return batch_dim


class _LinearRule(LayerRule[nn.Linear]):
    """z = W a + c at any number of positions: g = sum_t b_t [a_t, 1]'."""

    kinds = (nn.Linear,)

    def prepare(self, args: Args) -> Args:
        """The input as autocast rounds it: kept so, it takes half the room."""
        if args and isinstance(args[0], Tensor) and torch.is_autocast_enabled(args[0].device.type):
            return (_as_multiplied(args[0]), *args[1:])
        return args

    def watch(self, args: Args, kwargs: Kwargs) -> RowsOf:
        """Outer products of the input and the gradient."""
        a = self.first(self.input(args, kwargs))
        return lambda b: _factored(self, self.wanted, a, self.first(b))


def _as_multiplied(x: Tensor) -> Tensor:
    """A factor of a product as autocast rounds it."""
    kind = x.device.type
    if torch.is_autocast_enabled(kind) and x.dtype in (torch.float32, torch.float16):
        return x.to(torch.get_autocast_dtype(kind))
    return x


def _factored(rule: AnyRule, wanted: Mapping[str, LeafBinding], a: Tensor, b: Tensor) -> Found:
    """The rows of a weight and its bias from a (n, ..., p) and b (n, ..., q); a bias alone is the sum of b."""
    if a.ndim > 2:
        a, b = _positions(a), _positions(b)
    rows: Found = []
    for suffix, binding in wanted.items():
        if suffix.endswith("bias"):
            rows.append((rule, suffix, _bias_rows(b)))
        else:
            rows.append((rule, suffix, Outer(a, b, ones=binding.bias is not None)))
    return rows


def _bias_rows(b: Tensor) -> Dense:
    """The rows of a bias from b, (n, q) or (n, T, q): its sum over positions."""
    if b.ndim > 2:
        b = b.sum(1, dtype=torch.promote_types(b.dtype, torch.float32))
    return Dense(b)


def _positions(x: Tensor) -> Tensor:
    """(n, p) as it is; (n, ..., p) with every position in the middle."""
    return x if x.ndim <= 2 else x.flatten(1, -2)
