"""Paper 000: every experiment at a tiny size."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from smoke import smoke

from lab.reproduce.experiment import Observed, Results
from lab.reproduce.paper_000 import EXPERIMENTS, problems, table_1

TINY = {
    "000-table-1": {"d": 8, "n": 60, "lengths": [4, 8]},
    "000-table-1-private": {"algorithms": ["dp_comp_gd"], "d": 8, "sizes": [60, 120]},
    "000-table-2": {"d": 8, "repeats": 1, "sizes": {"smooth": [12, 24], "nonsmooth": [3, 4]}},
    "000-table-2-private": {"algorithms": ["dp_comp_gd"], "d": 8, "repeats": 1, "sizes": {"nonsmooth": [3, 4]}},
    "000-stability": {"n": dict.fromkeys(("2", "3", "5", "7", "9", "10"), 4), "d": 8, "pairs": 1},
    "000-stability-private": {"n": {"13": 3, "15": 3}, "d": 8, "pairs": 1},
}


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda each: each.name)
def test_every_experiment_runs(experiment: table_1.Experiment) -> None:
    smoke(experiment, TINY[experiment.name])


def test_a_slope_that_is_too_flat_fails() -> None:
    curves = {"error": ([1.0, 2.0], [-1.0, -1.1]), "theorem": ([1.0, 2.0], [-1.0, -1.5])}
    cells = [{"algorithm": name, "smooth": True, "m": "m_t"} for name in ("comp_sgd", "comp_gd")]
    flat, steep = Observed({"slope": -0.1}, curves), Observed({"slope": -0.5}, curves)
    kinds = [
        table_1.verdict(Results([(cells[0], 0, a), (cells[1], 0, b)])).kind
        for a, b in ((steep, steep), (flat, steep), (flat, flat))
    ]
    assert kinds == ["holds", "holds in part", "fails"]


@pytest.mark.parametrize("smooth", [True, False])
def test_population_risk_in_closed_form(smooth: bool) -> None:
    problem = problems.Regression(6, smooth, 0.5, seed=0)
    w = torch.from_numpy(problem.target + np.linspace(-1, 1, 6))
    many = problem.sample(400_000)
    measured = many.loss(w) - many.loss(torch.from_numpy(problem.target))
    assert math.isclose(measured, problem.excess_risk(w), rel_tol=0.03)  # of 400,000 records: about .01


def test_weighted_averages_pair_a_step_with_the_point_before_it() -> None:
    watch = problems.RunningAverage(lambda t: 1.0 / (t + 1), torch.zeros(1), at=[2, 3])
    for t, w in ((1, 6.0), (2, 12.0), (3, 99.0)):
        watch({"t": t}, type("State", (), {"w": torch.tensor([w])}))
    assert [float(p) for p in watch.points] == pytest.approx([3.0 / 1.5, (3.0 + 4.0) / (1.5 + 1 / 3)])
