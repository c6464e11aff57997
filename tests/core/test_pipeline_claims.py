"""A pipeline that claims privacy in any way holds no unnoised look at the data, whichever slot it stands in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch

from isthmus import LeastSquares, algorithms, minimize
from isthmus.base.space import Space
from isthmus.base.validate import InvalidInput
from isthmus.core.minimize import PrivateSide, Recipe
from isthmus.core.parts import FirstOrderStationary, FixedRows, GapBelow
from isthmus.core.pipeline import Pipeline, Promise, Release, Stage
from isthmus.core.wire import Wire
from isthmus.gradients import Dense
from isthmus.parts import FrankWolfe
from isthmus.privacy import AdaptiveClip, Clip, Exact, FullBatch, Gaussian
from isthmus.privacy.event_json import dpa
from isthmus.sets import L1Ball, L2Ball
from isthmus.sketches import Encoder
from isthmus.sketches.compose import IdentityMap

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
