"""Kronecker sketches: a small projection on each side of every weight matrix."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.matrix import Stored, View, code_room, columns, is_sparse, matmul, to_dense
from isthmus.base.space import Leaf, Space
from isthmus.gradients.rounding import exact_products
from isthmus.gradients.rows import Dense, Lookup, Outer, Rows, Sum, compact, outer_of, total
from isthmus.sketches import base
from isthmus.sketches.dense import frames

ALIGN = 32
"""Columns of a factor in memory are a multiple of this."""
Ranks = Mapping[str, tuple[int, int]]
"""Per-leaf ranks {leaf name: (rank_out, rank_in)}."""


@dataclass(frozen=True, eq=False)
class Kronecker(base.Random):
    """Phi = sqrt(d/m) blockdiag(P_out (x) P_in): G -> P_out G P_in' for each leaf G of shape (q, p).

    P_out (rank_out x q) and P_in (rank_in x p) have orthonormal random rows (uniformly distributed, or spanned by sign
    vectors on long sides, or I where they span the whole side); ranks are capped at the leaf's sizes, and `ranks` sets
    those of single leaves.  A gradient sum_t b_t a_t' has the code sum_t (P_out b_t)(P_in a_t)': codes stay factored
    where they are long.  Phi Phi' = (d/m) I; a coordinate is covered with rank_out rank_in / (q p) of its own leaf.

    >>> sketch = Kronecker(2, 1).draw(Space.of({"hidden": (3, 5), "out": (2, 4)}))
    >>> sketch.m, sketch.code_space.shape("hidden")
    (4, (1, 2))
    """

    keeps_layers = True

    rank_in: int
    rank_out: int
    ranks: Ranks | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_ranks(self.rank_in, self.rank_out, self.ranks)

    def build(self, space: Space, key: int, t: int, device: torch.device | None = None) -> base.Sketch:
        """The map of a key; its factors of one shape are drawn together, on the device where they are used."""
        places: dict[tuple[int, int, int], list[str]] = {}
        for leaf in space.leaves:
            (q, p), (r_out, r_in) = matrix_shape(leaf), _leaf_ranks(leaf, self.rank_in, self.rank_out, self.ranks)
            places.setdefault((r_out, q, 0), []).append(leaf.name)
            places.setdefault((r_in, p, 1), []).append(leaf.name)
        narrow = {place: names for place, names in places.items() if place[0] < place[1]}
        drawn = frames([(rank, size, len(names)) for (rank, size, _), names in narrow.items()], key, device)
        sides = [_Side(names, side, whole) for ((_, _, side), names), whole in zip(narrow.items(), drawn, strict=True)]
        dtype = torch.float64 if device is None else torch.float32
        for (rank, size, side), names in places.items():
            if rank == size:  # the whole side: any basis is as good as I, and I need not be drawn
                eye = torch.eye(size, dtype=dtype, device=device)
                sides.append(_Side(names, side, eye.expand(len(names), -1, -1)))
        return _RandomKroneckerMap(space, sides)

    def bind(self, context: base.Context, state: base.State) -> tuple[base.Sketch, base.State]:
        """Draw the map of the context's round, where its parameters are."""
        t = context.t
        return self.build(context.space, self._key(context.seed, t), t - t % self.refresh, context.device), None


class KroneckerMap(base.LiftsLeaves):
    """scale * blockdiag(P_out (x) P_in), with orthonormal rows in every factor; each leaf owns a slice of the code."""

    tight = apart = in_place = True

    def __init__(self, space: Space, factors: Mapping[str, tuple[Tensor, Tensor]], scale: float = 1.0):
        self.space, self.d, self.factors, self.scale = space, space.d, dict(factors), scale
        self.code_space = Space.of({name: (len(left), len(right)) for name, (left, right) in factors.items()})
        self.m = self.code_space.d
        eps = max(torch.finfo(f.dtype).eps for pair in self.factors.values() for f in pair)
        self.norm = base.round_up(scale) * (1 + 64 * eps)

    def adjoint_leaf(self, name: str, y: Tensor) -> Tensor:
        """P_out' Y P_in for the code Y of one leaf."""
        return self.adjoint_columns(name, y, 0, self.factors[name][1].shape[1]).reshape(-1)

    def adjoint_columns(self, name: str, y: Tensor, lo: int, hi: int) -> Tensor:
        """P_out' Y P_in[:, lo:hi]: the weight of a layer comes as a matrix of its own, without its bias."""
        base._check_vector(self, y, "y", self.m)
        return self._left(name, y) @ self.sides(name, y)[1][:, lo:hi]

    def add_pinv_columns(self, out: Tensor, name: str, y: Tensor, lo: int, hi: int, alpha: float) -> None:
        """out += (alpha / norm^2) P_out' Y P_in[:, lo:hi] in one product: the leaf itself is never formed."""
        base._check_vector(self, y, "y", self.m)
        if out.dtype != y.dtype:
            return super().add_pinv_columns(out, name, y, lo, hi, alpha)
        out.addmm_(self._left(name, y), self.sides(name, y)[1][:, lo:hi], alpha=alpha / self.norm**2)

    def _left(self, name: str, y: Tensor) -> Tensor:
        """P_out' Y of a leaf, for the weight and the bias."""
        return self._memo.latest(f"left {name}", y, lambda: self.sides(name, y)[0].T @ self.code_space.view(y, name))

    def sides(self, name: str, like: Tensor) -> tuple[Tensor, Tensor]:
        """scale P_out and P_in of a leaf, in the dtype and on the device of `like`."""
        where = like.device, like.dtype
        return self._memo.keep(("sides", *where), lambda: self.moved(*where))[name]

    def moved(self, device: torch.device, dtype: torch.dtype) -> dict[str, tuple[Tensor, Tensor]]:
        """All factors, scale P_out and P_in, in a dtype and on a device."""
        return {
            name: ((self.scale * left).to(device, dtype), aligned(right, device, dtype))
            for name, (left, right) in self.factors.items()
        }

    def rows(self, x: Stored, lo: int = 0) -> Tensor:
        """Codes of rows; a leaf that the block covers in part is completed with zeros."""
        hi = base._check_block(self, x, lo)
        if len(self.factors) == 1 and hi - lo == self.d and isinstance(x, Tensor):
            return self._leaf_rows(self.space.leaves[0], x, x)
        code = code_room(x, self.m)
        for leaf, left, right in self.space.overlaps(lo, hi):
            part = columns(x, left - lo, right - lo)
            if right - left < leaf.size:
                part = torch.nn.functional.pad(to_dense(part), (left - leaf.start, leaf.start + leaf.size - right))
            code[:, self.code_space.slice(leaf.name)] = self._leaf_rows(leaf, part, code)
        return code

    def _leaf_rows(self, leaf: Leaf, part: Stored, like: Tensor) -> Tensor:
        (q, p), (left, right) = matrix_shape(leaf), self.sides(leaf.name, like)
        inner = matmul(part.reshape((part.shape[0] * q, p)), right.T).view(-1, q, len(right))
        return (left @ inner).reshape(len(inner), len(left) * len(right))

    def leaf(self, name: str, rows: Rows) -> Rows | None:
        """The code of one leaf: again an outer product where the rows are one."""
        plain = rows.plain()
        if isinstance(plain, Sum):
            return total([self._own(name, piece) for piece in plain.pieces])
        return self._own(name, rows)

    def _own(self, name: str, rows: Rows) -> Rows:
        form = outer_of(rows)
        if isinstance(rows, Lookup):  # a place k is the vector e_k
            left, right = self.sides(name, rows.values.to(rows.dtype))
            with exact_products(rows.device):
                inputs = rows.values.to(rows.dtype) @ right.T
            return compact(Outer(inputs, left.T[rows.index]))
        if form is None:
            return rows.through(self._single(name), 0)
        left, right = self.sides(name, form.b)
        outputs, last, factor = form.b @ left.T, None, form.a
        assert not isinstance(factor, View)
        if form.ones:  # the last input is always 1
            last, right = right[:, -1], right[:, :-1]
        if is_sparse(factor):
            inputs = matmul(factor, right.T) if last is None else matmul(factor, right.T) + last
        else:
            inputs = torch.nn.functional.linear(factor.to(right.dtype), right, last)
        if outputs.ndim == 2 or outputs.shape[1] * (len(left) + len(right)) < len(left) * len(right):
            return compact(Outer(inputs, outputs))
        wide = torch.promote_types(outputs.dtype, torch.float32)  # the code is what this product gives
        return Dense(torch.bmm(outputs.mT.to(wide), inputs.to(wide)).flatten(1))

    def _single(self, name: str) -> KroneckerMap:
        """The block of one leaf as a map of its own."""
        space = Space.of({name: self.space[name].shape})
        return self._memo.keep(("one", name), lambda: KroneckerMap(space, {name: self.factors[name]}, self.scale))

    def _matrix_gain(self, ord: float) -> float:
        """Induced norms of Kronecker products multiply; leaves do not mix."""
        dim = 0 if ord == 1 else 1
        sides = ([f.double().abs().sum(dim).max() for f in pair] for pair in self.factors.values())
        return self.scale * max(float(left * right) for left, right in sides)


class _Side(NamedTuple):
    """Factors of one shape, of the named leaves, as one tensor (count, rank, size); side 0 is P_out, 1 is P_in."""

    names: list[str]
    side: int
    whole: Tensor


class _RandomKroneckerMap(KroneckerMap):
    """A drawn Kronecker map: every leaf is covered with its own share of ranks."""

    def __init__(self, space: Space, drawn: Sequence[_Side]) -> None:
        self._drawn = drawn
        pairs = _pairs(space, drawn)
        m = sum(len(left) * len(right) for left, right in pairs.values())
        super().__init__(space, pairs, math.sqrt(space.d / m))

    def tensors(self) -> Sequence[Tensor]:
        """The factors."""
        return [side.whole for side in self._drawn]

    def placed(self, tensors: Sequence[Tensor]) -> _RandomKroneckerMap:
        """The map of the same factors elsewhere."""
        drawn = zip(self._drawn, tensors, strict=True)
        return _RandomKroneckerMap(self.space, [side._replace(whole=whole) for side, whole in drawn])

    def moved(self, device: torch.device, dtype: torch.dtype) -> dict[str, tuple[Tensor, Tensor]]:
        """All factors of one shape at once."""
        sides = (side._replace(whole=side.whole if side.side else self.scale * side.whole) for side in self._drawn)
        return _pairs(self.space, [side._replace(whole=aligned(side.whole, device, dtype)) for side in sides])

    @cached_property
    def coverage(self) -> float | Tensor:  # type: ignore[override]
        """rank_out rank_in / (q p) for the coordinates of each leaf."""
        codes = zip(self.code_space.leaves, self.space.leaves, strict=True)
        return base._coverage_of_leaves(self.space, [code.size / leaf.size for code, leaf in codes])


def _pairs(space: Space, drawn: Sequence[_Side]) -> dict[str, tuple[Tensor, Tensor]]:
    """(P_out, P_in) of every leaf."""
    pairs = {
        (name, side.side): part for side in drawn for name, part in zip(side.names, side.whole.unbind(), strict=True)
    }
    return {leaf.name: (pairs[leaf.name, 0], pairs[leaf.name, 1]) for leaf in space.leaves}


def aligned(factor: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """A factor whose rows begin at multiples of `ALIGN` numbers: a bias makes odd widths."""
    size = factor.shape[-1]
    return torch.nn.functional.pad(factor.to(device, dtype), (0, -size % ALIGN))[..., :size]


def matrix_shape(leaf: Leaf) -> tuple[int, int]:
    """A leaf as a q x p matrix, outputs and everything else; a vector is one row.

    >>> matrix_shape(Leaf("w", 0, (8, 3, 3, 3))), matrix_shape(Leaf("b", 0, (8,)))
    ((8, 27), (1, 8))
    """
    if len(leaf.shape) < 2:
        return 1, leaf.size
    return leaf.shape[0], leaf.size // leaf.shape[0]


def _leaf_ranks(leaf: Leaf, rank_in: int, rank_out: int, ranks: Ranks | None) -> tuple[int, int]:
    """(rank_out, rank_in) of a leaf, capped at its sizes."""
    (q, p), (r_out, r_in) = matrix_shape(leaf), (ranks or {}).get(leaf.name, (rank_out, rank_in))
    return min(q, r_out), min(p, r_in)


def _check_ranks(rank_in: int, rank_out: int, ranks: Ranks | None) -> None:
    """All ranks are integers >= 1."""
    validate.positive_int(rank_in=rank_in, rank_out=rank_out)
    for name, (r_out, r_in) in (ranks or {}).items():
        validate.positive_int(**{f"ranks[{name!r}][0]": r_out, f"ranks[{name!r}][1]": r_in})
