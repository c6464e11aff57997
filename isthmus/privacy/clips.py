"""Clips: a weight for each record such that its weighted value stays below a bound."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NoReturn, Protocol

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.gradients import Computed, Dense, Rows, rounding
from isthmus.gradients.rounding import RATIO, gamma, kappa
from isthmus.sketches import Context, Encoder
from isthmus.sketches.base import Sketch

SPAN = 1e6
"""An adaptive bound stays within this factor of its start."""
_SMALLEST, _LARGEST = 1e-24, 1e30
"""Bounds between which the rounding of float32 numbers is relative, sums of 10^8 records included."""


class Clipping(Protocol):
    """What bounds a record's share of a sum: weights such that every weighted row stays below a bound.

    ord     the norm that is bounded
    before  whether rows are clipped before the sketch, or their codes after it

    A clip of one's own brings `init`, and of the rest what differs from one bound for whole rows that never changes.
    """

    moves: ClassVar[bool] = False
    """Whether the bound follows what was released."""
    release: str | None = None
    """The release of the stage that the bound follows."""

    @property
    def ord(self) -> float: ...
    @property
    def before(self) -> bool: ...

    def init(self) -> float:
        """The bound of the first round."""
        ...

    def weights(self, rows: Rows, bound: float) -> Tensor | Mapping[str, Tensor]:
        """The weight of each row; norms are rounded up, so `||c_i v_i|| <= bound` holds after rounding."""
        return _weights(rows, self.ord, bound)

    def each(self, bound: float) -> float | Mapping[str, float]:
        """The bound of every weighted row."""
        return bound

    def total(self, bound: float) -> float:
        """The bound of one record's share in the sum."""
        return bound

    def next(self, bound: float, released: Mapping[str, Tensor]) -> float:
        """The bound of the next round, from released values only: here it never changes."""
        return bound


@dataclass(frozen=True)
class Clip(Clipping):
    """`c_i = min(1, C / ||v_i||_ord)`: weights only, a clip never touches values.

    `before=True` clips gradients before the sketch (and the sketch's certified gain multiplies the bound);
    the default clips their codes, which bounds a record by exactly C whatever the sketch is.

    | input | weight |
    |---|---|
    | v = 0 | 1 |
    | norm not finite | 0: the record is left out |
    | C / norm below the normal numbers | 0: such a weight has lost its digits |

    >>> import torch
    >>> from isthmus.gradients import Dense
    >>> Clip(1.0).weights(Dense(torch.tensor([[3.0, 4.0], [0.0, 0.5]])), 1.0)
    tensor([0.2000, 1.0000])
    """

    bound: float
    ord: float = 2
    before: bool = False

    def __post_init__(self) -> None:
        _check_bound("clip", self.bound)
        validate.one_of((1, 2, math.inf), ord=self.ord)

    def init(self) -> float:
        """The bound of the first round."""
        return self.bound


@dataclass(frozen=True)
class PerLeafClip(Clipping):
    """Each leaf has its own bound `C_l`; a record's share is below `sqrt(sum C_l^2)`.

    >>> PerLeafClip({"a": 3.0, "b": 4.0}).total(1.0)
    5.0
    """

    bounds: Mapping[str, float]
    ord: float = 2
    before: bool = False

    def __post_init__(self) -> None:
        validate.check(len(self.bounds) > 0, "bounds", dict(self.bounds), "give a bound for each leaf")
        for name, value in self.bounds.items():
            _check_bound(f"bounds[{name!r}]", value)
        validate.one_of((2,), ord=self.ord)

    def init(self) -> float:
        """Bounds are given; the state is one common factor."""
        return 1.0

    def weights(self, rows: Rows, bound: float) -> dict[str, Tensor]:
        """A weight for each row and leaf."""
        return {name: _weights(leaf, self.ord, self.bounds[name] * bound) for name, leaf in self._leaves(rows)}

    def weighted_sum(self, rows: Rows, bound: float, kappa: float) -> Tensor:
        """sum_i c_i v_i, leaf after leaf: the matrices that were computed for the norms of one serve its sum."""
        sums = []
        for name, leaf in self._leaves(rows):
            if isinstance(leaf, Computed):
                leaf.hold = True
            own = self.bounds[name] * bound
            sums.append(weighted_sum(leaf, _weights(leaf, self.ord, own), own, kappa))
        return torch.cat(sums)

    def _leaves(self, rows: Rows) -> Sequence[tuple[str, Rows]]:
        leaves = rows.leaves()
        names = [name for name, _ in leaves]
        validate.check(set(names) == set(self.bounds), "bounds", sorted(self.bounds), f"name the leaves {names}")
        return leaves

    def each(self, bound: float) -> dict[str, float]:
        """The bound of every weighted leaf of a row."""
        return {name: value * bound for name, value in self.bounds.items()}

    def total(self, bound: float) -> float:
        """The bound of one record's share in the stacked sum."""
        return bound * math.sqrt(sum(value**2 for value in self.bounds.values()))


@dataclass(frozen=True)
class GroupClip(Clip):
    """A clip of micro-batches: rows are means over groups, and a record is in one group only.

    Adding or removing one record changes the mean of its group from one vector of norm at most C to another: the sum
    moves by up to 2C.  This holds only where groups are assigned to records independently of one another.

    replaced  every round looks at all records, and neighbours differ by a replaced one: the mean of its group changes
              once, by 2C, which for replace-one is a bound of C a record (`Adjacency` doubles it).  A sample does not
              allow that: with the record in it or not the sum differs by 2C too.  `_check_sound` refuses it elsewhere.

    >>> GroupClip(1.0).total(1.0), GroupClip(1.0, replaced=True).total(1.0)
    (2.0, 1.0)
    """

    replaced: bool = False

    def total(self, bound: float) -> float:
        """The bound of one record's share in the sum."""
        return bound if self.replaced else 2 * bound


@dataclass(frozen=True)
class AdaptiveClip(Clipping):
    """A bound that follows a quantile of the norms, from a count that was paid for (Andrew et al. 2021).

    The release named `release` is the noisy mean of `1{||v_i|| <= C} - 1/2` (near C it falls in a straight line, see
    `ClipCountEncoder`); with b = that + 1/2, the share of records below the bound, the next bound is
    `C exp(-rate (b - quantile))`.  It reads released values only, so it costs nothing beyond the count.

    >>> import torch
    >>> AdaptiveClip(1.0, rate=1.0).next(1.0, {"below": torch.tensor([-0.5])})  # nobody below: e^(1/2)
    1.6487212707001282
    """

    moves: ClassVar[bool] = True

    initial: float
    quantile: float = 0.5
    rate: float = 0.2
    release: str = "below"
    ord: float = 2
    before: bool = False

    def __post_init__(self) -> None:
        _check_bound("clip", self.initial)
        validate.positive(rate=self.rate)
        validate.open_unit(quantile=self.quantile)
        validate.one_of((1, 2, math.inf), ord=self.ord)

    def init(self) -> float:
        """The bound of the first round."""
        return self.initial

    def next(self, bound: float, released: Mapping[str, Tensor]) -> float:
        """One geometric step; noise can carry the count outside [0, 1], where it is cut."""
        remedy = f"name a release of the stage, which are {sorted(released)}"
        validate.check(self.release in released, "release", self.release, remedy)
        below = min(1.0, max(0.0, float(released[self.release].reshape(-1)[0]) + 0.5))
        moved = bound * math.exp(min(700.0, max(-700.0, -self.rate * (below - self.quantile))))
        low, high = max(self.initial / SPAN, _SMALLEST), min(self.initial * SPAN, _LARGEST)
        return min(high, max(low, moved))


COUNT_SHARE = 0.05
"""The share of the budget that buys the count."""

_WIDTH = 2.0**-6
"""How far below and above the bound, relative, a record passes from one side of the count to the other."""


@dataclass(frozen=True, eq=False)
class ClipCountEncoder(Encoder):
    """One number a record, 1/2 where the norm of its code is within this round's bound and -1/2 where it is not.

    Near the bound it falls from one to the other in a straight line: the last digit of a norm, in which other records
    may have a part, would else decide where a record counts, and many on the border would move the count together.

    encoder  the map whose codes are clipped (shared with the release that clips them)
    clip     the adaptive clip
    slot     where the bound is kept: "stage/release"
    """

    encoder: Encoder
    clip: AdaptiveClip
    slot: str

    def bind(self, context: Context, state: Any) -> tuple[Sketch, Any]:
        """The count against the bound of this round."""
        bound = context.bounds[self.slot]  # type: ignore[attr-defined]
        return _CountMap(context.bind(self.encoder), self.clip.ord, bound, self.clip.before), None


class _CountMap(Sketch):
    """Not linear: it only encodes rows, and its values are at most 1/2."""

    leafwise = False

    def __init__(self, inner: Sketch, ord: float, bound: float, before: bool) -> None:
        self.inner, self.ord, self.bound, self.before = inner, ord, bound, before
        self.space, self.d, self.m = inner.space, inner.d, 1

    def encode(self, rows: Any) -> Any:
        """One number a record."""
        norms = (rows if self.before else self.inner.encode(rows)).norms(self.ord).to(torch.float64)
        inside = ((self.bound - norms) / (2 * _WIDTH * self.bound)).clamp(-0.5, 0.5)
        return Dense(inside.nan_to_num(-0.5)[:, None])

    def rows(self, x: Any, lo: int = 0) -> NoReturn:
        """Refused: a count is not a linear map."""
        raise TypeError("A count of norms is not a linear map: encode whole rows with it")

    def adjoint(self, y: Tensor) -> NoReturn:
        """Refused: a count is not a linear map."""
        raise TypeError("A count of norms is not a linear map, and has no lift: use lift=discard")


def _weights(rows: Rows, ord: float, bound: float) -> Tensor:
    """min(1, C / norm), rounded down, of each row; 0 where the weighted row could not be kept below C.

    Norms carry a reserve for the roundings of the product, relative ones.  Below the normal numbers roundings are
    absolute: a weight there is 0 (it has lost its digits), and what a product may lose there (`Rows.underflow`) is
    taken off C.  An infinite norm, also one that overflows the working dtype, gives 0.
    """
    if rows.device.type == "cuda" and not rows.exact:
        return _device_weights(rows, ord, bound)
    norms = rows.norms(ord)
    exact = (bound - rows.underflow()) / norms.to(torch.float64) * (1 - 2.0**-51)
    near = exact.to(norms.dtype)
    below = torch.where(near.to(torch.float64) > exact, torch.nextafter(near, torch.zeros_like(near)), near)
    weights = torch.where(below >= torch.finfo(norms.dtype).tiny, below, torch.zeros_like(below))
    return torch.where(norms > bound, weights, torch.ones_like(norms))


def _device_weights(rows: Rows, ord: float, bound: float) -> Tensor:
    """The same in a handful of launches: a few roundings are taken off every weight instead of the last one's side.

    A weight is at most C / norm less `RESERVE` + 4 roundings; a norm of 0 gives 1, one that is not finite 0.
    """
    steps = 1 + (rounding.RESERVE + 4) * rounding.unit(rows.dtype)
    room = (bound - rows.underflow()) / steps
    shares = (room / rows.norm_upper(ord)).nan_to_num_(0.0, 1.0, 0.0).clamp_(0.0, 1.0).to(rows.dtype)
    return torch.where(shares >= torch.finfo(rows.dtype).tiny, shares, 0.0)


def _check_bound(name: str, value: float) -> None:
    """Bounds so far from 1 that float32 sums near them lose digits, or overflow, are refused."""
    validate.positive(**{name: value})
    remedy = f"give a number between {_SMALLEST:g} and {_LARGEST:g}, near which float32 ends: rescale the loss"
    validate.check(_SMALLEST <= value <= _LARGEST, name, value, remedy)


@dataclass(frozen=True)
class ClippedSum:
    """`value = sum_i c_i v_i` as it was computed: one record more or less moves it by at most `bound`, in norm `ord`.

    The bound holds what rounding can add (see `isthmus.gradients.rounding`); it is infinite when nothing was clipped.
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
        (`isthmus.gradients.rounding`), in every data set; neighbours differ by at most twice that more, which the bound
        gets.  Nothing of it looks at the data, so neither does the length of a message.

        >>> import torch
        >>> sent = ClippedSum(torch.full((4,), 3.0), 2, 1.0, dtype=torch.float32).narrowed(2.0, 4.0, 2, 0.01)
        >>> sent.value, 0 < sent.bound - 1 < 1e-5
        (tensor([1., 1., 1., 1.]), True)
        """
        slack = (self.value.numel() + 64) * 2.0**-50  # the length itself is computed
        extra = 2 * total * (gamma(terms + 1, torch.float32) + slack)
        wide = self.dtype is None or torch.finfo(self.dtype).bits > 32  # what is released of it
        if not math.isfinite(self.bound) or self.ord != 2 or wide or extra > most:
            return self.precise()
        value = self.value.to(torch.float64)
        length = value.norm().clamp(min=torch.finfo(torch.float64).tiny)
        value = value * (own * self.bound / length).clamp(max=1.0)
        return replace(self, value=value.to(torch.float32), bound=self.bound * (1 + extra), spare=True)

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
        if not sketch.settles:
            return self
        value, ord, bound = sketch.settle(self.value, self.ord, self.bound)
        return replace(self, value=value, ord=ord, bound=bound)


@dataclass(frozen=True)
class Rounding:
    """How exactly a clipped sum is added up, so that its bound holds for what was computed: public things only.

    `batch` is the expected number of records (None for linear models, see `gradients.rounding.kappa`), `share` what the
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
    if isinstance(weights, Mapping):
        validate.refuse("clip", weights, "clip all leaves together before this sketch")
    codes = sketch.encode(rows)
    weights = torch.where(codes.norm_upper(ord).isfinite().to(weights.device), weights, 0.0)
    return weighted_sum(codes, weights, single * gain, kappa, ord).to(torch.float64)


def weighted_sum(
    rows: Rows, weights: Tensor | Mapping[str, Tensor], bound: float | Mapping[str, float], kappa: float, ord: float = 2
) -> Tensor:
    """sum_i c_i v_i, computed to within kappa / 2 of the bound: with one weight a record or one a record and leaf.

    Every c_i v_i has norm at most `bound` (of its leaf).  A record whose value is not finite has weight 0 and is left
    out: it cannot spoil the sum of the others.  One whose terms cancel so much that their absolute sum is more than
    `RATIO` times the bound is shortened: it could not be added up.  On a device rows are masked in any case: the host
    waits for nothing.
    """
    if isinstance(weights, Mapping):
        assert isinstance(bound, Mapping)
        sums = [weighted_sum(leaf, weights[name], bound[name], kappa, ord) for name, leaf in rows.leaves()]
        return torch.cat(sums)
    assert isinstance(bound, float)
    if weights.is_cuda and not rows.skips:
        rows = rows.masked(weights > 0)
    weights, rho = _shortened(rows, weights, bound, kappa / 2 * bound, ord)
    total = rows.sum_to(weights, rho)
    if weights.is_cuda or math.isfinite(float(total.sum())):  # one pass: anything not finite spoils it
        return total

    # 0 * inf is not 0; who stays is added as it was measured, by the same products
    return rows.masked(weights > 0).sum_to(weights, rho)


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
