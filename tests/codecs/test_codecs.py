"""Codecs: exact bytes, unbiased both ways, the variance and the lengths that are stated."""

import json
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from refusals import refuses
from torch import Tensor

import isthmus
from isthmus import codecs
from isthmus.codecs import QSGD, VQSGD, BFloat16, Codec, Float16, Int8, Natural, PackedBits, RandomK, TernGrad, bits
from isthmus.codecs.bits import Reader, Writer
from lab import theory as theorems

ALL: list[Codec] = [QSGD(), QSGD(coding="omega"), QSGD(coding="fixed"), QSGD(levels=1), QSGD(levels=1, coding="omega")]
ALL += [QSGD(levels=3, coding="fixed"), QSGD(levels=1 << 18), PackedBits(2), PackedBits(5), PackedBits(16), Int8()]
ALL += [TernGrad(), BFloat16(), Float16(), Natural(), RandomK(0.25), RandomK(7, "sent"), VQSGD(), VQSGD(50)]
HEADER = 8 * 7
"""Bits of format, kind and m, at most."""


def vectors(m: int = 200) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(5)
    normal = torch.randn(m, generator=g, dtype=torch.float64)
    spike = torch.zeros(m, dtype=torch.float64)
    spike[m // 3] = -7.0
    return {
        "normal": normal,
        "heavy": normal**5,
        "equal": torch.ones(m, dtype=torch.float64).copysign(normal),
        "spike": spike,
        "tiny": (normal * 1e-40),
        "float32": normal.float(),
        "half": normal.half(),
    }


@pytest.mark.parametrize("codec", ALL, ids=str)
def test_bytes_come_back_as_what_was_drawn(codec: Codec) -> None:
    for m in (1, 2, 9, 200, 70_001):
        points = vectors(m)
        for name, v in points.items() if m < 1000 else [("float32", points["float32"])]:
            data = codec.encode(v, seed=m)
            back = codec.decode(data, v)
            assert back.dtype == v.dtype and torch.equal(back, codec.contract(v, seed=m)), (name, m)
            assert data == codec.encode(v, seed=m)
    assert not codec.decode(codec.encode(torch.zeros(5), 0), torch.zeros(5)).any()
    shaped = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    assert codec.decode(codec.encode(shaped, 1), shaped).shape == (3, 4)


def draws(codec: Codec, v: Tensor, count: int) -> NDArray[np.float64]:
    return np.stack([codec.contract(v, seed).double().numpy() for seed in range(count)])


@pytest.mark.parametrize("codec", ALL, ids=str)
def test_a_codec_is_unbiased_and_within_its_chi(codec: Codec) -> None:
    codecs.check_contraction(codec)
    codecs.check_contraction(codec, m=7, draws=100)


@dataclass(frozen=True)
class Scaled(QSGD):
    """A biased codec: some percent too short, or too long."""

    factor: float = 1.0

    def value(self, drawn: tuple[float, NDArray[np.float64]], m: int, dtype: type) -> NDArray[np.float64]:
        return super().value(drawn, m, dtype) * self.factor


@dataclass(frozen=True)
class Boasting(QSGD):
    """A codec with a made-up chi: a normal vector's error is .17."""

    def chi(self, m: int) -> float:
        return 0.1


class Halves:
    """Anybody's own class with three methods: what is sent is half of the vector, for a chi of next to nothing."""

    def encode(self, v: Tensor, seed: int) -> bytes:
        return (v / 2).numpy().tobytes()

    def decode(self, data: bytes, like: Tensor) -> Tensor:
        return torch.frombuffer(bytearray(data), dtype=like.dtype)

    def chi(self, m: int) -> float:
        return 1e-9


@pytest.mark.parametrize("factor", [0.98, 1.02])
def test_the_check_sees_a_bias_of_two_percent_either_way(factor: float) -> None:
    with pytest.raises(isthmus.InvalidInput, match="make it unbiased: the mean of 400 draws of a normal vector"):
        codecs.check_contraction(Scaled(factor=factor))
    codecs.check_contraction(Scaled())


def test_the_check_sees_a_chi_that_is_made_up() -> None:
    with pytest.raises(isthmus.InvalidInput, match="state a larger chi"):
        codecs.check_contraction(Boasting())
    with pytest.raises(isthmus.InvalidInput, match="make it unbiased"):
        codecs.check_contraction(Halves())  # type: ignore[arg-type]
    with pytest.raises(isthmus.InvalidInput, match="draws=1"):
        codecs.check_contraction(QSGD(), draws=1)


def worst(m: int, levels: int) -> Tensor:
    """The vector that reaches chi of a grid of the largest entry."""
    step = 1 / levels
    v = torch.full((m,), (math.sqrt(1 + (m - 1) * step**2) - 1) / ((m - 1) * step), dtype=torch.float64)
    v[0] = 1.0
    return v


@pytest.mark.parametrize(
    ("codec", "v"),
    [
        (TernGrad(), worst(400, 1)),
        (PackedBits(3), worst(400, 3)),
        (RandomK(40), vectors()["equal"]),
        (VQSGD(3), vectors()["normal"]),
    ],
    ids=lambda value: str(value) if isinstance(value, Codec) else "",
)
def test_chi_is_reached(codec: Codec, v: Tensor) -> None:
    """Where chi is exact, a vector reaches it: neither more nor less."""
    off = ((draws(codec, v, 1500) - v.numpy()) ** 2).sum(axis=1) / float(v @ v)
    assert off.mean() == pytest.approx(codec.chi(len(v)), rel=0.05)


def test_chi_is_that_of_the_paper() -> None:
    for m in (1, 7, 100, 4096):
        assert QSGD().chi(m) == theorems.qsgd(m).chi == 1.0
        for s in (1, 3, 64):
            assert QSGD(levels=s).chi(m) == theorems.qsgd(m, s).chi == theorems.qsgd_chi(m, s)
        assert TernGrad().chi(m) == theorems.terngrad(m).chi
        assert VQSGD(3).chi(m) == theorems.vqsgd(m, 3).chi
        assert RandomK(min(5, m)).chi(m) == theorems.random_sparsification(m, min(5, m)).chi
        assert TernGrad().chi(m) == pytest.approx(PackedBits(2).chi(m))


@pytest.mark.parametrize("codec", ALL, ids=str)
def test_lengths_are_as_stated(codec: Codec) -> None:
    m = 5000
    for name, v in vectors(m).items():
        lengths = [8 * len(codec.encode(v, seed)) for seed in range(3)]
        assert np.mean(lengths) <= codec.bits(m) * 1.01 + HEADER, name


def test_three_bits_a_number_at_the_square_root_whatever_the_vector() -> None:
    """3.0 m + 64 bits, the header included."""
    m = 40_000
    points = vectors(m)
    for v in [
        points["normal"],
        points["heavy"],
        points["equal"],
        points["spike"],
        points["equal"] + 0.1 * points["normal"],
    ]:
        assert 8 * len(QSGD().encode(v, seed=3)) <= 3 * m + 64


@pytest.mark.parametrize("coding", ["gamma", "omega"])
def test_sparse_levels_are_sent_sparsely(coding: str) -> None:
    """At s = 1 about sqrt(m) entries are not 0: fewer bits than the bound of Theorem 3.2 of QSGD, which has no o(1)."""
    m = 10**6
    v = torch.randn(m, generator=torch.Generator().manual_seed(2))
    size = 8 * len(QSGD(levels=1, coding=coding).encode(v, seed=0))
    assert size < theorems.qsgd(m, 1).bits and size < 0.02 * m


def test_places_cost_no_more_than_in_the_paper() -> None:
    v = torch.randn(10_000, generator=torch.Generator().manual_seed(2))
    for k in (10, 100, 1000, 5000, 10_000):
        size = 8 * len(RandomK(k, "sent").encode(v, seed=0))
        assert size <= theorems.random_sparsification(10_000, k).bits + HEADER + 8
        shared = 8 * len(RandomK(k).encode(v, seed=0))
        assert shared <= theorems.random_sparsification(10_000, k, shared_seed=True).bits + 72 + HEADER


def one_by_one(number: int, code: str) -> int:
    """The length of Elias' codes, from their definitions."""
    if code == "gamma":
        return 2 * (number.bit_length() - 1) + 1
    bits = "0"
    while number > 1:
        bits = f"{number:b}" + bits
        number = number.bit_length() - 1
    return len(bits)


@pytest.mark.parametrize("code", ["gamma", "omega"])
def test_elias_codes_have_elias_lengths(code: str, rng: np.random.Generator) -> None:
    values = np.concatenate([np.arange(1, 70), 2 ** rng.integers(0, 39, 100) + rng.integers(0, 2, 100)])
    out = Writer()
    bits.write(out, values, code)
    data, expected = out.done(), sum(one_by_one(int(value), code) for value in values)
    assert len(data) == -(-expected // 8)
    reader = Reader(data)
    np.testing.assert_array_equal(bits.read(reader, len(values), code, 1 << 40, "numbers"), values)
    reader.end()


def test_every_subset_is_as_likely() -> None:
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(6000):
        chosen = tuple(codecs.kinds.subset(5, 2, seed).tolist())
        counts[chosen] = counts.get(chosen, 0) + 1
    assert len(counts) == 10 and max(abs(count - 600) for count in counts.values()) < 4.5 * math.sqrt(540)


def test_names_and_json() -> None:
    for codec in ALL:
        assert codecs.from_json(codec.to_json()) == codec == codecs.named(json.loads(codec.to_json()))
    assert set(Codec.registry) - {"_shrunk"} >= {
        *("qsgd", "terngrad", "random_k", "vqsgd", "int8", "natural", "float16", "bfloat16", "bits")
    }
    for name, kind in Codec.registry.items():
        assert type(codecs.named(name)) is kind
    kinds = [kind.kind for kind in Codec.registry.values()]
    assert len(set(kinds)) == len(kinds)


test_what_cannot_be_sent_is_refused = refuses(
    (lambda: codecs.named("zip"), "codec='zip'.*qsgd"),
    (lambda: codecs.named(3), "codec=3"),
    (lambda: codecs.named(QSGD), "give a codec"),
    (lambda: codecs.from_json("{"), "not JSON"),
    (lambda: codecs.from_json('{"levels": 2}'), "name under"),
    (lambda: codecs.from_json('{"codec": "qsgd", "level": 2}'), "argument of the codec 'qsgd'='level'"),
    (lambda: QSGD(levels=0), "levels=0"),
    (lambda: QSGD(coding="zip"), "coding='zip'"),
    (lambda: PackedBits(1), "width=1"),
    (lambda: RandomK(0.0), r"k=0\.0"),
    (lambda: VQSGD(0), "repetitions=0"),
    (lambda: QSGD().encode(torch.tensor([1.0, math.nan]), 0), r"\|\|v\|\|=nan"),
    (lambda: TernGrad().encode(torch.tensor([1.0, math.inf]), 0), r"\|\|v\|\|_inf=inf"),
    (lambda: QSGD().encode(torch.tensor([1e300, 1.0], dtype=torch.float64), 0), "scale the vector|finite"),
    (lambda: QSGD().encode(torch.zeros(0), 0), "between 1 and"),
    (lambda: QSGD().encode(torch.arange(3), 0), "real numbers"),
    (lambda: QSGD().encode(torch.ones(3), -1), "seed=-1"),
)
