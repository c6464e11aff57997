"""Paper 004: its figures and tables as experiments."""

from __future__ import annotations

from lab.reproduce.experiment import Experiment
from lab.reproduce.paper_004 import accuracy, spectra

EXPERIMENTS: tuple[Experiment, ...] = (
    spectra.FIGURE_1,
    spectra.FIGURE_2,
    accuracy.MNIST,
    accuracy.FASHION,
    accuracy.DIMENSIONS,
    accuracy.PUBLIC,
    accuracy.REFRESH,
    accuracy.RECORDS,
)
