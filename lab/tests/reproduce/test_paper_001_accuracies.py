"""Paper 001: every cell of every experiment runs at a tiny size, is judged and drawn."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from smoke import smoke

from lab.reproduce import Experiment, Observed, Results
from lab.reproduce.paper_001 import EXPERIMENTS, compressed, epoch_times, figure_1a, figure_4, logistic

SHORT = {"rows": 64, "epochs": 2}
TIMES = {name: {**each, "rows": 40, "epochs": 1}
         for name, each in epoch_times.EXPERIMENT.small["problems"].items()}  # fmt: skip
TINY: dict[str, dict[str, Any]] = {
    "001-figure-1a": {"n": 64, "d": 100, "epochs": 3},
    "001-figure-1b-3a": SHORT,
    "001-figure-1c-3b": SHORT,
    "001-figure-1d-3c-3d": SHORT,
    "001-figure-2a-6a": SHORT,
    "001-figure-2b-6b": SHORT,
    "001-figure-2c-6c": SHORT,
    "001-figure-4": {**SHORT, "runs": 2},
    "001-epoch-times": {"problems": TIMES},
}
"""Sizes of a moment, on data of the same form."""
BY_NAME = {experiment.name: experiment for experiment in EXPERIMENTS}


@pytest.mark.parametrize("name", TINY)
def test_smoke(name: str, small_data: Path) -> None:
    smoke(BY_NAME[name], TINY[name])


def results_of(experiment: Experiment, metrics: Callable[[str], dict[str, float]]) -> Results:
    return Results(
        [(cell, 0, Observed(metrics(next(iter(cell.values()))))) for cell in experiment.cells(experiment.small)]
    )


@pytest.mark.parametrize(("gap", "kind"), [(0.005, "holds"), (0.015, "holds in part"), (0.2, "fails")])
def test_accuracies_decide(gap: float, kind: str) -> None:
    """Figures 1d and 3: the verdict follows the measured gap."""

    def metrics(method: str) -> dict[str, float]:
        lost = 0.0 if method == compressed.SGD else gap
        names = ("test accuracy", "train accuracy", "mean test accuracy of the epochs")
        return dict.fromkeys(names, 0.87 - lost) | {"numbers a step": 1e4 if method == compressed.SGD else 500.0}

    experiment = BY_NAME["001-figure-1d-3c-3d"]
    judged = experiment.verdict(results_of(experiment, metrics))
    assert judged.kind == kind and "20.0 times fewer" in judged.why


@pytest.mark.parametrize(("ratio", "kind"), [(1.1, "holds"), (2.0, "fails")])
def test_ratios_decide(ratio: float, kind: str) -> None:
    """Epoch times."""
    metrics = {f"{m}: ratio": ratio for m in epoch_times.METHODS} | {f"{m}: seconds": 1.0 for m in epoch_times.METHODS}
    assert epoch_times.verdict(results_of(epoch_times.EXPERIMENT, lambda _: metrics)).kind == kind


@pytest.mark.parametrize(("spread", "kind"), [(0.002, "holds"), (0.05, "fails")])
def test_deviations_decide(spread: float, kind: str) -> None:
    """Figure 4."""
    metrics = {"test accuracy": 0.7, "last deviation": spread, "mean deviation of the epochs": spread}
    assert figure_4.verdict(results_of(figure_4.EXPERIMENT, lambda _: metrics)).kind == kind


@pytest.mark.parametrize(("times", "kind"), [(1.0, "holds"), (2.0, "holds in part"), (10.0, "fails")])
def test_objectives_decide(times: float, kind: str) -> None:
    """Figure 1a."""

    def metrics(method: str) -> dict[str, float]:
        own = 1.0 if method == compressed.SGD else times
        return {figure_1a.LAST: math.log10(0.01 * own), "numbers a step": 1.0}

    assert figure_1a.verdict(results_of(figure_1a.EXPERIMENT, metrics)).kind == kind


def test_imdb_uses_nineteen_times_fewer_numbers() -> None:
    """Twelve epochs of m_t = t^2 log d, d = 10000: the paper's factor is about 19."""
    config = logistic.EXPERIMENTS[2].full
    per_epoch = -(-config["rows"] // compressed.BATCH)
    rule = compressed.dimension(10_000, 2, per_epoch)
    mean = sum(rule(t) for t in range(12 * per_epoch)) / (12 * per_epoch)
    assert config["epochs"] == 12 and 18 < 10_000 / mean < 21
