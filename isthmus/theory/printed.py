"""Mechanisms as their papers print them: maps of a whole sum, and noise whose words say what it really gives.

Everywhere else a sketch is applied to single records, whose codes are clipped.  Three papers do something to the sum
before the noise.  Here that is an encoder whose codes are the records themselves and whose map changes the sum when a
stage closes (`ChangesSum`); the loop knows nothing of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from isthmus.base.matrix import Stored
from isthmus.core.pipeline import Release
from isthmus.lifts import Lift, Lifted
from isthmus.privacy import Clip, Gaussian, Mechanism
from isthmus.privacy.adjacency import Adjacency
from isthmus.privacy.bounded import Bounded
from isthmus.privacy.library import DpEvent, dpa
from isthmus.privacy.noise import Noise
from isthmus.sketches import Context, Encoder, Sketch
from isthmus.sketches.base import ChangesSum
from isthmus.theory.published import comp_minibatch_sigma, privsgd_sigma

Sum = tuple[Tensor, float, float]
"""A sum, the norm it is bounded in, and that bound."""


@dataclass(frozen=True)
class Printed(Mechanism):
    """A mechanism with the noise that a paper prints; `guarantee` says what it really gives.

    Where that is nothing (`sound=False`) its event is that of a release without noise, so that epsilon is infinite.

    >>> Printed(Gaussian(1.0), "nothing as claimed", sound=False).event()
    NonPrivateDpEvent()
    """

    inner: Mechanism
    guarantee: str = ""
    sound: bool = True

    @property
    def ords(self) -> tuple[float, ...]:  # type: ignore[override]  # a wrapper's are known when it is made
        """Those of the mechanism itself."""
        return tuple(self.inner.ords)

    @property
    def number(self) -> float:
        """That of the mechanism itself."""
        return self.inner.number

    def with_number(self, number: float) -> Printed:
        """The mechanism with another number, in the same words."""
        return replace(self, inner=self.inner.with_number(number))

    def release(self, bounded: Bounded, noise: Noise | None) -> Tensor:
        """The noisy value."""
        return self.inner.release(bounded, noise)

    def event(self, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> DpEvent:
        """What it costs where it is sound."""
        return self.inner.event(adjacency) if self.sound else dpa.NonPrivateDpEvent()

    def describe(self) -> str:
        """The release in words."""
        return self.inner.describe()


@dataclass(frozen=True)
class OfTheSum(Encoder):
    """The sketch of a sum that was changed first: records are clipped as they are, in R^d."""

    encoder: Encoder

    def bind(self, context: Context, state: Any) -> tuple[Sketch, Any]:
        """The map of this round."""
        return _SumMap(context.bind(self.encoder), self), None

    def change(self, value: Tensor, ord: float, bound: float, sketch: Sketch) -> Sum:
        """What the paper makes of the sum in R^d, with the norm and the bound that it then has."""
        raise NotImplementedError


@dataclass(frozen=True)
class OwnLength(OfTheSum):
    """g scaled so that its sketch has the length of g: h(g) = ||g|| Phi g / ||Phi g|| (papers 001 and 000).

    The stated bound is the papers' claim, not a fact.
    """

    @property
    def proven(self) -> bool:
        """It moves by up to twice the longest gradient, whatever the number of records."""
        return False

    def change(self, value: Tensor, ord: float, bound: float, sketch: Sketch) -> Sum:
        """The rescaled sum."""
        coded = float(torch.linalg.vector_norm(sketch.forward(value)))
        length = float(torch.linalg.vector_norm(value))
        return value * (length / coded if coded > 0 else 0.0), ord, bound / sketch.gain(ord)


@dataclass(frozen=True)
class LargestEntries(OfTheSum):
    """Q_kappa of a mean with entries of at most Xi (paper 002): it moves by up to 2 Xi kappa in l1, for every n.

    Half of that movement of replace-one is the bound of one record.
    """

    kappa: int
    entry: float
    n: int

    def settled_ord(self, ord: float) -> float:
        """l1."""
        return 1.0

    def change(self, value: Tensor, ord: float, bound: float, sketch: Sketch) -> Sum:
        """The kappa largest entries of the sum."""
        sparse, top = torch.zeros_like(value), value.abs().topk(self.kappa).indices
        sparse[top] = value[top]
        return sparse, 1.0, self.n * self.entry * self.kappa


class _SumMap(ChangesSum):
    """The map of the sum: records pass as they are, the sum is changed and sketched when it is whole."""

    leafwise = False

    def __init__(self, inner: Sketch, encoder: OfTheSum) -> None:
        self.inner, self.encoder = inner, encoder
        self.space, self.d, self.m = inner.space, inner.d, inner.m

    @cached_property
    def norm(self) -> float:
        """That of the sketch."""
        return self.inner.norm

    def rows(self, x: Stored, lo: int = 0) -> Tensor:
        """Those of the sketch."""
        return self.inner.rows(x, lo)

    def adjoint(self, y: Tensor) -> Tensor:
        """That of the sketch."""
        return self.inner.adjoint(y)

    def encode(self, rows: Any) -> Any:
        """The records themselves."""
        return rows

    def settle(self, value: Tensor, ord: float, bound: float) -> Sum:
        """The sketch of the changed sum; gains are certified for sums in float64."""
        changed, ord, bound = self.encoder.change(value, ord, bound, self.inner)
        return self.inner.forward(changed.to(torch.float64)), ord, bound * self.inner.gain(ord)


@dataclass(frozen=True)
class Inside:
    """A lift by the sketch that `OfTheSum` applies."""

    lift: Lift
    reads_w: ClassVar[bool] = True

    def __call__(self, sketch: Sketch, y: Tensor, w: Tensor, eta: float | Tensor) -> Lifted | None:
        """Lift a code."""
        assert isinstance(sketch, _SumMap)
        return self.lift(sketch.inner, y, w, eta)


def own_length(
    release: Release, lipschitz: float, *, n: int, steps: int, epsilon: float, delta: float, batch: int | None
) -> Release:
    """The release of PRIVSGD, DP-CompGD and DP-CompMiniBatch as printed, for gradients of norm at most L."""
    terms: dict[str, Any] = {"lipschitz": lipschitz, "n": n, "steps": steps, "epsilon": epsilon, "delta": delta}
    claim = privsgd_sigma(**terms) if batch is None else comp_minibatch_sigma(**terms, batch_size=batch)
    words = (
        "none as claimed: the rescaled sketch of a mean moves by up to 2L when one record changes, not by 2L/n; with a "
        f"known sketch the printed noise hides that only for epsilon in the thousands (claimed: {epsilon:g})"
    )
    return replace(
        release,
        encode=OwnLength(release.encode),
        clip=Clip(lipschitz),
        mechanism=Printed(Gaussian(claim.sigma * (batch or n) / lipschitz), words, sound=False),
        lift=Inside(release.lift),
    )
