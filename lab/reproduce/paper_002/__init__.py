"""Paper 002: its figures and tables as experiments."""

from __future__ import annotations

from lab.reproduce.experiment import Experiment
from lab.reproduce.paper_002 import figure_1, figure_2, regimes, total_budget

EXPERIMENTS: tuple[Experiment, ...] = (
    figure_1.EXPERIMENT,
    figure_2.KAPPA,
    figure_2.RECORDS,
    regimes.EXPERIMENT,
    total_budget.EXPERIMENT,
)
