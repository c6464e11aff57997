"""Embeddings: tables that are read at places, and bags of such places."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from isthmus.base import validate
from isthmus.gradients import rounding
from isthmus.gradients.layers.binding import LeafBinding
from isthmus.gradients.layers.rules import Args, Kwargs, LayerRule
from isthmus.gradients.rows import Lookup, Rows


def check_table(name: str, layer: nn.Embedding | nn.EmbeddingBag) -> None:
    """Refuse settings that change the table outside the gradient, or the gradient by the rest of the batch."""
    settings = {
        "max_norm": "set max_norm=None: it rewrites the rows that the data name, before any noise is added",
        "scale_grad_by_freq": "set scale_grad_by_freq=False: it divides an example's gradient by counts of the batch",
        "sparse": "set sparse=False: released gradients are dense, and which rows an example names is private",
    }
    for setting, remedy in settings.items():
        value = getattr(layer, setting)
        validate.check(value is None or value is False, f"{name}.{setting}".strip("."), value, remedy)


class EmbeddingRule(LayerRule[nn.Embedding, Tensor]):
    """z_t = W[k_t]: g = sum_t e_{k_t} b_t'; the padding row gets nothing."""

    kinds = (nn.Embedding,)

    def check(self, name: str, layer: nn.Embedding) -> None:
        """Refuse settings that leave no per-example gradient."""
        check_table(name, layer)

    def given(self, layer: nn.Embedding, args: Args, kwargs: Kwargs) -> tuple[Tensor, int] | None:
        """The places, whose examples are in front unless there are positions."""
        index = args[0] if args else kwargs["input"]
        return (index, 0 if index.ndim < 2 else self.batch_dim) if index.ndim else None

    def keep(self, layer: nn.Embedding, args: Args, kwargs: Kwargs) -> Tensor:
        """The places; positions 0, 1, 2, ... shared by all examples would pass for one place an example."""
        index = args[0] if args else kwargs["input"]
        shared = (
            index.ndim == 1 and len(index) > 1 and torch.equal(index, torch.arange(len(index), device=index.device))
        )
        remedy = "give ids that all examples share, as these seem to be, as one row of shape (1, T)"
        validate.check(not shared, "index.shape", tuple(index.shape), remedy)
        return self.first(index, 2)

    def rows(
        self, layer: nn.Embedding, factors: Tensor, b: Tensor, wanted: Mapping[str, LeafBinding]
    ) -> dict[str, Rows]:
        """The places and the gradients there."""
        index = factors[:, None] if factors.ndim == 1 else factors.flatten(1)
        b = self.first(b, 3)
        b = b[:, None] if b.ndim == 2 else b.flatten(1, -2)
        return dict.fromkeys(wanted, table_rows(index, b, layer.num_embeddings, layer.padding_idx))


class EmbeddingBagRule(LayerRule[nn.EmbeddingBag, tuple[Tensor, Tensor]]):
    """z = sum_t v_t W[k_t] over the bag of an example: g = sum_t v_t e_{k_t} b'; v_t = 1 / |bag| for means."""

    kinds = (nn.EmbeddingBag,)

    def check(self, name: str, layer: nn.EmbeddingBag) -> None:
        """Only sums and means of a bag are linear in the table."""
        check_table(name, layer)
        remedy = "use mode='sum' or mode='mean': which entry is the largest is not kept"
        validate.check(layer.mode != "max", f"{name}.mode".strip("."), layer.mode, remedy)

    def given(self, layer: nn.EmbeddingBag, args: Args, kwargs: Kwargs) -> None:
        """A flat list of places has bags as examples, not entries."""
        return None

    def keep(self, layer: nn.EmbeddingBag, args: Args, kwargs: Kwargs) -> tuple[Tensor, Tensor]:
        """The places of every bag, filled up to the longest, and their weights (0 where filled up)."""
        names = dict(zip(("input", "offsets", "per_sample_weights"), args, strict=False)) | kwargs
        index, offsets, factors = (names.get(key) for key in ("input", "offsets", "per_sample_weights"))
        assert index is not None
        work = rounding.working(layer.weight.dtype)
        weights = torch.ones_like(index, dtype=work) if factors is None else factors.detach().to(work)
        if index.ndim == 1:
            if offsets is None:
                validate.refuse("offsets", offsets, "give the start of every bag, which a flat input needs")
            index, weights = _bags(index, weights, offsets, layer.include_last_offset)
        if layer.padding_idx is not None:
            weights = weights * (index != layer.padding_idx)
        if layer.mode == "mean":
            weights = weights / weights.sum(1, keepdim=True).clamp_min(1)
        return index, weights

    def rows(
        self, layer: nn.EmbeddingBag, factors: tuple[Tensor, Tensor], b: Tensor, wanted: Mapping[str, LeafBinding]
    ) -> dict[str, Rows]:
        """The places of the bag, each with its share of the gradient."""
        index, weights = factors
        values = weights[:, :, None] * b.detach()[:, None, :]
        return dict.fromkeys(wanted, table_rows(index, values, layer.num_embeddings, layer.padding_idx))


def table_rows(index: Tensor, values: Tensor, vocabulary: int, padding: int | None) -> Lookup:
    """The rows of a table that is read at the places `index` (n, T), without those of its padding."""
    index = index % vocabulary
    if padding is not None:
        values = values.masked_fill((index == padding)[:, :, None], 0.0)
    return Lookup(index, values, vocabulary)


def _bags(index: Tensor, weights: Tensor, offsets: Tensor, last: bool) -> tuple[Tensor, Tensor]:
    """Flat bags as rows, filled up with place 0 and weight 0 (the longest bag decides, so the host waits for it)."""
    starts = offsets[:-1] if last else offsets
    ends = torch.cat([starts[1:], offsets[-1:] if last else offsets.new_full((1,), len(index))])
    longest = int((ends - starts).max()) if len(starts) else 0
    place = starts[:, None] + torch.arange(longest, device=index.device)
    inside = place < ends[:, None]
    place = place.clamp_max(max(len(index) - 1, 0))
    zero = torch.zeros((), dtype=weights.dtype, device=weights.device)
    return index[place] * inside, torch.where(inside, weights[place], zero)
