"""The top singular pair of a matrix by Golub-Kahan-Lanczos, with a proof of how near it is.

After k steps G V = U B (bidiagonal), U'G = B V' + beta e_k v', and what is left of G maps the complement of V into that
of U, with Frobenius norm rho = sqrt(||G||_F^2 - ||B||_F^2 - beta^2).  So

    theta = sigma_1(B)  <=  sigma_1(G)  <=  sigma_1([[B, beta e_k], [0, rho]])

and where that is not tight (flat spectra) a Cholesky factorisation of u^2 I - G G' proves sigma_1(G) <= u.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

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
    short = g if g.shape[0] <= g.shape[1] else g.T
    moment = short @ short.T
    _, info = torch.linalg.cholesky_ex(torch.eye(len(moment)).to(moment) * guess**2 - moment)
    # the factorisation and the product are off by a few r eps ||G||_F^2 at most
    slack = 8 * (len(moment) + short.shape[1]) * torch.finfo(g.dtype).eps * size**2
    return math.sqrt(guess**2 + slack) if int(info) == 0 else math.inf
