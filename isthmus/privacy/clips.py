"""Clips: a weight for each record such that its weighted value stays below a bound."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, Protocol

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.gradients import Dense, Rows, fused, rounding
from isthmus.sketches import Context, Encoder, Sketch

SPAN = 1e6
"""An adaptive bound stays within this factor of its start."""
SMALLEST, LARGEST = 1e-24, 1e30
"""Bounds between which the rounding of float32 numbers is relative, sums of 10^8 records included."""


class Clipping(Protocol):
    """What bounds a record's share of a sum: weights such that every weighted row stays below a bound.

    ord     the norm that is bounded
    before  whether rows are clipped before the sketch, or their codes after it

    A clip of one's own brings `init`, and of the rest what differs from one bound for whole rows that never changes.
    """

    moves: ClassVar[bool] = False
    """Whether the bound follows what was released."""
    by_leaf: ClassVar[bool] = False
    """Whether every leaf is clipped by itself: `leaf_weights` then needs no other."""

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

    def leaf_weights(self, name: str, rows: Rows, bound: float) -> tuple[Tensor, float]:
        """The weights of one leaf's rows and their bound, where leaves are clipped by themselves."""
        return _weights(rows, self.ord, bound), bound

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

    by_leaf: ClassVar[bool] = True

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
        leaves = rows.leaves()
        names = [name for name, _ in leaves]
        validate.check(set(names) == set(self.bounds), "bounds", sorted(self.bounds), f"name the leaves {names}")
        return {name: _weights(leaf, self.ord, self.bounds[name] * bound) for name, leaf in leaves}

    def leaf_weights(self, name: str, rows: Rows, bound: float) -> tuple[Tensor, float]:
        """The weights of one leaf's rows, and C_l."""
        own = self.bounds[name] * bound
        return _weights(rows, self.ord, own), own

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
              allow that: with the record in it or not the sum differs by 2C too.  `check_sound` refuses it elsewhere.

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
        validate.check(
            self.release in released,
            "release",
            self.release,
            f"name a release of the stage, which are {sorted(released)}",
        )
        below = min(1.0, max(0.0, float(released[self.release].reshape(-1)[0]) + 0.5))
        moved = bound * math.exp(min(700.0, max(-700.0, -self.rate * (below - self.quantile))))
        low, high = max(self.initial / SPAN, SMALLEST), min(self.initial * SPAN, LARGEST)
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
    exact = (bound - rows.underflow().to(norms.device)) / norms.to(torch.float64) * (1 - 2.0**-51)
    near = exact.to(norms.dtype)
    below = torch.where(near.to(torch.float64) > exact, torch.nextafter(near, torch.zeros_like(near)), near)
    weights = torch.where(below >= torch.finfo(norms.dtype).tiny, below, torch.zeros_like(below))
    return torch.where(norms > bound, weights, torch.ones_like(norms))


def _device_weights(rows: Rows, ord: float, bound: float) -> Tensor:
    """The same in a handful of launches: a few roundings are taken off every weight instead of the last one's side.

    A weight is at most C / norm less `RESERVE` + 4 roundings; a norm of 0 gives 1, one that is not finite 0.
    """
    steps = 1 + (rounding.RESERVE + 4) * rounding.unit(rows.dtype)
    alike = type(rows).underflow is Rows.underflow
    if alike and fused.can_sum(rows.device, rows.dtype):
        return fused.shares(rows.norm_upper(ord), (bound - rows.lost) / steps)
    room = bound - (rows.lost if alike else rows.underflow())
    shares = (room / steps / rows.norm_upper(ord)).nan_to_num_(0.0, 1.0, 0.0).clamp_(0.0, 1.0).to(rows.dtype)
    return torch.where(shares >= torch.finfo(rows.dtype).tiny, shares, 0.0)


def _check_bound(name: str, value: float) -> None:
    """Bounds so far from 1 that float32 sums near them lose digits, or overflow, are refused."""
    validate.positive(**{name: value})
    remedy = f"give a number between {SMALLEST:g} and {LARGEST:g}, near which float32 ends: rescale the loss"
    validate.check(SMALLEST <= value <= LARGEST, name, value, remedy)
