"""From counts to lower bounds of epsilon, with their confidence."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv, ndtr, ndtri

from isthmus.base import validate
from isthmus.privacy.accounting import epsilon_of
from isthmus.privacy.mechanisms import Gaussian

_Numbers = NDArray[np.float64]


def clopper_pearson(hits: ArrayLike, trials: int, confidence: float) -> tuple[_Numbers, _Numbers]:
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


def epsilon_from_counts(hits: ArrayLike, alarms: ArrayLike, trials: int, delta: float, confidence: float) -> _Numbers:
    """`log((tpr - delta) / fpr)` with tpr bounded from below and fpr from above: at most epsilon, with confidence.

    `hits` of `trials` draws of one dataset and `alarms` of as many of its neighbour fell into an event that was
    fixed beforehand; an (epsilon, delta) mechanism has `tpr <= e^epsilon fpr + delta`.  The failure probability is
    split evenly over the two bounds.  Never below 0.

    >>> round(float(epsilon_from_counts(900, 100, 1000, 1e-5, 0.95)), 3)
    1.99
    """
    level = (1 + confidence) / 2
    tpr, fpr = clopper_pearson(hits, trials, level)[0], clopper_pearson(alarms, trials, level)[1]
    bound: _Numbers = np.log(np.maximum((tpr - delta) / fpr, 1.0))
    return bound


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
