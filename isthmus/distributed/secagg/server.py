"""The server of one round: it sees public keys, sealed letters and masked vectors, and learns one noisy total.

| it sends | after it has received | and refuses where |
|---|---|---|
| `invitation` | nothing | the budget does not hold the round |
| `roster` | keys | fewer than n - f have answered |
| `inboxes` | letters; the ledger is charged here, before a vector is due | fewer have, or the budget is spent |
| `survivors` | masked vectors | fewer than n - f have: the noise of fewer would not be what was promised |
| `total` | shares | fewer than n - f have, or a secret is not the one that was committed to |

A refusal is final.  Keys and letters say nothing of anybody's data, so one that comes before the inboxes has cost
nothing; a later one keeps its charge, because vectors may have left the clients.  A message that is not what is due
raises `BadMessage` and changes nothing: its sender counts as lost unless a right one follows.

A round in one process: for tests, benchmarks, and to see what a transport has to do.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from isthmus.distributed.secagg import crypto, shamir
from isthmus.distributed.secagg.client import SecureClient, add_pair, pair_key
from isthmus.distributed.secagg.plan import SecurePlan
from isthmus.distributed.secagg.wire import (
    SESSION,
    BadMessage,
    Kind,
    Words,
    from_field,
    read,
    take_number,
    unpack,
    word,
    write,
    write_records,
    write_set,
)
from isthmus.privacy.event_json import DpEvent


class RoundRefused(RuntimeError):
    """A round that ended without a total: too few clients, or shares that are wrong.

    `charged` says whether it was paid for: from the inboxes on, after which vectors may have left the clients.
    """

    def __init__(self, why: str, charged: bool) -> None:
        super().__init__(why)
        self.charged = charged


class Pays(Protocol):
    """What a round needs of a ledger."""

    def require(self, event: DpEvent, what: str) -> None: ...
    def pay(self, what: str, event: DpEvent, rounds: int = 1, *, seeded: bool = False) -> None: ...


class SecureServer:
    """One round: call `receive` for every answer, and the others in the order of the table.

    `ledger` pays for the plan's event, under the name `what`, before a vector is asked for; `rate` is that of
    `SecurePlan.event`, and `seeded` says that clients of a test draw their noise from seeds.  `sent` and `received`
    count bytes by client.
    """

    def __init__(
        self, plan: SecurePlan, ledger: Pays, what: str = "secagg", *, rate: float = 1.0, seeded: bool = False
    ) -> None:
        self.plan, self._ledger, self._what, self._event, self._seeded = plan, ledger, what, plan.event(rate), seeded
        self._session, self._about = os.urandom(SESSION), b""
        self._due: Kind | None = Kind.INVITATION
        self._charged = False
        self._answers: dict[int, bytes] = {}
        self._taken: set[bytes] = set()
        self._roster: dict[int, bytes] = {}
        self._commitments: dict[int, bytes] = {}
        self._senders: list[int] = []
        self._survivors: list[int] = []
        self._sum: Words = np.zeros(plan.m, word(plan.bits))
        self.sent: dict[int, int] = defaultdict(int)
        self.received: dict[int, int] = defaultdict(int)

    # ------------------------------------------------------------ what it sends

    def invitation(self) -> bytes:
        """The same for everybody; a round that the budget does not hold is refused first."""
        self._step(Kind.INVITATION, None)  # where the ledger refuses, the round is over
        self._ledger.require(self._event, self._what)
        self._due = Kind.KEYS
        return self._out(range(self.plan.clients), write(Kind.INVITATION, self._session, self.plan.digest))

    def roster(self) -> bytes:
        """Everybody's public keys, for those who sent some."""
        self._step(Kind.KEYS, Kind.SHARES)
        self._roster, self._answers = self._enough("keys"), {}
        message = write(Kind.ROSTER, self._session, write_records(self._roster))
        self._about = crypto.digest(self.plan.digest, message)
        return self._out(self._roster, message)

    def inboxes(self) -> dict[int, bytes]:
        """For each client the letters of all others who sent theirs; the round is paid for first."""
        self._step(Kind.SHARES, None)
        answers, self._answers = self._enough("letters"), {}
        self._ledger.pay(self._what, self._event, seeded=self._seeded)
        self._due, self._charged = Kind.VECTOR, True
        self._senders = sorted(answers)
        self._commitments = {index: body[: crypto.KEY] for index, body in answers.items()}
        letters = {index: self._letters(index, body[crypto.KEY :]) for index, body in answers.items()}
        inboxes = {}
        for to in self._senders:
            mine = {index: letters[index][to] for index in self._senders if index != to}
            inboxes[to] = self._out([to], write(Kind.INBOX, self._session, write_records(mine)))
        return inboxes

    def survivors(self) -> bytes:
        """Whose vectors have come."""
        self._step(Kind.VECTOR, Kind.REVEAL)
        self._survivors, self._answers = sorted(self._enough("vectors")), {}
        alive = write_set(self._survivors, self.plan.clients)
        return self._out(self._survivors, write(Kind.SURVIVORS, self._session, alive))

    def total(self) -> NDArray[np.int64]:
        """The sum of the survivors' integers and noise, exactly, modulo 2^b: numbers in [-2^(b-1), 2^(b-1))."""
        self._step(Kind.REVEAL, None)
        shares = self._enough("shares")
        for index in self._senders:
            secret = self._recovered(index, shares)
            if index in self._survivors:
                self._sum -= crypto.stream(secret, self.plan.m, self.plan.bits)
                continue
            for survivor in self._survivors:
                key = pair_key(secret, self._roster[survivor], self._session, self._about, index, survivor)
                add_pair(self._sum, self.plan, key, index, survivor)  # what the survivor has, with the other sign
        return from_field(self._sum, self.plan.bits)

    def value(self) -> NDArray[np.float64]:
        """The total in the units of the vectors."""
        return self.total().astype(np.float64) * self.plan.grid

    # ------------------------------------------------------------ what it receives

    def receive(self, data: bytes, sender: int | None = None) -> int:
        """Take one answer of the kind that is due; whose it was.

        A transport that knows whom it hears (it should) gives the `sender`: then nobody answers for another client.
        """
        kind = self._due
        if kind not in (Kind.KEYS, Kind.SHARES, Kind.VECTOR, Kind.REVEAL):
            raise BadMessage("No answer is expected now: call the steps of a round in their order")
        _, body = read(data, kind, self._session, self._length(kind))
        index, body = take_number(body, self.plan.clients, "index")
        expected = {Kind.SHARES: self._roster, Kind.VECTOR: self._senders, Kind.REVEAL: self._survivors}.get(kind)
        if index in self._answers or (expected is not None and index not in expected):
            raise BadMessage(f"{kind.name} of client {index} came twice, or was not asked for")
        if sender is not None and sender != index:
            raise BadMessage(f"Client {sender} sent {kind.name} in the name of client {index}")
        if kind is Kind.KEYS:
            self._check_keys(index, body)
        if kind is Kind.VECTOR:
            self._sum += unpack(body, self.plan.m, self.plan.bits)
            body = b""  # only the sum is kept
        self._answers[index] = body
        self.received[index] += len(data)
        return index

    def _check_keys(self, index: int, body: bytes) -> None:
        """Keys that would make every other client leave the round are refused here: their owner is lost, alone."""
        pair = {body[: crypto.KEY], body[crypto.KEY :]}
        if len(pair) < 2 or self._taken & pair or not all(map(crypto.usable, pair)):
            raise BadMessage(f"A public key of client {index} is not a valid one, or is that of another client")
        self._taken |= pair

    def _length(self, kind: Kind) -> int:
        """Bytes of the body of an answer."""
        letter = 2 * self.plan.share_bytes + crypto.TAG
        return (
            4
            + {
                Kind.KEYS: 2 * crypto.KEY,
                Kind.SHARES: crypto.KEY + (len(self._roster) - 1) * letter,
                Kind.VECTOR: self.plan.vector_bytes,
                Kind.REVEAL: len(self._senders) * self.plan.share_bytes,
            }[kind]
        )

    # ------------------------------------------------------------ parts

    def _step(self, now: Kind, then: Kind | None) -> None:
        if self._due is not now:
            due = "nothing: the round is over" if self._due is None else self._due.name
            raise RoundRefused(
                f"{now.name} was called where {due} is expected: call the steps of a round in their order",
                self._charged,
            )
        self._due = then

    def _enough(self, what: str) -> dict[int, bytes]:
        """The answers, in order; with fewer than n - f the round is over."""
        there = len(self._answers)
        if there < self.plan.needed:
            raise self._over(
                f"Only {there} of {self.plan.clients} clients have sent their {what}, and {self.plan.needed} are needed"
            )
        return dict(sorted(self._answers.items()))

    def _over(self, why: str) -> RoundRefused:
        """The round has ended here."""
        self._due, cost = None, "and nothing was charged"
        if self._charged:
            cost = "and the charge for the round is kept"
        return RoundRefused(f"{why}: nothing is released, {cost}", self._charged)

    def _letters(self, index: int, body: bytes) -> dict[int, bytes]:
        """One client's letters by whom they are for."""
        size, others = 2 * self.plan.share_bytes + crypto.TAG, [client for client in self._roster if client != index]
        return {to: body[place * size : (place + 1) * size] for place, to in enumerate(others)}

    def _recovered(self, index: int, shares: dict[int, bytes]) -> bytes:
        """The seed of a survivor or the key of a client that was lost, checked against what it had sent."""
        size, place = self.plan.share_bytes, self._senders.index(index)
        mine = {client: body[place * size : (place + 1) * size] for client, body in shares.items()}
        secret = shamir.recover(mine, self.plan.needed, self.plan.packing)
        if index in self._survivors:
            right = crypto.digest(secret) == self._commitments[index]
        else:
            right = crypto.public_key(secret) == self._roster[index][crypto.KEY :]
        if not right:
            raise self._over(f"Shares of the secret of client {index} are wrong")
        return secret

    def _out(self, to: Iterable[int], message: bytes) -> bytes:
        for index in to:
            self.sent[index] += len(message)
        return message


def run_round(
    server: SecureServer,
    clients: Mapping[int, SecureClient],
    rows: Mapping[int, Tensor | NDArray[np.float64]],
    lost: Mapping[str, Collection[int]] | None = None,
) -> NDArray[np.int64]:
    """The total of a round; `lost` says who is silent from "keys", "letters", "vector" or "shares" on."""
    gone: set[int] = set()

    def alive(moment: str) -> list[int]:
        gone.update((lost or {}).get(moment, ()))
        return [index for index in clients if index not in gone]

    invitation = server.invitation()
    for index in alive("keys"):
        server.receive(clients[index].keys(invitation))
    roster = server.roster()
    for index in alive("letters"):
        server.receive(clients[index].shares(roster))
    inboxes = server.inboxes()
    for index in alive("vector"):
        server.receive(clients[index].masked(inboxes[index], rows[index]))
    survivors = server.survivors()
    for index in alive("shares"):
        server.receive(clients[index].reveal(survivors))
    return server.total()
