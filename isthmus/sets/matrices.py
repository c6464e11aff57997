"""Sets of matrices: the nuclear-norm ball and matrices of low rank.

The top singular pair of a matrix by Golub-Kahan-Lanczos, with a proof of how near it is.

After k steps G V = U B (bidiagonal), U'G = B V' + beta e_k v', and what is left of G maps the complement of V into that
of U, with Frobenius norm rho = sqrt(||G||_F^2 - ||B||_F^2 - beta^2).  So

    theta = sigma_1(B)  <=  sigma_1(G)  <=  sigma_1([[B, beta e_k], [0, rho]])

and where that is not tight (flat spectra) a Cholesky factorisation of u^2 I - G G' proves sigma_1(G) <= u.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from isthmus.base.matrix import Array
from isthmus.base.validate import at_most, check, positive, positive_int
from isthmus.sets.balls import L1Ball
from isthmus.sets.base import ConvexSet, inside
from isthmus.sets.projections import Linearised, norm, same, sorted_threshold

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
            if flip:
                return x.reshape(self.shape).T
            return x.reshape(self.shape)

        def flat(x: Array) -> Array:
            if flip:
                x = x.T
            return x.reshape(p * q)

        u, s, vt = np.linalg.svd(matrix(z), full_matrices=False)
        if s.sum() <= self.radius:
            return z, same
        tau = sorted_threshold(s, self.radius)
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
        if min(self.shape) < SMALL:
            return self._lmo(g), 0.0
        pair = top_pair(matrix, error / self.radius)
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


TINY = 1e-9
"""Errors below this share of ||G||_F are left to the singular value decomposition."""


@dataclass(frozen=True)
class TopPair:
    """Unit vectors u and v with <u, G v> = value, and sigma_1(G) <= upper, proven."""

    u: Tensor
    v: Tensor
    value: float
    upper: float


def top_pair(g: Tensor, error: float) -> TopPair | None:
    """A pair with upper - value <= error; None where only the decomposition is as exact as that.

    >>> pair = top_pair(torch.diag(torch.tensor([3.0, 1.0, 1.0]).double()), 0.1)
    >>> 2.9 <= pair.value <= 3.0 <= pair.upper <= 3.1
    True
    """
    size = float(torch.linalg.matrix_norm(g))
    if error <= TINY * size:
        return None
    basis = _Bidiagonal(g, size)
    for _ in range(min(g.shape)):
        if not basis.extend():
            break
        p, values, qt = torch.linalg.svd(basis.small())
        theta, rest = float(values[0]), basis.beta * abs(float(p[-1, 0]))
        upper = basis.upper()
        if upper - theta > error and rest <= 0.1 * error:  # converged to a pair: is it the top one?
            upper = min(upper, _proven(g, theta + 0.9 * error, size))
        if upper - theta <= error:
            return TopPair(basis.left() @ p[:, 0], basis.right() @ qt[0], theta, upper)
    return None


class _Bidiagonal:
    """The bases U and V and the bidiagonal B, one step longer at each `extend`; fully reorthogonalised."""

    def __init__(self, g: Tensor, size: float) -> None:
        self.g, self.size, self.us, self.vs = g, size, [], []  # type: Tensor, float, list[Tensor], list[Tensor]
        self.alphas, self.betas = [], []  # type: list[float], list[float]
        start = torch.randn(g.shape[1], dtype=g.dtype, generator=torch.Generator().manual_seed(0)).to(g.device)
        self._next = start / start.norm()

    @property
    def beta(self) -> float:
        return self.betas[-1]

    def left(self) -> Tensor:
        return torch.stack(self.us, 1)

    def right(self) -> Tensor:
        return torch.stack(self.vs, 1)

    def extend(self) -> bool:
        """One more pair; False where the space is exhausted."""
        v = self._next
        u = self._apart(self.g @ v, self.us)
        alpha = float(u.norm())
        if alpha <= 1e-14 * self.size:
            return False
        self.vs.append(v)
        self.us.append(u / alpha)
        w = self._apart(self.g.T @ self.us[-1], self.vs)
        beta = float(w.norm())
        self.alphas.append(alpha)
        self.betas.append(beta)
        if beta <= 1e-14 * self.size:  # an invariant subspace: go on outside it
            w = self._apart(torch.ones_like(w) + torch.arange(len(w)).to(w), self.vs)
        self._next = w / w.norm().clamp_min(1e-300)
        return True

    def small(self) -> Tensor:
        """B."""
        b = torch.diag(torch.tensor(self.alphas, dtype=torch.float64))
        for i, beta in enumerate(self.betas[:-1]):
            b[i, i + 1] = beta
        return b.to(self.g)

    def upper(self) -> float:
        """sigma_1 of [[B, beta e_k], [0, rho]], with room for rounding."""
        k, spent = len(self.alphas), math.fsum(x * x for x in [*self.alphas, *self.betas])
        rho = math.sqrt(max(0.0, self.size**2 - spent)) + 1e-10 * self.size
        whole = torch.zeros(k + 1, k + 1, dtype=torch.float64)
        whole[:k, :k] = self.small().cpu()
        whole[k - 1, k], whole[k, k] = self.beta, rho
        return float(torch.linalg.matrix_norm(whole, 2)) + 1e-10 * self.size

    @staticmethod
    def _apart(x: Tensor, basis: list[Tensor]) -> Tensor:
        """x without its parts along a basis, twice for rounding."""
        if not basis:
            return x
        stacked = torch.stack(basis, 1)
        for _ in range(2):
            x = x - stacked @ (stacked.T @ x)
        return x


def _proven(g: Tensor, guess: float, size: float) -> float:
    """A bound of sigma_1(G) near a guess, where u^2 I - G G' has a Cholesky factor; else infinity."""
    short = g
    if g.shape[0] > g.shape[1]:
        short = g.T
    moment = short @ short.T
    _, info = torch.linalg.cholesky_ex(torch.eye(len(moment)).to(moment) * guess**2 - moment)
    # the factorisation and the product are off by a few r eps ||G||_F^2 at most
    slack = 8 * (len(moment) + short.shape[1]) * torch.finfo(g.dtype).eps * size**2
    if int(info) != 0:
        return math.inf
    return math.sqrt(guess**2 + slack)
