"""Leaves side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.geometry.sketches.base import Mate, Sketch
from isthmus.gradients import rounding
from isthmus.gradients.base import KINDS, Dense, Rows
from isthmus.gradients.rounding import CHUNK_BYTES, Bounds


class Stack(Rows):
    """Named rows side by side: g_i = (g_i^1, ..., g_i^L), the layers of a network.

    >>> from isthmus.gradients import Dense
    >>> rows = Stack([("a", Dense(torch.tensor([[3.0]]))), ("b", Dense(torch.tensor([[0.0, 4.0]])))])
    >>> rows.d, rows.norms(), rows.sum()
    (3, tensor([5.0000]), tensor([3., 0., 4.]))
    """

    def __init__(self, items: Sequence[tuple[str, Rows]]) -> None:
        validate.check(len(items) > 0, "items", items, "give at least one (name, rows)")
        self.items = list(items)
        self.n, self.d = self.items[0][1].n, sum(piece.d for _, piece in self.items)
        for name, piece in self.items:
            validate.check(piece.n == self.n, f"items[{name!r}].n", piece.n, f"give {self.n} rows in every leaf")
        self.dtype = rounding.working(*(piece.dtype for _, piece in self.items))
        self.device = self.items[0][1].device

    @cached_property
    def _joined(self) -> Dense | None:
        """Small leaves that are matrices all, as one: fewer and larger steps."""
        values = [piece.values for _, piece in self.items if isinstance(piece, Dense)]
        alike = len(values) == len(self.items) > 1 and all(x.dtype == self.dtype for x in values)
        return Dense(torch.cat(values, 1)) if alike and self.n * self.d * self.dtype.itemsize <= CHUNK_BYTES else None

    def norm_bounds(self, ord: float = 2) -> Bounds:
        if self._joined is not None:
            return self._joined.norm_bounds(ord)
        return rounding.combine([piece.norm_bounds(ord) for _, piece in self.items], ord)

    def norm_upper(self, ord: float = 2) -> Tensor:
        if self._joined is not None:
            return self._joined.norm_upper(ord)
        if self.device.type != "cuda" and self.dtype == torch.float64:  # whose squares may leave the range
            return super().norm_upper(ord)
        pieces = torch.stack([piece.norm_upper(ord) for _, piece in self.items])
        norms: Tensor = torch.linalg.vector_norm(pieces, ord, dim=0)
        return norms * (1 + 2 * len(pieces) * 2.0**-52)

    def underflow(self) -> Tensor:
        if self._joined is not None:
            return self._joined.underflow()
        return torch.stack([piece.underflow() for _, piece in self.items]).sum(0)

    def sum(self, weights: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        total, lo = self._empty(self.d) if out is None else out, 0
        for _, piece in self.items:
            place = total[lo : lo + piece.d]
            piece.sum(weights, place) if piece.dtype == self.dtype else place.copy_(piece.sum(weights))
            lo += piece.d
        return total

    def mass(self, ord: float = 2) -> Tensor | None:
        """That of the leaves whose rows are several terms; the others are no longer than the rows."""
        sizes = [size for _, piece in self.items if (size := piece.mass(ord)) is not None]
        return torch.linalg.vector_norm(torch.stack(sizes), ord, dim=0) * (1 + 2.0**-40) if sizes else None

    def sum_to(self, weights: Tensor, rho: float, out: Tensor | None = None) -> Tensor:
        if self._joined is not None:
            return self._joined.sum_to(weights, rho, out)
        room, lo = self._room(rho, out), 0
        for _, piece in self.items:
            piece.sum_to(weights, rho, room[lo : lo + piece.d])
            lo += piece.d
        return room

    def finite(self) -> Stack:
        return self._each(lambda piece: piece.finite())

    def scaled(self, factor: float) -> Stack:
        if self._joined is None:
            return self._each(lambda piece: piece.scaled(factor))
        whole = self._joined.scaled(factor)
        parts = whole.values.split([piece.d for _, piece in self.items], 1)
        made = Stack([(name, Dense(part)) for (name, _), part in zip(self.items, parts, strict=True)])
        made.__dict__["_joined"] = whole
        return made

    def masked(self, keep: Tensor) -> Stack:
        return self._each(lambda piece: piece.masked(keep))

    def part(self, lo: int, hi: int) -> Stack:
        return self._each(lambda piece: piece.part(lo, hi))

    def dense(self) -> Tensor:
        return torch.cat([piece.dense().to(self.dtype) for _, piece in self.items], dim=1)

    def leaves(self) -> list[tuple[str, Rows]]:
        return list(self.items)

    def through(self, sketch: Sketch, lo: int = 0) -> Rows:
        codes = []
        for _, piece in self.items:
            codes.append(piece.through(sketch, lo))
            lo += piece.d
        return codes[0].plus(codes[1:]) if len(codes) > 1 else codes[0]

    def inner(self, other: Mate) -> Tensor:
        """The sum over leaves of the same name."""
        theirs = dict(other.leaves())
        if {name: piece.d for name, piece in self.items} != {name: piece.d for name, piece in theirs.items()}:
            return super().inner(other)
        first, *rest = (piece.inner(theirs[name]) for name, piece in self.items)
        return sum(rest, first)

    def minus(self, other: Rows) -> Rows:
        self._check_alike(other)
        if not isinstance(other, Stack) or [(k, r.d) for k, r in self.items] != [(k, r.d) for k, r in other.items]:
            return super().minus(other)
        pairs = zip(self.items, other.items, strict=True)
        return Stack([(name, mine.minus(theirs)) for (name, mine), (_, theirs) in pairs])

    def grouped(self, size: int) -> Stack:
        return self._each(lambda piece: piece.grouped(size))

    def take(self, index: Tensor, factors: Tensor) -> Stack:
        return self._each(lambda piece: piece.take(index, factors))

    def _each(self, change: Callable[[Rows], Rows]) -> Stack:
        return Stack([(name, change(piece)) for name, piece in self.items])


KINDS["stack"] = Stack
