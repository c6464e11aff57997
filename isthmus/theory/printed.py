"""Private algorithms as their papers print them: the noise, beside the noise that is needed, and what changes a sum.

A function such as `privsgd_sigma` returns a `Published`: the standard deviation (or scale) as printed, the tight one
for the same claim, the epsilon that the printed noise really gives where every record's code is clipped AFTER the
sketch, and the reasons.  As printed, without that clip, the first two bound no sensitivity at all.

Everywhere else a sketch is applied to single records, whose codes are clipped.  Three papers do something to the sum
before the noise.  Here that is an encoder whose codes are the records themselves and whose map changes the sum when a
stage closes (`Sketch.settle`); the loop knows nothing of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.matrix import Stored
from isthmus.core.pipeline import Release
from isthmus.lifts import Lift, Lifted
from isthmus.privacy import Adjacency, Clip, Gaussian, Mechanism, calibrate, epsilon_of, noise_multiplier
from isthmus.privacy.clips import ClippedSum
from isthmus.privacy.event_json import DpEvent, dpa
from isthmus.privacy.noise import Source
from isthmus.sketches import Context, Encoder, Sketch
from isthmus.theory.schedules import check_arguments

_REPLACE = Adjacency.REPLACE_ONE
CODES = "replace-one, if each record's code is clipped to L after the sketch"


@dataclass(frozen=True)
class Published:
    """A printed noise level: `sigma` on the mean, the `tight` one, and the `epsilon` that `sigma` really gives."""

    sigma: float
    tight: float
    epsilon: float
    guarantee: str


def privsgd_sigma(*, lipschitz: float, n: int, steps: int, epsilon: float, delta: float) -> Published:
    """PRIVSGD and DP-CompGD: `sigma^2 = 32 L^2 T ln(1/delta) / (n^2 epsilon^2)` on the mean of n codes.

    With each record's code clipped to L it is (epsilon, delta) for replace-one whenever epsilon <= 8 ln(1/delta),
    with room to spare; with the papers' rescaling of the mean instead of the clip, the sensitivity can be n times
    the stated one.

    >>> round(privsgd_sigma(lipschitz=1.0, n=1000, steps=10, epsilon=1.0, delta=1e-5).epsilon, 5)
    0.35628
    """
    return _full_batch(32, CODES + "; false for a rescaled mean", **locals())


def skgd_sigma(*, lipschitz: float, n: int, steps: int, epsilon: float, delta: float) -> Published:
    """DP-SkGD: `sigma_U^2 = 12 L_U^2 K T ln(1/delta) / (n^2 epsilon^2)`; `steps` is K T, `lipschitz` the block's L_U.

    Sound as printed where L_U truly bounds the block of every record (clip to it), for any law of the blocks that
    does not look at the data.

    >>> round(skgd_sigma(lipschitz=1.0, n=1000, steps=1000, epsilon=1.0, delta=1e-5).epsilon, 4)
    0.6081
    """
    return _full_batch(12, "replace-one, if each record's block is clipped to the public L_U", **locals())


def comp_minibatch_sigma(
    *, lipschitz: float, n: int, batch_size: int, steps: int, epsilon: float, delta: float
) -> Published:
    """DP-CompMiniBatch: `sigma^2 = 16 L^2 T ln(1/delta) ln(2.5 T b / (delta n)) / (n^2 epsilon^2)` on the batch mean.

    Its amplification needs `epsilon_0 = (n/b) epsilon / sqrt(2 T ln(1/delta)) <= 1`, which the paper leaves out;
    beyond it the claim is false and the formula is refused.

    >>> round(comp_minibatch_sigma(lipschitz=1.0, n=10000, batch_size=250, steps=1200, epsilon=1.0,
    ...     delta=1e-5).sigma * 250, 3)
    46.766
    """
    check_arguments(locals(), batch_size=validate.positive_int)
    validate.at_most(n, "the number of records", batch_size=batch_size)
    single = n / batch_size * epsilon / math.sqrt(2 * steps * math.log(1 / delta))
    false = f"one step would have epsilon_0={single:.3g} > 1, where the printed amplification is false"
    remedy = f"take more steps, larger batches, or isthmus.privacy.noise_multiplier: {false}"
    validate.check(single <= 1, "epsilon", epsilon, remedy)
    log = math.log(2.5 * steps * batch_size / (delta * n))
    sigma = lipschitz * math.sqrt(16 * steps * math.log(1 / delta) * log) / (n * epsilon)

    def rounds(z: float) -> object:
        step = dpa.SampledWithoutReplacementDpEvent(n, batch_size, dpa.GaussianDpEvent(z))
        return dpa.SelfComposedDpEvent(step, steps)

    unit = lipschitz / batch_size
    z = sigma / unit
    real = epsilon_of(rounds(z), delta, _REPLACE)
    tight = calibrate(rounds, epsilon, delta, _REPLACE, guess=z / 2) * unit
    return Published(sigma, tight, real, CODES.replace(",", ", batches without replacement,"))


def farokhi_scale(*, codes: int, steps: int, epsilon: float, delta: float) -> Published:
    """Compressive Laplace: scale `sqrt(p) / epsilon` a STEP on the normalised code of p numbers; all steps count.

    The printed epsilon is spent in every one of T steps: `T epsilon` in all, or `epsilon` at `delta` by the tight
    accountant.  `tight` is the scale for a TOTAL of epsilon at delta.  The scale covers the sensitivity where every
    column of the sketch has l1 norm at most sqrt(p): surely for signs / sqrt(p), not for Gaussian columns.

    >>> published = farokhi_scale(codes=20, steps=1000, epsilon=1.0, delta=1e-5)
    >>> round(published.sigma, 4), round(published.epsilon)
    (4.4721, 474)
    """
    check_arguments(locals(), codes=validate.positive_int)
    root = math.sqrt(codes)
    total = epsilon_of(dpa.SelfComposedDpEvent(dpa.LaplaceDpEvent(1 / epsilon), steps), delta)
    tight = root * noise_multiplier(epsilon=epsilon, delta=delta, steps=steps, mechanism="laplace")
    surely = "if every column of the sketch has l1 norm <= sqrt(p)"
    words = f"{epsilon:g} a step, {steps * epsilon:g} in all (pure), {surely}"
    return Published(root / epsilon, tight, total, words)


def _full_batch(
    factor: int, words: str, *, lipschitz: float, n: int, steps: int, epsilon: float, delta: float
) -> Published:
    check_arguments(locals())
    unit = lipschitz / n
    sigma = unit * math.sqrt(factor * steps * math.log(1 / delta)) / epsilon
    real = epsilon_of(dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(sigma / unit), steps), delta, _REPLACE)
    tight = unit * noise_multiplier(epsilon=epsilon, delta=delta, steps=steps, adjacency=_REPLACE)
    return Published(sigma, tight, real, words)


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

    def release(self, bounded: ClippedSum, noise: Source | None) -> Tensor:
        """The noisy value."""
        return self.inner.release(bounded, noise)

    def event(self, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> DpEvent:
        """What it costs where it is sound."""
        if not self.sound:
            return dpa.NonPrivateDpEvent()
        return self.inner.event(adjacency)

    def describe(self) -> str:
        """The release in words."""
        return self.inner.describe()


@dataclass(frozen=True)
class OfTheSum(Encoder):
    """The sketch of a sum that was changed first: records are clipped as they are, in R^d."""

    encoder: Encoder

    def bind(self, context: Context, state: object) -> tuple[Sketch, None]:
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
    def proven(self) -> bool:  # type: ignore[override]
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


class _SumMap(Sketch):
    """The map of the sum: records pass as they are, the sum is changed and sketched when it is whole."""

    leafwise, settles = False, True

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
    claimed = privsgd_sigma
    if batch:
        claimed = partial(comp_minibatch_sigma, batch_size=batch)
    claim = claimed(lipschitz=lipschitz, n=n, steps=steps, epsilon=epsilon, delta=delta)
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
