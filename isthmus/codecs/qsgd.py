"""QSGD: stochastic rounding to s levels of the Euclidean norm (Alistarh et al., 2017; Appendix D.1, paper 001).

    C(v)_i = ||v|| sign(v_i) xi_i,   xi_i = l/s or (l+1)/s with mean |v_i| / ||v||

A level is coded with its sign, 0, -1, +1, -2, ... as 1, 2, 3, 4, ...: at s = sqrt(m) the gamma code has at most 3 bits
a number in expectation, whatever v is.  (With z_i = s |v_i| / ||v|| a number costs 1 + 2 z on [0, 2] on average, and
at most 2 + z^2 everywhere; the mean of z^2 is 1.  For omega the line is 1.8 + 1.25 z^2: 3.05 bits.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from isthmus.base import validate
from isthmus.codecs import bits
from isthmus.codecs.base import TOP, Array, Codec, from_levels, norm, rounded_up, to_levels
from isthmus.codecs.bits import Reader, Writer

CODINGS = (*bits.CODES, "fixed")
DENSE, SPARSE, NARROW = 0, 1, 2
"""All levels; those that are not 0, with their places; all levels of -1, 0, 1 with two bits each."""
MOST = 2**20
"""The most levels: float32 entries have no more than 24 bits."""


@dataclass(frozen=True)
class QSGD(Codec):
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

    def __post_init__(self) -> None:
        if self.levels is not None:
            validate.positive_int(levels=self.levels)
            validate.at_most(MOST, "2^20, the most levels", levels=self.levels)
        validate.one_of(CODINGS, coding=self.coding)

    def chi(self, m: int) -> float:
        """min(m / s^2, sqrt(m) / s)."""
        validate.positive_int(m=m)
        s = self._levels(m)
        return 1.0 if self.levels is None else min(m / s**2, math.sqrt(m) / s)

    def bits(self, m: int) -> float:
        """40 for norm and coding; 1 + 2 s / sqrt(m) a number up to s = sqrt(m), whatever v is, or fixed widths.

        The mean square level is (1 + chi) s^2 / m at most; beyond s = sqrt(m) its logarithm bounds the lengths.
        """
        validate.positive_int(m=m)
        rho, omega = self._levels(m) / math.sqrt(m), self.coding == "omega"
        if self.coding == "fixed":
            return 40.0 + m * self._width(m)
        if rho > 1:
            return 40.0 + m * (3 + math.log2(1 + (1 + self.chi(m)) * rho**2) + (2 if omega else 0))
        return 40.0 + m * (1.8 + 1.25 * rho**2 if omega and rho > 0.8 else 1 + 2 * rho)

    def draw(self, v: Array, seed: int) -> tuple[float, Array]:
        """The norm and the levels, with their signs."""
        scale, s = rounded_up(norm(v)), self._levels(len(v))
        dtype = np.int16 if self._top(len(v)) < 1 << 15 else np.int32
        return scale, to_levels(v, s, scale, seed, dtype)

    def write(self, out: Writer, m: int, drawn: tuple[float, Array]) -> None:
        """The norm, the coding and the codes; nothing after a norm of 0."""
        scale, levels = drawn
        out.float32(scale)
        if not scale:
            return
        symbols = 2 * np.abs(levels) + (levels >= 0)
        if self.coding == "fixed":
            out.byte(CODINGS.index("fixed"))
            return out.fixed(symbols - 1, self._width(m))
        if int(symbols.max()) <= 3 and bits.length(symbols, self.coding) > 2 * m:
            out.byte(CODINGS.index(self.coding) | NARROW << 4)
            return out.fixed(symbols, 2)
        few = 4 * np.count_nonzero(levels) < m  # places cost three bits and more, and zeros in a dense code one
        places = np.flatnonzero(levels) if few else None
        if places is None or not self._shorter(places, levels, symbols):
            out.byte(CODINGS.index(self.coding))
            return bits.write(out, symbols, self.coding)
        own = levels[places]
        out.byte(CODINGS.index(self.coding) | SPARSE << 4)
        out.number(len(places))
        bits.write_increasing(out, places, m, self.coding)
        out.bits([own < 0])
        bits.write(out, np.abs(own), self.coding)

    def read(self, reader: Reader, m: int) -> tuple[float, Array]:
        """The norm and the levels."""
        scale = reader.float32("the norm", TOP)
        if not scale:
            return 0.0, np.zeros(m, np.int16)
        coding_byte = reader.byte("the coding")
        coding, layout, top = coding_byte & 15, coding_byte >> 4, self._top(m)
        reader.check(coding == CODINGS.index(self.coding), f"its coding is number {coding} and not {self.coding!r}")
        reader.check(
            layout in ((DENSE,) if self.coding == "fixed" else (DENSE, SPARSE, NARROW)), f"its layout is {layout}"
        )
        if layout == SPARSE:
            return scale, self._sparse(reader, m, top)
        symbols: Array
        if layout == NARROW:
            symbols = reader.fixed(m, 2, "the levels")
            reader.check(bool(symbols.all()), "a level is coded as 0")
        elif self.coding == "fixed":
            symbols = reader.fixed(m, self._width(m), "the levels") + 1
            reader.check(int(symbols.max()) <= top, f"a level is above {top // 2}")
        else:
            symbols = bits.read(reader, m, self.coding, top, "the levels")
        return scale, _signed(symbols)

    def value(self, drawn: tuple[float, Array], m: int, dtype: Any) -> Array:
        """||v|| l / s."""
        scale, levels = drawn
        return from_levels(levels, scale / self._levels(m), dtype)

    def _sparse(self, reader: Reader, m: int, top: int) -> Array:
        count = reader.number("the number of entries that are not 0", m)
        places = bits.read_increasing(reader, count, m, self.coding, "the places")
        signs = 1 - 2 * reader.bits(count, "the signs").view(np.int8)
        sizes = bits.read(reader, count, self.coding, top // 2, "the levels")
        levels = np.zeros(m, np.int16 if top < 1 << 15 else np.int32)
        levels[places] = signs * sizes
        return levels

    def _shorter(self, places: Array, levels: Array, symbols: Array) -> bool:
        """Whether places, signs and levels have fewer bits than all levels, the number of places included."""
        lengths = bits.increasing_length(places, len(levels), self.coding)
        lengths += len(places) + bits.length(np.abs(levels[places]), self.coding)
        return lengths + 40 < bits.length(symbols, self.coding)

    def _levels(self, m: int) -> float:
        return math.sqrt(m) if self.levels is None else float(self.levels)

    def _top(self, m: int) -> int:
        """The largest symbol: that of the level ceil(s), positive."""
        return 2 * math.ceil(self._levels(m)) + 1

    def _width(self, m: int) -> int:
        return 1 + math.ceil(math.log2(math.ceil(self._levels(m)) + 1))


def _signed(symbols: Array) -> Array:
    half = symbols >> 1
    return np.where(symbols & 1, half, -half)
