"""Aggregators: where the contributions of a round come from and how they are added."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch.distributed as dist
from torch import Tensor

from isthmus.base import validate
from isthmus.base.randomness import generator
from isthmus.round.sources import Records
from isthmus.round.wire import Message

Contribute = Callable[["Client"], Message]


@dataclass(frozen=True)
class Client:
    """One holder of records: its name, its problem, and how often it was asked in this round before."""

    name: str
    problem: Records
    visit: int = 0

    @property
    def role(self) -> str:
        """What its draws are keyed by: a client asked twice draws twice."""
        return f"{self.name}/{self.visit}" if self.visit else self.name


class Aggregator(Protocol):
    """Collects one message from wherever the data is."""

    def collect(self, contribute: Contribute, t: int, seed: int) -> Message:
        """The added message."""
        ...


@dataclass(frozen=True)
class Local:
    """All the data is here."""

    problem: Records

    def collect(self, contribute: Contribute, t: int, seed: int) -> Message:
        """The one contribution."""
        return contribute(Client("0", self.problem))


@dataclass(frozen=True)
class Clients:
    """`per_round` of the clients, drawn with replacement, each with its own records and memory; it may be a rule of t.

    With `uniform=True` the server averages the clients' means (every client counts the same); otherwise it
    adds their sums (every record counts the same).
    """

    problems: Sequence[Records]
    per_round: int | Callable[[int], int] | None = None
    uniform: bool = True

    def __post_init__(self) -> None:
        validate.check(len(self.problems) > 0, "problems", list(self.problems), "give at least one client")
        if self.per_round is not None and not callable(self.per_round):
            validate.positive_int(per_round=self.per_round)

    def collect(self, contribute: Contribute, t: int, seed: int) -> Message:
        """The sum of the drawn clients' messages."""
        chosen: Sequence[int] = range(len(self.problems))
        if self.per_round is not None:
            asked = self.per_round(t) if callable(self.per_round) else self.per_round
            validate.positive_int(**{f"per_round({t})": asked})
            chosen = generator(seed, t, "clients").integers(0, len(self.problems), asked).tolist()
        total, visits = None, Counter[int]()
        for number in chosen:
            message = contribute(Client(str(number), self.problems[number], visits[number]))
            visits[number] += 1
            message = message.normalised() if self.uniform else message
            total = message if total is None else total + message
        assert total is not None
        return total


@dataclass(frozen=True)
class AllReduce:
    """One process a rank, each with its own records: messages are added by `torch.distributed.all_reduce`."""

    problem: Records
    group: dist.ProcessGroup | None = None

    def collect(self, contribute: Contribute, t: int, seed: int) -> Message:
        """This rank's message plus everybody else's."""
        rank = str(dist.get_rank(self.group))
        return contribute(Client(rank, self.problem)).map(self._sum)

    def _sum(self, value: Tensor) -> Tensor:
        value = value.clone()
        dist.all_reduce(value, group=self.group)
        return value
