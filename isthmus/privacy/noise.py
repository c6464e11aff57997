"""The secret source of a run: noise and batch membership, from the operating system's generator.

Every draw starts from the kernel's cryptographic generator and becomes a float64 uniform with 53 bits.
A single inverse-CDF or Box-Muller draw leaves gaps in the floats it can reach, and the pattern of those gaps
can betray the value that was noised (Mironov 2012).  So a normal is `(z1 + z2 + z3 + z4) / 2` of independent
draws and a Laplace draw takes four uniforms (Holohan and Braghin 2021): to invert one, an adversary must
solve for four unknowns of 53 bits at once.  Noise is drawn and added in float64 and rounded last.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor

from isthmus import _validate

Shape = int | Sequence[int]
_CHUNK = 1 << 16
_BUFFER = 1 << 16


class Source:
    """Draws from a stream of random bytes; `SecretSource` and `SeededSource` say where the bytes come from."""

    seeded: bool

    def bytes(self, count: int) -> bytes:
        """The next `count` bytes of the stream."""
        raise NotImplementedError

    def words(self, count: int) -> NDArray[np.uint64]:
        """`count` uniform 64-bit words."""
        return np.frombuffer(self.bytes(8 * count), dtype=np.uint64)

    def uniform(self, shape: Shape, dtype: torch.dtype = torch.float64, device: Any = None) -> Tensor:
        """Uniform on (0, 1): multiples of 2^-53 (2^-54 in place of 0), never 0 or 1."""
        return _tensor(lambda size: self._uniform(size), shape, dtype, device)

    def normal(self, shape: Shape, dtype: torch.dtype = torch.float64, device: Any = None) -> Tensor:
        """Standard normal, each the half sum of four independent ones."""
        return _tensor(lambda size: ndtri(self._uniform(4, size)).sum(axis=0) / 2, shape, dtype, device)

    def laplace(self, shape: Shape, dtype: torch.dtype = torch.float64, device: Any = None) -> Tensor:
        """Standard Laplace (scale 1): `log(u1) cos(pi u2) + log(u3) cos(pi u4)` has its characteristic function."""

        def draw(size: int) -> NDArray[np.float64]:
            u = self._uniform(4, size)
            return np.log(u[0]) * np.cos(np.pi * u[1]) + np.log(u[2]) * np.cos(np.pi * u[3])

        return _tensor(draw, shape, dtype, device)

    def gumbel(self, shape: Shape, dtype: torch.dtype = torch.float64, device: Any = None) -> Tensor:
        """Standard Gumbel, `-log(-log(u))`."""
        return _tensor(lambda size: -np.log(-np.log(self._uniform(size))), shape, dtype, device)

    def mask(self, n: int, q: float, device: Any = None) -> Tensor:
        """Poisson membership: n independent booleans, each true with probability q."""
        _validate.non_negative_int(n=n)
        _validate.probability(q=q)
        return self.uniform(n, device=device) < q

    def integers(self, high: int, size: int) -> Tensor:
        """`size` integers uniform on 0, ..., high - 1, exactly (by rejection)."""
        _validate.positive_int(high=high)
        _validate.non_negative_int(size=size)
        limit = np.uint64((1 << 64) // high * high - 1)
        kept = np.empty(0, np.uint64)
        while len(kept) < size:
            words = self.words(size - len(kept))
            kept = np.concatenate([kept, words[words <= limit]])
        return torch.from_numpy((kept % np.uint64(high)).astype(np.int64))

    def subset(self, n: int, k: int) -> Tensor:
        """k different indices below n, every subset as likely as every other, sorted."""
        _validate.positive_int(n=n, k=k)
        _validate.at_most(n, "the number of records", k=k)
        chosen = np.argpartition(self.words(n), k - 1)[:k]
        return torch.from_numpy(np.sort(chosen.astype(np.int64)))

    def _uniform(self, *shape: int) -> NDArray[np.float64]:
        cells = (self.words(int(np.prod(shape))) >> np.uint64(11)).astype(np.float64)
        np.maximum(cells, 0.5, out=cells)  # 0 has no logarithm
        cells *= 2.0**-53
        return cells.reshape(shape)


class SecretSource(Source):
    """Noise nobody can repeat: bytes of the kernel's cryptographic generator (`os.urandom`).

    There is no seed, a copied or pickled source is a fresh one, and a forked process starts its own buffer:
    no two sources ever share a draw.

    >>> a, b = SecretSource(), SecretSource()
    >>> bool((a.normal(8) == b.normal(8)).any()), a.seeded
    (False, False)
    """

    seeded = False

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held, self._at, self._owner = b"", 0, os.getpid()

    def bytes(self, count: int) -> bytes:
        """Fresh bytes; small requests share one buffered call."""
        if count >= _BUFFER:
            return os.urandom(count)
        with self._lock:
            if self._owner != os.getpid() or self._at + count > len(self._held):
                self._held, self._at, self._owner = os.urandom(_BUFFER), 0, os.getpid()
            self._at += count
            return self._held[self._at - count : self._at]

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return SecretSource, ()


class SeededSource(Source):
    """Repeatable noise, for tests only: whoever knows the seed can take the noise away.  Not private.

    >>> bool((SeededSource(0).normal(8) == SeededSource(0).normal(8)).all()), SeededSource(0).seeded
    (True, True)
    """

    seeded = True

    def __init__(self, seed: int) -> None:
        _validate.non_negative_int(noise_seed=seed)
        self._generator = np.random.Generator(np.random.Philox(seed))

    def bytes(self, count: int) -> bytes:
        """The next bytes of a Philox stream."""
        return self._generator.bytes(count)


def _tensor(draw: Any, shape: Shape, dtype: torch.dtype, device: Any) -> Tensor:
    """A tensor filled by `draw(size)` in chunks that stay in cache."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    out = np.empty(int(np.prod(shape)))
    for lo in range(0, len(out), _CHUNK):
        hi = min(lo + _CHUNK, len(out))
        out[lo:hi] = draw(hi - lo)
    return torch.from_numpy(out).reshape(shape).to(dtype=dtype, device=device)
