"""A pipeline that claims privacy in any way holds no unnoised look at the data, whichever slot it stands in."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch

from isthmus import Encoder, GaussianSketch, InvalidInput, L1Ball, L2Ball, LeastSquares, algorithms, minimize
from isthmus.base.space import Space
from isthmus.core.minimize import PrivateSide, Recipe
from isthmus.core.parts import FirstOrderStationary, FixedRows, GapBelow
from isthmus.core.pipeline import Pipeline, Promise, Release, Stage
from isthmus.core.wire import Wire
from isthmus.gradients import Dense
from isthmus.lifts import discard, pinv
from isthmus.parts import FrankWolfe, Step
from isthmus.privacy import AdaptiveClip, BudgetExceeded, Clip, Exact, FullBatch, Gaussian, Ledger, Mechanism
from isthmus.privacy.event_json import dpa
from isthmus.problems.queries import TopEigenvalue
from isthmus.sketches.compose import IdentityMap
from isthmus.theory.printed import Inside, OwnLength, Printed

NOISY = Release("noisy", clip=Clip(1.0), mechanism=Gaussian(10.0))
RAW = Release("raw")
PROMISE = Promise(1.0, 1e-5)


def pipe(*stages: Stage, **rest: Any) -> Pipeline:
    return Pipeline(stages, lambda t: 0.1, **{"promise": PROMISE, **rest})


def problem() -> LeastSquares:
    X = torch.eye(4, dtype=torch.float64)
    return LeastSquares(X, X[:, 0])


def test_replace_is_checked_and_lists_cannot_be_changed_later() -> None:
    releases = [NOISY]
    stages = [Stage(FullBatch(), releases)]
    pipeline = Pipeline(stages, lambda t: 0.1, promise=PROMISE)
    releases.append(RAW)
    stages.append(Stage(FullBatch(), [RAW], "raw"))
    assert [release.name for stage in pipeline.stages for release in stage.releases] == ["noisy"]
    with pytest.raises(InvalidInput, match="raw/raw"):
        replace(pipeline, stages=stages)
    with pytest.raises(InvalidInput, match="promise"):
        replace(pipeline, promise=None)


@dataclass(frozen=True)
class Pretends(Exact):
    """Calls itself private and accounts for itself as it likes."""

    cost: Any = None
    private: ClassVar[bool] = True

    def event(self, adjacency: Any = None) -> Any:
        return self.cost


@dataclass(frozen=True)
class Silent(FullBatch):
    """A sampler that says a round costs nothing."""

    def event(self, event: Any) -> Any:
        return dpa.NoOpDpEvent()


def claims(cost: Any) -> Stage:
    return Stage(FullBatch(), [Release(clip=Clip(1.0), mechanism=Pretends(cost))])


NOISE, LOOK, GAUSSIAN = Stage(FullBatch(), [NOISY]), Stage(FullBatch(), [RAW], "raw"), dpa.GaussianDpEvent(1.0)
REFUSED: dict[str, tuple[str, Callable[[], Pipeline]]] = {
    "a raw stage before": ("raw/raw", lambda: pipe(LOOK, NOISE)),
    "a raw stage after": ("raw/raw", lambda: pipe(NOISE, LOOK)),
    "a raw stage before, no promise": ("promise", lambda: pipe(LOOK, NOISE, promise=None)),
    "a raw stage after, no promise": ("promise", lambda: pipe(NOISE, LOOK, promise=None)),
    "a raw release beside": ("main/raw", lambda: pipe(Stage(FullBatch(), [NOISY, RAW]))),
    "a seldom one": ("anchor/raw", lambda: pipe(Stage(FullBatch(), [RAW], "anchor", every=5), NOISE)),
    "no noise": ("nothing adds noise", lambda: pipe(LOOK)),
    "feedback": ("feedback|nothing adds noise", lambda: pipe(LOOK, wire=Wire(feedback=True))),
    "an event without privacy": ("mechanism", lambda: pipe(claims(dpa.NonPrivateDpEvent()))),
    "an event of nothing": ("mechanism", lambda: pipe(claims(dpa.NoOpDpEvent()))),
    "an event of no noise": ("mechanism", lambda: pipe(claims(dpa.GaussianDpEvent(0.0)))),
    "half": ("mechanism", lambda: pipe(claims(dpa.ComposedDpEvent([GAUSSIAN, dpa.NonPrivateDpEvent()])))),
    "never": ("mechanism", lambda: pipe(claims(dpa.SelfComposedDpEvent(GAUSSIAN, 0)))),
    "a sampler that hides the cost": ("sampler", lambda: pipe(Stage(Silent(), [NOISY]))),
    "a line search": (
        r"update\.loss",
        lambda: pipe(NOISE, update=FrankWolfe(L1Ball(1.0), "line", loss=problem().loss)),
    ),
    "a certified stop": (r"stop\.gradient", lambda: pipe(NOISE, stop=GapBelow(0.1, L2Ball(1.0), problem().gradient))),
    "an adaptive clip alone": (
        r"clip\.release",
        lambda: pipe(Stage(FullBatch(), [replace(NOISY, clip=AdaptiveClip(1.0))])),
    ),
    "bought before, no promise": ("promise", lambda: Pipeline([LOOK], lambda t: 0.1, before=[object()])),
}


@pytest.mark.parametrize("name", REFUSED)
def test_looks_without_noise_are_refused_beside_a_claim(name: str) -> None:
    words, build = REFUSED[name]
    with pytest.raises(InvalidInput, match=words):
        build()


def test_a_stop_that_reads_released_values_only_is_free() -> None:
    pipe(NOISE, stop=FirstOrderStationary(0.1, L2Ball(1.0)))


@pytest.mark.parametrize("look", ["loss", "gradient"])
@pytest.mark.parametrize("late", [False, True])
def test_a_private_recipe_is_given_no_look(look: str, late: bool) -> None:
    def build(binding: Any) -> Pipeline:
        def seen(t: int) -> float:  # as a backtracking line search in the step
            return float(torch.as_tensor(getattr(binding, look)(torch.zeros(4, dtype=torch.float64))).sum())

        step = seen(0) if not late else None
        return Pipeline([Stage(FullBatch(), [NOISY])], (lambda t: step) if step else seen, promise=PROMISE)

    with pytest.raises(InvalidInput, match="recipe"):
        minimize(problem(), Recipe("mine", build), steps=2)


class Fitted(Encoder):
    """Learns from whatever the objective calls its own."""

    def bind(self, context: Any, state: Any) -> Any:
        context.rows(None)
        return IdentityMap(context.space), None


class Generous(LeastSquares):
    """Gives its own rows where no public ones are named."""

    def on(self, data: Any) -> Any:
        return self


def test_an_encoder_cannot_be_bound_to_the_private_rows() -> None:
    X = torch.eye(4, dtype=torch.float64)
    with pytest.raises(InvalidInput, match="public examples"):
        minimize(Generous(X, X[:, 0]), pipe(Stage(FullBatch(), [replace(NOISY, encode=Fitted())])), steps=1)


def test_what_is_bought_before_the_loop_needs_a_cost() -> None:
    side, sheet = PrivateSide(PROMISE), FixedRows(Dense(torch.ones(1, 2)))
    for mechanism in (Exact(), Pretends(dpa.NoOpDpEvent())):
        raw = Stage(FullBatch(1.0), [Release("raw", clip=Clip(1.0), mechanism=mechanism)], "raw")
        with pytest.raises(InvalidInput, match="mechanism"):
            side.look(raw, sheet, Space.flat(2))
    assert side.ledger.rounds() == {}


def test_own_sources_and_public_examples_are_stated() -> None:
    def source(problem: Any, w: Any, index: Any, held: Any) -> Any:
        return problem.rows(w, index)

    plain = minimize(problem(), pipe(Stage(FullBatch(), [NOISY])), steps=1).privacy
    mine = minimize(problem(), pipe(Stage(FullBatch(), [NOISY], source=source)), steps=1).privacy
    assert not any("source" in assumption for assumption in plain.assumptions)
    assert any("source of stage 'main'" in assumption for assumption in mine.assumptions)
    X = torch.eye(4, dtype=torch.float64)
    budget = {"epsilon": 1.0, "delta": 1e-5, "clip": 1.0, "n": "exact"}
    recipe = algorithms.pdp_sgd(**budget, k=2, data=(X, X[:, 0]), step=0.1, batch_size=2)
    assert any("learns from are public" in each for each in minimize(problem(), recipe, steps=2).privacy.assumptions)


def test_pipelines_without_a_claim_stay_free() -> None:
    assert not pipe(Stage(FullBatch(), [RAW]), Stage(FullBatch(), [RAW], "two"), promise=None).private
    assert minimize(problem(), algorithms.comp_fw(line_search="line"), L1Ball(1.0), steps=3).privacy is None


@dataclass(frozen=True)
class _Eigenvalue:
    """The query of whatever records a physical batch holds."""

    own_records: bool = True

    def __call__(self, problem: Any, w: Any, index: Any, held: Any) -> Any:
        return TopEigenvalue(problem.X if index is None else problem.X[index])


def test_a_query_is_never_split_into_physical_batches():
    """Rows a, a, b, b, a, a, ...: in pairs their eigenvalues add up to 2 each, and to 1 each where one row is gone."""
    rows = torch.eye(2, dtype=torch.float64)[[0, 0] + [1, 1, 0, 0] * 50]
    release = Release("top", clip=Clip(TopEigenvalue.bound), mechanism=Gaussian(10.0), lift=discard)
    steps = Release(clip=Clip(1.0), mechanism=Gaussian(10.0))
    stages = [Stage(FullBatch(1.0), [release], "top", source=_Eigenvalue()), Stage(FullBatch(), [steps])]
    pipe = Pipeline(stages, lambda t: 0.1, Step(), promise=Promise(5.0, 1e-5))
    objective = LeastSquares(rows, torch.zeros(len(rows), dtype=torch.float64))
    minimize(objective, pipe, steps=1, record=None)
    with pytest.raises(ValueError, match="physical_batch_size=2 is not allowed"):
        minimize(objective, pipe, steps=1, record=None, physical_batch_size=2)


class _Told(IdentityMap):
    """The identity, which says of the whole sum what it was told to say."""

    settles = True

    def __init__(self, space: Any, ord: float, bound: float) -> None:
        super().__init__(space)
        self.ord, self.bound = ord, bound

    def settle(self, value: Any, ord: float, bound: float) -> Any:
        return value, self.ord, self.bound


@dataclass(frozen=True)
class _Settled(Encoder):
    """A map that says of the whole sum what it was told to say."""

    ord: float
    bound: float

    def bind(self, context: Any, state: Any) -> Any:
        return _Told(context.space, self.ord, self.bound), None


@dataclass(frozen=True)
class _Careless(Mechanism):
    """A mechanism that never looks at the bound it is given."""

    multiplier: float = 10.0

    def release(self, bounded: Any, noise: Any) -> Any:
        return bounded.value + noise.normal(len(bounded.value))

    def event(self, adjacency: Any = None) -> Any:
        return Gaussian(self.multiplier).event()


@pytest.mark.parametrize("mechanism", [Gaussian(10.0), _Careless()])
@pytest.mark.parametrize(("ord", "bound"), [(2, math.inf), (2, math.nan), (2, 0.0), (math.inf, 1.0)])
def test_a_lost_bound_is_refused_before_anything_is_charged(mechanism: Mechanism, ord: float, bound: float):
    stage = Stage(FullBatch(), [Release(encode=_Settled(ord, bound), clip=Clip(1.0), mechanism=mechanism)])
    pipe, ledger = Pipeline([stage], lambda t: 0.1, Step(), promise=Promise(5.0, 1e-5)), Ledger()
    X = torch.eye(4, dtype=torch.float64)
    with pytest.raises(ValueError, match="is not allowed"):
        minimize(LeastSquares(X, X[:, 0]), pipe, steps=1, record=None, ledger=ledger)
    assert not ledger.rounds()


@pytest.mark.parametrize("ledger", [None, Ledger()])
def test_a_run_that_costs_more_than_it_promises_looks_at_nothing(ledger: Ledger | None):
    """Where the ledger has no budget of its own, too: an estimator with a checkpoint keeps such a one."""
    stage = Stage(FullBatch(), [Release(clip=Clip(1.0), mechanism=Gaussian(0.1))])
    pipe = Pipeline([stage], lambda t: 0.1, Step(), promise=Promise(1.0, 1e-5))
    X = torch.eye(4, dtype=torch.float64)
    with pytest.raises((ValueError, BudgetExceeded), match="is not allowed|needs epsilon"):
        minimize(LeastSquares(X, X[:, 0]), pipe, steps=5, record=None, ledger=ledger)
    assert ledger is None or not ledger.rounds()


def test_noise_on_a_bound_that_is_only_claimed_has_no_epsilon():
    """The rescaled sketch of papers 001 and 000 takes the printed mechanism, whose event says nothing is private."""
    options = {"encode": OwnLength(GaussianSketch(2)), "clip": Clip(1.0), "lift": Inside(pinv)}
    printed = Release(**options, mechanism=Printed(Gaussian(10.0), "none", sound=False))
    Pipeline([Stage(FullBatch(), [printed])], lambda t: 0.1, promise=Promise(math.inf, 1e-5))
    for mechanism in (Gaussian(10.0), Printed(Gaussian(10.0), "as claimed")):
        with pytest.raises(ValueError, match="a paper's claim"):
            Pipeline(
                [Stage(FullBatch(), [replace(printed, mechanism=mechanism)])], lambda t: 0.1, promise=Promise(1.0, 1e-5)
            )
