"""A server that replays and alters what it sends: what its clients answer then, run and not only read."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from isthmus.distributed.secagg import BadMessage, SecureClient, SecurePlan, SecureServer, crypto, shamir, wire
from isthmus.privacy import Ledger, SeededSource

pytest.importorskip("cryptography", reason="secure aggregation needs the extra secagg")

PLAN = SecurePlan(clients=10, m=30, bound=1.0, noise_multiplier=1.0, dropouts=2)
ZERO = np.zeros(PLAN.m)


class Hostile:
    """A server's own clients and messages, which a test may alter; answers are kept as they came."""

    def __init__(self, plan: SecurePlan = PLAN) -> None:
        self.plan, self.server = plan, SecureServer(plan, Ledger(), seeded=True)
        self.clients = [SecureClient(plan, index, SeededSource(index)) for index in range(plan.clients)]
        self.invitation = self.server.invitation()

    @property
    def session(self) -> bytes:
        return self.server._session

    def roster(self) -> bytes:
        for client in self.clients:
            self.server.receive(client.keys(self.invitation))
        return self.server.roster()

    def inboxes(self, rosters: dict[int, bytes] | None = None) -> dict[int, bytes]:
        """Letters as they are written under the one roster, or under another one for some clients."""
        roster = self.roster()
        for index, client in enumerate(self.clients):
            self.server.receive(client.shares((rosters or {}).get(index, roster)))
        return self.server.inboxes()

    def keys_of(self, roster: bytes) -> dict[int, bytes]:
        return wire.records(wire.read(roster, wire.Kind.ROSTER)[1], 2 * crypto.KEY, self.plan.clients, "keys")

    def words(self, answer: bytes) -> Any:
        body = wire.take_number(wire.read(answer, wire.Kind.VECTOR)[1], self.plan.clients, "index")[1]
        return wire.unpack(body, self.plan.m, self.plan.bits)


# ---------------------------------------------------------------- replays


def test_a_replayed_message_is_answered_once_at_every_step() -> None:
    server = Hostile()
    client, roster = server.clients[0], server.roster()
    with pytest.raises(BadMessage, match="answered once"):
        client.keys(server.invitation)
    for each in server.clients:
        server.server.receive(each.shares(roster))
    with pytest.raises(BadMessage, match="answered once"):
        client.shares(roster)
    inboxes = server.server.inboxes()
    for index, each in enumerate(server.clients):
        server.server.receive(each.masked(inboxes[index], ZERO))
    with pytest.raises(BadMessage, match="answered once"):
        client.masked(inboxes[0], ZERO)
    survivors = server.server.survivors()
    client.reveal(survivors)
    with pytest.raises(BadMessage, match="answered once"):
        client.reveal(survivors)


def test_an_invitation_that_is_sent_again_begins_with_other_keys_and_other_masks() -> None:
    """The same round number twice, under one session: nothing of the first time fits, and no mask is used again."""
    server = Hostile()
    inboxes = server.inboxes()
    first = server.words(server.clients[0].masked(inboxes[0], ZERO))
    again = Hostile()
    again.server._session = server.session
    again.invitation = wire.write(wire.Kind.INVITATION, server.session, PLAN.digest)
    newcomer = SecureClient(PLAN, 0, SeededSource(0))
    newcomer.keys(server.invitation)
    with pytest.raises(BadMessage, match="does not list this client with its own keys"):
        newcomer.shares(wire.write(wire.Kind.ROSTER, server.session, wire.write_records(server.server._roster)))
    second = again.words(again.clients[0].masked(again.inboxes()[0], ZERO))
    apart = wire.from_field(first - second, PLAN.bits)  # rounding and noise are those of the same seed: masks are left
    assert np.abs(apart).max() > 1 << (PLAN.bits - 3)


def test_messages_of_an_earlier_round_are_refused_in_a_later_one() -> None:
    old, new = Hostile(), Hostile()
    roster = old.roster()
    new.roster()
    with pytest.raises(BadMessage, match="belongs to another round"):
        new.clients[0].shares(roster)


def test_what_a_client_keeps_between_messages_does_not_let_it_answer_twice() -> None:
    """Where every message is answered by a new process, from what the last one has written down."""
    server = Hostile()
    inboxes = server.inboxes()
    for index, each in enumerate(server.clients):
        server.server.receive(each.masked(inboxes[index], ZERO))
    kept = server.clients[0].to_bytes()
    with pytest.raises(BadMessage, match="answered once"):
        SecureClient.from_bytes(PLAN, kept).masked(inboxes[0], ZERO)
    client = SecureClient.from_bytes(PLAN, kept)
    client.reveal(server.server.survivors())
    other = wire.write(wire.Kind.SURVIVORS, server.session, wire.write_set(range(8), PLAN.clients))
    with pytest.raises(BadMessage, match="answered once"):
        SecureClient.from_bytes(PLAN, client.to_bytes()).reveal(other)


# ---------------------------------------------------------------- other plans, other clients


@pytest.mark.parametrize(
    "change",
    [
        {"dropouts": 3}, {"clients": 11}, {"noise_multiplier": 0.5}, {"bound": 2.0}, {"m": 31}, {"colluding": 1},
        {"precision": 0.1}, {"peak": 0.5}, {"failure": 0.1},
    ],
    ids=str,
)  # fmt: skip
def test_no_number_of_the_plan_can_be_altered(change: dict[str, Any]) -> None:
    """A lower threshold, less noise, another bound: every one of them is another plan for the client."""
    invitation = SecureServer(replace(PLAN, **change), Ledger()).invitation()
    with pytest.raises(BadMessage, match="another plan"):
        SecureClient(PLAN, 0).keys(invitation)


def test_a_lower_threshold_under_the_right_plan_is_found_out() -> None:
    """Too few in the roster, in an inbox, among the survivors: a client counts for itself."""
    server, needed = Hostile(), PLAN.needed
    roster = server.roster()
    few = dict(list(server.keys_of(roster).items())[: needed - 1])
    with pytest.raises(BadMessage, match=f"{needed} different ones are due"):
        server.clients[0].shares(wire.write(wire.Kind.ROSTER, server.session, wire.write_records(few)))
    server = Hostile()
    _, body = wire.read(server.inboxes()[0], wire.Kind.INBOX)
    letters = wire.records(body, 2 * PLAN.share_bytes + crypto.TAG, PLAN.clients, "letters")
    few = dict(list(letters.items())[: needed - 2])
    with pytest.raises(BadMessage, match=f"{needed - 1} clients have sent letters, and {needed} are needed"):
        server.clients[0].masked(wire.write(wire.Kind.INBOX, server.session, wire.write_records(few)), ZERO)


@pytest.mark.parametrize("what", ["left out", "key for letters", "key for masks"])
def test_a_client_that_is_shown_another_list_is_alone(what: str) -> None:
    """One client gets a roster without another one, or with a key of the server's in its place: nobody reads it."""
    server = Hostile()
    roster = server.roster()
    keys, own = server.keys_of(roster), crypto.public_key(bytes(31) + b"9")
    right = keys.pop(9)
    if what == "key for letters":
        keys[9] = own + right[crypto.KEY :]
    if what == "key for masks":
        keys[9] = right[: crypto.KEY] + own
    altered = wire.write(wire.Kind.ROSTER, server.session, wire.write_records(keys))
    for index, client in enumerate(server.clients):
        answer = client.shares(altered if index == 0 else roster)
        if index == 0 and what == "left out":  # its letters are one fewer: the server makes one up
            answer += bytes(2 * PLAN.share_bytes + crypto.TAG)
        server.server.receive(answer)
    inboxes = server.server.inboxes()
    for index in (0, 1):
        with pytest.raises(BadMessage, match="is not what it sealed|not another client of the roster"):
            server.clients[index].masked(inboxes[index], ZERO)


# ---------------------------------------------------------------- both secrets of one client


@pytest.mark.parametrize("told_lost", range(PLAN.clients))
def test_no_split_of_the_clients_tells_both_secrets_of_one(told_lost: int) -> None:
    """Some are told that client 0 is lost, and the others that it has survived: one of its secrets stays unknown."""
    server = Hostile()
    inboxes = server.inboxes()
    for index, client in enumerate(server.clients):
        client.masked(inboxes[index], ZERO)
    size, parts = PLAN.share_bytes, {"seed": {}, "key": {}}  # type: ignore[var-annotated]
    for index in range(PLAN.clients - 1, -1, -1):
        lost = 0 < index <= told_lost
        alive = [peer for peer in range(PLAN.clients) if peer or not lost]
        answer = server.clients[index].reveal(
            wire.write(wire.Kind.SURVIVORS, server.session, wire.write_set(alive, PLAN.clients))
        )
        parts["key" if lost else "seed"][index] = answer[wire.HEADER + 4 : wire.HEADER + 4 + size]
    secrets = {"seed": server.clients[0]._seed, "key": server.clients[0]._masks}
    known = []
    for name, shares in parts.items():
        if len(shares) >= PLAN.needed:
            assert shamir.recover(shares, PLAN.needed, PLAN.packing) == secrets[name]
            known.append(name)
    assert len(known) < 2
    fewest = min(len(shares) for shares in parts.values())
    assert fewest <= PLAN.needed - PLAN.packing  # so few shares say nothing at all
