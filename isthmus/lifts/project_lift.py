"""Project and lift: the point of C whose sketch is nearest to a target, and of these the nearest to where one stands.

Basis pursuit and CoSaMP (Needell and Tropp 2009) decode sparse vectors.

The sketch as the solvers see it: NumPy float64, scaled to unit norm, with a cheap solve where it has one.

Every operator applies `Phi / scale` and solves `(Phi_S Phi_S' + eps I) X = B` for a set S of columns:

* `_BucketOperator`: each column has at most one non-zero (count-sketches, coordinates, blocks): the matrix is diagonal;
* `_DenseOperator`: the m x d matrix itself, by Cholesky;
* `_MatrixFree`: only `forward` and `adjoint`, by conjugate gradients.

The inner solver for any convex set with a projection: a semismooth Newton method on the dual in R^m.

    max_mu <v, mu> - eps/2 ||mu||^2 - psi(w0 + Phi' mu),   grad psi = P_C

has gradient F(mu) = v - Phi P_C(w0 + Phi' mu) - eps mu and generalised Hessian -(Phi J Phi' + eps I).  Newton steps
come from conjugate gradients; a line search on the directional derivative (monotone, the dual being concave) makes
them global.  The primal point w = P_C(w0 + Phi' mu) is in C at every step.

The inner solver for l1 balls and simplices: a primal-dual active-set method on the regularised problem.

    min_{w in C} 1/2 ||Phi w - v||^2 + eps/2 ||w - w0||^2

The projection onto these sets is affine on pieces.  A piece names the free coordinates and their signs; on it the
problem is a linear system with at most one multiplier tau (the threshold), whose solution names the next piece.
This is a semismooth Newton method in which tau is an unknown of its own rather than projected out, so that
coordinates cross their dead zone in one step: a handful of pieces is enough.  Where the number of changes stops
falling it gives up, and the path takes a shorter step in eps.

The path eps -> 0 of the regularised problem, whose end is the minimiser nearest to the start.

    w(eps) = argmin_{w in C} 1/2 ||Phi w - v||^2 + eps/2 ||w - w0||^2

||w(eps) - w0|| grows to the distance of the nearest minimiser, and f(w(eps)) falls to f*.  Each point of the path
starts the next; an engine (active set or Newton) solves one point.  Phi is scaled to unit norm, so that eps has no
unit.  The path ends when the certificate and the last move are small enough.

Loose solves for the optimisation loop take projected gradient with momentum from the start, in torch, in place of all
that.  The vector of least l1 norm with a given sketch is basis pursuit.  For maps too large for a matrix, and for the
point of least gauge, it is the least t with a target in t Phi C, by Newton's method on the value function (van den
Berg, Friedlander 2008).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Generic, NamedTuple, TypedDict, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.optimize import linprog, nnls
from scipy.sparse.linalg import LinearOperator, cg, lsmr
from threadpoolctl import ThreadpoolController
from torch import Tensor

from isthmus.base import validate
from isthmus.base.matrix import Array
from isthmus.sets import ConvexSet, L1Ball, VertexForm, Whole, projections
from isthmus.sets.base import Point
from isthmus.sketches.base import Sketch

Mask = NDArray[np.bool_]

DENSE_BYTES = 1 << 28
"""A working copy of the matrix is made only below this size."""


class _BucketOperator:
    """Columns with one non-zero `value[j]` in row `index[j]`."""

    def __init__(self, index: NDArray[np.intp], value: Array, m: int, scale: float) -> None:
        self.index, self.value, self.m, self.d, self.scale = index, value / scale, m, len(index), scale
        self._square = self.value * self.value

    def forward(self, w: Array) -> Array:
        return np.bincount(self.index, self.value * w, self.m).astype(np.float64, copy=False)

    def adjoint(self, y: Array) -> Array:
        return self.value * y[self.index]

    def solve(self, mask: Mask, eps: float, right: tuple[Array, ...]) -> list[Array]:
        diagonal = np.bincount(self.index, self._square * mask, self.m) + eps
        return [b / diagonal for b in right]


class _DenseOperator:
    """An explicit m x d matrix."""

    def __init__(self, matrix: Array) -> None:
        self.m, self.d = matrix.shape
        self.scale = float(np.linalg.norm(matrix)) / math.sqrt(self.m) or 1.0
        self.matrix = matrix / self.scale

    def forward(self, w: Array) -> Array:
        return self.matrix @ w

    def adjoint(self, y: Array) -> Array:
        return y @ self.matrix

    def solve(self, mask: Mask, eps: float, right: tuple[Array, ...]) -> list[Array]:
        part, columns = self.matrix, np.stack(right, axis=1)
        if not mask.all():
            part = np.compress(mask, self.matrix, axis=1)
        return list(_spd_solve(part @ part.T, columns, eps).T)


class _MatrixFree:
    """A sketch known by its two products."""

    def __init__(self, sketch: Sketch) -> None:
        self._sketch, self.m, self.d, self.scale = sketch, sketch.m, sketch.d, float(sketch.norm)

    def forward(self, w: Array) -> Array:
        return self._sketch.forward(torch.from_numpy(w)).numpy() / self.scale

    def adjoint(self, y: Array) -> Array:
        return self._sketch.adjoint(torch.from_numpy(y)).numpy() / self.scale

    def solve(self, mask: Mask, eps: float, right: tuple[Array, ...]) -> list[Array]:
        return [_conjugate_gradient(lambda y: self.forward(mask * self.adjoint(y)) + eps * y, b, 1e-10) for b in right]


Operator = _BucketOperator | _DenseOperator | _MatrixFree
"""Phi / scale with its transpose and its restricted Gram solve."""


_pools = cache(ThreadpoolController)


def _operator(sketch: Sketch | Array) -> Operator:
    """The cheapest operator that represents `sketch` (a Sketch or an m x d matrix) exactly."""
    if not isinstance(sketch, Sketch):
        return _DenseOperator(np.ascontiguousarray(sketch, dtype=np.float64))
    by_column = _one_per_column(sketch)
    if by_column is not None:
        return by_column
    if 8 * sketch.m * sketch.d <= DENSE_BYTES:
        matrix = sketch.dense(torch.float64)
        return _DenseOperator(np.ascontiguousarray(matrix.cpu().numpy()))
    return _MatrixFree(sketch)


def _one_per_column(sketch: Sketch) -> _BucketOperator | None:
    """The bucket form, found by two adjoints; None unless every column has at most one non-zero.

    With codes c_i = i + u_i, u_i random in (1/4, 3/4), a column with one non-zero has ratio Phi'c / Phi'1 = c_i with
    i the row; a column with several has a mixture of codes there, which is no code except on a null set.
    """
    m = sketch.m
    codes = np.arange(m) + np.random.default_rng(m).uniform(0.25, 0.75, m)
    total, coded = (sketch.adjoint(torch.from_numpy(y)).numpy() for y in (np.ones(m), codes))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where((total == 0) & (coded == 0), codes[0], coded / total)
    if not (ratio.min() >= 0 and ratio.max() < m):
        return None
    index = ratio.astype(np.intp)
    if np.abs(ratio - codes[index]).max() > 1e-12 * m:
        return None
    return _BucketOperator(index, total, m, float(sketch.norm))


def _spd_solve(matrix: Array, right: Array, ridge: float = 0.0) -> Array:
    """Solve with matrix + ridge I (the matrix is overwritten), positive semidefinite: by Cholesky, or by least squares
    where rounding has made it singular."""
    matrix.flat[:: len(matrix) + 1] += ridge
    try:
        solved: Array = cho_solve(cho_factor(matrix, lower=True, check_finite=False), right, check_finite=False)
    except LinAlgError:
        solved = np.linalg.lstsq(matrix, right, rcond=None)[0].astype(np.float64, copy=False)
    return solved


def _conjugate_gradient(apply: Callable[[Array], Array], b: Array, tol: float, most: int = 500) -> Array:
    """x with ||A x - b|| <= tol ||b|| for a positive definite A, or the last of `most` iterates."""
    x: Array = cg(LinearOperator((len(b), len(b)), matvec=apply, dtype=np.float64), b, rtol=tol, maxiter=most)[0]
    return x


SMALLEST, LARGEST = 1e-9, 1e6
"""The path stays between these: below, rounding would win; above, w(eps) is the projection of w0 itself."""


@dataclass(frozen=True)
class _LiftProblem:
    """min_{w in C} ||Phi w - v||^2 near w0, in the units of a unit-norm Phi."""

    constraint: ConvexSet
    phi: Operator
    v: Array
    w0: Array

    @cached_property
    def form(self) -> VertexForm | None:
        """The vertices of a polytope that brings them."""
        if not self.constraint.can("vertex_form"):
            return None
        return self.constraint.vertex_form()

    def reference(self, w: Array) -> float:
        """What tolerances are relative to: ||v||^2, or for a zero target the size of a point."""
        return float(self.v @ self.v) or max(float(w @ w), float(self.w0 @ self.w0))

    def certificate(self, w: Array, residual: Array) -> float:
        """An upper bound of f(w) - f*: from the Frank-Wolfe gap where there is a support function, else f(w)."""
        f = float(residual @ residual)
        if f == 0 or not self.constraint.can("support"):
            return f
        pull = self.phi.adjoint(residual)
        return _bound_from_gap(f, self.constraint.support(torch.from_numpy(pull)) - float(pull @ w))


def _bound_from_gap(f: float, gap: float) -> float:
    """An upper bound of f(w) - f* for f = ||r||^2, from the Frank-Wolfe gap g = max_{s in C} <Phi' r, s - w>.

    f* >= (||r||^2 - g)_+^2 / ||r||^2.
    """
    gap = max(0.0, gap)
    if gap >= f:
        return f
    return gap * (2 - gap / f)


@dataclass(frozen=True)
class _PathEnd:
    """Where the path ended: the point, its multiplier mu = (v - Phi w)/eps, and how it got there."""

    w: Array
    mu: Array
    residual: Array
    certificate: float
    iterations: int
    converged: bool


class _Piece(NamedTuple):
    """An affine piece: the `free` coordinates with their `signs`; `bound` when the threshold is active."""

    free: Mask
    signs: Array
    bound: bool = True


class _ActiveEngine:
    """The active-set engine, for {sum |w| <= radius} (signed) and {w >= 0, sum w = radius}: z = w0 + Phi' mu."""

    def __init__(self, problem: _LiftProblem, form: VertexForm) -> None:
        self._problem, self._radius, self._signed = problem, form.radius, form.signed
        self._size: Callable[[Array], Array] = np.asarray  # what the threshold is compared with
        if form.signed:
            self._size = np.abs
        self.first, self.factor = 1e-2, 1e-2
        if isinstance(problem.phi, _BucketOperator):
            self.first, self.factor = 1e-4, 1e-3
        self._start: _Piece | None = None

    def stage(self, eps: float, budget: int) -> tuple[Array, Array, int, bool]:
        """Solve at eps from the last piece, or from that of a projected gradient step."""
        phi, v, w0, piece = self._problem.phi, self._problem.v, self._problem.w0, self._start
        if piece is None:
            near = w0 + phi.adjoint(v - phi.forward(w0)) / max(1.0, eps)
            piece = self._classify(near, projections.sorted_threshold(self._size(near), self._radius))
        fewest, patience, solved = phi.d + 1, 5, False
        z, tau, mu = self._solve(piece, eps)
        for used in range(1, min(60, budget) + 1):  # noqa: B007  # told below
            following = self._classify(z, tau)
            changed = (piece.free != following.free) | (piece.free & (piece.signs != following.signs))
            changed |= piece.bound != following.bound
            count = int(np.count_nonzero(changed))
            if piece.bound == following.bound and count <= 64:  # what differs by rounding does not count
                margin = np.abs(self._size(z) - tau)
                changed &= margin > 1e-13 * (abs(tau) + float(np.abs(z).max()))
            solved, patience = not changed.any(), patience - 1
            if count < fewest:
                fewest, patience = count, 5
            if solved or patience < 0:
                break
            piece = following
            z, tau, mu = self._solve(piece, eps)
        if solved:
            self._start = piece
        return self._point(z, tau), mu, used, solved

    def _classify(self, z: Array, tau: float) -> _Piece:
        """The piece on which z - tau falls."""
        if self._signed and tau <= 0:
            return _Piece(np.ones(len(z), dtype=bool), np.ones(len(z)), bound=False)
        size = self._size(z)
        free = size > tau
        free[int(size.argmax())] = True
        return _Piece(free, np.where((z < 0) & self._signed, -1.0, 1.0))

    def _point(self, z: Array, tau: float) -> Array:
        """The thresholded point, scaled so that rounding leaves it in the set."""
        if self._signed:
            w = np.sign(z) * np.maximum(np.abs(z) - max(tau, 0.0), 0.0)
        else:
            w = np.maximum(z - tau, 0.0)
        total = float(np.abs(w).sum())
        if total > self._radius or (not self._signed and total > 0):
            w *= self._radius / total
        return w

    def _solve(self, piece: _Piece, eps: float) -> tuple[Array, float, Array]:
        """z, the threshold and mu = (v - Phi w) / eps on a piece, from a system in R^m or in the free coordinates."""
        phi, v, w0, free = self._problem.phi, self._problem.v, self._problem.w0, piece.free
        count = int(np.count_nonzero(free))
        if isinstance(phi, _DenseOperator) and count < phi.m:
            return self._narrow(phi, piece, eps)
        right = v - phi.forward(w0 * free)
        if not piece.bound:
            (mu,) = phi.solve(free, eps, (right,))
            return w0 + phi.adjoint(mu), 0.0, mu
        signs = piece.signs * free
        image = phi.forward(signs)
        x, y = phi.solve(free, eps, (right, image))
        tau = float((signs @ w0 + image @ x - self._radius) / (count - image @ y))
        mu = x + tau * y
        return w0 + phi.adjoint(mu), tau, mu

    def _narrow(self, phi: _DenseOperator, piece: _Piece, eps: float) -> tuple[Array, float, Array]:
        """The same with fewer free coordinates than rows: no digit is lost to 1/eps."""
        v, w0, free = self._problem.v, self._problem.w0, piece.free
        part, near, signs = np.compress(free, phi.matrix, axis=1), w0[free], piece.signs[free]
        x, y = _spd_solve(part.T @ part, np.stack([part.T @ v + eps * near, signs], axis=1), eps).T
        level = float((signs @ x - self._radius) / (signs @ y)) * piece.bound
        a, tau = x - level * y, level / eps
        mu = (v - part @ a) / eps
        z = w0 + phi.adjoint(mu)
        z[free] = a + tau * signs
        return z, tau, mu


class _HullEngine:
    """Hulls by non-negative least squares: finite for redundant vertices too.

    The point of least norm in the hull of the columns of D has weights x / sum x, x the minimiser of
    ||D x||^2 + (sum x - 1)^2 over x >= 0.
    """

    first, factor = 1e-2, 1e-2

    def __init__(self, problem: _LiftProblem, vertices: Array) -> None:
        self._problem, self._vertices = problem, vertices
        self._images = np.stack([problem.phi.forward(row) for row in vertices]) - problem.v

    def stage(self, eps: float, budget: int) -> tuple[Array, Array, int, bool]:
        """Solve at eps from scratch."""
        stacked = np.vstack([self._images.T, eps**0.5 * (self._vertices - self._problem.w0).T])
        reduced = np.asarray(np.linalg.qr(stacked, mode="r"), dtype=np.float64)
        size = float(np.linalg.norm(reduced, axis=0).min()) or float(np.linalg.norm(reduced)) or 1.0
        rows: Array = np.vstack([reduced / size, np.ones(len(self._vertices))])
        right = np.zeros(len(rows))
        right[-1] = 1.0
        x, _ = nnls(rows, right, maxiter=50 * len(self._vertices))
        w = (x / x.sum()) @ self._vertices
        return w, (self._problem.v - self._problem.phi.forward(w)) / eps, 1, True


class _DualPoint(NamedTuple):
    """mu, the point w = P_C(w0 + Phi' mu), its image, and the derivative of the projection there."""

    mu: Array
    w: Array
    image: Array
    derivative: projections.Derivative


class _NewtonEngine:
    """The dual Newton engine, for every convex set with a projection."""

    first = factor = 1e-1

    def __init__(self, problem: _LiftProblem) -> None:
        self._problem = problem
        self._point = self._at(np.zeros(problem.phi.m))
        self._size = problem.reference(self._point.w) ** 0.5

    def stage(self, eps: float, budget: int) -> tuple[Array, Array, int, bool]:
        """Solve at eps from the last multiplier, to ||F|| <= tol."""
        point, used = self._point, 0
        residual, length = (float(np.linalg.norm(x)) for x in (self._problem.v - point.image, point.mu))
        loose = min(1e-3, 0.1 * eps) * min(residual, eps * length or residual)
        tol = max(loose, 1e-10 * float(self._size), 1e-14 * length)  # what rounding leaves of a gradient
        gradient = self._gradient(point, eps)
        while float(np.linalg.norm(gradient)) > tol:
            if used >= min(50, budget):
                return point.w, point.mu, used, False
            stepped, count = self._line_search(point, eps, gradient)
            used += count
            if stepped is point:
                return point.w, point.mu, used, False
            point, gradient = stepped, self._gradient(stepped, eps)
        self._point = point
        return point.w, point.mu, used, True

    def _at(self, mu: Array) -> _DualPoint:
        phi = self._problem.phi
        w, derivative = self._problem.constraint.linearised(self._problem.w0 + phi.adjoint(mu))
        return _DualPoint(mu, w, phi.forward(w), derivative)

    def _gradient(self, point: _DualPoint, eps: float) -> Array:
        return self._problem.v - point.image - eps * point.mu

    def _line_search(self, point: _DualPoint, eps: float, gradient: Array) -> tuple[_DualPoint, int]:
        """The first trial along an approximate Newton step whose slope is at most half the first one in size."""
        phi = self._problem.phi

        def apply(x: Array) -> Array:
            return phi.forward(point.derivative(phi.adjoint(x))) + eps * x

        step = _conjugate_gradient(apply, gradient, 1e-3, 200)
        if not np.isfinite(step).all() or float(step @ gradient) <= 0:  # this curvature is useless
            step = gradient / (1.0 + eps)
        slope = float(gradient @ step)
        lo, slope_lo, hi, slope_hi, t = 0.0, slope, 0.0, 0.0, 1.0
        best = point
        for count in range(1, 13):
            trial = self._at(point.mu + t * step)
            here = float(self._gradient(trial, eps) @ step)
            if abs(here) <= 0.5 * slope:
                return trial, count
            if here > 0:
                lo, slope_lo, best = t, here, trial
                if hi == 0.0:
                    t *= 4.0
                    continue
            else:
                hi, slope_hi = t, here
            fraction = slope_lo / (slope_lo - slope_hi)
            t = lo + (hi - lo) * min(max(fraction, 0.1), 0.9)
        return best, 12


Engine = _ActiveEngine | _HullEngine | _NewtonEngine
"""One point of the path after the other; `stage` gives (w, mu, iterations, solved)."""


def _nearest(problem: _LiftProblem, tol: float, max_iter: int) -> _PathEnd:
    """The minimiser nearest to w0: by the fast engine of the set and, where that does not converge, by Newton's."""
    run: Engine
    if problem.form is None:
        run = _NewtonEngine(problem)
    elif (vertices := problem.form.all()) is None:  # they are the axes
        run = _ActiveEngine(problem, problem.form)
    else:
        run = _HullEngine(problem, vertices.double().cpu().numpy())
    end = _follow(problem, run, tol, max_iter)
    if not end.converged and isinstance(run, _ActiveEngine):
        again = _follow(problem, _NewtonEngine(problem), tol, max_iter)
        used = end.iterations + again.iterations
        if again.converged or again.certificate < end.certificate:
            end = again
        end = replace(end, iterations=used)
    if problem.form is not None:
        return end
    w = problem.constraint.project(torch.from_numpy(end.w)).numpy()
    return replace(end, w=w, residual=problem.v - problem.phi.forward(w))


def _follow(problem: _LiftProblem, run: Engine, tol: float, max_iter: int) -> _PathEnd:
    """Follow the path until f - f* <= tol ||v||^2 and the point has settled to sqrt(tol) of its move."""
    eps, factor, used = run.first, run.factor, 0
    last: Array | None = None
    best: _PathEnd | None = None
    while True:
        w, mu, count, solved = run.stage(eps, max_iter - used)
        used += count
        residual = problem.v - problem.phi.forward(w)
        end = _PathEnd(w, mu, residual, np.inf, used, False)
        if solved and last is not None:
            enough, change = tol * problem.reference(w), w - last
            rounding = 1e-10 * (float(np.linalg.norm(w)) + float(np.linalg.norm(problem.w0)))
            move = float(np.linalg.norm(w - problem.w0))
            if float(np.linalg.norm(change)) <= math.sqrt(tol) * move + rounding:
                bound, image = problem.certificate(w, residual), problem.phi.forward(change)
                end = _PathEnd(w, mu, residual, bound, used, bound <= enough)
                # without a support function the bound is f itself: the images of two points must agree
                if end.converged or (not problem.constraint.can("support") and float(image @ image) <= enough):
                    return replace(end, converged=True)
        if best is None or end.certificate < best.certificate or (solved and not np.isfinite(best.certificate)):
            best = end
        if used >= max_iter or (solved and eps <= SMALLEST) or (not solved and (factor > 0.6 or eps > LARGEST)):
            bound = min(best.certificate, problem.certificate(best.w, best.residual))
            return replace(best, certificate=bound, iterations=used, converged=False)
        if solved:
            last, eps = w, max(eps * factor, SMALLEST)
        elif last is None:
            eps = 30 * eps
        else:
            eps, factor = eps / factor**0.5, factor**0.5


def _value_root(problem: _LiftProblem, tol: float, max_iter: int, limit: float = math.inf) -> _PathEnd | None:
    """w in t C with ||Phi w - v|| <= tol ||v|| for the least such t; None when that t is `limit` or more.

    phi(t) = min_{w in tC} ||Phi w - v|| is convex and decreasing with slope -h_C(Phi' r)/||r||, so the steps
    t + ||r||^2 / h_C(Phi' r) approach the root from below.  w in tC with target v is t u, u in C with target v/t.
    """
    constraint, phi, v = problem.constraint, problem.phi, problem.v
    constraint.require("support")
    enough = tol * float(np.linalg.norm(v))
    t, used, residual = 0.0, 0, v
    while True:
        pull = constraint.support(torch.from_numpy(phi.adjoint(residual)))
        if pull <= 0:
            return None
        step = float(residual @ residual) / pull
        t += step
        if t >= limit or not math.isfinite(t):
            return None
        end = _nearest(_LiftProblem(constraint, phi, v / t, problem.w0 / t), min(1e-8, tol**2), max_iter)
        used += end.iterations
        w = t * end.w
        residual = v - phi.forward(w)
        size = float(np.linalg.norm(residual))
        if size <= enough or used >= max_iter or step <= 1e-14 * t:
            return _PathEnd(w, end.mu, residual, size * size, used, size <= enough)


def _least_gauge(problem: _LiftProblem, end: _PathEnd, tol: float, max_iter: int) -> _PathEnd:
    """Of the minimisers one of least gauge, from one minimiser `end`.

    A target outside Phi C has minimisers of gauge 1 only, and so has every target over a simplex.  In an l1 ball that
    holds the target it is basis pursuit.
    """
    constraint, phi, v, form = problem.constraint, problem.phi, problem.v, problem.form
    if float(end.residual @ end.residual) > tol * problem.reference(end.w):
        return end
    if form is not None and form.rows is None and not form.signed:
        return end
    if form is not None and form.rows is None and not isinstance(phi, _MatrixFree):
        w, _, steps, _ = _pursue(phi, v, 1e-9)
        if float(np.abs(w).sum()) > form.radius:
            return end
        residual = v - phi.forward(w)
        return _PathEnd(w, end.mu, residual, float(residual @ residual), end.iterations + steps, True)
    if not constraint.contains(torch.zeros(phi.d, dtype=torch.float64)):
        validate.refuse("constraint", constraint, "give a set that contains the origin: pick='min_gauge' needs one")
    if not np.any(v):
        return replace(end, w=np.zeros(phi.d), residual=v, certificate=0.0, converged=True)
    path_end = _value_root(problem, 0.1 * tol**0.5, max_iter, limit=1.0)
    if path_end is None:
        return end
    return replace(path_end, iterations=path_end.iterations + end.iterations)


@dataclass(frozen=True)
class BasisPursuit(Generic[Point]):
    """What `basis_pursuit` found: w, ||w||_1, and a proof.

    Attributes:
        point: w with Phi w = y.
        value: ||w||_1.
        dual: lam with ||Phi' lam||_inf <= 1, so that <lam, y> is below every feasible value.
        gap: value - <lam, y>, a proven bound of the distance to the least value.
        residual: ||Phi w - y||.
        iterations: breakpoints of the path, or solver iterations.
        method: "closed form", "homotopy", "linear program" or "value function".
    """

    point: Point
    value: float
    dual: Point
    gap: float
    residual: float
    iterations: int
    method: str


def basis_pursuit(sketch: Sketch | Point, y: Point, tol: float = 1e-8) -> BasisPursuit[Point]:
    """min ||w||_1 subject to Phi w = y.

    The l1-homotopy (`sklearn.linear_model.lars_path`) follows min 1/2 ||Phi w - y||^2 + lam ||w||_1 from
    lam = ||Phi' y||_inf down to 0.  With the support S and the signs s of its end, Phi_S (Phi_S' Phi_S)^{-1} s is a
    dual certificate.  A path that ends without one (ties, dependent columns) hands over to a linear program (HiGHS).
    Sketches with one non-zero a column have a closed form; maps too large for a matrix use the value function.

    Args:
        sketch: a Sketch or an m x d matrix.
        y: the vector of R^m.
        tol: the gap and the residual are at most tol relative to ||w||_1 and ||y||.

    Returns:
        A `BasisPursuit`; float64 inside, `point` of the type of `y`.

    Raises:
        InvalidInput: y is not in the range of Phi.

    >>> pursuit = basis_pursuit(np.array([[1.0, 2.0, 0.0], [0.0, 0.0, 1.0]]), np.array([2.0, 3.0]))
    >>> pursuit.point.round(9).tolist(), round(pursuit.value, 9)
    ([0.0, 1.0, 3.0], 4.0)
    """
    validate.positive(tol=tol)
    right = validate.as_tensor("y", y, ndim=1).double().cpu().numpy()
    if isinstance(sketch, Sketch):
        phi = _operator(sketch)
    else:
        phi = _operator(validate.as_tensor("matrix", sketch, ndim=2).numpy())
    validate.shape((phi.m,), y=torch.from_numpy(right))
    w, dual, steps, method = _pursue(phi, right / phi.scale, tol)
    dual = dual / max(1.0, float(np.abs(phi.adjoint(dual)).max())) / phi.scale
    value = float(np.abs(w).sum())
    residual = float(np.linalg.norm(phi.scale * phi.forward(w) - right))
    gap = max(0.0, value - float(dual @ right))
    if isinstance(y, Tensor):
        point, certificate = (torch.from_numpy(x).to(y.device) for x in (w, dual))
        return BasisPursuit(point, value, certificate, gap, residual, steps, method)
    return BasisPursuit(w, value, dual, gap, residual, steps, method)


def _pursue(phi: Operator, y: Array, tol: float) -> tuple[Array, Array, int, str]:
    """(w, dual, iterations, method) for an operator."""
    size = float(np.linalg.norm(y))
    if size == 0:
        return np.zeros(phi.d), np.zeros(phi.m), 0, "closed form"
    if isinstance(phi, _BucketOperator):
        return *_closed_form(phi, y), 1, "closed form"
    if isinstance(phi, _MatrixFree):  # the least radius of an l1 ball whose image holds y
        end = _value_root(_LiftProblem(L1Ball(1.0), phi, y, np.zeros(phi.d)), max(tol, 1e-7), 100_000)
        if end is None or not end.converged:
            raise _out_of_range()
        return end.w, end.mu / float(np.abs(phi.adjoint(end.mu)).max()), end.iterations, "value function"
    matrix, unit, method = phi.matrix, y / size, "homotopy"
    w, dual, steps = _homotopy(matrix, unit)
    value = float(np.abs(w).sum())
    bound = float(dual @ unit) / max(1.0, float(np.abs(dual @ matrix).max()))
    if value - bound > tol * value or float(np.linalg.norm(matrix @ w - unit)) > tol:
        w, dual, steps = _linear_program(matrix, unit)
        method = "linear program"
    return w * size, dual, steps, method


def _homotopy(matrix: Array, y: Array) -> tuple[Array, Array, int]:
    """(w, dual, breakpoints) at the end of the path, with the certificate of its support and signs."""
    from sklearn.linear_model import lars_path  # scikit-learn's estimators take longer to load than this module

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ties and dependent columns: what comes out is judged by its certificate
        levels, _, path, steps = lars_path(matrix, y, method="lasso", return_n_iter=True)
    last = np.flatnonzero(levels >= 1e-9 * levels[0])[-1]
    between = path[:, last : last + 2].mean(axis=1)  # at the very end signs may be those of roundings
    support = np.flatnonzero(between)
    part = matrix[:, support]
    return path[:, -1], part @ _spd_solve(part.T @ part, np.sign(between[support])), int(steps)


def _linear_program(matrix: Array, y: Array) -> tuple[Array, Array, int]:
    m, d = matrix.shape
    answer = linprog(np.ones(2 * d), A_eq=np.hstack([matrix, -matrix]), b_eq=y, method="highs")
    if answer.status == 2:
        raise _out_of_range()
    if answer.status != 0:
        raise ArithmeticError(f"Basis pursuit failed ({answer.message}): rescale the matrix")
    return answer.x[:d] - answer.x[d:], np.asarray(answer.eqlin.marginals), int(answer.nit)


def _closed_form(phi: _BucketOperator, y: Array) -> tuple[Array, Array]:
    """In each row the largest entry carries everything."""
    order = np.argsort(np.abs(phi.value), kind="stable")
    largest = np.full(phi.m, -1)
    largest[phi.index[order]] = order
    entries = np.where(largest >= 0, phi.value[largest], 0.0)
    if np.any((entries == 0) & (y != 0)):
        raise _out_of_range()
    used = entries != 0
    w, dual = np.zeros(phi.d), np.zeros(phi.m)
    w[largest[used]] = y[used] / entries[used]
    dual[used] = np.sign(y[used]) / np.abs(entries[used])
    return w, dual


def _out_of_range() -> validate.InvalidInput:
    return validate.InvalidInput("y is not in the range of Phi, no w has Phi w = y: project y onto the range first")


def cosamp(sketch: Sketch | Point, y: Point, k: int, iterations: int | None = None) -> Point:
    """A k-sparse z with Phi z near y.

    Each iteration joins the 2k largest entries of Phi'(y - Phi z) to the support of z, solves least squares there
    and keeps the k largest entries.

    Args:
        sketch: a Sketch or an m x d matrix.
        y: (m,) or (batch, m).
        k: the sparsity.
        iterations: most iterations; 6(k + 1) by default, the count after which exact recovery is proven.

    Returns:
        z, (d,) or (batch, d), of the type and dtype of y.  Of all iterates (the zero vector included) the one of
        least residual: more iterations never make it worse.  An example stops when its residual is rounding, or when
        the columns it fits on are those of an earlier iteration: from there on its iterates come again (a support that
        repeats is no fixed point, because the 2k columns joined to it depend on its values).  Least squares are solved
        by a rank-revealing method, so 3k > m and dependent columns give the least-norm solution.

    >>> matrix = torch.eye(4).double()
    >>> cosamp(matrix, torch.tensor([0.0, 3.0, 0.0, -1.0]).double(), k=1).tolist()
    [0.0, 3.0, 0.0, 0.0]
    """
    codes = validate.as_tensor("y", y).detach()
    validate.check(codes.ndim in (1, 2), "y.shape", tuple(codes.shape), "give codes of shape (m,) or (batch, m)")
    validate.positive_int(k=k)
    if iterations is not None:
        validate.positive_int(iterations=iterations)
    dtype = torch.promote_types(codes.dtype, torch.float32)
    if isinstance(sketch, Sketch):
        matrix = sketch.dense(dtype).detach().to(codes.device)
    else:
        matrix = validate.as_tensor("matrix", sketch, ndim=2).detach().to(codes.device, dtype)
    remedy = f"give codes of length {len(matrix)}, which is the number of rows of Phi"
    validate.check(codes.shape[-1] == len(matrix), "y.shape", tuple(codes.shape), remedy)
    validate.at_most(matrix.shape[1], "the dimension d", k=k)
    z = _decode(matrix, codes.reshape(-1, matrix.shape[0]).to(matrix), k, iterations or 6 * (k + 1))
    z = z.reshape(*codes.shape[:-1], matrix.shape[1]).to(codes.dtype)
    if isinstance(y, Tensor):
        return z
    array: np.ndarray = z.numpy()
    return array


def _decode(matrix: Tensor, y: Tensor, k: int, iterations: int) -> Tensor:
    d = matrix.shape[1]
    best = y.new_zeros(len(y), d)
    least = torch.linalg.vector_norm(y, dim=1)
    rounding = 8 * torch.finfo(y.dtype).eps * least
    going = torch.nonzero(least > 0)[:, 0]
    z, tried = best[going], torch.zeros(len(going), 0, min(3 * k, d), dtype=torch.int64, device=y.device)
    for _ in range(iterations):
        # the support of each z and the 2k columns that its residual has most of, ascending; d stands for none
        marked = z != 0
        marked.scatter_(1, ((y[going] - z @ matrix.T) @ matrix).abs().topk(min(2 * k, d), dim=1).indices, True)
        places = torch.where(marked, torch.arange(d, device=z.device), d)
        columns = places.topk(min(3 * k, d), dim=1, largest=False).values.sort(dim=1).values
        # the next iterate depends on these columns alone: one that was fitted on them came before
        new = ~(tried == columns[:, None]).all(2).any(1)
        going, columns, tried = going[new], columns[new], torch.cat([tried[new], columns[new, None]], 1)
        if len(going) == 0:
            break
        z = _fitted(matrix, y[going], columns, k)
        misfit = torch.linalg.vector_norm(y[going] - z @ matrix.T, dim=1)
        better = misfit < least[going]
        best[going[better]], least[going[better]] = z[better], misfit[better]
        stays = misfit > rounding[going]
        going, z, tried = going[stays], z[stays], tried[stays]
    return best


def _fitted(matrix: Tensor, y: Tensor, columns: Tensor, k: int) -> Tensor:
    """Least squares on the columns of each row, its k largest entries kept."""
    d = matrix.shape[1]
    real = columns < d
    at = columns.clamp(max=d - 1)
    chosen = matrix.T[at].mT * real[:, None, :]
    if y.device.type == "cpu":  # least-norm solutions by LAPACK's gelsd, elsewhere by the pseudo-inverse
        fit = torch.linalg.lstsq(chosen, y[..., None], driver="gelsd").solution[..., 0] * real
    else:
        fit = (torch.linalg.pinv(chosen) @ y[..., None])[..., 0] * real
    largest = fit.abs().topk(min(k, fit.shape[1]), dim=1).indices
    whole = y.new_zeros(len(y), d + 1)  # the last place takes what stands for no column
    return whole.scatter_(1, columns.gather(1, largest), fit.gather(1, largest))[:, :d]


LOOSE = 1e-3
"""`method="auto"` takes FISTA at this tolerance and above, the path below it."""


@dataclass(frozen=True)
class LiftResult(Generic[Point]):
    """What `solve_lift` found.

    Attributes:
        point: w in the set.
        residual: ||Phi w - target||.
        certificate: a proven bound of f(w) - f*, f = ||Phi w - target||^2 (f(w) itself, as f* >= 0, for a set
            without a support function).
        iterations: linear systems, dual evaluations or gradient steps, by method.
        converged: whether the tolerance was met.
        method: "dual", "fista" or "exact".
    """

    point: Point
    residual: float
    certificate: float
    iterations: int
    converged: bool
    method: str


class _LiftOptions(TypedDict, total=False):
    """The options of `solve_lift`."""

    tol: float
    max_iter: int
    method: str


def project_and_lift(
    constraint: ConvexSet,
    sketch: Sketch,
    target: object,
    start: Point,
    pick: str = "nearest",
    **options: Unpack[_LiftOptions],
) -> Point:
    """A minimiser w of ||Phi w - target||^2 over the set: Phi w is the projection of the target onto Phi C.

    Args:
        constraint: a convex set with a projection.
        sketch: the map Phi, R^d -> R^m.
        target: a vector of R^m.
        start: a vector of R^d, in the set or not.
        pick: "nearest" (of all minimisers the nearest to `start`) or "min_gauge" (one of least gauge).
        **options: `tol`, `max_iter`, `method` of `solve_lift`.

    Returns:
        w in the set, of the type, dtype and device of `start`; `solve_lift` gives its certificate too.

    >>> from isthmus.sets import L1Ball
    >>> from isthmus.sketches import CountSketch
    >>> sketch = CountSketch(2).draw(4)
    >>> start = torch.tensor([0.5, 0.0, 0.0, 0.0])
    >>> w = project_and_lift(L1Ball(1.0), sketch, sketch.forward(start), start)
    >>> bool(torch.equal(w, start))
    True
    """
    return solve_lift(constraint, sketch, target, start, pick, **options).point


def compressed_gradient_mapping(
    constraint: ConvexSet,
    sketch: Sketch,
    code: Tensor,
    w: Tensor,
    eta: float,
    pick: str = "nearest",
    **options: Unpack[_LiftOptions],
) -> Tensor:
    """(w - w+) / eta with w+ in C and Phi w+ = Pi_{Phi C}(Phi w - eta code): Definition 8 of paper 001, as a vector.

    w is an alpha-compressed gradient mapping where its norm is at most alpha.  With Phi = I it is Nesterov's gradient
    mapping (w - Pi_C(w - eta g)) / eta.  Without a constraint the paper says ||.|| ~ ||g||; the nearest w+ gives
    Phi^+ Phi g, which is about sqrt(m/d) ||g||: multiply by sqrt(d/m) to compare (`isthmus.core.parts.MappingBelow`).

    code  Phi g, g the gradient at w

    >>> from isthmus.sets import L2Ball
    >>> from isthmus.sketches import Identity
    >>> w, g = torch.tensor([1.0, 0.0]).double(), torch.tensor([-1.0, 0.0]).double()
    >>> float(compressed_gradient_mapping(L2Ball(1.0), Identity().draw(2), g, w, 0.5).norm())  # the gradient points out
    0.0
    """
    validate.positive(eta=eta)
    point = solve_lift(constraint, sketch, sketch.forward(w) - eta * code, w, pick, **options).point
    return (w - point) / eta


def solve_lift(
    constraint: ConvexSet,
    sketch: Sketch,
    target: object,
    start: Point,
    pick: str = "nearest",
    *,
    tol: float = 1e-6,
    max_iter: int = 10_000,
    method: str = "auto",
) -> LiftResult[Point]:
    """`project_and_lift` with its certificate.

    With f(w) = ||Phi w - target||^2 and f* its least value over C, two methods:

    * "dual" (tol < 1e-3): the path w(eps) = argmin_{w in C} f(w)/2 + eps/2 ||w - start||^2 as eps -> 0, whose limit
      is the nearest minimiser; each point is a small Newton or active-set solve in R^m, in float64.  It ends when
      f - f* <= tol ||target||^2 is proven and w has settled to sqrt(tol) of its move.
    * "fista" (tol >= 1e-3): projected gradient with momentum and restart from `start`, in the dtype and on the
      device of `start`, until a step is at most tol of the unconstrained move: a minimiser near the start.

    Args:
        constraint, sketch, target, start, pick: as in `project_and_lift`.
        tol: relative accuracy, as above.
        max_iter: most systems, evaluations or gradient steps.
        method: "auto", "dual" or "fista".

    Returns:
        A `LiftResult`; its point is in the set whether or not it converged.

    >>> from isthmus.sets import Simplex
    >>> from isthmus.sketches import CountSketch
    >>> sketch = CountSketch(3).draw(6, seed=1)
    >>> result = solve_lift(Simplex(), sketch, 5 * np.ones(3), np.full(6, 1 / 6))
    >>> result.converged, round(float(result.point.sum()), 9), result.certificate <= 1e-6 * 75
    (True, 1.0, True)
    """
    validate.one_of(("nearest", "min_gauge"), pick=pick)
    validate.one_of(("auto", "dual", "fista"), method=method)
    validate.positive(tol=tol)
    validate.positive_int(max_iter=max_iter)
    remedy = "give a convex set, which project-and-lift needs; NuclearBall is the one for low rank"
    validate.check(constraint.convex, "constraint", type(constraint).__name__, remedy)
    constraint.require("project")
    v, w0 = validate.as_tensor("target", target).detach(), validate.as_tensor("start", start).detach()
    validate.shape((sketch.m,), target=v)
    validate.shape((sketch.d,), start=w0)
    remedy = f"give a sketch of dimension {constraint.dim}, which is that of the set"
    validate.check(constraint.dim in (None, sketch.d), "sketch.d", sketch.d, remedy)
    if isinstance(constraint, Whole):
        return _unconstrained(sketch, v, w0, start)
    loose = method == "fista" or (method == "auto" and tol >= LOOSE and pick == "nearest")
    if loose and pick == "nearest":
        w, f, bound, iterations, settled = _fista(constraint, sketch, v.to(w0), w0, tol, max_iter)
        return LiftResult(_like(w, start), math.sqrt(f), bound, iterations, settled, "fista")
    phi = _operator(sketch)
    scaled, near = _working(v) / phi.scale, _working(w0)
    problem = _LiftProblem(constraint, phi, scaled, near)
    if _already_there(problem):
        return LiftResult(_like(near, start), 0.0, 0.0, 0, True, "exact")
    one_thread: AbstractContextManager[object] = nullcontext()
    if isinstance(phi, _DenseOperator) and phi.m <= 1000:
        # NumPy and SciPy bring a BLAS each; their thread pools, both waiting busily, slow such solves down tenfold
        one_thread = _pools().limit(limits=1, user_api="blas")
    with one_thread:
        end = _nearest(problem, tol, max_iter)
        if pick == "min_gauge":
            end = _least_gauge(problem, end, tol, max_iter)
    residual, bound = phi.scale * float(np.linalg.norm(end.residual)), phi.scale**2 * end.certificate
    return LiftResult(_like(end.w, start), residual, bound, end.iterations, end.converged, "dual")


def _unconstrained(sketch: Sketch, v: Tensor, w0: Tensor, start: Point) -> LiftResult[Point]:
    """start + Phi^+ (target - Phi start)."""
    short = v.to(w0) - sketch.forward(w0)
    if sketch.tight:
        move = sketch.pinv(short)
    else:
        phi = _operator(sketch)
        apply = LinearOperator((phi.m, phi.d), matvec=phi.forward, rmatvec=phi.adjoint, dtype=np.float64)
        move = torch.from_numpy(lsmr(apply, _working(short) / phi.scale, atol=1e-14, btol=1e-14, conlim=0)[0])
    w = w0 + move.to(w0)
    residual = float(torch.linalg.vector_norm(v.to(w0) - sketch.forward(w)))
    return LiftResult(_like(w, start), residual, residual**2, 1, True, "exact")


def _fista(
    constraint: ConvexSet, sketch: Sketch, target: Tensor, start: Tensor, tol: float, max_iter: int
) -> tuple[Tensor, float, float, int, bool]:
    """(w, f(w), a bound of f(w) - f*, iterations, settled) by projected gradient steps of 1/norm^2 with momentum, and a
    restart where momentum points uphill.

    It stops when ||w_{k+1} - w_k|| <= tol ||target - Phi start|| / norm: tol times the unconstrained move.
    """
    norm, warm, iteration, settled = float(sketch.norm), None, 0, False
    enough = tol * float(torch.linalg.vector_norm(target - sketch.forward(start))) / norm
    w, ahead, momentum = start, start, 1.0
    while not settled and iteration < max_iter:
        pull = sketch.adjoint((target - sketch.forward(ahead)) / norm) / norm
        new, warm = constraint.project_with_threshold(ahead + pull, warm)
        step = new - w
        if float((ahead - new) @ step) > 0:
            momentum = 1.0
        following = (1 + (1 + 4 * momentum * momentum) ** 0.5) / 2
        ahead = new + ((momentum - 1) / following) * step
        w, momentum, iteration = new, following, iteration + 1
        settled = float(torch.linalg.vector_norm(step)) <= enough
    short = target - sketch.forward(w)
    f = bound = float(short @ short)
    if f > 0 and constraint.can("support"):
        pull = sketch.adjoint(short)
        bound = _bound_from_gap(f, constraint.support(pull) - float(pull @ w))
    return w, f, bound, iteration, settled


def _already_there(problem: _LiftProblem) -> bool:
    """Whether the start is in the set and meets the target to rounding."""
    short = problem.v - problem.phi.forward(problem.w0)
    close = float(np.linalg.norm(short)) <= 1e-14 * (float(np.linalg.norm(problem.v)) + 1e-300)
    if not close:
        return False
    try:
        return problem.constraint.contains(torch.from_numpy(problem.w0))
    except ArithmeticError:  # a projection that does not finish decides nothing: solve
        return False


def _working(x: Tensor) -> Array:
    array: Array = x.double().cpu().numpy()
    return array


def _like(w: Array | Tensor, start: Point) -> Point:
    """w as a new tensor or array in the dtype and place of `start`."""
    tensor = torch.as_tensor(w)
    if isinstance(start, Tensor):
        return tensor.to(start, copy=True)
    dtype = np.asarray(start).dtype
    array: np.ndarray = tensor.numpy().astype(dtype if dtype.kind == "f" else np.float64)
    return array
