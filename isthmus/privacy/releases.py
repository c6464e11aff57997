"""What was released, as a small table: what, how often, with how much noise.

>>> print(as_text([Released("sum of gradients", 100, "Gaussian noise of 4 times the most one record can add")]))
  what              how often  noise
  sum of gradients  100 times  Gaussian noise of 4 times the most one record can add
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from isthmus.base import validate
from isthmus.privacy import event_json
from isthmus.privacy.event_json import Json

HEAD = ("what", "how often", "noise")
_SAMPLED = "over a random sample"
_BY_CHANCE = ("PoissonSampled", "SampledWithoutReplacement", "MixtureOfGaussians")
_WORDS = {
    "gradient": "sum of gradients",
    "anchor": "sum of gradients at an anchor",
    "difference": "sum of gradients less those at the anchor",
    "code": "sum of gradients within the public directions",
    "rest": "sum of what gradients have outside the public directions",
    "vertex": "corner of the set to move to",
    "choose": "coordinates to update",
    "below": "number of gradients shorter than the clip bound",
    "ranges": "ranges of the columns",
    "targets": "range of the target",
    "classes": "number of records of each class",
    "scale": "scales of the columns",
    "lambda": "largest eigenvalue of X'X, for the step size",
    "statistics": "X'X and X'y, for the start and the step",
    "shapes": "histograms of the columns",
    "target shape": "histogram of the target",
    "directions": "main directions of the rows",
    "choice": "choice of the best candidate",
    "selection": "choice of the best candidate",
    "main": "rounds of a training",
    "test ranges": "figures of the test rows",
    "test figures": "figures of the test rows",
}


@dataclass(frozen=True)
class Released:
    """One line of the table: what was released, how many times, and what hides it."""

    what: str
    times: int
    noise: str

    def __post_init__(self) -> None:
        validate.positive_int(times=self.times)
        for name in ("what", "noise"):
            value = getattr(self, name)
            validate.check(isinstance(value, str) and value != "", name, value, "give a text of a few words")

    @property
    def cells(self) -> tuple[str, str, str]:
        """The three cells as text."""
        return self.what, "once" if self.times == 1 else f"{self.times:,} times", self.noise


def named(name: str, sampled: bool = False) -> str:
    """A reader's words for the name of a release; one that is not known stays as it is.

    >>> named("gradient", sampled=True), named("my own")
    ('sum of gradients over a random sample', 'my own')
    """
    words = _WORDS.get(name, name)
    return f"{words} {_SAMPLED}" if sampled else words


def charged(name: str) -> str:
    """A reader's words for what a ledger was charged for; of several runs that share it, with the run's label.

    >>> charged("test figures"), charged("census-1/main")
    ('figures of the test rows', 'rounds of a training (census-1)')
    """
    label, _, what = name.rpartition("/")
    words = named(what)
    return f"{words} ({label})" if label else words


def of_event(data: Json, times: int = 1) -> list[Released]:
    """The releases of an event: it knows what they cost and how records were taken, not what they were.

    >>> of_event({"event": "Gaussian", "noise_multiplier": 2.0})[0].cells
    ('value from all records', 'once', 'Gaussian noise of 2 times the most one record can add')
    """
    rows = []
    for leaf, count in event_json.flatten(data):
        what = "value from a random sample of the records" if of_a_sample(leaf) else "value from all records"
        rows.append(Released(what, count * times, event_json.words(leaf)))
    return rows


def of_a_sample(data: Json) -> bool:
    """Whether all that an event is made of saw a random sample; a rate of 1 is no chance.

    >>> one = {"event": "Gaussian", "noise_multiplier": 2.0}
    >>> of_a_sample({"event": "SelfComposed", "inner": one, "count": 2})
    False
    >>> [of_a_sample({"event": "PoissonSampled", "inner": one, "sampling_probability": p}) for p in (0.5, 1.0)]
    [True, False]
    """
    leaves = [leaf for leaf, _ in event_json.flatten(data)]
    chance = [leaf["event"] in _BY_CHANCE and leaf.get("sampling_probability") != 1 for leaf in leaves]
    return bool(chance) and all(chance)


def together(rows: Iterable[Released]) -> tuple[Released, ...]:
    """Equal releases counted together, in the order in which they first occur."""
    counts: Counter[tuple[str, str]] = Counter()
    for row in rows:
        counts[row.what, row.noise] += row.times
    return tuple(Released(what, times, noise) for (what, noise), times in counts.items())


def as_text(rows: Sequence[Released]) -> str:
    """The table in columns of text."""
    lines = [HEAD, *(row.cells for row in rows)]
    wide = [max(len(line[i]) for line in lines) for i in (0, 1)]
    return "\n".join(f"  {what:{wide[0]}}  {often:{wide[1]}}  {noise}" for what, often, noise in lines)


def to_json(rows: Iterable[Released]) -> list[dict[str, Any]]:
    """The table as JSON holds it."""
    return [asdict(row) for row in rows]


def from_json(data: Any) -> tuple[Released, ...]:
    """The table that `to_json` wrote."""
    fields = {"what", "times", "noise"}
    good = isinstance(data, list) and all(isinstance(row, dict) and set(row) == fields for row in data)
    validate.check(good, "releases", data, f"give a list of objects with the fields {sorted(fields)}")
    return tuple(Released(**row) for row in data)
