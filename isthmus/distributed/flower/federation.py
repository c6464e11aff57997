"""What server and clients of a federation share: a plan of public things, and the messages that travel.

A sum goes over **records** (each client adds up its own), or over **clients**: then all that a client has is one term,
its mean gradient or what some local steps changed, and a private run protects the client as a whole.

Both sides make the plan by the same code.  From it follow how long sums may be, in public numbers, and a digest that
tells it from other plans.  Orders and answers are records of Flower messages, bytes and arrays, no pickle:

    down   "isthmus"  order   the order without its iterate: seed, t, step, clip bounds (`Order.short`)
                      plan    digest of the plan: a client with another one refuses
                      visit   how often the client was asked in this round before
                      since   digest of the iterate that `update` changes, where only changes are sent
           "arrays"           the iterate by leaves, or
           "update"           places and values of the coordinates that have changed
    up     "isthmus"  answer  8 bytes that show damage, then the codes

An answer holds no shapes, bounds or dtypes: the server has these, and takes nobody's word for them.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from functools import cached_property, lru_cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import torch
from torch import Tensor

from isthmus.base import storage, validate
from isthmus.base.space import Space, as_space
from isthmus.codecs import Codec
from isthmus.core.minimize import Binding, Recipe
from isthmus.core.parts import Shuffle
from isthmus.core.pipeline import Pipeline, Stage
from isthmus.core.wire import Keys, Message
from isthmus.distributed.order import Order, _digest_of
from isthmus.distributed.secagg import SecurePlan
from isthmus.gradients import Dense
from isthmus.gradients.layers.forward_guard import MEAN, MIXING, RANDOM, SHAPES
from isthmus.gradients.rounding import gamma
from isthmus.penalties import NoPenalty, Penalty
from isthmus.privacy import Adjacency, FullBatch, Gaussian, Mechanism, Poisson, PrivacyStatement, Source, joint
from isthmus.privacy.clips import ClippedSum
from isthmus.privacy.event_json import DpEvent, SkellamDpEvent
from isthmus.privacy.sampling import Sampler, rate_of
from isthmus.privacy.statement import Account
from isthmus.sets import ConvexSet, Whole

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, RecordDict
    from flwr.app import Message as Letter


@dataclass(frozen=True, eq=False)
class Elsewhere:
    """A problem whose records are on other machines: its public facts, and no records.

    >>> from isthmus.base.space import Space
    >>> Elsewhere(Space.flat(3), 100).rows(torch.zeros(3)).n
    0
    """

    space: Space
    n: int
    dtype: torch.dtype = torch.float32
    linear: bool = False
    penalty: Penalty = field(default_factory=NoPenalty)
    elsewhere: ClassVar[bool] = True

    def rows(self, w: Tensor, index: Tensor | None = None) -> Dense:
        """None: a sum of them is zero, with the bound that sums of the clients have."""
        return Dense(torch.zeros(0, self.space.d, dtype=self.dtype))

    def loss(self, w: Tensor) -> NoReturn:
        """Refused: it is known to the clients only."""
        validate.refuse("objective", "Elsewhere", "use a recipe that asks for no loss: clients alone have the records")

    gradient = loss


@dataclass(frozen=True)
class _OneTerm:
    """All that a client has, as one record: `row(w)` is its vector."""

    row: Callable[[Tensor], Tensor]
    n: ClassVar[int] = 1

    def rows(self, w: Tensor, index: Tensor | None = None) -> Dense:
        """The vector, or none where a coin left the client out."""
        if index is None or len(index):
            return Dense(self.row(w)[None])
        return Dense(w.new_zeros(0, len(w)))


class _NoisedSum(ClippedSum):
    """A sum that came with its noise, from clients whose vectors nobody saw."""


@dataclass(frozen=True)
class _AtClients(Mechanism):
    """Skellam noise that the clients added, in shares: no worse than Gaussian noise of `multiplier` times the bound.

    It takes sums of secure aggregation (`_NoisedSum`) and nothing else: it adds no noise itself.
    """

    multiplier: float
    source: str = "exact whole-number noise, which every client draws from its operating system's generator"

    def release(self, bounded: ClippedSum, noise: Source | None) -> Tensor:
        """The sum as it came."""
        noised = isinstance(bounded, _NoisedSum)
        remedy = "run it over FlowerClients: noise of clients comes with secure aggregation only"
        validate.check(noised, "mechanism", type(self).__name__, remedy)
        return bounded.value

    def event(self, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> DpEvent:
        """`SkellamDpEvent(multiplier)`."""
        return SkellamDpEvent(float(self.multiplier))


@dataclass(frozen=True)
class LocalSteps:
    """w - w_K after K steps of a client's own descent from w: the server's step is then the server's rate (1: FedAvg).

    steps       K
    rate        of the local steps
    batch_size  records of a local step; None: all of the client's
    """

    steps: int
    rate: float
    batch_size: int | None = None

    def __post_init__(self) -> None:
        validate.positive_int(steps=self.steps)
        validate.positive(rate=self.rate)
        if self.batch_size is not None:
            validate.positive_int(batch_size=self.batch_size)

    def change(self, problem: Any, w: Tensor, t: int, seed: int, name: str) -> Tensor:
        """What the local steps of round t change."""
        sampler: Sampler = FullBatch()
        if self.batch_size is not None:
            sampler = Shuffle(min(self.batch_size, problem.n))
        v = w
        for k in range(t * self.steps, (t + 1) * self.steps):
            index = sampler.draw(problem.n, k, Keys(seed), name)
            rows = problem.rows(v, index)
            v = v - self.rate * rows.sum() / rows.n
        return w - v


@dataclass(frozen=True, eq=False)
class Federation:
    """One run over clients: the recipe and the public facts that it is bound to.

    recipe      `isthmus.algorithms.<name>(...)`, or a ready `Pipeline`
    space       of the parameters: a `Space`, or d
    rounds      how many
    clients     M, how many clients there are: a public number
    n           the records of all clients together, or a public estimate; not needed where a client is one term
    unit        "record" or "client": what sums go over, and what a private run protects
    local       with unit="client": `LocalSteps`; None sends the mean gradient of the client's records
    down        "w" sends the iterate every round; "update" sends the coordinates that have changed to clients that keep
                the iterate in `context.state`, where that is shorter
    uniform     with unit="record", in a run that is not private: whether every client counts the same.  By default
                every record does, as in the objective of paper 001, and clients say how many they have.  A private run
                adds sums over records and divides by a public number; with unit="client" every client counts the same
    dtype       of the clients' gradients
    linear      whether the clients have linear models (`Logistic` and the like)
    dropouts    None: the server adds the noise of a private run, and sees the clients' sums.  A share of the clients in
                [0, 1/3): clients add the noise, in secure aggregation that survives the loss of so many (unit="client")
    peak        of secure aggregation: the largest number of a vector, relative to its bound (`SecurePlan`)

    >>> from isthmus import algorithms
    >>> plan = Federation(algorithms.comp_dist_sgd(m=10, step=0.1), 100, rounds=5, clients=3, n=60)
    >>> plan.pipe.stages[0].name, plan.private
    ('main', False)
    """

    recipe: Recipe | Pipeline
    space: Space | int
    rounds: int
    clients: int
    n: int | None = None
    constraint: ConvexSet = field(default_factory=Whole)
    penalty: Penalty = field(default_factory=NoPenalty)
    unit: str = "record"
    local: LocalSteps | None = None
    down: str = "w"
    uniform: bool | None = None
    dtype: torch.dtype = torch.float32
    linear: bool = False
    dropouts: float | None = None
    peak: float = 1.0

    def __post_init__(self) -> None:
        validate.positive_int(rounds=self.rounds, clients=self.clients)
        validate.one_of(("record", "client"), unit=self.unit)
        validate.one_of(("w", "update"), down=self.down)
        by_client, share = self.unit == "client", self.dropouts or 0.0
        uniform = 'leave it out: a client is one term, whatever it has (unit="record" counts records)'
        for right, name, remedy in (
            (by_client or self.n is not None, "n", "give the number of records of all clients, or a public estimate"),
            (by_client or self.local is None, "local", 'give unit="client": local steps make one vector of all'),
            (not by_client or self.uniform is not False, "uniform", uniform),
            (by_client or self.dropouts is None, "dropouts", 'give unit="client": each client sends one hidden vector'),
            (0 <= share < 1 / 3, "dropouts", "give a share of at least 0 and below 1/3"),
        ):
            validate.check(right, name, vars(self)[name], remedy)

    # ------------------------------------------------------------ what follows

    @cached_property
    def whole(self) -> Space:
        """The space of the parameters."""
        return as_space(self.space)

    @property
    def terms(self) -> int:
        """How many terms a sum over everybody has: the public number that divisors come from."""
        if self.unit == "client":
            return self.clients
        return int(self.n or 0)

    @property
    def problem(self) -> Elsewhere:
        """What the server knows of the records."""
        linear = self.linear and self.unit == "record"
        return Elsewhere(self.whole, self.terms, self.dtype, linear, self.penalty)

    @property
    def private(self) -> bool:
        """Whether the run promises privacy."""
        return self.pipe.promise is not None

    @cached_property
    def pipe(self) -> Pipeline:
        """The pipeline, with what a promise rests on where clients may be lost."""
        pipe = self.recipe
        if isinstance(pipe, Recipe):
            pipe = pipe.bind(Binding(self.constraint, self.penalty, self.whole, self.terms, self.rounds, None))
        promise, by_client, hidden = pipe.promise, self.unit == "client", self.dropouts is not None
        private = promise is not None
        bought = "give all of its arguments as numbers: this recipe would buy something before its loop"
        uniform = "leave it out: a private run adds sums over records, so every record counts (or every client)"
        shifts = "use error feedback: a client that is lost moves its shift, and the server does not"
        for right, name, value, remedy in (
            (not pipe.before, "recipe", self.recipe, bought),
            (pipe.wire.shift is None, "shifts", pipe.wire.shift, shifts),
            (private or not hidden, "dropouts", self.dropouts, "use a private recipe: in others nobody adds noise"),
            (by_client or not private or not self.uniform, "uniform", self.uniform, uniform),
            (len(pipe.stages) == 1 or not hidden, "dropouts", self.dropouts, "use a recipe with one stage a round"),
        ):
            validate.check(right, name, value, remedy)
        for stage in pipe.stages:
            whole, kind = not by_client or isinstance(stage.sampler, (FullBatch, Poisson)), type(stage.sampler).__name__
            validate.check(whole, "sampler", kind, "take all clients, or Poisson sampling of them")
        if promise is None:
            return pipe
        if hidden:
            (stage,) = pipe.stages
            (release, *more) = stage.releases
            if more or not isinstance(release.mechanism, Gaussian):
                remedy = "use one release with Gaussian noise and a fixed clip, which is what secure aggregation takes"
                validate.refuse("dropouts", f"stage {stage.name!r}", remedy)
            theirs = replace(release, mechanism=_AtClients(release.mechanism.multiplier))
            pipe = replace(pipe, stages=[replace(stage, releases=[theirs])])
        return replace(pipe, promise=replace(promise, assumptions=(*promise.assumptions, *self.assumptions())))

    @cached_property
    def digest(self) -> str:
        """64 bits of all that an answer and a promise rest on: equal for equal plans, whatever the process.

        A client with another plan refuses to answer.
        """
        pipe = self.pipe
        stages = [
            [stage.name, stage.every, stage.groups, stage.sampler, stage.sampler.divisor(self.terms), stage.source]
            + [[release.name, release.encode, release.clip, release.mechanism] for release in stage.releases]
            for stage in pipe.stages
        ]
        promised = pipe.promise and str(pipe.promise.adjacency)
        sizes = [self.unit, self.clients, self.terms, self.rounds, self.dtype, self.linear, self.dropouts, self.peak]
        space = [[leaf.name, tuple(leaf.shape)] for leaf in self.whole.leaves]
        terms = [stages, promised, sizes, space, self.local, self.down, pipe.wire]
        return hashlib.blake2b("\n".join(_words(terms)).encode(), digest_size=8).hexdigest()

    @cached_property
    def at_clients(self) -> Pipeline:
        """The pipeline as clients run it: a client that the server has drawn draws no coin of its own."""
        if self.unit == "record" or not self.private or self.dropouts is not None:
            return self.pipe
        stages = [replace(stage, sampler=FullBatch(stage.sampler.divisor(self.terms))) for stage in self.pipe.stages]
        return replace(self.pipe, stages=stages)

    def secure(self, stage: Stage, m: int, bound: float) -> SecurePlan:
        """The plan of secure aggregation of a stage, for all M clients: each computes it, and takes nobody's word."""
        noise = stage.releases[0].mechanism
        assert isinstance(noise, _AtClients)
        lost = int((self.dropouts or 0.0) * self.clients)
        return SecurePlan(self.clients, m, bound, noise.multiplier, dropouts=lost, peak=min(1.0, self.peak))

    # ------------------------------------------------------------ what is promised

    def insiders(self, *, seeded: bool = False) -> PrivacyStatement:
        """What holds against somebody who knows who took part in each round: the same noise, and no amplification."""
        promise = self.pipe.promise
        if promise is None:
            remedy = "use a private recipe: this one promises nothing, so there is no statement"
            validate.refuse("recipe", self.recipe, remedy)
        assumptions = (*promise.assumptions, "the reader may know which clients (or records) each round looked at")
        account = Account(promise.delta, promise.adjacency, promise.n, seeded, assumptions=assumptions)
        sampler = "as if every round had looked at all of them"
        for stage in self.pipe.stages:
            mechanisms = [release.mechanism for release in stage.releases]
            event = joint([mechanism.event(promise.adjacency) for mechanism in mechanisms])
            names, count = [release.name for release in stage.releases], -(-self.rounds // stage.every)
            account.add(event, *mechanisms, names=names, count=count, sampler=sampler)
        return account.statement()

    def assumptions(self) -> list[str]:
        """What a promise over clients rests on, in words."""
        sentences = [
            "what other runs release about the same clients is not in this statement: only a ledger of its own "
            "(client_app(ledger=)) holds a client to one budget over several runs",
            "whether a client answers, and answers in time, does not depend on its records: a lost client adds "
            "nothing, and the noise and the divisor stay as they are",
        ]
        if self.unit == "client":
            sentences += ["a client is connected once", "a record, here, is all that one client has"]
        else:
            sentences.append("no record is with two clients, and each client draws its own records secretly")
            if not self.linear:  # clients may have networks
                sentences += [MIXING, RANDOM, MEAN, SHAPES]
        if self.dropouts is None:
            sentences.append("the server is trusted: it keeps clipped sums, and whom it has asked, to itself")
        else:
            sentences += [
                f"all {self.clients} clients follow the protocol of secure aggregation as long as they answer, draw "
                "their noise as stated, and tell nobody what they know; a reader may be one of them and know its own "
                "noise, and the server may tell clients different lists",
                "the server passes on public keys as they are (channels are authenticated, or keys known beforehand), "
                "and X25519, HKDF, ChaCha20 and Poly1305 are not broken: it sees nothing but the totals",
            ]
        return sentences


_NOTHING = 2.0**-30
"""What float64 rounds of a sum, relative to the bound of one record, that the bound is not made larger for."""


# ---------------------------------------------------------------- lengths


def _reach_of(plan: Federation, sampler: Sampler) -> tuple[float, float]:
    """How long the sums of clients may be, in bounds of one term; the same for every client, whatever it has.

    A client that is one term has one bound.  One that adds up records may have all of them: twice what the plan
    expects of a round, and some.  How many it really has is its own business, and nothing here follows from it.
    """
    own = 1.0
    if plan.unit == "record":
        own = 16 + 2 * rate_of(sampler) * plan.terms
    return own, plan.clients * own


def _narrowed(message: Message, plan: Federation, sampler: Sampler) -> Message:
    """Clipped sums in the dtype that is sent, with the bound that their sum at the server has.

    Neighbours differ in what one client sends: its cast to float32 (`ClippedSum.narrowed`, where that adds at most 1 %)
    counts once.  The server adds in float64, where the rounding of all clients' numbers counts (`room`).
    """
    own, total = _reach_of(plan, sampler)
    sent, values = message.for_wire(own, own, 1), {}
    for name, clipped in sent.values.items():
        same = clipped.dtype is None or clipped.dtype.itemsize >= plan.dtype.itemsize  # the server's bound is for these
        validate.check(same, "dtype", plan.dtype, f"give {clipped.dtype}, which this client's gradients are")
        more = _room(clipped, own, total, plan.clients)
        remedy = f"give a lower rate or fewer clients: to add sums of up to {own:g} bounds would round too much"
        validate.check(more < 0.5, "n", plan.terms, remedy)
        values[name] = clipped
        if more > _NOTHING:  # R is counted in the larger bound, hence the quotient
            values[name] = replace(clipped, bound=clipped.bound / (1 - more))
    return replace(sent, values=values)


def _room(share: ClippedSum, own: float, total: float, clients: int) -> float:
    """What shortening and adding at the server, in float64, add to the bound at most, relative.

    `clients` vectors whose length is at most R are added with an error below gamma times the sum of lengths; clamped
    vectors (`shortened`) are m^(1/ord) R long.  A computed length is off by (m + 64) 2^-50, relative, at most.
    """
    if not math.isfinite(share.bound):
        return 0.0
    m = share.value.numel()
    if share.ord == 2:
        return float(2 * (total * gamma(clients + 1, torch.float64) + own * (m + 64) * 2.0**-50))
    return float(2 * total * m ** (1 / share.ord) * gamma(clients + 1, torch.float64))


def _shortened(share: ClippedSum, own: float) -> ClippedSum:
    """A client's sum, no longer than `own` bounds: whoever sends more cannot round the sums of others away.

    In the l2 norm that is a projection onto a ball.  In other norms scaling may move two points further apart, so
    every number is clamped, which does not in any norm.  A sum of one term is scaled: it has one bound in its norm.

    >>> _shortened(ClippedSum(torch.tensor([3.0, 4.0]) * 2**60, 2, 1.0), 10.0).value.round(decimals=9).tolist()
    [6.0, 8.0]
    """
    value, most = share.value.to(torch.float64), own * share.bound
    if share.ord != 2 and own > 1:
        return replace(share, value=value.clamp(-most, most))
    largest = float(value.abs().amax(0)) if value.numel() else 0.0
    if largest > most:  # squares of very large numbers overflow
        value = value * (most / largest)
    length = float(torch.linalg.vector_norm(value, share.ord))
    if length > most:
        value = value * (most / length)
    return replace(share, value=value)


# ---------------------------------------------------------------- the plan


def _words(value: Any) -> Iterator[str]:
    """A value in words that hold no address and no last digit, which may differ between machines."""
    if isinstance(value, float):
        yield f"{value:.12g}"
    elif isinstance(value, (Tensor, storage.Fingerprinted)):
        yield storage.fingerprint(value)
    elif is_dataclass(value) and not isinstance(value, type):
        yield type(value).__qualname__
        for item in (member for member in fields(value) if member.init):  # the others are memories
            yield item.name
            yield from _words(vars(value)[item.name])
    elif isinstance(value, (Mapping, list, tuple)):
        yield f"{len(value)}:"
        for part in value.items() if isinstance(value, Mapping) else value:
            yield from _words(part)
    elif isinstance(value, Enum):
        yield str(value)
    elif callable(value) or " at 0x" in repr(value):
        yield str(getattr(value, "__qualname__", type(value).__qualname__))
    else:
        yield repr(value)


# ---------------------------------------------------------------- vectors in Flower's messages


@lru_cache(maxsize=1)
def flower() -> SimpleNamespace:
    """The modules of Flower's message API: `app`, `clientapp`, `serverapp`, `strategy`; it is an extra."""
    names = {"app": "app", "clientapp": "clientapp", "serverapp": "serverapp", "strategy": "serverapp.strategy"}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its command line warns of a later click while it is imported
            return SimpleNamespace(**{key: importlib.import_module(f"flwr.{name}") for key, name in names.items()})
    except ImportError as error:
        raise ImportError(f"Clients of Flower need flwr 1.41 or later; {validate.extra('flower')}") from error


RECORD, ARRAYS, _UPDATE = "isthmus", "arrays", "update"
ANOTHER = "another plan"
SEAL = 8
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def space_of(record: ArrayRecord) -> Space:
    """The space of an `ArrayRecord`: one leaf an array, in its order; arrays of whole numbers are refused.

    For models whose `state_dict` a Flower app sends: `space_of(ArrayRecord(model.state_dict()))`.
    """
    for name, array in record.items():
        real = array.dtype.startswith(("float", "bfloat"))
        validate.check(real, f"arrays[{name!r}]", array.dtype, "send trained parameters only: leave counters out")
    return Space.of({name: tuple(array.shape) for name, array in record.items()})


def to_arrays(w: Tensor, space: Space) -> ArrayRecord:
    """A vector as an `ArrayRecord`, by leaves."""
    return record_of({leaf.name: space.view(w, leaf.name) for leaf in space.leaves})


def from_arrays(record: ArrayRecord, space: Space) -> Tensor:
    """The vector of an `ArrayRecord` whose names and shapes are those of the space; others are refused."""
    names = [leaf.name for leaf in space.leaves]
    validate.check(set(record) == set(names), "arrays", sorted(record), f"give {names}")
    arrays = vectors_of(record)
    for leaf in space.leaves:
        validate.shape(leaf.shape, **{f"arrays[{leaf.name!r}]": arrays[leaf.name]})
    return torch.cat([arrays[name].reshape(-1) for name in names])


def record_of(vectors: Mapping[str, Tensor]) -> ArrayRecord:
    """Tensors by name as an `ArrayRecord`."""
    app = flower().app
    return app.ArrayRecord({name: app.Array(vector.detach().cpu().numpy()) for name, vector in vectors.items()})


def vectors_of(record: ArrayRecord) -> dict[str, Tensor]:
    """What `record_of` made a record of."""
    return {name: torch.from_numpy(array.numpy().copy()) for name, array in record.items()}


# ---------------------------------------------------------------- orders


def ask(order: Order, space: Space, visit: int = 0, since: Tensor | None = None, plan: str = "none") -> RecordDict:
    """The content of a message that asks a client; `since` is an iterate that it has kept, `plan` a digest."""
    app, w = flower().app, order.w
    assert w is not None
    config = {"order": order.short().to_bytes(), "visit": visit, "plan": plan}
    sent = {ARRAYS: to_arrays(w, space)}
    if since is not None:
        bits = _BITS[w.itemsize]
        places = (w.view(bits) != since.view(bits)).nonzero().reshape(-1)
        if len(places) * (w.itemsize + 4) < w.numel() * w.itemsize:
            sent = {_UPDATE: record_of({"places": places.to(torch.int32), "values": w[places]})}
            config["since"] = _digest_of(since)
    return app.RecordDict({RECORD: app.ConfigRecord(config), **sent})


def config_of(content: RecordDict) -> dict[str, Any]:
    """What a message says beside its arrays."""
    return dict(content.config_records[RECORD])


def _read_ask(content: RecordDict, space: Space, iterate: Tensor | None) -> Order:
    """The order that `ask` wrote; `iterate` is what this client has kept of an earlier round."""
    config = config_of(content)
    order = Order.from_bytes(config["order"])
    if ARRAYS in content:
        w = from_arrays(content.array_records[ARRAYS], space)
    else:
        if iterate is None or _digest_of(iterate) != config["since"]:
            validate.refuse("since", config["since"], "send the whole iterate: this client does not have that one")
        changes = vectors_of(content.array_records[_UPDATE])
        w = iterate.index_copy(0, changes["places"].long(), changes["values"])
    remedy = "send the iterate whole: this client has another one"
    validate.check(_digest_of(w) == order.digest, "order.digest", order.digest, remedy)
    return replace(order, w=w)


# ---------------------------------------------------------------- answers


def answer(message: Message, asked: bytes, counts: bool) -> bytes:
    """A message as bytes: a seal, how many records its client has where that `counts`, the code of every release."""
    body = b""
    if counts:
        body = message.records.to_bytes(8, "little")
    for name, bounded in message.values.items():
        data = message.coded.get(name)
        if data is None:
            data = bounded.value.detach().cpu().numpy().tobytes()
        body += len(data).to_bytes(4, "little") + data
    return _seal(asked, body) + body


def _seal(order: bytes, body: bytes) -> bytes:
    """Of an order and what answers it: a late answer to another order does not fit."""
    return hashlib.blake2b(hashlib.blake2b(order, digest_size=16).digest() + body, digest_size=SEAL).digest()


def _read_answer(
    data: bytes, asked: bytes, like: Message, codec: Codec | None, divisor: Callable[[int], float] | None
) -> Message:
    """The message of an answer to `asked`, with the sizes, dtypes and bounds of `like`; anything else is refused.

    `divisor` is what follows from how many records a client has; None where the divisor is that of `like`, and public.
    """
    right = isinstance(data, bytes) and len(data) > SEAL and data[:SEAL] == _seal(asked, data[SEAL:])
    remedy = "ask the client again: the answer was damaged on the way, or belongs to another order"
    validate.check(right, "answer", type(data).__name__, remedy)
    body, values = io.BytesIO(data[SEAL:]), {}

    def taken(size: int) -> bytes:
        part = body.read(size)
        remedy = "send the whole answer: this one ends too early"
        validate.check(len(part) == size, "answer", f"{len(data)} bytes", remedy)
        return part

    if divisor is not None:
        records = int.from_bytes(taken(8), "little")
        validate.positive_int(records=records)
        like = replace(like, divisor=divisor(records), records=records)
    for name, bounded in like.values.items():
        part, due = taken(int.from_bytes(taken(4), "little")), bounded.value.numel() * bounded.value.element_size()
        if codec is not None:
            value = codec.decode(part, bounded.value)
        else:
            remedy = f"send {due} bytes: both sides need the same federation, dtype={bounded.value.dtype} included"
            validate.check(len(part) == due, f"answer[{name!r}]", f"{len(part)} bytes", remedy)
            value = torch.frombuffer(bytearray(part), dtype=bounded.value.dtype)
        remedy = "send finite numbers, as a sum of gradients is"
        validate.check(bool(value.isfinite().all()), f"answer[{name!r}]", "not finite", remedy)
        values[name] = replace(bounded, value=value)
    more = len(body.read())
    validate.check(not more, "answer", f"{len(data)} bytes", f"send {len(data) - more} bytes, as the plan says")
    return replace(like, values=values, dims=sum(b.value.numel() for b in values.values()), bytes=len(data))


def _answer_in(reply: Letter) -> bytes:
    """The answer in a client's reply; a client that failed, or sent something else, is refused with what it said."""
    if reply.has_error():
        remedy = f"look at the client, which failed: {reply.error.reason}"
        if ANOTHER in remedy:
            remedy = f"give both sides the same Federation: the client has {ANOTHER}, and refused"
        validate.refuse("reply", reply.error.code, remedy)
    data = dict(reply.content.get(RECORD, {})).get("answer")
    if not isinstance(data, bytes):
        remedy = "run isthmus.distributed.flower at the client: its reply has no answer of bytes"
        validate.refuse("reply", sorted(reply.content), remedy)
    return data
