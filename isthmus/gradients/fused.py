"""What a clip asks of many small tensors, in one kernel each (a GPU with Triton): rows of weight 0 are never read.

A leaf of a network is clipped by a dozen small steps, each of which takes a device as long to begin as to do.  Here

    squares of a slab -> their lengths,    shares -> weighted sum

are a kernel each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from isthmus.base.recording import reads

try:
    import triton
    import triton.language as tl
except ImportError:  # the kernels are never called then: see `can_sum`
    triton = tl = None

TALL = 8
"""Rows that a program has on their way from memory at the same time."""
SQUARES = 512
"""Squares that are added up in float32 before float64 takes over."""
SUMS = 4
"""Sums of squares that one program makes."""
FEW = 64
"""Rows of a matrix that `_weighted_sum_of` adds up."""
WIDEST = 8192
"""Channels of a norm layer that one program holds."""
PLACES = 16
"""Places of a norm layer that one program adds up."""


class _Kernel:
    """A function for the GPU, kernel[blocks](...), which says what it is given (see `recording.reads`).

    It is compiled when it is first called there, once for all values of what changes.
    """

    def __init__(self, kernel: Callable[..., object], changing: Sequence[str] = ()) -> None:
        self.launcher: Any = triton and triton.jit(kernel, do_not_specialize=list(changing))

    def __getitem__(self, blocks: tuple[int, ...]) -> Callable[..., None]:
        def launch(first: Tensor, *operands: object, **options: object) -> None:
            reads(first, *(x for x in operands if isinstance(x, Tensor)))
            if 0 not in blocks:
                with torch.cuda.device_of(first):
                    self.launcher[blocks](first, *operands, **options)

        return launch


@partial(_Kernel, changing=["n"])
def _slab_sum(
    g: tl.tensor, c: tl.tensor, out: tl.tensor, n: tl.tensor, size: tl.tensor, width: tl.tensor, stride: tl.tensor,
    factor: tl.tensor, tall: tl.constexpr, block: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = place < size
    total = tl.zeros([block], dtype=tl.float32)
    for lo in range(0, n, tall):  # so many rows are on their way from memory together
        i = lo + tl.arange(0, tall)
        weight = tl.load(c + i, mask=i < n, other=0.0) * factor
        weight = tl.where(tl.abs(weight) >= 1.1754943508222875e-38, weight, 0.0)  # 0 below the normal numbers
        read = (weight != 0)[:, None] & inside[None, :]
        x = tl.load(g + i.to(tl.int64)[:, None] * size + place[None, :], mask=read, other=0.0)
        total += tl.sum(weight[:, None] * x, axis=0)
    tl.store(out + (place // width) * stride + place % width, total, mask=inside)


@_Kernel
def _square_sums(
    g: tl.tensor, out: tl.tensor, size: tl.tensor, parts: tl.tensor, sums: tl.constexpr, block: tl.constexpr
) -> tl.tensor:
    part, i = tl.program_id(1) * sums + tl.arange(0, sums), tl.program_id(0).to(tl.int64)
    place = part.to(tl.int64)[:, None] * block + tl.arange(0, block)[None, :]
    x = tl.load(g + i * size + place, mask=place < size, other=0.0)
    tl.store(out + i * parts + part, tl.sum(x * x, axis=1), mask=part < parts)


@_Kernel
def _norm_sums(
    x: tl.tensor, b: tl.tensor, out: tl.tensor, t: tl.tensor, width: tl.tensor, parts: tl.tensor, eps: tl.tensor,
    places: tl.constexpr, tile: tl.constexpr, block: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    part, i = tl.program_id(1), tl.program_id(0).to(tl.int64)
    column = tl.arange(0, block)
    scale, shift = tl.zeros([block], dtype=tl.float32), tl.zeros([block], dtype=tl.float32)
    for lo in range(0, places, tile):
        row = part * places + lo + tl.arange(0, tile)
        inside = (row < t)[:, None] & (column < width)[None, :]
        at = (i * t + row.to(tl.int64))[:, None] * width + column[None, :]
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        mean = tl.sum(value, axis=1) / width
        value = tl.where(inside, value - mean[:, None], 0.0)
        root = tl.sqrt(tl.sum(value * value, axis=1) / width + eps)
        pull = tl.load(b + at, mask=inside, other=0.0).to(tl.float32)
        scale += tl.sum(pull * (value / root[:, None]), axis=0)
        shift += tl.sum(pull, axis=0)
    at = out + (i * parts + part) * width * 2 + column * 2
    tl.store(at, scale, mask=column < width)
    tl.store(at + 1, shift, mask=column < width)


@_Kernel
def _digits(
    x: tl.tensor, scale: tl.tensor, high: tl.tensor, low: tl.tensor, n: tl.tensor, k: tl.tensor, stride: tl.tensor,
    tall: tl.tensor, cells: tl.constexpr, side: tl.constexpr, wide: tl.constexpr, deep: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    row, column = tl.program_id(0) * deep + tl.arange(0, deep), tl.program_id(1) * wide + tl.arange(0, wide)
    inside = (row < n)[:, None] & (column < k)[None, :]
    value = tl.load(x + row.to(tl.int64)[:, None] * k + column[None, :], mask=inside, other=0.0)
    value = value * tl.load(scale + row, mask=row < n, other=0.0)[:, None] * cells
    value = tl.where(value == value, value, 0.0)
    whole = tl.minimum(tl.maximum(value, -cells), cells).to(tl.int32)  # towards zero
    first = whole // side
    there = column.to(tl.int64)[:, None] * stride + row[None, :]
    room = (column < tall)[:, None] & (row < stride)[None, :]
    tl.store(high + there, tl.trans(first).to(tl.int8), mask=room)
    tl.store(low + there, tl.trans(whole - first * side).to(tl.int8), mask=room)


@_Kernel
def _joined(
    high: tl.tensor, mixed: tl.tensor, low: tl.tensor, out: tl.tensor, rows: tl.tensor, width: tl.tensor,
    stride: tl.tensor, step: tl.tensor, scale: tl.tensor, side: tl.constexpr, tall: tl.constexpr, wide: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    row = (tl.program_id(0) * tall + tl.arange(0, tall)).to(tl.int64)[:, None]
    column = (tl.program_id(1) * wide + tl.arange(0, wide))[None, :]
    inside = (row < rows) & (column < width)
    at = row * stride + column
    total = tl.load(high + at, mask=inside, other=0).to(tl.float64) * (side * side)  # whole numbers below 2^53
    total += tl.load(mixed + at, mask=inside, other=0).to(tl.float64) * side
    total += tl.load(low + at, mask=inside, other=0).to(tl.float64)
    tl.store(out + row * step + column, (total * scale).to(tl.float32), mask=inside)


@cache
def can_sum(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether these kernels work there.

    >>> can_sum(torch.device("cpu"), torch.float32)
    False
    """
    return triton is not None and device.type == "cuda" and dtype == torch.float32


def few(values: Tensor) -> bool:
    """Whether the rows of a matrix are so few that `_weighted_sum_of` adds them up, and reads none of weight 0.

    >>> few(torch.zeros(3, 2))
    False
    """
    return len(values) <= FEW and can_sum(values.device, values.dtype)


def _weighted_sum_of(g: Tensor, c: Tensor, out: Tensor, factor: float = 1.0) -> None:
    """out = sum_i factor c_i g_i over the i with c_i != 0, for float32 g (n, q, p), c (n,), out (q, p) of whole rows.

    n products are added in float32, `TALL` of them before they meet the others: none takes part in more than n
    roundings, so that every entry is off by at most gamma_n sum_i |factor| c_i |g_i|.
    What g_i holds where c_i is 0 is never read; a weight below the normal numbers is 0 (see `rounding.times`).
    """
    size, shape = out.numel(), (out.shape[1], out.stride(0))
    operands = g.contiguous(), c.contiguous(), out, len(g), size, *shape, float(factor)
    _slab_sum[(triton.cdiv(size, SQUARES),)](*operands, tall=TALL, block=SQUARES)


def square_sums(g: Tensor) -> Tensor:
    """(n, k): sums of the squares of float32 g_i, at most `SQUARES` to a sum, added in float32.

    Each is off by at most gamma_SQUARES, relative, and by the squares that are below the normal numbers.
    """
    g, size = g.contiguous(), g[0:1].numel()
    parts = triton.cdiv(size, SQUARES)
    squares = torch.empty(len(g), parts, dtype=torch.float32, device=g.device)
    blocks = (len(g), triton.cdiv(parts, SUMS))  # a grid has any number of rows, and 65,535 columns
    _square_sums[blocks](g, squares, size, parts, sums=SUMS, block=SQUARES, num_warps=1)
    return squares


def norm_sums(x: Tensor, b: Tensor, eps: float) -> Tensor | None:
    """(n, 2 C): sum_t b_t x^_t and sum_t b_t, side by side channel by channel; x^ is x (n, T, C) normalised over C.

    In float32; None where there is nothing to add or a row is too wide.
    """
    n, t, width = x.shape
    if not x.numel() or width > WIDEST:
        return None
    block = triton.next_power_of_2(width)
    tile, parts = max(1, min(PLACES, WIDEST // block)), triton.cdiv(t, PLACES)
    sums = torch.empty(n, parts, 2 * width, dtype=torch.float32, device=x.device)
    operands = x.contiguous(), b.contiguous(), sums, t, width, parts, float(eps)
    _norm_sums[n, parts](*operands, places=PLACES, tile=tile, block=block, num_warps=8)
    return sums[:, 0] if parts == 1 else sums.sum(1)


def digits(x: Tensor, scale: Tensor, cells: int, side: int) -> tuple[Tensor, Tensor]:
    """trunc(cells scale_i x_i) = side h + l of float32 rows, transposed and filled up with zeros."""
    n, k = x.shape
    tall, stride = k + -k % 32, n + -n % 32
    high, low = (torch.empty(tall, stride, dtype=torch.int8, device=x.device) for _ in range(2))
    blocks = triton.cdiv(stride, 128), triton.cdiv(tall, 64)
    operands = x.contiguous(), scale.contiguous(), high, low, n, k, stride, tall
    _digits[blocks](*operands, cells=float(cells), side=side, wide=64, deep=128, num_warps=8)
    return high, low


def joined(high: Tensor, mixed: Tensor, low: Tensor, side: int, scale: float, out: Tensor) -> None:
    """out = scale (side^2 high + side mixed + low) of whole numbers whose rows may be longer than those of out."""
    rows, width = out.shape
    operands = high, mixed, low, out, rows, width, high.stride(0), out.stride(0), float(scale)
    _joined[triton.cdiv(rows, 4), triton.cdiv(width, 512)](*operands, side=side, tall=4, wide=512, num_warps=8)
