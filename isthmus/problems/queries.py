"""Quantities of the data that are no sum of terms of single records, each with its proven bound; and rows x^2, x x'.

Sums are bounded by clipping every record (`privacy.clips`).  What is no sum is a `Query`: it states what one record
more or less can move it by, with the proof in its docstring; replacing a record is removing one and adding another.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from isthmus.base.matrix import matmul, rmatmul
from isthmus.gradients import Rows, rounding
from isthmus.gradients.rounding import KAPPA
from isthmus.objectives.linear import lanczos_top, top_eigenvalue
from isthmus.problems.scaling import STEP, Scaled, unit_rows

_SMALL_JOINT = 256
"""Up to this many columns holders send X'X whole: one product."""


class Query(ABC):
    """A vector of the data whose l2 distance between neighbours is at most `bound`, for every data set."""

    bound: float
    d = 1
    """How many numbers it has."""

    @abstractmethod
    def value(self) -> Tensor:
        """The quantity itself: private."""

    def products(self, v: Tensor) -> Tensor:
        """What the records of this holder add to a product that `joint` asks for."""
        raise NotImplementedError

    def joint(self, products: Callable[[Tensor], Tensor]) -> Tensor:
        """The quantity of the records of several holders, from sums of their `products`: private."""
        raise NotImplementedError

    @property
    def adds_up(self) -> bool:
        """Whether several holders can find it together (`joint`)."""
        return type(self).joint is not Query.joint


class Answered(Query):
    """A query that was answered elsewhere: its value here, and the bound that was proven for it."""

    def __init__(self, value: Tensor, bound: float) -> None:
        self._value, self.bound = value, bound

    def value(self) -> Tensor:
        return self._value


class TopEigenvalue(Query):
    """lambda_max(X'X) of rows of norm at most 1.

    Proof.  A record x more makes of A = X'X the matrix A + x x', and 0 <= x x' <= I as ||x|| <= 1.  By Weyl's
    inequality lambda_max(A) <= lambda_max(A + x x') <= lambda_max(A) + ||x||^2 <= lambda_max(A) + 1.  The rest of
    `bound`, `KAPPA`, is for what rounding and Lanczos may be off by (`top_eigenvalue`).

    >>> [round(top, 9) for top in TopEigenvalue([[1.0, 0.0], [0.6, 0.8]]).value().tolist()]
    [1.6]
    """

    bound = 1 + KAPPA

    def __init__(self, X: object) -> None:
        self.X: Scaled = unit_rows(X)

    def value(self) -> Tensor:
        return torch.tensor([top_eigenvalue(self.X)], dtype=torch.float64)

    def products(self, v: Tensor) -> Tensor:
        """X'X v for a matrix v of columns."""
        return torch.stack([rmatmul(self.X, matmul(self.X, column)) for column in v.T], 1)

    def joint(self, products: Callable[[Tensor], Tensor]) -> Tensor:
        """The same by Lanczos, or from the whole matrix where that is small, of products that were added up.

        >>> parts = [TopEigenvalue([[1.0, 0.0]]), TopEigenvalue([[0.6, 0.8]])]
        >>> [round(top, 9) for top in parts[0].joint(lambda v: sum(part.products(v) for part in parts)).tolist()]
        [1.6]
        """
        d = self.X.shape[1]
        if d <= _SMALL_JOINT:
            gram = products(torch.eye(d, dtype=torch.float64))
            values: Tensor = torch.linalg.eigvalsh((gram + gram.T) / 2)
            return values[-1:].clamp_min(0)
        return torch.tensor([lanczos_top(lambda v: products(torch.from_numpy(v)[:, None])[:, 0].numpy(), d)])


class _OfRows(Rows):
    """What the two share: a view of the rows, answered some rows at a time in float64."""

    dtype = torch.float64
    device = torch.device("cpu")

    def __init__(self, X: object) -> None:
        self.X = Scaled.of(X)
        self.n = self.X.shape[0]

    def norm_upper(self, ord: float = 2) -> Tensor:
        if ord != 2:
            return rounding.upper_norms(self.dense(), ord)
        return self._lengths()

    def part(self, lo: int, hi: int) -> Rows:
        return type(self)(self.X[lo:hi])

    def sum_to(self, weights: Tensor, rho: float, out: Tensor | None = None) -> Tensor:
        c = weights.to(torch.float64)
        total = rounding.in_float64(self.n, rho, (self.d,), self.device, lambda lo, hi: self._add(lo, hi, c), STEP)
        return self._room(rho, out).copy_(total)

    @abstractmethod
    def _lengths(self) -> Tensor: ...

    @abstractmethod
    def _add(self, lo: int, hi: int, c: Tensor) -> Tensor: ...


class Squares(_OfRows):
    """Rows x_i^2, entry by entry: their sum holds the second moments of the columns.

    >>> Squares(torch.tensor([[1.0, 2.0], [3.0, 0.0]])).sum().tolist()
    [10.0, 4.0]
    """

    def __init__(self, X: object) -> None:
        super().__init__(X)
        self.d = self.X.shape[1]

    def _lengths(self) -> Tensor:
        return self.X.square_norms() * (1 + (self.d + 64) * 2.0**-52)

    def dense(self) -> Tensor:
        return self.X.dense().square()

    def _add(self, lo: int, hi: int, c: Tensor) -> Tensor:
        return self.X[lo:hi].square_sum(c[lo:hi])


class Products(_OfRows):
    """Rows vec(x_i x_i'): their sum is X'X, and ||x x'||_F = ||x||^2.

    >>> Products(torch.tensor([[1.0, 2.0], [3.0, 0.0]])).sum().tolist()
    [10.0, 2.0, 2.0, 4.0]
    """

    def __init__(self, X: object) -> None:
        super().__init__(X)
        self.d = self.X.shape[1] ** 2

    def _lengths(self) -> Tensor:
        return self.X.upper.square() * (1 + 2.0**-50)

    def dense(self) -> Tensor:
        rows = self.X.dense()
        return (rows[:, :, None] * rows[:, None, :]).reshape(self.n, self.d)

    def _add(self, lo: int, hi: int, c: Tensor) -> Tensor:
        return self.X[lo:hi].gram(c[lo:hi]).reshape(-1)
