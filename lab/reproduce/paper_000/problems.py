"""Regressions whose optimum and population risk are known in closed form, and the runs of paper 000 on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isthmus.algorithms import comp_gd, comp_minibatch, comp_sgd, dp_comp_gd, dp_comp_minibatch, sgd
from isthmus.core.minimize import Recipe, minimize
from isthmus.objectives import LeastSquares, LinearModel
from isthmus.sets import L1Ball
from isthmus.theory import Schedule
from lab.reproduce.losses import AbsoluteLoss

RADIUS, LIPSCHITZ = 12.0, 1.5
NAMES = {"sgd": "SGD", "comp_sgd": "CompSGD", "comp_gd": "CompGD", "comp_minibatch": "CompMinibatch",
         "dp_comp_gd": "DP-CompGD", "dp_comp_minibatch": "DP-CompMiniBatch"}  # fmt: skip


class Regression:
    """y = x'w* + noise, x Gaussian with a falling spectrum, rows of length about 1, w* sparse, inside the l1 ball."""

    def __init__(self, d: int, smooth: bool, noise: float, seed: int) -> None:
        self.d, self.smooth, self.noise = d, smooth, noise
        self.rng = np.random.default_rng(seed)
        spectrum = np.geomspace(1.0, 1e-2, d)
        self.scales = np.sqrt(spectrum / spectrum.sum())
        self.target = np.zeros(d)
        self.target[:: -(-d // 4)] = 1.0
        self.target *= self.rng.choice([-1.0, 1.0], d)
        self.ball = L1Ball(RADIUS)

    def sample(self, n: int) -> LinearModel:
        """n records."""
        x = self.rng.standard_normal((n, self.d)) * self.scales
        y = x @ self.target + self.noise * self.rng.standard_normal(n)
        return LeastSquares(x, y) if self.smooth else AbsoluteLoss(x, y)

    def excess_risk(self, w: Tensor) -> float:
        """F(w) - F(w*) over the population: q/2 for squares, sqrt(2/pi) (sqrt(s^2 + q) - s) for absolute values."""
        q = float((((w.numpy() - self.target) * self.scales) ** 2).sum())
        if self.smooth:
            return q / 2
        return math.sqrt(2 / math.pi) * q / (math.sqrt(self.noise**2 + q) + self.noise)


def least_on(objective: LinearModel) -> float:
    """F_S(w*_S) of least squares, whose minimiser the ball does not hold back; 0 for absolute values without noise."""
    if not isinstance(objective, LeastSquares):
        return 0.0
    x, y = objective.X, objective.y
    assert isinstance(x, Tensor)
    best = torch.linalg.lstsq(x, y).solution
    assert float(best.abs().sum()) < RADIUS, "the minimiser is outside the ball"
    return objective.loss(best)


class RunningAverage:
    """A callback: sum eta_t w_t / sum eta_t (eta_t with the point before its step) after some numbers of rounds."""

    def __init__(self, step: Callable[[int], float], start: Tensor, at: Sequence[int]) -> None:
        self.step, self.at, self.points = step, set(at), list[Tensor]()
        self.total, self.weight = step(0) * start.double(), step(0)

    def __call__(self, record: dict[str, Any], state: Any) -> None:
        """Keep the average of w_1, ..., w_t, then add w_{t+1}."""
        t = int(record["t"])
        if t in self.at:
            self.points.append(self.total / self.weight)
        eta = self.step(t)
        self.total, self.weight = self.total + eta * state.w.double(), self.weight + eta


def recipe_of(algorithm: str, schedule: Schedule, m: int | None, *, batch: int = 8, **private: Any) -> Recipe:
    """The paper's algorithm on its schedule; m None is the theorem's m_t."""
    if algorithm == "sgd":
        return sgd(schedule=schedule, batch_size=1, draw="independent")
    if algorithm == "comp_sgd":
        return comp_sgd(m=m, schedule=schedule, batch_size=1, draw="independent")
    if algorithm == "comp_gd":
        return comp_gd(m=m, schedule=schedule)
    if algorithm == "comp_minibatch":
        return comp_minibatch(m=m, schedule=schedule, batch_size=batch)
    common = {"m": m, "schedule": schedule, "clip": LIPSCHITZ, "n": "exact", "adjacency": "replace-one", **private}
    if algorithm == "dp_comp_gd":
        return dp_comp_gd(**common)
    return dp_comp_minibatch(batch_size=batch, **common)


def averages(
    objective: LinearModel, recipe: Recipe, ball: L1Ball, step: Callable[[int], float], at: Sequence[int], seed: int
) -> list[Tensor]:
    """The weighted average after each of some numbers of rounds of one run."""
    start = torch.zeros(objective.d, dtype=torch.float64)
    watch = RunningAverage(step, start, at)
    minimize(objective, recipe, ball, steps=max(at), seed=seed, x0=start, record=1, callbacks=[watch], progress=False,
             noise_seed=seed)  # fmt: skip
    return watch.points
