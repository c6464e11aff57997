"""Paper 000: its figures and tables as experiments."""

from __future__ import annotations

from lab.reproduce.experiment import Experiment
from lab.reproduce.paper_000 import stability, table_1, table_2

EXPERIMENTS: tuple[Experiment, ...] = (
    *table_1.EXPERIMENTS,
    *table_2.EXPERIMENTS,
    *stability.EXPERIMENTS,
)
