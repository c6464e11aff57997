"""DP-GD that buys column moments, lambda_max or sufficient statistics first."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import isthmus
from isthmus import L2Ball, LeastSquares, Logistic, algorithms, minimize
from isthmus.base.matrix import matmul
from isthmus.core.pipeline import Local
from isthmus.core.wire import State
from isthmus.privacy import Ledger

COMMON: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "clip": 0.3, "n": "exact", "output": "average"}
OPTIONS: dict[str, dict[str, Any]] = {
    "auto": {"step": "auto"},
    "moments": {"step": "auto", "scale": "moments"},
    "statistics": {"step": "auto", "scale": "moments", "precondition": True},
}


def table(n: int = 8000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Columns of very different scale, rows inside the unit ball."""
    rng = np.random.default_rng(seed)
    raw = rng.standard_normal((n, 6)) * np.geomspace(1, 0.02, 6) + 0.3
    X = raw / max(1.0, float(np.linalg.norm(raw, axis=1).max()))
    z = (X - X.mean(0)) / X.std(0)
    y = np.clip(z @ np.array([0.1, -0.1, 0.1, 0.1, -0.1, 0.1]) + 0.02 * rng.standard_normal(n), -1, 1)
    return X, y


@pytest.mark.parametrize("name", OPTIONS)
def test_what_is_bought_is_paid_for(name: str) -> None:
    ledger = Ledger(budget=(1.0, 1e-5))
    result = minimize(LeastSquares(*table()), algorithms.dp_gd(**COMMON, **OPTIONS[name]), steps=20, ledger=ledger)
    expected = {
        "auto": {"lambda": 1},
        "moments": {"scale": 1, "lambda": 1},
        "statistics": {"scale": 1, "statistics": 1},
    }
    assert ledger.rounds() == expected[name] | {"main": 20}
    assert 0.99 < result.privacy.epsilon <= 1.0
    assert result.privacy.epsilon == pytest.approx(ledger.spent(), rel=1e-9)


def test_buying_beats_plain_gradient_descent_on_badly_scaled_columns() -> None:
    X, y = table()
    held, truth = table(seed=1)
    scores = {}
    for name, options in {"plain": {"step": 1.0}, **OPTIONS}.items():
        recipe, steps = algorithms.dp_gd(**COMMON, **options), 20 if "precondition" in options else 60
        result = minimize(LeastSquares(X, y), recipe, steps=steps, record=None, noise_seed=0)
        rows = torch.from_numpy(held) if result.transform is None else result.transform(torch.from_numpy(held))
        rest = truth - matmul(rows, result.x).numpy()
        scores[name] = 1 - float((rest**2).mean() / truth.var())
    assert scores["moments"] > scores["plain"] + 0.2
    assert scores["statistics"] > scores["plain"] + 0.2


def test_sparse_columns_stay_sparse(monkeypatch: pytest.MonkeyPatch) -> None:
    X = sp.random(3000, 500, density=0.02, format="csr", random_state=0)
    X.data[:] = 1.0
    X = sp.csr_matrix(sp.diags_array(1 / np.sqrt(np.maximum(np.asarray(X.sum(1)).ravel(), 1))) @ X)
    y = np.where(np.asarray(X[:, :50].sum(1)).ravel() > 0, 1, -1)
    for kind in (sp.csr_matrix, sp.csr_array):
        monkeypatch.setattr(kind, "toarray", lambda self: pytest.fail("densified"))
    recipe = algorithms.dp_gd(**(COMMON | {"clip": 0.5}), step="auto", scale="columns")
    result = minimize(Logistic(X, y, classes=(-1, 1)), recipe, steps=20, record=None)
    assert result.privacy.private and result.x.shape == (500,)
    again = result.transform(X).plain()
    full = np.diff(X.indptr) > 0
    lengths = np.sqrt(np.asarray(again.multiply(again).sum(1))).ravel()
    assert sp.issparse(again) and float(np.abs(lengths - full).max()) < 1e-9


@pytest.mark.parametrize("size", [(500, 6), (2600, 2500)], ids=["gram", "lanczos"])
def test_one_record_moves_the_bought_lambda_max_by_at_most_one(size: tuple[int, int]) -> None:
    """Small and large data, and records that would move the cheap bounds of lambda_max by far more than 1."""
    from isthmus.algorithms import Budget
    from isthmus.algorithms.purchases import Lambda, Terms
    from isthmus.algorithms.purchases import _paid as buys
    from isthmus.core.minimize import Binding, PrivateSide
    from isthmus.objectives.linear import top_eigenvalue
    from isthmus.privacy import Charge

    n, d = size
    X = sp.random(n, d, density=min(1.0, 20 / d), format="csr", random_state=0)
    X = sp.csr_matrix(sp.diags_array(1 / np.sqrt(np.maximum(np.asarray(X.multiply(X).sum(1)).ravel(), 1e-9))) @ X)
    spread = sp.csr_matrix(np.full((1, d), 1 / math.sqrt(d)))
    single = sp.csr_matrix(([1.0], ([0], [0])), shape=(1, d))
    top = float(np.linalg.norm(X.toarray(), 2)) ** 2
    assert top_eigenvalue(X) == pytest.approx(top, rel=1e-9)
    budget = Budget(1.0, 1e-5, "add-remove", "exact")
    objective = LeastSquares(X, np.zeros(n))
    facts = Binding(isthmus.Whole(), objective.penalty, objective.space, n, 10, None)
    plan = budget.plan(facts, [Charge("lambda", share=0.02), Charge("steps", rounds=10, share=0.98)])
    (buy,) = buys(plan, [Lambda()], Terms(n, 10, 0.3, 0.27))

    def bought(rows: Any) -> float:
        side = PrivateSide(budget.promise(plan, facts), noise_seed=0)
        problem = LeastSquares(rows, np.zeros(rows.shape[0]))
        stage, space = buy.stage(problem)
        return float(side.look(stage, Local(problem), space))

    for record in (spread, single):
        assert abs(bought(sp.vstack([X, record]).tocsr()) - bought(X)) <= 1 + 1e-6


def test_a_resumed_run_does_not_buy_again(tmp_path: Path) -> None:
    objective, ledger = LeastSquares(*table()), Ledger(budget=(1.0, 1e-5))
    recipe = algorithms.dp_gd(**COMMON, **OPTIONS["moments"])
    half = minimize(objective, recipe, steps=20, ledger=ledger, record=1, callbacks=[lambda r, s: s.t == 8])
    half.state.save(tmp_path / "s")
    whole = minimize(objective, recipe, steps=20, ledger=ledger, resume=State.load(tmp_path / "s"))
    assert ledger.rounds() == {"scale": 1, "lambda": 1, "main": 20}
    assert whole.state.t == 20 and whole.transform is not None
    assert whole.privacy.epsilon == pytest.approx(ledger.spent(), rel=1e-9)


@pytest.mark.parametrize(
    "options, constraint, text",
    [
        ({"step": "fast"}, None, "step='fast'"),
        ({"step": "auto", "scale": "rows"}, None, "scale='rows'"),
        ({"step": "auto", "tau": 0.0}, None, "tau=0.0"),
        ({"step": "auto", "momentum": 0.5}, None, "momentum=0.5"),
        ({"step": "auto", "output": "random"}, None, "output='random'"),
        ({"step": "auto", "precondition": True}, L2Ball(1.0), "no proximal map"),
        ({"step": "auto", "scale": "moments"}, L2Ball(1.0), "scaled columns"),
    ],
)
def test_refusals(options: dict[str, Any], constraint: Any, text: str) -> None:
    with pytest.raises(isthmus.InvalidInput, match=text):
        minimize(LeastSquares(*table(50)), algorithms.dp_gd(**(COMMON | options)), constraint, steps=5)


def test_long_rows_are_clipped_by_the_public_map_not_refused() -> None:
    """An error that depends on one private row would say something about it."""
    X, y = table(50)
    result = minimize(LeastSquares(10 * X, y), algorithms.dp_gd(**COMMON, step="auto"), steps=5)
    assert result.privacy.private and float(result.transform(10 * X).dense().norm(dim=1).max()) <= 1 + 1e-12


def test_losses_without_curvature_cannot_be_preconditioned() -> None:
    X, y = table(50)
    ledger, hinge = Ledger(budget=(1.0, 1e-5)), isthmus.Hinge(X, np.sign(y + 1e-9), classes=(-1, 1))
    with pytest.raises(isthmus.InvalidInput, match="smooth loss"):
        minimize(hinge, algorithms.dp_gd(**COMMON, precondition=True), steps=5, ledger=ledger)
    assert ledger.rounds() == {}
    assert minimize(hinge, algorithms.dp_gd(**COMMON, step="auto"), steps=5, ledger=ledger).privacy.private


@pytest.mark.parametrize("options", [{"scale": "moments"}, {"scale": "moments", "precondition": True}])
def test_sparse_columns_are_centred_like_dense_ones(options: dict[str, Any]) -> None:
    X, y = table(400)
    X = np.where(np.random.default_rng(0).random(X.shape) < 0.6, X, 0.0)
    recipe = algorithms.dp_gd(**COMMON, step="auto", **options)
    dense, sparse = (minimize(LeastSquares(each, y), recipe, steps=5, noise_seed=1) for each in (X, sp.csr_matrix(X)))
    assert torch.allclose(dense.x, sparse.x, atol=1e-9)


def test_a_start_is_refused_before_anything_is_bought() -> None:
    X, y = table(50)
    ledger = Ledger(budget=(1.0, 1e-5))
    with pytest.raises(isthmus.InvalidInput, match="finds its own start"):
        recipe = algorithms.dp_gd(**COMMON, step="auto")
        minimize(LeastSquares(X, y), recipe, steps=5, x0=np.zeros(6), ledger=ledger)
    assert ledger.rounds() == {}
