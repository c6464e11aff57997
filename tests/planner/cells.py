"""Small problems with known public facts, one for each regime that the planner tells apart."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from isthmus import Hinge, Huber, LeastSquares, Logistic, Poisson, SmoothHinge, Softmax
from isthmus.algorithms import KNOWN
from isthmus.algorithms.suggest import Variant

OBJECTIVES: dict[str, Any] = {
    "logistic": Logistic,
    "softmax": Softmax,
    "hinge": Hinge,
    "smooth_hinge": SmoothHinge,
    "squared": LeastSquares,
    "huber": Huber,
    "poisson": Poisson,
}


FILLINGS: list[Variant] = [filling for made in KNOWN.values() if made.like is None for filling in made.suggestions]
PRIVATE = {filling.name: filling for filling in FILLINGS if filling.of.private}
FREE = {filling.name: filling for filling in FILLINGS if not filling.of.private}


@dataclass(frozen=True)
class Cell:
    """Rows of norm at most 1, and others of the same law."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray

    @property
    def facts(self) -> dict[str, int]:
        return {"n": self.x.shape[0], "d": self.x.shape[1]}


def rows(n: int, d: int, seed: int = 0) -> np.ndarray:
    """Rows of norm 1."""
    x = np.random.default_rng(seed).standard_normal((n, d))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def targets(x: np.ndarray, loss: str, seed: int = 0) -> np.ndarray:
    """Targets that the loss takes: labels, numbers in [-1, 1] or counts."""
    z = x @ np.random.default_rng(seed + 1).standard_normal(x.shape[1])
    if loss == "softmax":
        return np.digitize(z, np.quantile(z, [1 / 3, 2 / 3]))
    if loss in ("squared", "huber"):
        return np.clip(z, -1, 1)
    return (z > 0).astype(float) if loss == "poisson" else np.where(z > 0, 1, -1)


def objective(loss: str, x: Any, y: np.ndarray) -> Any:
    """The objective, with its classes declared."""
    classes = {"softmax": 3, "logistic": (-1, 1), "hinge": (-1, 1), "smooth_hinge": (-1, 1)}
    return OBJECTIVES[loss](x, y, **({"classes": classes[loss]} if loss in classes else {}))


def few_coefficients(n: int, d: int, k: int = 5, seed: int = 0) -> tuple[Cell, float]:
    """Rows of +-1/sqrt(d), k coefficients are not 0; and the l1 norm of them all."""
    rng = np.random.default_rng(seed)
    x = rng.choice([-1.0, 1.0], (n + 1000, d)) / np.sqrt(d)
    radius, w = 2 * np.sqrt(d), np.zeros(d)
    w[:k] = radius / k * rng.choice([-1.0, 1.0], k)
    y = np.where(x @ w + 0.05 * rng.standard_normal(len(x)) > 0, 1, -1)
    return Cell(x[:n], y[:n], x[n:], y[n:]), float(radius)


def uneven_columns(n: int, d: int = 40, seed: int = 0) -> tuple[Cell, np.ndarray]:
    """Columns bounded by 1 down to 0.01 that matter alike; and their second moments."""
    rng = np.random.default_rng(seed)
    bounds = np.logspace(0, -2, d)
    bounds /= np.linalg.norm(bounds)
    x = bounds * rng.uniform(-1, 1, (n + 1000, d))
    z = x @ (0.6 * rng.choice([-1.0, 1.0], d) / bounds / np.sqrt(d))
    y = np.clip(z + 0.05 * rng.standard_normal(len(z)), -1, 1)
    return Cell(x[:n], y[:n], x[n:], y[n:]), bounds**2 / 3


def unbalanced(n: int, d: int = 20, seed: int = 0) -> Cell:
    """A quarter of positive labels, and a constant column that holds most of every row: a first step sees only that."""
    rng = np.random.default_rng(seed)
    u = rows(n + 1000, d, seed + 1)
    z = u @ rng.standard_normal(d)
    y = np.where(z > np.quantile(z, 0.75), 1, -1)
    x = np.hstack([np.full((len(u), 1), np.sqrt(0.7)), np.sqrt(0.3) * u])
    return Cell(x[:n], y[:n], x[n:], y[n:])
