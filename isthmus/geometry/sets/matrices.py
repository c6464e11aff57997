"""Sets of matrices: the nuclear-norm ball and matrices of low rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from isthmus.base.matrix import Array
from isthmus.base.validate import at_most, check, positive, positive_int
from isthmus.geometry.sets._lanczos import top_pair
from isthmus.geometry.sets.balls import L1Ball
from isthmus.geometry.sets.base import ConvexSet, inside, norm
from isthmus.geometry.sets.derivatives import Linearised, same, threshold

SMALL = 32
"""Matrices with a side below this are decomposed: Lanczos saves nothing there."""


@dataclass(frozen=True)
class _MatrixSet(ConvexSet):
    """The shape (p, q) and the passage between a flat vector and its matrix."""

    radius: float = 1.0
    shape: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        positive(radius=self.radius)
        check(len(tuple(self.shape)) == 2, "shape", self.shape, "give (rows, columns)")
        for side in self.shape:
            positive_int(shape=side)
        object.__setattr__(self, "shape", tuple(self.shape))

    @property
    def dim(self) -> int:
        """rows x columns, the length of the flat vector."""
        return self.shape[0] * self.shape[1]

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """The matrix shape (p, q)."""
        return self.shape

    def _matrix(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:-1], *self.shape)

    def _svd(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        u, s, vh = torch.linalg.svd(self._matrix(x.double()), full_matrices=False)
        return u, s, vh


@dataclass(frozen=True)
class NuclearBall(_MatrixSet):
    """The ball {X : sum of singular values <= radius} of p x q matrices, given as (p, q) or flat (p q,).

    Projection is the l1 projection of the singular values; the width radius * E sigma_max(G) is sampled.

    >>> NuclearBall(1.0, shape=(2, 2)).project(torch.diag(torch.tensor([3.0, 1.0])))
    tensor([[1., 0.],
            [0., 0.]])
    """

    def _project(self, x: Tensor) -> Tensor:
        u, s, vh = self._svd(x)
        if float(s.sum()) <= self.radius:
            return x
        y = ((u * L1Ball(self.radius)._project(s)) @ vh).flatten()
        return inside(y, self._gauge(y)).to(x.dtype)

    def linearised(self, z: Array) -> Linearised:
        """Soft thresholding of singular values, with the derivative of a spectral map in the singular basis."""
        p, q = min(self.shape), max(self.shape)
        flip = self.shape[0] > self.shape[1]

        def matrix(x: Array) -> Array:
            return x.reshape(self.shape).T if flip else x.reshape(self.shape)

        def flat(x: Array) -> Array:
            return (x.T if flip else x).reshape(p * q)

        u, s, vt = np.linalg.svd(matrix(z), full_matrices=False)
        if s.sum() <= self.radius:
            return z, same
        tau = threshold(s, self.radius)
        above = s > tau
        f = np.where(above, s - tau, 0.0)
        tiny = np.finfo(float).tiny
        plus = (f[:, None] + f) / np.maximum(s[:, None] + s, tiny)
        gap = s[:, None] - s
        near = np.abs(gap) <= 1e-12 * s[0]
        minus = np.where(near, np.minimum(above[:, None], above), (f[:, None] - f) / np.where(near, 1.0, gap))
        symmetric, skew, side = (minus + plus) / 2, (minus - plus) / 2, (f / np.maximum(s, tiny))[:, None]
        count = int(above.sum())

        def derivative(x: Array) -> Array:
            left = u.T @ matrix(x)
            core = left @ vt.T
            mixed = symmetric * core + skew * core.T - side * core
            mixed.flat[:: p + 1] -= above * (np.diagonal(core)[above].sum() / count)
            return flat(u @ (mixed @ vt + side * left))

        return flat((u[:, above] * f[above]) @ vt[above]), derivative

    def _lmo(self, g: Tensor) -> Tensor:
        u, s, vh = self._svd(g)
        return -self.radius * torch.outer(u[:, 0], vh[0]).flatten().to(g.dtype)

    def _lmo_near(self, g: Tensor, error: float) -> tuple[Tensor, float]:
        matrix = self._matrix(g.double())
        pair = top_pair(matrix, error / self.radius) if min(self.shape) >= SMALL else None
        if pair is None:
            return self._lmo(g), 0.0
        vertex = -self.radius * torch.outer(pair.u, pair.v).flatten().to(g.dtype)
        return inside(vertex, 1 + 2 * torch.finfo(g.dtype).eps), self.radius * (pair.upper - pair.value)

    def _gauge(self, x: Tensor) -> float:
        return float(torch.linalg.svdvals(self._matrix(x.double())).sum()) / self.radius

    def _support(self, g: Tensor) -> Tensor:
        norms: Tensor = torch.linalg.matrix_norm(self._matrix(g), ord=2)
        return self.radius * norms

    def _diameter(self, d: int) -> float:
        return 2 * self.radius


@dataclass(frozen=True)
class LowRank(_MatrixSet):
    """The NONCONVEX set {X : rank X <= rank, ||X||_F <= radius} of p x q matrices.

    Projection is the truncated singular value decomposition, scaled back to the Frobenius ball; the support function
    is radius * sqrt(sum of the top `rank` squared singular values).  The other operations refuse.

    >>> low = LowRank(rank=1, radius=10.0, shape=(2, 2))
    >>> low.project(torch.diag(torch.tensor([3.0, 1.0])))
    tensor([[3., 0.],
            [0., 0.]])
    >>> low.can("lmo")
    False
    """

    rank: int = 1

    convex = False

    def __init__(self, rank: int, radius: float = 1.0, shape: tuple[int, int] = (0, 0)) -> None:
        for name, value in (("rank", rank), ("radius", radius), ("shape", shape)):
            object.__setattr__(self, name, value)
        self.__post_init__()
        positive_int(rank=rank)
        at_most(min(self.shape), "min(shape)", rank=rank)

    def _refusal(self, operation: str) -> str | None:
        if operation in ("project", "support", "gaussian_width"):
            return None
        return "the set is nonconvex and offers project, support and gaussian_width; use NuclearBall instead"

    def _project(self, x: Tensor) -> Tensor:
        u, s, vh = self._svd(x)
        y = ((u[:, : self.rank] * s[: self.rank]) @ vh[: self.rank]).flatten()
        return inside(y, norm(y) / self.radius).to(x.dtype)

    def _support(self, g: Tensor) -> Tensor:
        singular = torch.linalg.svdvals(self._matrix(g))[..., : self.rank]
        norms: Tensor = torch.linalg.vector_norm(singular, dim=-1)
        return self.radius * norms
