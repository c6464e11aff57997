"""Samplers: which records a round looks at, and the public constant its sum is divided by.

The divisor is never the size of the drawn batch.  The samplers here draw from public randomness and are
for runs that are not private.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.randomness import generator, key
from isthmus.privacy.event_json import DpEvent
from isthmus.privacy.sampling import FullBatch, Keyring, Sampler

__all__ = ["Full", "Sampler", "Shuffle", "Uniform", "WithoutReplacement"]


Full = FullBatch
"""Every record, every round: the one sampler that private and other runs share."""


@dataclass(frozen=True)
class _Batches:
    batch_size: int | Callable[[int], int]

    def __post_init__(self) -> None:
        if not callable(self.batch_size):
            validate.positive_int(batch_size=self.batch_size)

    def size(self, t: int) -> int:
        """The batch size of round t."""
        if not callable(self.batch_size):
            return self.batch_size
        size = self.batch_size(t)
        validate.positive_int(batch_size=size)
        return size

    def divisor(self, n: int, t: int = 0) -> float:
        """The batch size."""
        return float(self.size(t))

    def rounds(self, n: int) -> int:
        """ceil(n / first batch size)."""
        return -(-n // self.size(0))

    def event(self, event: DpEvent) -> NoReturn:
        """Refused: batches from a public seed hide nobody, and may hold a record more than once."""
        validate.refuse(
            "sampler", type(self).__name__, "use Poisson, FixedSize or Full: a private stage draws with these"
        )

    def describe(self) -> str:
        """Words for a privacy statement."""
        return "batches from a public seed"


@dataclass(frozen=True)
class Uniform(_Batches):
    """`batch_size` records drawn independently and uniformly: an unbiased gradient oracle."""

    def draw(self, n: int, t: int, keys: Keyring, client: str) -> Tensor:
        """Indices, with repetition."""
        return torch.from_numpy(generator(keys.seed, t, "uniform", client).integers(0, n, self.size(t)))


@dataclass(frozen=True)
class WithoutReplacement(_Batches):
    """A fresh subset of `batch_size` different records each round."""

    def draw(self, n: int, t: int, keys: Keyring, client: str) -> Tensor:
        """Indices, all different."""
        size = self.size(t)
        validate.at_most(n, "the number of records", batch_size=size)
        draws = generator(keys.seed, t, "subset", client).choice(n, size, replace=False, shuffle=False)
        return torch.from_numpy(draws)


@dataclass(frozen=True)
class Shuffle(_Batches):
    """Batches of one size from a new permutation of the records every pass; a batch may reach into the next pass.

    >>> from isthmus.core.wire import Keys
    >>> two = [Shuffle(3).draw(4, t, Keys(0), "0") for t in range(4)]
    >>> sorted(torch.cat(two)[:4].tolist())
    [0, 1, 2, 3]
    """

    def draw(self, n: int, t: int, keys: Keyring, client: str) -> Tensor:
        """The next `batch_size` entries of the endless stream of permutations."""
        start, pieces = t * self.size(0), []
        stop = start + self.size(0)
        while start < stop:
            turn, offset = divmod(start, n)
            take = min(n - offset, stop - start)
            pieces.append(_permutation(key(keys.seed, turn, "shuffle", client), n)[offset : offset + take])
            start += take
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


@lru_cache(maxsize=8)
def _permutation(seed: int, n: int) -> Tensor:
    return torch.from_numpy(generator(seed).permutation(n))
