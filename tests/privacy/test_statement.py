"""A statement is what the accountant says, in words of the mechanisms that ran; leaks and large deltas are named."""

import json
import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import dp_event as E
from refusals import refuses
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import isthmus
from isthmus import InvalidInput, LeastSquares, PrivacyEngine, PrivateClassifier, algorithms, minimize, privacy
from isthmus.base.notebook import rounded_up
from isthmus.core.pipeline import Pipeline, Promise, Release, Stage
from isthmus.privacy import Adjacency, DiscreteGaussian, Exact, Gaussian, Laplace, Ledger, PrivacyStatement, joint
from isthmus.privacy.leaks import large_delta
from isthmus.privacy.statement import SEEDED, Account, Released

POISSON = E.SelfComposedDpEvent(E.PoissonSampledDpEvent(0.025, E.GaussianDpEvent(4.0)), 1200)
WITHOUT = E.SelfComposedDpEvent(E.SampledWithoutReplacementDpEvent(10_000, 100, E.GaussianDpEvent(4.0)), 1000)
MIXED = E.ComposedDpEvent([E.SelfComposedDpEvent(E.ZCDpEvent(0.00125), 100), E.GaussianDpEvent(50.0)])
CASES = [
    (POISSON, Adjacency.ADD_REMOVE, {}),
    (POISSON, Adjacency.REPLACE_ONE, {"n": 5000}),
    (WITHOUT, Adjacency.REPLACE_ONE, {"n": 10_000}),
    (MIXED, Adjacency.ADD_REMOVE, {"assumptions": ["one record per person", "clips hold"]}),
    (E.LaplaceDpEvent(3.0), Adjacency.ADD_REMOVE, {}),
    (E.GaussianDpEvent(3.0), Adjacency.ADD_REMOVE, {"seeded": True}),
    (E.NonPrivateDpEvent(), Adjacency.ADD_REMOVE, {}),
    (E.NoOpDpEvent(), Adjacency.ADD_REMOVE, {}),
]


@pytest.mark.parametrize(("event", "adjacency", "more"), CASES)
def test_statements_survive_json(event: Any, adjacency: Adjacency, more: dict[str, Any]) -> None:
    statement = PrivacyStatement.of(event, 1e-5, adjacency, **more)
    again = PrivacyStatement.from_json(statement.to_json())
    assert again == statement and hash(again) == hash(statement) and str(again) == str(statement)
    assert again.words() == statement.words()
    json.loads(statement.to_json(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


COSTS = [  # tolerance 1e-3: the discretisation of privacy-loss distributions
    (POISSON, Adjacency.ADD_REMOVE, None, 0.81577, "privacy-loss distributions (the library dp"),
    (POISSON, Adjacency.REPLACE_ONE, None, 1.69737, "privacy-loss distributions of the pair"),
    (WITHOUT, Adjacency.REPLACE_ONE, 10_000, 1.44530, "Renyi"),
    (E.GaussianDpEvent(1.0), Adjacency.ADD_REMOVE, None, 4.377178, "exact curve"),
    (E.GaussianDpEvent(2.0), Adjacency.REPLACE_ONE, None, 4.377178, "exact curve"),
    (E.NoOpDpEvent(), Adjacency.ADD_REMOVE, None, 0.0, "exact curve"),
]


@pytest.mark.parametrize(("event", "adjacency", "n", "epsilon", "accountant"), COSTS)
def test_epsilon_is_the_accountants(
    event: Any, adjacency: Adjacency, n: int | None, epsilon: float, accountant: str
) -> None:
    statement = PrivacyStatement.of(event, 1e-5, adjacency, n=n)
    assert statement.epsilon == statement.nominal == pytest.approx(epsilon, abs=1e-3)
    assert accountant in statement.accountant and statement.private


@pytest.mark.parametrize(("event", "adjacency", "more"), CASES[:5])
def test_words_say_all_of_it(event: Any, adjacency: Adjacency, more: dict[str, Any]) -> None:
    statement = PrivacyStatement.of(event, 1e-5, adjacency, **more)
    if more:
        statement = replace(statement, guarantee="half of it.", sampler="my own words")
    words = statement.words()
    for part in (
        f"epsilon = {rounded_up(statement.epsilon)} ",
        "delta = 1e-05",
        adjacency.describe().capitalize(),
        statement.sampler,
        statement.noise,
        statement.accountant,
        *statement.assumptions,
    ):
        assert part in words
    if statement.n_public:
        assert f"The number of records, {statement.n}, is public." in words
    else:
        assert "The number of records is not published." in words
    assert ("What it really guarantees: half of it." in words) == bool(statement.guarantee)
    assert "There are no further assumptions." in words or statement.assumptions
    assert f"epsilon={rounded_up(statement.epsilon)}" in str(statement)


def test_seeded_noise_is_marked_everywhere() -> None:
    statement = PrivacyStatement.of(POISSON, 1e-5, seeded=True)
    assert not statement.private and statement.epsilon == math.inf and statement.noise == SEEDED
    assert statement.nominal == pytest.approx(0.81577, abs=1e-3)
    for text in (statement.words(), str(statement), statement.to_json()):
        assert "seeded noise: not private" in text
    assert "NOT private" in statement.words() and "are differentially private" not in statement.words()


def test_what_hides_nothing_is_not_private() -> None:
    statement = PrivacyStatement.of(E.ComposedDpEvent([POISSON, E.NonPrivateDpEvent()]), 1e-5)
    assert not statement.private and statement.epsilon == statement.nominal == math.inf
    assert "NOT private" in statement.words() and "epsilon = inf" in statement.words()
    assert "without noise" in str(statement)
    assert json.loads(statement.to_json())["epsilon"] == "inf"


@pytest.mark.parametrize("value", [1.0, 0.81577, 1.00003, 123456.0, 9.9995, 0.00012345, 0.3, 1e-9])
def test_numbers_arerounded_up(value: float) -> None:
    shown = float(rounded_up(value))
    assert value <= shown * (1 + 1e-15) and shown <= value * 1.0011


test_contradictions_are_refused = refuses(
    ({"private": False}, "private"),
    ({"epsilon": math.nan}, "epsilon"),
    ({"epsilon": -1.0}, "epsilon"),
    ({"delta": 0.0}, "delta"),
    ({"adjacency": "neighbours"}, "adjacency"),
    ({"n": 0}, "n=0"),
    by=lambda change: replace(PrivacyStatement.of(POISSON, 1e-5), **change),
)


def test_a_secret_number_of_records_is_not_stated_by_the_event() -> None:
    with pytest.raises(InvalidInput, match="give the number of records as n: the event states it"):
        PrivacyStatement.of(WITHOUT, 1e-5, Adjacency.REPLACE_ONE)


def test_other_texts_are_refused() -> None:
    data = json.loads(PrivacyStatement.of(POISSON, 1e-5).to_json())
    for wrong in ({**data, "more": 1}, {**data, "n_public": True}, {k: v for k, v in data.items() if k != "delta"}):
        with pytest.raises(InvalidInput):
            PrivacyStatement.from_json(json.dumps(wrong))


@pytest.mark.parametrize(
    "edited",
    [
        {"epsilon": 0.1},
        {"epsilon": 0.1, "nominal": 0.1},
        {"nominal": 0.1},
        {"delta": 1e-7},
        {"adjacency": "replace-one"},
        {"noise": SEEDED},
    ],
    ids=str,
)
def test_a_text_that_promises_more_than_its_releases_give_is_refused(edited: dict[str, Any]) -> None:
    """Whatever was edited, epsilon is computed anew from the event that the text holds."""
    data = json.loads(PrivacyStatement.of(E.GaussianDpEvent(4.0), 1e-5).to_json())
    with pytest.raises(InvalidInput, match="follows from its releases|seeded"):
        PrivacyStatement.from_json(json.dumps(data | edited))


def test_something_released_as_it_is_cannot_be_called_private() -> None:
    data = json.loads(PrivacyStatement.of(E.NonPrivateDpEvent(), 1e-5).to_json())
    with pytest.raises(InvalidInput, match="epsilon=inf follows from its releases"):
        PrivacyStatement.from_json(json.dumps(data | {"private": True, "epsilon": 1.0, "nominal": 1.0}))


def test_another_accountants_epsilon_is_never_made_smaller() -> None:
    """A little less than follows becomes what follows; more stays: an accountant of before may have been coarser."""
    right = PrivacyStatement.of(E.GaussianDpEvent(4.0), 1e-5)
    data = json.loads(right.to_json())
    for factor, expected in ((1 - 1e-4, right.epsilon), (1.5, 1.5 * right.epsilon)):
        told = json.dumps(data | {"epsilon": factor * right.epsilon, "nominal": factor * right.epsilon})
        statement = PrivacyStatement.from_json(told)
        assert statement.epsilon == statement.nominal == pytest.approx(expected, rel=1e-12)
    assert PrivacyStatement.from_json(right.to_json(), recompute=False) == right


# ---------------------------------------------------------------- what a statement says: the words of a release come

X = np.random.default_rng(0).uniform(-1, 1, (50, 3))
NOISE = "secret noise from the operating system's generator"
MECHANISMS: dict[str, tuple[Any, float, str, str]] = {
    "gaussian": (Gaussian(2.0), 2, "Gaussian noise of 2 times the most one record can add", NOISE),
    "laplace": (Laplace(20.0), 1, "Laplace noise of 20 times the most one record can add", NOISE),
    "choice": (
        privacy.NoisyMax(0.2),
        float("inf"),
        "random choice of one coordinate, which satisfies 0.005-zCDP",
        NOISE,
    ),
    "top": (privacy.TopK(2, 0.2), float("inf"), "random choice of 2 coordinates, which satisfies 0.01-zCDP", NOISE),
    "discrete": (
        DiscreteGaussian(2.0, 1e-6),
        2,
        "discrete Gaussian noise of 2 times the most one record can add, in steps of 1e-06",
        "secret noise from opendp's own cryptographic generator",
    ),
    "skellam": (
        privacy.Skellam(2.0, 1e-3),
        2,
        "Skellam noise (in steps of 0.001) that hides as much as Gaussian noise of 2 times the most one record can add",
        NOISE,
    ),
}


def released(mechanism: Any, ord: float = 2, sampler: Any = None, **options: Any) -> PrivacyStatement:
    promise = Promise(9.0, 1e-3, Adjacency.ADD_REMOVE, 50)
    stage = Stage(sampler or privacy.FullBatch(), [Release(clip=privacy.Clip(1.0, ord=ord), mechanism=mechanism)])
    return minimize(LeastSquares(X, X[:, 0]), Pipeline([stage], lambda t: 0.1, promise=promise), steps=3).privacy


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_release_is_told_in_the_words_of_its_mechanism(name: str) -> None:
    if name == "discrete":
        pytest.importorskip("opendp")
    mechanism, ord, words, noise = MECHANISMS[name]
    values = released(mechanism, ord)
    assert values.releases == (Released("sum of gradients", 3, words),)
    assert f"  sum of gradients  3 times    {words}\n" in values.words()
    assert f"Where the noise comes from: {noise}. " in values.words()
    assert ("random choice" in values.words()) == (name in ("choice", "top"))
    assert PrivacyStatement.from_json(values.to_json()) == values


def test_sampled_releases_say_so() -> None:
    values = released(Gaussian(2.0), sampler=privacy.Poisson(0.5))
    assert values.releases[0].what == "sum of gradients over a random sample" and values.releases[0].times == 3


def test_an_event_alone_does_not_claim_to_know_what_it_was() -> None:
    found = PrivacyStatement.of(DiscreteGaussian(2.0, 1e-6).event(), 1e-5).words()
    assert "value from all records  once       randomness that satisfies 0.125-zCDP" in found
    assert "random choice" not in found


def test_statements_written_before_are_read() -> None:
    statement = PrivacyStatement.of(Gaussian(1.0).event(), 1e-5)
    old = json.loads(statement.to_json())
    del old["leaks"], old["releases"]
    assert PrivacyStatement.from_json(json.dumps(old)) == statement
    assert PrivacyStatement.from_json(json.dumps(old | {"released": "1 x Gaussian noise"})) == statement
    for wrong in ([{}], "none", [{"what": "a", "times": 0, "noise": "b"}], [{"what": "", "times": 1, "noise": "b"}]):
        with pytest.raises(InvalidInput, match="is not allowed: give"):
            PrivacyStatement.from_json(json.dumps(old | {"releases": wrong}))


def test_a_statement_is_a_card_in_a_notebook() -> None:
    statement = PrivacyStatement.of(Gaussian(1.0).event(), 1e-5, assumptions=["a <b>"], leaks=["<script>"])
    card = statement._repr_html_()
    assert "&lt;script&gt;" in card and "<script" not in card and "a &lt;b&gt;" in card
    assert "<td" in card and "Gaussian noise of 1 times the most one record can add" in card
    assert "NOT private" in PrivacyStatement.of(Gaussian(1.0).event(), 1e-5, seeded=True)._repr_html_()


def test_leaks_come_before_what_a_statement_rests_on() -> None:
    statement = PrivacyStatement.of(Gaussian(1.0).event(), 1e-5, assumptions=["a"], leaks=["the labels", "the labels"])
    words = statement.words()
    assert words.index("Epsilon does NOT cover") < words.index("- the labels") < words.index("The guarantee rests on")
    assert words.count("the labels") == 1 and str(statement).endswith(", except for 1 fact that was read from the data")
    assert json.loads(statement.to_json())["leaks"] == ["the labels"]
    assert PrivacyStatement.from_json(statement.to_json()) == statement


# ---------------------------------------------------------------- a delta of 1/n or more


def test_a_large_delta_is_warned_of_before_a_run_and_stated() -> None:
    for n in ("exact", 40):
        recipe = algorithms.dp_gd(epsilon=1.0, delta=0.5, clip=1.0, step=0.1, n=n)
        with pytest.warns(isthmus.PrivacyBudgetWarning, match=r"delta=0\.5 is at least 1/n") as caught:
            result = minimize(LeastSquares(X, X[:, 0]), recipe, steps=2)
        assert len(caught) == 1 and caught[0].filename == __file__
        assert ("would allow publishing one of the 50 records" in result.privacy.words()) == (n == "exact")


Y = np.arange(50) % 2
FIT: dict[str, Any] = {"bounds": (-1, 1), "algorithm": "dp_gd", "max_iter": 2}
RECIPE = algorithms.dp_gd(epsilon=1.0, delta=1e-5, clip=1.0, step=0.1, n="exact")


def trained(ledger: Ledger | None = None, target: bool = False) -> PrivacyEngine:
    module, engine = nn.Linear(2, 1), PrivacyEngine(ledger=ledger)
    make: Any = partial(engine.make_private, noise_multiplier=1.0)
    if target:
        make = partial(engine.make_private_with_epsilon, target_epsilon=1.0, target_delta=0.1, epochs=1)
    data = DataLoader(TensorDataset(torch.zeros(50, 2), torch.zeros(50, 1)), batch_size=10)
    make(module=module, optimizer=torch.optim.SGD(module.parameters(), 0.1), data_loader=data, max_grad_norm=1.0)
    return engine


DOORS: dict[str, Any] = {
    "minimize, ledger": lambda shared: minimize(LeastSquares(X, X[:, 0]), RECIPE, steps=2, ledger=shared),
    "fit, ledger": lambda shared: PrivateClassifier(**FIT, delta=1e-5, classes=[0, 1], ledger=shared).fit(X, Y),
    "classifier": lambda shared: PrivateClassifier(**FIT, delta=0.1, classes=[0, 1]).fit(X, Y),
    "regressor": lambda shared: isthmus.PrivateRegressor(**FIT, delta=0.1, target_bounds=(0, 1)).fit(X, Y),
    "score": lambda shared: isthmus.private_score(
        PrivateClassifier(**FIT, classes=[0, 1]).fit(X, Y), X, Y, epsilon=1.0, delta=0.1
    ),
    "engine, ledger": trained,
    "engine, target": lambda shared: trained(target=True),
    "get_epsilon": lambda shared: trained().get_epsilon(0.1),
    "statement": lambda shared: trained().statement(0.1),
    "accountant": lambda shared: trained().accountant.get_epsilon(0.1),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_large_delta_is_warned_of_once_wherever_it_is_given(door: str) -> None:
    told = r"delta=0\.1 is at least 1/n, which would allow publishing one of the 50 records"
    with pytest.warns(isthmus.PrivacyBudgetWarning, match=told) as caught:
        DOORS[door](Ledger(budget=(9.0, 0.1)))
    assert len(caught) == 1 and caught[0].filename == __file__


def test_a_large_epsilon_is_warned_of_once() -> None:
    with pytest.warns(
        isthmus.PrivacyBudgetWarning, match="epsilon=50 is above 10 and protects hardly anyone"
    ) as caught:
        PrivateClassifier(**FIT, epsilon=50.0, classes=[0, 1]).fit(X, Y)
    assert len(caught) == 1 and caught[0].filename == __file__


def test_a_delta_of_one_percent_is_large_for_few_records_too() -> None:
    assert large_delta(0.011, 50).startswith("delta=0.011 is the probability that nothing is promised")
    assert large_delta(0.009, 50) == "" != large_delta(0.02, None)


def test_two_releases_of_all_records_are_not_called_a_sample():
    entries = [Laplace(4.0), Laplace(4.0)]
    account = Account(1e-5)
    account.add(joint([entry.event() for entry in entries]), *entries, names=["below", "ranges"], count=3)
    assert not any("sample" in row.what for row in account.statement().releases)


def test_a_table_has_every_release_also_where_nothing_is_private():
    account = Account(1e-5)
    account.add(Exact().event(), Exact(), names=["gradient"], count=7)
    account.add(Gaussian(3.0).event(), Gaussian(3.0), names=["ranges"], count=2)
    assert [(row.what, row.times, row.noise[:4]) for row in account.statement().releases] == [
        ("sum of gradients", 7, "none"),
        ("ranges of the columns", 2, "Gaus"),
    ]


def test_a_table_that_leaves_a_release_out_is_refused():
    account = Account(1e-5)
    account.add(Gaussian(3.0).event(), Gaussian(3.0), names=["gradient"], count=20)
    data = json.loads(account.statement().to_json())
    assert PrivacyStatement.from_json(json.dumps(data)) == account.statement()
    data["releases"][0]["times"] = 19
    with pytest.raises(InvalidInput, match="list all"):
        PrivacyStatement.from_json(json.dumps(data))
