"""Rows that are products of a record with itself, never built for all records at once: x^2, and x x'."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from isthmus.gradients import Rows, adding, rounding
from isthmus.problems.scaling import STEP, Scaled


class _OfRows(Rows):
    """What the two share: a view of the rows, answered some rows at a time in float64."""

    dtype = torch.float64
    device = torch.device("cpu")

    def __init__(self, X: Any) -> None:
        self.X = Scaled.of(X)
        self.n = self.X.shape[0]

    def sum_to(self, weights: Tensor, rho: float, out: Tensor | None = None) -> Tensor:
        c = weights.to(torch.float64)
        total = adding.in_float64(self.n, rho, (self.d,), self.device, lambda lo, hi: self._add(lo, hi, c), STEP)
        return self._room(rho, out).copy_(total)

    def _add(self, lo: int, hi: int, c: Tensor) -> Tensor:
        raise NotImplementedError


class Squares(_OfRows):
    """Rows x_i^2, entry by entry: their sum holds the second moments of the columns.

    >>> Squares(torch.tensor([[1.0, 2.0], [3.0, 0.0]])).sum().tolist()
    [10.0, 4.0]
    """

    def __init__(self, X: Any) -> None:
        super().__init__(X)
        self.d = self.X.shape[1]

    def norm_upper(self, ord: float = 2) -> Tensor:
        if ord != 2:
            return rounding.upper_norms(self.dense(), ord)
        return self.X.square_norms() * (1 + (self.d + 64) * 2.0**-52)

    def part(self, lo: int, hi: int) -> Squares:
        return Squares(self.X[lo:hi])

    def dense(self) -> Tensor:
        return self.X.dense().square()

    def _add(self, lo: int, hi: int, c: Tensor) -> Tensor:
        return self.X[lo:hi].square_sum(c[lo:hi])


class Products(_OfRows):
    """Rows vec(x_i x_i'): their sum is X'X, and ||x x'||_F = ||x||^2.

    >>> Products(torch.tensor([[1.0, 2.0], [3.0, 0.0]])).sum().tolist()
    [10.0, 2.0, 2.0, 4.0]
    """

    def __init__(self, X: Any) -> None:
        super().__init__(X)
        self.d = self.X.shape[1] ** 2

    def norm_upper(self, ord: float = 2) -> Tensor:
        if ord != 2:
            return rounding.upper_norms(self.dense(), ord)
        return self.X.upper.square() * (1 + 2.0**-50)

    def part(self, lo: int, hi: int) -> Products:
        return Products(self.X[lo:hi])

    def dense(self) -> Tensor:
        rows = self.X.dense()
        return (rows[:, :, None] * rows[:, None, :]).reshape(self.n, self.d)

    def _add(self, lo: int, hi: int, c: Tensor) -> Tensor:
        return self.X[lo:hi].gram(c[lo:hi]).reshape(-1)
