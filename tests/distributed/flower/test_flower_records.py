"""Answers and orders as bytes: what is damaged, stale or forged is refused, before it is added."""

import hashlib
import struct
from dataclasses import replace

import numpy as np
import pytest
import torch

from isthmus import InvalidInput, codecs
from isthmus.base.space import Space
from isthmus.codecs import CodecError
from isthmus.core.wire import Message
from isthmus.distributed.flower import from_arrays, space_of, to_arrays
from isthmus.distributed.flower.federation import SEAL, _read_answer, _read_ask, answer, ask, flower
from isthmus.distributed.order import Order
from isthmus.privacy.clips import ClippedSum

ASKED = b"the order"
LIKE = Message({"gradient": ClippedSum(torch.zeros(8), 2, 1.0), "count": ClippedSum(torch.zeros(1), 2, 0.5)}, 4.0)


def sent() -> Message:
    values = {"gradient": torch.arange(8.0), "count": torch.ones(1)}
    return Message({name: ClippedSum(value, 2, 99.0) for name, value in values.items()}, 7.0, records=7)


def test_an_answer_comes_back_with_the_servers_own_bounds() -> None:
    got = _read_answer(answer(sent(), ASKED, True), ASKED, LIKE, None, float)
    assert torch.equal(got.values["gradient"].value, torch.arange(8.0)) and got.divisor == 7.0
    assert [value.bound for value in got.values.values()] == [1.0, 0.5]
    assert got.dims == 9 and got.bytes == SEAL + 8 + 4 + 32 + 4 + 4
    assert _read_answer(answer(sent(), ASKED, False), ASKED, LIKE, None, None).divisor == 4.0


def test_every_damaged_byte_shows() -> None:
    data = answer(sent(), ASKED, True)
    for place in range(len(data)):
        broken = bytearray(data)
        broken[place] ^= 1
        with pytest.raises(InvalidInput, match="damaged"):
            _read_answer(bytes(broken), ASKED, LIKE, None, float)


def test_forged_answers_are_refused_with_a_right_seal_too() -> None:
    """Whoever makes the seal right still has to send as many finite numbers as are due."""
    right, wrong, five = sent(), torch.tensor([torch.nan]), ClippedSum(torch.ones(5), 2, 1.0)
    cases = {
        "belongs to another order": answer(right, b"an earlier order", True),
        "bytes": answer(replace(right, values=right.values | {"count": five}), ASKED, True),
        "not finite": answer(replace(right, values={**right.values, "count": ClippedSum(wrong, 2, 1.0)}), ASKED, True),
        "records=0": answer(Message(right.values, 7.0), ASKED, True),
        "send .* bytes|too early": answer(Message({"gradient": right.values["gradient"]}, 7.0, records=7), ASKED, True),
        "damaged": None,
    }  # fmt: skip
    for told, data in cases.items():
        with pytest.raises(InvalidInput, match=told):
            _read_answer(data, ASKED, LIKE, None, float)


def test_random_bytes_under_a_right_seal_never_crash(rng: np.random.Generator) -> None:
    codec, refused = codecs.QSGD(), 0
    for _ in range(300):
        size = int(rng.integers(0, 60))
        body = struct.pack("<QI", 1, size) + rng.bytes(size) + struct.pack("<I", 0)
        seal = hashlib.blake2b(hashlib.blake2b(ASKED, digest_size=16).digest() + body, digest_size=SEAL).digest()
        try:
            _read_answer(seal + body, ASKED, LIKE, codec, float)
        except (InvalidInput, CodecError):
            refused += 1
    assert refused == 300  # the second release has no bytes at all


def test_an_order_travels_without_its_map(draws: torch.Generator) -> None:
    """What goes down is the iterate and some hundred bytes, whatever m is."""
    w = torch.randn(1000, generator=draws)
    order = Order("main", 3, 0, 7, 0.5, {"main/gradient": 1.0}, w)
    space = Space.of({"a": (10, 50), "b": (500,)})
    content = ask(order, space)
    got = _read_ask(content, space, None)
    assert torch.equal(got.w, w) and got.seed == 7
    assert len(content["isthmus"]["order"]) < 600
    changed = w.clone()
    changed[[3, 700]] = torch.tensor([1.0, -0.0])
    short = ask(Order("main", 4, 0, 7, 0.5, {}, changed), space, since=w)
    again = _read_ask(short, space, w)
    assert torch.equal(again.w, changed) and sum(each.count_bytes() for each in short.values()) < 1500
    for kept in (None, changed):
        with pytest.raises(InvalidInput, match="does not have that one"):
            _read_ask(short, space, kept)


def test_an_iterate_that_was_changed_on_the_way_is_refused(draws: torch.Generator) -> None:
    w, space = torch.randn(20, generator=draws), Space.flat(20)
    content = ask(Order("main", 0, 0, 7, 0.5, {}, w), space)
    content["arrays"] = to_arrays(w + 1, space)
    with pytest.raises(InvalidInput, match="this client has another one"):
        _read_ask(content, space, None)


def test_arrays_are_vectors_by_leaves() -> None:
    app = flower().app
    record = app.ArrayRecord(
        {"weight": app.Array(np.ones((2, 3), np.float32)), "scale": app.Array(np.array(4.0, np.float32))}
    )
    space = space_of(record)
    assert space.d == 7 and from_arrays(record, space).tolist() == [1.0] * 6 + [4.0]
    assert torch.equal(from_arrays(to_arrays(torch.arange(7.0), space), space), torch.arange(7.0))
    with pytest.raises(InvalidInput, match="leave counters out"):
        space_of(app.ArrayRecord({"steps": app.Array(np.array(3))}))
    with pytest.raises(InvalidInput, match="arrays"):
        from_arrays(app.ArrayRecord({"weight": record["weight"]}), space)
