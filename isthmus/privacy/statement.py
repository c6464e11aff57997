"""The privacy statement: what a run promises, in numbers and in words that can be handed to someone else.

>>> from dp_accounting import dp_event
>>> from isthmus.privacy.adjacency import Adjacency
>>> event = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.5)), 1000)
>>> statement = PrivacyStatement.of(event, 1e-5, Adjacency.ADD_REMOVE, assumptions=["one record per person"])
>>> print(statement)
(epsilon=0.9176, delta=1e-05)-differentially private, adding or removing one record
>>> print(statement.words().splitlines()[0])
The released results are differentially private with epsilon = 0.9176 and delta = 1e-05.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields

from isthmus.base import validate
from isthmus.privacy import accounting, event_json
from isthmus.privacy.adjacency import Adjacency
from isthmus.privacy.event_json import Json
from isthmus.privacy.leaks import large_delta
from isthmus.privacy.library import DpEvent, dpa
from isthmus.privacy.mechanisms import Mechanism, words_of
from isthmus.privacy.noise import SECRET, SEEDED

ROUNDING = (
    "It is scaled to the most that one record can move a sum as it was computed, rounding included (at most 0.1 % more "
    "than its clip bound for linear models and codes of a sketch, 5 % for whole gradients of a network)."
)
_ROUTES = {
    "pld": "privacy-loss distributions (dp-accounting)",
    "pair": "privacy-loss distributions of the pair -C, +C (dp-accounting)",
    "rdp": "Renyi differential privacy (dp-accounting)",
}


@dataclass(frozen=True)
class PrivacyStatement:
    """What was promised to the people in the data, and on what it rests.

    `epsilon` is what holds: infinite where nothing does, as with seeded noise, whose releases anyone who knows the
    seed can undo.  `nominal` is the epsilon that the same releases have under secret noise.  `event` is the JSON form
    of everything released, `released` its words where the mechanisms that ran have brought them; `n` is the number of
    records, given only where that is public.  `leaks` is what was read off the data and not paid for: epsilon does not
    cover it, and the words say so before anything else that they rest on.

    | case | private | epsilon | nominal |
    |---|---|---|---|
    | secret noise | True | by the accountant | the same |
    | seeded noise | False | inf | by the accountant |
    | something released as it is | False | inf | inf |
    """

    epsilon: float
    delta: float
    adjacency: Adjacency
    sampler: str
    event: Json
    private: bool
    nominal: float
    noise: str = SECRET
    n: int | None = None
    assumptions: tuple[str, ...] = ()
    guarantee: str = ""
    accountant: str = ""
    leaks: tuple[str, ...] = ()
    released: str = ""

    def __post_init__(self) -> None:
        validate.open_unit(delta=self.delta)
        object.__setattr__(self, "adjacency", Adjacency.of(self.adjacency))
        for name in ("epsilon", "nominal"):
            value = getattr(self, name)
            validate.check(value >= 0, name, value, "give a number >= 0, or infinity")
        validate.check(
            self.private == math.isfinite(self.epsilon), "private", self.private, "private means a finite epsilon"
        )
        if self.n is not None:
            validate.positive_int(n=self.n)
        validate.check(
            self.n_public or not _sizes(self.event),
            "n",
            self.n,
            "the event states the number of records: give it as n, it is public",
        )

    @property
    def n_public(self) -> bool:
        """Whether the number of records is public."""
        return self.n is not None

    @classmethod
    def of(
        cls,
        event: DpEvent | Json,
        delta: float,
        adjacency: Adjacency = Adjacency.ADD_REMOVE,
        *,
        seeded: bool = False,
        n: int | None = None,
        sampler: str = "",
        assumptions: Iterable[str] = (),
        guarantee: str = "",
        noise: str = SECRET,
        leaks: Iterable[str] = (),
        released: str = "",
    ) -> PrivacyStatement:
        """The statement of an event (or its JSON form), its epsilon by the accountant.

        `seeded` says that the noise came from a seed.  `guarantee` says, for a mechanism run as it was published, what
        that mechanism really gives; `sampler` and `released` replace the words drawn from the event, which knows what
        a release costs and not what it was; `noise` is what the run's source says of itself.

        >>> from dp_accounting import dp_event
        >>> print(PrivacyStatement.of(dp_event.GaussianDpEvent(1.0), 1e-5, seeded=True))
        not private (seeded noise: not private)
        """
        data = event_json.to_json(event)
        built = event_json.from_json(data)
        nominal = accounting.epsilon_of(built, delta, adjacency)
        private = math.isfinite(nominal) and not seeded
        return cls(
            epsilon=nominal if private else math.inf,
            delta=delta,
            adjacency=adjacency,
            sampler=sampler or _sampler_words(data),
            event=data,
            private=private,
            nominal=nominal,
            noise=SEEDED if seeded else noise,
            n=n,
            assumptions=tuple(assumptions),
            guarantee=guarantee,
            accountant=_accountant_words(built, adjacency) if math.isfinite(nominal) else "none",
            leaks=tuple(dict.fromkeys(leaks)),
            released=released,
        )

    def words(self) -> str:
        """The statement in plain English, a few short paragraphs."""
        parts = [self._promise(), *self._leaked(), self._made_of()]
        if self.guarantee:
            parts.append(
                f"The mechanism was run as it was published. What it really gives: {self.guarantee.rstrip('.')}."
            )
        parts.append(self._rests_on())
        return "\n\n".join(parts)

    def _promise(self) -> str:
        if not self.private:
            reason = (
                "The noise was drawn from a seed (seeded noise: not private): whoever knows the seed can subtract it. "
                f"With secret noise the same releases would have {self._numbers(self.nominal)}, counted for "
                f"{self.adjacency.describe()}."
                if self.noise == SEEDED and math.isfinite(self.nominal)
                else "Something computed from the data was released without noise that hides it."
            )
            return (
                f"The released results are NOT private: no finite epsilon holds (epsilon = inf at delta = "
                f"{self.delta:g}).\n{reason}"
            )
        factor = _rounded_up(math.exp(self.epsilon)) if self.epsilon < 700 else "more than 1e304"
        return (
            f"The released results are differentially private with {self._numbers(self.epsilon)}.\n"
            f"Protected against is {self.adjacency.describe()}: doing so changes the probability of any "
            f"outcome by a factor of at most exp(epsilon) = {factor}, plus at most delta. "
            "This holds whatever else the reader of the results knows, and whatever is computed from them later."
            f"{self._cautioned()}"
        )

    def _cautioned(self) -> str:
        found = large_delta(self.delta, self.n)
        return f"\nThis promise is close to none: {found}." if found else ""

    def _leaked(self) -> list[str]:
        if not self.leaks:
            return []
        head = "Epsilon does NOT cover the following, which was read off the data and not paid for:"
        return ["\n".join([head, *(f"- {each}" for each in self.leaks)])]

    def _made_of(self) -> str:
        records = (
            f"The number of records, {self.n}, is public."
            if self.n_public
            else "The number of records is not published."
        )
        released = self.released or _event_words(self.event)
        return (
            f"What was released: {released}. Records were taken as follows: {self.sampler}. "
            f"Noise: {self.noise}. {ROUNDING} {records} Epsilon was computed by: {self.accountant}."
        )

    def _rests_on(self) -> str:
        if not self.assumptions:
            return "Assumptions: none beyond the above."
        return "It rests on these assumptions:\n" + "\n".join(f"- {each}" for each in self.assumptions)

    def _numbers(self, epsilon: float) -> str:
        return f"epsilon = {_rounded_up(epsilon)} and delta = {self.delta:g}"

    def to_json(self) -> str:
        """The statement as one line of JSON; infinity is written as the string "inf"."""
        data = {each.name: getattr(self, each.name) for each in fields(self)}
        data |= {"adjacency": self.adjacency.value, "n_public": self.n_public}
        data |= {"assumptions": list(self.assumptions), "leaks": list(self.leaks)}
        data |= {name: "inf" if math.isinf(data[name]) else data[name] for name in ("epsilon", "nominal")}
        return event_json.canonical(data)

    @classmethod
    def from_json(cls, text: str) -> PrivacyStatement:
        """The statement that `to_json` wrote."""
        with validate.reading("text", text, "give what PrivacyStatement.to_json wrote"):
            return cls._from(json.loads(text))

    @classmethod
    def _from(cls, told: Json) -> PrivacyStatement:
        data = {"leaks": (), "released": ""} | told
        n_public = data.pop("n_public", None)
        names = {each.name for each in fields(cls)}
        validate.check(set(data) == names, "text", sorted(data), f"a statement has the fields {sorted(names)}")
        validate.check(n_public == (data["n"] is not None), "n_public", n_public, "it is public where n is given")
        texts = [name for name in ("sampler", "noise", "guarantee", "accountant", "released") if name in data]
        for name, value in [*((name, data[name]) for name in texts), *_lines(data)]:
            validate.check(isinstance(value, str), name, value, "give text")
        data |= {"adjacency": Adjacency(data["adjacency"]), "event": event_json.to_json(data["event"])}
        data |= {"epsilon": float(data["epsilon"]), "nominal": float(data["nominal"])}
        return cls(**data | {name: tuple(data[name]) for name in ("assumptions", "leaks")})

    def __str__(self) -> str:
        if not self.private:
            return f"not private ({self.noise if self.noise == SEEDED else 'released without noise'})"
        numbers = f"epsilon={_rounded_up(self.epsilon)}, delta={self.delta:g}"
        beside = f", but for {len(self.leaks)} fact(s) read off the data" if self.leaks else ""
        return f"({numbers})-differentially private, {self.adjacency.describe()}{beside}"

    def __hash__(self) -> int:
        return hash(self.to_json())


@dataclass
class Account:
    """Everything that one statement is about: releases, added as they are known, and what is to be said of them.

    A mechanism's words, source of noise and guarantee are its own.  One release without a guarantee is all that is
    left to say of an event: nothing beside it is private.

    seeded    whether any of the noise came from a seed
    samplers  how records were taken, and `sources`, where the noise came from, in words
    released  words for all the releases, where they were told before

    >>> from isthmus.privacy import Gaussian
    >>> account = Account(1e-5, assumptions=["one record per person"])
    >>> account.add(Gaussian(4.0).event(), Gaussian(4.0), count=2, sampler="every record, twice", noise=SECRET)
    >>> account.statement().words().split("What was released: ")[1][:87]
    '2 x Gaussian noise of 4 times the bound of one record. Records were taken as follows: e'
    """

    delta: float
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    n: int | None = None
    seeded: bool = False
    assumptions: Sequence[str] = ()
    leaks: Sequence[str] = ()
    samplers: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    guarantees: list[str] = field(default_factory=list)
    released: str = ""
    _events: list[tuple[DpEvent, int]] = field(default_factory=list)
    _said: list[tuple[str, int]] = field(default_factory=list)
    _told: bool = False

    def add(
        self, event: DpEvent | Json, *mechanisms: Mechanism, count: int = 1, sampler: str = "", noise: str = ""
    ) -> None:
        """`count` times an event as its sampler sees it: what these mechanisms released of one sample.

        Without mechanisms its words are those of the event; `noise` is what the run's source says of itself.
        """
        data = event_json.to_json(event)
        self._events.append((event_json.from_json(data), count))
        self.samplers += [sampler] if sampler else []
        for mechanism in mechanisms:
            words, source, guarantee = words_of(mechanism)
            self._said.append((f"a sampled sum with {words}" if "inner" in data else words, count))
            self.sources.append(source or noise)
            self.guarantees += [guarantee] if guarantee else []
        self._told = self._told or bool(mechanisms)
        if not mechanisms:
            self._said += [(event_json.words(leaf), count * times) for leaf, times in event_json.flatten(data)]
            self.sources += [noise] if noise else []

    def event(self) -> DpEvent:
        """All of it as one event."""
        total = accounting.compose(dpa.SelfComposedDpEvent(event, count) for event, count in self._events if count)
        bare = any(isinstance(leaf, dpa.NonPrivateDpEvent) for leaf in accounting.leaves_of(total))
        return dpa.NonPrivateDpEvent() if bare else total

    def epsilon(self) -> float:
        """What all of it costs."""
        return accounting.epsilon_of(self.event(), self.delta, self.adjacency)

    def statement(self) -> PrivacyStatement:
        """What was promised."""
        event = self.event()
        told = self._told and not isinstance(event, dpa.NonPrivateDpEvent)
        return PrivacyStatement.of(
            event,
            self.delta,
            self.adjacency,
            seeded=self.seeded,
            n=self.n,
            sampler="; ".join(dict.fromkeys(self.samplers)),
            assumptions=dict.fromkeys(self.assumptions),
            guarantee="; ".join(dict.fromkeys(self.guarantees)),
            noise="; ".join(dict.fromkeys(self.sources)) or SECRET,
            leaks=self.leaks,
            released=self.released or (_counted(self._said) if told else ""),
        )


def _lines(data: Json) -> list[tuple[str, object]]:
    return [(name, line) for name in ("assumptions", "leaks") for line in data[name]]


def _rounded_up(value: float) -> str:
    """Four digits, never below the value."""
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(max(value, 1e-300))) - 3)
    return f"{math.ceil(value / unit) * unit:.4g}"


def _sampler_words(data: Json) -> str:
    """How each kind of release took its records."""
    words = dict.fromkeys(event_json.sampling_words(leaf) for leaf, _ in event_json.flatten(data))
    return "; ".join(words) or "no records were used"


def _event_words(data: Json) -> str:
    """Each kind of release and how often it was made."""
    return _counted((event_json.words(leaf), count) for leaf, count in event_json.flatten(data))


def _counted(made: Iterable[tuple[str, int]]) -> str:
    """Releases in words with how often each was made, equal ones counted together."""
    counts: Counter[str] = Counter()
    for words, count in made:
        counts[words] += count
    return ", ".join(f"{count} x {words}" for words, count in counts.items() if count) or "nothing"


def _sizes(data: Json) -> list[int]:
    return [leaf["source_dataset_size"] for leaf, _ in event_json.flatten(data) if "source_dataset_size" in leaf]


def _accountant_words(event: DpEvent, adjacency: Adjacency) -> str:
    leaves = accounting.leaves_of(event)
    kinds = {type(leaf).__name__.removesuffix("DpEvent") for leaf in leaves}
    if "Skellam" in kinds and kinds <= {"Gaussian", "Skellam"}:
        return "the exact curve of the Gaussian mechanism that the Skellam noise is no worse than"
    if kinds <= {"Gaussian"}:
        return "the exact curve of the Gaussian mechanism"
    return _ROUTES[accounting.route_of(leaves, adjacency)]
