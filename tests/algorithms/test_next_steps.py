"""Beyond the papers: shifts of senders (DIANA) for composite problems, and mirror descent on the simplex."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from isthmus import InvalidInput, LeastSquares, algorithms, minimize
from isthmus.core.wire import Wire
from isthmus.penalties import L1Penalty
from isthmus.sets import L2Ball, Simplex
from isthmus.sketches import CountSketch

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
