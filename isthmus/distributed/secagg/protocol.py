"""The two sides of a round: clients that add their noise, and a server that learns one noisy total and nothing else.

A client gives four answers to four messages, each once.

| it is sent | it answers | what it does |
|---|---|---|
| the invitation | `keys` | draws two key pairs: one for letters, one for masks |
| the roster | `shares` | sends everybody a share of its own mask's seed and one of its key for masks, sealed |
| its letters | `masked` | rounds its rows, adds noise, its own mask, and one for everybody it has a letter of |
| who survived | `reveal` | its shares of the survivors' seeds and of the keys of the lost: never both of one |

The total of masked vectors lacks the masks of pairs in which both survived: they cancel.  With the seeds the server
takes off the survivors' own masks, with the keys the masks that the lost have left behind.  The vector of a client
whose key was revealed keeps its own mask, so that one that comes late is of no use to anybody.

The server sees public keys, sealed letters and masked vectors.

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
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.base import storage, validate
from isthmus.base.secret import released
from isthmus.codecs.bits import pack
from isthmus.distributed.secagg import crypto, shamir, wire
from isthmus.distributed.secagg.plan import SecurePlan, to_integers
from isthmus.distributed.secagg.wire import BadMessage, Kind, ensure
from isthmus.privacy import SecretSource, Source
from isthmus.privacy.clips import ClippedSum
from isthmus.privacy.event_json import DpEvent
from isthmus.privacy.skellam import skellam

Vectors = Tensor | NDArray[np.float64]


def _add_pair(
    words: wire.Words, plan: SecurePlan, own: bytes, entry: bytes, session: bytes, about: bytes, one: int, other: int
) -> None:
    """Add the mask that two clients share as `one` does: the lower index adds what the higher one takes away.

    Its key follows from the private key of one of them and the other's entry in the roster.
    """
    purpose = b"mask" + about + wire.number(min(one, other)) + wire.number(max(one, other))
    mask = crypto.stream(crypto.agreed(own, entry[crypto.KEY :], session, purpose), plan.m, plan.bits)
    if one < other:
        words += mask
    else:
        words -= mask


class SecureClient:
    """One client in one round; `index` is its place among the plan's clients.

    Noise comes from the operating system unless a test gives a source.  A message that is not of this round, and a
    request that would weaken anybody's protection, raises `BadMessage`, and the client answers nothing more.
    """

    def __init__(self, plan: SecurePlan, index: int, noise: Source | None = None) -> None:
        validate.non_negative_int(index=index)
        validate.check(index < plan.clients, "index", index, f"number the clients from 0 to {plan.clients - 1}")
        self.plan, self.index, self._noise = plan, index, noise or SecretSource()
        self._due: Kind | None = Kind.INVITATION
        self._session = self._about = b""
        self._letters, self._masks, self._seed = os.urandom(crypto.KEY), os.urandom(crypto.KEY), os.urandom(crypto.KEY)
        self._roster: dict[int, bytes] = {}
        self._held: dict[int, bytes] = {}

    def keys(self, invitation: bytes) -> bytes:
        """Its public keys; an invitation to another plan is refused."""
        self._session, body = self._read(invitation, Kind.INVITATION, crypto.KEY)
        ensure(body == self.plan.digest, "The invitation is for another plan: give server and clients the same one")
        self._due = Kind.ROSTER
        return self._answer(Kind.KEYS, self._public_keys())

    def shares(self, roster: bytes) -> bytes:
        """A commitment to its seed, and a sealed letter for every other client of the roster, in order."""
        plan = self.plan
        _, body = self._read(roster, Kind.ROSTER)
        self._roster = wire.records(body, 2 * crypto.KEY, plan.clients, "keys")
        own = self._roster.get(self.index) == self._public_keys()
        ensure(own, "The roster of the server does not list this client with its own keys: the client does not answer")
        whole = len(self._roster) >= plan.needed and len(set(self._roster.values())) == len(self._roster)
        ensure(whole, f"The roster lists {len(self._roster)} clients, or fewer: {plan.needed} different ones are due")
        self._about = crypto.digest(plan.digest, roster)
        sizes = plan.clients, plan.needed, plan.packing
        seeds, keys = (shamir.share(secret, *sizes, os.urandom) for secret in (self._seed, self._masks))
        both = [seed + key for seed, key in zip(seeds, keys, strict=True)]
        self._held[self.index] = both[self.index]
        peers = [peer for peer in self._roster if peer != self.index]
        letters = [crypto.seal(self._letter_key(peer, self.index, peer), both[peer], self._about) for peer in peers]
        self._due = Kind.INBOX
        return self._answer(Kind.SHARES, crypto.digest(self._seed), *letters)

    def masked(self, inbox: bytes, rows: Vectors | Callable[[], Vectors]) -> bytes:
        """The packed sum of its rows (one vector, or one a record), rounded, noised and masked.

        A function that makes the rows is called once the letters are found right: a server that repeats or alters a
        message costs no work.
        """
        plan = self.plan
        if not callable(rows):
            rows = _matrix(rows, plan.m)  # before the letters: a wrong argument must not cost the round
        _, body = self._read(inbox, Kind.INBOX)
        letters = wire.records(body, 2 * plan.share_bytes + crypto.TAG, plan.clients, "letters")
        known = self.index not in letters and letters.keys() <= self._roster.keys()
        ensure(known, "A letter came from somebody who is not another client of the roster")
        count = len(letters) + 1
        ensure(count >= plan.needed, f"{count} clients have sent letters, and {plan.needed} are needed")
        for peer, sealed in letters.items():
            letter = crypto.unseal(self._letter_key(peer, peer, self.index), sealed, self._about)
            if letter is None:
                raise BadMessage(f"The letter of client {peer} is not what it sealed for this client and roster")
            self._held[peer] = letter
        if callable(rows):
            rows = rows()
        own = self.integers(_matrix(rows, plan.m))
        bounded = ClippedSum(torch.from_numpy(own).double(), 2, plan.sensitivity)

        def noised() -> Tensor:
            return torch.from_numpy(own + skellam(plan.share, plan.m, self._noise))

        total = released(f"vector of client {self.index}", bounded, noised)
        words = wire.to_field(total.numpy(), plan.bits) + crypto.stream(self._seed, plan.m, plan.bits)
        for peer in letters:
            where = self._roster[peer], self._session, self._about
            _add_pair(words, plan, self._masks, *where, self.index, peer)
        self._due = Kind.SURVIVORS
        return self._answer(Kind.VECTOR, pack(words, plan.bits))

    def integers(self, rows: NDArray[np.float64]) -> NDArray[np.int64]:
        """The sum of the rounded rows, cut at the plan's reach: one row more moves it by the sensitivity at most."""
        plan = self.plan
        total = np.zeros(plan.m, np.int64)
        for start in range(0, len(rows), 64):
            with np.errstate(over="ignore"):  # what becomes infinite counts as zero, as it does where it came so
                part = rows[start : start + 64] / plan.bound * plan.steps
            total += to_integers(part, plan.steps, plan.limit, self._noise).sum(axis=0)
        return np.clip(total, -plan.reach, plan.reach)

    def reveal(self, survivors: bytes) -> bytes:
        """Its share of each survivor's seed and of the key of each that was lost, in order: once, and never both."""
        _, body = self._read(survivors, Kind.SURVIVORS)
        alive = set(wire.read_set(body, self.plan.clients))
        fits = len(alive) >= self.plan.needed and self.index in alive and alive <= self._held.keys()
        ensure(fits, f"The server names {len(alive)} survivors: this client and others that sent letters are due")
        self._due, size = None, self.plan.share_bytes
        shares = [both[:size] if peer in alive else both[size:] for peer, both in sorted(self._held.items())]
        return self._answer(Kind.REVEAL, *shares)

    def to_bytes(self) -> bytes:
        """Everything that it must remember between two messages, its secrets included: for a place of its own."""
        tree: dict[str, object] = {"index": self.index, "due": self._due and int(self._due)}
        for name in _SECRETS:
            tree[name] = vars(self)[f"_{name}"].hex()
        for name in _TABLES:
            tree[name] = {str(peer): value.hex() for peer, value in vars(self)[f"_{name}"].items()}
        return storage.pack("secure client", tree)

    @classmethod
    def from_bytes(cls, plan: SecurePlan, data: bytes, noise: Source | None = None) -> SecureClient:
        """The client that `to_bytes` wrote, in the same round of the same plan."""
        tree = storage.unpack(data, "secure client")
        with validate.reading("data", f"{len(data)} bytes", "give what SecureClient.to_bytes wrote"):
            client = cls(plan, tree["index"], noise)
            client._due = tree["due"] and Kind(tree["due"])
            for name in _SECRETS:
                vars(client)[f"_{name}"] = bytes.fromhex(tree[name])
            for name in _TABLES:
                vars(client)[f"_{name}"] = {int(peer): bytes.fromhex(value) for peer, value in tree[name].items()}
        return client

    def _answer(self, kind: Kind, *parts: bytes) -> bytes:
        return wire.write(kind, self._session, wire.number(self.index), *parts)

    def _public_keys(self) -> bytes:
        return crypto.public_key(self._letters) + crypto.public_key(self._masks)

    def _read(self, data: bytes, kind: Kind, length: int | None = None) -> tuple[bytes, bytes]:
        """Session and body of the message that is due; after this no other of its kind is answered."""
        due = self._due
        ensure(due is kind, f"A message {kind.name} came where {due and due.name} was due: each is answered once")
        self._due = None  # until the answer is complete
        return wire.read(data, kind, self._session or None, length)

    def _letter_key(self, peer: int, sender: int, receiver: int) -> bytes:
        purpose = b"letter" + self._about + wire.number(sender) + wire.number(receiver)
        return crypto.agreed(self._letters, self._roster[peer][: crypto.KEY], self._session, purpose)


_SECRETS = ("session", "about", "letters", "masks", "seed")
_TABLES = ("roster", "held")


def _matrix(rows: Vectors, m: int) -> NDArray[np.float64]:
    """Vectors as rows, in float64 on the host."""
    if isinstance(rows, Tensor):
        rows = rows.detach().cpu().to(torch.float64).numpy()
    vectors: NDArray[np.float64] = np.atleast_2d(np.asarray(rows, np.float64))
    right = vectors.ndim == 2 and vectors.shape[1] == m
    validate.check(right, "rows", vectors.shape, f"give vectors of m={m} numbers: a single one, or one for each record")
    return vectors


# ---------------------------------------------------------------- the server


class RoundRefused(RuntimeError):
    """A round that ended without a total: too few clients, or shares that are wrong.

    `charged` says whether it was paid for: from the inboxes on, after which vectors may have left the clients.
    """

    def __init__(self, why: str, charged: bool) -> None:
        super().__init__(why)
        self.charged = charged


class _Pays(Protocol):
    """What a round needs of a ledger."""

    def require(self, event: DpEvent, what: str) -> None: ...
    def pay(self, what: str, event: DpEvent, rounds: int = 1, *, seeded: bool = False) -> None: ...


class SecureServer:
    """One round: call `receive` for every answer, and the others in the order of the table.

    `ledger` pays for the plan's event, under the name `what`, before a vector is asked for; `rate` is that of
    `SecurePlan.event`, and `seeded` says that clients of a test draw their noise from seeds.
    """

    def __init__(
        self, plan: SecurePlan, ledger: _Pays, what: str = "secagg", *, rate: float = 1.0, seeded: bool = False
    ) -> None:
        self.plan, self._ledger, self._what, self._event, self._seeded = plan, ledger, what, plan.event(rate), seeded
        self._session, self._about = os.urandom(wire.SESSION), b""
        self._due: Kind | None = Kind.INVITATION
        self._charged = False
        self._answers: dict[int, bytes] = {}
        self._taken: set[bytes] = set()
        self._roster: dict[int, bytes] = {}
        self._commitments: dict[int, bytes] = {}
        self._senders: list[int] = []
        self._survivors: list[int] = []
        self._sum: wire.Words = np.zeros(plan.m, wire.word(plan.bits))

    # ------------------------------------------------------------ what it sends

    def invitation(self) -> bytes:
        """The same for everybody; a round that the budget does not hold is refused first."""
        self._step(Kind.INVITATION, None)  # where the ledger refuses, the round is over
        self._ledger.require(self._event, self._what)
        self._due = Kind.KEYS
        return wire.write(Kind.INVITATION, self._session, self.plan.digest)

    def roster(self) -> bytes:
        """Everybody's public keys, for those who sent some."""
        self._step(Kind.KEYS, Kind.SHARES)
        self._roster = self._enough("keys")
        message = wire.write(Kind.ROSTER, self._session, wire.write_records(self._roster))
        self._about = crypto.digest(self.plan.digest, message)
        return message

    def inboxes(self) -> dict[int, bytes]:
        """For each client the letters of all others who sent theirs; the round is paid for first."""
        self._step(Kind.SHARES, None)
        answers = self._enough("letters")
        self._ledger.pay(self._what, self._event, seeded=self._seeded)
        self._due, self._charged = Kind.VECTOR, True
        self._senders = list(answers)
        size, letters = 2 * self.plan.share_bytes + crypto.TAG, {}
        for index, body in answers.items():
            self._commitments[index], body = body[: crypto.KEY], body[crypto.KEY :]
            others = [client for client in self._roster if client != index]
            letters[index] = {to: body[place * size : (place + 1) * size] for place, to in enumerate(others)}
        inboxes = {}
        for to in self._senders:
            mine = {index: letters[index][to] for index in self._senders if index != to}
            inboxes[to] = wire.write(Kind.INBOX, self._session, wire.write_records(mine))
        return inboxes

    def survivors(self) -> bytes:
        """Whose vectors have come."""
        self._step(Kind.VECTOR, Kind.REVEAL)
        self._survivors = list(self._enough("vectors"))
        alive = wire.write_set(self._survivors, self.plan.clients)
        return wire.write(Kind.SURVIVORS, self._session, alive)

    def total(self) -> NDArray[np.int64]:
        """The sum of the survivors' integers and noise, exactly, modulo 2^b: numbers in [-2^(b-1), 2^(b-1))."""
        self._step(Kind.REVEAL, None)
        shares = self._enough("shares")
        size = self.plan.share_bytes
        for place, index in enumerate(self._senders):
            mine = {client: body[place * size : (place + 1) * size] for client, body in shares.items()}
            secret = shamir.recover(mine, self.plan.needed, self.plan.packing)
            alive = index in self._survivors  # then it is the seed, else the key, each checked against what was sent
            if alive and crypto.digest(secret) == self._commitments[index]:
                self._sum -= crypto.stream(secret, self.plan.m, self.plan.bits)
                continue
            if alive or crypto.public_key(secret) != self._roster[index][crypto.KEY :]:
                raise self._over(f"Shares of the secret of client {index} are wrong")
            for survivor in self._survivors:
                where = self._roster[survivor], self._session, self._about
                _add_pair(self._sum, self.plan, secret, *where, index, survivor)  # with the survivor's other sign
        return wire.from_field(self._sum, self.plan.bits)

    def value(self) -> NDArray[np.float64]:
        """The total in the units of the vectors."""
        return self.total().astype(np.float64) * self.plan.grid

    # ------------------------------------------------------------ what it receives

    def receive(self, data: bytes, sender: int | None = None) -> int:
        """Take one answer of the kind that is due; whose it was.

        A transport that knows whom it hears (it should) gives the `sender`: then nobody answers for another client.
        """
        plan, kind = self.plan, self._due
        letters = crypto.KEY + (len(self._roster) - 1) * (2 * plan.share_bytes + crypto.TAG)
        due: dict[Kind | None, tuple[int, Collection[int]]] = {
            Kind.KEYS: (2 * crypto.KEY, range(plan.clients)),
            Kind.SHARES: (letters, self._roster),
            Kind.VECTOR: (plan.vector_bytes, self._senders),
            Kind.REVEAL: (len(self._senders) * plan.share_bytes, self._survivors),
        }
        if kind is None or kind not in due:
            raise BadMessage("No answer is expected now: call the steps of a round in their order")
        length, asked = due[kind]
        _, body = wire.read(data, kind, self._session, 4 + length)
        index, body = wire.take_number(body, plan.clients, "index")
        new = index not in self._answers and index in asked
        ensure(new, f"{kind.name} of client {index} came twice, or was not asked for")
        ensure(sender in (None, index), f"Client {sender} sent {kind.name} in the name of client {index}")
        if kind is Kind.KEYS:  # keys that would make every other client leave: their owner is lost, alone
            pair = {body[: crypto.KEY], body[crypto.KEY :]}
            valid = len(pair) == 2 and not self._taken & pair and all(map(crypto.usable, pair))
            ensure(valid, f"A public key of client {index} is not a valid one, or is that of another client")
            self._taken |= pair
        if kind is Kind.VECTOR:
            self._sum += wire.unpack(body, plan.m, plan.bits)
            body = b""  # only the sum is kept
        self._answers[index] = body
        return index

    # ------------------------------------------------------------ parts

    def _step(self, now: Kind, then: Kind | None) -> None:
        if self._due is not now:
            due = self._due and self._due.name
            words = f"{now.name} was called where {due or 'nothing: the round is over'} is expected: call the steps"
            raise RoundRefused(f"{words} of a round in their order", self._charged)
        self._due = then

    def _enough(self, what: str) -> dict[int, bytes]:
        """The answers, in order, which are taken; with fewer than n - f the round is over."""
        answers, plan = self._answers, self.plan
        if len(answers) < plan.needed:
            there = f"Only {len(answers)} of {plan.clients} clients have sent their {what}"
            raise self._over(f"{there}, and {plan.needed} are needed")
        self._answers = {}
        return dict(sorted(answers.items()))

    def _over(self, why: str) -> RoundRefused:
        """The round has ended here."""
        self._due, cost = None, "nothing was charged"
        if self._charged:
            cost = "the charge for the round is kept"
        return RoundRefused(f"{why}: nothing is released, and {cost}", self._charged)


def run_round(
    server: SecureServer,
    clients: Mapping[int, SecureClient],
    rows: Mapping[int, Vectors],
    lost: Mapping[str, Collection[int]] | None = None,
) -> NDArray[np.int64]:
    """The total of a round in one process, to see what a transport has to do.

    `lost` says who is silent from "keys", "letters", "vector" or "shares" on.
    """
    there = dict(clients)

    def alive(moment: str) -> list[tuple[int, SecureClient]]:
        for index in (lost or {}).get(moment, ()):
            there.pop(index, None)
        return list(there.items())

    invitation = server.invitation()
    for _, client in alive("keys"):
        server.receive(client.keys(invitation))
    roster = server.roster()
    for _, client in alive("letters"):
        server.receive(client.shares(roster))
    inboxes = server.inboxes()
    for index, client in alive("vector"):
        server.receive(client.masked(inboxes[index], rows[index]))
    survivors = server.survivors()
    for _, client in alive("shares"):
        server.receive(client.reveal(survivors))
    return server.total()
