"""The secret source: right laws at the stated scale and no other, no draw twice."""

from __future__ import annotations

import copy
import math
import multiprocessing
import pickle

import pytest
import torch
from scipy import stats

from isthmus._validate import InvalidInput
from isthmus.privacy import SecretSource, SeededSource
from isthmus.privacy.noise import Source

SOURCES = [SecretSource(), SeededSource(5)]
N = 20000


@pytest.mark.parametrize(("method", "law"), [("normal", "norm"), ("laplace", "laplace"), ("gumbel", "gumbel_r")])
@pytest.mark.parametrize("seed", [1, 2])
def test_laws_at_their_scale_and_no_other(method: str, law: str, seed: int) -> None:
    draws = getattr(SeededSource(seed), method)(N).numpy()
    assert stats.kstest(draws, law).pvalue > 1e-3
    for factor in (2 / 3, 3 / 2):
        assert stats.kstest(draws * factor, law).pvalue < 1e-9


@pytest.mark.parametrize("source", SOURCES, ids=["secret", "seeded"])
def test_moments(source: Source) -> None:
    """Seven standard errors each way: fails by chance once in 10^11."""
    root = math.sqrt(N)
    for draws, mean, sd in (
        (source.normal(N), 0.0, 1.0),
        (source.laplace(N), 0.0, math.sqrt(2)),
        (source.gumbel(N), 0.5772156649, math.pi / math.sqrt(6)),
        (source.uniform(N), 0.5, math.sqrt(1 / 12)),
    ):
        assert abs(float(draws.mean()) - mean) < 7 * sd / root
        assert abs(float(draws.std()) - sd) < 7 * 1.2 * sd / root  # 1.2: the heaviest of these tails, Laplace's


def test_uniforms_stay_inside_the_unit_interval() -> None:
    class Extremes(SeededSource):
        def bytes(self, count: int) -> bytes:
            return (b"\x00" * 8 + b"\xff" * 8) * (count // 16)

    draws = Extremes(0).uniform(2)
    assert 0 < float(draws[0]) < float(draws[1]) < 1
    for method in ("normal", "laplace", "gumbel"):
        assert bool(torch.isfinite(getattr(Extremes(0), method)(2)).all())


def test_neighbouring_coordinates_are_independent() -> None:
    draws = SeededSource(3).normal((2, N))
    assert abs(float(torch.corrcoef(draws)[0, 1])) < 7 / math.sqrt(N)
    line = SeededSource(4).normal(N)
    assert abs(float(torch.corrcoef(torch.stack([line[1:], line[:-1]]))[0, 1])) < 7 / math.sqrt(N)


def test_no_two_draws_are_alike() -> None:
    source, other = SecretSource(), SecretSource()
    draws = torch.cat([source.normal(500) for _ in range(20)] + [other.normal(500), source.normal(20000)])
    assert len(draws.unique()) == len(draws)


def test_a_copy_is_a_fresh_source() -> None:
    source = SecretSource()
    source.normal(4)  # the buffer is filled
    for other in (copy.copy(source), copy.deepcopy(source), pickle.loads(pickle.dumps(source))):
        assert not bool((source.normal(4) == other.normal(4)).any())


def _child(source: SecretSource, queue: multiprocessing.queues.Queue) -> None:
    queue.put(source.bytes(64))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="the platform cannot fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_draws_its_own_noise() -> None:
    source = SecretSource()
    source.bytes(64)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_child, args=(source, queue))
    child.start()
    theirs = queue.get(timeout=30)
    child.join()
    assert theirs != source.bytes(64)


def test_there_is_no_seed() -> None:
    with pytest.raises(TypeError):
        SecretSource(0)  # type: ignore[call-arg]
    assert SecretSource.seeded is False and SeededSource.seeded is True


def test_seeded_draws_repeat() -> None:
    def draws(seed: int) -> torch.Tensor:
        source = SeededSource(seed)
        parts = [source.normal(3), source.laplace(3), source.gumbel(3), source.mask(9, 0.5), source.subset(9, 4)]
        return torch.cat([part.double() for part in parts])

    assert torch.equal(draws(1), draws(1)) and not torch.equal(draws(1), draws(2))


@pytest.mark.parametrize("source", SOURCES, ids=["secret", "seeded"])
@pytest.mark.parametrize("q", [0.001, 0.3, 1.0])
def test_mask_rate(source: Source, q: float) -> None:
    n = 200000
    assert abs(int(source.mask(n, q).sum()) - n * q) <= 7 * math.sqrt(n * q * (1 - q))
    assert len(source.mask(0, 0.5)) == 0


def test_subsets_are_uniform() -> None:
    source, counts = SeededSource(8), torch.zeros(10)
    for _ in range(3000):
        chosen = source.subset(5, 2)
        assert len(chosen) == 2 and 0 <= int(chosen[0]) < int(chosen[1]) < 5
        counts[int(chosen[0]) * 5 + int(chosen[1]) - sum(range(int(chosen[0]) + 2))] += 1
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3
    assert source.subset(4, 4).tolist() == [0, 1, 2, 3]


def test_integers_are_uniform() -> None:
    draws = SeededSource(9).integers(7, 7000)
    assert stats.chisquare(draws.bincount(minlength=7).numpy()).pvalue > 1e-3
    assert int(draws.min()) == 0 and int(draws.max()) == 6


def test_shape_dtype_and_chunks() -> None:
    source = SeededSource(0)
    assert source.normal((2, 3), dtype=torch.float32).dtype == torch.float32
    assert source.normal(()).shape == () and source.normal((0,)).shape == (0,)
    assert source.normal((3, 50000)).shape == (3, 50000)


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.mask(-1, 0.5),
        lambda s: s.mask(5, 0.0),
        lambda s: s.mask(5, 1.5),
        lambda s: s.subset(3, 4),
        lambda s: s.subset(3, 0),
        lambda s: s.integers(0, 3),
        lambda s: SeededSource(-1),
    ],
)
def test_bad_input_is_refused(call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidInput):
        call(SecretSource())
