"""Rows of a count: each has a single 1 in every block of bins."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.gradients import rounding
from isthmus.gradients.base import Rows, row_spans
from isthmus.gradients.rounding import Bounds


class Counts(Rows):
    """Row i has a 1 at bin `bins[i, j]` of block j and zeros elsewhere: its sum counts records, exactly.

    Args:
        bins: `(lo, hi) -> (hi - lo, blocks)` integer tensor, the bins 0 .. width - 1 of rows lo .. hi - 1.
        n: how many rows.
        blocks, width: how many blocks, of how many bins each; d is their product.

    Every row has norm sqrt(blocks) in l2, `blocks` in l1 and 1 in l-infinity, whatever the records are.

    >>> rows = Counts(lambda lo, hi: torch.tensor([[0, 2], [1, 2]])[lo:hi], 2, blocks=2, width=3)
    >>> rows.sum().tolist(), rows.d
    ([1.0, 1.0, 0.0, 0.0, 0.0, 2.0], 6)
    """

    exact = True
    dtype = torch.float64
    device = torch.device("cpu")

    def __init__(self, bins: Callable[[int, int], Tensor], n: int, blocks: int, width: int) -> None:
        self.bins, self.n, self.blocks, self.width = bins, n, blocks, width
        self.d = blocks * width

    def norm_bounds(self, ord: float = 2) -> Bounds:
        rounding.check_ord(ord)
        norm = torch.full((self.n,), float(self.blocks) ** (1 / ord), dtype=torch.float64)
        return norm * (1 - 2.0**-50), norm * (1 + 2.0**-50)

    def sum(self, weights: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        c, total = self._weights(weights), torch.zeros(self.d, dtype=torch.float64)
        for lo, hi in self.spans():
            places = self._places(lo, hi)
            shares = c[lo:hi, None].expand_as(places)
            total += torch.bincount(places.reshape(-1), weights=shares.reshape(-1), minlength=self.d)
        return self._into(out, total)

    def sum_to(self, weights: Tensor, rho: float, out: Tensor | None = None) -> Tensor:
        whole = bool(((weights == 0) | (weights == 1)).all())  # sums of ones are exact below 2^53
        validate.check(whole, "clip", "shares of a count", "clip a count by the one norm that all its rows share")
        return self.sum(weights, out)

    def part(self, lo: int, hi: int) -> Counts:
        return Counts(lambda i, j: self.bins(lo + i, lo + j), hi - lo, self.blocks, self.width)

    def dense(self) -> Tensor:
        return torch.zeros(self.n, self.d, dtype=torch.float64).scatter_(1, self._places(0, self.n), 1.0)

    def spans(self) -> list[tuple[int, int]]:
        return row_spans(self.n, 64 * max(1, self.blocks))

    def _places(self, lo: int, hi: int) -> Tensor:
        return self.bins(lo, hi) + torch.arange(self.blocks) * self.width
