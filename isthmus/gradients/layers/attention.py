"""Attention: `nn.MultiheadAttention` keeps its projections in one stacked parameter; here each of them has a tap."""

from __future__ import annotations

import math
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isthmus.base import validate
from isthmus.gradients.layers import rules
from isthmus.gradients.layers.operations import _SharedTensor, _Unseen
from isthmus.gradients.rows import Dense

if TYPE_CHECKING:
    from isthmus.gradients.layers.layers import Layers

_EXTRAS = ("bias_k", "bias_v")


class _AttentionRule(rules.LayerRule[nn.MultiheadAttention]):
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

    def bindings(self, trainable: rules.Trainable, split: bool) -> dict[str, rules.LeafBinding]:
        """Rows of the stacked parameters; a bias joins its weight where both are stacked alike and trained."""
        leaves: dict[str, rules.LeafBinding] = {}
        owned, size = self.layer._parameters, self.layer.embed_dim
        stacked, bias = owned["in_proj_weight"], owned["in_proj_bias"]
        joined = not split and trainable(stacked) and trainable(bias)
        for index, part in enumerate("qkv"):
            weight, name, over = owned.get(f"{part}_proj_weight"), f"in_proj.{part}", None
            rows = slice(index * size, (index + 1) * size)
            if stacked is not None:
                weight, over = stacked, rows
            if weight is not None and trainable(weight):
                own = f"{name}.weight" if split else name
                leaves[own] = rules.LeafBinding(weight, bias if joined else None, over)
            if bias is not None and trainable(bias) and not joined:
                leaves[f"{name}.bias"] = rules.LeafBinding(bias, rows=rows)
        for name in _EXTRAS:
            extra = owned.get(name)
            if extra is not None and trainable(extra):
                leaves[name] = rules.LeafBinding(extra)
        return leaves

    def install(self, layers: Layers) -> list[rules.Handle]:
        """A forward with taps while someone listens; torch's fused inference is kept from going round it."""
        layer = self.layer

        def run(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> object:
            for x in (query, key, value):
                if isinstance(x, _SharedTensor):
                    raise _Unseen(x, f"is what layer {self.name!r} attends to or asks for all examples at once")
            with layers.silenced(layer.parameters()):  # the output projection's too: torch reads it here
                return self._attend(layers, query, key, value, *args, **kwargs)

        nested = [m for m in layers.module.modules() if isinstance(m, nn.TransformerEncoder) and m.use_nested_tensor]
        return [
            layers.replace_forward(layer, list(layer.parameters()), run),
            layer.register_forward_hook(lambda *_: None),  # torch looks for hooks before it fuses a layer
            *(rules._Replaced(encoder, "use_nested_tensor", False) for encoder in nested),
        ]

    def dim(self, output: Tensor) -> int:
        """As the layer itself was told."""
        return int(not self.layer.batch_first)

    def _attend(
        self,
        layers: Layers,
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
        layer, dim = self.layer, self.dim(query)
        remedy = f"give a batch of three dimensions: layer {self.name!r} needs its examples apart"
        validate.check(query.dim() == 3, "query.shape", tuple(query.shape), remedy)
        needed = "give the causal attn_mask with it, which the layer needs"
        validate.check(not is_causal or attn_mask is not None, "is_causal", is_causal, needed)
        fast = is_causal and key_padding_mask is None and not need_weights
        q, k, v = (self._projected(layers, index, x) for index, x in enumerate((query, key, value)))
        # numbers to add over (n, heads, targets, sources): what is true in a mask of booleans is closed
        masks: list[Tensor] = []
        if attn_mask is not None and not fast:
            masks.append(attn_mask[None, None] if attn_mask.dim() == 2 else attn_mask.unflatten(0, q.shape[:2]))
        if key_padding_mask is not None:
            masks.append(key_padding_mask[:, None, None, :])
        for place, x in enumerate(masks):
            if x.dtype == torch.bool:
                masks[place] = torch.zeros_like(x, dtype=q.dtype).masked_fill_(x, -math.inf)
        mask = reduce(torch.add, masks) if masks else None
        if layer.bias_k is not None:
            k, v = (
                torch.cat([x, self._extra(layers, name, len(x))], 2) for name, x in zip(_EXTRAS, (k, v), strict=True)
            )
        if layer.add_zero_attn:
            k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
        if mask is not None:  # open at the positions that the layer itself adds
            mask = F.pad(mask, (0, k.shape[2] - mask.shape[3]))
        drop = layer.dropout * layer.training
        weights = None
        if need_weights:
            scores = (q * math.sqrt(1.0 / q.shape[-1])) @ k.transpose(-2, -1)
            if mask is not None:
                scores = scores + mask
            weights = F.dropout(torch.softmax(scores, dim=-1), p=drop)
            mixed = weights @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, mask, drop, fast)
        # called with examples where the module's linear layers expect them
        place = layers.batch_dim
        output = layer.out_proj(mixed.transpose(1, 2).flatten(2).transpose(0, place)).transpose(0, place)
        if weights is not None and average_attn_weights:
            weights = weights.mean(dim=1)
        return output.transpose(0, dim), weights

    def _projected(self, layers: Layers, index: int, x: Tensor) -> Tensor:
        """Q, K or V with a tap: outer products of the input and the gradient."""
        owned, size, part = self.layer._parameters, self.layer.embed_dim, "qkv"[index]
        stacked, bias = owned["in_proj_weight"], owned["in_proj_bias"]
        rows = slice(index * size, (index + 1) * size)
        weight = owned[f"{part}_proj_weight"] if stacked is None else stacked[rows]
        assert weight is not None
        z = F.linear(x, weight, None if bias is None else bias[rows])
        wanted = {suffix: leaf for suffix, leaf in self.wanted.items() if suffix.startswith(f"in_proj.{part}")}
        if wanted:
            dim = self.dim(x)
            a = x.detach().transpose(0, dim)
            z = layers.tap(self, z, dim, [a], partial(rules._factored, self, wanted, a))
        return self._heads(z.transpose(0, self.dim(x)))

    def _extra(self, layers: Layers, name: str, n: int) -> Tensor:
        """bias_k or bias_v, one of its own for every example."""
        bias = self.layer._parameters[name]
        assert bias is not None
        rows = bias.expand(n, 1, -1).clone()

        def found(b: Tensor) -> rules.Found:
            return [(self, name, Dense(b.flatten(1)))]

        if name in self.wanted:
            rows = layers.tap(self, rows, 0, [], found)
        return self._heads(rows)

    def _heads(self, x: Tensor) -> Tensor:
        """(n, heads, positions, size) of a projection, examples in front."""
        heads: Tensor = x.unflatten(-1, (self.layer.num_heads, self.layer.head_dim))
        return heads.transpose(1, 2)
