"""The round: stages, releases, remote sums, memories, refusals."""

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import dp_accounting
import numpy as np
import pytest
import torch
from grids import pairs
from refusals import refuses
from torch import Tensor

import isthmus
from isthmus import Coordinates, CountSketch, GaussianSketch, Identity, LeastSquares, Logistic, Sketch, minimize
from isthmus.base.space import Space
from isthmus.core import pipeline as pipeline_file
from isthmus.core.pipeline import Pipeline, Release, Stage, contribute, measure
from isthmus.core.wire import Keys, Message, Wire
from isthmus.gradients import Dense
from isthmus.gradients.rounding import KAPPA
from isthmus.lifts import adjoint, discard
from isthmus.parts import AgainstAnchor, Client, Clients, Full, Restart, Shuffle, Step, Uniform
from isthmus.privacy import Adjacency, Clip, Gaussian, Ledger, Mechanism, SeededSource
from isthmus.privacy.clips import ClippedSum
from isthmus.sketches.compose import IdentityMap
from isthmus.theory.printed import OfTheSum

LR = 0.2


def problem(n: int = 40, d: int = 12, seed: int = 0) -> LeastSquares:
    rng = np.random.default_rng(seed)
    return LeastSquares(rng.standard_normal((n, d)) / 4, rng.standard_normal(n))


def split(objective: LeastSquares, parts: int) -> list[LeastSquares]:
    return [LeastSquares(objective.X[i::parts], objective.y[i::parts]) for i in range(parts)]


def constant(t: int) -> float:
    return LR


PROMISE = pipeline_file.Promise(1.0, 1e-5)
WIDE = replace(PROMISE, epsilon=1e6)


@dataclass(frozen=True)
class Shift(Mechanism):
    """A mechanism for tests: moves the sum by a fixed multiple of its bound."""

    multiple: float

    def release(self, bounded: ClippedSum, noise: Any) -> Tensor:
        return bounded.value + self.multiple * bounded.bound

    def event(self, adjacency: object = None) -> Any:
        return dp_accounting.GaussianDpEvent(1.0)


@dataclass
class Book:
    """A ledger for tests: remembers what was charged, and refuses past a limit."""

    limit: int = 1000
    charged: list[tuple[str, int]] = field(default_factory=list)

    def charge(self, stage: str, t: int) -> None:
        if len(self.charged) == self.limit:
            raise RuntimeError("the budget is spent")
        self.charged.append((stage, t))


def test_gd_is_gd() -> None:
    objective, w = problem(), torch.zeros(12, dtype=torch.float64)
    result = minimize(objective, Pipeline([Stage(Full())], constant), steps=25)
    for _ in range(25):
        w = w - LR * objective.gradient(w)
    torch.testing.assert_close(result.x, w, rtol=0, atol=1e-14)
    assert (result.dims, result.bytes, result.status) == (25 * 12, 25 * 12 * 8, "finished")


def test_physical_batches_change_nothing() -> None:
    pipe = Pipeline([Stage(Shuffle(16), [Release(encode=CountSketch(5), clip=Clip(0.1))])], constant)
    result = minimize(problem(), pipe, steps=20)
    many = minimize(problem(), pipe, steps=20, physical_batch_size=3)
    torch.testing.assert_close(result.x, many.x, rtol=0, atol=1e-14)


def test_remote_sums_equal_one_process() -> None:
    """Shards that add their sums are the whole data; shards of one size may also average their means."""
    pipe = Pipeline([Stage(Full(), [Release(encode=CountSketch(5), clip=Clip(0.1))])], constant)
    whole = minimize(problem(), pipe, steps=15)
    for uniform in (False, True):
        clients = Clients(split(problem(), 4), uniform=uniform)
        apart = minimize(problem(), pipe, steps=15, clients=clients)
        torch.testing.assert_close(whole.x, apart.x, rtol=0, atol=1e-14)
        assert apart.dims == 4 * whole.dims
    uneven = [LeastSquares(problem().X[:7], problem().y[:7]), LeastSquares(problem().X[7:], problem().y[7:])]
    summed = minimize(problem(), pipe, steps=15, clients=Clients(uneven))
    torch.testing.assert_close(whole.x, summed.x, rtol=0, atol=1e-14)


def test_clients_drawn_with_replacement_are_unbiased_and_draw_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int]] = []

    def contribute(round: Any, stage: Any, client: Any, *_: Any) -> Message:
        seen.append((client.role, client.visit))
        return Message({"g": ClippedSum(torch.tensor([float(client.name)], dtype=torch.float64), 2, 1.0)}, 1.0)

    monkeypatch.setattr(pipeline_file, "contribute", contribute)
    clients, context = Clients([0, 1, 2, 3], per_round=3, uniform=True), SimpleNamespace(keys=None, physical=None)
    sums = (clients.collect(SimpleNamespace(t=t, seed=0), None, context) for t in range(4000))
    means = [float(m.values["g"].value / m.divisor) for m in sums]
    assert abs(np.mean(means) - 1.5) < 4 * np.sqrt(1.25 / 3 / 4000)
    assert any(visit == 1 for _, visit in seen) and len({role for role, _ in seen}) > 4


def test_variance_reduction_is_two_stages() -> None:
    """An anchor every K rounds plus differences against it, restarted at the inner average, by hand."""
    rounds, objective = 4, problem()
    pipe = Pipeline(
        [
            Stage(Full(), [Release("anchor")], "anchor", every=rounds),
            Stage(Uniform(6), [Release("difference")], "inner", source=AgainstAnchor("anchor")),
        ],
        constant,
        average=Restart(rounds),
    )
    result = minimize(objective, pipe, steps=12, seed=3)
    w = torch.zeros(12, dtype=torch.float64)
    for t in range(12):
        if t % rounds == 0:
            anchor, full, inner = w, objective.gradient(w), []
        index = Uniform(6).draw(40, t, Keys(3), "0")
        g = (objective.rows(w, index).dense() - objective.rows(anchor, index).dense()).sum(0) / 6
        w = w - LR * (full + g)
        inner.append(w)
        w = torch.stack(inner).mean(0) if t % rounds == rounds - 1 else w
    torch.testing.assert_close(result.x, w, rtol=0, atol=1e-12)
    torch.testing.assert_close(result.average, w, rtol=0, atol=1e-12)
    assert result.dims == 12 * 12 + 3 * 12


def test_error_feedback_keeps_what_the_sketch_lost() -> None:
    objective, encode = problem(), CountSketch(4)
    rule = lambda t: LR / (1 + 0.1 * t)  # noqa: E731
    pipe = Pipeline([Stage(Full(), [Release(encode=encode)])], rule, wire=Wire(feedback=True))
    result = minimize(objective, pipe, steps=30, seed=1)
    w, memory = torch.zeros(12, dtype=torch.float64), torch.zeros(12, dtype=torch.float64)
    for t in range(30):
        phi = encode.draw(12, seed=1, t=t).dense()
        moved = memory + rule(t) * objective.gradient(w)
        sent = torch.linalg.pinv(phi) @ (phi @ moved)
        w, memory = w - sent, moved - sent
    torch.testing.assert_close(result.x, w, rtol=0, atol=1e-12)
    assert result.dims == 30 * 4


@dataclass(frozen=True)
class Halves:
    """A real codec for tests: stochastic rounding to multiples of a grid, one byte a number."""

    grid: float = 0.25

    def encode(self, v: Tensor, seed: int) -> bytes:
        dither = torch.from_numpy(np.random.default_rng(seed).random(len(v)))
        return (v / self.grid + dither).floor().clamp(-128, 127).to(torch.int8).numpy().tobytes()

    def decode(self, data: bytes, like: Tensor) -> Tensor:
        return torch.frombuffer(bytearray(data), dtype=torch.int8).to(like) * self.grid

    def chi(self, m: int) -> float:
        return 0.1


@pytest.mark.parametrize("feedback", [False, True])
def test_codecs_count_real_bytes(feedback: bool) -> None:
    coded, plain = (pipe(Release(encode=CountSketch(6)), wire=Wire(codec, feedback)) for codec in (Halves(), None))
    result, exact = (minimize(problem(), each, steps=60) for each in (coded, plain))
    assert (result.bytes, exact.bytes) == (60 * 6, 60 * 6 * 8)
    assert abs(result.history[-1]["loss"] - exact.history[-1]["loss"]) < 0.02
    assert result.history[-1]["loss"] < result.history[0]["loss"]


def test_a_mechanism_needs_a_clip_and_a_ledger_that_is_charged_first() -> None:
    noisy = Release(clip=Clip(1.0), mechanism=Shift(0.5))
    pipe = Pipeline([Stage(Full(), [noisy])], constant, promise=PROMISE)
    assert pipe.private
    with pytest.raises(isthmus.privacy.BudgetExceeded):  # a ledger of the promise's size is the default
        minimize(problem(), pipe, steps=1)
    book = Book(limit=3)
    with pytest.raises(isthmus.InvalidInput, match=r"promise\.epsilon=1\.0.*rounds cost"):  # whatever the ledger holds
        minimize(problem(), pipe, steps=5, ledger=book)
    assert book.charged == []
    with pytest.raises(RuntimeError, match="budget is spent"):
        minimize(problem(), replace(pipe, promise=WIDE), steps=5, ledger=book)
    assert book.charged == [("main", 0), ("main", 1), ("main", 2)]


def test_noise_scales_with_the_bound_after_the_sketch() -> None:
    """Clip after: the bound is C.  Clip before: C times the certified gain."""
    space, rows = Space.flat(12), problem().rows(torch.zeros(12, dtype=torch.float64))
    for clip, factor in (
        (Clip(0.3), 1.0),
        (Clip(0.3, before=True), GaussianSketch(5, scaling="jl").draw(space).gain(2)),
    ):
        release = Release(encode=GaussianSketch(5, scaling="jl"), clip=clip, mechanism=Shift(1.0), lift=adjoint)
        bounded = measure(release, release.encode.draw(space), 0.3, rows)
        assert bounded.bound == pytest.approx(0.3 * factor * (1 + KAPPA), rel=1e-12)


ENCODERS = [Identity(), CountSketch(5), GaussianSketch(5), GaussianSketch(5, scaling="jl"), Coordinates(5)]


@pytest.mark.parametrize("encode, ord, before", pairs(ENCODERS, [1, 2, float("inf")], [False, True]), ids=str)
def test_one_outlier_moves_the_sum_by_at_most_the_bound(encode: Any, ord: float, before: bool) -> None:
    objective = problem()
    huge = LeastSquares(
        torch.cat([objective.X, 1e3 * torch.ones(1, 12).double()]),
        torch.cat([objective.y, torch.tensor([1e3]).double()]),
    )
    w = torch.ones(12, dtype=torch.float64)
    release = Release(encode=encode, clip=Clip(0.3, ord=ord, before=before), lift=adjoint)
    sketch = encode.draw(Space.flat(12), seed=0, t=0) if hasattr(encode, "draw") else encode.bind(_Flat(), None)[0]
    without, with_it = (measure(release, sketch, 0.3, p.rows(w)) for p in (objective, huge))
    moved = torch.linalg.vector_norm(with_it.value - without.value, ord)
    assert float(moved) <= with_it.bound
    assert float(moved) > 0.05 * with_it.bound


class _Flat:
    space, t, epoch, seed = Space.flat(12), 0, 0, 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e308])
def test_a_record_that_is_not_finite_is_left_out(bad: float) -> None:
    values = torch.ones(5, 3, dtype=torch.float64)
    values[2, 1] = bad
    release = Release(clip=Clip(0.5))
    bounded = measure(release, IdentityMap(Space.flat(3)), 0.5, Dense(values))
    expected = 4 * 0.5 / 3**0.5
    assert bounded.value[0] == pytest.approx(expected, rel=1e-12)
    assert torch.isfinite(bounded.value).all()


@dataclass(frozen=True, eq=False)
class Largest(OfTheSum):
    """The three largest entries of the sum."""

    def change(self, value: Tensor, ord: float, bound: float, sketch: Sketch) -> tuple[Tensor, float, float]:
        kept, top = torch.zeros_like(value), value.abs().topk(3).indices
        kept[top] = value[top]
        return kept, ord, bound


@pytest.mark.parametrize("physical", [None, 7])
def test_a_map_of_the_sum_acts_when_the_whole_sum_is_there(physical: int | None) -> None:
    release = Release(encode=Largest(CountSketch(5)), clip=Clip(0.5, ord=2))
    pipe = Pipeline([Stage(Full(), [release])], constant)
    objective, state = problem(), pipeline_file.start(pipe, torch.zeros(12, dtype=torch.float64))
    round = pipeline_file.Round(pipe, state, objective.space, seed=0)
    pipeline_file.bind_stage(round, pipe.stages[0])
    message = contribute(round, pipe.stages[0], Client("0", objective), Keys(0), physical)
    bounded = message.values["gradient"]
    assert bounded.value.shape == (12,)
    sketch = round.sketches["main/gradient"].inner
    with pytest.raises(TypeError):  # it is lifted by the sketch itself: see `isthmus.theory.printed.Inside`
        pipeline_file.close_stage(round, pipe.stages[0], message, Keys(0))
    value, ord, bound = round.sketches["main/gradient"].settle(bounded.value, 2, bounded.bound)
    kept = release.encode.change(bounded.value, 2, 1.0, sketch)[0]
    torch.testing.assert_close(value, sketch.forward(kept))
    assert (ord, bound) == (2, bounded.bound * sketch.gain(2)) and int((kept != 0).sum()) == 3


def test_a_discarded_release_may_steer_the_next_clip() -> None:
    @dataclass(frozen=True)
    class Halving(Clip):
        def next(self, bound: float, released: Any) -> float:
            return bound / 2 if float(released["count"].sum()) != 0 else bound

    releases = [Release("g", clip=Halving(1.0)), Release("count", encode=Coordinates(1), clip=Clip(0.5), lift=discard)]
    result = minimize(problem(), Pipeline([Stage(Full(), releases)], constant), steps=3)
    assert result.state.parts["main/g/clip"] == 0.125
    assert result.dims == 3 * 13


def test_a_stop_rule_returns_its_point_or_none() -> None:
    objective = problem()
    small = lambda bound: lambda round, old, new: float((old.w - new.w).norm()) <= bound  # noqa: E731
    pipe = Pipeline([Stage(Full(), [Release(clip=Clip(1.0), mechanism=Shift(0.0))])], constant, promise=WIDE)
    book = Book()
    result = minimize(objective, replace(pipe, stop=small(1e-2)), steps=500, ledger=book)
    assert result.status == "stopped" and result.state.t < 500
    assert len(book.charged) == result.state.t  # the round that told us to stop was released, and is on the books
    assert not torch.equal(result.x, result.state.w)
    never = minimize(objective, replace(pipe, stop=small(1e-300)), steps=5, ledger=Book())
    assert never.x is None and never.status == "none found"


NOISED, OPEN = Release(clip=Clip(1.0), mechanism=Shift(1.0)), Release("open")


def pipe(*releases: Release, sampler: Any = None, **options: Any) -> Pipeline:
    return Pipeline([Stage(sampler or Full(), releases)], constant, **options)


test_unsound_fillings_are_refused_when_built = refuses(
    (lambda: Pipeline([], constant), "stages=.*at least one stage"),
    (lambda: Pipeline([Stage(Full()), Stage(Full())], constant), "its own name"),
    (lambda: pipe(), "at least one release"),
    (lambda: pipe(OPEN, OPEN), "its own name"),
    (lambda: pipe(Release(mechanism=Shift(1.0))), "clip=None.*adds noise"),
    (lambda: pipe(Release(clip=Clip(1.0, ord=1), mechanism=Shift(1.0))), "ord=1.*norms"),
    (lambda: pipe(Release(clip=Clip(1.0)), wire=Wire(feedback=True)), "feedback=True.*no bound"),
    (lambda: pipe(NOISED, wire=Wire(Halves())), "codec=.*before central noise"),
    (lambda: Pipeline([Stage(Full(), every=0)], constant), "every=0"),
    (lambda: pipe(NOISED), "promise=None"),
    (lambda: pipe(NOISED, sampler=Shuffle(5), promise=PROMISE), "sampler='Shuffle'"),
    (lambda: pipe(NOISED, OPEN, promise=PROMISE), "mechanism=.*open.*without noise"),
    (lambda: Clip(0.0), "clip=0.0"),
    (lambda: Clip(1.0, ord=3), "ord=3"),
    (lambda: Shuffle(0), "batch_size=0"),
    (lambda: Restart(0), "rounds=0"),
    (lambda: Step(momentum=1.0), "momentum=1.0"),
    (lambda: Clients([]), "problems"),
    (lambda: Keys(-1), "seed=-1"),
)


def test_feedback_needs_a_tight_sketch() -> None:
    loose = pipe(Release(encode=GaussianSketch(4, scaling="jl"), lift=adjoint), wire=Wire(feedback=True))
    with pytest.raises(TypeError, match="not tight"):
        minimize(problem(), loose, steps=2)


def test_momentum_and_prox_and_projection() -> None:
    rng = np.random.default_rng(0)
    objective = Logistic(rng.standard_normal((30, 5)), rng.choice([-1.0, 1.0], 30), l1=0.01, l2=0.1)
    ball = isthmus.L2Ball(0.3)
    result = minimize(objective, isthmus.algorithms.gd(step=LR, momentum=0.5), ball, steps=20)
    w = velocity = torch.zeros(5, dtype=torch.float64)
    for _ in range(20):
        velocity = 0.5 * velocity + objective.rows(w).sum() / 30
        moved = w - LR * velocity
        soft = moved.sign() * (moved.abs() - LR * 0.01).clamp(min=0) / (1 + LR * 0.1)
        w = soft * min(1.0, 0.3 / float(soft.norm()))
    torch.testing.assert_close(result.x, w, rtol=0, atol=1e-12)


def test_the_digits_of_a_release_do_not_tell_how_its_sum_was_added_up() -> None:
    """One physical batch is added up in float32, two in float64: what is released is rounded alike."""
    space, released, w = Space.flat(64), [], torch.zeros(64)
    release = Release(clip=Clip(1.0), mechanism=Gaussian(1.0))
    pipe = Pipeline([Stage(Full(), [release])], lambda t: 0.1, promise=pipeline_file.Promise(1.0, 1e-5))
    for dtype in (torch.float32, torch.float64):
        value = torch.linspace(-1, 1, 64, dtype=torch.float32).to(dtype)
        message = Message({"gradient": ClippedSum(value, 2, 1.0, dtype=torch.float32)}, 7.0)
        round = pipeline_file.Round(pipe, pipeline_file.start(pipe, w), space, seed=0)
        pipeline_file.bind_stage(round, pipe.stages[0])
        ledger = Ledger().run({"main": pipe.stages[0].event(Adjacency.ADD_REMOVE)})
        found = pipeline_file.close_stage(round, pipe.stages[0], message, Keys(0, SeededSource(3)), ledger)
        released.append(found["gradient"])
    assert released[0].dtype == released[1].dtype == torch.float32
    assert torch.equal(*released)
