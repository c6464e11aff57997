"""The small frozen parts of a pipeline: samplers, sources of rows, updates, averages and stop rules.

Updates, averages and stop rules see released values only: they are post-processing.  What they remember is a `Memo`,
which is kept with the state of the run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from operator import add
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from isthmus.base import validate
from isthmus.base.randomness import generator, key
from isthmus.base.space import Space
from isthmus.core.wire import Memo, StageOutput, State
from isthmus.gradients import Rows
from isthmus.gradients.rows import difference
from isthmus.lifts import Lifted, compressed_gradient_mapping
from isthmus.penalties import NoPenalty, Penalty
from isthmus.privacy.event_json import DpEvent
from isthmus.privacy.sampling import FullBatch, Keyring
from isthmus.problems.queries import Query
from isthmus.sets import ConvexSet, Whole

if TYPE_CHECKING:
    from isthmus.core.pipeline import Round

Full = FullBatch
"""Every record, every round: the one sampler that private and other runs share."""
_UNSAID: dict[str, Any] = {
    # problems: whether they draw and keep nothing, which ranges of records they look at together, their full gradient
    **{"linear": False, "spans": None, "gradient": None, "penalty": None, "dtype": torch.float64, "elsewhere": False},
    # what was read off their data, what a promise rests on with them, what their passes keep; how that is forgotten
    **{"read_off": (), "assumptions": (), "kept": (), "forget": lambda: None},
    # sources, samplers, encoders and lifts; line searches and certified stops hold a loss; sets
    **{"own_records": False, "whole": False, "expected": None, "data": None, "reads_w": True, "remember": None},
    **{"loss": None, "project": None, "dim": None},
}
"""What is taken where a part, which anybody may have written, does not say it of itself."""


def said(part: object, name: str) -> Any:
    """What a problem or another part says of itself under a name."""
    return getattr(part, name, _UNSAID[name])


# ---------------------------------------------------------------- samplers


@dataclass(frozen=True)
class _Batches:
    """Which records a round looks at, from public randomness: for runs that are not private.

    Their sum is divided by a public constant, never by the size of the drawn batch.
    """

    batch_size: int | Callable[[int], int]

    def __post_init__(self) -> None:
        self.size(0)

    def size(self, t: int) -> int:
        """The batch size of round t."""
        size = self.batch_size(t) if callable(self.batch_size) else self.batch_size
        validate.positive_int(batch_size=size)
        return size

    def divisor(self, n: int, t: int = 0) -> float:
        """The batch size."""
        return float(self.size(t))

    def rounds(self, n: int) -> int:
        """ceil(n / first batch size)."""
        return -(-n // self.size(0))

    def event(self, event: DpEvent) -> NoReturn:
        """Refused: batches from a public seed hide nobody, and may hold a record more than once."""
        remedy = "use Poisson, FixedSize or Full: a private stage draws with these"
        validate.refuse("sampler", type(self).__name__, remedy)

    def describe(self) -> str:
        """Words for a privacy statement."""
        return "batches from a public seed"


@dataclass(frozen=True)
class Uniform(_Batches):
    """`batch_size` records drawn independently and uniformly: an unbiased gradient oracle."""

    def draw(self, n: int, t: int, keys: Keyring, client: str) -> Tensor:
        """Indices, with repetition."""
        return torch.from_numpy(generator(keys.seed, t, "uniform", client).integers(0, n, self.size(t)))


@dataclass(frozen=True)
class WithoutReplacement(_Batches):
    """A fresh subset of `batch_size` different records each round."""

    def draw(self, n: int, t: int, keys: Keyring, client: str) -> Tensor:
        """Indices, all different."""
        size = self.size(t)
        validate.at_most(n, "the number of records", batch_size=size)
        draws = generator(keys.seed, t, "subset", client).choice(n, size, replace=False, shuffle=False)
        return torch.from_numpy(draws)


@dataclass(frozen=True)
class Shuffle(_Batches):
    """Batches of one size from a new permutation of the records every pass; a batch may reach into the next pass.

    >>> from isthmus.core.wire import Keys
    >>> two = [Shuffle(3).draw(4, t, Keys(0), "0") for t in range(4)]
    >>> sorted(torch.cat(two)[:4].tolist())
    [0, 1, 2, 3]
    """

    def draw(self, n: int, t: int, keys: Keyring, client: str) -> Tensor:
        """The next `batch_size` entries of the endless stream of permutations."""
        start, stop = t * self.size(0), (t + 1) * self.size(0)
        pieces = []
        for turn in range(start // n, (stop - 1) // n + 1):
            order = _permutation(key(keys.seed, turn, "shuffle", client), n)
            pieces.append(order[max(0, start - turn * n) : stop - turn * n])
        return torch.cat(pieces)


@lru_cache(maxsize=8)
def _permutation(seed: int, n: int) -> Tensor:
    return torch.from_numpy(generator(seed).permutation(n))


# ---------------------------------------------------------------- sources of rows

Chosen = Tensor | slice | None
"""Drawn records: their positions, a range of them, or all."""


class Records(Protocol):
    """Who holds records: how many, and a vector of each at a point.

    A problem may say by `spans()` which records it looks at together; `rows` then takes ranges (`slice`) too.
    """

    @property
    def n(self) -> int: ...
    def rows(self, w: Tensor, index: Any = None) -> Rows: ...


class Problem(Records, Protocol):
    """What `minimize` takes: the rows of its records, and the objective; what else it may say is asked where needed."""

    @property
    def space(self) -> Space: ...
    def loss(self, w: Tensor) -> float: ...


class RowSource(Protocol):
    """Per-example vectors of the drawn records."""

    def __call__(self, problem: Any, w: Tensor, index: Chosen, held: Mapping[str, StageOutput]) -> Rows | Query: ...


def current(problem: Records, w: Tensor, index: Chosen, held: Mapping[str, StageOutput]) -> Rows:
    """g_i(w): the gradients at the iterate."""
    return problem.rows(w, index)


current.own_records = True  # type: ignore[attr-defined]  # a vector of one record, whatever the others are


@dataclass(frozen=True)
class AgainstAnchor:
    """g_i(w) - g_i(anchor), with the anchor where a stage (released every K rounds) last looked: variance reduction."""

    stage: str
    own_records: ClassVar[bool] = True

    def __call__(self, problem: Records, w: Tensor, index: Chosen, held: Mapping[str, StageOutput]) -> Rows:
        """The differences of the drawn records."""
        anchor = held[self.stage].w
        assert anchor is not None
        return difference(problem.rows(w, index), problem.rows(anchor, index))


@dataclass(frozen=True, eq=False)
class FixedRows:
    """A problem that is nothing but its rows: scores, figures of test rows, whatever is to be added up once.

    >>> from isthmus.gradients import Dense
    >>> FixedRows(Dense(torch.ones(3, 2))).n
    3
    """

    vectors: Rows
    linear: ClassVar[bool] = True

    @property
    def n(self) -> int:
        """How many records."""
        return self.vectors.n

    @property
    def space(self) -> Space:
        """That of a row."""
        return Space.flat(self.vectors.d)

    def rows(self, w: Tensor, index: Tensor | None = None) -> Rows:
        """The row of each record, whatever the point."""
        if index is None:
            return self.vectors
        return self.vectors.mixed(index[:, None], torch.ones(len(index), 1))


# ---------------------------------------------------------------- updates


class Update(Protocol):
    """One step of the iterate, from the lifted directions of a round."""

    def init(self, w: Tensor) -> Memo:
        """The state before the first round: here nothing is remembered."""
        return {}

    def apply(self, memo: Memo, w: Tensor, lifted: Sequence[Lifted], eta: float | Tensor) -> tuple[Memo, Tensor]:
        """The new state and the new iterate."""
        ...


def _direction_of(lifted: Sequence[Lifted]) -> Tensor:
    """The sum of the directions of all releases (a subspace and its residual, an anchor and a difference)."""
    return reduce(add, [each.direction for each in lifted])


@dataclass(frozen=True)
class Step(Update):
    """w+ = P_C(prox_{eta C penalty}(w - eta (direction + momentum))), C = I but where coordinates are drawn.

    A lift that already found a point of C is taken at its word: the point is kept exactly, zeros and all.  One that
    moves drawn coordinates by steps eta / p_j says so (`Lifted.stretch`), and the proximal map takes those steps too:
    of coordinate descent it acts on the drawn coordinates alone; several releases together move them all.

    >>> Step().apply({}, torch.ones(2), [Lifted(torch.ones(2))], 0.5)[1]
    tensor([0.5000, 0.5000])
    """

    constraint: ConvexSet = field(default_factory=Whole)
    penalty: Penalty = field(default_factory=NoPenalty)
    momentum: float = 0.0

    def __post_init__(self) -> None:
        validate.check(0 <= self.momentum < 1, "momentum", self.momentum, "give a number of at least 0 and below 1")

    def init(self, w: Tensor) -> Memo:
        """A zero velocity when there is momentum."""
        return {"velocity": torch.zeros_like(w)} if self.momentum else {}

    def apply(self, memo: Memo, w: Tensor, lifted: Sequence[Lifted], eta: float | Tensor) -> tuple[Memo, Tensor]:
        """The projected (proximal) step."""
        alone, plain = len(lifted) == 1 and not self.momentum, isinstance(self.penalty, NoPenalty)
        if alone and lifted[0].point is not None:
            point = lifted[0].point
            if plain:
                return memo, point
        else:
            direction = _direction_of(lifted)
            if self.momentum:
                direction = memo["velocity"].mul(self.momentum).add_(direction)
                memo = {"velocity": direction}
            point = w - eta * direction
        if not plain:
            stretch = lifted[0].stretch if alone else 1.0
            point = self.penalty.prox(point, eta * stretch)
        if isinstance(self.constraint, Whole):  # the identity, of points that have not diverged
            if not math.isfinite(float(point.sum())):
                validate.finite(x=point)
            return memo, point
        return memo, self.constraint.project(point)


@dataclass(frozen=True)
class Shifted(Update):
    """The step of senders with shifts (DIANA): direction = H + what was lifted, and H moves by `rate` of that.

    H is the mean of all senders' shifts, which the receiver knows without being told: they move by what was sent.

    >>> update, one = Shifted(Step(), 0.5), torch.ones(1)
    >>> memo, w = update.apply(update.init(one), one, [Lifted(one)], 0.1)
    >>> w, memo["shift"]
    (tensor([0.9000]), tensor([0.5000]))
    """

    inner: Step
    rate: float

    def __post_init__(self) -> None:
        validate.probability(rate=self.rate)

    def init(self, w: Tensor) -> Memo:
        """No shift."""
        return {"shift": torch.zeros_like(w), "inner": self.inner.init(w)}

    def apply(self, memo: Memo, w: Tensor, lifted: Sequence[Lifted], eta: float | Tensor) -> tuple[Memo, Tensor]:
        """The step of the inner update along the shifted direction."""
        news = _direction_of(lifted)
        inner, point = self.inner.apply(memo["inner"], w, [Lifted(memo["shift"] + news)], eta)
        return {"shift": memo["shift"] + self.rate * news, "inner": inner}, point


@dataclass(frozen=True)
class Mirror(Update):
    """Entropic mirror descent on the simplex of a radius: w+ = argmin eta <g, u> + sum_j u_j log(u_j / w_j).

        w+_j = radius w_j exp(-eta g_j) / sum_i w_i exp(-eta g_i)

    Its rate depends on the largest entry of a gradient and on log d, where projected steps have its length and sqrt(d).

    >>> Mirror().apply({}, torch.full((2,), 0.5), [Lifted(torch.tensor([0.0, 1.0]))], 1.0)[1]
    tensor([0.7311, 0.2689])
    """

    radius: float = 1.0

    def __post_init__(self) -> None:
        validate.positive(radius=self.radius)

    def apply(self, memo: Memo, w: Tensor, lifted: Sequence[Lifted], eta: float | Tensor) -> tuple[Memo, Tensor]:
        """The multiplicative step; a coordinate that is 0 stays there."""
        return memo, self.radius * torch.softmax(w.log() - eta * _direction_of(lifted), 0)


@dataclass(frozen=True, eq=False)
class Preconditioned(Update):
    """w+ = w - eta (A direction + S (w - w_0)), with public matrices: an inverse Hessian that was paid for, say.

    pull, towards  S and w_0: directions that A leaves to noise go back to w_0; None: none do

    >>> Preconditioned(torch.eye(2) / 2).apply({}, torch.ones(2), [Lifted(torch.ones(2))], 1.0)[1]
    tensor([0.5000, 0.5000])
    """

    matrix: Tensor
    pull: Tensor | None = None
    towards: Tensor | None = None

    def apply(self, memo: Memo, w: Tensor, lifted: Sequence[Lifted], eta: float | Tensor) -> tuple[Memo, Tensor]:
        """The preconditioned step."""
        direction = self.matrix.to(w) @ _direction_of(lifted)
        if self.pull is not None:
            apart = w if self.towards is None else w - self.towards.to(w)
            direction = direction + self.pull.to(w) @ apart
        return memo, w - eta * direction


@dataclass(frozen=True)
class Delegate(Update):
    """Hands the directions to an optimiser of somebody else, as gradients of the parameters that it keeps."""

    take: Callable[[Sequence[Lifted]], None]

    def apply(self, memo: Memo, w: Tensor, lifted: Sequence[Lifted], eta: float | Tensor) -> tuple[Memo, Tensor]:
        """The optimiser moves its parameters."""
        self.take(lifted)
        return memo, w


@dataclass(frozen=True)
class FrankWolfe(Update):
    """w+ = w + gamma (s - w) with s = argmin over C of <g, s>: convex combinations of points of C, no projection.

    With `g = Phi' y` the same s gives the minimiser `Phi s` of `<y, .>` over `Phi C`: compression needs no lift.

    rule    "open": gamma is the pipeline's step, 2/(t+2) in the papers;
            "short": gamma = gap / (mu ||s - w||^2), capped;
            "line": the exact minimiser of the loss on the segment
    away    also consider moving away from the worst point used so far, which may be dropped again
    error   s may be this times gamma short of the minimum (`ConvexSet.lmo_near`): an approximate linear oracle

    The memo keeps the gap `<g, w - s>` of the last round, at the point the round started from, and what s may be short
    of the minimum is added: max over C of <g, w - u> is never more.

    >>> from isthmus.sets import Simplex
    >>> memo, w = FrankWolfe(Simplex()).apply({}, torch.ones(2) / 2, [Lifted(torch.tensor([1.0, 0.0]))], 0.5)
    >>> w.tolist(), memo["gap"]
    ([0.25, 0.75], 0.5)
    """

    constraint: ConvexSet
    rule: str = "open"
    smoothness: float | None = None
    loss: Callable[[Tensor], float] | None = None
    away: bool = False
    error: float = 0.0

    def __post_init__(self) -> None:
        validate.one_of(("open", "short", "line"), rule=self.rule)
        validate.non_negative(error=self.error)
        self.constraint.require("lmo")
        if self.rule == "short":
            validate.positive(smoothness=self.smoothness)  # type: ignore[arg-type]
        remedy = "give the loss, which a line search needs; it is not for private runs"
        validate.check(self.rule != "line" or self.loss is not None, "loss", self.loss, remedy)

    def init(self, w: Tensor) -> Memo:
        """With away steps, the points in use and their weights: at first the start itself."""
        if not self.away:
            return {}
        return {"atoms": w[None].clone(), "weights": torch.ones(1, dtype=w.dtype)}

    def apply(self, memo: Memo, w: Tensor, lifted: Sequence[Lifted], eta: float | Tensor) -> tuple[Memo, Tensor]:
        """One step towards a vertex, or away from one."""
        g = _direction_of(lifted)
        s, short = lifted[0].point, 0.0  # a lift that chose the vertex itself is taken at its word
        if s is None:
            s, short = self.constraint.lmo_near(g, self.error * float(eta))
        s = s.to(w)
        gap = float(g @ (w - s))
        if not self.away:
            gamma = self._length(g, w, s - w, 1.0, eta)
            return {"gap": gap + short}, torch.lerp(w, s, gamma)
        atoms, weights = memo["atoms"], memo["weights"]
        worst = int((atoms @ g).argmax())
        share = float(weights[worst])
        if float(g @ (atoms[worst] - w)) <= gap or share >= 1:
            gamma = self._length(g, w, s - w, 1.0, eta)
            weights = weights * (1 - gamma)
            same = (atoms == s).all(1).nonzero()
            if len(same):
                weights[same[0]] += gamma
            else:
                atoms, weights = torch.cat([atoms, s[None]]), torch.cat([weights, weights.new_tensor([gamma])])
        else:
            gamma = self._length(g, w, w - atoms[worst], share / (1 - share), eta)
            weights = weights * (1 + gamma)
            weights[worst] -= gamma
        keep = weights > 1e-12
        atoms, weights = atoms[keep], weights[keep] / weights[keep].sum()
        return {"gap": gap + short, "atoms": atoms, "weights": weights}, weights @ atoms

    def _length(self, g: Tensor, w: Tensor, move: Tensor, longest: float, eta: float | Tensor) -> float:
        """gamma in [0, longest] by the rule."""
        if self.rule == "open":
            return min(float(eta), longest)
        if self.rule == "short":
            size = float(move @ move) * (self.smoothness or 1.0)
            return min(max(-float(g @ move) / size, 0.0), longest) if size > 0 else 0.0

        def along(gamma: float) -> float:
            assert self.loss is not None
            return self.loss(w + gamma * move)

        best = minimize_scalar(along, bounds=(0.0, longest), method="bounded")
        return min((0.0, longest, float(best.x)), key=along)


# ---------------------------------------------------------------- averages


class Average(Protocol):
    """What a run returns beside its last iterate; one of them also replaces the iterate.

    It is given the start w_1, and after round t the point w_{t+1} with the step eta_t that led there.
    """

    def init(self, w: Tensor, seed: int) -> Memo:
        """The state before the first round: here nothing is remembered."""
        return {}

    def observe(self, memo: Memo, w: Tensor, eta: float | Tensor, t: int) -> tuple[Memo, Tensor]:
        """The new state, and the iterate to go on from."""
        return memo, w

    def output(self, memo: Memo, w: Tensor) -> Tensor:
        """The averaged point: here the iterate."""
        return w


@dataclass(frozen=True)
class Last(Average):
    """The last iterate."""


@dataclass(frozen=True)
class Weighted(Average):
    """sum_t eta_t w_t / sum_t eta_t: eta_t is the step that was taken FROM w_t, so the start counts and the last
    point, which no step was taken from, does not (a per-coordinate step counts by its mean).

    >>> memo = Weighted().init(torch.tensor([1.0]), 0)
    >>> for t, (w, eta) in enumerate([(4.0, 1.0), (9.0, 2.0)]):
    ...     memo, _ = Weighted().observe(memo, torch.tensor([w]), eta, t)
    >>> Weighted().output(memo, torch.zeros(1))
    tensor([3.])
    """

    def init(self, w: Tensor, seed: int) -> Memo:
        """An empty mean, and the point that the first step is taken from."""
        return {"mean": w.clone(), "weight": 0.0, "point": w}

    def observe(self, memo: Memo, w: Tensor, eta: float | Tensor, t: int) -> tuple[Memo, Tensor]:
        """The running weighted mean."""
        if isinstance(eta, Tensor):
            eta = float(eta.mean())
        weight, mean = memo["weight"] + eta, memo["point"]
        if weight > 0:
            mean = torch.lerp(memo["mean"], mean, eta / weight)
        return {"mean": mean, "weight": weight, "point": w}, w

    def output(self, memo: Memo, w: Tensor) -> Tensor:
        """The mean, or the iterate when nothing was averaged yet."""
        return memo["mean"] if memo["weight"] > 0 else w


@dataclass(frozen=True)
class UniformRandom(Average):
    """One of the iterates w_1..w_T, the start among them, each with the same probability (a reservoir of one).

    Which one follows from the run's public seed: equal seeds choose equal rounds.
    """

    def init(self, w: Tensor, seed: int) -> Memo:
        """Nothing chosen yet."""
        return {"choice": w.clone(), "seed": seed, "point": w}

    def observe(self, memo: Memo, w: Tensor, eta: float | Tensor, t: int) -> tuple[Memo, Tensor]:
        """Take w_t with probability 1/(t+1)."""
        if generator(memo["seed"], t, "reservoir").random() * (t + 1) < 1:
            memo = {**memo, "choice": memo["point"].clone()}
        return {**memo, "point": w}, w

    def output(self, memo: Memo, w: Tensor) -> Tensor:
        """The chosen iterate."""
        return memo["choice"]  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Tail(Average):
    """The mean of the points that the rounds from `start` on arrived at."""

    start: int = 0

    def init(self, w: Tensor, seed: int) -> Memo:
        """An empty mean."""
        return {"mean": w.clone(), "count": 0}

    def observe(self, memo: Memo, w: Tensor, eta: float | Tensor, t: int) -> tuple[Memo, Tensor]:
        """The running mean."""
        if t < self.start:
            return memo, w
        count = memo["count"] + 1
        return {"mean": torch.lerp(memo["mean"], w, 1 / count), "count": count}, w

    def output(self, memo: Memo, w: Tensor) -> Tensor:
        """The mean, or the iterate when nothing was averaged yet."""
        return memo["mean"] if memo["count"] else w


@dataclass(frozen=True)
class Suffix(Average):
    """The mean of the last `count` points, however long the run turns out to be: it keeps them, count x d numbers.

    Section 2.2 of paper 001 averages the last 10.

    >>> memo = Suffix(2).init(torch.zeros(1), 0)
    >>> for t in range(5):
    ...     memo, _ = Suffix(2).observe(memo, torch.tensor([float(t)]), 1.0, t)
    >>> Suffix(2).output(memo, torch.zeros(1))
    tensor([3.5000])
    """

    count: int

    def __post_init__(self) -> None:
        validate.positive_int(count=self.count)

    def init(self, w: Tensor, seed: int) -> Memo:
        """No points."""
        return {"points": ()}

    def observe(self, memo: Memo, w: Tensor, eta: float | Tensor, t: int) -> tuple[Memo, Tensor]:
        """The last points."""
        return {"points": (*memo["points"], w)[-self.count :]}, w

    def output(self, memo: Memo, w: Tensor) -> Tensor:
        """Their mean."""
        return torch.stack(memo["points"]).mean(0) if memo["points"] else w


@dataclass(frozen=True)
class Restart(Average):
    """Every K rounds the iterate is replaced by the mean of the last K: inner loops restarted at their average.

    The output is the mean of the last inner loop that is at least half done; before that, of what there is.

    >>> memo = Restart(4).init(torch.zeros(1), 0)
    >>> for t in range(3):
    ...     memo, _ = Restart(4).observe(memo, torch.tensor([float(t)]), 1.0, t)
    >>> Restart(4).output(memo, torch.zeros(1))
    tensor([1.])
    """

    rounds: int

    def __post_init__(self) -> None:
        validate.positive_int(rounds=self.rounds)

    def init(self, w: Tensor, seed: int) -> Memo:
        """An empty inner mean."""
        return {"mean": w.clone(), "output": w.clone()}

    def observe(self, memo: Memo, w: Tensor, eta: float | Tensor, t: int) -> tuple[Memo, Tensor]:
        """The mean of this inner loop; at its end, the iterate."""
        position = t % self.rounds + 1
        mean = torch.lerp(memo["mean"], w, 1 / position)
        memo = {**memo, "mean": mean}
        if 2 * position >= self.rounds or t < self.rounds:
            memo["output"] = mean
        return memo, mean if position == self.rounds else w

    def output(self, memo: Memo, w: Tensor) -> Tensor:
        """The average of the last inner loop that counts."""
        return memo["output"]  # type: ignore[no-any-return]


def average_of(output: str) -> Average:
    """The average behind the `output` of a recipe: "last", "average", "random" or, for a number K, "last K".

    >>> average_of("last 10")
    Suffix(count=10)
    """
    named: dict[str, Average] = {"last": Weighted(), "average": Weighted(), "random": UniformRandom()}
    last = re.fullmatch("last 0*([1-9][0-9]*)", str(output))
    if last is not None:
        return Suffix(int(last[1]))
    if output not in named:
        validate.refuse("output", output, f"choose one of {[*named, 'last K']}, such as 'last 10'")
    return named[output]


# ---------------------------------------------------------------- stop rules


class Threshold:
    """A stop rule: it returns the point before the step that fired it, and checks its promise afterwards."""

    constraint: ConvexSet

    def __post_init__(self) -> None:
        (name, value), *_ = vars(self).items()
        validate.positive(**{name: value})

    def certify(self, gradient: Tensor, x: Tensor, round: Round | None = None) -> dict[str, float]:
        """The true first-order gap and the unit-step gradient mapping, from one full gradient."""
        return first_order(gradient, x, self.constraint)


def _moved(round: Round, move: Tensor, rescale: bool) -> float:
    """The length of a move; under compression it is about sqrt(m/d) of what the full gradient would make."""
    length = float(torch.linalg.vector_norm(move))
    if rescale:
        length *= math.sqrt(round.space.d / min(sketch.m for sketch in round.sketches.values()))
    return length


@dataclass(frozen=True)
class FirstOrderStationary(Threshold):
    """Stop at the first w_t whose round moves it by at most `threshold`: an alpha-FOSP of the theorem.

    Under compression a round moves the iterate by about sqrt(m/d) of what the full gradient would, and the
    rule as printed fires early; the move is therefore multiplied by sqrt(d/m_t) unless `rescale=False`
    (for an m_t that meets the theorem).
    """

    threshold: float
    constraint: ConvexSet
    rescale: bool = True

    def __call__(self, round: Round, old: State, new: State) -> bool:
        """Whether w_t is the point."""
        return _moved(round, old.w - new.w, self.rescale) <= self.threshold


@dataclass(frozen=True)
class GapBelow(Threshold):
    """Stop at the first w_t whose (compressed) Frank-Wolfe gap is at most alpha.

    Where the full `gradient` may be asked for (runs that are not private), the rule only fires when the true gap
    is at most alpha too: what it returns is an alpha-FOSP.
    """

    alpha: float
    constraint: ConvexSet
    gradient: Callable[[Tensor], Tensor] | None = None

    def __call__(self, round: Round, old: State, new: State) -> bool:
        """Whether w_t is the point; the update has kept its compressed gap."""
        if new.update["gap"] > self.alpha:
            return False
        return self.gradient is None or self.certify(self.gradient(old.w), old.w)["gap"] <= self.alpha


@dataclass(frozen=True)
class MappingBelow(Threshold):
    """Stop at the first w_t with a compressed gradient mapping (w_t - w_{t+1}) / eta of at most alpha: 001, Def. 8.

    The rule sees the gradient that the round released.  The certificate has what it promised of the full gradient:
    `compressed` (Definition 8 with the map and the step of the round that fired), `mapping` (without compression) and
    the first-order `gap`.  As `FirstOrderStationary` it multiplies by sqrt(d/m_t), or fires early; the definition as
    printed is `rescale=False`.
    """

    alpha: float
    constraint: ConvexSet
    rescale: bool = True

    def __call__(self, round: Round, old: State, new: State) -> bool:
        """Whether w_t is the point."""
        return _moved(round, (old.w - new.w) / round.eta, self.rescale) <= self.alpha

    def certify(self, gradient: Tensor, x: Tensor, round: Round | None = None) -> dict[str, float]:
        """The compressed gradient mapping, the plain one at the same step, and the gap, from one full gradient."""
        certificate = first_order(gradient, x, self.constraint)
        if round is None:
            return certificate
        eta, sketch = float(round.eta), next(iter(round.sketches.values()))
        compressed = compressed_gradient_mapping(self.constraint, sketch, sketch.forward(gradient), x, eta)
        plain = (x - self.constraint.project(x - eta * gradient)) / eta
        certificate["compressed"] = _moved(round, compressed, self.rescale)
        certificate["mapping"] = float(torch.linalg.vector_norm(plain))
        return dict(sorted(certificate.items()))


def first_order(g: Tensor, x: Tensor, constraint: ConvexSet) -> dict[str, float]:
    """`gap` = max over u in C of <grad, x - u> (x is an alpha-FOSP when it is at most alpha) and
    `mapping` = ||x - P_C(x - grad)||.

    >>> from isthmus.sets import L2Ball
    >>> first_order(torch.tensor([-1.0, 0.0]), torch.zeros(2), L2Ball(1.0))
    {'gap': 1.0, 'mapping': 1.0}
    """
    certificate = {"mapping": float(torch.linalg.vector_norm(x - constraint.project(x - g)))}
    if constraint.can("support"):
        certificate["gap"] = float(g @ x) + float(constraint.support(-g))
    return dict(sorted(certificate.items()))
