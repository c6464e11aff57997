"""Clips: weights, bounded sums, and both at the ends of the range of numbers."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from isthmus.base.validate import InvalidInput
from isthmus.gradients import Dense, Glm, Lazy, Outer, ResidualRows, Stack, rounding
from isthmus.gradients.rounding import KAPPA, RATIO
from isthmus.gradients.rows import Lookup, Sum
from isthmus.privacy import AdaptiveClip, Clip, GroupClip, PerLeafClip, clips
from isthmus.privacy.clips import ClippedSum, Clipping, Rounding, _shortened, encoded_sum, part_of_error, weighted_sum
from isthmus.sketches import CountSketch, GaussianSketch


def rows_of(n: int, d: int, dtype: torch.dtype, seed: int = 0) -> Dense:
    return Dense(torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("ord", [1, 2, math.inf])
def test_a_weight_is_the_last_number_below_the_bound_over_the_norm(dtype: torch.dtype, ord: float) -> None:
    """In exact arithmetic: never above C / norm, and less than two roundings below it."""
    rows, bound = rows_of(300, 5, dtype), 0.37
    weights, u = Clip(bound, ord=ord).weights(rows, bound), Fraction(rounding.unit(dtype))
    clipped = 0
    for weight, norm in zip(weights.tolist(), rows.norms(ord).tolist(), strict=True):
        share = Fraction(weight) * Fraction(norm)
        if norm > bound:
            clipped += 1
            assert Fraction(bound) * (1 - 2 * u - Fraction(2) ** -49) < share <= Fraction(bound)
        else:
            assert weight == 1.0
    assert clipped > 100


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_device_keeps_a_few_roundings_more(dtype: torch.dtype) -> None:
    """RESERVE + 4 of them on average, of which its own divisions and the cast may use up two."""
    rows, bound, u = rows_of(300, 5, dtype), 0.37, rounding.unit(dtype)
    weights, norms = clips._device_weights(rows, 2, bound).double(), rows.norm_upper(2).double()
    clipped = norms > bound * (1 + 20 * u)
    share = (weights * norms / bound)[clipped]
    assert int(clipped.sum()) > 100
    assert bool((share <= 1 - (rounding.RESERVE + 2) * u).all())
    assert float((1 - share).mean() / u) == pytest.approx(rounding.RESERVE + 4, abs=0.3)
    assert bool((weights[norms < bound * (1 - 20 * u)] == 1).all())


def test_what_a_kind_of_rows_loses_is_taken_off_its_bound() -> None:
    """On the host and on a device; where nothing is left of the bound, nothing is kept."""

    class Lossy(Dense):
        def underflow(self) -> torch.Tensor:
            return torch.full((self.n,), 0.1, dtype=torch.float64)

    rows = Lossy(rows_of(100, 5, torch.float64).values)
    whole, lossy = (clips._weights(each, 2, 0.37) for each in (Dense(rows.values), rows))
    assert torch.allclose(lossy[whole < 1], whole[whole < 1] * 0.27 / 0.37, rtol=1e-12)
    device = clips._device_weights(rows, 2, 0.37)
    assert torch.allclose(device, (0.27 / rows.norm_upper(2)).clamp(max=1.0), rtol=1e-12)
    assert clips._device_weights(Dense(torch.zeros(1, 3)), 2, 1e-39).tolist() == [0.0]


def test_a_row_at_its_bound_is_whole() -> None:
    rows = rows_of(1, 3, torch.float32)
    norm = float(rows.norms(2))
    assert Clip(norm).weights(rows, norm).tolist() == [1.0]
    assert float(Clip(norm / 2).weights(rows, norm / 2)) == pytest.approx(0.5, rel=1e-6)


def test_leaves_are_clipped_by_themselves() -> None:
    leaves = {"a": rows_of(50, 3, torch.float64, 1), "b": rows_of(50, 4, torch.float64, 2)}
    stack, clip = Stack(list(leaves.items())), PerLeafClip({"a": 0.3, "b": 0.4})
    assert clip.init() == 1.0 and clip.total(2.0) == pytest.approx(1.0) and clip.each(2.0) == {"a": 0.6, "b": 0.8}
    whole = clip.weights(stack, 2.0)
    for name, rows in leaves.items():
        bound = clip.each(2.0)[name]
        assert torch.equal(whole[name], Clip(bound).weights(rows, bound)) and bool((whole[name] < 1).any())
    assert torch.equal(clip.weighted_sum(stack, 2.0, 0.01), weighted_sum(stack, whole, clip.each(2.0), 0.01))
    for refused in (PerLeafClip({"a": 0.3}).weights, lambda *rest: PerLeafClip({"a": 0.3}).weighted_sum(*rest, 0.01)):
        with pytest.raises(InvalidInput, match="name the leaves"):
            refused(stack, 1.0)


def test_a_clip_of_ones_own_inherits_one_bound_that_stays() -> None:
    class Own(Clipping):
        ord, before = 1.0, False

        def init(self) -> float:
            return 2.0

    rows, own = rows_of(20, 3, torch.float64), Own()
    assert torch.equal(own.weights(rows, 0.5), Clip(0.5, ord=1).weights(rows, 0.5))
    assert (own.each(0.5), own.total(0.5), own.next(0.5, {}), own.moves) == (0.5, 0.5, 0.5, False)
    assert (Clip(3.0).init(), AdaptiveClip(3.0).init(), AdaptiveClip.moves, Clip.moves) == (3.0, 3.0, True, False)
    assert Clip(1.0).ord == 2


@pytest.mark.parametrize("quantile", [0.5, 0.8])
def test_an_adaptive_bound_moves_by_the_stated_factor(quantile: float) -> None:
    clip = AdaptiveClip(2.0, quantile=quantile, rate=0.3)
    for released, below in ((-0.5, 0.0), (-0.1, 0.4), (0.3, 0.8), (0.5, 1.0), (0.9, 1.0), (-7.0, 0.0)):
        moved = clip.next(1.5, {"below": torch.tensor([released, 99.0], dtype=torch.float64)})
        assert moved == pytest.approx(1.5 * math.exp(-0.3 * (below - quantile)), rel=1e-12)
    assert AdaptiveClip(1.0).quantile == 0.5 and AdaptiveClip(1.0).rate == 0.2
    with pytest.raises(InvalidInput, match="a release of the stage"):
        clip.next(1.0, {"other": torch.zeros(1)})


def test_an_adaptive_bound_ends_at_a_million_times_its_start() -> None:
    for initial, low, high in ((2.0, 2e-6, 2e6), (1e-20, 1e-24, 1e-14), (1e28, 1e22, 1e30)):
        clip, fast = AdaptiveClip(initial), AdaptiveClip(initial, rate=1e4)
        assert clip.next(high * 2, {"below": torch.tensor([0.0])}) == pytest.approx(high)
        assert clip.next(low / 2, {"below": torch.tensor([0.0])}) == pytest.approx(low)
        assert fast.next(initial, {"below": torch.tensor([-0.5])}) == pytest.approx(high)
        assert fast.next(initial, {"below": torch.tensor([0.5])}) == pytest.approx(low)


def test_bad_clips_are_refused_by_name() -> None:
    wrong: dict[str, Any] = {
        "clip": (lambda: Clip(-1.0), lambda: Clip("1"), lambda: GroupClip(0.0), lambda: AdaptiveClip(0.0)),
        "ord": (lambda: Clip(1.0, 3), lambda: PerLeafClip({"a": 1.0}, 1), lambda: AdaptiveClip(1.0, ord=3)),
        "bounds": (lambda: PerLeafClip({}), lambda: PerLeafClip({"a": -1.0})),
        "quantile": (lambda: AdaptiveClip(1.0, quantile=0.0), lambda: AdaptiveClip(1.0, quantile=1.0)),
        "rate": (lambda: AdaptiveClip(1.0, rate=0.0),),
    }
    for name, builds in wrong.items():
        for build in builds:
            with pytest.raises(InvalidInput, match=name):
                build()


def test_the_ends_of_what_is_allowed_are_allowed() -> None:
    for edge in (clips._SMALLEST, clips._LARGEST):
        assert Clip(edge).init() == edge
    for ord in (1, 2, math.inf):
        assert Clip(1.0, ord=ord).ord == AdaptiveClip(1.0, ord=ord).ord == ord


def test_codes_are_clipped_unless_gradients_are_asked_for() -> None:
    for clip in (Clip(1.0), GroupClip(1.0), PerLeafClip({"a": 1.0}), AdaptiveClip(1.0)):
        assert not clip.before


# ---------------------------------------------------------------- weights at the ends of floating point: a weighted r

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


# ---------------------------------------------------------------- `ClippedSum` sums: what they may lose, how they are

F32, F64 = torch.float32, torch.float64
UNIT = 2.0**-24


def bounded(length: float, d: int = 4, **given: object) -> ClippedSum:
    """A float64 sum of that length, whose release will be float32."""
    fields = {"ord": 2, "bound": 0.5, "dtype": F32} | given
    return ClippedSum(torch.full((d,), length / math.sqrt(d), dtype=F64), **fields)


def test_sums_of_one_norm_and_one_bound_add_up() -> None:
    one = ClippedSum(torch.ones(2, dtype=F32), 2, 1.0)
    total = one + ClippedSum(torch.full((2,), 2.0**-30, dtype=F32), 2, 1.0)
    assert total.value.dtype == F64 and total.value.tolist() == [1 + 2.0**-30] * 2 and total.bound == 1.0
    free = ClippedSum(torch.ones(2, dtype=F32), 2, math.inf)
    assert free.precise() is free and one.precise().value.dtype == F64
    with pytest.raises(InvalidInput, match="ord"):
        one + ClippedSum(torch.ones(2), 1, 1.0)
    with pytest.raises(InvalidInput, match="bound"):
        one + ClippedSum(torch.ones(2), 2, 2.0)


@pytest.mark.parametrize("length", [0.0, 0.7, 1.5, 40.0])
def test_a_narrowed_sum_is_short_and_its_bound_holds_what_float32_adds(length: float) -> None:
    """It is at most own bounds long; the bound grows by twice the error of terms + 1 roundings of all the lengths."""
    own, total, terms = 3.0, 12.0, 8
    sent = bounded(length).narrowed(own, total, terms, 0.01)
    assert sent.value.dtype == F32 and sent.spare and (sent.ord, sent.dtype) == (2, F32)
    assert float(sent.value.double().norm()) == pytest.approx(min(length, own * 0.5), rel=1e-6, abs=0)
    least = 2 * total * (terms + 1) * UNIT
    assert 0.5 * (1 + least) <= sent.bound <= 0.5 * (1 + 1.00001 * least)


def test_the_length_of_many_numbers_has_a_reserve() -> None:
    """2^-50 for every number and for 64 more: more than float64 loses while it computes a length."""
    few, many = (bounded(1.0, d).narrowed(1.0, 1.0, 1, 0.01).bound for d in (4, 1 << 20))
    assert many - few == pytest.approx(0.5 * 2 * ((1 << 20) - 4) * 2.0**-50, rel=1e-4, abs=0)
    assert few - 0.5 - 0.5 * 2 * rounding.gamma(2, F32) == pytest.approx(68 * 2.0**-50, rel=0.005, abs=0)


TOO_LONG = [
    lambda: bounded(9.0, bound=math.inf),
    lambda: bounded(9.0, ord=1),
    lambda: bounded(9.0, dtype=None),
    lambda: bounded(9.0, dtype=F64),
]


@pytest.mark.parametrize("kept", TOO_LONG)
def test_sums_that_float32_cannot_hold_are_sent_as_they_are(kept: object) -> None:
    value = kept()  # type: ignore[operator]
    sent = value.narrowed(1.0, 1.0, 1, 0.01)
    assert torch.equal(sent.value, value.value) and sent.value.dtype == F64 and sent.bound == value.bound


def test_a_bound_grows_by_no_more_than_was_allowed() -> None:
    extra = bounded(1.0).narrowed(1.0, 8.0, 4, 1.0).bound / 0.5 - 1
    assert bounded(1.0).narrowed(1.0, 8.0, 4, extra * (1 - 1e-6)).value.dtype == F64
    assert bounded(1.0).narrowed(1.0, 8.0, 4, extra * (1 + 1e-6)).value.dtype == F32
    half = bounded(1.0, dtype=torch.float16)
    assert half.narrowed(1.0, 8.0, 4, 1.0).value.dtype == F32


def test_physical_batches_have_these_shares() -> None:
    assert [part_of_error(number, False) for number in (1, 2, 3, 4, 7, 8)] == pytest.approx(
        [1 / 4, 1 / 24, 1 / 24, 1 / 96, 1 / 96, 1 / 320]
    )
    assert (part_of_error(1, True), part_of_error(2, True), part_of_error(900, True)) == (1.0, 0.5, 0.5)
    assert Rounding().batch is None and Rounding().share == 1.0


def test_what_a_sum_may_lose_is_a_share_of_all_its_terms() -> None:
    """The error allowed over the most the terms can add up to: n bounds, and the terms within the records."""
    rows = Dense(torch.ones(10, 3, dtype=F64))
    weights, rho = _shortened(rows, torch.ones(10, dtype=F64), 0.5, 1e-3, 2)
    assert rows.mass(2) is None and torch.equal(weights, torch.ones(10, dtype=F64))
    assert rho == pytest.approx(1e-3 / 5.0 * (1 - 2.0**-20), rel=1e-9)  # bounds hold but for rounding
    b = torch.tensor([[[t], [1.0], [-t]] for t in (30.0, 4e4, 1e9)], dtype=F64)
    sums = Outer(torch.ones_like(b), b)
    sizes = sums.mass(2)
    assert sizes is not None and RATIO < float(sizes[1]) < 2 * RATIO
    weights, rho = _shortened(sums, torch.ones(3, dtype=F64), 0.5, 1e-3, 2)
    assert float(weights[0]) == 1.0
    assert (weights * sizes)[1:].tolist() == pytest.approx([RATIO / 2 * (1 - 2.0**-20)] * 2, rel=1e-8)
    assert rho == pytest.approx(1e-3 / (1.5 + float(weights @ sizes)), rel=1e-5)
    left_out = _shortened(sums, torch.tensor([1.0, 0.0, 0.0], dtype=F64), 1.0, 1e-3, 2)[1]
    assert left_out == pytest.approx(1e-3 / (3 + float(sizes[0])), rel=1e-5)
    assert _shortened(rows.part(0, 0), torch.ones(0, dtype=F64), 1.0, 1e-3, 2)[1] == 1.0


@pytest.mark.parametrize("ord", [1, 2, math.inf])
def test_what_underflows_is_kept_by_float64(ord: float) -> None:
    """2^40 smallest numbers, as long as d of them in this norm: where that is 1/64 of the error allowed, and beyond."""
    rows = Dense(torch.ones(4, 9, dtype=F32))
    lost = 2.0**40 * torch.finfo(F32).tiny * {1: 9.0, 2: 3.0, math.inf: 1.0}[ord]
    ones = torch.ones(4)
    assert _shortened(rows, ones, 1e-20, 64 * lost * 1.01, ord)[1] == pytest.approx(64 * lost * 1.01 / 4e-20, rel=1e-5)
    assert _shortened(rows, ones, 64 * lost / 8, 64 * lost * 0.99, ord)[1] == 2.0**-30
    assert _shortened(rows, ones, 1e3, 64 * lost * 0.99, ord)[1] == pytest.approx(64 * lost * 0.99 / 4e3, rel=1e-5)


def test_a_record_that_is_no_number_is_left_out_of_a_sum() -> None:
    values = torch.tensor([[1.0, 2.0], [math.inf, 0.0], [0.5, math.nan], [3.0, 4.0]], dtype=F64)
    weights = torch.tensor([0.5, 0.0, 0.0, 0.25], dtype=F64)
    assert weighted_sum(Dense(values), weights, 5.0, rounding.KAPPA).tolist() == [1.25, 2.0]
    both = Stack([("a", Dense(values)), ("b", Dense(values[:, :1]))])
    found = weighted_sum(both, {"a": weights, "b": 2 * weights}, {"a": 5.0, "b": 5.0}, rounding.KAPPA)
    assert found.tolist() == [1.25, 2.0, 2.5]


def test_a_long_sum_is_mapped_row_by_row() -> None:
    """The map of the sum, and where that would lose too much the sum of the maps: the same but for rounding."""
    draws = torch.Generator().manual_seed(1)
    sketch, values = CountSketch(3).draw(6, seed=1), torch.randn(5, 6, generator=draws, dtype=F64)
    weights = torch.rand(5, generator=draws, dtype=F64)
    true = sketch.dense().double() @ (weights @ values)
    for bound in (10.0, 1e-13):
        for ord in (1, 2):
            total = encoded_sum(sketch, Dense(values), weights, bound, 1e-3, ord)
            torch.testing.assert_close(total, true, rtol=1e-9, atol=1e-12)
    with pytest.raises(InvalidInput, match="clip"):
        parts = Stack([("a", Dense(values[:, :2])), ("b", Dense(values[:, 2:]))])
        encoded_sum(sketch, parts, {"a": weights, "b": weights}, {"a": 1e-20, "b": 1e-20}, 1e-3, 2)


@pytest.mark.parametrize("ord", [1, 2])
@pytest.mark.parametrize("length", [1e2, 1e6])
def test_a_sum_is_mapped_whole_while_that_loses_a_quarter_of_the_error(length: float, ord: float) -> None:
    """sqrt(m) gamma_(d + 64) ||Phi|| times its length, in l1 sqrt(m) more; leaves cannot be mapped one by one."""
    sketch, kappa = CountSketch(3).draw(6, seed=1), 1e-3
    values = torch.full((1, 6), length / math.sqrt(6), dtype=F64)
    parts, one = Stack([("a", Dense(values[:, :2])), ("b", Dense(values[:, 2:]))]), torch.ones(1, dtype=F64)
    lost = math.sqrt(3) * 70 * 2.0**-53 * sketch.norm * length * (math.sqrt(3) if ord == 1 else 1.0)
    edge = lost / (kappa / 4 * sketch.gain(ord))

    def found(single: float) -> torch.Tensor:
        return encoded_sum(sketch, parts, {"a": one, "b": one}, {"a": single, "b": 3 * single}, kappa, ord)

    torch.testing.assert_close(found(edge * 1.005), sketch.dense().double() @ values[0], rtol=1e-9, atol=0)
    with pytest.raises(InvalidInput, match="clip all leaves together"):
        found(edge * 0.995)


def test_the_sum_before_a_map_has_half_of_the_error() -> None:
    """600 records that float32 may add up within twice kappa, but not within half of it: they are added in float64."""
    values = torch.rand(600, 6, generator=torch.Generator().manual_seed(0)) * 0.4
    sketch, ones = CountSketch(3).draw(6, seed=1), torch.ones(600)
    assert weighted_sum(Dense(values), ones, 1.0, 2 * rounding.KAPPA).dtype == F32
    total = encoded_sum(sketch, Dense(values), ones, 1.0, rounding.KAPPA, 2)
    torch.testing.assert_close(total, sketch.dense().double() @ values.double().sum(0), rtol=1e-12, atol=1e-12)


def test_maps_of_single_records_leave_a_sum_as_it_is() -> None:
    before = bounded(0.7)
    after = before.settled(CountSketch(3).draw(4, seed=0))
    assert torch.equal(after.value, before.value)
    assert (after.ord, after.bound, after.dtype) == (before.ord, before.bound, before.dtype)
