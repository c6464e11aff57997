"""What was measured before, and whether a new run agrees: the mean of five seeds or more, plus or minus 3 deviations.

The deviation of one cell from five seeds is itself uncertain by a third.  Cells of one experiment that measure the same
thing have deviations of the same relative size, so each band takes the larger of the cell's own and of the median of
all cells' relative ones: a cell whose mean is near 0, or that a seed threw far off, widens no band but its own.  A
number that no seed moves gets two millionths of itself, since files keep six digits.  What was expected and not
measured lies outside its band.
"""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.reproduce.experiment import Experiment, Results, key_of

FOLDER = Path(__file__).parent / "expected"
WIDTH, LEAST = 3.0, 2e-6


@dataclass(frozen=True)
class Checked:
    """One number beside its band."""

    key: str
    value: float
    low: float
    high: float

    @property
    def holds(self) -> bool:
        """Whether it lies inside."""
        return self.low <= self.value <= self.high


def summary(experiment: Experiment, results: Results) -> dict[str, dict[str, float]]:
    """Mean and deviation of every banded metric of every cell."""
    rows: dict[str, dict[str, float]] = {}
    for cell in results.cells:
        names = dict.fromkeys(name for run in results.of(**cell) for name in run.metrics)
        for name in (name for name in names if name not in experiment.unbanded):
            values = results.values(name, **cell)
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            rows[f"{key_of(cell)} / {name}"] = {"mean": statistics.fmean(values), "sd": spread, "seeds": len(values)}
    return rows


def deviations(rows: dict[str, dict[str, float]]) -> dict[str, float]:
    """The deviation that each band uses.

    >>> rows = {f"m={m} / loss": {"mean": 1.0, "sd": sd} for m, sd in ((1, 0.0), (2, 0.1), (3, 9.0))}
    >>> [round(spread, 4) for spread in deviations(rows).values()]
    [0.1, 0.1, 9.0]
    """
    relative: dict[str, list[float]] = {}
    for key, row in rows.items():
        if row["mean"]:
            relative.setdefault(key.rpartition(" / ")[2], []).append(row["sd"] / abs(row["mean"]))
    pooled = {name: statistics.median(values) for name, values in relative.items()}
    return {
        key: max(row["sd"], abs(row["mean"]) * max(pooled.get(key.rpartition(" / ")[2], 0.0), LEAST), 1e-12)
        for key, row in rows.items()
    }


def check(experiment: Experiment, results: Results, scale: str) -> list[Checked] | None:
    """Every expected number beside its band, NaN where it was not measured; None without bands (under two seeds)."""
    expected = load(experiment.name, scale)
    if expected is None or len(expected["seeds"]) < 2:
        return None
    bands, checked = expected["metrics"], []
    spread, measured = deviations(bands), summary(experiment, results)
    for key, row in bands.items():
        value, half = measured.get(key, {"mean": math.nan})["mean"], WIDTH * spread[key]
        checked.append(Checked(key, value, row["mean"] - half, row["mean"] + half))
    return checked


def load(name: str, scale: str) -> dict[str, Any] | None:
    """The expected file of an experiment."""
    path = FOLDER / scale / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def store(name: str, scale: str, record: dict[str, Any]) -> Path:
    """Write the expected file of an experiment, rounded to six digits."""
    path = FOLDER / scale / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_rounded(record), indent=1) + "\n", encoding="utf-8")
    return path


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(inner) for inner in value]
    return float(f"{value:.6g}") if isinstance(value, float) and math.isfinite(value) else value
