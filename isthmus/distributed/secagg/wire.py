"""Vectors of b-bit numbers: packed b bits a number, and added modulo 2^b.

>>> from isthmus.codecs.bits import pack
>>> pack(np.array([1, 2, 5], dtype=np.uint64), 3).hex(), unpack(bytes.fromhex("5101"), 3, 3).tolist()
('5101', [1, 2, 5])

The bytes of a round: a fixed header, then numbers of fixed length; no pickle, and every length is checked.

| byte | what |
|---|---|
| 0-3 | "ISA1": the format and its version |
| 4 | the kind of the message |
| 5-20 | the session, drawn by the server for one round |
| 21- | the body; integers are little-endian |

A message of another version, kind, session or length raises `BadMessage`, before anything of it is used.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from isthmus.base import validate
from isthmus.codecs.bits import unpack as unpacked

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


def unpack(data: bytes, count: int, bits: int) -> Words:
    """`count` numbers of b bits; their bytes must be exactly as many as these take."""
    length = packed_length(count, bits)
    validate.check(len(data) == length, "bytes of a packed vector", len(data), f"send {length} bytes")
    return unpacked(np.frombuffer(data, np.uint8), count, bits).astype(word(bits))


def to_field(values: NDArray[np.int64], bits: int) -> Words:
    """Integers modulo 2^b, in words whose upper bits are whatever they are: only the lowest b count."""
    return values.astype(np.uint64).astype(word(bits))


def from_field(words: Words, bits: int) -> NDArray[np.int64]:
    """The integers in [-2^(b-1), 2^(b-1)) that are congruent to the lowest b bits."""
    half = np.int64(1) << np.int64(bits - 1)
    low = (words.astype(np.uint64) & np.uint64((1 << bits) - 1)).astype(np.int64)
    return (low ^ half) - half


MAGIC = b"ISA1"

SESSION = 16

HEADER = len(MAGIC) + 1 + SESSION


class Kind(IntEnum):
    """What a message is; even ones go to the server."""

    INVITATION = 1
    KEYS = 2
    ROSTER = 3
    SHARES = 4
    INBOX = 5
    VECTOR = 6
    SURVIVORS = 7
    REVEAL = 8


class BadMessage(ValueError):
    """Bytes that are no message of this round: who sent them is treated as lost."""


def ensure(condition: bool, why: str) -> None:
    """Refuse a message."""
    if not condition:
        raise BadMessage(why)


def write(kind: Kind, session: bytes, *parts: bytes) -> bytes:
    """A message."""
    return b"".join((MAGIC, bytes([kind]), session, *parts))


def read(data: bytes, kind: Kind, session: bytes | None = None, length: int | None = None) -> tuple[bytes, bytes]:
    """Session and body of a message of this kind, session and length of body."""
    begins = len(data) >= HEADER and data[: len(MAGIC)] == MAGIC
    ensure(begins, f"These {len(data)} bytes begin with {data[:4]!r}: they are no message of this version")
    ensure(data[len(MAGIC)] == kind, f"A message of kind {data[len(MAGIC)]} came where {kind.name} was expected")
    own, body = data[HEADER - SESSION : HEADER], data[HEADER:]
    ensure(session in (None, own), f"The message {kind.name} belongs to another round")
    ensure(length in (None, len(body)), f"The message {kind.name} has {len(body)} bytes after its header, not {length}")
    return own, body


def number(value: int) -> bytes:
    """An index or a count."""
    return struct.pack("<I", value)


def take_number(body: bytes, below: int, what: str) -> tuple[int, bytes]:
    """A number below a limit from the front of a body, and the rest."""
    ensure(len(body) >= 4, f"The message ends before its {what}")
    value: int = struct.unpack("<I", body[:4])[0]
    ensure(value < below, f"The {what} is {value}, and must be below {below}")
    return value, body[4:]


def records(body: bytes, size: int, clients: int, what: str) -> dict[int, bytes]:
    """A count and that many records of one size, each under the index of a client, in increasing order."""
    count, body = take_number(body, clients + 1, f"count of {what}")
    ensure(len(body) == count * (4 + size), f"The message announces {count} {what}, and has {len(body)} bytes of them")
    by_client = dict(struct.iter_unpack(f"<I{size}s", body))
    ordered = len(by_client) == count and list(by_client) == sorted(by_client) and max(by_client, default=0) < clients
    ensure(ordered, f"The {what} are not those of {clients} clients in increasing order, each once")
    return by_client


def write_records(by_client: dict[int, bytes]) -> bytes:
    """What `records` reads."""
    return number(len(by_client)) + b"".join(number(index) + by_client[index] for index in sorted(by_client))


def write_set(members: Sequence[int], clients: int) -> bytes:
    """Clients as one bit each."""
    bits = np.zeros(clients, np.uint8)
    bits[list(members)] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def read_set(body: bytes, clients: int) -> list[int]:
    """What `write_set` wrote; bits beyond the last client are refused."""
    members = np.flatnonzero(np.unpackbits(np.frombuffer(body, np.uint8), bitorder="little")).tolist()
    fits = len(body) == (clients + 7) // 8 and max(members, default=0) < clients
    ensure(fits, f"The message lists clients in {len(body)} bytes, which do not fit {clients} clients")
    return members
