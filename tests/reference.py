"""Slow, plain versions of things, for tests."""

import math
from typing import Any, NoReturn

import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

from isthmus.base.matrix import to_dense
from isthmus.base.space import Space
from isthmus.sketches.base import Sketch


class DenseSketch(Sketch):
    """A sketch given by its matrix; tight when its rows are orthogonal and of one length."""

    def __init__(self, matrix: Tensor, space: Space | None = None) -> None:
        self.matrix = matrix
        self.m, self.d = matrix.shape
        self.space = Space.flat(self.d) if space is None else space
        self.norm = float(torch.linalg.matrix_norm(matrix, 2))
        gram = matrix @ matrix.T
        tolerance = 64 * torch.finfo(matrix.dtype).eps * self.norm**2
        self.tight = bool((gram - self.norm**2 * torch.eye(self.m, dtype=matrix.dtype)).abs().max() <= tolerance)
        self.coverage = self.m / self.d

    def rows(self, x, lo: int = 0) -> Tensor:
        x = to_dense(x) if sp.issparse(x) else x
        return x @ self.matrix[:, lo : lo + x.shape[1]].to(x.dtype).T

    def adjoint(self, y: Tensor) -> Tensor:
        return self.matrix.to(y.dtype).T @ y


def orthonormal(m: int, d: int, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> Tensor:
    """m random orthonormal rows of R^d."""
    q, _ = torch.linalg.qr(torch.randn(d, m, dtype=torch.float64, generator=generator))
    return q.T.contiguous().to(dtype)


def wide(x) -> Tensor:
    """A factor as an exact float64 tensor."""
    return torch.as_tensor(x.toarray() if sp.issparse(x) else x).to(torch.float64)


def outer_rows(a, b) -> Tensor:
    """vec(sum_t b_t a_t') in float64."""
    a, b = wide(a), wide(b)
    rule = "nq,np->nqp" if a.ndim == 2 else "ntq,ntp->nqp"
    return torch.einsum(rule, b, a).reshape(a.shape[0], a.shape[-1] * b.shape[-1])


def exact_norms(rows: Tensor, ord: float = 2) -> Tensor:
    """Norms of float64 rows with exactly rounded sums."""
    if ord == math.inf:
        return rows.abs().amax(1)
    if ord == 1:
        return torch.tensor([math.fsum(map(abs, row)) for row in rows.tolist()], dtype=torch.float64)
    return torch.tensor([math.hypot(*row) for row in rows.tolist()], dtype=torch.float64)


def never_densified(X: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on no sparse matrix of this kind may be made dense."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("a CSR matrix was densified")

    for kind in type(X).__mro__:
        for name in {"toarray", "todense"} & vars(kind).keys():
            monkeypatch.setattr(kind, name, refuse)
