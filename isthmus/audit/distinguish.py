"""The distinguishing test: can what a round releases tell two neighbours apart better than was promised?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv, ndtri
from torch import Tensor

from isthmus.audit.neighbours import Movement, Pair, Probe, Values, _inner, _law, movement
from isthmus.base import validate
from isthmus.core.pipeline import Pipeline, Release, Stage
from isthmus.privacy import FixedSize, Gaussian, Laplace, NoisyMax, SecretSource, Source, TopK, epsilon_of, sampling
from isthmus.privacy.clips import ClippedSum

_BATCH = 1 << 21
"""Numbers drawn at once."""
_THRESHOLDS = 64
"""Thresholds tried on the first half: many more would only fit its luck."""
_RAREST = 500
"""The fewest draws of the first half that a threshold should rest on: rarer events look good by luck."""

_Array = NDArray[np.float64]
_Measure = Callable[[ArrayLike, ArrayLike, int], _Array]


@dataclass(frozen=True)
class AuditReport:
    """What an attack found: epsilon is at least `lower` at `delta`, with `confidence`, against `claimed`.

    `gaussian`, for Gaussian noise on the full batch, is the sharper bound that takes the noise to be Gaussian and
    estimates only its scale (it decides nothing here); `ratio` is the pair's movement against the stated bound.

    >>> report = AuditReport("kernel", 1.0, 1e-5, 1.5, 0.999, 100_000, 1.0)
    >>> report.verdict
    'violation'
    >>> print(report)
    kernel: epsilon >= 1.500 at delta=1e-05 (confidence 0.999, 100000 draws), claimed 1, ratio 1.000: violation
    """

    pair: str
    claimed: float
    delta: float
    lower: float
    confidence: float
    draws: int
    ratio: float
    gaussian: float | None = None

    @property
    def verdict(self) -> str:
        """ "violation" where the lower bound exceeds the claim, else "consistent"."""
        if self.lower > self.claimed:
            return "violation"
        return "consistent"

    def __str__(self) -> str:
        return (
            f"{self.pair}: epsilon >= {self.lower:.3f} at delta={self.delta:g} (confidence {self.confidence:g}, "
            f"{self.draws} draws), claimed {self.claimed:g}, ratio {self.ratio:.3f}: {self.verdict}"
        )

    def row(self) -> dict[str, object]:
        """One line of a table."""
        curve: object = self.gaussian
        if curve is None:
            curve = ""
        row = {"pair": self.pair, "ratio": self.ratio, "claimed": self.claimed, "lower": self.lower}
        return row | {"gaussian curve": curve, "draws": self.draws, "verdict": self.verdict}


def attack(
    pipe: Pipeline, pair: Pair | Movement, draws: int = 100_000, confidence: float = 0.999, noise: Source | None = None
) -> AuditReport:
    """Draw one round's released codes `draws` times for each of two neighbours and try to tell them apart.

    The values are computed once by the pipeline's own code; noise comes from its own mechanisms, and the record that
    differs is in the sample with the sampler's probability, anew in every draw.  The score is the log-likelihood
    ratio; a threshold and a side are chosen on the first half of the draws and judged on the second by
    Clopper-Pearson bounds.  Later stages are attacked given one fixed public transcript.

    The other records' membership is held fixed, which every sampler's guarantee allows: it holds whoever else is in.

    >>> from isthmus.audit import worst_pair
    >>> from isthmus.core.pipeline import Promise
    >>> from isthmus.privacy import Clip, FullBatch, SeededSource, noise_multiplier
    >>> z = noise_multiplier(epsilon=1.0, delta=1e-5)
    >>> pipe = Pipeline([Stage(FullBatch(), [Release(clip=Clip(1.0), mechanism=Gaussian(z))])], lambda t: 0.1,
    ...                 promise=Promise(1.0, 1e-5))
    >>> attack(pipe, worst_pair(pipe, d=3, n=5), draws=2000, noise=SeededSource(0)).verdict
    'consistent'
    """
    if isinstance(pair, Movement):
        pair = pair.pair
    validate.positive_int(draws=draws)
    validate.check(draws >= 100, "draws", draws, "give at least 100: half of them choose a threshold")
    validate.open_unit(confidence=confidence)
    moved = movement(pipe, pair)
    promise = pipe.promise
    assert promise is not None  # a private pipeline has one
    left, right = scores(pipe, pair, draws, noise)
    half, sure = draws // 2, (1 + confidence) / 2

    def lower(hits: ArrayLike, alarms: ArrayLike, trials: int) -> _Array:
        return epsilon_from_counts(hits, alarms, trials, promise.delta, confidence)

    def separation(hits: ArrayLike, alarms: ArrayLike, trials: int) -> _Array:
        low, high = clopper_pearson(hits, trials, sure)[0], clopper_pearson(alarms, trials, sure)[1]
        return ndtri(low) - ndtri(high)

    curve, stages = None, [stage for stage in pipe.stages if stage.private and pair.t % stage.every == 0]
    mechanisms = [_inner(release.mechanism) for stage in stages for release in stage.releases]
    full = all(sampling.rate_of(stage.sampler) == 1 for stage in stages)
    if full and all(isinstance(mechanism, Gaussian) for mechanism in mechanisms):
        middle, curve = np.median(np.concatenate([left[:half], right[:half]])), 0.0
        mu = _judged(separation, left[half:], right[half:], 1.0, middle)
        if mu > 0:
            curve = epsilon_of(Gaussian(1 / mu).event(), promise.delta)
    best = _judged(lower, left[half:], right[half:], *_chosen(lower, left[:half], right[:half]))
    return AuditReport(pair.name, promise.epsilon, promise.delta, best, confidence, draws, moved.ratio, curve)


def scores(pipe: Pipeline, pair: Pair, draws: int, noise: Source | None = None) -> tuple[_Array, _Array]:
    """Log-likelihood ratios of what a round releases: `draws` of them under each dataset of a pair."""
    noise = noise or SecretSource()
    probe = Probe(pipe, pair.space or pair.d, seed=pair.seed, t=pair.t)
    games = [_Game(probe, stage, pair) for stage in probe.stages]
    both = [sum((game.scores(side, draws, noise) for game in games), torch.zeros(draws)) for side in (0, 1)]
    left, right = (side.double().round(decimals=9).numpy() for side in both)  # equal outcomes have equal scores
    return left, right


def _chosen(measure: _Measure, left: _Array, right: _Array) -> tuple[float, float]:
    """The side and threshold with the largest `measure(hits, alarms, trials)`."""
    count, best, choice = len(left), -np.inf, (1.0, 0.0)
    rarest = min(0.1, _RAREST / count)
    tails = np.concatenate([np.linspace(rarest, 1, _THRESHOLDS // 2), np.geomspace(rarest, 1, _THRESHOLDS // 2)])
    for sign, hit, alarm in ((1.0, np.sort(left), np.sort(right)), (-1.0, np.sort(-right), np.sort(-left))):
        at = np.unique(np.quantile(np.concatenate([hit, alarm]), 1 - tails, method="higher"))
        values = measure(count - np.searchsorted(hit, at), count - np.searchsorted(alarm, at), count)
        if values.max() > best:
            best, choice = values.max(), (sign, float(at[values.argmax()]))
    return choice


def _judged(measure: _Measure, left: _Array, right: _Array, sign: float, threshold: float) -> float:
    """`measure(hits, alarms, trials)` at one side and threshold."""
    if sign < 0:  # the other dataset is looked for
        left, right = -right, -left
    return float(measure((left >= threshold).sum(), (right >= threshold).sum(), len(left)))


# ---------------------------------------------------------------- one stage


class _Game:
    """One stage against one pair: what it releases when the record that differs is in the sample, and when not."""

    def __init__(self, probe: Probe, stage: Stage, pair: Pair) -> None:
        self.rate = sampling.rate_of(stage.sampler)
        self.releases = {slot: release for release, slot in stage.slots}
        # the records of a sample with, and of one without, the record that differs (which comes last)
        members, absent = None, torch.arange(pair.n - 1)
        if isinstance(stage.sampler, FixedSize) and stage.sampler.batch_size < pair.n:
            absent = torch.arange(stage.sampler.batch_size)
            members = torch.cat([absent[:-1], torch.tensor([pair.n - 1])])
        self.cases: list[tuple[Values, Values]] = []
        for left in (True, False):
            records = pair.records(left)
            inside = outside = probe.values(stage, records, absent)
            if left or pair.right is not None:
                inside = probe.values(stage, records, members)
            self.cases.append((inside, outside))
        cases = [values for both in self.cases for values in both]
        for slot, release in self.releases.items():
            if _adds_noise(release):  # that of coordinates which are equal in all cases says nothing: it is not drawn
                flat = torch.stack([case[slot].value.double().reshape(-1) for case in cases])
                differs = (flat != flat[0]).any(0)
                differs[0] |= ~differs.any()
                for case, value in zip(cases, flat, strict=True):
                    case[slot] = ClippedSum(value[differs], case[slot].ord, case[slot].bound)

    def scores(self, side: int, draws: int, noise: Source) -> Tensor:
        """The log-likelihood ratio (left over right) of `draws` releases under one of the datasets."""
        width = max(values.value.numel() for values in self.cases[0][0].values())
        most = _BATCH // width + 1
        return torch.cat([self._batch(side, min(most, draws - lo), noise) for lo in range(0, draws, most)])

    def _batch(self, side: int, size: int, noise: Source) -> Tensor:
        member = torch.ones(size, dtype=torch.bool)
        if self.rate < 1:
            member = noise.mask(size, self.rate)
        inside, outside = self.cases[side]
        drawn = {
            slot: _draw(release, inside[slot], outside[slot], member, noise) for slot, release in self.releases.items()
        }
        return self._log_likelihood(drawn, *self.cases[0]) - self._log_likelihood(drawn, *self.cases[1])

    def _log_likelihood(self, drawn: dict[str, Tensor], inside: Values, outside: Values) -> Tensor:
        """log(q p_in + (1 - q) p_out) of each draw."""
        within, without = (
            torch.stack([_log_likelihood(release, case[slot], drawn[slot]) for slot, release in self.releases.items()])
            for case in (inside, outside)
        )
        if self.rate == 1:
            return within.sum(0)
        return torch.logaddexp(within.sum(0) + np.log(self.rate), without.sum(0) + np.log1p(-self.rate))


def _adds_noise(release: Release) -> bool:
    """Whether the noise is independent in every coordinate, so that many draws are one call."""
    return isinstance(_inner(release.mechanism), Gaussian | Laplace)


def _draw(release: Release, inside: ClippedSum, outside: ClippedSum, member: Tensor, noise: Source) -> Tensor:
    """One release a row, from the mechanism itself."""
    if _adds_noise(release) and inside.bound == outside.bound:
        stacked = torch.where(member[:, None], inside.value.double(), outside.value.double())
        return release.mechanism.release(ClippedSum(stacked, inside.ord, inside.bound), noise)
    cases = (outside, inside)
    return torch.stack([release.mechanism.release(cases[chosen], noise).reshape(-1) for chosen in member.tolist()])


def _log_likelihood(release: Release, case: ClippedSum, drawn: Tensor) -> Tensor:
    """The stated log-likelihood of each row, up to a constant; as a statistic it is valid whatever the noise is."""
    mechanism = _inner(release.mechanism)
    if isinstance(mechanism, NoisyMax):
        chosen = drawn == 1
        if mechanism.signed:
            chosen = torch.cat([chosen, drawn == -1], 1)
        return (chosen * _law(mechanism, case).clamp(min=-1e6)).sum(1)
    if isinstance(mechanism, TopK):  # the first-order part of the ratio: how much the chosen places gained
        return drawn.double() @ _law(mechanism, case).clamp(min=-1e6)
    scale = mechanism.number * case.bound
    apart = (drawn.double() - case.value.double().reshape(-1)) / scale
    if case.ord == 1:
        return -apart.abs().sum(1)
    return -apart.square().sum(1) / 2


# ---------------------------------------------------------------- from counts to lower bounds


def clopper_pearson(hits: ArrayLike, trials: int, confidence: float) -> tuple[_Array, _Array]:
    """One-sided exact bounds `(low, high)` of a binomial probability, EACH with the given confidence.

    Both at once hold with confidence `2 confidence - 1` at least.  `hits` may be an array.

    >>> [round(float(x), 4) for x in clopper_pearson(3, 10, 0.975)]
    [0.0667, 0.6525]
    """
    validate.positive_int(trials=trials)
    validate.open_unit(confidence=confidence)
    k = np.asarray(hits, dtype=np.float64)
    validate.check(bool(((k >= 0) & (k <= trials)).all()), "hits", hits, f"give counts from 0 to trials = {trials}")
    tail = 1 - confidence
    low = np.where(k > 0, betaincinv(np.maximum(k, 1), trials - k + 1, tail), 0.0)
    high = np.where(k < trials, betaincinv(k + 1, np.maximum(trials - k, 1), confidence), 1.0)
    return low[()], high[()]


def epsilon_from_counts(hits: ArrayLike, alarms: ArrayLike, trials: int, delta: float, confidence: float) -> _Array:
    """`log((tpr - delta) / fpr)` with tpr bounded from below and fpr from above: at most epsilon, with confidence.

    `hits` of `trials` draws of one dataset and `alarms` of as many of its neighbour fell into an event that was
    fixed beforehand; an (epsilon, delta) mechanism has `tpr <= e^epsilon fpr + delta`.  The failure probability is
    split evenly over the two bounds.  Never below 0.

    >>> round(float(epsilon_from_counts(900, 100, 1000, 1e-5, 0.95)), 3)
    1.99
    """
    level = (1 + confidence) / 2
    tpr, fpr = clopper_pearson(hits, trials, level)[0], clopper_pearson(alarms, trials, level)[1]
    bound: _Array = np.log(np.maximum((tpr - delta) / fpr, 1.0))
    return bound
