"""Normalisations inside one example: a scale and a shift of numbers that depend on that example alone."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.instancenorm import _InstanceNorm

from isthmus.base import validate
from isthmus.gradients import fused, rounding
from isthmus.gradients.layers.binding import LeafBinding
from isthmus.gradients.layers.rules import Args, Found, Kwargs, LayerRule, RowsOf
from isthmus.gradients.rows import Dense, row_spans

L = TypeVar("L", bound=nn.Module)


class _NormalisationRule(LayerRule[L], Generic[L]):
    """z_c = scale_c x^_c + shift_c at every place: the leaf [scale | shift] has the row (sum b x^, sum b).

    The normalised input x^ is computed again from the input, a chunk of examples at a time, in float32 or better.
    """

    def bind(self, weight: nn.Parameter, bias: nn.Parameter | None = None) -> LeafBinding:
        """Scale and shift as columns."""
        return LeafBinding(weight, bias, columns=True)

    def watch(self, args: Args, kwargs: Kwargs) -> RowsOf:
        """Scale and shift, or one of them."""
        x = self.examples(self.input(args, kwargs))
        return lambda b: self.rows(x, self.examples(b))

    def rows(self, x: Tensor, b: Tensor) -> Found:
        """The rows of the leaves from input and gradient, examples in front."""
        work = rounding.working(x.dtype, b.dtype)
        row_bytes = 3 * work.itemsize * math.prod(b.shape[1:])
        parts: dict[str, list[Tensor]] = {suffix: [] for suffix in self.wanted}
        for lo, hi in row_spans(len(b), row_bytes) or [(0, 0)]:
            out = b[lo:hi].to(work)
            shift = self.channels(out)
            for suffix, binding in self.wanted.items():
                if suffix == "bias":
                    parts[suffix].append(shift)
                    continue
                columns = [self.channels(out * self.normal(x[lo:hi].to(work)))]
                if binding.bias is not None:
                    columns.append(shift)
                parts[suffix].append(torch.stack(columns, 2).flatten(1))
        return [(self, suffix, Dense(torch.cat(pieces))) for suffix, pieces in parts.items()]

    @abstractmethod
    def examples(self, x: Tensor) -> Tensor:
        """A tensor of the layer with its examples in front."""

    @abstractmethod
    def normal(self, x: Tensor) -> Tensor:
        """The input normalised, without scale and shift."""

    @abstractmethod
    def channels(self, x: Tensor) -> Tensor:
        """(n, C): the sums over places."""


class _LayerNormRule(_NormalisationRule[nn.LayerNorm | nn.RMSNorm]):
    """The last dimensions are normalised together and hold the channels; all between are places."""

    kinds = (nn.LayerNorm, nn.RMSNorm)

    def rows(self, x: Tensor, b: Tensor) -> Found:
        """On a device in one kernel, where scale and shift are one leaf."""
        layer, work = self.layer, rounding.working(x.dtype, b.dtype)
        whole = list(self.wanted) == [""] and self.wanted[""].bias is not None
        if whole and b.numel() and isinstance(layer, nn.LayerNorm) and fused.can_sum(b.device, work):
            shape = (len(b), -1, math.prod(layer.normalized_shape))
            sums = fused.norm_sums(x.reshape(shape), b.reshape(shape), layer.eps)
            if sums is not None:
                return [(self, "", Dense(sums))]
        return super().rows(x, b)

    def examples(self, x: Tensor) -> Tensor:
        """Examples in front."""
        return x.detach().transpose(0, self.dim(x))

    def dim(self, output: Tensor) -> int:
        """In front, unless there are places."""
        return self.batch_dim if output.ndim >= 2 + len(self.layer.normalized_shape) else 0

    def normal(self, x: Tensor) -> Tensor:
        """By mean and variance, or by the mean square alone."""
        layer, shape = self.layer, list(self.layer.normalized_shape)
        if isinstance(layer, nn.RMSNorm):
            return F.rms_norm(x, shape, None, layer.eps)
        return F.layer_norm(x, shape, None, None, layer.eps)

    def channels(self, x: Tensor) -> Tensor:
        """The sum over the dimensions between the examples and the normalised ones."""
        places = x.ndim - len(self.layer.normalized_shape)
        validate.check(places >= 1, "input.ndim", x.ndim, "keep the examples in a dimension of their own")
        x = x.flatten(places)
        return x if x.ndim == 2 else x.flatten(1, -2).sum(1)


class _GroupNormRule(_NormalisationRule[nn.GroupNorm | _InstanceNorm]):
    """Statistics are those of groups of channels of one example, of single channels in an instance norm.

    Examples are always in front; channels come second, places after them.
    """

    kinds = (nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)

    def check(self) -> None:
        """Running statistics come from other examples and have no per-example gradient or bound."""
        remedy = "make the layer with track_running_stats=False: running statistics mix examples"
        mixes = isinstance(self.layer, _InstanceNorm) and self.layer.track_running_stats
        validate.check(not mixes, f"{self.name}.track_running_stats", True, remedy)

    def dim(self, output: Tensor) -> int:
        """Examples are always in front."""
        return 0

    def examples(self, x: Tensor) -> Tensor:
        """An instance norm's inputs without a batch dimension are refused."""
        dims = next(d for d, kind in enumerate(self.kinds, 2) if isinstance(self.layer, kind))
        needed = f"give a {type(self.layer).__name__} an input of {dims} dimensions: (n, C, ...)"
        validate.check(isinstance(self.layer, nn.GroupNorm) or x.ndim == dims, "input.ndim", x.ndim, needed)
        return x.detach()

    def normal(self, x: Tensor) -> Tensor:
        """By groups of channels, or by channel."""
        if isinstance(self.layer, nn.GroupNorm):
            return F.group_norm(x, self.layer.num_groups, None, None, self.layer.eps)
        return F.instance_norm(x, eps=self.layer.eps)

    def channels(self, x: Tensor) -> Tensor:
        """The sum over all dimensions after the second."""
        return x if x.ndim == 2 else x.flatten(2).sum(2)
