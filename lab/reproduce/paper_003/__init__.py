"""Paper 003: its figures and tables as experiments."""

from __future__ import annotations

from lab.reproduce.experiment import Experiment
from lab.reproduce.paper_003 import regressions, section_4_3, table_1

EXPERIMENTS: tuple[Experiment, ...] = (
    table_1.EXPERIMENT,
    section_4_3.EASY,
    section_4_3.BLOCKS,
    section_4_3.HARD,
    regressions.UNEVEN,
    regressions.REAL,
)
