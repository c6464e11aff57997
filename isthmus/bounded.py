"""`Bounded`: a clipped sum that carries its bound, the only thing a mechanism accepts.

A clip yields weights; the one function that reads per-example values (`isthmus.pipeline.measure`) turns
them into a `Bounded`.  Whatever stands between the clip and the noise states how it grows the norm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from isthmus import _validate


@dataclass(frozen=True)
class Bounded:
    """`value = sum_i c_i v_i` with `||c_i v_i||_ord <= bound` for every record i.

    Adding or removing one record moves `value` by at most `bound` in the norm `ord`.  `bound` is infinite
    when nothing was clipped.  `radius`, where a step before the noise needs it, bounds one record's share
    of the value in absolute size.  A `spare` value is nobody else's: a mechanism may overwrite it.

    >>> import torch
    >>> a, b = Bounded(torch.ones(2), 2, 1.0), Bounded(torch.ones(2), 2, 1.0)
    >>> (a + b).value.tolist(), (a + b).bound, a.through(torch.zeros(3), gain=2.0).bound
    ([2.0, 2.0], 1.0, 2.0)
    """

    value: Tensor
    ord: float
    bound: float
    radius: float = math.inf
    spare: bool = False

    def __add__(self, other: Bounded) -> Bounded:
        """The sum over two disjoint sets of records: a record is in one of them, so the bound stays."""
        _validate.check(other.ord == self.ord, "ord", other.ord, f"add sums clipped in one norm, here {self.ord}")
        _validate.check(other.bound == self.bound, "bound", other.bound, f"add sums of one bound, here {self.bound}")
        return replace(self, value=self.value + other.value)

    def through(self, value: Tensor, gain: float) -> Bounded:
        """The image of the value under a linear map whose `ord -> ord` norm is at most `gain`."""
        return Bounded(value, self.ord, self.bound * gain)


def weighted_sum(rows: Any, weights: Tensor | Mapping[str, Tensor]) -> Tensor:
    """sum_i c_i v_i, with one weight a record or one a record and leaf.

    A record whose value is not finite has weight 0 and is left out: it cannot spoil the sum of the others.
    """
    if isinstance(weights, Mapping):
        return torch.cat([weighted_sum(leaf, weights[name]) for name, leaf in rows.leaves()])
    if weights.is_cuda:  # never look at the sum: the host would wait for the device
        return rows.finite().sum(weights)
    total = rows.sum(weights)
    if math.isfinite(float(total.sum())):  # one pass: anything not finite spoils it
        return total
    total = torch.zeros_like(total)  # 0 * inf is not 0: add the others only, in chunks
    for lo, hi in rows.spans():
        c = weights[lo:hi].to(total)
        values = rows.part(lo, hi).dense().masked_fill((c == 0)[:, None], 0.0)
        total += c @ values.to(total)
    return total
