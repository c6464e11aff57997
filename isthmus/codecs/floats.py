"""Shorter floating-point numbers, rounded at random so that their mean is kept: float16, bfloat16, powers of two.

A float's bits, read as an integer, grow with it, and within a binade evenly: adding random low bits and cutting them
off rounds it up with exactly the probability that keeps its mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from isthmus.base import validate
from isthmus.codecs.base import TOP, Array, Codec, Dither, largest, max_norm_chi
from isthmus.codecs.bits import BLOCK, Reader, Writer


def cut(v: Array, bits: int, seed: int) -> Array:
    """float32 numbers whose last `bits` bits are 0, with the mean of v (of its float32 values).

    >>> cut(np.array([1.0, -1.5], np.float32), 16, seed=0).tolist()
    [1.0, -1.5]
    """
    largest(v)
    coins, out = Dither(seed), np.array(v, np.float32)
    words = out.view(np.uint32)
    for lo in range(0, len(out), BLOCK):
        part = words[lo : lo + BLOCK]
        part += coins.words(len(part)) >> np.uint32(32 - bits)
        part &= np.uint32(0xFFFFFFFF << bits & 0xFFFFFFFF)
    return out


@dataclass(frozen=True)
class BFloat16(Codec):
    """The first 16 bits of a float32, rounded at random: 8 bits of mantissa, chi = 2^-16.

    >>> import torch
    >>> v = torch.tensor([1.0, -0.75])
    >>> BFloat16().decode(BFloat16().encode(v, seed=0), v).tolist(), BFloat16().bits(2)
    ([1.0, -0.75], 32.0)
    """

    name = "bfloat16"
    kind = 5

    def chi(self, m: int) -> float:
        """Half a step of 2^-7 |v_i|, squared, at most."""
        validate.positive_int(m=m)
        return 2.0**-16

    def bits(self, m: int) -> float:
        """16 a number."""
        return 16.0 * m

    def draw(self, v: Array, seed: int) -> Array:
        """The first 16 bits."""
        return (cut(v, 16, seed).view(np.uint32) >> np.uint32(16)).astype("<u2")

    def write(self, out: Writer, m: int, drawn: Array) -> None:
        """Two bytes each."""
        out.array(drawn)

    def read(self, reader: Reader, m: int) -> Array:
        """Two bytes each, none of them NaN or infinite."""
        numbers = reader.array(m, "<u2", "the numbers")
        reader.check(
            int((numbers & 0x7FFF).max()) <= 254 << 7, "it holds a number that is NaN, infinite or above 2^127"
        )
        return numbers

    def value(self, drawn: Array, m: int, dtype: Any) -> Array:
        """With 16 zero bits behind."""
        return (drawn.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(dtype, copy=False)


@dataclass(frozen=True)
class Float16(Codec):
    """float16 of v times a power of two that brings its largest entry near the top, rounded at random: chi = 2^-22.

    (Entries below 2^-28 of the largest are rounded to multiples of its 2^-38; `chi` has that term, too.)

    >>> import torch
    >>> v = torch.tensor([3.0 * 2**40, -8.0])
    >>> Float16().decode(Float16().encode(v, seed=0), v).tolist()
    [3298534883328.0, -8.0]
    """

    name = "float16"
    kind = 6

    def chi(self, m: int) -> float:
        """Half a step of 2^-10 |v_i|, squared; below the normal numbers as a grid of 2^-38 ||v||_inf."""
        return 2.0**-22 + max_norm_chi(m, 2.0**38)

    def bits(self, m: int) -> float:
        """16 a number, 32 for the scale."""
        return 16.0 * m + 32

    def draw(self, v: Array, seed: int) -> tuple[float, Array]:
        """The power of two, and the float16 numbers."""
        scale = _power(largest(v))
        if not scale:
            return 0.0, np.zeros(len(v), "<f2")
        out = np.empty(len(v), "<f2")
        coins = Dither(seed)
        for lo in range(0, len(v), BLOCK):
            part = np.array(v[lo : lo + BLOCK] / v.dtype.type(scale), np.float32)
            step = np.ldexp(np.float32(1), np.maximum(np.frexp(part)[1], -13) - 11)  # float16's own, also below normal
            part /= step
            low = np.floor(part)
            low += coins.uniform(len(part), np.float32) < part - low
            out[lo : lo + BLOCK] = low * step
        return scale, out

    def write(self, out: Writer, m: int, drawn: tuple[float, Array]) -> None:
        """The scale, and two bytes each; nothing after a scale of 0."""
        out.float32(drawn[0])
        if drawn[0]:
            out.array(drawn[1])

    def read(self, reader: Reader, m: int) -> tuple[float, Array]:
        """The scale, and finite numbers."""
        scale = reader.float32("the scale", TOP * 2.0**-14)
        if not scale:
            return 0.0, np.zeros(m, "<f2")
        numbers = reader.array(m, "<f2", "the numbers")
        top = int((numbers.view("<u2") & 0x7FFF).max())
        reader.check(top <= 30 << 10, "it holds a number that is NaN, infinite or above 2^15, whose exponent is 30")
        return scale, numbers

    def value(self, drawn: tuple[float, Array], m: int, dtype: Any) -> Array:
        """Times the scale."""
        numbers = drawn[1].astype(dtype)
        numbers *= numbers.dtype.type(drawn[0])
        return numbers


@dataclass(frozen=True)
class Natural(Codec):
    """Natural compression (Horvath et al., 2019): each number to a power of two, 9 bits and chi = 1/8.

    2^e (1 + f) goes up with probability f, and f (1 - f) / (1 + f)^2 is at most 1/8.

    >>> import torch
    >>> v = torch.tensor([0.5, -4.0, 0.0])
    >>> Natural().decode(Natural().encode(v, seed=0), v).tolist(), Natural().bits(8)
    ([0.5, -4.0, 0.0], 72.0)
    """

    name = "natural"
    kind = 7

    def chi(self, m: int) -> float:
        """1/8."""
        validate.positive_int(m=m)
        return 0.125

    def bits(self, m: int) -> float:
        """A sign and 8 bits of exponent."""
        return 9.0 * m

    def draw(self, v: Array, seed: int) -> Array:
        """Sign and exponent, 9 bits."""
        return (cut(v, 23, seed).view(np.uint32) >> np.uint32(23)).astype(np.uint16)

    def write(self, out: Writer, m: int, drawn: Array) -> None:
        """A byte of exponent each, then the signs."""
        out.array((drawn & 0xFF).astype(np.uint8))
        out.bits([(drawn >> 8).astype(np.uint8)])

    def read(self, reader: Reader, m: int) -> Array:
        """Exponents of finite numbers, and signs."""
        exponents = reader.array(m, "u1", "the exponents")
        reader.check(int(exponents.max()) <= 254, "it holds a number that is NaN or infinite")
        codes: Array = reader.bits(m, "the signs").astype(np.uint16) << 8
        codes |= exponents
        return codes

    def value(self, drawn: Array, m: int, dtype: Any) -> Array:
        """Powers of two."""
        return (drawn.astype(np.uint32) << np.uint32(23)).view(np.float32).astype(dtype, copy=False)


def _power(top: float) -> float:
    """The power of two that divides `top` to at most 2^15, float16's largest; at least 2^-126."""
    return 0.0 if top == 0 else float(np.ldexp(1.0, max(int(np.frexp(top)[1]) - 15, -126)))
