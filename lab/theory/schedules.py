"""What a theorem prescribes, round by round: rules for steps, batches and dimensions, which recipes take.

Rounds are counted from 0 here; the papers' t is t + 1.
"""

from __future__ import annotations

import math

from isthmus.base import validate
from isthmus.theory.schedules import Blocks, Vector, check_arguments, narrow_dimension, smoothness_ratios


def log_over_root(rounds: int) -> float:
    """log T / sqrt(T), for T >= 2: at T = 1 a bound of this form would be 0.

    >>> log_over_root(4) == math.log(4) / 2
    True
    """
    validate.positive_int(rounds=rounds)
    validate.check(rounds >= 2, "rounds", rounds, "give at least 2: the bound has a factor log T")
    return math.log(rounds) / math.sqrt(rounds)


def check_sparsity(d: int, k: int) -> None:
    """1 <= k <= d: of d numbers or directions, k are kept.

    >>> check_sparsity(4, 4)
    """
    check_arguments(locals())
    validate.at_most(d, "d", k=k)


def dimension_at(t: int, d: int, width: float, *, every: int = 1, offset: int = 1, constant: float = 1.0) -> int:
    """m_t of round t = 0, 1, ...: `narrow_dimension` at beta_t = 1 / (floor(t / every) + offset).

    every   rounds between two dimensions: 1 counts steps, the rounds of an epoch count epochs (section 2.2 of
            paper 001: m = t^2 log d with t the epoch)
    offset  1 for beta_t = 1/t of paper 001 (Theorem 2.3), 2 for beta_t = 1/(t + 1) of paper 000

    >>> [dimension_at(t, 100, 2.0) for t in range(6)]
    [4, 16, 36, 64, 100, 100]
    >>> [dimension_at(t, 100, 2.0, every=2) for t in range(6)]
    [4, 4, 16, 16, 36, 36]
    """
    validate.non_negative_int(t=t)
    validate.positive_int(every=every, offset=offset)
    return narrow_dimension(d, width, 1 / (t // every + offset), constant)


def rounds_until_full(d: int, width: float, *, every: int = 1, offset: int = 1, constant: float = 1.0) -> int:
    """How many rounds are narrower than d: the first t with m_t = d, about every * sqrt(d / c) / w(C).

    With t the step and w(C)^2 = log d this is 32 rounds at d = 10^4: m_33 = d in the papers' count.

    >>> rounds_until_full(10_000, math.log(10_000) ** 0.5)
    32
    """
    check_arguments(locals())
    epoch = max(0, math.floor(math.sqrt((d - 1) / constant) / width) - offset - 1)
    while dimension_at(epoch * every, d, width, every=every, offset=offset, constant=constant) < d:
        epoch += 1
    return epoch * every


def check_sizes(n: int, noise: float, radius: float) -> None:
    """Refuse what is no number of records, noise or radius."""
    check_arguments(locals(), noise=validate.positive)


def condition_number(smoothness: Vector, probabilities: Vector, strong_convexity: float) -> float:
    """max_j (M_j / p_j) / mu."""
    validate.positive(strong_convexity=strong_convexity)
    return float(smoothness_ratios(smoothness, probabilities).max()) / strong_convexity


def subsets_of(blocks: Blocks | None, d: int) -> list[list[int]]:
    """Subsets of 0..d-1; None is one of all."""
    every = [list(range(d))] if blocks is None else [[int(j) for j in block] for block in blocks]
    good = all(block and len(set(block)) == len(block) and 0 <= min(block) <= max(block) < d for block in every)
    validate.check(bool(every) and good, "blocks", blocks, f"give non-empty sets of different numbers in 0..{d - 1}")
    return every
