"""Changes of bytes, deterministic by a generator: for bounded runs without a coverage-guided search."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

ODD = [b"", b"\0", b"\xff" * 8, b"-1", b"0", b"1e999", b"nan", b"inf", b"9" * 40, b'"', b"[" * 40, b"\n", b"\t", b",,"]
ODD += [b"null", b"true", b"{}", b"[]", "é".encode(), b"\xed\xa0\x80", b"=", b":", b"\r"]
"""What readers stumble over."""


def mutated(data: bytes, rng: np.random.Generator, words: Sequence[bytes] = ()) -> bytes:
    """A few bits flipped, bytes cut off, put in or repeated; words of the format in other places."""
    row = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        at, kind = int(rng.integers(0, len(row))) if row else 0, int(rng.integers(0, 7))
        if kind == 0 and row:
            row[at] ^= 1 << int(rng.integers(0, 8))
        elif kind == 1 and row:
            row[at] = int(rng.integers(0, 256))
        elif kind == 2:
            del row[at:]
        elif kind == 3:
            row[at:at] = rng.integers(0, 256, int(rng.integers(1, 9))).astype(np.uint8).tobytes()
        elif kind == 4:
            row += row[: at + 1]
        elif kind == 5:
            del row[at : at + int(rng.integers(1, 20))]
        else:
            known = [*ODD, *words]
            row[at : at + int(rng.integers(0, 4))] = known[int(rng.integers(len(known)))]
    return bytes(row)


def inputs(seeds: Sequence[bytes], count: int, seed: int, words: Sequence[bytes] = ()) -> list[bytes]:
    """The seeds, and so many changes of them; a change may be of an earlier change."""
    rng, drawn = np.random.default_rng(seed), [b"", *seeds]
    for _ in range(count):
        base = drawn[int(rng.integers(len(drawn)))] if rng.random() < 0.4 else seeds[int(rng.integers(len(seeds)))]
        drawn.append(mutated(base, rng, words))
    return drawn
