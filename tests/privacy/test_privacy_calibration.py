"""Calibration: the noise it returns costs at most the target, and nearly all of it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from isthmus.base.validate import InvalidInput
from isthmus.privacy import (
    Adjacency,
    FixedSize,
    Gaussian,
    Laplace,
    NoisyMax,
    Poisson,
    UnsupportedEvent,
    calibrate,
    compose,
    epsilon,
    epsilon_of,
    noise_multiplier,
)
from isthmus.privacy.accounting import solve

ADD, REPLACE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE


@pytest.mark.parametrize(
    ("eps", "q", "steps", "adjacency", "expected"),
    [
        (1.0, 0.01, 1000, ADD, 1.41463),
        (0.5, 0.025, 1200, ADD, 6.17712),
        (1.0, 0.01, 1000, REPLACE, 2.36443),
        (0.5, 0.025, 1200, REPLACE, 12.17924),
    ],
)
def test_poisson_oracles(eps: float, q: float, steps: int, adjacency: Adjacency, expected: float) -> None:
    multiplier = noise_multiplier(epsilon=eps, delta=1e-5, sampling_rate=q, steps=steps, adjacency=adjacency)
    assert multiplier == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    ("eps", "at", "expected"), [(0.5, 1e-5, 7.0318266756), (1.0, 1e-6, 4.2246788893), (8.0, 1e-5, 0.6002290722)]
)
def test_full_batch_gaussian_oracles(eps: float, at: float, expected: float) -> None:
    assert noise_multiplier(epsilon=eps, delta=at) == pytest.approx(expected, abs=1e-6)
    assert noise_multiplier(epsilon=eps, delta=at, adjacency=REPLACE) == pytest.approx(2 * expected, abs=1e-6)
    assert noise_multiplier(epsilon=eps, delta=at, steps=100) == pytest.approx(10 * expected, abs=1e-5)


def test_laplace_oracle() -> None:
    multiplier = noise_multiplier(epsilon=1.0, delta=1e-5, steps=1000, mechanism="laplace")
    assert multiplier == pytest.approx(117.68, abs=5e-3)  # the oracle is stated to two decimals


def test_without_replacement_oracle() -> None:
    sampler = FixedSize(100, n=10000)
    got = calibrate(lambda z: compose([sampler.event(Gaussian(z).event())] * 1000), 1.0, 1e-5, REPLACE, 4.0)
    assert got == pytest.approx(2 * 2.70757, abs=1e-3)


@pytest.mark.parametrize("adjacency", [ADD, REPLACE])
@pytest.mark.parametrize(
    ("eps", "q", "steps"),
    [(8.0, 0.1, 1000), (1.0, 0.001, 1000), (0.1, 0.1, 10**5), (4.0, 0.01, 10**5), (1.0, 1.0, 10**5)],
)
def test_the_result_costs_the_target(eps: float, q: float, steps: int, adjacency: Adjacency) -> None:
    z = noise_multiplier(epsilon=eps, delta=1e-6, sampling_rate=q, steps=steps, adjacency=adjacency)
    spent = epsilon(noise_multiplier=z, sampling_rate=q, steps=steps, delta=1e-6, adjacency=adjacency)
    assert 0.9999 * eps <= spent <= eps


@pytest.mark.parametrize(("q", "steps"), [(1.0, 1), (1.0, 10**4), (0.05, 500)])
def test_laplace_costs_the_target(q: float, steps: int) -> None:
    b = noise_multiplier(epsilon=1.0, delta=1e-6, sampling_rate=q, steps=steps, mechanism="laplace")
    event = compose([Poisson(q).event(Laplace(b).event())] * steps)
    assert 0.9999 <= epsilon_of(event, 1e-6) <= 1.0


def test_selections_are_calibrated_with_the_renyi_accountant() -> None:
    scale = calibrate(lambda s: compose([NoisyMax(1 / s).event()] * 100), 1.0, 1e-5)
    assert 0.9999 <= epsilon_of(compose([NoisyMax(1 / scale).event()] * 100), 1e-5) <= 1.0


def test_an_unreachable_target_is_refused() -> None:
    with pytest.raises(InvalidInput, match="epsilon"):
        solve(lambda s: 1.0 + 1 / s, 0.5, 1.0)
    with pytest.raises(UnsupportedEvent, match="Laplace"):
        noise_multiplier(epsilon=1.0, delta=1e-5, sampling_rate=0.1, mechanism="laplace", adjacency=REPLACE)


@pytest.mark.parametrize("start", [1e-3, 1.0, 1e4])
def test_search_survives_cliffs_and_plateaus(start: float) -> None:
    def cost(s: float) -> float:
        return math.inf if s < 0.1 else 0.0 if s > 100 else 1 / s**2

    scale, _ = solve(cost, 0.25, start)
    assert 0.25 * (1 - 2e-5) <= cost(scale) <= 0.25


def test_bad_input_is_refused_by_name() -> None:
    wrong: dict[str, Any] = {"epsilon": (0.0, -1.0, math.inf), "delta": (0.0, 1.0), "sampling_rate": (0.0, 2.0)}
    for name, values in {**wrong, "steps": (0,), "mechanism": ("uniform",), "adjacency": (None,)}.items():
        for value in values:
            with pytest.raises(InvalidInput, match=name):
                noise_multiplier(**{"epsilon": 1.0, "delta": 1e-5, name: value})
