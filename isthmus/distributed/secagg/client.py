"""A client of one round: four answers to four messages, each given once.

| it is sent | it answers | what it does |
|---|---|---|
| the invitation | `keys` | draws two key pairs: one for letters, one for masks |
| the roster | `shares` | sends everybody a share of its own mask's seed and one of its key for masks, sealed |
| its letters | `masked` | rounds its rows, adds noise, its own mask, and one for everybody it has a letter of |
| who survived | `reveal` | its shares of the survivors' seeds and of the keys of the lost: never both of one |

The total of masked vectors lacks the masks of pairs in which both survived: they cancel.  With the seeds the server
takes off the survivors' own masks, with the keys the masks that the lost have left behind.  The vector of a client
whose key was revealed keeps its own mask, so that one that comes late is of no use to anybody.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.base import storage, validate
from isthmus.base.secret import released
from isthmus.distributed.secagg import crypto, shamir
from isthmus.distributed.secagg.plan import SecurePlan, to_integers
from isthmus.distributed.secagg.wire import (
    BadMessage,
    Kind,
    Words,
    number,
    pack,
    read,
    read_set,
    records,
    to_field,
    write,
)
from isthmus.privacy.clips import ClippedSum
from isthmus.privacy.noise import Noise, SecretSource
from isthmus.privacy.skellam import skellam


class SecureClient:
    """One client in one round; `index` is its place among the plan's clients.

    Noise comes from the operating system unless a test gives a source.  A message that is not of this round, and a
    request that would weaken anybody's protection, raises `BadMessage`, and the client answers nothing more.
    """

    def __init__(self, plan: SecurePlan, index: int, noise: Noise | None = None) -> None:
        validate.non_negative_int(index=index)
        validate.check(index < plan.clients, "index", index, f"number the clients from 0 to {plan.clients - 1}")
        self.plan, self.index = plan, index
        self._noise = SecretSource() if noise is None else noise
        self._due: Kind | None = Kind.INVITATION
        self._session = self._about = b""
        self._letters, self._masks, self._seed = os.urandom(crypto.KEY), os.urandom(crypto.KEY), os.urandom(crypto.KEY)
        self._roster: dict[int, bytes] = {}
        self._held: dict[int, bytes] = {}

    def keys(self, invitation: bytes) -> bytes:
        """Its public keys; an invitation to another plan is refused."""
        self._session, body = self._read(invitation, Kind.INVITATION, crypto.KEY)
        if body != self.plan.digest:
            raise BadMessage(
                "The invitation is for another plan than the one this client has agreed to: give server and "
                "clients the same plan"
            )
        self._due = Kind.ROSTER
        both = crypto.public_key(self._letters) + crypto.public_key(self._masks)
        return write(Kind.KEYS, self._session, number(self.index), both)

    def shares(self, roster: bytes) -> bytes:
        """A commitment to its seed, and a sealed letter for every other client of the roster, in order."""
        _, body = self._read(roster, Kind.ROSTER)
        self._roster = records(body, 2 * crypto.KEY, self.plan.clients, "keys")
        own = crypto.public_key(self._letters) + crypto.public_key(self._masks)
        if self._roster.get(self.index) != own:
            raise BadMessage(
                "The roster of the server does not list this client with its own keys: the client does not answer"
            )
        if len(self._roster) < self.plan.needed or len(set(self._roster.values())) < len(self._roster):
            raise BadMessage(
                f"The roster lists {len(self._roster)} clients, some perhaps twice, and {self.plan.needed} "
                "different ones are needed"
            )
        self._about = crypto.digest(self.plan.digest, roster)
        parts = [self._divide(secret) for secret in (self._seed, self._masks)]
        both = [seed + key for seed, key in zip(*parts, strict=True)]
        self._held[self.index] = both[self.index]
        letters = [self._seal(peer, both[peer]) for peer in self._roster if peer != self.index]
        self._due = Kind.INBOX
        return write(Kind.SHARES, self._session, number(self.index), crypto.digest(self._seed), *letters)

    def masked(self, inbox: bytes, rows: Tensor | NDArray[np.float64]) -> bytes:
        """The packed sum of its rows (one vector, or one a record), rounded, noised and masked."""
        vectors = _matrix(rows, self.plan.m)  # before the letters: a wrong argument must not cost the round
        self.open(inbox)
        return self.vector(vectors)

    def open(self, inbox: bytes) -> None:
        """Take the letters; a client that has not made its vector yet makes it after this, and gives it to `vector`."""
        _, body = self._read(inbox, Kind.INBOX)
        self._take(records(body, 2 * self.plan.share_bytes + crypto.TAG, self.plan.clients, "letters"))
        self._due = Kind.VECTOR

    def vector(self, rows: Tensor | NDArray[np.float64]) -> bytes:
        """What `masked` answers, once the letters are open."""
        vectors = _matrix(rows, self.plan.m)
        self._step(Kind.VECTOR)
        self._due = Kind.SURVIVORS
        own = self.integers(vectors)
        handed = ClippedSum(torch.from_numpy(own).double(), 2, self.plan.sensitivity)
        total = released(f"vector of client {self.index}", handed, lambda: self._noised(own)).numpy()
        words = to_field(total, self.plan.bits) + crypto.stream(self._seed, self.plan.m, self.plan.bits)
        for peer in self._held:
            if peer != self.index:
                add_pair(words, self.plan, self._pair(peer), self.index, peer)
        return write(Kind.VECTOR, self._session, number(self.index), pack(words, self.plan.bits))

    def _noised(self, own: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(own + skellam(self.plan.share, self.plan.m, self._noise))

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
        alive = set(read_set(body, self.plan.clients))
        if len(alive) < self.plan.needed or self.index not in alive or not alive <= self._held.keys():
            raise BadMessage(
                f"The server names {len(alive)} survivors; this client, and at least {self.plan.needed} clients "
                "that sent letters, must be among them"
            )
        self._due, size = None, self.plan.share_bytes
        shares = [both[:size] if peer in alive else both[size:] for peer, both in sorted(self._held.items())]
        return write(Kind.REVEAL, self._session, number(self.index), *shares)

    def to_bytes(self) -> bytes:
        """Everything that it must remember between two messages, its secrets included: for a place of its own."""
        secrets = {"letters": self._letters, "masks": self._masks, "seed": self._seed}
        answer = {"session": self._session, "about": self._about, **secrets}
        tables = {"roster": self._roster, "held": self._held}
        tree: dict[str, Any] = {name: share.hex() for name, share in answer.items()}
        tree |= {name: {str(k): v.hex() for k, v in table.items()} for name, table in tables.items()}
        due = None if self._due is None else int(self._due)
        return storage.pack("secure client", {**tree, "index": self.index, "due": due})

    @classmethod
    def from_bytes(cls, plan: SecurePlan, data: bytes, noise: Noise | None = None) -> SecureClient:
        """The client that `to_bytes` wrote, in the same round of the same plan."""
        tree = storage.unpack(data, "secure client")
        with validate.reading("data", f"{len(data)} bytes", "give what SecureClient.to_bytes wrote"):
            client = cls(plan, tree["index"], noise)
            client._due = None if tree["due"] is None else Kind(tree["due"])
            for name in ("session", "about", "letters", "masks", "seed"):
                setattr(client, f"_{name}", bytes.fromhex(tree[name]))
            for name in ("roster", "held"):
                setattr(client, f"_{name}", {int(k): bytes.fromhex(v) for k, v in tree[name].items()})
        return client

    def _read(self, data: bytes, kind: Kind, length: int | None = None) -> tuple[bytes, bytes]:
        """Session and body of the message that is due; after this no other of its kind is answered."""
        self._step(kind)
        return read(data, kind, self._session or None, length)

    def _step(self, kind: Kind) -> None:
        if self._due is not kind:
            due = "nothing" if self._due is None else self._due.name
            raise BadMessage(f"A message {kind.name} came where {due} was expected: every message is answered once")
        self._due = None  # until the answer is complete

    def _divide(self, secret: bytes) -> list[bytes]:
        return shamir.share(secret, self.plan.clients, self.plan.needed, self.plan.packing, os.urandom)

    def _seal(self, peer: int, letter: bytes) -> bytes:
        return crypto.seal(self._letter_key(peer, self.index, peer), letter, self._about)

    def _letter_key(self, peer: int, sender: int, receiver: int) -> bytes:
        purpose = b"letter" + self._about + number(sender) + number(receiver)
        return _agree(self._letters, self._roster[peer][: crypto.KEY], self._session, purpose)

    def _pair(self, peer: int) -> bytes:
        return pair_key(self._masks, self._roster[peer], self._session, self._about, self.index, peer)

    def _take(self, letters: dict[int, bytes]) -> None:
        """Keep the shares of everybody who sent a letter."""
        if self.index in letters or not letters.keys() <= self._roster.keys():
            raise BadMessage("A letter came from somebody who is not another client of the roster")
        if len(letters) + 1 < self.plan.needed:
            raise BadMessage(f"{len(letters) + 1} clients have sent letters, and {self.plan.needed} are needed")
        for peer, sealed in letters.items():
            letter = crypto.unseal(self._letter_key(peer, peer, self.index), sealed, self._about)
            if letter is None:
                raise BadMessage(
                    f"The letter of client {peer} is not what that client sealed for this client and this roster: "
                    "it was damaged or altered on the way"
                )
            self._held[peer] = letter


def pair_key(private: bytes, entry: bytes, session: bytes, about: bytes, one: int, other: int) -> bytes:
    """The key of the mask that two clients share, from one's private key and the other's entry in the roster."""
    purpose = b"mask" + about + number(min(one, other)) + number(max(one, other))
    return _agree(private, entry[crypto.KEY :], session, purpose)


def add_pair(words: Words, plan: SecurePlan, key: bytes, one: int, other: int) -> None:
    """Add the mask of a pair as client `one` does: the lower index adds what the higher one takes away."""
    mask = crypto.stream(key, plan.m, plan.bits)
    if one < other:
        words += mask
    else:
        words -= mask


def _agree(private: bytes, public: bytes, session: bytes, purpose: bytes) -> bytes:
    try:
        return crypto.agreed(private, public, session, purpose)
    except ValueError as error:
        raise BadMessage("A public key of the roster is not a valid one") from error


def _matrix(rows: Tensor | NDArray[np.float64], m: int) -> NDArray[np.float64]:
    """Vectors as rows, in float64 on the host."""
    host = rows.detach().cpu().to(torch.float64).numpy() if isinstance(rows, Tensor) else np.asarray(rows, np.float64)
    vectors: NDArray[np.float64] = host[None, :] if host.ndim == 1 else host
    right = vectors.ndim == 2 and vectors.shape[1] == m
    validate.check(right, "rows", host.shape, f"give vectors of m={m} numbers: a single one, or one for each record")
    return vectors
