"""A few coordinates: k of them at random (Stich et al., 2018), or random corners of a cross-polytope (vqSGD)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from isthmus.base import validate
from isthmus.base.randomness import key
from isthmus.codecs import bits
from isthmus.codecs.base import TOP, Array, Codec, Dither, _ScaledCodec, largest, norm, rounded_up
from isthmus.codecs.bits import Reader, Writer

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
        validate.positive_int(m=m)
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
        validate.positive_int(m=m)
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
        corners = reader.fixed(count, _corner_bits(m), "the corners")
        reader.check(int(corners.max()) < 2 * m, f"a corner is beyond the {2 * m} there are")
        return corners

    def value(self, drawn: tuple[float, Array], m: int, dtype: type) -> Array:
        """The mean of the corners."""
        scale, corners = drawn
        signs = np.bincount(corners >> 1, 1.0 - 2 * (corners & 1), minlength=m)
        return (signs * (math.sqrt(m) * scale / self.repetitions)).astype(dtype, copy=False)


def _corner_bits(m: int) -> int:
    return max(1, math.ceil(math.log2(2 * m)))
