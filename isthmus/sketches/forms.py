"""What rows are made of, for maps that can do better than take them one by one."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from isthmus.base.matrix import Stored


class OuterForm(NamedTuple):
    """Rows vec(sum_t b_t a_t') by their factors: a (n, p), dense or CSR, or (n, T, p); b (n, q) or (n, T, q).

    `ones` says that a has one more column than it shows, of ones (the input of a layer's bias).
    """

    a: Stored
    b: Tensor
    ones: bool = False

    @property
    def single(self) -> bool:
        """Whether every row has one term."""
        return self.b.ndim == 2 or self.b.shape[1] == 1

    def whole_a(self) -> Stored:
        """The factor a with its column of ones."""
        a = self.a
        return torch.cat([a, a.new_ones(*a.shape[:-1], 1)], -1) if self.ones and isinstance(a, Tensor) else a


class TableForm(NamedTuple):
    """Rows vec(sum_t e_{k_t} c_t') of a V x D table: places k (n, T), values c (n, T, D), and V."""

    places: Tensor
    values: Tensor
    vocabulary: int
