"""The audit of a whole training run with many canaries in it at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy.special import ndtr, ndtri
from torch import Tensor

from isthmus.audit.neighbours import LinearRecords
from isthmus.base import validate
from isthmus.core.minimize import minimize
from isthmus.core.pipeline import Pipeline
from isthmus.privacy import Gaussian, SecretSource, Source, epsilon_of

Train = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class OneRun:
    """What one run gave away: `correct` of `guesses` about `canaries` records, so epsilon is at least `lower`.

    `gaussian` is the larger bound for a run whose trade-off curve is that of Gaussian noise, as it is of a sum over
    all records; of other runs it refutes that they are as private as such noise, and no epsilon.  None at delta 0.
    """

    canaries: int
    guesses: int
    correct: int
    delta: float
    confidence: float
    lower: float
    gaussian: float | None = None

    def __str__(self) -> str:
        curve = ""
        if self.gaussian is not None:
            curve = f", >= {self.gaussian:.3f} if its curve is Gaussian"
        return (
            f"{self.correct} of {self.guesses} guesses about {self.canaries} canaries were right: epsilon >= "
            f"{self.lower:.3f}{curve} at delta={self.delta:g} (confidence {self.confidence:g})"
        )


def one_run(
    train: Train,
    canaries: Tensor,
    *,
    guesses: int | None = None,
    delta: float = 0.0,
    confidence: float = 0.95,
    noise: Source | None = None,
) -> OneRun:
    """Include each canary with probability 1/2, train ONCE, guess who was in, and bound epsilon from below.

    canaries  one a row: gradients, texts, or plain numbers of records
    train     takes the rows that are in and returns a score for EVERY canary, high for "in"
    guesses   how many canaries are guessed: half of them, the highest, "in", the lowest "out".  Fewer guesses are
              surer ones.  Fix the number before looking at a run.  By default three times the root of the number
              of canaries, which is near the best for epsilons from 1/2 to 8.

    The bound is for adding or removing one record, and holds with the given confidence for every training function
    (`one_run_p_value` has the proof).  It comes closer to the truth the more canaries there are: of the Gaussian sum
    with epsilon 2 at delta = 1e-5 it finds .6 by 1,000 of them, 1.05 by 10^4, 1.35 by 10^5 and 1.55 by 10^6.

    >>> from isthmus.privacy import SeededSource
    >>> canaries = torch.eye(50)
    >>> leak = lambda included: canaries @ included.sum(0)  # releases everything
    >>> print(one_run(leak, canaries, guesses=30, noise=SeededSource(0)))
    30 of 30 guesses about 50 canaries were right: epsilon >= 2.254 at delta=0 (confidence 0.95)
    """
    rows = canaries.ndim > 0 and len(canaries) > 0
    validate.check(rows, "canaries.shape", tuple(canaries.shape), "give a tensor with at least one row")
    m = len(canaries)
    if guesses is None:
        guesses = min(m, math.ceil(3 * math.sqrt(m)))
    validate.positive_int(guesses=guesses)
    validate.at_most(m, "the number of canaries", guesses=guesses)
    member = (noise or SecretSource()).mask(m, 0.5)
    result = train(canaries[member])
    validate.shape((m,), scores=result)
    validate.finite(scores=result)
    order = result.argsort(descending=True)
    high = (guesses + 1) // 2
    low = guesses - high
    correct = int(member[order[:high]].sum()) + int((~member[order[m - low :]]).sum())
    lower, curve = one_run_epsilon(m, guesses, correct, delta, confidence), None
    if delta > 0:
        curve = one_run_epsilon(m, guesses, correct, delta, confidence, gaussian=True)
    return OneRun(m, guesses, correct, delta, confidence, lower, curve)


def orthogonal_canaries(count: int, d: int, size: float = 1.0, seed: int = 0) -> Tensor:
    """`count` orthogonal vectors of length `size` in R^d.

    >>> c = orthogonal_canaries(3, 5, size=2.0)
    >>> torch.allclose(c @ c.T, 4 * torch.eye(3, dtype=c.dtype))
    True
    """
    validate.positive_int(count=count, d=d)
    validate.at_most(d, "the dimension d", count=count)
    validate.positive(size=size)
    normal = torch.randn(d, count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.linalg.qr(normal)[0].T * size


def training(
    pipe: Pipeline,
    canaries: Tensor,
    *,
    steps: int,
    seed: int = 0,
    noise_seed: int | None = None,
) -> Train:
    """A training function for `one_run`: `minimize` with a pipeline, scores `<w_0 - w_T, canary>`.

    Every canary is the gradient of one linear loss, so a canary that is in pulls the iterate along itself.  Canaries
    that are plain numbers 0, ..., d - 1 stand for the unit vectors of R^d: a million of them take no more room than
    a vector.

    >>> from isthmus.core.pipeline import Promise, Release, Stage
    >>> from isthmus.privacy import Clip, FullBatch, Gaussian, SeededSource
    >>> pipe = Pipeline([Stage(FullBatch(), [Release(clip=Clip(1.0), mechanism=Gaussian(50.0))])], lambda t: 0.1,
    ...                 promise=Promise(1.0, 1e-5))
    >>> canaries = orthogonal_canaries(20, 30)
    >>> report = one_run(training(pipe, canaries, steps=3, noise_seed=0), canaries, noise=SeededSource(0))
    >>> report.lower <= 1.0
    True
    """
    validate.positive_int(steps=steps)
    units = not canaries.is_floating_point()
    remedy = "give an m x d matrix, or a list of whole numbers"
    validate.check(canaries.ndim == 2 - units, "canaries.shape", tuple(canaries.shape), remedy)
    if units:
        start = torch.zeros(int(canaries.max()) + 2, dtype=torch.float64)  # the last place is nobody's
        always = canaries.new_tensor([len(start) - 1])
    else:
        start = torch.zeros(canaries.shape[1], dtype=canaries.dtype)
        always = torch.zeros_like(start)[None]

    def train(included: Tensor) -> Tensor:
        objective = LinearRecords(torch.cat([always, included]), len(start))
        result = minimize(
            objective, pipe, steps=steps, seed=seed, x0=start, noise_seed=noise_seed, record=None, progress=False
        )
        moved = start - result.state.w
        if units:
            return moved[canaries]
        return canaries @ moved

    return train


# ---------------------------------------------------------------- what so many right guesses refute


def one_run_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float = 0.0) -> float:
    """The probability, at most, that an (epsilon, delta) run lets `correct` of `guesses` be right.

    `canaries` records were included independently with probability 1/2, and as many of them guessed as was fixed
    beforehand.  The analysis is by trade-off curves (Mahloujifar, Melis and Chaudhuri 2024).  Let N be the number of
    right guesses, m that of canaries, r that of guesses, and let b(x) be the most that a test of ONE record can be
    right with, when it is wrong with x: here delta + e^epsilon x.

      * Given the other coins, "guess j is right, and i - 1 others at least" and "guess j is wrong, and i - 1 others
        are right at least" are one event under the two values of coin j.  So the chance of the first is at most b of
        the chance of the second; b is concave, so the same holds for their means over the m canaries, which are
        E[N; N >= i] / m and E[r - N; N >= i - 1] / m.
      * With the tails T_i = P[N >= i] and S_i = T_i + ... + T_r this reads

            T_(i-1) >= (m b^-1(((i - 1) T_i + S_i) / m) + S_i) / (r - i + 1)        for every i.

        The right side grows with every tail in it, so T_0 is least where T_v = p, tails beyond v are 0, and those
        below are as small as this and T_(i-1) >= T_i allow.  If that T_0 is above 1, P[N >= v] is below p.

    No independence between guesses is assumed: a run may give all canaries away together, and rarely.

    >>> round(one_run_p_value(10, 10, 10, 0.0) * 2**10, 9)
    1.0
    """
    validate.non_negative(epsilon=epsilon, delta=delta)
    curve = _approximate(epsilon, delta)
    return _last(lambda level: _refuted(curve, canaries, guesses, correct, level), 1.0, 0.0)


def one_run_epsilon(
    canaries: int, guesses: int, correct: int, delta: float = 0.0, confidence: float = 0.95, *, gaussian: bool = False
) -> float:
    """The largest epsilon that `correct` right guesses refute, from below, with the given confidence.

    What is refuted is that the run is (epsilon, delta)-differentially private; with `gaussian` it is that the run is
    mu-GDP, for the mu whose epsilon at `delta` this is: no test of one record tells more than N(0, 1) from N(mu, 1).

    >>> round(one_run_epsilon(1000, 1000, 750), 3)
    0.971
    >>> [round(one_run_epsilon(10_000, 300, 235, 1e-5, gaussian=g), 2) for g in (False, True)]
    [1.04, 1.31]
    """
    validate.open_unit(confidence=confidence)
    validate.non_negative(delta=delta)
    if gaussian:
        validate.open_unit(delta=delta)

    def curve(size: float) -> _Curve:
        if gaussian:
            return lambda right: float(ndtr(ndtri(right) - size))
        return _approximate(size, delta)

    size = _last(lambda size: _refuted(curve(size), canaries, guesses, correct, 1 - confidence), 0.0, _MAX_SHOWN)
    if not gaussian or size == 0:
        return size
    return epsilon_of(Gaussian(1 / size).event(), delta)


_MAX_SHOWN = 64.0
"""No run of any length shows a larger epsilon, or mu."""

_Curve = Callable[[float], float]
"""The least chance of being wrong about a record with which a test is right with a given chance: b^-1 above."""


def _approximate(epsilon: float, delta: float) -> _Curve:
    """Of (epsilon, delta)-differential privacy."""
    return lambda right: max(0.0, right - delta) * math.exp(-epsilon)


def _refuted(curve: _Curve, canaries: int, guesses: int, correct: int, level: float) -> bool:
    """Whether `correct` guesses or more are right with a probability below `level`, whatever run has this curve."""
    validate.positive_int(canaries=canaries)
    validate.non_negative_int(guesses=guesses, correct=correct)
    validate.at_most(canaries, "the number of canaries", guesses=guesses)
    validate.at_most(guesses, "the number of guesses", correct=correct)
    tail = tails = level
    for i in range(correct, 0, -1):
        right = (i - 1) * tail + tails
        needed = (canaries * curve(right / canaries) + tails) / (guesses - i + 1)
        if needed <= tail or needed > 1:  # the first: nothing is needed further down either
            return needed > 1
        tail = needed
        tails += tail
    return False


def _last(refuted: Callable[[float], bool], inside: float, outside: float) -> float:
    """The last value that is refuted on the way from `inside`, which counts as refuted, to `outside`."""
    for _ in range(60):
        middle = (inside + outside) / 2
        if refuted(middle):
            inside = middle
        else:
            outside = middle
    return inside
