"""A smooth nonconvex problem over an l1 ball: robust regression, whose constants are known."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from isthmus.objectives import LinearModel
from isthmus.sets import ConvexSet, L1Ball
from lab.reproduce.losses import Welsch


def robust_regression(n: int, d: int, radius: float, seed: int) -> tuple[Welsch, L1Ball]:
    """Unit rows, a 5-sparse w* in the ball, one target in ten far off."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, d))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    w = np.zeros(d)
    w[rng.choice(d, 5, replace=False)] = radius / 5 * rng.choice([-1.0, 1.0], 5)
    y = x @ w
    y += np.where(rng.random(n) < 0.1, 10.0, 0.0) * rng.standard_normal(n)
    return Welsch(x, y), L1Ball(radius)


def stationarity(objective: LinearModel, constraint: ConvexSet, w: Tensor) -> float:
    """max over s in C of <grad F(w), w - s>: at most alpha at an alpha-FOSP (Definition 2)."""
    gradient = objective.gradient(w)
    return float(gradient @ (w - constraint.lmo(gradient)))
