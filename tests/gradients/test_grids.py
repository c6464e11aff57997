"""Sums in whole numbers: a record is no longer than its bound, and the others do not notice it."""

import pytest
import torch

from isthmus.gradients import Outer, rounding
from isthmus.gradients.computed import as_computed
from isthmus.gradients.rounding import GRID, _integer_sum
from isthmus.privacy import Clip
from isthmus.privacy.clips import weighted_sum

N, P, Q = 900, 37, 21


def rows(n: int = N, ones: bool = True, seed: int = 0) -> Outer:
    draws = torch.Generator().manual_seed(seed)
    a = torch.randn(n, P, generator=draws) * 10.0 ** torch.randint(-4, 4, (n, 1), generator=draws)
    return Outer(a, torch.randn(n, Q, generator=draws), ones)


def summed(outer: Outer, bound: float, rho: float = 50 * 2.0**-24) -> torch.Tensor:
    """The clipped sum on the grid (rho asks for fewer roundings than there are records)."""
    made = Outer(outer.a, outer.b, outer.ones, grid=bound)
    return made.sum_to(Clip(bound).weights(made, bound), rho)


@pytest.mark.parametrize("bound", [1.0, 1e-3, 700.0])
def test_the_sum_is_that_of_the_clipped_rows_up_to_the_grid(bound):
    outer = rows()
    weights = Clip(bound).weights(outer, bound).double()
    wanted = weights @ Outer(outer.a.double(), outer.b.double(), True).dense()
    lost = bound / GRID * (P**0.5 + Q**0.5) * N  # every entry of every factor loses at most one step
    found = summed(outer, bound)
    assert float((found - wanted).norm()) <= lost
    assert float((found - wanted).norm()) <= 0.01 * float(wanted.norm())


def test_no_record_is_longer_than_its_bound():
    outer, bound = rows(64, ones=False), 0.3
    for i in range(outer.n):
        alone = torch.empty(Q, P)
        a, b = outer.a[i : i + 1], outer.b[i : i + 1]
        c = Clip(bound).weights(Outer(a, b), bound)
        _integer_sum(a, b, c, bound, alone)
        size = min(bound, float(Outer(a.double(), b.double()).norms()))
        assert size * 0.9 <= float(alone.double().norm()) <= size * (1 + 1e-6)


def test_no_record_is_longer_where_squares_and_weights_leave_the_normal_numbers():
    """Norms of 4.57e-23 in float32 are 22 % short; a weight times one of them has a few bits left."""
    bound, small = 1e-6, torch.full((1, 64), 4.57e-23)
    for large in torch.linspace(2e37, 8e37, 60)[:, None, None]:
        alone = torch.empty(1, 64)
        _integer_sum(small, large, Clip(bound).weights(Outer(small, large), bound), bound, alone)
        assert 0.98 * bound < float(alone.double().norm()) <= bound * (1 + 1e-6)


def test_one_record_more_moves_nothing_but_its_own_share():
    """Records in whole numbers: the difference of two sums is that record's row, up to the last rounding of the sum."""
    outer, bound = rows(ones=False), 1.0
    whole, less = summed(outer, bound), summed(outer.part(0, N - 1), bound)
    alone = torch.empty(Q, P)
    last = outer.part(N - 1, N)
    _integer_sum(last.a, last.b, Clip(bound).weights(last, bound), bound, alone)
    error = 24 * 2.0**-24 * N * bound
    assert float((whole.double() - less.double() - alone.double().reshape(-1)).norm()) <= error
    assert float((whole.double() - less.double()).norm()) <= bound * (1 + 1e-6) + error


def test_a_record_that_is_not_finite_is_left_out():
    outer = rows(200)
    outer.a[7, 3], outer.b[9, 2] = float("inf"), float("nan")
    made = Outer(outer.a, outer.b, outer.ones, grid=1.0)
    weights = Clip(1.0).weights(made, 1.0)
    assert weights[[7, 9]].tolist() == [0.0, 0.0]
    total = made.masked(weights > 0).sum_to(weights, 50 * 2.0**-24)
    assert bool(total.isfinite().all())
    assert bool(weighted_sum(made, weights, 1.0, 0.01).isfinite().all())


def test_few_records_and_small_matrices_are_added_as_ever(monkeypatch):
    outer = rows(8)
    weights = Clip(1.0).weights(outer, 1.0)
    monkeypatch.setattr(rounding, "_integer_sum", lambda *_: pytest.fail("a product of eight terms is exact enough"))
    torch.testing.assert_close(
        Outer(outer.a, outer.b, outer.ones, grid=1.0).sum_to(weights, 1e-4), outer.sum_to(weights, 1e-4)
    )
    assert as_computed(outer, 1.0) is outer  # not on a GPU
