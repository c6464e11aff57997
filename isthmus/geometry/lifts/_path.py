"""The path eps -> 0 of the regularised problem, whose end is the minimiser nearest to the start.

    w(eps) = argmin_{w in C} 1/2 ||Phi w - v||^2 + eps/2 ||w - w0||^2

||w(eps) - w0|| grows to the distance of the nearest minimiser, and f(w(eps)) falls to f*.  Each point of the path
starts the next; an engine (active set or Newton) solves one point.  Phi is scaled to unit norm, so that eps has no
unit.  The path ends when the certificate and the last move are small enough.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from scipy.optimize import nnls

from isthmus.geometry.lifts._active import CoordinatePieces, Piece, Shape, Weights, active_set
from isthmus.geometry.lifts._newton import Dual, DualPoint, newton
from isthmus.geometry.lifts._operators import Array, BucketOperator, Operator
from isthmus.geometry.sets import ConvexSet, VertexForm

SMALLEST, LARGEST = 1e-9, 1e6
"""The path stays between these: below, rounding would win; above, w(eps) is the projection of w0 itself."""


DESCENT = 1000
"""Gradient steps that help a Newton solve which did not converge on its own."""


@dataclass(frozen=True)
class LiftProblem:
    """min_{w in C} ||Phi w - v||^2 near w0, in the units of a unit-norm Phi."""

    constraint: ConvexSet
    phi: Operator
    v: Array
    w0: Array

    @cached_property
    def form(self) -> VertexForm | None:
        """The vertices of a polytope that brings them."""
        return self.constraint.vertex_form() if self.constraint.can("vertex_form") else None

    @cached_property
    def vertices(self) -> Array | None:
        """Every vertex as a row; None where they are coordinate axes, or there are none."""
        rows = None if self.form is None else self.form.all()
        return None if rows is None else rows.double().cpu().numpy()

    def reference(self, w: Array) -> float:
        """What tolerances are relative to: ||v||^2, or for a zero target the size of a point."""
        return float(self.v @ self.v) or max(float(w @ w), float(self.w0 @ self.w0))

    def certificate(self, w: Array, residual: Array) -> float:
        """An upper bound of f(w) - f*: from the Frank-Wolfe gap where there is a support function, else f(w).

        With g = max_{s in C} <Phi' r, s - w>, f* >= (||r||^2 - g)_+^2 / ||r||^2.
        """
        f = float(residual @ residual)
        if f == 0 or not self.constraint.can("support"):
            return f
        pull = self.phi.adjoint(residual)
        gap = max(0.0, self.constraint.support(torch.from_numpy(pull)) - float(pull @ w))
        return gap * (2 - gap / f) if gap < f else f


@dataclass(frozen=True)
class PathEnd:
    """Where the path ended: the point, its multiplier mu = (v - Phi w)/eps, and how it got there."""

    w: Array
    mu: Array
    eps: float
    residual: Array
    certificate: float
    iterations: int
    converged: bool


class Engine(Protocol):
    """One point of the path after the other; `stage` gives (w, mu, iterations, solved)."""

    first: float
    factor: float

    def stage(self, eps: float, budget: int) -> tuple[Array, Array, int, bool]: ...


class ActiveEngine:
    """The active-set engine, for polytopes that bring their vertices: l1 balls, simplices and hulls."""

    def __init__(self, problem: LiftProblem, form: VertexForm, mu: Array | None) -> None:
        separable = isinstance(problem.phi, BucketOperator)
        self._problem, self.first = problem, 1e-4 if mu is not None or separable else 1e-2
        self.factor = 1e-3 if separable else 1e-2
        phi, v, w0, rows = problem.phi, problem.v, problem.w0, problem.vertices
        self._vertices: Array = np.empty((0, 0)) if rows is None else rows
        self._start: Piece | None
        if rows is not None:
            images = np.stack([phi.forward(row) for row in rows])
            self._pieces: CoordinatePieces | Weights = Weights(images, rows @ rows.T, v, rows @ w0)
            pull = images @ (v - images.mean(0))
            self._start = Piece(pull >= np.sort(pull)[-min(len(rows), 300)])
        else:
            shape = Shape(form.radius, form.signed)
            self._pieces = CoordinatePieces(shape, phi, v, w0)
            self._start = None if mu is None else shape.start(w0 + phi.adjoint(mu))

    def stage(self, eps: float, budget: int) -> tuple[Array, Array, int, bool]:
        """Solve at eps from the last piece."""
        piece, z, tau, used, solved = active_set(self._pieces, self._start or self._guess(eps), eps, min(60, budget))
        self._start = piece if solved else self._start
        w = self._pieces.shape.point(z, tau)
        if isinstance(self._pieces, CoordinatePieces):
            return w, self._pieces.mu, used, solved
        w = w @ self._vertices
        return w, (self._problem.v - self._problem.phi.forward(w)) / eps, used, solved

    def _guess(self, eps: float) -> Piece:
        """The piece of a projected gradient step."""
        phi, v, w0 = self._problem.phi, self._problem.v, self._problem.w0
        return self._pieces.shape.start(w0 + phi.adjoint(v - phi.forward(w0)) / max(1.0, eps))


class HullEngine:
    """Hulls by non-negative least squares: slower than the active set, finite for redundant vertices too.

    The point of least norm in the hull of the columns of D has weights x / sum x, x the minimiser of
    ||D x||^2 + (sum x - 1)^2 over x >= 0.
    """

    first, factor = 1e-2, 1e-2

    def __init__(self, problem: LiftProblem, vertices: Array) -> None:
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


class NewtonEngine:
    """The dual Newton engine, for every convex set with a projection."""

    factor = 1e-1

    def __init__(self, problem: LiftProblem, mu: Array | None, first: float) -> None:
        self.first = first
        self._dual = Dual(problem.constraint, problem.phi, problem.v, problem.w0)
        self._point = self._dual.at(np.zeros(problem.phi.m) if mu is None else mu)
        self._size = problem.reference(self._point.w) ** 0.5

    def stage(self, eps: float, budget: int) -> tuple[Array, Array, int, bool]:
        """Solve at eps from the last multiplier."""
        start = self._point
        residual, length = float(np.linalg.norm(self._dual.v - start.image)), float(np.linalg.norm(start.mu))
        loose = min(1e-3, 0.1 * eps) * min(residual, eps * length or residual)
        point, used, solved = newton(self._dual, start, eps, max(loose, self._floor(start)), min(50, budget))
        if not solved and used < budget:
            closer, steps = self._dual.descend(start, eps, min(DESCENT, budget - used))
            most = min(50, budget - used - steps)
            point, more, solved = newton(self._dual, closer, eps, max(loose, self._floor(closer)), most)
            used += steps + more
        self._point = point if solved else start
        return point.w, point.mu, used, solved

    def _floor(self, point: DualPoint) -> float:
        """What rounding leaves of a gradient."""
        return max(1e-10 * float(self._size), 1e-14 * float(np.linalg.norm(point.mu)))


def engine(problem: LiftProblem, mu: Array | None, eps: float | None, careful: bool) -> Engine:
    """The engine of a set; `careful` starts further from eps = 0, goes slower and, where it can, by projection."""
    if problem.form is not None and not careful:
        return ActiveEngine(problem, problem.form, mu if problem.vertices is None else None)
    if problem.vertices is not None:
        return HullEngine(problem, problem.vertices)
    return NewtonEngine(problem, mu, 1e-1 if eps is None else eps)


def nearest(
    problem: LiftProblem, tol: float, max_iter: int, mu: Array | None = None, eps: float | None = None
) -> PathEnd:
    """The minimiser nearest to w0: by the fast engine and, where that does not converge, by the careful one."""
    end = follow(problem, engine(problem, mu, eps, False), tol, max_iter)
    if not end.converged and (problem.form is not None or mu is not None):
        again = follow(problem, engine(problem, None, None, True), tol, max_iter)
        chosen = again if again.converged or again.certificate < end.certificate else end
        end = replace(chosen, iterations=end.iterations + again.iterations)
    if problem.form is not None:
        return end
    w = problem.constraint.project(torch.from_numpy(end.w)).numpy()
    return replace(end, w=w, residual=problem.v - problem.phi.forward(w))


def follow(problem: LiftProblem, run: Engine, tol: float, max_iter: int) -> PathEnd:
    """Follow the path until f - f* <= tol ||v||^2 and the point has settled to sqrt(tol) of its move."""
    eps, factor, used = run.first, run.factor, 0
    last: Array | None = None
    best: PathEnd | None = None
    while True:
        w, mu, count, solved = run.stage(eps, max_iter - used)
        used += count
        residual = problem.v - problem.phi.forward(w)
        end = PathEnd(w, mu, eps, residual, np.inf, used, False)
        if solved and last is not None and _settled(problem, w, last, tol):
            bound = problem.certificate(w, residual)
            end = PathEnd(w, mu, eps, residual, bound, used, bound <= tol * problem.reference(w))
            if end.converged or (not problem.constraint.can("support") and _images_agree(problem, w, last, tol)):
                return PathEnd(w, mu, eps, residual, bound, used, True)
        if best is None or end.certificate < best.certificate or (solved and not np.isfinite(best.certificate)):
            best = end
        if used >= max_iter or (solved and eps <= SMALLEST) or (not solved and (factor > 0.6 or eps > LARGEST)):
            bound = min(best.certificate, problem.certificate(best.w, best.residual))
            return PathEnd(best.w, best.mu, best.eps, best.residual, bound, used, False)
        if solved:
            last, eps = w, max(eps * factor, SMALLEST)
        elif last is None:
            eps = 30 * eps
        else:
            eps, factor = eps / factor**0.5, factor**0.5


def _settled(problem: LiftProblem, w: Array, last: Array, tol: float) -> bool:
    move = float(np.linalg.norm(w - problem.w0))
    rounding = 1e-10 * (float(np.linalg.norm(w)) + float(np.linalg.norm(problem.w0)))
    return float(np.linalg.norm(w - last)) <= math.sqrt(tol) * move + rounding


def _images_agree(problem: LiftProblem, w: Array, last: Array, tol: float) -> bool:
    change = problem.phi.forward(w - last)
    return float(change @ change) <= tol * problem.reference(w)
