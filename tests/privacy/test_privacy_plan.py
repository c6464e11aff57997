"""A plan spends what it promises: shares, joint stages, mechanisms of one's own; and the noise that papers print."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import dp_accounting as dpa
import pytest
import torch
from refusals import refuses

from isthmus import InvalidInput, LeastSquares, minimize, privacy
from isthmus.core.pipeline import Pipeline, Promise, Release, Stage
from isthmus.privacy import Charge, Gaussian, Mechanism, NoisyMax, Poisson, PrivacyPlan, TopK, epsilon_of
from isthmus.privacy.clips import ClippedSum
from isthmus.privacy.plan import default_delta, mu_of, split

REPLACE = privacy.Adjacency.REPLACE_ONE
SVRG = [Charge("anchor", rounds=3, share=0.3), Charge("inner", rounds=60, share=0.7, sampler=Poisson(0.1))]
SELECT = [Charge("places", TopK(5, 1.0), rounds=10, share=0.25), Charge("values", rounds=10, share=0.75)]
GEP = [
    Charge("code", rounds=200, share=0.5, sampler=Poisson(0.05), stage="main"),
    Charge("rest", rounds=200, share=0.5, sampler=Poisson(0.05), stage="main"),
]
PLANS: dict[str, dict[str, Any]] = {
    "one": {"items": [Charge("g", rounds=1000, sampler=Poisson(0.01))]},
    "svrg": {"items": SVRG},
    "svrg replace-one": {"items": SVRG, "adjacency": REPLACE},
    "selection": {"items": SELECT},
    "selection replace-one": {"items": SELECT, "adjacency": REPLACE},
    "joint": {"items": GEP},
    "laplace": {"items": [Charge("g", privacy.Laplace(1.0), rounds=100)]},
    "subsets": {"items": [Charge("g", rounds=50, sampler=privacy.FixedSize(10, n=500))], "adjacency": REPLACE},
    "mixed": {
        "items": [
            Charge("a", NoisyMax(1.0), rounds=5, share=0.5),
            Charge("b", rounds=9, share=0.3, sampler=Poisson(0.2)),
            Charge("c", privacy.DiscreteGaussian(1.0, 1e-6), share=0.2),
        ]
    },
}


@pytest.fixture(scope="module")
def plans() -> dict[str, PrivacyPlan]:
    return {name: PrivacyPlan(epsilon=1.0, delta=1e-5, **fields) for name, fields in PLANS.items()}


@pytest.mark.parametrize("name", PLANS)
def test_everything_together_costs_epsilon_and_what_runs_is_accounted(plans: dict[str, PrivacyPlan], name: str) -> None:
    plan = plans[name]
    assert 0.9999 <= epsilon_of(plan.total(), 1e-5, plan.adjacency) <= 1.0
    again = PrivacyPlan.from_json(plan.to_json())
    assert again == plan and hash(again) == hash(plan)
    once = {item.name: privacy.joint([plan.mechanism(item.name).event()]) for item in plan.items}
    each = [(item.sampler.event(once[item.name]), item.rounds) for item in plan.items]
    apart = privacy.compose(dpa.SelfComposedDpEvent(*one) for one in each)
    assert (plan.total() == apart) is (name != "joint")


def test_shares_are_of_mu_squared(plans: dict[str, PrivacyPlan]) -> None:
    plan = plans["svrg"]
    mu2 = {"anchor": 3 / plan.multiplier("anchor") ** 2, "inner": 60 * (0.1 / plan.multiplier("inner")) ** 2}
    assert mu2["anchor"] / sum(mu2.values()) == pytest.approx(0.3, rel=1e-9)
    plan = plans["selection"]
    rho = {"places": 10 * plan.mechanism("places").event().rho, "values": 5 / plan.multiplier("values") ** 2}
    assert rho["places"] / sum(rho.values()) == pytest.approx(0.25, rel=1e-9)


def test_one_item_is_the_front_door(plans: dict[str, PrivacyPlan]) -> None:
    z = privacy.noise_multiplier(epsilon=1.0, delta=1e-5, sampling_rate=0.01, steps=1000)
    assert plans["one"].multiplier("g") == pytest.approx(z, rel=1e-4)


def test_a_joint_stage_is_one_sampled_gaussian(plans: dict[str, PrivacyPlan]) -> None:
    plan = plans["joint"]
    z = privacy.noise_multiplier(epsilon=1.0, delta=1e-5, sampling_rate=0.05, steps=200)
    assert plan.multiplier("code") == plan.multiplier("rest") == pytest.approx(z * math.sqrt(2), rel=1e-4)
    each = [Poisson(0.05).event(plan.mechanism(name).event()) for name in ("code", "rest")]
    apart = privacy.compose(dpa.SelfComposedDpEvent(one, 200) for one in each)  # two samples instead of one
    assert epsilon_of(apart, 1e-5) < epsilon_of(plan.total(), 1e-5)


def test_a_text_that_under_reports_is_refused(plans: dict[str, PrivacyPlan]) -> None:
    record = json.loads(plans["one"].to_json())
    with pytest.raises(InvalidInput, match="epsilon=0.5"):
        PrivacyPlan.from_json(json.dumps({**record, "epsilon": 0.5}))


test_bad_plans_are_refused = refuses(
    ({"epsilon": 0.0}, "epsilon"),
    ({"epsilon": math.inf}, "epsilon"),
    ({"delta": 0.0}, "delta"),
    ({"adjacency": "replace"}, "adjacency"),
    ({"items": []}, "items"),
    ({"items": [Charge("g", share=0.4)]}, "share"),
    ({"items": [Charge("g", share=0.5), Charge("g", share=0.5)]}, "items"),
    ({"items": [Charge("a", share=0.5, stage="s"), Charge("b", share=0.5, stage="s", rounds=2)]}, "stage"),
    ({"numbers": {"other": 1.0}}, "numbers"),
    ({"numbers": {"g": -1.0}}, "numbers"),
    ({"numbers": {"g": 0.1}}, "epsilon"),
    by=lambda fields: PrivacyPlan(**{"epsilon": 1.0, "delta": 1e-5, "items": [Charge("g")], **fields}),
)


def test_bad_charges_are_refused() -> None:
    wrong = {"mechanism": ("gaussian", Gaussian), "rounds": (0,), "share": (0.0, 1.5), "sampler": ("poisson",)}
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(InvalidInput):
                Charge("g", **{name: value})


def test_unknown_items_and_unsupported_splits_are_refused(plans: dict[str, PrivacyPlan]) -> None:
    with pytest.raises(InvalidInput, match="nobody"):
        plans["one"].mechanism("nobody")
    with pytest.raises(privacy.UnsupportedEvent, match="ZC"):
        PrivacyPlan(epsilon=1.0, delta=1e-5, items=[Charge("s", NoisyMax(1.0), sampler=Poisson(0.1))])
    with pytest.raises(privacy.UnsupportedEvent, match="SampledWithoutReplacement"):
        PrivacyPlan(epsilon=1.0, delta=1e-5, items=[Charge("g", sampler=privacy.FixedSize(2, n=9))])


# ---------------------------------------------------------------- published noise


@pytest.mark.parametrize(("eps", "real"), [(1.0, 0.35628), (0.5, 0.16739), (2.0, 0.75890), (5.0, 2.08684)])
def test_privsgd(eps: float, real: float) -> None:
    found = privacy.privsgd_sigma(lipschitz=2.0, n=500, steps=40, epsilon=eps, delta=1e-5)
    assert found.epsilon == pytest.approx(real, abs=1e-5)
    assert found.sigma**2 == pytest.approx(32 * 4 * 40 * math.log(1e5) / (500 * eps) ** 2)
    assert found.tight < found.sigma and "clipped" in found.guarantee


@pytest.mark.parametrize(
    ("eps", "at", "real"),
    [(1.0, 1e-5, 0.60810), (1.0, 1e-6, 0.63588), (0.5, 1e-5, 0.28569), (2.0, 1e-5, 1.30048), (5.0, 1e-5, 3.63389)],
)
def test_skgd(eps: float, at: float, real: float) -> None:
    found = privacy.skgd_sigma(lipschitz=1.0, n=1000, steps=1000, epsilon=eps, delta=at)
    assert found.epsilon == pytest.approx(real, abs=1e-5)
    if (eps, at) == (1.0, 1e-5):
        assert found.sigma * 1000 / 2 == pytest.approx(185.846, abs=1e-3)
        assert found.tight * 1000 / 2 == pytest.approx(117.973, abs=1e-3)


@pytest.mark.parametrize(
    ("b", "steps", "sigma", "real", "tight"), [(250, 1200, 46.766, 0.276, 14.299), (100, 1000, 16.473, 0.288, 5.415)]
)
def test_comp_minibatch(b: int, steps: int, sigma: float, real: float, tight: float) -> None:
    found = privacy.comp_minibatch_sigma(lipschitz=1.0, n=10000, batch_size=b, steps=steps, epsilon=1.0, delta=1e-5)
    assert found.sigma * b == pytest.approx(sigma, abs=1e-3)
    assert found.epsilon == pytest.approx(real, abs=1e-3)
    assert found.tight * b == pytest.approx(tight, abs=1e-3)


@pytest.mark.parametrize(("b", "steps"), [(100, 10), (10, 100), (1, 10)])
def test_comp_minibatch_is_refused_where_it_is_false(b: int, steps: int) -> None:
    with pytest.raises(InvalidInput, match="epsilon_0"):
        privacy.comp_minibatch_sigma(lipschitz=1.0, n=10000, batch_size=b, steps=steps, epsilon=1.0, delta=1e-5)


def test_farokhi_spends_its_epsilon_every_step() -> None:
    found = privacy.farokhi_scale(codes=20, steps=1000, epsilon=1.0, delta=1e-5)
    assert found.sigma == pytest.approx(math.sqrt(20)) and found.epsilon == pytest.approx(474.302, abs=1e-3)
    assert found.tight / found.sigma == pytest.approx(117.68, abs=5e-3)  # the oracle is stated to two decimals
    assert "1000 in all" in found.guarantee


@pytest.mark.parametrize("wrong", [{"lipschitz": 0.0}, {"n": 0}, {"steps": 0}, {"epsilon": 0.0}, {"delta": 1.0}])
def test_bad_claims_are_refused(wrong: dict[str, Any]) -> None:
    claim = {"lipschitz": 1.0, "n": 100, "steps": 10, "epsilon": 1.0, "delta": 1e-5, **wrong}
    for published in (
        privacy.privsgd_sigma,
        privacy.skgd_sigma,
        lambda **c: privacy.comp_minibatch_sigma(batch_size=50, **c),
    ):
        with pytest.raises(InvalidInput, match=next(iter(wrong))):
            published(**claim)


def test_an_item_and_a_stage_of_the_same_name_are_two() -> None:
    items = [Charge("once", share=0.5, stage="item gradient"), Charge("gradient", rounds=100, share=0.5)]
    budget_plan = PrivacyPlan(1.0, 1e-5, items=items)
    apart = PrivacyPlan(1.0, 1e-5, items=[Charge("once", share=0.5), items[1]])
    assert budget_plan.multiplier("gradient") == pytest.approx(apart.multiplier("gradient"))


# ---------------------------------------------------------------- one default delta, one mu, one split; and mechanism


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
    """A choice whose number is an epsilon."""

    epsilon: float
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


@pytest.mark.parametrize("adjacency", list(privacy.Adjacency))
def test_mu_spends_the_budget(adjacency: privacy.Adjacency) -> None:
    spent = epsilon_of(Gaussian(1 / mu_of(2.0, 1e-6, adjacency)).event(), 1e-6, adjacency)
    assert 2.0 * (1 - 1e-9) <= spent <= 2.0
    plan = PrivacyPlan(2.0, 1e-6, adjacency, items=[Charge("g")])
    assert plan.mu == mu_of(2.0, 1e-6, adjacency)


def test_a_split_costs_what_the_whole_costs() -> None:
    parts = split(3.0, 0.05, 0.2, 0.75)
    assert privacy.joint(Gaussian(z).event() for z in parts).noise_multiplier == pytest.approx(3.0, rel=1e-12)
    for wrong in ((0.5, 0.6), (1.0, 0.0), (1.5, -0.5)):
        with pytest.raises(InvalidInput, match="share"):
            split(3.0, *wrong)


@pytest.mark.parametrize(
    ("template", "cost"),
    [
        (Gaussian(1.0), lambda m: (0.2 / m.multiplier) ** 2),
        (privacy.Laplace(1.0), lambda m: (0.2 / m.multiplier) ** 2),
        (privacy.DiscreteGaussian(1.0, 1e-6), lambda m: (0.2 / m.multiplier) ** 2),
        (privacy.Skellam(1.0, 1e-6), lambda m: (0.2 / m.multiplier) ** 2),
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


OWN: dict[str, list[Charge]] = {
    "wrapper": [Charge("g", Wrapped(Twice(1.0)), rounds=3)],
    "instance": [Charge("g", Twice(1.0, "kept"), rounds=10)],
    "choice": [Charge("g", Best(1.0), rounds=10)],
    "own options": [Charge("g", NoisyMax(1.0, signed=False), share=0.5), Charge("h", TopK(2, 1.0), share=0.5)],
}


@pytest.mark.parametrize("name", OWN)
def test_plans_hold_mechanisms_of_ones_own(name: str) -> None:
    plan = PrivacyPlan(1.0, 1e-5, items=OWN[name])
    assert 0.9999 <= epsilon_of(plan.total(), 1e-5) <= 1.0
    again = PrivacyPlan.from_json(plan.to_json())
    assert again == plan and hash(again) == hash(plan)
    assert [again.mechanism(item.name) for item in plan.items] == [plan.mechanism(item.name) for item in plan.items]


def test_a_text_imports_nothing() -> None:
    record = json.loads(PrivacyPlan(1.0, 1e-5, items=OWN["instance"]).to_json())
    record["items"][0]["mechanism"]["class"] = "os:system"
    with pytest.raises(InvalidInput, match="mechanism='os:system' is not allowed: import the module that defines"):
        PrivacyPlan.from_json(json.dumps(record))


NAMED = [
    ("gaussian", {}, Gaussian(1.0)),
    ("laplace", {}, privacy.Laplace(1.0)),
    ("noisy-max", {}, NoisyMax(1.0)),
    ("top-k", {"k": 3}, TopK(3, 1.0)),
    ("discrete-gaussian", {"grid": 1e-6}, privacy.DiscreteGaussian(1.0, 1e-6)),
    ("skellam", {"grid": 1e-6}, privacy.Skellam(1.0, 1e-6)),
    ({"class": f"{__name__}:Twice"}, {}, Twice(1.0)),
]


@pytest.mark.parametrize(("named", "options", "mechanism"), NAMED)
def test_plans_that_name_a_mechanism_are_read(named: Any, options: dict[str, Any], mechanism: Mechanism) -> None:
    plan = PrivacyPlan(1.0, 1e-5, items=[Charge("g", mechanism, rounds=5)])
    record = json.loads(plan.to_json())
    record["items"][0] |= {"mechanism": named, "k": 1, "grid": None} | options
    assert PrivacyPlan.from_json(json.dumps(record)) == plan
    with pytest.raises(InvalidInput, match="give what PrivacyPlan.to_json wrote"):
        PrivacyPlan.from_json(plan.to_json().replace('"fields": {', '"fields": {"more": 1, '))


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


@pytest.mark.parametrize("wrong", [privacy.Exact(), Fixed(), dict, 3])
def test_what_a_plan_cannot_set_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="mechanism"):
        Charge("g", wrong)


def test_a_run_tells_of_a_mechanism_of_ones_own() -> None:
    X = torch.rand(20, 3, dtype=torch.float64)
    stage = Stage(privacy.FullBatch(), [Release(clip=privacy.Clip(1.0), mechanism=Twice(3.0))])
    pipe = Pipeline([stage], lambda t: 0.1, promise=Promise(9.0, 1e-3, n=20))
    words = minimize(LeastSquares(X, X[:, 0]), pipe, steps=2).privacy.words()
    assert "2 times    Gaussian noise of 6 times the most one record can add\n" in words
    assert "Where the noise comes from: noise of its own. " in words


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
