"""Paper 004: its figures and tables as experiments."""

from __future__ import annotations

from isthmus.app.reproduce.experiment import Experiment

EXPERIMENTS: tuple[Experiment, ...] = ()
