"""The inner solver for any convex set with a projection: a semismooth Newton method on the dual in R^m.

    max_mu <v, mu> - eps/2 ||mu||^2 - psi(w0 + Phi' mu),   grad psi = P_C

has gradient F(mu) = v - Phi P_C(w0 + Phi' mu) - eps mu and generalised Hessian -(Phi J Phi' + eps I).  Newton steps
come from conjugate gradients; a line search on the directional derivative (monotone, the dual being concave) makes
them global.  The primal point w = P_C(w0 + Phi' mu) is in C at every step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isthmus.geometry.lifts._operators import Array, Operator, conjugate_gradient
from isthmus.geometry.sets import ConvexSet
from isthmus.geometry.sets.derivatives import Derivative


@dataclass(frozen=True)
class DualPoint:
    """mu, the point w = P_C(w0 + Phi' mu), its image, and the derivative of the projection there."""

    mu: Array
    w: Array
    image: Array
    derivative: Derivative


class Dual:
    """The dual of one project-and-lift problem."""

    def __init__(self, constraint: ConvexSet, phi: Operator, v: Array, w0: Array) -> None:
        self.phi, self.v, self.w0, self._constraint = phi, v, w0, constraint
        self._bound: float | None = None

    def at(self, mu: Array) -> DualPoint:
        w, derivative = self._constraint.linearised(self.w0 + self.phi.adjoint(mu))
        return DualPoint(mu, w, self.phi.forward(w), derivative)

    def gradient(self, point: DualPoint, eps: float) -> Array:
        return self.v - point.image - eps * point.mu

    def direction(self, point: DualPoint, eps: float, gradient: Array) -> Array:
        """An approximate Newton direction; the gradient where curvature information is useless."""
        phi = self.phi

        def apply(x: Array) -> Array:
            return phi.forward(point.derivative(phi.adjoint(x))) + eps * x

        step = conjugate_gradient(apply, gradient, 1e-3, 200)
        useful = np.isfinite(step).all() and float(step @ gradient) > 0
        return step if useful else gradient / (1.0 + eps)

    def descend(self, point: DualPoint, eps: float, steps: int) -> tuple[DualPoint, int]:
        """Accelerated projected gradient on the regularised problem: a better start where Newton's was too far."""
        phi, size = self.phi, 1 / (self._squared_norm() + eps)
        ratio = (eps * size) ** 0.5
        momentum = (1 - ratio) / (1 + ratio)
        w = ahead = point.w
        used = 0
        while used < steps:
            used += 1
            pull = phi.adjoint(self.v - phi.forward(ahead)) + eps * (self.w0 - ahead)
            new, _ = self._constraint.linearised(ahead + size * pull)
            change, w = new - w, new
            if float(np.linalg.norm(change)) <= 1e-12 * float(np.linalg.norm(w)):
                break
            ahead = w + momentum * change
        return self.at((self.v - phi.forward(w)) / eps), used

    def _squared_norm(self) -> float:
        """A little above ||Phi||^2, by power iteration."""
        if self._bound is None:
            y = np.random.default_rng(0).standard_normal(self.phi.m)
            for _ in range(50):
                y = y / float(np.linalg.norm(y))
                y = self.phi.forward(self.phi.adjoint(y))
            self._bound = 1.1 * float(np.linalg.norm(y))
        return self._bound


def newton(dual: Dual, point: DualPoint, eps: float, tol: float, max_iter: int) -> tuple[DualPoint, int, bool]:
    """(point, evaluations, converged): ||F|| <= tol at the point, or the best within `max_iter` evaluations."""
    used = 0
    gradient = dual.gradient(point, eps)
    while float(np.linalg.norm(gradient)) > tol:
        if used >= max_iter:
            return point, used, False
        step = dual.direction(point, eps, gradient)
        stepped, count = _line_search(dual, point, eps, step, float(gradient @ step))
        used += count
        if stepped is point:
            return point, used, False
        point, gradient = stepped, dual.gradient(stepped, eps)
    return point, used, True


def _line_search(dual: Dual, point: DualPoint, eps: float, step: Array, slope: float) -> tuple[DualPoint, int]:
    """The first trial whose slope along `step` is at most half the first one in size."""
    lo, slope_lo, hi, slope_hi, t = 0.0, slope, 0.0, 0.0, 1.0
    best = point
    for count in range(1, 13):
        trial = dual.at(point.mu + t * step)
        here = float(dual.gradient(trial, eps) @ step)
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
