"""Rows as a device computes them: what is added of a record is no longer than its clip, whatever its factors are."""

import math

import pytest
import torch

from isthmus.gradients import Computed, Dense, Lookup, Outer, Stack, Sum
from isthmus.gradients import computed as module
from isthmus.gradients.computed import as_computed
from isthmus.privacy import Clip
from isthmus.privacy.clips import weighted_sum

N, T, P, Q = 6, 40, 33, 21


def factors(kind: str, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """Factors that are hard to multiply."""
    draws = torch.Generator().manual_seed(3)
    a, b = (torch.randn(N, T, size, generator=draws, dtype=torch.float64) for size in (P, Q))
    if kind == "cancelling":  # terms come in pairs that all but cancel
        a[:, 1::2] = a[:, ::2]
        b[:, 1::2] = -b[:, ::2] * (1 + 1e-6 * torch.randn(N, T // 2, 1, generator=draws).double())
    elif kind == "huge and tiny":
        a *= 10.0 ** torch.randint(-12, 12, (N, T, 1), generator=draws)
        b *= 10.0 ** torch.randint(-6, 6, (N, T, 1), generator=draws)
    elif kind == "aligned":
        a, b = a[:, :1].expand(-1, T, -1).clone(), b[:, :1].expand(-1, T, -1).clone()
    elif kind == "one entry":
        a, b = torch.zeros_like(a), torch.zeros_like(b)
        a[:, 3, 5], b[:, 3, 7] = 1e4, 1.0
    return a.to(dtype), b.to(dtype)


KINDS = ["plain", "cancelling", "huge and tiny", "aligned", "one entry"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bound", [1.0, 1e-6])
def test_what_is_added_of_a_record_is_within_its_bound(kind, dtype, bound):
    """The sum of one record alone, as it is computed, measured in float64."""
    a, b = factors(kind, dtype)
    rows = as_computed(Outer(a, b, ones=True))
    weights = Clip(bound).weights(rows, bound)
    for i in range(N):
        alone = torch.zeros(N)
        alone[i] = weights[i]
        share = rows.sum_to(alone, 2.0**-40).double()
        assert float(share.norm()) <= bound * (1 + 1e-12)
        if float(rows.norms()[i]) > bound:
            assert float(share.norm()) >= bound * (1 - 1e-3)


def test_norms_are_not_those_of_the_exact_sum_but_of_the_computed_one():
    """Pairs of equal terms cancel to rounding: the exact sum is nothing, and what is computed is what is measured."""
    a, b = torch.full((1, 3, 4), 1 / 3), torch.tensor([[[1.0], [1e8], [-1e8]]])
    rows = Computed([Outer(a, b)])
    stated, own = float(rows.norms()), float(rows.dense().double().norm())
    assert own <= stated <= own * (1 + 1e-5) + 1e-15


@pytest.mark.parametrize("kind", KINDS)
def test_slabs_change_neither_norms_nor_sums(kind, monkeypatch):
    a, b = factors(kind)
    whole = Computed([Outer(a, b, ones=True)])
    norms, total = whole.norms(), whole.sum_to(torch.ones(N), 2.0**-30)
    monkeypatch.setitem(module.SLAB_BYTES, "cpu", 4 * N * P * 2)
    cut = Computed([Outer(a, b, ones=True)])
    assert len(list(cut.slabs())) > 5
    size = float(Computed([Outer(a.abs(), b.abs(), ones=True)]).norms().max())
    # what cancels leaves the rounding of its terms, which differs with the order that a processor adds them in
    torch.testing.assert_close(cut.norms(), norms, rtol=1e-5, atol=1e-6 * size if kind == "cancelling" else 0)
    torch.testing.assert_close(cut.sum_to(torch.ones(N), 2.0**-30), total, rtol=1e-5, atol=1e-6 * size)


def test_products_that_are_smaller_than_their_factors_are_made_at_once():
    a, b = factors("plain")
    assert isinstance(as_computed(Outer(a, b)), Dense)
    assert isinstance(as_computed(Outer(a[:, :8], b[:, :8])), Computed)
    torch.testing.assert_close(as_computed(Outer(a, b)).dense(), Outer(a, b).dense())


def test_a_record_that_is_not_finite_is_left_out_of_both_passes():
    a, b = factors("plain")
    a[2, 5, 1], b[4, 7, 2] = math.inf, math.nan
    rows = Computed([Outer(a[:, :9], b[:, :9], ones=True)])
    weights = Clip(1.0).weights(rows, 1.0)
    assert weights[[2, 4]].tolist() == [0.0, 0.0] and bool((weights[[0, 1, 3, 5]] > 0).all())
    total = weighted_sum(rows, weights, 1.0, 0.01)
    entries = [0, 1, 3, 5]
    wanted = weighted_sum(Computed([Outer(a[entries, :9], b[entries, :9], ones=True)]), weights[entries], 1.0, 0.01)
    torch.testing.assert_close(total, wanted)


@pytest.mark.parametrize("left_out", [False, True])
def test_a_second_pass_that_differs_spoils_the_whole_sum(left_out):
    a, b = factors("plain")
    if left_out:
        b[3] = math.nan
    rows = Computed([Outer(a[:, :20], b[:, :20])])
    rows.watched = True
    weights = Clip(1.0).weights(rows, 1.0)
    assert bool(weighted_sum(rows, weights, 1.0, 0.01).isfinite().all())
    rows.pieces[0].a[0, 0, 0] += 1  # as a device that computes otherwise would
    assert bool(weighted_sum(rows, weights, 1.0, 0.01).isnan().any())


def test_an_output_layer_tied_to_an_embedding_is_one_matrix():
    draws = torch.Generator().manual_seed(1)
    index = torch.randint(0, Q, (N, T), generator=draws)
    values = torch.randn(N, T, P, generator=draws)
    a, b = factors("plain")
    rows = Sum([Outer(a[:, :5], b[:, :5]), Lookup(index, values, Q)])
    computed = Computed([*rows.pieces])
    torch.testing.assert_close(computed.dense(), rows.dense(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(computed.norms(), rows.norms(), rtol=1e-4, atol=1e-5)


def test_equal_places_are_added_once_and_values_that_cancel_leave_nothing():
    index = torch.tensor([[7, 4, 7, 7], [1, 1, 2, 2]])
    values = torch.tensor([[[1.0], [2.0], [3e8], [-3e8]], [[5.0], [-5.0], [1.0], [1.0]]])
    rows = Lookup(index, values, vocabulary=9).distinct
    assert rows.mass() is None
    torch.testing.assert_close(rows.dense(), Lookup(index, values.double(), vocabulary=9).dense().float())
    torch.testing.assert_close(rows.norms(), torch.tensor([5**0.5, 2.0]))


def test_a_stack_takes_a_factor_without_touching_its_leaves():
    a, b = factors("plain")
    one = Computed([Outer(a[:, :8], b[:, :8], ones=True)])
    rows, factor = Stack([("one", one), ("two", Dense(a[:, 0])), ("three", Dense(b[:, 0]))]), 7.0
    scaled = rows.scaled(factor)
    assert scaled.items is not rows.items and scaled.items == rows.items
    torch.testing.assert_close(scaled.norms(), factor * rows.norms())
    torch.testing.assert_close(scaled.sum_to(torch.ones(N), 1e-4), factor * rows.sum_to(torch.ones(N), 1e-4))
    torch.testing.assert_close(scaled.dense(), factor * rows.dense())
    for (_, mine), (_, theirs) in zip(scaled.leaves(), rows.leaves(), strict=True):
        torch.testing.assert_close(mine.norms(), factor * theirs.norms())


def last_bit_cases(transposed: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Biases whose terms cancel to nothing in one order of additions, and to 8 or 64 in another."""
    n, t, q, draws = 64, 8, 65, torch.Generator().manual_seed(0)
    half = 1e8 * torch.randn(n, t // 2, generator=draws)
    b = torch.zeros(n, t, q)
    b[:, :, -1] = torch.cat([half, -half], 1)[:, torch.randperm(t, generator=draws)]
    a = torch.zeros(n, t, 64)
    return a, b.transpose(0, 1).contiguous().transpose(0, 1) if transposed else b


@pytest.mark.parametrize("transposed", [False, True])
def test_records_are_measured_among_those_they_are_added_with(transposed):
    """A part of the batch may be added in another order: its norms are not those of what is added."""
    a, b = last_bit_cases(transposed)
    rows = Computed([Outer(a, b, ones=True)])
    weights = Clip(1.0).weights(rows, 1.0)
    for i in range(rows.n):
        alone = torch.zeros(rows.n)
        alone[i] = weights[i]
        assert float(rows.sum_to(alone, 2.0**-40).double().norm()) <= 1


@pytest.mark.parametrize("transposed", [False, True])
def test_a_record_that_is_not_finite_changes_nothing_of_the_others(transposed):
    """Who stays is added by the products that were measured, and not by others of the same factors."""
    a, b = last_bit_cases(transposed)
    b[0] = math.nan
    rows = Stack([("w", Computed([Outer(a, b, ones=True)]))])
    weights = Clip(1.0).weights(rows, 1.0)
    shares = []
    for i in range(1, rows.n):
        alone = torch.zeros(rows.n)
        alone[i] = weights[i]
        shares.append(weighted_sum(rows, alone, 1.0, 0.01).double())
        assert float(shares[-1].norm()) <= 1
    total = weighted_sum(rows, weights, 1.0, 0.01).double()
    torch.testing.assert_close(total, torch.stack(shares).sum(0), rtol=0, atol=0.005)


@pytest.mark.parametrize("bound", [2.5e-7, 6.7e-7, 1.1e-6])
def test_weights_that_a_factor_takes_below_the_normal_numbers_are_none(bound):
    """A weight of 1.5 times the smallest number would be rounded to twice it."""
    rows = Stack([("a", Dense(torch.tensor([[3e38, 0.0]]))), ("b", Dense(torch.zeros(1, 3)))]).scaled(2.0**-24)
    share = weighted_sum(rows, Clip(bound).weights(rows, bound), bound, 0.01)
    assert float(share.double().norm()) <= bound


@pytest.mark.parametrize("ones", [False, True])
def test_rows_of_no_terms_are_zero(ones):
    rows = Outer(torch.zeros(2, 0, 3), torch.zeros(2, 0, 4), ones)
    assert rows.norms().tolist() == [0.0, 0.0]
    weights = Clip(1.0).weights(as_computed(rows), 1.0)
    assert not weighted_sum(as_computed(rows), weights, 1.0, 0.01).any()
