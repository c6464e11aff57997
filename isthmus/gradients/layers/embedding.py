"""Embeddings: tables that are read at places, and bags of such places."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from isthmus.base import validate
from isthmus.gradients import rounding
from isthmus.gradients.layers.rules import Args, Found, Kwargs, LayerRule, RowsOf
from isthmus.gradients.rows import Lookup


def _check_table(name: str, layer: nn.Embedding | nn.EmbeddingBag) -> None:
    """Refuse settings that change the table outside the gradient, or the gradient by the rest of the batch."""
    settings = {
        "max_norm": "set max_norm=None: it rewrites the rows that the data name, before any noise is added",
        "scale_grad_by_freq": "set scale_grad_by_freq=False: it divides an example's gradient by counts of the batch",
        "sparse": "set sparse=False: released gradients are dense, and which rows an example names is private",
    }
    for setting, remedy in settings.items():
        value = getattr(layer, setting)
        validate.check(value is None or value is False, f"{name}.{setting}".strip("."), value, remedy)


class _EmbeddingRule(LayerRule[nn.Embedding]):
    """z_t = W[k_t]: g = sum_t e_{k_t} b_t'; the padding row gets nothing."""

    kinds = (nn.Embedding,)

    def check(self) -> None:
        """Refuse settings that leave no per-example gradient."""
        _check_table(self.name, self.layer)

    def given(self, args: Args, kwargs: Kwargs) -> tuple[Tensor, int] | None:
        """The places, whose examples are in front unless there are positions."""
        index: Tensor = self.input(args, kwargs)
        if index.ndim < 2:
            return (index, 0) if index.ndim else None
        return index, self.batch_dim

    def watch(self, args: Args, kwargs: Kwargs) -> RowsOf:
        """The places and the gradients there; positions 0, 1, 2, ... that all share would pass for one an example."""
        layer, index = self.layer, self.input(args, kwargs)
        shared = index.ndim == 1 and len(index) > 1 and _counts(index)
        remedy = "give ids that all examples share, as these seem to be, as one row of shape (1, T)"
        validate.check(not shared, "index.shape", tuple(index.shape), remedy)
        index = self.first(index, 2)
        places = index.reshape(len(index), math.prod(index.shape[1:]))

        def rows_of(b: Tensor) -> Found:
            values = self.first(b).reshape(*places.shape, b.shape[-1])
            rows = _table_rows(places, values, layer.num_embeddings, layer.padding_idx)
            return [(self, suffix, rows) for suffix in self.wanted]

        return rows_of


class _EmbeddingBagRule(LayerRule[nn.EmbeddingBag]):
    """z = sum_t v_t W[k_t] over the bag of an example: g = sum_t v_t e_{k_t} b'; v_t = 1 / |bag| for means."""

    kinds = (nn.EmbeddingBag,)

    def check(self) -> None:
        """Only sums and means of a bag are linear in the table."""
        _check_table(self.name, self.layer)
        remedy = "use mode='sum' or mode='mean': which entry is the largest is not kept"
        validate.check(self.layer.mode != "max", f"{self.name}.mode".strip("."), self.layer.mode, remedy)

    def given(self, args: Args, kwargs: Kwargs) -> None:
        """A flat list of places has bags as examples, not entries."""
        return None

    def watch(self, args: Args, kwargs: Kwargs) -> RowsOf:
        """The places of every bag, filled up to the longest, and their shares of the gradient (0 where filled up)."""
        layer, names = self.layer, dict(zip(("input", "offsets", "per_sample_weights"), args, strict=False)) | kwargs
        index, offsets, weights = names["input"], names.get("offsets"), names.get("per_sample_weights")
        if weights is None:
            weights = torch.ones_like(index, dtype=layer.weight.dtype)
        weights = weights.detach().to(rounding.working(layer.weight.dtype))
        if index.ndim == 1:
            if offsets is None:
                validate.refuse("offsets", offsets, "give the start of every bag, which a flat input needs")
            index, weights = _bags(index, weights, offsets, layer.include_last_offset)
        if layer.padding_idx is not None:
            weights = weights * (index != layer.padding_idx)
        if layer.mode == "mean":
            weights = weights / weights.sum(1, keepdim=True).clamp_min(1)

        def rows_of(b: Tensor) -> Found:
            values = weights[:, :, None] * b.detach()[:, None, :]
            rows = _table_rows(index, values, layer.num_embeddings, layer.padding_idx)
            return [(self, suffix, rows) for suffix in self.wanted]

        return rows_of


def _counts(index: Tensor) -> bool:
    """Whether places are 0, 1, 2, ..."""
    whole = index.ndim == 1 and not index.is_floating_point()
    return whole and torch.equal(index, torch.arange(len(index), device=index.device))


def _table_rows(index: Tensor, values: Tensor, vocabulary: int, padding: int | None) -> Lookup:
    """The rows of a table that is read at the places `index` (n, T), without those of its padding."""
    index = index % vocabulary
    if padding is not None:
        values = values.masked_fill((index == padding)[:, :, None], 0.0)
    return Lookup(index, values, vocabulary)


def _bags(index: Tensor, weights: Tensor, offsets: Tensor, last: bool) -> tuple[Tensor, Tensor]:
    """Flat bags as rows, filled up with place 0 and weight 0 (the longest bag decides, so the host waits for it)."""
    if not last:
        offsets = torch.cat([offsets, offsets.new_full((1,), len(index))])
    sizes = offsets.diff().tolist()
    if not sizes:
        return index.new_zeros(0, 0), weights.new_zeros(0, 0)
    bags = slice(int(offsets[0]), int(offsets[-1]))
    places, shares = (nn.utils.rnn.pad_sequence(x[bags].split(sizes), batch_first=True) for x in (index, weights))
    return places, shares
