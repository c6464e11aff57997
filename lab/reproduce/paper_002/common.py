"""Paper 002's setting: interest rates of Lending Club, linear regression, steps 0.1 / sqrt(k)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from isthmus.algorithms import compressive_dp_sgd, dp_gd
from isthmus.core.minimize import Recipe, minimize
from isthmus.objectives import LeastSquares
from isthmus.privacy.accounting import epsilon_of, noise_multiplier
from isthmus.privacy.event_json import dpa
from lab.reproduce import scaled
from lab.reproduce.experiment import Curve

DELTA = 1e-5
STEP = 0.1
ENTRY = 0.1  # Xi, of one entry of a record's gradient: columns are at most 1/3, targets lie in [-1, 1]
CLIP = 0.3  # of a record's gradient in l2, for the methods of today
KAPPA, P = 5, 20
POINTS = 25

SPARSE, DENSE, STRAW = "sparsified", "dense", "dense, noise of one record"
CODES, PLAIN = "Gaussian codes", "DP-GD"

SILENT = (
    "The paper leaves Xi, the scaling of its columns and the larger epsilon open: columns are divided by public "
    "constants, Xi = 0.1, and the larger epsilon is 100. Its 890,000 loans and integer categories are 42,445 loans and "
    "one-hot categories here (d = 89). Psi has entries +-1/sqrt(p), for which the printed noise is enough; with the "
    "paper's Gaussian entries it is not."
)


@dataclass(frozen=True)
class Lending:
    """The first n private rows, and the least loss."""

    train: LeastSquares
    least: float

    def relative(self, w: torch.Tensor) -> float:
        """f(theta) / f(theta*) - 1."""
        return self.train.loss(w) / self.least - 1


@lru_cache(maxsize=4)
def lending(n: int) -> Lending:
    """n rows of the table."""
    data = scaled.load("lending_club")
    x, y = data.x[:n], data.y[:n]
    best = torch.from_numpy(np.linalg.lstsq(x, y, rcond=None)[0])
    train = LeastSquares(x, y)
    return Lending(train, float(train.loss(best)))


def per_iteration(
    method: str, epsilon: float, *, n: int, rounds: int, step: float = STEP, kappa: int = KAPPA, p: int = P
) -> Recipe:
    """The paper's mechanism and its baseline with epsilon for EACH round: rounds times epsilon in all.

    The baseline whose noise is that of one record, whatever n, is the dense one at an epsilon of one n-th.
    """
    budget = rounds * epsilon / (n if method == STRAW else 1)
    common: dict[str, Any] = {"clip": ENTRY, "step": falling(step), "as_published": True, "n": "exact", "delta": DELTA}
    if method == SPARSE:
        return compressive_dp_sgd(epsilon=budget, p=p, kappa=kappa, **common)
    return compressive_dp_sgd(epsilon=budget, variant="dense", **common)


def total(method: str, epsilon: float, *, rounds: int, step: float = STEP) -> Recipe:
    """(epsilon, 1e-5) for the whole run, a record replaced: the same two, and what one would take today."""
    common: dict[str, Any] = {"delta": DELTA, "step": falling(step), "n": "exact", "adjacency": "replace-one"}
    if method == PLAIN:
        return dp_gd(epsilon=epsilon, clip=CLIP, **common)
    if method == CODES:
        return compressive_dp_sgd(epsilon=epsilon, clip=CLIP, p=P, kappa=KAPPA, **common)
    if method == "selection":
        return compressive_dp_sgd(epsilon=epsilon, clip=ENTRY, kappa=KAPPA, variant="selection", **common)
    epsilon_of_round = 1 / noise_multiplier(epsilon=epsilon, delta=DELTA, steps=rounds, mechanism="laplace")
    return per_iteration(method, epsilon_of_round, n=1, rounds=rounds, step=step)


def falling(c: float) -> Any:
    """rho_k = c / sqrt(k)."""
    return lambda t: c / math.sqrt(t + 1)


def spent(epsilon: float, rounds: int) -> float:
    """What `rounds` releases with Laplace noise at epsilon each cost: at delta 1e-5 by the accountant, or their sum.

    >>> 470 < spent(1.0, 1000) < 480
    True
    """
    pure = rounds * epsilon
    if not 0.01 < epsilon < 3:  # nothing, or next to nothing, is gained there
        return pure
    return min(pure, epsilon_of(dpa.SelfComposedDpEvent(dpa.LaplaceDpEvent(1 / epsilon), rounds), DELTA))


def descend(problem: Lending, recipe: Recipe, rounds: int, seed: int) -> tuple[float, Curve]:
    """The relative loss of the last iterate, and along the way."""
    curve: tuple[list[float], list[float]] = ([0.0], [_short(problem.relative(torch.zeros(problem.train.d).double()))])

    def look(_: Any, state: Any) -> None:
        curve[0].append(float(state.t))
        curve[1].append(_short(problem.relative(state.w)))

    result = minimize(
        problem.train, recipe, steps=rounds, seed=seed, noise_seed=seed, record=max(1, rounds // POINTS),
        callbacks=[look], progress=False,
    )  # fmt: skip
    assert result.x is not None
    return problem.relative(result.x), curve


def _short(value: float) -> float:
    return float(f"{value:.4g}")
