"""`python -m lab reproduce`: every figure and table of the five papers as an experiment with bands and a verdict.

| module | what it holds |
|---|---|
| experiment | `Experiment`: claim, cells, run, verdict, plot |
| paper_000 to paper_004 | the experiments, `EXPERIMENTS` of each package |
| runner | processes, lines that are kept, resuming |
| bands | expected numbers and whether a run agrees |
| figures, page | SVG plots, docs/reproduction.md |
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from isthmus.base import validate
from lab.reproduce.experiment import Cell, Experiment, Judgement, Observed, Results, RunSetting

__all__ = ["Cell", "Experiment", "Observed", "Results", "RunSetting", "Judgement", "all_experiments", "chosen"]

PAPERS = ("000", "001", "002", "003", "004")


def all_experiments() -> dict[str, Experiment]:
    """By name, in the order of the papers."""
    packages = [import_module(f"lab.reproduce.paper_{paper}") for paper in PAPERS]
    return {experiment.name: experiment for package in packages for experiment in package.EXPERIMENTS}


def chosen(names: Sequence[str]) -> list[Experiment]:
    """Those named; a paper's number stands for all of its experiments.

    >>> chosen(["nonsense"])
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: name='nonsense' is not allowed: choose ...
    """
    experiments = all_experiments()
    for name in names:
        validate.check(
            name in experiments or name in PAPERS,
            "name",
            name,
            f"choose a paper ({', '.join(PAPERS)}) or {', '.join(experiments)}",
        )
    return [experiment for experiment in experiments.values() if experiment.name in names or experiment.paper in names]
