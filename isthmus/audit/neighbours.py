"""Records an adversary plants: two datasets that differ in one of them, and how far that moves what a mechanism gets.

`Probe` runs a round of a pipeline by the pipeline's own code, and stops in front of its mechanisms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.space import Space, as_space
from isthmus.core.pipeline import Pipeline, Release, Round, Stage, bind_stage, close_stage, fragment, slots, start
from isthmus.core.wire import Keys
from isthmus.gradients import Dense, Lookup, Rows, Stack
from isthmus.lifts import discard
from isthmus.objectives.base import Index, Objective, as_index
from isthmus.privacy import Adjacency, Exact, Mechanism, NoisyMax, SeededSource, Source, TopK
from isthmus.privacy.clips import ClippedSum
from isthmus.sketches import Sketch
from isthmus.theory.printed import Printed

_HUGE = 1e6
"""How far beyond the clip the outlier lies."""
_TINY = 1e-300
_SMOOTHING = 1e-3
"""Outcomes rarer than this cannot be told apart by counting."""


class LinearRecords(Objective):
    """`l_i(w) = <v_i, w>`: the gradient of record i is the vector v_i, wherever the iterate is.

    With these an adversary hands any vectors to any pipeline.  Whole numbers k in place of vectors are the unit vectors
    e_k of the space, and never written out.

    >>> f = LinearRecords([[1.0, 0.0], [0.0, 3.0]])
    >>> f.n, f.rows(torch.zeros(2)).dense().tolist(), f.loss(torch.ones(2))
    (2, [[1.0, 0.0], [0.0, 3.0]], 2.0)
    """

    def __init__(self, vectors: object, space: Space | int | None = None) -> None:
        if space is not None and isinstance(vectors, Tensor) and vectors.ndim == 1:
            self.vectors, self.dtype, self.space = vectors, torch.float64, as_space(space)
        else:
            self.vectors = validate.as_tensor("vectors", vectors, ndim=2)
            self.dtype, self.space = self.vectors.dtype, as_space(space or self.vectors.shape[1])
            validate.shape((len(self.vectors), self.space.d), vectors=self.vectors)
        self.n = len(self.vectors)

    def data_loss(self, w: Tensor, index: Index = None) -> float:
        """The mean of the `<v_i, w>`; 0 for an empty batch."""
        rows = self.rows(w, index)
        return float(rows.sum() @ w.to(rows.dtype)) / max(1, rows.n)

    def rows(self, w: Tensor, index: Index = None) -> Rows:
        """The vectors themselves, in the leaves of the space."""
        places, chosen = as_index(index, self.n), self.vectors
        if places is not None:
            chosen = chosen[places]
        if chosen.ndim == 1:
            ones = torch.ones(len(chosen), 1, 1, dtype=self.dtype)
            return Lookup(chosen[:, None], ones, self.space.d, apart=True)
        if len(self.space.leaves) == 1:
            return Dense(chosen)
        return Stack([(leaf.name, Dense(chosen[:, self.space.slice(leaf.name)])) for leaf in self.space.leaves])

    def on(self, data: object) -> LinearRecords:
        """The same losses on other (public) vectors."""
        return LinearRecords(data, self.space)


@dataclass(frozen=True, eq=False)
class Pair:
    """Neighbouring datasets: `common` (n - 1 records) with `left`, and with `right` in its place (None: nobody).

    `seed` and `t` are the public seed and the round whose maps the pair was built against.

    >>> pair = Pair("one more", torch.zeros(3, 2), torch.ones(2), None)
    >>> pair.records(left=True).n, pair.records(left=False).n, pair.adjacency.value
    (4, 3, 'add-remove')
    """

    name: str
    common: Tensor
    left: Tensor
    right: Tensor | None
    space: Space | None = None
    seed: int = 0
    t: int = 0

    def __post_init__(self) -> None:
        validate.check(self.common.ndim == 2, "common.shape", tuple(self.common.shape), "give an (n - 1) x d tensor")
        validate.non_negative_int(seed=self.seed, t=self.t)
        for name, record in (("left", self.left), ("right", self.right)):
            if record is not None:
                validate.shape((self.d,), **{name: record})

    @property
    def d(self) -> int:
        """The dimension of the records."""
        return self.common.shape[1]

    @property
    def n(self) -> int:
        """The number of records of the left dataset."""
        return len(self.common) + 1

    @property
    def adjacency(self) -> Adjacency:
        """What the two datasets are neighbours in."""
        if self.right is None:
            return Adjacency.ADD_REMOVE
        return Adjacency.REPLACE_ONE

    def records(self, left: bool) -> LinearRecords:
        """One of the two datasets; the record that differs comes last."""
        rows, last = self.common, {True: self.left, False: self.right}[left]
        if last is not None:
            rows = torch.cat([rows, last[None]])
        return LinearRecords(rows, self.space)


# ---------------------------------------------------------------- what a mechanism is handed

Values = dict[str, ClippedSum]


@dataclass(frozen=True)
class _Intercept(Exact):
    """A mechanism that keeps what it is handed and adds no noise.  For audits: nothing here is private."""

    handed: list[ClippedSum] = field(default_factory=list)

    def release(self, bounded: ClippedSum, noise: Source | None) -> Tensor:
        """The value itself."""
        self.handed.append(bounded)
        return bounded.value


class Probe:
    """One round of a private pipeline at a public seed, stopped in front of its mechanisms.

    Maps and clip bounds are those of round `t` of a run with `seed`.  A later stage sees what the stages before it
    release on a record that is zero: one fixed public transcript for every dataset.

    >>> from isthmus.core.pipeline import Promise
    >>> from isthmus.privacy import Clip, FullBatch, Gaussian
    >>> pipe = Pipeline([Stage(FullBatch(), [Release(clip=Clip(1.0), mechanism=Gaussian(4.0))])], lambda t: 0.1,
    ...                 promise=Promise(1.0, 1e-5))
    >>> value = Probe(pipe, 2).values(pipe.stages[0], LinearRecords([[3.0, 4.0], [0.0, 0.5]]))["main/gradient"]
    >>> [round(v, 6) for v in value.value.tolist()], value.bound
    ([0.6, 1.3], 1.0009765625)
    """

    def __init__(self, pipe: Pipeline, space: Space | int, *, seed: int = 0, t: int = 0) -> None:
        validate.check(pipe.private, "pipe", pipe, "give a private pipeline: there is nothing else to audit")
        assert pipe.promise is not None
        self.space, self.promise = as_space(space), pipe.promise
        state = replace(start(pipe, torch.zeros(self.space.d, dtype=torch.float64), seed), t=t)
        self.round = Round(pipe, state, self.space, seed, 0, read=lambda: state.w, public_rows=self._public_rows)
        nobody = LinearRecords(torch.zeros(1, self.space.d, dtype=torch.float64), self.space)
        for stage in self.round.active:
            bind_stage(self.round, stage)
            silent = [replace(release, lift=discard) for release in stage.releases]
            self._close(replace(stage, releases=silent), nobody, None, Keys(noise=SeededSource(seed)))

    @property
    def stages(self) -> list[Stage]:
        """The private stages of the round."""
        return [stage for stage in self.round.active if stage.private]

    def sketch(self, slot: str) -> Sketch:
        """The map of a release."""
        return self.round.sketches[slot]

    def values(self, stage: Stage, records: LinearRecords, index: Tensor | None = None) -> Values:
        """What each release of a stage hands to its mechanism, by slot, for the records of an index (None: all)."""
        held, released = dict(self.round.held), dict(self.round.released)
        tap = _Intercept()
        releases = [replace(release, mechanism=tap, lift=discard) for release in stage.releases]
        try:
            self._close(replace(stage, releases=releases), records, index, Keys())
        finally:  # the transcript stays what it was, whatever the records are
            self.round.held, self.round.released = held, released
        return {slot: value for (_, slot), value in zip(stage.slots, tap.handed, strict=True)}

    def _close(self, stage: Stage, records: LinearRecords, index: Tensor | None, keys: Keys) -> None:
        """Release what the holder of the records sends, at no cost."""
        rows = stage.source(records, self.round.w, index, self.round.held)
        message = replace(fragment(self.round, stage, rows), divisor=1.0)
        self.round.paid.add(stage.name)
        close_stage(self.round, stage, message, keys)

    def _public_rows(self, w: Tensor, data: object) -> Rows:
        """Public data as rows: rows as they are, vectors as linear records."""
        if isinstance(data, Rows):
            return data
        return LinearRecords(data, self.space).rows(w)


# ---------------------------------------------------------------- how far a pair moves it


@dataclass(frozen=True)
class Movement:
    """How far a pair moves the value handed to a mechanism, in the mechanism's norm, against the stated bound.

    `ratio = moved / bound` with the bound of the promised adjacency: above 1 the stated sensitivity is false.
    `release` is the slot where it is largest, `order` what makes one pair worse than another.
    """

    pair: Pair
    moved: float
    bound: float
    ratio: float
    release: str = "main/gradient"
    order: tuple[float, ...] = field(default=(), repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.pair.name}: moved {self.moved:.6g} of {self.bound:.6g} ({self.ratio:.4f}) at {self.release}"


def worst_pair(pipe: Pipeline, d: Space | int, n: int, *, seed: int = 0, t: int = 0) -> Movement:
    """The pair of `_Adversary.pairs` that moves the pipeline's value most, at a fixed public seed and round.

    Among pairs that move it equally far the one whose outcomes are easiest to tell apart: a movement in one
    coordinate for Laplace noise, the largest ratio of probabilities for a selection.

    >>> from isthmus.core.pipeline import Promise, Release, Stage
    >>> from isthmus.privacy import Clip, FullBatch, Gaussian
    >>> pipe = Pipeline([Stage(FullBatch(), [Release(clip=Clip(2.0), mechanism=Gaussian(4.0))])], lambda t: 0.1,
    ...                 promise=Promise(1.0, 1e-5))
    >>> worst = worst_pair(pipe, d=5, n=10)
    >>> round(worst.moved, 9), round(worst.bound, 4), round(worst.ratio, 3)
    (2.0, 2.002, 0.999)
    """
    return max(movements(pipe, d, n, seed=seed, t=t), key=lambda moved: moved.order)


def movements(pipe: Pipeline, d: Space | int, n: int, *, seed: int = 0, t: int = 0) -> list[Movement]:
    """The movements of pairs that are bad for one mechanism or another, for every release of a round."""
    validate.check(n >= 2, "n", n, "give at least 2 records")
    probe = Probe(pipe, d, seed=seed, t=t)
    adversaries = [_Adversary(probe, release, slot, n, seed, t) for _, release, slot in slots(probe.stages)]
    return [_moved(probe, pair) for adversary in adversaries for pair in adversary.pairs()]


def movement(pipe: Pipeline, pair: Pair) -> Movement:
    """The movement of one pair, at the seed and round it was built against."""
    probe = Probe(pipe, pair.space or pair.d, seed=pair.seed, t=pair.t)
    return _moved(probe, pair)


def _inner(mechanism: Mechanism) -> Mechanism:
    """The mechanism that draws: what is printed, or broken on purpose, wraps it."""
    while isinstance(mechanism, Printed):
        mechanism = mechanism.inner
    return mechanism


def _law(mechanism: NoisyMax | TopK, bounded: ClippedSum) -> Tensor:
    """Logarithms of a selection's probabilities: of its outcomes (NoisyMax) or of its first choice (TopK)."""
    scores = bounded.value.double().reshape(-1)
    if isinstance(mechanism, TopK):
        scores = scores.abs()
    elif mechanism.signed:
        scores = torch.cat([scores, -scores])
    return torch.log_softmax(scores * (mechanism.epsilon / (2 * bounded.bound)), 0)


def _moved(probe: Probe, pair: Pair) -> Movement:
    """The largest movement of a pair, and what pairs are ordered by."""
    adjacency = probe.promise.adjacency
    remedy = f"give a pair of data sets as the promise compares them: {adjacency.describe()}"
    validate.check(pair.adjacency is adjacency, "pair", pair.name, remedy)
    left, right = pair.records(left=True), pair.records(left=False)
    moves, sharpest = [], 0.0
    for stage in probe.stages:
        values = zip(probe.values(stage, left).values(), probe.values(stage, right).values(), strict=True)
        for (release, slot), (ours, theirs) in zip(stage.slots, values, strict=True):
            moved = float(torch.linalg.vector_norm((ours.value - theirs.value).double(), ours.ord))
            bound, ratio = adjacency.sensitivity(min(ours.bound, theirs.bound)), math.inf
            if ours.bound == theirs.bound:  # a bound that looks at the data bounds nothing
                ratio = moved / bound
            moves.append(Movement(pair, moved, bound, ratio, slot))
            sharpest = max(sharpest, _sharpness(release.mechanism, ours, theirs))
    worst = max(moves, key=lambda each: each.ratio)
    order = round(worst.ratio, 6), round(sum(each.ratio for each in moves), 6), sharpest
    return replace(worst, order=order)


def _sharpness(mechanism: Mechanism, ours: ClippedSum, theirs: ClippedSum) -> float:
    """How visible a movement is, among movements of one length."""
    mechanism = _inner(mechanism)
    if isinstance(mechanism, NoisyMax | TopK):
        p, q = _law(mechanism, ours).exp() + _SMOOTHING, _law(mechanism, theirs).exp() + _SMOOTHING
        return float((p / q).log().abs().max())
    if ours.ord == 1:
        return float((ours.value - theirs.value).abs().max()) / ours.bound
    return 0.0


# ---------------------------------------------------------------- planting


class _Adversary:
    """Builds the pairs against one release, from the map that it knows."""

    def __init__(self, probe: Probe, release: Release, slot: str, n: int, seed: int, t: int) -> None:
        self.sketch, self.n, self.ord = probe.sketch(slot), n, release.clipped.ord
        self.size = float(release.clipped.total(probe.round.bounds[slot]))  # of one record's share, after the clip
        self.replaced = probe.promise.adjacency is Adjacency.REPLACE_ONE
        mechanism = _inner(release.mechanism)
        self.k = 1
        if isinstance(mechanism, TopK):
            self.k = mechanism.k
        self.blank = Pair("", torch.zeros(n - 1, probe.space.d), torch.zeros(probe.space.d), None, probe.space, seed, t)
        self.generator = torch.Generator().manual_seed(seed)

    def pairs(self) -> list[Pair]:
        """Every kind of pair there is for this map and norm.

        | name | the n - 1 others | the record |
        |---|---|---|
        | random | different random vectors | a random vector |
        | generic | one random vector | a random vector |
        | sign flip | one random vector | a random vector, negated (replace-one) |
        | top singular | one random vector | the direction the map stretches most |
        | kernel | a vector the map does not see | the direction the map stretches most |
        | outlier | one random vector | a million times the clip bound |
        | axis | one random vector | moves one coordinate of the code |
        | tie | tie all coordinates | breaks the tie |
        | column, row | one random vector | the worst one of the map's l1 or l-infinity norm |
        """
        d, m = self.blank.d, self.sketch.m
        others, record, replacement = (self._unit(self._normal(d)) for _ in range(3))
        mixed = self._normal(self.n - 1, d)
        mixed *= 2 * self.size / torch.linalg.vector_norm(mixed, self.ord, dim=1, keepdim=True)
        mixed *= torch.rand(self.n - 1, 1, generator=self.generator, dtype=torch.float64)
        top = self._unit(self._top(record))
        code = torch.zeros(m, dtype=torch.float64)
        code[int(self.sketch.forward(record).abs().argmax())] = 1.0  # a coordinate that the map does reach
        pairs = [
            self._pair("random", mixed, record, replacement),
            self._pair("generic", others, record, replacement),
            self._pair("top singular", others, top),
            self._pair("outlier", others, _HUGE * record),
            self._pair("axis", others, self._unit(self._lift(code)) * _HUGE),
            self._tie(),
        ]
        if self.replaced:
            pairs.append(self._pair("sign flip", others, record))
        hidden = self._kernel(replacement)
        if hidden is not None:
            pairs.append(self._pair("kernel", self._unit(hidden), top))
        if self.ord == 1:  # the vectors that attain the norm of the map
            column = torch.zeros(d, dtype=torch.float64)
            column[int(self._matrix.abs().sum(0).argmax())] = self.size
            pairs.append(self._pair("column", self._unit(self._normal(d)), column))
        if self.ord == math.inf:
            signs = self._matrix[int(self._matrix.abs().sum(1).argmax())].sign()
            pairs.append(self._pair("row", self._unit(self._normal(d)), signs * self.size))
        return pairs

    def _tie(self) -> Pair:
        """Others that make coordinates equal, and a record that decides between them."""
        m = self.sketch.m
        tied, decided = m, self.k
        if self.ord != math.inf:
            tied = min(m, 2 * max(5, self.k))
            decided = (tied + 1) // 2
        level = torch.zeros(m, dtype=torch.float64)
        level[:tied] = 1.0
        breaker = -level
        breaker[:decided] = 1.0
        scale = self.size / float(torch.linalg.vector_norm(level, self.ord))
        return self._pair("tie", self._lift(level * scale), self._lift(breaker * scale))

    def _pair(self, name: str, common: Tensor, record: Tensor, replacement: Tensor | None = None) -> Pair:
        """A pair; where one record is replaced, by `replacement` or else by its negative."""
        if not self.replaced:
            replacement = None
        elif replacement is None:
            replacement = -record
        return replace(self.blank, name=name, common=common.expand(self.n - 1, -1), left=record, right=replacement)

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)

    def _unit(self, v: Tensor) -> Tensor:
        """The vector at the size of the clip."""
        return v * (self.size / max(float(torch.linalg.vector_norm(v, self.ord)), _TINY))

    # ------------------------------------------------------------ the map

    @cached_property
    def _matrix(self) -> Tensor:
        """Phi."""
        return self.sketch.dense()

    @cached_property
    def _inverse(self) -> Tensor:
        return torch.linalg.pinv(self._matrix @ self._matrix.T, hermitian=True, rtol=1e-11)

    def _lift(self, code: Tensor) -> Tensor:
        """The shortest vector with this code."""
        if self.sketch.tight:
            return self.sketch.pinv(code)
        return self.sketch.adjoint(self._inverse @ code)

    def _top(self, start: Tensor) -> Tensor:
        """A right singular vector of the largest singular value."""
        if self.sketch.tight:
            return self._lift(self.sketch.forward(start))
        return self.sketch.adjoint(torch.linalg.eigh(self._matrix @ self._matrix.T)[1][:, -1])

    def _kernel(self, v: Tensor) -> Tensor | None:
        """A vector with code 0, or None where the map sees everything."""
        size = v.norm()
        for _ in range(3):  # each pass takes away the rounding of the one before
            v = v - self._lift(self.sketch.forward(v))
        if float(v.norm() / size) <= 1e-6:
            return None
        return v
