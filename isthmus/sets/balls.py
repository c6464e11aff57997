"""Norm balls of vectors: l1, l2, l-infinity and general lp, and axis-aligned ellipsoids."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isthmus.base.matrix import Array
from isthmus.base.validate import check, positive
from isthmus.sets import projections
from isthmus.sets.base import Ball, ConvexSet, VertexForm, _of_length, inside, own
from isthmus.sets.widths import Width, _chi_mean, _exactly, _max_chi, _weighted_norm


@dataclass(frozen=True)
class L1Ball(Ball):
    """The l1 ball {x : sum_i |x_i| <= radius}.

    Projection is soft thresholding sign(x) max(|x| - tau, 0), tau found in expected linear time without a sort.

    >>> L1Ball(1.0).project(torch.tensor([2.0, 1.0, 0.0]))
    tensor([1., 0., 0.])
    >>> L1Ball(2.0).lmo(torch.tensor([1.0, -3.0]))
    tensor([0., 2.])
    """

    radius: float = 1.0

    def _solve(self, x: Tensor, warm: float | None) -> tuple[Tensor, float]:
        u = x.abs()
        if float(u.sum(dtype=torch.float64)) <= self.radius:
            return x, 0.0
        top, drop = projections.threshold(u, self.radius, warm)
        return projections.shrink(u, self.radius, top, drop).copysign_(x), top + drop

    def _project(self, x: Tensor) -> Tensor:
        return self._solve(x, None)[0]

    def _derivative(self, z: Array, w: Array) -> projections.Derivative:
        if np.array_equal(z, w):
            return projections.same
        return projections._unthresholded(w)

    def _lmo(self, g: Tensor) -> Tensor:
        s, i = torch.zeros_like(g), g.abs().argmax()
        s[i] = -self.radius * g[i].sign()
        return s

    def _norm(self, x: Tensor) -> float:
        return float(x.abs().sum(dtype=torch.float64))

    def _width(self, d: int, samples: int, seed: int) -> Width:
        return _exactly(self.radius * _max_chi(torch.ones(d)))

    def _vertex_form(self) -> VertexForm:
        return VertexForm(self.radius, signed=True)


@dataclass(frozen=True, eq=False)
class L2Ball(ConvexSet):
    """The Euclidean ball {x : ||x - center||_2 <= radius}, centred at 0 unless told otherwise.

    >>> L2Ball(1.0).project(torch.tensor([3.0, 4.0]))
    tensor([0.6000, 0.8000])
    >>> L2Ball(1.0, center=[2.0, 0.0]).gauge([3.0, 0.0])
    1.0
    """

    radius: float = 1.0
    center: Any = None

    def __post_init__(self) -> None:
        positive(radius=self.radius)
        if self.center is not None:
            center = own("center", self.center, ndim=1)
            self._keep(center=center, dim=center.numel())

    def _middle(self, x: Tensor) -> Tensor:
        if self.center is None:
            return torch.zeros(1).to(x)
        middle: Tensor = self.center.to(x)
        return middle

    def _project(self, x: Tensor) -> Tensor:
        offset = x - self._middle(x)
        excess = projections.norm(offset) / self.radius
        if excess <= 1:
            return x
        return self._middle(x) + offset / excess

    def _derivative(self, z: Array, w: Array) -> projections.Derivative:
        middle: Array = self._middle(torch.from_numpy(z)).numpy()
        return projections.shortened(z - middle, w - middle)

    def _lmo(self, g: Tensor) -> Tensor:
        return self._middle(g) + _of_length(g, -self.radius)

    def _scales(self, x: Tensor) -> tuple[float, float]:
        if self.center is None:
            return projections.norm(x) / self.radius, math.inf
        center, x64 = self.center.to(x.device), x.double()
        low, high = _ball_scales(x64, center, self.radius)
        # Near the tangent cone both roots lose half the digits: membership, which does not, settles t = 1.
        slack = 4 * torch.finfo(x.dtype).eps * (self.radius + projections.norm(center))
        if projections.norm(x64 - center) <= self.radius + slack:
            return min(low, 1.0), max(high, 1.0)
        return low, high

    def _diameter(self, d: int) -> float:
        return 2 * self.radius

    def _width(self, d: int, samples: int, seed: int) -> Width:
        return _exactly(self.radius * _chi_mean(d))


@dataclass(frozen=True)
class LInfBall(Ball):
    """The cube {x : max_i |x_i| <= radius}.

    >>> LInfBall(1.0).project(torch.tensor([3.0, -0.5]))
    tensor([ 1.0000, -0.5000])
    >>> round(float(LInfBall(1.0).gaussian_width(100)), 4)
    79.7885
    """

    radius: float = 1.0

    def _project(self, x: Tensor) -> Tensor:
        return x.clamp(-self.radius, self.radius)

    def _derivative(self, z: Array, w: Array) -> projections.Derivative:
        return lambda x: x * (z == w)

    def _lmo(self, g: Tensor) -> Tensor:
        return -self.radius * g.sign()

    def _norm(self, x: Tensor) -> float:
        return float(x.abs().max())

    def _diameter(self, d: int) -> float:
        return 2 * self.radius * math.sqrt(d)

    def _width(self, d: int, samples: int, seed: int) -> Width:
        return _exactly(self.radius * d * math.sqrt(2 / math.pi))


@dataclass(frozen=True)
class LpBall(Ball):
    """The lp ball {x : (sum_i |x_i|^p)^(1/p) <= radius}, 1 <= p <= inf.

    p = 1, 2 and inf give the answers of `L1Ball`, `L2Ball` and `LInfBall`.  In between, projection solves
    y + mu y^(p-1) = |x|, ||y||_p = radius to full precision, and the width E ||g||_{p*} is sampled.

    >>> y = LpBall(3.0).project(torch.tensor([2.0, 2.0], dtype=torch.float64))
    >>> round(float((y**3).sum()), 12)
    1.0
    """

    p: float
    radius: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check(isinstance(self.p, (int, float)) and self.p >= 1, "p", self.p, "give a number of at least 1, or infinity")

    @property
    def _simple(self) -> ConvexSet | None:
        kinds: dict[float, Callable[[float], ConvexSet]] = {1.0: L1Ball, 2.0: L2Ball, math.inf: LInfBall}
        return kinds[self.p](self.radius) if self.p in kinds else None

    def _project(self, x: Tensor) -> Tensor:
        if self._simple is not None:
            return self._simple._project(x)
        if self._gauge(x) <= 1:
            return x
        far = max(1.0, float(x.abs().max()) / 1e300 / self.radius)  # very far away only the ray counts
        y = projections._project_unit_lp(x.abs().double() / far / self.radius, self.p) * self.radius
        return inside(y, self._gauge(y)).to(x).copysign(x)

    def _derivative(self, z: Array, w: Array) -> projections.Derivative:
        if self._simple is not None:
            return self._simple._derivative(z, w)
        top = float(np.abs(w).max() or 1.0)
        scaled = np.abs(w) / top
        curvature = (self.p - 1) * np.maximum(scaled, 1e-150) ** (self.p - 2) / top
        return projections.smooth(z, w, np.sign(w) * scaled ** (self.p - 1), curvature)

    def _lmo(self, g: Tensor) -> Tensor:
        if self._simple is not None:
            return self._simple._lmo(g)
        s = (g.abs().double() / (float(g.abs().max()) or 1.0)) ** (1 / (self.p - 1))
        s = s.where(g != 0, 0.0) * (self.radius / (float(projections._pnorm(s, self.p)) or 1.0))
        return -inside(s, self._gauge(s)).to(g).copysign(g)

    def _norm(self, x: Tensor) -> float:
        return float(projections._pnorm(x.double(), self.p))

    def _support(self, g: Tensor) -> Tensor:
        dual = math.inf
        if self.p == math.inf:
            dual = 1.0
        elif self.p > 1:
            dual = self.p / (self.p - 1)
        return self.radius * projections._pnorm(g, dual)

    def _diameter(self, d: int) -> float:
        return float(2 * self.radius * d ** max(0.0, 0.5 - 1 / self.p))

    def _width(self, d: int, samples: int, seed: int) -> Width | None:
        if self._simple is None:
            return None
        return self._simple._width(d, samples, seed)


def _ball_scales(x: Tensor, center: Tensor, radius: float) -> tuple[float, float]:
    """The t >= 0 with ||x - t c|| <= t radius: the roots of (|c|^2 - radius^2) t^2 - 2 <x, c> t + |x|^2 <= 0."""
    far, unit = (2.0 ** math.frexp(size)[1] for size in (float(x.abs().max()), max(radius, float(center.abs().max()))))
    x, center, radius = x / far, center / unit, radius / unit  # powers of two: no square overflows, no digit is lost
    a = float(center @ center) - radius**2
    b, c = float(x @ center), float(x @ x)
    if c == 0 and a > 0:
        return 0.0, 0.0
    if c == 0:
        return 0.0, math.inf
    # The discriminant is radius^2 |x|^2 - (|x|^2 |c|^2 - <x, c>^2); a point of the cone's boundary may round below 0.
    slack = b * b - a * c
    if slack < -64 * torch.finfo(torch.float64).eps * max(b * b, abs(a) * c) or (b <= 0 and a >= 0):
        return math.inf, math.inf
    root = math.sqrt(max(slack, 0.0))
    high = math.inf
    if b > 0:
        low = c / (b + root)
    else:
        low = (b - root) / a
    if a > 0:
        high = (b + root) / a * far / unit
    return low * far / unit, high


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

    def _derivative(self, z: Array, w: Array) -> projections.Derivative:
        weight: Array = 1 / self.axes.cpu().numpy() ** 2
        return projections.smooth(z, w, weight * w, weight)

    def _lmo(self, g: Tensor) -> Tensor:
        axes: Tensor = self.axes.to(g.device)
        return axes * _of_length(axes * g.double(), -self.radius)

    def _norm(self, x: Tensor) -> float:
        return float(projections._pnorm(x.double() / self.axes.to(x.device), 2.0))

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
    size = float(projections._pnorm(n, 2.0))
    n, squares = n / size, u**2 * min(longest / largest / size, 1e300)
    tau = max(0.0, float((n.abs() - squares).max()))
    for _ in range(100):
        shifted = (squares + tau).clamp_min(1e-300)
        z = n / shifted
        phi = projections.norm(z)
        following = min(tau + (phi - 1) * phi**2 / float((z * z / shifted).sum()), 1.0)
        if following <= tau * (1 + torch.finfo(torch.float64).eps):
            break
        tau = following
    return z
