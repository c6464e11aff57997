"""A user's own torch loop on several ranks: what the driver of each does together with the others.

Every rank drives its own copy of the module with its own records.  When a round is closed, sums meet on rank 0, which
charges, adds the noise and broadcasts; everybody lifts what was released and moves its copy alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from isthmus.base import storage
from isthmus.base.randomness import key
from isthmus.core.aggregators import Lead, alone
from isthmus.core.opened import Round
from isthmus.core.pipeline import Stage
from isthmus.core.ranks import Ranks, checked, for_wire, one_thread, reach_of, summed
from isthmus.core.step import take_stage
from isthmus.core.wire import Message

Close = Callable[[Message], dict[str, Tensor]]


class Company(Protocol):
    """Whom a driver runs with.

    share   what one process may use of the error that rounding may give a sum
    leads   whether the ledger and the noise are here
    """

    @property
    def share(self) -> float: ...
    @property
    def leads(self) -> bool: ...
    @property
    def lead(self) -> Lead: ...
    def some(self, flag: bool) -> bool:
        """Whether it is so on any of them."""
        ...

    def meet(self, error: Exception | None = None) -> None:
        """Wait for everybody; an error here is one everywhere."""
        ...

    def alike(self) -> AbstractContextManager[None]:
        """What everybody computes of released values, and must find equal to the bit."""
        ...

    def close(
        self, round: Round, stage: Stage, message: Message, close: Close, weights: Iterable[Tensor], empty: bool
    ) -> Message:
        """Add everybody's message, release it in one place, and take what was released; `empty`: of no records."""
        ...


@dataclass(frozen=True)
class Single:
    """One process."""

    share: ClassVar[float] = 1.0
    leads: ClassVar[bool] = True
    lead: Lead = field(default=alone, repr=False)

    def some(self, flag: bool) -> bool:
        """As it is here."""
        return flag

    def meet(self, error: Exception | None = None) -> None:
        """Raised."""
        if error is not None:
            raise error

    def alike(self) -> AbstractContextManager[None]:
        """With all threads."""
        return nullcontext()

    def close(
        self, round: Round, stage: Stage, message: Message, close: Close, weights: Iterable[Tensor], empty: bool
    ) -> Message:
        """Released here."""
        close(message)
        return message


EVERY = 100
"""The weights of all ranks are compared once in so many rounds."""


@dataclass(frozen=True, eq=False)
class Together:
    """One of several ranks: `own` of the `whole` records are drawn here."""

    ranks: Ranks
    own: int
    whole: int

    @property
    def share(self) -> float:
        """An equal one."""
        return 1 / self.ranks.size

    @property
    def leads(self) -> bool:
        """Rank 0 does."""
        return self.ranks.rank == 0

    @property
    def lead(self) -> Lead:
        """Rank 0 says it, everybody hears it."""
        return self.ranks.lead

    def some(self, flag: bool) -> bool:
        """Whether it is so on any rank."""
        return any(header[0] for header in self.ranks.agree("batch", [int(flag), 0, 0, 0, 0, 0]))

    def meet(self, error: Exception | None = None) -> None:
        """Tell the other ranks, at the place where they wait for this one."""
        self.ranks.agree("meet", [0] * 6, error)

    def alike(self) -> AbstractContextManager[None]:
        """On one thread."""
        return one_thread()

    def close(
        self, round: Round, stage: Stage, message: Message, close: Close, weights: Iterable[Tensor], empty: bool
    ) -> Message:
        """Compare, add on rank 0, release there, and take what was released."""
        size, error, sent, header = self.ranks.size, None, None, [0] * 6
        try:
            sent = for_wire(message, reach_of(stage.sampler, self.own, self.whole, size), size)
            question = key(stage.name, round.t, round.seed, round.eta, sorted(round.bounds.items()))
            same = key(*map(storage.checksum, weights)) if round.t % EVERY == 0 else 0
            header = checked(sent, question, round, same)
            header[0] = 0 if empty else header[0]
        except Exception as failed:
            error = failed
        headers = self.ranks.agree("round", header, error, ("message", "round", "maps", "weights", "", ""))
        assert sent is not None
        sent = self._of_others(sent, [entry[0] == 0 for entry in headers])
        total = replace(summed(self.ranks, sent), dims=sent.dims * size, bytes=sent.bytes * size)
        released = self.ranks.lead(lambda: close(total), met=True)
        if stage.name not in round.released:
            where = next(iter(total.values.values())).value.device
            take_stage(round, stage, {name: value.to(where) for name, value in released.items()})
        return total

    def _of_others(self, sent: Message, empty: list[bool]) -> Message:
        """The message with the bounds of a rank that has records: an empty sum does not know in what dtype they are."""
        if not any(empty) or all(empty):
            return sent
        source = empty.index(False)
        plain = {name: replace(bounded, value=bounded.value[:0]) for name, bounded in sent.values.items()}
        mine = replace(sent, values=plain, coded={}).to_bytes() if source == self.ranks.rank else None
        message = Message.from_bytes(self.ranks.broadcast(mine, source))
        values = {name: replace(message.values[name], value=bounded.value) for name, bounded in sent.values.items()}
        return replace(sent, values=values)

    def same_start(self, module: Any) -> None:
        """Every rank begins with the parameters and buffers of rank 0."""
        state = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
        shared = self.ranks.lead(lambda: state)
        with torch.no_grad():
            for name, tensor in state.items():
                tensor.copy_(shared[name].to(tensor.device))
