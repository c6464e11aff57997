"""The noise that a choice announces is the noise that its recipe makes: multipliers, and what margins get."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from cells import objective, rows, targets

from isthmus import ConvexHull, L1Ball, LeastSquares, minimize
from isthmus.penalties import NoPenalty
from isthmus.planner import PRIVATE, plan
from isthmus.sets import Whole
from isthmus.solve import Binding

N, D = 600, 12
X = rows(N, D)
PUBLIC = rows(60, D, 9)


def pipeline(choice: Any, constraint: Any, n: Any = "exact") -> Any:
    """The pipeline that the recipe builds on a real problem."""
    made = objective("logistic", X, targets(X, "logistic"))
    binding = Binding(constraint or Whole(), NoPenalty(), made.space, N, choice.rounds, None)
    return choice.recipe(n=n, public=PUBLIC).bind(binding)


def released(pipe: Any) -> Any:
    """The number of the mechanism that a choice speaks of: the last stage's."""
    mechanism = pipe.stages[-1].releases[0].mechanism
    return getattr(mechanism, "multiplier", None) or mechanism.epsilon


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize("constraint", [None, L1Ball(2.0)])
def test_noise_multipliers_are_those_of_the_pipeline(adjacency: str, constraint: Any) -> None:
    asked = list(PRIVATE) if adjacency == "add-remove" else [name for name in PRIVATE if name != "dp_svrg"]
    found = plan(
        n=N, d=D, epsilon=0.7, adjacency=adjacency, constraint=constraint, public=PUBLIC, algorithms=asked, rounds=30
    )
    assert len(found.choices) >= (12 if constraint is None else 11)
    for choice in found.choices:
        pipe = pipeline(choice, constraint)
        assert choice.noise_multiplier == pytest.approx(released(pipe), rel=1e-6), choice.name
        assert pipe.rounds == choice.rounds


def test_what_is_bought_before_is_counted() -> None:
    from isthmus.algorithms.prepared import buying
    from isthmus.algorithms.purchases import ClassCounts

    item = ClassCounts(share=0.2)
    found = plan(n=N, d=D, epsilon=1.0, before=0.2, algorithms=["dp_gd", "dp_sgd", "compressive_dp_sgd"], rounds=20)
    made = objective("logistic", X, targets(X, "logistic"))
    for choice in found.choices:
        binding = Binding(Whole(), NoPenalty(), made.space, N, choice.rounds, None)
        pipe = buying(choice.recipe(), [item]).bind(binding)
        assert choice.noise_multiplier == pytest.approx(released(pipe), rel=1e-6), choice.name


def test_an_estimated_number_of_records_changes_no_multiplier() -> None:
    choice = plan(n=N, d=D, epsilon=1.0, algorithms=["dp_sgd"], rounds=20).best
    assert released(pipeline(choice, None, n=N)) == pytest.approx(choice.noise_multiplier, rel=1e-9)


# ---------------------------------------------------------------- noise alone


def noise_alone(choice: Any, n: int, d: int, public: Any = None) -> np.ndarray:
    """Where a run ends whose rows are all 0: a walk of nothing but noise, as margins of the unit rows e_j."""
    still = LeastSquares(np.zeros((n, d)), np.zeros(n))
    return minimize(still, choice.recipe(public=public), steps=choice.rounds, record=None, progress=False).x.numpy()


@pytest.mark.parametrize(
    ("name", "facts", "tolerance"),
    [
        ("dp_gd (plain)", {"n": 50, "d": 3000}, 0.05),
        ("dp_sgd", {"n": 1000, "d": 1500, "rounds": 60}, 0.08),
        ("dp_comp_minibatch", {"n": 1000, "d": 1000, "rounds": 60, "max_dims": 100}, 0.12),
        ("priv_sgd", {"n": 500, "d": 1000, "rounds": 60, "max_dims": 200}, 0.12),
        ("dp_skgd", {"n": 1000, "d": 1500, "rounds": 200}, 0.15),
        ("dp_cd", {"n": 1000, "d": 40, "rounds": 3000, "step": 1.0}, 0.35),
        ("dp_svrg", {"n": 1000, "d": 1500, "rounds": 60}, 0.12),
    ],
)
def test_margin_noise_is_what_noise_alone_does(name: str, facts: dict[str, Any], tolerance: float) -> None:
    choice = plan(**facts, epsilon=1.0, loss="squared", algorithms=[name]).best
    assert choice.margin_noise is not None
    ratio = float(noise_alone(choice, facts["n"], facts["d"]).std()) / choice.margin_noise
    assert 1 - tolerance < ratio < 1 + tolerance


def test_noise_of_public_directions_stays_in_them() -> None:
    d, k = 400, 6
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((d, k)))[0]
    public = rows(80, k) @ basis.T
    choice = plan(n=1000, d=d, epsilon=1.0, loss="squared", public=public, rounds=60, algorithms=["pdp_sgd"]).best
    assert choice.dims == k
    # gradients of rows of 0 would span nothing: the directions come from the public rows alone
    ends = [noise_alone(choice, 1000, d, (public, np.ones(80))) for _ in range(30)]
    inside = np.concatenate([end @ basis for end in ends])
    assert np.abs(np.stack(ends) - np.stack(ends) @ basis @ basis.T).max() < 1e-9
    assert 0.8 < inside.std() / choice.margin_noise < 1.2


def test_the_norm_of_the_noise_in_an_update() -> None:
    d = 2000
    for name in ("dp_gd (plain)", "dp_sgd", "dp_comp_minibatch"):
        choice = plan(n=1000, d=d, epsilon=1.0, loss="squared", rounds=1, algorithms=[name]).best
        step = choice.arguments["step"]
        seen = np.linalg.norm(noise_alone(choice, 1000, d)) / step
        assert 0.8 < seen / choice.noise_norm < 1.2, name


def test_bought_steps_never_cause_more_noise_than_is_announced() -> None:
    n, d = 3000, 8
    x = rows(n, d)
    y = np.zeros(n)
    x0 = np.vstack([np.eye(d), -np.eye(d)])  # unit rows: margins are the coefficients
    for name in ("dp_gd (step bought)", "dp_gd (moments and step bought)"):
        choice = plan(n=n, d=d, epsilon=1.0, loss="squared", algorithms=[name]).best
        margins = []
        for _ in range(12):
            found = minimize(LeastSquares(x, y), choice.recipe(), steps=choice.rounds, record=None, progress=False)
            seen = found.transform(torch.from_numpy(x0))
            unit = seen.dense() if hasattr(seen, "dense") else seen
            unit = unit / torch.linalg.vector_norm(unit, dim=1, keepdim=True)
            margins.append((unit @ found.x).numpy())
        assert choice.margin_noise is not None
        assert float(np.concatenate(margins).std()) < 1.2 * choice.margin_noise, name


def test_a_hull_has_scores_as_long_as_its_vertices() -> None:
    hull = ConvexHull(3 * rows(5, D))
    choice = plan(n=N, d=D, epsilon=1.0, constraint=hull, algorithms=["dp_fw"], rounds=5).best
    assert choice.arguments["clip"] == pytest.approx(1.5) and choice.dims == 5
    assert choice.noise_norm is not None and math.isfinite(choice.noise_norm)
