"""Every experiment of paper 004 at a tiny size: cells run, the verdict follows from them, the plot is drawn."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from isthmus import datasets
from lab.reproduce import Judgement, Observed, Results, RunSetting, figures
from lab.reproduce.paper_004 import EXPERIMENTS, accuracy, training

TINY = {"n": 200, "batch": 50, "epochs": 1, "test": 50, "looked_at": 30}
needs_images = pytest.mark.skipif(
    not (datasets.available("mnist") and datasets.available("fashion_mnist")), reason="ISTHMUS_DATA has no images"
)


@needs_images
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda each: each.name)
def test_it_runs(experiment: Any, tmp_path: Path) -> None:
    config = {**experiment.small, **TINY}
    config |= {"sigmas": config["sigmas"][:1]} | ({"values": config["values"][:1]} if "values" in config else {})
    cells = [cell | ({"k": 20} if cell.get("method") == "RPDP-SGD" else {}) for cell in experiment.cells(config)]
    runs = [(cell, 0, experiment.run(cell, RunSetting(config, 0))) for cell in cells]
    assert all(math.isfinite(value) for _, _, run in runs for value in run.metrics.values())
    results = Results(runs)
    assert isinstance(experiment.verdict(results), Judgement)
    assert figures.draw(experiment, results, tmp_path / "plot.svg").stat().st_size > 1000


def test_a_small_run_keeps_the_noise_of_the_whole_training() -> None:
    """lr * sqrt(T) * sigma / b, and lr * T, are the paper's."""
    paper, small = training.FULL, training.SMALL
    steps = {name: each["epochs"] * each["n"] // each["batch"] for name, each in (("paper", paper), ("small", small))}
    shorter = steps["small"] / steps["paper"]
    noise = 18 * small["batch"] / paper["batch"] * math.sqrt(shorter)
    whole = [0.05 * math.sqrt(steps["paper"]) * 18 / paper["batch"]]
    whole += [0.05 / shorter * math.sqrt(steps["small"]) * noise / small["batch"]]
    assert whole[0] == pytest.approx(whole[1])


def test_verdicts_can_come_out_either_way() -> None:
    def results(pdp: float, random: float) -> Results:
        values = {"DP-SGD": 0.8, "PDP-SGD": pdp, "RPDP-SGD": random}
        cells = [({"method": name, "sigma": 18}, value) for name, value in values.items()]
        return Results((cell, 0, Observed({accuracy.TEST: value, "epsilon, ours": 0.15})) for cell, value in cells)

    judge = accuracy.MNIST.verdict
    assert judge(results(0.9, 0.5)).kind == "holds"
    assert judge(results(0.7, 0.5)).kind == "fails"
    assert judge(results(0.9, 0.9)).kind == "holds in part"
