"""Paper 000: Tables 1 and 2, the steps by goal, and the explicit bounds behind Theorems 2-10."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from isthmus import InvalidInput
from isthmus.theory import goal_schedule
from lab.theory import (
    boundedness,
    excess_risk,
    expansion,
    expansiveness,
    generalisation_rate,
    nonsmooth_divergence,
    nonsmooth_divergence_path,
    optimisation_bound,
    optimisation_rate,
    sgd_divergence,
    shrinkage,
    small_step_rate,
    smooth_divergence,
    smooth_divergence_path,
    smooth_optimisation_bound,
    stability_rate,
    weighted_average,
)

COMPRESSED = ["comp_sgd", "comp_gd", "comp_minibatch"]


def beta(t: int) -> float:
    """1/(t + 1) in the paper's count."""
    return 1 / (t + 2)


# ---------------------------------------------------------------- lemmas


@pytest.mark.parametrize("m", [1, 2, 3, 10, 999, 1001, 10**6])
def test_shrinkage_lies_in_its_interval(m: int) -> None:
    assert math.sqrt(m / (m + 1)) < shrinkage(m) < 1


def test_shrinkage_by_hand_and_by_sampling(rng: np.random.Generator) -> None:
    """C_3 = 2 sqrt(2 / (3 pi)); and Lemma 4 itself on fixed v and g."""
    assert shrinkage(3) == pytest.approx(2 * math.sqrt(2 / (3 * math.pi)))
    v, g, m, draws = np.array([1.0, 2.0, -1.0, 0.5]), np.array([0.3, 1.0, 0.2, -2.0]), 5, 40_000
    phi = rng.standard_normal((draws, m, 4)) / math.sqrt(m)
    code = phi @ g
    values = ((phi @ v) * code).sum(1) * np.linalg.norm(g) / np.linalg.norm(code, axis=1)
    assert values.mean() == pytest.approx(shrinkage(m) * (v @ g), abs=5 * values.std() / math.sqrt(draws))


def test_lemmas_2_and_3() -> None:
    for b in (0.0, 0.3, 0.9):
        assert expansiveness(b) ** 2 == pytest.approx(expansion(b))
        assert boundedness(b, 0.5, 4.0) == pytest.approx(2 * expansiveness(b))


def test_weighted_average(rng: np.random.Generator) -> None:
    points, steps = rng.standard_normal((5, 3)), rng.random(5)
    expected = sum(s * p for s, p in zip(steps, points, strict=True)) / steps.sum()
    np.testing.assert_allclose(weighted_average(points, steps), expected)
    np.testing.assert_allclose(weighted_average(points, np.ones(5)), points.mean(0))


# ---------------------------------------------------------------- steps and T


def test_rounds_of_table_2() -> None:
    def rounds(name: str, n: int, smoothness: float | None) -> int | None:
        return goal_schedule(name, "generalisation", n=n, smoothness=smoothness).rounds

    assert [rounds(name, 400, 1.0) for name in COMPRESSED] == [400, 20, 400]
    assert [rounds(name, 400, None) for name in COMPRESSED] == [160_000] * 3
    assert rounds("comp_gd", 401, 1.0) == 21


@pytest.mark.parametrize("t", [1, 2, 9])
def test_steps_of_tables_1_and_2(t: int) -> None:
    """In the paper's count of t, at eta = 0.1 and mu = 2."""
    cases = {
        ("comp_sgd", "optimisation", 2.0): 0.1 / math.sqrt(t),
        ("comp_sgd", "optimisation", None): 0.1 / math.sqrt(t),
        ("comp_gd", "optimisation", 2.0): 0.1,
        ("comp_gd", "optimisation", None): 0.1 / math.sqrt(t),
        ("comp_minibatch", "optimisation", 2.0): 0.1 / math.sqrt(t),
        ("comp_sgd", "generalisation", 2.0): 0.1 / math.sqrt(t),
        ("comp_sgd", "generalisation", None): 0.1 / 16**1.5,
        ("comp_gd", "generalisation", 2.0): 0.1,
        ("comp_gd", "generalisation", None): 0.1 / 16**1.5,
        ("comp_minibatch", "generalisation", 2.0): 0.1 / math.sqrt(t),
        ("comp_minibatch", "generalisation", None): 0.1 / 16**1.5,
        ("sgd", "generalisation", 2.0): 0.1 / 4,
        ("sgd", "generalisation", None): 0.1 / 16**1.5,
        ("sgd", "optimisation", None): 0.1 / math.sqrt(t),
    }
    for (algorithm, goal, smoothness), eta in cases.items():
        plan = goal_schedule(algorithm, goal, smoothness=smoothness, scale=0.1, n=16)
        assert plan.step(t - 1) == pytest.approx(eta), (algorithm, goal, smoothness)
        assert plan.beta is None if algorithm == "sgd" else plan.beta(t - 1) == pytest.approx(1 / (t + 1))


def test_default_and_largest_steps() -> None:
    assert goal_schedule("comp_gd", "optimisation", smoothness=2.0).step(5) == 0.25
    assert goal_schedule("comp_sgd", "generalisation", smoothness=2.0, n=9).step(0) == 1.0
    assert goal_schedule("comp_sgd", "optimisation").step(0) == 1.0
    assert goal_schedule("comp_sgd", "generalisation", rounds=16).step(0) == 1 / 8
    assert goal_schedule("sgd", "optimisation").dimension(3, 50, 1.0) == 50


# ---------------------------------------------------------------- Tables 1 and 2


def slope(rate: Callable[[int], float]) -> float:
    sizes = np.array([100, 1000, 10_000])
    return float(np.polyfit(np.log(sizes), np.log([rate(int(k)) for k in sizes]), 1)[0])


@pytest.mark.parametrize("algorithm", ["sgd", *COMPRESSED])
@pytest.mark.parametrize("smooth", [True, False])
def test_exponents_of_the_tables(algorithm: str, smooth: bool) -> None:
    fast = algorithm == "comp_gd" and smooth
    assert slope(lambda T: optimisation_rate(algorithm, T, smooth=smooth) / math.log(T)) == pytest.approx(
        -1 if fast else -0.5
    )
    log = 0 if algorithm == "sgd" else 1
    assert slope(lambda n: generalisation_rate(algorithm, n, smooth=smooth) / math.log(n) ** log) == pytest.approx(-0.5)


def test_tables_by_hand() -> None:
    log, root = math.log(100), 10.0
    both = {"diameter": 3.0, "lipschitz": 2.0}
    assert optimisation_rate("comp_gd", 100, smooth=True, diameter=3.0) == pytest.approx(9 * log / 100)
    assert optimisation_rate("comp_gd", 100, smooth=False, **both) == pytest.approx(13 * log / root)
    assert generalisation_rate("comp_gd", 100, smooth=True, **both) == pytest.approx(13 * log / root)
    assert stability_rate("comp_sgd", 100, smooth=True, lipschitz=2.0) == pytest.approx(4 * log / root)
    assert stability_rate("comp_sgd", 100, smooth=False, lipschitz=2.0) == pytest.approx(4 * math.sqrt(log) / root)
    assert stability_rate("comp_gd", 100, smooth=True, lipschitz=2.0) == pytest.approx(4 / root)
    assert stability_rate("comp_gd", 100, smooth=False, lipschitz=2.0) == pytest.approx(4 * log / root)
    assert stability_rate("comp_minibatch", 100, smooth=False, constant=3.0) == pytest.approx(3 * log / root)
    assert small_step_rate(10_000, diameter=2.0, lipschitz=3.0) == pytest.approx(4 * math.log(10_000) / 10 + 9 / 1000)
    assert excess_risk(0.1, 0.0) == 0.1


# ---------------------------------------------------------------- explicit bounds


def test_smooth_divergence_by_hand() -> None:
    """Theorem 2: (2 eta L / n) sqrt(T) H_{T-1}.  Theorem 5: (2 eta L / n) sqrt(T) sum 1/sqrt(t)."""
    T, n, L, eta = 50, 20, 3.0, 0.2
    harmonic = sum(1 / t for t in range(1, T))
    value = smooth_divergence(T, n=n, lipschitz=L, step=lambda t: eta / math.sqrt(t + 1))
    assert value == pytest.approx(2 * eta * L / n * math.sqrt(T) * harmonic)
    value = smooth_divergence(T, n=n, lipschitz=L, step=lambda t: eta)
    assert value == pytest.approx(2 * eta * L / n * math.sqrt(T) * sum(t**-0.5 for t in range(1, T)))
    assert value <= 4 * eta * L * T / n
    assert smooth_divergence(1, n=n, lipschitz=L, step=lambda t: eta) == 0.0


@pytest.mark.parametrize("T", [1, 2, 3, 10, 200])
def test_the_closed_form_is_the_recursion(T: int) -> None:
    def step(t: int) -> float:
        return 0.3 / (t + 1) ** 0.4

    path = smooth_divergence_path(T, n=7, lipschitz=2.0, step=step, beta=beta)
    assert path[T - 1] == pytest.approx(smooth_divergence(T, n=7, lipschitz=2.0, step=step), rel=1e-12)


def test_without_compression_the_path_is_the_classical_bound() -> None:
    """beta = 0: 2 L sum eta / n (Hardt et al., 2016)."""
    path = smooth_divergence_path(9, n=5, lipschitz=2.0, step=lambda t: 0.1 * (t + 1), beta=lambda t: 0.0)
    assert path[9] == pytest.approx(2 * 2 * 0.1 * 45 / 5)


@pytest.mark.parametrize("n", [1, 3, 100])
@pytest.mark.parametrize("power", [-1.0, 0.0, 0.5, 1.0])
def test_the_recursion_stays_below_both_nonsmooth_bounds(n: int, power: float) -> None:
    """(97) <= the sharper form (the smooth bound and the noise term) <= (63)."""

    def step(t: int) -> float:
        return 0.3 / (t + 1) ** power

    path = nonsmooth_divergence_path(400, n=n, lipschitz=2.0, step=step, beta=beta)
    for T in (2, 10, 100, 400):
        noise = 4 * math.sqrt(T * sum(step(t - 1) ** 2 / t for t in range(1, T)))
        sharper = smooth_divergence(T, n=n, lipschitz=2.0, step=step) + noise
        printed = nonsmooth_divergence(T, n=n, lipschitz=2.0, step=step)
        assert path[T - 1] <= sharper * (1 + 1e-12) and sharper <= printed * (1 + 1e-12)


def test_batch_of_one_is_comp_sgd() -> None:
    """(33) bounds the recursion of a batch of one too: Theorems 3 and 10 at b = 1 agree in order."""
    T = 900
    ratio = (
        sgd_divergence(T, n=30, lipschitz=1.0, step=lambda t: T**-0.75)
        / (nonsmooth_divergence_path(T, n=30, lipschitz=1.0, step=lambda t: T**-0.75, beta=beta)[T - 1])
    )
    assert 0.3 < ratio < 3


def test_sgd_divergence_by_hand() -> None:
    T, n, L = 3, 2, 5.0
    total = 3 * (4 / 3) * 0.01 + 1.5 * 0.04
    expected = L * math.sqrt((4 + 4 * (1 + 1.5) / 2) * total)
    assert sgd_divergence(T, n=n, lipschitz=L, step=lambda t: 0.1 * (t + 1)) == pytest.approx(expected)


@pytest.mark.parametrize(
    "algorithm, smooth, bound, low, high",
    [
        ("comp_sgd", True, smooth_divergence, 2.0, 2.4),
        ("comp_gd", True, smooth_divergence, 2.0, 4.0),
        ("comp_minibatch", True, smooth_divergence, 2.0, 2.4),
        ("comp_sgd", False, sgd_divergence, 4.0, 7.0),
        ("comp_gd", False, nonsmooth_divergence, 4.0, 8.0),
        ("comp_minibatch", False, nonsmooth_divergence, 4.0, 8.0),
    ],
)
def test_the_schedule_of_a_theorem_gives_its_stability(
    algorithm: str, smooth: bool, bound: Callable, low: float, high: float
) -> None:
    """L times the explicit bound at the theorem's step and T, over its O(.): between two constants for growing n."""
    for n in (20, 80, 320):
        plan = goal_schedule(algorithm, "generalisation", smoothness=2.0 if smooth else None, n=n)
        eta = 2.0 / 2.0 if algorithm != "comp_gd" else (0.25 if smooth else 1.0)
        value = 3.0 * bound(plan.rounds, n=n, lipschitz=3.0, step=plan.step)
        ratio = value / stability_rate(algorithm, n, smooth=smooth, lipschitz=3.0) / eta
        assert low <= ratio <= high


@pytest.mark.parametrize("algorithm", COMPRESSED)
@pytest.mark.parametrize("smooth", [True, False])
def test_the_schedule_of_a_theorem_gives_its_optimisation_error(algorithm: str, smooth: bool) -> None:
    """At the goal "optimisation", with D = L = 1: the explicit bound over Table 1 stays between two constants."""
    for T in (50, 500, 5000):
        plan = goal_schedule(algorithm, "optimisation", smoothness=1.0 if smooth else None)
        if smooth and algorithm == "comp_gd":
            value = smooth_optimisation_bound(T, diameter=1.0, smoothness=1.0)
        else:
            value = optimisation_bound(T, diameter=1.0, lipschitz=1.0, step=plan.step)
        ratio = value / optimisation_rate(algorithm, T, smooth=smooth)
        assert 0.2 < ratio < 3


def test_the_small_step_gives_theorem_16() -> None:
    for T in (100, 10_000):
        value = optimisation_bound(T, diameter=2.0, lipschitz=3.0, step=lambda t, T=T: T**-0.75)
        assert 0.5 <= value / small_step_rate(T, diameter=2.0, lipschitz=3.0) < 1


def test_the_generalisation_rate_is_stability_and_optimisation() -> None:
    """Theorem 5: both parts at T = sqrt(n) have the order of Table 2."""
    for n in (100, 10_000):
        plan = goal_schedule("comp_gd", "generalisation", smoothness=1.0, n=n)
        stability = smooth_divergence(plan.rounds, n=n, lipschitz=1.0, step=plan.step)
        optimisation = smooth_optimisation_bound(plan.rounds, diameter=1.0, smoothness=1.0)
        ratio = excess_risk(stability, optimisation) / generalisation_rate("comp_gd", n, smooth=True)
        assert 0.3 < ratio < 3


def test_optimisation_bounds_by_hand() -> None:
    value = optimisation_bound(3, diameter=2.0, lipschitz=3.0, step=lambda t: 0.1 * (t + 1))
    assert value == pytest.approx((4 * (1 + 1 / 2 + 1 / 3 + 1 / 4) + 9 * 0.14) / 1.2)
    value = smooth_optimisation_bound(2, diameter=2.0, smoothness=1.0, step=0.25)
    assert value == pytest.approx(4 * (1 + 1 / 2 + 1 / 3) / (2 * 0.25 * 0.75 * 2))


def test_bounds_are_linear_in_l_and_monotone_in_n_and_t() -> None:
    for bound in (smooth_divergence, sgd_divergence, nonsmooth_divergence):

        def value(T: int = 30, n: int = 10, L: float = 1.0, bound: Callable = bound) -> float:
            return bound(T, n=n, lipschitz=L, step=lambda t: 0.1)

        assert value(L=4.0) == pytest.approx(4 * value())
        assert value(n=1000) < value() < value(T=31)


@pytest.mark.parametrize(
    "call",
    [
        lambda: shrinkage(0),
        lambda: expansiveness(1.0),
        lambda: boundedness(0.5, 0.0, 1.0),
        lambda: weighted_average([[1.0]], [1.0, 2.0]),
        lambda: weighted_average([[1.0], [2.0]], [0.0, 0.0]),
        lambda: weighted_average([[1.0], [2.0]], [2.0, -1.0]),
        lambda: goal_schedule("comp_gd", "winning"),
        lambda: goal_schedule("comp_gd", "generalisation", smoothness=1.0),
        lambda: goal_schedule("comp_gd", "optimisation", smoothness=1.0, scale=0.6),
        lambda: goal_schedule("comp_sgd", "generalisation", smoothness=1.0, scale=2.1, n=5),
        lambda: goal_schedule("comp_gd", "optimisation", smoothness=-1.0),
        lambda: optimisation_rate("comp_gd", 1, smooth=True),
        lambda: stability_rate("sgd", 10, smooth=True),
        lambda: stability_rate("comp_sgd", 1, smooth=True),
        lambda: generalisation_rate("comp_sgd", 10, smooth=True, diameter=0.0),
        lambda: excess_risk(-0.1, 0.0),
        lambda: smooth_divergence(0, n=5, lipschitz=1.0, step=lambda t: 0.1),
        lambda: sgd_divergence(5, n=5, lipschitz=0.0, step=lambda t: 0.1),
        lambda: smooth_divergence_path(5, n=5, lipschitz=1.0, step=lambda t: 0.1, beta=lambda t: 1.0),
        lambda: nonsmooth_divergence_path(5, n=0, lipschitz=1.0, step=lambda t: 0.1, beta=beta),
        lambda: smooth_optimisation_bound(5, diameter=1.0, smoothness=1.0, step=0.7),
    ],
)
def test_refusals(call: Callable[[], object]) -> None:
    with pytest.raises(InvalidInput):
        call()
