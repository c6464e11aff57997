"""The secret source: right laws at the stated scale and no other, no draw twice, from the bits on."""

import copy
import math
import multiprocessing
import os
import pickle
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from isthmus.base import secret
from isthmus.base.validate import InvalidInput
from isthmus.privacy import FastSource, Gaussian, GeneratorSource, Laplace, SecretSource, SeededSource, noise
from isthmus.privacy.clips import ClippedSum
from isthmus.privacy.mechanisms import NoisyMax, TopK
from isthmus.privacy.noise import _PER_KEY, Source, _keyed, _torch_normal, check_scale, two_keys

SOURCES = [SecretSource(), FastSource(), SeededSource(5), GeneratorSource(torch.Generator().manual_seed(5))]
each_source = pytest.mark.parametrize("source", SOURCES, ids=lambda source: type(source).__name__)
each_secret = pytest.mark.parametrize("kind", [SecretSource, FastSource])
N = 20000


@pytest.mark.parametrize(("method", "law"), [("normal", "norm"), ("laplace", "laplace"), ("gumbel", "gumbel_r")])
@pytest.mark.parametrize("seed", [1, 2])
def test_laws_at_their_scale_and_no_other(method: str, law: str, seed: int) -> None:
    draws = getattr(SeededSource(seed), method)(N).numpy()
    assert stats.kstest(draws, law).pvalue > 1e-3
    for factor in (2 / 3, 3 / 2):
        assert stats.kstest(draws * factor, law).pvalue < 1e-9


def test_uniforms_stay_inside_the_unit_interval() -> None:
    class Extremes(SeededSource):
        def bytes(self, count: int) -> bytes:
            return (b"\x00" * 8 + b"\xff" * 8) * (count // 16)

    draws = Extremes(0).uniform(2)
    assert 0 < float(draws[0]) < float(draws[1]) < 1
    for method in ("normal", "laplace", "gumbel"):
        assert bool(torch.isfinite(getattr(Extremes(0), method)(2)).all())


@each_secret
def test_no_two_draws_are_alike(kind: type[SecretSource]) -> None:
    source, other = kind(), kind()
    draws = torch.cat([source.normal(500) for _ in range(20)] + [other.normal(500), source.normal(20000)])
    assert len(draws.unique()) == len(draws)


@each_secret
def test_a_copy_is_a_fresh_source(kind: type[SecretSource]) -> None:
    source = kind()
    source.bytes(4)  # the buffer is filled
    for other in (copy.copy(source), copy.deepcopy(source), pickle.loads(pickle.dumps(source))):
        assert type(other) is kind and source.bytes(16) != other.bytes(16)
        assert not bool((source.normal(4) == other.normal(4)).any())


def _child(source: SecretSource, queue: multiprocessing.queues.Queue) -> None:
    added = torch.from_numpy(np.zeros(3 * _PER_KEY))
    source.add_normal(added, 1.0)
    queue.put((source.bytes(64), source.normal(3 * _PER_KEY)[::1000].tolist() + added[::1000].tolist()))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="the platform cannot fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@each_secret
def test_a_forked_process_draws_its_own_noise(kind: type[SecretSource], four_threads: None) -> None:
    """The draws are large enough for threads: a process that counted on its parent's would wait for ever."""
    source = kind()
    source.bytes(64), source.normal(3 * _PER_KEY)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_child, args=(source, queue))
    child.start()
    theirs = queue.get(timeout=600)
    child.join()
    assert theirs[0] != source.bytes(64)
    assert not set(theirs[1]) & set(source.normal(3 * _PER_KEY).tolist())


@each_secret
def test_there_is_no_seed(kind: type[SecretSource]) -> None:
    with pytest.raises(TypeError):
        kind(0)  # type: ignore[call-arg]
    assert kind.seeded is False and SeededSource.seeded is True and GeneratorSource.seeded is True


@pytest.fixture
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def test_chunks_of_a_fast_draw_are_independent(four_threads: None) -> None:
    """Chunks are drawn under different keys: no value twice, no correlation at any of many lags."""
    draws = FastSource().normal((8, _PER_KEY))
    assert len(draws.unique()) == draws.numel()
    for lag in (0, 1, 7):
        shifted = torch.corrcoef(torch.stack([row.roll(lag * j) for j, row in enumerate(draws)]))
        assert float((shifted - torch.eye(8, dtype=torch.float64)).abs().max()) < 7 / math.sqrt(_PER_KEY)
    ends = torch.stack([draws[:-1, -100:].reshape(-1), draws[1:, :100].reshape(-1)])
    assert abs(float(torch.corrcoef(ends)[0, 1])) < 7 / math.sqrt(ends.shape[1])


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("size", [0, 1, _PER_KEY - 1, _PER_KEY, _PER_KEY + 1, 5 * _PER_KEY + 3])
def test_fast_draws_fill_every_place(size: int, threads: int, four_threads: None) -> None:
    torch.set_num_threads(threads)
    draws = FastSource().normal(size)
    assert draws.shape == (size,) and draws.dtype == torch.float64
    assert len(draws.unique()) == size and not bool((draws == 0).any())
    assert float(draws.abs().max() if size else 0.0) < 9  # beyond 9 once in 10^18


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_fast_noise_is_added_at_its_scale_and_no_other(threads: int, dtype: torch.dtype, four_threads: None) -> None:
    """Every block of every chunk, on top of what was there, rounded once."""
    torch.set_num_threads(threads)
    size, there = 2 * _PER_KEY + 5, 0.0 if dtype == torch.bfloat16 else 5.0
    out = torch.full((size,), there, dtype=dtype)
    FastSource().add_normal(out, 3.0)
    for block in out.double().sub(there).div(3).split(_PER_KEY // 4):
        if dtype != torch.bfloat16:  # its steps are too wide for the law of a continuous number
            assert stats.kstest(block.numpy(), "norm").pvalue > 1e-9
        assert abs(float(block.mean())) < 7 / math.sqrt(len(block))
        spread = 7 / math.sqrt(2 * len(block)) + 0.01  # 2^-9, relative, of each number is rounded off in bfloat16
        assert len(block) < 100 or abs(float(block.std()) - 1) < spread


def test_a_chunk_has_a_key_of_its_own(monkeypatch: pytest.MonkeyPatch, four_threads: None) -> None:
    asked: list[int] = []
    fresh = noise.secret.randbits

    def recorded(bits: int) -> int:
        asked.append(bits)
        return fresh(bits)

    monkeypatch.setattr(noise.secret, "randbits", recorded)
    FastSource().add_normal(torch.zeros(3 * _PER_KEY + 1), 1.0)
    assert asked == [256] * 4


def test_a_device_is_keyed_afresh_at_every_call() -> None:
    """What an accelerator's draws are made of, on the CPU: fresh keys, float64, the normal law and no other scale."""
    draws = [_torch_normal(_keyed(torch.device("cpu")), (4, N)) for _ in range(3)]
    assert len(torch.cat(draws).unique()) == 12 * N
    for draw in draws:
        assert draw.dtype == torch.float64 and draw.shape == (4, N)
        assert stats.kstest(draw.reshape(-1).numpy(), "norm").pvalue > 1e-6
        assert all(stats.kstest(draw.reshape(-1).numpy() * f, "norm").pvalue < 1e-9 for f in (2 / 3, 3 / 2))


def test_generator_draws_repeat_and_follow_the_generator() -> None:
    def source(seed: int) -> GeneratorSource:
        return GeneratorSource(torch.Generator().manual_seed(seed))

    slow = torch.randn(50, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert torch.equal(source(1).normal(50), slow) and not torch.equal(source(2).normal(50), slow)
    assert torch.equal(source(1).normal((5, 10), dtype=torch.float32), slow.reshape(5, 10).float())
    for count in (0, 1, 4, 7):
        assert len(source(1).bytes(count)) == count
    assert source(1).bytes(8) == source(1).bytes(8) != source(2).bytes(8)
    one = source(1)
    assert one.bytes(8) != one.bytes(8)
    bits = np.unpackbits(np.frombuffer(source(3).bytes(80000), np.uint8)).reshape(-1, 32).mean(axis=0)
    assert np.abs(bits - 0.5).max() < 7 * 0.5 / math.sqrt(20000)  # every bit of a word is fair


def test_sources_say_what_they_are() -> None:
    secret, fast, *seeded = [source.describe() for source in SOURCES]
    assert "operating system" in secret and "secret" in secret
    assert "not elsewhere, and they do not withstand" in fast and "secret" not in fast
    assert seeded == ["seeded noise: not private"] * 2


@each_source
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


@each_source
def test_shape_dtype_and_chunks(source: Source) -> None:
    assert source.normal((2, 3), dtype=torch.float32).dtype == torch.float32
    assert source.normal(()).shape == () and source.normal((0,)).shape == (0,)
    assert source.normal((3, 50000)).shape == (3, 50000)


def test_bad_input_is_refused() -> None:
    source = SecretSource()
    draws = (source.mask, -1, 0.5), (source.mask, 5, 0.0), (source.mask, 5, 1.5), (source.integers, 0, 3)
    subsets = (source.subset, 3, 4), (source.subset, 3, 0)
    sources = (SeededSource, -1), (GeneratorSource, 0), (GeneratorSource, None)
    for call, *given in (*draws, *subsets, *sources):
        with pytest.raises(InvalidInput):
            call(*given)


# ---------------------------------------------------------------- from random words to draws, word by word: exact pro

TOP = (1 << 64) - 1


class Words(Source):
    """A source that gives these 64-bit words, one after the other."""

    seeded = True

    def __init__(self, *words: int) -> None:
        self._left = list(words)

    def bytes(self, count: int) -> bytes:
        taken, self._left = self._left[: count // 8], self._left[count // 8 :]
        assert 8 * len(taken) == count
        return struct.pack(f"={len(taken)}Q", *taken)


def test_a_uniform_is_the_first_53_bits_of_a_word() -> None:
    words = (0, (1 << 11) - 1, 1 << 11, 1 << 63, TOP)
    values = Words(*words).uniform(5).tolist()
    assert values == [2.0**-54, 2.0**-54, 2.0**-53, 0.5, 1 - 2.0**-53]
    assert Words(*words).uniform((5, 1), dtype=torch.float32).shape == (5, 1)


def test_membership_has_its_probability_exactly() -> None:
    """Of the 2^53 uniforms exactly q 2^53 are below q, where that is a whole number."""
    below = (1 << 63) - 1  # the largest word whose uniform is below a half
    assert Words(0, below, 1 << 63, TOP).mask(4, 0.5).tolist() == [True, True, False, False]
    assert Words(0, TOP).mask(2, 1.0).tolist() == [True, True]
    assert Words(0, 1 << 11).mask(2, 2.0**-53).tolist() == [True, False]


def test_integers_reject_the_words_that_are_too_many() -> None:
    """2^64 - 1 is a multiple of 3: one word is left over, and is drawn again."""
    assert Words(TOP, TOP - 1, 4).integers(3, 2).tolist() == [2, 1]
    assert Words(TOP, 0).integers(2, 2).tolist() == [1, 0]
    assert Words(TOP).integers(1, 1).tolist() == [0] and len(Words().integers(5, 0)) == 0
    for call in (lambda: Words().integers(3, -1), lambda: Words().subset(0, 0), lambda: Words().mask(3, 0.0)):
        with pytest.raises(InvalidInput):
            call()


def test_in_a_replay_draws_about_records_are_those_of_the_stand_in() -> None:
    class Fixed:
        def uniform(self, n: int) -> torch.Tensor:
            return torch.full((n,), 0.25)

        def mask(self, n: int, q: float) -> torch.Tensor:
            return torch.ones(n, dtype=torch.bool)

        def integers(self, high: int, size: int) -> torch.Tensor:
            return torch.full((size,), high - 1)

        subset = integers

    with secret.standing_in(Fixed()):  # type: ignore[arg-type]
        source = SecretSource()
        assert source.uniform(2).tolist() == [0.25] * 2 and source.mask(2, 1e-9).tolist() == [True] * 2
        assert source.integers(9, 2).tolist() == [8] * 2 == source.subset(9, 2).tolist()


def test_a_subset_has_the_smallest_words() -> None:
    assert Words(5, 1, 9, 3).subset(4, 2).tolist() == [1, 3]
    assert Words(5, 1, 9, 3).subset(4, 1).tolist() == [1] and Words(7).subset(1, 1).tolist() == [0]


def test_no_word_of_the_system_is_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is given is what the system gave, no piece of it twice."""
    entries = [0]

    def count_up(size: int) -> bytes:
        assert size % 4 == 0
        entries[0] += size // 4
        return np.arange(entries[0] - size // 4, entries[0], dtype=np.uint32).tobytes()

    source = SecretSource()
    monkeypatch.setattr(os, "urandom", count_up)
    sizes = (4, 8, 1 << 16, 16, 8, 0, 4)
    parts = [source.bytes(size) for size in sizes]
    monkeypatch.undo()
    assert [len(part) for part in parts] == list(sizes)
    words = np.concatenate([np.frombuffer(part, np.uint32) for part in parts])
    assert len(np.unique(words)) == len(words) and int(words.max()) < entries[0]
    again = SecretSource()
    assert again.bytes(8) != again.bytes(8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.int64], ids=str)
def test_a_scale_may_go_to_the_ends_of_its_numbers(dtype: torch.dtype) -> None:
    """From the least normal number to a 64th of the largest; whole numbers are noised in float64."""
    info = torch.finfo(dtype if dtype.is_floating_point else torch.float64)
    for edge, beyond in ((info.tiny, 1 - 2.0**-40), (info.max / 64, 1 + 2.0**-40)):
        check_scale(edge, dtype)
        with pytest.raises(InvalidInput, match="noise scale"):
            check_scale(edge * beyond, dtype)


def test_two_generators_make_one_normal_law() -> None:
    drawn = two_keys(torch.zeros(40000, dtype=torch.float32))
    assert drawn.dtype == torch.float64 and abs(float(drawn.var()) - 1) < 7 * 0.0071  # seven standard errors
    assert len(drawn.unique()) == 40000


def test_noise_is_added_at_its_scale_to_every_type() -> None:
    """Added in float64 and rounded last, the draws of `normal` in their order."""
    for make in (lambda: SeededSource(3), lambda: GeneratorSource(torch.Generator().manual_seed(3))):
        for dtype in (torch.float32, torch.float64):
            out = torch.full((3, 5), 2.0, dtype=dtype)
            make().add_normal(out, 0.25)
            assert torch.equal(out, (2 + 0.25 * make().normal(15)).view(3, 5).to(dtype))


# ---------------------------------------------------------------- noise at the ends of the range of floats: at its st

KINDS = {
    "secret": SecretSource,
    "fast": FastSource,
    "seeded": lambda: SeededSource(5),
    "generator": lambda: GeneratorSource(torch.Generator().manual_seed(5)),
}
COUNT = 4001
SCALES = [1e-300, 1e-170, 1e-20, 1.0, 1e150, 1e300]
each_kind = pytest.mark.parametrize("source", list(KINDS))


def drawn(mechanism: Any, ord: float, source: str, dtype: torch.dtype, bound: float) -> Tensor:
    value = torch.zeros(COUNT, dtype=dtype)
    return mechanism.release(ClippedSum(value, ord, bound), KINDS[source]())


@pytest.mark.parametrize(("mechanism", "ord", "law"), [(Gaussian(0.5), 2, "norm"), (Laplace(0.5), 1, "laplace")])
@pytest.mark.parametrize(
    ("scale", "dtype"), [*((s, torch.float64) for s in SCALES), *((s, torch.float32) for s in (2e-38, 1e-20, 5e36))]
)
@each_kind
def test_the_noise_has_its_scale_wherever_that_lies(
    source: str, scale: float, dtype: torch.dtype, mechanism: Any, ord: float, law: str
) -> None:
    found = drawn(mechanism, ord, source, dtype, scale / 0.5).double() / scale
    assert bool(torch.isfinite(found).all()) and int((found == 0).sum()) == 0
    assert stats.kstest(found.numpy(), law).pvalue > 1e-7
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(wrong * found.numpy(), law).pvalue < 1e-9


@each_kind
def test_a_scale_that_the_numbers_cannot_hold_is_refused(source: str) -> None:
    single, double = ((1e-39, 1.0), (1e-170, 1.0), (1e37, 1.0)), ((1e-310, 1.0), (1e-200, 1e-200), (1e200, 1e200))
    for dtype, given in ((torch.float32, single), (torch.float64, double)):
        for bound, multiplier in given:
            for mechanism, ord in ((Gaussian(multiplier), 2), (Laplace(multiplier), 1)):
                with pytest.raises(InvalidInput, match="noise scale"):
                    drawn(mechanism, ord, source, dtype, bound)


@pytest.mark.parametrize("bound", [1e-290, 1e-170, 1.0, 1e170, 1e290])
@each_kind
def test_selections_are_as_random_at_every_scale(source: str, bound: float) -> None:
    """Two candidates that differ by C: the better one wins with probability e / (1 + e) at epsilon = 2."""
    made, times = KINDS[source](), 400
    value = ClippedSum(torch.tensor([0.0, bound], dtype=torch.float64), math.inf, bound)
    for mechanism in (NoisyMax(2.0, signed=False), TopK(1, 2.0)):
        wins = sum(float(mechanism.release(value, made)[1]) for _ in range(times))
        assert stats.binomtest(int(wins), times, math.e / (1 + math.e)).pvalue > 1e-7
        assert stats.binomtest(int(wins), times, 0.5).pvalue < 1e-7


@each_kind
def test_selections_of_a_scale_out_of_range_are_refused(source: str) -> None:
    for bound in (1e-310, 1e307):
        value = ClippedSum(torch.tensor([0.0, bound], dtype=torch.float64), math.inf, bound)
        for mechanism in (NoisyMax(2.0), TopK(1, 2.0)):
            with pytest.raises(InvalidInput, match="noise scale"):
                mechanism.release(value, KINDS[source]())
