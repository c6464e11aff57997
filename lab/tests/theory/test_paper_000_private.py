"""Papers 000 and 001 under privacy: Theorems 11-15, the DP rows of Tables 1 and 2, Corollaries C.2 and C.3."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from isthmus import InvalidInput
from isthmus.theory import (
    mapping_schedule,
    private_generalisation_schedule,
    private_mapping_schedule,
    private_optimisation_schedule,
    private_stationary_schedule,
    stationary_schedule,
)
from lab.theory import (
    dimension_at,
    generalisation_rate,
    mapping_samples,
    nonsmooth_divergence,
    optimisation_bound,
    private_generalisation_rate,
    private_optimisation_bound,
    private_optimisation_rate,
    private_smooth_optimisation_bound,
    private_stability_rate,
    rounds_until_full,
    shrinkage,
    smooth_optimisation_bound,
    stationary_samples,
    total_dimension,
)

E1 = math.exp(-1)


def slope(f: Callable[[float], float], low: float, high: float) -> float:
    return math.log(f(high) / f(low)) / math.log(high / low)


# ---------------------------------------------------------------- steps and dimensions


@pytest.mark.parametrize("t", [1, 2, 9])
def test_steps_of_theorems_11_to_15(t: int) -> None:
    """In the paper's count of t: ||C|| = 6, L = 2, m_T = 12, sigma = 1, so sqrt(L^2 + m sigma^2) = 4."""
    problem = {"diameter": 6.0, "lipschitz": 2.0, "dimension": 12, "noise": 1.0}
    for algorithm, mu in (("dp_comp_gd", None), ("dp_comp_minibatch", None), ("dp_comp_minibatch", 100.0)):
        plan = private_optimisation_schedule(algorithm, smoothness=mu, **problem)
        assert plan.step(t - 1) == pytest.approx(6 / (4 * math.sqrt(t)))
        assert plan.beta is not None and plan.beta(t - 1) == pytest.approx(1 / (t + 1))
    smooth = private_optimisation_schedule("dp_comp_gd", smoothness=0.1, **problem)
    assert smooth.step(t - 1) == pytest.approx(6 / (2 * math.sqrt(12)))
    capped = private_optimisation_schedule("dp_comp_gd", smoothness=1.0, rounds=7, **problem)
    assert capped.step(t - 1) == 0.25 and capped.rounds == 7
    learn = private_generalisation_schedule(10, scale=3.0)
    assert learn.step(t - 1) == pytest.approx(3 / 1000**0.5) and learn.rounds == 100
    assert private_generalisation_schedule(10, rounds=16).step(0) == 1 / 8


def test_total_dimension_is_the_sum() -> None:
    for every, offset, d, width in ((1, 2, 500, 1.7), (3, 2, 500, 1.7), (1, 1, 40, 2.5), (1, 2, 3, 9.0)):
        long = rounds_until_full(d, width, every=every, offset=offset) + 5
        for rounds in (1, 4, long):
            expected = sum(dimension_at(t, d, width, every=every, offset=offset) for t in range(rounds))
            assert total_dimension(rounds, d, width, every=every, offset=offset) == expected
    assert total_dimension(10**10, 10**4, 3.0) / (1e10 * 1e4) == pytest.approx(1, abs=1e-6)


# ---------------------------------------------------------------- bounds before their O(.)


def test_bound_without_noise_and_without_compression() -> None:
    step, huge = (lambda t: 0.3 / (t + 1) ** 0.5), (lambda t: 10**8)
    plain = optimisation_bound(20, diameter=2.0, lipschitz=3.0, step=step)
    private = private_optimisation_bound(20, diameter=2.0, lipschitz=3.0, noise=0.0, dimension=huge, step=step)
    assert private == pytest.approx(plain, rel=1e-7)
    smooth = private_smooth_optimisation_bound(20, diameter=2.0, smoothness=1.0, noise=0.0, dimension=huge, step=0.2)
    assert smooth == pytest.approx(smooth_optimisation_bound(20, diameter=2.0, smoothness=1.0, step=0.2), rel=1e-7)


def test_bounds_by_hand_with_a_growing_dimension() -> None:
    """T = 2, m = 1 then 2, eta = 1/2 and sigma = 2: H_3 = 11/6, C_1 = sqrt(2/pi) is the smallest."""
    problem = {"diameter": 6.0, "noise": 2.0, "dimension": lambda t: t + 1}
    least = math.sqrt(2 / math.pi)
    total = 36 * 11 / 6 + 0.25 * (1 + 4) + 0.25 * (1 + 8)
    bound = private_optimisation_bound(2, lipschitz=1.0, step=lambda t: 0.5, **problem)  # type: ignore[arg-type]
    assert bound == pytest.approx(total / (2 * least))
    smooth = private_smooth_optimisation_bound(2, smoothness=0.5, step=0.5, **problem)  # type: ignore[arg-type]
    assert smooth == pytest.approx((66 + 0.25 * 4 * 3) / (2 * 0.5 * (least - 0.25) * 2))


@pytest.mark.parametrize("m", [1, 2, 100])
def test_smooth_bound_is_below_the_paper_s(m: int) -> None:
    """(53) has eta/2 where the bound has 2 eta (C_m - mu eta)."""
    for step in (0.25, 0.1, 0.01):
        assert 2 * step * (shrinkage(m) - step) > step / 2


def test_bound_at_the_theorem_s_step_has_the_theorem_s_rate() -> None:
    """The ratio to Theorem 11 stays between constants while everything else moves by orders of magnitude."""
    ratios = []
    for rounds, n, m, eps in ((50, 100, 5, 1.0), (3000, 100, 5, 1.0), (300, 10**5, 400, 0.1), (300, 50, 2000, 0.1)):
        sigma = math.sqrt(32 * 4.0 * rounds * math.log(1e5)) / (n * eps)
        plan = private_optimisation_schedule("dp_comp_gd", diameter=3.0, lipschitz=2.0, dimension=m, noise=sigma)
        bound = private_optimisation_bound(
            rounds, diameter=3.0, lipschitz=2.0, noise=sigma, dimension=lambda t, m=m: m, step=plan.step
        )
        problem = {"smooth": False, "n": n, "dimension": m, "epsilon": eps, "delta": 1e-5}
        rate = private_optimisation_rate("dp_comp_gd", rounds, diameter=3.0, lipschitz=2.0, **problem)
        ratios.append(bound / rate)
    assert 0.3 < min(ratios) and max(ratios) < 6  # sqrt(32) at most, from the variance


# ---------------------------------------------------------------- Tables 1 and 2


def test_table_1_by_hand_and_its_exponents() -> None:
    base = {"n": 100, "epsilon": 0.5, "delta": E1, "dimension": 25, "diameter": 2.0, "lipschitz": 3.0}
    log16 = math.log(16)
    assert private_optimisation_rate("dp_comp_gd", 16, smooth=False, **base) == pytest.approx(6 * log16 * (0.25 + 0.1))
    smooth = private_optimisation_rate("dp_comp_gd", 16, smooth=True, **base)
    assert smooth == pytest.approx(6 * 5 * (log16 / 16 + 16 / 2500))
    extra = math.sqrt(math.log(4 * 16 * 10 / (E1 * 100)))
    for is_smooth in (True, False):
        value = private_optimisation_rate("dp_comp_minibatch", 16, smooth=is_smooth, batch=10, **base)
        assert value == pytest.approx(6 * log16 * (0.25 + 0.1 * extra))
    rest = {"n": 10, "delta": 1e-5, "smooth": False, "dimension": 4}
    tiny = lambda eps: private_optimisation_rate("dp_comp_gd", 100, epsilon=eps, **rest)  # noqa: E731
    assert slope(tiny, 1e-7, 1e-6) == pytest.approx(-1, abs=1e-4)
    assert slope(tiny, 1e6, 1e7) == pytest.approx(0, abs=1e-4)


def test_theorem_12_keeps_the_diameter_of_its_noise_term() -> None:
    """eta m sigma^2 at eta = ||C|| / (L sqrt(m)) doubles with ||C||; the theorem prints no ||C|| there."""
    problem = {"smooth": True, "n": 10, "epsilon": 1e-6, "delta": 1e-5, "dimension": 9}
    first, second = (private_optimisation_rate("dp_comp_gd", 50, diameter=D, **problem) for D in (1.0, 2.0))
    assert second == pytest.approx(2 * first)
    exact = [
        private_smooth_optimisation_bound(50, diameter=D, smoothness=1e-9, noise=1e6, dimension=lambda t: 9, step=D / 3)
        for D in (1.0, 2.0)
    ]
    assert exact[1] / exact[0] == pytest.approx(2, rel=1e-6)


def test_table_2_drops_the_sum_of_dimensions() -> None:
    """m_t = 1 is what the table prints, log(1/delta) / (n^{3/2} epsilon^2); m_t = d is d times that."""
    n, eps, delta, d = 50, 0.3, 1e-6, 700
    plain = generalisation_rate("comp_gd", n, smooth=False)
    printed = math.log(1 / delta) / (n**1.5 * eps**2)
    one = private_generalisation_rate("dp_comp_gd", n, total=n**2, epsilon=eps, delta=delta)
    full = private_generalisation_rate("dp_comp_gd", n, total=n**2 * d, epsilon=eps, delta=delta)
    assert one - plain == pytest.approx(printed)
    assert full - plain == pytest.approx(d * printed)
    real = total_dimension(n**2, d, 2.0)
    value = private_generalisation_rate("dp_comp_gd", n, total=real, epsilon=eps, delta=delta)
    assert 0.98 * d * printed < value - plain < d * printed


def test_generalisation_is_stability_and_optimisation() -> None:
    """The noise term of Theorem 13 is that of the explicit bound at its step, T = n^2."""
    n, m, sigma_1 = 12, 5, 0.7  # sigma^2 = sigma_1^2 T / n^2 = sigma_1^2
    plan = private_generalisation_schedule(n)
    T = n**2
    both = [
        private_optimisation_bound(T, diameter=1.0, lipschitz=1.0, noise=s, dimension=lambda t: m, step=plan.step)
        for s in (sigma_1, 0.0)
    ]
    assert 2 * shrinkage(m) * (both[0] - both[1]) == pytest.approx(sigma_1**2 * m * T / n**3.5)
    divergence = nonsmooth_divergence(T, n=n, lipschitz=2.0, step=plan.step)
    assert 2 * divergence < 10 * private_stability_rate(n, lipschitz=2.0)
    assert private_stability_rate(n, lipschitz=2.0) == pytest.approx(4 * private_stability_rate(n))


def test_minibatch_generalisation_has_its_logarithm() -> None:
    common = {"total": 100.0 * 30, "epsilon": 1.0, "delta": 1e-5}
    full = private_generalisation_rate("dp_comp_gd", 10, **common)
    batch = private_generalisation_rate("dp_comp_minibatch", 10, batch=5, **common)
    plain = 2 * math.log(10) / math.sqrt(10)
    assert (batch - plain) / (full - plain) == pytest.approx(math.log(4 * 10 * 5 / 1e-5))


# ---------------------------------------------------------------- Corollaries C.2, C.3


def test_schedules_of_the_corollaries() -> None:
    problem = {"smoothness": 2.0, "diameter": 3.0}
    private = private_stationary_schedule(0.5, lipschitz=1.5, gap=4.0, failure=0.2, **problem)
    plain = stationary_schedule(0.5, gradient_bound=1.5, noise=0.0, gap=4.0, failure=0.2, **problem)
    for name in ("step", "beta", "rounds", "threshold"):
        assert getattr(private, name) == getattr(plain, name)
    mapped = private_mapping_schedule(0.5, lipschitz=1.5, gap=4.0, **problem)
    other = mapping_schedule(0.5, gradient_bound=1.5, noise=0.0, gap=4.0, **problem)
    assert (mapped.step, mapped.beta, mapped.rounds) == (other.step, other.beta, other.rounds)


def test_sample_size_is_theorem_2_4_with_the_noise_of_privacy() -> None:
    """At that n, sigma sqrt(m) = zeta / sqrt(b) of Theorem 2.4 (constant sqrt(32), m = d)."""
    problem = {"smoothness": 0.5, "diameter": 2.0}
    d, rounds, eps, delta, rho = 400, 50, 0.8, 1e-5, 0.2
    n = stationary_samples(
        0.1, lipschitz=3.0, rounds=rounds, epsilon=eps, delta=delta, d=d, failure=rho, **problem
    ) * math.sqrt(32)
    noise = 3.0 * math.sqrt(32 * rounds * math.log(1 / delta)) / (n * eps) * math.sqrt(d)
    zeta = 10.0
    batch = stationary_schedule(0.1, gradient_bound=3.0, noise=zeta, failure=rho, gap=1.0, **problem).batch(0)
    assert noise == pytest.approx(zeta / math.sqrt(batch), rel=1e-6)  # n is rounded up


def test_sample_sizes_scale_as_printed() -> None:
    problem = {"smoothness": 0.5, "diameter": 2.0, "lipschitz": 3.0, "rounds": 10**6, "delta": 1e-5, "d": 10**6}
    options = {**problem, "accuracy": 0.01, "epsilon": 1.0, "failure": 0.1}
    dp_sgd = stationary_samples(**options)
    assert stationary_samples(**{**options, "epsilon": 0.5}) == pytest.approx(2 * dp_sgd)
    assert stationary_samples(**{**options, "d": 4 * 10**6}) == pytest.approx(2 * dp_sgd)
    assert stationary_samples(**{**options, "rounds": 4 * 10**6}) == pytest.approx(2 * dp_sgd)
    assert stationary_samples(**{**options, "failure": 0.4}) == pytest.approx(dp_sgd / 2)
    assert stationary_samples(**{**options, "accuracy": 0.02}) == pytest.approx(dp_sgd / 4)
    assert stationary_samples(**options, width=1e9) == dp_sgd
    beta = private_stationary_schedule(0.01, smoothness=0.5, diameter=2.0, lipschitz=3.0, gap=1.0).beta(0)
    assert stationary_samples(**options, width=7 * beta) == pytest.approx(7 * dp_sgd / 1000)


def test_mapping_sample_size_switches_at_the_second_term() -> None:
    """Table 4 keeps mu ||C|| / alpha^2; Corollary C.3 has 1 / alpha too, the larger when alpha > mu ||C||."""
    problem = {"lipschitz": 1.0, "rounds": 10**6, "delta": 1e-5, "d": 10**4, "epsilon": 1.0}
    value = lambda a: mapping_samples(a, smoothness=1.0, diameter=1.0, **problem)  # noqa: E731
    assert slope(value, 0.01, 0.1) == pytest.approx(-2, abs=1e-3)
    assert slope(value, 10.0, 100.0) == pytest.approx(-1, abs=1e-3)
    assert mapping_samples(1.0, smoothness=1.0, diameter=1.0, constant=1e-9, **problem) == 1


# ---------------------------------------------------------------- bad input

STEP = {"diameter": 1.0, "lipschitz": 1.0, "dimension": 4, "noise": 1.0}
RATE = {"smooth": False, "dimension": 4, "n": 10, "epsilon": 1.0, "delta": 1e-5}
RISK = {"total": 100.0, "epsilon": 1.0, "delta": 1e-5}
SAMPLES = {"smoothness": 1.0, "diameter": 1.0, "lipschitz": 1.0, "rounds": 5, "epsilon": 1.0, "delta": 1e-5, "d": 9}


@pytest.mark.parametrize(
    "call",
    [
        lambda: private_optimisation_schedule("comp_gd", **STEP),
        lambda: private_optimisation_schedule("dp_comp_gd", **{**STEP, "noise": -1.0}),
        lambda: private_optimisation_schedule("dp_comp_gd", smoothness=0.0, **STEP),
        lambda: private_generalisation_schedule(0),
        lambda: private_generalisation_schedule(5, rounds=0),
        lambda: private_optimisation_rate("dp_comp_gd", 10, **{**RATE, "delta": 1.0}),
        lambda: private_optimisation_rate("dp_comp_gd", 10, **{**RATE, "epsilon": 0.0}),
        lambda: private_optimisation_rate("dp_comp_gd", 1, **RATE),
        lambda: private_optimisation_rate("dp_comp_minibatch", 10, **RATE),
        lambda: private_optimisation_rate("dp_comp_minibatch", 10, batch=11, **RATE),
        lambda: private_optimisation_rate("dp_comp_minibatch", 2, batch=1, **{**RATE, "n": 100, "delta": 0.9}),
        lambda: private_generalisation_rate("dp_comp_gd", 11, **RISK),
        lambda: private_generalisation_rate("dp_comp_gd", 1, **RISK),
        lambda: private_stability_rate(1),
        lambda: private_smooth_optimisation_bound(
            5, diameter=1.0, smoothness=1.0, noise=0.0, dimension=lambda t: 3, step=0.3
        ),
        lambda: total_dimension(0, 10, 1.0),
        lambda: stationary_samples(1.0, **{**SAMPLES, "delta": 0.0}),
        lambda: stationary_samples(1.0, width=-1.0, **SAMPLES),
        lambda: stationary_samples(1.0, failure=1.0, **SAMPLES),
        lambda: mapping_samples(0.0, **SAMPLES),
        lambda: mapping_samples(1.0, **{**SAMPLES, "rounds": 0}),
    ],
)
def test_bad_input(call: Callable[[], object]) -> None:
    with pytest.raises(InvalidInput):
        call()


def test_shrinkage_stands_in_for_the_mean_of_s(rng: np.random.Generator) -> None:
    """Corollary C.2's sketch says E[s_t] = 1: it is sqrt(m) E[1/chi_m], 1.25 at m = 4 and 1.08 at m = 11."""
    for m, expected in ((4, 1.2533), (11, 1.0753)):
        s = math.sqrt(m) / np.linalg.norm(rng.standard_normal((200_000, m)), axis=1)
        assert s.mean() == pytest.approx(expected, rel=0.01)  # 200,000 draws
