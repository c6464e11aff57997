"""`ClippedSum` sums: what they may lose, how they are shortened before they are sent, and what is never added."""

from __future__ import annotations

import math

import pytest
import torch

from isthmus.base.validate import InvalidInput
from isthmus.gradients import Dense, Outer, Stack, rounding
from isthmus.gradients.rounding import RATIO
from isthmus.privacy.clips import ClippedSum, Rounding, _shortened, encoded_sum, part_of_error, weighted_sum
from isthmus.sketches import CountSketch

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


@pytest.mark.parametrize(
    "kept",
    [
        lambda: bounded(9.0, bound=math.inf),
        lambda: bounded(9.0, ord=1),
        lambda: bounded(9.0, dtype=None),
        lambda: bounded(9.0, dtype=F64),
    ],
)
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
