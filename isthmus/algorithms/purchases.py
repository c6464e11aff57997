"""What a private run of a linear model can buy before its loop: each a bounded sum, and what follows from it.

| purchase | released | moves by at most | gives |
|---|---|---|---|
| `Ranges` | how many records have each column's entry in each power of two | sqrt(d) | a map of rows to the unit ball |
| `TargetRange` | the same of y | 1 | targets in [-1, 1] |
| `TargetHalf` | on which side of their middle most targets lie | 1 | the half of the range that has them |
| `TargetReach` | how many targets lie in reach of their middle | 1 | a reach that has nearly all |
| `TargetMean` | the sum of the targets | 1 | their mean, and nothing else |
| `ClassCounts` | how many records each class has | 1 | weights of "balanced" classes |
| `Columns` | sum x^2 of rows, squares shortened | 1 / sqrt(d) | column weights, rows of length 1 |
| `Moments` | (sum x, sum x^2) | sqrt 2 | centred, scaled columns and a bias |
| `Shapes` | how many records have each column's entry in each bin | sqrt(d) | smooth features of the columns |
| `TargetShape` | how many have their target in each bin, or in each class | 1 | centre, scale, clip; a start |
| `Lambda` | lambda_max(X'X) | 1 (Weyl) | a step |
| `Statistics` | (X'X, X'y) | sqrt 2 | a start and a preconditioner |

Each is one look at all records, paid from the run's own budget (`buying`).  What is bought is public; everything
derived from it costs nothing more.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from isthmus.algorithms.suggest import Build, _usual_tau
from isthmus.base import validate
from isthmus.base.matrix import View, is_sparse
from isthmus.base.space import Space
from isthmus.core.minimize import Binding, Purchased, Recipe
from isthmus.core.parts import Preconditioned
from isthmus.core.pipeline import Pipeline, Purchase, Release, Stage
from isthmus.gradients import Counts, Glm, Rows, Stack
from isthmus.gradients.rounding import KAPPA
from isthmus.lifts import discard
from isthmus.objectives.linear import LinearModel
from isthmus.objectives.targets import CountTargets
from isthmus.privacy import Adjacency, Charge, Clip, FullBatch, Mechanism, PerLeafClip, PrivacyPlan
from isthmus.privacy.event_json import DpEvent
from isthmus.problems.features import Distribution, SmoothMap, bins_of, distribution, grid, smooth_map
from isthmus.problems.queries import Products, Query, Squares, TopEigenvalue
from isthmus.problems.scaling import RowMap, RowMaps, Scaled, unit_rows

SMALL = 300
"""Up to this many columns moments are centred and sufficient statistics are affordable."""

_MIN_POWER, _MAX_POWER = -40, 64
"""Powers of two that ranges tell apart."""

BINS = 2 * (_MAX_POWER - _MIN_POWER + 1) + 1
"""Both signs of each, and 0."""

_HIDDEN = 1.5
"""Squares of a column that no record has stay below so many standard deviations of their noise, in 93 % of cases."""

_USUAL = 0.1
"""The mean square that an entry scaled to [-1, 1] is taken to have where nothing is known."""

ROOT = 1 + 2.0**-40
"""Room for the rounding of a norm that all records have."""

_CAPACITY = 1 << 27
"""Eigenvalues and products of more records than this are not proven to be as exact as their bound says."""


@dataclass(frozen=True)
class Terms:
    """Public numbers that follow-ups of a purchase use: records, rounds, clip, and mu of the whole budget."""

    n: int
    rounds: int
    clip: float
    mu: float


class SumPurchase(ABC):
    """One release before the loop: a clipped sum of one vector a record, or a query, and what follows from it."""

    name: str
    """Under which it is charged."""
    share: float
    """Of the budget."""
    rounded: ClassVar[float] = 1 + KAPPA
    """Room for the rounding of its sums (see `isthmus.gradients.rounding`)."""
    adds_up: ClassVar[bool] = True
    """Whether it is a sum over records: else it looks at all of them together."""

    def check(self, objective: LinearModel) -> None:
        """Refuse what it cannot be bought for, before anything is."""
        return

    @abstractmethod
    def rows(self, objective: LinearModel) -> Rows | Query:
        """One vector a record, whose clipped sum is released; or a query."""

    @abstractmethod
    def clip(self, objective: LinearModel) -> Clip | PerLeafClip:
        """The bound of a record's vector: a public thing."""

    def bound(self, objective: LinearModel) -> float:
        """What one record can move what is released by: that of the clip, with room for rounding; a public number."""
        clip = self.clip(objective)
        return float(clip.total(clip.init())) * self.rounded

    @abstractmethod
    def apply(self, prepared: Purchased, bought: Tensor, noise: float, terms: Terms) -> Purchased:
        """What follows; `noise` is the standard deviation of each bought number."""


class _Histogram(SumPurchase):
    """How many records have each of some columns in each bin: a record is in one bin of each."""

    rounded = 1.0

    @abstractmethod
    def rows(self, objective: LinearModel) -> Counts:
        """A one for each column, in its bin."""

    def clip(self, objective: LinearModel) -> Clip:
        """sqrt of the columns."""
        return Clip(math.sqrt(self.rows(objective).blocks) * ROOT)


@dataclass(frozen=True, eq=False)
class Ranges(_Histogram):
    """Which powers of two a column's entries lie in; entries outside what many records share are clipped.

    low, high  what is public already: a number for each column, NaN where the range is to be bought; None: all
    within     (low, high) that were declared of all columns: what is bought is narrower
    origin     keep 0 where it is: a model without an intercept has no other constant
    whole      rows within the ranges are never shortened: histograms are bought of them

    >>> octaves(torch.tensor([0.0, 1.0, 1.5, -3.0])) - BINS // 2
    tensor([  0,  42,  42, -43])
    """

    low: Tensor | None = None
    high: Tensor | None = None
    within: tuple[Tensor, Tensor] | None = None
    share: float = 0.08
    bias: float = 0.0
    origin: bool = False
    whole: bool = False
    name: str = "ranges"

    def check(self, objective: LinearModel) -> None:
        """Dense data."""
        dense = not Scaled.of(objective.X).sparse
        validate.check(dense, "bounds", None, "give data_norm= for sparse rows: ranges would fill their zeros")

    def rows(self, objective: LinearModel) -> Counts:
        """The octaves of the columns whose range is to be bought."""
        X = Scaled.of(objective.X).X
        assert not is_sparse(X)  # CSR was refused by `check`
        _, unknown = self._known(X.shape[1])
        return Counts(lambda lo, hi: octaves(X[lo:hi][:, unknown]), objective.n, len(unknown), BINS)

    def apply(self, prepared: Purchased, bought: Tensor, noise: float, terms: Terms) -> Purchased:
        """Rows clipped to the ranges, scaled to [-1, 1], shortened to about 1.5 times their usual length."""
        X = Scaled.of(prepared.objective.X).X
        (low, high), unknown = self._known(X.shape[1])
        second = torch.full_like(low, _USUAL)
        low[unknown], high[unknown], second[unknown] = ranges(bought.view(-1, BINS), noise, terms.n)
        if self.within is not None:
            first, last = torch.maximum(low, self.within[0]), torch.minimum(high, self.within[1])
            low, high = torch.where(first < last, torch.stack([first, last]), torch.stack(self.within))
        limit = math.sqrt(X.shape[1]) if self.whole else None
        range_map = ranged(low, high, self.bias, float(second.sum()), limit, self.origin)
        objective = prepared.objective.with_inputs(range_map(X))  # of the columns as they were given
        return replace(prepared, objective=objective, transform=RowMaps((range_map,)))

    def _known(self, d: int) -> tuple[Tensor, Tensor]:
        """The ranges of d columns, and which of them are to be bought."""
        known = torch.full((2, d), math.nan, dtype=torch.float64)
        if self.low is not None and self.high is not None:
            known = torch.stack([self.low.double(), self.high.double()])
        return known, known.isnan().any(0).nonzero()[:, 0]


@dataclass(frozen=True)
class TargetRange(_Histogram):
    """The octaves of y, and y mapped to [-1, 1] (counts: to [0, 1])."""

    share: float = 0.02
    name: str = "targets"

    @classmethod
    def among(cls, b: float) -> TargetRange:
        """As much of the budget as lets an octave that has half of the records stand 8 standard deviations out."""
        return cls(min(0.3, max(cls.share, (16 / b) ** 2)))

    def rows(self, objective: LinearModel) -> Counts:
        """The octave of y."""
        return Counts(lambda lo, hi: octaves(objective.y[lo:hi, None]), objective.n, 1, BINS)

    def apply(self, prepared: Purchased, bought: Tensor, noise: float, terms: Terms) -> Purchased:
        """The mapped targets."""
        counts = bought.clone()
        if isinstance(prepared.objective.targets, CountTargets):
            counts[: BINS // 2] = 0  # what counts below 0 hold is noise
        low, high, _ = ranges(counts[None], noise, terms.n, likeliest=True)
        target_range = float(low), float(high)
        return replace(prepared, objective=scaled_targets(prepared.objective, *target_range), target=target_range)


def _recentred(
    prepared: Purchased, shift: float, width: float, low: float = -math.inf, high: float = math.inf
) -> Purchased:
    """The problem with targets clipped to [low, high] and then seen from `shift`, in units of `width`."""
    y = (prepared.objective.y.double().clamp(low, high) - shift) / width
    first, unit = prepared.centre or (0.0, 1.0)
    return replace(prepared, objective=prepared.objective.with_targets(y), centre=(first + unit * shift, unit * width))


@dataclass(frozen=True)
class TargetHalf(SumPurchase):
    """On which side of 0 most targets lie: from the middle of that half of [-1, 1] they are then told in `unit`."""

    share: float
    name: str
    unit: float = 0.5

    def clip(self, objective: LinearModel) -> Clip:
        """1: a record is on one side."""
        return Clip(ROOT)

    def rows(self, objective: LinearModel) -> Rows:
        """The sign of y."""
        return _numbers_of(objective.y.double().sign())

    def apply(self, prepared: Purchased, bought: Tensor, noise: float, terms: Terms) -> Purchased:
        """That half."""
        return _recentred(prepared, 0.5 * float(bought.sign()), self.unit)


@dataclass(frozen=True)
class TargetReach(SumPurchase):
    """How many targets lie in [-1, 1]: where nearly all do it is made shorter by `factor`, else longer.

    last  targets are clipped somewhat beyond what was found, but not beyond the range they began with
    """

    share: float
    name: str
    factor: float
    last: bool = False

    def clip(self, objective: LinearModel) -> Clip:
        """1: a record is in reach, or is not."""
        return Clip(ROOT)

    def rows(self, objective: LinearModel) -> Rows:
        """1 where y is in reach, else 0."""
        return _numbers_of((objective.y.abs() <= 1).double())

    def apply(self, prepared: Purchased, bought: Tensor, noise: float, terms: Terms) -> Purchased:
        """Another unit for targets."""
        nearly = max(_FEWEST * terms.n, _NEARLY_ALL * terms.n - 1.5 * noise)  # so that noise rarely hides that all are
        factor = 1 / self.factor if float(bought) > nearly else self.factor
        if not self.last:
            return _recentred(prepared, 0.0, factor)
        (first, unit), reach = prepared.centre or (0.0, 1.0), max(_BEYOND, terms.n * terms.mu / _GENEROUS) * factor
        low, high = max(-reach, (-1 - first) / unit), min(reach, (1 - first) / unit)
        return _recentred(prepared, (low + high) / 2, (high - low) / 2, low, high)


@dataclass(frozen=True)
class TargetMean(SumPurchase):
    """The mean of targets in [-1, 1], where there are too few records to learn more: no step is taken."""

    share: float
    name: str = "target mean"

    def clip(self, objective: LinearModel) -> Clip:
        """1."""
        return Clip(ROOT)

    def rows(self, objective: LinearModel) -> Rows:
        """y."""
        return _numbers_of(objective.y.double().clamp(-1, 1))

    def apply(self, prepared: Purchased, bought: Tensor, noise: float, terms: Terms) -> Purchased:
        """Targets less their mean."""
        mean = min(1.0, max(-1.0, float(bought) / terms.n))
        return replace(_recentred(prepared, mean, 1.0), step=lambda t: 0.0)


_HALVES, _REACHES = 6, (1.5, 0.75, 0.375, 0.1875)
"""How often a declared range is halved; by which powers of two the reach of targets then changes."""
_NEARLY_ALL, _FEWEST = 0.95, 0.8
"""Shares of the records."""
_PLACED, _SURE = 45.0, 0.2
"""b times the square root of the share that tells the place of targets: ten looks are then off by 7 % of them each;
with fewer records as many looks are taken as are off by at most so much."""
_BEYOND, _GENEROUS = 1.5, 80.0
"""Targets are clipped at this times the reach that was found, or at b over the second: noise in a wide range costs less
the more records there are, and what is cut off a heavy tail costs the same."""


def place_of_targets(b: float, alone: bool, left: float = 1.0) -> list[SumPurchase]:
    """What finds targets in [-1, 1]: their median by halves and their reach by powers of two; their mean, if `alone`.

    left  of the budget, after what was bought before

    A declared range is often far wider than what is in it, and noise is in proportion to the range.  Ten looks at one
    number each tell more than a histogram does: its median adds up the noise of half of its bins.

    >>> [round(item.share, 4) for item in place_of_targets(450.0, alone=False)[:2]]
    [0.001, 0.001]
    """
    share = left * (0.7 if alone else min(0.15, (_PLACED / b) ** 2))
    looks = int(min(_HALVES + len(_REACHES), max(2.0, share * (_SURE * b) ** 2)))
    halves = min(looks, _HALVES)
    reaches, each = _REACHES[: looks - halves], share / looks
    items: list[SumPurchase] = [TargetHalf(each, f"target half {i + 1}") for i in range(halves - 1)]
    items.append(TargetHalf(each, f"target half {halves}", unit=4.0 if reaches else 1.0))  # the middle of the reaches
    for i, power in enumerate(reaches):
        items.append(TargetReach(each, f"target reach {i + 1}", 2.0**power, power == reaches[-1]))
    if alone:
        items.append(TargetMean(0.98 * left - share))
    return items


def _numbers_of(numbers: Tensor) -> Rows:
    """One number a record."""
    return Glm(numbers, torch.ones(len(numbers), 1, dtype=torch.float64))


@dataclass(frozen=True)
class ClassCounts(_Histogram):
    """How many records each class has: weights n / (K n_k), the largest of them 1."""

    share: float = 0.02
    name: str = "classes"

    def rows(self, objective: LinearModel) -> Counts:
        """The record's class."""
        index = _classes_of(objective)
        return Counts(lambda lo, hi: index[lo:hi, None], objective.n, 1, len(objective.classes or ()))

    def apply(self, prepared: Purchased, bought: Tensor, noise: float, terms: Terms) -> Purchased:
        """The weighted problem; a class is taken to have at least 2 noise deviations of records."""
        objective = prepared.objective
        rare = bought.clamp(min=max(2 * noise, 1.0))
        weights = (rare.min() / rare)[_classes_of(objective)]
        if objective.weights is not None:
            weights *= objective.weights
        return replace(prepared, objective=objective.with_weights(weights))


@dataclass(frozen=True)
class Columns(SumPurchase):
    """Second moments of the columns of rows of norm at most 1; weights max(m, 3 sd)^-1/2, rows of length 1.

    A row's squares are shortened to norm 1 / sqrt(d): rows of many small entries lose nothing and pay far less noise.
    """

    share: float = 0.10
    name: str = "scale"

    def clip(self, objective: LinearModel) -> Clip:
        """1 / sqrt(d)."""
        return Clip(objective.X.shape[1] ** -0.5)

    def rows(self, objective: LinearModel) -> Squares:
        """x^2."""
        return Squares(unit_rows(objective.X))

    def apply(self, prepared: Purchased, bought: Tensor, noise: float, terms: Terms) -> Purchased:
        """Weighted columns, rows renormalised."""
        prepared, weight, bias = _with_unit_rows(prepared), bought.clamp(min=3 * noise).rsqrt(), 0.0
        if Scaled.of(prepared.objective.X).bias:  # it gets the size that it would have in a row of usual length
            usual = float((bought[:-1].clamp(min=0) * weight[:-1] ** 2).sum())
            bias = max(usual, 1.0) ** -0.5
        return _seen_through(prepared, RowMap(weight=weight, limit=None, bias=bias))


@dataclass(frozen=True)
class Moments(SumPurchase):
    """Means and second moments of the columns: centred, scaled, shortened to sqrt(d + 1), with a bias."""

    share: float = 0.10
    name: str = "scale"

    def check(self, objective: LinearModel) -> None:
        """Dense data, or at most `SMALL` columns: a centred sparse row is a long one."""
        d, sparse = objective.X.shape[1], Scaled.of(objective.X).sparse
        few = d <= SMALL or not sparse
        validate.check(few, "scale", "moments", f'give at most {SMALL} columns of CSR data (not {d}), or use "columns"')

    def clip(self, objective: LinearModel) -> PerLeafClip:
        """Two parts of norm at most 1."""
        return PerLeafClip({"mean": 1.0, "second": 1.0})

    def rows(self, objective: LinearModel) -> Stack:
        """(x, x^2)."""
        X = unit_rows(objective.X)
        return Stack([("mean", Glm(torch.ones(X.shape[0], dtype=torch.float64), X)), ("second", Squares(X))])

    def apply(self, prepared: Purchased, bought: Tensor, noise: float, terms: Terms) -> Purchased:
        """Centred and scaled columns and a bias."""
        d = len(bought) // 2
        mean, second = bought[:d] / terms.n, bought[d:] / terms.n
        variance = (second - mean**2).clamp(min=noise / terms.n)
        return _seen_through(_with_unit_rows(prepared), RowMap(None, None, mean, variance.rsqrt(), math.sqrt(d), 1.0))


@dataclass(frozen=True)
class Lambda(SumPurchase):
    """lambda_max(X'X) for the step: stable, and with accumulated noise of about tau in a unit row's margin."""

    share: float = 0.02
    tau: float | None = None
    name: str = "lambda"
    rounded: ClassVar[float] = 1.0
    adds_up: ClassVar[bool] = False

    def clip(self, objective: LinearModel) -> Clip:
        """What is proven of the query, rounding included."""
        return Clip(TopEigenvalue.bound)

    def rows(self, objective: LinearModel) -> TopEigenvalue:
        """The query."""
        return TopEigenvalue(objective.X)

    def apply(self, prepared: Purchased, bought: Tensor, noise: float, terms: Terms) -> Purchased:
        """min(1.8 / (h lambda / n), tau n mu / (C T)), h the curvature of the loss (1 where it has none)."""
        prepared = _with_unit_rows(prepared)
        X, labels = prepared.objective.X, prepared.objective.classes is not None
        cap = 1.8 / ((prepared.objective.curvature or 1.0) * max(float(bought), 1.0) / terms.n)
        tau = self.tau or _usual_tau(X.shape[1], labels, Scaled.of(X).sparse)
        eta = min(cap, tau * terms.n * terms.mu / ((prepared.clip or terms.clip) * terms.rounds))
        return replace(prepared, step=lambda t: eta)


@dataclass(frozen=True)
class Statistics(SumPurchase):
    """(X'X, X'y): start at the ridge solution, step with its inverse; Hessian .2 X'X (logistic) or X'X (squared)."""

    share: float = 0.30
    name: str = "statistics"

    def check(self, objective: LinearModel) -> None:
        """One smooth output and few columns."""
        d = objective.X.shape[1]
        validate.check(d <= SMALL, "precondition", True, f"give data with at most {SMALL} columns, not {d}")
        smooth = objective.curvature is not None and objective.space.d == d
        validate.check(smooth, "precondition", True, "give a smooth loss with one output: Logistic, LeastSquares")

    def clip(self, objective: LinearModel) -> PerLeafClip:
        """||x x'||_F <= 1 and ||x y|| <= 1 for targets in [-1, 1]."""
        return PerLeafClip({"products": 1.0, "targets": 1.0})

    def rows(self, objective: LinearModel) -> Stack:
        """(x x', x y)."""
        X = unit_rows(objective.X)
        return Stack([("products", Products(X)), ("targets", Glm(objective.y.double().clamp(-1, 1), X))])

    def apply(self, prepared: Purchased, bought: Tensor, noise: float, terms: Terms) -> Purchased:
        """The start and the preconditioner."""
        prepared = _with_unit_rows(prepared)
        loss, (gram, products) = prepared.objective, _statistics(bought)
        ridge = noise * math.sqrt(len(gram))
        values, vectors = torch.linalg.eigh(gram + ridge * torch.eye(len(gram), dtype=gram.dtype))
        inverse = (vectors / values.clamp(min=ridge)) @ vectors.T
        # half as far in columns that may be noise alone; less would lose rare ones that tell much
        kept = torch.where(_unseen(prepared, gram.diagonal(), noise), math.sqrt(0.5), 1.0).double()
        inverse = kept[:, None] * inverse * kept
        # the quadratic that a loss is near 0: slope s y, curvature h, so that its minimiser is (s / h) (X'X)^-1 X'y
        steep = loss.curvature
        if loss.labelled():
            steep = -float(loss.slopes(torch.zeros(1).double(), torch.ones(1).double()))
        start = inverse @ products * (steep / loss.curvature)
        update = Preconditioned(inverse * (terms.n / (loss.usual_curvature or loss.curvature)))
        return replace(prepared, start=start, update=update, step=lambda t: 1.0)


def _unseen(prepared: Purchased, squares: Tensor, noise: float) -> Tensor:
    """Columns that no record may have, such as a word that never occurs: noise alone would be their weights.

    Their variance did not stand out of its noise, so that they have the largest weight of all; nor do their squares.
    """
    unseen = torch.zeros(len(squares), dtype=torch.bool)
    maps = () if prepared.transform is None else prepared.transform.maps
    last = maps[-1] if maps else None
    if isinstance(last, RowMap) and last.bias and last.weight is not None:  # all columns but the constant
        unseen[:-1] = (last.weight == last.weight.max()) & (squares[:-1] < _HIDDEN * noise)
    return unseen


def _statistics(bought: Tensor) -> tuple[Tensor, Tensor]:
    """X'X, made symmetric, and X'y of what was bought: d^2 + d numbers."""
    d = math.isqrt(len(bought))
    gram = bought[: d * d].view(d, d)
    return (gram + gram.T) / 2, bought[d * d :]


# ---------------------------------------------------------------- what they share


def linear_model(objective: object) -> LinearModel:
    """A linear model as it is; what is none is refused."""
    if not isinstance(objective, LinearModel):
        validate.refuse("objective", objective, "give a linear model such as Logistic or LeastSquares")
    return objective


def _classes_of(objective: LinearModel) -> Tensor:
    """The class of every record, as a number from 0 on."""
    y: Tensor = objective.y
    return (y > 0).long() if y.is_floating_point() else y


def octaves(x: Tensor) -> Tensor:
    """The bin of each number: 0 in the middle, else by its sign and its power of two; `BINS` bins."""
    size = x.double().abs()
    power = torch.frexp(size)[1].clamp(_MIN_POWER, _MAX_POWER) - _MIN_POWER + 1
    return torch.where(size == 0, 0, torch.where(x < 0, -power, power)).long() + BINS // 2


def ranges(counts: Tensor, noise: float, n: int, likeliest: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """The outer edges of the octaves that clearly hold records, and the second moment of what is scaled by them.

    A bin counts when it stands clearly out of the noise of all bins, or somewhat and not far beyond one that does, and
    holds at least 0.2 % of the records.  Where none does it is [-1, 1], or the `likeliest` bin and those beside it.
    """
    power = torch.arange(1, BINS // 2 + 1, dtype=torch.float64) + _MIN_POWER - 1
    outer, inner, zero = 2.0**power, 2.0 ** (power - 1), torch.zeros(1, dtype=torch.float64)
    below, above = torch.cat([-outer.flip(0), zero, inner]), torch.cat([-inner.flip(0), zero, outer])
    usual = noise * math.sqrt(2 * math.log(counts.numel()))  # the largest of so many
    sure, likely = (counts > max(usual + k * noise, 0.002 * n) for k in (2.5, 1.0))
    # a bin of noise far out would stretch the range by powers of two; within reach of sure ones less is enough
    size = torch.maximum(-below, above)
    filled = sure | (likely & (size <= 4 * torch.where(sure, size, 0.0).amax(1, keepdim=True)))
    if likeliest and not bool(filled.any()):
        most = int(counts.argmax())
        filled[:, max(0, most - 1) : most + 2] = True
    low = torch.where(filled, below, math.inf).amin(1)
    high = torch.where(filled, above, -math.inf).amax(1)
    nonempty = (low < high) & filled.any(1)
    low, high = torch.where(nonempty, low, -1.0), torch.where(nonempty, high, 1.0)
    shift, half = _centre(low, high)
    middle = ((below + above) / 2 - shift[:, None]) / half[:, None]
    second = torch.where(filled, counts * middle.clamp(-1, 1).square(), 0.0).sum(1) / n
    return low, high, second


def _centre(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Shift and half-width that map [low, high] into [-1, 1]; 0 stays 0 where the range holds it.

    >>> _centre(torch.tensor([0.0, 30.0]), torch.tensor([1.0, 40.0]))
    (tensor([ 0., 35.]), tensor([1., 5.]))
    """
    holds = (low <= 0) & (high >= 0)
    shift = torch.where(holds, 0.0, (low + high) / 2)
    half = torch.where(holds, torch.maximum(-low, high), (high - low) / 2)
    return shift, torch.where(half > 0, half, 1.0)


def ranged(
    low: Tensor,
    high: Tensor,
    bias: float,
    second: float | None = None,
    limit: float | None = None,
    origin: bool = False,
) -> RowMap:
    """The map of rows with these ranges: entries in [-1, 1], lengths up to `limit` (1.5 times the usual one)."""
    if origin:
        low, high = low.clamp(max=0), high.clamp(min=0)
    if second is None:
        second = _USUAL * len(low)
    shift, half = _centre(low, high)
    return RowMap(low, high, shift, 1 / half, limit or 1.5 * math.sqrt(max(second, 0.01)), bias)


def target_map(low: float, high: float, counts: bool) -> tuple[float, float]:
    """(shift, width): y is learned as (y - shift) / width, in [-1, 1]; counts are only divided, to [0, 1]."""
    if counts:
        return 0.0, max(high, 1.0)
    return (low + high) / 2, max((high - low) / 2, 1e-12)


def scaled_targets(objective: LinearModel, low: float, high: float) -> LinearModel:
    """The objective with targets clipped to [low, high] and mapped."""
    shift, width = target_map(low, high, isinstance(objective.targets, CountTargets))
    return objective.with_targets((objective.y.double().clamp(low, high) - shift) / width)


def _with_unit_rows(prepared: Purchased) -> Purchased:
    """The problem with rows of norm at most 1, and the map that made them so."""
    if Scaled.of(prepared.objective.X).unit:
        return replace(prepared, transform=prepared.transform or RowMaps(()))
    return _seen_through(prepared, RowMap())


def _seen_through(prepared: Purchased, row_map: RowMap | SmoothMap) -> Purchased:
    """The problem seen through one more map."""
    before = prepared.transform or RowMaps(())
    objective = prepared.objective.with_inputs(row_map(prepared.objective.X))
    return replace(prepared, objective=objective, transform=RowMaps((*before.maps, row_map)))


UNSEEN = 0.01
"""Records that may differ from all others in a column that looks constant."""

_TARGET_LEVEL = 6
"""The grid of targets: one column, so that a fine one is cheap."""


@dataclass(frozen=True)
class Shapes(_Histogram):
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

    def check(self, objective: LinearModel) -> None:
        """Dense data."""
        dense = not Scaled.of(objective.X).sparse
        validate.check(dense, "scale", "shapes", 'use "columns" for CSR rows: their zeros would be filled')

    def rows(self, objective: LinearModel) -> Counts:
        """The bins of the columns, without the constant."""
        view, edges = Scaled.of(objective.X).without_constant(), grid(self.level)
        return Counts(lambda lo, hi: bins_of(edges, view[lo:hi].dense() / view.reach), *view.shape, len(edges) - 1)

    def apply(self, prepared: Purchased, bought: Tensor, noise: float, terms: Terms) -> Purchased:
        """The features, their rows shortened to about their usual length: longer where records allow it."""
        view = Scaled.of(prepared.objective.X).without_constant()
        d = view.shape[1]
        features = smooth_map(
            distribution(bought.view(d, -1), noise, terms.n, grid(self.level)),
            reach=view.reach,
            features=self.features,
            functions=self.functions,
            # rows that are shortened bend what is learned, long ones bring noise: the more records, the longer
            longer=max(1.0, math.sqrt(terms.n * terms.mu / max(self.features, d) / 100)),
            floor=max(noise, UNSEEN) / terms.n,
        )
        return _seen_through(prepared, features)


@dataclass(frozen=True)
class TargetShape(_Histogram):
    """How targets are distributed.  Numbers are centred, scaled and clipped by it; logits start at the class shares.

    clips  whether gradients may be clipped at more than was planned, as far as records allow
    """

    share: float = 0.03
    clips: bool = True
    name: str = "target shape"

    def rows(self, objective: LinearModel) -> Counts:
        """The bin of y, or its class."""
        if objective.classes is not None:
            return ClassCounts().rows(objective)
        y, edges = objective.y[:, None], grid(_TARGET_LEVEL)
        return Counts(lambda lo, hi: bins_of(edges, y[lo:hi].double()), objective.n, 1, len(edges) - 1)

    def apply(self, prepared: Purchased, bought: Tensor, noise: float, terms: Terms) -> Purchased:
        """What follows for the targets, the clip and the start."""
        if prepared.objective.classes is not None:
            return _labels(prepared, bought, noise, terms)
        shape = distribution(bought[None], noise, terms.n, grid(_TARGET_LEVEL))
        centred = _numbers(prepared, shape, noise / terms.n, terms)
        if self.clips or centred.clip is None:
            return centred
        return replace(centred, clip=min(centred.clip, terms.clip), spread=None)


@dataclass(frozen=True)
class ShrunkStatistics(Statistics):
    """(X'X, X'y) of centred targets or known class shares: a start, and steps that go only where they outweigh noise.

    With H the curvature of the loss times X'X, s^2 the variance that noise will have added to a coordinate of the sum
    of gradients, v that of a usual coordinate of w, steps are preconditioned by H (H^2 + (s^2 / v) I)^-1: the inverse
    where there is something to learn, and little where there is not.
    """

    def apply(self, prepared: Purchased, bought: Tensor, noise: float, terms: Terms) -> Purchased:
        """The start and the preconditioner: directions in which noise would outweigh a usual w go back to the first."""
        prepared = _with_unit_rows(prepared)
        loss, view = prepared.objective, Scaled.of(prepared.objective.X)
        d, (gram, products) = view.shape[1], _statistics(bought)
        ones = torch.zeros(d, dtype=torch.float64)
        first = ones if prepared.start is None else prepared.start
        z = first[-1] * view.bias
        curvature = loss.curvature or 1.0  # the second derivative at margins that a fitted model has
        if loss.labelled():
            ends = loss.slopes(torch.stack([z - 0.5, z + 0.5]), torch.ones(2, dtype=torch.float64))
            curvature = 0.8 * max(float(ends[1] - ends[0]), 0.05)
        values, vectors = torch.linalg.eigh(curvature * gram)
        values, usual = values.clamp(min=0), self.usual(prepared)
        # the square of what noise adds to a coordinate of the sum of gradients in the end: the rounds', the matrix'
        rounds = 1.3 * (prepared.clip or terms.clip) / (terms.mu * math.sqrt(0.5))
        pull = (rounds**2 + 0.03 * (curvature * noise) ** 2 * usual * d) / usual
        inverse = (vectors * (values / (values.square() + pull))) @ vectors.T
        # the gradient where all margins are z, of what was bought: slopes are level + slope y there
        slopes = loss.slopes(z.expand(2), torch.tensor([-1.0, 1.0], dtype=torch.float64))
        level, slope = slopes.mean(), (slopes[1] - slopes[0]) / 2
        if view.bias:
            ones = gram[:, -1] / view.bias
        start = first - inverse @ (level * ones + slope * products)
        update = Preconditioned(inverse * terms.n, torch.eye(d).double() - inverse @ (curvature * gram), first)
        # 2 / 3 for a while, then 2 / (t + 3): what preconditioned steps find is averaged, late ones more
        hold = terms.rounds // 2 * loss.labelled()
        return replace(prepared, start=start, update=update, step=lambda t: 2.0 / (max(t - hold, 0) + 3))

    def usual(self, prepared: Purchased) -> float:
        """The square of a usual coordinate of w, generously: margins of the size that targets have."""
        view = Scaled.of(prepared.objective.X)
        spread = 0.3 if prepared.objective.classes is None else 1.0
        whole = 1 / view.bias if view.bias else math.sqrt(view.shape[1])
        return 10 * ((prepared.spread or spread) * whole) ** 2 / view.shape[1]


# ---------------------------------------------------------------- what follows


def _labels(prepared: Purchased, bought: Tensor, noise: float, terms: Terms) -> Purchased:
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
    if loss.space.d == d:
        logs = logs[1:] - logs[:1]
    start.view(-1, d)[:, -1] = logs / view.bias
    return replace(prepared, start=start)


def _numbers(prepared: Purchased, shape: Distribution, floor: float, terms: Terms) -> Purchased:
    """Targets less their mean, over their reach: as far as records are seen, and four standard deviations at least."""
    loss, view = prepared.objective, Scaled.of(prepared.objective.X)
    if not loss.equivariant or not view.bias:
        return prepared
    mean, sd = float(shape.mean[0]), math.sqrt(max(float(shape.variance[0]), floor))
    low, high = (float(end[0]) for end in shape.ends)
    low, high = max(-1.0, min(low, mean - 4 * sd)), min(1.0, max(high, mean + 4 * sd))
    width = min(1.0, max(high - mean, mean - low, 1e-12))  # a few beyond 1 are clipped where that counts
    sizes = (shape.middles.clamp(low, high) - mean) / width
    clip = _residual_clip(shape.p[0], sizes, view.shape[1] / (terms.n * terms.mu))
    return replace(_recentred(prepared, mean, width, low, high), clip=clip, spread=min(1.0, sd / width))


def _residual_clip(p: Tensor, sizes: Tensor, noise: float) -> float:
    """The clip of residuals that loses least: what it cuts off of targets about their mean, and `noise` times it.

    >>> p, y = torch.tensor([0.5, 0.49, 0.01]).double(), torch.tensor([-0.1, 0.1, 1.0]).double()
    >>> _residual_clip(p, y, 10.0) < 0.05, _residual_clip(p, y, 1e-4) > 0.8
    (True, True)
    """
    clips = torch.logspace(-1.5, math.log10(2.0), 40, dtype=torch.float64)
    over = (0.9 * sizes.abs() - clips[:, None]).clamp(min=0) * p
    bias = (over * sizes.sign()).sum(1).abs() + 0.3 * over.sum(1)
    return float(clips[(bias.square() + (noise * clips).square()).argmin()])


@dataclass(frozen=True)
class _Paid(Purchase):
    """A purchase with the mechanism that its share of the budget pays for; it is the source of its stage's rows."""

    item: SumPurchase
    mechanism: Mechanism
    terms: Terms

    @property
    def name(self) -> str:
        """Under which it is charged."""
        return self.item.name

    def check(self, objective: object) -> None:
        """Refuse what it cannot be bought for: more than `_CAPACITY` records, by what is public of them or in fact."""
        problem = linear_model(objective)
        n = max(self.terms.n, problem.n)
        validate.at_most(_CAPACITY, "what these sums are proven for: use a part of the records", n=n)
        self.item.check(problem)

    def stage(self, objective: object) -> tuple[Stage, Space]:
        """One look at all records: their clipped sum, not divided by anything."""
        problem = linear_model(objective)
        release = Release(self.name, clip=self.item.clip(problem), mechanism=self.mechanism, lift=discard)
        none = problem.part(slice(0, 0))  # of a vector's length records say nothing
        return Stage(FullBatch(1.0), [release], self.name, source=self), Space.flat(self.item.rows(none).d)

    def event(self, adjacency: Adjacency) -> DpEvent:
        """What it costs."""
        return self.mechanism.event(adjacency)

    def apply(self, prepared: Purchased, bought: Tensor | None) -> Purchased:
        """What follows."""
        assert bought is not None
        noise = self.mechanism.number * self.item.bound(prepared.objective)
        return self.item.apply(prepared, bought, noise, self.terms)

    @property
    def own_records(self) -> bool:
        """Whether its vectors are known to be of one record each: those of this library's purchases are."""
        return type(self.item).__module__.startswith("isthmus.")

    @property
    def whole(self) -> bool:
        """Whether it is no sum over records (see `isthmus.problems.queries`), or not known to be one."""
        return not self.own_records or not self.item.adds_up

    def __call__(self, problem: Any, w: Tensor, index: Tensor | slice | None, held: object) -> Rows | Query:
        """The vectors that are added up: of all records, or of some."""
        if index is not None:
            problem = problem.part(index)
        return self.item.rows(problem)


@dataclass(frozen=True)
class _Copied(Purchase):
    """Rows that are seen through maps, copied: sketches read them faster than through a map.  Nothing is bought."""

    name: str = "copy"

    def apply(self, prepared: Purchased, bought: Tensor | None) -> Purchased:
        """The problem with a copy of its rows."""
        X = prepared.objective.X
        if not isinstance(X, View):
            return prepared
        return replace(prepared, objective=prepared.objective.with_inputs(X.plain()))


def _paid(plan: PrivacyPlan, items: Sequence[SumPurchase], terms: Terms) -> list[Purchase]:
    """The items with the mechanisms of a plan."""
    return [_Paid(item, plan.mechanism(item.name), terms) for item in items]


_Recipe = TypeVar("_Recipe", Recipe, Build)


def buying(recipe: _Recipe, items: Sequence[SumPurchase], copy: bool = False) -> _Recipe:
    """A private recipe, or what builds one's pipeline, that first buys `items` from the same budget.

    Its own purchases come after them.

    copy  whether the rows, once mapped, are copied: sketches read them faster than through a map

    >>> from isthmus import algorithms
    >>> from isthmus.algorithms.purchases import ClassCounts
    >>> buying(algorithms.dp_sgd(epsilon=1.0, clip=1.0, step=1.0, n="exact"), [ClassCounts()]).name
    'dp_sgd'
    """

    if not isinstance(recipe, Recipe):
        return buying(Recipe("recipe", recipe), items, copy).build
    if not items:
        return recipe
    return Recipe(recipe.name, partial(_with_purchases, recipe, items, copy), recipe.arguments)


def _with_purchases(recipe: Recipe, items: Sequence[SumPurchase], copy: bool, binding: Binding) -> Pipeline:
    """The pipeline of a recipe whose budget is charged for the items too."""
    charges = tuple(Charge(item.name, share=item.share) for item in items)
    pipe = recipe.bind(replace(binding, before=charges + binding.before))
    plan, n = None, 1
    if pipe.promise is not None:
        plan, n = pipe.promise.plan, pipe.promise.records
    if plan is None or not {item.name for item in items} <= {charge.name for charge in plan.items}:
        remedy = "only a private recipe that splits its budget by `algorithms.Budget.plan` can buy something first"
        validate.refuse("recipe", recipe.name, f"declare what would be bought: {remedy}")
    before = [*_paid(plan, items, Terms(n, pipe.rounds or 1, 1.0, plan.mu)), *pipe.before]
    if copy:
        before.append(_Copied())
    return replace(pipe, before=before)
