"""The identity, and encoders made of encoders: one a leaf, what a sketch lost, a schedule over training.

With the identity every compressed algorithm becomes its plain counterpart.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from isthmus.base import randomness, validate
from isthmus.base.matrix import Stored, code_room, columns, to_dense
from isthmus.base.space import Space
from isthmus.gradients.rows import ResidualRows, Rows
from isthmus.sketches import base


@dataclass(frozen=True)
class Identity(base.Random):
    """Phi = I: m = d, norm 1, coverage 1; rows pass through as they are.

    >>> Identity().draw(3).forward(torch.tensor([1.0, 2.0, 3.0])).tolist()
    [1.0, 2.0, 3.0]
    """

    keeps_layers = True

    def build(self, space: Space, key: int, t: int) -> base.Sketch:
        """The identity on a space."""
        return IdentityMap(space)

    def token(self, context: base.Context) -> Hashable:
        """It is the same in every round."""
        return "identity"


class IdentityMap(base.Sketch):
    """The identity of a space."""

    tight = apart = True

    def __init__(self, space: Space):
        self.space, self.d, self.m = space, space.d, space.d
        self.norm = 1.0

    def tensors(self) -> Sequence[Tensor]:
        """None at all."""
        return ()

    def forward(self, v: Tensor) -> Tensor:
        """v."""
        base._check_vector(self, v, "v", self.d)
        return v

    def adjoint(self, y: Tensor) -> Tensor:
        """y."""
        base._check_vector(self, y, "y", self.d)
        return y

    def adjoint_leaf(self, name: str, y: Tensor) -> Tensor:
        """A view of y."""
        base._check_vector(self, y, "y", self.d)
        return y[self.space.slice(name)]

    def rows(self, x: Stored, lo: int = 0) -> Tensor:
        """The block itself, in its place among d columns."""
        hi = base._check_block(self, x, lo)
        return torch.nn.functional.pad(to_dense(x), (lo, self.d - hi))

    def gain(self, ord: float) -> float:
        """1 for every norm."""
        return 1.0

    def leaf(self, name: str, rows: Rows) -> Rows | None:
        """The rows of the leaf."""
        return rows

    def encode(self, rows: Rows) -> Rows:
        """The rows themselves."""
        return rows


@dataclass(frozen=True, eq=False)
class Residual(base.Encoder):
    """v -> v - Phi^+ Phi v, what a tight sketch loses: the projector on the complement of its row space (m = d).

    It shares the round's map with other uses of the same `encoder` object, because the context binds it once.

    >>> import torch
    >>> from isthmus.sketches import Coordinates
    >>> rest = _ResidualMap(Coordinates(2).draw(5))
    >>> round(float(rest.forward(torch.ones(5)).sum()), 6)
    3.0
    """

    encoder: base.Encoder

    @property
    def public(self) -> bool:  # type: ignore[override]
        """That of the inner encoder."""
        return self.encoder.public

    def bind(self, context: base.Context, state: base.State) -> tuple[base.Sketch, base.State]:
        """The residual of the map that the context binds for the inner encoder."""
        return _ResidualMap(context.bind(self.encoder)), None

    def token(self, context: base.Context) -> Hashable:
        """That of the inner encoder."""
        return self.encoder.token(context)


class _ResidualMap(base.Sketch):
    """The projector I - Phi^+ Phi; it is its own adjoint and pseudo-inverse."""

    leafwise, apart = False, True

    def __init__(self, inner: base.Sketch):
        validate.check(inner.tight, "encoder", inner, "give a tight sketch, which the residual needs")
        self.inner, self.space, self.d, self.m = inner, inner.space, inner.d, inner.d
        self.norm = base.round_up(1.0, 1 << 12)

    def forward(self, v: Tensor) -> Tensor:
        """v - Phi^+ Phi v."""
        return v - self.inner.pinv(self.inner.forward(v))

    def adjoint(self, y: Tensor) -> Tensor:
        """The same as `forward`: a projector is symmetric."""
        return self.forward(y)

    def pinv(self, y: Tensor) -> Tensor:
        """The same as `forward`: a projector is its own pseudo-inverse."""
        return self.forward(y)

    def adjoint_leaf(self, name: str, y: Tensor) -> Tensor:
        """One leaf of y less what the inner map keeps of it; y is encoded once for all leaves."""
        code = self._memo.latest("code", y, lambda: self.inner.forward(y))
        return y[self.space.slice(name)] - self.inner.pinv_leaf(name, code)

    def rows(self, x: Stored, lo: int = 0) -> Tensor:
        """Residuals of dense rows, one pseudo-inverse a row."""
        base._check_block(self, x, lo)
        whole = IdentityMap(self.space).rows(to_dense(x), lo)
        codes = self.inner.rows(x, lo)
        for i in range(len(whole)):
            whole[i] -= self.inner.pinv(codes[i])
        return whole

    def gain(self, ord: float) -> float:
        """At most 1 + ||Phi||_1 ||Phi||_inf / norm^2 for the norms 1 and inf."""
        if ord == 2:
            return base._as_applied(self.norm, self.d, self.d)
        validate.one_of((1, float("inf")), ord=ord)
        whole = base.round_up(1 + self.inner.gain(1) * self.inner.gain(float("inf")) / self.inner.norm**2)
        return base._as_applied(whole, self.d, self.d)

    def leaf(self, name: str, rows: Rows) -> Rows | None:
        """The rows themselves: the residual needs all leaves."""
        return rows

    def join(self, pieces: Mapping[str, Rows | None]) -> Rows:
        """The residual of all leaves."""
        return self.encode(super().join(pieces))

    def encode(self, rows: Rows) -> Rows:
        """Residual rows."""
        return ResidualRows(rows, self.inner.encode(rows), self.inner)


@dataclass(frozen=True)
class PerLeaf(base.Random):
    """A sketch of its own for each leaf, side by side: Phi = blockdiag(Phi_l), with m_l a share of each leaf.

    Tight families keep one common scale, Phi Phi' = (d/m) I with m = sum m_l.

    >>> from isthmus.sketches import CountSketch
    >>> sketch = PerLeaf(CountSketch(0.1)).draw(Space.of({"hidden": (20, 50), "out": (10, 20)}))
    >>> sketch.m, sketch.code_space.shape("out")
    (120, (20,))
    """

    keeps_layers = True

    encoder: base.Random

    def build(self, space: Space, key: int, t: int) -> base.Sketch:
        """The map of a key."""
        leaves = {
            x.name: self.encoder.build(Space.of({"w": x.shape}), randomness.key(key, x.name), t) for x in space.leaves
        }
        return _PerLeafMap(space, leaves)


class _BlockMap(base.LiftsLeaves):
    """Phi = [Phi_1, ..., Phi_L]: codes of the leaves add up, each through a map of its own into one code space."""

    tight = True

    def __init__(self, space: Space, blocks: Mapping[str, base.Sketch], norm: float):
        self.space, self.d, self.blocks, self.norm = space, space.d, dict(blocks), norm
        self.m = next(iter(self.blocks.values())).m
        self.scales = dict.fromkeys(blocks, 1.0)

    def place(self, name: str) -> slice:
        """Where the code of a leaf lies."""
        return slice(0, self.m)

    def adjoint_leaf(self, name: str, y: Tensor) -> Tensor:
        """One leaf from its own piece of the code."""
        base._check_vector(self, y, "y", self.m)
        return self.blocks[name].adjoint(self.scales[name] * y[self.place(name)])

    def adjoint_columns(self, name: str, y: Tensor, lo: int, hi: int) -> Tensor:
        """Some columns of one leaf."""
        block = self.blocks[name]
        return block.adjoint_columns(block.space.leaves[0].name, self.scales[name] * y[self.place(name)], lo, hi)

    def rows(self, x: Stored, lo: int = 0) -> Tensor:
        """Codes of rows; columns may cover leaves in part."""
        hi = base._check_block(self, x, lo)
        code = code_room(x, self.m)
        for leaf, left, right in self.space.overlaps(lo, hi):
            part = self.blocks[leaf.name].rows(columns(x, left - lo, right - lo), left - leaf.start)
            code[:, self.place(leaf.name)] += self.scales[leaf.name] * part
        return code

    def leaf(self, name: str, rows: Rows) -> Rows | None:
        """The code of one leaf, from its own map."""
        block = self.blocks[name]
        piece = block.leaf(block.space.leaves[0].name, rows)
        if piece is None or self.scales[name] == 1.0:
            return piece
        return piece.scaled(self.scales[name])


class _PerLeafMap(_BlockMap):
    """blockdiag(c_l Phi_l), with factors c_l that give every tight block the same norm; codes lie side by side."""

    apart = True

    def __init__(self, space: Space, blocks: Mapping[str, base.Sketch]):
        super().__init__(space, blocks, 1.0)
        self.code_space = Space.of({name: (block.m,) for name, block in blocks.items()})
        self.m = self.code_space.d
        self.tight = all(block.tight for block in blocks.values())
        if self.tight:
            common = math.sqrt(space.d / self.m)
            self.scales = {name: common / block.norm for name, block in blocks.items()}
        self.norm = base.round_up(max(self.scales[name] * block.norm for name, block in blocks.items()))
        self.coverage = base._coverage_of_leaves(space, [block.m / block.d for block in blocks.values()])

    def place(self, name: str) -> slice:
        """Where the code of a leaf lies."""
        return self.code_space.slice(name)

    def gain(self, ord: float) -> float:
        """The largest of the blocks': leaves do not mix."""
        whole = base.round_up(max(self.scales[name] * block.gain(ord) for name, block in self.blocks.items()))
        return base._as_applied(whole, 1, 1)  # the scale of a block is one more factor


@dataclass(frozen=True, eq=False)
class Progressive(base.Encoder):
    """A schedule over training: `(until, encoder)` is used while `epoch < until`, the last one for ever after.

    >>> from isthmus.sketches import CountSketch, Identity
    >>> schedule = Progressive([(2, CountSketch(10)), (10, Identity())])
    >>> [type(schedule.at(epoch)).__name__ for epoch in (0, 2, 99)]
    ['CountSketch', 'Identity', 'Identity']
    """

    schedule: Sequence[tuple[float, base.Encoder]]

    def __post_init__(self) -> None:
        validate.check(len(self.schedule) > 0, "schedule", self.schedule, "give at least one pair (until, encoder)")
        ends = [until for until, _ in self.schedule]
        increasing = all(a < b for a, b in zip(ends, ends[1:], strict=False))
        validate.check(increasing, "schedule", ends, "give parts whose ends increase")

    @property
    def clips_before(self) -> bool:  # type: ignore[override]
        """What every part of the schedule asks for."""
        places = {encoder.clips_before for _, encoder in self.schedule}
        remedy = "let every part of the schedule clip after its map, or every part before it"
        validate.check(len(places) == 1, "sketch", self, remedy)
        return places.pop()

    @property
    def keeps_layers(self) -> bool:  # type: ignore[override]
        """Whether every part does."""
        return all(encoder.keeps_layers for _, encoder in self.schedule)

    @property
    def public(self) -> bool:  # type: ignore[override]
        """Whether any part is."""
        return any(encoder.public for _, encoder in self.schedule)

    def at(self, epoch: int) -> base.Encoder:
        """The encoder of an epoch."""
        return self.schedule[self._index(epoch)][1]

    def bind(self, context: base.Context, state: base.State) -> tuple[base.Sketch, base.State]:
        """Bind the encoder of the context's epoch; the state of an earlier one is dropped."""
        index = self._index(context.epoch)
        memory: base.State = None
        if state and state["index"] == index:
            memory = cast(base.State, state["inner"])
        sketch, inner = self.schedule[index][1].bind(context, memory)
        return sketch, {"index": index, "inner": inner}

    def token(self, context: base.Context) -> Hashable:
        """That of the epoch's encoder: a map that serves many rounds is kept here too."""
        index = self._index(context.epoch)
        inner = self.schedule[index][1].token(context)
        if inner is None:
            return None
        return index, inner

    def _index(self, epoch: int) -> int:
        ends = (until for until, _ in self.schedule)
        return next((i for i, until in enumerate(ends) if epoch < until), len(self.schedule) - 1)
