"""Normalisations inside one example: a scale and a shift of numbers that depend on that example alone."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.instancenorm import _InstanceNorm

from isthmus.base import validate
from isthmus.gradients import fused, rounding
from isthmus.gradients.layers.binding import LeafBinding
from isthmus.gradients.layers.rules import Args, Kwargs, LayerRule
from isthmus.gradients.rows import Dense, Rows, row_spans

L = TypeVar("L", bound=nn.Module)


class _NormalisationRule(LayerRule[L, Tensor], Generic[L]):
    """z_c = scale_c x^_c + shift_c at every place: the leaf [scale | shift] has the row (sum b x^, sum b).

    The normalised input x^ is computed again from the input, a chunk of examples at a time, in float32 or better.
    """

    def bind(self, weight: nn.Parameter, bias: nn.Parameter | None = None) -> LeafBinding:
        """Scale and shift as columns."""
        return LeafBinding(weight, bias, columns=True)

    def keep(self, layer: L, args: Args, kwargs: Kwargs) -> Tensor:
        """The input."""
        return self.examples(layer, args[0] if args else kwargs["input"])

    def rows(self, layer: L, factors: Tensor, b: Tensor, wanted: Mapping[str, LeafBinding]) -> dict[str, Rows]:
        """Scale and shift, or one of them."""
        b, work = self.examples(layer, b), rounding.working(factors.dtype, b.dtype)
        row_bytes = 3 * work.itemsize * math.prod(b.shape[1:])
        parts: dict[str, list[Tensor]] = {suffix: [] for suffix in wanted}
        for lo, hi in row_spans(len(b), row_bytes) or [(0, 0)]:
            out = b[lo:hi].to(work)
            shift = self.channels(layer, out)
            for suffix, binding in wanted.items():
                if suffix == "bias":
                    parts[suffix].append(shift)
                    continue
                scale = self.channels(layer, out * self.normal(layer, factors[lo:hi].to(work)))
                columns = [scale] if binding.bias is None else [scale, shift]
                parts[suffix].append(torch.stack(columns, 2).flatten(1))
        return {suffix: Dense(torch.cat(pieces)) for suffix, pieces in parts.items()}

    @abstractmethod
    def examples(self, layer: L, x: Tensor) -> Tensor:
        """A tensor of the layer with its examples in front."""

    @abstractmethod
    def normal(self, layer: L, x: Tensor) -> Tensor:
        """The input normalised, without scale and shift."""

    @abstractmethod
    def channels(self, layer: L, x: Tensor) -> Tensor:
        """(n, C): the sums over places."""


class LayerNormRule(_NormalisationRule[nn.LayerNorm | nn.RMSNorm]):
    """The last dimensions are normalised together and hold the channels; all between are places."""

    kinds = (nn.LayerNorm, nn.RMSNorm)

    def rows(
        self, layer: nn.LayerNorm | nn.RMSNorm, factors: Tensor, b: Tensor, wanted: Mapping[str, LeafBinding]
    ) -> dict[str, Rows]:
        """On a device in one kernel, where scale and shift are one leaf."""
        out, work = self.examples(layer, b), rounding.working(factors.dtype, b.dtype)
        whole = list(wanted) == [""] and wanted[""].bias is not None
        if whole and out.numel() and isinstance(layer, nn.LayerNorm) and fused.can_sum(b.device, work):
            shape = (len(out), -1, math.prod(layer.normalized_shape))
            sums = fused.norm_sums(factors.reshape(shape), out.reshape(shape), layer.eps)
            if sums is not None:
                return {"": Dense(sums)}
        return super().rows(layer, factors, b, wanted)

    def examples(self, layer: nn.LayerNorm | nn.RMSNorm, x: Tensor) -> Tensor:
        """Examples in front."""
        return self.first(x, 2 + len(layer.normalized_shape))

    def dim(self, layer: nn.LayerNorm | nn.RMSNorm, output: Tensor) -> int:
        """As `examples` takes them."""
        return 0 if output.ndim < 2 + len(layer.normalized_shape) else self.batch_dim

    def normal(self, layer: nn.LayerNorm | nn.RMSNorm, x: Tensor) -> Tensor:
        """By mean and variance, or by the mean square alone."""
        if isinstance(layer, nn.RMSNorm):
            return F.rms_norm(x, list(layer.normalized_shape), None, layer.eps)
        return F.layer_norm(x, list(layer.normalized_shape), None, None, layer.eps)

    def channels(self, layer: nn.LayerNorm | nn.RMSNorm, x: Tensor) -> Tensor:
        """The sum over the dimensions between the examples and the normalised ones."""
        places = x.ndim - len(layer.normalized_shape)
        validate.check(places >= 1, "input.ndim", x.ndim, "keep the examples in a dimension of their own")
        x = x.flatten(places)
        return x if x.ndim == 2 else x.flatten(1, -2).sum(1)


class GroupNormRule(_NormalisationRule[nn.GroupNorm | _InstanceNorm]):
    """Statistics are those of groups of channels of one example, of single channels in an instance norm.

    Examples are always in front; channels come second, places after them.
    """

    kinds = (nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)

    def check(self, name: str, layer: nn.GroupNorm | _InstanceNorm) -> None:
        """Running statistics come from other examples and have no per-example gradient or bound."""
        remedy = "make the layer with track_running_stats=False: running statistics mix examples"
        mixes = isinstance(layer, _InstanceNorm) and layer.track_running_stats
        validate.check(not mixes, f"{name}.track_running_stats", True, remedy)

    def dim(self, layer: nn.GroupNorm | _InstanceNorm, output: Tensor) -> int:
        """Examples are always in front."""
        return 0

    def examples(self, layer: nn.GroupNorm | _InstanceNorm, x: Tensor) -> Tensor:
        """An instance norm's inputs without a batch dimension are refused."""
        dims = next(d for d, kind in enumerate(self.kinds, 2) if isinstance(layer, kind))
        needed = f"give a {type(layer).__name__} an input of {dims} dimensions: (n, C, ...)"
        validate.check(isinstance(layer, nn.GroupNorm) or x.ndim == dims, "input.ndim", x.ndim, needed)
        return x.detach()

    def normal(self, layer: nn.GroupNorm | _InstanceNorm, x: Tensor) -> Tensor:
        """By groups of channels, or by channel."""
        if isinstance(layer, nn.GroupNorm):
            return F.group_norm(x, layer.num_groups, None, None, layer.eps)
        return F.instance_norm(x, eps=layer.eps)

    def channels(self, layer: nn.GroupNorm | _InstanceNorm, x: Tensor) -> Tensor:
        """The sum over all dimensions after the second."""
        return x if x.ndim == 2 else x.flatten(2).sum(2)
