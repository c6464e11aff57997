"""The identity, as a sketch: with it every compressed algorithm becomes its plain counterpart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus.base.matrix import Stored, to_dense
from isthmus.base.space import Space
from isthmus.sketches.base import CodesLeaves, LiftsLeaves, Movable, R, Random, Sketch, check_block, check_vector


@dataclass(frozen=True)
class Identity(Random):
    """Phi = I: m = d, norm 1, coverage 1; rows pass through as they are.

    >>> Identity().draw(3).forward(torch.tensor([1.0, 2.0, 3.0])).tolist()
    [1.0, 2.0, 3.0]
    """

    keeps_layers = True

    def build(self, space: Space, key: int, t: int) -> Sketch:
        """The identity on a space."""
        return IdentityMap(space)


class IdentityMap(CodesLeaves, LiftsLeaves, Movable):
    """The identity of a space."""

    tight = True

    def __init__(self, space: Space):
        self.space, self.d, self.m = space, space.d, space.d
        self.norm = 1.0

    def tensors(self) -> Sequence[Tensor]:
        """None at all."""
        return ()

    def placed(self, tensors: Sequence[Tensor]) -> Sketch:
        """The map itself."""
        return self

    def forward(self, v: Tensor) -> Tensor:
        """v."""
        check_vector(self, v, "v", self.d)
        return v

    def adjoint(self, y: Tensor) -> Tensor:
        """y."""
        check_vector(self, y, "y", self.d)
        return y

    def adjoint_leaf(self, name: str, y: Tensor) -> Tensor:
        """A view of y."""
        check_vector(self, y, "y", self.d)
        return y[self.space.slice(name)]

    def rows(self, x: Stored, lo: int = 0) -> Tensor:
        """The block itself, in its place among d columns."""
        hi = check_block(self, x, lo)
        return torch.nn.functional.pad(to_dense(x), (lo, self.d - hi))

    def gain(self, ord: float) -> float:
        """1 for every norm."""
        return 1.0

    def leaf(self, name: str, rows: R) -> R | None:
        """The rows of the leaf."""
        return rows

    def join(self, pieces: Mapping[str, R | None]) -> R:
        """The leaves side by side."""
        return stack(pieces)

    def encode(self, rows: R) -> R:
        """The rows themselves."""
        return rows

    def describe(self) -> str:
        """One sentence for reports."""
        return f"the whole gradient, {self.d} numbers"


def stack(pieces: Mapping[str, R | None]) -> R:
    """Pieces that own one slice of the code each, in order; None is left out."""
    items = [(name, piece) for name, piece in pieces.items() if piece is not None]
    return items[0][1] if len(items) == 1 else items[0][1].stack(items)
