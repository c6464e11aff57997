"""The weighted sum of matrices in one kernel, which never reads those of weight 0 (a GPU with Triton)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # the kernel is never called then: see `can_sum`
    triton = tl = None

BLOCK = 1024


def _slab_sum(
    g: tl.tensor, c: tl.tensor, out: tl.tensor, n: tl.tensor, size: tl.tensor, width: tl.tensor, stride: tl.tensor,
    block: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = place < size
    total = tl.zeros([block], dtype=tl.float32)
    at = g + place
    for i in range(n):
        weight = tl.load(c + i)
        total += weight * tl.load(at, mask=inside & (weight != 0), other=0.0)
        at += size
    tl.store(out + (place // width) * stride + place % width, total, mask=inside)


_compiled: Any = None if triton is None else triton.jit(_slab_sum, do_not_specialize=["n"])


def can_sum(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether `weighted_sum_of` works there.

    >>> can_sum(torch.device("cpu"), torch.float32)
    False
    """
    return triton is not None and device.type == "cuda" and dtype == torch.float32


def weighted_sum_of(g: Tensor, c: Tensor, out: Tensor) -> None:
    """out = sum_i c_i g_i over the i with c_i != 0, for float32 g (n, q, p), c (n,) and out (q, p) with whole rows.

    n products are added one after the other in float32: off by at most gamma_n sum_i c_i |g_i| in every entry.  What
    g_i holds where c_i is 0 is never read.
    """
    size, g = out.numel(), g.contiguous()
    if size == 0:
        return
    with torch.cuda.device_of(g):
        blocks = (triton.cdiv(size, BLOCK),)
        _compiled[blocks](g, c.contiguous(), out, len(g), size, out.shape[1], out.stride(0), block=BLOCK)
