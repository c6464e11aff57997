"""Noisy figures of test rows: right on average, paid for, and noised by what one row can change."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from isthmus.app.runs.measure import _terms, exact, noisy
from isthmus.privacy import Ledger, noise_multiplier


class Constant:
    """Predicts what it was told to."""

    def __init__(self, found: np.ndarray, classes: bool) -> None:
        self.found = found
        if classes:
            self.classes_ = np.unique(found)

    def predict(self, x: Any) -> np.ndarray:
        return self.found


def test_noisy_accuracy(rng: np.random.Generator) -> None:
    y = np.where(rng.random(2000) < 0.8, "a", "b")
    model = Constant(np.full(2000, "a"), True)
    (right, most) = exact(model, None, y, "rows")
    assert right.value == most.value == np.mean(y == "a") and right.noise == 0
    ledger, found = Ledger(), []
    for _ in range(400):
        (figure,) = noisy(model, None, y, on="rows", bounds=None, epsilon=0.5, delta=1e-5, ledger=ledger)
        found.append(figure.value)
    sd = noise_multiplier(epsilon=0.5, delta=1e-5) / 2000
    assert figure.noise == pytest.approx(sd)
    assert abs(np.mean(found) - right.value) < 5 * sd / 20
    assert 2 / 3 < np.std(found) / sd < 3 / 2
    assert ledger.rounds() == {"test figures": 400}
    once = Ledger()
    noisy(model, None, y, on="rows", bounds=None, epsilon=0.5, delta=1e-5, ledger=once)
    assert once.spent(1e-5) == pytest.approx(0.5, rel=1e-3)


def test_noisy_errors(rng: np.random.Generator) -> None:
    y = rng.uniform(10, 30, 20_000)
    model = Constant(y + rng.normal(0, 2, len(y)), False)
    true = {figure.name: figure.value for figure in exact(model, None, y, "rows")}
    found = noisy(model, None, y, on="rows", bounds=(0.0, 40.0), epsilon=1.0, delta=1e-5, ledger=Ledger())
    for figure in found:
        assert figure.value is not None and true[figure.name] is not None
        assert abs(figure.value - true[figure.name]) < 5 * figure.noise < 1
    few = noisy(
        Constant(y[:20], False), None, y[:20], on="r", bounds=(0.0, 40.0), epsilon=0.1, delta=1e-5, ledger=Ledger()
    )
    assert few[0].value is None and "hidden by the noise" in few[0].words()


def test_one_row_changes_the_sums_by_at_most_the_bound(rng: np.random.Generator) -> None:
    found = np.concatenate([rng.normal(0, 100, 1000), [np.nan, np.inf, -np.inf, 0, 0]])
    y = np.concatenate([rng.normal(0, 100, 1000), [0, 0, 0, 1e300, -1e300]])
    terms, bound = _terms(found, y, (-10.0, 10.0))
    assert np.linalg.norm(terms, axis=1).max() <= bound <= math.sqrt(3) * (1 + 1e-9)
    assert np.linalg.norm(terms, axis=1).max() > 0.99 * bound
    terms, bound = _terms(np.array(["a", "b"]), np.array(["a", "a"]), None)
    assert terms.tolist() == [[1], [0]] and bound == 1
