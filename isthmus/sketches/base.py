"""What a sketch is: a recipe (`Encoder`) that draws a linear map (`Sketch`) for each round.

An encoder is frozen and holds no arrays: `(kind, m)`.  With `(seed, t)` it draws `Phi: R^d -> R^m`, the
same on every machine, for every dtype and however the work is chunked.  The matrix is never sent and
never part of a checkpoint; small ones may keep a working copy while their round lasts.

A sketch is **tight** when `Phi Phi' = norm^2 I`.  Random tight sketches have `norm^2 = d/m`, so that they
keep lengths on average and a clip bound or a step keeps its meaning when m changes; public ones have
norm 1.  For a tight sketch `pinv(y) = Phi' y / norm^2` is the pseudo-inverse, and `pinv(forward(v))` is an
orthogonal projector with `E[pinv forward] = coverage`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral
from typing import Protocol, TypeAlias, TypeVar, cast

import torch
from torch import Tensor

from isthmus.base import randomness, storage, validate
from isthmus.base.matrix import Stored, is_sparse, to_dense
from isthmus.base.space import Space, as_space
from isthmus.gradients.rows import Rows, Stack, total

Size = int | float | Callable[[int], int]
"""A narrow dimension: a number m, a fraction of d in (0, 1), or a rule `t -> m`."""

CHUNK_BYTES = 1 << 26
"""Temporary buffers of one call stay near this size."""
CACHE_BYTES = 1 << 28
"""A sketch keeps a working copy of its matrix for its round only below this size."""


T = TypeVar("T")
S = TypeVar("S", bound="Sketch")

Tree: TypeAlias = "None | bool | int | float | str | Tensor | Sequence[Tree] | Mapping[str, Tree]"
"""What may be kept in a checkpoint: tensors, numbers and words, in lists and dictionaries."""
State: TypeAlias = Mapping[str, Tree] | None
"""What an encoder remembers between rounds."""


def _state_entry(state: Mapping[str, Tree], key: str, kind: type[T]) -> T:
    """An entry of a state, which may come from a file: another kind of thing is refused.

    >>> _state_entry({"t": 3}, "t", int)
    3
    """
    value = state[key]
    if not isinstance(value, kind):
        remedy = f"start the run anew: a {kind.__name__} belongs here, and this is of another kind"
        validate.refuse(f"state[{key!r}]", value, remedy)
    return value


class Context(Protocol):
    """What an encoder may look at when it is bound: public things only."""

    space: Space
    t: int
    epoch: int
    seed: int
    device: torch.device | None
    """Where the parameters are, if that is not the CPU."""

    @property
    def w(self) -> Tensor: ...
    def rows(self, data: object) -> Rows: ...
    def bind(self, encoder: Encoder) -> Sketch: ...


class Memo:
    """What a map keeps for its round: working copies of its tensors, and what it last made of a code."""

    def __init__(self) -> None:
        self.kept: dict[Hashable, object] = {}
        self.left: tuple[Tensor, Tensor] | None = None
        """A code and Phi^+ of it, see `leave_pinv`."""
        self._last: dict[str, tuple[Tensor, int, Tensor]] = {}

    def keep(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` gave when this key was first asked for."""
        if key not in self.kept:
            self.kept[key] = make()
        return cast(T, self.kept[key])

    def tensor(
        self, key: Hashable, make: Callable[[], Tensor], device: torch.device, dtype: torch.dtype | None = None
    ) -> Tensor:
        """A tensor of the map in a dtype and on a device, made and moved there at its first use."""
        return self.keep((key, device, dtype), lambda: make().to(device=device, dtype=dtype))

    def latest(self, key: str, y: Tensor, make: Callable[[], Tensor]) -> Tensor:
        """What `make` computes from y, kept until another y comes: the leaves of a code are lifted one by one."""
        if y.is_inference():
            return make()
        last = self._last.get(key)
        if last is None or last[0] is not y or last[1] != y._version:
            last = self._last[key] = y, y._version, make()
        return last[2]


class Sketch(ABC):
    """A linear map Phi: R^d -> R^m, fixed for a round.

    A map of your own supplies `rows` and `adjoint`; everything else follows, and maps override what they do better:
    codes of single leaves (`leaf`, `join`) and of outer products that are never built (`outer`), one leaf lifted
    without the others (`adjoint_leaf`, `adjoint_columns`, `add_pinv_columns`).
    """

    space: Space
    d: int
    m: int
    tight: bool = False
    coverage: float | Tensor = 1.0
    leafwise: bool = True
    """Whether a leaf can be encoded without the others, so that rows need not be kept until all are there."""
    apart: bool = False
    """Whether each leaf owns a slice of the code, in order; else all leaves share one code space."""
    settles: bool = False
    """Whether it changes the whole sum before its noise (`settle`)."""
    in_place: bool = False
    """Whether what it lifts is added to a parameter without forming it first (`add_pinv_columns`)."""

    @cached_property
    def norm(self) -> float:
        """||Phi||_2, or a certified upper bound of it; here that of a random tight sketch, sqrt(d/m)."""
        return round_up(math.sqrt(self.d / self.m))

    @abstractmethod
    def rows(self, x: Stored, lo: int = 0) -> Tensor:
        """Phi[:, lo:lo+k] applied to each row of an n x k block (dense or CSR): n x m, dense."""

    @abstractmethod
    def adjoint(self, y: Tensor) -> Tensor:
        """Phi' y."""

    def outer(self, a: Stored, b: Tensor, lo: int = 0) -> Tensor:
        """Codes of the rows vec(sum_t b_t a_t') at columns lo and on, a: (n, [T,] p), b: (n, [T,] q).

        Here through `rows`: products are built in chunks of about `CHUNK_BYTES`, and sparse `a` is never densified.
        """
        p, q = a.shape[-1], b.shape[-1]
        if a.ndim == 2 and (q == 1 or is_sparse(a)):
            parts = (self.rows(a, lo + j * p) * b[:, j : j + 1] for j in range(q))
            return sum(parts, b.new_zeros(()))
        chunk = max(1, CHUNK_BYTES // (8 * p * q))
        equation = "ntq,ntp->nqp"
        if a.ndim == 2:
            equation = "nq,np->nqp"
        codes = [b.new_zeros(0, self.m)]
        for start in range(0, a.shape[0], chunk):
            stop = start + chunk
            product = torch.einsum(equation, b[start:stop], to_dense(a[start:stop], b.dtype))
            codes.append(self.rows(product.reshape(-1, q * p), lo))
        return torch.cat(codes)

    def forward(self, v: Tensor) -> Tensor:
        """Phi v."""
        _check_vector(self, v, "v", self.d)
        return self.rows(v.unsqueeze(0)).squeeze(0)

    def pinv(self, y: Tensor) -> Tensor:
        """Phi^+ y, for tight sketches."""
        return self.adjoint(self._over_squared_norm(y))

    def adjoint_leaf(self, name: str, y: Tensor) -> Tensor:
        """The leaf `name` of Phi' y, flat: the leaves in order are `adjoint(y)`."""
        return self._memo.latest("adjoint", y, lambda: self.adjoint(y))[self.space.slice(name)]

    def adjoint_columns(self, name: str, y: Tensor, lo: int, hi: int) -> Tensor:
        """Columns lo..hi-1 of the leaf of Phi' y as its matrix: a weight without its bias, or the bias alone."""
        return self.adjoint_leaf(name, y).reshape(self.space.shape(name)[0], -1)[:, lo:hi]

    def pinv_leaf(self, name: str, y: Tensor) -> Tensor:
        """The leaf `name` of Phi^+ y, flat, for tight sketches."""
        return self.adjoint_leaf(name, self._over_squared_norm(y))

    def pinv_columns(self, name: str, y: Tensor, lo: int, hi: int) -> Tensor:
        """Columns lo..hi-1 of the leaf of Phi^+ y as its matrix, for tight sketches."""
        return self.adjoint_columns(name, self._over_squared_norm(y), lo, hi)

    def add_pinv_columns(self, out: Tensor, name: str, y: Tensor, lo: int, hi: int, alpha: float) -> None:
        """out += alpha times columns lo..hi-1 of a leaf of Phi^+ y, in place."""
        out.add_(self.pinv_columns(name, y, lo, hi), alpha=alpha)

    def gain(self, ord: float) -> float:
        """A certified bound of max ||Phi v||_ord / ||v||_ord: never below that of the map as it is applied.

        That is the map in float32 or in float64 (`_as_applied`), with the terms of a code added in float64.
        """
        if ord == 2:
            return _as_applied(self.norm, self.m, self.d)
        validate.one_of((1, 2, math.inf), ord=ord)
        return _as_applied(round_up(self._matrix_gain(ord), 64 + max(self.d, self.m)), self.m, self.d)

    def encode(self, rows: Rows) -> Rows:
        """The codes Phi g_i of all rows, factored where they can be; rows without leaves count as one whole."""
        pieces = rows.leaves()
        if len(pieces) == 1 and rows.d == self.d:
            if len(self.space.leaves) > 1:
                return rows.through(self, 0)
            pieces = [(self.space.leaves[0].name, rows)]
        return self.join({name: self.leaf(name, piece) for name, piece in pieces})

    def leaf(self, name: str, rows: Rows) -> Rows | None:
        """The piece of the code that one leaf gives (called inside a backward pass); None when it gives nothing."""
        return rows.through(self, self.space[name].start)

    def join(self, pieces: Mapping[str, Rows | None]) -> Rows:
        """One code from the pieces of all leaves, None left out: side by side where leaves are `apart`, else added."""
        names = (leaf.name for leaf in self.space.leaves)
        items = [(name, piece) for name in names if (piece := pieces.get(name)) is not None]
        if self.apart and len(items) > 1:
            return Stack(items)
        return total([piece for _, piece in items])

    def settle(self, value: Tensor, ord: float, bound: float) -> tuple[Tensor, float, float]:
        """The whole sum before its noise, the norm it is bounded in and that bound: of maps that `settles` names.

        Most papers map single records; some apply their map to the sum (`isthmus.theory.printed`).
        """
        raise NotImplementedError

    def tensors(self) -> Sequence[Tensor] | None:
        """The tensors that all this map does comes from, where a device may record it; None where it may not."""
        return None

    def placed(self, tensors: Sequence[Tensor]) -> Sketch:
        """The same map of tensors that hold what those of `tensors()` do, in other memory."""
        return self

    def dense(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """The m x d matrix, for tests and for small problems."""
        return torch.stack([self.adjoint(row) for row in torch.eye(self.m, dtype=dtype)])

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the numbers that make the map, which two machines compare before they add codes."""
        lazy = {name for name in vars(self) if isinstance(getattr(type(self), name, None), cached_property)}
        made = {name: x for name, x in vars(self).items() if name[0] != "_" or isinstance(x, (int, Tensor))}
        attributes = {name: value for name, value in made.items() if name not in lazy}
        return storage.fingerprint([type(self).__name__.lstrip("_"), attributes])

    @cached_property
    def _memo(self) -> Memo:
        return Memo()

    def _over_squared_norm(self, y: Tensor) -> Tensor:
        if not self.tight:
            remedy = "lift with `adjoint` or `project_and_lift`, or draw it with scaling='tight'"
            raise TypeError(f"{self} is not tight, so it has no cheap pseudo-inverse: {remedy}")
        if self.norm == 1.0:
            return y
        return self._memo.latest("pinv", y, lambda: y / self.norm**2)

    def _block(self, lo: int, hi: int) -> Tensor:
        """Phi[:, lo:hi] as a dense m x (hi - lo) float64 matrix."""
        return self.rows(torch.eye(hi - lo, dtype=torch.float64), lo).T

    def _chunks(self) -> list[tuple[int, int]]:
        """Column ranges whose `_block` (and the identity it may be read from) stays near `CHUNK_BYTES`."""
        width = max(1, min(CHUNK_BYTES // (8 * self.m), math.isqrt(CHUNK_BYTES // 8)))
        return [(lo, min(lo + width, self.d)) for lo in range(0, self.d, width)]

    def _matrix_gain(self, ord: float) -> float:
        """The induced norm from the matrix itself, a chunk of columns at a time."""
        worst, row_sums = 0.0, torch.zeros(self.m, dtype=torch.float64)
        for lo, hi in self._chunks():
            block = self._block(lo, hi).abs()
            worst = max(worst, float(block.sum(0).max()))
            row_sums += block.sum(1)
        if ord == 1:
            return worst
        return float(row_sums.max())

    def __repr__(self) -> str:
        return f"{type(self).__name__.lstrip('_')}(m={self.m}, d={self.d})"


class LiftsLeaves(Sketch):
    """A map that lifts one leaf without the others."""

    @abstractmethod
    def adjoint_leaf(self, name: str, y: Tensor) -> Tensor:
        """The leaf `name` of Phi' y, flat."""

    def adjoint(self, y: Tensor) -> Tensor:
        """Phi' y, leaf by leaf."""
        return torch.cat([self.adjoint_leaf(leaf.name, y) for leaf in self.space.leaves])


class LiftsRanges(Sketch):
    """A map that computes any range of the entries of Phi' y."""

    @abstractmethod
    def _adjoint(self, y: Tensor, start: int, stop: int) -> Tensor:
        """The entries start..stop-1 of Phi' y."""

    def adjoint(self, y: Tensor) -> Tensor:
        """Phi' y."""
        return self._adjoint(y, 0, self.d)

    def adjoint_leaf(self, name: str, y: Tensor) -> Tensor:
        """The leaf `name` of Phi' y, flat."""
        where = self.space.slice(name)
        return self._adjoint(y, where.start, where.stop)


def without_memo(sketch: S) -> S:
    """The same map with nothing remembered."""
    bare = copy(sketch)
    for name in ("_memo", "fingerprint"):
        bare.__dict__.pop(name, None)
    return bare


LONGEST_LEFT = 1 << 23
"""Longer vectors are not left lying about: one that nobody takes stays until the map is dropped."""


def leave_pinv(sketch: Sketch, y: Tensor) -> Tensor:
    """Phi^+ y, left with the map for whoever lifts an equal code next: neither is to be written to.

    In one process the sender and the receiver of a code lift the same numbers.  A sender with error feedback lifts its
    code to see what was lost of its gradient, a receiver to step along it: what the receiver takes is the same to the
    bit as if it was computed twice, as it is in two processes.

    >>> from isthmus.sketches import CountSketch
    >>> sketch, y = CountSketch(2).draw(4), torch.tensor([1.0, 2.0])
    >>> left = leave_pinv(sketch, y)
    >>> take_pinv(sketch, y.clone()) is left, take_pinv(sketch, y) is left
    (True, False)
    """
    lifted = sketch.pinv(y)
    if y.device.type == "cpu" and sketch.d <= LONGEST_LEFT:  # to compare codes on a device would be to wait for it
        sketch._memo.left = y, lifted
    return lifted


def take_pinv(sketch: Sketch, y: Tensor) -> Tensor:
    """Phi^+ y: what was left, if it was left of an equal code, and computed otherwise."""
    left, sketch._memo.left = sketch._memo.left, None
    if left is None:
        return sketch.pinv(y)
    code, lifted = left
    if code.dtype == y.dtype and code.device == y.device and torch.equal(code, y):
        return lifted
    return sketch.pinv(y)


class Encoder(ABC):
    """A frozen recipe for sketches."""

    clips_before: bool = False
    """Whether private gradients are clipped before the projection (as some methods were published)."""
    keeps_layers: bool = False
    """Whether a code has a part for every leaf, so that layers can be clipped apart."""
    public: bool = False
    """Whether the map, or a part of it, is learned from public examples."""
    proven: bool = True
    """Whether the bound that its map states of a whole sum is a fact, and not only what a paper claims."""

    @abstractmethod
    def bind(self, context: Context, state: State) -> tuple[Sketch, State]:
        """The map of this round and what the encoder wants to remember (public things only)."""

    def token(self, context: Context) -> Hashable:
        """What the map of this round depends on: while it stays the same a run keeps the map; None never does."""
        return None

    def settled_ord(self, ord: float) -> float:
        """The norm in which a sum is bounded when its noise is added, from that of its clip (see `Sketch.settle`)."""
        return ord


@dataclass(frozen=True, eq=False)
class Random(Encoder):
    """An encoder that is drawn from `(seed, t)` alone; one map serves `refresh` rounds in a row."""

    refresh: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        validate.positive_int(refresh=self.refresh)

    @abstractmethod
    def build(self, space: Space, key: int, t: int) -> Sketch:
        """The map that a key stands for; t (the first round that uses it) only matters to a rule t -> m."""

    def draw(self, space: Space | int, *, seed: int = 0, t: int = 0) -> Sketch:
        """The map of round t for a space (or a dimension d)."""
        whole = isinstance(seed, Integral) and not isinstance(seed, bool)
        validate.check(whole, "seed", seed, "give an integer")
        validate.non_negative_int(t=t)
        return self.build(as_space(space), self._key(seed, t), t - t % self.refresh)

    def _key(self, seed: int, t: int) -> int:
        """The key of the map that serves round t."""
        return randomness.key(seed, t // self.refresh, type(self).__name__)

    def bind(self, context: Context, state: State) -> tuple[Sketch, State]:
        """Draw the map of the context's round."""
        seed, t = context.seed, context.t
        return self.build(context.space, self._key(seed, t), t - t % self.refresh), None

    def token(self, context: Context) -> Hashable:
        """The seed and the first round of the map, when it serves several."""
        if self.refresh == 1:
            return None
        return context.seed, context.t // self.refresh


def resolve(m: Size, d: int, t: int = 0) -> int:
    """The number of rows a `Size` stands for; m > d is refused.

    >>> resolve(0.1, 250), resolve(lambda t: 10 * (t + 1), 250, t=2)
    (25, 30)
    """
    if callable(m):
        size: float = m(t)
    elif isinstance(m, float) and m < 1:
        validate.positive(m=m)
        size = max(1, round(m * d))
    else:
        size = m
    validate.positive_int(m=size)
    validate.at_most(d, "the dimension d", m=size)
    return int(size)


def _coverage_of_leaves(space: Space, shares: Sequence[float]) -> float | Tensor:
    """One number a leaf as a coverage: the number itself when all agree, else d of them.

    >>> _coverage_of_leaves(Space.of({"a": (1, 2), "b": (1, 1)}), [0.5, 0.25]).tolist()
    [0.5, 0.5, 0.25]
    """
    if len(set(shares)) == 1:
        return shares[0]
    sizes = torch.tensor([leaf.size for leaf in space.leaves])
    return torch.tensor(shares, dtype=torch.float64).repeat_interleave(sizes)


def _check_vector(sketch: Sketch, v: Tensor, name: str, size: int) -> None:
    """A clear error for a vector of the wrong length."""
    if v.shape != (size,):
        validate.refuse(f"{name}.shape", tuple(v.shape), f"give vectors of length {size}, which {sketch} takes")


def _check_block(sketch: Sketch, x: Stored, lo: int) -> int:
    """The end lo + k of an n x k block of columns, which must lie inside [0, d]."""
    validate.check(x.ndim == 2, "x.ndim", x.ndim, "give an n x k block of rows")
    hi = lo + x.shape[1]
    if lo < 0 or hi > sketch.d:
        validate.refuse("columns", (lo, hi), f"give columns between 0 and {sketch.d}, which {sketch} has")
    return hi


def round_up(value: float, ulps: int = 64) -> float:
    """A float a little above `value`: rounding errors of its computation do not make it a lower bound."""
    return value * (1 + ulps * 2.0**-52)


def _as_applied(gain: float, m: int, d: int) -> float:
    """A bound for the map as float32 applies it, from one of the map itself.

    In float32 an entry is off by at most c roundings, |E_ij| <= c u |Phi_ij| with u = 2^-24 and c <= 4: its draw, its
    scale, its cast, the product.  In the norms 1 and inf ||E|| <= c u ||Phi||; in the norm 2 <= c u || |Phi| ||, where
    || |Phi| || <= ||Phi||_F <= sqrt(min(m, d)) ||Phi||.  The code is rounded once more (u), and its at most d terms,
    added in float64, are off by another (d + 64) 2^-53 of || |Phi| ||.

    >>> 0 < _as_applied(1.0, 100, 10_000) - 1 < 4e-6
    True
    """
    spread = math.sqrt(min(m, d))
    return gain * (1 + (4 * spread + 4) * 2.0**-24 + (d + 64) * spread * 2.0**-52)
