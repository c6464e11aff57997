"""`ClippedSum`: a clipped sum that carries its bound, the only thing a mechanism accepts.

A clip yields weights; the one function that reads per-example values (`isthmus.core.pipeline.measure`) turns
them into a `ClippedSum`.  Whatever stands between the clip and the noise states how it grows the norm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.recording import is_set, recording_now
from isthmus.gradients import Rows
from isthmus.gradients.adding import RATIO, kappa
from isthmus.gradients.rounding import gamma
from isthmus.sketches.base import ChangesSum, Sketch


@dataclass(frozen=True)
class ClippedSum:
    """`value = sum_i c_i v_i` as it was computed: one record more or less moves it by at most `bound`, in norm `ord`.

    The bound holds what rounding can add (see `isthmus.gradients.adding`); it is infinite when nothing was clipped.
    A `spare` value is nobody else's: a mechanism may overwrite it.  `dtype` is what the released value is rounded to:
    the sum may need more digits than what is made of it.

    >>> import torch
    >>> a, b = ClippedSum(torch.ones(2), 2, 1.0), ClippedSum(torch.ones(2), 2, 1.0)
    >>> (a + b).value.tolist(), (a + b).bound
    ([2.0, 2.0], 1.0)
    """

    value: Tensor
    ord: float
    bound: float
    spare: bool = False
    dtype: torch.dtype | None = None

    def __add__(self, other: ClippedSum) -> ClippedSum:
        """The sum over two disjoint sets of records: a record is in one of them, so the bound stays.

        Clipped sums are added in float64, where what the addition rounds is nothing beside the bound.
        """
        validate.check(other.ord == self.ord, "ord", other.ord, f"add sums clipped in one norm, here {self.ord}")
        validate.check(other.bound == self.bound, "bound", other.bound, f"add sums of one bound, here {self.bound}")
        return replace(self, value=self.precise().value + other.value)

    def precise(self) -> ClippedSum:
        """The same, ready to be added to others."""
        return replace(self, value=self.value.to(torch.float64)) if math.isfinite(self.bound) else self

    def narrowed(self, own: float, total: float, terms: int, most: float) -> ClippedSum:
        """The same, as one of `terms` sums over disjoint records that are sent and added: in float32 where that may be.

        own, total  what this sum, and all of them together, are shortened to, in bounds of one record: public numbers
        most        what float32 may add to the bound, relative; where it would be more, sums are sent as `precise`

        Shortening a sum to a length R projects it onto a ball, which moves two points no further apart: neighbours
        stay as close as they were, and every sum is at most R long whatever the data are.  A float32 cast and at most
        terms - 1 additions in any order are then off by at most gamma_terms times the lengths of all sums together
        (`isthmus.gradients.adding`), in every data set; neighbours differ by at most twice that more, which the bound
        gets.  Nothing of it looks at the data, so neither does the length of a message.

        >>> import torch
        >>> sent = ClippedSum(torch.full((4,), 3.0), 2, 1.0, dtype=torch.float32).narrowed(2.0, 4.0, 2, 0.01)
        >>> sent.value, 0 < sent.bound - 1 < 1e-5
        (tensor([1., 1., 1., 1.]), True)
        """
        slack = (self.value.numel() + 64) * 2.0**-50  # the length itself is computed
        extra = 2 * total * (gamma(terms + 1, torch.float32) + slack)
        if not math.isfinite(self.bound) or self.ord != 2 or not self._low or extra > most:
            return self.precise()
        value = self.value.to(torch.float64)
        length = value.norm().clamp(min=torch.finfo(torch.float64).tiny)
        value = value * (own * self.bound / length).clamp(max=1.0)
        return replace(self, value=value.to(torch.float32), bound=self.bound * (1 + extra), spare=True)

    @property
    def _low(self) -> bool:
        """Whether what is released has no more digits than float32."""
        return self.dtype is not None and torch.finfo(self.dtype).bits <= 32

    @property
    def size(self) -> int:
        """The bytes of what is released of it, a public number: the data decide in which dtype a sum is added up.

        >>> import torch
        >>> ClippedSum(torch.ones(3, dtype=torch.float64), 2, 1.0, dtype=torch.float32).size
        12
        """
        return self.value.numel() * (self.dtype or self.value.dtype).itemsize

    def settled(self, sketch: Sketch) -> ClippedSum:
        """What the map makes of the whole sum: nothing, for maps of single records."""
        if not isinstance(sketch, ChangesSum):
            return self
        value, ord, bound = sketch.settle(self.value, self.ord, self.bound)
        return replace(self, value=value, ord=ord, bound=bound)


@dataclass(frozen=True)
class Rounding:
    """How exactly a clipped sum is added up, so that its bound holds for what was computed: public things only.

    `batch` is the expected number of records (None for linear models, see `gradients.adding.kappa`), `share` what the
    part at hand may use of the error that a whole sum may have.
    """

    batch: float | None = None
    share: float = 1.0

    def kappa(self, rows: Rows, encoded: bool) -> float:
        """What rounding may add to the bound of one record, relative."""
        return kappa(self.batch, rows.dtype, encoded)


def part_of_error(number: int, last: bool) -> float:
    """What physical batch 1, 2, ... may use of the rounding error of a whole sum: together no more than all of it.

    Batches 2^k, ..., 2^(k+1) - 1 have the same share, 2^-(k+1) / ((k+1) (k+2)), and the last has a half: few shares, so
    that a device that records its work (`isthmus.base.recording`) meets the same work again.

    >>> part_of_error(1, True), sum(part_of_error(number, number == 400) for number in range(1, 401)) <= 1
    (1.0, True)
    """
    if last:
        return 1.0 if number == 1 else 0.5
    k = number.bit_length() - 1
    return 2.0 ** -(k + 1) / ((k + 1) * (k + 2))


def encoded_sum(
    sketch: Sketch,
    rows: Rows,
    weights: Tensor | Mapping[str, Tensor],
    bound: float | Mapping[str, float],
    kappa: float,
    ord: float,
) -> Tensor:
    """Phi sum_i c_i g_i, float64, to within kappa / 2 of the bound times the gain of Phi.

    The map of the sum is off by at most sqrt(m) gamma_d ||Phi|| times the sum's length, which is far more than one
    record's: where that is not small beside the bound, the rows are mapped one by one and their codes are added.
    """
    single, gain = (bound if isinstance(bound, float) else min(bound.values())), sketch.gain(ord)
    total = weighted_sum(rows, weights, bound, kappa / 2, ord).to(torch.float64)
    lost = math.sqrt(sketch.m) * gamma(sketch.d + 64, torch.float64) * sketch.norm * float(total.norm())
    if lost * (math.sqrt(sketch.m) if ord == 1 else 1.0) <= kappa / 4 * single * gain:
        return sketch.forward(total)
    validate.check(not isinstance(weights, Mapping), "clip", weights, "clip all leaves together before this sketch")
    return weighted_sum(sketch.encode(rows), weights, single * gain, kappa, ord).to(torch.float64)


def weighted_sum(
    rows: Rows,
    weights: Tensor | Mapping[str, Tensor],
    bound: float | Mapping[str, float],
    kappa: float,
    ord: float = 2,
    wait: bool = True,
) -> Tensor:
    """sum_i c_i v_i, computed to within kappa / 2 of the bound: with one weight a record or one a record and leaf.

    Every c_i v_i has norm at most `bound` (of its leaf).  A record whose value is not finite has weight 0 and is left
    out: it cannot spoil the sum of the others.  One whose terms cancel so much that their absolute sum is more than
    `RATIO` times the bound is shortened: it could not be added up.  On a device the host waits once, to know whether
    anybody is left out; with `wait=False`, or where that costs next to nothing, rows are masked in any case.
    """
    if isinstance(weights, Mapping):
        assert isinstance(bound, Mapping)
        sums = [weighted_sum(leaf, weights[name], bound[name], kappa, ord, False) for name, leaf in rows.leaves()]
        return torch.cat(sums)
    assert isinstance(bound, float)
    if weights.is_cuda:  # never look at the sum; whether somebody is left out is all the host waits for
        blind = rows.small or not (wait or recording_now())
        rows = rows.without(weights) if blind or is_set((weights == 0).any()) else rows
    weights, rho = _shortened(rows, weights, bound, kappa / 2 * bound, ord)
    total = rows.sum_to(weights, rho)
    if weights.is_cuda or math.isfinite(float(total.sum())):  # one pass: anything not finite spoils it
        return total

    # 0 * inf is not 0; who stays is added as it was measured, by the same products
    return rows.masked((weights > 0) & rows.sound().to(weights.device)).sum_to(weights, rho)


def _shortened(rows: Rows, weights: Tensor, bound: float, allowed: float, ord: float) -> tuple[Tensor, float]:
    """The weights, less where a record's terms are too long, and the share of all terms that the error may be."""
    most, sizes = rows.n * bound * (1 + 2.0**-20), rows.mass(ord)
    if sizes is not None:
        heavy = weights.to(torch.float64) * sizes
        limit = (RATIO * bound / sizes * (1 - 2.0**-20)).to(weights.dtype)
        weights = torch.where(heavy > RATIO * bound, limit, weights)
        most += float(torch.where(weights > 0, weights.to(torch.float64) * sizes, 0.0).sum())
    lost = 2.0**40 * rows.d ** (0.0 if math.isinf(ord) else 1 / ord) * torch.finfo(rows.dtype).tiny
    rho = allowed / most if most > 0 else 1.0
    return weights, rho if lost < allowed / 64 else min(rho, 2.0**-30)  # what underflows is kept by float64
