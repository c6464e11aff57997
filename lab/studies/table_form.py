"""Tables as a data holder would declare them: numbers with a public range, words with public levels.

`encode` turns a pandas frame into arrays and uses nothing but what is declared: a number is taken as it is, a missing
one becomes the lower end of its range beside a 0/1 column that says so, a word becomes one 0/1 column for each level.
The ranges are round numbers of the subject (an age is 0 to 100), never quantiles or extremes of the rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Range = tuple[float, float]


@dataclass(frozen=True)
class Table:
    """Features `X`, target `y`, and what is public: a range for each column, the classes or the target's range."""

    name: str
    X: np.ndarray
    y: np.ndarray
    low: np.ndarray
    high: np.ndarray
    task: str
    target: Range | None
    classes: int
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        """A declared range must contain its column: a benchmark on clipped entries would measure the declaration."""
        if not np.isfinite(self.X).all():
            raise ValueError(f"{self.name}: X has entries that are not finite")
        outside = np.flatnonzero((self.X.min(0) < self.low) | (self.X.max(0) > self.high))
        if len(outside):
            raise ValueError(f"{self.name}: the declared range does not contain {[self.names[i] for i in outside]}")
        if self.target and not (self.target[0] <= self.y.min() and self.y.max() <= self.target[1]):
            raise ValueError(f"{self.name}: the declared target range {self.target} does not contain the target")

    @property
    def fields(self) -> list[list[int]]:
        """Columns that came from one field of the table: the levels of a word together, every other column alone."""
        by_name: dict[str, list[int]] = {}
        for column, name in enumerate(self.names):
            by_name.setdefault(name.partition("=")[0], []).append(column)
        return list(by_name.values())

    def save(self, path: str) -> None:
        """One `.npz` file with everything, for a worker in another environment."""
        ylow, yhigh = self.target or (0.0, self.classes - 1.0)
        rest = {"task": self.task, "classes": self.classes, "names": np.array(self.names)}
        np.savez(path, X=self.X, y=self.y, low=self.low, high=self.high, ylow=ylow, yhigh=yhigh, **rest)


def round_range(column: np.ndarray) -> Range:
    """0 (or minus the upper end) to the next 1, 2 or 5 times a power of ten: how a holder of a wide table declares."""
    top = max(float(np.nanmax(np.abs(column))), 1e-12)
    power = 10.0 ** np.floor(np.log10(top))
    high = float(next(step * power for step in (1, 2, 5, 10) if step * power >= top))
    return (0.0 if float(np.nanmin(column)) >= 0 else -high, high)


def encode(
    name: str,
    frame: Any,
    target: str,
    numbers: dict[str, Range | None],
    words: Sequence[str] = (),
    target_range: Range | None = None,
    rows: int | None = None,
) -> Table:
    """Arrays of the declared columns; `rows` takes a fixed random part; `target_range=None` means classes.

    A range of `None` is declared by `round_range`, for tables of many measurements.
    """
    frame = frame[frame[target].notna()]
    if rows is not None and len(frame) > rows:
        frame = frame.iloc[np.sort(np.random.default_rng(0).permutation(len(frame))[:rows])]
    columns, names, low, high = [], [], [], []

    def add(column: np.ndarray, label: str, declared: Range) -> None:
        columns.append(column)
        names.append(label)
        low.append(declared[0])
        high.append(declared[1])

    for key, given in numbers.items():
        column = frame[key].to_numpy(dtype=float, na_value=np.nan)
        declared = given or round_range(column)
        add(np.where(np.isnan(column), declared[0], column), key, declared)
        if np.isnan(column).any():
            add(np.isnan(column).astype(float), f"{key} missing", (0.0, 1.0))
    for key in words:
        values = frame[key].astype(object).where(frame[key].notna(), "missing").astype(str).to_numpy()
        for level in np.unique(values):
            add((values == level).astype(float), f"{key}={level}", (0.0, 1.0))
    if target_range is None:
        levels, y = np.unique(frame[target].astype(str).to_numpy(), return_inverse=True)
    else:
        levels, y = [], frame[target].to_numpy(dtype=float)
    task = "classification" if target_range is None else "regression"
    X, low_, high_ = np.column_stack(columns), np.array(low, dtype=float), np.array(high, dtype=float)
    return Table(name, X, y, low_, high_, task, target_range, len(levels), tuple(names))
