"""Stochastic rounding to equal steps of the largest entry: b bits a number, and TernGrad's three values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from isthmus.base import validate
from isthmus.codecs.base import TOP, Array, Codec, from_levels, largest, max_norm_chi, rounded_up, to_levels
from isthmus.codecs.bits import Reader, Writer

TRITS = 5
"""Ternary digits a byte: 3^5 = 243."""
POWERS = np.array([3**place for place in range(TRITS)], np.uint8)


@dataclass(frozen=True)
class PackedBits(Codec):
    """b bits a number: multiples of ||v||_inf / s with s = 2^(b-1) - 1; chi = (sqrt(1 + (m - 1) / s^2) - 1) / 2.

    >>> import torch
    >>> v = torch.tensor([0.5, -1.0, 0.25])
    >>> PackedBits(4).decode(PackedBits(4).encode(v, seed=0), v)[1], len(PackedBits(4).encode(v.repeat(1000), seed=0))
    (tensor(-1.), 1508)
    """

    width: int = 4
    name = "bits"
    kind = 2

    def __post_init__(self) -> None:
        validate.positive_int(width=self.width)
        validate.check(2 <= self.width <= 16, "width", self.width, "give between 2 and 16 bits (one must be the sign)")

    def chi(self, m: int) -> float:
        """Exact: a vector reaches it."""
        return max_norm_chi(m, self._levels)

    def bits(self, m: int) -> float:
        """b a number, 32 for the scale."""
        return float(self.width * m + 32)

    def draw(self, v: Array, seed: int) -> tuple[float, Array]:
        """The largest entry, and levels between -s and s."""
        scale = rounded_up(largest(v))
        return scale, to_levels(v, self._levels, scale, seed, np.int16)

    def write(self, out: Writer, m: int, drawn: tuple[float, Array]) -> None:
        """The scale and levels from 0 to 2 s; nothing after a scale of 0."""
        out.float32(drawn[0])
        if drawn[0]:
            out.fixed(drawn[1].astype(np.int32) + self._levels, self.width)

    def read(self, reader: Reader, m: int) -> tuple[float, Array]:
        """The scale and the levels."""
        scale = reader.float32("the largest entry", TOP)
        if not scale:
            return 0.0, np.zeros(m, np.int16)
        levels = reader.fixed(m, self.width, "the levels")
        reader.check(int(levels.max()) <= 2 * self._levels, f"a level is above {self._levels}")
        return scale, (levels - self._levels).astype(np.int16)

    def value(self, drawn: tuple[float, Array], m: int, dtype: Any) -> Array:
        """||v||_inf l / s."""
        return from_levels(drawn[1], drawn[0] / self._levels, dtype)

    @property
    def _levels(self) -> int:
        return (1 << self.width - 1) - 1


@dataclass(frozen=True)
class Int8(PackedBits):
    """`PackedBits` with a byte a number.

    >>> Int8().chi(10_001)
    0.13639634662733569
    """

    width: int = 8
    name = "int8"
    kind = 3

    def __post_init__(self) -> None:
        validate.check(
            self.width == 8, "width", self.width, "leave it out, because it is 8 here; PackedBits has other widths"
        )


@dataclass(frozen=True)
class TernGrad(Codec):
    """Signs, kept with probability |v_i| / ||v||_inf (Wen et al., 2017): chi = (sqrt(m) - 1) / 2.

    Five numbers a byte, 1.6 bits each where log2(3) = 1.585 is the least.

    >>> TernGrad().chi(9), TernGrad().bits(10)
    (1.0, 48.0)
    """

    name = "terngrad"
    kind = 4

    def chi(self, m: int) -> float:
        """Exact: a vector reaches it."""
        validate.positive_int(m=m)
        return (math.sqrt(m) - 1) / 2

    def bits(self, m: int) -> float:
        """8 for five numbers, 32 for the scale."""
        return 8.0 * -(-m // TRITS) + 32

    def draw(self, v: Array, seed: int) -> tuple[float, Array]:
        """The largest entry, and -1, 0 or 1 for each."""
        scale = rounded_up(largest(v))
        return scale, to_levels(v, 1, scale, seed, np.int8)

    def write(self, out: Writer, m: int, drawn: tuple[float, Array]) -> None:
        """The scale, and five signs a byte; nothing after a scale of 0."""
        scale, levels = drawn
        out.float32(scale)
        if not scale:
            return
        digits = np.ones(-(-m // TRITS) * TRITS, np.uint8)
        digits[:m] = levels + 1
        out.array(sum(digits[place::TRITS] * POWERS[place] for place in range(TRITS)))

    def read(self, reader: Reader, m: int) -> tuple[float, Array]:
        """The scale and the signs."""
        scale = reader.float32("the largest entry", TOP)
        if not scale:
            return 0.0, np.zeros(m, np.int8)
        packed = reader.array(-(-m // TRITS), "u1", "the signs")
        reader.check(int(packed.max()) < 3**TRITS, f"a byte of signs is above {3**TRITS - 1}")
        digits = np.empty((len(packed), TRITS), np.int8)
        for place in range(TRITS):
            packed, digits[:, place] = np.divmod(packed, np.uint8(3))
        digits -= 1
        levels = digits.reshape(-1)
        reader.check(not levels[m:].any(), "the signs that fill its last byte are not 0")
        return scale, levels[:m]

    def value(self, drawn: tuple[float, Array], m: int, dtype: Any) -> Array:
        """||v||_inf times the signs."""
        return from_levels(drawn[1], drawn[0], dtype)
