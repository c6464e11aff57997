"""CompFW: vertices without a lift, the bound of Theorem E.2, away steps, line searches, the gap stop."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import isthmus
from isthmus import CountSketch, L1Ball, LeastSquares, NuclearBall, Simplex, algorithms, minimize, theory
from isthmus.parts import FrankWolfe
from lab import theory as theorems


def problem(kind: str) -> tuple[LeastSquares, Any]:
    rng = np.random.default_rng(3)
    n, d = 80, 60
    a = rng.standard_normal((n, d)) / np.sqrt(d)
    if kind == "l1":
        w = np.zeros(d)
        w[:4] = [3.0, -2.0, 1.0, -1.0]
        return LeastSquares(a, a @ w), L1Ball(5.0)
    if kind == "simplex":
        w = rng.dirichlet(np.ones(d) * 0.1)
        return LeastSquares(a, a @ w + 0.05 * rng.standard_normal(n)), Simplex(1.0)
    w = np.outer(rng.standard_normal(6), rng.standard_normal(10)).ravel()
    return LeastSquares(a, a @ w), NuclearBall(0.7 * float(np.linalg.norm(w)), shape=(6, 10))


@cache
def best(kind: str) -> float:
    """F* by projected gradient to convergence."""
    objective, constraint = problem(kind)
    result = minimize(objective, algorithms.gd(step=1 / objective.smoothness()), constraint, steps=3000, record=None)
    return objective.loss(result.x)


def facts(objective: LeastSquares, constraint: Any) -> dict[str, float]:
    mu, diameter = objective.smoothness(), constraint.diameter(objective.d)
    start = constraint.project(torch.zeros(objective.d, dtype=torch.float64))
    return {
        "smoothness": mu,
        "diameter": diameter,
        "gradient_bound": float(objective.gradient(start).norm()) + mu * diameter,
    }


@pytest.mark.parametrize("kind", ["l1", "simplex", "nuclear"])
@pytest.mark.parametrize("compressed", [False, True])
def test_the_bound_of_theorem_e2(kind: str, compressed: bool) -> None:
    """F(w_T) - F* <= 4 mu ||C||^2 / T with the theorem's schedule, at several T."""
    objective, constraint = problem(kind)
    known, optimum = facts(objective, constraint), best(kind)
    schedule = theory.convex_fw_schedule(**known, noise=0.0)
    recipe = algorithms.comp_fw(schedule=schedule, batch_size=objective.n) if compressed else algorithms.comp_fw()
    for rounds in (20, 100, 300):
        result = minimize(objective, recipe, constraint, steps=rounds, record=None)
        bound = theorems.convex_fw_rate(rounds, smoothness=known["smoothness"], diameter=known["diameter"])
        assert objective.loss(result.x) - optimum <= bound
        assert constraint.contains(result.x)


@pytest.mark.parametrize("kind", ["l1", "simplex"])
def test_the_vertex_for_the_sketched_gradient_is_the_vertex_over_the_image(kind: str) -> None:
    """argmin over Phi C of <y, theta> is Phi s with s = C.lmo(Phi' y): compared over all vertices."""
    objective, constraint = problem(kind)
    sketch = CountSketch(20).draw(60, seed=1)
    y = sketch.forward(objective.gradient(torch.ones(60, dtype=torch.float64)))
    s = constraint.lmo(sketch.adjoint(y))
    eye = torch.eye(60, dtype=torch.float64) * constraint.radius
    vertices = torch.cat([eye, -eye]) if kind == "l1" else eye
    images = torch.stack([sketch.forward(vertex) for vertex in vertices])
    assert float(y @ sketch.forward(s)) == pytest.approx(float((images @ y).min()))


def test_away_steps_converge_linearly_where_plain_frank_wolfe_does_not() -> None:
    """An optimum inside a face: away steps reach 1e-9 while the plain method is still at 1/T."""
    objective, constraint = problem("simplex")
    optimum = best("simplex")
    gaps = {}
    for name, options in {"plain": {}, "away": {"away": True}}.items():
        recipe = algorithms.comp_fw(line_search="line", **options)
        result = minimize(objective, recipe, constraint, steps=250, record=None)
        gaps[name] = objective.loss(result.x) - optimum
        assert constraint.contains(result.x)
    assert gaps["away"] < 1e-9 < gaps["plain"]


@pytest.mark.parametrize("rule", ["open", "short", "line"])
def test_step_rules(rule: str) -> None:
    objective, constraint = problem("l1")
    recipe = algorithms.comp_fw(line_search=rule, smoothness=objective.smoothness())
    result = minimize(objective, recipe, constraint, steps=100, record=1)
    losses = [record["loss"] for record in result.history]
    assert losses[-1] < 0.2 * losses[0]
    if rule != "open":  # these never go up
        assert all(later <= earlier + 1e-12 for earlier, later in zip(losses, losses[1:], strict=False))


def test_away_weights_describe_the_iterate() -> None:
    objective, constraint = problem("simplex")
    result = minimize(objective, algorithms.comp_fw(away=True, line_search="line"), constraint, steps=60, record=None)
    memo = result.state.update
    assert float(memo["weights"].sum()) == pytest.approx(1.0)
    assert bool((memo["weights"] > 0).all())
    torch.testing.assert_close(memo["weights"] @ memo["atoms"], result.x)


def test_the_gap_stop_returns_a_true_stationary_point_or_none() -> None:
    objective, constraint = problem("l1")
    result = minimize(objective, algorithms.comp_fw(alpha=0.02), constraint, steps=5000, record=None)
    assert result.status == "stopped" and result.certificate["gap"] <= 0.02
    compressed = minimize(objective, algorithms.comp_fw(m=50, alpha=0.05), constraint, steps=3000, record=None)
    if compressed.x is None:
        assert compressed.status == "none found"
    else:
        assert compressed.certificate["gap"] <= 0.05
    never = minimize(objective, algorithms.comp_fw(m=5, alpha=1e-9), constraint, steps=20, record=None)
    assert never.x is None and never.status == "none found" and never.certificate == {}


REFUSED = [
    (lambda: FrankWolfe(isthmus.Whole()), TypeError, "no lmo"),
    (lambda: FrankWolfe(L1Ball(), rule="best"), isthmus.InvalidInput, "rule='best'"),
    (lambda: FrankWolfe(L1Ball(), rule="short"), isthmus.InvalidInput, "smoothness=None"),
    (lambda: FrankWolfe(L1Ball(), rule="line"), isthmus.InvalidInput, "loss=None"),
    (lambda: algorithms.comp_fw(alpha=0.0), isthmus.InvalidInput, "alpha=0.0"),
]


@pytest.mark.parametrize("build, error, text", REFUSED)
def test_refusals(build: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        build()
