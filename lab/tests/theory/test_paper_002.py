"""Paper 002: the compressive mechanism, Proposition 2, Theorem 1, and when compression helps."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from isthmus import InvalidInput
from isthmus.theory import compressive_scale, dense_scale, laplace_noise, sparse_schedule
from lab.theory import (
    Comparison,
    compression_helps,
    compressive_dimension,
    compressive_error,
    compressive_gradient_bound,
    cosamp_rounds,
    largest_entries,
    last_iterate_bound,
    sparse_bound,
    sparsification_helps,
    sparsification_loss,
)

# ---------------------------------------------------------------- the mechanism


def test_largest_entries_and_what_they_lose(rng: np.random.Generator) -> None:
    for d, k in ((7, 1), (20, 6), (9, 9)):
        v = rng.standard_normal(d) ** 3
        kept = largest_entries(v, k)
        assert (kept != 0).sum() == k and set(kept[kept != 0]) <= set(v)
        assert np.abs(kept[kept != 0]).min() >= np.abs(np.where(kept == 0, v, 0)).max()
        assert ((kept - v) ** 2).sum() <= sparsification_loss(d, k) * (v**2).sum() + 1e-12
    ones = np.ones(10)
    lost = ((largest_entries(ones, 4) - ones) ** 2).sum()
    assert lost == pytest.approx(sparsification_loss(10, 4) * 10)  # tight, so the paper's 2 is not needed


def test_dimension_and_iterations() -> None:
    assert compressive_dimension(10**6, 10) == math.ceil(10 * math.log(10**5))
    assert compressive_dimension(5, 1) == 3 and compressive_dimension(2, 2) == 3
    assert compressive_dimension(100, 30, constant=50.0) == 100
    assert [cosamp_rounds(k) for k in (1, 5)] == [12, 36]


def test_explicit_noise_is_the_second_moment(rng: np.random.Generator) -> None:
    p, eps = 20, 0.5
    b = math.sqrt(p) / eps
    assert laplace_noise(p, b) == pytest.approx(2 * p**2 / eps**2)
    assert compressive_scale(p, eps, k=5, bound=0.1) == pytest.approx(b)  # 2 Xi kappa = 1
    draws = (rng.laplace(scale=b, size=(40_000, p)) ** 2).sum(1)
    assert draws.mean() == pytest.approx(laplace_noise(p, b), abs=5 * draws.std() / 200)


def test_proposition_2_survives_its_false_step() -> None:
    """p e^{-x} is not e^{-x log p}; but C'^2 2 p^2 / epsilon^2, where the proof ends, is the exact second moment."""
    p, x = 20, 1.5
    assert p * math.exp(-x) > math.exp(-x * math.log(p)) * 300
    d, k, eps, bound, c1, c2 = 1000, 7, 0.3, 2.0, 3.0, 1.7
    p = c2 * k * math.log(d / k)  # not rounded
    exact = (2 * bound * k * c1) ** 2 * 2 * p**2 / eps**2
    assert compressive_error(d, k, epsilon=eps, bound=bound, constant=8 * c1**2 * c2**2) == pytest.approx(exact)


def test_mechanism_on_a_known_support(rng: np.random.Generator) -> None:
    """Least squares on the right support is a linear decoder: E ||error||^2 <= 2 p b^2 / smallest eigenvalue."""
    d, k, p, eps = 60, 3, 30, 2.0
    support, b = np.arange(k), math.sqrt(p) / eps
    psi = rng.standard_normal((p, d)) / math.sqrt(p)
    noise = rng.laplace(scale=b, size=(p, 2000))
    error = (np.linalg.lstsq(psi[:, support], noise, rcond=None)[0] ** 2).sum(0).mean()
    factor = 1 / np.linalg.eigvalsh(psi[:, support].T @ psi[:, support])[0]
    assert error < factor * laplace_noise(p, b)


# ---------------------------------------------------------------- Theorem 1


def test_step_minimises_and_the_footnote_does_not() -> None:
    D, G = 3.0, 5.0
    best = sparse_schedule(D, G).step(0)
    assert best == pytest.approx(D / (math.sqrt(2) * G))
    assert sparse_schedule(D, G, rounds=9).step(8) == pytest.approx(best / 3)
    at_best = last_iterate_bound(50, diameter=D, gradient_bound=G)
    assert at_best == pytest.approx(math.sqrt(2) * D * G * (2 + math.log(50)) / math.sqrt(50))
    for scale in (D / (2 * G), 0.99 * best, 1.01 * best):
        assert last_iterate_bound(50, diameter=D, gradient_bound=G, scale=scale) > at_best


def test_theorem_1_as_printed() -> None:
    T, d, k, eps, D, xi, C = 30, 100, 4, 0.7, 2.0, 1.3, 2.5
    log = math.log(d / k)
    first = math.sqrt(2 / T) * math.sqrt(k * (1 + C * k**3 * log**2 / eps**2))
    inner = first + math.sqrt(2 * (d - k)) + math.sqrt(C) * k**2 * log / eps
    bound = sparse_bound(T, d=d, k=k, epsilon=eps, diameter=D, bound=xi, constant=C)
    assert bound == pytest.approx(D * xi * (2 + math.log(T)) * inner)
    G = compressive_gradient_bound(d, k, epsilon=eps, bound=xi, constant=C)
    assert G == pytest.approx(xi * math.sqrt(k) * math.sqrt(1 + C * k**3 * log**2 / eps**2))


def test_gradient_bound_lacks_a_cross_term() -> None:
    G2 = compressive_gradient_bound(100, 4, epsilon=3.0, bound=1.0) ** 2
    W = math.sqrt(compressive_error(100, 4, epsilon=3.0, bound=1.0))
    assert G2 < (math.sqrt(4) + W) ** 2 <= 2 * G2


def test_theorem_1_limits() -> None:
    """epsilon -> infinity leaves sqrt(d - kappa); epsilon -> 0 is 1/epsilon; T -> infinity does not help."""
    problem = {"d": 10**4, "k": 3, "diameter": 1.0, "bound": 1.0}
    loose = sparse_bound(10**12, epsilon=1e9, **problem) / (2 + math.log(10**12))
    assert loose == pytest.approx(math.sqrt(2 * (10**4 - 3)), rel=1e-4)
    tight = [sparse_bound(100, epsilon=e, **problem) for e in (1e-8, 1e-7)]
    assert tight[0] / tight[1] == pytest.approx(10, rel=1e-4)


# ---------------------------------------------------------------- does compression help?


def test_gaussian_regime_by_hand() -> None:
    """d = 100, m = 10: helps when (1 - energy) ||g||^2 < 90 s^2."""
    problem = {"norm": 3.0, "energy": 0.9}
    edge = math.sqrt(0.9 / 90)
    assert compression_helps(100, 10, scale=1.01 * edge, **problem)
    assert not compression_helps(100, 10, scale=0.99 * edge, **problem)
    verdict = compression_helps(100, 10, scale=2 * edge, **problem)
    assert verdict.reach == pytest.approx(2)
    assert (verdict.bias, verdict.noise, verdict.plain) == pytest.approx((0.9, 0.4, 4.0))
    assert verdict.compressed == pytest.approx(1.3)


def test_sparsity_is_the_worst_energy() -> None:
    assert compression_helps(100, 10, scale=1.0, norm=2.0, sparsity=25) == compression_helps(
        100, 10, scale=1.0, norm=2.0, energy=0.25
    )


def test_regime_is_the_measured_error(rng: np.random.Generator) -> None:
    """Coordinates as the subspace: the mean squared error of both estimates, 4000 draws."""
    d, m, s = 40, 8, 0.2
    g = np.exp(-np.arange(d) / 6)
    energy = (g[:m] ** 2).sum() / (g**2).sum()
    verdict = compression_helps(d, m, scale=s, norm=float(np.linalg.norm(g)), energy=float(energy))
    narrow = np.zeros((4000, d))
    narrow[:, :m] = g[:m] + s * rng.standard_normal((4000, m))
    wide = g + s * rng.standard_normal((4000, d))
    assert ((narrow - g) ** 2).sum(1).mean() == pytest.approx(verdict.compressed, rel=0.03)  # 4000 draws
    assert ((wide - g) ** 2).sum(1).mean() == pytest.approx(verdict.plain, rel=0.03)
    assert verdict


def test_transposed_gaussian_map_gains_nothing(rng: np.random.Generator) -> None:
    d, m = 300, 15
    phi = rng.standard_normal((m, d)) / math.sqrt(m)
    e = rng.standard_normal((m, 500))
    ratio = ((phi.T @ e) ** 2).sum() / (e**2).sum()
    assert ratio == pytest.approx(d / m, rel=0.1)  # one map
    for scale in (1e-3, 1.0, 1e3):
        assert not compression_helps(d, m, scale=scale, norm=1.0, energy=1.0, recovery=d / m)


def test_laplace_regime_of_the_paper() -> None:
    """n = 1: small epsilon helps and large does not; the edge is sqrt(8 (d^3 - kappa^2 p^2) / (d - kappa))."""
    problem = {"d": 75, "k": 5, "p": 20}
    edge = math.sqrt(8 * (75**3 - 25 * 400) / 70)
    assert sparsification_helps(0.99 * edge, **problem)
    assert not sparsification_helps(1.01 * edge, **problem)
    for eps in (0.1, 1.0, 10.0):
        assert eps * sparsification_helps(eps, bound=3.0, **problem).reach == pytest.approx(edge)
    verdict = sparsification_helps(2.0, bound=3.0, **problem)
    assert verdict.noise == pytest.approx(8 * 9 * 25 * 400 / 4)
    assert (
        verdict.plain
        == pytest.approx(8 * 9 * 75**3 / 4)
        == pytest.approx(laplace_noise(75, dense_scale(75, 2.0, bound=3.0)))
    )


def test_laplace_regime_with_n_records() -> None:
    """The compressed noise does not fall with n: never at n = 10,000; the edge is kappa p = d^{3/2} / n."""
    for eps in (1e-6, 1.0, 1e6):
        verdict = sparsification_helps(eps, d=75, k=5, p=20, n=10_000)
        assert not verdict and verdict.reach == 0
    assert sparsification_helps(1e-3, d=75, k=5, p=20, n=6) and not sparsification_helps(1e-3, d=75, k=5, p=20, n=7)


def test_comparison_edges() -> None:
    assert Comparison(0.0, 1.0, 2.0).reach == math.inf
    assert not Comparison(0.0, 1.0, 1.0) and Comparison(0.0, 1.0, 1.0).reach == 0


# ---------------------------------------------------------------- bad input

GOOD = {"scale": 1.0, "norm": 1.0}


@pytest.mark.parametrize(
    "call",
    [
        lambda: largest_entries([[1.0, 2.0]], 1),  # type: ignore[list-item]
        lambda: largest_entries([1.0, 2.0], 3),
        lambda: sparsification_loss(5, 6),
        lambda: compressive_dimension(5, 0),
        lambda: compressive_scale(0, 1.0, k=1, bound=1.0),
        lambda: dense_scale(5, 0.0, bound=1.0),
        lambda: laplace_noise(5, -1.0),
        lambda: cosamp_rounds(0),
        lambda: compressive_error(10, 2, epsilon=0.0, bound=1.0),
        lambda: sparse_schedule(1.0, 0.0),
        lambda: last_iterate_bound(5, diameter=1.0, gradient_bound=1.0, bias=-1.0),
        lambda: last_iterate_bound(5, diameter=1.0, gradient_bound=1.0, scale=0.0),
        lambda: sparse_bound(0, d=5, k=2, epsilon=1.0, diameter=1.0, bound=1.0),
        lambda: compression_helps(10, 5, **GOOD),
        lambda: compression_helps(10, 5, energy=0.5, sparsity=5, **GOOD),
        lambda: compression_helps(10, 5, energy=1.5, **GOOD),
        lambda: compression_helps(10, 11, energy=0.5, **GOOD),
        lambda: compression_helps(10, 5, energy=0.5, noise="cauchy", **GOOD),
        lambda: compression_helps(10, 5, energy=0.5, scale=-1.0, norm=1.0),
        lambda: sparsification_helps(0.0, d=10, k=2),
    ],
)
def test_bad_input(call: Callable[[], object]) -> None:
    with pytest.raises(InvalidInput):
        call()
