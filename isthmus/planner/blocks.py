"""Blocks of coordinates, each with its own public step 1 / M_j (DP-SkGD, DP-CD)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from isthmus.planner import costs
from isthmus.planner.choice import Choice
from isthmus.planner.constants import CONSTANTS
from isthmus.planner.facts import Facts
from isthmus.planner.fillings import AVERAGED, Refusal, Run, full_run, sampled_run


def shape_of(facts: Facts) -> np.ndarray | None:
    """Public component smoothness of every parameter: the caller's, or curvature times public second moments."""
    if facts.smoothness is not None:
        given = np.array(facts.smoothness)
    elif facts.public is not None and facts.public.moments is not None:
        moments = np.array(facts.public.moments)
        given = facts.smooth * np.maximum(moments, CONSTANTS.moment_floor * max(moments.max(), 1e-12))
    else:
        return None
    return given if len(given) == facts.parameters else np.tile(given, facts.outputs)


def dp_skgd(facts: Facts) -> Choice | Refusal:
    """Ten blocks (more where fewer numbers may leave), of like columns where their smoothness is public."""
    shape, d = shape_of(facts), facts.parameters
    blocks = min(d, CONSTANTS.blocks if facts.max_dims is None else max(CONSTANTS.blocks, -(-d // facts.max_dims)))
    size = -(-d // blocks)
    run = sampled_run(facts, facts.the_clip * math.sqrt(size / d), size)
    if isinstance(run, Refusal):
        return run
    base = facts.smooth / 2  # steps of 2 / L
    arguments: dict[str, Any] = {"clip": facts.the_clip / math.sqrt(d), "batch_size": run.batch_size}
    arguments |= {"inner": min(CONSTANTS.inner, run.rounds), "smoothness": base, "blocks": blocks}
    unit = math.sqrt(run.rounds / blocks) * run.sigma / base * AVERAGED["average"]
    if shape is not None:
        wide = base * np.maximum(shape / shape.max(), CONSTANTS.block_floor)
        order = np.argsort(-wide, kind="stable")
        arguments |= {"smoothness": wide.tolist(), "probabilities": "importance"}
        if not (np.diff(wide) <= 0).all():
            arguments["blocks"] = [part.tolist() for part in np.array_split(order, blocks)]
        wide = wide[order]
        unit = _margin(run, wide, _law(wide, blocks), np.full(d, run.sigma))
    told = "M by public smoothness, importance" if shape is not None else "equal blocks"
    evidence = "measured (private_tables): IMDB .833 with word ranks, .771 without; a9a .828, at epsilon 0.5"
    arguments["step"] = _step(facts, unit)
    return run.choice("dp_skgd", told, arguments, margin_noise=arguments["step"] * unit, evidence=evidence)


def dp_cd(facts: Facts) -> Choice | Refusal:
    """One coordinate a round, on all records."""
    shape, d, clip = shape_of(facts), facts.parameters, facts.the_clip
    # one number stands for all coordinates where nothing tells them apart
    wide = np.array([facts.smooth * facts.entry**2]) if shape is None else shape
    bounds = clip * np.sqrt(wide / facts.smooth)
    low, high = CONSTANTS.coordinate_rounds
    run = full_run(facts, 1.0, 1, min(max(CONSTANTS.coordinate_passes * d, low), high))
    if isinstance(run, Refusal):
        return run
    arguments: dict[str, Any] = {"smoothness": _few(wide), "clip": _few(bounds)}
    arguments["inner"] = max(1, run.rounds // CONSTANTS.loops)
    sigma = run.sigma * bounds
    unit = _margin(run, wide, np.full(len(wide), 1 / d), sigma)
    arguments["step"] = _step(facts, unit)
    evidence = "measured (coordinates): .014 of the loss left where scales differ by 100, DP-GD with one step .157"
    return run.choice(
        "dp_cd",
        "",
        arguments,
        noise_norm=float(np.sqrt((sigma**2).mean())),
        margin_noise=arguments["step"] * unit,
        seconds=costs.seconds(facts, run.rounds, None, 1),
        evidence=evidence,
    )


def _step(facts: Facts, unit: float) -> float:
    """1 times the steps 1 / M_j, less where the noise would exceed tau."""
    if facts.step is not None:
        return facts.step
    return min(1.0, facts.tau / unit)


def _margin(run: Run, wide: np.ndarray, law: np.ndarray, sigma: np.ndarray) -> float:
    """Noise in the margin of a unit row whose squares are spread as M is; inner loops return their means."""
    visits = run.rounds * law
    walked = np.sqrt((wide / wide.sum() * visits * (sigma / wide) ** 2).sum())
    return float(walked) * AVERAGED["average"]


def _law(wide: np.ndarray, blocks: int) -> np.ndarray:
    """The probability of each coordinate by importance, in the order of the blocks."""
    parts = np.array_split(np.arange(len(wide)), blocks)
    largest = np.array([wide[part].max() for part in parts])
    law = np.empty(len(wide))
    for part, probability in zip(parts, largest / largest.sum(), strict=True):
        law[part] = probability
    return law


def _few(values: np.ndarray) -> float | list[float]:
    """One number where all are equal."""
    return float(values[0]) if bool((values == values[0]).all()) else values.tolist()
