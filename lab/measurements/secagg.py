"""Secure aggregation with distributed noise: one whole round, and what larger ones cost from measured parts.

    python lab/measurements/secagg.py [--clients 100] [--lost 10] [--m 10000] [--multiplier 1.0]

First a round of 100 clients with sketches of a gradient of d = 10^6 in m = 10^4 numbers, 10 of them lost while it
runs: is the sum exact, how many bytes does a client send and receive, what is epsilon beside central Gaussian noise
of the same variance, and what happens with one client less.  Then nanoseconds a number of every part on one core, and
from them bytes and time for d = 10^6 to 10^9 (m = d / 100) and 10 to 10^5 clients.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch

from isthmus.codecs.bits import pack
from isthmus.distributed.secagg import RoundRefused, SecureClient, SecurePlan, SecureServer, crypto, run_round, shamir
from isthmus.distributed.secagg.plan import to_integers
from isthmus.distributed.secagg.wire import to_field, unpack, word
from isthmus.privacy import Gaussian, Ledger, SecretSource, SeededSource, epsilon_of
from isthmus.privacy.skellam import skellam
from isthmus.sketches import SRHT

DELTA = 1e-5


def gradients(clients: int, d: int, m: int) -> dict[int, np.ndarray]:
    """Sketches of heavy-tailed gradients that point, for a part, the same way; each of length 1."""
    draws = np.random.default_rng(0)
    sketch = SRHT(m).draw(d)
    common = draws.standard_t(3, d)
    by_name = {}
    for index in range(clients):
        code = sketch.forward(torch.from_numpy(common + draws.standard_t(3, d))).double()
        by_name[index] = (code / code.norm()).numpy()
    return by_name


class TimedServer(SecureServer):
    """The server, with a clock."""

    seconds = 0.0

    def receive(self, data: bytes) -> int:
        start = time.perf_counter()
        answer = super().receive(data)
        self.seconds += time.perf_counter() - start
        return answer

    def total(self) -> np.ndarray:
        start = time.perf_counter()
        answer = super().total()
        self.seconds += time.perf_counter() - start
        return answer


class CountingClient(SecureClient):
    """A client that counts its bytes."""

    up = down = 0

    def _read(self, data: bytes, *more: Any) -> tuple[bytes, bytes]:
        self.down += len(data)
        return super()._read(data, *more)

    def _answer(self, *parts: Any) -> bytes:
        message = super()._answer(*parts)
        self.up += len(message)
        return message


def whole_round(plan: SecurePlan, rows: dict[int, np.ndarray], lost: int) -> dict[str, object]:
    """One round with clients lost at every moment; the total beside the sum of what the clients have added."""
    moments = ("keys", "letters", "vector", "shares")
    gone = {moment: range(place, lost, len(moments)) for place, moment in enumerate(moments)}
    silent = {index for moment, who in gone.items() if moment != "shares" for index in who}
    clients = {index: CountingClient(plan, index, SeededSource(index)) for index in range(plan.clients)}
    server, start = TimedServer(plan, Ledger(), seeded=True), time.perf_counter()
    total, seconds = run_round(server, clients, rows, gone), time.perf_counter() - start
    expected = np.zeros(plan.m, np.int64)
    for index in set(range(plan.clients)) - silent:
        twin = SecureClient(plan, index, SeededSource(index))
        expected += twin.integers(rows[index][None, :]) + skellam(plan.share, plan.m, twin._noise)
    true = sum(rows[index] for index in set(range(plan.clients)) - silent)
    mine = epsilon_of(plan.event(), DELTA)
    central = epsilon_of(Gaussian(math.sqrt(plan.variance) / plan.steps).event(), DELTA)
    return {
        "exact": bool((total == expected).all()),
        "survivors": plan.clients - len(silent),
        "bits": plan.bits,
        "bytes up, all four messages": max(client.up for client in clients.values()),
        "bytes up, the vector": plan.vector_bytes,
        "bytes down": max(client.down for client in clients.values()),
        "noise of the total, relative to the bound": float((total * plan.grid - true).std()),
        "epsilon": mine,
        "epsilon of central Gaussian noise of that variance": central,
        "ratio": mine / central,
        "seconds, server and all clients on one core": round(seconds, 2),
        "seconds, the server alone": round(server.seconds, 3),
    }


def refusal(plan: SecurePlan, rows: dict[int, np.ndarray]) -> str:
    """A round with one client less than it needs."""
    ledger = Ledger()
    clients = {index: SecureClient(plan, index) for index in range(plan.clients)}
    try:
        run_round(SecureServer(plan, ledger), clients, rows, {"vector": range(plan.dropouts + 1)})
    except RoundRefused as error:
        return f"{error} (ledger: {ledger.rounds()})"
    return "NOT REFUSED"


def seconds_of(work: Callable[[], object], count: int, repeats: int = 5) -> float:
    """Nanoseconds a unit."""
    times = []
    for _ in range(repeats):
        start = time.process_time()  # of one core, whatever else it does
        work()
        times.append(time.process_time() - start)
    return median(times) / count * 1e9


def costs(plan: SecurePlan) -> dict[str, float]:
    """Every part by itself, on one core."""
    size, source = 1 << 20, SecretSource()
    row = np.random.default_rng(0).normal(size=(1, size)) * plan.steps / np.sqrt(size)
    words = to_field(skellam(plan.share, size, source), plan.bits)
    packed, key, other = pack(words, plan.bits), os.urandom(32), crypto.public_key(os.urandom(32))
    parts = shamir.share(key, plan.clients, plan.needed, plan.packing, os.urandom)
    chosen = dict(enumerate(parts[: plan.needed]))

    def mask() -> None:
        words.__iadd__(crypto.stream(key, size, plan.bits))

    return {
        "round, a number": seconds_of(lambda: to_integers(row, plan.steps, 1 << 60, source), size),
        "noise, a number": seconds_of(lambda: skellam(plan.share, size, source), size),
        "mask, a number": seconds_of(mask, size),
        "pack, a number": seconds_of(lambda: pack(words, plan.bits), size),
        "unpack, a number": seconds_of(lambda: unpack(packed, size, plan.bits), size),
        "agree on a key": seconds_of(lambda: crypto.agreed(key, other, bytes(16), b"mask"), 1, 50),
        "share a secret": seconds_of(
            lambda: shamir.share(key, plan.clients, plan.needed, plan.packing, os.urandom), 1, 20
        ),
        "recover a secret": seconds_of(lambda: shamir.recover(chosen, plan.needed, plan.packing), 1, 20),
    }


def at_scale(d: int, clients: int, group: int, cost: dict[str, float], share: float = 0.01) -> dict[str, object]:
    """Bytes and seconds of one round with a tenth lost, in groups that aggregate by themselves."""
    n, m = min(clients, group), round(share * d)
    plan = SecurePlan(clients=n, m=m, bound=1.0, noise_multiplier=1.0, dropouts=n // 10, peak=min(1.0, 8 / np.sqrt(m)))
    letters = (n - 1) * (2 * plan.share_bytes + crypto.TAG)
    up = plan.vector_bytes + letters + n * plan.share_bytes + 4 * 25 + 96
    down = n * 68 + (n - 1) * (letters // max(1, n - 1) + 4) + n // 8 + 100
    mask = cost["mask, a number"] * m * word(plan.bits).itemsize / 2  # measured in words of two bytes
    client = m * (cost["round, a number"] + cost["noise, a number"] + cost["pack, a number"]) + n * mask
    client += 2 * n * cost["agree on a key"] + 2 * cost["share a secret"] * (n / 100) ** 2
    pairs = plan.dropouts * plan.needed
    server = n * (m * cost["unpack, a number"] + cost["recover a secret"] * n / 100) + plan.needed * mask
    server += pairs * (mask + cost["agree on a key"])
    groups = -(-clients // n)
    return {
        "d": d,
        "clients": clients,
        "groups": groups,
        "bits": plan.bits,
        "KB up": up / 1e3,
        "KB down": down / 1e3,
        "client s": client / 1e9,
        "server s": groups * server / 1e9,
        "server GB in": clients * up / 1e9,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--lost", type=int, default=10)
    parser.add_argument("--m", type=int, default=10_000)
    parser.add_argument("--d", type=int, default=1_000_000)
    parser.add_argument("--multiplier", type=float, default=1.0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    plan = SecurePlan(
        clients=arguments.clients,
        m=arguments.m,
        bound=1.0,
        noise_multiplier=arguments.multiplier,
        dropouts=arguments.lost,
        peak=min(1.0, 8 / np.sqrt(arguments.m)),
    )
    rows = gradients(arguments.clients, arguments.d, arguments.m)
    largest = max(float(np.abs(row).max()) for row in rows.values())
    print(
        json.dumps(
            whole_round(plan, rows, arguments.lost) | {"largest coordinate over peak": largest / plan.peak}, indent=1
        )
    )
    print("one client less:", refusal(plan, rows))
    cost = costs(plan)
    print(json.dumps({name: round(value, 1) for name, value in cost.items()} | {"unit": "ns"}, indent=1))
    print("| d | m | clients | groups | bits | KB up | KB down | client s | server s | server GB in |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    rounds = [(d, n, 1000) for d in (10**6, 10**7, 10**8, 10**9) for n in (10, 100, 1000, 10**4, 10**5)]
    for d, clients, group in [*rounds, (10**6, 10**5, 100), (10**9, 10**5, 100)]:
        figures = at_scale(d, clients, group, cost)
        numbers = " | ".join(
            f"{figures[name]:.3g}" for name in ("KB up", "KB down", "client s", "server s", "server GB in")
        )
        print(f"| {d:.0e} | {d // 100} | {clients} | {figures['groups']} | {figures['bits']} | {numbers} |")


if __name__ == "__main__":
    main()
