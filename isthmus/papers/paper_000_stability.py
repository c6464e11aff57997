"""Uniform stability, measured: runs on neighbouring samples with the same randomness (Definition 1, paper 000)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.randomness import key
from isthmus.geometry.sets import ConvexSet, Whole
from isthmus.problems.penalties import NoPenalty
from isthmus.round.minimize import Binding, Recipe, minimize
from isthmus.round.pipeline import Pipeline

Problem = Any | tuple[Any, Any] | Callable[[int | None], Any]


@dataclass(frozen=True, eq=False)
class Stability:
    """||w_t - w'_t|| after t = 0..steps rounds, for every seed and every replaced record.

    distances  an array of shape (seeds, neighbours, steps + 1)

    >>> measured = Stability(np.array([[[0.0, 1.0], [0.0, 4.0]], [[0.0, 3.0], [0.0, 2.0]]]))
    >>> measured.mean, measured.worst
    (array([[0., 2.],
           [0., 3.]]), array([0., 3.]))
    """

    distances: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """The expectation over the randomness of the algorithm, a row a neighbour."""
        return np.asarray(self.distances.mean(axis=0))

    @property
    def worst(self) -> np.ndarray:
        """The largest mean over the neighbours: what uniform stability bounds, up to the Lipschitz constant."""
        return np.asarray(self.mean.max(axis=0))

    def growth(self, start: int = 1) -> float:
        """The least-squares slope of log `worst` against log t from round `start` on: the exponent of t.

        >>> round(Stability(np.arange(9.0)[None, None] ** 2).growth(), 12)
        2.0
        """
        validate.positive_int(start=start)
        t = np.arange(start, len(self.worst))
        values = self.worst[start:]
        positive = values > 0
        validate.check(int(positive.sum()) >= 2, "start", start, "leave at least two rounds with a positive distance")
        return float(np.polyfit(np.log(t[positive]), np.log(values[positive]), 1)[0])


def uniform_stability(
    problem: Problem,
    recipe: Recipe | Pipeline,
    constraint: ConvexSet | None = None,
    *,
    steps: int,
    replaced: Sequence[int] = (0,),
    seeds: Sequence[int] = (0,),
    x0: Any = None,
    noise_seed: int | None = None,
) -> Stability:
    """Run a recipe on a sample and on its neighbours, each pair with the same seed, and follow ||w_t - w'_t||.

    The distances are to be held against `smooth_divergence` and its kin (Theorems 2, 3, 5, 7, 9, 10, paper 000), those
    of private recipes against `nonsmooth_divergence` (Theorems 13, 15).

    problem   an objective with `X` and `y`, whose records `replaced` are each overwritten (`replace_record`); or a
              function of None (the sample) or i (the sample with record i replaced) that returns an objective; or a
              pair (objective, neighbour), and then `replaced` does not count
    seeds     public randomness (sketches and batches)
    noise_seed  of private recipes, which are refused without: both runs of a pair share their noise and coins, as the
                theorems do, and neither is private

    >>> from isthmus import LeastSquares, algorithms
    >>> pair = LeastSquares([[1.0], [1.0]], [0.0, 0.0]), LeastSquares([[1.0], [1.0]], [0.0, 2.0])
    >>> uniform_stability(pair, algorithms.gd(step=0.5), steps=2).worst
    array([0.  , 0.5 , 0.75])
    """
    validate.positive_int(steps=steps)
    validate.check(len(seeds) > 0, "seeds", seeds, "give at least one seed")
    sample, neighbours = _neighbours(problem, replaced)
    bare = noise_seed is not None or not _is_private(sample, recipe, constraint, steps)
    remedy = "give a noise_seed, which the runs of a pair share: a private recipe draws its own noise in every run"
    validate.check(bare, "noise_seed", noise_seed, remedy)
    size = sample.n, sample.space.d
    for neighbour in neighbours:
        shape = neighbour.n, neighbour.space.d
        validate.check(shape == size, "problem", shape, f"give a neighbour with n, d = {size}")
    distances = np.zeros((len(seeds), len(neighbours), steps + 1))
    for row, seed in zip(distances, seeds, strict=True):
        terms = (recipe, constraint, steps, seed, x0, None if noise_seed is None else key(noise_seed, seed))
        path = _iterates(sample, *terms)
        for line, neighbour in zip(row, neighbours, strict=True):
            moved = _iterates(neighbour, *terms)
            line[1:] = torch.linalg.vector_norm(path - moved, dim=1).numpy()
    return Stability(distances)


def replace_record(objective: Any, index: int, record: tuple[Any, Any] | None = None) -> Any:
    """The same objective with record `index` of `X`, `y` replaced: a neighbouring sample.

    record  the new (x, y), y as the objective holds it; by default a copy of the record half the sample away

    >>> from isthmus import LeastSquares
    >>> other = replace_record(LeastSquares([[1.0], [2.0], [3.0]], [0.0, 0.0, 1.0]), 2, ([5.0], 7.0))
    >>> other.X.flatten().tolist(), other.y.tolist()
    ([1.0, 2.0, 5.0], [0.0, 0.0, 7.0])
    """
    replaceable = isinstance(getattr(objective, "X", None), Tensor) and isinstance(
        getattr(objective, "y", None), Tensor
    )
    validate.check(
        replaceable,
        "objective",
        objective,
        "give a pair, or a function that replaces a record: this objective has no dense X and y",
    )
    validate.non_negative_int(index=index)
    validate.at_most(objective.n - 1, "n - 1", index=index)
    neighbour = copy.copy(objective)
    neighbour.X, neighbour.y = objective.X.clone(), objective.y.clone()
    donor = (index + max(1, objective.n // 2)) % objective.n
    x, y = (objective.X[donor], objective.y[donor]) if record is None else record
    neighbour.X[index], neighbour.y[index] = torch.as_tensor(x).to(neighbour.X), torch.as_tensor(y).to(neighbour.y)
    getattr(neighbour, "forget", int)()  # the norms of the rows as they were
    return neighbour


def _neighbours(problem: Problem, replaced: Sequence[int]) -> tuple[Any, list[Any]]:
    if isinstance(problem, tuple):
        validate.check(len(problem) == 2, "problem", problem, "give a pair (objective, neighbour)")
        return problem[0], [problem[1]]
    validate.check(len(replaced) > 0, "replaced", replaced, "give at least one record")
    if not hasattr(problem, "rows"):
        validate.check(callable(problem), "problem", problem, "give an objective, a pair or a function")
        return problem(None), [problem(i) for i in replaced]
    return problem, [replace_record(problem, i) for i in replaced]


def _is_private(objective: Any, recipe: Recipe | Pipeline, constraint: ConvexSet | None, steps: int) -> bool:
    """Whether a recipe adds noise, from its pipeline alone."""
    if isinstance(recipe, Pipeline):
        return recipe.private
    penalty = getattr(objective, "penalty", None) or NoPenalty()
    return recipe.bind(Binding(constraint or Whole(), penalty, objective.space, objective.n, steps, None)).private


def _iterates(
    objective: Any, recipe: Any, constraint: Any, steps: int, seed: int, x0: Any, noise_seed: int | None
) -> Tensor:
    """w after rounds 1..steps; a run that stops early stays where it stopped."""
    path: list[Tensor] = []

    def keep(record: dict[str, Any], state: Any) -> None:
        path.append(state.w.detach().to("cpu", torch.float64))

    result = minimize(
        objective,
        recipe,
        constraint,
        steps=steps,
        seed=seed,
        x0=x0,
        record=1,
        callbacks=[keep],
        progress=False,
        noise_seed=noise_seed,
    )
    end = result.state.w.detach().to("cpu", torch.float64)
    return torch.stack(path + [end] * (steps - len(path)))
