"""A server that tells honest clients different things: what it reads has the noise that was promised, or more."""

import numpy as np
import pytest
from test_secagg_round import Round, plain

from isthmus.distributed.secagg import SecurePlan, crypto, shamir, wire
from isthmus.distributed.secagg.plan import most_left_out
from isthmus.distributed.secagg.protocol import _add_pair

pytest.importorskip("cryptography", reason="secure aggregation needs the extra secagg")


def told_lost(plan: SecurePlan, keys: int, letters: int) -> dict[int, set[int]] | None:
    """Whom each client is told to be lost, so that everybody of the first `keys` loses its key; None where they do not.

    The next `letters` are those whose letters the rest, whose total is wanted, is not given.
    """
    lacking, told = dict.fromkeys(range(keys), plan.needed), {}
    for index in range(plan.clients):
        most = plan.dropouts - (letters if index >= keys + letters else 0)
        told[index] = set(sorted((u for u in lacking if u != index), key=lambda u: (-lacking[u], u))[:most])
        for u in told[index]:
            lacking[u] -= 1
    return None if any(left > 0 for left in lacking.values()) else told


def attack(plan: SecurePlan, keys: int, letters: int) -> tuple[np.ndarray, np.ndarray]:
    """What a lying server reads, and what the clients in it have added."""
    told = told_lost(plan, keys, letters)
    assert told is not None
    n, size, inside = plan.clients, plan.share_bytes, range(keys + letters, plan.clients)
    found = Round(plan)
    server, clients = found.server, found.clients
    vectors, parts = {}, {"seed": {}, "key": {}}  # type: ignore[var-annotated]
    for index, inbox in found.until("masked").items():
        _, body = wire.read(inbox, wire.Kind.INBOX)
        sent = wire.records(body, 2 * size + crypto.TAG, n, "letters")
        table = {peer: each for peer, each in sent.items() if index not in inside or not keys <= peer < keys + letters}
        answer = clients[index].masked(
            wire.write(wire.Kind.INBOX, server._session, wire.write_records(table)), np.zeros(plan.m)
        )
        vectors[index] = wire.unpack(
            wire.take_number(wire.read(answer, wire.Kind.VECTOR)[1], n, "index")[1], plan.m, plan.bits
        )
        ordered = sorted({*table, index})
        alive = wire.write(
            wire.Kind.SURVIVORS, server._session, wire.write_set([j for j in ordered if j not in told[index]], n)
        )
        body = wire.take_number(wire.read(clients[index].reveal(alive), wire.Kind.REVEAL)[1], n, "index")[1]
        for place, peer in enumerate(ordered):
            what = parts["key" if peer in told[index] else "seed"]
            what.setdefault(peer, {})[index] = body[place * size : (place + 1) * size]
    total, added = np.zeros(plan.m, wire.word(plan.bits)), np.zeros(plan.m, np.int64)
    for index in inside:
        seed = shamir.recover(parts["seed"][index], plan.needed, plan.packing)
        total += vectors[index] - crypto.stream(seed, plan.m, plan.bits)
        added += plain(index, plan, {index: np.zeros((1, plan.m))})
    for gone in range(keys):
        secret = shamir.recover(parts["key"][gone], plan.needed, plan.packing)
        for index in inside:
            _add_pair(total, plan, secret, server._roster[index], server._session, server._about, gone, index)
    return wire.from_field(total, plan.bits), added


@pytest.mark.parametrize(("clients", "dropouts", "keys", "letters"), [(10, 3, 4, 0), (20, 6, 7, 2), (24, 7, 7, 3)])
def test_a_lying_server_reads_fewer_clients_and_no_less_noise(
    clients: int, dropouts: int, keys: int, letters: int
) -> None:
    plan = SecurePlan(clients=clients, m=20, bound=1.0, noise_multiplier=1.0, dropouts=dropouts)
    found, added = attack(plan, keys, letters)
    assert (found == added).all()  # it does wire.read them
    inside = clients - keys - letters
    assert inside < plan.needed and (inside - 1) * plan.share >= plan.variance  # and knows one of them besides


@pytest.mark.parametrize(("clients", "dropouts"), [(5, 1), (10, 3), (24, 7), (40, 13)])
def test_no_plan_of_lies_leaves_out_more_than_is_counted(clients: int, dropouts: int) -> None:
    plan = SecurePlan(clients=clients, m=20, bound=1.0, noise_multiplier=1.0, dropouts=dropouts)
    ways = ((k, e) for e in range(dropouts + 1) for k in range(clients - e))
    worst = max(k + e for k, e in ways if told_lost(plan, k, e) is not None)
    assert dropouts <= worst <= most_left_out(clients, dropouts, plan.needed, 0)
    assert worst >= most_left_out(clients, dropouts, plan.needed, 0) - 1  # the bound is no waste of noise
