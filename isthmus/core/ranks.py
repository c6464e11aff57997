"""One process a rank: messages are added over `torch.distributed`, one rank has the ledger and the noise.

Every rank runs the same program with records of its own.  In a round

    all_gather   64 bytes a rank: whether it failed, and digests of its order, its maps and its message
    reduce       the clipped sums, to rank 0: m numbers a rank
    broadcast    what rank 0 released after it was charged for and noised: m numbers

Nothing but rank 0 charges a ledger or draws noise.  An error on any rank, a budget that refuses on rank 0 included, is
an error on all of them: nobody waits for a rank that will not come.  What is released is one string of bytes for
everybody, so weights are equal to the bit; their checksum is compared every round.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from isthmus.base import storage, validate
from isthmus.base.randomness import key
from isthmus.core.aggregators import Aggregator, Asks, Client, check_samplers
from isthmus.core.opened import Round
from isthmus.core.wire import Message
from isthmus.privacy.clips import ClippedSum
from isthmus.privacy.ledger import BudgetExceeded
from isthmus.privacy.sampling import Sampler
from isthmus.problems.queries import Query

HEADER = struct.Struct("<8q")
"""Failed or not, where the rank is, and six numbers: in a round digests of its message, its order, its maps and its
iterate, its divisor and its bytes."""
PLACES = {"round": 1, "lead": 2, "batch": 3, "meet": 4, "make_private": 5, "records": 6, "figure": 7}
PLACES |= {"query": 8, "values": 9, "minimize": 10, "fit": 11, "score": 12}
"""What ranks meet for.  All begin with one header of one length: ranks that are in different places find out there, and
do not hang or abort in collectives of different lengths."""


LOST = "a rank was lost or took too long; what was charged stays charged. Start all ranks again"


class RankFailed(RuntimeError):
    """Another rank failed: what it said, and which one it was."""


Failure = TypeVar("Failure", bound=BaseException)


def known_to_all(error: Failure) -> Failure:
    """The error, marked as one that every rank has heard of."""
    error.__dict__["known to all ranks"] = True
    return error


@contextmanager
def _reachable() -> Iterator[None]:
    """A collective: where it fails a rank is gone, and nobody can be told anything."""
    try:
        yield
    except RuntimeError as error:
        raise known_to_all(RankFailed(f"{LOST} ({str(error).splitlines()[0]})")) from error


@contextmanager
def one_thread() -> Iterator[None]:
    """What matrices make of a vector depends on the number of threads in its last bits: with one it is alike."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class Reach:
    """How long the sums of all ranks can be, in bounds of one record: public numbers.

    own     what this rank's sum is shortened to
    total   of all ranks together
    """

    own: float
    total: float


UNKNOWN = Reach(math.inf, math.inf)
"""Where the number of records is private: sums are sent in float64 and not shortened."""


@dataclass(frozen=True, eq=False)
class Ranks:
    """Collectives of a group of processes, and the bytes that this rank handed to them."""

    group: dist.ProcessGroup | None = None
    sent: Counter[str] = field(default_factory=Counter)
    received: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        ready = dist.is_available() and dist.is_initialized()
        remedy = "call torch.distributed.init_process_group first (torchrun sets what it needs)"
        validate.check(ready, "group", self.group, remedy)

    @property
    def rank(self) -> int:
        """The number of this process in the group."""
        return dist.get_rank(self.group)

    @property
    def size(self) -> int:
        """How many processes there are."""
        return dist.get_world_size(self.group)

    @property
    def place(self) -> torch.device:
        """Where the group takes tensors from."""
        nccl = "nccl" in str(dist.get_backend(self.group))
        return torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")

    @property
    def first(self) -> int:
        """The rank that leads, as the world numbers it."""
        return 0 if self.group is None else dist.get_global_rank(self.group, 0)

    def gather(self, mine: bytes) -> list[bytes]:
        """A few bytes of every rank, of the same length."""
        own = torch.frombuffer(bytearray(mine), dtype=torch.uint8).to(self.place)
        received = [torch.empty_like(own) for _ in range(self.size)]
        with _reachable():
            dist.all_gather(received, own, group=self.group)
        self.sent["gather"] += len(mine)
        self.received["gather"] += len(mine) * (self.size - 1)
        return [tensor.cpu().numpy().tobytes() for tensor in received]

    def reduce(self, value: Tensor) -> Tensor:
        """The sum of all ranks' tensors on rank 0; what other ranks get has no meaning."""
        total = value.to(self.place, copy=True)
        with _reachable():
            dist.reduce(total, self.first, group=self.group)
        (self.sent if self.rank else self.received)["reduce"] += total.numel() * total.element_size()
        return total.to(value.device)

    def broadcast(self, data: bytes | None, source: int = 0) -> bytes:
        """The bytes of one rank, for all."""
        mine = source == self.rank
        size = torch.tensor([len(data or b"")], dtype=torch.int64).to(self.place)
        root = source if self.group is None else dist.get_global_rank(self.group, source)
        with _reachable():
            dist.broadcast(size, root, group=self.group)
        count = int(size)
        raw = (
            torch.frombuffer(bytearray(data), dtype=torch.uint8)
            if mine and data
            else torch.empty(count, dtype=torch.uint8)
        )
        raw = raw.to(self.place)
        if count:
            with _reachable():
                dist.broadcast(raw, root, group=self.group)
        (self.sent if mine else self.received)["broadcast"] += count + 8
        return raw.cpu().numpy().tobytes()

    def lead(self, make: Callable[[], Any], met: bool = False) -> Any:
        """What `make` returns on rank 0, on every rank; it is called nowhere else, and its error is everybody's.

        `met` says that the ranks have met just before, and need not again.
        """
        if not met:
            self.agree("lead", [0] * 6)
        if self.rank:
            answer = storage.unpack(self.broadcast(None), "led")
            if answer["error"] is not None:
                raise _raised(answer["error"], 0)
            return answer["value"]
        try:
            value = make()
            data = storage.pack("led", {"error": None, "value": value})
        except BaseException as error:
            self.broadcast(storage.pack("led", {"error": _as_values(error), "value": None}))
            known_to_all(error)
            raise
        self.broadcast(data)
        return value

    def agree(
        self, place: str, header: Sequence[int], error: BaseException | None = None, names: Sequence[str] = ()
    ) -> list[tuple[int, ...]]:
        """Everybody's header; an error of one rank, and headers that differ where they must not, are errors of all."""
        mine = HEADER.pack(int(error is not None), PLACES[place], *header)
        headers = [tuple(HEADER.unpack(line)) for line in self.gather(mine)]
        failed = [rank for rank, entry in enumerate(headers) if entry[0]]
        if failed:
            message = None if error is None or failed[0] != self.rank else storage.pack("led", _as_values(error))
            data = self.broadcast(message, failed[0])
            raise _raised(storage.unpack(data, "led"), failed[0]) if error is None else known_to_all(error)
        where = [next(name for name, code in PLACES.items() if code == entry[1]) for entry in headers]
        remedy = "let all ranks make the same calls: they are at different places in the program"
        try:
            validate.check(len(set(where)) == 1, "ranks", where, remedy)
            headers = [entry[2:] for entry in headers]
            remedy = "give all ranks the same program, arguments and start: the ranks differ"
            for at, name in enumerate(names):
                numbers = [entry[at] for entry in headers]
                same = not name or len(set(numbers) - {0}) < 2  # 0 is a rank that has nothing to compare
                validate.check(same, name, numbers, remedy)
        except validate.InvalidInput as differ:
            known_to_all(differ)
            raise
        return headers

    def values(self, mine: Any) -> list[Any]:
        """A tree of plain values and tensors of every rank, in the order of the ranks."""
        self.agree("values", [0] * 6)
        data = storage.pack("value", mine)
        sent = [self.broadcast(data if rank == self.rank else None, rank) for rank in range(self.size)]
        return [storage.unpack(part, "value") for part in sent]

    @contextmanager
    def joined(self, place: str) -> Iterator[None]:
        """What all ranks do together: it ends once all have ended it, and an error on one of them is one on all.

        A rank that fails says so where the others meet next, whatever they meet for: nobody waits for it.
        """
        try:
            yield
        except Exception as error:
            if "known to all ranks" not in error.__dict__:
                self.agree(place, [0] * 6, error)
            raise
        self.agree(place, [0] * 6)


@dataclass(frozen=True)
class AllReduce(Aggregator):
    """One process a rank, each with its own records: their sums are added on rank 0, which alone pays and adds noise.

    problem   the records of this rank; None: the objective that `minimize` is given is this rank's part
    group     a process group; None is the default one
    """

    problem: Any = None
    group: dist.ProcessGroup | None = None
    ranks: Ranks = field(default=None, compare=False, repr=False)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.ranks is None:
            object.__setattr__(self, "ranks", Ranks(self.group))

    @property
    def leads(self) -> bool:  # type: ignore[override]
        """Whether this is rank 0."""
        return self.ranks.rank == 0

    @property
    def shared(self) -> bool:  # type: ignore[override]
        """Every rank runs the loop."""
        return True

    @property
    def number(self) -> int:  # type: ignore[override]
        """The rank."""
        return self.ranks.rank

    @property
    def problems(self) -> Sequence[Any]:  # type: ignore[override]
        """This rank's records."""
        return (self.problem,)

    def holding(self, problems: Sequence[Any]) -> AllReduce:
        """The same ranks, this one with another problem."""
        (problem,) = problems
        return replace(self, problem=problem)

    def whole(self, n: int) -> int:
        """The records of all ranks."""
        counts = self.ranks.agree("records", [self.problem.n, 0, 0, 0, 0, 0])
        return sum(count[0] for count in counts)

    def mean(self, value: Any) -> Any:
        """The mean over ranks, weighted by their records."""
        n = self.problem.n
        own = torch.as_tensor(value, dtype=torch.float64) * n if n else torch.zeros(getattr(value, "shape", ()))
        headers = self.ranks.agree("figure", [n, own.numel(), 0, 0, 0, 0], names=("", "figure"))
        total = self.ranks.reduce(own.double())
        shared_mean = self.ranks.lead(lambda: total / sum(header[0] for header in headers), met=True)
        return shared_mean.to(value.dtype) if isinstance(value, Tensor) else float(shared_mean)

    def alike(self) -> AbstractContextManager[None]:
        """On one thread, so that all ranks find the same bits."""
        return one_thread()

    def lead(self, make: Callable[[], Any]) -> Any:
        """What `make` returns on rank 0."""
        return self.ranks.lead(make)

    def joined(self) -> AbstractContextManager[None]:
        """A run of all ranks: an error on one of them is one on all."""
        return self.ranks.joined("minimize")

    def publish(self, close: Callable[[], Any]) -> Any:
        """What rank 0 released, right after the ranks have met in `collect`."""
        return self.ranks.lead(close, met=True)

    def check_private(self, n: int, samplers: Sequence[Sampler]) -> None:
        """Each rank draws its own records."""
        check_samplers(samplers, "group")

    def joint(self, query: Query) -> Tensor:
        """A query of the records of all ranks: rank 0 asks for products, everybody adds its own."""
        ranks, stop, failed = self.ranks, b"", []
        ranks.agree("query", [0] * 6)

        def mine(v: Tensor) -> Tensor:
            try:
                return query.products(v)
            except Exception as error:  # the others wait for a product: it is told when they meet again
                failed.append(error)
                return torch.full_like(v, torch.nan)

        def products(v: Tensor) -> Tensor:
            ranks.broadcast(storage.pack("product", v))
            return ranks.reduce(mine(v))

        total = torch.zeros(1, dtype=torch.float64)
        if ranks.rank:
            while data := ranks.broadcast(None):
                ranks.reduce(mine(storage.unpack(data, "product")))
        else:
            try:
                total = query.joint(products)
            except Exception as error:
                failed.append(error)
            ranks.broadcast(stop)
        if failed:
            raise failed[0]
        return total

    def collect(self, order: Asks, site: Any) -> Message:
        """This rank's message plus everybody else's, on rank 0; elsewhere what it has no meaning."""
        rank, size = self.ranks.rank, self.ranks.size
        client = Client(str(rank), self.problem, 0, site, site.whole, 1 / size, self.joint)
        message, error = None, None
        try:
            message = order(client)
            sampler, round = site.stage(order).sampler, site.round
            promise = round.pipe.promise
            public = promise is None or promise.n is not None  # lengths that follow from a private number are not sent
            reach = reach_of(sampler, self.problem.n, client.whole, size) if public else UNKNOWN
            message = for_wire(message, reach, size)
            question = key(order.stage, order.t, order.seed, order.eta, sorted(order.bounds.items()))  # type: ignore[attr-defined]
            header = checked(message, question, round, storage.checksum(round.w))
        except Exception as failed:
            error, header = failed, [0] * 6
        names = ("message", "order", "maps", "iterate", "", "")
        headers = self.ranks.agree("round", header, error, names)
        assert message is not None
        divisor = message.divisor if message.fixed else sum(_float(entry[4]) for entry in headers)
        total = summed(self.ranks, message)
        return replace(total, divisor=divisor, dims=message.dims * size, bytes=sum(entry[5] for entry in headers))


# ---------------------------------------------------------------- what goes over the wire


WIRE = 1 / 100
"""The most that float32 on the wire may add to the bound of one record, relative; where it would be more, float64."""


def reach_of(sampler: Sampler, n: int, whole: int | None, size: int) -> Reach:
    """How long sums may be: twice what all expected records of a rank could make together, and some."""
    rate = float(getattr(sampler, "rate", 1.0))
    return Reach(16 + 2 * rate * n, 16 * size + 2 * rate * (n if whole is None else whole))


def for_wire(message: Message, reach: Reach, size: int) -> Message:
    """Clipped sums in the dtype that they are sent and added in, with the bound that holds for their sum."""
    values = {name: bounded.narrowed(reach.own, reach.total, size, WIRE) for name, bounded in message.values.items()}
    count = sum(value.value.numel() * value.value.element_size() for value in values.values())
    return replace(message, values=values, bytes=count)


def summed(ranks: Ranks, message: Message) -> Message:
    """The sums of all ranks, one collective for all values of a dtype."""
    totals: dict[str, ClippedSum] = {}
    for dtype in dict.fromkeys(bounded.value.dtype for bounded in message.values.values()):
        names = [name for name, bounded in message.values.items() if bounded.value.dtype == dtype]
        flat = [message.values[name].value.reshape(-1) for name in names]
        total = ranks.reduce(torch.cat(flat))
        parts = total.split([len(vector) for vector in flat])
        totals |= {name: replace(message.values[name], value=part) for name, part in zip(names, parts, strict=True)}
    return replace(message, values={name: totals[name] for name in message.values})


def checked(message: Message, asked: int, round: Round, iterate: int) -> list[int]:
    """What ranks compare before they add: message, order, maps and iterate as numbers; and its divisor and bytes."""
    maps = key(*(sketch.fingerprint for sketch in round.sketches.values()))
    return [*map(_signed, (_numbers(message), asked, maps, iterate)), _bits(message.divisor), message.bytes]


def _numbers(message: Message) -> int:
    """Sizes, kinds and bounds of what is sent, in one number."""
    layout = [
        (name, bounded.value.numel(), bounded.value.dtype, bounded.bound) for name, bounded in message.values.items()
    ]
    return key(*layout)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >= 1 << 63 else word


def _bits(value: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _float(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])


def _as_values(error: BaseException | None) -> dict[str, Any]:
    """An error as plain values."""
    if isinstance(error, BudgetExceeded):
        terms = [error.what, error.rounds, error.spent, error.asked, *error.budget]
        return {"kind": "budget", "text": str(error), "asked": terms}
    kind = "input" if isinstance(error, validate.InvalidInput) else type(error).__name__
    return {"kind": kind, "text": str(error), "asked": []}


def _raised(failure: dict[str, Any], rank: int) -> Exception:
    """The error of another rank, here."""
    if failure["kind"] == "budget":
        what, rounds, spent, total, *budget = failure["asked"]
        return known_to_all(BudgetExceeded(what, rounds, spent, total, (budget[0], budget[1])))
    if failure["kind"] == "input":
        return known_to_all(validate.InvalidInput(failure["text"]))
    return known_to_all(RankFailed(f"rank {rank} failed with {failure['kind']}: {failure['text']}"))
