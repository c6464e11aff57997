"""Sets of matrices: the nuclear-norm ball and matrices of low rank."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse.linalg import ArpackNoConvergence, svds
from torch import Tensor

from isthmus.base.matrix import Array
from isthmus.base.validate import at_most, check, positive_int
from isthmus.sets.balls import L1Ball
from isthmus.sets.base import Ball, _size_of, inside
from isthmus.sets.projections import Derivative, norm, same

SMALL = 32
"""Matrices with a side below this are decomposed: Lanczos saves nothing there."""


class _MatrixSet(Ball):
    """The shape (p, q) and the passage between a flat vector and its matrix."""

    shape: tuple[int, int]

    def __post_init__(self) -> None:
        super().__post_init__()
        shape = tuple(self.shape)
        check(len(shape) == 2, "shape", self.shape, "give (rows, columns)")
        self._keep(shape=shape, matrix_shape=shape, dim=_size_of("shape", shape))

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

    radius: float = 1.0
    shape: tuple[int, int] = (0, 0)

    def _project(self, x: Tensor) -> Tensor:
        u, s, vh = self._svd(x)
        if float(s.sum()) <= self.radius:
            return x
        y = ((u * L1Ball(self.radius)._project(s)) @ vh).flatten()
        return inside(y, self._gauge(y)).to(x.dtype)

    def _derivative(self, z: Array, w: Array) -> Derivative:
        """Soft thresholding of singular values, with the derivative of a spectral map in the singular basis."""
        u, s, vt = np.linalg.svd(z.reshape(self.shape), full_matrices=False)
        if s.sum() <= self.radius:
            return same
        f = np.einsum("ik,ij,kj->k", u, w.reshape(self.shape), vt)
        above = f > 1e-14 * s[0]
        tiny = np.finfo(float).tiny
        plus = (f[:, None] + f) / np.maximum(s[:, None] + s, tiny)
        gap = s[:, None] - s
        near = np.abs(gap) <= 1e-12 * s[0]
        minus = np.where(near, np.minimum(above[:, None], above), (f[:, None] - f) / np.where(near, 1.0, gap))
        symmetric, skew, side = (minus + plus) / 2, (minus - plus) / 2, f / np.maximum(s, tiny)

        def derivative(x: Array) -> Array:
            x = x.reshape(self.shape)
            left, right = u.T @ x, x @ vt.T
            core = left @ vt.T
            level = np.diagonal(core)[above].mean()
            mixed = symmetric * core + skew * core.T - np.diag(above * level)
            outside = side[:, None] * (left - core @ vt)  # one of the two is zero: the shorter side has no outside
            whole: Array = u @ (mixed @ vt + outside) + ((right - u @ core) * side) @ vt
            return whole.reshape(-1)

        return derivative

    def _lmo(self, g: Tensor) -> Tensor:
        u, s, vh = self._svd(g)
        return -self.radius * torch.outer(u[:, 0], vh[0]).flatten().to(g.dtype)

    def _lmo_near(self, g: Tensor, error: float) -> tuple[Tensor, float]:
        pair = _top_pair(self._matrix(g.double()).cpu(), error / self.radius)
        if pair is None:
            return self._lmo(g), 0.0
        u, v, missed = pair
        vertex = -self.radius * torch.outer(u, v).flatten().to(g)
        return inside(vertex, 1 + 2 * torch.finfo(g.dtype).eps), self.radius * missed

    def _norm(self, x: Tensor) -> float:
        return float(torch.linalg.svdvals(self._matrix(x.double())).sum())

    def _support(self, g: Tensor) -> Tensor:
        norms: Tensor = torch.linalg.matrix_norm(self._matrix(g), ord=2)
        return self.radius * norms


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

    rank: int
    radius: float = 1.0
    shape: tuple[int, int] = (0, 0)

    convex = False

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_int(rank=self.rank)
        at_most(min(self.shape), "min(shape)", rank=self.rank)

    def _refusal(self, operation: str) -> str | None:
        if operation in ("project", "support", "gaussian_width"):
            return None
        return "the set is nonconvex and offers project, support and gaussian_width; use NuclearBall instead"

    def _project(self, x: Tensor) -> Tensor:
        u, s, vh = self._svd(x)
        y = ((u[:, : self.rank] * s[: self.rank]) @ vh[: self.rank]).flatten()
        return inside(y, self._gauge(y)).to(x.dtype)

    def _norm(self, x: Tensor) -> float:
        return norm(x)

    def _support(self, g: Tensor) -> Tensor:
        singular = torch.linalg.svdvals(self._matrix(g))[..., : self.rank]
        norms: Tensor = torch.linalg.vector_norm(singular, dim=-1)
        return self.radius * norms


TINY = 1e-9
"""Errors below this share of ||G||_F are left to the singular value decomposition."""


def _top_pair(g: Tensor, error: float) -> tuple[Tensor, Tensor, float] | None:
    """(u, v, e): unit vectors with <u, G v> >= sigma_1(G) - e and e <= error, proven; None for the decomposition.

    Lanczos steps find v.  With G v = theta u, G'u = theta v + w and what G maps the complements to, of Frobenius norm
    rho, sigma_1(G) is at most that of [[theta, ||w||], [0, rho]].  Where that is not tight (flat spectra) a Cholesky
    factor of t^2 I - G G' proves sigma_1(G) <= t.

    >>> u, v, missed = _top_pair(torch.diag(torch.arange(40.0).double()), 0.1)
    >>> bool(u @ (torch.arange(40.0).double() * v) >= 39 - missed), missed <= 0.1
    (True, True)
    """
    size = float(torch.linalg.matrix_norm(g))
    if error <= TINY * size or size == 0 or min(g.shape) < SMALL:
        return None
    start = torch.randn(min(g.shape), dtype=g.dtype, generator=torch.Generator().manual_seed(0)).numpy()
    try:
        v = torch.from_numpy(svds(g.numpy(), 1, v0=start, tol=0.1 * error / size)[2][0])
    except ArpackNoConvergence:
        return None
    u = g @ v
    theta = float(u.norm())
    u = u / theta
    rest = float((g.T @ u - theta * v).norm())
    rho = math.sqrt(max(0.0, size**2 - theta**2 - rest**2)) + 1e-10 * size
    upper = float(np.linalg.norm([[theta, rest], [0.0, rho]], 2)) + 1e-10 * size
    if upper - theta > error:
        if g.shape[0] > g.shape[1]:
            g = g.T
        guess, moment = theta + 0.9 * error, g @ g.T
        _, info = torch.linalg.cholesky_ex(torch.eye(len(moment)).to(moment) * guess**2 - moment)
        if int(info) == 0:  # the factorisation and the product are off by a few r eps ||G||_F^2 at most
            upper = math.sqrt(guess**2 + 8 * sum(g.shape) * torch.finfo(g.dtype).eps * size**2)
    if upper - theta > error:
        return None
    return u, v, upper - theta
