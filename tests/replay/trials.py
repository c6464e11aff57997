"""A trial: a run through one door, adversarial data, a neighbour of it, and what the replay of both says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from isthmus.audit import Replayed, replay
from isthmus.base.validate import InvalidInput

Rng = np.random.Generator
ENDS = "front", "end"
ANYWHERE = (*ENDS, "middle", "replaced")
CAUGHT = (InvalidInput, NotImplementedError)
"""What a training may be refused with, where its neighbour is refused alike."""


@dataclass(frozen=True)
class Trial:
    """One run and its data.

    run     trains on the data and returns what is public
    data    a tuple of arrays, a dict of them, or a list of records
    label   everything that was drawn, in words
    places  where the record that comes and goes may be, or "replaced"
    pair    another record for a pair that was chosen already: (place, replacement or None)
    counted whether the number of records is public: a record that goes stays in the data, and is drawn no more
    """

    run: Callable[[Any], object]
    data: Any
    label: str
    places: Sequence[str] = ANYWHERE
    pair: tuple[int, Any] | None = None
    counted: bool = False

    def replayed(self, rng: Rng, seed: int) -> tuple[str, Replayed]:
        """The neighbour that was drawn, in words, and what the replay saw."""
        how, at, neighbour, takes_part = self.neighbour(rng)
        words = f"{how}, {'in' if takes_part else 'out of'} the batches"
        return words, replay(self.run, self.data, neighbour, at=at, takes_part=takes_part, seed=seed, catch=CAUGHT)

    def neighbour(self, rng: Rng) -> tuple[str, int, Any, bool]:
        """How it differs, where, the neighbour itself, and whether the record is in the batches."""
        takes_part, n = self.counted or bool(rng.random() < 0.8), size(self.data)
        if self.pair is not None:
            at, other = self.pair
            if other is None:
                return self.gone(at, takes_part)
            return f"record {at} of {n} replaced", at, replaced(self.data, at, other), takes_part
        how = str(rng.choice(self.places))
        if how == "replaced":
            at, source = (int(k) for k in rng.choice(n, 2, replace=False))
            return (
                f"record {at} of {n} replaced by {source}",
                at,
                replaced(self.data, at, record(self.data, source)),
                True,
            )
        at = {"front": 0, "end": n - 1, "middle": int(rng.integers(n))}[how]
        return self.gone(at, takes_part)

    def gone(self, at: int, takes_part: bool) -> tuple[str, int, Any, bool]:
        """The neighbour without a record."""
        if self.counted:
            return f"record {at} of {size(self.data)} not drawn", at, None, True
        return f"record {at} of {size(self.data)} removed", at, without(self.data, at), takes_part


def size(data: Any) -> int:
    """How many records."""
    if isinstance(data, tuple):
        return len(data[0])
    return len(next(iter(data.values()))) if isinstance(data, dict) else len(data)


def record(data: Any, at: int) -> Any:
    """One record."""
    if isinstance(data, tuple):
        return tuple(column[at] for column in data)
    return {name: column[at] for name, column in data.items()} if isinstance(data, dict) else data[at]


def without(data: Any, at: int) -> Any:
    """The data without a record."""
    if isinstance(data, tuple):
        return tuple(np.delete(column, at, 0) for column in data)
    if isinstance(data, dict):
        return {name: np.delete(column, at, 0) for name, column in data.items()}
    return [*data[:at], *data[at + 1 :]]


def replaced(data: Any, at: int, other: Any) -> Any:
    """The data with another record in a place."""
    if isinstance(data, tuple):
        return tuple(_with(column, at, value) for column, value in zip(data, other, strict=True))
    if isinstance(data, dict):
        return {name: _with(column, at, other[name]) for name, column in data.items()}
    return [*data[:at], other, *data[at + 1 :]]


def _with(column: np.ndarray, at: int, value: Any) -> np.ndarray:
    out = column.copy()
    out[at] = value
    return out


# ---------------------------------------------------------------- data


def numbers(rng: Rng, n: int, d: int) -> np.ndarray:
    """Rows of an awkward kind: outliers, copies, columns that are constant, rows in order."""
    X = rng.standard_normal((n, d))
    kind = int(rng.integers(6))
    if kind == 0:
        X[rng.integers(n)] *= 1e6
    elif kind == 1:
        X[:] = X[0]
    elif kind == 2:
        X[:, rng.integers(d)] = 1.0
    elif kind == 3:
        X = X[np.argsort(X[:, 0])]
    elif kind == 4:
        X[[0, -1]] = 1e6 * rng.choice([-1.0, 1.0], (2, d))
    return X


def labels(rng: Rng, X: np.ndarray, classes: int) -> np.ndarray:
    """Labels: of the first column, in order, one that is rare, or at random."""
    n, kind = len(X), int(rng.integers(4))
    if kind == 0:
        return (np.argsort(np.argsort(X[:, 0])) * classes // n).astype(np.int64)
    if kind == 1:
        return np.sort(rng.integers(0, classes, n))
    if kind == 2:
        y = np.zeros(n, np.int64)
        y[rng.integers(n)] = classes - 1
        return y
    return rng.integers(0, classes, n)


def targets(rng: Rng, X: np.ndarray) -> np.ndarray:
    """Numbers: some far away."""
    y = X[:, 0] + rng.standard_normal(len(X))
    if rng.random() < 0.4:
        y[rng.integers(len(X))] = 1e6
    return y
