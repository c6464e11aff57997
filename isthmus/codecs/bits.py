"""Bits in and out, without a loop over coordinates: whole bit planes are packed and unpacked at once."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isthmus.base.validate import InvalidInput

Bits = NDArray[np.uint8]
"""Zeros and ones."""


class CodecError(InvalidInput):
    """Bytes that no codec wrote, or that were damaged on the way: the message says what is wrong with them."""


def shortened(value: Any) -> str:
    """A value, short enough for a message."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


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

    def array(self, values: NDArray[Any]) -> None:
        """A whole array of a little-endian dtype."""
        self._bytes += values.tobytes()

    def bits(self, planes: Iterable[NDArray[Any]]) -> None:
        """Planes of zeros and ones, one after the other; what does not fill a byte waits for the next."""
        row = np.concatenate([self._kept, *(plane.view(np.uint8) for plane in planes)])
        whole = len(row) & ~7
        self._bytes += np.packbits(row[:whole], bitorder="little").tobytes()
        self._kept = row[whole:]

    def fixed(self, values: NDArray[Any], width: int) -> None:
        """Numbers below 2^width, `width` bits each."""
        for lo in range(0, len(values) if width else 0, BLOCK):
            part = values[lo : lo + BLOCK]
            parts = part.astype("<u8" if width > 32 else "<u4" if width > 8 else "u1").reshape(-1, 1)
            rows = np.unpackbits(parts.view(np.uint8), axis=1, bitorder="little", count=width)
            self.bits([rows.reshape(-1)])

    def done(self) -> bytes:
        """The payload."""
        self._bytes += np.packbits(self._kept, bitorder="little").tobytes()
        self._kept = self._kept[:0]
        return bytes(self._bytes)


BLOCK = 1 << 16
"""Coordinates that are coded together: what fits a core's cache."""


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

    @property
    def left(self) -> int:
        """The bits that were not read yet."""
        return 8 * len(self._data) - self._at

    def raw(self, count: int, what: str) -> NDArray[np.uint8]:
        """`count` whole bytes."""
        left = self.left // 8
        self.check(count <= left, f"it ends before {what}: {count} more bytes are needed, and {left} are left")
        lo = self._at >> 3
        self._at += 8 * count
        return self._data[lo : lo + count]

    def byte(self, what: str) -> int:
        """One byte."""
        return int(self.raw(1, what)[0])

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
        value = float(struct.unpack("<f", self.raw(4, what).tobytes())[0])
        fine = math.isfinite(value) and 0 <= value <= top and math.copysign(1.0, value) > 0
        self.check(fine, f"{what} is {value}, and must be between 0 and {top:.4g}")
        return value

    def array(self, count: int, dtype: str, what: str) -> NDArray[Any]:
        """`count` numbers of a little-endian dtype."""
        return self.raw(count * np.dtype(dtype).itemsize, what).view(dtype)

    def bits(self, count: int, what: str) -> Bits:
        """The next `count` bits."""
        self.check(count <= self.left, f"it ends before {what}: {count} more bits are needed, and {self.left} are left")
        lo, skip = self._at >> 3, self._at & 7
        self._at += count
        bits: Bits = np.unpackbits(self._data[lo : (self._at + 7) >> 3], bitorder="little")[skip : skip + count]
        return bits

    def fixed(self, count: int, width: int, what: str) -> NDArray[Any]:
        """`count` numbers of `width` bits each, as integers with a sign."""
        self.check(
            count * width <= self.left, f"it ends before {what}: {count} numbers of {width} bits each are needed"
        )
        values = np.zeros(count, np.int16 if width < 16 else np.int32 if width < 32 else np.int64)
        if width == 8 and not self._at & 7:
            return self.array(count, "u1", what).astype(np.int16)
        for lo in range(0, count if width else 0, BLOCK):
            n = min(BLOCK, count - lo)
            rows = np.zeros((n, 64 if width > 32 else 32 if width > 8 else 8), np.uint8)
            rows[:, :width] = self.bits(n * width, what).reshape(n, width)
            packed = np.packbits(rows, axis=1, bitorder="little")
            values[lo : lo + n] = packed.view(f"<u{packed.shape[1]}").reshape(-1)
        return values

    def end(self) -> None:
        """Nothing may be left but zeros that fill the last byte."""
        rest = self.left
        self.check(rest < 8, f"{rest // 8} bytes are left over")
        self.check(rest == 0 or not self.bits(rest, "the end").any(), "the bits that fill its last byte are not 0")
