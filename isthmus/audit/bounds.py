"""From counts to lower bounds of epsilon, with their confidence."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.special import betaincinv
from scipy.stats import binom

from isthmus.base import validate

__all__ = ["clopper_pearson", "epsilon_from_counts", "one_run_epsilon", "one_run_p_value"]


def clopper_pearson(hits: Any, trials: int, confidence: float) -> tuple[Any, Any]:
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


def epsilon_from_counts(hits: Any, alarms: Any, trials: int, delta: float, confidence: float) -> Any:
    """`log((tpr - delta) / fpr)` with tpr bounded from below and fpr from above: at most epsilon, with confidence.

    `hits` of `trials` draws of one dataset and `alarms` of as many of its neighbour fell into an event that was
    fixed beforehand; an (epsilon, delta) mechanism has `tpr <= e^epsilon fpr + delta`.  The failure probability is
    split evenly over the two bounds.  Never below 0.

    >>> round(float(epsilon_from_counts(900, 100, 1000, 1e-5, 0.95)), 3)
    1.99
    """
    level = (1 + confidence) / 2
    tpr, fpr = clopper_pearson(hits, trials, level)[0], clopper_pearson(alarms, trials, level)[1]
    return np.log(np.maximum((tpr - delta) / fpr, 1.0))


def one_run_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float = 0.0) -> float:
    """The probability, at most, that an (epsilon, delta) run lets `correct` of `guesses` be right.

    `canaries` records were included independently with probability 1/2 and any number of them guessed (Steinke, Nasr
    and Jagielski 2023, Theorem 5.2).  With `W ~ Binomial(guesses, e^epsilon / (1 + e^epsilon))` it is

        P[W >= v] + 2 m delta max_{1 <= i <= v} P[v - i <= W < v] / i.

    >>> round(one_run_p_value(10, 10, 10, 0.0), 9) == round(2.0**-10, 9)
    True
    """
    validate.positive_int(canaries=canaries)
    validate.non_negative_int(guesses=guesses, correct=correct)
    validate.at_most(canaries, "the number of canaries", guesses=guesses)
    validate.at_most(guesses, "the number of guesses", correct=correct)
    validate.non_negative(epsilon=epsilon, delta=delta)
    q = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(correct - 1, guesses, q))
    if delta == 0 or correct == 0:
        return min(1.0, tail)
    below = np.cumsum(binom.pmf(np.arange(correct - 1, -1, -1), guesses, q))
    worst = float((below / np.arange(1, correct + 1)).max())
    return min(1.0, tail + 2 * canaries * delta * worst)


def one_run_epsilon(canaries: int, guesses: int, correct: int, delta: float = 0.0, confidence: float = 0.95) -> float:
    """The largest epsilon that `correct` right guesses refute, from below, with the given confidence.

    >>> round(one_run_epsilon(1000, 1000, 750), 3)
    0.977
    """
    validate.open_unit(confidence=confidence)
    tail = 1 - confidence
    low, high = 0.0, 1.0
    if one_run_p_value(canaries, guesses, correct, 0.0, delta) >= tail:
        return 0.0
    while one_run_p_value(canaries, guesses, correct, high, delta) < tail:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        refuted = one_run_p_value(canaries, guesses, correct, middle, delta) < tail
        low, high = (middle, high) if refuted else (low, middle)
    return low
