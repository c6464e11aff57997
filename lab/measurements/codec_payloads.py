"""Lengths of QSGD's codes on vectors of 10^7 numbers, and 10^5 mutated payloads of every codec.

    python lab/measurements/codec_payloads.py [--m 10000000] [--payloads 100000]

The entropy is that of the drawn levels with signs: what no code of single levels goes below.  A mutated payload must be
refused or decoded to finite numbers, without memory beyond its m.  Times are in `python -m lab bench codec`.
"""

from __future__ import annotations

import argparse
import tracemalloc
from collections import Counter

import numpy as np
import torch
from torch import Tensor

from isthmus.codecs import (
    QSGD,
    VQSGD,
    BFloat16,
    Codec,
    CodecError,
    Float16,
    Int8,
    Natural,
    PackedBits,
    RandomK,
    TernGrad,
)

CODECS: list[Codec] = [
    QSGD(),
    QSGD(coding="omega"),
    QSGD(coding="fixed"),
    QSGD(levels=1),
    QSGD(levels=16),
    TernGrad(),
    PackedBits(2),
    PackedBits(4),
    Int8(),
    Natural(),
    BFloat16(),
    Float16(),
    RandomK(0.1),
    RandomK(0.01, "sent"),
    VQSGD(1000),
]


def vectors(m: int) -> dict[str, Tensor]:
    """Vectors of several shapes; `equal magnitudes` is the worst for a gamma code at s = sqrt(m)."""
    rng = np.random.default_rng(0)
    normal = rng.standard_normal(m, np.float32)
    facts = {
        "normal": normal,
        "Laplace": rng.laplace(size=m).astype(np.float32),
        "Student, 3 degrees": rng.standard_t(3, m).astype(np.float32),
        "one in ten not 0": normal * (rng.random(m) < 0.1),
        "equal magnitudes": np.sign(normal),
    }
    return {name: torch.from_numpy(v) for name, v in facts.items()}


def entropy(levels: np.ndarray) -> float:
    """Bits a level, of how often each one occurs."""
    counts = np.unique(levels, return_counts=True)[1] / len(levels)
    return float(-(counts * np.log2(counts)).sum())


def lengths(m: int) -> None:
    """Bits a number of QSGD at s = sqrt(m), against 3 m + 64."""
    print(f"\nQSGD, s = sqrt(m), m = {m:,}: bits a number (asked: gamma <= 3.0 m + 64 bits in all)")
    print(f"  {'vector':20s} {'gamma':>8s} {'omega':>8s} {'fixed':>8s} {'entropy':>8s} {'gamma - 3 m - 64':>18s}")
    for name, v in vectors(m).items():
        sizes = [8 * len(QSGD(coding=coding).encode(v, seed=1)) for coding in ("gamma", "omega", "fixed")]
        least = entropy(QSGD().draw(v.numpy(), 1)[1])
        cells = " ".join(f"{size / m:8.4f}" for size in sizes)
        print(f"  {name:20s} {cells} {least:8.4f} {sizes[0] - 3 * m - 64:18,d}")


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """A few bits flipped, bytes changed, cut off, put in or repeated; sometimes only the head, where lengths stand."""
    row = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        top = min(len(row), 16) if rng.random() < 0.5 else len(row)
        at, kind = int(rng.integers(0, top)) if top else 0, int(rng.integers(0, 5))
        if kind == 0 and row:
            row[at] ^= 1 << int(rng.integers(0, 8))
        elif kind == 1 and row:
            row[at] = int(rng.integers(0, 256))
        elif kind == 2:
            del row[at + 1 :]
        elif kind == 3:
            row[at:at] = rng.integers(0, 256, int(rng.integers(1, 9))).astype(np.uint8).tobytes()
        else:
            row += row[: at + 1]
    return bytes(row)


def attacks(payloads: int, m: int = 2000) -> None:
    """Mutated payloads: what became of each, and the most memory that one decoding took."""
    rng, like = np.random.default_rng(1), torch.zeros(m)
    v = torch.from_numpy(rng.standard_normal(m, np.float32))
    whole = [codec.encode(v, seed) for seed in range(4) for codec in CODECS]
    outcomes, reasons, peak = Counter[str](), Counter[str](), 0
    tracemalloc.start()
    for number in range(payloads):
        codec = CODECS[number % len(CODECS)]
        data = mutated(whole[number % len(whole)], rng)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        try:
            finite = bool(codec.decode(data, like).isfinite().all())
            outcomes["decoded to finite numbers" if finite else "NOT FINITE"] += 1
        except CodecError as error:
            outcomes["refused"] += 1
            reasons[" ".join(str(error).split("refused: ")[-1].split()[:3])] += 1
        except Exception as error:  # what must not happen
            outcomes[f"CRASHED: {type(error).__name__}"] += 1
        peak = max(peak, tracemalloc.get_traced_memory()[1] - before)
    tracemalloc.stop()
    print(f"\n{payloads:,} mutated payloads of {m} numbers, {len(CODECS)} codecs: {dict(outcomes)}")
    print(f"  most memory in one decoding: {peak:,} bytes, {peak / m:.0f} a number")
    print(
        "  most frequent reasons: " + "; ".join(f"{reason} ... ({count})" for reason, count in reasons.most_common(6))
    )


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--m", type=int, default=10**7)
    parser.add_argument("--payloads", type=int, default=10**5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    lengths(args.m)
    attacks(args.payloads)


if __name__ == "__main__":
    main()
