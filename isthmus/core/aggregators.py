"""Aggregators: where the contributions of a round come from and how they are added."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from isthmus.base import storage, validate
from isthmus.base.randomness import generator
from isthmus.core.group import ALONE, Group, group_of
from isthmus.core.measuring import Client, contribute
from isthmus.core.wire import Message
from isthmus.privacy.sampling import FixedSize, Sampler

if TYPE_CHECKING:
    from isthmus.core.pipeline import Round, RunContext, Stage


class Aggregator(ABC):
    """Collects one message from wherever the data is.

    `problems` are the holders of records that this process knows of, `group` the processes that run the loop.
    """

    problems: Sequence[Any]
    group: Group = ALONE

    @abstractmethod
    def holding(self, problems: Sequence[Any]) -> Self:
        """The same holders with other problems, as after something was bought."""

    @abstractmethod
    def collect(self, round: Round, stage: Stage, context: RunContext) -> Message:
        """The added message of one stage of a round, whose maps are bound here.

        Holders elsewhere are asked by an `isthmus.distributed.order.Order`.  Sums that come with the noise of their
        stage are paid for (`isthmus.core.pipeline.pay`) before they leave their holders.
        """

    def check_private(self, n: int, samplers: Sequence[Sampler]) -> None:  # noqa: B027  # one holder: nothing to add
        """Refuse, before anything is looked at, sums over holders that would be no bounded sums over records."""


class Local(Aggregator):
    """All the data is here."""

    def __init__(self, problem: Any) -> None:
        self.problems = (problem,)

    def holding(self, problems: Sequence[Any]) -> Local:
        """Another problem."""
        return Local(*problems)

    def collect(self, round: Round, stage: Stage, context: RunContext) -> Message:
        """The one contribution."""
        return contribute(round, stage, Client("0", self.problems[0]), context.keys, context.physical)


@dataclass(frozen=True)
class Clients(Aggregator):
    """`per_round` of the clients, drawn with replacement, each with its own records and memory; it may be a rule of t.

    Every record counts the same: the objective is that of all records together, f_i = (M / n) sum of client i's losses
    (paper 001).  A client's mean is weighed by the number of its records, and where clients are drawn the sum is
    divided by how many records so many clients have on average, which leaves it unbiased.  With `uniform=True` every
    client counts the same, whatever it has: the objective is then the mean of the clients' own mean losses.

    A private run asks every client once a round and adds sums: a client that is drawn twice would count its records
    twice, and a mean of a client with few records would let one of them move the sum further than the others.
    """

    problems: Sequence[Any]
    per_round: int | Callable[[int], int] | None = None
    uniform: bool = False

    def __post_init__(self) -> None:
        validate.check(len(self.problems) > 0, "problems", list(self.problems), "give at least one client")
        if self.per_round is not None and not callable(self.per_round):
            validate.positive_int(per_round=self.per_round)

    def holding(self, problems: Sequence[Any]) -> Clients:
        """The same clients with other problems."""
        return replace(self, problems=list(problems))

    def check_private(self, n: int, samplers: Sequence[Sampler]) -> None:
        """All clients, once, their sums added; no client twice, and records that add up to n."""
        remedy = "leave it out: in a private run a client that is asked twice a round would count its records twice"
        validate.check(self.per_round is None, "per_round", self.per_round, remedy)
        remedy = "leave it out: a private run adds sums over records, and divides them by a public number"
        validate.check(not self.uniform, "uniform", self.uniform, remedy)
        names, different = f"{len(self.problems)} clients", {id(problem) for problem in self.problems}
        remedy = "give each of them once: a record belongs to one client"
        validate.check(len(different) == len(self.problems), "clients", names, remedy)
        total = sum(problem.n for problem in self.problems)
        remedy = f"give an objective of all the clients' records: this one has {n}"
        validate.check(total == n, "clients", f"{total} records", remedy)
        check_samplers(samplers, "clients")

    def collect(self, round: Round, stage: Stage, context: RunContext) -> Message:
        """The sum of the drawn clients' messages."""
        chosen: Sequence[int] = range(len(self.problems))
        if self.per_round is not None:
            count = self.per_round(round.t) if callable(self.per_round) else self.per_round
            validate.positive_int(**{f"per_round({round.t})": count})
            chosen = generator(round.seed, round.t, "clients").integers(0, len(self.problems), count).tolist()
        total, visits = None, Counter[int]()
        whole = None if self.uniform else sum(problem.n for problem in self.problems)
        for number in chosen:
            client = Client(str(number), self.problems[number], visits[number], whole, 1 / len(chosen))
            message = contribute(round, stage, client, context.keys, context.physical)
            visits[number] += 1
            if whole is None:
                message = message.normalised()
            else:
                message = message.by_records()
                if self.per_round is not None and not message.fixed:
                    message = replace(message, divisor=whole / len(self.problems))
            total = message if total is None else total + message
        assert total is not None
        return total


def check_samplers(samplers: Sequence[Sampler], argument: str) -> None:
    """Refuse samplers that draw from all records together where each holder draws its own."""
    remedy = "use Poisson sampling, or all records (dp_gd): a subset of a fixed size is one draw from all of them"
    for sampler in samplers:
        validate.check(not isinstance(sampler, FixedSize), argument, type(sampler).__name__, remedy)


class AllReduce(Aggregator):
    """One process a rank, each with its own records: their sums are added on rank 0, which alone pays and adds noise.

    problem   the records of this rank; None: the objective that `minimize` is given is this rank's part
    group     a process group; None is the default one
    """

    def __init__(self, problem: Any = None, group: Any = None) -> None:
        self.problems, self.group = (problem,), group_of(True if group is None else group)

    def holding(self, problems: Sequence[Any]) -> AllReduce:
        """The same ranks, this one with another problem."""
        (problem,) = problems
        return AllReduce(problem, self.group)

    def check_private(self, n: int, samplers: Sequence[Sampler]) -> None:
        """Each rank draws its own records."""
        check_samplers(samplers, "group")

    def collect(self, round: Round, stage: Stage, context: RunContext) -> Message:
        """This rank's message plus everybody else's, on rank 0."""
        group, problem = self.group, self.problems[0]
        client = Client(str(group.rank), problem, 0, context.whole, 1 / group.size, group.answer)

        def mine() -> Message:
            return contribute(round, stage, client, context.keys, context.physical)

        return group.add(round, stage, mine, lambda: storage.checksum(round.w), problem.n, context.whole or problem.n)
