"""Clips: a weight for each record such that its weighted value stays below a bound."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from isthmus import _validate


@dataclass(frozen=True)
class Clip:
    """`c_i = min(1, C / ||v_i||_ord)`: weights only, a clip never touches values.

    `before=True` clips gradients before the sketch (and the sketch's certified gain multiplies the bound);
    the default clips their codes, which bounds a record by exactly C whatever the sketch is.

    | input | weight |
    |---|---|
    | v = 0 | 1 |
    | norm not finite | 0: the record is left out |

    >>> import torch
    >>> from isthmus.gradients import Dense
    >>> Clip(1.0).weights(Dense(torch.tensor([[3.0, 4.0], [0.0, 0.5]])), 1.0)
    tensor([0.2000, 1.0000])
    """

    bound: float
    ord: float = 2
    before: bool = False

    def __post_init__(self) -> None:
        _validate.positive(clip=self.bound)
        _validate.one_of((1, 2, math.inf), ord=self.ord)

    def init(self) -> float:
        """The bound of the first round."""
        return self.bound

    def weights(self, rows: Any, bound: float) -> Tensor:
        """The weight of each row; norms are rounded up, so `||c_i v_i|| <= bound` holds after rounding."""
        return _weights(rows.norms(self.ord), bound)

    def total(self, bound: float) -> float:
        """The bound of one record's share in the sum."""
        return bound

    def next(self, bound: float, released: Mapping[str, Tensor]) -> float:
        """The bound of the next round, from released values only: here it never changes."""
        return bound


@dataclass(frozen=True)
class PerLeafClip:
    """Each leaf has its own bound `C_l`; a record's share is below `sqrt(sum C_l^2)`.

    >>> PerLeafClip({"a": 3.0, "b": 4.0}).total(1.0)
    5.0
    """

    bounds: Mapping[str, float]
    ord: float = 2
    before: bool = False

    def __post_init__(self) -> None:
        _validate.check(len(self.bounds) > 0, "bounds", dict(self.bounds), "give a bound for each leaf")
        for name, value in self.bounds.items():
            _validate.positive(**{f"bounds[{name!r}]": value})
        _validate.one_of((2,), ord=self.ord)

    def init(self) -> float:
        """Bounds are given; the state is one common factor."""
        return 1.0

    def weights(self, rows: Any, bound: float) -> dict[str, Tensor]:
        """A weight for each row and leaf."""
        leaves = rows.leaves()
        names = [name for name, _ in leaves]
        _validate.check(set(names) == set(self.bounds), "bounds", sorted(self.bounds), f"name the leaves {names}")
        return {name: _weights(leaf.norms(self.ord), self.bounds[name] * bound) for name, leaf in leaves}

    def total(self, bound: float) -> float:
        """The bound of one record's share in the stacked sum."""
        return bound * math.sqrt(sum(value**2 for value in self.bounds.values()))

    def next(self, bound: float, released: Mapping[str, Tensor]) -> float:
        """Never changes."""
        return bound


def _weights(norms: Tensor, bound: float) -> Tensor:
    """min(1, C / norm); norms carry a reserve for the rounding of this division, and infinite ones give 0."""
    return (bound / norms).clamp(max=1.0)
