"""Keyed permutations of [0, d) that are computed, never stored: exact integers, the same on every device."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import cache, cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.base import randomness, validate

RANGE = 1 << 15
"""Indices hashed at once: the buffers stay in a processor's cache."""
SHORT = 1 << 15
"""Below this prime p, sums of two numbers below p fit in 16 bits: `_bucket_rows`."""
SPAN = 128
"""Entries of the shorter table of `_bucket_rows`: a multiple of 32."""
LIMIT = 1 << 46
"""Beyond this dimension a product a * i of `Buckets` could leave 64 bits."""


class Permutation:
    """A keyed bijection of [0, d), close to a uniformly random one.

    Small ones sort a 64-bit hash of each index; large ones are a Feistel network with cycle walking.

    >>> sorted(Permutation(3, 10)(torch.arange(10)).tolist()) == list(range(10))
    True
    """

    ROUNDS = 6
    SMALL = 1 << 14

    def __init__(self, key: int, d: int):
        self.d, self._key = d, key
        bits = max(2, (d - 1).bit_length())
        self._low_bits = bits // 2
        self._low_mask, self._high_mask = (1 << self._low_bits) - 1, (1 << (bits - self._low_bits)) - 1

    def __call__(self, index: Tensor) -> Tensor:
        """The images of int64 indices in [0, d)."""
        if self.d <= self.SMALL:
            return self._sorted(index.device)[index]
        image = self._network(index)
        outside = (image >= self.d).nonzero().squeeze(1)
        while outside.numel():
            walked = self._network(image[outside])
            image[outside] = walked
            outside = outside[walked >= self.d]
        return image

    def first(self, m: int, device: torch.device | str | None = None) -> Tensor:
        """The images of 0, ..., m - 1, sorted: a random m-subset of [0, d)."""
        return self(torch.arange(m, device=device)).sort().values

    @cached_property
    def _keys(self) -> list[int]:
        return [randomness.key(self._key, "feistel", r) for r in range(self.ROUNDS)]

    def _sorted(self, device: torch.device) -> Tensor:
        index = torch.arange(self.d, dtype=torch.int32, device=device)
        high, low = (randomness.mix(randomness.key(self._key, i), index).to(torch.int64) for i in range(2))
        return torch.argsort((high << 32) | (low & 0xFFFFFFFF), stable=True)

    def _network(self, index: Tensor) -> Tensor:
        low, high = index & self._low_mask, index >> self._low_bits
        for r, key in enumerate(self._keys):
            if r % 2:
                high = high ^ (randomness.mix(key, low).to(torch.int64) & self._high_mask)
            else:
                low = low ^ (randomness.mix(key, high).to(torch.int64) & self._low_mask)
        return (high << self._low_bits) | low


class Buckets:
    """h(j) = pi(j) mod m for the pairwise independent bijection pi(j) = (a j + c) mod p of [0, d).

    p is the first prime >= d; the few pi(j) >= d walk on along their cycle.  As pi is a bijection, bucket b
    has floor((d - b - 1) / m) + 1 members: balanced, with no empty bucket.  A table of a i mod p turns a range
    of pi into additions and comparisons.

    >>> buckets = Buckets(5, 10, 4)
    >>> torch.bincount(buckets.range(0, 10)).tolist()
    [3, 3, 2, 2]
    """

    def __init__(self, key: int, d: int, m: int):
        _check_dimension(d)
        self.d, self.m, self.p = d, m, _next_prime(d)
        self.a, self.c = 1 + randomness.key(key, "a") % (self.p - 1), randomness.key(key, "c") % self.p
        self.walks = self._find_walks()

    @staticmethod
    def sizes(d: int, m: int) -> Tensor:
        """How many j of [0, d) fall in each bucket (int64, m), whatever the key."""
        counts = torch.full((m,), d // m)
        counts[: d % m] += 1
        return counts

    def range(self, lo: int, hi: int, device: torch.device | str | None = None) -> Tensor:
        """h(lo), ..., h(hi - 1) as int64."""
        out = torch.empty(hi - lo, dtype=torch.int64, device=device)
        on_cpu = out.device.type == "cpu"
        step = (1 << 62) // self.p
        if on_cpu:
            step = RANGE
        for start in range(lo, hi, step):
            part, offset = out[start - lo : start - lo + step], (self.a * start + self.c) % self.p
            if on_cpu:  # NumPy divides by a constant several times faster than torch
                image = self._images[: len(part)] + (offset - self.p)
                image += (image < 0) * image.dtype.type(self.p)
                np.subtract(image, image // self.m * self.m, out=part.numpy())
            else:
                torch.remainder((torch.arange(len(part), device=device) * self.a + offset) % self.p, self.m, out=part)
        first, last = (bisect_left(self.walks, (j, 0)) for j in (lo, hi))
        for j, end in self.walks[first:last]:
            out[j - lo] = end
        return out

    @cached_property
    def _images(self) -> NDArray[np.integer]:
        """a i mod p for short i."""
        kind = np.int32 if self.p < 1 << 30 else np.int64
        return (np.arange(min(RANGE, self.d)) * self.a % self.p).astype(kind)

    def _find_walks(self) -> list[tuple[int, int]]:
        """The j with pi(j) >= d and the bucket where each walk ends."""
        inverse, walks = pow(self.a, -1, self.p), []
        for value in range(self.d, self.p):
            j = (value - self.c) * inverse % self.p
            if j < self.d:
                image = value
                while image >= self.d:
                    image = (self.a * image + self.c) % self.p
                walks.append((j, image % self.m))
        return sorted(walks)


def _check_dimension(d: int) -> None:
    """Refuse a dimension that `Buckets` cannot hash."""
    validate.check(d < LIMIT, "d", d, f"give a dimension below {LIMIT}: bucket hashes are exact only there")


def _bucket_rows(buckets: Sequence[Buckets]) -> NDArray[np.uint16]:
    """A row h(0), h(1), ... for each of several `Buckets` of one d and m, p < `SHORT`, all in one go, which costs less.

    Rows are a multiple of `SPAN` long; what is beyond d means nothing.  For j = SPAN i + k, (a j + c) mod p is a sum of
    two entries of short tables or that less p, which in 16 bits is the smaller of the two.

    >>> _bucket_rows([Buckets(5, 10, 4)])[0, :10].tolist() == Buckets(5, 10, 4).range(0, 10).tolist()
    True
    """
    p, m, width = np.uint16(buckets[0].p), np.uint16(buckets[0].m), -(-buckets[0].d // SPAN) * SPAN
    factors = np.array([(bucket.a, bucket.c) for bucket in buckets], np.uint32)
    low = factors[:, :1] * np.arange(SPAN, dtype=np.uint32) % p
    high = (factors[:, :1] * np.arange(0, width, SPAN, dtype=np.uint32) + factors[:, 1:]) % p
    rows = low.astype(np.uint16)[:, None] + high.astype(np.uint16)[:, :, None]
    part = rows - p
    np.minimum(rows, part, out=rows)
    np.floor_divide(rows, m, out=part)
    part *= m
    rows -= part
    rows = rows.reshape(len(buckets), width)
    for row, bucket in zip(rows, buckets, strict=True):
        for j, end in bucket.walks:
            row[j] = end
    return rows


@cache
def _next_prime(d: int) -> int:
    """The first prime >= max(d, 3).

    >>> _next_prime(1), _next_prime(100), _next_prime(10**8)
    (3, 101, 100000007)
    """
    p = max(d, 3) | 1
    while not all(p % k for k in range(3, math.isqrt(p) + 1, 2)):
        p += 2
    return p
