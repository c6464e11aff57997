"""Releasing large values: the right noise in every chunk, nothing overwritten, and no copy of the whole in float64."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus.privacy import (
    FastSource,
    Gaussian,
    GeneratorSource,
    Laplace,
    PrivacyStatement,
    SecretSource,
    SeededSource,
    noise,
)
from isthmus.privacy.clips import ClippedSum
from isthmus.privacy.noise import _CHUNK as PIECE
from isthmus.privacy.noise import Source
from isthmus.privacy.statement import Account


def of_generator(seed: int = 0) -> GeneratorSource:
    return GeneratorSource(torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 5])
@pytest.mark.parametrize(("kind", "ord", "method"), [(Gaussian, 2, "normal"), (Laplace, 1, "laplace")])
def test_any_chunking_is_value_plus_scaled_noise(
    kind: Any, ord: float, method: str, size: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise, "CHUNK", PIECE)
    value = torch.randn(size, generator=torch.Generator().manual_seed(1)).to(dtype)
    released = kind(1.3).release(ClippedSum(value, ord, 0.7), SeededSource(2))
    slow = (value.double() + getattr(SeededSource(2), method)(size) * (1.3 * 0.7)).to(dtype)
    assert released.dtype == dtype and torch.equal(released, slow)


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_the_edges_of_the_chunks_in_use(extra: int) -> None:
    size = noise.CHUNK + extra
    assert noise.CHUNK % PIECE == 0  # so that a seeded release does not depend on the chunk
    released = Gaussian(2.0).release(ClippedSum(torch.ones(size), 2, 1.0), SeededSource(3))
    assert torch.equal(released, (1.0 + SeededSource(3).normal(size) * 2.0).float())
    fast = Gaussian(2.0).release(ClippedSum(torch.zeros(size, dtype=torch.float64), 2, 1.0), FastSource())
    assert len(fast.unique()) == size  # every place has noise of its own


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor(3.0),
        torch.zeros(0),
        torch.ones(2, 3, 4),
        torch.arange(12.0).reshape(3, 4).T,
        torch.ones(1).expand(5),
    ],
    ids=["scalar", "empty", "3d", "transposed", "expanded"],
)
def test_shapes_and_strides(value: torch.Tensor) -> None:
    released = Gaussian(1.0).release(ClippedSum(value, 2, 1.0), SeededSource(4))
    slow = value.double() + SeededSource(4).normal(tuple(value.shape))
    assert released.shape == value.shape and torch.equal(released, slow.float())


@pytest.mark.parametrize("source", [SecretSource(), FastSource(), of_generator()], ids=lambda s: type(s).__name__)
def test_statements_say_what_the_noise_was(source: Source) -> None:
    account = Account(1e-5, seeded=source.seeded)
    account.add(Gaussian(1.0).event(), Gaussian(1.0), noise=source.describe())
    statement = account.statement()
    assert f"Where the noise comes from: {source.describe()}." in statement.words()
    assert statement.private is not source.seeded
    assert PrivacyStatement.from_json(statement.to_json()) == statement


PEAK = """
import torch
from isthmus.privacy.clips import ClippedSum
from isthmus.privacy import FastSource, Gaussian, Laplace, SeededSource

def memory(kind):
    return next(1024 * int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(kind))

value = torch.ones({size})
{mechanism}.release(ClippedSum(torch.ones(3), {ord}, 1.0), {source})
open("/proc/self/clear_refs", "w").write("5")  # the peak counts from here on
before = memory("VmRSS")
released = {mechanism}.release(ClippedSum(value, {ord}, 1.0), {source})
print(memory("VmHWM") - before - released.numel() * released.element_size())
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the platform does not tell a process its peak")
@pytest.mark.parametrize(
    ("size", "mechanism", "ord", "source"),
    [(20_000_000, "Gaussian(1.0)", 2, "FastSource()"), (8_000_000, "Laplace(1.0)", 1, "SeededSource(0)")],
)
def test_a_release_holds_its_result_and_little_more(size: int, mechanism: str, ord: int, source: str) -> None:
    """A float64 copy of the larger value would be 153 MiB, one of the smaller 61 MiB beside some 30 of chunks."""
    code = PEAK.format(size=size, mechanism=mechanism, ord=ord, source=source)
    process = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(process.stdout) < 64 * 2**20
