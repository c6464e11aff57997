"""Bytes from other machines: decoded as what was sent, or refused; nothing much is allocated for them."""

from __future__ import annotations

import hashlib
import struct
from functools import cache

import numpy as np
import torch

from fuzz.edits import SCRIPT, scripts, text_of
from fuzz.target import Target, check
from isthmus.base import storage
from isthmus.codecs import QSGD, VQSGD, Codec, PackedBits, RandomK, named
from isthmus.core.wire import Message
from isthmus.distributed.order import Order
from isthmus.distributed.secagg import wire as messages
from isthmus.distributed.secagg.plan import SecurePlan
from isthmus.distributed.secagg.protocol import RoundRefused, SecureClient, SecureServer
from isthmus.distributed.secagg.wire import BadMessage
from isthmus.privacy import Ledger
from isthmus.privacy.clips import ClippedSum

CODECS: list[Codec] = [
    QSGD(),
    QSGD(coding="omega"),
    QSGD(levels=1),
    QSGD(levels=5, coding="fixed"),
    RandomK(3, "sent"),
    VQSGD(4),
    PackedBits(3),
    *(named(name) for name in ("int8", "terngrad", "natural", "float16", "bfloat16", "random_k")),  # type: ignore[list-item]
]
LIKE = torch.zeros(40)
KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def codec(data: bytes) -> None:
    """The first byte names the codec, the second the kind of numbers that are expected; the rest is the payload."""
    which, kind = CODECS[(data[0] if data else 0) % len(CODECS)], KINDS[(data[1] if data[1:] else 0) % 4]
    decoded = which.decode(data[2:], LIKE.to(kind))
    check(decoded.shape == LIKE.shape and decoded.dtype == kind, "decoded as something else")
    check(bool(decoded.isfinite().all()), "decoded as no numbers")


def _codec_seeds() -> list[bytes]:
    v = torch.linspace(-2, 3, 40)
    return [bytes([k, 0]) + codec.encode(v, 1) for k, codec in enumerate(CODECS)]


def codec_round_trip(data: bytes) -> None:
    """Any numbers through any codec: what is decoded is what the codec drew."""
    which, raw = CODECS[(data[0] if data else 0) % len(CODECS)], data[1:161]
    v = torch.from_numpy(np.frombuffer(raw[: len(raw) // 4 * 4], np.float32).copy())
    decoded = which.decode(which.encode(v, len(data)), v)
    check(torch.equal(decoded, which.contract(v, len(data))), "another vector than was drawn")


# ---------------------------------------------------------------- packed trees


def _repacked(data: bytes) -> bytes:
    """Any JSON and arrays under a right header."""
    text, _, raw = data.partition(b"\0")
    whole = text + raw
    seal = hashlib.blake2b(whole, digest_size=16).digest()
    return storage.HEAD.pack(storage.MAGIC, storage.VERSION, len(text), len(raw), seal) + whole


def wire(data: bytes) -> None:
    """The bytes as they stand, as a message, an order or a client's memory."""
    READERS[(data[0] if data else 0) % 3](data[1:])


def sealed_wire(data: bytes) -> None:
    """Any tree under a right seal."""
    number = (data[0] if data else 0) % 3
    body = data[1:]
    if body[:1] == SCRIPT:
        text, _, raw = _trees()[number][1:].partition(b"\0")
        body = text_of(body, [text]) + b"\0" + raw
    READERS[number](_repacked(body))


def _message(data: bytes) -> None:
    read = Message.from_bytes(data)
    again = Message.from_bytes(read.to_bytes())
    check(again.divisor == read.divisor and again.values.keys() == read.values.keys(), "a message changed on its way")


def _coded(data: bytes) -> None:
    Message.from_bytes(data, QSGD(), {"gradient": 40})


def _order(data: bytes) -> None:
    read = Order.from_bytes(data)
    again = Order.from_bytes(read.to_bytes())
    check((again.t, again.seed, again.stage) == (read.t, read.seed, read.stage), "an order changed on its way")


READERS = [_message, _coded, _order]


@cache
def _wires() -> list[bytes]:
    plain = Message({"gradient": ClippedSum(torch.ones(3), 2, 1.0)}, 4.0, dims=3, bytes=12)
    value = ClippedSum(torch.ones(40), 2, 1.0)
    coded = Message({"gradient": value}, 4.0, coded={"gradient": QSGD().encode(torch.ones(40), 0)})
    order = Order("main", 3, 0, 7, 0.5, {"main/gradient": 1.0}, torch.zeros(2), anchors={"a": torch.ones(1)})
    return [b"\0" + plain.to_bytes(), b"\1" + coded.to_bytes(), b"\2" + order.to_bytes()]


@cache
def _trees() -> list[bytes]:
    collected = []
    for whole in _wires():
        _, _, words, _, _ = storage.HEAD.unpack_from(whole[1:])
        body = whole[1 + storage.HEAD.size :]
        collected.append(whole[:1] + body[:words] + b"\0" + body[words:])
    return collected


# ---------------------------------------------------------------- secure aggregation

_PLAN: list[SecurePlan] = []


def _plan() -> SecurePlan:
    if not _PLAN:
        _PLAN.append(SecurePlan(clients=4, m=3, bound=1.0, noise_multiplier=3.0, dropouts=1))
    return _PLAN[0]


def secagg(data: bytes) -> None:
    """A round in which one message is the input: whoever reads it refuses it, or the round goes on."""
    plan, at, body = _plan(), (data[0] if data else 0) % 8 + 1, data[1:]
    server, clients = SecureServer(plan, Ledger()), [SecureClient(plan, k) for k in range(plan.clients)]

    def sent(kind: int, message: bytes) -> bytes:
        if kind != at:
            return message
        if len(data) % 2:
            return message[: messages.HEADER] + body
        changed = bytearray(message)
        for place, value in zip(body[::2], body[1::2], strict=False):
            changed[place % len(changed)] ^= value
        return bytes(changed)

    invitation = sent(1, server.invitation())
    for client in clients:
        server.receive(sent(2, client.keys(invitation)))
    roster = sent(3, server.roster())
    for client in clients:
        server.receive(sent(4, client.shares(roster)))
    boxes = server.inboxes()
    for client in clients:
        server.receive(sent(6, client.masked(sent(5, boxes[client.index]), np.ones(plan.m) / 4)))
    survivors = sent(7, server.survivors())
    for client in clients:
        server.receive(sent(8, client.reveal(survivors)))
    check(server.total().shape == (plan.m,), "a total of another length")


def secure_client(data: bytes) -> None:
    """What a client keeps between two messages."""
    made = storage.pack("secure client", None) if not data else _repacked(text_of(data, _client()))
    SecureClient.from_bytes(_plan(), made)


@cache
def _client() -> list[bytes]:
    whole = SecureClient(_plan(), 1).to_bytes()
    return [whole[storage.HEAD.size :]]


def _secagg_seeds() -> list[bytes]:
    raw = [bytes([k]) + struct.pack("<I", 2) + bytes(90) for k in range(8)]
    return [*raw, *(bytes([k, 0, 0, 9]) for k in range(8))]


WORDS = [b"@tensor", b"@tuple", b"@float", b'"tree"', b'"arrays"', b'"kind"', b'"float32"', b'"values"']

TARGETS = [
    Target("codec", codec, _codec_seeds),
    Target("codec round trip", codec_round_trip, lambda: [bytes([k]) + bytes(range(0, 200, 2)) for k in range(13)]),
    Target("wire", wire, _wires, WORDS),
    Target(
        "wire tree",
        sealed_wire,
        lambda: [*_trees(), *(bytes([k % 3]) + script for k, script in enumerate(scripts()))],
        WORDS,
    ),
    Target("secure client", secure_client, lambda: [*_client(), *scripts()], WORDS),
    Target("secure round", secagg, _secagg_seeds, errors=(BadMessage, RoundRefused), slow=16),
]
