"""Bytes and server time of one round at d = 10^6 to 10^9 and 10 to 10^5 clients, from costs that are measured here.

    python lab/measurements/at_scale.py [--share 0.01] [--numbers 4194304]

Four ways: the whole gradient in float32; its count-sketch with m = d / 100; the same through QSGD; and by secure
aggregation with distributed noise.  First every part is timed on one core of this machine (CPU time), in nanoseconds
a number.  Then the table is arithmetic: bytes of a message, and what the server computes in a round: it decodes and
adds what came, and lifts the sum once.  Networks are not in it.  One row, d = 10^6 and 100 clients, is also run, in the
three ways that are not secure aggregation (lab/measurements/secagg.py runs that one).
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterable
from statistics import median

import secagg
import torch

from isthmus.codecs import QSGD
from isthmus.distributed.secagg import SecurePlan
from isthmus.sketches import CountSketch

SIZES, CLIENTS, GROUP = (10**6, 10**7, 10**8, 10**9), (10, 100, 1000, 10**4, 10**5), 1000


def nanoseconds(work: Callable[[], object], count: int, repeats: int = 7) -> float:
    """CPU time a unit, the median."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return median(times) / count * 1e9


def costs(numbers: int, share: float) -> dict[str, float]:
    """Sketch and codec, a number of what they read; vectors that do not fit a core's cache."""
    v, codec = torch.randn(numbers, generator=torch.Generator().manual_seed(0)), QSGD()
    m, rounds = round(share * numbers), iter(range(10**6))
    drawn = CountSketch(m).draw(numbers)
    code, data = drawn.forward(v), codec.encode(v, seed=0)
    total = torch.zeros_like(v)
    return {
        "add, a number": nanoseconds(lambda: total.add_(v), numbers),
        "sketch, of d": nanoseconds(lambda: CountSketch(m).draw(numbers, t=next(rounds)).forward(v), numbers),
        "lift, of d": nanoseconds(lambda: CountSketch(m).draw(numbers, t=next(rounds)).pinv(code), numbers),
        "qsgd encode, of m": nanoseconds(lambda: codec.encode(v, seed=1), numbers),
        "qsgd decode, of m": nanoseconds(lambda: codec.decode(data, v), numbers),
        "qsgd bits, of m": 8 * len(data) / numbers,
    }


def row(d: int, clients: int, share: float, cost: dict[str, float], parts: dict[str, float]) -> dict[str, float]:
    """Bytes up a client, and seconds of the server, of one round in four ways."""
    m, add, lift = round(share * d), cost["add, a number"], d * cost["lift, of d"]
    coded = 11 + m * cost["qsgd bits, of m"] / 8
    secure = secagg.at_scale(d, clients, GROUP, parts, share)
    return {
        "float32 MB": 4 * d / 1e6,
        "float32 s": clients * d * add / 1e9,
        "sketch MB": 4 * m / 1e6,
        "sketch s": (clients * m * add + lift) / 1e9,
        "qsgd MB": coded / 1e6,
        "qsgd s": (clients * m * (add + cost["qsgd decode, of m"]) + lift) / 1e9,
        "secagg MB": float(secure["KB up"]) / 1e3,  # type: ignore[arg-type]
        "secagg s": float(secure["server s"]) + lift / 1e9,  # type: ignore[arg-type]
    }


def ran(d: int, clients: int, share: float) -> dict[str, float]:
    """CPU seconds of the server of a round that takes place: what clients sent is made beforehand."""
    codec, sketch = QSGD(), CountSketch(round(share * d))
    gradients = [torch.randn(d, generator=torch.Generator().manual_seed(seed)) for seed in range(clients)]
    codes = [sketch.draw(d).forward(gradient) for gradient in gradients]
    payloads = [codec.encode(code, seed=0) for code in codes]

    def added(vectors: Iterable[torch.Tensor], size: int) -> torch.Tensor:
        total = torch.zeros(size)
        for vector in vectors:
            total += vector
        return total

    def lifted(vectors: Iterable[torch.Tensor]) -> torch.Tensor:
        return sketch.draw(d).pinv(added(vectors, len(codes[0])))

    return {
        "float32 s": nanoseconds(lambda: added(gradients, d), 1) / 1e9,
        "sketch s": nanoseconds(lambda: lifted(codes), 1) / 1e9,
        "qsgd s": nanoseconds(lambda: lifted(codec.decode(payload, codes[0]) for payload in payloads), 1) / 1e9,
    }


def digits(value: float) -> str:
    """Two digits that count, without an exponent."""
    if value >= 100:
        return f"{round(value, 1 - math.floor(math.log10(value))):,.0f}"
    return f"{value:.2g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--share", type=float, default=0.01)
    parser.add_argument("--numbers", type=int, default=1 << 22)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    plan = SecurePlan(clients=100, m=10_000, bound=1.0, noise_multiplier=1.0, dropouts=10, peak=0.08)
    cost, parts = costs(arguments.numbers, arguments.share), secagg.costs(plan)
    for name, value in (cost | parts).items():
        print(f"{name:24s} {value:12.2f}" + ("" if "bits" in name else " ns"))
    seconds_of = row(10**6, 100, arguments.share, cost, parts)
    for name, seconds in ran(10**6, 100, arguments.share).items():
        print(f"d = 10^6, 100 clients, {name:10s} run {seconds:.3f}, computed {seconds_of[name]:.3f}")
    names = list(row(10**6, 10, arguments.share, cost, parts))
    print("\n| d | clients | " + " | ".join(names) + " |\n" + "|---" * (len(names) + 2) + "|")
    for d in SIZES:
        for clients in CLIENTS:
            seconds_of = row(d, clients, arguments.share, cost, parts)
            power = f"10^{round(math.log10(d))}"
            print(f"| {power} | {clients:,} | " + " | ".join(digits(seconds_of[name]) for name in names) + " |")


if __name__ == "__main__":
    main()
