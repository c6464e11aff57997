"""The whole space, subspaces, and sets of blocks: the group-norm ball and Cartesian products."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.base.matrix import Array
from isthmus.base.validate import check, positive
from isthmus.sets.balls import L1Ball
from isthmus.sets.base import Ball, ConvexSet, _of_length, _size_of, inside, own, tolerance
from isthmus.sets.projections import Derivative, norm, same, shortened
from isthmus.sets.widths import Width, _chi_mean, _exactly, _max_chi


@dataclass(frozen=True)
class Whole(ConvexSet):
    """All of R^d: the unconstrained case; projection is the identity and the gauge is 0.

    >>> Whole().project(torch.tensor([5.0]))
    tensor([5.])
    """

    bounded = False

    def _project(self, x: Tensor) -> Tensor:
        return x

    def _gauge(self, x: Tensor) -> float:
        return 0.0


@dataclass(frozen=True, eq=False)
class Subspace(ConvexSet):
    """The span of the rows of `basis` (k x d, orthonormalised here), cut by an l2 ball when `radius` is given.

    The gauge is +inf off the span; on it ||x||_2 / radius, or 0 without a radius.

    >>> line = Subspace([[2.0, 0.0]], radius=1.0)
    >>> line.project(torch.tensor([3.0, 4.0]))
    tensor([1., 0.])
    >>> Subspace([[2.0, 0.0]]).can("lmo")
    False
    """

    basis: Any
    radius: float | None = None

    def __post_init__(self) -> None:
        rows = own("basis", self.basis, ndim=2)
        check(rows.numel() > 0 and norm(rows) > 0, "basis", self.basis, "give at least one nonzero row")
        if self.radius is not None:
            positive(radius=self.radius)
        _, singular, axes = torch.linalg.svd(rows, full_matrices=False)
        rank = int((singular > singular[0] * max(rows.shape) * torch.finfo(rows.dtype).eps).sum())
        self._keep(basis=axes[:rank].contiguous(), bounded=self.radius is not None, dim=rows.shape[1])

    @property
    def rank(self) -> int:
        """The dimension of the subspace itself."""
        return int(self.basis.shape[0])

    def _flatten(self, x: Tensor) -> Tensor:
        axes: Tensor = self.basis.to(x.device)
        return axes.T @ (axes @ x.double())

    def _project(self, x: Tensor) -> Tensor:
        y = self._flatten(x)
        if self.radius is not None:
            y = inside(y, norm(y) / self.radius)
        return y.to(x.dtype)

    def _derivative(self, z: Array, w: Array) -> Derivative:
        def span(x: Array) -> Array:
            return self._flatten(torch.from_numpy(x)).numpy()

        within = shortened(span(z), w)
        return lambda x: within(span(x))

    def _lmo(self, g: Tensor) -> Tensor:
        y = self._flatten(g)
        return _of_length(y, -(self.radius or 0.0)).to(g.dtype)

    def _gauge(self, x: Tensor) -> float:
        if norm(x.double() - self._flatten(x)) > tolerance(x) * norm(x):
            return math.inf
        if self.radius is None:
            return 0.0
        return norm(x) / self.radius

    def _diameter(self, d: int) -> float:
        return 2 * (self.radius or 0.0)

    def _width(self, d: int, samples: int, seed: int) -> Width:
        return _exactly((self.radius or 0.0) * _chi_mean(self.rank))


@dataclass(frozen=True, eq=False)
class GroupBall(Ball):
    """The group ball {x : sum_k ||x_k||_2 <= radius} over groups that partition the coordinates.

    `groups` is a list of index lists or one group id per coordinate; it is kept as ids 0..K-1.  Projection is the l1
    projection of the group norms.

    >>> ball = GroupBall([[0, 1], [2]], radius=1.0)
    >>> ball.project(torch.tensor([3.0, 4.0, 1.0]))
    tensor([0.6000, 0.8000, 0.0000])
    >>> ball.gauge([3.0, 4.0, 1.0])
    6.0
    """

    groups: Any
    radius: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        groups = _group_ids(self.groups)
        self._keep(groups=groups, dim=groups.numel())

    def _norms(self, x: Tensor) -> Tensor:
        count = int(self.groups.max()) + 1
        sums = torch.zeros(*x.shape[:-1], count, dtype=x.dtype, device=x.device)
        top = x.abs().amax(-1, keepdim=True)
        safe = torch.where((top > 0) & (top < math.inf), top, torch.ones_like(top))  # no square overflows or vanishes
        return sums.index_add_(-1, self.groups.to(x.device), (x / safe) ** 2).sqrt_() * safe

    def _spread(self, per_group: Tensor) -> Tensor:
        return per_group[self.groups.to(per_group.device)]

    def _project(self, x: Tensor) -> Tensor:
        norms = self._norms(x.double())
        if float(norms.sum()) <= self.radius:
            return x
        shares = L1Ball(self.radius)._project(norms) / norms.clamp_min(torch.finfo(norms.dtype).tiny)
        y = x.double() * self._spread(shares.clamp(max=1.0))
        return inside(y, self._gauge(y)).to(x.dtype)

    def _derivative(self, z: Array, w: Array) -> Derivative:
        """Thresholded group norms: each group keeps its direction."""
        if np.array_equal(z, w):
            return same
        ids = self.groups.cpu().numpy()

        def totals(x: Array) -> Array:
            return np.bincount(ids, x).astype(np.float64, copy=False)

        norms, left = np.sqrt(totals(z * z)), np.sqrt(totals(w * w))
        safe = np.where(left > 0, norms, np.inf)
        shrink: Array = (left / safe)[ids]
        unit: Array = z / safe[ids]

        def derivative(x: Array) -> Array:
            along = totals(unit * x)
            level = float(along.sum()) / np.count_nonzero(left)
            moved: Array = shrink * x + unit * ((1 - shrink) * along[ids] - level)
            return moved

        return derivative

    def _lmo(self, g: Tensor) -> Tensor:
        norms = self._norms(g.double())
        best = torch.where(self.groups.to(g.device) == norms.argmax(), g.double(), 0.0)
        return _of_length(best, -self.radius).to(g.dtype)

    def _norm(self, x: Tensor) -> float:
        return float(self._norms(x.double()).sum())

    def _width(self, d: int, samples: int, seed: int) -> Width:
        return _exactly(self.radius * _max_chi(torch.bincount(self.groups)))


@dataclass(frozen=True, eq=False)
class Product(ConvexSet):
    """The product C_1 x ... x C_k over consecutive blocks of a flat vector; `parts` is a list of (set, size or shape).

    Every operation acts block by block; one that a part lacks, the product lacks.

    >>> layers = Product([(L1Ball(1.0), 2), (L1Ball(1.0), (1, 2))])
    >>> layers.project(torch.tensor([2.0, 0.0, 0.0, -3.0]))
    tensor([ 1.,  0.,  0., -1.])
    >>> layers.dim
    4
    """

    parts: Sequence[tuple[ConvexSet, int | Sequence[int]]]

    def __post_init__(self) -> None:
        check(len(self.parts) > 0, "parts", self.parts, "give at least one (set, size)")
        parts = []
        for part, given in self.parts:
            check(isinstance(part, ConvexSet), "parts", part, "give pairs (ConvexSet, size)")
            size = _size_of("size", given)
            remedy = f"give {part.dim}, which is the dimension of this {type(part).__name__}"
            check(part.dim in (None, size), "size", given, remedy)
            parts.append((part, size))
        self._keep(parts=tuple(parts), dim=sum(size for _, size in parts))
        self._keep(convex=all(part.convex for part, _ in parts), bounded=all(part.bounded for part, _ in parts))

    @property
    def sets(self) -> tuple[ConvexSet, ...]:
        """The sets of the blocks, in order."""
        return tuple(part for part, _ in self.parts)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The lengths of the blocks, in order."""
        return tuple(size for _, size in self.parts if isinstance(size, int))

    def _blocks(self, x: Tensor) -> list[tuple[ConvexSet, Tensor]]:
        return list(zip(self.sets, x.split(self.sizes, dim=-1), strict=True))

    def _refusal(self, operation: str) -> str | None:
        for part in self.sets:
            reason = part._refusal(operation)
            if reason is not None:
                return f"its part {type(part).__name__} has none, {reason}"
        return super()._refusal(operation)

    def _project(self, x: Tensor) -> Tensor:
        return torch.cat([part._project(block) for part, block in self._blocks(x)])

    def _derivative(self, z: Array, w: Array) -> Derivative:
        cuts = np.cumsum(self.sizes)[:-1]
        slopes = [
            part._derivative(*x) for part, *x in zip(self.sets, np.split(z, cuts), np.split(w, cuts), strict=True)
        ]

        def derivative(x: Array) -> Array:
            return np.concatenate([slope(block) for slope, block in zip(slopes, np.split(x, cuts), strict=True)])

        return derivative

    def _lmo(self, g: Tensor) -> Tensor:
        return torch.cat([part._lmo(block) for part, block in self._blocks(g)])

    def _scales(self, x: Tensor) -> tuple[float, float]:
        ranges = [part._scales(block) for part, block in self._blocks(x)]
        return max(low for low, _ in ranges), min(high for _, high in ranges)

    def _support(self, g: Tensor) -> Tensor:
        return torch.stack([part._support(block) for part, block in self._blocks(g)]).sum(0)

    def _diameter(self, d: int) -> float:
        return math.hypot(*(part._diameter(size) for part, size in zip(self.sets, self.sizes, strict=True)))

    def _width(self, d: int, samples: int, seed: int) -> Width:
        total = _exactly(0.0)
        for i, (part, size) in enumerate(zip(self.sets, self.sizes, strict=True)):
            total = total + part.gaussian_width(size, samples=samples, seed=seed + i)
        return total


def _group_ids(groups: Tensor | Iterable[object]) -> Tensor:
    """Ids 0..K-1, one per coordinate, from index lists that partition 0..d-1 or from ids of any integers."""
    if isinstance(groups, Tensor):
        groups = groups.tolist()
    items = list(groups)
    check(len(items) > 0, "groups", groups, "give at least one group")
    if not all(isinstance(item, Collection) for item in items):
        return torch.from_numpy(np.unique(_integers(items), return_inverse=True)[1])
    lists = [_integers(item) for item in items]
    flat = np.concatenate(lists)
    partition = np.array_equal(np.sort(flat), np.arange(len(flat)))
    check(partition, "groups", groups, "give nonempty lists that hold each index 0..d-1 exactly once")
    owner = np.empty_like(flat)
    owner[flat] = np.repeat(np.arange(len(lists)), [len(group) for group in lists])
    return torch.from_numpy(owner)


def _integers(values: object) -> NDArray[np.int64]:
    array = np.asarray(values)
    whole = array.dtype.kind in "iu" and array.ndim == 1
    check(whole, "groups", values, "give integers: index lists, none of them empty, or one group id per coordinate")
    return array.astype(np.int64)
