"""Quantities of the data that are no sum of terms of single records, each with its proven bound.

Sums are bounded by clipping every record (`privacy.clips`).  What is no sum is a `Query`: it states what one record
more or less can move it by, with the proof in its docstring; replacing a record is removing one and adding another.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from isthmus.gradients.adding import KAPPA
from isthmus.problems.objectives.linear import top_eigenvalue
from isthmus.problems.scaling import Scaled, unit_rows


class Query(ABC):
    """A vector of the data whose l2 distance between neighbours is at most `bound`, for every data set."""

    bound: float

    @abstractmethod
    def value(self) -> Tensor:
        """The quantity itself: private."""


class TopEigenvalue(Query):
    """lambda_max(X'X) of rows of norm at most 1.

    Proof.  A record x more makes of A = X'X the matrix A + x x', and 0 <= x x' <= I as ||x|| <= 1.  By Weyl's
    inequality lambda_max(A) <= lambda_max(A + x x') <= lambda_max(A) + ||x||^2 <= lambda_max(A) + 1.  The rest of
    `bound`, `KAPPA`, is for what rounding and Lanczos may be off by (`top_eigenvalue`).

    >>> [round(top, 9) for top in TopEigenvalue([[1.0, 0.0], [0.6, 0.8]]).value().tolist()]
    [1.6]
    """

    bound = 1 + KAPPA

    def __init__(self, X: Any) -> None:
        self.X: Scaled = unit_rows(X)

    def value(self) -> Tensor:
        return torch.tensor([top_eigenvalue(self.X)], dtype=torch.float64)
