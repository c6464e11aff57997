"""Schedules and rates of CompSGD and CompFW: by hand, by exponent, and each schedule against its own bound."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable

import numpy as np
import pytest

from isthmus import InvalidInput
from isthmus.theory import (
    Rule,
    convex_fw_schedule,
    convex_schedule,
    mapping_schedule,
    stationary_fw_schedule,
    stationary_schedule,
    strongly_convex_schedule,
)
from lab.theory import (
    compressed_gap,
    compressed_threshold,
    convex_fw_rate,
    convex_rate,
    distance_bound,
    expansion,
    mapping_rate,
    stationary_decrease,
    stationary_fw_step_bound,
    stationary_step_bound,
    strongly_convex_rate,
    strongly_convex_smooth_rate,
    success_probability,
)

PROBLEM = {"smoothness": 2.0, "diameter": 3.0, "gradient_bound": 5.0}


def slope(bound: Callable[[int], float], logs: int = 0) -> float:
    """The exponent of T in bound(T) / log(T)^logs."""
    T = np.array([100, 1000, 10_000])
    values = np.array([bound(int(t)) / math.log(t) ** logs for t in T])
    return float(np.polyfit(np.log(T), np.log(values), 1)[0])


# ---------------------------------------------------------------- rules


def test_a_rule_is_kept_between_its_limits() -> None:
    rule = Rule(8.0, power=1.0, offset=2, low=1.0, high=3.0)
    assert [rule(t) for t in (0, 1, 2, 6, 100)] == [3.0, 8 / 3, 2.0, 1.0, 1.0]
    assert pickle.loads(pickle.dumps(rule)) == rule


@pytest.mark.parametrize(
    "options", [{"scale": -1.0}, {"scale": 1.0, "offset": 0}, {"scale": 1.0, "low": 2.0, "high": 1.0}]
)
def test_bad_rules(options: dict) -> None:
    with pytest.raises(InvalidInput):
        Rule(**options)
    with pytest.raises(InvalidInput):
        Rule(1.0)(-1)


@pytest.mark.parametrize("t", [1, 2, 5, 33])
def test_convex_schedules_in_the_paper_count(t: int) -> None:
    strong, plain = strongly_convex_schedule(0.4), convex_schedule(3.0, 2.0)
    assert strong.step(t - 1) == pytest.approx(2 / (0.4 * t)) and strong.beta(t - 1) == pytest.approx(1 / t)
    assert plain.step(t - 1) == pytest.approx(1.5 / math.sqrt(t)) and plain.beta(t - 1) == pytest.approx(1 / t)
    assert strong.dimension(t - 1, 10_000, 2.0) == min(10_000, 4 * t**2)
    assert strong.rounds is None and strong.threshold is None and strong.batch_size(t) == 1


# ---------------------------------------------------------------- convex rates


def test_exponents_of_the_convex_rates() -> None:
    constants = {"gradient_bound": 2.0, "strong_convexity": 0.5}
    assert slope(lambda T: distance_bound(T, **constants)) == pytest.approx(-1)
    assert slope(lambda T: strongly_convex_smooth_rate(T, **constants, smoothness=3.0)) == pytest.approx(-1)
    assert slope(lambda T: convex_rate(T, diameter=2.0, gradient_bound=3.0), logs=1) == pytest.approx(-0.5)
    ratio = strongly_convex_rate(10_000, **constants) / strongly_convex_rate(100, **constants)
    assert ratio == pytest.approx((1 + math.log(10_000)) / (1 + math.log(100)) / 100)


def test_convex_rates_by_hand() -> None:
    assert strongly_convex_smooth_rate(50, gradient_bound=2.0, strong_convexity=0.5, smoothness=3.0) == pytest.approx(
        3 * 4 / (0.25 * 50)
    )
    assert strongly_convex_rate(50, gradient_bound=2.0, strong_convexity=0.5) == pytest.approx(
        4 * (1 + math.log(50)) / (0.5 * 50)
    )
    order = math.log(50) / math.sqrt(50)
    assert convex_rate(50, diameter=2.0, gradient_bound=3.0, phi=0.5) == pytest.approx((8 + 4.5) * order)
    assert convex_rate(50, diameter=2.0, gradient_bound=3.0, constant=7.0) == pytest.approx(7 * 2 * 6 * order)


def test_the_default_phi_is_the_best() -> None:
    best = convex_rate(100, diameter=2.0, gradient_bound=3.0)
    phis = [0.1, 0.5, 2 / 3, 1.0, 5.0]
    values = [convex_rate(100, diameter=2.0, gradient_bound=3.0, phi=phi) for phi in phis]
    assert min(values) == pytest.approx(best) and values[2] == pytest.approx(best)


def test_the_schedule_reproduces_lemma_b6() -> None:
    """The recursion (1 - beta) E_{t+1} <= (1 - 2 lambda eta) E_t + eta^2 G^2 stays under 4 G^2 / (lambda^2 t)."""
    plan, G, lam = strongly_convex_schedule(0.5), 3.0, 0.5
    for start in range(4, 50):
        error = distance_bound(start, gradient_bound=G, strong_convexity=lam)
        for t in range(start, 200):
            eta = plan.step(t - 1)
            error = expansion(plan.beta(t - 1)) * ((1 - 2 * lam * eta) * error + eta**2 * G**2)
            assert error <= distance_bound(t + 1, gradient_bound=G, strong_convexity=lam) * (1 + 1e-12)


def test_the_step_sums_of_theorem_b9_have_its_rate() -> None:
    """(||C||^2 (1/eta_T) + G^2 sum eta) / T with the schedule's steps is of order ||C|| G / sqrt(T)."""
    plan, D, G = convex_schedule(2.0, 3.0), 2.0, 3.0

    def regret(T: int) -> float:
        return (D**2 / plan.step(T - 1) + G**2 * sum(plan.step(t) for t in range(T))) / T

    for T in (100, 1000, 10_000):
        ratio = regret(T) * math.log(T) / convex_rate(T, diameter=D, gradient_bound=G)
        assert 1 < ratio < 2


# ---------------------------------------------------------------- nonconvex


def test_stationary_values_by_hand() -> None:
    """mu = 2, ||C|| = 3, G = 5: G + mu ||C|| = 11."""
    alpha, speed = 0.7, 11.0
    plan = stationary_schedule(alpha, **PROBLEM, noise=0.5, gap=4.0, failure=0.2, constant=8.0)
    assert plan.threshold == pytest.approx(alpha / speed)
    assert plan.beta(0) == pytest.approx(2 * alpha**2 / (64 * 5 * 3 * speed**2))
    assert plan.batch(0) == pytest.approx(8 * (3 * 0.5 * speed**2 / (alpha**2 * 2)) ** 2 / 0.2)
    assert plan.rounds == math.ceil(8 * 4 * speed**2 / (2 * alpha**2 * 0.2))
    easy = stationary_schedule(1e6, **PROBLEM, noise=0.0, gap=4.0, failure=0.2)
    assert easy.beta(0) == 0.25 and easy.batch(0) == 5.0


def test_the_compressed_threshold() -> None:
    plain = stationary_schedule(0.7, **PROBLEM, noise=0.0, gap=1.0).threshold
    assert plain is not None
    assert compressed_threshold(plain, 400, 400) == plain
    assert compressed_threshold(plain, 400, 25) == pytest.approx(plain / 4)


def test_the_schedule_of_theorem_24_gives_its_decrease() -> None:
    """At the printed beta and a batch constant of (64/7)^2 rho the step bound is inequality (10), exactly."""
    rho, noise = 0.25, 0.5
    plan = stationary_schedule(0.7, **PROBLEM, noise=noise, gap=4.0, failure=rho, constant=(64 / 7) ** 2 * rho)
    bound = stationary_step_bound(0.7, **PROBLEM, beta=plan.beta(0), noise=noise, batch=plan.batch(0))
    assert bound == pytest.approx(-stationary_decrease(0.7, **PROBLEM), rel=1e-12)
    assert plan.step(3) == 0.5 and plan.threshold == pytest.approx(0.7 / 11)


def test_eight_is_the_constant_of_the_rounds() -> None:
    """The gap divided by the decrease of a round, and Markov's inequality."""
    rounds = stationary_schedule(0.7, **PROBLEM, noise=0.0, gap=4.0, failure=0.2, constant=8.0).rounds
    assert rounds == math.ceil(4.0 / stationary_decrease(0.7, **PROBLEM) / 0.2)
    assert success_probability(0.2) == pytest.approx(0.64)


def test_stationary_exponents_of_the_accuracy() -> None:
    """beta ~ alpha^2, batch ~ alpha^-4, T ~ alpha^-2."""
    first = stationary_schedule(0.02, **PROBLEM, noise=1.0, gap=1.0)
    second = stationary_schedule(0.01, **PROBLEM, noise=1.0, gap=1.0)
    assert first.beta(0) / second.beta(0) == pytest.approx(4)
    assert second.batch(0) / first.batch(0) == pytest.approx(16)
    assert second.rounds / first.rounds == pytest.approx(4, rel=1e-5)  # both are rounded up


@pytest.mark.parametrize("alpha", [1.0, 0.1, 0.01])
@pytest.mark.parametrize("noise", [0.0, 0.3, 4.0])
def test_the_schedule_of_theorem_b5_gives_its_bound(alpha: float, noise: float) -> None:
    """Four terms, none above alpha^2."""
    plan = mapping_schedule(alpha, **PROBLEM, noise=noise, gap=2.0)
    bound = mapping_rate(plan.rounds, **PROBLEM, noise=noise, gap=2.0, batch=plan.batch(0), beta=plan.beta(0))
    assert 0 < bound <= 4 * alpha**2 * (1 + 1e-12)
    assert plan.step(0) == 0.25


def test_mapping_values_by_hand() -> None:
    assert mapping_schedule(0.5, **PROBLEM, noise=1.0, gap=1.0).beta(0) == pytest.approx(0.25 / 30)
    assert mapping_schedule(0.5, **PROBLEM, noise=1.0, gap=1.0).batch(0) == pytest.approx(36 / 0.0625)
    assert mapping_schedule(100.0, **PROBLEM, noise=1.0, gap=1.0).beta(0) == 0.25
    slow = {"smoothness": 0.1, "diameter": 1.0, "gradient_bound": 1.0}
    assert mapping_schedule(10.0, **slow, noise=20.0, gap=1.0).batch(0) == 4.0
    value = mapping_rate(10, **PROBLEM, noise=2.0, gap=1.0, batch=16, beta=0.1)
    assert value == pytest.approx(2 / 10 + 2 * 2 * 3 / 4 + 4 / 16 + 2 * 0.1 * 5 * 3)
    assert mapping_rate(10, **PROBLEM, noise=0.0, gap=1.0, batch=1, beta=0.0) == pytest.approx(0.2)


# ---------------------------------------------------------------- Frank-Wolfe


@pytest.mark.parametrize("t", [1, 2, 7, 40])
def test_convex_fw_in_the_paper_count(t: int) -> None:
    plan = convex_fw_schedule(smoothness=2.0, diameter=3.0, gradient_bound=50.0, noise=7.0)
    eta = 2 / (t + 1)
    assert plan.step(t - 1) == pytest.approx(eta)
    assert plan.beta(t - 1) == pytest.approx(min(0.25, 2 * eta * 3 / 50))
    assert plan.batch(t - 1) == pytest.approx(max(1.0, (7 / (3 * 2 * eta)) ** 2))


@pytest.mark.parametrize("parts, constant", [(0.5, 1.0), (2.0, 2.5)])
def test_the_induction_of_theorem_e2(parts: float, constant: float) -> None:
    """Compression and noise may add 1/2 of mu eta^2 ||C||^2 a round for the printed 4; at their rules they add 2."""
    plan = convex_fw_schedule(smoothness=2.0, diameter=3.0, gradient_bound=50.0, noise=7.0)
    error = 1e9
    for t in range(1, 500):
        eta = plan.step(t - 1)
        error = (1 - eta) * error + (parts + 0.5) * 2 * eta**2 * 9
        assert error <= convex_fw_rate(t + 1, smoothness=2.0, diameter=3.0, constant=constant) * (1 + 1e-12)


def test_the_rules_of_theorem_e2_add_two() -> None:
    plan = convex_fw_schedule(smoothness=2.0, diameter=3.0, gradient_bound=50.0, noise=7.0)
    eta = plan.step(99)
    added = eta * plan.beta(99) * 3 * 50 + eta * 7 * 3 / math.sqrt(plan.batch(99))
    assert added == pytest.approx(2 * (2 * eta**2 * 9))
    assert slope(lambda T: convex_fw_rate(T, smoothness=2.0, diameter=3.0)) == pytest.approx(-1)


def test_stationary_fw_by_hand() -> None:
    plan = stationary_fw_schedule(0.5, **PROBLEM, noise=4.0, gap=7.0, failure=0.2)
    assert plan.step(0) == pytest.approx(0.5 / (16 * 9 * 2))
    assert plan.beta(0) == pytest.approx(0.5 / 15)
    assert plan.batch(0) == pytest.approx(5 * (4 * 3 / 0.5) ** 2)
    assert plan.rounds == math.ceil(7 * 9 * 2 / (0.25 * 0.2))


def test_the_constants_of_theorem_e1() -> None:
    """At the printed beta nothing is gained, even without noise; a quarter of it and a larger batch gain."""

    def bound(noise: float, **options: float) -> float:
        plan = stationary_fw_schedule(0.5, **PROBLEM, noise=noise, gap=7.0, failure=0.2, **options)
        return stationary_fw_step_bound(
            0.5, step=plan.step(0), beta=plan.beta(0), batch=plan.batch(0), **PROBLEM, noise=noise
        )

    assert bound(noise=0.0) > 0
    assert bound(noise=4.0, margin=0.25, constant=16.0) < -(0.5**2) / (40 * 9 * 2)


def test_the_compressed_gap(rng: np.random.Generator) -> None:
    """With Phi = I it is the Frank-Wolfe gap; a vertex that minimises <y, .> makes it non-negative."""
    g, w = rng.standard_normal(6), np.zeros(6)
    s = np.zeros(6)
    s[np.abs(g).argmax()] = -np.sign(g[np.abs(g).argmax()])
    assert compressed_gap(g, s - w) == pytest.approx(np.abs(g).max())
    with pytest.raises(InvalidInput):
        compressed_gap([1.0, 2.0], [1.0])


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    "call",
    [
        lambda: strongly_convex_schedule(0.0),
        lambda: convex_schedule(-1.0, 1.0),
        lambda: stationary_schedule(0.0, **PROBLEM, noise=1.0, gap=1.0),
        lambda: stationary_schedule(0.1, **PROBLEM, noise=-1.0, gap=1.0),
        lambda: stationary_schedule(0.1, **PROBLEM, noise=1.0, gap=1.0, failure=1.0),
        lambda: compressed_threshold(0.1, 10, 11),
        lambda: mapping_schedule(0.1, **PROBLEM, noise=1.0, gap=0.0),
        lambda: mapping_rate(10, **PROBLEM, noise=1.0, gap=1.0, batch=1, beta=0.5),
        lambda: expansion(1.0),
        lambda: convex_rate(1, diameter=1.0, gradient_bound=1.0),
        lambda: convex_rate(10, diameter=1.0, gradient_bound=1.0, phi=0.0),
        lambda: strongly_convex_rate(2.5, gradient_bound=1.0, strong_convexity=1.0),
        lambda: strongly_convex_smooth_rate(0, gradient_bound=1.0, strong_convexity=1.0, smoothness=1.0),
        lambda: success_probability(0.0),
        lambda: convex_fw_rate(0, smoothness=1.0, diameter=1.0),
        lambda: stationary_fw_schedule(0.1, **PROBLEM, noise=1.0, gap=1.0, margin=0.0),
        lambda: convex_fw_schedule(smoothness=math.inf, diameter=1.0, gradient_bound=1.0, noise=0.0),
    ],
)
def test_refusals(call: Callable[[], object]) -> None:
    with pytest.raises(InvalidInput):
        call()
