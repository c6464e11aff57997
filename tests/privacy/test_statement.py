"""The privacy statement: right numbers, words that say all of it, and no promise where none holds."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from dp_accounting import dp_event as E

from isthmus.base.validate import InvalidInput
from isthmus.privacy.accounting import Adjacency
from isthmus.privacy.statement import SEEDED, PrivacyStatement, _rounded_up

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


@pytest.mark.parametrize(
    ("event", "adjacency", "n", "epsilon", "accountant"),
    [  # tolerance 1e-3: the discretisation of privacy-loss distributions
        (POISSON, Adjacency.ADD_REMOVE, None, 0.81577, "privacy-loss distributions (the library dp"),
        (POISSON, Adjacency.REPLACE_ONE, None, 1.69737, "privacy-loss distributions of the pair"),
        (WITHOUT, Adjacency.REPLACE_ONE, 10_000, 1.44530, "Renyi"),
        (E.GaussianDpEvent(1.0), Adjacency.ADD_REMOVE, None, 4.377178, "exact curve"),
        (E.GaussianDpEvent(2.0), Adjacency.REPLACE_ONE, None, 4.377178, "exact curve"),
        (E.NoOpDpEvent(), Adjacency.ADD_REMOVE, None, 0.0, "exact curve"),
    ],
)
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
        f"epsilon = {_rounded_up(statement.epsilon)} ",
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
    assert f"epsilon={_rounded_up(statement.epsilon)}" in str(statement)


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
def test_numbers_are_rounded_up(value: float) -> None:
    shown = float(_rounded_up(value))
    assert value <= shown * (1 + 1e-15) and shown <= value * 1.0011


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"private": False}, "private"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"adjacency": "neighbours"}, "adjacency"),
        ({"n": 0}, "n=0"),
    ],
)
def test_contradictions_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        replace(PrivacyStatement.of(POISSON, 1e-5), **change)


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
