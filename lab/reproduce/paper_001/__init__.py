"""Paper 001: its figures and tables as experiments."""

from __future__ import annotations

from lab.reproduce.experiment import Experiment
from lab.reproduce.paper_001 import (
    epoch_times,
    figure_1a,
    figure_4,
    figure_5,
    figures_2_6,
    figures_7_8,
    frank_wolfe,
    logistic,
    tables_1_4,
    tables_2_5,
)

EXPERIMENTS: tuple[Experiment, ...] = (
    figure_1a.EXPERIMENT,
    *logistic.EXPERIMENTS,
    *figures_2_6.EXPERIMENTS,
    figure_4.EXPERIMENT,
    *figure_5.EXPERIMENTS,
    *figures_7_8.EXPERIMENTS,
    epoch_times.EXPERIMENT,
    *tables_1_4.EXPERIMENTS,
    *tables_2_5.EXPERIMENTS,
    *frank_wolfe.EXPERIMENTS,
)
