"""How a bucket is sent: what a way is, and random sketches as one, drawn from (seed, t, bucket) and never sent."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from isthmus.base import validate
from isthmus.base.randomness import key
from isthmus.base.space import Space
from isthmus.sketches import SRHT, Coordinates, CountSketch, Random, Sketch

EQUAL = (SRHT, CountSketch, Coordinates)
"""Sketches whose maps and lifts are equal to the bit on every rank; those made by a QR depend on thread counts."""
Kept = MutableMapping[str, Tensor]
"""What a way remembers between rounds, by parameter and equal on all ranks."""

Mean = Callable[[Tensor], Tensor]
"""The mean over all ranks of a vector; every rank must ask for it."""


@dataclass(frozen=True)
class Layout:
    """One bucket: its place, and the parameters in it by the number under which the state knows them."""

    index: int
    space: Space

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters, in order."""
        return tuple(leaf.name for leaf in self.space.leaves)


class Linear(Protocol):
    """A map of one bucket in one round, R^d -> R^m, and its pseudo-inverse."""

    m: int

    def forward(self, v: Tensor) -> Tensor: ...
    def pinv(self, y: Tensor) -> Tensor: ...


class Way(Protocol):
    """How a bucket becomes m numbers that add up over ranks, and how their mean comes back."""

    def map(self, layout: Layout, seed: int, t: int, known_bases: Kept, v: Tensor, mean: Mean) -> Linear:
        """The map of a round, the same on all ranks; it may ask for the mean over ranks of something of v."""

    def learn(self, drawn: Linear, code: Tensor, seed: int, t: int, known_bases: Kept) -> None:
        """What later maps take from the mean code of this one."""


@dataclass(frozen=True)
class Drawn:
    """A tight random sketch of a whole bucket, new every round (or every `refresh` rounds).

    With error feedback the lift is the pseudo-inverse: Phi^+ Phi is an orthogonal projector that keeps m/d of a vector
    on average, a contraction.  (The adjoint of a sketch that keeps lengths is d/m times that, and diverges.)  Without
    feedback the lift divides by that share: unbiased, with d/m times the variance.
    """

    encoder: Random
    feedback: bool = True

    def __post_init__(self) -> None:
        remedy = "give WarmRank(rank), or SRHT, CountSketch or Coordinates with a share of a bucket: CountSketch(0.01)"
        validate.check(isinstance(self.encoder, EQUAL), "way", self.encoder, remedy)

    def map(self, layout: Layout, seed: int, t: int, known_bases: Kept, v: Tensor, mean: Mean) -> Linear:
        """The map of (seed, t, bucket)."""
        sketch = self.encoder.draw(layout.space, seed=key(seed, layout.index), t=t)
        validate.check(
            sketch.tight,
            "way",
            self.encoder,
            "make it with scaling='tight': other sketches have no cheap pseudo-inverse",
        )
        return sketch if self.feedback else UnbiasedMap(sketch)

    def learn(self, drawn: Linear, code: Tensor, seed: int, t: int, known_bases: Kept) -> None:
        """Nothing: the next map is drawn too."""


class UnbiasedMap:
    """The same codes, lifted so that the mean over draws is the vector."""

    def __init__(self, sketch: Sketch) -> None:
        self.sketch, self.m = sketch, sketch.m

    def forward(self, v: Tensor) -> Tensor:
        """Phi v."""
        return self.sketch.forward(v)

    def pinv(self, y: Tensor) -> Tensor:
        """Phi^+ y over the share of each coordinate that Phi^+ Phi keeps on average."""
        share = self.sketch.coverage
        return self.sketch.pinv(y) / (share.to(y) if isinstance(share, Tensor) else share)
