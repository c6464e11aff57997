"""Weights at the ends of floating point: a weighted record stays below its bound whatever its numbers are."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from isthmus.base.validate import InvalidInput
from isthmus.gradients import Dense, Glm, Lazy, Outer, ResidualRows, Stack
from isthmus.gradients.rounding import KAPPA
from isthmus.gradients.rows import Lookup, Sum
from isthmus.privacy import AdaptiveClip, Clip, GroupClip, PerLeafClip, clips
from isthmus.privacy.clips import weighted_sum
from isthmus.sketches import GaussianSketch

N, P, Q, T = 4, 7, 3, 2
SIZES = [
    (3.3e38, 1.0),
    (1e30, 1e-30),
    (1e38, 1e-38),
    (1e37, 1e-44),
    (1e-38, 1e38),
    (1e-44, 1e37),
    (1e-40, 1.0),
    (5.0, 1.0),
]
BOUNDS = [1e-20, 1e-6, 1.0]


def unit(*shape: int, seed: int) -> torch.Tensor:
    """Entries in [1/4, 1]: powers of two below, so that many weights fall badly."""
    drawn = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn * 0.75 + 0.25


def kinds(one: float, two: float, dtype: torch.dtype) -> dict[str, object]:
    if dtype == torch.float64:  # the same relative to its range
        one, two = (math.copysign(10 ** (math.log10(x) * 8), x) for x in (one, two))
    both = one * two
    a, b = (unit(N, P, seed=1) * one).to(dtype), (unit(N, Q, seed=2) * two).to(dtype)
    at, bt = (unit(N, T, P, seed=3) * one).to(dtype), (unit(N, T, Q, seed=4) * two).to(dtype)
    whole, places = (unit(N, P * Q, seed=5) * both).to(dtype), torch.arange(N * T).view(N, T) % Q
    held = (unit(N, T, P, seed=6) * both).to(dtype)
    csr = sp.csr_array(a.numpy())
    sketch = GaussianSketch(4).draw(P * Q, seed=1)
    dense = Dense(whole)
    return {
        "dense": dense,
        "lazy": Lazy(lambda lo, hi: whole[lo:hi], N, P * Q, dtype=dtype),
        "linear": Glm(b[:, 0], a),
        "csr": Glm(b[:, 0], csr),
        "outer": Outer(a, b),
        "positions": Outer(at, bt, ones=True),
        "lookup": Lookup(places, held, Q),
        "tied": Sum([Outer(at, bt), Lookup(places, held, Q)]),
        "stack": Stack([("a", Outer(a, b)), ("b", dense)]),
        "residual": ResidualRows(dense, dense.through(sketch), sketch),
    }


def worst(rows: object, clip: object, bound: float, share: float) -> float:
    """The largest share of one record in the sum, relative to what is stated; every record alone."""
    ratios = []
    for i in range(rows.n):
        row = rows.part(i, i + 1)
        total = weighted_sum(row, clip.weights(row, bound), clip.each(bound), KAPPA, clip.ord).double()
        assert bool(torch.isfinite(total).all())
        scale = float(total.abs().max())
        ratios.append(0.0 if not scale else float(torch.linalg.vector_norm(total / scale, clip.ord)) * scale / share)
    return max(ratios)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", list(kinds(1.0, 1.0, torch.float32)))
def test_no_share_exceeds_its_bound(kind: str, dtype: torch.dtype) -> None:
    by_name = {}
    for sizes in SIZES:
        rows = kinds(*sizes, dtype)[kind]
        for bound in BOUNDS:
            for ord in (1, 2, math.inf):
                by_name[sizes, bound, ord] = worst(rows, Clip(bound, ord=ord), bound, bound)
        by_name[sizes, 1e-6, "group"] = worst(rows, GroupClip(1e-6), 1e-6, 1e-6)
        by_name[sizes, 1e-6, "adaptive"] = worst(rows, AdaptiveClip(1.0), 1e-6, 1e-6)
    case, ratio = max(by_name.items(), key=lambda item: item[1])
    assert ratio <= 1.0, (kind, dtype, case, ratio)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_no_leaf_exceeds_its_own_bound(dtype: torch.dtype) -> None:
    for sizes in SIZES:
        rows = kinds(*sizes, dtype)["stack"]
        clip = PerLeafClip({"a": 1e-6, "b": 2e-6})
        assert worst(rows, clip, 1.0, clip.total(1.0)) <= 1.0
        assert worst(rows, clip, 1e-3, clip.total(1e-3)) <= 1.0


def test_a_weight_without_digits_is_none() -> None:
    """3.3e38 at a bound of 1e-6 asks for a weight of 3e-45, twice the smallest number there is."""
    rows = Dense(torch.full((1, 1), 3.3e38))
    assert Clip(1e-6).weights(rows, 1e-6).tolist() == [0.0]
    assert 0 < float(Clip(100.0).weights(rows, 100.0)) <= 100 / 3.3e38  # a normal number: the record counts


def test_ordinary_records_lose_next_to_nothing() -> None:
    rows = Outer(unit(N, P, seed=1).float() * 3, unit(N, Q, seed=2).float())
    true = torch.linalg.vector_norm(rows.dense().double(), dim=1)
    kept = Clip(0.1).weights(rows, 0.1).double() * true
    assert bool((kept <= 0.1).all()) and bool((kept > 0.1 * (1 - 3e-5)).all())
    assert Clip(100.0).weights(rows, 100.0).tolist() == [1.0] * N


def test_one_record_does_not_touch_the_weight_of_another() -> None:
    a, b = unit(2, P, seed=1).float(), unit(2, Q, seed=2).float()
    before = Clip(0.1).weights(Outer(a, b), 0.1)[1]
    a[0] = 3e38
    assert Clip(0.1).weights(Outer(a, b), 0.1)[1] == before


@pytest.mark.parametrize("initial", [1e-24, 1e-20, 1.0, 1e30])
@pytest.mark.parametrize("rate", [0.2, 1e4])
@pytest.mark.parametrize("count", [-math.inf, -1e9, 1e9, math.inf, math.nan])
def test_a_bound_that_wanders_stays_where_clips_work(initial: float, rate: float, count: float) -> None:
    clip, bound = AdaptiveClip(initial, rate=rate), initial
    for _ in range(200):
        bound = clip.next(bound, {"below": torch.tensor([count])})
        Clip(bound)
    assert initial / 1e6 * 0.999 <= bound <= initial * 1e6 * 1.001


@pytest.mark.parametrize("bound", [1e-40, 1e-25, 1e31, 1e300])
def test_bounds_beyond_the_range_of_float32_are_refused(bound: float) -> None:
    makers = (Clip, GroupClip, AdaptiveClip, lambda value: PerLeafClip({"a": value}))
    for make in makers:
        with pytest.raises(InvalidInput, match="between"):
            make(bound)


def test_numpy_keeps_denormals() -> None:
    """What the cases rest on: this machine has numbers below the normal ones."""
    assert np.float32(1e-44) > 0 and float(torch.tensor(1e-44)) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["dense", "outer"])
def test_weights_of_a_device_are_those_of_the_host_less_some_roundings(dtype, kind):
    draws = torch.Generator().manual_seed(0)
    values = torch.randn(60, 7, generator=draws, dtype=dtype) * 10.0 ** torch.randint(-30, 18, (60, 1), generator=draws)
    values[0], values[1, 2], values[2, 3] = 0, float("nan"), float("inf")
    rows = Dense(values) if kind == "dense" else Outer(values, values[:, :3].clone())
    host, device = clips._weights(rows, 2, 1.0), clips._device_weights(rows, 2, 1.0)
    assert device[:3].tolist() == [1.0, 0.0, 0.0]
    assert bool((device.double() * rows.norm_upper() <= 1.0).nan_to_num(True)[3:].all())
    torch.testing.assert_close(device, host, rtol=1e-6, atol=1e-30)
