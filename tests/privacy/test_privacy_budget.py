"""One default delta, one mu, one split; and mechanisms of one's own in a plan, a run and a statement."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import dp_accounting as dpa
import pytest
import torch

from isthmus import LeastSquares, minimize
from isthmus.base.validate import InvalidInput
from isthmus.core.pipeline import Pipeline, Promise, Release, Stage
from isthmus.privacy import (
    Adjacency,
    Charge,
    Clip,
    DiscreteGaussian,
    Exact,
    FullBatch,
    Gaussian,
    Laplace,
    Mechanism,
    NoisyMax,
    Poisson,
    PrivacyPlan,
    Skellam,
    TopK,
    epsilon_of,
    joint,
)
from isthmus.privacy.clips import ClippedSum
from isthmus.privacy.mechanisms import words_of
from isthmus.privacy.plan import default_delta, mu_of, split


@dataclass(frozen=True)
class Twice(Mechanism):
    """Gaussian noise of twice what its number says."""

    multiplier: float
    note: str = ""
    source = "noise of its own"

    def release(self, bounded: ClippedSum, noise: Any) -> torch.Tensor:
        return Gaussian(2 * self.multiplier).release(bounded, noise)

    def event(self, adjacency: Any = None) -> Any:
        return dpa.GaussianDpEvent(2 * self.multiplier)


@dataclass(frozen=True)
class Best(Mechanism):
    """A choice whose number is an epsilon, found by its short name."""

    epsilon: float
    kind: ClassVar[str] = "best-of-tests"
    noise_parameter: ClassVar[str] = "epsilon"
    selects: ClassVar[bool] = True
    ords: ClassVar[tuple[float, ...]] = (math.inf,)

    def release(self, bounded: ClippedSum, noise: Any) -> torch.Tensor:
        return NoisyMax(self.epsilon).release(bounded, noise)

    def event(self, adjacency: Any = None) -> Any:
        return NoisyMax(self.epsilon).event()

    def spending(self, mu: float, rate: float = 1.0) -> Best:
        return Best(2 * mu)


def test_the_default_delta_is_below_one_in_n() -> None:
    assert default_delta(10) == 1e-5 and default_delta(10**7) == 1e7**-1.1 < 1e-7
    with pytest.raises(InvalidInput, match="n=0"):
        default_delta(0)


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_mu_spends_the_budget(adjacency: Adjacency) -> None:
    spent = epsilon_of(Gaussian(1 / mu_of(2.0, 1e-6, adjacency)).event(), 1e-6, adjacency)
    assert 2.0 * (1 - 1e-9) <= spent <= 2.0
    plan = PrivacyPlan(2.0, 1e-6, adjacency, items=[Charge("g")])
    assert plan.mu == mu_of(2.0, 1e-6, adjacency)


def test_a_split_costs_what_the_whole_costs() -> None:
    parts = split(3.0, 0.05, 0.2, 0.75)
    assert joint(Gaussian(z).event() for z in parts).noise_multiplier == pytest.approx(3.0, rel=1e-12)
    for wrong in ((0.5, 0.6), (1.0, 0.0), (1.5, -0.5)):
        with pytest.raises(InvalidInput, match="share"):
            split(3.0, *wrong)


@pytest.mark.parametrize(
    ("template", "cost"),
    [
        (Gaussian(1.0), lambda m: (0.2 / m.multiplier) ** 2),
        (Laplace(1.0), lambda m: (0.2 / m.multiplier) ** 2),
        (DiscreteGaussian(1.0, 1e-6), lambda m: (0.2 / m.multiplier) ** 2),
        (Skellam(1.0, 1e-6), lambda m: (0.2 / m.multiplier) ** 2),
        (NoisyMax(1.0, signed=False), lambda m: 2 * m.event().rho),
        (TopK(3, 1.0), lambda m: 2 * m.event().rho),
        (Twice(1.0, "kept"), lambda m: (0.2 / m.multiplier) ** 2),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_mechanism_brings_its_calibration(template: Mechanism, cost: Any) -> None:
    made = template.spending(0.1, rate=0.2)
    assert cost(made) == pytest.approx(0.01, rel=1e-12)
    assert template.with_number(made.number) == made and made.with_number(1.0) == template


@dataclass(frozen=True)
class Wrapped(Mechanism):
    """Another mechanism, whose noise is set through it."""

    inner: Mechanism
    marks: tuple[int, ...] = (1, 2)

    @property
    def number(self) -> float:
        return self.inner.number

    def with_number(self, number: float) -> Wrapped:
        return Wrapped(self.inner.with_number(number), self.marks)

    def release(self, bounded: ClippedSum, noise: Any) -> torch.Tensor:
        return self.inner.release(bounded, noise)

    def event(self, adjacency: Any = None) -> Any:
        return self.inner.event()


PLANS: dict[str, list[Charge]] = {
    "wrapper": [Charge("g", Wrapped(Twice(1.0)), rounds=3)],
    "instance": [Charge("g", Twice(1.0, "kept"), rounds=10)],
    "class": [Charge("g", Twice, rounds=10, sampler=Poisson(0.1))],
    "name": [Charge("g", "best-of-tests", rounds=10)],
    "own options": [Charge("g", NoisyMax(1.0, signed=False), share=0.5), Charge("h", TopK(2, 1.0), share=0.5)],
}


@pytest.mark.parametrize("name", PLANS)
def test_plans_hold_mechanisms_of_ones_own(name: str) -> None:
    plan = PrivacyPlan(1.0, 1e-5, items=PLANS[name])
    assert 0.9999 <= epsilon_of(plan.total(), 1e-5) <= 1.0
    again = PrivacyPlan.from_json(plan.to_json())
    assert again == plan and hash(again) == hash(plan)
    assert [again.mechanism(item.name) for item in plan.items] == [plan.mechanism(item.name) for item in plan.items]


def test_a_text_imports_nothing() -> None:
    record = json.loads(PrivacyPlan(1.0, 1e-5, items=PLANS["instance"]).to_json())
    record["items"][0]["mechanism"]["class"] = "os:system"
    with pytest.raises(InvalidInput, match="mechanism='os:system' is not allowed: import the module that defines this Mechanism"):
        PrivacyPlan.from_json(json.dumps(record))


def test_short_names_are_looked_up_and_shown() -> None:
    with pytest.raises(InvalidInput, match="best-of-tests.*gaussian.*noisy-max.*top-k"):
        Charge("g", "uniform")
    assert isinstance(Charge("g").template, Gaussian)


@dataclass(frozen=True)
class Fixed(Mechanism):
    """No number that a plan could set."""

    def release(self, bounded: ClippedSum, noise: Any) -> torch.Tensor:
        return bounded.value

    def event(self, adjacency: Any = None) -> Any:
        return dpa.GaussianDpEvent(1.0)


def test_what_no_text_can_hold_is_refused() -> None:
    plan = PrivacyPlan(1.0, 1e-5, items=[Charge("g", Wrapped(Gaussian(1.0), (1, object())))])  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="mechanism=.*fields are numbers, texts or mechanisms"):
        plan.to_json()


@pytest.mark.parametrize("wrong", [Exact(), Fixed(), dict, 3])
def test_what_a_plan_cannot_set_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="mechanism"):
        Charge("g", wrong)


def test_a_run_tells_of_a_mechanism_of_ones_own() -> None:
    X = torch.rand(20, 3, dtype=torch.float64)
    stage = Stage(FullBatch(), [Release(clip=Clip(1.0), mechanism=Twice(3.0))])
    pipe = Pipeline([stage], lambda t: 0.1, promise=Promise(9.0, 1e-3, n=20))
    words = minimize(LeastSquares(X, X[:, 0]), pipe, steps=2).privacy.words()
    assert "2 times    Gaussian noise of 6 times the most one record can add\n" in words
    assert "Where the noise comes from: noise of its own. " in words


def test_what_is_no_subclass_is_told_by_its_event() -> None:
    class Duck:
        private, ords = True, (2.0,)

        def event(self, adjacency: Any = None) -> Any:
            return dpa.ZCDpEvent(rho=0.5, xi=0.0)

    assert words_of(Duck()) == ("randomness that satisfies 0.5-zCDP", None, "")


@dataclass(frozen=True)
class Hidden(Mechanism):
    """Two that compare equal and differ in what they cost."""

    multiplier: float
    part: float = field(default=1.0, compare=False)

    def release(self, bounded: ClippedSum, noise: Any) -> torch.Tensor:
        return Gaussian(self.multiplier * self.part).release(bounded, noise)

    def event(self, adjacency: Any = None) -> Any:
        return dpa.GaussianDpEvent(self.multiplier * self.part)


def test_a_remembered_calibration_is_not_taken_for_another_mechanism() -> None:
    plans = [PrivacyPlan(1.0, 1e-5, items=[Charge("g", Hidden(1.0, part))]) for part in (1.0, 0.5)]
    assert plans[1].multiplier("g") == pytest.approx(2 * plans[0].multiplier("g"), rel=1e-4)
    assert all(0.9999 <= epsilon_of(plan.total(), 1e-5) <= 1.0 for plan in plans)
