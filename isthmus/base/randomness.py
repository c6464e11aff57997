"""Public randomness: everything that any machine may rebuild from `(seed, t, role)`.

Sketches, blocks, initial points and, in runs that are not private, batches come from here.  Nothing is
stored or sent: a key is a hash of what it is for.  Noise and the batch membership of private runs are
secret; they never come from a seed.

>>> key(0, 3, "sketch") == key(0, 3, "sketch"), key(0, 3, "sketch") == key(0, 4, "sketch")
(True, False)
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_MASK32 = 0xFFFFFFFF
_BY15, _BY16, _FIRST, _SECOND = np.array([15, 16, 0x7FEB352D, 0x846CA68B], np.uint32)[:, None]


def key(*parts: object) -> int:
    """A 64-bit key from anything printable: the same on every machine."""
    text = "\x1f".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def generator(*parts: object) -> np.random.Generator:
    """A NumPy generator (Philox, the same stream on every machine) for `key(*parts)`."""
    return np.random.Generator(np.random.Philox(key=key(*parts)))


def signs(hash_key: int, index: Tensor) -> Tensor:
    """+1 or -1 (int32) for each index: one bit of a keyed 32-bit mix, exact on every device.

    >>> signs(7, torch.arange(8)).tolist() == signs(7, torch.arange(4, 8)).tolist()
    False
    >>> signs(7, torch.arange(8))[4:].tolist() == signs(7, torch.arange(4, 8)).tolist()
    True
    """
    bits = mix(hash_key, index >> 5) >> (index & 31).to(torch.int32)
    return 1 - 2 * (bits & 1)


def sign_range(hash_key: int, lo: int, hi: int, device: torch.device | str | None = None) -> Tensor:
    """`signs` of lo, ..., hi - 1, several times faster: one mix serves 32 neighbours.

    >>> torch.equal(sign_range(7, 45, 99), signs(7, torch.arange(45, 99)))
    True
    """
    first = lo >> 5
    if torch.device(device or "cpu").type == "cpu":
        packed = _mix_array(hash_key, np.arange(first, ((hi - 1) >> 5) + 1))
        bits = np.unpackbits(packed.astype("<u4", copy=False).view(np.uint8), bitorder="little").view(np.int8)
        return torch.from_numpy(1 - 2 * bits[lo - 32 * first : hi - 32 * first])
    words = mix(hash_key, torch.arange(first, ((hi - 1) >> 5) + 1, device=device))
    places = torch.arange(31, -1, -1, dtype=torch.int32, device=device)
    top = torch.bitwise_left_shift(words[:, None], places)
    return top.bitwise_right_shift_(31).bitwise_or_(1).view(-1)[lo - 32 * first : hi - 32 * first]


def bit_rows(hash_keys: Sequence[int], words: int) -> NDArray[np.uint8]:
    """A row for each key: 1 where the `sign_range` from 0 to 32 * words is -1, all in one go, which costs less.

    >>> bit_rows([7, 8], 2).tolist() == [(sign_range(key, 0, 64) < 0).int().tolist() for key in (7, 8)]
    True
    """
    halves = np.array(hash_keys, dtype="<u8").view("<u4").reshape(-1, 2, 1).astype(np.uint32, copy=False)
    mixed = _mixed(np.arange(words, dtype=np.uint32) ^ halves[:, 0], halves[:, 1])
    return np.unpackbits(mixed.astype("<u4", copy=False).view(np.uint8), axis=1, bitorder="little")


def mix(hash_key: int, index: Tensor) -> Tensor:
    """A keyed mix of the low and high words of an index to 32 bits (int32 arithmetic wraps on every device)."""
    if index.device.type == "cpu" and index.numel() < 1 << 14:
        return torch.from_numpy(_mix_array(hash_key, index.numpy()).view(np.int32))
    low, high = _signed(hash_key & _MASK32), _signed(hash_key >> 32)
    word = index.to(torch.int32) ^ low
    if index.dtype == torch.int64:
        word = word + (index >> 32).to(torch.int32) * _signed(0x9E3779B1)
    word = (word ^ _shift(word, 16)) * _signed(0x7FEB352D)
    word = (word ^ _shift(word, 15)) * _signed(0x846CA68B)
    word = (word ^ _shift(word, 16)) + high
    word = (word ^ _shift(word, 16)) * _signed(0x7FEB352D)
    return word ^ _shift(word, 15)


def _mix_array(hash_key: int, array: NDArray[np.integer]) -> NDArray[np.uint32]:
    """`mix` in NumPy, whose calls cost less than torch's on short arrays."""
    word = array.astype(np.uint32) ^ np.uint32(hash_key & _MASK32)
    if array.dtype == np.int64:
        word += (array >> 32).astype(np.uint32) * np.uint32(0x9E3779B1)
    return _mixed(word, np.uint32(hash_key >> 32))


def _mixed(word: NDArray[np.uint32], high: np.uint32 | NDArray[np.uint32]) -> NDArray[np.uint32]:
    """What `mix` does after the low word of the key, in place."""
    part = np.empty_like(word)
    for by, factor in ((_BY16, _FIRST), (_BY15, _SECOND)):
        word ^= np.right_shift(word, by, out=part)
        word *= factor
    word ^= np.right_shift(word, _BY16, out=part)
    word += high
    word ^= np.right_shift(word, _BY16, out=part)
    word *= _FIRST
    word ^= np.right_shift(word, _BY15, out=part)
    return word


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word


def _shift(word: Tensor, by: int) -> Tensor:
    """A logical right shift of int32 (torch shifts arithmetically)."""
    return (word >> by) & ((1 << (32 - by)) - 1)
