"""Privacy events as JSON and back, without loading an accountant.

An event is written as `{"event": kind, field: value, ...}` with the kinds and field names of
`dp_accounting.dp_event`; an event inside another one is written in its place.  Objects are recognised by the
name of their class, so that a process that only writes never loads `dp_accounting`.

>>> from dp_accounting import dp_event
>>> data = to_json(dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.5)))
>>> data["event"], data["inner"]["noise_multiplier"]
('PoissonSampled', 1.5)
>>> from_json(data)
PoissonSampledDpEvent(sampling_probability=0.01, event=GaussianDpEvent(noise_multiplier=1.5))
"""

from __future__ import annotations

import importlib
import json
import logging
import math
import numbers
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from isthmus.base.validate import refuse

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent as DpEvent
else:
    DpEvent = object
    """What was released, in the accountant's terms: `dp_accounting.dp_event.DpEvent`, which is not loaded for types."""


class _LateModule:
    """A module that is imported at its first attribute."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        logging.getLogger("absl").addFilter(_shown)  # kept where the logger is made before the library writes to it
        self.__dict__[attribute] = value = getattr(importlib.import_module(self._name), attribute)
        return value


def _shown(record: logging.LogRecord) -> bool:
    """Drops the library's word on single Renyi orders it leaves out: the bound from the others holds."""
    return "failed to converge" not in str(record.msg)


dpa: Any = _LateModule("dp_accounting")


@dataclass(frozen=True)
class SkellamDpEvent:
    """Skellam noise on integers, which the library does not know: no worse than Gaussian noise of this multiplier.

    For pairs of neighbours, that is; where a bound looks at three laws at once it is not taken for a Gaussian (see
    `isthmus.privacy.skellam` and `accounting`).
    """

    noise_multiplier: float


Json = dict[str, Any]

_KINDS: dict[str, dict[str, str]] = {
    "NoOp": {},
    "NonPrivate": {},
    "Gaussian": {"noise_multiplier": "scale"},
    "Laplace": {"noise_multiplier": "scale"},
    "Skellam": {"noise_multiplier": "scale"},
    "ZC": {"rho": "scale", "xi": "scale"},
    "MixtureOfGaussians": {"standard_deviation": "scale", "sensitivities": "scales", "sampling_probs": "rates"},
    "PoissonSampled": {"sampling_probability": "rate", "event": "event"},
    "SampledWithoutReplacement": {"source_dataset_size": "count", "sample_size": "count", "event": "event"},
    "SelfComposed": {"event": "event", "count": "count"},
    "Composed": {"events": "events"},
}
_RENAMED = {"event": "inner"}  # "event" is the kind in the JSON form


def canonical(data: object) -> str:
    """The one text of a JSON value: sorted keys, no spaces, ASCII, no NaN or infinity."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


def to_json(event: DpEvent | Mapping[str, object]) -> Json:
    """The JSON form of an event, or of its JSON form (checked again); unknown kinds are refused by name."""
    if isinstance(event, Mapping):
        kind = event.get("event")
        if not isinstance(kind, str) or kind not in _KINDS:
            refuse("event", kind, f"give one of {sorted(_KINDS)}")
        fields = _KINDS[kind]
        expected = {"event", *(_RENAMED.get(name, name) for name in fields)}
        if set(event) != expected:
            refuse(f"the fields of a {kind} event", sorted(map(str, event)), f"give {sorted(expected)}")
        values = {name: event[_RENAMED.get(name, name)] for name in fields}
    else:
        kind = type(event).__name__.removesuffix("DpEvent")
        if kind not in _KINDS or not type(event).__name__.endswith("DpEvent"):
            refuse("event", event, f"give a dp_accounting event of a kind in {sorted(_KINDS)}")
        values = {name: getattr(event, name) for name in _KINDS[kind]}
    return {"event": kind} | {_RENAMED.get(n, n): _plain(n, _KINDS[kind][n], value) for n, value in values.items()}


def from_json(data: Mapping[str, object]) -> DpEvent:
    """The `dp_accounting` event of a JSON form."""
    checked = to_json(data)
    kind = checked.pop("event")
    values = {name: checked[_RENAMED.get(name, name)] for name in _KINDS[kind]}
    for name, form in _KINDS[kind].items():
        if form == "event":
            values[name] = from_json(values[name])
        elif form == "events":
            values[name] = [from_json(value) for value in values[name]]
        elif form in ("scales", "rates"):
            values[name] = tuple(values[name])  # accountants hash events
    if kind == "Skellam":
        return SkellamDpEvent(**values)
    event: DpEvent = getattr(dpa.dp_event, f"{kind}DpEvent")(**values)
    return event


def flatten(data: Json, count: int = 1) -> Iterator[tuple[Json, int]]:
    """The releases a composition stands for, with how often each was made; nothing for a no-op."""
    if data["event"] == "SelfComposed":
        yield from flatten(data["inner"], count * data["count"])
    elif data["event"] == "Composed":
        for event in data["events"]:
            yield from flatten(event, count)
    elif data["event"] != "NoOp":
        yield data, count


def _keyed(data: Json) -> Counter[str]:
    """How often each release of a composition was made, by its canonical text."""
    counts: Counter[str] = Counter()
    for leaf, count in flatten(data):
        counts[canonical(leaf)] += count
    return counts


def _counted(totals: Mapping[str, int]) -> DpEvent:
    """The event of all the releases that `_keyed` counts."""
    return composed((json.loads(key), count) for key, count in totals.items())


def composed(totals: Iterable[tuple[Json, int]]) -> DpEvent:
    """One `dp_accounting` event of all the releases, equal ones counted together."""
    return _one_event((from_json(data), count) for data, count in totals if count)


def _unsampled(leaf: DpEvent) -> tuple[DpEvent, float]:
    """What was released of a sample, and the rate of Poisson sampling, 1 where there is none."""
    return getattr(leaf, "event", leaf), getattr(leaf, "sampling_probability", 1.0)


def _one_event(counted: Iterable[tuple[DpEvent, int]]) -> DpEvent:
    """All of these events, each so many times, as one."""
    events = []
    for event, count in counted:
        if count > 1:
            event = dpa.SelfComposedDpEvent(event, count)
        events.append(event)
    if not events:
        return dpa.NoOpDpEvent()
    if len(events) == 1:
        return events[0]
    return dpa.ComposedDpEvent(events)


def _words(leaf: Json) -> str:
    """The noise of a single release in words: an event knows what it cost, not what it was.

    >>> _words({"event": "Laplace", "noise_multiplier": 2.0})
    'Laplace noise of 2 times the most one record can add'
    """
    kind = leaf["event"]
    if "inner" in leaf:
        return _words(leaf["inner"])
    if kind in ("Gaussian", "Laplace"):
        return f"{kind} noise of {multiples(leaf['noise_multiplier'])}"
    if kind == "Skellam":
        much = multiples(leaf["noise_multiplier"])
        return f"Skellam noise (whole numbers) that hides as much as Gaussian noise of {much}"
    if kind == "ZC":
        return f"randomness that satisfies {leaf['rho']:.4g}-zCDP"
    if kind == "MixtureOfGaussians":
        return f"Gaussian noise of standard deviation {leaf['standard_deviation']:.4g}"
    if kind == "NonPrivate":
        return "none"
    return f"that of several releases ({kind})"


def multiples(multiplier: float) -> str:
    """A noise multiplier in words: the scale of the noise relative to the bound of one record."""
    return f"{multiplier:.4g} times the most one record can add"


def _sampling_words(leaf: Json) -> str:
    """How a single release took its records."""
    if leaf["event"] == "PoissonSampled":
        return f"each record independently with probability {leaf['sampling_probability']:g} (Poisson sampling)"
    if leaf["event"] == "SampledWithoutReplacement":
        return f"{leaf['sample_size']} of {leaf['source_dataset_size']} records without replacement"
    if leaf["event"] == "MixtureOfGaussians":
        return "a random sample; how often a record is in it is part of the event"
    return "every release looks at all records"


def _plain(name: str, form: str, value: object) -> object:
    """A field as JSON holds it, in its range."""
    if form == "event":
        return to_json(value)
    if form in ("events", "scales", "rates"):
        if not isinstance(value, Iterable) or isinstance(value, (str, Mapping)):
            refuse(name, value, "give a list")
        return [_plain(name, form.removesuffix("s"), item) for item in value]
    if form == "count":
        if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < 1:
            refuse(name, value, "give a whole number of at least 1")
        return int(value)
    most, remedy = math.nextafter(math.inf, 0), "give a finite number of at least 0"
    if form == "rate":
        most, remedy = 1.0, "give a number from 0 to 1"
    if not isinstance(value, numbers.Real) or isinstance(value, bool) or not 0 <= float(value) <= most:
        refuse(name, value, remedy)
    return float(value)
