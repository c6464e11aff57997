"""A linear model of public rows alone: a ridge fit whose strength is found by cross-validation, and what it knows.

    w_0 = argmin  sum_i l(x_i'w, y_i) + (lambda / 2) |w - v|^2 ,

v is what is known already (class shares that were bought, say); where nothing is, 0, and a column that hardly varies is
hardly shrunk.

It is fitted in the span of the rows, so d may be far larger than their number.  Nothing private is read here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from scipy.optimize import minimize as scipy_minimize
from torch import Tensor

from isthmus.base.matrix import Array, is_sparse, matmul, rmatmul
from isthmus.problems.scaling import Scaled

FOLDS = 5
STRENGTHS = tuple(10 ** (k / 2) for k in range(3, -9, -1))
"""lambda over the mean squared length of a row."""
CONSTANT = 1e-3
"""What the strength is multiplied by for a column that does not vary: an intercept is hardly shrunk."""
VARIES = 0.05
"""A column varies where its variance is this share of its mean square."""
ITERATIONS, EARLY = 200, 10
"""Steps of a fit, and of one that has more columns than rows: stopped early it errs less on others."""
CROSS = 1e-6
"""Relative precision of the fits that only compare strengths."""
NEVER = 1e-12
LARGER = 10.0
"""Coefficients may have this many times the variance that the strength found by cross-validation stands for."""
LEAST = 0.25
"""Of the variance that margins would have if they explained all that targets vary by."""
UNSEEN = (0.01, 1.0)
"""The least variance of margins (numbers in [-1, 1], labels), even of rows that all have one target; a hundredth of it
is the least square of slopes."""
FLAT = 0.05
"""The least curvature over its bound: public rows may all have been easy."""
MOST = 50.0
"""Times the variance of held-out margins."""


@dataclass(frozen=True, eq=False)
class PublicFit:
    """The fit, and the public figures that tell how far it may be from the answer.

    w          the point, flat: one block of columns an output
    strength   lambda
    slopes     mean square of the slopes of one output on rows held out of the fit
    curvature  mean second derivative of the loss in one of their margins
    energies   eigenvalues of the rows' second moments X'X / m that are not 0
    least      the least that the variance of a coefficient is thought to be, whatever so few rows say
    most       the most that a sober mind would think it to be
    """

    w: Tensor
    strength: float
    slopes: float
    curvature: float
    energies: Tensor
    least: float
    most: float

    def variance(self, energies: Tensor, rows: int, sober: bool = False) -> Tensor:
        """Of the error of w along directions of these energies: (v / h) / (m h e + lambda), v the slopes' square.

        v / (h lambda) is how large coefficients are thought to be where no row tells: by the strength that was found,
        times `LARGER`, for few rows ask for more shrinking than many would.  `sober` leaves that out, and does not
        believe in margins far longer than those of held-out rows.
        """
        h = max(self.curvature, NEVER)
        unit = self.slopes / h
        believed = min(self.strength, unit / max(self.least, NEVER))
        believed = max(believed, unit / max(self.most, NEVER)) if sober else believed / LARGER
        return unit / (rows * h * energies + believed)


def fit_public(objective: Any, weights: Tensor | None = None, towards: Tensor | None = None) -> PublicFit:
    """The ridge fit of an objective that is public, all of it.

    weights  what the losses of its rows are multiplied by
    towards  the point that coefficients are shrunk towards

    >>> from isthmus.objectives import LeastSquares
    >>> X = torch.eye(4, dtype=torch.float64).repeat(10, 1)
    >>> fit = fit_public(LeastSquares(X, X @ torch.tensor([1.0, -1.0, 0.5, 0.0]).double()))
    >>> [round(v, 2) + 0.0 for v in fit.w.tolist()]
    [1.0, -1.0, 0.5, 0.0]
    """
    rows = _Reduced.of(objective, weights, towards)
    strength, margins = _path(rows)
    labels, bound = int(objective.labelled()), float(objective.curvature or 1.0)
    return PublicFit(
        w=rows.lifted(rows.fit(strength)),
        strength=strength,
        slopes=max(float(rows.slopes(margins).square().mean()), UNSEEN[labels] / 100),
        curvature=max(rows.curvature(margins), FLAT * bound / rows.outputs),
        energies=rows.energies,
        least=max(LEAST * rows.spread(), UNSEEN[labels]) / rows.energy,
        most=MOST * float(margins.var(0, correction=0).mean()) / rows.energy,
    )


@dataclass(frozen=True, eq=False)
class _Reduced:
    """The rows in coordinates of their own span: x_i'w = x_i'v + R_i'b for w = v + lift b."""

    objective: Any
    R: Tensor
    lift: Tensor
    energies: Tensor
    weights: Tensor
    first: Tensor
    offset: Tensor

    @classmethod
    def of(cls, objective: Any, weights: Tensor | None, towards: Tensor | None) -> _Reduced:
        Z = _stored(objective.X)
        n, d = Z.shape
        root = _shrunk(Z) if towards is None else torch.ones(d, dtype=torch.float64)
        scaled = Z @ sp.diags((1 / root).numpy()) if is_sparse(Z) else Z / root
        values, vectors = torch.linalg.eigh(_product(scaled))
        spanned = values > NEVER * max(float(values.max()), NEVER)
        lengths, left = values[spanned].sqrt(), vectors[:, spanned]
        # w = D^-1/2 V b, with V = (Z D^-1/2)'U / S
        back = rmatmul(scaled, left / lengths) / root[:, None]
        energies = torch.linalg.eigvalsh(_product(Z)).flip(0)[: min(n, d)].clamp(min=0) / n
        weight = torch.ones(n, dtype=torch.float64) if weights is None else weights.double()
        first = torch.zeros(objective.space.d, dtype=torch.float64) if towards is None else towards.double()
        offset = matmul(Z, first.view(-1, d).T.contiguous())
        return cls(objective, left * lengths, back, energies, weight, first, offset)

    @property
    def n(self) -> int:
        return len(self.R)

    @property
    def outputs(self) -> int:
        return int(self.objective.space.d // len(self.lift))

    @property
    def energy(self) -> float:
        """The mean squared length of a row."""
        return max(float(self.energies.sum()), NEVER)

    def losses(self, z: Tensor, index: Any = slice(None)) -> Tensor:
        """Of the rows whose margins are z beyond those of the first point."""
        values: Tensor = self.objective.losses(*self._paired(z, index))
        return values * self.weights[index]

    def slopes(self, z: Tensor, index: Any = slice(None)) -> Tensor:
        """dl/dz, one column an output."""
        values: Tensor = self.objective.slopes(*self._paired(z, index))
        return values.reshape(z.shape) * self.weights[index][:, None]

    def curvature(self, z: Tensor) -> float:
        """The mean second derivative in one margin: slopes half a unit away on both sides, along random signs."""
        signs = torch.from_numpy(np.random.default_rng(0).choice([-0.5, 0.5], tuple(z.shape)))
        rise = self.slopes(z + signs) - self.slopes(z - signs)
        return float((rise * 2 * signs).mean())

    def spread(self) -> float:
        """What margins would vary by if they explained all of the targets: var(slope) / curvature^2 at w = 0."""
        zero = torch.zeros_like(self.offset)
        return float(self.slopes(zero).var(0, correction=0).mean()) / max(self.curvature(zero), NEVER) ** 2

    def fit(
        self, strength: float, index: Any = slice(None), start: Tensor | None = None, precise: float = 1e-9
    ) -> Tensor:
        """argmin sum l + (strength / 2) |b|^2 over some of the rows."""
        R = self.R[index]
        shape = R.shape[1], self.outputs

        def value(flat: Array) -> tuple[float, Array]:
            b = torch.from_numpy(flat).view(shape)
            z = R @ b
            gradient = R.T @ self.slopes(z, index) + strength * b
            return float(self.losses(z, index).sum() + strength / 2 * b.square().sum()), gradient.numpy().reshape(-1)

        first = np.zeros(shape[0] * shape[1]) if start is None else start.numpy().reshape(-1)
        options = {"maxiter": EARLY if R.shape[1] >= len(R) else ITERATIONS, "ftol": precise}
        minimum = scipy_minimize(value, first, jac=True, method="L-BFGS-B", options=options)
        return torch.from_numpy(minimum.x).view(shape)

    def lifted(self, point: Tensor) -> Tensor:
        """The point of R^d, flat: one block of columns an output."""
        return self.first + (self.lift @ point).T.reshape(-1)

    def _paired(self, z: Tensor, index: Any) -> tuple[Tensor, Tensor]:
        """Margins and targets as the loss takes them: numbers of classes go with one margin for each."""
        y, z = self.objective.y[index], z + self.offset[index]
        return (z[:, 0], y.double()) if y.is_floating_point() else (z, y)


def _path(rows: _Reduced) -> tuple[float, Tensor]:
    """The strength with the least loss on rows held out of the fit, and their margins; from the strongest one on.

    The path ends where the loss has risen twice: weaker ones fit ever more noise, and take ever longer.
    """
    folds = np.random.default_rng(0).permutation(rows.n) % min(FOLDS, rows.n)  # rows may be sorted
    parts = [(np.flatnonzero(folds == k), np.flatnonzero(folds != k)) for k in range(int(folds.max()) + 1)]
    points: list[Tensor | None] = [None] * len(parts)
    least, best, risen = float("inf"), (0.0, torch.zeros(0)), 0
    for strength in (multiple * rows.energy for multiple in STRENGTHS):
        z = torch.zeros(rows.n, rows.outputs, dtype=torch.float64)
        for k, (inside, outside) in enumerate(parts):
            point = rows.fit(strength, outside, points[k], CROSS)  # from the last one, which was shrunk more
            points[k], z[inside] = point, rows.R[inside] @ point
        loss = float(rows.losses(z).mean())
        if loss < least or not best[0]:
            least, best, risen = loss, (strength, z), 0
        elif (risen := risen + 1) == 2:
            break
    return best


def _stored(X: Any) -> Any:
    """The rows as a dense tensor, or CSR where they are as sparse as what was given."""
    view = Scaled.of(X)
    sparse = view.sparse and not bool(view.B[:, : len(view.weight)].any())
    return view.plain() if sparse else view.dense()


def _product(Z: Any) -> Tensor:
    """Z Z'."""
    return torch.from_numpy((Z @ Z.T).toarray()) if is_sparse(Z) else Z @ Z.T


def _shrunk(Z: Any) -> Tensor:
    """sqrt D: 1, and near 0 for columns whose mean is far larger than what they vary by."""
    parts = (Z, Z.multiply(Z)) if is_sparse(Z) else (Z.numpy(), Z.square().numpy())
    mean, second = (torch.from_numpy(np.asarray(part.mean(0), dtype=float).reshape(-1)) for part in parts)
    share = (1 - mean.square() / second.clamp(min=NEVER)).clamp(0, 1) / VARIES
    return torch.where(second > NEVER, share.clamp(CONSTANT, 1), 1.0).sqrt()
