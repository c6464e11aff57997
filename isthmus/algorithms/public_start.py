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

from isthmus.algorithms.purchases import ShrunkStatistics, scaled_targets
from isthmus.base import validate
from isthmus.core.minimize import Binding, Purchased, Recipe
from isthmus.core.parts import Preconditioned
from isthmus.core.pipeline import Pipeline, Purchase, StepSize
from isthmus.objectives.linear import LinearModel
from isthmus.problems.public_fit import PublicFit, fit_public
from isthmus.problems.scaling import Scaled
from isthmus.sets import ConvexSet

FACTORS = torch.logspace(-5, 0, 101, dtype=torch.float64)
"""What steps may be multiplied by."""
WANTED = torch.cat([FACTORS, torch.logspace(0, math.log10(4), 13, dtype=torch.float64)[1:]])
"""What they would be multiplied by if their length were not limited: by 4 at most."""
ALIKE, SHORTEST = 5, 0.1
"""Rows that have as much of every direction, added to what public rows say; the least squared length of a row."""
OFF = 4.0
"""Where matrices were bought the public fit is taken to be off by this many times its predicted squared error."""
SLOWER = 0.2
"""Steps are taken to close a gap so much more slowly than public rows say: the private ones hold what those do not."""


@dataclass(frozen=True)
class Walk:
    """The public numbers of a run: rounds, clip, noise s.d. in a number of the mean gradient over the clip, steps."""

    rounds: int
    clip: float
    noise: float
    step: StepSize


@dataclass(frozen=True, eq=False)
class PublicStart(Purchase):
    """Labelled public rows, in the columns of the problem before anything is bought: a `Purchase` without a look.

    >>> from isthmus import LeastSquares
    >>> X, y = torch.eye(2, dtype=torch.float64).repeat(20, 1), torch.tensor([1.0, -1.0]).double().repeat(20)
    >>> loud = Walk(rounds=10, clip=1.0, noise=1e9, step=lambda t: 1.0)
    >>> begun = PublicStart(X, y, loud).apply(Purchased(LeastSquares(X, y)), None)
    >>> [round(v, 2) for v in begun.start.tolist()], begun.step(0) < 1e-4
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
        linear = isinstance(objective, LinearModel)
        validate.check(linear, "objective", objective, "give a linear model such as Logistic or LeastSquares")

    def apply(self, prepared: Purchased, bought: Tensor | None) -> Purchased:
        """The start, and steps that are as long as they pay."""
        public = self._public_view(prepared)
        fit = fit_public(public, self.weights, _prior(prepared))
        first = fit.w if self.constraint is None else self.constraint.project(fit.w)
        noise = self.walk.noise * (self.walk.clip if prepared.clip is None else prepared.clip)
        if isinstance(prepared.update, Preconditioned):
            return _preconditioned(prepared, public, fit, first, noise * math.sqrt(2 / self.walk.rounds))
        step = self.walk.step if prepared.step is None else prepared.step
        factor = min(1.0, _factor(fit, public, step, self.walk.rounds, noise))
        if public.labelled():  # directions count, not lengths: a shorter start is as good as steps longer than allowed
            longer = max(1.0, _factor(fit, public, step, self.walk.rounds, noise, sober=True))
            prior = _prior(prepared)
            first = first / longer if prior is None else prior + (first - prior) / longer
        start = first.to(prepared.objective.dtype)
        return replace(prepared, start=start, step=lambda t: factor * step(t))

    def _public_view(self, prepared: Purchased) -> Any:
        """The public rows as the private ones are seen now."""
        rows = self.rows if prepared.transform is None else prepared.transform(self.rows)
        public = prepared.objective.on((rows, self.targets))
        if prepared.target is not None:
            public = scaled_targets(public, *prepared.target)
        if prepared.centre is not None:
            shift, width = prepared.centre
            public = public.with_targets(((public.y.double() - shift) / width).clamp(-1, 1))
        return public


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
    return Walk(pipe.rounds or 1, bound, multiplier / stage.sampler.divisor(n), pipe.step)


def _factor(fit: PublicFit, public: Any, step: StepSize, rounds: int, sigma: float, sober: bool = False) -> float:
    """f: what the steps would best be multiplied by."""
    steps = torch.tensor([float(torch.as_tensor(step(t)).mean()) for t in range(rounds)], dtype=torch.float64)
    total, squares = float(steps.sum()), float(steps.square().sum())
    observed, energies, counts = _spectrum(fit, public)
    h, f = fit.curvature * energies, WANTED[:, None]
    passed = (2 * f * SLOWER * h * total).clamp(min=1e-12)
    remaining = torch.exp(-passed)
    noise = (f * sigma).square() * squares * -torch.expm1(-passed) / passed
    risk = (counts * h * (remaining * fit.variance(observed, public.n, sober) + noise)).sum(1)
    return float(WANTED[int(risk.argmin())])


def _spectrum(fit: PublicFit, public: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Energies of directions in the public rows, those that private rows are thought to have, how many there are.

    Public rows see as many directions as there are of them, and those too strongly: the share of the columns that they
    do not see is taken from them and spread over all that they do not see, and `ALIKE` rows are added that have as much
    of every direction.
    """
    columns, rows = public.X.shape[1], public.n
    observed = fit.energies
    unseen = columns - len(observed)
    whole = max(float(observed.sum()), SHORTEST) / columns
    thought = (rows * observed * (len(observed) / columns) + ALIKE * whole) / (rows + ALIKE)
    counts = torch.ones_like(observed)
    if unseen > 0:
        last = torch.tensor([whole], dtype=observed.dtype)
        observed, thought = torch.cat([observed, 0 * last]), torch.cat([thought, last])
        counts = torch.cat([counts, torch.tensor([float(unseen)], dtype=observed.dtype)])
    return observed, thought, counts


def _prior(prepared: Purchased) -> Tensor | None:
    """The point that is known without any row: logits of bought class shares, 0 for centred targets; None: none is."""
    update = prepared.update
    first = update.towards if isinstance(update, Preconditioned) else prepared.start
    if prepared.centre is not None:
        return torch.zeros(prepared.objective.space.d, dtype=torch.float64)
    return first if first is not None and bool(first.any()) else None


def _preconditioned(prepared: Purchased, public: Any, fit: PublicFit, first: Tensor, noise: float) -> Purchased:
    """Bought matrices that go back to the public fit where noise outweighs what it is off by.

    Along an eigenvector of curvature v steps are v / (v^2 + p) long and go back to the public fit by p / (v^2 + p), p
    the squared noise over the squared error of that fit: where all gradients are averaged this is what is most likely.

    noise  of a number of the mean gradient, when the tail of the run is averaged
    """
    update = prepared.update
    assert isinstance(update, Preconditioned) and prepared.start is not None
    lengths, vectors = torch.linalg.eigh((update.matrix + update.matrix.T) / 2)
    energies = (Scaled.of(public.X).dense() @ vectors).square().mean(0)
    usual = ShrunkStatistics().usual(prepared)
    off = (OFF * fit.variance(energies, public.n)).clamp(min=1e-12 * usual, max=usual)
    if update.pull is None:
        curvatures, squares = 1 / lengths.clamp(min=1e-300), torch.full_like(lengths, noise**2)
        alone = vectors.T @ (prepared.start - first)
    else:  # noise was weighed against a usual coefficient, and steps went back to where they began
        back = (vectors * (update.pull @ vectors)).sum(0).clamp(1e-12, 1 - 1e-12)
        curvatures = torch.where(lengths > 1e-300, (1 - back) / lengths, 0.0)
        squares = back / (1 - back) * curvatures.square() * usual
        prior = torch.zeros_like(first) if update.towards is None else update.towards
        alone = vectors.T @ (prior - first) + (vectors.T @ (prepared.start - prior)) / (1 - back)
    pull = (squares / off).clamp(min=1e-300)
    share = curvatures.square() / (curvatures.square() + pull)
    matrix = (vectors * (curvatures / (curvatures.square() + pull))) @ vectors.T
    conditioned = Preconditioned(matrix, (vectors * (1 - share)) @ vectors.T, first)
    return replace(prepared, start=first + vectors @ (share * alone), update=conditioned)
