"""Mechanisms release the stated law at the stated scale and no other, and refuse what they cannot protect."""

from __future__ import annotations

import itertools
import math
import sys
from typing import Any

import dp_accounting as dpa
import pytest
import torch
from scipy import stats

from isthmus.base.validate import InvalidInput
from isthmus.privacy import (
    Adjacency,
    DiscreteGaussian,
    Exact,
    FastSource,
    Gaussian,
    Laplace,
    NoisyMax,
    SecretSource,
    SeededSource,
    Skellam,
    TopK,
)
from isthmus.privacy.clips import ClippedSum

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
    released = mechanism.release(ClippedSum(value, mechanism.ords[0], 1.0), FastSource())
    assert torch.equal(value.detach(), torch.arange(8.0, dtype=dtype)) and not released.requires_grad
    assert released.data_ptr() != value.data_ptr()
    whole = torch.zeros(4, 4, dtype=dtype)
    for given, own in ((whole, isinstance(mechanism, Gaussian)), (whole[:, 0], False)):
        out = mechanism.release(ClippedSum(given, mechanism.ords[0], 1.0, spare=True), FastSource())
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
    for adjacency in Adjacency:
        assert Gaussian(2.0).event(adjacency) == dpa.GaussianDpEvent(2.0)
        assert Laplace(2.0).event(adjacency) == dpa.LaplaceDpEvent(2.0)
        assert NoisyMax(2.0).event(adjacency) == dpa.ZCDpEvent(0.5, 0.0)
        assert TopK(3, 2.0).event(adjacency) == dpa.ZCDpEvent(1.5, 0.0)
        assert DiscreteGaussian(2.0, grid=0.1).event(adjacency) == dpa.ZCDpEvent(0.125, 0.0)
        assert Exact().event(adjacency) == dpa.NonPrivateDpEvent()


PRIVATE = [
    Gaussian(1.0),
    Laplace(1.0),
    NoisyMax(1.0),
    TopK(1, 1.0),
    DiscreteGaussian(1.0, grid=0.1),
    Skellam(1.0, grid=0.1),
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
    assert mechanism.private and not Exact.private
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
    finer = (lambda v: TopK(2, v), lambda v: DiscreteGaussian(1.0, grid=v), lambda v: Skellam(1.0, grid=v))
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
