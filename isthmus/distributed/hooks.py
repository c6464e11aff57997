"""Few bytes for `DistributedDataParallel`: gradients that are not private, by buckets (docs/distributed.md).

    ddp = torch.nn.parallel.DistributedDataParallel(module)
    ddp.register_comm_hook(SketchState(WarmRank(4)), sketch_hook)

For a bucket's gradient g and what was not sent before, e,

    v = g + e,   y = mean over ranks of Phi v,   gradient = Phi^+ y,   e = v - Phi^+ Phi v

A bucket has one collective, started when DDP hands the bucket over, which is in the same order on all ranks; where its
map is made from the gradient (`WarmRank`), another one before it, which is waited for.  (A hook that starts another
one when the first has arrived leaves the order of its collectives to threads: PowerSGD's aborts on gloo.)  The map is
linear and shared: the mean of the ranks' errors is what one process with the mean gradient would have left.

`WarmRank` is the power method, a step (or half a step) a round.  A matrix M (n x k) is projected onto r directions of
one of its sides.  With the Q of the round before,

    send  P = M Q       (n x r)   and make it orthonormal:  the left directions of this very gradient
    send  R = P' M      (r x k)   and lift  P R;            keep an orthonormal basis of R' as Q

or, with `halves`, one of the two in turn: half of the bytes and of the collectives, in directions that are a round old.
With a basis that all ranks share this is a linear map with orthonormal rows: codes add up, the lift is its
pseudo-inverse, and what is left of a gradient is what error feedback needs, v - Phi^+ Phi v.

Matrix libraries add in an order that depends on the number of threads.  So bases, and the products of small layers, are
computed on one thread: on ranks with one kind of processor they are equal to the bit.

Private training needs no hook: `make_private(group=)` never forms the gradients that a hook would see.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch  # no lazy annotations in this file: DDP reads those of a hook
import torch.distributed as dist
from torch import Tensor

from isthmus.base import validate
from isthmus.base.parallel import one_thread
from isthmus.base.randomness import key, sign_range
from isthmus.base.space import Leaf, Space
from isthmus.sketches import SRHT, Coordinates, CountSketch, Random, Sketch
from isthmus.sketches.kronecker import matrix_shape

_EQUAL = (SRHT, CountSketch, Coordinates)
"""Sketches whose maps and lifts are equal to the bit on every rank; those made by a QR depend on thread counts."""

_Mean = Callable[[Tensor], Tensor]
"""The mean over all ranks of a vector; every rank must ask for it."""


@dataclass(frozen=True)
class _Round:
    """What one bucket is sent by: its place and the space of its parameters, the step, and the state that is kept."""

    state: "SketchState"
    index: int
    space: Space
    t: int

    def basis(self, side: str, leaf: Leaf, columns: Tensor) -> Tensor:
        """An orthonormal basis of columns and a little of random signs; of random signs alone where they are 0."""
        sign_key = key(self.state.seed, self.t, side, leaf.name)
        signs = sign_range(sign_key, 0, columns.numel(), columns.device).view(columns.shape).double()
        wide = columns.double()
        top = wide.abs().max()  # a maximum has no order
        mixed = torch.where(top > 0, wide / torch.where(top > 0, top, 1.0) + _INSURANCE * signs, signs)
        with one_thread():
            return torch.linalg.qr(mixed)[0].to(columns.dtype)


@dataclass(frozen=True)
class Drawn:
    """A tight random sketch of a whole bucket, new every round (or every `refresh` rounds).

    With error feedback the lift is the pseudo-inverse: Phi^+ Phi is an orthogonal projector that keeps m/d of a vector
    on average, a contraction.  (The adjoint of a sketch that keeps lengths is d/m times that, and diverges.)  Without
    feedback the lift divides by that share: unbiased, with d/m times the variance.
    """

    encoder: Random
    feedback: bool = True

    def __post_init__(self) -> None:
        remedy = "give WarmRank(rank), or SRHT, CountSketch or Coordinates with a share of a bucket: CountSketch(0.01)"
        validate.check(isinstance(self.encoder, _EQUAL), "way", self.encoder, remedy)

    def map(self, round: _Round, v: Tensor, mean: _Mean) -> Sketch:
        """The map of (seed, t, bucket)."""
        sketch = self.encoder.draw(round.space, seed=key(round.state.seed, round.index), t=round.t)
        remedy = "make it with scaling='tight': other sketches have no cheap pseudo-inverse"
        validate.check(sketch.tight, "way", self.encoder, remedy)
        return sketch

    def lift(self, drawn: Sketch, y: Tensor) -> Tensor:
        """Phi^+ y; without feedback over the share of each coordinate that Phi^+ Phi keeps on average."""
        lifted = drawn.pinv(y)
        if self.feedback:
            return lifted
        return lifted / torch.as_tensor(drawn.coverage).to(y)

    def learn(self, round: _Round, drawn: Sketch, code: Tensor) -> None:
        """Nothing: the next map is drawn too."""


_LEFT, _RIGHT = "left", "right"

_INSURANCE = 2.0**-13
"""Random directions that are mixed into a basis, relative to its length: where a gradient has fewer than r directions,
the others are new ones and not what rounding leaves."""

_NARROW = 16
"""Products with a side below this differ between thread counts in the library of torch."""


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

    def map(self, round: _Round, v: Tensor, mean: _Mean) -> "_LowRankMap":
        """The projection of this round: onto the mean's left directions, or onto what was kept."""
        space = round.space
        warm = _LowRankMap(space, {leaf.name: self._side(round, leaf, v) for leaf in space.leaves if self._rank(leaf)})
        if self.halves or not warm.sides:
            return warm
        chosen = [leaf for leaf in space.leaves if leaf.name in warm.sides]
        narrow = _LowRankMap(Space.of({leaf.name: leaf.shape for leaf in chosen}), warm.sides)
        if len(chosen) < len(space.leaves):
            v = torch.cat([v[space.slice(leaf.name)] for leaf in chosen])
        parts = narrow.parts(mean(narrow.forward(v)))
        return _LowRankMap(space, {leaf.name: (_LEFT, round.basis(_LEFT, leaf, part)) for leaf, part in parts})

    def lift(self, drawn: "_LowRankMap", y: Tensor) -> Tensor:
        """P R or P Q' of every leaf."""
        return drawn.pinv(y)

    def learn(self, round: _Round, drawn: "_LowRankMap", code: Tensor) -> None:
        """The basis of the other side, from the mean code that everybody received."""
        bases = round.state.bases
        for leaf, part in drawn.parts(code):
            if leaf.name in drawn.sides:
                side, opposite = drawn.sides[leaf.name][0], _LEFT
                if side == _LEFT:
                    opposite = _RIGHT
                bases.pop(f"{side} {leaf.name}", None)
                bases[f"{opposite} {leaf.name}"] = round.basis(opposite, leaf, part)

    def _rank(self, leaf: Leaf) -> int:
        n, k = matrix_shape(leaf)
        return min(self.rank, n // 2, k // 2)

    def _side(self, round: _Round, leaf: Leaf, like: Tensor) -> tuple[str, Tensor]:
        """The side of a leaf that is kept, and its basis; of a leaf that is new, random directions on the right."""
        bases, left, right = round.state.bases, f"{_LEFT} {leaf.name}", f"{_RIGHT} {leaf.name}"
        if left in bases:
            return _LEFT, bases[left].to(like)
        if right not in bases:
            bases[right] = round.basis(_RIGHT, leaf, like.new_zeros(matrix_shape(leaf)[1], self._rank(leaf)))
        return _RIGHT, bases[right].to(like)


class _LowRankMap:
    """The projection of each leaf onto a basis of its left or right side; leaves without one are sent whole.

    A code is M Q of a leaf's matrix and a basis of its right side, and M' P of one of its left side.
    """

    def __init__(self, space: Space, sides: Mapping[str, tuple[str, Tensor]]) -> None:
        self.space, self.sides = space, sides
        self.shapes = {leaf.name: matrix_shape(leaf) for leaf in space.leaves}
        for name, (_, basis) in sides.items():
            self.shapes[name] = space[name].size // len(basis), basis.shape[1]
        self.m = sum(n * k for n, k in self.shapes.values())

    def forward(self, v: Tensor) -> Tensor:
        """The codes of all leaves, one after the other."""
        code = v.new_empty(self.m)
        for leaf, part in self.parts(code):
            matrix, (side, basis) = self._matrix(leaf, v), self.sides.get(leaf.name, (None, v))
            if side is None:
                part.copy_(matrix)
            elif side == _RIGHT:
                torch.mm(matrix, basis, out=part)
            else:
                part.copy_((basis.T @ matrix.T).T)  # M' P itself takes four times as long
        return code

    def pinv(self, y: Tensor) -> Tensor:
        """What the codes are codes of."""
        out = y.new_empty(self.space.d)
        for leaf, part in self.parts(y):
            room = self._matrix(leaf, out)
            if leaf.name in self.sides:
                with one_thread(min(room.shape) < _NARROW):
                    torch.mm(part, self.sides[leaf.name][1].T, out=room)
            else:
                room.copy_(part)
        return out

    def parts(self, code: Tensor) -> list[tuple[Leaf, Tensor]]:
        """The code of each leaf, as its matrix."""
        pieces = code.split([n * k for n, k in self.shapes.values()])
        shaped = (piece.view(shape) for piece, shape in zip(pieces, self.shapes.values(), strict=True))
        return list(zip(self.space.leaves, shaped, strict=True))

    def _matrix(self, leaf: Leaf, vector: Tensor) -> Tensor:
        """The matrix of a leaf, or its transpose where the basis is of its left side."""
        matrix = vector[self.space.slice(leaf.name)].view(matrix_shape(leaf))
        if leaf.name in self.sides and self.sides[leaf.name][0] == _LEFT:
            return matrix.T
        return matrix


_FORMAT = "isthmus-hook-1"
"""What `state_dict` says that it is."""


class SketchState:
    """The state of `sketch_hook`: `ddp.register_comm_hook(SketchState(WarmRank(4)), sketch_hook)`.

    way       `WarmRank(rank)`, or a tight random sketch of every bucket (`SRHT(0.01)`, `CountSketch(0.01)`, ...)
    feedback  keep what was not sent and add it to the next gradient; without it a random sketch is lifted unbiased
    seed      of all random maps: the same on every rank
    start     steps that send whole gradients first

    Memory belongs to parameters and not to buckets, because DDP makes its buckets anew after the first step.  `pickle`,
    `torch.save` and `state_dict` keep everything but the process group; each rank has errors of its own, so each rank
    saves its own state.  `sent` and `plain` count the bytes that this rank handed to the all-reduce, and what whole
    gradients would have been.

    >>> state = SketchState(WarmRank(2), seed=1)
    >>> state.t, state.sent
    (0, 0)
    """

    def __init__(
        self,
        way: WarmRank | Random | None = None,
        *,
        feedback: bool = True,
        seed: int = 0,
        start: int = 0,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        validate.non_negative_int(seed=seed, start=start)
        way = way or WarmRank()
        remedy = "give feedback=True: without it low rank loses for good what it leaves out"
        validate.check(feedback or not isinstance(way, WarmRank), "feedback", feedback, remedy)
        self.way: WarmRank | Drawn
        if isinstance(way, WarmRank):
            self.way = way
        else:
            self.way = Drawn(way, feedback)
        self.feedback, self.seed, self.start, self.process_group = feedback, seed, start, process_group
        self.t = self.sent = self.plain = 0
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.first: dict[str, list[str]] = {}  # the buckets of the first step: numbers of parameters come from them
        self.bases: dict[str, Tensor] = {}
        self.errors: dict[str, Tensor] = {}
        self._forget_module()

    def _forget_module(self) -> None:
        """Parameters and buckets of the module that comes next are met anew."""
        self._parameters: dict[int, tuple[str, Tensor]] = {}  # kept alive, so that no id comes twice
        self._compared: set[tuple[int, tuple[str, ...]]] = set()

    # ------------------------------------------------------------ buckets

    def round(self, bucket: dist.GradBucket) -> _Round:
        """The parameters of a bucket by number: that of their first appearance, which has one order on all ranks."""
        count = len(self._parameters)
        shapes = {self._name(parameter): tuple(parameter.shape) for parameter in bucket.parameters()}
        round = _Round(self, bucket.index(), Space.of(shapes), self.t)
        if len(self._parameters) > count:
            first = self.first.setdefault(str(round.index), list(shapes))
            remedy = f"use the same model and bucket_cap_mb: the bucket had {len(first)} parameters before"
            validate.check(first == list(shapes), "parameters of a bucket", len(shapes), remedy)
        if (round.index, tuple(shapes)) not in self._compared:
            # ranks that would send other numbers find out before they add them; once for a bucket
            what = f"{self.way} seed={self.seed} start={self.start} t={self.t}"
            mine = torch.tensor([key(what, round.index, round.space) >> 1], device=bucket.buffer().device)
            both = torch.cat([mine, -mine])
            dist.all_reduce(both, dist.ReduceOp.MAX, group=self.process_group)
            remedy = "use the same model and a state of the same step: the ranks differ"
            validate.check(int(both[0]) == -int(both[1]), "SketchState", what, remedy)
            self._compared.add((round.index, tuple(shapes)))
        return round

    def _name(self, parameter: Tensor) -> str:
        if id(parameter) in self._parameters:
            return self._parameters[id(parameter)][0]
        name, shape = str(len(self._parameters)), tuple(parameter.shape)
        expected = self.shapes.setdefault(name, shape)
        remedy = f"use the state with the same model: parameter {name} had the shape {expected} when it was saved"
        validate.check(shape == expected, "shape", shape, remedy)
        self._parameters[id(parameter)] = name, parameter
        return name

    # ------------------------------------------------------------ checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Tensors and numbers only, by parameter: `torch.save` it, on every rank."""
        return {
            **{"format": _FORMAT, "way": str(self.way), "seed": self.seed},
            **{"t": self.t, "sent": self.sent, "plain": self.plain},
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "first": dict(self.first),
            "kept": dict(self.bases),
            "errors": {name: error.clone() for name, error in self.errors.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken, with the same way and seed, and a new DDP module if need be."""
        validate.known_format("the state", state.get("format", _FORMAT), [_FORMAT])
        for name, own in (("way", str(self.way)), ("seed", self.seed)):
            remedy = f"make the state with {name}={state.get(name)}, as it was saved"
            validate.check(state.get(name) == own, name, own, remedy)
        self.t, self.sent, self.plain = int(state["t"]), int(state["sent"]), int(state["plain"])
        self.shapes = {name: tuple(shape) for name, shape in state["shapes"].items()}
        self.first = dict(state["first"])
        self.bases = {name: tensor.clone() for name, tensor in state["kept"].items()}
        self.errors = {name: tensor.clone() for name, tensor in state["errors"].items()}
        self._forget_module()

    def __getstate__(self) -> dict[str, Any]:
        own = {name: error.clone() for name, error in self.errors.items()}  # each without the rest of its bucket
        return {**self.__dict__, "process_group": None, "_parameters": {}, "_compared": set(), "errors": own}


_Future = torch.futures.Future


def sketch_hook(state: SketchState, bucket: dist.GradBucket) -> _Future[Tensor]:
    """The mean gradient of a bucket through the state's map; `ddp.register_comm_hook(state, sketch_hook)`.

    Numbers travel in the dtype of the bucket, so torch's `bf16_compress_wrapper` and `fp16_compress_wrapper` halve
    them; what that rounds off is kept too.  A bucket that is not finite on any rank is NaN on all of them, and leaves
    its errors and bases as they were: a `GradScaler` skips that step.
    """
    round, buffer = state.round(bucket), bucket.buffer()
    sizes = [leaf.size for leaf in round.space.leaves]
    state.t += bucket.is_last()
    state.plain += buffer.numel() * buffer.element_size()
    if round.t < state.start:
        return _sum(state, buffer.div_(_size(state))).then(lambda future: future.value()[0])
    wide = torch.promote_types(buffer.dtype, torch.float32)
    v = buffer.to(wide, copy=True)
    if state.errors:
        none = v.new_zeros(max(sizes))
        v += torch.cat([state.errors.get(leaf.name, none[: leaf.size]).to(v) for leaf in round.space.leaves])
    way: Any = state.way

    def mean_now(part: Tensor) -> Tensor:
        """A mean that the map of this bucket hangs on: waited for, before anything else of the bucket is sent."""
        wire = (part / _size(state)).to(buffer.dtype)
        _sum(state, wire).wait()
        return wire.to(part.dtype)

    drawn = way.map(round, v, mean_now)
    code = drawn.forward(v)
    code.masked_fill_(~v.sum().isfinite(), torch.nan)  # also where a map does not look
    wire = (code / _size(state)).to(buffer.dtype)  # divided first, so that halves do not overflow
    own = wire.to(wide) * _size(state)
    coming = _sum(state, wire)
    error = None
    if state.feedback:  # v - Phi^+ y for the y that was sent, in the room of v, while the numbers travel
        error = v.sub_(drawn.pinv(own))

    def lifted(future: _Future[list[Tensor]]) -> Tensor:
        mean = future.value()[0].to(wide)
        if not mean.sum().isfinite():
            return buffer.fill_(torch.nan)
        if error is not None:
            state.errors |= {leaf.name: part for leaf, part in zip(round.space.leaves, error.split(sizes), strict=True)}
        way.learn(round, drawn, mean)
        return buffer.copy_(way.lift(drawn, mean))

    return coming.then(lifted)


def _sum(state: SketchState, wire: Tensor) -> _Future[list[Tensor]]:
    """The one all-reduce of a bucket."""
    state.sent += wire.numel() * wire.element_size()
    return dist.all_reduce(wire, group=state.process_group, async_op=True).get_future()


def _size(state: SketchState) -> int:
    return dist.get_world_size(state.process_group)
