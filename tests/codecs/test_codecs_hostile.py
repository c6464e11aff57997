"""Payloads that no codec wrote: refused with a reason, or read as finite numbers; never a crash, never much memory."""

import tracemalloc

import numpy as np
import pytest
import torch
from fuzz.mutations import mutated
from fuzz.wires import CODECS

from isthmus.base.validate import InvalidInput
from isthmus.codecs import QSGD, VQSGD, Codec, CodecError, Int8, Natural, RandomK, TernGrad
from isthmus.codecs.bits import Writer


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_mutated_payloads_are_refused_or_finite(codec: Codec) -> None:
    rng, like = np.random.default_rng(3), torch.zeros(300)
    v = torch.randn(300, generator=torch.Generator().manual_seed(1))
    refused = 0
    for seed in range(5):
        whole = codec.encode(v, seed)
        for _ in range(60):
            try:
                decoded = codec.decode(mutated(whole, rng), like)
            except CodecError as error:
                refused += 1
                assert " cannot be decoded: " in str(error)
            else:
                assert decoded.shape == like.shape and bool(decoded.isfinite().all())
    assert refused > 100  # most of them: other lengths and headers always are


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_random_bytes_are_refused(codec: Codec) -> None:
    rng = np.random.default_rng(4)
    for size in (0, 1, 2, 3, 7, 50, 5000):
        with pytest.raises(CodecError):
            codec.decode(rng.integers(0, 256, size).astype(np.uint8).tobytes(), torch.zeros(40))


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_every_shorter_and_longer_payload_is_refused(codec: Codec) -> None:
    v = torch.randn(50, generator=torch.Generator().manual_seed(1))
    whole = codec.encode(v, 0)
    for size in range(len(whole)):
        with pytest.raises(CodecError):
            codec.decode(whole[:size], v)
    with pytest.raises(CodecError, match="left over"):
        codec.decode(whole + b"\0", v)


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_a_declared_length_is_compared_before_anything_is_allocated(codec: Codec) -> None:
    """A payload that declares 4 thousand million coordinates, or is a million bytes long, costs a reader nothing."""
    out = Writer()
    for byte in (0xC1, codec.kind):
        out.byte(byte)
    out.number(2**32 - 1)
    bombs = [out.done() + bytes(60), codec.encode(torch.ones(20), 0)[:9] + b"\xff" * 10**6]
    tracemalloc.start()
    for bomb in bombs:
        with pytest.raises(CodecError):
            codec.decode(bomb, torch.zeros(20))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


SPOILT = [
    (lambda data: b"\xc2" + data[1:], "first byte is 0xc2"),
    (lambda data: data[:1] + b"\x04" + data[2:], "written by the codec 'terngrad', and 'qsgd' reads it"),
    (lambda data: data[:1] + b"\xee" + data[2:], "kind 238"),
    (lambda data: data[:2] + b"\x1f" + data[3:], "declares 31 coordinates where 30 are expected"),
    (lambda data: data[:2] + b"\x9e\x00" + data[3:], "more bytes than it needs"),
    (lambda data: data[:3] + b"\x00\x00\xc0\x7f" + data[7:], "the norm is nan"),
    (lambda data: data[:3] + b"\x00\x00\x80\xbf" + data[7:], "the norm is -1"),
    (lambda data: data[:7] + b"\x01" + data[8:], "coding is number 1 and not 'gamma'"),
    (lambda data: data[:7] + b"\x30" + data[8:], "layout is 3"),
    (lambda data: data[:7] + b"\x10\x1f" + data[8:], "entries that are not 0 is more than 30"),
    (lambda data: data[:7] + b"\x20" + bytes(8), "coded as 0"),
    (lambda data: data[:8] + b"\xff" * 40, "number of more than 13"),
    (lambda data: data[:-1], "it ends before the levels"),
    (lambda data: "text", "is a str and not bytes"),
]


@pytest.mark.parametrize(("change", "says"), SPOILT)
def test_a_refusal_says_what_is_wrong(change: object, says: str) -> None:
    v = torch.randn(30, generator=torch.Generator().manual_seed(1))
    data = QSGD().encode(v, 0)
    with pytest.raises(CodecError, match=says):
        QSGD().decode(change(data), v)  # type: ignore[operator]


def test_ranges_of_the_other_codecs() -> None:
    v = torch.ones(6)
    trits = TernGrad().encode(v, 0)
    for data, codec, says in [
        (trits[:7] + b"\xf3" + trits[8:], TernGrad(), "bytes of signs hold a number of more than 242"),
        (trits[:8] + b"\x02", TernGrad(), "fill its last byte"),
        (Int8().encode(v, 0)[:-1] + b"\xff", Int8(), "levels hold a number of more than 254"),
        (
            Natural().encode(v, 0)[:3] + b"\xff" * 6 + b"\0",
            Natural(),
            "exponents of finite numbers hold",
        ),
        (Natural().encode(v, 0)[:-1] + b"\x40", Natural(), "last byte are not 0"),
        (VQSGD(2).encode(v, 0), VQSGD(3), "2 corners where 3 are expected"),
        (VQSGD(2).encode(v, 0)[:-1] + b"\xff", VQSGD(2), "corners hold a number of more than 11"),
        (RandomK(2).encode(v, 0), RandomK(2, "sent"), "way 0 and not as 'sent'"),
        (RandomK(2).encode(v, 0)[:-1] + b"\x7f", RandomK(2), "NaN or above"),
    ]:
        with pytest.raises(CodecError, match=says):
            codec.decode(data, v)


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_what_a_half_cannot_hold_is_refused_and_not_infinite(codec: Codec) -> None:
    data = codec.encode(torch.linspace(-1, 1, 50) * 1e30, 0)
    with pytest.raises(CodecError, match="too large for torch.float16: decode it like a float32 tensor"):
        codec.decode(data, torch.zeros(50, dtype=torch.float16))
    assert codec.decode(data, torch.zeros(50)).isfinite().all()


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_nothing_is_decoded_like_no_number(codec: Codec) -> None:
    """A header that declares no coordinates, and receivers that expect none, or whole numbers."""
    for tail in (b"", bytes(4), b"\0\0\x80\x3f", b"\0\0\x80\x3f\0", bytes(9)):
        with pytest.raises(InvalidInput, match="like="):
            codec.decode(bytes([0xC1, codec.kind, 0]) + tail, torch.zeros(0))
    with pytest.raises(InvalidInput, match="like="):
        codec.decode(codec.encode(torch.ones(4), 0), torch.zeros(4, dtype=torch.int64))
