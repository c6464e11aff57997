"""The noise that a choice announces is the noise that its recipe makes: multipliers, and what margins get."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from cells import PRIVATE, objective, rows, targets

from isthmus import ConvexHull, L1Ball, LeastSquares, Whole, minimize, plan
from isthmus.core.minimize import Binding
from isthmus.penalties import NoPenalty

N, D = 600, 12
X = rows(N, D)
PUBLIC = rows(60, D, 9)


def pipeline(choice: Any, constraint: Any, n: Any = "exact") -> Any:
    """The pipeline that the recipe builds on a real problem."""
    problem = objective("logistic", X, targets(X, "logistic"))
    binding = Binding(constraint or Whole(), NoPenalty(), problem.space, N, choice.rounds, None)
    return choice.recipe(n=n, public=PUBLIC).bind(binding)


def released(pipe: Any) -> Any:
    """The number of the mechanism that a choice speaks of: the last stage's."""
    mechanism = pipe.stages[-1].releases[0].mechanism
    return getattr(mechanism, "multiplier", None) or mechanism.epsilon


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize("constraint", [None, L1Ball(2.0)])
def test_noise_multipliers_are_those_of_the_pipeline(adjacency: str, constraint: Any) -> None:
    facts = {"n": N, "d": D, "epsilon": 0.7, "adjacency": adjacency, "constraint": constraint, "public": PUBLIC}
    # batches of all records are accounted in closed form; real batches are in the next test
    ranked = plan(**facts, algorithms=list(PRIVATE), rounds=30, batch_size=N)
    assert len(ranked.choices) >= (13 if constraint is None else 12)
    for choice in ranked.choices:
        pipe = pipeline(choice, constraint)
        assert choice.noise_multiplier == pytest.approx(released(pipe), rel=1e-6), choice.name
        assert pipe.rounds == choice.rounds


@pytest.mark.parametrize("name", ["dp_sgd", "dp_svrg"])
def test_noise_multipliers_of_poisson_batches(name: str) -> None:
    choice = plan(n=N, d=D, epsilon=0.3, algorithms=[name], rounds=10).best
    assert choice.batch_size == 6
    assert choice.noise_multiplier == pytest.approx(released(pipeline(choice, None)), rel=1e-6)


def test_rough_multipliers_rank_and_are_near_the_exact_ones() -> None:
    facts = {"n": 20_000, "d": 50, "epsilon": 1.0, "algorithms": ["dp_sgd"]}
    rough, exact = (plan(**facts, exact=exact).best for exact in (False, True))
    assert rough.noise_multiplier == pytest.approx(exact.noise_multiplier, rel=0.1)
    assert rough.noise_multiplier != exact.noise_multiplier


def test_what_is_bought_before_is_counted() -> None:
    from isthmus.algorithms.purchases import ClassCounts, buying

    item = ClassCounts(share=0.2)
    ranked = plan(n=N, d=D, epsilon=1.0, before=0.2, algorithms=["dp_gd", "compressive_dp_sgd"], rounds=20)
    problem = objective("logistic", X, targets(X, "logistic"))
    for choice in ranked.choices:
        binding = Binding(Whole(), NoPenalty(), problem.space, N, choice.rounds, None)
        pipe = buying(choice.recipe(), [item]).bind(binding)
        assert choice.noise_multiplier == pytest.approx(released(pipe), rel=1e-6), choice.name


def test_an_estimated_number_of_records_changes_no_multiplier() -> None:
    choice = plan(n=N, d=D, epsilon=1.0, algorithms=["dp_sgd"], rounds=20, batch_size=N).best
    assert released(pipeline(choice, None, n=N)) == pytest.approx(choice.noise_multiplier, rel=1e-9)


# ---------------------------------------------------------------- noise alone


def noise_alone(choice: Any, n: int, d: int, public: Any = None) -> np.ndarray:
    """Where a run ends whose rows are all 0: a walk of nothing but noise, as margins of the unit rows e_j."""
    still = LeastSquares(np.zeros((n, d)), np.zeros(n))
    return minimize(still, choice.recipe(public=public), steps=choice.rounds, record=None, progress=False).x.numpy()


PLANS = [
    ("dp_gd (plain)", {"n": 50, "d": 1500}, 0.08),
    ("dp_sgd", {"n": 200, "d": 1500, "rounds": 20, "batch_size": 20}, 0.08),
    ("dp_comp_minibatch", {"n": 500, "d": 1000, "rounds": 40, "max_dims": 100, "batch_size": 500}, 0.15),
    ("priv_sgd", {"n": 500, "d": 1000, "rounds": 40, "max_dims": 200}, 0.15),
    ("dp_skgd", {"n": 500, "d": 1000, "rounds": 200, "batch_size": 500}, 0.25),
    ("dp_cd", {"n": 500, "d": 40, "rounds": 1000, "step": 1.0}, 0.4),
    ("dp_svrg", {"n": 500, "d": 1000, "rounds": 40, "batch_size": 500}, 0.15),
]


@pytest.mark.parametrize(("name", "facts", "tolerance"), PLANS)
def test_margin_noise_is_what_noise_alone_does(name: str, facts: dict[str, Any], tolerance: float) -> None:
    choice = plan(**facts, epsilon=0.5, loss="squared", algorithms=[name]).best
    assert choice.margin_noise is not None
    ratio = float(noise_alone(choice, facts["n"], facts["d"]).std()) / choice.margin_noise
    assert 1 - tolerance < ratio < 1 + tolerance


def test_noise_of_public_directions_stays_in_them() -> None:
    d, k = 300, 80
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((d, k)))[0]
    public = rows(400, k) @ basis.T
    facts = {"n": 500, "d": d, "epsilon": 1.0, "loss": "squared", "rounds": 30, "batch_size": 500}
    choice = plan(**facts, public=public, algorithms=["pdp_sgd"]).best
    assert choice.dims == k
    end = noise_alone(choice, 500, d, (public, np.ones(400)))
    assert np.abs(end - basis @ (basis.T @ end)).max() < 1e-9
    assert 0.75 < float((basis.T @ end).std()) / choice.margin_noise < 1.25


@pytest.mark.parametrize("name", ["dp_gd (plain)", "priv_sgd"])
def test_the_norm_of_the_noise_in_an_update(name: str) -> None:
    choice = plan(n=500, d=2000, epsilon=1.0, loss="squared", rounds=1, algorithms=[name]).best
    seen = np.linalg.norm(noise_alone(choice, 500, 2000)) / choice.arguments["step"]
    assert 0.8 < seen / choice.noise_norm < 1.2


@pytest.mark.parametrize("name", ["dp_gd (step bought)", "dp_gd (moments and step bought)"])
def test_bought_steps_cause_no_more_noise_than_is_announced(name: str) -> None:
    n, d = 2000, 8
    x, units = rows(n, d), torch.from_numpy(np.vstack([np.eye(d), -np.eye(d)]))
    # nothing to learn; where targets are centred by their distribution they must have one
    y = np.zeros(n) if "moments" not in name else np.random.default_rng(0).choice([-0.9, 0.9], n)
    choice = plan(n=n, d=d, epsilon=1.0, loss="squared", algorithms=[name], rounds=40).best
    margins = []
    for _ in range(6):
        result = minimize(LeastSquares(x, y), choice.recipe(), steps=40, record=None, progress=False)
        seen = result.transform(units).dense()
        margins.append((seen / torch.linalg.vector_norm(seen, dim=1, keepdim=True) @ result.x).numpy())
    noise = math.sqrt(np.var(margins, axis=0, ddof=1).mean())  # around the runs' mean, where chance in y is
    assert choice.margin_noise is not None
    assert 0.05 * choice.margin_noise < noise < choice.margin_noise


def test_a_hull_has_scores_as_long_as_its_vertices() -> None:
    hull = ConvexHull(3 * rows(5, D))
    choice = plan(n=N, d=D, epsilon=1.0, constraint=hull, algorithms=["dp_fw"], rounds=5).best
    assert choice.arguments["clip"] == pytest.approx(1.5) and choice.dims == 5
    assert choice.noise_norm is not None and math.isfinite(choice.noise_norm)
