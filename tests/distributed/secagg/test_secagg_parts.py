"""The parts of secure aggregation: packed fields, packed shares, primitives, rounding with an enforced bound."""

import math
import os
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from refusals import refuses
from scipy import stats

from isthmus.base.validate import InvalidInput
from isthmus.codecs.bits import pack
from isthmus.distributed.secagg import SecurePlan, crypto, shamir
from isthmus.distributed.secagg.plan import _squared_limit, to_integers
from isthmus.distributed.secagg.wire import from_field, packed_length, to_field, unpack, word
from isthmus.privacy import SeededSource, epsilon_of
from isthmus.privacy.skellam import gaussian_scale

PLAN = {"clients": 10, "m": 50, "bound": 2.0, "noise_multiplier": 3.0, "dropouts": 2}


def plan(**changes: Any) -> SecurePlan:
    return SecurePlan(**(PLAN | changes))


# ---------------------------------------------------------------- the field


@pytest.mark.parametrize("bits", [1, 3, 7, 8, 9, 14, 16, 17, 32, 33, 62])
@pytest.mark.parametrize("count", [0, 1, 8, 9, 100])
def test_numbers_come_back_from_their_bits(bits: int, count: int, rng: np.random.Generator) -> None:
    numbers = rng.integers(0, 1 << bits, count, dtype=np.uint64)
    data = pack(numbers, bits)
    assert len(data) == packed_length(count, bits) == math.ceil(count * bits / 8)
    assert (unpack(data, count, bits) == numbers).all() and unpack(data, count, bits).dtype == word(bits)
    signed = rng.integers(-(1 << (bits - 1)), 1 << (bits - 1), count)
    assert (from_field(to_field(signed, bits), bits) == signed).all()


def test_packing_is_the_bits_one_after_the_other(rng: np.random.Generator) -> None:
    numbers = rng.integers(0, 1 << 14, 77, dtype=np.uint64)
    whole = sum(int(number) << 14 * place for place, number in enumerate(numbers))
    assert pack(numbers, 14) == whole.to_bytes(packed_length(77, 14), "little")


def test_a_packed_vector_of_another_length_is_refused() -> None:
    with pytest.raises(InvalidInput, match="bytes of a packed vector"):
        unpack(bytes(17), 10, 14)


def test_sums_are_modular_whatever_the_upper_bits_are(rng: np.random.Generator) -> None:
    signed = rng.integers(-1000, 1000, (5, 30))
    mask = rng.integers(0, 1 << 16, 30, dtype=np.uint16)
    total = sum((to_field(row, 13) for row in signed), np.zeros(30, np.uint16)) + mask - mask
    assert (from_field(total, 13) == (signed.sum(axis=0) + 4096) % 8192 - 4096).all()


# ---------------------------------------------------------------- shares


@pytest.mark.parametrize(("clients", "threshold", "packing"), [(3, 2, 1), (7, 7, 2), (40, 30, 16), (100, 90, 8)])
def test_any_threshold_of_shares_gives_the_secret(
    clients: int, threshold: int, packing: int, rng: np.random.Generator
) -> None:
    secret = os.urandom(32)
    parts = shamir.share(secret, clients, threshold, packing, os.urandom)
    assert {len(part) for part in parts} == {32 // packing}
    for _ in range(4):
        chosen = rng.permutation(clients)[:threshold]
        assert shamir.recover({int(i): parts[i] for i in chosen}, threshold, packing) == secret
    with pytest.raises(InvalidInput, match="shares="):
        shamir.recover(dict(enumerate(parts[: threshold - 1])), threshold, packing)


def test_fewer_shares_fit_every_secret_alike() -> None:
    """Whatever t - packing clients hold, for any other secret there are shares of the rest that make it that secret."""
    threshold, packing, other = 7, 4, os.urandom(32)
    parts = shamir.share(os.urandom(32), 9, threshold, packing, os.urandom)
    held = (1, 4, 8)
    values = np.stack(
        [*np.frombuffer(other, "<u2").reshape(-1, packing).T, *(np.frombuffer(parts[i], "<u2") for i in held)]
    )
    points = (*shamir._points(packing), *(i + 1 for i in held))
    rest = shamir._product(shamir._interpolation(points, (1, 3, 4, 6)), values)
    mixed = {i: parts[i] for i in held} | {i: row.tobytes() for i, row in zip((0, 2, 3, 5), rest, strict=True)}
    assert shamir.recover(mixed, threshold, packing) == other


def test_shares_are_drawn_anew_and_look_uniform() -> None:
    parts = [shamir.share(bytes(32), 3, 2, 1, os.urandom) for _ in range(60)]
    counts = np.bincount(np.frombuffer(b"".join(part[2] for part in parts), np.uint8), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-4


def test_wrong_sizes_are_refused() -> None:
    for wrong in ({"packing": 3}, {"threshold": 6}, {"threshold": 1, "packing": 2}, {"clients": 65535}):
        with pytest.raises(InvalidInput):
            shamir.share(bytes(32), **({"clients": 5, "threshold": 3, "packing": 1} | wrong), random=os.urandom)
    with pytest.raises(InvalidInput, match="secret="):
        shamir.share(bytes(31), 5, 3, 1, os.urandom)
    with pytest.raises(InvalidInput, match="share="):
        shamir.recover({0: bytes(32), 1: bytes(31)}, 2, 1)


# ---------------------------------------------------------------- primitives


def test_masks_are_the_stream_of_rfc_8439() -> None:
    pytest.importorskip("cryptography")
    known = "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    assert crypto.stream(bytes(32), 16, 14).tobytes().hex() == known
    assert crypto.stream(bytes(32), 8, 20).tobytes().hex() == known


def test_two_key_pairs_agree_for_one_purpose_only() -> None:
    pytest.importorskip("cryptography")
    first, second = bytes(range(32)), bytes(range(32, 64))
    here = crypto.agreed(first, crypto.public_key(second), b"s" * 16, b"mask")
    assert here == crypto.agreed(second, crypto.public_key(first), b"s" * 16, b"mask") and len(here) == 32
    assert here != crypto.agreed(first, crypto.public_key(second), b"s" * 16, b"letter")
    assert here != crypto.agreed(first, crypto.public_key(second), b"t" * 16, b"mask")
    with pytest.raises(ValueError):
        crypto.agreed(first, bytes(32), b"s" * 16, b"mask")  # a point of small order


def test_a_letter_is_read_only_as_it_was_sealed() -> None:
    pytest.importorskip("cryptography")
    sealed = crypto.seal(bytes(32), b"hello", b"roster")
    assert crypto.unseal(bytes(32), sealed, b"roster") == b"hello"
    assert crypto.unseal(bytes(32), sealed, b"other") is None
    assert crypto.unseal(bytes(31) + b"1", sealed, b"roster") is None
    assert crypto.unseal(bytes(32), sealed[:-1] + bytes([sealed[-1] ^ 1]), b"roster") is None


# ---------------------------------------------------------------- rounding


def worst(m: int, rng: np.random.Generator) -> np.ndarray:
    """Rows that rounding makes as long as it can, and rows that are no vectors at all."""
    half = np.full((40, m), 0.5)
    long = rng.normal(size=(40, m)) * 1e9
    steep = np.zeros((4, m))
    steep[:, 0] = [1e300, -1e-300, 7.5, np.finfo(float).max]
    bad = np.full((3, m), 1.0)
    bad[:, 1] = [math.nan, math.inf, -math.inf]
    return np.concatenate([half, long, steep, bad])


@pytest.mark.parametrize(("steps", "m"), [(4.0, 64), (30.0, 400), (10.0, 3)])
def test_no_rounded_row_is_longer_than_promised(steps: float, m: int, rng: np.random.Generator) -> None:
    rows, limit = worst(m, rng), _squared_limit(steps, m)
    for tight in (limit, int(steps**2) // 2, 0):
        found = to_integers(rows, steps, tight, SeededSource(0))
        assert found.dtype == np.int64 and int((found**2).sum(axis=1).max()) <= tight
    assert (to_integers(rows, steps, limit, SeededSource(0))[-3:] == 0).all()


def test_rounding_is_unbiased_and_seldom_repeated(rng: np.random.Generator) -> None:
    row = rng.normal(size=200)
    row *= 40 / np.linalg.norm(row)
    drawn = to_integers(np.tile(row, (4000, 1)), 40.0, _squared_limit(40.0, 200), SeededSource(1))
    spread = np.sqrt((row - np.floor(row)) * (1 - row + np.floor(row)) / 4000)
    assert (np.abs(drawn.mean(axis=0) - row) <= 5 * spread + 1e-3).all()
    plain = np.floor(row) + (rng.uniform(size=(4000, 200)) < row - np.floor(row))
    assert ((plain**2).sum(axis=1) > _squared_limit(40.0, 200)).mean() < 0.005


# ---------------------------------------------------------------- the plan


def test_a_plan_keeps_its_promises() -> None:
    for z in (0.5, 3.0, 20.0):
        ranked = plan(noise_multiplier=z, colluding=1)
        assert ranked.share * ranked.counted >= Fraction(ranked.variance) and ranked.counted < ranked.needed
        assert gaussian_scale(ranked.variance) >= z * math.sqrt(ranked.limit)
        assert math.sqrt(ranked.limit) <= (1 + ranked.precision) * ranked.steps
        half = 1 << (ranked.bits - 1)
        law = stats.norm(0, math.sqrt(float(ranked.share) * ranked.clients))
        room = half - ranked.clients * ranked.reach
        assert 2 * ranked.m * law.sf(room) < 10 * ranked.failure
        assert half / 2 <= ranked.clients * ranked.reach + 2 * 9 * law.std()


def test_a_digest_tells_plans_apart() -> None:
    assert plan(peak=0.5).digest == plan(peak=0.5).digest != plan(peak=0.6).digest


test_plans_that_promise_nothing_are_refused = refuses(
    ({"clients": 1, "dropouts": 0}, "clients"),
    ({"clients": 65_520, "dropouts": 0}, "clients=65520"),
    ({"dropouts": 5}, "dropouts"),
    ({"dropouts": 4}, "dropouts=4.*could read 1 of them"),
    ({"dropouts": 10}, "colluding"),
    ({"colluding": 8}, "colluding"),
    ({"colluding": 6}, "dropouts"),
    ({"bound": 0.0}, "bound"),
    ({"noise_multiplier": -1.0}, "noise_multiplier"),
    ({"precision": 0.0}, "precision"),
    ({"peak": 1e30}, "bits"),
    ({"noise_multiplier": 1e6}, "noise in grid steps"),
    by=lambda changes: plan(**changes),
)


def test_packing_keeps_two_groups_from_learning_both_secrets() -> None:
    for clients in (2, 3, 5, 10, 50, 100, 1000):
        for dropouts in (0, clients // 10, clients // 5):
            ranked = plan(clients=clients, dropouts=dropouts)
            secret = ranked.needed - ranked.packing  # shares that say nothing
            assert 2 * (secret + 1) - clients > 0
            assert ranked.packing == 1 or 2 * (secret + 1) - clients > clients // 3


@pytest.mark.parametrize(
    ("clients", "dropouts", "counted"), [(2, 0, 1), (3, 0, 2), (3, 1, 1), (10, 2, 7), (100, 10, 86)]
)
def test_a_reader_who_knows_its_own_noise_faces_the_whole(clients: int, dropouts: int, counted: int) -> None:
    ranked = plan(clients=clients, dropouts=dropouts)
    assert ranked.counted == counted <= ranked.needed - 1
    assert ranked.share * counted == Fraction(ranked.variance)


def test_the_statement_says_what_it_rests_on() -> None:
    statement = plan(colluding=1).statement(1e-5, rounds=3)
    assert statement.epsilon == pytest.approx(epsilon_of(plan().event(), 1e-5) * math.sqrt(3), rel=0.1)
    words = statement.words()
    for part in ("Skellam noise", "all but at most 1 follow the protocol", "the noise of 6", "public keys", "X25519"):
        assert part in words
    assert plan().statement(1e-5, rate=0.1).epsilon < plan().statement(1e-5).epsilon
    assert not plan().statement(1e-5, seeded=True).private
