"""Theorem E.1's output, approximate linear oracles (footnote 5) and Definition 8, against the loops of paper 001."""

from typing import Any

import numpy as np
import pytest
import torch

import isthmus
from isthmus import GaussianSketch, Identity, L1Ball, LeastSquares, NuclearBall, algorithms, minimize, theory
from isthmus.core.parts import Uniform
from isthmus.core.wire import Keys
from isthmus.lifts import compressed_gradient_mapping
from isthmus.parts import GapBelow, MappingBelow
from lab import theory as theorems

N, D = 60, 24


def problem() -> LeastSquares:
    rng = np.random.default_rng(1)
    X = rng.standard_normal((N, D)) / np.sqrt(D)
    w = np.zeros(D)
    w[:3] = [1.0, -0.5, 0.5]
    return LeastSquares(torch.tensor(X), torch.tensor(X @ w + 0.1 * rng.standard_normal(N)))


def constants(objective: LeastSquares, ball: Any) -> dict[str, float]:
    mu, diameter = objective.smoothness(), ball.diameter(objective.d)
    start = torch.zeros(objective.d, dtype=torch.float64)
    size = float(objective.gradient(start).norm()) + mu * diameter
    return {"smoothness": mu, "diameter": diameter, "gradient_bound": size, "gap": objective.loss(start)}


def papers_loop(objective: LeastSquares, plan: Any, m: int, rounds: int) -> tuple[np.ndarray | None, int]:
    """CompFW with the output of Theorem E.1: the first w_tau with <y, Phi (s - w)> >= -alpha, or none."""
    X, y, w = np.asarray(objective.X), np.asarray(objective.y), np.zeros(D)
    for t in range(rounds):
        phi = GaussianSketch(m).draw(D, seed=0, t=t).dense().numpy()
        drawn = Uniform(plan.batch_size).draw(N, t, Keys(0), 0)
        calls = [phi @ (X[i] * (X[i] @ w - y[i])) for i in drawn.tolist()]
        code = np.mean(calls, axis=0)
        scores = phi.T @ code
        j = int(np.argmax(np.abs(scores)))
        s = np.zeros(D)
        s[j] = -1.5 * np.sign(scores[j])
        if code @ (phi @ (s - w)) >= -plan.gap:
            return w, t
        w = w + plan.step(t) * (s - w)
    return None, rounds


@pytest.mark.parametrize(("accuracy", "found"), [(0.05, True), (0.005, False)])
def test_the_schedule_of_theorem_e1_ends_at_w_tau_or_without_a_point(accuracy: float, found: bool) -> None:
    objective, ball = problem(), L1Ball(1.5)
    plan = theory.stationary_fw_schedule(accuracy, **constants(objective, ball), noise=0.02 if found else 0.0)
    rounds = min(plan.rounds, 20)
    recipe = algorithms.comp_fw(schedule=plan, m=18, sketch=GaussianSketch)
    result = minimize(objective, recipe, ball, steps=rounds, record=None)
    w, tau = papers_loop(objective, plan, 18, rounds)
    assert (w is not None) == found and (result.x is not None) == found
    assert result.status == ("stopped" if found else "none found")
    if w is not None:
        assert 0 < tau == result.state.t - 1
        np.testing.assert_allclose(result.x.numpy(), w, atol=1e-12)
        g = objective.gradient(result.x)
        gap = float(g @ result.x + 1.5 * g.abs().max())  # <grad F(x), x - u> for the best vertex u
        assert result.certificate["gap"] == pytest.approx(gap, rel=1e-9)


# ---------------------------------------------------------------- an approximate linear oracle


@pytest.mark.parametrize("kind", ["flat", "low-rank", "decaying", "identity", "zero"])
@pytest.mark.parametrize("error", [1.0, 0.05, 1e-12])
def test_a_nuclear_ball_minimises_linear_functions_within_what_it_proves(kind: str, error: float) -> None:
    rng, (p, q) = np.random.default_rng(4), (48, 40)
    G = {
        "flat": rng.standard_normal((p, q)),
        "low-rank": rng.standard_normal((p, 2)) @ rng.standard_normal((2, q)),
        "decaying": rng.standard_normal((p, q)) * 0.7 ** np.arange(q),
        "identity": np.eye(p, q),
        "zero": np.zeros((p, q)),
    }[kind]
    ball = NuclearBall(3.0, shape=(p, q))
    s, short = ball.lmo_near(G, error)
    least = -3.0 * np.linalg.norm(G, 2)
    assert ball.gauge(s) <= 1 + 1e-12
    assert 0 <= short <= error and least - 1e-9 <= (G * s).sum() <= least + short + 1e-9


def test_theorem_e2_with_an_approximate_oracle() -> None:
    """F(w_T) - F* <= 4 (1 + delta / 2) mu ||C||^2 / T, and the certified gap bounds the exact one."""
    rng, shape = np.random.default_rng(5), (40, 36)
    X = rng.standard_normal((200, 40 * 36)) / 40
    truth = np.outer(rng.standard_normal(40), rng.standard_normal(36)) / 36
    objective = LeastSquares(torch.tensor(X), torch.tensor(X @ truth.ravel()))
    ball = NuclearBall(float(np.linalg.norm(truth, "nuc")), shape=shape)
    mu, diameter = objective.smoothness(), ball.diameter()
    allowed = theorems.oracle_error(1.0, smoothness=mu, diameter=diameter)
    seen = []

    class Watched(NuclearBall):
        def _lmo_near(self, g: torch.Tensor, error: float) -> tuple[torch.Tensor, float]:
            seen.append(super()._lmo_near(g, error))
            return seen[-1]

    loose = Watched(ball.radius, shape=shape)
    result = minimize(objective, algorithms.comp_fw(lmo_error=allowed), loose, steps=25, record=None)
    bound = theorems.convex_fw_rate(25, smoothness=mu, diameter=diameter, oracle=1.0)
    assert objective.loss(result.x) <= bound and any(short > 0 for _, short in seen)
    rest = {"smoothness": 1e-9, "diameter": 1.0, "gradient_bound": 1.0, "noise": 1e-9, "oracle_error": 0.5}
    told = theorems.stationary_fw_step_bound(1.0, step=0.5, beta=0.0, batch=1, **rest)
    assert told == pytest.approx(-0.25, abs=1e-6)
    step = minimize(objective, algorithms.comp_fw(lmo_error=allowed), loose, steps=1, record=None)
    start = torch.zeros(objective.d, dtype=torch.float64)
    exact = GapBelow(1.0, ball).certify(objective.gradient(start), start)["gap"]
    assert exact <= step.state.update["gap"] <= exact + allowed
    with pytest.raises(isthmus.InvalidInput, match="lmo_error=-1"):
        algorithms.comp_fw(lmo_error=-1.0)


# ---------------------------------------------------------------- Definition 8


def definition_8(phi: np.ndarray, g: np.ndarray, w: np.ndarray, eta: float, radius: float) -> float:
    """||(w - w+) / eta||: the projection onto Phi C, then of all w+ with that image the nearest, by Clarabel."""
    import cvxpy as cp

    u, target = cp.Variable(len(w)), phi @ w - eta * phi @ g
    first = cp.Problem(cp.Minimize(cp.sum_squares(phi @ u - target)), [cp.norm1(u) <= radius])
    first.solve(solver="CLARABEL")
    image = phi @ u.value
    inside = [cp.norm1(u) <= radius * (1 + 1e-9), phi @ u == image]
    cp.Problem(cp.Minimize(cp.sum_squares(u - w)), inside).solve(solver="CLARABEL")
    return float(np.linalg.norm(w - u.value) / eta)


@pytest.mark.parametrize("seed", range(3))
def test_the_compressed_gradient_mapping_is_definition_8(seed: int) -> None:
    objective, ball = problem(), L1Ball(1.0)
    w = ball.project(torch.randn(D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)))
    sketch, g = GaussianSketch(8).draw(D, seed=seed), objective.gradient(w)
    found = compressed_gradient_mapping(ball, sketch, sketch.forward(g), w, 0.5, tol=1e-12)
    expected = definition_8(sketch.dense().numpy(), g.numpy(), w.numpy(), 0.5, 1.0)
    assert float(found.norm()) == pytest.approx(expected, rel=2e-3, abs=1e-6)
    plain = compressed_gradient_mapping(ball, Identity().draw(D), g, w, 0.5, tol=1e-12)
    torch.testing.assert_close(plain, (w - ball.project(w - 0.5 * g)) / 0.5, rtol=0, atol=1e-6)


@pytest.mark.parametrize("rescale", [True, False])
def test_a_run_stops_at_the_first_small_mapping_and_certifies_it(rescale: bool) -> None:
    """Full batches: the rule and the certificate look at the same gradient, so that they say the same."""
    objective, ball = problem(), L1Ball(1.5)
    eta = 1 / (2 * objective.smoothness())
    rule = MappingBelow(0.05, ball, rescale=rescale)
    result = minimize(objective, algorithms.comp_gd(m=12, step=eta, stop=rule, tol=1e-8), ball, steps=150, record=None)
    assert result.status == "stopped" and result.certificate["compressed"] <= 0.05 * (1 + 1e-3)
    sketch = isthmus.sketches.CountSketch(12).draw(D, seed=0, t=result.state.t - 1)
    code = sketch.forward(objective.gradient(result.x))
    again = float(compressed_gradient_mapping(ball, sketch, code, result.x, eta).norm()) * (2**0.5 if rescale else 1)
    assert result.certificate["compressed"] == pytest.approx(again)
    assert {"gap", "mapping"} < set(result.certificate)
    unreached = algorithms.comp_gd(m=12, step=eta, stop=MappingBelow(1e-9, ball))
    never = minimize(objective, unreached, ball, steps=3, record=None)
    assert never.x is None and never.certificate == {}
