"""One figure or table of a paper: what the paper claims, the runs that test it, and how their results are judged."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Cell = dict[str, Any]
"""The parameters in which one run differs from the others: {"method": "CompSGD", "m": 100}."""
Curve = tuple[list[float], list[float]]
Kind = Literal["holds", "holds in part", "fails", "not comparable"]


@dataclass(frozen=True)
class RunSetting:
    """What all runs of an experiment share."""

    config: Mapping[str, Any]
    """The experiment's own numbers at this scale: epochs, sizes, seeds of data."""
    seed: int
    """Of everything random in this run: data drawn for it, order, maps, noise."""
    device: str = "cpu"


@dataclass(frozen=True)
class Observed:
    """What one run gave: single numbers, which bands hold, and curves, which are plotted."""

    metrics: dict[str, float]
    curves: dict[str, Curve] = field(default_factory=dict)


@dataclass(frozen=True)
class Judgement:
    """On the paper's claim, from what was measured: one of four words, and why, in sentences with the numbers."""

    kind: Kind
    why: str


class Results:
    """All runs of an experiment, several seeds each.

    >>> runs = [({"m": m}, seed, Observed({"loss": m + seed / 10})) for m in (1, 2) for seed in (0, 1)]
    >>> results = Results(runs)
    >>> results.cells
    [{'m': 1}, {'m': 2}]
    >>> results.mean("loss", m=2)
    2.05
    >>> results.values("loss", m=1)
    [1.0, 1.1]
    """

    def __init__(self, runs: Iterable[tuple[Cell, int, Observed]]) -> None:
        self.runs = list(runs)

    @property
    def cells(self) -> list[Cell]:
        """Each cell once, in the order of the runs."""
        return list({key_of(cell): cell for cell, _, _ in self.runs}.values())

    def of(self, **cell: Any) -> list[Observed]:
        """The runs, one a seed, of the cells that have these parameters (others are free)."""
        return [m for own, _, m in self.runs if all(own.get(name) == value for name, value in cell.items())]

    def values(self, metric: str, **cell: Any) -> list[float]:
        """A metric of each seed."""
        values = [run.metrics[metric] for run in self.of(**cell) if metric in run.metrics]
        if not values:
            raise KeyError(f"no run has {metric!r} with {cell}")
        return values

    def mean(self, metric: str, **cell: Any) -> float:
        """Over the seeds."""
        return statistics.fmean(self.values(metric, **cell))

    def sd(self, metric: str, **cell: Any) -> float:
        """Between the seeds; 0 where there is one."""
        values = self.values(metric, **cell)
        return statistics.stdev(values) if len(values) > 1 else 0.0

    def curve(self, name: str, **cell: Any) -> tuple[list[float], list[float], list[float]]:
        """x, mean over the seeds, standard deviation; runs that ended earlier shorten it."""
        curves = [run.curves[name] for run in self.of(**cell) if name in run.curves]
        length = min(len(x) for x, _ in curves)
        points = [[y[i] for _, y in curves] for i in range(length)]
        spread = [statistics.stdev(p) if len(p) > 1 else 0.0 for p in points]
        return list(curves[0][0][:length]), [statistics.fmean(p) for p in points], spread


Plot = Callable[[Results, Any], None]


@dataclass(frozen=True)
class Experiment:
    """A figure or table.

    `cells(config)` lists the runs, `run(cell, setting)` does one, `verdict(results)` judges the paper's claim by the
    measured numbers, `plot(results, figure)` draws into a Matplotlib figure.  `unbanded` names metrics that differ
    between machines (seconds): they are shown, not checked.
    """

    name: str
    """Of the command line: "001-figure-1a"."""
    item: str
    """Of the paper: "Figure 1a"."""
    title: str
    claim: str
    """What the paper says, in one to three plain sentences."""
    cells: Callable[[Mapping[str, Any]], Sequence[Cell]]
    run: Callable[[Cell, RunSetting], Observed]
    verdict: Callable[[Results], Judgement]
    plot: Plot
    small: Mapping[str, Any]
    """For two cores: well under a minute a seed, all cells together."""
    full: Mapping[str, Any]
    """The paper's own sizes."""
    data: tuple[str, ...] = ()
    """Names in `isthmus.datasets` without which it cannot run."""
    unbanded: tuple[str, ...] = ("seconds",)
    note: str = ""
    """What the small scale leaves out, or where we had to choose because the paper is silent."""

    @property
    def paper(self) -> str:
        """Its number."""
        return self.name.split("-")[0]

    def config(self, scale: str) -> Mapping[str, Any]:
        """Of "small" or "full"."""
        return {"small": self.small, "full": self.full}[scale]

    def judged(self, results: Results) -> Judgement:
        """The verdict; none on numbers that are no numbers, for no comparison with them says anything."""
        lost = [
            f"{name} ({key_of(cell)})" for cell, _, run in results.runs for name, x in run.metrics.items() if x != x
        ]
        if lost:
            return Judgement("not comparable", f"Not a number: {', '.join(dict.fromkeys(lost))}.")
        return self.verdict(results)


def key_of(cell: Cell) -> str:
    """A cell as text, the same in every run.

    >>> key_of({"method": "SGD", "m": 10})
    'method=SGD, m=10'
    """
    return ", ".join(f"{name}={value}" for name, value in cell.items())


def fingerprint(config: Mapping[str, Any]) -> str:
    """A run that was made with other numbers is not taken for one of these.

    >>> fingerprint({"epochs": 2}) == fingerprint({"epochs": 3})
    False
    """
    return hashlib.sha256(json.dumps(dict(config), sort_keys=True, default=str).encode()).hexdigest()[:12]
