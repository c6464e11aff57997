"""Hashes are the same whichever way they are computed."""

import pytest
import torch

from isthmus.base import randomness
from isthmus.sketches.hashed import RANGE, Buckets

LONG = 1 << 15  # above the length that is hashed in NumPy


@pytest.mark.parametrize("start", [0, 77, 2**31 - 100, 2**40])
@pytest.mark.parametrize("key", [0, 7, 2**63 + 12345])
def test_short_and_long_arrays_hash_alike(start: int, key: int) -> None:
    index = torch.arange(start, start + LONG)
    whole = randomness.mix(key, index)
    assert torch.equal(whole, torch.cat([randomness.mix(key, part) for part in index.split(1000)]))


def test_sign_ranges_equal_signs() -> None:
    for lo, hi in [(0, 1), (5, 70), (31, 33), (1000, 4000)]:
        want = randomness.signs(9, torch.arange(lo, hi))
        assert torch.equal(randomness.sign_range(9, lo, hi).to(want), want)


@pytest.mark.parametrize("d", [10_007, 10_000, 70_000, RANGE + 5])
def test_buckets_do_not_depend_on_where_a_range_begins(d: int) -> None:
    whole = Buckets(3, d, 1000).range(0, d)
    parts = [Buckets(3, d, 1000).range(lo, min(lo + 999, d)) for lo in range(0, d, 999)]
    assert torch.equal(whole, torch.cat(parts))


def test_keys_differ_in_every_part() -> None:
    keys = {randomness.key(seed, t, role) for seed in range(3) for t in range(3) for role in ("a", "b")}
    assert len(keys) == 18
    assert randomness.key(1, 23) != randomness.key(12, 3)
