"""Polytopes: boxes, the simplex and convex hulls of given points."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from scipy.optimize import linprog, nnls
from torch import Tensor

from isthmus.base.matrix import Array
from isthmus.base.validate import check, positive
from isthmus.sets.base import ConvexSet, VertexForm, own, tolerance
from isthmus.sets.projections import Derivative, _pnorm, _unthresholded, nearest, norm, shrink, threshold
from isthmus.sets.widths import Width, _exactly, _max_normal


@dataclass(frozen=True, eq=False)
class Box(ConvexSet):
    """The box {x : lo <= x <= hi}, with numbers (any dimension) or vectors as bounds.

    The gauge is inf{t >= 0 : t lo <= x <= t hi}, which is +inf off the cone of a box that misses the origin.

    >>> Box(0.0, [1.0, 2.0]).project(torch.tensor([3.0, -1.0]))
    tensor([1., 0.])
    >>> Box(1.0, 2.0).gauge([1.0, 4.0])
    inf
    """

    lo: Any
    hi: Any

    def __post_init__(self) -> None:
        lo, hi = own("lo", self.lo), own("hi", self.hi)
        for name, bound in (("lo", lo), ("hi", hi)):
            ok = bound.ndim == 0 or (bound.ndim == 1 and bound.numel() > 0)
            check(ok, f"{name}.shape", tuple(bound.shape), "give a number or a vector")
        both = lo.ndim == hi.ndim == 1
        check(not both or len(lo) == len(hi), "hi.shape", tuple(hi.shape), "give lo and hi of the same length")
        check(bool((lo <= hi).all()), "lo", self.lo, "give lo <= hi in every coordinate")
        self._keep(lo=lo, hi=hi, dim=next((len(bound) for bound in (lo, hi) if bound.ndim), None))

    def _bounds(self, x: Tensor) -> tuple[Tensor, Tensor]:
        d = x.shape[-1]
        return self.lo.to(x).expand(d), self.hi.to(x).expand(d)

    def _project(self, x: Tensor) -> Tensor:
        return x.clamp(*self._bounds(x))

    def _derivative(self, z: Array, w: Array) -> Derivative:
        return lambda x: x * (z == w)

    def _lmo(self, g: Tensor) -> Tensor:
        lo, hi = self._bounds(g)
        return torch.where(g > 0, lo, hi)

    def _scales(self, x: Tensor) -> tuple[float, float]:
        lo, hi = self._bounds(x)
        bound, value = torch.cat([hi, -lo]), torch.cat([x, -x])  # value <= t bound
        if bool(((bound <= 0) & (value > 0)).any()):
            return math.inf, math.inf
        ratio = value / bound
        low = torch.where(bound > 0, ratio, torch.zeros_like(ratio)).max()
        high = torch.where(bound < 0, ratio, torch.full_like(ratio, math.inf)).min()
        return max(0.0, float(low)), float(high)

    def _diameter(self, d: int) -> float:
        return norm((self.hi - self.lo).expand(d))

    def _width(self, d: int, samples: int, seed: int) -> Width:
        return _exactly(float((self.hi - self.lo).expand(d).sum()) / math.sqrt(2 * math.pi))


@dataclass(frozen=True)
class Simplex(ConvexSet):
    """The simplex {x : x >= 0, sum_i x_i = radius}; radius 1 is the probability simplex.

    Projection is max(x - tau, 0), tau found in expected linear time without a sort.  The gauge is
    sum(x) / radius for x >= 0 and +inf otherwise.

    >>> Simplex().project(torch.tensor([0.5, 0.5, -1.0]))
    tensor([0.5000, 0.5000, 0.0000])
    >>> Simplex().lmo(torch.tensor([-1.0, -3.0]))
    tensor([0., 1.])
    """

    radius: float = 1.0

    def __post_init__(self) -> None:
        positive(radius=self.radius)

    def _solve(self, x: Tensor, warm: float | None) -> tuple[Tensor, float]:
        top, drop = threshold(x, self.radius, warm)
        y = shrink(x.clone(), self.radius, top, drop)
        return y.mul_(self.radius / float(y.sum(dtype=torch.float64))), top + drop

    def _project(self, x: Tensor) -> Tensor:
        return self._solve(x, None)[0]

    def _derivative(self, z: Array, w: Array) -> Derivative:
        return _unthresholded(w)

    def _lmo(self, g: Tensor) -> Tensor:
        s = torch.zeros_like(g)
        s[g.argmin()] = self.radius
        return s

    def _scales(self, x: Tensor) -> tuple[float, float]:
        if float(x.min()) < 0:
            return math.inf, math.inf
        t = float(x.sum(dtype=torch.float64)) / self.radius
        return t, t

    def _diameter(self, d: int) -> float:
        if d == 1:
            return 0.0
        return self.radius * math.sqrt(2)

    def _width(self, d: int, samples: int, seed: int) -> Width:
        return _exactly(self.radius * _max_normal(d))

    def _vertex_form(self) -> VertexForm:
        return VertexForm(self.radius)


@dataclass(frozen=True, eq=False)
class ConvexHull(ConvexSet):
    """The convex hull of the rows of `vertices` (l x d).

    Projection is Wolfe's nearest-point method in float64, checked by its optimality gap.  The gauge is the linear
    program min{sum w : vertices^T w = x, w >= 0}, +inf off the cone of the vertices.

    >>> hull = ConvexHull([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> hull.project(torch.tensor([1.0, 1.0]))
    tensor([0.5000, 0.5000])
    >>> round(hull.diameter() ** 2, 12)
    2.0
    """

    vertices: Any

    def __post_init__(self) -> None:
        rows = own("vertices", self.vertices, ndim=2)
        check(rows.numel() > 0, "vertices.shape", tuple(rows.shape), "give at least one vertex, one per row")
        self._keep(vertices=rows, dim=rows.shape[1])

    def _project(self, x: Tensor) -> Tensor:
        rows, target = self.vertices.to(x.device), x.double()
        eps = torch.finfo(torch.float64).eps
        p, gap = nearest(target, lambda g: rows[(rows @ g).argmax()], 4 * eps, 100 + 20 * sum(rows.shape))
        scale = max(1.0, norm(target), norm(rows)) * max(1.0, norm(rows))
        if gap > 1e-10 * scale:
            raise ArithmeticError(f"ConvexHull.project ended with optimality gap {gap:.1e}: rescale the vertices")
        return p.to(x.dtype)

    def _lmo(self, g: Tensor) -> Tensor:
        rows: Tensor = self.vertices.to(g)
        return rows[(rows @ g).argmin()].clone()  # a row by its index is a view of the vertices

    def _gauge(self, x: Tensor) -> float:
        return self._extreme_scale(x, 1.0)

    def _scales(self, x: Tensor) -> tuple[float, float]:
        low = self._extreme_scale(x, 1.0)
        if low == math.inf:
            return low, low
        return low, self._extreme_scale(x, -1.0)

    def _extreme_scale(self, x: Tensor, sign: float) -> float:
        """The least (sign 1) or greatest (sign -1) t with x in t C."""
        rows, size = self.vertices.cpu(), norm(x)
        lengths = _pnorm(rows, 2)
        rows, lengths, pointed = rows[lengths > 0], lengths[lengths > 0], bool((lengths > 0).all())
        if size == 0 and sign > 0:
            return 0.0
        if not len(rows):
            return math.inf
        columns = (rows / lengths[:, None]).T.numpy()  # of length 1: vertices of any size make a well-scaled program
        shares, residual = nnls(columns, (x.double().cpu() / (size or 1.0)).numpy(), maxiter=100 * (1 + len(rows)))
        if residual > tolerance(x) or (sign < 0 and not pointed):  # outside the cone, or the origin is a vertex
            return math.inf
        # The program gets the nearest point of the cone, or rounding of x would make it infeasible.
        options = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
        cost = sign * (float(lengths.max()) / lengths).clamp_max(1e15).numpy()  # beyond it the program reads infinity
        answer = linprog(cost, A_eq=columns, b_eq=columns @ shares, method="highs", options=options)
        if answer.status == 3:
            return math.inf
        best = torch.from_numpy(shares)
        if answer.status == 0:
            best = torch.from_numpy(answer.x)
        t = float((best / lengths).where(best > 0, 0.0).sum()) * size
        # A point of C has scale 1 among its scales, whatever the program's last digits say.
        near_one = abs(t - 1) < 1e-3 and self._distance(x) <= tolerance(x) * max(1.0, size)
        if not near_one:
            return t
        if sign > 0:
            return min(t, 1.0)
        return max(t, 1.0)

    def _support(self, g: Tensor) -> Tensor:
        rows: Tensor = self.vertices.to(g)
        return (g @ rows.T).amax(-1)

    def _diameter(self, d: int) -> float:
        exact = "donot_use_mm_for_euclid_dist"  # the product form loses half the digits
        blocks = self.vertices.split(1024)
        return max(float(torch.cdist(rows, self.vertices, compute_mode=exact).max()) for rows in blocks)

    def _vertex_form(self) -> VertexForm:
        return VertexForm(rows=self.vertices)
