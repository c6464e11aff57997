"""Attention: `nn.MultiheadAttention` keeps its projections in one stacked parameter; here each of them has a tap."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MethodType
from typing import Any, NamedTuple

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
    Site,
    Taps,
    Trainable,
    factored,
)
from isthmus.gradients.layers.shared import Shared, Unseen
from isthmus.gradients.rows import Dense, Rows

PARTS = ("q", "k", "v")
EXTRAS = ("bias_k", "bias_v")


class Projected(NamedTuple):
    """The projections of one input: which of q, k, v, and the input, examples in front (None for bias_k, bias_v)."""

    parts: tuple[str, ...]
    a: Tensor | None


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


class AttentionRule(LayerRule[nn.MultiheadAttention, Projected]):
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
        for index, part in enumerate(PARTS):
            rows = slice(index * layer.embed_dim, (index + 1) * layer.embed_dim)
            weight = owned["in_proj_weight" if packed else f"{part}_proj_weight"]
            over = rows if packed else None
            joined = packed and not split and trainable(weight) and trainable(bias)
            if weight is not None and trainable(weight):
                name = f"in_proj.{part}.weight" if split else f"in_proj.{part}"
                leaves[name] = LeafBinding(weight, bias if joined else None, rows=over)
            if bias is not None and trainable(bias) and not joined:
                leaves[f"in_proj.{part}.bias"] = LeafBinding(bias, rows=rows)
        for name in EXTRAS:
            extra = owned.get(name)
            if extra is not None and trainable(extra):
                leaves[name] = LeafBinding(extra)
        return leaves

    def install(self, site: Site, layers: Taps) -> list[Handle]:
        """Replace the forward of this one object."""
        return _replaced_forward(site, layers)

    def keep(self, layer: nn.MultiheadAttention, args: Args, kwargs: Kwargs) -> Projected:
        """The projections and their input, as `_Pass` names them."""
        return Projected(*args)

    def dim(self, layer: nn.MultiheadAttention, output: Tensor) -> int:
        """As the layer itself was told."""
        return 0 if layer.batch_first else 1

    def rows(
        self, layer: nn.MultiheadAttention, factors: Projected, b: Tensor, wanted: Mapping[str, LeafBinding]
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

    def install(self, site: Site, layers: Taps) -> list[Handle]:
        """The taps of a linear layer, and a forward that calls it in every owner that has none yet."""
        handles = super().install(site, layers)
        for name, owner in layers.module.named_modules():
            mine = isinstance(owner, nn.MultiheadAttention) and owner.out_proj is site.layer
            if mine and type(owner).forward is nn.MultiheadAttention.forward and "forward" not in owner.__dict__:
                handles += _replaced_forward(Site(name, owner, self, {}, {}), layers)
        return handles


def _replaced_forward(site: Site, layers: Taps) -> list[Handle]:
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

    def __init__(self, site: Site, layers: Taps) -> None:
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
        masked = _masks(query, key_padding_mask, attn_mask, need_weights, is_causal)
        q, k, v = (self._heads(x) for x in self._projections(query, key, value))
        mask, is_causal = _merged_mask(layer, q, *masked)
        if layer.bias_k is not None:
            k, v = (torch.cat([x, self._extra(name, x)], 2) for name, x in zip(EXTRAS, (k, v), strict=True))
        if layer.add_zero_attn:
            k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
        drop = layer.dropout if layer.training else 0.0
        if need_weights:
            mixed, weights = _weighted(q, k, v, mask, drop)
            return self._output(mixed), weights.mean(dim=1) if average_attn_weights else weights
        return self._output(F.scaled_dot_product_attention(q, k, v, mask, drop, is_causal)), None

    def _projections(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Q, K and V, those of the same input by one product."""
        layer, stacked = self.layer, self.layer.in_proj_weight is not None
        groups = [("q", query), ("k", key), ("v", value)]
        if stacked and key is value:
            groups = [("qkv", query)] if query is key else [("q", query), ("kv", key)]
        projections: list[Tensor] = []
        for parts, x in groups:
            rows = slice(PARTS.index(parts[0]) * layer.embed_dim, (PARTS.index(parts[-1]) + 1) * layer.embed_dim)
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


def _masks(
    query: Tensor, key_padding_mask: Tensor | None, attn_mask: Tensor | None, need_weights: bool, is_causal: bool
) -> tuple[Tensor | None, Tensor | None, bool]:
    """The two masks as numbers to add, and whether the causal hint takes the place of the second."""
    padding = F._canonical_mask(
        mask=key_padding_mask,
        mask_name="key_padding_mask",
        other_type=F._none_or_dtype(attn_mask),
        other_name="attn_mask",
        target_type=query.dtype,
    )
    validate.check(
        not is_causal or attn_mask is not None,
        "is_causal",
        is_causal,
        "give the causal attn_mask with it, which the layer needs",
    )
    if is_causal and padding is None and not need_weights:
        return None, None, True
    mask = F._canonical_mask(
        mask=attn_mask,
        mask_name="attn_mask",
        other_type=None,
        other_name="",
        target_type=query.dtype,
        check_other=False,
    )
    return padding, mask, False


def _merged_mask(
    layer: nn.MultiheadAttention, q: Tensor, padding: Tensor | None, mask: Tensor | None, is_causal: bool
) -> tuple[Tensor | None, bool]:
    """One mask over (n, heads, targets, sources), open at the positions that the layer itself adds."""
    if mask is not None:
        mask = mask[None, None] if mask.dim() == 2 else mask.unflatten(0, (q.shape[0], layer.num_heads))
    if padding is not None:
        padding = padding[:, None, None, :]
        mask = padding if mask is None else mask + padding
    added = (layer.bias_k is not None) + bool(layer.add_zero_attn)
    return (mask if mask is None or not added else F.pad(mask, (0, added))), is_causal


def _weighted(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, drop: float) -> tuple[Tensor, Tensor]:
    """Attention and its weights, written out."""
    scores = (q * math.sqrt(1.0 / q.shape[-1])) @ k.transpose(-2, -1)
    weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
    weights = F.dropout(weights, p=drop) if drop > 0 else weights
    return weights @ v, weights
