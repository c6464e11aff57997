"""Mechanisms: their laws, their events, what they refuse, and releases of large values."""

import itertools
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import dp_accounting as dpa
import numpy as np
import pytest
import torch
from scipy import stats

from isthmus import InvalidInput, privacy
from isthmus.privacy import DiscreteGaussian, Gaussian, Laplace, NoisyMax, SecretSource, SeededSource, TopK, noise
from isthmus.privacy.clips import ClippedSum
from isthmus.privacy.noise import _CHUNK as PIECE
from isthmus.privacy.noise import Source
from isthmus.privacy.statement import Account

N = 20000


def frequencies(mechanism: Any, scores: torch.Tensor, bound: float, draws: int) -> dict[tuple[float, ...], int]:
    source, seen = SeededSource(11), {}
    for _ in range(draws):
        chosen = tuple(mechanism.release(ClippedSum(scores, math.inf, bound), source).tolist())
        seen[chosen] = seen.get(chosen, 0) + 1
    return seen


def fits(seen: dict[tuple[float, ...], int], law: dict[tuple[float, ...], float]) -> float:
    assert set(seen) <= set(law)
    total = sum(seen.values())
    return stats.chisquare([seen.get(c, 0) for c in law], [total * p for p in law.values()]).pvalue


def softmax(logits: dict[tuple[float, ...], float]) -> dict[tuple[float, ...], float]:
    total = sum(math.exp(v) for v in logits.values())
    return {c: math.exp(v) / total for c, v in logits.items()}


@pytest.mark.parametrize("signed", [True, False])
def test_noisy_max_is_the_exponential_mechanism(signed: bool) -> None:
    scores, bound, eps = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64), 1.5, 2.0

    def law(eps: float) -> dict[tuple[float, ...], float]:
        logits = {}
        for j, sign in itertools.product(range(3), (1.0, -1.0) if signed else (1.0,)):
            items = tuple(sign if i == j else 0.0 for i in range(3))
            logits[items] = eps * sign * float(scores[j]) / (2 * bound)
        return softmax(logits)

    seen = frequencies(NoisyMax(eps, signed=signed), scores, bound, 6000)
    assert fits(seen, law(eps)) > 1e-3
    for factor in (2 / 3, 3 / 2):
        assert fits(seen, law(eps * factor)) < 1e-6


def test_top_k_is_k_exponential_mechanisms_in_a_row() -> None:
    scores, bound, eps = torch.tensor([1.0, -2.0, 0.5, 0.0], dtype=torch.float64), 0.75, 1.5

    def law(eps: float) -> dict[tuple[float, ...], float]:
        weight = [math.exp(eps * abs(float(s)) / (2 * bound)) for s in scores]
        total, found = sum(weight), {}
        for i, j in itertools.permutations(range(4), 2):
            places = tuple(1.0 if p in (i, j) else 0.0 for p in range(4))
            found[places] = found.get(places, 0.0) + weight[i] / total * weight[j] / (total - weight[i])
        return found

    seen = frequencies(TopK(2, eps), scores, bound, 6000)
    assert fits(seen, law(eps)) > 1e-3
    for factor in (2 / 3, 3 / 2):
        assert fits(seen, law(eps * factor)) < 1e-6


def test_selections_never_release_values() -> None:
    value = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    for mechanism, count in ((NoisyMax(1.0), 1), (TopK(3, 1.0), 3)):
        out = mechanism.release(ClippedSum(value, math.inf, 1.0), SecretSource())
        assert out.shape == value.shape and out.dtype == value.dtype
        assert int((out.abs() == 1).sum()) == count == int((out != 0).sum())


@pytest.mark.parametrize("mechanism", [Gaussian(1.0), Laplace(1.0), NoisyMax(1.0), TopK(2, 1.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_value_is_left_alone_but_where_it_is_spare(mechanism: Any, dtype: torch.dtype) -> None:
    value = torch.arange(8.0, dtype=dtype, requires_grad=True)
    released = mechanism.release(ClippedSum(value, mechanism.ords[0], 1.0), privacy.FastSource())
    assert torch.equal(value.detach(), torch.arange(8.0, dtype=dtype)) and not released.requires_grad
    assert released.data_ptr() != value.data_ptr()
    whole = torch.zeros(4, 4, dtype=dtype)
    for given, own in ((whole, isinstance(mechanism, Gaussian)), (whole[:, 0], False)):
        out = mechanism.release(ClippedSum(given, mechanism.ords[0], 1.0, spare=True), privacy.FastSource())
        assert (out.data_ptr() == given.data_ptr()) is own
        assert mechanism.selects or len(out.unique()) == out.numel()  # every place has noise of its own


def test_discrete_gaussian_law_and_grid() -> None:
    """opendp's generator cannot be seeded: the acceptance fails by chance once in 10^6."""
    pytest.importorskip("opendp")
    mechanism, bound = DiscreteGaussian(2.0, grid=1e-3), 1.0
    value = torch.full((4000,), 0.3337, dtype=torch.float64)
    out = mechanism.release(ClippedSum(value, 2, bound), SecretSource())
    assert torch.allclose((out / 1e-3).round() * 1e-3, out, atol=1e-12)
    scale = mechanism.scale(bound, 4000)
    assert scale == pytest.approx(2.0 * (1 + math.sqrt(4000) * 1e-3))
    noise = (out - 0.334).numpy() / scale
    assert stats.kstest(noise, "norm").pvalue > 1e-6
    for factor in (2 / 3, 3 / 2):
        assert stats.kstest(noise / factor, "norm").pvalue < 1e-9


def test_discrete_gaussian_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opendp.prelude", None)
    with pytest.raises(ImportError, match=r"\[secure\]"):
        DiscreteGaussian(1.0, grid=0.1).release(ClippedSum(torch.ones(2), 2, 1.0), SecretSource())


def test_events_are_relative_to_the_bound_whatever_the_adjacency() -> None:
    for adjacency in privacy.Adjacency:
        assert Gaussian(2.0).event(adjacency) == dpa.GaussianDpEvent(2.0)
        assert Laplace(2.0).event(adjacency) == dpa.LaplaceDpEvent(2.0)
        assert NoisyMax(2.0).event(adjacency) == dpa.ZCDpEvent(0.5, 0.0)
        assert TopK(3, 2.0).event(adjacency) == dpa.ZCDpEvent(1.5, 0.0)
        assert DiscreteGaussian(2.0, grid=0.1).event(adjacency) == dpa.ZCDpEvent(0.125, 0.0)
        assert privacy.Exact().event(adjacency) == dpa.NonPrivateDpEvent()


PRIVATE = [
    Gaussian(1.0),
    Laplace(1.0),
    NoisyMax(1.0),
    TopK(1, 1.0),
    DiscreteGaussian(1.0, grid=0.1),
    privacy.Skellam(1.0, grid=0.1),
]


def test_selections_are_told_by_their_epsilon_and_noise_by_its_multiplier() -> None:
    for mechanism in PRIVATE:
        chooses = isinstance(mechanism, NoisyMax | TopK)
        assert mechanism.selects is chooses and mechanism.noise_parameter == ("epsilon" if chooses else "multiplier")
        assert mechanism.number == 1.0 and mechanism.with_number(3.0).number == 3.0
        spent = mechanism.spending(0.5, 0.1).number
        assert spent == pytest.approx(1.0 if chooses else 0.2)
    assert TopK(4, 1.0).spending(0.5).number == pytest.approx(0.5)


@pytest.mark.parametrize("mechanism", PRIVATE, ids=lambda m: type(m).__name__)
def test_unprotected_values_are_refused(mechanism: Any) -> None:
    assert mechanism.private and not privacy.Exact.private
    value, ord = torch.ones(3), mechanism.ords[0]
    for bound in (math.inf, math.nan, 0.0):
        with pytest.raises(InvalidInput, match="bound"):
            mechanism.release(ClippedSum(value, ord, bound), SecretSource())
    for other in {1.0, 2.0, math.inf} - set(mechanism.ords):
        with pytest.raises(InvalidInput, match="ord"):
            mechanism.release(ClippedSum(value, other, 1.0), SecretSource())
    with pytest.raises(InvalidInput, match="SecretSource"):
        mechanism.release(ClippedSum(value, ord, 1.0), None)


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.inf, math.nan, "1"])
def test_bad_parameters_are_refused(wrong: Any) -> None:
    finer = (lambda v: TopK(2, v), lambda v: DiscreteGaussian(1.0, grid=v), lambda v: privacy.Skellam(1.0, grid=v))
    for build in (Gaussian, Laplace, NoisyMax, *finer):
        with pytest.raises(InvalidInput):
            build(wrong)
    with pytest.raises(InvalidInput, match="grid"):  # too fine for whole numbers
        DiscreteGaussian(1.0, grid=1e-30).release(ClippedSum(torch.ones(2), 2, 1.0), SecretSource())


def test_top_k_needs_enough_coordinates() -> None:
    with pytest.raises(InvalidInput, match="k=0"):
        TopK(0, 1.0)
    with pytest.raises(InvalidInput, match="k=4"):
        TopK(4, 1.0).release(ClippedSum(torch.ones(3), math.inf, 1.0), SecretSource())


# ---------------------------------------------------------------- releasing large values: the right noise in every ch


def of_generator(seed: int = 0) -> privacy.GeneratorSource:
    return privacy.GeneratorSource(torch.Generator().manual_seed(seed))


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
    fast = Gaussian(2.0).release(ClippedSum(torch.zeros(size, dtype=torch.float64), 2, 1.0), privacy.FastSource())
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


@pytest.mark.parametrize(
    "source", [SecretSource(), privacy.FastSource(), of_generator()], ids=lambda s: type(s).__name__
)
def test_statements_say_what_the_noise_was(source: Source) -> None:
    account = Account(1e-5, seeded=source.seeded)
    account.add(Gaussian(1.0).event(), Gaussian(1.0), noise=source.describe())
    statement = account.statement()
    assert f"Where the noise comes from: {source.describe()}." in statement.words()
    assert statement.private is not source.seeded
    assert privacy.PrivacyStatement.from_json(statement.to_json()) == statement


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


# ---------------------------------------------------------------- laplace noise on a vector hides no less than on one

STEP = 1e-3
"""Of the grid that logarithms of likelihood ratios are rounded to; the splits below are multiples of it."""


def losses(shift: float) -> np.ndarray:
    """The law of log(Q / P) under P = Lap(0, 1), Q = Lap(shift, 1), on a grid from -shift to shift.

    Atoms of 1/2 at -shift and exp(-shift) / 2 at shift; between them exp(-(u + shift) / 2) / 2 lie above u.
    """
    places = round(shift / STEP)
    edges = np.clip((np.arange(-places, places + 2) - 0.5) * STEP, -shift, shift)
    above = 0.5 * np.exp(-(edges + shift) / 2)
    law = above[:-1] - above[1:]
    law[0] += 0.5
    law[-1] += 0.5 * math.exp(-shift)
    return law


def together(*laws: np.ndarray) -> np.ndarray:
    """The law of a sum of independent losses."""
    total = laws[0]
    for law in laws[1:]:
        total = np.convolve(total, law)
    return total


def delta(law: np.ndarray, epsilon: float) -> float:
    """Of a claim epsilon: the hockey-stick divergence of Q from P."""
    places = (len(law) - 1) // 2
    ratios = np.exp(np.arange(-places, places + 1) * STEP)
    return float(law @ np.maximum(0.0, ratios - math.exp(epsilon)))


@pytest.mark.parametrize("split", [(0.5, 0.5), (0.9, 0.1), (1.0, 0.7, 0.3), (2.0, 2.0), (0.1,) * 10], ids=str)
def test_a_vector_is_no_worse_than_one_number(split: tuple[float, ...]) -> None:
    shift = sum(split)
    vector, number = together(*map(losses, split)), losses(shift)
    for epsilon in np.linspace(-shift, shift, 41):
        assert delta(vector, epsilon) <= delta(number, epsilon) + 1e-6  # the grid is off by STEP^2


def test_a_bound_spent_on_one_entry_is_what_is_counted() -> None:
    """Nearly all of the bound on one entry: a claim for a bound that is 2 % smaller would be false."""
    vector = together(losses(0.999), losses(0.001))
    assert delta(vector, 0.5) > delta(losses(0.98), 0.5)


@pytest.mark.parametrize("split", [(0.25, 0.25), (0.4, 0.1), (0.5,)], ids=str)
def test_rounds_of_vectors_cost_no_more_than_the_accountant_says(split: tuple[float, ...]) -> None:
    epsilon = privacy.epsilon_of(dpa.SelfComposedDpEvent(Laplace(2.0).event(), 4), 1e-3)
    once = together(*map(losses, split))
    real = delta(together(once, once, once, once), epsilon)
    assert real <= 1e-3 * (1 + 1e-3)
    assert len(split) > 1 or real > 0.95e-3  # one entry is the worst case, and it is met
