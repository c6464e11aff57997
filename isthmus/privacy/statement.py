"""The privacy statement: what a run promises, in numbers and in words that can be handed to someone else.

>>> from dp_accounting import dp_event
>>> from isthmus.privacy.accounting import Adjacency
>>> event = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.5)), 1000)
>>> statement = PrivacyStatement.of(event, 1e-5, Adjacency.ADD_REMOVE, assumptions=["one record per person"])
>>> print(statement)
(epsilon=0.9176, delta=1e-05)-differentially private, for adding or removing one record
>>> print(statement.words().splitlines()[0])
The released results are differentially private with epsilon = 0.9176 and delta = 1e-05.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace

from isthmus.base import notebook, secret, validate
from isthmus.privacy import accounting, event_json
from isthmus.privacy.accounting import Adjacency
from isthmus.privacy.event_json import DpEvent, Json, dpa
from isthmus.privacy.leaks import large_delta
from isthmus.privacy.ledger import Ledger
from isthmus.privacy.mechanisms import Mechanism
from isthmus.privacy.noise import SECRET, SEEDED

_HEAD = ("what", "how often", "noise")
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
    "target mean": "mean of the target",
    **{f"target half {i}": "half of the range that has most targets" for i in range(1, 7)},
    **{f"target reach {i}": "whether nearly all targets are near their middle" for i in range(1, 5)},
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
        good = isinstance(self.what, str) and isinstance(self.noise, str) and bool(self.what and self.noise)
        validate.check(good, "what, noise", (self.what, self.noise), "give texts of a few words")

    @property
    def cells(self) -> tuple[str, str, str]:
        """The three cells as text."""
        if self.times == 1:
            return self.what, "once", self.noise
        return self.what, f"{self.times:,} times", self.noise


def _charged_words(name: str) -> str:
    """A reader's words for what a ledger was charged for; of several runs that share it, with the run's label.

    >>> _charged_words("test figures"), _charged_words("census-1/main")
    ('figures of the test rows', 'rounds of a training (census-1)')
    """
    label, _, what = name.rpartition("/")
    words = _WORDS.get(what, what)
    if not label:
        return words
    return f"{words} ({label})"


def _of_event(data: Json, times: int = 1) -> list[Released]:
    """The releases of an event: it knows what they cost and how records were taken, not what they were.

    >>> _of_event({"event": "Gaussian", "noise_multiplier": 2.0})[0].cells
    ('value from all records', 'once', 'Gaussian noise of 2 times the most one record can add')
    """
    what = {True: "value from a random sample of the records", False: "value from all records"}
    leaves = event_json.flatten(data)
    return [Released(what[_of_a_sample(leaf)], count * times, event_json._words(leaf)) for leaf, count in leaves]


def _of_a_sample(data: Json) -> bool:
    """Whether all that an event is made of saw a random sample; a rate of 1 is no chance.

    >>> one = {"event": "Gaussian", "noise_multiplier": 2.0}
    >>> _of_a_sample({"event": "SelfComposed", "inner": one, "count": 2})
    False
    >>> [_of_a_sample({"event": "PoissonSampled", "inner": one, "sampling_probability": p}) for p in (0.5, 1.0)]
    [True, False]
    """
    leaves = [leaf for leaf, _ in event_json.flatten(data)]
    chance = [leaf["event"] in _BY_CHANCE and leaf.get("sampling_probability") != 1 for leaf in leaves]
    return bool(chance) and all(chance)


def _together(rows: Iterable[Released]) -> tuple[Released, ...]:
    """Equal releases counted together, in the order in which they first occur."""
    counts: Counter[tuple[str, str]] = Counter()
    for row in rows:
        counts[row.what, row.noise] += row.times
    return tuple(Released(what, times, noise) for (what, noise), times in counts.items())


FORMAT = "isthmus-statement-1"
"""What a statement's JSON says that it is; one without a format was written before formats had names."""
_CLOSE = 0.99
"""Versions of the accountant differ by less in what they compute for the same releases."""
ROUNDING = (
    "The most one record can add is its clip bound and an allowance for rounding errors: at most 0.1 % for linear "
    "models and for sketches, at most 5 % for whole gradients of a network."
)
_LEAKED = "Epsilon does NOT cover the following, which was read from the private data without noise:"
_BASIS = {True: "The guarantee rests on these assumptions:", False: "The run assumed the following:"}
_ROUTES = {
    "pld": "privacy-loss distributions (the library dp-accounting)",
    "pair": "privacy-loss distributions of the pair -C, +C (the library dp-accounting)",
    "rdp": "Renyi differential privacy (the library dp-accounting)",
}


@dataclass(frozen=True)
class PrivacyStatement:
    """What was promised to the people in the data, and on what it rests.

    `epsilon` is what holds: infinite where nothing does, as with seeded noise, whose releases anyone who knows the
    seed can undo.  `nominal` is the epsilon that the same releases have under secret noise.  `event` is the JSON form
    of everything released, `releases` its table (what, how often, how much noise), drawn from the event where it is not
    given; `n` is the number of records, given only where that is public.  `leaks` is what was read from the data and
    not paid for: epsilon does not cover it, and the words say so before anything else that they rest on.

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
    releases: tuple[Released, ...] = ()

    def __post_init__(self) -> None:
        validate.open_unit(delta=self.delta)
        object.__setattr__(self, "adjacency", Adjacency.of(self.adjacency))
        object.__setattr__(self, "releases", self.releases or _together(_of_event(self.event)))
        leaves = list(event_json.flatten(self.event))
        listed, released = sum(row.times for row in self.releases), sum(count for _, count in leaves)
        validate.check(listed >= released, "releases", listed, f"list all {released} releases that the event has")
        for name, value in (("epsilon", self.epsilon), ("nominal", self.nominal)):
            validate.check(value >= 0, name, value, "give a number of at least 0, or infinity")
        remedy = "give private=True with a finite epsilon, and private=False with an infinite one"
        validate.check(self.private == math.isfinite(self.epsilon), "private", self.private, remedy)
        hidden = not (self.private and self.noise == SEEDED)
        validate.check(hidden, "private", self.private, "give False where the noise is seeded: it can be subtracted")
        sized = any("source_dataset_size" in leaf for leaf, _ in leaves)
        remedy = "give the number of records as n: the event states it, so that it is public"
        validate.check(self.n_public or not sized, "n", self.n, remedy)
        if self.n is not None:
            validate.positive_int(n=self.n)

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
        assumptions: Sequence[str] = (),
        leaks: Sequence[str] = (),
    ) -> PrivacyStatement:
        """The statement of an event (or its JSON form), its epsilon by the accountant.

        `seeded` says that the noise came from a seed.  An event knows what a release costs and not what it was: where
        that is known, `Account` states it.

        >>> from dp_accounting import dp_event
        >>> print(PrivacyStatement.of(dp_event.GaussianDpEvent(1.0), 1e-5, seeded=True))
        not private (seeded noise: not private)
        """
        account = Account(delta, adjacency, n, seeded, assumptions, leaks)
        return account.statement(event_json.from_json(event_json.to_json(event)))

    def with_all_of(
        self, ledger: Ledger | None, *others: PrivacyStatement, apart: Sequence[PrivacyStatement] = ()
    ) -> PrivacyStatement:
        """One statement of what this one, `others` about the same records, and a ledger know of together.

        What the ledger holds of a statement's releases is counted once, what it does not hold is counted besides.  Two
        releases that cost the same cannot be told from one: `apart` has those of the statements that were not charged
        to this ledger, and all that they list is counted besides.  With them the result never says less than was spent.
        Epsilon is at this statement's delta.

        >>> from isthmus.privacy import Gaussian, Ledger
        >>> ledger, fit = Ledger(), PrivacyStatement.of(Gaussian(4.0).event(), 1e-5)
        >>> ledger.pay("fit", fit.event)
        >>> ledger.pay("figures", Gaussian(8.0).event())
        >>> print(fit.with_all_of(ledger).words().split("\\n\\n")[1])
        What was released:
          what                    how often  noise
          value from all records  once       Gaussian noise of 4 times the most one record can add
          figures                 once       Gaussian noise of 8 times the most one record can add
        """
        statements, account = (self, *others), Account(self.delta, self.adjacency, self.n)
        for relation in [one.adjacency for one in (*others, ledger) if one is not None]:
            remedy = f"give releases that count for {self.adjacency.value}, as this statement does"
            validate.check(relation is self.adjacency, "adjacency", relation.value, remedy)
        account.seeded = any(statement.noise == SEEDED for statement in statements)
        account.assumptions = [line for statement in statements for line in statement.assumptions]
        account.leaks = [line for statement in statements for line in statement.leaks]
        account.releases = [row for statement in statements for row in statement.releases]
        account.samplers = [statement.sampler for statement in statements]
        account.sources = [statement.noise for statement in statements]
        account.guarantees = [statement.guarantee for statement in statements]
        stated: Counter[str] = Counter()
        beyond: Counter[str] = Counter()
        charged: Counter[str] = Counter()
        for statement in statements:
            counts = stated
            if any(statement is one for one in apart):
                counts = beyond
            counts.update(event_json._keyed(statement.event))
        names: dict[str, str] = {}
        if ledger is not None:
            charged = event_json._keyed(event_json.to_json(ledger.event()))
            charges = [record for record in ledger.records() if record["kind"] == "charge"]
            names = {leaf: record["what"] for record in charges for leaf in event_json._keyed(record["event"])}
            account.seeded |= ledger.seeded
        besides = charged - stated
        if not others and not besides and not (account.seeded and self.private):
            return self
        for key, count in besides.items():
            leaf = json.loads(key)
            account.samplers.append(event_json._sampling_words(leaf))
            account.releases.append(Released(_charged_words(names.get(key, "value")), count, event_json._words(leaf)))
        total = (stated | charged) + beyond
        account.events.append(event_json._counted(total))
        whole = account.statement()
        epsilon = max(whole.epsilon, self.epsilon)  # a search quotes its budget
        return replace(whole, epsilon=epsilon, nominal=max(whole.nominal, self.nominal))

    def words(self) -> str:
        """The statement in plain English, a few short paragraphs."""
        parts = [self._promise()]
        if self.leaks:
            parts.append(_listed(_LEAKED, self.leaks))
        parts += [self._table(), self._made_of()]
        if self.guarantee:
            really = self.guarantee.rstrip(".")
            parts.append(f"The mechanism was run as it was published. What it really guarantees: {really}.")
        last = "There are no further assumptions."
        if self.assumptions:
            last = _listed(_BASIS[self.private], self.assumptions)
        return "\n\n".join([*parts, last])

    def _promise(self) -> str:
        relation = self.adjacency.describe()
        if not self.private:
            reason = "Something computed from the data was released without noise that hides it."
            if self.noise == SEEDED and math.isfinite(self.nominal):
                reason = (
                    "The noise was drawn from a seed (seeded noise: not private): whoever knows the seed can subtract "
                    f"it. With secret noise the same releases would have {self._numbers(self.nominal)}, for {relation}."
                )
            return (
                f"The released results are NOT private: no finite epsilon holds (epsilon = inf at delta = "
                f"{self.delta:g}).\n{reason}"
            )
        factor, weak = "more than 1e304", large_delta(self.delta, self.n)
        if weak:
            weak = f"\nThis guarantee protects hardly anyone: {weak}."
        if self.epsilon < 700:
            factor = notebook.rounded_up(math.exp(self.epsilon))
        return (
            f"The released results are differentially private with {self._numbers(self.epsilon)}.\n"
            f"{relation.capitalize()} changes the probability of any outcome by a factor of at most "
            f"exp(epsilon) = {factor}, plus at most delta. "
            f"This holds whatever else the reader of the results knows, and whatever is computed from them later.{weak}"
        )

    def _table(self) -> str:
        """The releases in columns of text."""
        if not self.releases:
            return "Nothing was released."
        lines = [_HEAD, *(row.cells for row in self.releases)]
        first, second = (max(len(line[i]) for line in lines) for i in (0, 1))
        rows = [f"  {what:{first}}  {often:{second}}  {noise}" for what, often, noise in lines]
        return "\n".join(["What was released:", *rows])

    def _made_of(self) -> str:
        records = "The number of records is not published."
        if self.n_public:
            records = f"The number of records, {self.n}, is public."
        return (
            "Epsilon counts what is listed here, and nothing else: further releases about the same records add to it. "
            f"How records were chosen: {self.sampler}. Where the noise comes from: {self.noise}. {ROUNDING} {records} "
            f"How epsilon was computed: {self.accountant}."
        )

    def _repr_html_(self) -> str:
        """The statement as a card of a notebook."""
        leaked, basis, tone = "", "", "good"
        if self.leaks:
            leaked = notebook.paragraph(_LEAKED) + notebook.items(self.leaks)
        if self.assumptions:
            basis = notebook.details(_BASIS[self.private], notebook.items(self.assumptions))
        if not self.private:
            tone = "bad"
        elif self.leaks or large_delta(self.delta, self.n):
            tone = "weak"
        return notebook.card(
            str(self)[:1].upper() + str(self)[1:],
            notebook.paragraph(self._promise()),
            leaked,
            notebook.table(_HEAD, (row.cells for row in self.releases)),
            notebook.paragraph(self._made_of()),
            basis,
            tone=tone,
        )

    def _numbers(self, epsilon: float) -> str:
        return f"epsilon = {notebook.rounded_up(epsilon)} and delta = {self.delta:g}"

    def to_json(self) -> str:
        """The statement as one line of JSON; infinity is written as the string "inf"."""
        data: Json = {"format": FORMAT, **vars(self)}
        data |= {"adjacency": self.adjacency.value, "n_public": self.n_public}
        data |= {"assumptions": list(self.assumptions), "leaks": list(self.leaks)}
        data |= {"releases": [asdict(row) for row in self.releases]}
        data |= {name: "inf" for name in ("epsilon", "nominal") if math.isinf(data[name])}
        return event_json.canonical(data)

    @classmethod
    def from_json(cls, text: str, *, recompute: bool = True) -> PrivacyStatement:
        """The statement that `to_json` wrote, now or before formats had names (whose words for the releases go).

        The accountant computes epsilon anew from the event.  A statement that claims less than 99 % of it is refused:
        its text was altered.  One that claims a little less, by another version of the accountant, gets the larger
        number.  `recompute=False` believes the text, of another process of the same run, say.
        """
        with validate.reading("text", text, "give what PrivacyStatement.to_json wrote"):
            data: Json = {"leaks": (), "releases": []} | json.loads(text)
            validate.known_format("statement", data.pop("format", FORMAT), [FORMAT])
            n_public, _ = data.pop("n_public", None), data.pop("released", None)
            names = {item.name for item in fields(cls)}
            validate.check(set(data) == names, "text", sorted(data), f"give the fields of a statement: {sorted(names)}")
            remedy = "give true where n is given, and false elsewhere"
            validate.check(n_public == (data["n"] is not None), "n_public", n_public, remedy)
            texts = [data[name] for name in ("sampler", "noise", "guarantee", "accountant")]
            for told in (*texts, *data["assumptions"], *data["leaks"]):
                validate.check(isinstance(told, str), "text", told, "give text")
            data |= {name: float(data[name]) for name in ("epsilon", "nominal")}
            data |= {name: tuple(data[name]) for name in ("assumptions", "leaks")}
            data |= {"releases": tuple(Released(**row) for row in data["releases"])}
            statement = cls(**data | {"event": event_json.to_json(data["event"])})
            if not recompute:
                return statement
            event, epsilon, nominal = event_json.from_json(statement.event), statement.epsilon, statement.nominal
            follows = accounting.epsilon_of(event, statement.delta, statement.adjacency)
            remedy = f"give the statement as it was written: epsilon={follows:.6g} follows from its releases"
            validate.check(epsilon >= _CLOSE * follows, "epsilon", epsilon, remedy)
            validate.check(nominal >= _CLOSE * follows, "nominal", nominal, remedy)
            return replace(statement, epsilon=max(epsilon, follows), nominal=max(nominal, follows))

    def __str__(self) -> str:
        if not self.private:
            reason = "released without noise"
            if self.noise == SEEDED:
                reason = SEEDED
            return f"not private ({reason})"
        text = f"(epsilon={notebook.rounded_up(self.epsilon)}, delta={self.delta:g})-differentially private, for "
        text += self.adjacency.describe()
        if not self.leaks:
            return text
        facts = "1 fact that was"
        if len(self.leaks) > 1:
            facts = f"{len(self.leaks)} facts that were"
        return f"{text}, except for {facts} read from the data"

    def __hash__(self) -> int:
        return hash(self.to_json())


@dataclass
class Account:
    """Everything that one statement is about: releases, added as they are known, and what is to be said of them.

    A mechanism's words, source of noise and guarantee are its own.  One release without a guarantee is all that is
    left to say of an event, nothing beside it being private; the table has them all.

    seeded    whether any of the noise came from a seed
    samplers  how records were taken, and `sources`, where the noise came from, in words
    releases  the table of all releases, where it is known already

    >>> from isthmus.privacy import Gaussian
    >>> account = Account(1e-5, assumptions=["one record per person"])
    >>> account.add(Gaussian(4.0).event(), Gaussian(4.0), names=["gradient"], count=2, noise=SECRET)
    >>> account.statement().releases[0].cells
    ('sum of gradients', '2 times', 'Gaussian noise of 4 times the most one record can add')
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
    releases: list[Released] = field(default_factory=list)
    events: list[DpEvent] = field(default_factory=list)

    def add(
        self,
        event: DpEvent | Json,
        *mechanisms: Mechanism,
        names: Sequence[str] = (),
        count: int = 1,
        sampler: str = "",
        noise: str = "",
    ) -> None:
        """`count` times an event as its sampler sees it: what these mechanisms released of one sample.

        `names` are those of what the mechanisms released, one for each.  Without mechanisms the event has to speak for
        itself; `noise` is what the run's source says of itself.
        """
        data = event_json.to_json(event)
        self.samplers.append(sampler)
        self.sources += [mechanism.source or noise for mechanism in mechanisms] or [noise]
        self.guarantees += [mechanism.guarantee for mechanism in mechanisms]
        if count == 0:
            return
        self.events.append(dpa.SelfComposedDpEvent(event_json.from_json(data), count))
        if not mechanisms:
            self.releases += _of_event(data, count)
        over = {True: " over a random sample", False: ""}[_of_a_sample(data)]
        for name, mechanism in zip(names or ["value"] * len(mechanisms), mechanisms, strict=True):
            self.releases.append(Released(_WORDS.get(name, name) + over, count, mechanism.describe()))

    def event(self) -> DpEvent:
        """All of it as one event."""
        total = accounting.compose(self.events)
        if any(isinstance(leaf, dpa.NonPrivateDpEvent) for leaf in accounting.leaves_of(total)):
            return dpa.NonPrivateDpEvent()
        return total

    def epsilon(self) -> float:
        """What all of it costs."""
        return accounting.epsilon_of(self.event(), self.delta, self.adjacency)

    def statement(self, event: DpEvent | None = None) -> PrivacyStatement:
        """What was promised, for all of it as one event or as it is given."""
        event = event or self.event()
        data, nominal = event_json.to_json(event), accounting.epsilon_of(event, self.delta, self.adjacency)
        seeded = self.seeded or secret.rehearsed()  # a replay can take the noise away
        accountant, epsilon, sources = "none", math.inf, self.sources
        if math.isfinite(nominal):
            accountant = _accountant_words(event, self.adjacency)
        if seeded:
            sources = [SEEDED]
        else:
            epsilon = nominal
        how = [event_json._sampling_words(leaf) for leaf, _ in event_json.flatten(data)]
        return PrivacyStatement(
            epsilon=epsilon,
            delta=self.delta,
            adjacency=self.adjacency,
            sampler=_once(self.samplers) or _once(how) or "no records were used",
            event=data,
            private=math.isfinite(epsilon),
            nominal=nominal,
            noise=_once(sources) or SECRET,
            n=self.n,
            assumptions=tuple(dict.fromkeys(self.assumptions)),
            guarantee=_once(self.guarantees),
            accountant=accountant,
            leaks=tuple(dict.fromkeys(self.leaks)),
            releases=_together(self.releases),
        )


def _once(said: Iterable[str]) -> str:
    """What was said, each of it once."""
    return "; ".join(dict.fromkeys(filter(None, said)))


def _listed(head: str, items: Iterable[str]) -> str:
    return "\n".join([head, *(f"- {item}" for item in items)])


def _accountant_words(event: DpEvent, adjacency: Adjacency) -> str:
    leaves = accounting.leaves_of(event)
    kinds = {type(leaf).__name__.removesuffix("DpEvent") for leaf in leaves}
    if "Skellam" in kinds and kinds <= {"Gaussian", "Skellam"}:
        return "the exact curve of the Gaussian mechanism that the Skellam noise is no worse than"
    if kinds <= {"Gaussian"}:
        return "the exact curve of the Gaussian mechanism"
    return _ROUTES[accounting._route_of(leaves, adjacency)]
