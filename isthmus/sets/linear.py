"""Sets of linear algebra: the whole space, subspaces and axis-aligned ellipsoids."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isthmus.base.matrix import Array
from isthmus.base.validate import check, positive
from isthmus.sets.base import Ball, ConvexSet, _of_length, inside, own, tolerance
from isthmus.sets.projections import Derivative, _pnorm, norm, shortened, smooth
from isthmus.sets.widths import Width, _chi_mean, _exactly, _weighted_norm


@dataclass(frozen=True)
class Whole(ConvexSet):
    """All of R^d: the unconstrained case; projection is the identity and the gauge is 0.

    >>> Whole().project(torch.tensor([5.0]))
    tensor([5.])
    """

    bounded = False

    def _project(self, x: Tensor) -> Tensor:
        return x

    def _gauge(self, x: Tensor) -> float:
        return 0.0


@dataclass(frozen=True, eq=False)
class Subspace(ConvexSet):
    """The span of the rows of `basis` (k x d, orthonormalised here), cut by an l2 ball when `radius` is given.

    The gauge is +inf off the span; on it ||x||_2 / radius, or 0 without a radius.

    >>> line = Subspace([[2.0, 0.0]], radius=1.0)
    >>> line.project(torch.tensor([3.0, 4.0]))
    tensor([1., 0.])
    >>> Subspace([[2.0, 0.0]]).can("lmo")
    False
    """

    basis: Any
    radius: float | None = None

    def __post_init__(self) -> None:
        rows = own("basis", self.basis, ndim=2)
        check(rows.numel() > 0 and norm(rows) > 0, "basis", self.basis, "give at least one nonzero row")
        if self.radius is not None:
            positive(radius=self.radius)
        _, singular, axes = torch.linalg.svd(rows, full_matrices=False)
        rank = int((singular > singular[0] * max(rows.shape) * torch.finfo(rows.dtype).eps).sum())
        self._keep(basis=axes[:rank].contiguous(), bounded=self.radius is not None, dim=rows.shape[1])

    @property
    def rank(self) -> int:
        """The dimension of the subspace itself."""
        return int(self.basis.shape[0])

    def _flatten(self, x: Tensor) -> Tensor:
        axes: Tensor = self.basis.to(x.device)
        return axes.T @ (axes @ x.double())

    def _project(self, x: Tensor) -> Tensor:
        y = self._flatten(x)
        if self.radius is not None:
            y = inside(y, norm(y) / self.radius)
        return y.to(x.dtype)

    def _derivative(self, z: Array, w: Array) -> Derivative:
        def span(x: Array) -> Array:
            return self._flatten(torch.from_numpy(x)).numpy()

        within = shortened(span(z), w)
        return lambda x: within(span(x))

    def _lmo(self, g: Tensor) -> Tensor:
        y = self._flatten(g)
        return _of_length(y, -(self.radius or 0.0)).to(g.dtype)

    def _gauge(self, x: Tensor) -> float:
        if norm(x.double() - self._flatten(x)) > tolerance(x) * norm(x):
            return math.inf
        if self.radius is None:
            return 0.0
        return norm(x) / self.radius

    def _diameter(self, d: int) -> float:
        return 2 * (self.radius or 0.0)

    def _width(self, d: int, samples: int, seed: int) -> Width:
        return _exactly((self.radius or 0.0) * _chi_mean(self.rank))


@dataclass(frozen=True, eq=False)
class Ellipsoid(Ball):
    """The ellipsoid {x : ||x / axes||_2 <= radius} with half-axes radius * axes.

    Projection is y_i = h_i^2 x_i / (h_i^2 + lam) with the half-axes h = radius * axes, lam the root of the secular
    equation ||y / h|| = 1.

    >>> Ellipsoid([2.0, 1.0]).project(torch.tensor([4.0, 0.0]))
    tensor([2., 0.])
    >>> Ellipsoid([2.0, 1.0]).diameter()
    4.0
    """

    axes: Any
    radius: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        axes = own("axes", self.axes, ndim=1)
        check(axes.numel() > 0 and bool((axes > 0).all()), "axes", self.axes, "give positive half-axes")
        squares = bool(((axes * self.radius > 1e-100) & (axes * self.radius < 1e100) & (axes > 1e-100)).all())
        check(squares, "axes", self.axes, "give half-axes between 1e-100 and 1e100, because their squares are needed")
        self._keep(axes=axes, dim=axes.numel())

    def _project(self, x: Tensor) -> Tensor:
        if self._gauge(x) <= 1:
            return x
        halves = self.radius * self.axes.to(x.device)
        y = halves * _secular(halves, x.double())
        return inside(y, self._gauge(y)).to(x.dtype)

    def _derivative(self, z: Array, w: Array) -> Derivative:
        weight: Array = 1 / self.axes.cpu().numpy() ** 2
        return smooth(z, w, weight * w, weight)

    def _lmo(self, g: Tensor) -> Tensor:
        axes: Tensor = self.axes.to(g.device)
        return axes * _of_length(axes * g.double(), -self.radius)

    def _norm(self, x: Tensor) -> float:
        return float(_pnorm(x.double() / self.axes.to(x.device), 2.0))

    def _diameter(self, d: int) -> float:
        return 2 * self.radius * float(self.axes.max())

    def _width(self, d: int, samples: int, seed: int) -> Width:
        return _exactly(self.radius * _weighted_norm(self.axes))


def _secular(h: Tensor, x: Tensor) -> Tensor:
    """z = h x / (h^2 + lam) with ||z|| = 1, for ||x / h|| > 1: the root lam of the secular equation.

    It is solved in units of ||h x|| and of the longest half-axis, so that no square leaves the range of a float:
    z = n / (c u^2 + tau) with ||n|| = 1, u <= 1 and lam = ||h x|| tau.  1 / ||z|| is concave and increasing in tau, so
    Newton's method on it rises to the root from any point below; no |z_i| exceeds 1 there, and ||z|| <= 1 at tau = 1.
    """
    longest, largest = float(h.max()), float(x.abs().max())
    u, n = h / longest, (h / longest) * (x / largest)
    size = float(_pnorm(n, 2.0))
    n, squares = n / size, u**2 * min(longest / largest / size, 1e300)
    tau = max(0.0, float((n.abs() - squares).max()))
    for _ in range(100):
        shifted = (squares + tau).clamp_min(1e-300)
        z = n / shifted
        phi = norm(z)
        following = min(tau + (phi - 1) * phi**2 / float((z * z / shifted).sum()), 1.0)
        if following <= tau * (1 + torch.finfo(torch.float64).eps):
            break
        tau = following
    return z
