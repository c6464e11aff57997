"""Convolutions: a linear layer at every place, whose inputs are the patches of the picture."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd

from isthmus.base import validate
from isthmus.base.matrix import exact_products
from isthmus.gradients import rounding
from isthmus.gradients.layers.rules import Args, Found, Kwargs, LayerRule, RowsOf, _bias_rows
from isthmus.gradients.rows import Dense, Outer, Rows, Stack, row_spans

_PRODUCT_BYTES = 1 << 24
"""Sums of products that are larger than their factors are kept instead of them only below this size."""


class _ConvolutionRule(LayerRule[_ConvNd]):
    """z_t = W a_t + c for the patches a_t of the input: g = sum_t b_t [a_t, 1]', one such block for each group.

    Where the sums are smaller than patches and output gradients, they are what is returned, and the patches of only
    `CHUNK_BYTES` at a time are ever held.
    """

    kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d)

    def dim(self, output: Tensor) -> int:
        """Examples are always in front."""
        return 0

    def watch(self, args: Args, kwargs: Kwargs) -> RowsOf:
        """Products or factors of the weight, whichever are smaller; a bias alone is the sum of b over places."""
        layer, dims = self.layer, len(self.layer.kernel_size) + 2
        x: Tensor = self.input(args, kwargs).detach()
        needed = f"give a {type(layer).__name__} an input of {dims} dimensions: (n, C, ...)"
        validate.check(x.ndim == dims, "input.ndim", x.ndim, needed)

        def rows_of(b: Tensor) -> Found:
            b = b.detach().flatten(2)
            rows: Found = []
            for suffix, binding in self.wanted.items():
                if suffix == "bias":
                    rows.append((self, suffix, _bias_rows(b.mT)))
                else:
                    rows.append((self, suffix, _weight_rows(layer, x, b, ones=binding.bias is not None)))
            return rows

        return rows_of


def _weight_rows(layer: _ConvNd, x: Tensor, b: Tensor, ones: bool) -> Rows:
    """The rows of [W | c] or W from the input and b (n, C_out, T)."""
    n, places, groups = len(x), b.shape[2], layer.groups
    p, q, work = layer.weight[0].numel(), layer.out_channels // groups, rounding.working(b.dtype)
    b = b.unflatten(1, (groups, q))
    spans = row_spans(n, groups * places * p * work.itemsize)
    if places * groups > 1 and _prefer_products(n * groups, places, p + ones, q, work.itemsize):
        return Dense(_products(layer, x, b, spans, ones))
    a = x.new_empty(n, groups, places, p)
    for lo, hi in spans:
        a[lo:hi] = _patches(layer, x[lo:hi])
    b = b.mT.contiguous()
    if groups > 1:
        return Stack([(str(j), Outer(a[:, j], b[:, j], ones)) for j in range(groups)])
    return Outer(a[:, 0, 0], b[:, 0, 0], ones) if places == 1 else Outer(a[:, 0], b[:, 0], ones)


def _prefer_products(blocks: int, places: int, p: int, q: int, itemsize: int) -> bool:
    """Whether q x p sums are smaller than their factors; below `_PRODUCT_BYTES` they may be twice as large.

    They are computed once, where factors are multiplied again for norms, sums and codes.

    >>> _prefer_products(250, 25, 257, 32, 4), _prefer_products(250, 4, 257, 64, 4)
    (True, False)
    """
    factors, products = places * (p + q), p * q
    return products <= factors or (products <= 2 * factors and blocks * products * itemsize <= _PRODUCT_BYTES)


def _patches(layer: _ConvNd, x: Tensor) -> Tensor:
    """The patches of (n, C, ...) as (n, groups, T, p), in the order of the flattened weight.

    >>> _patches(nn.Conv1d(1, 1, 2, stride=2), torch.arange(4.0).view(1, 1, 4)).tolist()
    [[[[0.0, 1.0], [2.0, 3.0]]]]
    """
    view, k = _windows(layer, x), len(layer.kernel_size)
    shape = (len(x), layer.groups, math.prod(view.shape[3 : 3 + k]), layer.weight[0].numel())
    return view.permute(0, 1, *range(3, 3 + k), 2, *range(3 + k, 3 + 2 * k)).reshape(shape)


def _windows(layer: _ConvNd, x: Tensor) -> Tensor:
    """A view of the padded input: (n, groups, C / groups, *places, *kernel)."""
    x = _padded(layer, x)
    for dim, (size, step, gap) in enumerate(zip(layer.kernel_size, layer.stride, layer.dilation, strict=True), 2):
        x = x.unfold(dim, gap * (size - 1) + 1, step)[..., ::gap]
    windows: Tensor = x.unflatten(1, (layer.groups, x.shape[1] // layer.groups))
    return windows


def _products(layer: _ConvNd, x: Tensor, b: Tensor, spans: list[tuple[int, int]], ones: bool) -> Tensor:
    """sum_t b_t [a_t, 1]' of every example, a chunk of patches at a time; b is (n, groups, q, T)."""
    n, groups, q, _ = b.shape
    p, work = layer.weight[0].numel(), rounding.working(b.dtype)
    # One channel in, one out: patches would cost far more to copy than to use, and convolving with b needs none.
    alone = groups == layer.in_channels == layer.out_channels and x.device.type == "cpu"
    total = torch.empty(n, groups, q, p + ones, dtype=work, device=b.device)
    with exact_products(b.device):
        for lo, hi in spans:
            part, piece = b[lo:hi].to(work), x[lo:hi].to(work)
            total[lo:hi, ..., :p] = (_convolved if alone else _multiplied)(layer, piece, part)
            if ones:
                total[lo:hi, ..., p] = part.sum(3)
    return total.view(n, groups * q * (p + ones))


def _multiplied(layer: _ConvNd, x: Tensor, b: Tensor) -> Tensor:
    """(n, groups, q, p): b times patches, these laid out by places, which copies the longest runs."""
    view, k = _windows(layer, x), len(layer.kernel_size)
    shape = (len(x), layer.groups, layer.weight[0].numel(), b.shape[3])
    return b @ view.permute(0, 1, 2, *range(3 + k, 3 + 2 * k), *range(3, 3 + k)).reshape(shape).mT


def _convolved(layer: _ConvNd, x: Tensor, b: Tensor) -> Tensor:
    """The same of one channel a group: every channel of every example convolved with its own b."""
    x, k = _padded(layer, x), len(layer.kernel_size)
    spare = zip(x.shape[2:], layer.kernel_size, layer.dilation, layer.stride, strict=True)
    places = [(length - gap * (size - 1) - 1) // step + 1 for length, size, gap, step in spare]
    count = x.shape[0] * x.shape[1]
    kernels = b.reshape(count, 1, *places)
    product = torch.convolution(
        x.reshape(1, count, *x.shape[2:]), kernels, None, layer.dilation, [0] * k, layer.stride, False, [0] * k, count
    )
    for dim, size in enumerate(layer.kernel_size, 2):
        product = product.narrow(dim, 0, size)
    return product.reshape(*b.shape[:3], -1)


def _padded(layer: _ConvNd, x: Tensor) -> Tensor:
    """The input with what the layer adds around it."""
    margins = [width for pair in reversed(_margins(layer)) for width in pair]
    if not any(margins):
        return x
    return F.pad(x, margins, "constant" if layer.padding_mode == "zeros" else layer.padding_mode)


def _margins(layer: _ConvNd) -> list[tuple[int, int]]:
    """How much is added before and after, in each dimension."""
    sizes = list(zip(layer.kernel_size, layer.dilation, strict=True))
    if not isinstance(layer.padding, str):
        return [(width, width) for width in layer.padding]
    spare = [gap * (size - 1) if layer.padding == "same" else 0 for size, gap in sizes]
    return [(total // 2, total - total // 2) for total in spare]
