"""Attention: `nn.MultiheadAttention` keeps its projections in one stacked parameter; here each of them has a tap."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MethodType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from isthmus.base import validate
from isthmus.gradients.layers.binding import LeafBinding
from isthmus.gradients.layers.rules import (
    Args,
    Handle,
    Kwargs,
    LayerRule,
    LinearRule,
    Replaced,
    Site,
    Trainable,
    factored,
)
from isthmus.gradients.layers.shared import Shared, Unseen

if TYPE_CHECKING:
    from isthmus.gradients.layers.layers import Layers
from isthmus.gradients.rows import Dense, Rows

_PARTS = ("q", "k", "v")
_EXTRAS = ("bias_k", "bias_v")


class _Projected(NamedTuple):
    """The projections of one input: which of q, k, v, and the input, examples in front (None for bias_k, bias_v)."""

    parts: tuple[str, ...]
    a: Tensor | None


class AttentionRule(LayerRule[nn.MultiheadAttention, _Projected]):
    """softmax(Q K' / sqrt(h)) V with Q = W_q x_q + c_q and so on: each projection is a linear layer of its own.

    Leaves `in_proj.q`, `in_proj.k` and `in_proj.v` lie over the rows of `in_proj_weight` and `in_proj_bias`, or over
    `q_proj_weight` and its like; `bias_k` and `bias_v` are rows of their own; `out_proj` is a child with its own rule.
    The forward that is put in place while someone listens computes the numbers of torch's, in the same order of
    random draws; otherwise torch's own runs.

    >>> from isthmus.gradients.layers import Layers
    >>> layers = Layers(nn.MultiheadAttention(4, 2, kdim=3, vdim=3, bias=False))
    >>> [(leaf.name, leaf.shape) for leaf in layers.space.leaves]
    [('in_proj.q', (4, 4)), ('in_proj.k', (4, 3)), ('in_proj.v', (4, 3)), ('out_proj', (4, 4))]
    """

    kinds = (nn.MultiheadAttention,)

    def bindings(self, layer: nn.MultiheadAttention, trainable: Trainable, split: bool) -> dict[str, LeafBinding]:
        """Rows of the stacked parameters; a bias joins its weight where both are stacked alike and trained."""
        leaves: dict[str, LeafBinding] = {}
        owned = layer._parameters
        packed, bias = layer.in_proj_weight is not None, owned["in_proj_bias"]
        for index, part in enumerate(_PARTS):
            rows = slice(index * layer.embed_dim, (index + 1) * layer.embed_dim)
            weight = owned["in_proj_weight" if packed else f"{part}_proj_weight"]
            over = rows if packed else None
            joined = packed and not split and trainable(weight) and trainable(bias)
            if weight is not None and trainable(weight):
                name = f"in_proj.{part}.weight" if split else f"in_proj.{part}"
                leaves[name] = LeafBinding(weight, bias if joined else None, rows=over)
            if bias is not None and trainable(bias) and not joined:
                leaves[f"in_proj.{part}.bias"] = LeafBinding(bias, rows=rows)
        for name in _EXTRAS:
            extra = owned.get(name)
            if extra is not None and trainable(extra):
                leaves[name] = LeafBinding(extra)
        return leaves

    def install(self, site: Site, layers: Layers) -> list[Handle]:
        """Replace the forward of this one object."""
        return _replaced_forward(site, layers)

    def keep(self, layer: nn.MultiheadAttention, args: Args, kwargs: Kwargs) -> _Projected:
        """The projections and their input, as `_Pass` names them."""
        return _Projected(*args)

    def dim(self, layer: nn.MultiheadAttention, output: Tensor) -> int:
        """As the layer itself was told."""
        return 0 if layer.batch_first else 1

    def rows(
        self, layer: nn.MultiheadAttention, factors: _Projected, b: Tensor, wanted: Mapping[str, LeafBinding]
    ) -> dict[str, Rows]:
        """Outer products of the input and the gradient of each projection."""
        if factors.a is None:
            return {factors.parts[0]: Dense(b.flatten(1))}
        b = _examples_first(layer, b)
        by_leaf: dict[str, Rows] = {}
        for part, piece in zip(factors.parts, b.chunk(len(factors.parts), -1), strict=True):
            prefix = f"in_proj.{part}"
            mine = {
                s[len(prefix) :].lstrip("."): x for s, x in wanted.items() if s == prefix or s.startswith(prefix + ".")
            }
            for suffix, rows in factored(factors.a, piece, mine).items():
                by_leaf[f"{prefix}.{suffix}" if suffix else prefix] = rows
        return by_leaf


class OutputRule(LinearRule):
    """The output projection of an attention layer: torch reads its weight and never calls it, so its owner has to."""

    kinds = (NonDynamicallyQuantizableLinear,)

    def install(self, site: Site, layers: Layers) -> list[Handle]:
        """The taps of a linear layer, and a forward that calls it in every owner that has none yet."""
        handles = super().install(site, layers)
        for name, owner in layers.module.named_modules():
            mine = isinstance(owner, nn.MultiheadAttention) and owner.out_proj is site.layer
            if mine and type(owner).forward is nn.MultiheadAttention.forward and "forward" not in owner.__dict__:
                handles += _replaced_forward(Site(name, owner, self, {}, {}), layers)
        return handles


def _replaced_forward(site: Site, layers: Layers) -> list[Handle]:
    """A forward with taps while someone listens; torch's fused inference is kept from going round it."""

    def forward(
        self: nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        if self is not site.layer:  # a copy of the layer
            return type(self).forward(self, query, key, value, *args, **kwargs)
        restore = layers.silence(self.parameters())  # the output projection's too: torch reads it here
        try:
            if not layers.listens():
                return type(self).forward(self, query, key, value, *args, **kwargs)
            for x in (query, key, value):
                if isinstance(x, Shared):
                    raise Unseen(x, f"is what layer {site.name!r} attends to or asks for all examples at once")
            return _Pass(site, layers).attend(query, key, value, *args, **kwargs)
        finally:
            restore()

    forward.tapped = True  # type: ignore[attr-defined]
    nested = [m for m in layers.module.modules() if isinstance(m, nn.TransformerEncoder) and m.use_nested_tensor]
    return [
        Replaced(site.layer, "forward", MethodType(forward, site.layer)),
        site.layer.register_forward_hook(lambda *_: None),  # torch looks for hooks before it fuses a layer
        *(Replaced(encoder, "use_nested_tensor", False) for encoder in nested),
    ]


class _Pass:
    """One forward pass of an attention layer with taps on its projections."""

    def __init__(self, site: Site, layers: Layers) -> None:
        assert isinstance(site.layer, nn.MultiheadAttention)
        self.site, self.layers, self.layer = site, layers, site.layer

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """What `nn.MultiheadAttention.forward` returns."""
        layer = self.layer
        validate.check(
            query.dim() == 3,
            "query.shape",
            tuple(query.shape),
            f"give a batch of three dimensions: layer {self.site.name!r} needs its examples apart",
        )
        needed = "give the causal attn_mask with it, which the layer needs"
        validate.check(not is_causal or attn_mask is not None, "is_causal", is_causal, needed)
        fast = is_causal and key_padding_mask is None and not need_weights
        q, k, v = (self._heads(x) for x in self._projections(query, key, value))
        mask = None if fast else _mask(q, key_padding_mask, attn_mask)
        if layer.bias_k is not None:
            k, v = (torch.cat([x, self._extra(name, x)], 2) for name, x in zip(_EXTRAS, (k, v), strict=True))
        if layer.add_zero_attn:
            k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
        if mask is not None:  # open at the positions that the layer itself adds
            mask = F.pad(mask, (0, k.shape[2] - mask.shape[3]))
        drop = layer.dropout if layer.training else 0.0
        if not need_weights:
            return self._output(F.scaled_dot_product_attention(q, k, v, mask, drop, fast)), None
        scores = (q * math.sqrt(1.0 / q.shape[-1])) @ k.transpose(-2, -1)
        weights = F.dropout(torch.softmax(scores if mask is None else scores + mask, dim=-1), p=drop)
        mixed = self._output(weights @ v)
        return mixed, weights.mean(dim=1) if average_attn_weights else weights

    def _projections(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Q, K and V, those of the same input by one product."""
        layer, stacked = self.layer, self.layer.in_proj_weight is not None
        groups = [("q", query), ("k", key), ("v", value)]
        if stacked and key is value:
            groups = [("qkv", query)] if query is key else [("q", query), ("kv", key)]
        projections: list[Tensor] = []
        for parts, x in groups:
            rows = slice(_PARTS.index(parts[0]) * layer.embed_dim, (_PARTS.index(parts[-1]) + 1) * layer.embed_dim)
            weight = layer.in_proj_weight[rows] if stacked else getattr(layer, f"{parts}_proj_weight")
            z = F.linear(x, weight, None if layer.in_proj_bias is None else layer.in_proj_bias[rows])
            if any(suffix.startswith(f"in_proj.{part}") for suffix in self.site.wanted for part in parts):
                z = self.layers.after(self.site, (tuple(parts), _examples_first(layer, x)), {}, z)
            projections += z.chunk(len(parts), -1)
        return projections

    def _heads(self, x: Tensor) -> Tensor:
        """(n, heads, positions, size) of a projection."""
        x = x if self.layer.batch_first else x.transpose(0, 1)
        heads: Tensor = x.unflatten(-1, (self.layer.num_heads, self.layer.head_dim))
        return heads.transpose(1, 2)

    def _extra(self, name: str, like: Tensor) -> Tensor:
        """bias_k or bias_v, one of its own for every example."""
        row = getattr(self.layer, name).expand(like.shape[0], 1, -1).clone()
        if name in self.site.wanted:
            row = self.layers.after(self.site, ((name,), None), {}, row)
        heads: Tensor = row.unflatten(-1, (self.layer.num_heads, self.layer.head_dim))
        return heads.transpose(1, 2)

    def _output(self, mixed: Tensor) -> Tensor:
        """The output projection, called with examples where the module's linear layers expect them."""
        mixed = mixed.transpose(1, 2).flatten(2)
        swapped = self.layers.batch_dim == 1
        output: Tensor = self.layer.out_proj(mixed.transpose(0, 1) if swapped else mixed)
        return output if swapped != self.layer.batch_first else output.transpose(0, 1)


def _examples_first(layer: nn.MultiheadAttention, x: Tensor) -> Tensor:
    return x.detach() if layer.batch_first else x.detach().transpose(0, 1)


def _mask(q: Tensor, padding: Tensor | None, mask: Tensor | None) -> Tensor | None:
    """The numbers to add, over (n, heads, targets, sources); what is true in a mask of booleans is closed."""
    total = None
    if mask is not None:
        total = _numbers(mask[None, None] if mask.dim() == 2 else mask.unflatten(0, q.shape[:2]), q.dtype)
    if padding is not None:
        closed = _numbers(padding, q.dtype)[:, None, None, :]
        total = closed if total is None else total + closed
    return total


def _numbers(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, float("-inf"))
    return mask
