"""A sketch, a set, a loss, a mechanism and a recipe of one's own, together in one private model.

docs/extending.md explains each of them. Run it: `python examples/own_parts.py`.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass

import numpy as np
import torch

import isthmus
from isthmus import ConvexSet, Mechanism, PrivateClassifier, Release, Sketch, estimators, minimize
from isthmus.algorithms import Budget, algorithm
from isthmus.algorithms.suggest import allowed_step, full_run, walk
from isthmus.base.matrix import matmul
from isthmus.base.randomness import signs
from isthmus.objectives import LinearModel
from isthmus.objectives.targets import SignedLabels
from isthmus.parts import Weighted
from isthmus.privacy import Adjacency, Clip, Gaussian
from isthmus.sketches.base import Random, resolve


@dataclass(frozen=True)
class Folding(Random):
    """Coordinate j goes to number j mod m with a random sign: m buckets of nearly equal size."""

    m: int | float = 0.5

    def build(self, space, key, t):
        return FoldingMap(space, resolve(self.m, space.d, t), key)


class FoldingMap(Sketch):
    tight = True

    def __init__(self, space, m, key):
        self.space, self.d, self.m, self.coverage = space, space.d, m, m / space.d
        place = torch.arange(space.d)
        bucket = place % m
        length = torch.sqrt(space.d / m / torch.bincount(bucket, minlength=m).double())
        self.matrix = torch.zeros(space.d, m, dtype=torch.float64)
        self.matrix[place, bucket] = signs(key, place).double() * length[bucket]

    def rows(self, x, lo=0):  # an n x k block of columns lo .. lo + k - 1, dense or CSR
        return matmul(x, self.matrix[lo : lo + x.shape[1]])

    def adjoint(self, y):
        return self.matrix.to(y) @ y


@dataclass(frozen=True)
class Orthant(ConvexSet):
    """Vectors without negative entries, of length at most `radius`."""

    radius: float = 1.0

    def _project(self, x):
        positive = x.clamp(min=0)
        return positive * min(1.0, self.radius / max(float(positive.norm()), 1e-300))

    def _lmo(self, g):
        down = (-g).clamp(min=0)
        return down * (self.radius / max(float(down.norm()), 1e-300))

    def _diameter(self, d):
        return self.radius * (2**0.5 if d > 1 else 1.0)


class SquaredHinge(LinearModel):
    """max(0, 1 - y z)^2 / 2 for labels -1 and +1."""

    name, reads = "squared_hinge", SignedLabels
    curvature, default_clip = 1.0, 0.5

    def losses(self, z, y):
        return (1 - y * z).clamp(min=0).square() / 2

    def slopes(self, z, y):
        return -y * (1 - y * z).clamp(min=0)


@dataclass(frozen=True)
class Coarse(Mechanism):
    """Gaussian noise, then rounding to a public grid: rounding after the noise costs nothing."""

    multiplier: float

    def release(self, bounded, noise):
        step = self.multiplier * bounded.bound / 16
        return (Gaussian(self.multiplier).release(bounded, noise) / step).round() * step

    def event(self, adjacency=Adjacency.ADD_REMOVE):
        return Gaussian(self.multiplier).event(adjacency)

    def describe(self):
        return f"Gaussian noise of {self.multiplier:.4g} times the most one record can add, rounded to a grid"


@algorithm(words="descends on all records through a folding of the gradient")
def folded_gd(*, epsilon, delta=None, clip, step, m=0.5, n=None, adjacency="add-remove"):
    release = Release(encode=Folding(m), clip=Clip(clip), mechanism=Coarse(1.0))
    return Budget(epsilon, delta, adjacency, n).descent(release, lambda t: step, average=Weighted())


@folded_gd.suggest_arguments(evidence="an example: half the numbers, the rest as plain DP-GD")
def _half(facts):
    run = full_run(facts, facts.the_clip, max(1, facts.parameters // 2), wanted=100)
    step = allowed_step(run)
    return run.choice({"clip": facts.the_clip, "step": step, "m": 0.5}, margin_noise=walk(run, step))


def main() -> None:
    """Run all five through `minimize`, the planner, and an estimator that is saved and loaded."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (5000, 6))
    y = (X @ [2.0, 1.0, 0.5, 0.0, 0.0, 0.0] + 0.1 * rng.standard_normal(5000) > 0).astype(int)
    X, y, X_public, y_public = X[:4000], y[:4000], X[4000:], y[4000:]  # scores are of records declared public

    # minimize
    rows = X / np.sqrt(6)
    result = minimize(
        SquaredHinge(rows, y, classes=(0, 1)),
        folded_gd(epsilon=1.0, delta=1e-5, clip=0.5, step=2.0, n="exact"),
        Orthant(10.0),
        steps=100,
    )
    print(result.privacy.words())

    # the planner
    print(isthmus.plan(n=4000, d=6, epsilon=1.0, loss=SquaredHinge, algorithms=["dp_gd", folded_gd]).table())

    # an estimator, saved and loaded
    model = PrivateClassifier(
        epsilon=1.0, algorithm=folded_gd, loss=SquaredHinge, constraint=Orthant(10.0), classes=[0, 1], bounds=(-1, 1)
    ).fit(X, y)
    with tempfile.TemporaryDirectory() as folder:
        estimators.save(model, f"{folder}/model.safetensors")
        again = estimators.load(f"{folder}/model.safetensors")
    print(model.score(X_public, y_public), again.predict(X_public[:3]), again.privacy_)


if __name__ == "__main__":
    main()
