"""Convolutions: a linear layer at every place, whose inputs are the patches of the picture."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from isthmus import _validate
from isthmus.gradients import _rounding
from isthmus.gradients.base import Dense, Rows, row_spans
from isthmus.gradients.block_outer import BlockOuter
from isthmus.gradients.layers.binding import Binding
from isthmus.gradients.layers.rules import Rule
from isthmus.gradients.outer import Outer


class ConvolutionRule(Rule):
    """z_t = W a_t + c for the patches a_t of the input: g = sum_t b_t [a_t, 1]', one such block for each group.

    Where the sums are smaller than patches and output gradients, they are what is returned, and the patches of only
    `CHUNK_BYTES` at a time are ever held.
    """

    kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d)

    def keep(self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """The input, with its examples in front wherever the module keeps its own."""
        x = args[0] if args else kwargs["input"]
        dims = len(layer.kernel_size) + 2
        _validate.check(x.ndim == dims, "input.ndim", x.ndim, f"give a {type(layer).__name__} {dims}: (n, C, ...)")
        return x.detach()

    def rows(self, layer: Any, kept: Tensor, b: Tensor, wanted: Mapping[str, Binding]) -> dict[str, Rows]:
        """Products or factors of the weight, whichever are smaller; a bias alone is the sum of b over places."""
        b = b.detach().flatten(2)
        found: dict[str, Rows] = {}
        for suffix, binding in wanted.items():
            if suffix == "bias":
                found[suffix] = Dense(b.sum(2, dtype=_rounding.working(b.dtype)))
            else:
                found[suffix] = weight_rows(layer, kept, b, ones=binding.bias is not None)
        return found


def weight_rows(layer: Any, x: Tensor, b: Tensor, ones: bool) -> Rows:
    """The rows of [W | c] or W from the input and b (n, C_out, T)."""
    n, places, groups = len(x), b.shape[2], layer.groups
    p, q = layer.weight[0].numel(), layer.out_channels // groups
    b = b.unflatten(1, (groups, q))
    spans = row_spans(n, groups * places * p * _rounding.working(x.dtype).itemsize)
    if places > 1 and q * p <= places * (p + q):
        return Dense(_products(layer, x, b, spans, ones))
    a = x.new_empty(n, places, groups, p)
    for lo, hi in spans:
        a[lo:hi] = patches(layer, x[lo:hi])
    b = b.permute(0, 3, 1, 2).contiguous()
    if groups > 1:
        return BlockOuter(a, b, ones)
    return Outer(a[:, 0, 0], b[:, 0, 0], ones) if places == 1 else Outer(a[:, :, 0], b[:, :, 0], ones)


def patches(layer: Any, x: Tensor) -> Tensor:
    """The patches of (n, C, ...) as (n, T, groups, p), in the order of the flattened weight.

    >>> patches(nn.Conv1d(1, 1, 2, stride=2), torch.arange(4.0).view(1, 1, 4)).tolist()
    [[[[0.0, 1.0]], [[2.0, 3.0]]]]
    """
    margins = [width for pair in reversed(_margins(layer)) for width in pair]
    if any(margins):
        x = F.pad(x, margins, "constant" if layer.padding_mode == "zeros" else layer.padding_mode)
    k = len(layer.kernel_size)
    for dim in range(k):
        step, gap = layer.stride[dim], layer.dilation[dim]
        x = x.unfold(2 + dim, gap * (layer.kernel_size[dim] - 1) + 1, step)[..., ::gap]
    x = x.unflatten(1, (layer.groups, -1))
    places, window = range(3, 3 + k), range(3 + k, 3 + 2 * k)
    shape = (len(x), math.prod(x.shape[3 : 3 + k]), layer.groups, layer.weight[0].numel())
    return x.permute(0, *places, 1, 2, *window).reshape(shape)


def _products(layer: Any, x: Tensor, b: Tensor, spans: list[tuple[int, int]], ones: bool) -> Tensor:
    """sum_t b_t [a_t, 1]' of every example, a chunk of patches at a time; b is (n, groups, q, T)."""
    n, groups, q, _ = b.shape
    p, work = layer.weight[0].numel(), _rounding.working(b.dtype)
    total = torch.empty(n, groups, q, p + ones, dtype=work, device=b.device)
    with _rounding.exact_products(b.device):
        for lo, hi in spans:
            part = b[lo:hi].to(work)
            total[lo:hi, ..., :p] = part @ patches(layer, x[lo:hi]).to(work).transpose(1, 2)
            if ones:
                total[lo:hi, ..., p] = part.sum(3)
    return total.view(n, groups * q * (p + ones))


def _margins(layer: Any) -> list[tuple[int, int]]:
    """How much is added before and after, in each dimension."""
    sizes = list(zip(layer.kernel_size, layer.dilation, strict=True))
    if layer.padding == "valid":
        return [(0, 0) for _ in sizes]
    if layer.padding == "same":
        spare = [gap * (size - 1) for size, gap in sizes]
        return [(total // 2, total - total // 2) for total in spare]
    return [(width, width) for width in layer.padding]
