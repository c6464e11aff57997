"""Noise at the ends of the range of floats: at its stated scale, or refused; never 0, never infinite."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from isthmus import InvalidInput
from isthmus.privacy import FastSource, Gaussian, GeneratorSource, Laplace, SecretSource, SeededSource
from isthmus.privacy.clips import ClippedSum
from isthmus.privacy.mechanisms import NoisyMax, TopK

SOURCES = {
    "secret": SecretSource,
    "fast": FastSource,
    "seeded": lambda: SeededSource(5),
    "generator": lambda: GeneratorSource(torch.Generator().manual_seed(5)),
}
N = 4001
SCALES = [1e-300, 1e-170, 1e-20, 1.0, 1e150, 1e300]
each_source = pytest.mark.parametrize("source", list(SOURCES))


def drawn(mechanism: Any, ord: float, source: str, dtype: torch.dtype, bound: float) -> Tensor:
    value = torch.zeros(N, dtype=dtype)
    return mechanism.release(ClippedSum(value, ord, bound), SOURCES[source]())


@pytest.mark.parametrize(("mechanism", "ord", "law"), [(Gaussian(0.5), 2, "norm"), (Laplace(0.5), 1, "laplace")])
@pytest.mark.parametrize(
    ("scale", "dtype"), [*((s, torch.float64) for s in SCALES), *((s, torch.float32) for s in (2e-38, 1e-20, 5e36))]
)
@each_source
def test_the_noise_has_its_scale_wherever_that_lies(
    source: str, scale: float, dtype: torch.dtype, mechanism: Any, ord: float, law: str
) -> None:
    found = drawn(mechanism, ord, source, dtype, scale / 0.5).double() / scale
    assert bool(torch.isfinite(found).all()) and int((found == 0).sum()) == 0
    assert stats.kstest(found.numpy(), law).pvalue > 1e-7
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(wrong * found.numpy(), law).pvalue < 1e-9


@each_source
def test_a_scale_that_the_numbers_cannot_hold_is_refused(source: str) -> None:
    single, double = ((1e-39, 1.0), (1e-170, 1.0), (1e37, 1.0)), ((1e-310, 1.0), (1e-200, 1e-200), (1e200, 1e200))
    for dtype, given in ((torch.float32, single), (torch.float64, double)):
        for bound, multiplier in given:
            for mechanism, ord in ((Gaussian(multiplier), 2), (Laplace(multiplier), 1)):
                with pytest.raises(InvalidInput, match="noise scale"):
                    drawn(mechanism, ord, source, dtype, bound)


@pytest.mark.parametrize("bound", [1e-290, 1e-170, 1.0, 1e170, 1e290])
@each_source
def test_selections_are_as_random_at_every_scale(source: str, bound: float) -> None:
    """Two candidates that differ by C: the better one wins with probability e / (1 + e) at epsilon = 2."""
    made, times = SOURCES[source](), 400
    value = ClippedSum(torch.tensor([0.0, bound], dtype=torch.float64), math.inf, bound)
    for mechanism in (NoisyMax(2.0, signed=False), TopK(1, 2.0)):
        wins = sum(float(mechanism.release(value, made)[1]) for _ in range(times))
        assert stats.binomtest(int(wins), times, math.e / (1 + math.e)).pvalue > 1e-7
        assert stats.binomtest(int(wins), times, 0.5).pvalue < 1e-7


@each_source
def test_selections_of_a_scale_out_of_range_are_refused(source: str) -> None:
    for bound in (1e-310, 1e307):
        value = ClippedSum(torch.tensor([0.0, bound], dtype=torch.float64), math.inf, bound)
        for mechanism in (NoisyMax(2.0), TopK(1, 2.0)):
            with pytest.raises(InvalidInput, match="noise scale"):
                mechanism.release(value, SOURCES[source]())
