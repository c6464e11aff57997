"""The processes that run one program together: what they agree on, add up and tell each other.

`Group` is one process, where all of this is the identity.  `Ranks` are several, over `torch.distributed`: every rank
runs the same program with records of its own.  In a round

    all_gather   64 bytes a rank: whether it failed, and digests of its order, its maps and its message
    reduce       the clipped sums, to rank 0: m numbers a rank
    broadcast    what rank 0 released after it was charged for and noised: m numbers

Nothing but rank 0 charges a ledger or draws noise.  An error on any rank, a budget that refuses on rank 0 included, is
an error on all of them: nobody waits for a rank that will not come.  What is released is one string of bytes for
everybody, so weights are equal to the bit; their checksum is compared too.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from isthmus.base import storage, validate
from isthmus.base.randomness import key
from isthmus.core.wire import Message
from isthmus.privacy.clips import ClippedSum
from isthmus.privacy.ledger import BudgetExceeded
from isthmus.privacy.sampling import Sampler
from isthmus.problems.queries import Query

if TYPE_CHECKING:
    from isthmus.core.pipeline import Round, Stage

T = TypeVar("T")
_HEADER = struct.Struct("<8q")
"""Failed or not, where the rank is, and six numbers: in a round digests of its message, its order, its maps and its
iterate, its divisor and its bytes."""
_PLACES = ["", "round", "lead", "batch", "meet", "make_private", "records", "figure", "query", "values", "minimize"]
_PLACES += ["fit", "score"]
"""What ranks meet for.  All begin with one header of one length: ranks that are in different places find out there, and
do not hang or abort in collectives of different lengths."""
_LOST = "a rank was lost or took too long; what was charged stays charged. Start all ranks again"
_WIRE = 1 / 100
"""The most that float32 on the wire may add to the bound of one record, relative; where it would be more, float64."""


class RankFailed(RuntimeError):
    """Another rank failed: what it said, and which one it was."""


class Group:
    """One process: it leads itself, and everything is known to everybody."""

    rank: int = 0
    size: int = 1

    def on_leader(self, make: Callable[[], T], met: bool = False) -> T:
        """What `make` returns where the ledger and the noise are, on every rank: a tree of tensors and plain values.

        It is called nowhere else, and its error is everybody's.  `met`: the ranks have met just before.
        """
        return make()

    def agree(
        self, place: str, header: Sequence[int] = (), error: BaseException | None = None, names: Sequence[str] = ()
    ) -> list[tuple[int, ...]]:
        """Everybody's header; an error of one rank, and headers that differ where they must not, are errors of all."""
        if error is not None:
            raise error
        return [tuple(header)]

    def all(self, mine: Any) -> list[Any]:
        """Everybody's tree of plain values and tensors, in the order of the ranks."""
        return [mine]

    def mean(self, value: Any, n: int) -> Any:
        """The mean of everybody's number or tensor, weighted by how many records each has."""
        return value

    def joined(self, place: str) -> AbstractContextManager[None]:
        """What all do together: it ends once all have ended it, and an error on one of them is one on all."""
        return nullcontext()

    def alike(self) -> AbstractContextManager[None]:
        """What everybody computes of released values, and must find equal to the bit."""
        return nullcontext()

    def add(
        self,
        round: Round,
        stage: Stage,
        make: Callable[[], Message],
        same: Callable[[], int],
        own: int,
        whole: int,
        empty: bool = False,
    ) -> Message:
        """This process's message plus everybody else's, where the leader is; elsewhere it has no meaning.

        same        a checksum of what everybody must have alike
        own, whole  how many records there are here, and of everybody
        empty       whether the message is of no records, whose bounds do not know in what dtype they are
        """
        return make()

    def answer(self, query: Query) -> Tensor:
        """A query of the records of all."""
        return query.value()


ALONE = Group()


def group_of(group: Any) -> Group:
    """None or False: this process; True: all ranks of the default group; or the ranks of a process group."""
    if group is None or group is False or isinstance(group, Group):
        return group or ALONE
    is_group = group is True or isinstance(group, dist.ProcessGroup)
    validate.check(is_group, "group", group, "give a torch.distributed process group, or True for the default one")
    return Ranks(None if group is True else group)


class Ranks(Group):
    """Several processes, and the bytes that this one handed to their collectives."""

    def __init__(self, process_group: dist.ProcessGroup | None = None) -> None:
        ready = dist.is_available() and dist.is_initialized()
        remedy = "call torch.distributed.init_process_group first (torchrun sets what it needs)"
        validate.check(ready, "group", process_group, remedy)
        self.process_group = process_group
        self.rank, self.size = dist.get_rank(process_group), dist.get_world_size(process_group)
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()

    # ------------------------------------------------------------ collectives

    def gather(self, mine: bytes) -> list[bytes]:
        """A few bytes of every rank, of the same length."""
        own = self._placed(mine)
        received = [torch.empty_like(own) for _ in range(self.size)]
        with _reachable():
            dist.all_gather(received, own, group=self.process_group)
        self.sent["gather"] += len(mine)
        self.received["gather"] += len(mine) * (self.size - 1)
        return [tensor.cpu().numpy().tobytes() for tensor in received]

    def reduce(self, value: Tensor) -> Tensor:
        """The sum of all ranks' tensors on rank 0; what other ranks get has no meaning."""
        total = value.to(self._place(), copy=True)
        with _reachable():
            dist.reduce(total, self._root(0), group=self.process_group)
        (self.sent if self.rank else self.received)["reduce"] += total.numel() * total.element_size()
        return total.to(value.device)

    def broadcast(self, data: bytes | None, source: int = 0) -> bytes:
        """The bytes of one rank, for all."""
        mine = source == self.rank
        size = torch.tensor([len(data or b"")], dtype=torch.int64).to(self._place())
        with _reachable():
            dist.broadcast(size, self._root(source), group=self.process_group)
        count = int(size)
        raw = self._placed(data if mine and data else bytes(count))
        if count:
            with _reachable():
                dist.broadcast(raw, self._root(source), group=self.process_group)
        (self.sent if mine else self.received)["broadcast"] += count + 8
        return raw.cpu().numpy().tobytes()

    def _place(self) -> torch.device:
        """Where the group takes tensors from."""
        nccl = "nccl" in str(dist.get_backend(self.process_group))
        return torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")

    def _placed(self, data: bytes) -> Tensor:
        raw = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
        return raw.to(self._place())

    def _root(self, rank: int) -> int:
        """A rank of the group as the world numbers it."""
        return rank if self.process_group is None else dist.get_global_rank(self.process_group, rank)

    # ------------------------------------------------------------ what follows

    def on_leader(self, make: Callable[[], T], met: bool = False) -> T:
        if not met:
            self.agree("lead")
        if self.rank:
            answer = storage.unpack(self.broadcast(None), "led")
            if answer["error"] is not None:
                raise _raised(answer["error"], 0)
            value: T = answer["value"]
            return value
        try:
            value = make()
            data = storage.pack("led", {"error": None, "value": value})
        except BaseException as error:
            self.broadcast(storage.pack("led", {"error": _as_values(error), "value": None}))
            _tell_all(error)
            raise
        self.broadcast(data)
        return value

    def agree(
        self, place: str, header: Sequence[int] = (), error: BaseException | None = None, names: Sequence[str] = ()
    ) -> list[tuple[int, ...]]:
        numbers = [*header, *[0] * (6 - len(header))]
        mine = _HEADER.pack(int(error is not None), _PLACES.index(place), *numbers)
        headers = [tuple(_HEADER.unpack(line)) for line in self.gather(mine)]
        failed = [rank for rank, entry in enumerate(headers) if entry[0]]
        if failed:
            message = storage.pack("led", _as_values(error)) if failed[0] == self.rank else None
            data = self.broadcast(message, failed[0])
            raise _raised(storage.unpack(data, "led"), failed[0]) if error is None else _tell_all(error)
        where = [_PLACES[entry[1]] for entry in headers]
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
            _tell_all(differ)
            raise
        return headers

    def all(self, mine: Any) -> list[Any]:
        self.agree("values")
        data = storage.pack("value", mine)
        sent = [self.broadcast(data if rank == self.rank else None, rank) for rank in range(self.size)]
        return [storage.unpack(part, "value") for part in sent]

    def mean(self, value: Any, n: int) -> Any:
        own = torch.as_tensor(value, dtype=torch.float64) * n if n else torch.zeros(getattr(value, "shape", ()))
        headers = self.agree("figure", [n, own.numel()], names=("", "figure"))
        total = self.reduce(own.double())
        shared = self.on_leader(lambda: total / sum(header[0] for header in headers), met=True)
        return shared.to(value.dtype) if isinstance(value, Tensor) else float(shared)

    @contextmanager
    def joined(self, place: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # told where the others meet next, whatever they meet for: nobody waits for it
            if "known to all ranks" not in error.__dict__:
                self.agree(place, error=error)
            raise
        self.agree(place)

    @contextmanager
    def alike(self) -> Iterator[None]:
        """What matrices make of a vector depends on the number of threads in its last bits: with one it is alike."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)

    def add(
        self,
        round: Round,
        stage: Stage,
        make: Callable[[], Message],
        same: Callable[[], int],
        own: int,
        whole: int,
        empty: bool = False,
    ) -> Message:
        message, error, header = None, None, [0] * 6
        try:
            promise = round.pipe.promise
            public = promise is None or promise.n is not None  # lengths that follow from a private number are not sent
            longest = reach_of(stage.sampler, own, whole, self.size) if public else (math.inf, math.inf)
            message = for_wire(make(), *longest, self.size)
            sent = [(name, b.value.numel(), b.value.dtype, b.bound) for name, b in message.values.items()]
            asked = key(stage.name, round.t, round.seed, round.eta, sorted(round.bounds.items()))
            maps = key(*(sketch.fingerprint for sketch in round.sketches.values()))
            digests = [0 if empty else key(*sent), asked, maps, same()]
            divisor = struct.unpack("<q", struct.pack("<d", message.divisor))[0]
            header = [*((word + (1 << 63)) % (1 << 64) - (1 << 63) for word in digests), divisor, message.bytes]
        except Exception as failed:
            error = failed
        headers = self.agree("round", header, error, ("message", "order", "maps", "iterate"))
        assert message is not None
        message = self._bounds_of_others(message, [entry[0] == 0 for entry in headers])
        totals: dict[str, ClippedSum] = {}
        for dtype in dict.fromkeys(
            bounded.value.dtype for bounded in message.values.values()
        ):  # one collective for each
            names = [name for name, bounded in message.values.items() if bounded.value.dtype == dtype]
            flat = [message.values[name].value.reshape(-1) for name in names]
            parts = self.reduce(torch.cat(flat)).split([len(vector) for vector in flat])
            totals |= {name: replace(message.values[name], value=part) for name, part in zip(names, parts, strict=True)}
        divisors = [struct.unpack("<d", struct.pack("<q", entry[4]))[0] for entry in headers]
        return replace(
            message,
            values={name: totals[name] for name in message.values},
            divisor=message.divisor if message.fixed else sum(divisors),
            dims=message.dims * self.size,
            bytes=sum(entry[5] for entry in headers),
        )

    def _bounds_of_others(self, message: Message, empty: list[bool]) -> Message:
        """The message with the bounds of a rank that has records, where some rank has none."""
        if not any(empty) or all(empty):
            return message
        source = empty.index(False)
        plain = {name: replace(bounded, value=bounded.value[:0]) for name, bounded in message.values.items()}
        mine = replace(message, values=plain, coded={}).to_bytes() if source == self.rank else None
        theirs = Message.from_bytes(self.broadcast(mine, source)).values
        return replace(
            message, values={name: replace(theirs[name], value=b.value) for name, b in message.values.items()}
        )

    def answer(self, query: Query) -> Tensor:
        """Rank 0 asks for products, and everybody adds its own: the value there, 0 elsewhere."""
        failed: list[Exception] = []
        self.agree("query")

        def mine(v: Tensor) -> Tensor:
            try:
                return query.products(v)
            except Exception as error:  # the others wait for a product: it is told when they meet again
                failed.append(error)
                return torch.full_like(v, torch.nan)

        def products(v: Tensor) -> Tensor:
            self.broadcast(storage.pack("product", v))
            return self.reduce(mine(v))

        total = torch.zeros(1, dtype=torch.float64)
        if self.rank:
            while data := self.broadcast(None):
                self.reduce(mine(storage.unpack(data, "product")))
        else:
            try:
                total = query.joint(products)
            except Exception as error:
                failed.append(error)
            self.broadcast(b"")
        if failed:
            raise failed[0]
        return total


def reach_of(sampler: Sampler, n: int, whole: int, size: int) -> tuple[float, float]:
    """How long the sum of a rank, and of all, may be, in bounds of one record: twice what is expected, and some."""
    rate = float(getattr(sampler, "rate", 1.0))
    return 16 + 2 * rate * n, 16 * size + 2 * rate * whole


def for_wire(message: Message, own: float, total: float, size: int) -> Message:
    """Clipped sums in the dtype that they are sent and added in, with the bound that holds for their sum.

    own, total  what this sum and all together are shortened to, in bounds of one record: public numbers, or infinity
    """
    values = {name: bounded.narrowed(own, total, size, _WIRE) for name, bounded in message.values.items()}
    count = sum(value.value.numel() * value.value.element_size() for value in values.values())
    return replace(message, values=values, bytes=count)


# ---------------------------------------------------------------- errors that travel


def _tell_all(error: BaseException) -> BaseException:
    """The error, marked as one that every rank has heard of."""
    error.__dict__["known to all ranks"] = True
    return error


@contextmanager
def _reachable() -> Iterator[None]:
    """A collective: where it fails a rank is gone, and nobody can be told anything."""
    try:
        yield
    except RuntimeError as error:
        raise _tell_all(RankFailed(f"{_LOST} ({str(error).splitlines()[0]})")) from error


def _as_values(error: BaseException | None) -> dict[str, Any]:
    """An error as plain values."""
    if isinstance(error, BudgetExceeded):
        terms = [error.what, error.rounds, error.spent, error.asked, *error.budget]
        return {"kind": "budget", "text": str(error), "asked": terms}
    kind = "input" if isinstance(error, validate.InvalidInput) else type(error).__name__
    return {"kind": kind, "text": str(error), "asked": []}


def _raised(failure: dict[str, Any], rank: int) -> BaseException:
    """The error of another rank, here."""
    if failure["kind"] == "budget":
        what, rounds, spent, total, *budget = failure["asked"]
        return _tell_all(BudgetExceeded(what, rounds, spent, total, (budget[0], budget[1])))
    if failure["kind"] == "input":
        return _tell_all(validate.InvalidInput(failure["text"]))
    return _tell_all(RankFailed(f"rank {rank} failed with {failure['kind']}: {failure['text']}"))
