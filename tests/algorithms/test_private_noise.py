"""Noise two-sidedly, for every private algorithm: the stated scale is accepted, 2/3 and 3/2 of it are rejected."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from private_cases import COMMON, build, one_release, problem
from private_cases import releases as made
from scipy import stats
from test_private import RECIPES
from test_private_variants import VARIANTS

import isthmus
from isthmus import algorithms, minimize
from isthmus.lifts import discard
from isthmus.privacy import SeededSource

OTHERWISE = ("dp_fw-l1", "dp_fw-simplex", "dp_fw-hull", "compressive-selection", "compressive-batch")
ADDITIVE = [name for name in VARIANTS if name not in OTHERWISE]


def p_values(noise: np.ndarray, law: str) -> dict[float, float]:
    return {factor: stats.kstest(noise / factor, law).pvalue for factor in (2 / 3, 1.0, 1.5)}


def assert_scale(noise: np.ndarray, law: str = "norm") -> None:
    p = p_values(noise, law)
    assert p[1.0] > 1e-3 and p[2 / 3] < 1e-6 and p[1.5] < 1e-6


@pytest.mark.parametrize("name", ADDITIVE)
def test_released_codes(name: str) -> None:
    """The released code less the sum behind it, over multiplier * bound / divisor."""
    make, constraint = VARIANTS[name]
    objective = problem()
    pipe = build(make(), objective, constraint, steps=24)
    stage = pipe.stages[0]
    # the lift is post-processing, tested elsewhere: without it many releases are cheap
    releases = [replace(release, lift=discard) for release in stage.releases]
    pipe = replace(pipe, stages=[replace(stage, sampler=isthmus.parts.Full(), releases=releases)])
    draws: dict[str, list[torch.Tensor]] = {release.name: [] for release in releases}
    for message, released in made(pipe, objective, map(SeededSource, itertools.count())):
        for release in releases:
            bounded = message.values[release.name]
            scale = release.mechanism.multiplier * bounded.bound / message.divisor
            draws[release.name].append((released[release.name] - bounded.value / message.divisor) / scale)
        if sum(len(piece) for piece in draws[releases[0].name]) >= 2500:
            break
    law = "laplace" if name == "compressive-laplace" else "norm"
    for pieces in draws.values():
        assert_scale(torch.cat(pieces).numpy(), law)


def test_the_values_after_a_private_selection() -> None:
    """The second stage of the selection variant: noise on kappa chosen entries, end to end through its lift."""
    objective = problem()
    recipe = VARIANTS["compressive-selection"][0](step=1.0)
    pipe = build(recipe, objective, isthmus.Whole(), 1)
    scale = pipe.stages[1].releases[0].mechanism.multiplier * 0.1 * 2.0 / objective.n  # clip sqrt(kappa), kappa = 4
    noise = []
    gradient = objective.rows(torch.zeros(30, dtype=torch.float64)).dense()
    for seed in range(400):  # 1600 numbers
        result = minimize(objective, recipe, steps=1, record=None, noise_seed=seed)
        chosen = result.x.nonzero().reshape(-1)
        assert len(chosen) == 4
        part = gradient[:, chosen]
        clipped = (part * (0.2 / part.norm(dim=1)).clamp(max=1)[:, None]).sum(0) / objective.n
        noise.append((-result.x[chosen] - clipped) / scale)
    assert_scale(torch.cat(noise).numpy())


@pytest.mark.parametrize("name", ["dp_gd", "priv_sgd"])
def test_end_to_end_through_a_linear_lift(name: str) -> None:
    """One step from 0 without a set: Phi (w_0 - w_1) / eta is the released code, noise and all."""
    objective = problem()
    recipe = RECIPES[name](step=0.7)
    pipe = build(recipe, objective, isthmus.Whole(), 1)
    release = pipe.stages[0].releases[0]
    scale = release.mechanism.multiplier * 0.5 / objective.n
    message, _ = one_release(pipe, objective, SeededSource(0))
    mean = message.values["gradient"].value / objective.n
    sketch = release.encode.draw(30, seed=0, t=0)
    noise = []
    for seed in range(100 if name == "dp_gd" else 300):
        result = minimize(objective, recipe, steps=1, record=None, noise_seed=seed)
        noise.append((sketch.forward(-result.state.w / 0.7) - mean) / scale)
    assert_scale(torch.cat(noise).numpy())


def test_vertices_are_chosen_with_the_exponential_mechanisms_probabilities() -> None:
    """DP-FW: candidate +-s_j wins with probability proportional to exp(epsilon_0 s / (2 C)); chi-square, two-sided."""
    objective = problem(n=60, d=30)
    options: dict[str, Any] = {key: COMMON[key] for key in ("delta", "n")} | {"epsilon": 6.0, "clip": 0.2}
    pipe = build(algorithms.dp_fw(**options), objective, isthmus.L1Ball(8.0), 1)
    epsilon = pipe.stages[0].releases[0].mechanism.epsilon
    message, _ = one_release(pipe, objective, SeededSource(0))
    scores = message.values["vertex"].value.numpy()
    counts = np.zeros(60)
    for seed in range(6000):
        chosen = pipe.stages[0].releases[0].mechanism.release(message.values["vertex"], SeededSource(seed))
        place = int(chosen.abs().argmax())
        counts[place if float(chosen[place]) > 0 else place + 30] += 1
    assert math.isfinite(epsilon)
    for factor, accepted in ((2 / 3, False), (1.0, True), (1.5, False)):
        both = np.concatenate([scores, -scores]) * factor * epsilon / (2 * 0.2)
        expected = np.exp(both - both.max())
        expected /= expected.sum()
        order = np.argsort(-expected)[:8]  # the likely candidates, and all the others together
        seen = np.append(counts[order], 6000 - counts[order].sum())
        hoped = 6000 * np.append(expected[order], 1 - expected[order].sum())
        p = stats.chisquare(seen, hoped * seen.sum() / hoped.sum()).pvalue
        assert (p > 1e-3) if accepted else (p < 1e-6), factor
