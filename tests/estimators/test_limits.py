"""As epsilon grows a private model tends to the one without noise: on skewed, heavy-tailed, imbalanced tables too."""

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression

from isthmus import PrivateClassifier, PrivateRegressor

INF = float("inf")


def heavy() -> tuple[np.ndarray, np.ndarray]:
    """Student's t with three degrees of freedom; one column of five matters."""
    rng = np.random.default_rng(0)
    X = rng.standard_t(3, (20_000, 5))
    return X, np.clip(2 + 0.5 * X[:, 0] + rng.normal(size=20_000), 0, 80)


def imbalanced() -> tuple[np.ndarray, np.ndarray]:
    """6 % positives."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(20_000, 4))
    return X, (rng.random(20_000) < 1 / (1 + np.exp(4 - 1.8 * X[:, 0]))).astype(int)


def skewed() -> tuple[np.ndarray, np.ndarray]:
    """A price: most are small, some very large."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(20_000, 4))
    return X, np.exp(7.5 + 0.5 * X[:, 0] + 0.8 * rng.normal(size=20_000)).clip(0, 1e5)


@pytest.mark.parametrize("features", ["auto", "linear"])
@pytest.mark.parametrize("epsilon", [30.0, INF])
def test_heavy_tails_are_learned(epsilon: float, features: str) -> None:
    X, y = heavy()
    model = PrivateRegressor(epsilon=epsilon, target_bounds=(0, 80), features=features).fit(X, y)
    assert model.score(X, y) > LinearRegression().fit(X, y).score(X, y) - 0.02


@pytest.mark.parametrize("bounds", [None, (0, 10), (-50, 100)])
def test_declared_bounds_are_no_worse_than_none(bounds: Any) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, (5000, 1))
    y = 2 * X[:, 0] + 0.45 * rng.normal(size=5000)
    model = PrivateRegressor(epsilon=30.0, bounds=bounds, target_bounds=(-2, 22)).fit(X, y)
    assert model.score(X, y) > 0.985
    assert np.allclose(model.predict([[1.0], [5.0], [9.0]]), [2, 10, 18], atol=0.6)


@pytest.mark.parametrize("algorithm", ["dp_gd", "dp_sgd"])
def test_algorithms_by_name_have_the_same_limit(algorithm: str) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, (5000, 2))
    y = X @ [2.0, -1.0] + 0.5 * rng.normal(size=5000)
    model = PrivateRegressor(epsilon=100.0, algorithm=algorithm, bounds=(0, 10), target_bounds=(-12, 22))
    assert model.fit(X, y).score(X, y) > LinearRegression().fit(X, y).score(X, y) - 0.02


@pytest.mark.parametrize("features", ["auto", "linear"])
def test_rare_classes_have_the_probability_they_have(features: str) -> None:
    X, y = imbalanced()
    model = PrivateClassifier(epsilon=100.0, bounds=(-6, 6), classes=[0, 1], features=features).fit(X, y)
    p = model.predict_proba(X)[:, 1]
    top = p >= np.quantile(p, 0.95)
    assert abs(p[top].mean() - y[top].mean()) < 0.05
    assert abs(p.mean() - y.mean()) < 0.01


def test_a_skewed_target_has_its_mean() -> None:
    X, y = skewed()
    model = PrivateRegressor(epsilon=1000.0, bounds=(-6, 6), target_bounds=(0, 1e5)).fit(X, y)
    assert abs(model.predict(X).mean() / y.mean() - 1) < 0.02
    assert model.score(X, y) > LinearRegression().fit(X, y).score(X, y) - 0.01


def test_an_outlying_column_that_does_not_matter_changes_little() -> None:
    """A long row keeps its intercept: it is not drawn to one half."""
    X, y = imbalanced()
    model = PrivateClassifier(epsilon=30.0, bounds=(-6, 6), classes=[0, 1]).fit(X, y)
    usual, outlying = np.array([[-0.5, 0, 0, 0]]), np.array([[-0.5, 0, 0, 1000.0]])
    assert model.predict_proba(usual)[0, 1] < 0.05
    assert model.predict_proba(outlying)[0, 1] < 0.15


def test_coefficients_tend_to_those_without_noise() -> None:
    rng = np.random.default_rng(3)
    X = rng.uniform(-1, 1, (20_000, 3)) * [1, 5, 0.1]
    y = 10 + X @ [3.0, -0.5, 8.0] + 0.5 * rng.normal(size=20_000)
    bounds = (np.array([-1, -5, -0.1]), np.array([1, 5, 0.1]))
    model = PrivateRegressor(epsilon=1000.0, bounds=bounds, target_bounds=(0, 20), features="linear").fit(X, y)
    plain = LinearRegression().fit(X, y)
    np.testing.assert_allclose(model.coef_, plain.coef_, rtol=0.03)
    assert model.intercept_ == pytest.approx(plain.intercept_, abs=0.05)
    labels = (y + rng.logistic(size=20_000) > 10).astype(int)
    fitted = PrivateClassifier(epsilon=1000.0, bounds=bounds, classes=[0, 1], features="linear").fit(X, labels)
    np.testing.assert_allclose(fitted.coef_, LogisticRegression(C=1e6).fit(X, labels).coef_, rtol=0.08)


def test_smooth_features_learn_what_no_line_does() -> None:
    rng = np.random.default_rng(4)
    X = rng.uniform(-1, 1, (10_000, 3))
    y = np.cos(3 * X[:, 0]) + X[:, 1] ** 2 + 0.1 * rng.normal(size=10_000)
    known: dict[str, Any] = {"epsilon": 3.0, "bounds": (-1, 1), "target_bounds": (-2, 3)}
    model = PrivateRegressor(**known, features="smooth").fit(X, y)
    assert model.score(X, y) > 0.9
    x, curve = model.effects()["x0"]
    truth = np.cos(3 * x)
    inside = abs(x) < 0.9
    assert np.corrcoef(curve[inside], truth[inside])[0, 1] > 0.97
    assert np.ptp(curve[inside]) == pytest.approx(np.ptp(truth[inside]), rel=0.25)
    assert PrivateRegressor(**known, features="linear").fit(X, y).score(X, y) < 0.1


def narrow(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Targets that fill a fortieth of the range that is declared of them, (0, 100)."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 6))
    return X, 70 + X @ [2.0, -1.0, 1.0, 0.5, 0.0, 0.0] + 0.5 * rng.standard_normal(n)


@pytest.mark.parametrize("target_bounds", [(0, 100), (-1000, 1000)])
def test_few_records_are_told_by_their_mean(target_bounds: tuple[float, float]) -> None:
    """Never a wild answer: at n mu of 14 columns tell nothing, and no noise is added on their behalf."""
    X, y = narrow(450, 0)
    fits = [PrivateRegressor(0.1, 1e-5, bounds=(-1, 1), target_bounds=target_bounds, noise_seed=k) for k in range(8)]
    off = [abs(float(model.fit(X, y).predict(X[:1])[0]) - 70) for model in fits]
    assert all(not model.coef_.any() and model.privacy_.nominal <= 0.1 for model in fits)
    assert sorted(off)[5] < (target_bounds[1] - target_bounds[0]) / 20


def test_targets_in_a_corner_of_their_range_are_learned() -> None:
    X, y = narrow(3000, 1)
    for seed in range(5):
        model = PrivateRegressor(0.5, 1e-5, bounds=(-1, 1), target_bounds=(-1000, 1000), noise_seed=seed)
        assert model.fit(X, y).score(X, y) > 0.3


def test_a_public_model_is_not_spoilt_by_few_private_records() -> None:
    (X, y), (rows, targets) = narrow(450, 0), narrow(100, 2)
    given = {"bounds": (-1, 1), "target_bounds": (0, 100), "public": (rows, targets)}
    fits = [PrivateRegressor(0.1, 1e-5, **given, noise_seed=k).fit(X, y) for k in range(2)]
    assert fits[0].score(X, y) > 0.6 and (fits[0].predict(X) == fits[1].predict(X)).all()


@pytest.mark.parametrize(("epsilon", "worst"), [(0.1, -4.0), (0.5, 0.3)])
def test_an_undeclared_range_of_targets_is_found_among_few_records(epsilon: float, worst: float) -> None:
    """Targets of 15,000 to 45,000: the range that is bought was (-1, 1) once, and nothing was said."""
    X, y = narrow(300, 3)
    y = 30_000 + 4_000 * (y - 70)
    fits = [PrivateRegressor(epsilon, 1e-5, bounds=(-1, 1), noise_seed=k).fit(X, y) for k in range(4)]
    assert sorted(model.score(X, y) for model in fits)[1] > worst
    assert all(0 < model.target_bounds_[0] < 28_000 < model.target_bounds_[1] for model in fits)
    assert any("may be far off" in line for line in fits[0].privacy_.assumptions) == (epsilon == 0.1)
