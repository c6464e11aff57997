"""Several holders of records in one process, all of them or some drawn each round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

from isthmus.base import validate
from isthmus.base.randomness import generator
from isthmus.core.group import Aggregator, check_samplers
from isthmus.core.pipeline import Client, Round, RunContext, Stage, contribute
from isthmus.core.wire import Message
from isthmus.privacy.sampling import Sampler

PerRound = int | Callable[[int], int] | None


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
    per_round: PerRound = None
    uniform: bool = False

    def __post_init__(self) -> None:
        validate.check(len(self.problems) > 0, "problems", list(self.problems), "give at least one client")
        if self.per_round is not None and not callable(self.per_round):
            validate.positive_int(per_round=self.per_round)

    def check_private(self, n: int, samplers: Sequence[Sampler]) -> None:
        """All clients, once, their sums added; no client twice, and records that add up to n."""
        remedy = "leave it out: in a private run a client that is asked twice a round would count its records twice"
        validate.check(self.per_round is None, "per_round", self.per_round, remedy)
        remedy = "leave it out: a private run adds sums over records, and divides them by a public number"
        validate.check(not self.uniform, "uniform", self.uniform, remedy)
        different, total = {id(problem) for problem in self.problems}, sum(problem.n for problem in self.problems)
        remedy = "give each of them once: a record belongs to one client"
        validate.check(len(different) == len(self.problems), "clients", f"{len(self.problems)} clients", remedy)
        remedy = f"give an objective of all the clients' records: this one has {n}"
        validate.check(total == n, "clients", f"{total} records", remedy)
        check_samplers(samplers, "clients")

    def collect(self, round: Round, stage: Stage, context: RunContext) -> Message:
        """The sum of the drawn clients' messages."""
        messages, count = [], len(self.problems)
        chosen = drawn_clients(self.per_round, round, count)
        whole = None if self.uniform else sum(problem.n for problem in self.problems)
        for number, visit in chosen:
            client = Client(str(number), self.problems[number], visit, whole, 1 / len(chosen))
            message = contribute(round, stage, client, context.keys, context.physical)
            messages.append(counted(message, whole, self.per_round, count))
        return reduce(add, messages)


def drawn_clients(per_round: PerRound, round: Round, clients: int) -> list[tuple[int, int]]:
    """Who is asked in a round, and how often each was before: all, or some by public randomness, perhaps twice."""
    if per_round is None:
        return [(number, 0) for number in range(clients)]
    if callable(per_round):
        per_round = per_round(round.t)
    validate.positive_int(**{f"per_round({round.t})": per_round})
    visits, drawn = Counter[int](), []
    for number in generator(round.seed, round.t, "clients").integers(0, clients, per_round).tolist():
        drawn.append((number, visits[number]))
        visits[number] += 1
    return drawn


def counted(message: Message, records: int | None, per_round: PerRound, clients: int) -> Message:
    """A client's message as it counts among `clients`, who have so many records together; None: all count the same."""
    if records is None:
        return message.over(message.divisor, 1.0)
    if not message.fixed and message.records not in (0, message.divisor):  # the sum of a batch as one of all records
        message = message.over(message.divisor / message.records, float(message.records))
    if per_round is None or message.fixed:
        return message
    return replace(message, divisor=records / clients)
