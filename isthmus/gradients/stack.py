"""Leaves side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.gradients import rounding
from isthmus.gradients.base import KINDS, Dense, Rows
from isthmus.gradients.rounding import Bounds
from isthmus.sketches.base import Mate, Sketch

SMALL = 1 << 20
"""Numbers of a leaf that is joined with other small ones: fewer and larger steps."""


class Stack(Rows):
    """Named rows side by side: g_i = (g_i^1, ..., g_i^L), the layers of a network.

    >>> from isthmus.gradients import Dense
    >>> rows = Stack([("a", Dense(torch.tensor([[3.0]]))), ("b", Dense(torch.tensor([[0.0, 4.0]])))])
    >>> rows.d, rows.norms(), rows.sum()
    (3, tensor([5.0000]), tensor([3., 0., 4.]))
    """

    def __init__(self, items: Sequence[tuple[str, Rows]], factor: float = 1.0) -> None:
        validate.check(len(items) > 0, "items", items, "give at least one (name, rows)")
        self.items, self.factor = list(items), factor
        """The leaves, and what all of them are multiplied by."""
        self.n, self.d = self.items[0][1].n, sum(piece.d for _, piece in self.items)
        for name, piece in self.items:
            validate.check(piece.n == self.n, f"items[{name!r}].n", piece.n, f"give {self.n} rows in every leaf")
        self.dtype = rounding.working(*(piece.dtype for _, piece in self.items))
        self.device = self.items[0][1].device

    @cached_property
    def _pieces(self) -> list[tuple[Rows, list[tuple[int, int]]]]:
        """The leaves with their places among the d columns; small ones that are matrices together, as one matrix."""
        pieces: list[tuple[Rows, list[tuple[int, int]]]] = []
        small: list[tuple[Dense, tuple[int, int]]] = []
        lo = 0
        for _, piece in self.items:
            place = (lo, lo + piece.d)
            if isinstance(piece, Dense) and piece.values.dtype == self.dtype and self.n * piece.d <= SMALL:
                small.append((piece, place))
            else:
                pieces.append((piece, [place]))
            lo += piece.d
        if small:
            whole = small[0][0] if len(small) == 1 else Dense(torch.cat([piece.values for piece, _ in small], 1))
            pieces.append((whole, [place for _, place in small]))
        return pieces

    def norm_bounds(self, ord: float = 2) -> Bounds:
        low, high = rounding.combine([piece.norm_bounds(ord) for _, piece in self.items], ord)
        if self.factor == 1.0:
            return low, high
        size = torch.full_like(low, abs(self.factor))
        return rounding.product((low, high), (size, size))

    def norm_upper(self, ord: float = 2) -> Tensor:
        if self.device.type != "cuda" and self.dtype == torch.float64:  # whose squares may leave the range
            return super().norm_upper(ord)
        pieces = [piece.norm_upper(ord) for piece, _ in self._pieces]
        norms = pieces[0] if len(pieces) == 1 else torch.linalg.vector_norm(torch.stack(pieces), ord, dim=0)
        return norms * (abs(self.factor) * (1 + 2 * (len(pieces) + 2) * 2.0**-52))

    def underflow(self) -> Tensor:
        lost = [piece.underflow() for piece, _ in self._pieces if type(piece).underflow is not Rows.underflow]
        same = sum(piece.lost for piece, _ in self._pieces if type(piece).underflow is Rows.underflow)
        total = torch.full((self.n,), same, dtype=torch.float64, device=self.device)
        return (torch.stack([total, *lost]).sum(0) if lost else total) * max(1.0, abs(self.factor))

    def sum(self, weights: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        total, lo = self._empty(self.d) if out is None else out, 0
        if self.factor != 1.0:
            weights = rounding.times(self._weights(weights), self.factor)
        for _, piece in self.items:
            place = total[lo : lo + piece.d]
            piece.sum(weights, place) if piece.dtype == self.dtype else place.copy_(piece.sum(weights))
            lo += piece.d
        return total

    def mass(self, ord: float = 2) -> Tensor | None:
        """That of the leaves whose rows are several terms; the others are no longer than the rows."""
        sizes = [size for piece, _ in self._pieces if (size := piece.mass(ord)) is not None]
        if not sizes:
            return None
        whole: Tensor = torch.linalg.vector_norm(torch.stack(sizes), ord, dim=0)
        return whole * (abs(self.factor) * (1 + 2.0**-40))

    def sum_to(self, weights: Tensor, rho: float, out: Tensor | None = None) -> Tensor:
        room = self._room(rho, out)
        if self.factor != 1.0:
            weights = rounding.times(self._weights(weights), self.factor)
        for piece, places in self._pieces:
            if len(places) == 1:
                piece.sum_to(weights, rho, room[slice(*places[0])])
                continue
            parts = piece.sum_to(weights, rho, room.new_empty(piece.d)).split([hi - lo for lo, hi in places])
            for (lo, hi), part in zip(places, parts, strict=True):
                room[lo:hi] = part
        return room

    def finite(self) -> Stack:
        return self._each(lambda piece: piece.finite())

    def scaled(self, factor: float) -> Stack:
        """Norms and weights take the factor: the leaves stay as they are."""
        stack = Stack(self.items, self.factor * factor)
        stack.__dict__["_pieces"] = self._pieces
        return stack

    @property
    def small(self) -> bool:
        return all(piece.small for piece, _ in self._pieces)

    def masked(self, keep: Tensor) -> Stack:
        return self._blanked([(piece.masked(keep), places) for piece, places in self._pieces])

    def without(self, weights: Tensor) -> Stack:
        keep = weights > 0
        return self._blanked(
            [
                (piece.without(weights) if len(places) == 1 else piece.masked(keep), places)
                for piece, places in self._pieces
            ]
        )

    def _blanked(self, pieces: list[tuple[Rows, list[tuple[int, int]]]]) -> Stack:
        """Other rows in the places of these."""
        blanked = dict[int, Rows]()
        for piece, places in pieces:
            if len(places) == 1:
                blanked[places[0][0]] = piece
                continue
            assert isinstance(piece, Dense)
            parts = piece.values.split([hi - lo for lo, hi in places], 1)
            blanked.update((lo, Dense(part)) for (lo, _), part in zip(places, parts, strict=True))
        stack = Stack(
            [(name, blanked[place]) for (name, _), place in zip(self.items, sorted(blanked), strict=True)], self.factor
        )
        stack.__dict__["_pieces"] = pieces
        return stack

    def sound(self) -> Tensor:
        return torch.stack([piece.sound() for _, piece in self.items]).all(0)

    def part(self, lo: int, hi: int) -> Stack:
        return self._each(lambda piece: piece.part(lo, hi))

    def dense(self) -> Tensor:
        whole = torch.cat([piece.dense().to(self.dtype) for _, piece in self.items], dim=1)
        return whole if self.factor == 1.0 else whole * self.factor

    def leaves(self) -> list[tuple[str, Rows]]:
        if self.factor == 1.0:
            return list(self.items)
        return [(name, piece.scaled(self.factor)) for name, piece in self.items]

    def through(self, sketch: Sketch, lo: int = 0) -> Rows:
        codes = []
        for _, piece in self.leaves():
            codes.append(piece.through(sketch, lo))
            lo += piece.d
        return codes[0].plus(codes[1:]) if len(codes) > 1 else codes[0]

    def inner(self, other: Mate) -> Tensor:
        """The sum over leaves of the same name."""
        theirs = dict(other.leaves())
        if {name: piece.d for name, piece in self.items} != {name: piece.d for name, piece in theirs.items()}:
            return super().inner(other)
        first, *rest = (piece.inner(theirs[name]) for name, piece in self.leaves())
        return sum(rest, first)

    def minus(self, other: Rows) -> Rows:
        self._check_alike(other)
        if not isinstance(other, Stack) or [(k, r.d) for k, r in self.items] != [(k, r.d) for k, r in other.items]:
            return super().minus(other)
        pairs = zip(self.leaves(), other.leaves(), strict=True)
        return Stack([(name, mine.minus(theirs)) for (name, mine), (_, theirs) in pairs])

    def grouped(self, size: int) -> Stack:
        return self._each(lambda piece: piece.grouped(size))

    def take(self, index: Tensor, factors: Tensor) -> Stack:
        return self._each(lambda piece: piece.take(index, factors))

    def _each(self, change: Callable[[Rows], Rows]) -> Stack:
        return Stack([(name, change(piece)) for name, piece in self.items], self.factor)


KINDS["stack"] = Stack
