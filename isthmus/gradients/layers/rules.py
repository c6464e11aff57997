"""What a kind of layer tells: its leaves, and their rows from its input and the gradient of its output.

A `LayerRule` keeps what it needs of the forward pass and, when the gradient b of the output arrives, answers with
the rows of the layer's leaves, factored where they can be.  In its own pass the weights ask for no gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from isthmus.gradients.layers.binding import LeafBinding
from isthmus.gradients.rows import Dense, Outer, Rows

if TYPE_CHECKING:
    from isthmus.gradients.layers.layers import Layers

Handle: TypeAlias = "RemovableHandle | Replaced"
"""What takes a hook away again."""
Trainable = Callable[[nn.Parameter | None], bool]
"""Whether a parameter was asked to be trained when the layers were read."""
Listener = Callable[[str, Rows], None]
"""Who is told the rows of every leaf, by its name."""
Args: TypeAlias = tuple[Any, ...]
Kwargs: TypeAlias = dict[str, Any]
L = TypeVar("L", bound=nn.Module)
K = TypeVar("K")

Found: TypeAlias = "Callable[[Tensor], Iterable[tuple[Site, dict[str, Rows]]]]"
"""The rows of some sites from the gradient of an output."""


class Replaced:
    """A handle of an attribute of one object: `remove` puts back what was there."""

    def __init__(self, owner: nn.Module, name: str, value: object) -> None:
        self.owner, self.name, self.before = owner, name, owner.__dict__.get(name)
        self.had = name in owner.__dict__
        setattr(owner, name, value)

    def remove(self) -> None:
        """Put back what was there."""
        if self.had:
            setattr(self.owner, self.name, self.before)
        else:
            self.owner.__dict__.pop(self.name, None)


@dataclass(frozen=True, eq=False)
class Site:
    """A layer, its rule, and the leaf that each of its suffixes feeds (a tied parameter is fed from several sites)."""

    name: str
    layer: nn.Module
    rule: LayerRule[Any, Any]
    wanted: Mapping[str, LeafBinding]
    leaves: Mapping[str, str]

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters whose gradients the layer's rule tells."""
        return [parameter for binding in self.wanted.values() for parameter in binding.parameters]


class LayerRule(Generic[L, K]):
    """One kind of layer.  Leaves are named by a suffix: "" is the layer's own leaf, [W | c] or W alone.

    `batch_dim` is where a tensor of the module keeps its examples; rows always count examples first.
    """

    kinds: ClassVar[tuple[type[nn.Module], ...]]

    def __init__(self, batch_dim: int = 0) -> None:
        self.batch_dim = batch_dim

    def bindings(self, layer: L, trainable: Trainable, split: bool) -> dict[str, LeafBinding]:
        """The trainable leaves by suffix; `split` asks for weight and bias apart, because one of them is tied."""
        weight, bias = (layer._parameters.get(name) for name in ("weight", "bias"))
        if weight is not None and trainable(weight) and trainable(bias) and not split:
            return {"": self.bind(weight, bias)}
        by_name = {}
        if weight is not None and trainable(weight):
            by_name["weight" if split else ""] = self.bind(weight)
        return by_name | ({"bias": LeafBinding(bias)} if bias is not None and trainable(bias) else {})

    def bind(self, weight: nn.Parameter, bias: nn.Parameter | None = None) -> LeafBinding:
        """How a weight and its bias lie in a leaf."""
        return LeafBinding(weight, bias)

    def check(self, name: str, layer: L) -> None:
        """Refuse a layer that has no per-example gradient, with the remedy."""
        return None

    def install(self, site: Site, layers: Layers) -> list[Handle]:
        """Put the hooks of a layer in place; returns their handles.

        They stand as close to the layer's own forward as can be: what other hooks do with its output or its weights
        is seen as done by others.
        """
        passes: list[Callable[[], None]] = []

        # a copy of the layer has its hooks too, and is none of ours
        def enter(layer: nn.Module, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
            if layer is site.layer:
                args, kwargs, leave = layers.enter(site, args, kwargs)
                passes.append(leave)
            return args, kwargs

        def leave(layer: nn.Module, *_: object) -> None:
            if layer is site.layer and passes:
                passes.pop()()

        def after(layer: nn.Module, args: Args, kwargs: Kwargs, out: Tensor) -> Tensor:
            return layers.after(site, args, kwargs, out) if layer is site.layer else out

        return [
            site.layer.register_forward_pre_hook(enter, with_kwargs=True),
            site.layer.register_forward_hook(leave, prepend=True, always_call=True),
            site.layer.register_forward_hook(after, with_kwargs=True, prepend=True),
        ]

    def given(self, layer: L, args: Args, kwargs: Kwargs) -> tuple[Tensor, int] | None:
        """The tensor that should hold examples, and where; None where its shape does not tell whether it does."""
        x = args[0] if args else kwargs.get("input")
        return (x, self.dim(layer, x)) if isinstance(x, Tensor) and x.ndim else None

    def prepare(self, layer: L, args: Args, batch: int | None) -> Args | None:
        """Other arguments for the layer, which compute the same (None: as they are)."""
        return None

    def keep(self, layer: L, args: Args, kwargs: Kwargs) -> K:
        """What of the forward pass the rows need."""
        raise NotImplementedError

    def rows(self, layer: L, factors: K, b: Tensor, wanted: Mapping[str, LeafBinding]) -> dict[str, Rows]:
        """The rows of the wanted leaves (those of `bindings`), by suffix."""
        raise NotImplementedError

    def dim(self, layer: L, output: Tensor) -> int:
        """Where an output of the layer keeps its examples."""
        return 0 if output.ndim < 3 else self.batch_dim

    def first(self, x: Tensor, least: int = 3) -> Tensor:
        """Examples in front: a tensor with fewer than `least` dimensions has them there already."""
        return x.detach() if self.batch_dim == 0 or x.ndim < least else x.detach().transpose(0, 1)


class LinearRule(LayerRule[nn.Linear, Tensor]):
    """z = W a + c at any number of positions: g = sum_t b_t [a_t, 1]'."""

    kinds = (nn.Linear,)

    def prepare(self, layer: nn.Linear, args: Args, batch: int | None) -> Args | None:
        """The input as autocast rounds it: kept so, it takes half the room."""
        return (as_multiplied(args[0]), *args[1:]) if args and isinstance(args[0], Tensor) else None

    def keep(self, layer: nn.Linear, args: Args, kwargs: Kwargs) -> Tensor:
        """The input."""
        return self.first(args[0] if args else kwargs["input"])

    def rows(self, layer: nn.Linear, factors: Tensor, b: Tensor, wanted: Mapping[str, LeafBinding]) -> dict[str, Rows]:
        """Outer products; a bias alone is the sum of b over positions."""
        return factored(factors, self.first(b), wanted)


def as_multiplied(x: Tensor) -> Tensor:
    """A factor of a product as autocast rounds it."""
    kind = x.device.type
    narrow = torch.is_autocast_enabled(kind) and x.dtype in (torch.float32, torch.float16)
    return x.to(torch.get_autocast_dtype(kind)) if narrow else x


def factored(a: Tensor, b: Tensor, wanted: Mapping[str, LeafBinding]) -> dict[str, Rows]:
    """The rows of a weight and its bias from a (n, ..., p) and b (n, ..., q)."""
    a, b = positions(a), positions(b)
    rows: dict[str, Rows] = {}
    for suffix, binding in wanted.items():
        if suffix == "bias":
            rows[suffix] = Dense(b if b.ndim == 2 else b.sum(1, dtype=torch.promote_types(b.dtype, torch.float32)))
        else:
            rows[suffix] = Outer(a, b, ones=binding.bias is not None)
    return rows


def positions(x: Tensor) -> Tensor:
    """(n, p) as it is; (n, ..., p) with every position in the middle."""
    return x if x.ndim <= 2 else x.flatten(1, -2)
