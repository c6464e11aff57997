"""Projections with their directional derivative, in NumPy: what a Newton solver asks of a set.

Each gives `(P_C z, J)`, `J(x)` being the derivative of the projection at z along x: one element of its generalised
Jacobian, symmetric with 0 <= J <= I.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from isthmus.base.matrix import Array

Derivative = Callable[[Array], Array]
Linearised = tuple[Array, Derivative]


def same(x: Array) -> Array:
    """x: the derivative inside a set."""
    return x


def by_difference(project: Derivative, z: Array) -> Linearised:
    """J x from one more projection: exact on affine pieces, first order elsewhere."""
    w = project(z)
    size = 1e-5 * max(float(np.linalg.norm(z)), float(np.linalg.norm(w)))

    def derivative(x: Array) -> Array:
        length = float(np.linalg.norm(x))
        if length == 0 or size == 0:
            return x
        h = size / length
        return (project(z + h * x) - w) / h

    return w, derivative


def clamped(z: Array, low: Array | float, high: Array | float) -> Linearised:
    """The projection on a box."""
    inside = (z > low) & (z < high)
    return np.clip(z, low, high), lambda x: x * inside


def shortened(z: Array, radius: float) -> Linearised:
    """The projection on a Euclidean ball about 0."""
    length = float(np.linalg.norm(z))
    if length <= radius:
        return z, same
    unit, ratio = z / length, radius / length
    return radius * unit, lambda x: ratio * (x - unit * (unit @ x))


def thresholded(z: Array, radius: float, signed: bool) -> Linearised:
    """The projection on {sum |w| <= radius} (signed) or {w >= 0, sum w = radius}."""
    size = np.abs(z) if signed else z
    if signed and size.sum() <= radius:
        return z, same
    level = threshold(size, radius)
    free = size > level
    free[int(size.argmax())] = True
    signs: Array = np.where(z < 0, -1.0, 1.0) * free if signed else free.astype(np.float64)
    mean = signs / np.count_nonzero(free)
    w: Array = signs * np.maximum(size - level, 0.0)
    total = float(np.abs(w).sum())
    if total > radius or (not signed and total > 0):
        w *= radius / total
    return w, lambda x: free * x - signs * (mean @ x)


def smooth(z: Array, w: Array, normal: Array, curvature: Array) -> Linearised:
    """A ball {g <= 1} with separable smooth g: z - w = c n(w), J = D - D n n' D / n'Dn with D = 1/(1 + c g'')."""
    length = float(normal @ normal)
    c = float((z - w) @ normal) / length if length > 0 else 0.0
    if c <= 0:
        return w, same
    damp = 1 / (1 + c * curvature)
    bent = damp * normal
    total = float(normal @ bent)
    return w, lambda x: damp * x - bent * ((bent @ x) / total)


def threshold(u: Array, radius: float) -> float:
    """tau with sum max(u - tau, 0) = radius, by a sort.

    >>> threshold(np.array([3.0, 1.0]), 1.0)
    2.0
    """
    ordered = np.sort(u)[::-1]
    excess = np.cumsum(ordered) - radius
    count = max(1, int(np.count_nonzero(ordered * np.arange(1, len(u) + 1) > excess)))
    return float(excess[count - 1] / count)
