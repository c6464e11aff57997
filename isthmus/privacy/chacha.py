"""Normals drawn on a GPU by ChaCha20 and added in place, in one pass; needs Triton, so it is imported when wanted.

The stream is Bernstein's ChaCha20: 256 bits of key, a 64-bit block number, nonce 0.  A key is used for one call and
forgotten.  Program p of `LANES` lanes computes LANES blocks of sixteen 32-bit words; a block makes eight normals, four
polar pairs of two 64-bit words each:

    u = (w1 + 1/2) / 2^64,   v = floor(w2 / 2^11) / 2^53,   r = sqrt(-2 log u):   r cos(2 pi v)  and  r sin(2 pi v),

so |z| goes up to 9.4.  All of it is float64; the sum with the value is rounded to the value's type last.
"""

from __future__ import annotations

import inspect
import struct
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # the kernels are never called then: `add_normals` refuses
    triton = tl = None

LANES = 128
PER_BLOCK = 8
_SPARE = 1 << 40
"""Added to every word of a key: Triton chooses the type of an argument by its size, and so it always takes 64 bits."""
_CHANGING = ["count", "scale", *(f"key{i}" for i in range(8))]


def _compiled(kernel: Callable[..., Any]) -> Any:
    """A function for the GPU, compiled when it is first called there, once for all sizes, scales and keys."""
    changing = [name for name in _CHANGING if name in inspect.signature(kernel).parameters]
    return kernel if triton is None else triton.jit(kernel, do_not_specialize=changing)


@_compiled
def _quarter(a: tl.tensor, b: tl.tensor, c: tl.tensor, d: tl.tensor) -> tl.tensor:
    a += b
    d ^= a
    d = (d << 16) | (d >> 16)
    c += d
    b ^= c
    b = (b << 12) | (b >> 20)
    a += b
    d ^= a
    d = (d << 8) | (d >> 24)
    c += d
    b ^= c
    b = (b << 7) | (b >> 25)
    return a, b, c, d


@_compiled
def _add_pair(
    out: tl.tensor,
    place: tl.tensor,
    gap: tl.tensor,
    count: tl.tensor,
    scale: tl.tensor,
    a: tl.tensor,
    b: tl.tensor,
    c: tl.tensor,
    d: tl.tensor,
) -> tl.tensor:
    """Add r cos at `place` and r sin at `place + gap`, where these are below `count`."""
    first = (b.to(tl.uint64) << 32) | a.to(tl.uint64)
    second = (d.to(tl.uint64) << 32) | c.to(tl.uint64)
    uniform = (first.to(tl.float64) + 0.5) * 5.421010862427522e-20  # 2^-64
    angle = (second >> 11).to(tl.float64) * 1.1102230246251565e-16 * tl.full((), 6.283185307179586, tl.float64)
    radius = scale * tl.sqrt(-2.0 * tl.log(uniform))
    for half in tl.static_range(2):
        where = place + half * gap
        drawn = radius * (tl.cos(angle) if half == 0 else tl.sin(angle))
        value = tl.load(out + where, mask=where < count, other=0.0).to(tl.float64)
        tl.store(out + where, (value + drawn).to(out.dtype.element_ty), mask=where < count)


@_compiled
def _add_normals(
    out: tl.tensor,
    count: tl.tensor,
    scale: tl.tensor,
    key0: tl.tensor,
    key1: tl.tensor,
    key2: tl.tensor,
    key3: tl.tensor,
    key4: tl.tensor,
    key5: tl.tensor,
    key6: tl.tensor,
    key7: tl.tensor,
    lanes: tl.constexpr,
) -> tl.tensor:
    program, lane = tl.program_id(0).to(tl.int64), tl.arange(0, lanes)
    block, none = program * lanes + lane, tl.zeros((lanes,), tl.uint32)
    low, high = none + block.to(tl.uint32), none + (block >> 32).to(tl.uint32)
    x0, x1, x2, x3 = none + 0x61707865, none + 0x3320646E, none + 0x79622D32, none + 0x6B206574
    k0, k1 = none + key0.to(tl.uint32), none + key1.to(tl.uint32)
    k2, k3 = none + key2.to(tl.uint32), none + key3.to(tl.uint32)
    k4, k5 = none + key4.to(tl.uint32), none + key5.to(tl.uint32)
    k6, k7 = none + key6.to(tl.uint32), none + key7.to(tl.uint32)
    x4, x5, x6, x7, x8, x9, x10, x11 = k0, k1, k2, k3, k4, k5, k6, k7
    x12, x13, x14, x15 = low, high, none, none
    for _ in range(10):
        x0, x4, x8, x12 = _quarter(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter(x3, x4, x9, x14)
    place, much = program * lanes * 8 + lane, scale.to(tl.float64, bitcast=True)
    x0, x1, x2, x3 = x0 + 0x61707865, x1 + 0x3320646E, x2 + 0x79622D32, x3 + 0x6B206574
    _add_pair(out, place, lanes, count, much, x0, x1, x2, x3)
    _add_pair(out, place + 2 * lanes, lanes, count, much, x4 + k0, x5 + k1, x6 + k2, x7 + k3)
    _add_pair(out, place + 4 * lanes, lanes, count, much, x8 + k4, x9 + k5, x10 + k6, x11 + k7)
    _add_pair(out, place + 6 * lanes, lanes, count, much, x12 + low, x13 + high, x14, x15)


def add_normals(out: Tensor, scale: float, key: bytes) -> None:
    """out += scale times the standard normals of a 32-byte key, for a contiguous float32 or float64 tensor."""
    if triton is None:
        raise ImportError("Noise of ChaCha20 on a GPU needs Triton; install it with: pip install triton")
    count = out.numel()
    if count == 0 or scale == 0:
        return
    words = [word | _SPARE for word in struct.unpack("<8I", key)]
    (bits,) = struct.unpack("<q", struct.pack("<d", scale))  # a Python float would arrive as a float32
    with torch.cuda.device_of(out):
        _add_normals[(triton.cdiv(count, PER_BLOCK * LANES),)](out, count, bits, *words, lanes=LANES)
