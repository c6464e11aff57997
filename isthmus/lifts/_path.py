"""The sketch as the lift solvers see it: NumPy float64, scaled to unit norm, with a cheap solve where it has one.

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
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.optimize import nnls
from scipy.sparse.linalg import LinearOperator, cg
from threadpoolctl import ThreadpoolController

from isthmus.sets import ConvexSet, VertexForm
from isthmus.sets.projections import Derivative, sorted_threshold
from isthmus.sketches.base import Sketch

Array = NDArray[np.float64]

Mask = NDArray[np.bool_]

DENSE_BYTES = 1 << 28
"""A working copy of the matrix is made only below this size."""


class _BucketOperator:
    """Columns with one non-zero `value[j]` in row `index[j]`."""

    def __init__(self, index: NDArray[np.intp], value: Array, m: int, scale: float) -> None:
        self.index, self.value, self.m, self.d, self.scale = index, value / scale, m, len(index), scale
        self._square = self.value * self.value

    def forward(self, w: Array) -> Array:
        return _bincount(self.index, self.value * w, self.m)

    def adjoint(self, y: Array) -> Array:
        return self.value * y[self.index]

    def solve(self, mask: Mask, eps: float, right: tuple[Array, ...]) -> list[Array]:
        diagonal = _bincount(self.index, self._square * mask, self.m) + eps
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
        if part.shape[1] < self.m:
            gram = _ridged(part.T @ part, eps)
            return list(((columns - part @ _spd_solve(gram, part.T @ columns)) / eps).T)
        return list(_spd_solve(_ridged(part @ part.T, eps), columns).T)


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


def _one_thread(phi: Operator) -> AbstractContextManager[object]:
    """BLAS on one thread meanwhile, for small dense systems.

    NumPy and SciPy bring a BLAS each; their thread pools, both waiting busily, slow such solves down tenfold.
    """
    if isinstance(phi, _DenseOperator) and phi.m <= 1000:
        limited: AbstractContextManager[object] = _pools().limit(limits=1, user_api="blas")
        return limited
    return nullcontext()


@lru_cache(maxsize=1)
def _pools() -> ThreadpoolController:
    return ThreadpoolController()


def _bincount(index: NDArray[np.intp], weights: Array, count: int) -> Array:
    """The sum of the weights at each index."""
    return np.bincount(index, weights, count).astype(np.float64, copy=False)


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
    codes = _codes(m)
    total = sketch.adjoint(torch.ones(m, dtype=torch.float64)).numpy()
    coded = sketch.adjoint(torch.from_numpy(codes)).numpy()
    empty = total == 0
    if empty.any():
        if np.any(coded[empty]):
            return None
        ratio = np.where(empty, codes[0], coded) / np.where(empty, 1.0, total)
    else:
        ratio = coded / total
    if not (ratio.min() >= 0 and ratio.max() < m):
        return None
    index = ratio.astype(np.intp)
    if np.abs(ratio - codes[index]).max() > 1e-12 * m:
        return None
    return _BucketOperator(index, total, m, float(sketch.norm))


@lru_cache(maxsize=16)
def _codes(m: int) -> Array:
    return np.arange(m) + np.random.default_rng(m).uniform(0.25, 0.75, m)


def _ridged(gram: Array, eps: float) -> Array:
    """gram + eps I, in place."""
    gram.flat[:: len(gram) + 1] += eps
    return gram


def _spd_solve(matrix: Array, right: Array) -> Array:
    """Solve with a positive semidefinite matrix: Cholesky, or least squares where rounding has made it singular."""
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

    @cached_property
    def vertices(self) -> Array | None:
        """Every vertex as a row; None where they are coordinate axes, or there are none."""
        if self.form is None:
            return None
        rows = self.form.all()
        if rows is None:
            return None
        return rows.double().cpu().numpy()

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


@dataclass(frozen=True)
class _Piece:
    """An affine piece: the `free` coordinates with their `signs`; `bound` when the threshold is active."""

    free: Mask
    signs: Array
    bound: bool = True

    def changes(self, other: _Piece) -> Mask:
        """The coordinates on which two pieces differ."""
        if self.bound != other.bound:
            return np.ones(len(self.free), dtype=bool)
        differ: Mask = (self.free != other.free) | (self.free & (self.signs != other.signs) & self.bound)
        return differ


class _ActiveEngine:
    """The active-set engine, for {sum |w| <= radius} (signed) and {w >= 0, sum w = radius}: z = w0 + Phi' mu."""

    def __init__(self, problem: _LiftProblem, form: VertexForm) -> None:
        self._problem, self._radius, self._signed = problem, form.radius, form.signed
        self.first, self.factor = 1e-2, 1e-2
        if isinstance(problem.phi, _BucketOperator):
            self.first, self.factor = 1e-4, 1e-3
        self._start: _Piece | None = None

    def stage(self, eps: float, budget: int) -> tuple[Array, Array, int, bool]:
        """Solve at eps from the last piece, or from that of a projected gradient step."""
        phi, v, w0, piece = self._problem.phi, self._problem.v, self._problem.w0, self._start
        if piece is None:
            piece = self._projected(w0 + phi.adjoint(v - phi.forward(w0)) / max(1.0, eps))
        fewest, patience, solved = phi.d + 1, 5, False
        z, tau, mu = self._solve(piece, eps)
        for used in range(1, min(60, budget) + 1):  # noqa: B007  # told below
            following = self._classify(z, tau)
            changed = piece.changes(following)
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

    def _size(self, z: Array) -> Array:
        """What the threshold is compared with."""
        if self._signed:
            return np.abs(z)
        return z

    def _projected(self, z: Array) -> _Piece:
        """The piece of the projection of z."""
        size = self._size(z)
        if self._signed and size.sum() <= self._radius:
            return self._classify(z, 0.0)
        return self._classify(z, sorted_threshold(size, self._radius))

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
        x, y = _spd_solve(_ridged(part.T @ part, eps), np.stack([part.T @ v + eps * near, signs], axis=1)).T
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
    derivative: Derivative


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

    def _direction(self, point: _DualPoint, eps: float, gradient: Array) -> Array:
        """An approximate Newton direction; the gradient where curvature information is useless."""
        phi = self._problem.phi

        def apply(x: Array) -> Array:
            return phi.forward(point.derivative(phi.adjoint(x))) + eps * x

        step = _conjugate_gradient(apply, gradient, 1e-3, 200)
        if np.isfinite(step).all() and float(step @ gradient) > 0:
            return step
        return gradient / (1.0 + eps)

    def _line_search(self, point: _DualPoint, eps: float, gradient: Array) -> tuple[_DualPoint, int]:
        """The first trial whose slope along the step is at most half the first one in size."""
        step = self._direction(point, eps, gradient)
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


def _engine(problem: _LiftProblem) -> Engine:
    """The engine of a set."""
    if problem.vertices is not None:
        return _HullEngine(problem, problem.vertices)
    if problem.form is not None:
        return _ActiveEngine(problem, problem.form)
    return _NewtonEngine(problem)


def _nearest(problem: _LiftProblem, tol: float, max_iter: int) -> _PathEnd:
    """The minimiser nearest to w0: by the fast engine of the set and, where that does not converge, by Newton's."""
    run = _engine(problem)
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
        if solved and last is not None and _settled(problem, w, last, tol):
            bound = problem.certificate(w, residual)
            end = _PathEnd(w, mu, residual, bound, used, bound <= tol * problem.reference(w))
            if end.converged or (not problem.constraint.can("support") and _images_agree(problem, w, last, tol)):
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


def _settled(problem: _LiftProblem, w: Array, last: Array, tol: float) -> bool:
    move = float(np.linalg.norm(w - problem.w0))
    rounding = 1e-10 * (float(np.linalg.norm(w)) + float(np.linalg.norm(problem.w0)))
    return float(np.linalg.norm(w - last)) <= math.sqrt(tol) * move + rounding


def _images_agree(problem: _LiftProblem, w: Array, last: Array, tol: float) -> bool:
    change = problem.phi.forward(w - last)
    return float(change @ change) <= tol * problem.reference(w)
