"""Paper 001: its figures and tables as experiments."""

from __future__ import annotations

from isthmus.app.reproduce.experiment import Experiment
from isthmus.app.reproduce.paper_001 import figure_5, figures_7_8

EXPERIMENTS: tuple[Experiment, ...] = (
    *figure_5.EXPERIMENTS,
    *figures_7_8.EXPERIMENTS,
)
