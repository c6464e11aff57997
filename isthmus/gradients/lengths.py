"""Norms of the rows of a matrix, computed once and kept."""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus.base.matrix import Matrix, View
from isthmus.gradients.rounding import matrix_bounds

Where = slice | Tensor | None
"""Which rows: a range, positions, or all."""


class Lengths:
    """Upper bounds of the norms of n rows: each is computed when it is first asked for, and kept.

    A clip of a linear model multiplies ||x_i|| by the size of a slope: only the second changes from round to round.

    >>> lengths, x = Lengths(2), torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    >>> lengths.of(x[:1], 2, slice(0, 1)).round(decimals=3)
    tensor([5.], dtype=torch.float64)
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self._kept: dict[float, Tensor] = {}

    def of(self, rows: Matrix, ord: float, where: Where = None) -> Tensor:
        """Of `rows`, which are those at `where`: never below the true norms, float64."""
        if isinstance(rows, View) and rows.measured and ord == 2:  # a view keeps its own
            return matrix_bounds(rows, ord)[1]
        if ord not in self._kept:  # NaN: not known yet
            self._kept[ord] = torch.full((self.n,), torch.nan, dtype=torch.float64)
        table = self._kept[ord]
        lengths = table if where is None else table[where]
        if bool(lengths.isnan().any()):
            lengths = matrix_bounds(rows, ord)[1].cpu()
            table[slice(None) if where is None else where] = lengths
        return lengths
