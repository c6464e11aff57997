"""docs/reproduction.md, written from the expected files alone: claim, measurement, verdict, why."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.reproduce import all_experiments, bands
from lab.reproduce.experiment import Experiment

TITLES = {
    "000": "Randomly compressed gradient updates (Huang, Lei and Kabán 2023)",
    "001": "SGD with low-dimensional gradients (Kasiviswanathan 2021)",
    "002": "Gradient sparsification for private convex learning (Farokhi)",
    "003": "Private random block coordinate descent (Maranjyan, Sadiev and Richtárik)",
    "004": "PDP-SGD: bypassing the ambient dimension (Zhou, Wu and Banerjee 2021)",
}
HEAD = """# The papers, reproduced

<!-- Written by `python -m lab reproduce --page`: edit the experiments in lab/reproduce, not this file. -->

Every figure and table of the five papers that reports a measurement or a rate is an experiment here, with the
paper's claim, what we measured, and a verdict on **the paper's claim**, not on our implementation. The numbers come
from `python -m lab reproduce --all --scale small --seeds 5` (sizes that two cores manage in minutes; what was made
smaller stands with each experiment) and, where it says "full scale", from the paper's own sizes. Run one yourself with
`python -m lab reproduce NAME`: it is checked against the mean of five seeds (ten for the noisiest experiments) plus or
minus three standard deviations.
"""


def page() -> str:
    """The whole page."""
    experiments = all_experiments()
    parts = [HEAD, overview(experiments)]
    for paper in sorted({experiment.paper for experiment in experiments.values()}):
        parts.append(f"## {TITLES[paper]}\n")
        parts += [section(experiment) for experiment in experiments.values() if experiment.paper == paper]
    return "\n".join(parts)


def overview(known: Mapping[str, Experiment]) -> str:
    """One line an experiment."""
    rows = ["| experiment | of the paper | verdict on the claim |", "|---|---|---|"]
    for experiment in known.values():
        stored = _best(experiment)
        kind = f"**{stored['verdict']['kind']}**" if stored else "not run yet"
        rows.append(f"| [{experiment.name}](#{experiment.name}) | {experiment.item} | {kind} |")
    return "\n".join(rows) + "\n"


def section(experiment: Experiment) -> str:
    """One experiment."""
    parts = [f"### {experiment.name}\n", f"{experiment.item}: {experiment.title}.\n"]
    parts.append(f"**The paper's claim.** {experiment.claim}\n")
    for scale in ("small", "full"):
        stored = bands.load(experiment.name, scale)
        if stored is not None:
            parts += measured(experiment, scale, stored)
    if experiment.note:
        parts.append(f"**What to know.** {experiment.note}\n")
    return "\n".join(parts)


def measured(experiment: Experiment, scale: str, stored: dict[str, Any]) -> list[str]:
    """The verdict, the numbers and the plot of one scale."""
    verdict, seeds = stored["verdict"], len(stored["seeds"])
    size = "full scale" if scale == "full" else "small scale"
    words = f"{size}, {seeds} seed{'s' if seeds > 1 else ''}, {stored['cpu_seconds'] / seeds:.0f} CPU-seconds each"
    parts = [f"**Verdict: {verdict['kind']}** ({words}). {verdict['why']}\n"]
    if (Path(__file__).parents[2] / "docs" / "reproduction" / f"{experiment.name}-{scale}.svg").exists():
        parts.append(f"![{experiment.item}, {size}](reproduction/{experiment.name}-{scale}.svg)\n")
    return [*parts, table(stored)]


def table(stored: dict[str, Any]) -> str:
    """Cells as rows, metrics as columns: mean and, in brackets, the deviation between seeds."""
    cells: dict[str, dict[str, str]] = {}
    for key, row in stored["metrics"].items():
        cell, _, metric = key.rpartition(" / ")
        cells.setdefault(cell, {})[metric] = f"{number(row['mean'])}" + (f" ({row['sd']:.1g})" if row["sd"] else "")
    for key, value in stored.get("shown", {}).items():
        cell, _, metric = key.rpartition(" / ")
        cells.setdefault(cell, {})[metric] = number(value)
    names = list(dict.fromkeys(name for row in cells.values() for name in row))
    lines = [f"| run | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    lines += [f"| {cell} | {' | '.join(row.get(name, '') for name in names)} |" for cell, row in cells.items()]
    return "\n".join(lines) + "\n"


def number(value: float) -> str:
    """Four digits.

    >>> number(0.85531), number(1234567.0), number(3.0)
    ('0.8553', '1.235e+06', '3')
    """
    return f"{value:.4g}" if math.isfinite(value) else str(value)


def _best(experiment: Experiment) -> dict[str, Any] | None:
    return bands.load(experiment.name, "full") or bands.load(experiment.name, "small")
