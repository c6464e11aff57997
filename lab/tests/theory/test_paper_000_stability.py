"""Measured uniform stability: paired runs against the theorems' growth."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from isthmus import InvalidInput, L1Ball, L2Ball, LeastSquares, Logistic, algorithms
from isthmus.theory import goal_schedule
from lab.theory import (
    Stability,
    dimension_at,
    nonsmooth_divergence,
    replace_record,
    smooth_divergence_path,
    uniform_stability,
)

N, D = 40, 24


def squares() -> LeastSquares:
    """Rows of norm 1 and targets in [-1, 1]: on the unit l2 ball the loss is 2-Lipschitz and 1-smooth."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((N, D))
    return LeastSquares(X / np.linalg.norm(X, axis=1, keepdims=True), rng.uniform(-1, 1, N))


def beta(t: int) -> float:
    return 1 / (t + 2)


def test_gradient_descent_by_hand() -> None:
    """On (w - y)^2 / 2 the iterates are linear in y: the distance is (change / n) (1 - (1 - eta)^t)."""
    pair = LeastSquares(np.ones((4, 1)), np.zeros(4)), LeastSquares(np.ones((4, 1)), np.array([0.0, 0.0, 0.0, 2.0]))
    measured = uniform_stability(pair, algorithms.gd(step=0.3), steps=12, seeds=(0, 1))
    assert measured.distances.shape == (2, 1, 13)
    np.testing.assert_allclose(measured.worst, 0.5 * (1 - 0.7 ** np.arange(13)), atol=1e-12)


@pytest.mark.parametrize("m", [4, 12, None])
def test_comp_gd_grows_no_faster_than_theorem_5(m: int | None) -> None:
    """Smooth CompGD at a constant step: below the bound at every round, and with a smaller exponent of t."""
    plan = goal_schedule("comp_gd", "generalisation", smoothness=1.0, n=N, rounds=40)
    size = m if m is not None else (lambda t: dimension_at(t, D, 1.5, offset=2))
    recipe = algorithms.comp_gd(m=size, step=plan.step)
    measured = uniform_stability(squares(), recipe, L2Ball(1.0), steps=40, replaced=(0, 11, 30), seeds=range(3))
    bound = smooth_divergence_path(40, n=N, lipschitz=2.0, step=plan.step, beta=beta)
    assert (measured.worst <= bound).all() and measured.worst[-1] > 0
    assert measured.growth(start=5) < Stability(bound[None, None]).growth(start=5)


def test_comp_sgd_is_paired_by_its_seed() -> None:
    """Same sketches, same batches: nothing moves apart before the replaced record is drawn."""
    recipe = algorithms.comp_sgd(m=6, step=0.2, batch_size=4)
    measured = uniform_stability(squares(), recipe, L1Ball(1.0), steps=N // 4, replaced=(5,), seeds=range(6))
    for path in measured.distances[:, 0]:
        first = int(np.flatnonzero(path)[0])
        assert (path[:first] == 0).all()
    assert len({int(np.flatnonzero(path)[0]) for path in measured.distances[:, 0]}) > 1


def test_an_unchanged_record_moves_nothing() -> None:
    sample = squares()
    same = uniform_stability((sample, squares()), algorithms.comp_gd(m=5, step=0.3), L1Ball(1.0), steps=8)
    assert (same.distances == 0).all()


def test_a_function_makes_the_neighbours() -> None:
    sample = squares()

    def make(index: int | None) -> LeastSquares:
        return sample if index is None else replace_record(sample, index, (torch.zeros(D), 1.0))

    recipe = algorithms.gd(step=0.5)
    made = uniform_stability(make, recipe, steps=5, replaced=(2, 3))
    by_hand = uniform_stability((sample, make(3)), recipe, steps=5)
    np.testing.assert_array_equal(made.distances[:, 1], by_hand.distances[:, 0])


def test_replace_record_leaves_the_sample_alone() -> None:
    rng = np.random.default_rng(0)
    sample = Logistic(rng.standard_normal((6, 3)), np.array(["no", "yes"] * 3), classes=("no", "yes"), l2=0.1)
    before = sample.X.clone()
    other = replace_record(sample, 1)
    assert torch.equal(sample.X, before) and torch.equal(other.X[1], sample.X[4]) and other.y[1] == sample.y[4]
    assert other.penalty == sample.penalty and other.n == 6


def test_growth_and_worst() -> None:
    t = np.arange(20.0)
    both = Stability(np.stack([[t**0.5, t], [t**0.5, 3 * t]]))
    np.testing.assert_allclose(both.worst, 2 * t)
    assert both.growth() == pytest.approx(1.0)
    with pytest.raises(InvalidInput):
        both.growth(start=19)


def test_refusals() -> None:
    sample, recipe = squares(), algorithms.gd(step=0.1)
    bad = [
        lambda: uniform_stability(sample, recipe, steps=0),
        lambda: uniform_stability(sample, recipe, steps=3, seeds=()),
        lambda: uniform_stability(sample, recipe, steps=3, replaced=()),
        lambda: uniform_stability(sample, recipe, steps=3, replaced=(N,)),
        lambda: uniform_stability((sample,), recipe, steps=3),
        lambda: uniform_stability(3.0, recipe, steps=3),
        lambda: uniform_stability((sample, LeastSquares(np.eye(4), np.zeros(4))), recipe, steps=3),
        lambda: replace_record(object(), 0),
    ]
    for call in bad:
        with pytest.raises(InvalidInput):
            call()


def test_stability_of_private_runs_needs_shared_noise_and_meets_theorem_13() -> None:
    """Two runs that share their noise are as far apart as (63) says, whatever the noise is."""
    objective, steps, eta = squares(), 20, 0.05
    recipe = algorithms.priv_sgd(epsilon=1.0, m=10, clip=1.0, step=eta, n="exact", adjacency="replace-one")
    with pytest.raises(InvalidInput, match="noise_seed=None"):
        uniform_stability(objective, recipe, L2Ball(5.0), steps=steps)
    measured = uniform_stability(
        objective, recipe, L2Ball(5.0), steps=steps, replaced=range(3), seeds=range(3), noise_seed=1
    )
    limit = nonsmooth_divergence(steps, n=objective.n, lipschitz=1.0, step=lambda t: eta)
    assert 0 < measured.worst[-1] <= limit
    apart = uniform_stability(objective, recipe, L2Ball(5.0), steps=steps, seeds=[0], noise_seed=2)
    assert apart.worst[-1] < 0.2  # noise of this size, not shared, moves the points by more than 1
