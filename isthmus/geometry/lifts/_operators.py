"""The sketch as the lift solvers see it: NumPy float64, scaled to unit norm, with a cheap solve where it has one.

Every operator applies `Phi / scale` and solves `(Phi_S Phi_S' + eps I) X = B` for a set S of columns:

* `BucketOperator`: each column has at most one non-zero (count-sketches, coordinates, blocks): the matrix is diagonal;
* `DenseOperator`: the m x d matrix itself, by Cholesky;
* `MatrixFree`: only `forward` and `adjoint`, by conjugate gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from threadpoolctl import ThreadpoolController

from isthmus.geometry.sketches.base import Sketch
from isthmus.geometry.sketches.dense import DenseMap

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

DENSE_BYTES = 1 << 28
"""A working copy of the matrix is made only below this size."""


class Operator(Protocol):
    """Phi / scale with its transpose and its restricted Gram solve."""

    m: int
    d: int
    scale: float

    def forward(self, w: Array) -> Array: ...
    def adjoint(self, y: Array) -> Array: ...
    def solve(self, mask: Mask, eps: float, right: tuple[Array, ...]) -> list[Array]: ...


class BucketOperator:
    """Columns with one non-zero `value[j]` in row `index[j]`."""

    def __init__(self, index: NDArray[np.intp], value: Array, m: int, scale: float) -> None:
        self.index, self.value, self.m, self.d, self.scale = index, value / scale, m, len(index), scale
        self._square = self.value * self.value

    def forward(self, w: Array) -> Array:
        return bincount(self.index, self.value * w, self.m)

    def adjoint(self, y: Array) -> Array:
        return self.value * y[self.index]

    def solve(self, mask: Mask, eps: float, right: tuple[Array, ...]) -> list[Array]:
        diagonal = bincount(self.index, self._square * mask, self.m) + eps
        return [b / diagonal for b in right]


class DenseOperator:
    """An explicit m x d matrix."""

    def __init__(self, matrix: Array) -> None:
        self.m, self.d = matrix.shape
        self.scale = float(np.linalg.norm(matrix)) / math.sqrt(self.m) or 1.0
        self.matrix = matrix / self.scale

    def forward(self, w: Array) -> Array:
        return self.matrix @ w

    def adjoint(self, y: Array) -> Array:
        return y @ self.matrix

    def solve(self, mask: Mask, eps: float, right: tuple[Array, ...]) -> list[Array]:
        part = self.matrix if mask.all() else np.compress(mask, self.matrix, axis=1)
        narrow = part.shape[1] < self.m
        gram = part.T @ part if narrow else part @ part.T
        gram.flat[:: len(gram) + 1] += eps
        columns = np.stack(right, axis=1)
        if narrow:
            return list(((columns - part @ spd_solve(gram, part.T @ columns)) / eps).T)
        return list(spd_solve(gram, columns).T)


class MatrixFree:
    """A sketch known by its two products."""

    def __init__(self, sketch: Sketch) -> None:
        self._sketch, self.m, self.d, self.scale = sketch, sketch.m, sketch.d, float(sketch.norm)

    def forward(self, w: Array) -> Array:
        return self._sketch.forward(torch.from_numpy(w)).numpy() / self.scale

    def adjoint(self, y: Array) -> Array:
        return self._sketch.adjoint(torch.from_numpy(y)).numpy() / self.scale

    def solve(self, mask: Mask, eps: float, right: tuple[Array, ...]) -> list[Array]:
        return [conjugate_gradient(lambda y: self.forward(mask * self.adjoint(y)) + eps * y, b, 1e-10) for b in right]


def one_thread(phi: Operator) -> AbstractContextManager[object]:
    """BLAS on one thread meanwhile, for small dense systems.

    NumPy and SciPy bring a BLAS each; their thread pools, both waiting busily, slow such solves down tenfold.
    """
    return (
        _pools().limit(limits=1, user_api="blas") if isinstance(phi, DenseOperator) and phi.m <= 1000 else nullcontext()
    )


@lru_cache(maxsize=1)
def _pools() -> ThreadpoolController:
    return ThreadpoolController()


def bincount(index: NDArray[np.intp], weights: Array, count: int) -> Array:
    """The sum of the weights at each index."""
    return np.bincount(index, weights, count).astype(np.float64, copy=False)


def operator(sketch: Sketch | Array) -> Operator:
    """The cheapest operator that represents `sketch` (a Sketch or an m x d matrix) exactly."""
    if not isinstance(sketch, Sketch):
        return DenseOperator(np.ascontiguousarray(sketch, dtype=np.float64))
    by_column = _one_per_column(sketch)
    if by_column is not None:
        return by_column
    if 8 * sketch.m * sketch.d <= DENSE_BYTES:
        matrix = sketch.block(0, sketch.d) if isinstance(sketch, DenseMap) else sketch.dense(torch.float64)
        return DenseOperator(np.ascontiguousarray(matrix.cpu().numpy()))
    return MatrixFree(sketch)


def _one_per_column(sketch: Sketch) -> BucketOperator | None:
    """The bucket form, found by two adjoints; None unless every column has at most one non-zero.

    With codes c_i = i + u_i, u_i random in (1/4, 3/4), a column with one non-zero has ratio Phi'c / Phi'1 = c_i with
    i the row; a column with several has a mixture of codes there, which is no code except on a null set.
    """
    m = sketch.m
    codes = _codes(m)
    total = sketch.adjoint(torch.ones(m, dtype=torch.float64)).numpy()
    coded = sketch.adjoint(torch.from_numpy(codes)).numpy()
    empty = total == 0
    if empty.any():
        if np.any(coded[empty]):
            return None
        ratio = np.where(empty, codes[0], coded) / np.where(empty, 1.0, total)
    else:
        ratio = coded / total
    if not (ratio.min() >= 0 and ratio.max() < m):
        return None
    index = ratio.astype(np.intp)
    if np.abs(ratio - codes[index]).max() > 1e-12 * m:
        return None
    return BucketOperator(index, total, m, float(sketch.norm))


@lru_cache(maxsize=16)
def _codes(m: int) -> Array:
    return np.arange(m) + np.random.default_rng(m).uniform(0.25, 0.75, m)


def spd_solve(matrix: Array, right: Array) -> Array:
    """Solve with a positive semidefinite matrix: Cholesky, or least squares where rounding has made it singular."""
    try:
        solved: Array = cho_solve(cho_factor(matrix, lower=True, check_finite=False), right, check_finite=False)
    except LinAlgError:
        solved = np.linalg.lstsq(matrix, right, rcond=None)[0].astype(np.float64, copy=False)
    return solved


def conjugate_gradient(apply: Callable[[Array], Array], b: Array, tol: float, max_iter: int = 500) -> Array:
    """x with ||A x - b|| <= tol ||b|| for a positive definite A, or the last of `max_iter` iterates."""
    x, r = np.zeros_like(b), b.copy()
    p, rho = r, float(r @ r)
    stop = tol * tol * rho
    for _ in range(max_iter):
        if rho <= stop:
            break
        q = apply(p)
        curvature = float(p @ q)
        if curvature <= 0:
            break
        x = x + (rho / curvature) * p
        r = r - (rho / curvature) * q
        rho, old = float(r @ r), rho
        p = r + (rho / old) * p
    return x
