"""The flat parameter vector and the named leaves it is made of.

Vectors are flat tensors everywhere; a `Space` remembers which slice is which matrix, so that a Kronecker
sketch or a per-layer clip can speak of layers.  A layer of a network is ONE leaf `[W | b]`: its bias is
the weight of one more input that is always 1.

>>> space = Space.of({"hidden": (3, 5), "out": (2, 4)})
>>> space.d, space.slice("out"), space.shape("out")
(23, slice(15, 23, None), (2, 4))
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from isthmus.base import validate


@dataclass(frozen=True)
class Leaf:
    """One named piece of the flat vector: `shape` numbers from `start` on, row-major."""

    name: str
    start: int
    shape: tuple[int, ...]

    @cached_property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Space:
    """R^d as an ordered list of named leaves."""

    leaves: tuple[Leaf, ...]

    @staticmethod
    def of(shapes: Mapping[str, tuple[int, ...]]) -> Space:
        """The space whose leaves have these shapes, in this order."""
        leaves, start = [], 0
        for name, shape in shapes.items():
            leaves.append(Leaf(name, start, tuple(shape)))
            start += leaves[-1].size
        return Space(tuple(leaves))

    @staticmethod
    def flat(d: int) -> Space:
        """R^d as one leaf `w`, a single row: the space of a linear model with one output."""
        validate.positive_int(d=d)
        return Space.of({"w": (1, d)})

    @cached_property
    def d(self) -> int:
        return sum(leaf.size for leaf in self.leaves)

    @cached_property
    def _by_name(self) -> dict[str, Leaf]:
        return {leaf.name: leaf for leaf in self.leaves}

    def __getitem__(self, name: str) -> Leaf:
        if name not in self._by_name:
            raise KeyError(f"name={name!r} is not allowed: this space has the leaves {list(self._by_name)}")
        return self._by_name[name]

    def slice(self, name: str) -> slice:
        """Where a leaf lies in the flat vector."""
        leaf = self[name]
        return slice(leaf.start, leaf.start + leaf.size)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a leaf."""
        return self[name].shape

    def overlaps(self, lo: int, hi: int) -> Iterator[tuple[Leaf, int, int]]:
        """The leaves that the places lo, ..., hi - 1 meet, and where in the flat vector: (leaf, first, last + 1).

        >>> [(leaf.name, lo, hi) for leaf, lo, hi in Space.of({"a": (4,), "b": (3,)}).overlaps(2, 6)]
        [('a', 2, 4), ('b', 4, 6)]
        """
        for leaf in self.leaves:
            begin, end = max(lo, leaf.start), min(hi, leaf.start + leaf.size)
            if begin < end:
                yield leaf, begin, end

    def view(self, vector: Tensor, name: str) -> Tensor:
        """The leaf of a flat vector, in its own shape."""
        return vector[self.slice(name)].view(self.shape(name))


def as_space(space: Space | int) -> Space:
    """A `Space`, from itself or from a plain dimension."""
    return space if isinstance(space, Space) else Space.flat(space)
