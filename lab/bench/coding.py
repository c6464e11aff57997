"""Codecs beside a copy of the vector and, where PyTorch has the same code, its own cast."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isthmus.codecs import QSGD, VQSGD, BFloat16, Codec, Float16, Int8, Natural, PackedBits, RandomK, TernGrad
from lab.bench.cases import Facts, Goal, PeerBenchmark, Work

CODECS: dict[str, Codec] = {
    "QSGD(gamma)": QSGD(),
    "QSGD(omega)": QSGD(coding="omega"),
    "QSGD(fixed)": QSGD(coding="fixed"),
    "QSGD(levels=16)": QSGD(levels=16),
    "TernGrad": TernGrad(),
    "PackedBits(4)": PackedBits(4),
    "Int8": Int8(),
    "Natural": Natural(),
    "BFloat16": BFloat16(),
    "Float16": Float16(),
    "RandomK(0.1)": RandomK(0.1),
    "VQSGD(1000)": VQSGD(1000),
}
COPY = "copy of the vector"
CASTS: dict[str, Any] = {
    "torch bfloat16": lambda v: v.bfloat16(),
    "torch float16": lambda v: v.half(),
}
ONLY = {"torch bfloat16": ("BFloat16",), "torch float16": ("Float16",)}
BITS = "bits a number"


def vector(quick: bool) -> Tensor:
    """Normal numbers, float32."""
    return torch.from_numpy(np.random.default_rng(0).standard_normal(10**4 if quick else 10**6, np.float32))


def encode(way: str, quick: bool) -> Work:
    """The bytes of a vector."""
    v = vector(quick)
    if way == COPY:
        return Work(v.clone)
    if way in CASTS:
        return Work(partial(CASTS[way], v))
    codec = CODECS[way]

    def facts() -> Facts:
        data = codec.encode(v, seed=1)
        decoded = codec.decode(data, v)
        error = float((decoded.double() - v.double()).square().sum() / v.double().square().sum())
        exact = torch.equal(decoded, codec.contract(v, seed=1))
        size: Facts = {"numbers": len(v)}
        return size | {BITS: 8 * len(data) / len(v), "error": error, "chi": codec.chi(len(v)), "exact": str(exact)}

    return Work(lambda: codec.encode(v, seed=1), facts)


def decode(way: str, quick: bool) -> Work:
    """The vector of bytes."""
    v = vector(quick)
    if way == COPY:
        return Work(v.clone)
    if way in CASTS:
        cast = CASTS[way](v)
        return Work(cast.float)
    codec = CODECS[way]
    return Work(partial(codec.decode, codec.encode(v, seed=1), v))


BENCHMARKS = (
    PeerBenchmark(
        "codec-encode",
        "10^6 normal float32 numbers to bytes",
        encode,
        tuple(CODECS),
        (COPY, *CASTS),
        (Goal(BITS, 3.000064, "QSGD(gamma)", "the levels of this vector are larger than those of a normal one"),),
        only=ONLY,
        rounds=7,
    ),
    PeerBenchmark(
        "codec-decode",
        "10^6 float32 numbers from the bytes of a normal vector",
        decode,
        tuple(CODECS),
        (COPY, *CASTS),
        only=ONLY,
        rounds=7,
    ),
)
