"""What travels: the keys of a run's randomness, and the messages of a round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.codecs import Codec, named
from isthmus.privacy.bounded import Bounded
from isthmus.privacy.noise import Noise


@dataclass(frozen=True)
class Keys:
    """The randomness of a run: a public seed, and a secret source of noise (operating-system entropy)."""

    seed: int = 0
    noise: Noise | None = None

    def __post_init__(self) -> None:
        validate.non_negative_int(seed=self.seed)


@dataclass(frozen=True)
class Message:
    """What a holder of data sends in a round: bounded sums that add up, and their public divisor."""

    values: Mapping[str, Bounded]
    divisor: float
    dims: int = 0
    bytes: int = 0

    def __add__(self, other: Message) -> Message:
        values = {name: value + other.values[name] for name, value in self.values.items()}
        return Message(values, self.divisor + other.divisor, self.dims + other.dims, self.bytes + other.bytes)

    def normalised(self) -> Message:
        """Means instead of sums: every sender counts the same."""
        scale = self.divisor
        values = {k: replace(b, value=b.value / scale, bound=b.bound / scale) for k, b in self.values.items()}
        return replace(self, values=values, divisor=1.0)

    def map(self, total: Callable[[Tensor], Tensor]) -> Message:
        """Every number through `total` (an all-reduce)."""
        counts = total(torch.tensor([self.divisor, self.dims, self.bytes], dtype=torch.float64))
        values = {name: replace(b, value=total(b.precise().value)) for name, b in self.values.items()}
        return Message(values, float(counts[0]), int(counts[1]), int(counts[2]))


@dataclass(frozen=True)
class Wire:
    """What a sender does to its code: a codec, and a memory of what the sketch and the codec lost.

    codec      one of `isthmus.codecs`, or its name
    per_round  clients that are asked in a round, drawn with replacement: a number, or a rule t -> number; None asks all
    """

    codec: Codec | None = None
    feedback: bool = False
    per_round: int | Callable[[int], int] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "codec", named(self.codec))
