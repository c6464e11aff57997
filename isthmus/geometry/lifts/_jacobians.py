"""Projections with their directional derivative, for the Newton solver: a table by set type, and a general rule.

`linearise(z)` gives `(P_C z, J)` with `J(x)` the derivative of the projection at z along x (one element of its
generalised Jacobian: symmetric, 0 <= J <= I).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from isthmus.geometry.lifts._active import Shape, threshold
from isthmus.geometry.lifts._operators import Array, bincount
from isthmus.geometry.sets import (
    Box,
    ConvexSet,
    Ellipsoid,
    GroupBall,
    L1Ball,
    L2Ball,
    LInfBall,
    LpBall,
    NuclearBall,
    Product,
    Simplex,
    Subspace,
)

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


def _clamp(lo: Array | float, hi: Array | float) -> Linearise:
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
            return z, _same
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
            return z, _same
        unit, ratio = z / length, radius / length
        return radius * unit, lambda x: ratio * (x - unit * (unit @ x))

    return linearise


def _smooth(constraint: ConvexSet, normal: Callable[[Array], Array], curvature: Callable[[Array], Array]) -> Linearise:
    """A ball {g <= 1} with separable smooth g: z - w = c n(w), J = D - D n n' D / n'Dn with D = 1/(1 + c g'')."""

    def linearise(z: Array) -> tuple[Array, Derivative]:
        w = constraint.project(torch.from_numpy(z)).numpy()
        n = normal(w)
        length = float(n @ n)
        c = float((z - w) @ n) / length if length > 0 else 0.0
        if c <= 0:
            return w, _same
        damp = 1 / (1 + c * curvature(w))
        bent = damp * n
        total = float(n @ bent)
        return w, lambda x: damp * x - bent * ((bent @ x) / total)

    return linearise


def _lp(ball: LpBall) -> Linearise:
    p, floor = ball.p, 1e-150

    def normal(w: Array) -> Array:
        scaled = np.abs(w) / float(np.abs(w).max() or 1.0)
        return np.sign(w) * scaled ** (p - 1)

    def curvature(w: Array) -> Array:
        top = float(np.abs(w).max() or 1.0)
        return (p - 1) * np.maximum(np.abs(w) / top, floor) ** (p - 2) / top

    return _smooth(ball, normal, curvature)


def _ellipsoid(body: Ellipsoid) -> Linearise:
    weight = 1 / body.axes.cpu().numpy() ** 2
    return _smooth(body, lambda w: weight * w, lambda w: weight)


def _subspace(axes: Array, radius: float | None) -> Linearise:
    def span(x: Array) -> Array:
        return (axes @ x) @ axes

    if radius is None:
        return lambda z: (span(z), span)
    ball = _euclidean(radius)

    def linearise(z: Array) -> tuple[Array, Derivative]:
        w, derivative = ball(span(z))
        return w, lambda x: derivative(span(x))

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
            return z, _same
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


def _groups(ids: NDArray[np.intp], radius: float) -> Linearise:
    """Thresholded group norms: each group keeps its direction."""
    count = int(ids.max()) + 1

    def totals(x: Array) -> Array:
        return bincount(ids, x, count)

    def linearise(z: Array) -> tuple[Array, Derivative]:
        norms = np.sqrt(totals(z * z))
        if norms.sum() <= radius:
            return z, _same
        tau = threshold(norms, radius)
        kept = norms > tau
        shrink = np.where(kept, 1 - tau / np.where(kept, norms, 1.0), 0.0)[ids]
        unit = z * np.where(kept, 1 / np.where(kept, norms, 1.0), 0.0)[ids]

        def derivative(x: Array) -> Array:
            along = totals(unit * x)
            level = float(along.sum()) / np.count_nonzero(kept)
            moved: Array = shrink * x + unit * ((1 - shrink) * along[ids] - level)
            return moved

        return shrink * z, derivative

    return linearise


def _product(parts: list[Linearise], sizes: tuple[int, ...]) -> Linearise:
    cuts = np.cumsum(sizes)[:-1]

    def linearise(z: Array) -> tuple[Array, Derivative]:
        found = [part(block) for part, block in zip(parts, np.split(z, cuts), strict=True)]

        def derivative(x: Array) -> Array:
            return np.concatenate([one(block) for (_, one), block in zip(found, np.split(x, cuts), strict=True)])

        return np.concatenate([w for w, _ in found]), derivative

    return linearise


def _same(x: Array) -> Array:
    return x


_TABLE: dict[type, Callable[[Any], Linearise]] = {
    Box: lambda box: _clamp(box.lo.numpy(), box.hi.numpy()),
    LInfBall: lambda ball: _clamp(-ball.radius, ball.radius),
    L1Ball: lambda ball: _threshold(ball.radius, True),
    Simplex: lambda simplex: _threshold(simplex.radius, False),
    L2Ball: lambda ball: _euclidean(ball.radius),
    Subspace: lambda space: _subspace(space.basis.cpu().numpy(), space.radius),
    LpBall: lambda ball: _lp(ball) if 1 < ball.p < np.inf else _by_difference(ball),
    Ellipsoid: _ellipsoid,
    GroupBall: lambda ball: _groups(ball.groups.cpu().numpy(), ball.radius),
    Product: lambda product: _product([linearisation(part) for part in product.sets], product.sizes),
    NuclearBall: lambda ball: _nuclear(ball.radius, ball.shape),
}
