"""Purchases that tell how columns and targets are distributed: counts in the bins of a fixed grid.

| purchase | released | moves by at most | gives |
|---|---|---|---|
| `Shapes` | how many records have each column's entry in each bin | sqrt(d) | smooth features of the columns |
| `TargetShape` | how many have their target in each bin, or in each class | 1 | centre, scale, clip; a start |

A record is in one bin of each column, whatever it is.  Everything else follows from the counts and costs nothing more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from isthmus.algorithms.purchases import ROOT, Purchased, Statistics, Terms, classes_of, unit
from isthmus.base import validate
from isthmus.base.matrix import is_sparse
from isthmus.core.before import Prepared
from isthmus.core.updates import Preconditioned
from isthmus.gradients import Counts
from isthmus.privacy import Clip
from isthmus.problems.features import Distribution, bins_of, distribution, grid, smooth_map
from isthmus.problems.scaling import RowMaps, Scaled

UNSEEN = 0.01
"""Records that may differ from all others in a column that looks constant."""
TARGET_LEVEL = 6
"""The grid of targets: one column, so that a fine one is cheap."""


@dataclass(frozen=True)
class Shapes(Purchased):
    """Histograms of all columns: each becomes its linear function and smooth ones beside it, as many as are affordable.

    features   how many in all, at most; at least one a column (0: no more than that)
    functions  of a column, at most; 1 is a linear model
    level      of the grid (`problems.features.grid`): 2^level bins on either side of 0
    """

    features: int
    functions: int = 6
    level: int = 6
    share: float = 0.25
    name: str = "shapes"
    exact: ClassVar[bool] = True

    def check(self, objective: Any) -> None:
        """Dense data."""
        super().check(objective)
        sparse = is_sparse(Scaled.of(objective.X).X)
        validate.check(not sparse, "scale", "shapes", 'use "columns" for CSR rows: their zeros would be filled')

    def clip(self, objective: Any) -> Clip:
        """sqrt of the columns: a record is in one bin of each."""
        return Clip(math.sqrt(self._view(objective).shape[1]) * ROOT)

    def rows(self, objective: Any) -> Counts:
        """A one for each column, in its bin."""
        view, edges = self._view(objective), grid(self.level)
        bins = _Bins(view, edges)
        return Counts(bins, view.shape[0], view.shape[1], len(edges) - 1)

    def numbers(self, objective: Any) -> int:
        """One count a column and bin."""
        return self._view(objective).shape[1] * (len(grid(self.level)) - 1)

    def apply(self, prepared: Prepared, bought: Tensor, noise: float, terms: Terms) -> Prepared:
        """The features, their rows shortened to about their usual length: longer where records allow it."""
        view, edges = self._view(prepared.objective), grid(self.level)
        columns = distribution(bought.view(view.shape[1], -1), noise, terms.n, edges)
        b = terms.n * terms.mu
        features = smooth_map(
            columns,
            reach=view.reach,
            features=self.features,
            functions=self.functions,
            longer=longest(b / max(self.features, view.shape[1])),
            floor=max(noise, UNSEEN) / terms.n,
        )
        before = () if prepared.transform is None else tuple(prepared.transform.maps)
        objective = prepared.objective.with_inputs(features(view))
        return replace(prepared, objective=objective, transform=RowMaps((*before, features)))

    def _view(self, objective: Any) -> Scaled:
        return Scaled.of(objective.X).without_constant()


@dataclass(frozen=True)
class _Bins:
    """The bins of rows lo .. hi - 1."""

    view: Scaled
    edges: Tensor

    def __call__(self, lo: int, hi: int) -> Tensor:
        return bins_of(self.edges, self.view[lo:hi].dense() / self.view.reach)


@dataclass(frozen=True)
class TargetShape(Purchased):
    """How targets are distributed.  Numbers are centred, scaled and clipped by it; logits start at the class shares.

    clips  whether gradients may be clipped at more than was planned, as far as records allow
    """

    share: float = 0.03
    clips: bool = True
    name: str = "target shape"
    exact: ClassVar[bool] = True

    def clip(self, objective: Any) -> Clip:
        """1: a record has one target."""
        return Clip(ROOT)

    def rows(self, objective: Any) -> Counts:
        """A one in the bin of y, or in its class."""
        bins = self._bins(objective)
        return Counts(lambda lo, hi: bins[lo:hi, None], len(bins), 1, self.numbers(objective))

    def numbers(self, objective: Any) -> int:
        """One count a bin or class."""
        return len(grid(TARGET_LEVEL)) - 1 if objective.classes is None else len(objective.classes)

    def apply(self, prepared: Prepared, bought: Tensor, noise: float, terms: Terms) -> Prepared:
        """What follows for the targets, the clip and the start."""
        if prepared.objective.classes is not None:
            return _labels(prepared, bought, noise, terms)
        shape = distribution(bought[None], noise, terms.n, grid(TARGET_LEVEL))
        centred = _numbers(prepared, shape, noise / terms.n, terms)
        if self.clips or centred.clip is None:
            return centred
        return replace(centred, clip=min(centred.clip, terms.clip), spread=None)

    def _bins(self, objective: Any) -> Tensor:
        if objective.classes is not None:
            return classes_of(objective)
        return bins_of(grid(TARGET_LEVEL), objective.y.double())


@dataclass(frozen=True)
class ShrunkStatistics(Statistics):
    """(X'X, X'y) of centred targets or known class shares: a start, and steps that go only where they outweigh noise.

    With H the curvature of the loss times X'X, s^2 the variance that noise will have added to a coordinate of the sum
    of gradients, v that of a usual coordinate of w, steps are preconditioned by H (H^2 + (s^2 / v) I)^-1: the inverse
    where there is something to learn, and little where there is not.
    """

    def apply(self, prepared: Prepared, bought: Tensor, noise: float, terms: Terms) -> Prepared:
        """The start and the preconditioner: directions in which noise would outweigh a usual w go back to the first."""
        prepared = unit(prepared)
        loss, view = prepared.objective, Scaled.of(prepared.objective.X)
        d, identity = view.shape[1], torch.eye(view.shape[1], dtype=torch.float64)
        gram, products = bought[: d * d].view(d, d), bought[d * d :]
        gram = (gram + gram.T) / 2
        first = torch.zeros(d, dtype=torch.float64) if prepared.start is None else prepared.start
        z = first[-1] * view.bias
        curvature = self._curvature(loss, z)
        values, vectors = torch.linalg.eigh(curvature * gram)
        values = values.clamp(min=0)
        pull = self._noise(prepared, curvature * noise, terms) / self.usual(prepared)
        inverse = (vectors * (values / (values.square() + pull))) @ vectors.T
        # the gradient where all margins are z, of what was bought: slopes are level + slope y there
        slopes = loss.slopes(z.expand(2), torch.tensor([-1.0, 1.0], dtype=torch.float64))
        level, slope = slopes.mean(), (slopes[1] - slopes[0]) / 2
        ones = gram[:, -1] / view.bias if view.bias else torch.zeros(d, dtype=torch.float64)
        start = first - inverse @ (level * ones + slope * products)
        update = Preconditioned(inverse * terms.n, identity - inverse @ (curvature * gram), first)
        step = Averaging(terms.rounds // 2 if loss.labelled() else 0)
        return replace(prepared, start=start, update=update, step=step)

    def _curvature(self, loss: Any, z: Tensor) -> float:
        """The second derivative at margins that a fitted model has, where the first point has margins z."""
        if not loss.labelled():
            return float(loss.curvature)
        ends = loss.slopes(torch.stack([z - 0.5, z + 0.5]), torch.ones(2, dtype=torch.float64))
        return 0.8 * max(float(ends[1] - ends[0]), 0.05)

    def _noise(self, prepared: Prepared, matrix: float, terms: Terms) -> float:
        """The square of what noise adds to a coordinate of the sum of gradients in the end: that of the rounds, and
        that of the matrix."""
        rounds = 1.3 * (terms.clip if prepared.clip is None else prepared.clip) / (terms.mu * math.sqrt(0.5))
        return rounds**2 + 0.03 * matrix**2 * self.usual(prepared) * int(prepared.objective.X.shape[1])

    def usual(self, prepared: Prepared) -> float:
        """The square of a usual coordinate of w, generously: margins of the size that targets have."""
        view = Scaled.of(prepared.objective.X)
        spread = prepared.spread or (0.3 if prepared.objective.classes is None else 1.0)
        whole = 1 / view.bias if view.bias else math.sqrt(view.shape[1])
        return 10 * (spread * whole) ** 2 / view.shape[1]


@dataclass(frozen=True)
class Averaging:
    """Steps 2 / (t - hold + 3) after `hold` of 2 / 3: what preconditioned steps find is averaged, late ones more.

    >>> [round(Averaging(1)(t), 3) for t in range(4)]
    [0.667, 0.667, 0.5, 0.4]
    """

    hold: int = 0

    def __call__(self, t: int) -> float:
        return 2.0 / (max(t - self.hold, 0) + 3)


# ---------------------------------------------------------------- what follows


def longest(records: float) -> float:
    """How much longer than usual a row of features may be, with so many records in units of the noise for each.

    Rows that are shortened bend what is learned; long rows bring noise: the more records there are, the longer.

    >>> [round(longest(b), 2) for b in (5, 50, 500, 50000)]
    [1.0, 1.0, 2.24, 22.36]
    """
    return max(1.0, math.sqrt(records / 100))


def _labels(prepared: Prepared, bought: Tensor, noise: float, terms: Terms) -> Prepared:
    """Margins start at the logarithms of the class shares, and slopes are clipped less the more records there are."""
    loss, view = prepared.objective, Scaled.of(prepared.objective.X)
    d = view.shape[1]
    low = loss.clip_for(len(loss.classes))
    high = max(low, loss.slope_bound or low)
    clip = min(high, max(low, 0.1 * terms.n * terms.mu / d))
    prepared = replace(prepared, clip=clip, spread=1.0)
    if not view.bias or not loss.probabilities or loss.weights is not None:
        return prepared
    counts = bought.clamp(min=max(noise, 1.0))
    logs = (counts / counts.sum()).log()
    start = torch.zeros(loss.space.d, dtype=torch.float64)
    outputs = loss.space.d // d
    start.view(outputs, d)[:, -1] = (logs[1:] - logs[:1] if outputs == 1 else logs) / view.bias
    return replace(prepared, start=start)


def _numbers(prepared: Prepared, shape: Distribution, floor: float, terms: Terms) -> Prepared:
    """Targets less their mean, over their reach: as far as records are seen, and four standard deviations at least."""
    loss, view = prepared.objective, Scaled.of(prepared.objective.X)
    if not loss.equivariant or not view.bias:
        return prepared
    mean, sd = float(shape.mean[0]), math.sqrt(max(float(shape.variance[0]), floor))
    low, high = (float(end[0]) for end in shape.ends)
    low, high = max(-1.0, min(low, mean - 4 * sd)), min(1.0, max(high, mean + 4 * sd))
    width = min(1.0, max(high - mean, mean - low, 1e-12))  # a few beyond 1 are clipped where that counts
    y = (loss.y.double().clamp(low, high) - mean) / width
    sizes = (shape.middles.clamp(low, high) - mean) / width
    clip = residual_clip(shape.p[0], sizes, view.shape[1] / (terms.n * terms.mu))
    return replace(
        prepared, objective=loss.with_targets(y), centre=(mean, width), clip=clip, spread=min(1.0, sd / width)
    )


def residual_clip(p: Tensor, sizes: Tensor, noise: float) -> float:
    """The clip of residuals that loses least: what it cuts off of targets about their mean, and `noise` times it.

    >>> p, y = torch.tensor([0.5, 0.49, 0.01]).double(), torch.tensor([-0.1, 0.1, 1.0]).double()
    >>> residual_clip(p, y, 10.0) < 0.05, residual_clip(p, y, 1e-4) > 0.8
    (True, True)
    """
    clips = torch.logspace(-1.5, math.log10(2.0), 40, dtype=torch.float64)
    over = (0.9 * sizes.abs() - clips[:, None]).clamp(min=0) * p
    bias = (over * sizes.sign()).sum(1).abs() + 0.3 * over.sum(1)
    return float(clips[(bias.square() + (noise * clips).square()).argmin()])
