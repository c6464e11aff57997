"""The processes that run one program together.

A `Group` is those processes, each with records of its own; alone, all of it is the identity.  With several, over
`torch.distributed`, a round is

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
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from isthmus.base import storage, validate
from isthmus.base.parallel import one_thread
from isthmus.base.randomness import key
from isthmus.core.wire import Message
from isthmus.privacy.clips import ClippedSum
from isthmus.privacy.ledger import BudgetExceeded
from isthmus.privacy.sampling import Sampler, rate_of
from isthmus.problems.queries import Query

if TYPE_CHECKING:
    from isthmus.core.pipeline import Round, RunContext, Stage

T = TypeVar("T")
_Figure = TypeVar("_Figure", float, Tensor)
_HEADER = struct.Struct("<6Q2d")
"""Failed or not, what the rank meets the others for, and six numbers: in a round digests of its message, its order, its
maps and its iterate, its divisor and its bytes.  All meetings begin with one header of one length: ranks that are in
different places find out there, and do not hang or abort in collectives of different lengths."""
_LOST = "a rank was lost or took too long; what was charged stays charged. Start all ranks again"


class RankFailed(RuntimeError):
    """Another rank failed: what it said, and which one it was."""


class Group:
    """The ranks of a process group, and the bytes that this one handed to their collectives; alone without one."""

    def __init__(self, process_group: dist.ProcessGroup | bool | None = None) -> None:
        self.rank, self.size = 0, 1
        self.sent: Counter[str] = Counter()
        self._ranks: dist.ProcessGroup | None = None
        self.alike: Callable[[], AbstractContextManager[None]] = nullcontext
        """Around what everybody computes of released values, and must find equal to the bit: what matrices make of a
        vector depends on the number of threads in its last bits, and with one thread it is alike."""
        if process_group is None or process_group is False:
            return
        is_group = process_group is True or isinstance(process_group, dist.ProcessGroup)
        remedy = "give a torch.distributed process group, or True for the default one"
        validate.check(is_group, "group", process_group, remedy)
        ready = dist.is_available() and dist.is_initialized()
        remedy = "call torch.distributed.init_process_group first (torchrun sets what it needs)"
        validate.check(ready, "group", process_group, remedy)
        if isinstance(process_group, dist.ProcessGroup):
            self._ranks = process_group
        self.rank, self.size = dist.get_rank(self._ranks), dist.get_world_size(self._ranks)
        if self.size > 1:
            self.alike = one_thread

    @staticmethod
    def of(group: Group | dist.ProcessGroup | bool | None) -> Group:
        """None or False: this process; True: all ranks of the default group; or the ranks of a process group."""
        return group if isinstance(group, Group) else Group(group)

    # ------------------------------------------------------------ collectives

    def gather(self, mine: bytes) -> list[bytes]:
        """A few bytes of every rank, of the same length."""
        if self.size == 1:
            return [mine]
        own = self._placed(mine)
        received = [torch.empty_like(own) for _ in range(self.size)]
        with _reachable():
            dist.all_gather(received, own, group=self._ranks)
        self.sent["gather"] += len(mine)
        return [tensor.cpu().numpy().tobytes() for tensor in received]

    def reduce(self, value: Tensor) -> Tensor:
        """The sum of all ranks' tensors on rank 0; what other ranks get has no meaning."""
        total = value.to(self._place(), copy=True)
        with _reachable():
            dist.reduce(total, group=self._ranks, group_dst=0)
        if self.rank:
            self.sent["reduce"] += total.numel() * total.element_size()
        return total.to(value.device)

    def broadcast(self, data: bytes | None, source: int = 0) -> bytes:
        """The bytes of one rank, for all."""
        mine = data if source == self.rank and data else b""
        size = torch.tensor([len(mine)], dtype=torch.int64).to(self._place())
        with _reachable():
            dist.broadcast(size, group=self._ranks, group_src=source)
            raw = self._placed(mine or bytes(int(size)))
            if len(raw):
                dist.broadcast(raw, group=self._ranks, group_src=source)
        if source == self.rank:
            self.sent["broadcast"] += len(raw) + 8
        return raw.cpu().numpy().tobytes()

    def _place(self) -> torch.device:
        """Where the group takes tensors from."""
        if "nccl" in str(dist.get_backend(self._ranks)):
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("cpu")

    def _placed(self, data: bytes) -> Tensor:
        return torch.from_numpy(np.frombuffer(data, np.uint8).copy()).to(self._place())

    # ------------------------------------------------------------ what follows

    def on_leader(self, make: Callable[[], T], met: bool = False) -> T:
        """What `make` returns where the ledger and the noise are, on every rank: a tree of tensors and plain values.

        It is called nowhere else, and its error is everybody's.  `met`: the ranks have met just before.
        """
        if self.size == 1:
            return make()
        if not met:
            self.agree("lead")
        if not self.rank:
            try:
                value = make()
                data = storage.pack("led", {"error": None, "value": value})
            except BaseException as error:
                self.broadcast(storage.pack("led", {"error": _as_values(error), "value": None}))
                raise _known(error)  # noqa: B904  # the error itself
            self.broadcast(data)
            return value
        answer = storage.unpack(self.broadcast(None), "led")
        if answer["error"] is not None:
            raise _raised(answer["error"], 0)
        return answer["value"]  # type: ignore[no-any-return]

    def agree(
        self, place: str, header: Sequence[float] = (), error: BaseException | None = None, names: Sequence[str] = ()
    ) -> list[tuple[Any, ...]]:
        """Everybody's header; an error of one rank, and headers that differ where they must not, are errors of all."""
        mine = _HEADER.pack(error is not None, key(place), *header, *[0] * (6 - len(header)))
        headers = [_HEADER.unpack(line) for line in self.gather(mine)]
        failed = [rank for rank, entry in enumerate(headers) if entry[0]]
        if failed and self.size > 1:
            told = storage.unpack(self.broadcast(storage.pack("led", _as_values(error)), failed[0]), "led")
            if error is None:
                raise _raised(told, failed[0])
            raise _known(error)
        if error is not None:
            raise error
        remedy = "let all ranks make the same calls: they are at different places in the program"
        try:
            validate.check(len({entry[1] for entry in headers}) == 1, "ranks", place, remedy)
            remedy = "give all ranks the same program, arguments and start: the ranks differ"
            for at, name in enumerate(names, 2):
                numbers = [entry[at] for entry in headers]
                same = not name or len(set(numbers) - {0}) < 2  # 0 is a rank that has nothing to compare
                validate.check(same, name, numbers, remedy)
        except validate.InvalidInput as differ:
            raise _known(differ)  # noqa: B904  # the error itself
        return [entry[2:] for entry in headers]

    def all(self, mine: T) -> list[T]:
        """Everybody's tree of plain values and tensors, in the order of the ranks."""
        if self.size == 1:
            return [mine]
        self.agree("values")
        data = storage.pack("value", mine)
        return [storage.unpack(self.broadcast(data, rank), "value") for rank in range(self.size)]

    def mean(self, value: _Figure, n: int) -> _Figure:
        """The mean of everybody's number or tensor, weighted by how many records each has."""
        if self.size == 1:
            return value
        told = self.all((n, torch.as_tensor(value, dtype=torch.float64)))
        total = sum(each * count for count, each in told if count)  # the mean of no records is no number
        mean = torch.as_tensor(total / sum(count for count, _ in told))
        return mean.to(value.dtype) if isinstance(value, Tensor) else float(mean)

    @contextmanager
    def joined(self, place: str) -> Iterator[None]:
        """What all do together: it ends once all have ended it, and an error on one of them is one on all."""
        try:
            yield
        except Exception as error:  # told where the others meet next, whatever they meet for: nobody waits for it
            if "known to all ranks" not in error.__dict__:
                self.agree(place, error=error)
            raise
        self.agree(place)

    def add(
        self, round: Round, stage: Stage, make: Callable[[], Message], same: int, own: int, n: int, empty: bool = False
    ) -> Message:
        """This rank's message plus everybody else's, where the leader is; elsewhere it has no meaning.

        same        a checksum of what everybody must have alike
        own, n      how many records there are here, and of everybody
        empty       whether the message is of no records, whose bounds do not know in what dtype they are
        """
        message, error, header = None, None, list[float]()
        try:
            promise, longest = round.pipe.promise, (math.inf, math.inf)
            if promise is None or promise.n is not None:  # lengths that follow from a private number are not sent
                rate = rate_of(stage.sampler)
                longest = 16 + 2 * rate * own, 16 * self.size + 2 * rate * n  # twice what is expected, and some
            message = make().for_wire(*longest, self.size)
            sent = [(name, b.value.numel(), b.value.dtype, b.bound) for name, b in message.values.items()]
            asked = key(stage.name, round.t, round.seed, round.eta, sorted(round.bounds.items()))
            maps = key(*(sketch.fingerprint for sketch in round.sketches.values()))
            digests = [0 if empty else key(*sent), asked, maps, same]
            header = [*digests, message.divisor, message.bytes]
        except Exception as failed:
            error = failed
        headers = self.agree("round", header, error, ("message", "order", "maps", "iterate"))
        assert message is not None
        values = dict(self._bounds_of_others(message, [entry[0] == 0 for entry in headers]))
        for dtype in {bounded.value.dtype: None for bounded in values.values()}:  # one collective for each
            names = [name for name, bounded in values.items() if bounded.value.dtype == dtype]
            flat = [values[name].value.reshape(-1) for name in names]
            parts = self.reduce(torch.cat(flat)).split([len(vector) for vector in flat])
            values |= {name: replace(values[name], value=part) for name, part in zip(names, parts, strict=True)}
        divisor = message.divisor if message.fixed else sum(entry[4] for entry in headers)
        size = sum(int(entry[5]) for entry in headers)
        return replace(message, values=values, divisor=divisor, dims=message.dims * self.size, bytes=size)

    def _bounds_of_others(self, message: Message, empty: list[bool]) -> dict[str, ClippedSum]:
        """The values of a message with the bounds of a rank that has records, where some rank has none."""
        if not any(empty) or all(empty):
            return dict(message.values)
        source = empty.index(False)
        plain = {name: replace(bounded, value=bounded.value[:0]) for name, bounded in message.values.items()}
        mine = replace(message, values=plain, coded={}).to_bytes()
        theirs = Message.from_bytes(self.broadcast(mine, source)).values
        return {name: replace(theirs[name], value=bounded.value) for name, bounded in message.values.items()}

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


ALONE = Group()


# ---------------------------------------------------------------- errors that travel


def _known(error: BaseException) -> BaseException:
    """The error, marked as one that every rank has heard of."""
    error.__dict__["known to all ranks"] = True
    return error


@contextmanager
def _reachable() -> Iterator[None]:
    """A collective: where it fails a rank is gone, and nobody can be told anything."""
    try:
        yield
    except RuntimeError as error:
        raise _known(RankFailed(f"{_LOST} ({str(error).splitlines()[0]})")) from error


def _as_values(error: BaseException | None) -> storage.Fields:
    """An error as plain values."""
    if isinstance(error, BudgetExceeded):
        asked = [error.what, error.rounds, error.spent, error.asked, *error.budget]
        return {"kind": "budget", "text": str(error), "asked": asked}
    kind = "input" if isinstance(error, validate.InvalidInput) else type(error).__name__
    return {"kind": kind, "text": str(error)}


def _raised(failure: storage.Fields, rank: int) -> BaseException:
    """The error of another rank, here."""
    if failure["kind"] == "budget":
        what, rounds, spent, total, *budget = failure["asked"]
        return _known(BudgetExceeded(what, rounds, spent, total, (budget[0], budget[1])))
    if failure["kind"] == "input":
        return _known(validate.InvalidInput(failure["text"]))
    return _known(RankFailed(f"rank {rank} failed with {failure['kind']}: {failure['text']}"))


# ---------------------------------------------------------------- who holds the records


class Aggregator(ABC):
    """Collects one message from wherever the data is.

    `problems` are the holders of records that this process knows of, `group` the processes that run the loop.
    """

    problems: Sequence[Any]
    group: Group = ALONE

    def holding(self, problems: Sequence[Any]) -> Self:
        """The same holders with other problems, as after something was bought."""
        other = copy(self)
        object.__setattr__(other, "problems", tuple(problems))  # of a frozen class too
        return other

    @abstractmethod
    def collect(self, round: Round, stage: Stage, context: RunContext) -> Message:
        """The added message of one stage of a round, whose maps are bound here.

        Holders elsewhere are asked by an `isthmus.distributed.order.Order`.  Sums that come with the noise of their
        stage are paid for (`isthmus.core.pipeline.pay`) before they leave their holders.
        """

    def check_private(self, n: int, samplers: Sequence[Sampler]) -> None:  # noqa: B027  # one holder: nothing to add
        """Refuse, before anything is looked at, sums over holders that would be no bounded sums over records."""
