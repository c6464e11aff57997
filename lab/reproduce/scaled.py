"""Two tables scaled by public constants only: every divisor is a round number, chosen without the data.

Rows are clipped to norm 1 and a bias column is part of x.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from isthmus import datasets

PUBLIC = 200
CALIFORNIA = np.array([5, 5, 52, 40000, 7000, 36000, 7000, 15], dtype=float)
# loan, 60 months, employment, income, dti, delinquencies, inquiries, open accounts, public records, revolving balance,
# revolving use, total accounts, bankruptcies, credit history, year - 2007, employment missing
LENDING = np.array([35000, 1, 10, 1e6, 30, 10, 10, 50, 10, 1e6, 1, 100, 10, 50, 4, 1], dtype=float)

Scaled = tuple[Any, np.ndarray, float]
"""Rows, targets and a public bound of |x_ij|."""


def california(x: np.ndarray, y: np.ndarray) -> Scaled:
    """Longitude and latitude from (-119.5, 37), rows clipped at norm 2 and halved; the target is y/250000 - 1."""
    centre = np.zeros(8)
    centre[:2] = -119.5, 37
    scaled = np.hstack([(x - centre) / CALIFORNIA, np.ones((len(x), 1))])
    return clipped(scaled / 2), y / 250000 - 1, 0.55


def lending(x: np.ndarray, y: np.ndarray) -> Scaled:
    """Numbers over round constants, capped at 1, and one-hot; rows clipped at norm 3, over 3; (rate - 15)/10."""
    numbers, categories = x[:, :16].copy(), x[:, 16:]
    numbers[:, 14] -= 2007
    numbers = np.minimum(numbers / LENDING, 1.0)
    scaled = np.hstack([numbers, categories, np.ones((len(x), 1))])
    return clipped(scaled / 3), (y - 15) / 10, 1 / 3


def clipped(x: np.ndarray) -> np.ndarray:
    """Rows of norm 1 at most.

    >>> clipped(np.array([[3.0, 4.0], [0.3, 0.4]])).tolist()
    [[0.6, 0.8], [0.3, 0.4]]
    """
    return np.asarray(x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1))


SCALED = {"california_housing": california, "lending_club": lending}
HELD_OUT = {"california_housing": 5160, "lending_club": 10600}


@dataclass(frozen=True)
class ScaledTable:
    """Private training rows, test rows, 200 public rows without targets, and a public bound of |x_ij|."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    x_public: np.ndarray
    bound: float


@lru_cache(maxsize=2)
def load(name: str) -> ScaledTable:
    """A table by name, shuffled and split once and for all."""
    data = datasets.load(name)
    x, y, bound = SCALED[name](data.x_train, data.y_train)
    order, held = np.random.default_rng(0).permutation(len(x)), HELD_OUT[name]
    test, public, train = np.split(order, [held, held + PUBLIC])
    return ScaledTable(x[train], y[train], x[test], y[test], x[public], bound)
