"""A clip bound that follows a quantile of the norms, from a count that is paid for (Andrew et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from isthmus.gradients import Dense
from isthmus.privacy import AdaptiveClip
from isthmus.sketches import Context, Encoder, Sketch

COUNT_SHARE = 0.05
"""The share of the budget that buys the count."""
WIDTH = 2.0**-6
"""How far below and above the bound, relative, a record passes from one side of the count to the other."""


@dataclass(frozen=True, eq=False)
class Below(Encoder):
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
        return _BelowMap(context.bind(self.encoder), self.clip.ord, bound, self.clip.before), None


class _BelowMap(Sketch):
    """Not linear: it only encodes rows, and its values are at most 1/2."""

    leafwise = False

    def __init__(self, inner: Sketch, ord: float, bound: float, before: bool) -> None:
        self.inner, self.ord, self.bound, self.before = inner, ord, bound, before
        self.space, self.d, self.m = inner.space, inner.d, 1

    def encode(self, rows: Any) -> Any:
        """One number a record."""
        norms = (rows if self.before else self.inner.encode(rows)).norms(self.ord).to(torch.float64)
        inside = ((self.bound - norms) / (2 * WIDTH * self.bound)).clamp(-0.5, 0.5)
        return Dense(inside.nan_to_num(-0.5)[:, None])

    def rows(self, x: Any, lo: int = 0) -> NoReturn:
        """Refused: a count is not a linear map."""
        raise TypeError("A count of norms is not a linear map: encode whole rows with it")

    def adjoint(self, y: Tensor) -> NoReturn:
        """Refused: a count is not a linear map."""
        raise TypeError("A count of norms is not a linear map, and has no lift: use lift=discard")
