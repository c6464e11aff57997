"""Vectors of b-bit numbers: packed b bits a number, and added modulo 2^b.

>>> import numpy as np
>>> pack(np.array([1, 2, 5], dtype=np.uint64), 3).hex(), unpack(bytes.fromhex("5101"), 3, 3).tolist()
('5101', [1, 2, 5])
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from isthmus.base import validate

WIDEST = 62
"""The most bits a number: sums are formed in 64-bit words."""
Words = NDArray[np.unsignedinteger]


def word(bits: int) -> np.dtype[np.unsignedinteger]:
    """The smallest little-endian machine word that holds a number of b bits."""
    validate.positive_int(bits=bits)
    validate.at_most(WIDEST, "the widest field", bits=bits)
    return np.dtype("<u2" if bits <= 16 else "<u4" if bits <= 32 else "<u8")


def packed_length(count: int, bits: int) -> int:
    """Bytes that `count` numbers of b bits take."""
    return (count * bits + 7) // 8


def pack(values: Words, bits: int) -> bytes:
    """The lowest b bits of every number, one after the other, little end first."""
    count = len(values)
    lanes = np.zeros((-(-count // 8), 8), np.uint64)  # eight numbers fill b whole bytes
    lanes.reshape(-1)[:count] = values
    lanes &= np.uint64((1 << bits) - 1)
    lanes = np.ascontiguousarray(lanes.T)
    out = np.zeros((bits, lanes.shape[1]), np.uint8)
    for lane, place, by in _overlaps(bits):
        part = lanes[lane] >> np.uint64(by) if by >= 0 else lanes[lane] << np.uint64(-by)
        out[place] |= part.astype(np.uint8)  # the lowest eight bits
    return np.ascontiguousarray(out.T).tobytes()[: packed_length(count, bits)]


def unpack(data: bytes, count: int, bits: int) -> Words:
    """`count` numbers of b bits; their bytes must be exactly as many as these take."""
    length = packed_length(count, bits)
    validate.check(
        len(data) == length, "bytes of a packed vector", len(data), f"send {length} bytes, which {count} numbers take"
    )
    columns = np.zeros((-(-count // 8), bits), np.uint8)
    columns.reshape(-1)[:length] = np.frombuffer(data, np.uint8)
    columns = np.ascontiguousarray(columns.T)
    lanes = np.zeros((8, columns.shape[1]), np.uint64)
    for lane, place, by in _overlaps(bits):
        byte = columns[place].astype(np.uint64)
        lanes[lane] |= byte << np.uint64(by) if by >= 0 else byte >> np.uint64(-by)
    lanes &= np.uint64((1 << bits) - 1)
    numbers: Words = np.ascontiguousarray(lanes.T).reshape(-1)[:count].astype(word(bits))
    return numbers


def _overlaps(bits: int) -> Iterator[tuple[int, int, int]]:
    """Which of eight numbers touches which of their b bytes, and how far the number is shifted right for it."""
    for lane in range(8):
        first, shift = divmod(lane * bits, 8)
        for place in range(first, (lane * bits + bits - 1) // 8 + 1):
            yield lane, place, 8 * (place - first) - shift


def to_field(values: NDArray[np.int64], bits: int) -> Words:
    """Integers modulo 2^b, in words whose upper bits are whatever they are: only the lowest b count."""
    numbers: Words = values.astype(np.uint64).astype(word(bits))
    return numbers


def from_field(words: Words, bits: int) -> NDArray[np.int64]:
    """The integers in [-2^(b-1), 2^(b-1)) that are congruent to the lowest b bits."""
    half = np.int64(1) << np.int64(bits - 1)
    low = (words.astype(np.uint64) & np.uint64((1 << bits) - 1)).astype(np.int64)
    centred: NDArray[np.int64] = (low ^ half) - half
    return centred
