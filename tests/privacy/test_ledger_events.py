"""Events as JSON: every kind survives, equal events are one, and what cannot be written is refused."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event as E

from isthmus.base.validate import InvalidInput
from isthmus.privacy.event_json import canonical, composed, flatten, from_json, to_json
from isthmus.privacy.ledger import Ledger

GAUSSIAN = E.GaussianDpEvent(40.0)
EVENTS = [
    E.NoOpDpEvent(),
    E.NonPrivateDpEvent(),
    E.GaussianDpEvent(0.1 + 0.2),
    E.LaplaceDpEvent(1 / 3),
    E.ZCDpEvent(rho=0.01, xi=0.5),
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


@pytest.mark.parametrize(
    ("event", "message"),
    [
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
    ],
)
def test_events_that_cannot_be_written_are_refused(event: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Ledger().run({"main": event})
