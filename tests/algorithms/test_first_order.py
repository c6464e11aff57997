"""The compressed first-order recipes: schedules, dimensions, outputs, clients, stop rules."""

from typing import Any

import numpy as np
import pytest
import torch
from refusals import refuses

import isthmus
from isthmus import InvalidInput, L1Ball, L2Ball, LeastSquares, Simplex, algorithms, codecs, minimize, theory
from isthmus.algorithms import WidthRule
from isthmus.core.minimize import EarlyStop
from isthmus.core.wire import Wire
from isthmus.penalties import L1Penalty
from isthmus.sketches import CountSketch, GaussianSketch


def problem(n: int = 60, d: int = 40, seed: int = 0) -> LeastSquares:
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((n, d)) / np.sqrt(d)
    w = np.zeros(d)
    w[:3] = [2.0, -1.0, 0.5]
    return LeastSquares(a, a @ w + 0.01 * rng.standard_normal(n))


def test_full_width_is_projected_gradient_descent() -> None:
    """With m = d the sketch is a rotation: project-and-lift is the projection."""
    objective, ball = problem(), L1Ball(2.0)
    plain = minimize(objective, algorithms.gd(step=2.0), ball, steps=10)
    rotated = minimize(objective, algorithms.comp_gd(m=40, step=2.0, tol=1e-10), ball, steps=10)
    torch.testing.assert_close(plain.x, rotated.x, rtol=0, atol=1e-5)


def test_the_width_rule_by_step_and_by_epoch() -> None:
    ball, d = L1Ball(1.0), 4000
    width = float(ball.gaussian_width(d))
    by_step = WidthRule(constant=2.0).rule(ball, d, per_epoch=10)
    assert [by_step(t) for t in (0, 1, 2)] == [theory.narrow_dimension(d, width, 1 / (t + 1), 2.0) for t in (0, 1, 2)]
    by_epoch = WidthRule(constant=2.0, per="epoch").rule(ball, d, per_epoch=10)
    assert by_epoch(9) == by_step(0) and by_epoch(10) == by_step(1)
    assert by_step(10**6) == d


def test_a_schedule_fills_step_dimension_rounds_and_stop() -> None:
    objective, ball = problem(), L2Ball(3.0)
    mu = objective.smoothness()
    facts = {"smoothness": mu, "diameter": 6.0, "gradient_bound": 3.0}
    schedule = theory.stationary_schedule(2.0, **facts, noise=0.0, gap=2.0, failure=0.5)
    result = minimize(objective, algorithms.comp_gd(schedule=schedule), ball)
    assert result.status == "stopped" and result.state.t <= schedule.rounds
    assert result.certificate["gap"] <= 2.0  # the alpha of the theorem, checked on the full gradient
    convex = theory.convex_schedule(6.0, 3.0)
    steps = minimize(objective, algorithms.comp_sgd(schedule=convex, batch_size=10), ball, steps=4, record=1)
    width = float(ball.gaussian_width(40))
    dims = [convex.dimension(t, 40, width) for t in range(4)]
    assert [record["dims"] for record in steps.history] == [0, *np.cumsum(dims).tolist()]


def test_the_rescaled_stationarity_rule_does_not_fire_early() -> None:
    """At m = d/8 the printed rule stops at a point whose mapping is far above the rule; the rescaled one does not."""
    objective, ball = problem(200, 160, seed=2), L2Ball(5.0)
    from isthmus.parts import FirstOrderStationary

    mappings = {}
    for rescale in (True, False):
        stop = FirstOrderStationary(0.02, ball, rescale=rescale)
        recipe = algorithms.comp_gd(m=20, step=1 / objective.smoothness(), stop=stop)
        result = minimize(objective, recipe, ball, steps=3000, record=None)
        assert result.status == "stopped"
        mappings[rescale] = result.certificate["mapping"]
    assert mappings[True] < mappings[False]


def test_minibatches_are_fresh_subsets_of_a_growing_size() -> None:
    objective = problem()
    recipe = algorithms.comp_minibatch(m=10, step=0.5, batch_size=lambda t: min(60, 2 + t))
    result = minimize(objective, recipe, L1Ball(2.0), steps=80)
    assert result.history[-1]["loss"] < result.history[0]["loss"]
    with pytest.raises(InvalidInput, match="batch_size=61"):
        minimize(objective, algorithms.comp_minibatch(m=10, step=0.5, batch_size=61), steps=1)


def test_clients_send_sketches() -> None:
    """All clients, no codec: the same as one machine; some clients a round: still goes down, and counts its bytes."""
    objective, ball = problem(), L1Ball(3.0)
    shards = [LeastSquares(objective.X[i::6], objective.y[i::6]) for i in range(6)]
    together = minimize(objective, algorithms.comp_gd(m=10, step=2.0), ball, steps=20, seed=1)
    apart = minimize(objective, algorithms.comp_dist_sgd(m=10, step=2.0), ball, steps=20, seed=1, clients=shards)
    torch.testing.assert_close(together.x, apart.x, rtol=0, atol=1e-10)
    recipe = algorithms.comp_dist_sgd(m=10, step=1.0, clients_per_round=2, batch_size=5, error_feedback=True)
    some = minimize(objective, recipe, ball, steps=200, seed=1, clients=shards)
    assert some.bytes == 200 * 2 * 10 * 8
    assert some.history[-1]["loss"] < 0.3 * some.history[0]["loss"]


def test_a_codec_by_its_name() -> None:
    """The name, the codec and its JSON are one recipe, with the same bytes; and it still goes down."""
    objective, ball = problem(), L1Ball(3.0)
    shards = [LeastSquares(objective.X[i::6], objective.y[i::6]) for i in range(6)]
    runs = [
        minimize(objective, algorithms.comp_dist_sgd(m=10, step=0.5, codec=codec), ball, steps=60, clients=shards)
        for codec in ("qsgd", codecs.QSGD(), {"codec": "qsgd"}, "bfloat16")
    ]
    assert torch.equal(runs[0].x, runs[1].x) and torch.equal(runs[0].x, runs[2].x)
    assert runs[0].bytes == runs[1].bytes < 60 * 6 * 10 * 2 < runs[3].bytes < 60 * 6 * 10 * 4
    assert all(run.history[-1]["loss"] < 0.6 * run.history[0]["loss"] for run in runs)


def test_the_kappa_of_the_schedule_is_obeyed() -> None:
    """As many clients as the theorem says, drawn with replacement; a number or rule of one's own goes before it."""
    objective, ball = problem(), L1Ball(3.0)
    shards = [LeastSquares(objective.X[i::6], objective.y[i::6]) for i in range(6)]
    plan = theory.distributed_convex_schedule(6.0, 5.0, 1.0, clients=4)

    def sent(**more: Any) -> list[int]:
        recipe = algorithms.comp_dist_sgd(m=10, **{"schedule": plan, **more})
        result = minimize(objective, recipe, ball, steps=4, clients=shards, record=1)
        numbers = [record["dims"] for record in result.history]
        return [(after - before) // 10 for before, after in zip(numbers, numbers[1:], strict=False)]

    assert sent() == [4, 4, 4, 4]
    assert sent(schedule=theory.convex_schedule(6.0, 5.0)) == [1, 1, 1, 1]  # Corollary D.2, parts 1-3 allow kappa = 1
    assert sent(clients_per_round=3) == [3, 3, 3, 3] and sent(clients_per_round=lambda t: t + 1) == [1, 2, 3, 4]
    assert sent(schedule=None, step=0.1) == [6, 6, 6, 6]
    with pytest.raises(InvalidInput, match=r"per_round\(0\)=0"):
        sent(clients_per_round=lambda t: t)


def test_early_stop() -> None:
    objective = problem()
    stop = EarlyStop(patience=3, min_delta=1e-6)
    result = minimize(objective, algorithms.gd(step=1.0), L1Ball(0.5), steps=2000, record=10, callbacks=[stop])
    assert result.status == "interrupted" and result.state.t < 2000


def test_the_family_of_sketches_is_free() -> None:
    objective, ball = problem(), L1Ball(3.0)
    for family in (GaussianSketch, lambda m: GaussianSketch(m, scaling="jl"), isthmus.SRHT, isthmus.SparseJL):
        result = minimize(objective, algorithms.comp_gd(m=20, step=1.0, sketch=family), ball, steps=60)
        assert result.history[-1]["loss"] < 0.5 * result.history[0]["loss"]


test_refusals = refuses(
    (lambda: algorithms.comp_sgd(step=0.1), "m=None"),
    (lambda: algorithms.comp_sgd(m=5), "step=None"),
    (lambda: algorithms.comp_sgd(m=5, step=-1.0), "step=-1.0"),
    (lambda: algorithms.comp_gd(m=5, step=1.0, refresh=0), "refresh=0"),
    (lambda: algorithms.sgd(step=1.0, output="best"), "output='best'"),
    (lambda: algorithms.comp_minibatch(m=5, step=1.0), "batch_size=None"),
    (lambda: algorithms.comp_dist_sgd(m=5, step=1.0, clients_per_round=0), "clients_per_round=0"),
    (lambda: algorithms.comp_dist_sgd(m=5, step=1.0, codec="zip"), "codec='zip'.*'qsgd'"),
    (lambda: WidthRule(constant=0.0), "constant=0.0"),
    (lambda: WidthRule(per="week"), "per='week'"),
    (lambda: EarlyStop(patience=0), "patience=0"),
)


def test_a_run_without_an_end_is_refused() -> None:
    with pytest.raises(InvalidInput, match="does not say how long"):
        minimize(problem(), algorithms.gd(step=1.0))


# ---------------------------------------------------------------- shifts of senders (DIANA) for composite problems


D, M, STEP, LAMBDA = 6, 3, 0.1, 0.01


def shards(penalty: Any = None) -> tuple[LeastSquares, list[LeastSquares]]:
    """A problem whose clients disagree."""
    draws = np.random.default_rng(0)
    X = [draws.standard_normal((20, D)) / 2 for _ in range(M)]
    y = [x @ (draws.standard_normal(D) * (np.arange(D) < 3)) for x in X]
    parts = [LeastSquares(a, b, penalty=penalty) for a, b in zip(X, y, strict=True)]
    return LeastSquares(np.vstack(X), np.concatenate(y), penalty=penalty), parts


def test_shifts_are_those_of_diana() -> None:
    """g_i - h_i is sent; h_i += alpha Q; the server steps along H + mean Q and H += alpha mean Q; then the prox."""
    whole, parts = shards(L1Penalty(LAMBDA))
    recipe = algorithms.comp_dist_sgd(m=2, step=STEP, shifts=True)
    result = minimize(whole, recipe, clients=parts, steps=15, seed=3, record=None)
    w, H, h, alpha = torch.zeros(D).double(), torch.zeros(D).double(), torch.zeros(M, D).double(), 2 / D
    for t in range(15):
        sketch = CountSketch(2).draw(D, seed=3, t=t)
        sent = torch.stack([sketch.forward(part.gradient(w) - h[i]) for i, part in enumerate(parts)])
        news = torch.stack([sketch.pinv(code) / sketch.coverage for code in sent])
        h += alpha * news
        moved = w - STEP * (H + news.mean(0))
        H = H + alpha * news.mean(0)
        w = moved.sign() * (moved.abs() - STEP * LAMBDA).clamp(min=0)
    torch.testing.assert_close(result.x, w, rtol=0, atol=1e-10)
    torch.testing.assert_close(result.state.update["shift"], h.mean(0), rtol=0, atol=1e-10)


@pytest.mark.parametrize("codec", [None, "qsgd"])
def test_with_shifts_a_compressed_run_ends_at_the_minimiser(codec: str | None) -> None:
    """Clients that disagree have gradients at the minimiser, which a sketch without shifts keeps shaking."""
    whole, parts = shards(L1Penalty(LAMBDA))
    best = minimize(whole, algorithms.gd(step=1 / whole.smoothness()), steps=400, record=None).x
    step = 0.3 / whole.smoothness()
    left = {}
    for shifts in (True, False):
        recipe = algorithms.comp_dist_sgd(m=3, step=step, shifts=shifts, codec=codec)
        x = minimize(whole, recipe, clients=parts, steps=300, record=None).x
        left[shifts] = float((x - best).norm())
    assert left[True] < 1e-3 < 1e-2 < left[False]


def test_what_shifts_cannot_be_combined_with_is_refused() -> None:
    with pytest.raises(InvalidInput, match="every sender answers"):
        algorithms.comp_dist_sgd(m=2, step=0.1, shifts=True, clients_per_round=2)
    with pytest.raises(InvalidInput, match="not both"):
        algorithms.comp_gd(m=2, step=0.1, shifts=True, error_feedback=True)
    with pytest.raises(InvalidInput, match="shift=2"):
        Wire(shift=2.0)


# ---------------------------------------------------------------- mirror descent


def test_mirror_steps_multiply() -> None:
    objective, w = shards()[0], torch.full((D,), 2 / D).double()
    result = minimize(objective, algorithms.mirror_descent(step=0.7, output="last"), Simplex(2.0), steps=5, record=None)
    for _ in range(5):
        w = w * torch.exp(-0.7 * objective.gradient(w))
        w = 2 * w / w.sum()
    torch.testing.assert_close(result.x, w, rtol=1e-8, atol=0)
    assert Simplex(2.0).contains(result.x)


def test_mirror_descent_finds_the_best_mixture_compressed_and_private_too() -> None:
    draws = np.random.default_rng(1)
    X = draws.standard_normal((400, 8)) / 3
    objective = LeastSquares(X, X @ np.array([0.7, 0.3, 0, 0, 0, 0, 0, 0]))
    exact = minimize(objective, algorithms.mirror_descent(step=2.0, output="last"), Simplex(), steps=400, record=None)
    assert objective.loss(exact.x) < 1e-4
    short = algorithms.mirror_descent(step=1.0, m=4, output="last")
    assert objective.loss(minimize(objective, short, Simplex(), steps=250, record=None).x) < 1e-3
    for budget, most in ((1e4, 1e-3), (2.0, 5e-2)):
        private = algorithms.dp_mirror_descent(epsilon=budget, clip=1.0, step=2.0, n="exact", output="last 20")
        result = minimize(objective, private, Simplex(), steps=100, record=None, noise_seed=0)
        assert objective.loss(result.x) < most and Simplex().contains(result.x)
    with pytest.raises(InvalidInput, match=r"give Simplex\(radius\), over which mirror descent runs"):
        minimize(objective, algorithms.mirror_descent(step=1.0), L2Ball(1.0), steps=1)
    with pytest.raises(InvalidInput, match="no proximal map"):
        minimize(shards(L1Penalty(0.1))[0], algorithms.mirror_descent(step=1.0), Simplex(), steps=1)
