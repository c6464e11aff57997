"""Warm-started low rank: the power method, a step (or half a step) a round.

A matrix M (n x k) is projected onto r directions of one of its sides.  With the Q of the round before,

    send  P = M Q       (n x r)   and make it orthonormal:  the left directions of this very gradient
    send  R = P' M      (r x k)   and lift  P R;            keep an orthonormal basis of R' as Q

or, with `halves`, one of the two in turn: half of the bytes and of the collectives, in directions that are a round old.

With a basis that all ranks share this is a linear map with orthonormal rows: codes add up, the lift is its
pseudo-inverse, and what is left of a gradient is what error feedback needs, v - Phi^+ Phi v.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.randomness import key, sign_range
from isthmus.base.space import Leaf, Space
from isthmus.distributed.hooks.exact import exact_product, orthonormal
from isthmus.distributed.hooks.ways import Kept, Layout, Linear, Mean

LEFT, RIGHT = "left", "right"
INSURANCE = 2.0**-13
"""Random directions that are mixed into a basis, relative to its length: where a gradient has fewer than r directions,
the others are new ones and not what rounding leaves."""
NARROW = 16
"""Products with a side below this differ between thread counts in the library of torch: they are made exact."""


@dataclass(frozen=True)
class WarmRank:
    """Project every matrix onto `rank` directions, found by warm-started power iteration.

    A weight of n x k numbers (k: all but the first dimension) has at most half of its shorter side as directions, and
    costs rank (n + k) numbers a round; with `halves` that many in two.  Vectors are sent as they are, with the rest.
    """

    rank: int = 4
    halves: bool = False

    def __post_init__(self) -> None:
        validate.positive_int(rank=self.rank)

    def map(self, layout: Layout, seed: int, t: int, known_bases: Kept, v: Tensor, mean: Mean) -> LowRankMap:
        """The projection of this round: onto the mean's left directions, or onto what was kept."""
        space = layout.space
        warm = LowRankMap(space, {leaf.name: self._side(leaf, seed, t, known_bases, v) for leaf in space.leaves})
        narrow = warm.without_vectors()
        if self.halves or not narrow.m:
            return warm
        bases: dict[str, tuple[str, Tensor] | None] = dict.fromkeys(warm.sides)
        for leaf, part in narrow.parts(mean(narrow.forward(narrow.taken(space, v)))):
            bases[leaf.name] = LEFT, _basis(part, key(seed, t, LEFT, leaf.name))
        return LowRankMap(space, bases)

    def learn(self, drawn: Linear, code: Tensor, seed: int, t: int, known_bases: Kept) -> None:
        """The basis of the other side, from the mean code that everybody received."""
        assert isinstance(drawn, LowRankMap)
        for leaf, part in drawn.parts(code):
            side, _ = drawn.sides[leaf.name] or (None, None)
            if side is None:
                continue
            matrix, opposite = (part.T, RIGHT) if side == LEFT else (part, LEFT)
            known_bases.pop(f"{side} {leaf.name}", None)
            known_bases[f"{opposite} {leaf.name}"] = _basis(matrix, key(seed, t, opposite, leaf.name))

    def _side(self, leaf: Leaf, seed: int, t: int, bases: Kept, like: Tensor) -> tuple[str, Tensor] | None:
        n, k = matrix_shape(leaf)
        rank = min(self.rank, n // 2, k // 2)
        if not rank:
            return None
        if f"{LEFT} {leaf.name}" in bases:
            return LEFT, bases[f"{LEFT} {leaf.name}"].to(like)
        if f"{RIGHT} {leaf.name}" not in bases:
            bases[f"{RIGHT} {leaf.name}"] = _basis(like.new_zeros(k, rank), key(seed, t, RIGHT, leaf.name))
        return RIGHT, bases[f"{RIGHT} {leaf.name}"].to(like)


class LowRankMap:
    """The projection of each leaf onto a basis of its left or right side; leaves without one are sent whole."""

    def __init__(self, space: Space, sides: Mapping[str, tuple[str, Tensor] | None]) -> None:
        self.space, self.sides = space, sides
        self.shapes = {leaf.name: self._code_shape(leaf) for leaf in space.leaves}
        self.m = sum(n * k for n, k in self.shapes.values())

    def forward(self, v: Tensor) -> Tensor:
        """P' M or M Q of each leaf, one after the other."""
        code, start = v.new_empty(self.m), 0
        for leaf in self.space.leaves:
            n, k = self.shapes[leaf.name]
            room, whole = code[start : start + n * k].view(n, k), _matrix(self.space, leaf, v)
            side, basis = self.sides[leaf.name] or (None, v)
            if side is None:
                room.copy_(whole)
            elif side == LEFT:
                torch.mm(basis.T, whole, out=room)
            else:
                torch.mm(whole, basis, out=room)
            start += n * k
        return code

    def pinv(self, y: Tensor) -> Tensor:
        """P R or P Q' of each leaf."""
        out = y.new_empty(self.space.d)
        for leaf, part in self.parts(y):
            room = _matrix(self.space, leaf, out)
            side, basis = self.sides[leaf.name] or (None, y)
            if side is None:
                room.copy_(part)
                continue
            a, b = (basis, part) if side == LEFT else (part, basis.T)
            if min(room.shape) < NARROW:
                room.copy_(exact_product(a, b))
            else:
                torch.mm(a, b, out=room)
        return out

    def parts(self, code: Tensor) -> list[tuple[Leaf, Tensor]]:
        """The code of each leaf, as its matrix."""
        pieces, start = [], 0
        for leaf in self.space.leaves:
            n, k = self.shapes[leaf.name]
            pieces.append((leaf, code[start : start + n * k].view(n, k)))
            start += n * k
        return pieces

    def without_vectors(self) -> LowRankMap:
        """The same map of the leaves that have a basis, one after the other."""
        chosen = [leaf for leaf in self.space.leaves if self.sides[leaf.name] is not None]
        return LowRankMap(Space.of({leaf.name: leaf.shape for leaf in chosen}), self.sides)

    def taken(self, whole: Space, v: Tensor) -> Tensor:
        """The leaves of this map out of a vector of a larger space."""
        if len(whole.leaves) == len(self.space.leaves):
            return v
        return torch.cat([v[whole.slice(leaf.name)] for leaf in self.space.leaves])

    def _code_shape(self, leaf: Leaf) -> tuple[int, int]:
        n, k = matrix_shape(leaf)
        side, basis = self.sides[leaf.name] or (None, None)
        if side is None or basis is None:
            return n, k
        return (basis.shape[1], k) if side == LEFT else (n, basis.shape[1])


def matrix_shape(leaf: Leaf) -> tuple[int, int]:
    """(n, k): outputs and everything else; a vector is one row.

    >>> matrix_shape(Leaf("w", 0, (8, 3, 3, 3))), matrix_shape(Leaf("b", 0, (8,)))
    ((8, 27), (1, 8))
    """
    n = leaf.shape[0] if len(leaf.shape) > 1 else 1
    return n, leaf.size // n


def _matrix(space: Space, leaf: Leaf, vector: Tensor) -> Tensor:
    return vector[space.slice(leaf.name)].view(matrix_shape(leaf))


def _basis(columns: Tensor, sign_key: int) -> Tensor:
    """An orthonormal basis of columns and a little of random signs; of random signs alone where they are 0."""
    signs = sign_range(sign_key, 0, columns.numel(), columns.device).view(columns.shape).double()
    wide = columns.double()
    top = wide.abs().max()  # a maximum has no order
    mixed = torch.where(top > 0, wide / torch.where(top > 0, top, 1.0) + INSURANCE * signs, signs)
    return orthonormal(mixed).to(columns.dtype)
