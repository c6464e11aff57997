"""Paper 003: constants of linear models, samplings, Theorems 4.1 and 4.2, Table 1 and section 4.3."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from isthmus import InvalidInput
from isthmus.theory import (
    Loops,
    convex_block_loops,
    expected_smoothness,
    importance_probabilities,
    sampling_probabilities,
    smoothness_ratios,
    strongly_convex_block_loops,
)
from lab.theory import (
    block_convex_utility,
    block_gain,
    block_lipschitz,
    block_noise,
    block_strongly_convex_utility,
    component_noise,
    component_smoothness,
    convex_block_bound,
    matrix_block_bound,
    nice_noise,
    sampling_noise,
    strongly_convex_block_bound,
    weighted_radius,
)

BLOCKS = [[0, 2], [1], [3, 4]]
M = np.array([1.0, 8.0, 2.0, 4.0, 0.5])
L = np.array([2.0, 1.0, 3.0])
GAP = np.array([1.0, 0.1, 2.0, 0.3, 1.5])
BUDGET = {"n": 200, "epsilon": 0.5, "delta": 1e-5}


# ---------------------------------------------------------------- constants of linear models


@pytest.mark.parametrize("rows", [None, 1.0, 3.0])
def test_component_smoothness_is_a_matrix_bound(rng: np.random.Generator, rows: float | None) -> None:
    """h x x' <= Diag(M) for every x in the box (and ball); within blocks for the block-wise constants."""
    columns, h = np.array([0.1, 1.0, 2.0, 0.5]), 0.25
    blocks = [[0, 2], [1, 3]]
    whole = component_smoothness(columns, curvature=h, rows=rows)
    within = component_smoothness(columns, curvature=h, rows=rows, blocks=blocks)
    worst = math.inf
    for _ in range(300):
        x = columns * rng.choice([-1.0, 1.0, 0.3], size=4)
        if rows is not None:
            x = x * min(1.0, rows / np.linalg.norm(x))
        worst = min(worst, np.linalg.eigvalsh(np.diag(whole) - h * np.outer(x, x))[0])
        for block in blocks:
            sub = np.diag(within[block]) - h * np.outer(x[block], x[block])
            worst = min(worst, np.linalg.eigvalsh(sub)[0])
    assert -1e-12 < worst < 1e-2  # holds, and is nearly attained


def test_coordinate_constants_are_not_component_smoothness() -> None:
    """h B_j^2, the M_j of DP-CD, fails Assumption 3.6 at x = B as soon as d > 1."""
    columns = np.array([1.0, 2.0, 3.0])
    single = component_smoothness(columns, curvature=1.0, blocks=[[0], [1], [2]])
    np.testing.assert_allclose(single, columns**2)
    assert np.linalg.eigvalsh(np.diag(single) - np.outer(columns, columns))[0] < -1
    np.testing.assert_allclose(component_smoothness(columns, curvature=1.0, ridge=0.5), 6 * columns + 0.5)


def test_block_lipschitz_bounds_the_block_gradient(rng: np.random.Generator) -> None:
    columns = np.array([0.1, 1.0, 2.0, 0.5, 0.7])
    bounds = block_lipschitz(columns, BLOCKS, rows=1.5)
    for _ in range(200):
        x = columns * rng.uniform(-1, 1, 5)
        x = x * min(1.0, 1.5 / np.linalg.norm(x))
        for block, bound in zip(BLOCKS, bounds, strict=True):
            assert np.linalg.norm(x[block]) / (1 + math.exp(rng.normal())) <= bound  # logistic slope
    np.testing.assert_allclose(block_lipschitz(columns, [[0], [1]], slope=2.0), [0.2, 2.0])


# ---------------------------------------------------------------- samplings


def test_probabilities() -> None:
    q = importance_probabilities(M, BLOCKS)
    np.testing.assert_allclose(q, np.array([2, 8, 4]) / 14)
    np.testing.assert_allclose(importance_probabilities(M), M / M.sum())
    np.testing.assert_allclose(
        sampling_probabilities("block", 5, blocks=BLOCKS, chances=q), np.array([2, 8, 2, 4, 4]) / 14
    )
    np.testing.assert_allclose(sampling_probabilities("block", 5, blocks=BLOCKS), 1 / 3)
    np.testing.assert_allclose(sampling_probabilities("single", 5), 0.2)
    np.testing.assert_allclose(sampling_probabilities("single", 2, chances=[0.3, 0.7]), [0.3, 0.7])
    np.testing.assert_allclose(sampling_probabilities("nice", 5, tau=3), 0.6)
    np.testing.assert_allclose(sampling_probabilities("full", 5), 1)


def test_importance_bounds_the_ratios() -> None:
    """M P^-1 <= I sum_i max M_j, with equality at each block's largest M_j."""
    p = sampling_probabilities("block", 5, blocks=BLOCKS, chances=importance_probabilities(M, BLOCKS))
    ratios = smoothness_ratios(M, p)
    assert ratios.max() == pytest.approx(14)
    np.testing.assert_allclose(ratios[[2, 1, 3]], 14)


def test_noise_of_a_partition_does_not_see_the_chances() -> None:
    by_hand = 4 * (1 + 0.5) + 1 / 8 + 9 * (0.25 + 2)
    assert block_noise(L, M, BLOCKS) == pytest.approx(by_hand)
    for chances in (None, [0.2, 0.3, 0.5], importance_probabilities(M, BLOCKS)):
        assert sampling_noise(BLOCKS, L, M, chances) == pytest.approx(by_hand)
    assert block_noise([3.0], M) == pytest.approx(9 * (1 / M).sum())


@pytest.mark.parametrize("tau", [1, 2, 3, 5])
def test_nice_sampling_by_enumeration(tau: int) -> None:
    single = np.array([1.0, 0.5, 2.0, 3.0, 0.1])
    subsets = [list(s) for s in itertools.combinations(range(5), tau)]
    bounds = [math.sqrt((single[s] ** 2).sum()) for s in subsets]
    assert nice_noise(tau, single, M) == pytest.approx(sampling_noise(subsets, bounds, M))
    assert nice_noise(1, [2.0], [4.0]) == 1


def test_noise_is_the_second_moment_of_the_sketch(rng: np.random.Generator) -> None:
    """E ||C L_S 1||^2_{P M^-1} by sampling blocks."""
    q = np.array([0.2, 0.3, 0.5])
    p = sampling_probabilities("block", 5, blocks=BLOCKS, chances=q)
    values = np.array([L[i] ** 2 * (p[b] / M[b] / p[b] ** 2).sum() for i, b in enumerate(BLOCKS)])
    draws = values[rng.choice(3, size=50_000, p=q)]
    assert draws.mean() == pytest.approx(block_noise(L, M, BLOCKS), abs=5 * draws.std() / math.sqrt(50_000))


def test_radius() -> None:
    p = np.array([0.5, 1.0, 0.25, 0.5, 0.5])
    assert weighted_radius(GAP, M, p) ** 2 == pytest.approx((M * GAP**2 / p).sum())
    assert weighted_radius(GAP, M, p) <= weighted_radius(float(np.linalg.norm(GAP)), M, p)
    assert weighted_radius(GAP, np.ones(5)) == pytest.approx(np.linalg.norm(GAP))


# ---------------------------------------------------------------- Theorems 4.1 and 4.2


def test_theorem_4_1() -> None:
    sigma = component_noise(2.0, 100, 60, epsilon=0.5, delta=1e-5)
    assert sigma**2 == pytest.approx(12 * 4 * 60 * math.log(1e5) / (100 * 0.5) ** 2)
    with pytest.raises(InvalidInput):
        component_noise(2.0, 100, 60, epsilon=13.0, delta=1e-5)


def test_convex_rule() -> None:
    """13 R Sigma sqrt(log) / (n eps) at the theorem's K; 2 sqrt(12) at K / sqrt(12), which is the best."""
    problem = {"n": 10**6, "noise": 2.0, "radius": 3.0, "epsilon": 0.5, "delta": 1e-5}
    loops = convex_block_loops(**problem)  # type: ignore[arg-type]
    unit = 6 * math.sqrt(math.log(1e5)) / 5e5
    K = loops.inner
    assert loops.outer == 1 and K == math.ceil(9 / unit)
    bound = {k: convex_block_bound(k, **problem) for k in (K, round(K / 12**0.5), K // 3, K // 4)}  # type: ignore[arg-type]
    assert bound[K] == pytest.approx(13 * unit, rel=1e-4)
    assert (
        bound[round(K / 12**0.5)]
        == pytest.approx(2 * math.sqrt(12) * unit, rel=1e-4)
        == pytest.approx(min(bound.values()))
    )
    assert convex_block_loops(1, noise=100.0, radius=1.0, epsilon=0.1, delta=1e-5) == Loops(1)


def test_convex_bound_holds_on_a_quadratic(rng: np.random.Generator) -> None:
    """DP-SkGD as printed on f = ||w||^2_M / 2 with importance sampling, 3000 runs: the average iterate's loss."""
    q = importance_probabilities(M, BLOCKS)
    p = sampling_probabilities("block", 5, blocks=BLOCKS, chances=q)
    n, eps, delta, K, runs = 60, 1.0, 1e-3, 40, 3000
    sigma = np.array([component_noise(b, n, K, epsilon=eps, delta=delta) for b in L])
    inside = np.zeros((3, 5))
    for i, block in enumerate(BLOCKS):
        inside[i, block] = 1
    w, total = np.tile(GAP, (runs, 1)), np.zeros((runs, 5))
    for _ in range(K):
        i = rng.choice(3, size=runs, p=q)
        noisy = M * w + sigma[i, None] * rng.standard_normal((runs, 5))
        w = w - (p / M) * (inside[i] / p) * noisy
        total += w
    loss = 0.5 * (M * (total / K) ** 2).sum(1).mean()
    noise, radius = math.sqrt(block_noise(L, M, BLOCKS)), weighted_radius(GAP, M, p)
    bound = convex_block_bound(K, n=n, noise=noise, radius=radius, epsilon=eps, delta=delta)
    sharper = radius**2 / (2 * K) + (bound - radius**2 / K)
    assert 0.01 * bound < loss < sharper < bound


def test_corrected_inner_loop_halves_the_gap() -> None:
    """The printed K = 2 (1 + 1/(mu max M/p)) is near 2: not even a contraction."""
    p = sampling_probabilities("block", 5, blocks=BLOCKS)
    problem = {"smoothness": M, "probabilities": p, "strong_convexity": 0.5}
    cost = {"noise": 1.5, "gap": 10.0, "epsilon": 0.5, "delta": 1e-5}
    loops = strongly_convex_block_loops(2000, **problem, **cost)  # type: ignore[arg-type]
    c = 8 * 3 / 0.5
    assert loops.inner == 2 * (1 + c)
    level = (1 + c) * 2.25 * math.log(1e5) / 1000**2
    assert loops.outer == math.ceil(math.log2(10 / level))
    bound = strongly_convex_block_bound(loops, n=2000, **problem, **cost)  # type: ignore[arg-type]
    T = loops.outer
    expected = 10 / 2**T + (2 - 2 / 2**T) * 24 * T * level
    assert bound == pytest.approx(expected)
    assert bound < (1 + 48 * T) * level  # the display with 24 (1 + T) is below the proof's own terms
    assert bound > 24 * (1 + T) * level
    printed = Loops(math.ceil(2 * (1 + 1 / (0.5 * 24))), T)
    with pytest.raises(InvalidInput):
        strongly_convex_block_bound(printed, n=2000, **problem, **cost)  # type: ignore[arg-type]
    assert strongly_convex_block_loops(1, **problem, **cost).outer == 1  # type: ignore[arg-type]


# ---------------------------------------------------------------- Table 1


def test_convex_table_by_hand() -> None:
    common = math.sqrt(math.log(1e5)) / 100
    problem = {"smoothness": M, "difference": GAP, "blocks": BLOCKS, **BUDGET}
    spread, r_m, r_i = math.sqrt(block_noise(L, M, BLOCKS)), weighted_radius(GAP, M), float(np.linalg.norm(GAP))
    rows = {
        "uniform": spread * r_m * math.sqrt(3),
        "block": spread * r_m * math.sqrt(3),
        "importance": spread * r_i * math.sqrt(14),
    }
    for row, value in rows.items():
        assert block_convex_utility(row, lipschitz=L, **problem) == pytest.approx(common * value)
    full = 2 * math.sqrt((1 / M).sum()) * r_m
    assert block_convex_utility("full", lipschitz=[2.0], **problem) == pytest.approx(common * full)
    single = np.arange(1.0, 6.0)
    cd = math.sqrt((single**2 / M).sum()) * r_m * math.sqrt(5)
    assert block_convex_utility("dp_cd", lipschitz=single, **problem) == pytest.approx(common * cd)
    for row in ("dp_sgd", "dp_svrg"):
        value = block_convex_utility(row, lipschitz=[2.0], **problem)
        assert value == pytest.approx(common * 2 * math.sqrt(5) * r_i)


def test_importance_row_is_above_its_exact_form() -> None:
    problem = {"smoothness": M, "difference": GAP, "blocks": BLOCKS, "lipschitz": L, **BUDGET}
    exact = block_convex_utility("block", chances=importance_probabilities(M, BLOCKS), **problem)
    assert exact <= block_convex_utility("importance", **problem)


def test_strongly_convex_table_by_hand() -> None:
    common = math.log(1e5) / (100**2 * 0.25)
    problem = {"smoothness": M, "blocks": BLOCKS, "strong_convexity": 0.25, **BUDGET}
    spread = block_noise(L, M, BLOCKS)
    rows = {"uniform": spread * 8 * 3, "block": spread * 8 * 3, "importance": spread * 14}
    for row, value in rows.items():
        assert block_strongly_convex_utility(row, lipschitz=L, **problem) == pytest.approx(common * value)
    q = importance_probabilities(M, BLOCKS)
    assert block_strongly_convex_utility("block", lipschitz=L, chances=q, **problem) == pytest.approx(
        block_strongly_convex_utility("importance", lipschitz=L, **problem)
    )
    full = block_strongly_convex_utility("full", lipschitz=[2.0], **problem)
    assert full == pytest.approx(common * 4 * (1 / M).sum() * 8)
    assert block_strongly_convex_utility("dp_sgd", lipschitz=[2.0], **problem) == pytest.approx(common * 4 * 5)
    single = np.arange(1.0, 6.0)
    cd = block_strongly_convex_utility("dp_cd", lipschitz=single, **problem)
    assert cd == pytest.approx(common * (single**2 / M).sum() * 5)


def test_importance_row_needs_its_square() -> None:
    """Utility is homogeneous of degree 2 in L in every row; the printed importance row on blocks is of degree 1."""
    problem = {"smoothness": M, "blocks": BLOCKS, "strong_convexity": 0.25, **BUDGET}
    first, second = (block_strongly_convex_utility("importance", lipschitz=s * L, **problem) for s in (1.0, 2.0))
    assert second == pytest.approx(4 * first)


# ---------------------------------------------------------------- section 4.3


def test_gain_over_dp_sgd_reaches_the_root_of_d() -> None:
    d = 400
    M1, start = np.ones(d), np.zeros(d)
    M1[0], start[0] = 1e-8, 1.0
    options = {"lipschitz": [1.0], "other_lipschitz": [1.0]}
    assert block_gain("full", smoothness=M1, difference=start, **options) == pytest.approx(20, rel=1e-4)
    assert block_gain("full", smoothness=np.full(d, 3.0), difference=start + 1, **options) == pytest.approx(1)
    assert block_gain("full", smoothness=M1, difference=start + 1, **options) < 1e-1  # the same M, the wrong start


def test_gain_of_importance_over_dp_cd_reaches_the_root_of_d() -> None:
    d = 400
    M1, start, bounds = np.full(d, 1e-8), np.full(d, 1e-6), np.ones(d)
    M1[0], start[0] = 1.0, 1.0
    both = {"over": "dp_cd", "lipschitz": bounds, "other_lipschitz": bounds}
    assert block_gain("importance", smoothness=M1, difference=start, **both) == pytest.approx(20, rel=1e-4)
    assert block_gain("importance", smoothness=np.ones(d), difference=start, **both) == pytest.approx(1)


def test_gains_never_pass_the_root_of_d(rng: np.random.Generator) -> None:
    for _ in range(200):
        d = int(rng.integers(1, 30))
        M1, start, bounds = (np.exp(3 * rng.standard_normal(d)) for _ in range(3))
        full = block_gain("full", smoothness=M1, difference=start, lipschitz=[1.0], other_lipschitz=[1.0])
        importance = block_gain(
            "importance", over="dp_cd", smoothness=M1, difference=start, lipschitz=bounds, other_lipschitz=bounds
        )
        assert max(full, importance) <= math.sqrt(d) * (1 + 1e-12)


def test_blocks_beat_dp_sgd_without_limit() -> None:
    """What is left to learn lies in a block of small L_U: the gain grows as L / L_2."""
    gains = [
        block_gain(
            "block",
            smoothness=[1.0, 1.0, small**2],
            difference=[0.0, 0.0, 1.0],
            blocks=[[0, 1], [2]],
            lipschitz=[small, small],
            other_lipschitz=[1.0],
        )
        for small in (1e-2, 1e-4)
    ]
    assert gains[1] / gains[0] == pytest.approx(100, rel=1e-3)


# ---------------------------------------------------------------- bad input

CONVEX = {"smoothness": M, "difference": GAP, "blocks": BLOCKS, "lipschitz": L, **BUDGET}
STRONG = {"smoothness": M, "probabilities": np.full(5, 0.5), "strong_convexity": 1.0, "noise": 1.0, "gap": 1.0}


@pytest.mark.parametrize(
    "call",
    [
        lambda: component_smoothness([1.0, -1.0], curvature=1.0),
        lambda: component_smoothness([[1.0]], curvature=1.0),  # type: ignore[list-item]
        lambda: component_smoothness([1.0, 1.0], curvature=1.0, blocks=[[0]]),
        lambda: component_smoothness([1.0, 1.0], curvature=1.0, rows=0.0),
        lambda: block_lipschitz([1.0, 1.0], [[0, 2]]),
        lambda: block_lipschitz([1.0, 1.0], [[]]),
        lambda: importance_probabilities(M, [[0, 1], [1, 2, 3]]),
        lambda: sampling_probabilities("serial", 3),
        lambda: sampling_probabilities("block", 3),
        lambda: sampling_probabilities("nice", 3),
        lambda: sampling_probabilities("nice", 3, tau=4),
        lambda: sampling_probabilities("single", 2, chances=[0.5, 0.6]),
        lambda: sampling_probabilities("single", 2, chances=[1.0]),
        lambda: sampling_noise([[0], [1]], [1.0, 1.0], [1.0, 1.0, 1.0]),
        lambda: block_noise([1.0], M, BLOCKS),
        lambda: nice_noise(6, np.ones(5), M),
        lambda: weighted_radius([1.0], M),
        lambda: weighted_radius(-1.0, M),
        lambda: smoothness_ratios(M, np.full(5, 1.5)),
        lambda: component_noise(1.0, 10, 0, epsilon=1.0, delta=1e-5),
        lambda: convex_block_loops(10, noise=0.0, radius=1.0, epsilon=1.0, delta=1e-5),
        lambda: convex_block_bound(0, n=10, noise=1.0, radius=1.0, epsilon=1.0, delta=1e-5),
        lambda: strongly_convex_block_loops(10, **{**STRONG, "gap": 0.0}, epsilon=1.0, delta=1e-5),
        lambda: strongly_convex_block_loops(10, **STRONG, epsilon=1.0, delta=2.0),
        lambda: block_convex_utility("adam", **CONVEX),
        lambda: block_convex_utility("uniform", **{**CONVEX, "epsilon": -1.0}),
        lambda: block_strongly_convex_utility(
            "uniform", smoothness=M, lipschitz=L, blocks=BLOCKS, strong_convexity=0.0, **BUDGET
        ),
        lambda: block_gain("full", smoothness=M, lipschitz=[1.0], other_lipschitz=[1.0], difference=np.zeros(5)),
    ],
)
def test_bad_input(call: Callable[[], object]) -> None:
    with pytest.raises(InvalidInput):
        call()


LAWS: dict[str, tuple[list[list[int]], list[float]]] = {
    "single": ([[0], [1], [2], [3], [4]], [0.2] * 5),
    "overlapping": ([[0, 1, 2], [2, 3], [3, 4], [0, 4]], [0.4, 0.3, 0.2, 0.1]),
    "nice": ([list(s) for s in itertools.combinations(range(5), 3)], [0.1] * 10),
    "full": ([[0, 1, 2, 3, 4]], [1.0]),
}


@pytest.mark.parametrize("name", LAWS)
def test_the_bound_of_a_matrix_holds_on_a_quadratic(name: str, rng: np.random.Generator) -> None:
    """The mean of the inner iterates over many runs of the paper's loop, noise of Theorem 4.1 included."""
    (subsets, q), inner = LAWS[name], 30
    root = rng.standard_normal((5, 5)) * np.geomspace(0.3, 2.0, 5)
    M = root.T @ root / 5
    v = expected_smoothness(M, subsets, q)
    p = sampling_probabilities("block", 5, blocks=subsets, chances=q)
    L, budget = np.ones(len(subsets)), {"n": 50, "epsilon": 1.0, "delta": 1e-5}
    sigma = np.sqrt(12 * inner * np.log(1e5)) / 50
    gaps, start = [], np.ones(5)
    for _ in range(200):
        w, total = start.copy(), np.zeros(5)
        for _ in range(inner):
            S = subsets[rng.choice(len(subsets), p=q)]
            w[S] -= (M @ w + sigma * rng.standard_normal(5))[S] / v[S]
            total += w
        gaps.append(total @ M @ total / inner**2 / 2)
    noise = sampling_noise(subsets, L, v, q) ** 0.5
    options: dict[str, Any] = {"noise": noise, "radius": weighted_radius(start, v, p), **budget}
    promised = matrix_block_bound(inner, gap=start @ M @ start / 2, probabilities=p, **options)
    assert np.mean(gaps) < promised < 60 * np.mean(gaps)
    if name == "full":
        assert promised <= convex_block_bound(inner, **options)
