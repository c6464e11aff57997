"""The plan of a budget: one split of (epsilon, delta) over everything a run releases.

The plan builds both the mechanism that runs and the event that is accounted from the same number, so what is
accounted is what runs.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import lru_cache
from typing import Any

from isthmus.base import class_registry, storage, validate
from isthmus.privacy import accounting
from isthmus.privacy.accounting import Adjacency, _Relation, noise_multiplier
from isthmus.privacy.event_json import DpEvent, dpa
from isthmus.privacy.mechanisms import DiscreteGaussian, Gaussian, Laplace, Mechanism, NoisyMax, TopK
from isthmus.privacy.sampling import FixedSize, FullBatch, Poisson
from isthmus.privacy.skellam import Skellam


def default_delta(n: int) -> float:
    """`min(1e-5, n^-1.1)`: below 1/n for any public number n of records, and never generous.

    >>> default_delta(100), f"{default_delta(10**6):.3g}"
    (1e-05, '2.51e-07')
    """
    validate.positive_int(n=n)
    return min(1e-5, math.pow(n, -1.1))


def mu_of(epsilon: float, delta: float, adjacency: _Relation = Adjacency.ADD_REMOVE) -> float:
    """The Gaussian-DP parameter mu of a budget: one release of multiplier 1 / mu spends all of it.

    >>> round(1 / mu_of(1.0, 1e-5), 4), round(1 / mu_of(1.0, 1e-5, Adjacency.REPLACE_ONE), 4)
    (3.7306, 7.4613)
    """
    return 1 / noise_multiplier(epsilon=epsilon, delta=delta, adjacency=adjacency)


def split(z: float, *shares: float) -> tuple[float, ...]:
    """`z / sqrt(share)` for each share: releases of one sample that together cost what one of multiplier z costs.

    >>> split(3.0, 0.25, 0.75)[0]
    6.0
    """
    total = math.fsum(shares)
    validate.check(abs(total - 1) < 1e-9, "shares", shares, "give shares that add up to 1")
    for share in shares:
        validate.probability(share=share)
    return tuple(z / math.sqrt(share) for share in shares)


FORMAT = "isthmus-privacy-plan-1"
"""What a plan's JSON says that it is; one without a format was written before formats had names."""

_SAMPLERS: dict[str, type[FullBatch | Poisson | FixedSize]] = {
    sampler.__name__: sampler for sampler in (FullBatch, Poisson, FixedSize)
}


@dataclass(frozen=True)
class Charge:
    """One thing that is released again and again: its mechanism, its sampler, how often, its share of the budget.

    `mechanism` is one whose noise the plan sets, whatever it is now.  `share` is a share of `mu^2`, the budget in which
    costs add up; shares of a plan sum to 1.  Charges of one `stage` look at the same sample and are accounted jointly.

    >>> Charge("gradient", rounds=100, sampler=Poisson(0.1)).mechanism.with_number(2.0)
    Gaussian(multiplier=2.0)
    """

    name: str
    mechanism: Mechanism = Gaussian(1.0)
    rounds: int = 1
    share: float = 1.0
    sampler: FullBatch | Poisson | FixedSize = field(default_factory=FullBatch)
    stage: str | None = None

    def __post_init__(self) -> None:
        validate.positive_int(rounds=self.rounds)
        validate.probability(share=self.share)
        is_sampler = isinstance(self.sampler, tuple(_SAMPLERS.values()))
        validate.check(is_sampler, "sampler", self.sampler, f"choose one of {sorted(_SAMPLERS)}")
        mechanism = self.mechanism
        remedy = "give a Mechanism, such as Gaussian(1.0)"
        validate.check(isinstance(mechanism, Mechanism), "mechanism", mechanism, remedy)
        remedy = "give a private mechanism: this one adds no noise, so no budget can be spent on it"
        validate.check(mechanism.private, "mechanism", mechanism, remedy)
        validate.check(type(mechanism).__hash__ is not None, "mechanism", mechanism, "make it a frozen dataclass")
        mechanism.with_number(mechanism.number)

    def number_at(self, scale: float) -> float:
        """The multiplier, or a selection's epsilon, that spends `share / scale^2` of `mu^2` in all its rounds.

        A round at rate q and multiplier z spends `(q / z)^2` to first order, a selection `k epsilon^2 / 4`.
        """
        return self.mechanism.spending(math.sqrt(self.share / self.rounds) / scale, self.sampler.rate).number


@dataclass(frozen=True)
class PrivacyPlan:
    """A budget and its split: all items together cost `epsilon` at `delta`, and no more.

    One scale is found so that the whole run, with every item's noise in proportion to its share, costs exactly
    epsilon under the accountant (from below, within 0.01 %).

    >>> plan = PrivacyPlan(epsilon=1.0, delta=1e-5, items=[Charge("gradient", rounds=1000)])
    >>> round(plan.multiplier("gradient"), 2), plan.mechanism("gradient").private
    (117.97, True)
    """

    epsilon: float
    delta: float
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    items: Sequence[Charge] = ()
    numbers: Mapping[str, float] = field(default=None, hash=False)  # type: ignore[arg-type]  # filled in

    def __post_init__(self) -> None:
        validate.positive(epsilon=self.epsilon)
        validate.open_unit(delta=self.delta)
        object.__setattr__(self, "items", tuple(self.items))
        object.__setattr__(self, "adjacency", Adjacency.of(self.adjacency))
        _check_items(self.items)
        if self.numbers is None:
            total = math.fsum(item.share for item in self.items)
            validate.check(abs(total - 1) < 1e-9, "share", total, "give shares that add up to 1")
            prices = tuple(repr(item.mechanism.event()) for item in self.items)  # equal mechanisms may differ in them
            scale = _scale(self.items, prices, self.epsilon, self.delta, self.adjacency)
            object.__setattr__(self, "numbers", _numbers_at(self.items, scale))
        else:
            names = [item.name for item in self.items]
            remedy = f"give one number for each of {names}"
            validate.check(set(self.numbers) == set(names), "numbers", sorted(self.numbers), remedy)
            validate.positive(**{f"numbers[{name!r}]": value for name, value in self.numbers.items()})
            object.__setattr__(self, "numbers", dict(self.numbers))
        spent = accounting.epsilon_of(self.total(), self.delta, self.adjacency)  # of calibrated ones it is remembered
        remedy = f"give at least {spent:.6g}, which these items cost at delta"
        validate.check(spent <= self.epsilon, "epsilon", self.epsilon, remedy)

    @property
    def mu(self) -> float:
        """The Gaussian-DP parameter of the whole budget."""
        return mu_of(self.epsilon, self.delta, self.adjacency)

    def multiplier(self, name: str) -> float:
        """The noise multiplier of an item; of a selection, the epsilon of one round."""
        return self.numbers[self.item(name).name]

    def mechanism(self, name: str) -> Mechanism:
        """The mechanism that runs."""
        return self.item(name).mechanism.with_number(self.multiplier(name))

    def total(self) -> DpEvent:
        """The event of the whole run, the items of one stage jointly."""
        return _total(self.items, self.numbers)

    def item(self, name: str) -> Charge:
        """The item of that name."""
        items = {item.name: item for item in self.items}
        validate.check(name in items, "name", name, f"name an item of the plan, which are {list(items)}")
        return items[name]

    def to_json(self) -> str:
        """The plan as text: what `from_json` reads, where the mechanisms of one's own are imported."""
        items = [
            {
                **asdict(item),
                "mechanism": _written(item.mechanism),
                "sampler": {"kind": type(item.sampler).__name__, **asdict(item.sampler)},
            }
            for item in self.items
        ]
        record = {"format": FORMAT, "epsilon": self.epsilon, "delta": self.delta}
        record |= {"numbers": self.numbers, "adjacency": self.adjacency.value, "items": items}
        return json.dumps(record, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> PrivacyPlan:
        """The plan from its text; its items are accounted again, so a text that under-reports is refused."""
        with validate.reading("text", text, "give what PrivacyPlan.to_json wrote"):
            return cls._from(json.loads(text))

    @classmethod
    def _from(cls, record: dict[str, Any]) -> PrivacyPlan:
        validate.known_format("plan", record.get("format", FORMAT), [FORMAT])
        items = []
        for entry in record["items"]:
            sampler, mechanism = dict(entry.pop("sampler")), _read(entry.pop("mechanism"))
            options = entry.pop("k", 1), entry.pop("grid", None)
            if not isinstance(mechanism, Mechanism):
                mechanism = _of_earlier(mechanism, *options)
            validate.one_of(_SAMPLERS, sampler=sampler["kind"])
            items.append(Charge(**entry, mechanism=mechanism, sampler=_SAMPLERS[sampler.pop("kind")](**sampler)))
        adjacency = Adjacency(record["adjacency"])
        return cls(record["epsilon"], record["delta"], adjacency, items, record["numbers"])


@lru_cache(maxsize=1024)
def _scale(
    items: tuple[Charge, ...], prices: tuple[str, ...], epsilon: float, delta: float, adjacency: Adjacency
) -> float:
    """The scale at which all items cost epsilon: planning and running, or fitting again, asks the accountant once."""
    guess = 1 / mu_of(epsilon, delta, adjacency)
    smallest = min((item.number_at(guess) for item in items if not item.mechanism.selects), default=1.0)
    most = guess * max(1.0, 0.4 / smallest)
    return accounting.calibrate(lambda scale: _total(items, _numbers_at(items, scale)), epsilon, delta, adjacency, most)


def _numbers_at(items: Sequence[Charge], scale: float) -> dict[str, float]:
    return {item.name: item.number_at(scale) for item in items}


def _written(value: Any) -> Any:
    """A mechanism as JSON holds it: the address of its class and its fields."""
    if isinstance(value, Mechanism):
        mechanism: Any = value
        remedy = "make it a frozen dataclass, whose fields can be written"
        validate.check(is_dataclass(mechanism), "mechanism", value, remedy)
        own = {name: _written(inner) for name, inner in storage.fields_of(mechanism).items()}
        return {"class": class_registry.address(type(value)), "fields": own}
    if isinstance(value, tuple):
        return [_written(item) for item in value]
    remedy = "use a mechanism whose fields are numbers, texts or mechanisms: a plan is written with those"
    validate.check(value is None or isinstance(value, (str, int, float)), "mechanism", value, remedy)
    return value


def _read(data: Any) -> Any:
    """What was written; a class is looked up among those of this process, and nothing is imported for a text."""
    if isinstance(data, list):
        return tuple(_read(item) for item in data)
    if not isinstance(data, dict):
        return data
    kind = class_registry.imported(Mechanism, data["class"], "mechanism")  # type: ignore[type-abstract]
    if "fields" not in data:
        return kind
    return kind(**{name: _read(value) for name, value in data["fields"].items()})


def _of_earlier(kind: str | type[Mechanism], k: int, grid: float) -> Mechanism:
    """The mechanism of a plan of an earlier version: a short name, with its options beside it, or a class."""
    if isinstance(kind, type):
        return kind(**{kind.noise_parameter: 1.0})
    on_grid: dict[str, type[DiscreteGaussian | Skellam]] = {"discrete-gaussian": DiscreteGaussian, "skellam": Skellam}
    if kind in on_grid:
        return on_grid[kind](1.0, grid)
    return {"gaussian": Gaussian(1.0), "laplace": Laplace(1.0), "noisy-max": NoisyMax(1.0), "top-k": TopK(k, 1.0)}[kind]


def _total(items: Sequence[Charge], numbers: Mapping[str, float]) -> DpEvent:
    stages: dict[tuple[str | None, str], list[Charge]] = {}
    for item in items:
        stages.setdefault((item.stage, item.name if item.stage is None else ""), []).append(item)
    events = []
    for group in stages.values():
        together = accounting.joint(item.mechanism.with_number(numbers[item.name]).event() for item in group)
        events.append(dpa.SelfComposedDpEvent(group[0].sampler.event(together), group[0].rounds))
    return accounting.compose(events)


def _check_items(items: Sequence[Charge]) -> None:
    names = [item.name for item in items]
    validate.check(len(names) > 0, "items", names, "give at least one item")
    validate.check(len(set(names)) == len(names), "items", names, "give each item its own name")
    for first, item in itertools.combinations(items, 2):
        same = (first.sampler, first.rounds) == (item.sampler, item.rounds) or item.stage is None
        remedy = "give the items of one stage the same sampler and number of rounds"
        validate.check(same or first.stage != item.stage, "stage", item.stage, remedy)
