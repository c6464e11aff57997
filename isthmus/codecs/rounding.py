"""Codecs that round every number at random, so that its mean is kept.

Shorter floats (float16, bfloat16, powers of two): a float's bits, read as an integer, grow with it, and within a binade
evenly.  Adding random low bits and cutting them off rounds it up with exactly the probability that keeps its mean.

Equal steps of the largest entry: b bits a number, and TernGrad's three values.

QSGD: s levels of the Euclidean norm (Alistarh et al., 2017; Appendix D.1, paper 001).

    C(v)_i = ||v|| sign(v_i) xi_i,   xi_i = l/s or (l+1)/s with mean |v_i| / ||v||

A level is coded with its sign, 0, -1, +1, -2, ... as 1, 2, 3, 4, ...: at s = sqrt(m) the gamma code has at most 3 bits
a number in expectation, whatever v is.  (With z_i = s |v_i| / ||v|| a number costs 1 + 2 z on [0, 2] on average, and
at most 2 + z^2 everywhere; the mean of z^2 is 1.  For omega the line is 1.8 + 1.25 z^2: 3.05 bits.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from isthmus.base import validate
from isthmus.codecs import bits
from isthmus.codecs.base import (
    TOP,
    Array,
    Codec,
    Dither,
    ScaledCodec,
    from_levels,
    largest,
    max_norm_chi,
    norm,
    rounded_up,
    to_levels,
)
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

    def value(self, drawn: Array, m: int, dtype: type) -> Array:
        """With 16 zero bits behind."""
        return (drawn.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(dtype, copy=False)


@dataclass(frozen=True)
class Float16(ScaledCodec):
    """float16 of v times a power of two that brings its largest entry near the top, rounded at random: chi = 2^-22.

    (Entries below 2^-28 of the largest are rounded to multiples of its 2^-38; `chi` has that term, too.)

    >>> import torch
    >>> v = torch.tensor([3.0 * 2**40, -8.0])
    >>> Float16().decode(Float16().encode(v, seed=0), v).tolist()
    [3298534883328.0, -8.0]
    """

    name = "float16"
    kind = 6
    size = "the scale"
    dtype = "<f2"

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

    def largest_size(self, m: int) -> float:
        """What brings TOP to the top of float16."""
        return TOP * 2.0**-14

    def write_numbers(self, out: Writer, m: int, numbers: Array) -> None:
        """Two bytes each."""
        out.array(numbers)

    def read_numbers(self, reader: Reader, m: int) -> Array:
        """Finite numbers."""
        numbers = reader.array(m, "<f2", "the numbers")
        top = int((numbers.view("<u2") & 0x7FFF).max())
        reader.check(top <= 30 << 10, "it holds a number that is NaN, infinite or above 2^15, whose exponent is 30")
        return numbers

    def value(self, drawn: tuple[float, Array], m: int, dtype: type) -> Array:
        """Times the scale."""
        numbers: Array = drawn[1].astype(dtype)
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

    def value(self, drawn: Array, m: int, dtype: type) -> Array:
        """Powers of two."""
        return (drawn.astype(np.uint32) << np.uint32(23)).view(np.float32).astype(dtype, copy=False)


def _power(top: float) -> float:
    """The power of two that divides `top` to at most 2^15, float16's largest; at least 2^-126."""
    if top == 0:
        return 0.0
    return float(np.ldexp(1.0, max(int(np.frexp(top)[1]) - 15, -126)))


TRITS = 5
"""Ternary digits a byte: 3^5 = 243."""

POWERS = np.array([3**place for place in range(TRITS)], np.uint8)


@dataclass(frozen=True)
class PackedBits(ScaledCodec):
    """b bits a number: multiples of ||v||_inf / s with s = 2^(b-1) - 1; chi = (sqrt(1 + (m - 1) / s^2) - 1) / 2.

    >>> import torch
    >>> v = torch.tensor([0.5, -1.0, 0.25])
    >>> PackedBits(4).decode(PackedBits(4).encode(v, seed=0), v)[1], len(PackedBits(4).encode(v.repeat(1000), seed=0))
    (tensor(-1.), 1508)
    """

    width: int = 4
    name = "bits"
    kind = 2
    size = "the largest entry"

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

    def write_numbers(self, out: Writer, m: int, numbers: Array) -> None:
        """Levels from 0 to 2 s."""
        out.fixed(numbers.astype(np.int32) + self._levels, self.width)

    def read_numbers(self, reader: Reader, m: int) -> Array:
        """The levels."""
        levels = reader.fixed(m, self.width, "the levels")
        reader.check(int(levels.max()) <= 2 * self._levels, f"a level is above {self._levels}")
        return (levels - self._levels).astype(np.int16)

    def value(self, drawn: tuple[float, Array], m: int, dtype: type) -> Array:
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
class TernGrad(ScaledCodec):
    """Signs, kept with probability |v_i| / ||v||_inf (Wen et al., 2017): chi = (sqrt(m) - 1) / 2.

    Five numbers a byte, 1.6 bits each where log2(3) = 1.585 is the least.

    >>> TernGrad().chi(9), TernGrad().bits(10)
    (1.0, 48.0)
    """

    name = "terngrad"
    kind = 4
    size = "the largest entry"
    dtype = "<i1"

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

    def write_numbers(self, out: Writer, m: int, numbers: Array) -> None:
        """Five signs a byte."""
        digits = np.ones(-(-m // TRITS) * TRITS, np.uint8)
        digits[:m] = numbers + 1
        out.array(sum(digits[place::TRITS] * POWERS[place] for place in range(TRITS)))

    def read_numbers(self, reader: Reader, m: int) -> Array:
        """The signs."""
        packed = reader.array(-(-m // TRITS), "u1", "the signs")
        reader.check(int(packed.max()) < 3**TRITS, f"a byte of signs is above {3**TRITS - 1}")
        digits = np.empty((len(packed), TRITS), np.int8)
        for place in range(TRITS):
            packed, digits[:, place] = np.divmod(packed, np.uint8(3))
        digits -= 1
        levels = digits.reshape(-1)
        reader.check(not levels[m:].any(), "the signs that fill its last byte are not 0")
        return levels[:m]

    def value(self, drawn: tuple[float, Array], m: int, dtype: type) -> Array:
        """||v||_inf times the signs."""
        return from_levels(drawn[1], drawn[0], dtype)


CODINGS = (*bits.CODES, "fixed")

DENSE, SPARSE, NARROW = 0, 1, 2
"""All levels; those that are not 0, with their places; all levels of -1, 0, 1 with two bits each."""

MOST = 2**20
"""The most levels: float32 entries have no more than 24 bits."""


@dataclass(frozen=True)
class QSGD(ScaledCodec):
    """Stochastic rounding to s levels of ||v||, with Elias coding: chi = min(m / s^2, sqrt(m) / s).

    levels  s; by default sqrt(m), where chi = 1
    coding  "gamma" or "omega" (Elias), or "fixed": 1 + ceil(log2(s + 1)) bits a number, as in the paper's experiments

    Elias codes of all levels, or of the places and levels that are not 0 (at small s nearly all are, and at most
    s (s + sqrt(m)) are not), or two bits each where all are -1, 0 or 1: whichever is shortest.

    >>> import torch
    >>> v = torch.linspace(-1, 1, 1000)
    >>> data = QSGD().encode(v, seed=0)
    >>> len(data), torch.equal(QSGD().decode(data, v), QSGD().contract(v, seed=0)), QSGD().chi(1000)
    (353, True, 1.0)
    """

    levels: int | None = None
    coding: str = "gamma"
    name = "qsgd"
    kind = 1
    size = "the norm"

    def __post_init__(self) -> None:
        if self.levels is not None:
            validate.positive_int(levels=self.levels)
            validate.at_most(MOST, "2^20, the most levels", levels=self.levels)
        validate.one_of(CODINGS, coding=self.coding)

    def chi(self, m: int) -> float:
        """min(m / s^2, sqrt(m) / s)."""
        validate.positive_int(m=m)
        if self.levels is None:
            return 1.0
        return min(m / self.levels**2, math.sqrt(m) / self.levels)

    def bits(self, m: int) -> float:
        """40 for norm and coding; 1 + 2 s / sqrt(m) a number up to s = sqrt(m), whatever v is, or fixed widths.

        The mean square level is (1 + chi) s^2 / m at most; beyond s = sqrt(m) its logarithm bounds the lengths.
        """
        validate.positive_int(m=m)
        rho, omega = self._levels(m) / math.sqrt(m), self.coding == "omega"
        if self.coding == "fixed":
            return 40.0 + m * self._width(m)
        if rho > 1:
            return 40.0 + m * (3 + math.log2(1 + (1 + self.chi(m)) * rho**2) + 2 * omega)
        if omega and rho > 0.8:
            return 40.0 + m * (1.8 + 1.25 * rho**2)
        return 40.0 + m * (1 + 2 * rho)

    def draw(self, v: Array, seed: int) -> tuple[float, Array]:
        """The norm and the levels, with their signs."""
        scale, s = rounded_up(norm(v)), self._levels(len(v))
        return scale, to_levels(v, s, scale, seed, _level_dtype(self._top(len(v))))

    def write_numbers(self, out: Writer, m: int, numbers: Array) -> None:
        """The coding and the codes."""
        levels, symbols = numbers, 2 * np.abs(numbers) + (numbers >= 0)
        if self.coding == "fixed":
            out.byte(CODINGS.index("fixed"))
            out.fixed(symbols - 1, self._width(m))
            return
        if int(symbols.max()) <= 3 and bits.length(symbols, self.coding) > 2 * m:
            out.byte(CODINGS.index(self.coding) | NARROW << 4)
            return out.fixed(symbols, 2)
        if 4 * np.count_nonzero(levels) < m:  # places cost three bits and more, and zeros in a dense code one
            places = np.flatnonzero(levels)
            if self._shorter(places, levels, symbols):
                return self._write_sparse(out, places, levels)
        out.byte(CODINGS.index(self.coding))
        bits.write(out, symbols, self.coding)

    def _write_sparse(self, out: Writer, places: Array, levels: Array) -> None:
        """The levels that are not 0, and where they stand."""
        own = levels[places]
        out.byte(CODINGS.index(self.coding) | SPARSE << 4)
        out.number(len(places))
        bits.write_increasing(out, places, len(levels), self.coding)
        out.bits([own < 0])
        bits.write(out, np.abs(own), self.coding)

    def read_numbers(self, reader: Reader, m: int) -> Array:
        """The levels."""
        coding_byte = reader.byte("the coding")
        coding, layout, top = coding_byte & 15, coding_byte >> 4, self._top(m)
        reader.check(coding == CODINGS.index(self.coding), f"its coding is number {coding} and not {self.coding!r}")
        known = layout in (DENSE, SPARSE, NARROW) and (layout == DENSE or self.coding != "fixed")
        reader.check(known, f"its layout is {layout}")
        if layout == SPARSE:
            return self._sparse(reader, m, top)
        symbols: Array
        if layout == NARROW:
            symbols = reader.fixed(m, 2, "the levels")
            reader.check(bool(symbols.all()), "a level is coded as 0")
        elif self.coding == "fixed":
            symbols = reader.fixed(m, self._width(m), "the levels") + 1
            reader.check(int(symbols.max()) <= top, f"a level is above {top // 2}")
        else:
            symbols = bits.read(reader, m, self.coding, top, "the levels")
        return _signed(symbols)

    def value(self, drawn: tuple[float, Array], m: int, dtype: type) -> Array:
        """||v|| l / s."""
        scale, levels = drawn
        return from_levels(levels, scale / self._levels(m), dtype)

    def _sparse(self, reader: Reader, m: int, top: int) -> Array:
        count = reader.number("the number of entries that are not 0", m)
        places = bits.read_increasing(reader, count, m, self.coding, "the places")
        signs = 1 - 2 * reader.bits(count, "the signs").view(np.int8)
        sizes = bits.read(reader, count, self.coding, top // 2, "the levels")
        levels: Array = np.zeros(m, _level_dtype(top))
        levels[places] = signs * sizes
        return levels

    def _shorter(self, places: Array, levels: Array, symbols: Array) -> bool:
        """Whether places, signs and levels have fewer bits than all levels, the number of places included."""
        lengths = bits.increasing_length(places, len(levels), self.coding)
        lengths += len(places) + bits.length(np.abs(levels[places]), self.coding)
        return lengths + 40 < bits.length(symbols, self.coding)

    def _levels(self, m: int) -> float:
        if self.levels is None:
            return math.sqrt(m)
        return float(self.levels)

    def _top(self, m: int) -> int:
        """The largest symbol: that of the level ceil(s), positive."""
        return 2 * math.ceil(self._levels(m)) + 1

    def _width(self, m: int) -> int:
        return 1 + math.ceil(math.log2(math.ceil(self._levels(m)) + 1))


def _level_dtype(top: int) -> type:
    """The shorter integers where symbols up to `top` fit in them."""
    if top < 1 << 15:
        return np.int16
    return np.int32


def _signed(symbols: Array) -> Array:
    half = symbols >> 1
    return np.where(symbols & 1, half, -half)
