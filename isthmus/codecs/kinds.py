"""The codecs: most round every number at random, so that its mean is kept; two send a few numbers in place of all.

Shorter floats (float16, bfloat16, powers of two): a float's bits, read as an integer, grow with it, and within a binade
evenly.  Adding random low bits and cutting them off rounds it up with exactly the probability that keeps its mean.

Equal steps of the largest entry: b bits a number, and TernGrad's three values.

QSGD: s levels of the Euclidean norm (Alistarh et al., 2017; Appendix D.1, paper 001).

    C(v)_i = ||v|| sign(v_i) xi_i,   xi_i = l/s or (l+1)/s with mean |v_i| / ||v||

A level is coded with its sign, 0, -1, +1, -2, ... as 1, 2, 3, 4, ...: at s = sqrt(m) the gamma code has at most 3 bits
a number in expectation, whatever v is.  (With z_i = s |v_i| / ||v|| a number costs 1 + 2 z on [0, 2] on average, and
at most 2 + z^2 everywhere; the mean of z^2 is 1.  For omega the line is 1.8 + 1.25 z^2: 3.05 bits.)

A few coordinates: k of them at random (Stich et al., 2018), or random corners of a cross-polytope (vqSGD).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from isthmus.base import validate
from isthmus.base.randomness import key
from isthmus.codecs import bits
from isthmus.codecs.base import TOP, Array, Codec, Dither, _ScaledCodec, _to_levels, largest, norm, rounded_up
from isthmus.codecs.bits import BLOCK, Reader, Writer


class _CutFloat(Codec):
    """A float32 without its last bits, rounded at random."""

    cut: ClassVar[int]
    """How many bits go."""
    error: ClassVar[float]

    def chi(self, m: int) -> float:
        """The same for every m."""
        return self.error

    def bits(self, m: int) -> float:
        """What is left of 32, without bits that are always 0."""
        return float(32 - self.cut) * m

    def draw(self, v: Array, seed: int) -> Array:
        """The bits that are left."""
        largest(v)
        out = np.array(v, np.float32).view(np.uint32)
        out += Dither(seed).words(len(out)) >> np.uint32(32 - self.cut)
        return (out >> np.uint32(self.cut)).astype("<u2")

    def value(self, drawn: Array, m: int, dtype: type) -> Array:
        """With zero bits behind."""
        return (drawn.astype(np.uint32) << np.uint32(self.cut)).view(np.float32).astype(dtype, copy=False)


@dataclass(frozen=True)
class BFloat16(_CutFloat):
    """The first 16 bits of a float32: 8 bits of mantissa, half a step of 2^-7 |v_i|, squared: chi = 2^-16.

    >>> import torch
    >>> v = torch.tensor([1.0, -0.75])
    >>> BFloat16().decode(BFloat16().encode(v, seed=0), v).tolist(), BFloat16().bits(2)
    ([1.0, -0.75], 32.0)
    """

    name = "bfloat16"
    kind = 5
    cut, error = 16, 2.0**-16

    def write(self, out: Writer, m: int, drawn: Array) -> None:
        """Two bytes each."""
        out.array(drawn)

    def read(self, reader: Reader, m: int) -> Array:
        """Two bytes each, none of them NaN or infinite."""
        numbers = reader.array(m, "<u2", "the numbers")
        fine = int((numbers & 0x7FFF).max()) <= 254 << 7
        reader.check(fine, "it holds a number that is NaN, infinite or above 2^127")
        return numbers


@dataclass(frozen=True)
class Natural(_CutFloat):
    """Natural compression (Horvath et al., 2019): each number to a power of two, 9 bits and chi = 1/8.

    2^e (1 + f) goes up with probability f, and f (1 - f) / (1 + f)^2 is at most 1/8.

    >>> import torch
    >>> v = torch.tensor([0.5, -4.0, 0.0])
    >>> Natural().decode(Natural().encode(v, seed=0), v).tolist(), Natural().bits(8)
    ([0.5, -4.0, 0.0], 72.0)
    """

    name = "natural"
    kind = 7
    cut, error = 23, 0.125

    def write(self, out: Writer, m: int, drawn: Array) -> None:
        """A byte of exponent each, then the signs."""
        out.array((drawn & 0xFF).astype(np.uint8))
        out.bits([(drawn >> 8).astype(np.uint8)])

    def read(self, reader: Reader, m: int) -> Array:
        """Exponents of finite numbers, and signs."""
        exponents = reader.array(m, "u1", "the exponents of finite numbers", 254)
        codes: Array = reader.bits(m, "the signs").astype(np.uint16) << 8 | exponents
        return codes


@dataclass(frozen=True)
class Float16(_ScaledCodec):
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

    def chi(self, m: int) -> float:
        """Half a step of 2^-10 |v_i|, squared; below the normal numbers as a grid of 2^-38 ||v||_inf."""
        return 2.0**-22 + _grid_chi(m, 2.0**38)

    def bits(self, m: int) -> float:
        """16 a number, 32 for the scale."""
        return 16.0 * m + 32

    def measure(self, v: Array) -> float:
        """The power of two that divides the largest entry to at most 2^15, float16's largest; at least 2^-126."""
        top = largest(v)
        return top and float(np.ldexp(1.0, max(math.frexp(top)[1] - 15, -126)))

    def largest_size(self, m: int) -> float:
        """What brings TOP to the top of float16."""
        return TOP * 2.0**-14

    def numbers(self, v: Array, size: float, seed: int) -> Array:
        """The float16 numbers."""
        coins, out = Dither(seed), np.empty(len(v), "<f2")
        for lo in range(0, len(v), BLOCK):
            part = np.array(v[lo : lo + BLOCK] / v.dtype.type(size), np.float32)
            step = np.ldexp(np.float32(1), np.maximum(np.frexp(part)[1], -13) - 11)  # float16's own, also below normal
            part /= step
            low = np.floor(part)
            low += coins.uniform(len(part), np.float32) < part - low
            out[lo : lo + BLOCK] = low * step
        return out

    def write_numbers(self, out: Writer, m: int, numbers: Array) -> None:
        """Two bytes each."""
        out.array(numbers)

    def read_numbers(self, reader: Reader, m: int) -> Array:
        """Finite numbers."""
        numbers = reader.array(m, "<f2", "the numbers")
        top = int((numbers.view("<u2") & 0x7FFF).max())
        reader.check(top <= 30 << 10, "it holds a number that is NaN, infinite or above 2^15, whose exponent is 30")
        return numbers


def _grid_chi(m: int, levels: float) -> float:
    """The exact chi of rounding m entries to multiples of ||v||_inf / s:  (sqrt(1 + (m - 1) / s^2) - 1) / 2.

    An entry x of the first cell adds x D - x^2 with D = 1/s; with one entry 1 and m - 1 entries x the ratio to
    1 + (m - 1) x^2 is largest at x = (sqrt(1 + (m - 1) D^2) - 1) / ((m - 1) D), and other cells only lower it.

    >>> _grid_chi(9, 1), _grid_chi(1, 1)
    (1.0, 0.0)
    """
    inside = (m - 1) / levels**2
    return inside / (2 * (math.sqrt(1 + inside) + 1))  # the same number, without cancellation


class _Grid(_ScaledCodec):
    """Multiples of ||v||_inf / s, rounded at random."""

    size = "the largest entry"

    def chi(self, m: int) -> float:
        """Exact: a vector reaches it."""
        return _grid_chi(m, self.steps(m))

    def measure(self, v: Array) -> float:
        """The largest entry."""
        return rounded_up(largest(v))

    def numbers(self, v: Array, size: float, seed: int) -> Array:
        """Levels between -s and s."""
        return _to_levels(v, self.steps(len(v)), size, seed, np.int16)


@dataclass(frozen=True)
class PackedBits(_Grid):
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

    def bits(self, m: int) -> float:
        """b a number, 32 for the scale."""
        return float(self.width * m + 32)

    def steps(self, m: int) -> int:
        """s."""
        return (1 << self.width - 1) - 1

    def write_numbers(self, out: Writer, m: int, numbers: Array) -> None:
        """Levels from 0 to 2 s."""
        out.fixed(numbers.astype(np.int32) + self.steps(m), self.width)

    def read_numbers(self, reader: Reader, m: int) -> Array:
        """The levels."""
        return reader.fixed(m, self.width, "the levels", 2 * self.steps(m)) - self.steps(m)


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
        remedy = "leave it out, because it is 8 here; PackedBits has other widths"
        validate.check(self.width == 8, "width", self.width, remedy)


TRITS = 5
"""Ternary digits a byte: 3^5 = 243."""


@dataclass(frozen=True)
class TernGrad(_Grid):
    """Signs, kept with probability |v_i| / ||v||_inf (Wen et al., 2017): chi = (sqrt(m) - 1) / 2.

    Five numbers a byte, 1.6 bits each where log2(3) = 1.585 is the least.

    >>> TernGrad().chi(9), TernGrad().bits(10)
    (1.0, 48.0)
    """

    name = "terngrad"
    kind = 4

    def chi(self, m: int) -> float:
        """Exact: a vector reaches it."""
        return (math.sqrt(m) - 1) / 2

    def bits(self, m: int) -> float:
        """8 for five numbers, 32 for the scale."""
        return 8.0 * -(-m // TRITS) + 32

    def write_numbers(self, out: Writer, m: int, numbers: Array) -> None:
        """Five signs a byte."""
        digits = np.ones((-(-m // TRITS), TRITS), np.uint8)
        digits.reshape(-1)[:m] = numbers + 1
        out.array(digits @ 3 ** np.arange(TRITS, dtype=np.uint8))

    def read_numbers(self, reader: Reader, m: int) -> Array:
        """The signs."""
        packed = reader.array(-(-m // TRITS), "u1", "the bytes of signs", 3**TRITS - 1)
        digits = np.empty((len(packed), TRITS), np.int8)
        for place in range(TRITS):
            packed, digits[:, place] = np.divmod(packed, np.uint8(3))
        levels = digits.reshape(-1) - np.int8(1)
        reader.check(not levels[m:].any(), "the signs that fill its last byte are not 0")
        return levels[:m]


CODINGS = (*bits.CODES, "fixed")

DENSE, SPARSE, NARROW = 0, 1, 2
"""All levels; those that are not 0, with their places; all levels of -1, 0, 1 with two bits each."""

MAX_LEVELS = 2**20
"""float32 entries have no more than 24 bits."""


@dataclass(frozen=True)
class QSGD(_ScaledCodec):
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
            validate.at_most(MAX_LEVELS, "2^20, the most levels", levels=self.levels)
        validate.one_of(CODINGS, coding=self.coding)

    def chi(self, m: int) -> float:
        """min(m / s^2, sqrt(m) / s)."""
        if self.levels is None:
            return 1.0
        return min(m / self.levels**2, math.sqrt(m) / self.levels)

    def bits(self, m: int) -> float:
        """40 for norm and coding; 1 + 2 s / sqrt(m) a number up to s = sqrt(m), whatever v is, or fixed widths.

        The mean square level is (1 + chi) s^2 / m at most; beyond s = sqrt(m) its logarithm bounds the lengths.
        """
        rho, omega = self.steps(m) / math.sqrt(m), self.coding == "omega"
        if self.coding == "fixed":
            return 40.0 + m * self._width(m)
        if rho > 1:
            return 40.0 + m * (3 + math.log2(1 + (1 + self.chi(m)) * rho**2) + 2 * omega)
        if omega and rho > 0.8:
            return 40.0 + m * (1.8 + 1.25 * rho**2)
        return 40.0 + m * (1 + 2 * rho)

    def steps(self, m: int) -> float:
        """s."""
        return float(self.levels or math.sqrt(m))

    def measure(self, v: Array) -> float:
        """The norm."""
        return rounded_up(norm(v))

    def numbers(self, v: Array, size: float, seed: int) -> Array:
        """The levels, with their signs."""
        dtype = np.min_scalar_type(-1 - self._top(len(v)))
        return _to_levels(v, self.steps(len(v)), size, seed, dtype)

    def write_numbers(self, out: Writer, m: int, numbers: Array) -> None:
        """The coding and the codes."""
        coding, symbols = CODINGS.index(self.coding), 2 * np.abs(numbers) + (numbers >= 0)
        if self.coding == "fixed":
            out.byte(coding)
            return out.fixed(symbols - 1, self._width(m))
        places = np.flatnonzero(numbers)
        if 2 * len(places) > m and int(symbols.max()) <= 3:  # an Elias code has one bit for 0 and three for -1 and 1
            out.byte(coding | NARROW << 4)
            return out.fixed(symbols, 2)
        dense = Writer()
        dense.byte(coding)
        bits.write(dense, symbols, self.coding)
        shortest = dense.done()
        if 4 * len(places) < m:  # places cost three bits and more
            sparse, own = Writer(), numbers[places]
            sparse.byte(coding | SPARSE << 4)
            sparse.number(len(places))
            bits._write_increasing(sparse, places, m, self.coding)
            sparse.bits([own < 0])
            bits.write(sparse, np.abs(own), self.coding)
            shortest = min(shortest, sparse.done(), key=len)
        out.array(np.frombuffer(shortest, np.uint8))

    def read_numbers(self, reader: Reader, m: int) -> Array:
        """The levels."""
        coding_byte = reader.byte("the coding")
        coding, layout, top = coding_byte & 15, coding_byte >> 4, self._top(m)
        reader.check(coding == CODINGS.index(self.coding), f"its coding is number {coding} and not {self.coding!r}")
        known = layout in (DENSE, SPARSE, NARROW) and (layout == DENSE or self.coding != "fixed")
        reader.check(known, f"its layout is {layout}")
        if layout == SPARSE:
            return self._read_sparse(reader, m, top)
        if layout == NARROW:
            symbols = reader.fixed(m, 2, "the levels", 3)
            reader.check(bool(symbols.all()), "a level is coded as 0")
        elif self.coding == "fixed":
            symbols = reader.fixed(m, self._width(m), "the levels", top - 1) + 1
        else:
            symbols = bits.read(reader, m, self.coding, top, "the levels")
        half = symbols >> 1
        return np.where(symbols & 1, half, -half)

    def _read_sparse(self, reader: Reader, m: int, top: int) -> Array:
        """The levels that are not 0, and where they stand."""
        count = reader.number("the number of entries that are not 0", m)
        places = bits._read_increasing(reader, count, m, self.coding, "the places")
        signs = 1 - 2 * reader.bits(count, "the signs").view(np.int8)
        sizes = bits.read(reader, count, self.coding, top // 2, "the levels")
        levels = np.zeros(m, sizes.dtype)
        levels[places] = signs * sizes
        return levels

    def _top(self, m: int) -> int:
        """The largest symbol: that of the level ceil(s), positive."""
        return 2 * math.ceil(self.steps(m)) + 1

    def _width(self, m: int) -> int:
        return 1 + math.ceil(math.log2(math.ceil(self.steps(m)) + 1))


WAYS = ("seed", "sent")
"""How the places are told, by the byte in a payload."""


def subset(m: int, k: int, seed: int) -> NDArray[np.int64]:
    """k of the numbers below m, each such set alike, in order: the same on every machine.

    >>> subset(10, 3, seed=1).tolist() == subset(10, 3, seed=1).tolist(), len(set(subset(10, 9, seed=1).tolist()))
    (True, 9)
    """
    if 2 * k > m:  # leave out the others instead
        others = np.ones(m, bool)
        others[subset(m, m - k, seed)] = False
        return np.flatnonzero(others)
    source, chosen, missing = np.random.Philox(key=key("subset", seed)), np.zeros(m, bool), k
    while missing:  # the first k distinct numbers of a stream of independent ones: no draw of `missing` has too many
        chosen[np.asarray(source.random_raw(missing)) % np.uint64(m)] = True
        missing = k - int(np.count_nonzero(chosen))
    return np.flatnonzero(chosen)


Sample: TypeAlias = tuple[int, NDArray[np.signedinteger], Array]


@dataclass(frozen=True)
class RandomK(Codec):
    """k entries at random, times m/k: chi = m/k - 1; 32 bits each.

    k       a number, or a fraction of m
    places  "seed": the receiver draws them again from a seed in the payload; "sent": a code of the gaps between them

    >>> import torch
    >>> v = torch.arange(8.0)
    >>> data = RandomK(4).encode(v, seed=3)
    >>> len(data), torch.equal(RandomK(4).decode(data, v), RandomK(4).contract(v, seed=3)), RandomK(4).chi(8)
    (28, True, 1.0)
    """

    k: int | float = 0.1
    places: str = "seed"
    name = "random_k"
    kind = 8

    def __post_init__(self) -> None:
        if isinstance(self.k, float):
            validate.probability(k=self.k)
        else:
            validate.positive_int(k=self.k)
        validate.one_of(WAYS, places=self.places)

    def count(self, m: int) -> int:
        """How many of m are sent."""
        if isinstance(self.k, float):
            return math.ceil(self.k * m)
        return min(self.k, m)

    def chi(self, m: int) -> float:
        """m/k - 1, exactly."""
        return m / self.count(m) - 1

    def bits(self, m: int) -> float:
        """32 a number, and 72 for the seed, or at most log2(m/k) + 4.2 a place and 8."""
        k = self.count(m)
        if self.places == "seed":
            return 32.0 * k + 72
        return 32.0 * k + (8 + k * (math.log2(m / k) + 1 + 2 * math.log2(3)))

    def draw(self, v: Array, seed: int) -> Sample:
        """The seed, the places and their entries."""
        m, k, own = len(v), self.count(len(v)), key("random_k", seed)
        largest(v, m / k)
        places = subset(m, k, own)
        return own, places, v[places].astype("<f4")

    def write(self, out: Writer, m: int, drawn: Sample) -> None:
        """The entries, and where they stand."""
        own, places, values = drawn
        out.byte(WAYS.index(self.places))
        if self.places == "seed":
            out.array(np.array([own], "<u8"))
        out.array(values)
        if self.places == "sent":
            bits._write_increasing(out, places, m, "gamma")

    def read(self, reader: Reader, m: int) -> Sample:
        """The entries, finite, and their places."""
        way, k, own = reader.byte("how places are sent"), self.count(m), 0
        reader.check(way == WAYS.index(self.places), f"its places are sent in way {way} and not as {self.places!r}")
        if self.places == "seed":
            own = int(reader.array(1, "<u8", "the seed")[0])
        values, top = reader.array(k, "<f4", "the entries"), TOP * k / m
        reader.check(bool((np.abs(values) <= top).all()), f"an entry is NaN or above {top:.4g}")
        if self.places == "seed":
            return own, subset(m, k, own), values
        return own, bits._read_increasing(reader, k, m, "gamma", "the places"), values

    def value(self, drawn: Sample, m: int, dtype: type) -> Array:
        """The entries times m/k."""
        out: Array = np.zeros(m, dtype)
        out[drawn[1]] = drawn[2].astype(np.float64) * (m / self.count(m))
        return out


@dataclass(frozen=True)
class VQSGD(_ScaledCodec):
    """The mean of r random corners of the cross-polytope, +-sqrt(m) ||v|| e_i (Gandikota et al., 2019): (m - 1) / r.

    A corner has the probability that makes v the mean: |v_i| / (sqrt(m) ||v||) for its sign, and what is left is shared
    by all 2 m corners.  32 bits for the norm, ceil(log2(2 m)) a corner.

    >>> VQSGD(7).chi(8), VQSGD(7).bits(8)
    (1.0, 68.0)
    """

    repetitions: int = 1
    name = "vqsgd"
    kind = 9
    size = "the norm"

    def __post_init__(self) -> None:
        validate.positive_int(repetitions=self.repetitions)

    def chi(self, m: int) -> float:
        """(m - 1) / r, exactly."""
        return (m - 1) / self.repetitions

    def bits(self, m: int) -> float:
        """32 for the norm, r corners, 8 for r."""
        return 40.0 + self.repetitions * _corner_bits(m)

    def measure(self, v: Array) -> float:
        """The norm."""
        return rounded_up(norm(v, math.sqrt(len(v))))

    def largest_size(self, m: int) -> float:
        """What a vector of one entry has."""
        return 2 * TOP / math.sqrt(m)

    def numbers(self, v: Array, size: float, seed: int) -> Array:
        """r corners: 2 i for +e_i, 2 i + 1 for -e_i."""
        m, r, coins = len(v), self.repetitions, Dither(seed)
        shares = np.abs(v).astype(np.float64) / (math.sqrt(m) * size)
        spread = max(0.0, 1 - float(shares.sum())) / m
        edges = np.cumsum(shares + spread)
        at = coins.uniform(r, np.float64) * edges[-1]
        index = np.minimum(np.searchsorted(edges, at, side="right"), m - 1)
        own = np.ones(r)
        if spread:
            own = shares[index] / (shares[index] + spread)
        sign = np.where(coins.uniform(r, np.float64) < (1 + own) / 2, 1, -1)
        corners: Array = 2 * index + (sign * np.where(v[index] < 0, -1, 1) < 0)
        return corners

    def write_numbers(self, out: Writer, m: int, numbers: Array) -> None:
        """How many corners, and the corners."""
        out.number(self.repetitions)
        out.fixed(numbers, _corner_bits(m))

    def read_numbers(self, reader: Reader, m: int) -> Array:
        """The corners."""
        count = reader.number("the number of corners", 2**40)
        reader.check(count == self.repetitions, f"it has {count} corners where {self.repetitions} are expected")
        return reader.fixed(count, _corner_bits(m), "the corners", 2 * m - 1)

    def value(self, drawn: tuple[float, Array], m: int, dtype: type) -> Array:
        """The mean of the corners."""
        scale, corners = drawn
        signs = np.bincount(corners >> 1, 1.0 - 2 * (corners & 1), minlength=m)
        return (signs * (math.sqrt(m) * scale / self.repetitions)).astype(dtype, copy=False)


def _corner_bits(m: int) -> int:
    return max(1, math.ceil(math.log2(2 * m)))
