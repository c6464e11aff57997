"""Laplace noise on a vector hides no less than on one number with the same l1 bound: docs/privacy.md has the proof."""

from __future__ import annotations

import math

import numpy as np
import pytest

from isthmus.privacy import Laplace, epsilon_of
from isthmus.privacy.event_json import dpa

STEP = 1e-3
"""Of the grid that logarithms of likelihood ratios are rounded to; the splits below are multiples of it."""


def losses(shift: float) -> np.ndarray:
    """The law of log(Q / P) under P = Lap(0, 1), Q = Lap(shift, 1), on a grid from -shift to shift.

    Atoms of 1/2 at -shift and exp(-shift) / 2 at shift; between them exp(-(u + shift) / 2) / 2 lie above u.
    """
    places = round(shift / STEP)
    edges = np.clip((np.arange(-places, places + 2) - 0.5) * STEP, -shift, shift)
    above = 0.5 * np.exp(-(edges + shift) / 2)
    law = above[:-1] - above[1:]
    law[0] += 0.5
    law[-1] += 0.5 * math.exp(-shift)
    return law


def together(*laws: np.ndarray) -> np.ndarray:
    """The law of a sum of independent losses."""
    total = laws[0]
    for law in laws[1:]:
        total = np.convolve(total, law)
    return total


def delta(law: np.ndarray, epsilon: float) -> float:
    """Of a claim epsilon: the hockey-stick divergence of Q from P."""
    places = (len(law) - 1) // 2
    ratios = np.exp(np.arange(-places, places + 1) * STEP)
    return float(law @ np.maximum(0.0, ratios - math.exp(epsilon)))


@pytest.mark.parametrize("split", [(0.5, 0.5), (0.9, 0.1), (1.0, 0.7, 0.3), (2.0, 2.0), (0.1,) * 10], ids=str)
def test_a_vector_is_no_worse_than_one_number(split: tuple[float, ...]) -> None:
    shift = sum(split)
    vector, number = together(*map(losses, split)), losses(shift)
    for epsilon in np.linspace(-shift, shift, 41):
        assert delta(vector, epsilon) <= delta(number, epsilon) + 1e-6  # the grid is off by STEP^2


def test_a_bound_spent_on_one_entry_is_what_is_counted() -> None:
    """Nearly all of the bound on one entry: a claim for a bound that is 2 % smaller would be false."""
    vector = together(losses(0.999), losses(0.001))
    assert delta(vector, 0.5) > delta(losses(0.98), 0.5)


@pytest.mark.parametrize("split", [(0.25, 0.25), (0.4, 0.1), (0.5,)], ids=str)
def test_rounds_of_vectors_cost_no_more_than_the_accountant_says(split: tuple[float, ...]) -> None:
    epsilon = epsilon_of(dpa.SelfComposedDpEvent(Laplace(2.0).event(), 4), 1e-3)
    once = together(*map(losses, split))
    real = delta(together(once, once, once, once), epsilon)
    assert real <= 1e-3 * (1 + 1e-3)
    assert len(split) > 1 or real > 0.95e-3  # one entry is the worst case, and it is met
