"""The inner solver for l1 balls, simplices and hulls: a primal-dual active-set method on the regularised problem.

    min_{w in C} 1/2 ||Phi w - v||^2 + eps/2 ||w - w0||^2

The projection onto these sets is affine on pieces.  A piece names the free coordinates and their signs; on it the
problem is a linear system with at most one multiplier tau (the threshold), whose solution names the next piece.
This is a semismooth Newton method in which tau is an unknown of its own rather than projected out, so that
coordinates cross their dead zone in one step: a handful of pieces is enough.  Where the number of changes stops
falling it gives up, and the path takes a shorter step in eps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from isthmus.geometry.lifts._operators import Array, DenseOperator, Mask, Operator, spd_solve
from isthmus.geometry.sets.derivatives import threshold


@dataclass(frozen=True)
class Piece:
    """An affine piece: the `free` coordinates with their `signs`; `bound` when the threshold is active."""

    free: Mask
    signs: Array | None = None
    bound: bool = True

    def changes(self, other: Piece) -> Mask:
        """The coordinates on which two pieces differ."""
        if self.bound != other.bound:
            return np.ones(len(self.free), dtype=bool)
        differ: Mask = self.free != other.free
        if self.bound and self.signs is not None and other.signs is not None:
            differ |= self.free & (self.signs != other.signs)
        return differ


@dataclass(frozen=True)
class Shape:
    """{sum |a| <= radius} (signed) or {a >= 0, sum a = radius}, by thresholds."""

    radius: float
    signed: bool

    def start(self, z: Array) -> Piece:
        """The piece of the projection of z."""
        size = np.abs(z) if self.signed else z
        inside = self.signed and size.sum() <= self.radius
        return self.classify(z, 0.0 if inside else threshold(size, self.radius))

    def classify(self, z: Array, tau: float) -> Piece:
        """The piece on which z - tau falls."""
        if self.signed and tau <= 0:
            return Piece(np.ones(len(z), dtype=bool), bound=False)
        size = np.abs(z) if self.signed else z
        free = size > tau
        if not free.any():
            free[int(size.argmax())] = True
        return Piece(free, np.where(z < 0, -1.0, 1.0) if self.signed else None)

    def margin(self, z: Array, tau: float) -> Array:
        """How far each coordinate is from changing its piece."""
        return np.abs((np.abs(z) if self.signed else z) - tau)

    def point(self, z: Array, tau: float) -> Array:
        """The thresholded point, scaled so that rounding leaves it in the set."""
        w = np.sign(z) * np.maximum(np.abs(z) - max(tau, 0.0), 0.0) if self.signed else np.maximum(z - tau, 0.0)
        total = float(np.abs(w).sum())
        if total > self.radius or (not self.signed and total > 0):
            w *= self.radius / total
        return w


class Pieces(Protocol):
    """The linear system of a piece: `solve` gives (z, tau)."""

    shape: Shape

    def solve(self, piece: Piece, eps: float) -> tuple[Array, float]: ...
    def resolution(self, z: Array, tau: float) -> float: ...


class CoordinatePieces:
    """Pieces of a set in R^d itself: z = w0 + Phi' mu, from a system in R^m or in the free coordinates."""

    def __init__(self, shape: Shape, phi: Operator, v: Array, w0: Array) -> None:
        self.shape, self._phi, self._v, self._w0 = shape, phi, v, w0
        self.mu = np.zeros(phi.m)

    def solve(self, piece: Piece, eps: float) -> tuple[Array, float]:
        """Solve on a piece and keep the multiplier mu = (v - Phi w) / eps."""
        phi, w0, free = self._phi, self._w0, piece.free
        count = int(np.count_nonzero(free))
        if isinstance(phi, DenseOperator) and count < phi.m:
            return self._narrow(phi, piece, eps)
        right = self._v - phi.forward(w0 * free)
        if not piece.bound:
            (self.mu,) = phi.solve(free, eps, (right,))
            return w0 + phi.adjoint(self.mu), 0.0
        signs = free.astype(np.float64) if piece.signs is None else piece.signs * free
        image = phi.forward(signs)
        x, y = phi.solve(free, eps, (right, image))
        tau = float((signs @ w0 + image @ x - self.shape.radius) / (count - image @ y))
        self.mu = x + tau * y
        return w0 + phi.adjoint(self.mu), tau

    def _narrow(self, phi: DenseOperator, piece: Piece, eps: float) -> tuple[Array, float]:
        """The same with fewer free coordinates than rows: no digit is lost to 1/eps."""
        free = piece.free
        part, near = np.compress(free, phi.matrix, axis=1), self._w0[free]
        signs = np.ones(len(near)) if piece.signs is None else piece.signs[free]
        gram = part.T @ part
        gram.flat[:: len(near) + 1] += eps
        x, y = spd_solve(gram, np.stack([part.T @ self._v + eps * near, signs], axis=1)).T
        level = float((signs @ x - self.shape.radius) / (signs @ y)) if piece.bound else 0.0
        a, tau = x - level * y, level / eps
        self.mu = (self._v - part @ a) / eps
        z = self._w0 + phi.adjoint(self.mu)
        z[free] = a + tau * signs
        return z, tau

    def resolution(self, z: Array, tau: float) -> float:
        """Margins below this are rounding."""
        return 1e-13 * (abs(tau) + float(np.abs(z).max()))


class Weights:
    """Pieces of a hull in the weights of its vertices; z - tau is the weight or, where it is 0, its gradient."""

    def __init__(self, images: Array, gram: Array, v: Array, inner: Array) -> None:
        self.shape = Shape(1.0, signed=False)
        self._image_gram, self._gram = images @ images.T, gram
        self._right, self._inner = images @ v, inner
        self._ridge = 1e-13 * float(np.trace(self._image_gram)) / len(gram)
        self._metric_ridge = 1e-6 * float(np.trace(gram)) / len(gram)

    def solve(self, piece: Piece, eps: float) -> tuple[Array, float]:
        """Solve on a piece, in as many unknowns as are free."""
        free = np.flatnonzero(piece.free)
        whole = self._image_gram + eps * self._gram
        matrix = whole[np.ix_(free, free)]
        matrix.flat[:: len(free) + 1] += self._ridge + eps * self._metric_ridge + np.finfo(float).tiny
        right = self._right + eps * self._inner
        x, y = spd_solve(matrix, np.stack([right[free], np.ones(len(free))], axis=1)).T
        level = float((x.sum() - 1.0) / y.sum())
        a = x - level * y
        z = right - level - whole[:, free] @ a
        z[free] = a
        self._noise = 1e-13 * (abs(level) + float(np.abs(right).max()))
        return z, 0.0

    def resolution(self, z: Array, tau: float) -> float:
        """Margins below this are rounding."""
        return min(self._noise, 1e-10)


def active_set(pieces: Pieces, piece: Piece, eps: float, max_iter: int) -> tuple[Piece, Array, float, int, bool]:
    """(piece, z, tau, iterations, converged) of the regularised problem from a first guess of the piece."""
    fewest, patience = len(piece.free) + 1, 5
    z, tau = pieces.solve(piece, eps)
    for iteration in range(1, max_iter + 1):
        following = pieces.shape.classify(z, tau)
        changed = piece.changes(following)
        count = int(np.count_nonzero(changed))
        if count == 0:
            return piece, z, tau, iteration, True
        if piece.bound == following.bound and count <= 64:
            changed &= pieces.shape.margin(z, tau) > pieces.resolution(z, tau)
            if not changed.any():
                return piece, z, tau, iteration, True
        if count < fewest:
            fewest, patience = count, 5
        elif patience > 0:
            patience -= 1
        else:
            return piece, z, tau, iteration, False
        piece = following
        z, tau = pieces.solve(piece, eps)
    return piece, z, tau, max_iter, False
