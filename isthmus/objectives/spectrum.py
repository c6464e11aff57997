"""The largest eigenvalue of X'X: for steps, and for what a private run buys."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor

from isthmus.base import secret
from isthmus.base.matrix import Array, Matrix, is_lazy, is_sparse, matmul, rmatmul
from isthmus.gradients.rounding import matrix_bounds

GRAM_LIMIT = 2000
"""`smoothness` takes eigenvalues of a Gram matrix up to this size, and a certified bound beyond it."""
SMALL_GRAM = 300
"""Up to this size all eigenvalues are had sooner than the largest one by Lanczos."""


def largest_eigenvalue(X: Matrix) -> float:
    """lambda_max(X'X), or a certified bound of it for large X (see `LinearModel.smoothness`).

    >>> largest_eigenvalue(torch.diag(torch.tensor([1.0, 3.0])))
    9.0
    """
    if min(X.shape) <= GRAM_LIMIT:
        return float(torch.linalg.eigvalsh(_gram(X))[-1].clamp_min(0))
    frobenius = float((matrix_bounds(X, 2)[1] ** 2).sum())
    rows = float(matrix_bounds(X, 1)[1].max())
    if is_sparse(X):
        columns = float(abs(X).sum(axis=0).max())
    else:
        parts = (part.abs().sum(0) for _, _, part in X.chunks()) if is_lazy(X) else (X.abs().sum(0),)
        columns = float(sum(parts, torch.zeros(())).max())
    return min(frobenius, rows * columns * (1 + X.shape[0] * 2.0**-23))


def top_eigenvalue(X: Matrix) -> float:
    """lambda_max(X'X) itself, to rounding, for X of any size: by Lanczos where the Gram matrix would be large.

    It is what a private release needs: with rows of norm at most 1 one record moves it by at most 1 (Weyl), which
    is not true of the bounds in `largest_eigenvalue`.

    >>> round(top_eigenvalue(torch.diag(torch.tensor([1.0, 3.0]))), 9)
    9.0
    """
    if min(X.shape) <= SMALL_GRAM:
        return float(torch.linalg.eigvalsh(_gram(X))[-1].clamp_min(0))
    size = min(X.shape)
    if size <= GRAM_LIMIT:
        gram: Array = _gram(X).numpy()

        def square(v: Array) -> Array:
            product: Array = gram @ v.reshape(-1)
            return product
    else:
        wide, size = X.astype(np.float64) if is_sparse(X) else X, X.shape[1]

        def square(v: Array) -> Array:
            product: Array = rmatmul(wide, matmul(wide, torch.from_numpy(v.reshape(-1)))).numpy()
            return product

    return lanczos_top(lambda v: square(v.reshape(-1)), size)


def lanczos_top(square: Callable[[Array], Array], size: int) -> float:
    """The largest eigenvalue of a positive semi-definite matrix, to rounding, from its products with vectors."""
    operator = LinearOperator((size, size), matvec=lambda v: square(v.reshape(-1)), dtype=np.float64)
    start = np.random.default_rng(secret.randbits(128)).standard_normal(
        size
    )  # nobody can prepare data that hides from it
    if not np.any(square(start)):
        return 0.0
    return float(eigsh(operator, k=1, which="LA", v0=start, ncv=40, tol=0, return_eigenvectors=False)[0])


def _gram(X: Matrix) -> Tensor:
    """X'X or X X', whichever is smaller, in float64."""
    tall = X.shape[0] >= X.shape[1]
    if is_lazy(X):
        return X.gram() if tall else _gram(X.dense())
    if is_sparse(X):
        wide = X.astype(np.float64)
        product = wide.T @ wide if tall else wide @ wide.T
        return torch.from_numpy(product @ np.eye(product.shape[0]))
    if not tall:
        rows = X.to(torch.float64)
        return rows @ rows.T
    step = max(1, (1 << 23) // X.shape[1])
    chunks = (X[lo : lo + step].to(torch.float64) for lo in range(0, X.shape[0], step))
    return sum((chunk.T @ chunk for chunk in chunks), torch.zeros((), dtype=torch.float64, device=X.device))
