"""What a private run of a linear model can buy before its loop: each a bounded sum, and what follows from it.

| purchase | released | moves by at most | gives |
|---|---|---|---|
| `Ranges` | how many records have each column's entry in each power of two | sqrt(d) | a map of rows to the unit ball |
| `TargetRange` | the same of y | 1 | targets in [-1, 1] |
| `ClassCounts` | how many records each class has | 1 | weights of "balanced" classes |
| `Columns` | sum x^2 of rows, squares shortened | 1 / sqrt(d) | column weights, rows of length 1 |
| `Moments` | (sum x, sum x^2) | sqrt 2 | centred, scaled columns and a bias |
| `Lambda` | lambda_max(X'X) | 1 (Weyl) | a step |
| `Statistics` | (X'X, X'y) | sqrt 2 | a start and a preconditioner |

What is bought is public; everything derived from it costs nothing more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.matrix import is_sparse
from isthmus.core.before import Prepared
from isthmus.core.updates import Preconditioned
from isthmus.gradients import Counts, Glm, Rows, Stack
from isthmus.gradients.adding import KAPPA
from isthmus.objectives.targets import CountTargets
from isthmus.privacy import Clip, PerLeafClip
from isthmus.problems.moments import Products, Squares
from isthmus.problems.queries import Query, TopEigenvalue
from isthmus.problems.scaling import RowMap, RowMaps, Scaled, unit_rows

SMALL = 300
"""Up to this many columns moments are centred and sufficient statistics are affordable."""
LEAST, MOST = -40, 64
"""Powers of two that ranges tell apart."""
BINS = 2 * (MOST - LEAST + 1) + 1
"""Both signs of each, and 0."""
USUAL = 0.1
"""The mean square that an entry scaled to [-1, 1] is taken to have where nothing is known."""
ROOT = 1 + 2.0**-40
"""Room for the rounding of a norm that all records have."""
CAPACITY = 1 << 27
"""Eigenvalues and products of more records than this are not proven to be as exact as their bound says."""


@dataclass(frozen=True)
class Terms:
    """Public numbers that follow-ups of a purchase use: records, rounds, clip, and mu of the whole budget."""

    n: int
    rounds: int
    clip: float
    mu: float


class Purchase(Protocol):
    """One release before the loop."""

    @property
    def name(self) -> str:
        """Under which it is charged."""
        ...

    @property
    def share(self) -> float:
        """Of the budget."""
        ...

    def check(self, objective: Any) -> None:
        """Refuse what it cannot be bought for, before anything is bought."""
        ...

    def rows(self, objective: Any) -> Rows | Query:
        """One vector a record, whose clipped sum is released; or a query."""
        ...

    def clip(self, objective: Any) -> Any:
        """The bound of a record's vector: a public thing."""
        ...

    def numbers(self, objective: Any) -> int:
        """How many numbers are released."""
        ...

    def bound(self, objective: Any) -> float:
        """What one record can move what is released by, rounding included: a public number."""
        ...

    def apply(self, prepared: Prepared, bought: Tensor, noise: float, terms: Terms) -> Prepared:
        """What follows; `noise` is the standard deviation of each bought number."""
        ...


@dataclass(frozen=True)
class Purchased:
    """What purchases share."""

    exact: ClassVar[bool] = False
    adds_up: ClassVar[bool] = True
    """Whether it is a sum over records: else it looks at all of them together."""

    def bound(self, objective: Any) -> float:
        """That of the clip, with room for rounding (see `isthmus.gradients.adding`) where sums are not exact."""
        clip = self.clip(objective)  # type: ignore[attr-defined]
        return float(clip.total(clip.init())) * (1.0 if self.exact else 1 + KAPPA)

    def check(self, objective: Any) -> None:
        """Linear models of at most `CAPACITY` records only."""
        linear = hasattr(objective, "X") and hasattr(objective, "with_inputs")
        validate.check(linear, "objective", objective, "give a linear model such as Logistic or LeastSquares")
        validate.at_most(CAPACITY, "what these sums are proven for: use a part of the records", n=objective.n)


@dataclass(frozen=True, eq=False)
class Ranges(Purchased):
    """Which powers of two a column's entries lie in; entries outside what many records share are clipped.

    low, high  what is public already: a number for each column, NaN where the range is to be bought; None: all
    origin     keep 0 where it is: a model without an intercept has no other constant
    whole      rows within the ranges are never shortened: histograms are bought of them

    >>> octaves(torch.tensor([0.0, 1.0, 1.5, -3.0])) - BINS // 2
    tensor([  0,  42,  42, -43])
    """

    low: Tensor | None = None
    high: Tensor | None = None
    share: float = 0.08
    bias: float = 0.0
    origin: bool = False
    whole: bool = False
    name: str = "ranges"
    exact: ClassVar[bool] = True

    def check(self, objective: Any) -> None:
        """Dense data."""
        super().check(objective)
        sparse = is_sparse(Scaled.of(objective.X).X)
        validate.check(not sparse, "bounds", None, "give data_norm= for sparse rows: ranges would fill their zeros")

    def clip(self, objective: Any) -> Clip:
        """sqrt of the columns: a record is in one octave of each."""
        return Clip(math.sqrt(len(self._unknown(objective))) * ROOT)

    def rows(self, objective: Any) -> Counts:
        """A one for each column, in its octave."""
        X, columns = Scaled.of(objective.X).X, self._unknown(objective)
        assert isinstance(X, Tensor)  # CSR was refused by `check`
        return Counts(lambda lo, hi: octaves(X[lo:hi][:, columns]), X.shape[0], len(columns), BINS)

    def numbers(self, objective: Any) -> int:
        """One count a column and octave."""
        return len(self._unknown(objective)) * BINS

    def apply(self, prepared: Prepared, bought: Tensor, noise: float, terms: Terms) -> Prepared:
        """Rows clipped to the ranges, scaled to [-1, 1], shortened to about 1.5 times their usual length."""
        X, columns = Scaled.of(prepared.objective.X).X, self._unknown(prepared.objective)
        d = X.shape[1]
        empty = torch.full((d,), math.nan, dtype=torch.float64)
        low, high = (empty.clone() if ends is None else ends.double().clone() for ends in (self.low, self.high))
        second = torch.full((d,), USUAL, dtype=torch.float64)
        low[columns], high[columns], second[columns] = ranges(bought.view(-1, BINS), noise, terms.n)
        limit = math.sqrt(d) if self.whole else None
        range_map = ranged(low, high, self.bias, float(second.sum()), limit=limit, origin=self.origin)
        objective = prepared.objective.with_inputs(range_map(X))  # of the columns as they were given
        return replace(prepared, objective=objective, transform=RowMaps((range_map,)))

    def _unknown(self, objective: Any) -> Tensor:
        if self.low is None or self.high is None:
            return torch.arange(Scaled.of(objective.X).X.shape[1])
        return (self.low.isnan() | self.high.isnan()).nonzero()[:, 0]


@dataclass(frozen=True)
class TargetRange(Purchased):
    """The octaves of y, and y mapped to [-1, 1] (counts: to [0, 1])."""

    share: float = 0.02
    name: str = "targets"
    exact: ClassVar[bool] = True

    def clip(self, objective: Any) -> Clip:
        """1: a record is in one octave."""
        return Clip(ROOT)

    def rows(self, objective: Any) -> Counts:
        """A one in the octave of y."""
        y = objective.y.double()
        return Counts(lambda lo, hi: octaves(y[lo:hi, None]), len(y), 1, BINS)

    def numbers(self, objective: Any) -> int:
        """One count an octave."""
        return BINS

    def apply(self, prepared: Prepared, bought: Tensor, noise: float, terms: Terms) -> Prepared:
        """The mapped targets."""
        low, high, _ = ranges(bought[None], noise, terms.n)
        target_range = float(low), float(high)
        return replace(prepared, objective=scaled_targets(prepared.objective, *target_range), target=target_range)


@dataclass(frozen=True)
class ClassCounts(Purchased):
    """How many records each class has: weights n / (K n_k), the largest of them 1."""

    share: float = 0.02
    name: str = "classes"
    exact: ClassVar[bool] = True

    def clip(self, objective: Any) -> Clip:
        """1: a record has one class."""
        return Clip(ROOT)

    def rows(self, objective: Any) -> Counts:
        """A one in the record's class."""
        index = classes_of(objective)
        return Counts(lambda lo, hi: index[lo:hi, None], len(index), 1, len(objective.classes))

    def numbers(self, objective: Any) -> int:
        """One count a class."""
        return len(objective.classes)

    def apply(self, prepared: Prepared, bought: Tensor, noise: float, terms: Terms) -> Prepared:
        """The weighted problem; a class is taken to have at least 2 noise deviations of records."""
        objective = prepared.objective
        index = classes_of(objective)
        rare = bought.clamp(min=max(2 * noise, 1.0))
        weights = (rare.min() / rare)[index]
        weights = weights if objective.weights is None else weights * objective.weights
        return replace(prepared, objective=objective.with_weights(weights))


@dataclass(frozen=True)
class Columns(Purchased):
    """Second moments of the columns of rows of norm at most 1; weights max(m, 3 sd)^-1/2, rows of length 1.

    A row's squares are shortened to norm 1 / sqrt(d): rows of many small entries lose nothing and pay far less noise.
    """

    share: float = 0.10
    name: str = "scale"
    floor: float = 3.0

    def clip(self, objective: Any) -> Clip:
        """1 / sqrt(d)."""
        return Clip(objective.X.shape[1] ** -0.5)

    def rows(self, objective: Any) -> Squares:
        """x^2."""
        return Squares(unit_rows(objective.X))

    def numbers(self, objective: Any) -> int:
        """One a column."""
        return int(objective.X.shape[1])

    def apply(self, prepared: Prepared, bought: Tensor, noise: float, terms: Terms) -> Prepared:
        """Weighted columns, rows renormalised."""
        prepared, weight = unit(prepared), bought.clamp(min=self.floor * noise).rsqrt()
        biased = bool(Scaled.of(prepared.objective.X).bias)
        # the bias gets the size that it would have in a row of usual length
        usual = float((bought[:-1].clamp(min=0) * weight[:-1] ** 2).sum())
        return _seen_through(
            prepared, RowMap(weight=weight, limit=None, bias=max(usual, 1.0) ** -0.5 if biased else 0.0)
        )


@dataclass(frozen=True)
class Moments(Purchased):
    """Means and second moments of the columns: centred, scaled, shortened to sqrt(d + 1), with a bias."""

    share: float = 0.10
    name: str = "scale"
    floor: float = 1.0

    def check(self, objective: Any) -> None:
        """Dense data, or at most `SMALL` columns: a centred sparse row is a long one."""
        super().check(objective)
        d, sparse = objective.X.shape[1], is_sparse(Scaled.of(objective.X).X)
        few = d <= SMALL or not sparse
        validate.check(few, "scale", "moments", f'give at most {SMALL} columns of CSR data (not {d}), or use "columns"')

    def clip(self, objective: Any) -> PerLeafClip:
        """Two parts of norm at most 1."""
        return PerLeafClip({"mean": 1.0, "second": 1.0})

    def rows(self, objective: Any) -> Stack:
        """(x, x^2)."""
        X = unit_rows(objective.X)
        ones = torch.ones(X.shape[0], dtype=torch.float64)
        return Stack([("mean", Glm(ones, X)), ("second", Squares(X))])

    def numbers(self, objective: Any) -> int:
        """Two a column."""
        return 2 * int(objective.X.shape[1])

    def apply(self, prepared: Prepared, bought: Tensor, noise: float, terms: Terms) -> Prepared:
        """Centred and scaled columns and a bias."""
        d = len(bought) // 2
        mean, second = bought[:d] / terms.n, bought[d:] / terms.n
        variance = (second - mean**2).clamp(min=self.floor * noise / terms.n)
        return _seen_through(unit(prepared), RowMap(None, None, mean, variance.rsqrt(), math.sqrt(d), 1.0))


@dataclass(frozen=True)
class Lambda(Purchased):
    """lambda_max(X'X) for the step: stable, and with accumulated noise of about tau in a unit row's margin."""

    share: float = 0.02
    tau: float | None = None
    name: str = "lambda"
    exact: ClassVar[bool] = True
    adds_up: ClassVar[bool] = False

    def clip(self, objective: Any) -> Clip:
        """What is proven of the query, rounding included."""
        return Clip(TopEigenvalue.bound)

    def rows(self, objective: Any) -> TopEigenvalue:
        """The query."""
        return TopEigenvalue(objective.X)

    def numbers(self, objective: Any) -> int:
        """One."""
        return 1

    def apply(self, prepared: Prepared, bought: Tensor, noise: float, terms: Terms) -> Prepared:
        """min(1.8 / (h lambda / n), tau n mu / (C T)), h the curvature of the loss (1 where it has none)."""
        prepared = unit(prepared)
        curvature = getattr(prepared.objective, "curvature", None) or 1.0
        cap = 1.8 / (curvature * max(float(bought), 1.0) / terms.n)
        tau = default_tau(prepared.objective) if self.tau is None else self.tau
        clip = terms.clip if prepared.clip is None else prepared.clip
        eta = min(cap, tau * terms.n * terms.mu / (clip * terms.rounds))
        return replace(prepared, step=lambda t: eta)


@dataclass(frozen=True)
class Statistics(Purchased):
    """(X'X, X'y): start at the ridge solution, step with its inverse; Hessian .2 X'X (logistic) or X'X (squared)."""

    share: float = 0.30
    name: str = "statistics"

    def check(self, objective: Any) -> None:
        """One smooth output and few columns."""
        super().check(objective)
        d = objective.X.shape[1]
        validate.check(d <= SMALL, "precondition", True, f"give data with at most {SMALL} columns, not {d}")
        smooth = getattr(objective, "curvature", None) is not None and objective.space.d == d
        validate.check(smooth, "precondition", True, "give a smooth loss with one output: Logistic, LeastSquares")

    def clip(self, objective: Any) -> PerLeafClip:
        """||x x'||_F <= 1 and ||x y|| <= 1 for targets in [-1, 1]."""
        return PerLeafClip({"products": 1.0, "targets": 1.0})

    def rows(self, objective: Any) -> Stack:
        """(x x', x y)."""
        X = unit_rows(objective.X)
        return Stack([("products", Products(X)), ("targets", Glm(objective.y.double().clamp(-1, 1), X))])

    def numbers(self, objective: Any) -> int:
        """d^2 + d."""
        d = int(objective.X.shape[1])
        return d * d + d

    def apply(self, prepared: Prepared, bought: Tensor, noise: float, terms: Terms) -> Prepared:
        """The start and the preconditioner."""
        prepared = unit(prepared)
        d = prepared.objective.X.shape[1]
        gram = bought[: d * d].view(d, d)
        gram = (gram + gram.T) / 2 + noise * math.sqrt(d) * torch.eye(d, dtype=gram.dtype)
        values, vectors = torch.linalg.eigh(gram)
        inverse = (vectors / values.clamp(min=noise * math.sqrt(d))) @ vectors.T
        loss = prepared.objective
        # the quadratic that a loss is near 0: slope s y, curvature h, so that its minimiser is (s / h) (X'X)^-1 X'y
        zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
        steep = float(-loss.slopes(zero, one)) if loss.labelled() else loss.curvature
        start = inverse @ bought[d * d :] * (steep / loss.curvature)
        update = Preconditioned(inverse * (terms.n / (loss.usual_curvature or loss.curvature)))
        return replace(prepared, start=start, update=update, step=lambda t: 1.0)


# ---------------------------------------------------------------- what they share


def default_tau(objective: Any) -> float:
    """The noise that a margin may get: few columns stand more of it each, and labels more than numbers."""
    d, sparse = objective.X.shape[1], is_sparse(Scaled.of(objective.X).X)
    if objective.classes is None:
        return min(1.0, max(0.1 if sparse else 0.3, 3 / math.sqrt(d)))
    return min(3.0, max(0.3 if sparse else 1.0, 10 / math.sqrt(d)))


def classes_of(objective: Any) -> Tensor:
    """The class of every record, as a number from 0 on."""
    index: Tensor = (objective.y > 0).long() if objective.y.is_floating_point() else objective.y
    return index


def octaves(x: Tensor) -> Tensor:
    """The bin of each number: 0 in the middle, else by its sign and its power of two; `BINS` bins."""
    size = x.double().abs()
    power = torch.frexp(size)[1].clamp(LEAST, MOST) - LEAST + 1
    return torch.where(size == 0, 0, torch.where(x < 0, -power, power)).long() + BINS // 2


def ranges(counts: Tensor, noise: float, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """The outer edges of the octaves that clearly hold records, and the second moment of what is scaled by them.

    A bin counts when it stands clearly out of the noise of all bins, or somewhat and not far beyond one that does, and
    holds at least 0.2 % of the records.
    """
    power = torch.arange(1, BINS // 2 + 1, dtype=torch.float64) + LEAST - 1
    outer, inner, zero = 2.0**power, 2.0 ** (power - 1), torch.zeros(1, dtype=torch.float64)
    below, above = torch.cat([-outer.flip(0), zero, inner]), torch.cat([-inner.flip(0), zero, outer])
    usual = noise * math.sqrt(2 * math.log(counts.numel()))  # the largest of so many
    sure, likely = (counts > max(usual + k * noise, 0.002 * n) for k in (2.5, 1.0))
    # a bin of noise far out would stretch the range by powers of two; within reach of sure ones less is enough
    size = torch.maximum(-below, above)
    filled = sure | (likely & (size <= 4 * torch.where(sure, size, 0.0).amax(1, keepdim=True)))
    low = torch.where(filled, below, math.inf).amin(1)
    high = torch.where(filled, above, -math.inf).amax(1)
    nonempty = (low < high) & filled.any(1)
    low, high = torch.where(nonempty, low, -1.0), torch.where(nonempty, high, 1.0)
    shift, half = centre(low, high)
    middle = ((below + above) / 2 - shift[:, None]) / half[:, None]
    second = torch.where(filled, counts * middle.clamp(-1, 1).square(), 0.0).sum(1) / n
    return low, high, second


def centre(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Shift and half-width that map [low, high] into [-1, 1]; 0 stays 0 where the range holds it.

    >>> centre(torch.tensor([0.0, 30.0]), torch.tensor([1.0, 40.0]))
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
    low, high = (low.clamp(max=0), high.clamp(min=0)) if origin else (low, high)
    shift, half = centre(low, high)
    usual = math.sqrt(max(USUAL * len(low) if second is None else second, 0.01))
    return RowMap(low, high, shift, 1 / half, 1.5 * usual if limit is None else limit, bias)


def target_map(low: float, high: float, counts: bool) -> tuple[float, float]:
    """(shift, width): y is learned as (y - shift) / width, in [-1, 1]; counts are only divided, to [0, 1]."""
    if counts:
        return 0.0, max(high, 1.0)
    return (low + high) / 2, max((high - low) / 2, 1e-12)


def scaled_targets(objective: Any, low: float, high: float) -> Any:
    """The objective with targets clipped to [low, high] and mapped."""
    shift, width = target_map(low, high, isinstance(objective.targets, CountTargets))
    return objective.with_targets((objective.y.double().clamp(low, high) - shift) / width)


def unit(prepared: Prepared) -> Prepared:
    """The problem with rows of norm at most 1, and the map that made them so."""
    if Scaled.of(prepared.objective.X).unit:
        return prepared if prepared.transform is not None else replace(prepared, transform=RowMaps(()))
    return _seen_through(prepared, RowMap())


def _seen_through(prepared: Prepared, row_map: RowMap) -> Prepared:
    """The problem seen through one more map."""
    before = () if prepared.transform is None else tuple(prepared.transform.maps)
    objective = prepared.objective.with_inputs(row_map(prepared.objective.X))
    return replace(prepared, objective=objective, transform=RowMaps((*before, row_map)))
