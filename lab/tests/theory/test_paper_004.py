"""Paper 004: Theorems 1 to 6 by hand, against simulated public gradients, and in their limits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from isthmus import Ellipsoid, InvalidInput, L1Ball, L2Ball
from isthmus.theory import subspace_schedule
from lab.theory import (
    concentration_scale,
    eigen_gap_condition,
    ellipsoid_gamma2,
    fresh_moment_deviation,
    gap_moment,
    minkowski_gamma2,
    moment_deviation,
    moment_level,
    projected_second_moment,
    public_samples,
    subspace_convex_bound,
    subspace_convex_noise,
    subspace_convex_projection,
    subspace_convex_rate,
    subspace_error,
    subspace_noise,
    subspace_perturbation,
    subspace_stationary_bound,
    subspace_stationary_noise,
    subspace_stationary_projection,
    subspace_stationary_rate,
)

BUDGET = {"epsilon": 0.5, "delta": math.exp(-4)}


def top_space(matrix: np.ndarray, k: int) -> np.ndarray:
    return np.linalg.eigh(matrix)[1][:, -k:]


# ---------------------------------------------------------------- Theorems 2, 3 and 5


def test_scale_by_hand() -> None:
    scale = concentration_scale(math.ceil(math.e**4), gradient_bound=2.0, smoothness=3.0, gamma2=0.5, constant=2.0)
    assert scale == pytest.approx(2 * 2 * (1.5 + 2) * math.sqrt(math.log(55)))
    assert concentration_scale(2, gradient_bound=2.0, smoothness=3.0, gamma2=0.0) == 4  # one iterate: G^2, not 0


def test_scale_is_the_printed_one_for_wide_sets() -> None:
    """G rho gamma_2 sqrt(ln p) of the paper, once the set of iterates is wide."""
    problem = {"gradient_bound": 2.0, "smoothness": 3.0, "gamma2": 1e9}
    assert concentration_scale(10_000, **problem) == pytest.approx(6e9 * math.sqrt(math.log(10_000)), rel=1e-8)


def test_deviation_and_level_by_hand() -> None:
    assert moment_deviation(64, 4.0, level=3.0) == 1.5
    failure, constant = 0.01, 5.0
    assert constant * math.exp(-(moment_level(failure, constant) ** 2) / 4) == pytest.approx(failure)
    assert moment_level(0.5, 0.1) == 0  # the statement is empty there


def test_fresh_deviation_holds(rng: np.random.Generator) -> None:
    """Theorem 5 on gradients of length G in R^4: the failure rate stays below the one asked for."""
    d, m, bound, failure = 4, 300, 2.0, 0.2
    sigma = bound**2 * np.diag([0.5, 0.3, 0.15, 0.05])
    limit = fresh_moment_deviation(m, d=d, gradient_bound=bound, failure=failure)
    failed, largest = 0, 0.0
    for _ in range(200):
        axis = rng.choice(d, size=m, p=np.diag(sigma) / bound**2)
        moment = bound**2 * np.diag(np.bincount(axis, minlength=d) / m)
        off = np.linalg.norm(moment - sigma, 2)
        failed, largest = failed + (off > limit), max(largest, off)
    assert failed <= failure * 200
    assert limit < 20 * largest  # and it is not empty
    assert fresh_moment_deviation(1, d=d, gradient_bound=bound, failure=failure) == bound**2


def test_perturbation_bounds_the_distance(rng: np.random.Generator) -> None:
    worst = 0.0
    for _ in range(200):
        d, k = 6, int(rng.integers(1, 6))
        sigma = np.diag(np.sort(rng.exponential(size=d))[::-1])
        noise = rng.normal(size=(d, d)) * rng.choice([1e-3, 1e-2, 0.1])
        moment = sigma + (noise + noise.T) / 2
        gap = sigma[k - 1, k - 1] - sigma[k, k]
        v, w = top_space(sigma, k), top_space(moment, k)
        distance = np.linalg.norm(v @ v.T - w @ w.T, 2)
        deviation = np.linalg.norm(moment - sigma, 2)
        bound = subspace_perturbation(deviation, gap)
        assert distance <= bound + 1e-12 <= min(1, 2 * deviation / gap) + 2e-12
        worst = max(worst, distance / bound)
    assert worst > 0.5  # no factor to spare


def test_perturbation_is_nearly_attained() -> None:
    """A rotation by theta moves diag(1, 0) by sin theta, and its top direction by sin theta too."""
    theta = 0.01
    v = np.array([math.cos(theta), math.sin(theta)])
    deviation = np.linalg.norm(np.outer(v, v) - np.diag([1.0, 0.0]), 2)
    assert math.sin(theta) <= subspace_perturbation(deviation, 1.0) <= 1.02 * math.sin(theta)


def test_public_samples_make_the_condition_true() -> None:
    gaps, scale = [0.7, 0.31, 2.0], 1.7
    m = public_samples(gaps, scale)
    assert m == math.ceil((2 * 1.7 / 0.31) ** 2)
    assert eigen_gap_condition(gaps, m, scale) and not eigen_gap_condition(gaps, m - 1, scale)
    assert public_samples(100.0, 1.0) == 1


@pytest.mark.parametrize("error", [1.0, 0.5, 0.01])
def test_samples_and_error_are_inverse(error: float) -> None:
    m = public_samples(0.3, 2.0, error=error)
    assert subspace_error(m, 0.3, 2.0) <= error < subspace_error(max(1, m - 2), 0.3, 2.0) + 1e-9


def test_error_falls_with_samples_and_gap() -> None:
    errors = [subspace_error(m, 0.5, 1.0) for m in (1, 10, 100, 1000, 10_000)]
    assert errors[0] == 1 and all(a >= b for a, b in zip(errors, errors[1:], strict=False))
    assert errors[-1] == pytest.approx(0.04)
    assert subspace_error(10**4, 1.0, 1.0) < subspace_error(10**4, 0.5, 1.0) < subspace_error(10**4, 0.5, 2.0)


@pytest.mark.parametrize(("power", "decay"), [(2, 0.25), (1, 0.5)])
def test_decaying_gaps_cost_root_t(power: int, decay: float) -> None:
    """alpha_t = t^(-1/4) (Theorem 4) and t^(-1/2) (Theorem 6): Lambda is about (2/3) sqrt(T)."""
    gaps = np.arange(1, 10_001) ** -decay
    assert gap_moment(gaps, power) == pytest.approx(2 / 3 * 100, rel=0.01)
    assert gap_moment(0.5, power) == 2**power


# ---------------------------------------------------------------- gamma_2 of ellipsoids


def test_ellipsoid_is_its_width() -> None:
    axes = 1 / np.sqrt(np.arange(1, 1001))
    width = Ellipsoid(axes).gaussian_width(1000).value
    assert ellipsoid_gamma2(axes) == width <= np.linalg.norm(axes) <= math.sqrt(1 + math.log(1000))
    assert ellipsoid_gamma2(axes, count=20, constant=3.0) == pytest.approx(3 * math.sqrt(1 + math.log(20)) * width)


def test_round_ellipsoid_is_a_ball(rng: np.random.Generator) -> None:
    lengths = np.linalg.norm(rng.normal(size=(20_000, 5)), axis=1)
    assert ellipsoid_gamma2([2.0] * 5) == pytest.approx(2 * lengths.mean(), rel=0.02)


# ---------------------------------------------------------------- noise


def test_schedule_and_noise_at_it() -> None:
    plan = subspace_schedule(1000, 0.5)
    assert (plan.rounds, plan.step(0), plan.step(7), plan.beta) == (250_000, 0.002, 0.002, None)
    assert subspace_schedule(1, 0.1).rounds == 1
    sigma = [
        subspace_noise(n, subspace_schedule(n, 0.5).rounds or 0, gradient_bound=3.0, constant=2.0, **BUDGET)
        for n in (100, 1000)
    ]
    assert sigma == pytest.approx([math.sqrt(2 * 4) * 3] * 2)  # free of n
    assert subspace_noise(100, 400, gradient_bound=1.0, **BUDGET) == pytest.approx(
        2 * subspace_noise(100, 100, gradient_bound=1.0, **BUDGET)
    )


def test_second_moment_of_a_noisy_projection(rng: np.random.Generator) -> None:
    """E ||V V'(g + b)||^2 for g in the subspace attains G^2 + k sigma^2."""
    basis = np.linalg.qr(rng.normal(size=(8, 3)))[0]
    g = basis @ np.array([1.0, 2.0, 2.0])
    steps = (g + 0.7 * rng.normal(size=(100_000, 8))) @ basis
    bound = projected_second_moment(3, gradient_bound=3.0, sigma=0.7)
    assert (steps**2).sum(1).mean() == pytest.approx(bound, rel=0.01)


# ---------------------------------------------------------------- Theorem 4


def test_stationary_terms_by_hand() -> None:
    problem: dict[str, Any] = {"k": 5, "smoothness": 2.0, "gradient_bound": 3.0, "sigma": 2.0, "gap": 1.5}
    assert subspace_stationary_noise(400, **problem) == pytest.approx(2 * 1.5 / 20 + 2 * (9 + 5 * 4) / 20)
    assert subspace_stationary_noise(400, step=0.01, **problem) == pytest.approx(3 / 4 + 2 * 0.01 * 29)
    projection = subspace_stationary_projection(50, k=5, d=90, gradient_bound=3.0, scale=0.1, gaps=[1.0, 0.5])
    assert projection == pytest.approx(8 * 2.5 * 9 * 0.01 / 50)
    assert subspace_stationary_bound(1.0, projection, residual=0.25) == pytest.approx(1.25 * (1 + projection))


def test_stationary_bound_holds_for_projected_descent(rng: np.random.Generator) -> None:
    """f = ||w||^2 / 2 on the ball where ||grad|| <= G, V^ = V fixed: (3) with projection term 0, by simulation."""
    d, k, rounds, sigma, bound = 10, 3, 400, 0.5, 3.0
    eta = 1 / math.sqrt(rounds)
    start = np.zeros(d)
    start[:k] = 1.0
    total, reach = 0.0, 0.0
    for _ in range(20):
        w = start.copy()
        for _ in range(rounds):
            total += (w[:k] ** 2).sum()
            reach = max(reach, float(np.linalg.norm(w)))
            w[:k] -= eta * (w[:k] + sigma * rng.normal(size=k))
    noise = subspace_stationary_noise(rounds, k=k, smoothness=1.0, gradient_bound=bound, sigma=sigma, gap=k / 2)
    assert reach <= bound
    assert total / (20 * rounds) <= subspace_stationary_bound(noise, 0.0) < 10 * total / (20 * rounds)


def test_stationary_rate_is_the_noise_term_at_the_schedule() -> None:
    """(62) at T = (n epsilon)^2 is (4), but for the two terms without k."""
    n, k, smooth, bound = 2000, 50, 2.0, 3.0
    plan = subspace_schedule(n, BUDGET["epsilon"])
    sigma = subspace_noise(n, plan.rounds or 0, gradient_bound=bound, **BUDGET)
    noise = subspace_stationary_noise(
        plan.rounds or 0, k=k, smoothness=smooth, gradient_bound=bound, sigma=sigma, gap=1.0
    )
    rate = subspace_stationary_rate(n, k=k, smoothness=smooth, gradient_bound=bound, **BUDGET)
    assert noise - rate == pytest.approx((2 * 1.0 + smooth * bound**2) / (n * BUDGET["epsilon"]))


# ---------------------------------------------------------------- Theorem 6


def test_convex_terms_by_hand() -> None:
    noise = subspace_convex_noise(400, k=5, radius=1.5, gradient_bound=3.0, sigma=2.0)
    assert noise == pytest.approx((9 + 9 + 20) / 40)
    projection = subspace_convex_projection(25, k=5, d=90, radius=1.5, gradient_bound=3.0, scale=0.1, gaps=[1.0, 0.5])
    assert projection == pytest.approx(3 * 3 * 2 * 1.5 * 0.1 / 5)
    assert subspace_convex_bound(noise, projection) == noise + projection


def test_best_step_gives_root_k() -> None:
    problem: dict[str, Any] = {"k": 5, "radius": 1.5, "gradient_bound": 3.0, "sigma": 2.0}
    best = 3 / math.sqrt(400 * 29)
    value = subspace_convex_noise(400, step=best, **problem)
    assert value == pytest.approx(3 * math.sqrt(29 / 400))
    for other in (best / 1.1, best * 1.1):
        assert subspace_convex_noise(400, step=other, **problem) > value


@pytest.mark.parametrize("theta", [0.0, 0.3])
def test_convex_bound_holds_from_the_worst_start(theta: float) -> None:
    """F = <a, w> over the ball, V^ at an angle theta to V: the average obeys (72) with 2 B, and at 0 not with B."""
    radius, rounds = 2.0, 10_000
    a = np.array([1.0, 0.0])
    v = np.array([math.cos(theta), math.sin(theta)])
    w, total = radius * a, np.zeros(2)
    for _ in range(rounds):
        total += w
        w = w - v * (v @ a) / math.sqrt(rounds)
        w = w * min(1.0, radius / np.linalg.norm(w))
    excess = a @ total / rounds + radius
    noise = subspace_convex_noise(rounds, k=1, radius=radius, gradient_bound=1.0, sigma=0.0)
    assert excess <= noise + 2 * radius * math.sin(theta)
    if theta == 0:
        assert (radius**2 + 1) / (2 * math.sqrt(rounds)) < excess < noise < 1.1 * excess


# ---------------------------------------------------------------- limits and monotony


def test_all_directions_are_dp_sgd() -> None:
    """k = d: no projection term, whatever the public examples, and the rates with d for k."""
    public: dict[str, Any] = {"k": 9, "d": 9, "gradient_bound": 1.0, "scale": 5.0, "gaps": 1e-3}
    assert subspace_stationary_projection(1, **public) == 0
    assert subspace_convex_projection(1, radius=2.0, **public) == 0
    expected = 9 * 4 / (1000 * 0.5)
    rate = {"gradient_bound": 1.0, **BUDGET}
    assert subspace_stationary_rate(1000, k=9, smoothness=2.0, **rate) == pytest.approx(2 * expected)
    assert subspace_convex_rate(1000, k=9, **rate) == pytest.approx(expected)


def test_projection_vanishes_with_public_examples() -> None:
    public: dict[str, Any] = {"k": 2, "d": 9, "gradient_bound": 1.0, "scale": 5.0, "gaps": 1.0}
    for m in (10, 1000):
        assert subspace_stationary_projection(4 * m, **public) == pytest.approx(
            subspace_stationary_projection(m, **public) / 4
        )
        assert subspace_convex_projection(4 * m, radius=1.0, **public) == pytest.approx(
            subspace_convex_projection(m, radius=1.0, **public) / 2
        )


def test_rates_grow_with_k_and_fall_with_n() -> None:
    rate = {"gradient_bound": 1.0, **BUDGET}
    ks = [subspace_convex_rate(1000, k=k, projection=0.1, **rate) for k in (1, 10, 100)]
    ns = [subspace_convex_rate(n, k=10, projection=0.1, **rate) for n in (10**9, 1000, 100)]
    assert ks == sorted(ks) and ns == sorted(ns)
    assert ns[0] == pytest.approx(0.1)


# ---------------------------------------------------------------- bad input

BAD: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], str]] = [
    (concentration_scale, (0,), {"gradient_bound": 1.0, "smoothness": 1.0, "gamma2": 1.0}, "d=0"),
    (concentration_scale, (5,), {"gradient_bound": 0.0, "smoothness": 1.0, "gamma2": 1.0}, "gradient_bound"),
    (concentration_scale, (5,), {"gradient_bound": 1.0, "smoothness": 1.0, "gamma2": -1.0}, "gamma2"),
    (ellipsoid_gamma2, ([1.0, 0.0],), {}, "axes"),
    (ellipsoid_gamma2, ([1.0],), {"count": 0}, "count"),
    (moment_level, (1.0,), {}, "failure"),
    (moment_deviation, (0, 1.0), {}, "m=0"),
    (moment_deviation, (5, math.nan), {}, "scale"),
    (fresh_moment_deviation, (5,), {"d": 2, "gradient_bound": 1.0, "failure": 0.0}, "failure"),
    (subspace_perturbation, (0.1, 0.0), {}, "gap"),
    (subspace_perturbation, (-0.1, 1.0), {}, "deviation"),
    (subspace_error, (5, -1.0, 1.0), {}, "gap"),
    (public_samples, ([1.0, 0.0], 1.0), {}, "gaps"),
    (public_samples, ([], 1.0), {}, "gaps"),
    (public_samples, (1.0, 1.0), {"error": 2.0}, "error"),
    (gap_moment, ([[1.0]],), {}, "gaps"),
    (gap_moment, (1.0, 3), {}, "power"),
    (subspace_schedule, (10, 0.0), {}, "epsilon"),
    (subspace_noise, (10, 5), {"gradient_bound": 1.0, "epsilon": 1.0, "delta": 1.0}, "delta"),
    (projected_second_moment, (0,), {"gradient_bound": 1.0, "sigma": 1.0}, "k=0"),
    (subspace_convex_noise, (9,), {"k": 1, "radius": 1.0, "gradient_bound": 1.0, "sigma": 1.0, "step": 0.0}, "step"),
    (
        subspace_stationary_projection,
        (9,),
        {"k": 5, "d": 4, "gradient_bound": 1.0, "scale": 1.0, "gaps": 1.0},
        "k=5.*give at most 4, which is d",
    ),
    (subspace_stationary_bound, (1.0, -1.0), {}, "projection"),
    (subspace_convex_bound, (math.inf, 1.0), {}, "noise"),
    (
        subspace_stationary_rate,
        (9,),
        {"k": 1, "smoothness": 0.0, "gradient_bound": 1.0, **BUDGET},
        "smoothness",
    ),
    (subspace_convex_rate, (9,), {"k": 1, "gradient_bound": 1.0, "epsilon": -1.0, "delta": 0.1}, "epsilon"),
]


@pytest.mark.parametrize(("function", "args", "kwargs", "match"), BAD)
def test_bad_input_is_refused(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], match: str
) -> None:
    with pytest.raises(InvalidInput, match=match):
        function(*args, **kwargs)


def test_gamma_2_of_a_minkowski_sum_is_that_of_its_parts() -> None:
    """Support functions add up: the width of an l1 ball plus an l2 ball, sampled, is the sum of the widths."""
    g = torch.randn(20_000, 12, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    sampled = float((2.0 * g.abs().amax(1) + 0.5 * g.norm(dim=1)).mean())
    widths = [ball.gaussian_width(12).value for ball in (L1Ball(2.0), L2Ball(0.5))]
    assert minkowski_gamma2(*widths) == pytest.approx(sampled, rel=0.01)
    assert minkowski_gamma2(1.0, 2.0, constant=3.0) == 9.0
    with pytest.raises(InvalidInput, match="parts"):
        minkowski_gamma2()
