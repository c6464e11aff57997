"""Intervals of coefficients: they hold the truth as often as they say, no less and not much more, or are refused."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isthmus import InvalidInput, PrivateClassifier, PrivateRegressor
from isthmus.estimators import load
from isthmus.privacy import Ledger

TRUTH = np.array([1.0, -0.5, 0.3, 0.0, 0.5])
"""Four coefficients and the intercept."""
LINEAR: dict[str, Any] = {"algorithm": "dp_gd", "features": "linear", "bounds": (-4, 4)}


def rows(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    X = rng.normal(size=(n, 4)).clip(-4, 4)
    return X, TRUTH[4] + X @ TRUTH[:4]


def regressor(seed: int, epsilon: float, n: int = 20_000, **more: Any) -> Any:
    rng = np.random.default_rng(seed)
    X, signal = rows(rng, n)
    options = LINEAR | {"target_bounds": (-8, 9), "noise_seed": seed} | more
    return PrivateRegressor(epsilon=epsilon, **options).fit(X, signal + rng.normal(size=n))


def classifier(seed: int, epsilon: float, n: int = 20_000, **more: Any) -> Any:
    rng = np.random.default_rng(seed)
    X, signal = rows(rng, n)
    y = (rng.random(n) < 1 / (1 + np.exp(-signal))).astype(int)
    options = LINEAR | {"classes": [0, 1], "noise_seed": seed} | more
    return PrivateClassifier(epsilon=epsilon, **options).fit(X, y)


@pytest.mark.parametrize(("kind", "epsilon"), [("numbers", 1.0), ("labels", 5.0)])
def test_they_hold_the_truth_as_often_as_they_say(kind: str, epsilon: float) -> None:
    held, errors, said = [], [], []
    for seed in range(25):
        model = regressor(seed, epsilon) if kind == "numbers" else classifier(seed, epsilon)
        intervals = model.coefficient_intervals(0.8, **{"residual_sd": 1.0} if kind == "numbers" else {})
        held.append((intervals.low <= TRUTH) & (intervals.high >= TRUTH))
        errors.append(intervals.values - TRUTH)
        said.append(np.hypot(intervals.noise, intervals.sampling))
    # 125 intervals: .8 +- .036, and a little for the bias of a small sample
    assert 0.7 < np.mean(held) < 0.9
    assert 0.85 < np.sqrt(np.mean(np.square(errors))) / np.sqrt(np.mean(np.square(said))) < 1.2
    assert 0.2 < np.mean(intervals.noise / intervals.sampling) < 5  # both parts matter


def test_estimates_are_those_of_the_model_and_wider_levels_are_wider() -> None:
    model = regressor(0, 3.0)
    intervals = model.coefficient_intervals(0.95, residual_sd=1.0)
    assert np.allclose(intervals.values, [*model.coef_, model.intercept_])
    wide = model.coefficient_intervals(0.99, residual_sd=1.0)
    assert np.all(wide.low < intervals.low) and np.all(wide.high > intervals.high)
    noisy = model.coefficient_intervals(0.95, residual_sd=1.05)
    assert np.allclose(noisy.sampling, 1.05 * intervals.sampling) and np.allclose(noisy.noise, intervals.noise)
    assert intervals.names == ("x0", "x1", "x2", "x3", "(intercept)")
    assert "95% interval" in intervals.words() and "few rows were shortened" in intervals.words()
    labels = classifier(0, 3.0)
    assert np.allclose(labels.coefficient_intervals().values, [*labels.coef_[0], labels.intercept_[0]])


def test_nothing_new_is_read_and_nothing_is_charged() -> None:
    ledger = Ledger()
    model = regressor(0, 3.0, ledger=ledger)
    before = ledger.rounds()
    model.coefficient_intervals(residual_sd=1.0)
    assert ledger.rounds() == before


def signs(kind: Any = PrivateRegressor, **given: Any) -> Any:
    """Moments bought of rows that all have one length, which no map shortens unless the ranges are narrow."""
    rng = np.random.default_rng(0)
    X = rng.choice([-1.0, 1.0], (8000, 4))
    y = X @ TRUTH[:4] + rng.normal(size=8000)
    own: dict[str, Any] = {"target_bounds": (-6, 6)}
    if kind is PrivateClassifier:
        own, y = {"classes": [0, 1]}, (y > 0).astype(int)
    options = LINEAR | {"bounds": (-3, 3), "noise_seed": 0, "scale": "moments", "clip": 0.6} | own | given
    return kind(epsilon=3.0, **options).fit(X, y)


SHORT = {"n": 2000, "epsilon": 3.0, "seed": 0}
REFUSED: list[tuple[str, Any, dict[str, Any]]] = [
    ("residual_sd=None is not allowed: give the standard deviation", lambda: regressor(0, 3.0), {}),
    ("level=1.5 is not allowed", lambda: regressor(0, 3.0), {"level": 1.5, "residual_sd": 1.0}),
    (r"fit with clip=\S+ or more: this one shortens", lambda: regressor(0, 3.0), {"residual_sd": 40.0}),
    ("clip=0.5 is not allowed: fit with clip=1: this one shortens", lambda: signs(PrivateClassifier, clip=0.5), {}),
    ("leave it out: labels have no residuals", lambda: classifier(0, 3.0), {"residual_sd": 1.0}),
    ("need noisy X'X", lambda: classifier(**SHORT, algorithm="dp_sgd", batch_size=200, max_iter=5), {}),
    ("need noisy X'X", lambda: regressor(**SHORT, features="smooth"), {"residual_sd": 1.0}),
    (r"declare bounds .* rows fill \d+% of the squared", lambda: signs(bounds=(-1, 1)), {"residual_sd": 1.0}),
    ("this fit is not private", lambda: classifier(0, math.inf, 2000, algorithm="gd", noise_seed=None, max_iter=5), {}),
    ("use the logistic or the squared loss", lambda: regressor(**SHORT, loss="huber"), {"residual_sd": 1.0}),
    ("as large as X'X itself in some", lambda: regressor(0, 0.2, 300, scale="moments"), {"residual_sd": 1.0}),
]


@pytest.mark.parametrize(("why", "made", "asked"), REFUSED)
def test_where_it_cannot_be_told_it_says_why(why: str, made: Any, asked: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=why):
        made().coefficient_intervals(**asked)


def test_a_loaded_model_has_no_intervals(tmp_path: Path) -> None:
    model = signs(bounds=(-3, 3))
    assert np.allclose(model.coefficient_intervals(residual_sd=1.0).values[:4], TRUTH[:4], atol=0.2)
    model.save(tmp_path / "m")
    with pytest.raises(InvalidInput, match="one that was read from a file has none"):
        load(tmp_path / "m").coefficient_intervals(residual_sd=1.0)


def test_rows_that_were_shortened_are_noticed() -> None:
    """X'X tells how much of the rows' length is missing: coefficients of such rows are not those of the columns."""
    with pytest.raises(InvalidInput, match=r"rows were shortened, by \d+% of their squared length"):
        regressor(0, 20.0, scale="moments", bounds=(-20, 20), clip=0.5).coefficient_intervals(residual_sd=1.0)
