"""Bits in and out, without a loop over coordinates: whole bit planes are packed and unpacked at once.

Elias' gamma and omega codes of many numbers >= 1 at once (Elias, 1975): as long as his, with their bits regrouped.

Where each number ends depends on all before it, so that the usual order can only be read one number at a time.  Here
the first bits of all numbers of a block stand together, then the second bits of those that have one, and so on: the
same bits, in an order that whole arrays are read in.

gamma   N = 2^L + rest: a bit "more" for each of the L bits of the rest, that bit, and at last a bit "no more": 2 L + 1
omega   groups: N = 1 is "no more"; a group of N_k bits more makes N_{k+1} = 2^{N_k} + rest, from N_0 = 1
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from isthmus.base.validate import InvalidInput

Array: TypeAlias = NDArray[np.generic]
Bits: TypeAlias = NDArray[np.uint8]
"""Zeros and ones."""
Numbers: TypeAlias = NDArray[np.signedinteger]

BLOCK = 1 << 16
"""Coordinates that are coded together: what fits a core's cache."""


class CodecError(InvalidInput):
    """Bytes that no codec wrote, or that were damaged on the way: the message says what is wrong with them."""


class Writer:
    """Grows a payload: whole bytes first, then bits."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._kept: Bits = np.zeros(0, np.uint8)

    def byte(self, value: int) -> None:
        """One byte."""
        self._bytes.append(value)

    def number(self, value: int) -> None:
        """A number >= 0, seven bits a byte, the low ones first."""
        while value > 127:
            self._bytes.append(value & 127 | 128)
            value >>= 7
        self._bytes.append(value)

    def float32(self, value: float) -> None:
        """Four bytes."""
        self._bytes += struct.pack("<f", value)

    def array(self, values: Array) -> None:
        """A whole array of a little-endian dtype."""
        self._bytes += values.tobytes()

    def bits(self, planes: Iterable[Array]) -> None:
        """Planes of zeros and ones, one after the other; what does not fill a byte waits for the next."""
        row = np.concatenate([self._kept, *(plane.view(np.uint8) for plane in planes)])
        whole = len(row) & ~7
        self._bytes += np.packbits(row[:whole], bitorder="little").tobytes()
        self._kept = row[whole:]

    def fixed(self, values: Array, width: int) -> None:
        """Numbers below 2^width, `width` bits each; they begin where a byte does."""
        for lo in range(0, len(values), BLOCK):
            self._bytes += pack(values[lo : lo + BLOCK], width)
        rest = len(values) * width % 8
        if rest:
            self._kept = np.unpackbits(np.array([self._bytes.pop()], np.uint8), bitorder="little")[:rest]

    def done(self) -> bytes:
        """The payload."""
        self._bytes += np.packbits(self._kept, bitorder="little").tobytes()
        self._kept = self._kept[:0]
        return bytes(self._bytes)


class Reader:
    """Takes a payload apart; whatever is missing, left over or out of range is a `CodecError`."""

    def __init__(self, data: bytes) -> None:
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise CodecError(f"The payload is a {type(data).__name__} and not bytes: give what `encode` returned")
        self._data = np.frombuffer(data, np.uint8)
        self._at = 0  # in bits

    def check(self, ok: bool, wrong: str) -> None:
        """Refuse the payload unless `ok`."""
        if not ok:
            remedy = "give what `encode` of the same codec and version returned"
            raise CodecError(f"The payload of {len(self._data)} bytes cannot be decoded: {wrong}; {remedy}")

    def need(self, bits: int, what: str) -> None:
        """Refuse a payload with fewer bits left, before anything is allocated for them."""
        left = 8 * len(self._data) - self._at
        self.check(bits <= left, f"it ends before {what}: {bits} more bits are needed, and {left} are left")

    def byte(self, what: str) -> int:
        """One byte."""
        return int(self.array(1, "u1", what)[0])

    def number(self, what: str, top: int) -> int:
        """A number of at most `top`, as `Writer.number` wrote it and in no longer way."""
        value = shift = 0
        while True:
            part = self.byte(what)
            value |= (part & 127) << shift
            self.check(value <= top, f"{what} is more than {top}")
            if part < 128:
                self.check(part > 0 or shift == 0, f"{what} is written with more bytes than it needs")
                return value
            shift += 7
            self.check(shift < 64, f"{what} has no end")

    def float32(self, what: str, top: float) -> float:
        """A number between 0 and `top`."""
        value = float(self.array(1, "<f4", what)[0])
        fine = 0 <= value <= top and math.copysign(1.0, value) > 0
        self.check(fine, f"{what} is {value}, and must be between 0 and {top:.4g}")
        return value

    def array(self, count: int, dtype: str, what: str, top: int | None = None) -> NDArray:  # type: ignore[type-arg]
        """`count` numbers of a little-endian dtype, none above `top`."""
        size = count * np.dtype(dtype).itemsize
        self.need(8 * size, what)
        lo = self._at >> 3
        self._at += 8 * size
        values = self._data[lo : lo + size].view(dtype)
        if top is not None:
            self.within(values, top, what)
        return values

    def within(self, values: NDArray[np.integer], top: int, what: str) -> None:
        """Refuse numbers above `top`."""
        self.check(bool((values <= top).all()), f"{what} hold a number of more than {top}")

    def bits(self, count: int, what: str) -> Bits:
        """The next `count` bits."""
        self.need(count, what)
        lo, skip = self._at >> 3, self._at & 7
        self._at += count
        return np.unpackbits(self._data[lo : (self._at + 7) >> 3], bitorder="little")[skip : skip + count]

    def fixed(self, count: int, width: int, what: str, top: int) -> Numbers:
        """`count` numbers of `width` bits each, none above `top`, as integers with a sign that hold one more."""
        self.need(count * width, what)
        if width == 8:
            return self.array(count, "u1", what, top).astype(np.int16)
        values = np.empty(count, np.min_scalar_type(-(2 << width)))
        for lo in range(0, count, BLOCK):
            size, first = min(BLOCK, count - lo), self._at >> 3  # they begin where a byte does
            self._at += size * width
            values[lo : lo + size] = unpack(self._data[first : (self._at + 7) >> 3], size, width)
        self.within(values, top, what)
        return values

    def end(self) -> None:
        """Nothing may be left but zeros that fill the last byte."""
        rest = 8 * len(self._data) - self._at
        self.check(rest < 8, f"{rest // 8} bytes are left over")
        self.check(not self.bits(rest, "the end").any(), "the bits that fill its last byte are not 0")


def pack(values: Array, width: int) -> bytes:
    """The lowest `width` bits of every number, one after the other, little end first.

    >>> pack(np.array([1, 2, 5]), 3).hex(), unpack(np.frombuffer(bytes.fromhex("5101"), np.uint8), 3, 3).tolist()
    ('5101', [1, 2, 5])
    """
    lanes = np.zeros((-(-len(values) // 8), 8), np.uint64)  # eight numbers fill `width` whole bytes
    lanes.reshape(-1)[: len(values)] = values
    lanes = np.ascontiguousarray((lanes & np.uint64((1 << width) - 1)).T)
    out = np.zeros((width, lanes.shape[1]), np.uint8)
    for lane, place, by in _overlaps(width):
        part = lanes[lane] >> np.uint64(by) if by >= 0 else lanes[lane] << np.uint64(-by)
        out[place] |= part.astype(np.uint8)  # the lowest eight bits
    return np.ascontiguousarray(out.T).tobytes()[: (len(values) * width + 7) // 8]


def unpack(data: Bits, count: int, width: int) -> NDArray[np.uint64]:
    """`count` numbers of `width` bits, from the bytes that they take."""
    columns = np.zeros((-(-count // 8), width), np.uint8)
    columns.reshape(-1)[: len(data)] = data
    columns = np.ascontiguousarray(columns.T)
    lanes = np.zeros((8, columns.shape[1]), np.uint64)
    for lane, place, by in _overlaps(width):
        byte = columns[place].astype(np.uint64)
        lanes[lane] |= byte << np.uint64(by) if by >= 0 else byte >> np.uint64(-by)
    return (lanes & np.uint64((1 << width) - 1)).T.reshape(-1)[:count]


def _overlaps(width: int) -> Iterator[tuple[int, int, int]]:
    """Which of eight numbers touches which of their bytes, and how far the number is shifted right for it."""
    for lane in range(8):
        first, shift = divmod(lane * width, 8)
        for place in range(first, (lane * width + width - 1) // 8 + 1):
            yield lane, place, 8 * (place - first) - shift


CODES = ("gamma", "omega")


def write(out: Writer, values: Numbers, code: str) -> None:
    """Append the code of these numbers."""
    planes = {"gamma": _gamma_planes, "omega": _omega_planes}[code]
    for lo in range(0, len(values), BLOCK):
        out.bits(planes(values[lo : lo + BLOCK]))


def read(reader: Reader, count: int, code: str, top: int, what: str) -> Numbers:
    """The next `count` numbers, each between 1 and `top`."""
    reader.need(count, what)
    kind: type[np.signedinteger] = np.int16 if top < 1 << 15 else np.int64
    values = np.ones(count, kind)
    read_block = {"gamma": _read_gamma, "omega": _read_omega}[code]
    for lo in range(0, count, BLOCK):
        read_block(reader, values[lo : lo + BLOCK], top, what)
    return values


def _write_increasing(out: Writer, places: Numbers, m: int, code: str) -> None:
    """Append increasing numbers below m: of each gap the low bits as they are, and the code of the rest.

    k gaps have a mean of m/k; with its logarithm in low bits the rest is short.
    """
    shift, gaps = _shift(len(places), m), np.diff(places, prepend=-1) - 1
    out.fixed(gaps & (1 << shift) - 1, shift)
    write(out, (gaps >> shift) + 1, code)


def _read_increasing(reader: Reader, count: int, m: int, code: str, what: str) -> Numbers:
    """The next `count` numbers that `_write_increasing` wrote, below m."""
    shift = _shift(count, m)
    low = reader.fixed(count, shift, what, (1 << shift) - 1)
    gaps = (read(reader, count, code, (m >> shift) + 1, what).astype(np.int64) - 1 << shift) + low
    places = np.cumsum(gaps + 1) - 1
    reader.check(not count or int(places[-1]) < m, f"{what} go beyond its {m} coordinates")
    return places


def _shift(count: int, m: int) -> int:
    return (m // max(count, 1)).bit_length() - 1


def _log2_floor(values: Numbers) -> NDArray[np.int8]:
    """floor(log2(N)) of numbers in [1, 2^53).

    >>> _log2_floor(np.array([1, 2, 3, 4, 2**40 - 1, 2**40])).tolist()
    [0, 1, 1, 2, 39, 40]
    """
    wide = np.float32 if values.dtype.itemsize <= 2 else np.float64
    exponents: NDArray[np.int8] = np.frexp(values.astype(wide))[1].astype(np.int8) - np.int8(1)
    return exponents


def _gamma_planes(values: Numbers) -> Iterator[Array]:
    logs, at = _log2_floor(values), 0
    while len(values):
        more = logs > at
        yield more
        values, logs = values[more], logs[more]
        yield ((values >> at) & 1).astype(np.uint8)
        at += 1


def _read_gamma(reader: Reader, values: Numbers, top: int, what: str) -> None:
    index = np.flatnonzero(reader.bits(len(values), what).view(bool))
    at, numbers = 0, values[index]
    while len(index):
        reader.check(2 << at <= top, f"{what} hold a number of more than {top}")
        numbers = numbers + ((1 + reader.bits(len(index), what).astype(values.dtype)) << at)
        values[index] = numbers
        more = reader.bits(len(index), what).view(bool)
        index, numbers, at = index[more], numbers[more], at + 1
    reader.within(values, top, what)


def _omega_planes(values: Numbers) -> Iterator[Array]:
    """The groups of a number, from the last inwards, are N, log N, log log N, ...: `chain`, written in reverse."""
    chain = [values.astype(np.int64)]
    while chain[-1].max() > 1:
        chain.append(_log2_floor(chain[-1].clip(1)).astype(np.int64))
    stack = np.stack(chain)
    depth = (stack > 1).sum(axis=0)
    for group in range(1, len(chain) + 1):
        more = depth >= group
        yield more
        stack, depth = stack[:, more], depth[more]
        if not len(depth):
            return
        rest = np.take_along_axis(stack, (depth - group)[None], 0)[0]
        width = _log2_floor(rest)
        for at in range(int(width.max())):
            yield ((rest[width > at] >> at) & 1).astype(np.uint8)


def _read_omega(reader: Reader, values: Numbers, top: int, what: str) -> None:
    index, numbers = np.arange(len(values)), np.ones(len(values), np.int64)
    while True:
        more = reader.bits(len(index), what).view(bool)
        index, width = index[more], numbers[more]
        if not len(index):
            return
        widest = int(width.max())
        reader.check(widest < top.bit_length(), f"{what} hold a number of more than {top}")
        numbers = np.int64(1) << width
        for at in range(widest):
            has = width > at
            numbers[has] += reader.bits(int(has.sum()), what).astype(np.int64) << at
        reader.within(numbers, top, what)
        values[index] = numbers
