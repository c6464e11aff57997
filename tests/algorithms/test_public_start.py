"""A start from labelled public rows: the public fit without a budget, the private one with a large one."""

import math
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.linear_model import LogisticRegression

from isthmus import Huber, L2Ball, LeastSquares, Logistic, Poisson, PrivateClassifier, PrivateRegressor, Softmax
from isthmus.algorithms.public_start import _PublicFit as PublicFit
from isthmus.algorithms.public_start import _PublicStart as PublicStart
from isthmus.core.minimize import Purchased

KNOWN = {"bounds": (-3, 3), "noise_seed": 0}


def table(n: int, d: int = 4, classes: int = 2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (n, d))
    if classes == 0:
        return X, np.clip(X @ np.linspace(0.2, -0.2, d) + 0.2 * rng.standard_normal(n), -2, 2)
    truth = np.random.default_rng(9).standard_normal((d, classes)) * 1.5
    return X, (X @ truth + rng.gumbel(size=(n, classes))).argmax(1)


# ---------------------------------------------------------------- the fit to public rows


def test_the_public_fit_is_that_of_scikit_learn() -> None:
    X, y = table(300)
    X = X - X.mean(0)
    fit = PublicFit(Logistic(X, y, classes=(0, 1)), towards=torch.zeros(4).double())
    peer = LogisticRegression(C=1 / fit.strength, fit_intercept=False, tol=1e-8).fit(X, y)
    np.testing.assert_allclose(fit.w.numpy(), peer.coef_[0], rtol=1e-3, atol=1e-3)


def test_several_outputs_and_sparse_rows_give_the_same_fit() -> None:
    X, y = table(120, classes=3)
    dense = PublicFit(Softmax(X, y, classes=3))
    sparse = PublicFit(Softmax(sp.csr_matrix(X), y, classes=3))
    assert dense.w.shape == (12,)
    torch.testing.assert_close(dense.w, sparse.w, rtol=1e-4, atol=1e-5)


def test_more_columns_than_rows() -> None:
    X, y = table(40, d=300)
    fit = PublicFit(Logistic(sp.csr_matrix(X), y, classes=(0, 1)))
    assert fit.w.shape == (300,) and len(fit.energies) == 40 and bool(torch.isfinite(fit.w).all())


def test_an_intercept_is_hardly_shrunk() -> None:
    """Labels that no column explains, 90 % of one class: the constant column learns it."""
    rng = np.random.default_rng(1)
    X = np.hstack([rng.standard_normal((200, 5)), np.ones((200, 1))])
    fit = PublicFit(Logistic(X, np.arange(200) % 10 > 0, classes=(False, True)))
    assert abs(float(fit.w[-1]) - math.log(9)) < 0.2
    assert float(fit.w[:-1].abs().max()) < 0.2


def test_weights_multiply_the_losses() -> None:
    X = np.ones((100, 1))
    y = np.arange(100) % 4 == 0
    weights = torch.where(torch.from_numpy(y), 1.0, 1 / 3).double()
    fit = PublicFit(Logistic(X, y, classes=(False, True)), weights)
    assert abs(float(fit.w[0])) < 0.05


@pytest.mark.parametrize("kind", [LeastSquares, Huber, Poisson])
def test_every_regression_has_a_public_fit(kind: Any) -> None:
    X, y = table(200, classes=0)
    target = np.clip(y, -1, 1) if kind is not Poisson else np.exp(np.clip(y, -1, 1)) / 3
    fit = PublicFit(kind(X, target))
    assert bool(torch.isfinite(fit.w).all()) and fit.h > 0 and fit.v > 0


@pytest.mark.parametrize("rows", [1, 2, 6])
def test_very_few_public_rows_are_taken_too(rows: int) -> None:
    X, y = table(rows)
    fit = PublicFit(Logistic(X, y, classes=(0, 1)))
    assert bool(torch.isfinite(fit.w).all()) and fit.strength > 0


# ---------------------------------------------------------------- between the public and the private fit


def _start(noise: float, public: int = 60, constraint: Any = None) -> tuple[Purchased, Any]:
    X, y = table(public)
    X = X / 6
    objective = Logistic(X, y, classes=(0, 1))
    found = PublicStart(X, y, 100, 1.0, noise, lambda t: 4.0, constraint).apply(Purchased(objective), None)
    assert found.step is not None and found.start is not None
    return found, objective


def test_steps_vanish_with_the_budget_and_are_whole_without_noise() -> None:
    lengths = [float(_start(noise)[0].step(0)) for noise in (1e6, 1.0, 0.1, 0.01, 1e-9)]  # type: ignore[misc]
    assert lengths[0] < 1e-4 and lengths[-1] == 4.0
    assert lengths == sorted(lengths)


def test_the_start_is_the_public_fit_where_noise_is_loud() -> None:
    found, objective = _start(1e6)
    torch.testing.assert_close(found.start, PublicFit(objective).w)


def test_a_start_lies_in_the_set() -> None:
    ball = L2Ball(0.1)
    found, _ = _start(1e6, constraint=ball)
    assert bool(ball.contains(found.start)) and float(found.start.norm()) > 0.09  # type: ignore[union-attr]


def _scores(epsilon: float, classes: int, wrong: bool = False, **more: Any) -> tuple[float, float, Any]:
    """The test score with labelled public rows, that without, and the model."""
    X, y = table(4000, classes=classes)
    X_test, y_test = table(3000, classes=classes, seed=5)
    public = table(100, classes=classes, seed=7)
    options = {**KNOWN, "epsilon": epsilon, **more}
    kind: Any = PrivateRegressor if classes == 0 else PrivateClassifier
    options |= {"target_bounds": (-2, 2)} if classes == 0 else {"classes": list(range(classes))}
    if wrong:
        public = public[0], table(100, classes=classes, seed=8)[1]
    started, plain = kind(public=public, **options).fit(X, y), kind(**options).fit(X, y)
    return started.score(X_test, y_test), plain.score(X_test, y_test), started


@pytest.mark.parametrize(
    ("algorithm", "classes"), [("auto", 0), ("auto", 2), ("auto", 3), ("dp_gd", 2), ("dp_sgd", 0), ("dp_sgd", 3)]
)
def test_without_a_budget_the_result_is_the_public_fit(classes: int, algorithm: str) -> None:
    """At epsilon 1e-3 nothing can be learned from 4,000 records, and nothing of the public rows is lost."""
    score, plain, _ = _scores(1e-3, classes, algorithm=algorithm)
    assert score > 0.75 and score > plain + 0.1


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_with_a_large_budget_the_result_is_the_private_fit(classes: int) -> None:
    """A public start that is wrong (labels of other rows) is forgotten."""
    score, plain, _ = _scores(100.0, classes, wrong=True)
    assert score > plain - 0.02


def test_sparse_rows_start_at_public_ones_too() -> None:
    X, y = table(3000, d=12)
    X_test, y_test = table(2000, d=12, seed=5)
    public, labels = table(200, d=12, seed=7)
    options: dict[str, Any] = {"epsilon": 0.01, "classes": [0, 1], "noise_seed": 0}
    started = PrivateClassifier(public=(sp.csr_matrix(public), labels), **options).fit(sp.csr_matrix(X), y)
    assert started.score(sp.csr_matrix(X_test), y_test) > 0.85


def test_nothing_more_is_spent_and_the_statement_tells() -> None:
    X, y = table(4000)
    public = table(100, seed=7)
    stated = PrivateClassifier(epsilon=0.5, bounds=(-3, 3), classes=[0, 1], public=public).fit(X, y).privacy_
    assert stated.private and stated.epsilon <= 0.5
    assert any("labels of the public rows were used" in assumption for assumption in stated.assumptions)
    unlabelled = PrivateClassifier(epsilon=0.5, bounds=(-3, 3), classes=[0, 1], public=public[0]).fit(X, y).privacy_
    assert not any("labels of the public rows" in assumption for assumption in unlabelled.assumptions)


def test_an_algorithm_without_a_place_for_a_start_says_nothing_of_one() -> None:
    X, y = table(1000)
    options: dict[str, Any] = {"epsilon": 1.0, "bounds": (-3, 3), "classes": [0, 1], "algorithm": "priv_sgd"}
    model = PrivateClassifier(public=table(50, seed=7), **options).fit(X, y)
    assert not any("labels of the public rows" in assumption for assumption in model.privacy_.assumptions)


# ---------------------------------------------------------------- what is refused, what is weighted


def test_public_labels_of_no_class_are_refused_before_anything_is_spent() -> None:
    X, y = table(500)
    model = PrivateClassifier(epsilon=1.0, bounds=(-3, 3), classes=[0, 1], public=(X[:10], np.full(10, 7)))
    with pytest.raises(ValueError, match=r"public.*7.*among classes"):
        model.fit(X, y)


def test_public_targets_that_are_not_finite_are_refused() -> None:
    X, y = table(500, classes=0)
    bad = np.full(10, np.nan)
    with pytest.raises(ValueError, match="public"):
        PrivateRegressor(epsilon=1.0, bounds=(-3, 3), target_bounds=(-2, 2), public=(X[:10], bad)).fit(X, y)


def test_class_weights_hold_for_the_public_rows() -> None:
    """One class in ten of the public rows: balanced weights predict it as often as the other."""
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-3, 3, (2000, 2)), np.arange(2000) % 10 == 0
    public = rng.uniform(-3, 3, (200, 2)), np.arange(200) % 10 == 0
    options: dict[str, Any] = {**KNOWN, "epsilon": 1e-3, "classes": [False, True], "public": public}
    shares = [
        PrivateClassifier(class_weight=weight, **options).fit(X, y).predict_proba(X)[:, 1].mean()
        for weight in (None, "balanced", {False: 0.1, True: 0.9})
    ]
    assert shares[0] < 0.2 and abs(shares[1] - 0.5) < 0.15 and abs(shares[2] - 0.5) < 0.15


def test_a_second_fit_reads_public_targets_as_the_first_did() -> None:
    """The centre of targets that one fit bought is none of the next fit's."""
    X, y = table(20000, classes=0)
    y = y * 0.1 + 1.5
    public = table(100, classes=0, seed=7)[0], table(100, classes=0, seed=7)[1] * 0.1 + 1.5
    model = PrivateRegressor(epsilon=1.0, bounds=(-3, 3), target_bounds=(-2, 2), public=public, noise_seed=0)
    first = model.fit(X, y).score(X, y)
    assert abs(model.fit(X, y).score(X, y) - first) < 1e-6 and first > 0.7


def test_public_targets_of_one_value_leave_the_range_to_be_bought() -> None:
    X, y = table(4000, classes=0)
    public = X[:20] * 0, np.zeros(20)
    model = PrivateRegressor(epsilon=5.0, bounds=(-3, 3), public=public, noise_seed=0).fit(X, y)
    assert model.score(X, y) > 0.5
