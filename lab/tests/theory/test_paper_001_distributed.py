"""Contractions, Lemma D.1, Corollary D.2 and the communication tables."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from isthmus import InvalidInput
from isthmus.theory import (
    aggregate_second_moment,
    aggregate_variance,
    convex_schedule,
    distributed_convex_schedule,
    distributed_mapping_schedule,
    distributed_stationary_schedule,
    mapping_schedule,
    stationary_schedule,
)
from lab.theory import (
    convex_communication,
    convex_rate,
    distributed_convex_rate,
    distributed_strongly_convex_rate,
    distributed_strongly_convex_smooth_rate,
    floats,
    mapping_communication,
    qsgd,
    qsgd_chi,
    qsgd_nonzeros,
    random_sparsification,
    stationary_communication,
    strongly_convex_communication,
    strongly_convex_rate,
    strongly_convex_smooth_communication,
    strongly_convex_smooth_rate,
    terngrad,
    vqsgd,
)

PROBLEM = {"smoothness": 2.0, "diameter": 3.0, "gradient_bound": 5.0}


# ---------------------------------------------------------------- contractions


def rounding_variance(v: np.ndarray, levels: int) -> float:
    """E||C(v) - v||^2 / ||v||^2 of stochastic rounding, exactly: a Bernoulli of width 1/s for each number."""
    part = np.abs(v) / np.linalg.norm(v) * levels
    p = part - np.floor(part)
    return float((p * (1 - p)).sum() / levels**2)


@pytest.mark.parametrize("a", [1, 4, 50])
@pytest.mark.parametrize("levels", [1, 2, 7, 30])
def test_qsgd_chi_bounds_stochastic_rounding(a: int, levels: int, rng: np.random.Generator) -> None:
    """Gaussian, flat and spiked vectors."""
    vectors = [*rng.standard_normal((200, a)), np.ones(a), np.eye(a)[0] + 0.01]
    assert max(rounding_variance(v, levels) for v in vectors) <= qsgd_chi(a, levels) * (1 + 1e-12)


def test_qsgd_by_hand() -> None:
    assert qsgd_chi(100, 10) == 1.0 == qsgd(100).chi
    assert qsgd_chi(100, 1) == 10.0 and qsgd_chi(100, 100) == pytest.approx(0.01)
    assert qsgd(100).bits == pytest.approx(2.8 * 100 + 32)
    assert qsgd_nonzeros(100, 1) == 11.0 and qsgd_nonzeros(100, 50) == 100.0
    k = 2 * (2 + 10)
    assert qsgd(100, levels=2).bits == pytest.approx(k * (3 + 1.5 * math.log2(2 * 104 / k)) + 32)
    assert qsgd(100, levels=3, coding="fixed").bits == 32 + 100 * 3


def test_terngrad_chi_is_the_worst_case(rng: np.random.Generator) -> None:
    """||v||_inf ||v||_1 / ||v||^2 - 1, reached at (1, x, ..., x) with x = 1 / (sqrt(a) + 1)."""
    for a in (1, 2, 9, 100):
        worst = np.full(a, 1 / (math.sqrt(a) + 1))
        worst[0] = 1.0
        vectors = [*rng.standard_normal((300, a)), worst]
        ratios = [np.abs(v).max() * np.abs(v).sum() / (v @ v) - 1 for v in vectors]
        assert max(ratios) == pytest.approx(terngrad(a).chi, abs=1e-12)


def test_vqsgd_is_unbiased_with_its_chi() -> None:
    """Vertices +-sqrt(a) e_i with probabilities of mean v and the rest of the mass spread evenly."""
    v = np.array([0.6, -0.48, 0.64])
    a = len(v)
    rest = (1 - np.abs(v).sum() / math.sqrt(a)) / (2 * a)
    plus = np.maximum(v, 0) / math.sqrt(a) + rest
    minus = np.maximum(-v, 0) / math.sqrt(a) + rest
    assert plus.sum() + minus.sum() == pytest.approx(1) and rest >= 0
    np.testing.assert_allclose(math.sqrt(a) * (plus - minus), v)
    assert a * (plus.sum() + minus.sum()) - v @ v == pytest.approx(vqsgd(a).chi)
    assert vqsgd(a, repetitions=4).chi == pytest.approx(vqsgd(a).chi / 4)


def test_random_sparsification_by_hand(rng: np.random.Generator) -> None:
    """Each of the a numbers is kept with probability k/a: variance (a/k - 1) ||v||^2."""
    a, k = 12, 3
    v = rng.standard_normal(a)
    variance = (v**2 * ((a / k) ** 2 * k / a - 1)).sum()
    assert variance / (v @ v) == pytest.approx(random_sparsification(a, k).chi)
    assert random_sparsification(a, a).chi == 0.0
    assert random_sparsification(a, k).bits == 3 * (32 + 4)


@pytest.mark.parametrize("scheme", [floats, qsgd, terngrad, vqsgd, lambda a: random_sparsification(a, 1)])
def test_contractions_cost_more_for_longer_codes(scheme: Callable) -> None:
    """The paper's assumption: chi and gamma do not fall with a."""
    costs = [scheme(a) for a in (1, 5, 50, 500)]
    for first, second in zip(costs, costs[1:], strict=False):
        assert second.chi >= first.chi and second.bits >= first.bits


# ---------------------------------------------------------------- Lemma D.1 and Corollary D.2


def test_lemma_d1_by_hand() -> None:
    assert aggregate_second_moment(3.0, 2.0, 6) == pytest.approx(2 * (2 * 9 / 6 + 9))
    assert aggregate_second_moment(3.0, 0.0) == 18.0
    assert aggregate_variance(3.0, 2.0, 0.5, 1.5) == pytest.approx(2 * (18 + 0.25 + 2.25))
    assert aggregate_variance(3.0, 2.0, 0.5, 1.5, clients=10) == pytest.approx(4.1)


def test_the_mean_of_independent_clients_has_variance_over_kappa(rng: np.random.Generator) -> None:
    """Lemma D.1 (c) with the 1/kappa, on drawn clients with noise: within five standard errors below half the bound."""
    gradients = rng.standard_normal((20, 8))
    between = math.sqrt(((gradients - gradients.mean(0)) ** 2).sum(1).mean())
    noise, draws = 0.7, 4000
    for kappa in (1, 4, 16):
        chosen = gradients[rng.integers(20, size=(draws, kappa))]
        mean = (chosen + noise * rng.standard_normal(chosen.shape) / math.sqrt(8)).mean(1)
        errors = ((mean - gradients.mean(0)) ** 2).sum(1)
        expected = aggregate_variance(1.0, 0.0, noise, between, kappa) / 2
        assert errors.mean() == pytest.approx(expected, abs=5 * errors.std() / math.sqrt(draws))


def test_parts_1_to_3_are_the_plain_rates_at_g_prime() -> None:
    bound = math.sqrt(aggregate_second_moment(5.0, 3.0, 2))
    scale = {"gradient_bound": 5.0, "chi": 3.0, "clients": 2}
    assert distributed_strongly_convex_smooth_rate(40, strong_convexity=0.5, smoothness=2.0, **scale) == pytest.approx(
        strongly_convex_smooth_rate(40, gradient_bound=bound, strong_convexity=0.5, smoothness=2.0)
    )
    assert distributed_strongly_convex_rate(40, strong_convexity=0.5, **scale) == pytest.approx(
        strongly_convex_rate(40, gradient_bound=bound, strong_convexity=0.5)
    )
    assert distributed_convex_rate(40, diameter=3.0, **scale) == pytest.approx(
        convex_rate(40, diameter=3.0, gradient_bound=bound)
    )
    plan = distributed_convex_schedule(3.0, 5.0, 3.0, clients=2)
    assert plan.step(8) == pytest.approx(3 / (3 * bound)) == pytest.approx(convex_schedule(3.0, bound).step(8))
    assert plan.batch_size() == 2


def test_more_clients_approach_uncompressed_clients() -> None:
    rates = [distributed_convex_rate(100, diameter=1.0, gradient_bound=1.0, chi=9.0, clients=k) for k in (1, 9, 10**6)]
    clean = distributed_convex_rate(100, diameter=1.0, gradient_bound=1.0, chi=0.0)
    assert rates == sorted(rates, reverse=True) and rates[-1] == pytest.approx(clean, rel=1e-5)


def test_part_4_by_hand() -> None:
    """zeta'^2 = 2 (chi G^2 + zeta^2 + vartheta^2) takes the place of zeta^2, kappa that of b."""
    alpha, chi, rho = 2.0, 0.5, 0.2
    spread = math.sqrt(2 * (0.5 * 25 + 1 + 4))
    plan = distributed_stationary_schedule(alpha, **PROBLEM, noise=1.0, between=2.0, chi=chi, gap=4.0, failure=rho)
    plain = stationary_schedule(alpha, **PROBLEM, noise=spread, gap=4.0, failure=rho)
    bound = math.sqrt(2 * 25 * (chi / plain.batch_size() + 1))
    assert plan.batch == plain.batch and plan.rounds == plain.rounds and plan.threshold == plain.threshold
    assert plan.beta(0) == pytest.approx(2 * 4 / (64 * bound * 3 * 121))


def test_part_5_by_hand() -> None:
    spread = math.sqrt(2 * (0.5 * 25 + 1 + 4))
    plan = distributed_mapping_schedule(2.0, **PROBLEM, noise=1.0, between=2.0, chi=0.5, gap=4.0)
    plain = mapping_schedule(2.0, **PROBLEM, noise=spread, gap=4.0)
    bound = math.sqrt(2 * 25 * (0.5 / plain.batch_size() + 1))
    assert plan.batch == plain.batch and plan.rounds == plain.rounds and plan.step(0) == 0.25
    assert plan.beta(0) == pytest.approx(4 / (2 * bound * 3))


# ---------------------------------------------------------------- Tables 2 and 5


def test_table_5_by_hand() -> None:
    """QSGD at s = sqrt(d): chi = 1, gamma = 2.8 d + 32; T doubles, and r = (w T)^2."""
    cost = strongly_convex_smooth_communication(
        0.5, gradient_bound=1.0, strong_convexity=1.0, smoothness=2.0, d=10_000, width=3.0, scheme=qsgd
    )
    assert cost.sgd == 4 * 32 * 10_000
    assert cost.contraction == pytest.approx(8 * (2.8 * 10_000 + 32))
    assert cost.dimension == (3 * 8) ** 2
    assert cost.compressed == pytest.approx(8 * (2.8 * 576 + 32))


def test_rows_2_and_3_by_hand() -> None:
    two = strongly_convex_communication(
        0.25, gradient_bound=2.0, strong_convexity=4.0, d=10**6, width=1.0, scheme=floats
    )
    three = convex_communication(0.5, gradient_bound=2.0, diameter=1.5, d=10**6, width=1.0, scheme=floats)
    assert (two.sgd, two.dimension) == (4 * 32e6, 16)
    assert (three.sgd, three.dimension) == (36 * 32e6, 36**2)
    assert three.compressed == 36 * 32 * 36**2


@pytest.mark.parametrize("scheme", [floats, qsgd, terngrad, vqsgd])
@pytest.mark.parametrize("width", [0.5, 3.0, 100.0])
def test_compression_never_costs_more(scheme: Callable, width: float) -> None:
    """The remark under Corollary D.2, for every row."""
    shared = {"d": 5000, "width": width, "scheme": scheme}
    nonconvex = {**PROBLEM, "noise": 1.0, "between": 1.0, "gap": 1.0, **shared}
    rows = [
        strongly_convex_smooth_communication(0.1, gradient_bound=1.0, strong_convexity=1.0, smoothness=2.0, **shared),
        strongly_convex_communication(0.1, gradient_bound=1.0, strong_convexity=1.0, **shared),
        convex_communication(0.3, gradient_bound=1.0, diameter=2.0, **shared),
        stationary_communication(8.0, **nonconvex),
        mapping_communication(2.0, **nonconvex),
    ]
    for row in rows:
        assert 0 < row.compressed <= row.contraction and 1 <= row.dimension <= 5000
        if scheme is floats:
            assert row.sgd == pytest.approx(row.contraction)


def test_nonconvex_rows_are_kappa_t_gamma() -> None:
    shared = {**PROBLEM, "noise": 1.0, "between": 1.0, "gap": 1.0}
    row = mapping_communication(2.0, **shared, d=5000, width=1.0, scheme=qsgd)
    plan = distributed_mapping_schedule(2.0, **shared, chi=1.0)
    bare = distributed_mapping_schedule(2.0, **shared, chi=0.0)
    assert row.dimension == math.ceil(plan.beta(0) ** -2)
    assert row.compressed == pytest.approx(plan.batch_size() * plan.rounds * qsgd(row.dimension).bits)
    assert row.sgd == bare.batch_size() * bare.rounds * 32 * 5000


@pytest.mark.parametrize(
    "call",
    [
        lambda: floats(0),
        lambda: qsgd(10, levels=0),
        lambda: qsgd(10, coding="huffman"),
        lambda: qsgd_chi(10, 0.5),
        lambda: vqsgd(10, repetitions=0),
        lambda: random_sparsification(4, 5),
        lambda: aggregate_second_moment(1.0, -1.0),
        lambda: aggregate_variance(1.0, 1.0, 1.0, 1.0, clients=0),
        lambda: convex_communication(0.0, gradient_bound=1.0, diameter=1.0, d=10, width=1.0, scheme=floats),
        lambda: distributed_mapping_schedule(1.0, **PROBLEM, noise=1.0, between=-1.0, chi=1.0, gap=1.0),
    ],
)
def test_refusals(call: Callable[[], object]) -> None:
    with pytest.raises(InvalidInput):
        call()
