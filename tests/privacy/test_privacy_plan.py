"""A plan spends what it promises: shares, joint stages, round trips; and the printed noise of the papers."""

from __future__ import annotations

import json
import math
from typing import Any

import dp_accounting as dpa
import pytest

from isthmus.base.validate import InvalidInput
from isthmus.privacy import (
    Adjacency,
    Charge,
    DiscreteGaussian,
    FixedSize,
    Gaussian,
    NoisyMax,
    Poisson,
    PrivacyPlan,
    TopK,
    UnsupportedEvent,
    comp_minibatch_sigma,
    compose,
    epsilon_of,
    farokhi_scale,
    noise_multiplier,
    privsgd_sigma,
    skgd_sigma,
)

REPLACE = Adjacency.REPLACE_ONE
SVRG = [Charge("anchor", rounds=3, share=0.3), Charge("inner", rounds=60, share=0.7, sampler=Poisson(0.1))]
SELECT = [Charge("places", "top-k", rounds=10, share=0.25, k=5), Charge("values", rounds=10, share=0.75)]
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
    "laplace": {"items": [Charge("g", "laplace", rounds=100)]},
    "subsets": {"items": [Charge("g", rounds=50, sampler=FixedSize(10, n=500))], "adjacency": REPLACE},
    "mixed": {
        "items": [
            Charge("a", "noisy-max", rounds=5, share=0.5),
            Charge("b", rounds=9, share=0.3, sampler=Poisson(0.2)),
            Charge("c", "discrete-gaussian", share=0.2, grid=1e-6),
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
    for item in plan.items:
        one = item.sampler.event(plan.mechanism(item.name).event())
        assert plan.event(item.name) == dpa.SelfComposedDpEvent(one, item.rounds)
        assert plan.event(item.name, 2) == dpa.SelfComposedDpEvent(one, 2)
        assert plan.event(item.name, 0) == dpa.NoOpDpEvent()


def test_shares_are_of_mu_squared(plans: dict[str, PrivacyPlan]) -> None:
    plan = plans["svrg"]
    mu2 = {"anchor": 3 / plan.multiplier("anchor") ** 2, "inner": 60 * (0.1 / plan.multiplier("inner")) ** 2}
    assert mu2["anchor"] / sum(mu2.values()) == pytest.approx(0.3, rel=1e-9)
    plan = plans["selection"]
    rho = {"places": 10 * plan.mechanism("places").event().rho, "values": 5 / plan.multiplier("values") ** 2}
    assert rho["places"] / sum(rho.values()) == pytest.approx(0.25, rel=1e-9)


def test_one_item_is_the_front_door(plans: dict[str, PrivacyPlan]) -> None:
    z = noise_multiplier(epsilon=1.0, delta=1e-5, sampling_rate=0.01, steps=1000)
    assert plans["one"].multiplier("g") == pytest.approx(z, rel=1e-4)


def test_a_joint_stage_is_one_sampled_gaussian(plans: dict[str, PrivacyPlan]) -> None:
    plan = plans["joint"]
    z = noise_multiplier(epsilon=1.0, delta=1e-5, sampling_rate=0.05, steps=200)
    assert plan.multiplier("code") == plan.multiplier("rest") == pytest.approx(z * math.sqrt(2), rel=1e-4)
    apart = compose([plan.event("code"), plan.event("rest")])  # two samples instead of one
    assert epsilon_of(apart, 1e-5) < epsilon_of(plan.total(), 1e-5)


def test_mechanisms_by_kind(plans: dict[str, PrivacyPlan]) -> None:
    assert isinstance(plans["selection"].mechanism("places"), TopK)
    kinds = [type(plans["mixed"].mechanism(name)) for name in "abc"]
    assert kinds == [NoisyMax, Gaussian, DiscreteGaussian]


def test_a_text_that_under_reports_is_refused(plans: dict[str, PrivacyPlan]) -> None:
    record = json.loads(plans["one"].to_json())
    with pytest.raises(InvalidInput, match="epsilon=0.5"):
        PrivacyPlan.from_json(json.dumps({**record, "epsilon": 0.5}))


def test_default_delta_needs_a_public_n() -> None:
    items = [Charge("g")]
    assert PrivacyPlan(epsilon=1.0, n_public=100, items=items).delta == 1e-5
    assert PrivacyPlan(epsilon=1.0, n_public=10**6, items=items).delta == pytest.approx(1e6**-1.1)
    with pytest.raises(InvalidInput, match="delta"):
        PrivacyPlan(epsilon=1.0, items=items)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": math.inf}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"n_public": 0}, "n_public"),
        ({"adjacency": "replace"}, "adjacency"),
        ({"items": []}, "items"),
        ({"items": [Charge("g", share=0.4)]}, "share"),
        ({"items": [Charge("g", share=0.5), Charge("g", share=0.5)]}, "items"),
        ({"items": [Charge("a", share=0.5, stage="s"), Charge("b", share=0.5, stage="s", rounds=2)]}, "stage"),
        ({"numbers": {"other": 1.0}}, "numbers"),
        ({"numbers": {"g": -1.0}}, "numbers"),
        ({"numbers": {"g": 0.1}}, "epsilon"),
    ],
)
def test_bad_plans_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        PrivacyPlan(**{"epsilon": 1.0, "delta": 1e-5, "items": [Charge("g")], **fields})


def test_bad_charges_are_refused() -> None:
    wrong = {"mechanism": ("uniform", "discrete-gaussian"), "rounds": (0,), "share": (0.0, 1.5), "k": (2,)}
    for name, values in {**wrong, "sampler": ("poisson",)}.items():
        for value in values:
            with pytest.raises(InvalidInput):
                Charge("g", **{name: value})


def test_unknown_items_and_unsupported_splits_are_refused(plans: dict[str, PrivacyPlan]) -> None:
    with pytest.raises(InvalidInput, match="nobody"):
        plans["one"].mechanism("nobody")
    with pytest.raises(UnsupportedEvent, match="ZC"):
        PrivacyPlan(epsilon=1.0, delta=1e-5, items=[Charge("s", "noisy-max", sampler=Poisson(0.1))])
    with pytest.raises(UnsupportedEvent, match="SampledWithoutReplacement"):
        PrivacyPlan(epsilon=1.0, delta=1e-5, items=[Charge("g", sampler=FixedSize(2, n=9))])


# ---------------------------------------------------------------- published noise


@pytest.mark.parametrize(("eps", "real"), [(1.0, 0.35628), (0.5, 0.16739), (2.0, 0.75890), (5.0, 2.08684)])
def test_privsgd(eps: float, real: float) -> None:
    found = privsgd_sigma(lipschitz=2.0, n=500, steps=40, epsilon=eps, delta=1e-5)
    assert found.epsilon == pytest.approx(real, abs=1e-5)
    assert found.sigma**2 == pytest.approx(32 * 4 * 40 * math.log(1e5) / (500 * eps) ** 2)
    assert found.tight < found.sigma and "clipped" in found.guarantee


@pytest.mark.parametrize(
    ("eps", "at", "real"),
    [(1.0, 1e-5, 0.60810), (1.0, 1e-6, 0.63588), (0.5, 1e-5, 0.28569), (2.0, 1e-5, 1.30048), (5.0, 1e-5, 3.63389)],
)
def test_skgd(eps: float, at: float, real: float) -> None:
    found = skgd_sigma(lipschitz=1.0, n=1000, steps=1000, epsilon=eps, delta=at)
    assert found.epsilon == pytest.approx(real, abs=1e-5)
    if (eps, at) == (1.0, 1e-5):
        assert found.sigma * 1000 / 2 == pytest.approx(185.846, abs=1e-3)
        assert found.tight * 1000 / 2 == pytest.approx(117.973, abs=1e-3)


@pytest.mark.parametrize(
    ("b", "steps", "sigma", "real", "tight"), [(250, 1200, 46.766, 0.276, 14.299), (100, 1000, 16.473, 0.288, 5.415)]
)
def test_comp_minibatch(b: int, steps: int, sigma: float, real: float, tight: float) -> None:
    found = comp_minibatch_sigma(lipschitz=1.0, n=10000, batch_size=b, steps=steps, epsilon=1.0, delta=1e-5)
    assert found.sigma * b == pytest.approx(sigma, abs=1e-3)
    assert found.epsilon == pytest.approx(real, abs=1e-3)
    assert found.tight * b == pytest.approx(tight, abs=1e-3)


@pytest.mark.parametrize(("b", "steps"), [(100, 10), (10, 100), (1, 10)])
def test_comp_minibatch_is_refused_where_it_is_false(b: int, steps: int) -> None:
    with pytest.raises(InvalidInput, match="epsilon_0"):
        comp_minibatch_sigma(lipschitz=1.0, n=10000, batch_size=b, steps=steps, epsilon=1.0, delta=1e-5)


def test_farokhi_spends_its_epsilon_every_step() -> None:
    found = farokhi_scale(codes=20, steps=1000, epsilon=1.0, delta=1e-5)
    assert found.sigma == pytest.approx(math.sqrt(20)) and found.epsilon == pytest.approx(474.302, abs=1e-3)
    assert found.tight / found.sigma == pytest.approx(117.68, abs=5e-3)  # the oracle is stated to two decimals
    assert "1000 in all" in found.guarantee


@pytest.mark.parametrize("wrong", [{"lipschitz": 0.0}, {"n": 0}, {"steps": 0}, {"epsilon": 0.0}, {"delta": 1.0}])
def test_bad_claims_are_refused(wrong: dict[str, Any]) -> None:
    claim = {"lipschitz": 1.0, "n": 100, "steps": 10, "epsilon": 1.0, "delta": 1e-5, **wrong}
    for published in (privsgd_sigma, skgd_sigma, lambda **c: comp_minibatch_sigma(batch_size=50, **c)):
        with pytest.raises(InvalidInput, match=next(iter(wrong))):
            published(**claim)


def test_an_item_and_a_stage_of_the_same_name_are_two() -> None:
    items = [Charge("once", share=0.5, stage="item gradient"), Charge("gradient", rounds=100, share=0.5)]
    budget_plan = PrivacyPlan(1.0, 1e-5, items=items)
    apart = PrivacyPlan(1.0, 1e-5, items=[Charge("once", share=0.5), items[1]])
    assert budget_plan.multiplier("gradient") == pytest.approx(apart.multiplier("gradient"))
