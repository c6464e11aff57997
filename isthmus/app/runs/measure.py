"""Figures of test rows: exact where the rows are public, noisy and paid for where they are not.

A test row must not have been trained on.  Of private test rows one vector is released, a sum of per-row terms of
bounded length with Gaussian noise:

    classification   sum_i 1{right_i}                                          length at most 1
    regression       sum_i (min(e_i^2 / h^2, 1), u_i, u_i^2), u in [-1, 1]     length at most sqrt 3

with e_i the error, h half the width of the public target range and u_i the target's place in that range: errors beyond
h count as h.  Accuracy, mean squared error and R2 follow from the sums and the public number of test rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from isthmus.geometry.lifts import discard
from isthmus.gradients import Dense
from isthmus.privacy import Clip, FullBatch, Gaussian, SecretSource, noise_multiplier
from isthmus.round.aggregators import Local
from isthmus.round.pipeline import Promise, Release, Stage
from isthmus.round.sources import Sheet
from isthmus.round.step import Setting, look
from isthmus.round.wire import Keys


@dataclass(frozen=True)
class Figure:
    """One measured number, what it was measured on, and the standard deviation of the noise in it (0: exact)."""

    name: str
    value: float | None
    on: str
    noise: float = 0.0

    def words(self) -> str:
        """One line."""
        shown = "hidden by the noise" if self.value is None else f"{self.value:.4f}"
        spread = f" (noise s.d. {self.noise:.4f})" if self.noise else ""
        return f"{self.name} {shown}{spread}, on {self.on}"


def exact(estimator: Any, x: Any, y: np.ndarray, on: str) -> list[Figure]:
    """Figures of rows that are public, or whose figures may be published as they are."""
    found = estimator.predict(x)
    if hasattr(estimator, "classes_"):
        counts = np.unique(y, return_counts=True)[1]
        return [
            Figure("accuracy", float(np.mean(found == y)), on),
            Figure("accuracy of the most frequent class", float(counts.max() / len(y)), on),
        ]
    errors = float(np.mean((found - y) ** 2))
    spread = float(np.var(y))
    return [
        Figure("R2", 1 - errors / spread if spread > 0 else None, on),
        Figure("mean squared error", errors, on),
    ]


def noisy(
    estimator: Any,
    x: Any,
    y: np.ndarray,
    *,
    on: str,
    bounds: tuple[float, float] | None,
    epsilon: float,
    delta: float,
    ledger: Any,
) -> list[Figure]:
    """Figures of private rows for (epsilon, delta), charged to the ledger before they are released."""
    terms, length = _terms(estimator.predict(x), y, bounds)
    sheet, adjacency = Sheet(Dense(torch.from_numpy(terms))), ledger.adjacency
    mechanism = Gaussian(noise_multiplier(epsilon=epsilon, delta=delta, adjacency=adjacency))
    release = Release("sums", clip=Clip(length), mechanism=mechanism, lift=discard)
    stage = Stage(FullBatch(1.0), [release], "test figures")
    with ledger.run({stage.name: stage.event(adjacency)}) as run:
        setting = Setting(Local(sheet), sheet.space, Keys(0, SecretSource()), ledger=run)
        sums = look(stage, setting, Promise(epsilon, delta, adjacency))["sums"].numpy()
    return _figures(sums, len(y), mechanism.multiplier * length, bounds, on)


def _terms(found: np.ndarray, y: np.ndarray, bounds: tuple[float, float] | None) -> tuple[np.ndarray, float]:
    """The summands of the rows, and a bound of their lengths."""
    if bounds is None:
        return np.asarray(found == y).astype(np.float64)[:, None], 1.0
    middle, half = (bounds[0] + bounds[1]) / 2, (bounds[1] - bounds[0]) / 2
    errors = np.nan_to_num(np.minimum(np.abs(found - y) / half, 1.0), nan=1.0) ** 2
    place = np.clip((y - middle) / half, -1.0, 1.0)
    return np.stack([errors, place, place**2], axis=1), math.sqrt(3) * (1 + 2.0**-40)


def _figures(sums: np.ndarray, n: int, noise: float, bounds: tuple[float, float] | None, on: str) -> list[Figure]:
    if bounds is None:
        return [Figure("accuracy", float(np.clip(sums[0] / n, 0, 1)), on, noise / n)]
    unit = ((bounds[1] - bounds[0]) / 2) ** 2
    errors, mean, second = float(np.clip(sums[0] / n, 0, 1)), sums[1] / n, sums[2] / n
    spread, sd = float(second - mean**2), noise / n
    figures = [Figure("mean squared error", errors * unit, on, sd * unit)]
    if spread <= 3 * sd:  # a variance within its own noise tells nothing, and it divides
        return [Figure("R2", None, on), *figures]
    deviation = sd * math.hypot(1, (errors / spread) * math.hypot(1, 2 * mean)) / spread
    return [Figure("R2", 1 - errors / spread, on, deviation), *figures]
