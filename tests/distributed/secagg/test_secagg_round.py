"""Whole rounds: exact sums with clients lost at any moment, refusals that keep their charge, and wrong messages."""

import random
from typing import Any

import numpy as np
import pytest
from scipy import stats

from isthmus.base.validate import InvalidInput
from isthmus.distributed.secagg import (
    BadMessage,
    RoundRefused,
    SecureClient,
    SecurePlan,
    SecureServer,
    crypto,
    run_round,
)
from isthmus.distributed.secagg.wire import HEADER, from_field, to_field, unpack
from isthmus.privacy import BudgetExceeded, Ledger, SeededSource
from isthmus.privacy.skellam import skellam

pytest.importorskip("cryptography", reason="secure aggregation needs the extra secagg")

PLAN = SecurePlan(clients=6, m=40, bound=1.0, noise_multiplier=2.0, dropouts=2)
ROWS = {index: np.random.default_rng(index).normal(size=(2, PLAN.m)) / 8 for index in range(PLAN.clients)}


class Round:
    """One round of seeded clients, up to where it is wanted."""

    def __init__(self, plan: SecurePlan = PLAN, ledger: Ledger | None = None) -> None:
        self.plan, self.ledger = plan, Ledger() if ledger is None else ledger
        self.server = SecureServer(plan, self.ledger, seeded=True)
        self.clients = {index: SecureClient(plan, index, SeededSource(index)) for index in range(plan.clients)}

    def run(self, **lost: Any) -> np.ndarray:
        return run_round(self.server, self.clients, ROWS, lost)

    def until(self, moment: str, there: Any = None, sent: Any = None) -> Any:
        """What the server sends at a moment, everybody being there, or some of them since what was sent last."""
        steps = [("roster", "keys"), ("inboxes", "shares"), ("survivors", "masked"), ("total", "reveal")]
        if sent is None:
            sent = self.server.invitation()
        else:
            steps = steps[1:]
        for name, answer in steps:
            if moment == answer:
                return sent
            for index in there or self.clients:
                more = (ROWS[index],) if answer == "masked" else ()
                mine = sent[index] if isinstance(sent, dict) else sent
                self.server.receive(getattr(self.clients[index], answer)(mine, *more))
            sent = getattr(self.server, name)()
        return sent


def plain(index: int, plan: SecurePlan = PLAN, rows: Any = ROWS) -> np.ndarray:
    """What a client adds to the total: its integers and its noise, from the same seed."""
    twin = SecureClient(plan, index, SeededSource(index))
    return twin.integers(rows[index]) + skellam(plan.share, plan.m, twin._noise)


@pytest.mark.parametrize(
    "lost",
    [{}, {"keys": [0, 5]}, {"letters": [1, 2]}, {"vector": [3, 4]}, {"shares": [0, 1]}, {"vector": [2], "shares": [5]}],
    ids=str,
)
def test_the_total_is_exact_whoever_is_lost(lost: dict[str, list[int]]) -> None:
    silent = {index for moment, who in lost.items() for index in who if moment != "shares"}
    expected = sum(plain(index) for index in range(PLAN.clients) if index not in silent)
    assert (Round().run(**lost) == expected).all()


def test_numbers_that_leave_the_field_wrap_and_nothing_else_changes() -> None:
    narrow = SecurePlan(clients=6, m=40, bound=1.0, noise_multiplier=2.0, dropouts=2)
    object.__setattr__(narrow, "bits", 4)
    found = Round(narrow)
    total = sum(plain(index) for index in range(6))
    assert (run_round(found.server, found.clients, ROWS) == from_field(to_field(total, 4), 4)).all()
    assert (np.abs(total) > 8).any()


@pytest.mark.parametrize(("moment", "charged"), [("keys", 0), ("letters", 0), ("vector", 1), ("shares", 1)])
def test_below_the_threshold_nothing_is_released_and_vectors_are_paid_for(moment: str, charged: int) -> None:
    """Keys and letters say nothing of anybody's data: a round that ends with them has cost nothing."""
    found, cost = Round(), "charge for the round is kept" if charged else "nothing was charged"
    with pytest.raises(RoundRefused, match=f"3 of 6 clients.*4 are needed.*{cost}") as refused:
        found.run(**{moment: [0, 2, 4]})
    assert refused.value.charged == bool(charged)
    assert sum(found.ledger.rounds().values()) == charged
    for again in (found.server.total, found.server.survivors, found.server.roster, found.server.invitation):
        with pytest.raises(RoundRefused, match="in their order"):
            again()


def test_a_spent_budget_is_refused_before_anybody_is_asked() -> None:
    server = SecureServer(PLAN, Ledger(budget=(1.0, 1e-5)))
    with pytest.raises(BudgetExceeded):
        server.invitation()
    with pytest.raises(RoundRefused):
        server.roster()


def test_a_budget_that_another_run_has_spent_meanwhile_is_refused_before_a_vector_is_asked_for() -> None:
    ledger = Ledger(budget=(2.2, 1e-5))
    found = Round(ledger=ledger)
    sent = found.until("shares")
    for client in found.clients.values():
        found.server.receive(client.shares(sent))
    ledger.pay("another run", PLAN.event())
    with pytest.raises(BudgetExceeded):
        found.server.inboxes()
    with pytest.raises(RoundRefused, match="the round is over"):
        found.server.survivors()
    assert ledger.rounds() == {"another run": 1}


def test_the_ledger_holds_the_plans_event() -> None:
    found = Round()
    found.run()
    assert found.ledger.event() == PLAN.event() and found.ledger.seeded


def test_noise_is_what_the_plan_says() -> None:
    plan = SecurePlan(clients=4, m=3000, bound=1.0, noise_multiplier=2.0, dropouts=1)
    zero = dict.fromkeys(range(4), np.zeros((0, plan.m)))
    clients = {index: SecureClient(plan, index) for index in range(4)}
    total = run_round(SecureServer(plan, Ledger()), clients, zero, {"vector": [2]})
    there = float(3 * plan.share)  # of three survivors: two make the whole, for a reader who is the third
    assert stats.kstest(total / np.sqrt(there), "norm").pvalue > 1e-4
    assert total.var() == pytest.approx(there, rel=0.15) and there == pytest.approx(1.5 * plan.variance)
    assert np.sqrt(plan.variance) * plan.grid == pytest.approx(2.0, rel=0.02)


def test_what_a_client_sends_is_uniform() -> None:
    plan = SecurePlan(clients=3, m=4000, bound=1.0, noise_multiplier=2.0)
    found = Round(plan)
    found.clients = {index: SecureClient(plan, index) for index in range(3)}
    inboxes = found.until("masked")
    sent = found.clients[1].masked(inboxes[1], np.zeros(plan.m))[HEADER + 4 :]
    counts = np.bincount(unpack(sent, plan.m, plan.bits) >> (plan.bits - 5), minlength=32)
    assert stats.chisquare(counts).pvalue > 1e-4


def test_a_vector_that_comes_late_keeps_its_own_mask() -> None:
    """The server has recovered the key of a client it called lost, and then gets its vector: it learns nothing."""
    found = Round()
    inboxes = found.until("masked")
    late = found.clients[3].masked(inboxes[3], ROWS[3])
    for index in (0, 1, 2, 4, 5):
        found.server.receive(found.clients[index].masked(inboxes[index], ROWS[index]))
    survivors = found.server.survivors()
    for index in (0, 1, 2, 4, 5):
        found.server.receive(found.clients[index].reveal(survivors))
    found.server.total()
    words = unpack(late[HEADER + 4 :], PLAN.m, PLAN.bits)
    key, roster, about = found.clients[3]._masks, found.server._roster, found.server._about
    for other in (0, 1, 2, 4, 5):
        purpose = b"mask" + about + min(3, other).to_bytes(4, "little") + max(3, other).to_bytes(4, "little")
        mask = crypto.stream(crypto.agreed(key, roster[other][32:], found.server._session, purpose), PLAN.m, PLAN.bits)
        words = words - mask if other > 3 else words + mask
    assert (from_field(words - crypto.stream(found.clients[3]._seed, PLAN.m, PLAN.bits), PLAN.bits) == plain(3)).all()
    assert np.abs(from_field(words, PLAN.bits) - plain(3)).max() > 1 << (PLAN.bits - 3)


# ---------------------------------------------------------------- what a client does not do


def test_a_client_tells_one_share_of_everybody_and_only_once() -> None:
    found = Round()
    survivors = found.until("reveal")
    client = found.clients[2]
    assert len(client.reveal(survivors)) == HEADER + 4 + 6 * PLAN.share_bytes
    with pytest.raises(BadMessage, match="answered once"):
        client.reveal(survivors[:-1] + bytes([0b011111]))


@pytest.mark.parametrize("members", [0b000111, 0b111011, 0b1111111])
def test_a_client_tells_nothing_where_the_list_of_survivors_cannot_be(members: int) -> None:
    """Too few; without the client that is asked; more clients than there are."""
    found = Round()
    survivors = found.until("reveal")
    with pytest.raises(BadMessage):
        found.clients[2].reveal(survivors[:-1] + bytes([members]))


@pytest.mark.parametrize("change", ["own keys", "somebody twice", "somebody missing"])
def test_a_roster_that_cannot_be_is_found_out(change: str) -> None:
    found = Round()
    roster = bytearray(found.until("shares"))
    own, next_one = HEADER + 4 + 4, HEADER + 4 + 68 + 4
    if change == "own keys":
        roster[own] ^= 1
    elif change == "somebody twice":
        roster[next_one : next_one + 64] = roster[own : own + 64]
    else:
        roster = roster[: HEADER + 4 + 3 * 68]
        roster[HEADER] = 3
    with pytest.raises(BadMessage, match="roster|different ones"):
        found.clients[0].shares(bytes(roster))


def test_wrong_rows_are_refused_and_do_not_cost_the_round() -> None:
    found = Round()
    inboxes = found.until("masked")
    for wrong in (np.zeros(41), np.zeros((2, 2, 40))):
        with pytest.raises(InvalidInput, match="rows="):
            found.clients[0].masked(inboxes[0], wrong)
    assert found.server.receive(found.clients[0].masked(inboxes[0], ROWS[0])) == 0


# ---------------------------------------------------------------- wrong bytes


def mutations(data: bytes, count: int, seed: int) -> list[bytes]:
    draw, found = random.Random(seed), [b"", data[:-1], data + b"\0", data[: HEADER + 2]]
    for _ in range(count):
        piece = bytearray(data)
        for _ in range(draw.choice((1, 1, 3))):
            piece[draw.randrange(min(len(piece), draw.choice((8, 40, len(piece)))))] ^= 1 << draw.randrange(8)
        found.append(bytes(piece[: draw.choice((len(piece), len(piece), draw.randrange(len(piece))))]))
    return found


@pytest.mark.parametrize("answer", ["keys", "shares", "masked", "reveal"])
def test_the_server_takes_no_wrong_answer_for_a_message(answer: str) -> None:
    """Whatever comes is counted for a client that has not answered yet, or refused as `BadMessage`: nothing else."""
    found = Round()
    sent = found.until(answer)
    more = (ROWS[0],) if answer == "masked" else ()
    right = getattr(found.clients[0], answer)(sent[0] if isinstance(sent, dict) else sent, *more)
    for wrong in mutations(right, 300, 1):
        try:
            assert found.server.receive(wrong) in range(6)
        except BadMessage:
            continue
        assert len(wrong) == len(right) and wrong[:HEADER] == right[:HEADER]


@pytest.mark.parametrize("answer", ["keys", "shares", "masked", "reveal"])
def test_a_client_answers_no_wrong_message(answer: str) -> None:
    found = Round()
    sent = found.until(answer)
    right = sent[0] if isinstance(sent, dict) else sent
    client, more = found.clients[0], (ROWS[0],) if answer == "masked" else ()
    due = client._due
    for wrong in mutations(right, 60, 2):
        client._due, held = due, dict(client._held)
        try:
            getattr(client, answer)(wrong, *more)
            assert len(wrong) == len(right)
        except BadMessage:
            pass
        client._held = held
        if answer == "keys":
            client._session = b""


def test_wrong_shares_end_the_round_without_a_total() -> None:
    found = Round()
    survivors = found.until("reveal")
    for index, client in found.clients.items():
        data = bytearray(client.reveal(survivors))
        if index == 1:
            data[-1] ^= 1
        found.server.receive(bytes(data))
    with pytest.raises(RoundRefused, match="Shares of the secret of client 5 are wrong"):
        found.server.total()
    assert found.ledger.rounds() == {"secagg": 1}


def test_an_answer_of_another_round_or_twice_is_refused() -> None:
    first, second = Round(), Round()
    invitation = first.server.invitation()
    message = first.clients[0].keys(invitation)
    second.server.invitation()
    with pytest.raises(BadMessage, match="another round"):
        second.server.receive(message)
    assert first.server.receive(message) == 0
    with pytest.raises(BadMessage, match="twice"):
        first.server.receive(message)


# ---------------------------------------------------------------- one client against all others


@pytest.mark.parametrize("what", ["small order, letters", "small order, masks", "another's", "another's for letters"])
def test_keys_that_would_send_everybody_away_cost_only_their_owner(what: str) -> None:
    found = Round()
    invitation = found.server.invitation()
    honest = [found.clients[index].keys(invitation) for index in range(6)]
    for index in range(5):
        found.server.receive(honest[index])
    right, head = honest[5], HEADER + 4
    evil = {
        "small order, letters": right[:head] + bytes(32) + right[head + 32 :],
        "small order, masks": right[:-32] + b"\x01" + bytes(31),
        "another's": right[:head] + honest[2][head:],
        "another's for letters": right[:-32] + honest[2][head : head + 32],
    }[what]
    with pytest.raises(BadMessage, match="public key of client 5 is not a valid one, or is that of another"):
        found.server.receive(evil)
    total = found.until("end", range(5), found.server.roster())
    assert (total == sum(plain(index) for index in range(5))).all()


def test_nobody_answers_for_another_client_where_the_transport_knows_whom_it_hears() -> None:
    found = Round()
    message = found.clients[0].keys(found.server.invitation())
    with pytest.raises(BadMessage, match="Client 3 sent KEYS in the name of client 0"):
        found.server.receive(message, sender=3)
    assert found.server.receive(message, sender=0) == 0


@pytest.mark.parametrize(("clients", "dropouts", "m"), [(2, 0, 1), (3, 1, 1), (5, 1, 1), (4, 1, 9)])
def test_the_smallest_rounds(clients: int, dropouts: int, m: int) -> None:
    """One number; two clients; exactly as many as are needed."""
    plan = SecurePlan(clients=clients, m=m, bound=1.0, noise_multiplier=1.0, dropouts=dropouts)
    rows, found = {index: np.full((1, m), 0.1 * index) for index in range(clients)}, Round(plan)
    total = run_round(found.server, found.clients, rows, {"vector": range(dropouts)})
    assert (total == sum(plain(index, plan, rows) for index in range(dropouts, clients))).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e308, 1e-310, 0.0])
def test_no_row_is_longer_than_promised_whatever_it_holds(value: float) -> None:
    rows = np.full((2, PLAN.m), value)
    rows[1] = 0.01
    one = SecureClient(PLAN, 0, SeededSource(0)).integers(rows[:1])
    assert int((one**2).sum()) <= PLAN.limit and (value not in (np.nan, 0.0) or not one.any())
    assert SecureClient(PLAN, 0, SeededSource(0)).integers(rows[1:]).any()
