"""Private samplers draw secretly, divide by public constants and state their event; clips that adapt pay."""

import math
from types import SimpleNamespace
from typing import Any

import dp_accounting as dpa
import pytest
import torch
from scipy import stats

from isthmus.base.validate import InvalidInput
from isthmus.core.pipeline import Release, Stage
from isthmus.privacy import AdaptiveClip, Adjacency, Clip, FixedSize, FullBatch, Gaussian, Poisson, SeededSource
from isthmus.privacy.sampling import Sampler

GAUSS = Gaussian(2.0).event()


def keys(seed: int = 0) -> Any:
    return SimpleNamespace(noise=SeededSource(seed), seed=0)


def test_poisson_membership_is_independent_with_the_rate() -> None:
    source, sizes, first = keys(), [], 0
    for t in range(2000):
        batch = Poisson(0.3).draw(20, t, source, "0")
        assert batch.dtype == torch.int64 and batch.tolist() == sorted(set(batch.tolist()))
        sizes.append(len(batch))
        first += 0 in batch.tolist()
    counts = torch.tensor(sizes).bincount(minlength=21)[:13].numpy()
    expected = stats.binom(20, 0.3).pmf(range(13))
    assert stats.chisquare(counts, expected / expected.sum() * counts.sum()).pvalue > 1e-3
    assert abs(first - 600) < 7 * math.sqrt(2000 * 0.21)


@pytest.mark.parametrize("sampler", [Poisson(0.5), FixedSize(2, n=5)])
def test_without_a_secret_source_nothing_is_drawn(sampler: Any) -> None:
    with pytest.raises(InvalidInput, match="SecretSource"):
        sampler.draw(5, 0, SimpleNamespace(noise=None), "0")


def test_divisors_and_epochs_are_public_constants() -> None:
    assert Poisson(0.1).divisor(1000) == 100.0 and Poisson(0.1, 90).divisor(1000) == 90.0
    assert Poisson(0.1).rounds(1000) == 10 and Poisson(0.7).rounds(10) == 1
    assert FixedSize(30, n=100).divisor(100) == 30.0 and FixedSize(30, n=100).rounds(100) == 4
    assert FullBatch().divisor(7) == 7.0 and FullBatch().rounds(7) == 1


def test_fixed_size_batches() -> None:
    sampler = FixedSize(3, n=8)
    batch = sampler.draw(8, 0, keys(), "0")
    assert len(set(batch.tolist())) == 3 and int(batch.max()) < 8
    with pytest.raises(InvalidInput, match="n=9"):
        sampler.draw(9, 0, keys(), "0")


def test_events() -> None:
    assert Poisson(0.1).event(GAUSS) == dpa.PoissonSampledDpEvent(0.1, GAUSS)
    assert FixedSize(3, n=8).event(GAUSS) == dpa.SampledWithoutReplacementDpEvent(8, 3, GAUSS)
    assert FullBatch().event(GAUSS) == Poisson(1.0).event(GAUSS) == FixedSize(8, n=8).event(GAUSS) == GAUSS


def test_bad_input_is_refused() -> None:
    for kind, *given in ((Poisson, 0.0), (Poisson, 1.5), (Poisson, 0.5, 0.0), (FixedSize, 0, 5), (FixedSize, 6, 5)):
        with pytest.raises(InvalidInput):
            kind(*given)


@pytest.mark.parametrize("sampler", [Poisson(0.1), FixedSize(3, n=8), FullBatch()])
def test_they_fill_the_pipelines_slot(sampler: Sampler) -> None:
    """A stage of two Gaussian releases is one sampled Gaussian event."""
    releases = [Release(name, clip=Clip(1.0), mechanism=Gaussian(6.0)) for name in ("code", "rest")]
    stage = Stage(sampler, releases)
    assert stage.private
    merged = Gaussian(6 / math.sqrt(2)).event()
    event = stage.event(Adjacency.REPLACE_ONE)
    inner = getattr(event, "event", event)
    assert inner.noise_multiplier == pytest.approx(merged.noise_multiplier, rel=1e-12)
    assert type(event) is type(sampler.event(merged))


# ---------------------------------------------------------------- the clip that adapts


def test_adaptive_clip_finds_the_quantile() -> None:
    norms = torch.linspace(0.1, 10, 500, dtype=torch.float64)
    clip = AdaptiveClip(0.5, quantile=0.8, rate=0.3)
    bound = clip.init()
    for _ in range(200):
        below = ((norms <= bound).double() - 0.5).mean().reshape(1)
        bound = clip.next(bound, {"below": below})
    assert float((norms <= bound).double().mean()) == pytest.approx(0.8, abs=0.01)
