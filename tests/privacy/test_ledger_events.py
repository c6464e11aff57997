"""Events as JSON: every kind survives, equal events are one, and what cannot be written is refused."""

import json
import math
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event as E
from refusals import refuses

from isthmus.base.validate import InvalidInput
from isthmus.privacy import event_json
from isthmus.privacy.event_json import _sampling_words, _words, canonical, composed, flatten, from_json, to_json
from isthmus.privacy.ledger import BudgetExceeded, Ledger

GAUSSIAN = E.GaussianDpEvent(40.0)
EVENTS = [
    E.NoOpDpEvent(),
    E.NonPrivateDpEvent(),
    E.GaussianDpEvent(0.1 + 0.2),
    E.LaplaceDpEvent(1 / 3),
    E.ZCDpEvent(rho=0.01, xi=0.5),
    E.PoissonSampledDpEvent(0.5, event_json.SkellamDpEvent(4.0)),
    E.MixtureOfGaussiansDpEvent(2.0, (0.0, 1.0, 2.0), (0.7, 0.2, 0.1)),
    E.PoissonSampledDpEvent(0.01, E.GaussianDpEvent(1.1)),
    E.PoissonSampledDpEvent(0.3, E.LaplaceDpEvent(5.0)),
    E.SampledWithoutReplacementDpEvent(10_000, 100, E.GaussianDpEvent(2.0)),
    E.SelfComposedDpEvent(E.PoissonSampledDpEvent(0.01, E.GaussianDpEvent(1.1)), 7),
    E.ComposedDpEvent([E.GaussianDpEvent(1.0), E.SelfComposedDpEvent(E.LaplaceDpEvent(2.0), 3), E.NoOpDpEvent()]),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: type(e).__name__)
def test_events_survive_json(event: Any) -> None:
    data = to_json(event)
    again = json.loads(canonical(data))
    assert again == data and to_json(again) == data
    assert from_json(again) == event
    ledger = Ledger()
    ledger.pay("it", event)
    assert composed(flatten(data)) == ledger.event()


def test_numbers_of_any_type_give_one_event() -> None:
    assert to_json(E.GaussianDpEvent(2)) == to_json(E.GaussianDpEvent(np.float32(2))) == to_json(E.GaussianDpEvent(2.0))


test_events_that_cannot_be_written_are_refused = refuses(
    (E.UnsupportedDpEvent(), "give a dp_accounting event"),
    (E.RandomizedResponseDpEvent(0.1, 3), "give a dp_accounting event"),
    (None, "give a dp_accounting event"),
    ({"event": "Cauchy"}, "give one of"),
    ({"event": "Gaussian"}, "the fields of a Gaussian event"),
    ({"event": "Gaussian", "noise_multiplier": 1.0, "more": 2}, "the fields of a Gaussian event"),
    (E.GaussianDpEvent(math.inf), "noise_multiplier=inf"),
    (E.GaussianDpEvent(math.nan), "noise_multiplier=nan"),
    (E.LaplaceDpEvent(-1.0), "noise_multiplier=-1.0"),
    (E.PoissonSampledDpEvent(1.5, GAUSSIAN), "sampling_probability=1.5"),
    (E.SelfComposedDpEvent(GAUSSIAN, 0), "count=0"),
    (E.SelfComposedDpEvent(GAUSSIAN, 2.5), "count=2.5"),
    (E.ComposedDpEvent([GAUSSIAN, E.UnsupportedDpEvent()]), "give a dp_accounting event"),
    by=lambda event: Ledger().run({"main": event}),
)


def test_a_mixture_says_that_its_sample_is_part_of_it() -> None:
    mixture = to_json(E.MixtureOfGaussiansDpEvent(2.0, (0.0, 1.0), (0.9, 0.1)))
    assert _words(mixture) == "Gaussian noise of standard deviation 2"
    assert "how often a record is in it is part of the event" in _sampling_words(mixture)


@pytest.mark.parametrize("scales", ["12", {"a": 1.0}, 3.0])
def test_a_list_of_scales_is_a_list(scales: Any) -> None:
    event = {"event": "MixtureOfGaussians", "standard_deviation": 1.0, "sensitivities": scales, "sampling_probs": [1.0]}
    with pytest.raises(InvalidInput, match="give a list"):
        to_json(event)


def test_a_shared_budget_counts_what_its_runs_count() -> None:
    shared = Ledger(budget=(1.0, 1e-5))
    with pytest.raises(InvalidInput, match="give add-remove, which the shared budget counts"):
        Ledger(adjacency="replace-one", shared=shared)
    run = Ledger(shared=shared, label="fit", planned=[E.GaussianDpEvent(6.0)])
    run.require(GAUSSIAN)
    with pytest.raises(BudgetExceeded, match="'fit' needs"):
        run.require(E.GaussianDpEvent(4.5))
    shared.require(E.GaussianDpEvent(4.5))  # by itself, without what was planned for afterwards
