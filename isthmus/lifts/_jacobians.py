"""Projections with their directional derivative, for the Newton solver: a table by set type, and a general rule.

`linearise(z)` gives `(P_C z, J)` with `J(x)` the derivative of the projection at z along x (one element of its
generalised Jacobian: symmetric, 0 <= J <= I).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from isthmus.lifts._active import Shape, threshold
from isthmus.lifts._operators import Array
from isthmus.sets import Box, ConvexSet, L1Ball, L2Ball, LInfBall, NuclearBall, Simplex

Derivative = Callable[[Array], Array]
Linearise = Callable[[Array], tuple[Array, Derivative]]


def linearisation(constraint: ConvexSet) -> Linearise:
    """The projection of a set with its derivative: exact for types in the table, else by a difference."""
    for kind, build in _TABLE.items():
        if isinstance(constraint, kind):
            return build(constraint)
    return _by_difference(constraint)


def _by_difference(constraint: ConvexSet) -> Linearise:
    """J x from one more projection: exact on affine pieces, first order elsewhere."""

    def project(z: Array) -> Array:
        return constraint.project(torch.from_numpy(z)).numpy()

    def linearise(z: Array) -> tuple[Array, Derivative]:
        w = project(z)
        size = 1e-5 * max(float(np.linalg.norm(z)), float(np.linalg.norm(w)))

        def derivative(x: Array) -> Array:
            length = float(np.linalg.norm(x))
            if length == 0 or size == 0:
                return x
            h = size / length
            return (project(z + h * x) - w) / h

        return w, derivative

    return linearise


def _clamp(lo: Any, hi: Any) -> Linearise:
    low, high = (np.asarray(bound, dtype=np.float64) for bound in (lo, hi))

    def linearise(z: Array) -> tuple[Array, Derivative]:
        inside = (z > low) & (z < high)
        return np.clip(z, low, high), lambda x: x * inside

    return linearise


def _threshold(radius: float, signed: bool) -> Linearise:
    shape = Shape(radius, signed)

    def linearise(z: Array) -> tuple[Array, Derivative]:
        size = np.abs(z) if signed else z
        if signed and size.sum() <= radius:
            return z, lambda x: x
        tau = threshold(size, radius)
        piece = shape.classify(z, tau)
        signs = piece.free * (1.0 if piece.signs is None else piece.signs)
        mean = signs / np.count_nonzero(piece.free)
        return shape.point(z, tau), lambda x: piece.free * x - signs * (mean @ x)

    return linearise


def _euclidean(radius: float) -> Linearise:
    def linearise(z: Array) -> tuple[Array, Derivative]:
        length = float(np.linalg.norm(z))
        if length <= radius:
            return z, lambda x: x
        unit, ratio = z / length, radius / length
        return radius * unit, lambda x: ratio * (x - unit * (unit @ x))

    return linearise


def _nuclear(radius: float, shape: tuple[int, int]) -> Linearise:
    """Soft thresholding of singular values; the derivative of a spectral map in the singular basis."""
    p, q = min(shape), max(shape)
    flip = shape[0] > shape[1]

    def matrix(x: Array) -> Array:
        return x.reshape(shape).T if flip else x.reshape(shape)

    def flat(x: Array) -> Array:
        return (x.T if flip else x).reshape(p * q)

    def linearise(z: Array) -> tuple[Array, Derivative]:
        u, s, vt = np.linalg.svd(matrix(z), full_matrices=False)
        if s.sum() <= radius:
            return z, lambda x: x
        tau = threshold(s, radius)
        kept = s > tau
        f = np.where(kept, s - tau, 0.0)
        tiny = np.finfo(float).tiny
        plus = (f[:, None] + f) / np.maximum(s[:, None] + s, tiny)
        gap = s[:, None] - s
        near = np.abs(gap) <= 1e-12 * s[0]
        minus = np.where(near, np.minimum(kept[:, None], kept), (f[:, None] - f) / np.where(near, 1.0, gap))
        symmetric, skew, side = (minus + plus) / 2, (minus - plus) / 2, (f / np.maximum(s, tiny))[:, None]
        count = int(kept.sum())

        def derivative(x: Array) -> Array:
            left = u.T @ matrix(x)
            core = left @ vt.T
            mixed = symmetric * core + skew * core.T - side * core
            mixed.flat[:: p + 1] -= kept * (np.diagonal(core)[kept].sum() / count)
            return flat(u @ (mixed @ vt + side * left))

        return flat((u[:, kept] * f[kept]) @ vt[kept]), derivative

    return linearise


_TABLE: dict[type, Callable[[Any], Linearise]] = {
    Box: lambda box: _clamp(box.lo.numpy(), box.hi.numpy()),
    LInfBall: lambda ball: _clamp(-ball.radius, ball.radius),
    L1Ball: lambda ball: _threshold(ball.radius, True),
    Simplex: lambda simplex: _threshold(simplex.radius, False),
    L2Ball: lambda ball: _euclidean(ball.radius),
    NuclearBall: lambda ball: _nuclear(ball.radius, ball.shape),
}
