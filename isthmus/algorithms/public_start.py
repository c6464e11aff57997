"""A start that is fitted to labelled public rows, and private steps from there that are as long as they pay.

After everything is bought the public rows are seen through the same maps, and the same loss is fitted to them (see
`problems.public_fit`).  Private steps start there.  How far they may go follows from public figures: along a direction
of curvature h, the start is off by about s_0 (its own sampling error), T steps of length f eta leave the share
exp(-2 f h eta T) of it and add noise, and f minimises

    sum_j h_j ( exp(-2 f h_j S_1) s_0j^2 + f^2 sigma^2 S_2 (1 - exp(-2 f h_j S_1)) / (2 f h_j S_1) ),
    S_1 = sum eta_t,   S_2 = sum eta_t^2.

As epsilon falls f tends to 0 and the result to the public fit; as it grows f is 1 and the result the private one.
Nothing is bought for it: public rows cost nothing, and the steps see the private ones through noise as before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from isthmus.algorithms.before import Bought
from isthmus.algorithms.purchases import scaled_targets
from isthmus.base import validate
from isthmus.geometry.sets import ConvexSet
from isthmus.privacy.adjacency import Adjacency
from isthmus.privacy.library import dpa
from isthmus.problems.public_fit import PublicFit, fit_public
from isthmus.round.before import Prepared
from isthmus.round.minimize import Binding, Recipe
from isthmus.round.pipeline import Pipeline, StepSize
from isthmus.round.updates import Preconditioned

FACTORS = torch.logspace(-5, 0, 101, dtype=torch.float64)
"""What steps may be multiplied by."""
WANTED = torch.cat([FACTORS, torch.logspace(0, math.log10(4), 13, dtype=torch.float64)[1:]])
"""What they would be multiplied by if their length were not limited: by 4 at most."""
SLOWER = 0.2
"""Steps are taken to close a gap so much more slowly than public rows say: the private ones hold what those do not."""


@dataclass(frozen=True)
class Walk:
    """The public numbers of a run: rounds, noise s.d. in each number of the mean gradient, whether a tail is averaged."""

    rounds: int
    noise: float
    step: StepSize
    averaged: bool = False
    statistics: float = 0.0


@dataclass(frozen=True, eq=False)
class PublicStart:
    """Labelled public rows, in the columns of the problem before anything is bought: a `Before` without a look.

    >>> from isthmus import LeastSquares
    >>> X, y = torch.eye(2, dtype=torch.float64).repeat(20, 1), torch.tensor([1.0, -1.0]).double().repeat(20)
    >>> quiet = Walk(rounds=10, noise=1e9, step=lambda t: 1.0)
    >>> found = PublicStart(X, y, quiet).apply(Prepared(LeastSquares(X, y)), None)
    >>> [round(v, 2) for v in found.start.tolist()], found.step(0) < 1e-4
    ([1.0, -1.0], True)
    """

    rows: Any
    targets: Any
    walk: Walk
    constraint: ConvexSet | None = None
    weights: Tensor | None = None
    name: str = "public start"

    def check(self, objective: Any) -> None:
        """Linear models only."""
        linear = hasattr(objective, "X") and hasattr(objective, "with_inputs")
        validate.check(linear, "objective", objective, "give a linear model such as Logistic or LeastSquares")

    def stage(self, objective: Any) -> None:
        """No look."""

    def event(self, adjacency: Adjacency) -> Any:
        """Nothing."""
        return dpa.NoOpDpEvent()

    def apply(self, prepared: Prepared, bought: Tensor | None) -> Prepared:
        """The start, and steps that are as long as they pay."""
        seen = self.rows if prepared.transform is None else prepared.transform(self.rows)
        public = prepared.objective.on((seen, self.targets))
        if prepared.target is not None:
            public = scaled_targets(public, *prepared.target)
        fit = fit_public(public, self.weights)
        first = fit.w if self.constraint is None else self.constraint.project(fit.w)
        first = first.to(prepared.objective.dtype)
        if isinstance(prepared.update, Preconditioned) and prepared.start is not None:
            return _preconditioned(prepared, public, fit, first, self.walk)
        step = self.walk.step if prepared.step is None else prepared.step
        factor = min(1.0, _factor(fit, public, step, self.walk))
        # labels ask for directions, not for lengths: a shorter start is as good as steps that are longer than allowed
        wanted = _factor(fit, public, step, self.walk, sober=True)
        first = first / max(1.0, wanted) if public.labelled() else first
        return replace(prepared, start=first, step=lambda t: factor * step(t))


def starting(recipe: Recipe, rows: Any, targets: Any, weights: Tensor | None = None) -> Recipe:
    """A private recipe that starts at the fit of labelled public rows.

    rows, targets   in the columns and units of the problem that the recipe is bound to
    weights         what the losses of the public rows are multiplied by

    >>> from isthmus import algorithms
    >>> starting(algorithms.dp_gd(epsilon=1.0, clip=1.0, step=1.0, n="exact"), torch.eye(2), [0, 1]).name
    'dp_gd'
    """

    def build(binding: Binding) -> Pipeline:
        pipe = recipe.bind(binding)
        walk = _walk(pipe, binding)
        return replace(pipe, before=[*pipe.before, PublicStart(rows, targets, walk, binding.constraint, weights)])

    return Recipe(recipe.name, build, recipe.arguments)


def _walk(pipe: Pipeline, binding: Binding) -> Walk:
    """The public numbers of a pipeline that takes gradients as they are."""
    stage = pipe.stages[-1]
    release = stage.releases[0]
    multiplier = float(getattr(release.mechanism, "multiplier", 0.0))
    n = binding.n if pipe.promise is None else pipe.promise.records
    bound = float(release.clipped.total(release.clipped.init()))
    items = [item for item in pipe.before if isinstance(item, Bought) and item.name == "statistics"]
    bought = float(items[0].mechanism.multiplier) * 2**0.5 if items else 0.0  # type: ignore[attr-defined]
    noise = multiplier * bound / stage.sampler.divisor(n)
    return Walk(pipe.rounds or 1, noise, pipe.step, pipe.output == "average", bought / n)


def _factor(fit: PublicFit, public: Any, step: StepSize, walk: Walk, sober: bool = False) -> float:
    """f: what the steps would best be multiplied by."""
    steps = torch.tensor([float(torch.as_tensor(step(t)).mean()) for t in range(walk.rounds)], dtype=torch.float64)
    total, squares = float(steps.sum()), float(steps.square().sum())
    energies, counts = _spectrum(fit, public)
    h, f = fit.curvature * energies, WANTED[:, None]
    passed = (2 * f * SLOWER * h * total).clamp(min=1e-12)
    left = torch.exp(-passed)
    noise = (f * walk.noise).square() * squares * -torch.expm1(-passed) / passed
    risk = (counts * h * (left * fit.variance(energies, public.n, sober) + noise)).sum(1)
    return float(WANTED[int(risk.argmin())])


def _spectrum(fit: PublicFit, public: Any) -> tuple[Tensor, Tensor]:
    """Energies of the directions and how many there are of each.

    Public rows see as many directions as there are of them, and those too strongly.  What a left-out row has outside the
    span of the others is spread over all directions that they do not see.
    """
    columns = public.X.shape[1]
    seen = fit.energies
    unseen = columns - len(seen)
    if unseen <= 0:
        return seen, torch.ones_like(seen)
    outside = float(seen.sum()) * unseen / columns
    kept = seen * (1 - unseen / columns)
    energies = torch.cat([kept, torch.tensor([outside / unseen], dtype=seen.dtype)])
    return energies, torch.cat([torch.ones_like(seen), torch.tensor([float(unseen)], dtype=seen.dtype)])


def _preconditioned(prepared: Prepared, public: Any, fit: PublicFit, first: Tensor, walk: Walk) -> Prepared:
    """The bought start pulled towards the public one, and the bought inverse shortened where noise would win.

    Along an eigenvector of the inverse both starts are weighted by their precision, and the step is the one of (0, 1]
    whose tail has the least squared error.
    """
    assert isinstance(prepared.update, Preconditioned) and prepared.start is not None
    matrix = prepared.update.matrix.double()
    lengths, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    lengths = lengths.clamp(min=1e-300)
    moments = public.X.gram() / public.n if hasattr(public.X, "gram") else public.X.double().T @ public.X.double() / public.n
    energies = (vectors * (moments @ vectors)).sum(0)
    public_error = fit.variance(energies, public.n)
    bought_error = (lengths * walk.statistics).square() * (1 + float(first.double().square().sum()))
    share = public_error / (public_error + bought_error)
    gap = vectors.T @ (prepared.start.double() - first.double())
    start = first.double() + vectors @ (share * gap)
    left, passed = _tails(walk)
    risk = left[:, None] * public_error + passed[:, None] * (lengths * walk.noise).square()
    shrunk = FACTORS[risk.argmin(0)]
    update = Preconditioned((vectors * (lengths * shrunk)) @ vectors.T)
    return replace(prepared, start=start.to(first.dtype), update=update)


def _tails(walk: Walk) -> tuple[Tensor, Tensor]:
    """For each step of `FACTORS`: what is left of a squared error at the start, and of the variance of one noise."""
    rounds = walk.rounds
    seen = torch.arange(1, rounds + 1, dtype=torch.float64)
    used = (seen > rounds // 2 if walk.averaged else seen == rounds).double()
    used = used / used.sum()
    keep = (1 - SLOWER * FACTORS)[:, None]
    left = (keep**seen * used).sum(1).square()
    # the noise of round s stays as f (1 - f)^(t - s) in the iterate t
    weights = torch.stack([(keep ** (seen[s:] - seen[s]) * used[s:]).sum(1) for s in range(rounds)], dim=1)
    return left, (FACTORS[:, None] * weights).square().sum(1)
