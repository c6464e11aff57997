"""What an adversarial reading found: each of these once failed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler

import isthmus
from isthmus.algorithms.purchases import ranged
from isthmus.base.matrix import rmatmul
from isthmus.core.minimize import Binding
from isthmus.estimators import linear, load
from isthmus.gradients.rounding import upper_norms
from isthmus.objectives.linear import top_eigenvalue
from isthmus.penalties import NoPenalty
from isthmus.privacy import Ledger
from isthmus.sets import Whole


def data(n: int = 500) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).uniform(-1, 1, (n, 3))
    return X, (X[:, 0] > 0).astype(int)


X, y = data()


def model(**more: Any) -> isthmus.PrivateClassifier:
    options = {"bounds": (-1, 1), "classes": [0, 1], "algorithm": "dp_gd", "max_iter": 5, "partial_calls": 2}
    return isthmus.PrivateClassifier(**options | more)


@pytest.mark.parametrize("way", ["set_params", "load"])
def test_rounds_with_seeded_noise_stay_not_private(tmp_path: Path, way: str) -> None:
    made = model(noise_seed=0).partial_fit(X, y)
    assert not made.privacy_.private
    if way == "load":
        made.save(tmp_path / "m")
        made = load(tmp_path / "m")
    else:
        made.set_params(noise_seed=None)
    made.partial_fit(X, y)
    assert not made.privacy_.private  # whoever knows the seed can subtract the noise of the first five rounds


def test_one_record_moves_a_badly_centred_sum_by_no_more_than_its_bound() -> None:
    """Rows that are small differences of large numbers: their sum must not be one of large sums."""
    rng, n = np.random.default_rng(0), 20_000
    X = torch.from_numpy(1e12 + rng.uniform(0, 1, (n, 2)))
    seen = ranged(torch.full((2,), 1e12).double(), torch.full((2,), 1e12 + 1).double(), 1.0)
    v = torch.from_numpy(rng.uniform(0.5, 1, n))
    whole = rmatmul(seen(X), v)
    for i in range(20):
        rest = torch.arange(n) != i
        assert (whole - rmatmul(seen(X[rest]), v[rest])).norm() <= 1 + 1e-9


def test_a_run_goes_on_only_with_what_it_had_bought() -> None:
    X = torch.from_numpy(np.random.default_rng(0).normal(size=(500, 3)))
    objective = isthmus.Logistic(X, (X[:, 0] > 0).numpy().astype(int), classes=(0, 1))
    recipe = isthmus.algorithms.dp_gd(epsilon=1.0, delta=1e-5, clip=1.0, step="auto", precondition=True, n="exact")
    begun = isthmus.minimize(objective, recipe, steps=10, record=1, callbacks=[lambda record, state: state.t >= 5])
    pipe = recipe.bind(Binding(Whole(), NoPenalty(), objective.space, objective.n, 10, None))
    with pytest.raises(isthmus.InvalidInput, match="resume"):
        isthmus.minimize(objective, replace(pipe, before=(), step=lambda t: 1.0), steps=10, resume=begun.state)


@pytest.mark.parametrize("shared", [False, True])
def test_lost_rounds_are_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool) -> None:
    path = tmp_path / "shared.ledger" if shared else None
    output = model(max_iter=20, checkpoint=tmp_path / "c", ledger=path)
    watch = linear._RoundNotes.__call__

    def killed(self: Any, record: Any, state: Any) -> bool:
        if state.t == 5:
            raise KeyboardInterrupt
        return watch(self, record, state)

    monkeypatch.setattr(linear._RoundNotes, "__call__", killed)
    for _ in range(10):
        with pytest.raises(KeyboardInterrupt):
            output.fit(X, y)
    monkeypatch.setattr(linear._RoundNotes, "__call__", watch)
    output.fit(X, y)
    spent = Ledger.open(path or f"{tmp_path / 'c'}.ledger").spent(1e-5)
    assert output.privacy_.epsilon >= spent - 1e-9 > 1.05


def test_partial_fit_says_that_the_number_of_records_is_public() -> None:
    assert "number of records is not published" not in model().partial_fit(X, y).privacy_.words()
    assert "number of records is not published" in model(n=600).partial_fit(X, y).privacy_.words()


def test_leaks_of_earlier_calls_stay_stated() -> None:
    output = model(bounds="data", classes=None)
    with pytest.warns(isthmus.PrivacyLeakWarning):
        output.partial_fit(X, y)
    leaks = set(output.privacy_.leaks)
    output.set_params(bounds=(-1, 1)).partial_fit(X, y, classes=[0, 1])
    assert len(leaks) == 2 and leaks == set(output.privacy_.leaks) and not leaks & set(output.privacy_.assumptions)


def test_steps_of_an_outer_pipeline_are_warned_of_too() -> None:
    with pytest.warns(isthmus.PrivacyLeakWarning, match="standardscaler"):
        make_pipeline(StandardScaler(), make_pipeline(Normalizer(), model())).fit(X, y)


def test_an_intercept_is_learned_once() -> None:
    """Moments and shapes bring an intercept of their own: the rows get no second constant."""
    X, y = data(20_000)
    fitted = model(algorithm="auto", max_iter=None, scale="moments").fit(X, y)
    assert fitted.choice_.arguments["scale"] == "moments" and fitted.result_.x.shape == (4,)
    fitted = model(algorithm="auto", max_iter=None, features="linear").fit(X, y)
    assert fitted.choice_.arguments["scale"] == "shapes" and fitted.result_.x.shape == (4,)
    assert model(algorithm="auto", max_iter=None, fit_intercept=False).fit(X, y).result_.x.shape == (3,)


def test_sparse_columns_are_scaled_without_an_intercept_too() -> None:
    """Weights of CSR columns centre nothing: leaving the intercept out must not leave them out."""
    rows = sp.random(400, 50, density=0.1, format="csr", random_state=0)
    output = model(bounds=None, algorithm="auto", max_iter=3, fit_intercept=False)
    assert output.fit(rows, np.arange(400) % 2).choice_.arguments["scale"] == "columns"


def test_a_delta_that_allows_publishing_a_record_is_warned_of() -> None:
    with pytest.warns(isthmus.PrivacyBudgetWarning, match="delta=0.01"):
        model(delta=0.01).fit(X, y)


def test_a_prediction_that_is_no_number_counts_as_wrong() -> None:
    class Diverged:
        def predict(self, X: Any) -> np.ndarray:
            return np.array([np.inf, np.nan])

    search = isthmus.PrivateSearch(isthmus.PrivateRegressor(target_bounds=(-1, 1)), {"step": [1, 2]})
    assert search._scores([Diverged()], np.zeros((2, 1)), np.zeros(2), None).dense().tolist() == [[0.0], [0.0]]


def test_the_top_eigenvalue_of_nothing_is_zero() -> None:
    assert top_eigenvalue(sp.csr_matrix((900, 400))) == 0.0


def test_a_batch_of_nothing_has_norms_too() -> None:
    seen = ranged(torch.zeros(2).double(), torch.ones(2).double(), 1.0)(torch.rand(5, 2).double())
    for ord in (1, 2, float("inf")):
        assert len(upper_norms(seen[:0], ord)) == 0
