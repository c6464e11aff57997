"""Tables 1, 2, 4, 5 and CompFW of paper 001 at tiny sizes."""

from __future__ import annotations

import pytest
from smoke import smoke

from lab.reproduce.paper_001 import frank_wolfe, tables_1_4, tables_2_5

TINY = {
    "001-table-1": {"d": 12, "rounds": 3, "sizes": [30, 60], "runs": [["DP-SGD", "d"], ["PrivSGD", 4]]},
    "001-table-4": {"d": 12, "rounds": 3, "sizes": [30, 60], "runs": [["DP-SGD", "d"], ["PrivSGD", 4]]},
    "001-table-2": {"n": 40, "d": 20, "rounds": 6},
    "001-table-5": {"n": 40, "d": 20, "rounds": 6},
    "001-compfw-convex": {"n": 30, "side": 4, "rounds": 40},
    "001-compfw-nonconvex": {"n": 40, "d": 20, "most": 60},
}
EXPERIMENTS = (*tables_1_4.EXPERIMENTS, *tables_2_5.EXPERIMENTS, *frank_wolfe.EXPERIMENTS)


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda each: each.name)
def test_every_experiment_runs(experiment: tables_1_4.Experiment) -> None:
    smoke(experiment, TINY[experiment.name])
