"""Paper 003's methods on a problem whose constants are public, with the loops of Theorem 4.2 and what it predicts.

The problem is a logistic regression: its slope has the bound 1, so that L_U = sqrt(sum of B_j^2) holds and no record is
clipped.  Columns are independent and uniform in [-B_j, B_j], a law that is public: then Hessian <= Diag(M) with
M_j = 1.2 B_j^2 / 12.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from isthmus.algorithms import dp_skgd, dp_svrg
from isthmus.core.minimize import Recipe, minimize
from isthmus.objectives import Logistic
from isthmus.privacy.accounting import Adjacency, epsilon_of
from isthmus.privacy.event_json import dpa
from isthmus.theory import (
    convex_block_loops,
    importance_probabilities,
    sampling_probabilities,
    strongly_convex_block_loops,
)
from isthmus.theory.schedules import Loops
from lab.theory import (
    block_convex_utility,
    block_lipschitz,
    block_strongly_convex_utility,
    convex_block_bound,
    nice_noise,
    sampling_noise,
    strongly_convex_block_bound,
    weighted_radius,
)

DELTA = 1e-5
ROOM = 1.2  # of the second moments: what a sample's correlations add

FULL, CD, IMPORTANCE = "full", "single, uniform (DP-CD)", "single, importance"
BLOCK, BLOCK_IMPORTANCE, NICE = "block, uniform", "block, importance", "nice"
SGD, SVRG = "DP-SGD", "DP-SVRG"
METHODS = (FULL, CD, IMPORTANCE, BLOCK, BLOCK_IMPORTANCE, NICE, SGD, SVRG)


@dataclass(frozen=True)
class Task:
    """A constructed problem."""

    x: np.ndarray
    y: np.ndarray
    columns: np.ndarray
    """B_j."""
    blocks: list[list[int]]
    ridge: float = 0.0
    right: tuple[int, ...] = ()
    """Coordinates that are those of w* at the start; the others start at 0."""

    @cached_property
    def start(self) -> np.ndarray:
        """w0."""
        w = np.zeros(len(self.columns))
        w[list(self.right)] = self.best[list(self.right)]
        return w

    @cached_property
    def train(self) -> Logistic:
        """The objective."""
        return Logistic(self.x, self.y, classes=[0, 1], l2=self.ridge)

    @cached_property
    def smoothness(self) -> np.ndarray:
        """M_j."""
        return np.asarray(ROOM * self.columns**2 / 12 + self.ridge)

    @cached_property
    def best(self) -> np.ndarray:
        """The minimiser, by Newton's method."""
        w, sign = np.zeros(self.x.shape[1]), 2 * self.y - 1
        for _ in range(50):
            slope = 1 / (1 + np.exp(sign * (self.x @ w)))
            gradient = -(self.x.T @ (sign * slope)) / len(self.y) + self.ridge * w
            if np.abs(gradient).max() < 1e-13:
                break
            hessian = (self.x.T * (slope * (1 - slope))) @ self.x / len(self.y) + self.ridge * np.eye(len(w))
            w = w - np.linalg.solve(hessian, gradient)
        return np.asarray(w)

    def gap(self, w: Any) -> float:
        """f(w) - f*."""
        return self.value(w) - self.value(self.best)

    def value(self, w: Any) -> float:
        """f(w) with its penalty."""
        return float(self.train.loss(torch.as_tensor(w, dtype=torch.float64)))


def task(
    columns: np.ndarray,
    truth: np.ndarray,
    blocks: list[list[int]],
    n: int,
    seed: int,
    ridge: float = 0.0,
    right: Any = (),
) -> Task:
    """Rows and labels of the model that is being fitted."""
    rng = np.random.default_rng(seed)
    x = columns * rng.uniform(-1, 1, (n, len(columns)))
    y = (rng.random(n) < 1 / (1 + np.exp(-x @ truth))).astype(int)
    return Task(x, y, columns, blocks, ridge, tuple(right))


@dataclass(frozen=True)
class Method:
    """A way to choose coordinates on a task, and the constants of Theorem 4.2 that follow."""

    name: str
    task: Task
    n: int
    epsilon: float
    batch: int | None = None
    """Of DP-SVRG's differences; None: all records."""

    @cached_property
    def parts(self) -> list[list[int]]:
        """The subsets among which one is drawn."""
        d = len(self.task.columns)
        if self.name in (CD, IMPORTANCE):
            return [[j] for j in range(d)]
        return self.task.blocks if self.name in (BLOCK, BLOCK_IMPORTANCE, NICE) else [list(range(d))]

    @cached_property
    def smoothness(self) -> np.ndarray:
        """M_j, the largest for all where the method has one step."""
        own = self.task.smoothness
        return np.full_like(own, own.max()) if self.name in (SGD, SVRG) else own

    @cached_property
    def law(self) -> np.ndarray:
        """q_i of the subsets."""
        if self.name in (IMPORTANCE, BLOCK_IMPORTANCE):
            return importance_probabilities(self.smoothness, self.parts)
        return np.full(len(self.parts), 1 / len(self.parts))

    @property
    def tau(self) -> int:
        """The size of a random subset."""
        return len(self.task.blocks[0])

    @cached_property
    def probabilities(self) -> np.ndarray:
        """p_j of the coordinates."""
        d = len(self.task.columns)
        if self.name == NICE:
            return sampling_probabilities("nice", d, tau=self.tau)
        return sampling_probabilities("block", d, blocks=self.parts, chances=self.law)

    @cached_property
    def constants(self) -> dict[str, Any]:
        """Sigma_S, R_{M P^-1} and the budget, as the rates take them.  w* is given: it is a statement on utility."""
        columns = self.task.columns
        if self.name == NICE:
            square = nice_noise(self.tau, columns, self.smoothness)
        else:
            square = sampling_noise(self.parts, block_lipschitz(columns, self.parts), self.smoothness, self.law)
        return {"n": self.n, "noise": math.sqrt(square), "epsilon": self.epsilon, "delta": DELTA}

    @property
    def strongly(self) -> dict[str, Any]:
        """What the strongly convex case takes beside them."""
        gap = self.task.gap(self.task.start)
        more = {"smoothness": self.smoothness, "probabilities": self.probabilities, "gap": gap}
        return {**more, "strong_convexity": self.task.ridge, **self.constants}

    @cached_property
    def loops(self) -> Loops:
        """K and T of Theorem 4.2."""
        if self.task.ridge:
            return strongly_convex_block_loops(**self.strongly)
        return convex_block_loops(radius=self.radius, **self.constants)

    @property
    def radius(self) -> float:
        """R_{M P^-1}."""
        return weighted_radius(self.task.best - self.task.start, self.smoothness, self.probabilities)

    @property
    def bound(self) -> float:
        """The theorem's bound of E f(w) - f*, with its constants."""
        if self.task.ridge:
            return strongly_convex_block_bound(self.loops, **self.strongly)
        return convex_block_bound(self.loops.inner, radius=self.radius, **self.constants)

    @property
    def predicted(self) -> float:
        """The row of Table 1, without its constant; of the nice sampling Sigma_S R_{M P^-1}, the theorem itself."""
        if self.name == NICE:
            return self.constants["noise"] * self.radius * math.sqrt(-math.log(DELTA)) / (self.n * self.epsilon)
        rows = {FULL: "full", CD: "uniform", IMPORTANCE: "block", BLOCK: "uniform", BLOCK_IMPORTANCE: "block"}
        row = rows.get(self.name, "dp_sgd")
        constants: dict[str, Any] = {"smoothness": self.task.smoothness, "n": self.n, "epsilon": self.epsilon}
        constants |= {"lipschitz": block_lipschitz(self.task.columns, self.parts), "delta": DELTA, "blocks": self.parts}
        constants |= {"chances": self.law} if row == "block" else {}
        if self.task.ridge:
            return block_strongly_convex_utility(row, strong_convexity=self.task.ridge, **constants)
        return block_convex_utility(row, difference=self.task.best - self.task.start, **constants)

    def recipe(self) -> Recipe:
        """With the noise that its (epsilon, 1e-5) needs, one record replaced."""
        common: dict[str, Any] = {"epsilon": self.epsilon, "delta": DELTA, "n": "exact", "adjacency": "replace-one"}
        if self.name == SVRG:
            length = float(np.linalg.norm(self.task.columns))
            step, inner = 0.5 / float(self.smoothness.max()), max(2, self.loops.steps // 10)
            return dp_svrg(clip=length, step=step, inner=inner, batch_size=self.batch, **common)
        common |= {"smoothness": self.smoothness, "clip": self.task.columns, "schedule": self.loops}
        if self.name == NICE:
            return dp_skgd(sampling="nice", tau=self.tau, **common)
        return dp_skgd(sampling="block", blocks=self.parts, probabilities=self.law.tolist(), **common)

    def utility(self, seed: int, draws: int) -> float:
        """f(w) - f*, the mean over several draws of the noise."""
        recipe, gaps = self.recipe(), []
        for draw in range(draws):
            coins = 1000 * seed + draw
            result = minimize(
                self.task.train, recipe, steps=self.loops.steps, x0=torch.from_numpy(self.task.start), seed=coins,
                noise_seed=coins, record=None, progress=False,
            )  # fmt: skip
            gaps.append(self.task.gap(result.x))
        return float(np.mean(gaps))


def printed_epsilon(steps: int, epsilon: float) -> float:
    """What the noise of Theorem 4.1 really costs at delta 1e-5; the runs here have the noise that is needed.

    >>> round(printed_epsilon(1000, 1.0), 3)
    0.608
    """
    multiplier = math.sqrt(12 * steps * math.log(1 / DELTA)) / epsilon  # of L_U / n
    event = dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(multiplier), steps)
    return epsilon_of(event, DELTA, Adjacency.REPLACE_ONE)
