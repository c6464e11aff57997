"""A start that is fitted to labelled public rows, and private steps from there that are as long as they pay.

After everything is bought the public rows are seen through the same maps, and the same loss is fitted to them (see
`_PublicFit`).  Private steps start there.  How far they may go follows from public figures: along a direction
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

import numpy as np
import scipy.sparse as sp
import torch
from scipy.optimize import minimize as scipy_minimize
from torch import Tensor

from isthmus.algorithms.purchases import ShrunkStatistics, linear_model, scaled_targets
from isthmus.algorithms.suggest import CONSTANTS
from isthmus.base.matrix import Array, is_sparse, matmul, rmatmul
from isthmus.core.minimize import Binding, Purchased, Recipe
from isthmus.core.parts import Preconditioned
from isthmus.core.pipeline import Pipeline, Purchase, StepSize
from isthmus.objectives.linear import LinearModel
from isthmus.problems.scaling import Scaled
from isthmus.sets import ConvexSet

_FOLDS = 5
_STRENGTHS = tuple(10 ** (k / 2) for k in range(3, -9, -1))
"""lambda over the mean squared length of a row."""
_CONSTANT = 1e-3
"""What the strength is multiplied by for a column that does not vary: an intercept is hardly shrunk."""
_VARIES = 0.05
"""A column varies where its variance is this share of its mean square."""
_ITERATIONS, _EARLY = 200, 10
"""Steps of a fit, and of one that has more columns than rows: stopped early it errs less on others."""
_CROSS = 1e-6
"""Relative precision of the fits that only compare strengths."""
_NEVER = 1e-12
_LARGER = 10.0
"""Coefficients may have this many times the variance that the strength found by cross-validation stands for."""
_MIN_VARIANCE = 0.25
"""Of the variance that margins would have if they explained all that targets vary by."""
UNSEEN = (0.01, 1.0)
"""The least variance of margins (numbers in [-1, 1], labels), even of rows that all have one target; a hundredth of it
is the least square of slopes."""
_FLAT = 0.05
"""The least curvature over its bound: public rows may all have been easy."""
_MAX_VARIANCE = 50.0
"""Times the variance of held-out margins."""


_Some = slice | np.ndarray
"""Which rows are meant."""


class _PublicFit:
    """The ridge fit of an objective that is public, all of it, and figures that tell how far it may be from the answer.

    Rows are seen in coordinates of their own span: x_i'w = x_i'v + R_i'b for w = v + lift b.

    w         the point, flat: one block of columns an output
    strength  lambda
    v         mean square of the slopes of one output on rows held out of the fit
    h         mean second derivative of the loss in one of their margins
    energies  eigenvalues of the rows' second moments X'X / m that are not 0
    least     the least that the variance of a coefficient is thought to be, whatever so few rows say
    most      the most that a sober mind would think it to be

    weights   what the losses of its rows are multiplied by
    towards   the point that coefficients are shrunk towards

    >>> from isthmus.objectives import LeastSquares
    >>> X = torch.eye(4, dtype=torch.float64).repeat(10, 1)
    >>> fit = _PublicFit(LeastSquares(X, X @ torch.tensor([1.0, -1.0, 0.5, 0.0]).double()))
    >>> [round(v, 2) + 0.0 for v in fit.w.tolist()]
    [1.0, -1.0, 0.5, 0.0]
    """

    def __init__(self, objective: LinearModel, weights: Tensor | None = None, towards: Tensor | None = None) -> None:
        view = Scaled.of(objective.X)
        Z: Any = view.dense() if not view.sparse or bool(view.B[:, : len(view.weight)].any()) else view.plain()
        n, d = Z.shape
        self.weights = torch.ones(n, dtype=torch.float64) if weights is None else weights.double()
        root, self.first = _shrunk(Z), torch.zeros(objective.space.d, dtype=torch.float64)
        if towards is not None:
            root, self.first = torch.ones_like(root), towards.double()
        scaled = Z @ sp.diags((1 / root).numpy()) if is_sparse(Z) else Z / root
        values, vectors = torch.linalg.eigh(_product(scaled))
        spanned = values > _NEVER * max(float(values.max()), _NEVER)
        lengths, left = values[spanned].sqrt(), vectors[:, spanned]
        self.objective, self.R = objective, left * lengths
        # w = D^-1/2 V b, with V = (Z D^-1/2)'U / S
        self.lift = rmatmul(scaled, left / lengths) / root[:, None]
        self.energies = torch.linalg.eigvalsh(_product(Z)).flip(0)[: min(n, d)].clamp(min=0) / n
        self.n, self.outputs = n, int(objective.space.d // d)
        self.energy = max(float(self.energies.sum()), _NEVER)  # the mean squared length of a row
        self.offset = matmul(Z, self.first.view(-1, d).T.contiguous())
        self.strength, margins = self.path()
        self.w = self.first + (self.lift @ self.fit(self.strength)).T.reshape(-1)
        labels, bound = int(objective.labelled()), float(objective.curvature or 1.0)
        self.v = max(float(self.slopes(margins).square().mean()), UNSEEN[labels] / 100)
        self.h = max(self.curvature(margins), _FLAT * bound / self.outputs)
        zero = torch.zeros_like(self.offset)
        # what margins would vary by if they explained all of the targets: var(slope) / curvature^2 at w = 0
        spread = float(self.slopes(zero).var(0, correction=0).mean()) / max(self.curvature(zero), _NEVER) ** 2
        self.least = max(_MIN_VARIANCE * spread, UNSEEN[labels]) / self.energy
        self.most = _MAX_VARIANCE * float(margins.var(0, correction=0).mean()) / self.energy

    def variance(self, energies: Tensor, rows: int, sober: bool = False) -> Tensor:
        """Of the error of w along directions of these energies: (v / h) / (m h e + lambda).

        v / (h lambda) is how large coefficients are thought to be where no row tells: by the strength that was found,
        times `_LARGER`, for few rows ask for more shrinking than many would.  `sober` leaves that out, and does not
        believe in margins far longer than those of held-out rows.
        """
        h = max(self.h, _NEVER)
        unit = self.v / h
        believed = min(self.strength, unit / max(self.least, _NEVER))
        if sober:
            believed = max(believed, unit / max(self.most, _NEVER))
        else:
            believed /= _LARGER
        return unit / (rows * h * energies + believed)

    def losses(self, z: Tensor, index: _Some = slice(None)) -> Tensor:
        """Of the rows whose margins are z beyond those of the first point."""
        values: Tensor = self.objective.losses(*self._paired(z, index))
        return values * self.weights[index]

    def slopes(self, z: Tensor, index: _Some = slice(None)) -> Tensor:
        """dl/dz, one column an output."""
        values: Tensor = self.objective.slopes(*self._paired(z, index))
        return values.reshape(z.shape) * self.weights[index][:, None]

    def curvature(self, z: Tensor) -> float:
        """The mean second derivative in one margin: slopes half a unit away on both sides, along random signs."""
        signs = torch.from_numpy(np.random.default_rng(0).choice([-0.5, 0.5], tuple(z.shape)))
        rise = self.slopes(z + signs) - self.slopes(z - signs)
        return float((rise * 2 * signs).mean())

    def fit(
        self, strength: float, index: _Some = slice(None), start: Tensor | None = None, precise: float = 1e-9
    ) -> Tensor:
        """argmin sum l + (strength / 2) |b|^2 over some of the rows."""
        R = self.R[index]
        shape = R.shape[1], self.outputs

        def value(flat: Array) -> tuple[float, Array]:
            b = torch.from_numpy(flat).view(shape)
            z = R @ b
            gradient = R.T @ self.slopes(z, index) + strength * b
            return float(self.losses(z, index).sum() + strength / 2 * b.square().sum()), gradient.numpy().reshape(-1)

        if start is None:
            start = torch.zeros(shape, dtype=torch.float64)
        options = {"maxiter": _EARLY if R.shape[1] >= len(R) else _ITERATIONS, "ftol": precise}
        minimum = scipy_minimize(value, start.numpy().reshape(-1), jac=True, method="L-BFGS-B", options=options)
        return torch.from_numpy(minimum.x).view(shape)

    def path(self) -> tuple[float, Tensor]:
        """The strength with the least loss on rows held out of the fit, and their margins."""
        folds = np.random.default_rng(0).permutation(self.n) % min(_FOLDS, self.n)  # rows may be sorted
        parts = [(np.flatnonzero(folds == k), np.flatnonzero(folds != k)) for k in range(int(folds.max()) + 1)]
        points: list[Tensor | None] = [None] * len(parts)
        least, best = float("inf"), (0.0, torch.zeros(0))
        for strength in (multiple * self.energy for multiple in _STRENGTHS):
            z = torch.zeros(self.n, self.outputs, dtype=torch.float64)
            for k, (inside, outside) in enumerate(parts):
                point = self.fit(strength, outside, points[k], _CROSS)  # from the last one, which was shrunk more
                points[k], z[inside] = point, self.R[inside] @ point
            loss = float(self.losses(z).mean())
            if loss < least or not best[0]:
                least, best = loss, (strength, z)
        return best

    def _paired(self, z: Tensor, index: _Some) -> tuple[Tensor, Tensor]:
        """Margins and targets as the loss takes them: numbers of classes go with one margin for each."""
        y, z = self.objective.y[index], z + self.offset[index]
        if y.is_floating_point():
            return z[:, 0], y.double()
        return z, y


def _product(Z: Any) -> Tensor:
    """Z Z'."""
    product = Z @ Z.T
    return torch.from_numpy(product.toarray()) if is_sparse(Z) else product


def _shrunk(Z: Any) -> Tensor:
    """sqrt D: 1, and near 0 for columns whose mean is far larger than what they vary by."""
    if isinstance(Z, Tensor):
        Z = Z.numpy()
    squares = Z.multiply(Z) if is_sparse(Z) else np.square(Z)
    mean, second = (torch.from_numpy(np.asarray(part.mean(0), dtype=float).reshape(-1)) for part in (Z, squares))
    share = (1 - mean.square() / second.clamp(min=_NEVER)).clamp(0, 1) / _VARIES
    return torch.where(second > _NEVER, share.clamp(_CONSTANT, 1), 1.0).sqrt()


_FACTORS = torch.logspace(-5, 0, 101, dtype=torch.float64)
"""What steps may be multiplied by."""
_WANTED = torch.cat([_FACTORS, torch.logspace(0, math.log10(4), 13, dtype=torch.float64)[1:]])
"""What they would be multiplied by if their length were not limited: by 4 at most."""
_ALIKE, _SHORTEST = 5, 0.1
"""Rows that have as much of every direction, added to what public rows say; the least squared length of a row."""
_OFF = 4.0
"""Where matrices were bought the public fit is taken to be off by this many times its predicted squared error."""
_SLOWER = 0.2
"""Steps are taken to close a gap so much more slowly than public rows say: the private ones hold what those do not."""


@dataclass(frozen=True, eq=False)
class _PublicStart(Purchase):
    """Labelled public rows, in the columns of the problem before anything is bought: a `Purchase` without a look.

    alone  no step is taken: there are too few private records to improve on the public fit

    rounds, clip, step  of the run
    noise               s.d. in a number of the mean gradient, over the clip

    >>> from isthmus import LeastSquares
    >>> X, y = torch.eye(2, dtype=torch.float64).repeat(20, 1), torch.tensor([1.0, -1.0]).double().repeat(20)
    >>> loud = _PublicStart(X, y, rounds=10, clip=1.0, noise=1e9, step=lambda t: 1.0)
    >>> begun = loud.apply(Purchased(LeastSquares(X, y)), None)
    >>> [round(v, 2) for v in begun.start.tolist()], begun.step(0) < 1e-4
    ([1.0, -1.0], True)
    """

    rows: object
    targets: object
    rounds: int
    clip: float
    noise: float
    step: StepSize
    constraint: ConvexSet | None = None
    weights: Tensor | None = None
    alone: bool = False
    name: str = "public start"

    def check(self, objective: object) -> None:
        """Linear models only."""
        linear_model(objective)

    def apply(self, prepared: Purchased, bought: Tensor | None) -> Purchased:
        """The start, and steps that are as long as they pay."""
        rows = self.rows
        if prepared.transform is not None:
            rows = prepared.transform(rows)
        public: LinearModel = prepared.objective.on((rows, self.targets))
        if prepared.target is not None:
            public = scaled_targets(public, *prepared.target)
        if prepared.centre is not None:
            shift, width = prepared.centre
            public = public.with_targets(((public.y.double() - shift) / width).clamp(-1, 1))
        # the point that is known without any row: logits of bought class shares, 0 for centred targets; None: none is
        prior, step = prepared.start, prepared.step or self.step
        if isinstance(prepared.update, Preconditioned):
            prior = prepared.update.towards
        if prepared.centre is not None:
            prior = torch.zeros(prepared.objective.space.d, dtype=torch.float64)
        elif prior is not None and not bool(prior.any()):
            prior = None
        fit = _PublicFit(public, self.weights, prior)
        first = fit.w
        if self.constraint is not None:
            first = self.constraint.project(first)
        if self.alone:
            return replace(prepared, start=first.to(prepared.objective.dtype), step=lambda t: 0.0, update=None)
        noise = self.noise * (prepared.clip or self.clip)
        if isinstance(prepared.update, Preconditioned):
            return _preconditioned(prepared, public, fit, first, noise * math.sqrt(2 / self.rounds))
        factor = min(1.0, _factor(fit, public, step, self.rounds, noise))
        if public.labelled():  # directions count, not lengths: a shorter start is as good as steps longer than allowed
            longer = max(1.0, _factor(fit, public, step, self.rounds, noise, sober=True))
            towards = torch.zeros_like(first) if prior is None else prior
            first = towards + (first - towards) / longer
        start = first.to(prepared.objective.dtype)
        return replace(prepared, start=start, step=lambda t: factor * step(t))


def starting(recipe: Recipe, rows: object, targets: object, weights: Tensor | None = None) -> Recipe:
    """A private recipe that starts at the fit of labelled public rows.

    rows, targets   in the columns and units of the problem that the recipe is bound to
    weights         what the losses of the public rows are multiplied by

    >>> from isthmus import algorithms
    >>> starting(algorithms.dp_gd(epsilon=1.0, clip=1.0, step=1.0, n="exact"), torch.eye(2), [0, 1]).name
    'dp_gd'
    """

    def build(binding: Binding) -> Pipeline:
        pipe = recipe.bind(binding)
        stage, release = pipe.stages[-1], pipe.stages[-1].releases[0]
        n = binding.n if pipe.promise is None else pipe.promise.records
        clip = float(release.clipped.total(release.clipped.init()))
        noise = release.mechanism.number / stage.sampler.divisor(n)
        run = (pipe.rounds or 1, clip, noise, pipe.step)
        few = pipe.promise is not None and pipe.promise.plan is not None and n * pipe.promise.plan.mu < CONSTANTS.mean_b
        start = _PublicStart(rows, targets, *run, constraint=binding.constraint, weights=weights, alone=few)
        return replace(pipe, before=[*pipe.before, start])

    return Recipe(recipe.name, build, recipe.arguments)


def _factor(
    fit: _PublicFit, public: LinearModel, step: StepSize, rounds: int, sigma: float, sober: bool = False
) -> float:
    """f: what the steps would best be multiplied by.

    Public rows see as many directions as there are of them, and those too strongly: the share of the columns that they
    do not see is taken from them and spread over all that they do not see, and `_ALIKE` rows are added that have as
    much of every direction.
    """
    steps = torch.tensor([float(torch.as_tensor(step(t)).mean()) for t in range(rounds)], dtype=torch.float64)
    total, squares = float(steps.sum()), float(steps.square().sum())
    columns, rows, observed, pad = public.X.shape[1], public.n, fit.energies, torch.nn.functional.pad
    whole = max(float(observed.sum()), _SHORTEST) / columns
    energies = (rows * observed * (len(observed) / columns) + _ALIKE * whole) / (rows + _ALIKE)
    # one more direction stands for all that the rows do not see: there are so many of it
    counts = pad(torch.ones_like(observed), (0, 1), value=columns - len(observed))
    observed, energies = pad(observed, (0, 1)), pad(energies, (0, 1), value=whole)
    h, f = fit.h * energies, _WANTED[:, None]
    passed = (2 * f * _SLOWER * h * total).clamp(min=1e-12)
    remaining = torch.exp(-passed)
    noise = (f * sigma).square() * squares * -torch.expm1(-passed) / passed
    risk = (counts * h * (remaining * fit.variance(observed, public.n, sober) + noise)).sum(1)
    return float(_WANTED[int(risk.argmin())])


def _preconditioned(
    prepared: Purchased, public: LinearModel, fit: _PublicFit, first: Tensor, noise: float
) -> Purchased:
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
    off = (_OFF * fit.variance(energies, public.n)).clamp(min=1e-12 * usual, max=usual)
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
