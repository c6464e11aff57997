"""Micro-batches: a record touches its own group and no other, whatever it holds."""

import math
from typing import Any

import pytest
import torch
from reference import wide
from row_cases import DERIVED, DTYPES, EXACT

from isthmus.gradients import Dense, Outer, Stack
from isthmus.gradients.rows import Lookup, Rows, Sum, regrouped

GROUPS = torch.tensor([2, 0, 2, 4, 0, 2, 1])  # group 3 has nobody; group 2 is the largest
N, BAD = len(GROUPS), [math.nan, math.inf, -math.inf, 3e38, -3e38]


def truth_of(rows: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    zeros = torch.zeros(int(groups.max()) + 1, rows.shape[1], dtype=torch.float64)
    for j in set(groups.tolist()):
        zeros[j] = rows[groups == j].mean(0)
    return zeros


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("make", [*EXACT, *DERIVED], ids=lambda make: make.__name__)
def test_every_kind_has_the_means_of_its_groups(make: Any, dtype: torch.dtype) -> None:
    rows, exact = make(N, dtype)
    groups = GROUPS[: rows.n]
    tolerance = 1e-12 if dtype == torch.float64 else 2e-6
    widened = wide(regrouped(rows, groups).dense())
    torch.testing.assert_close(widened, truth_of(exact, groups), rtol=tolerance, atol=10 * tolerance)


def spoiled(make: Any, dtype: torch.dtype, at: int, value: float) -> Rows:
    """The rows of a kind, one of them holding something else."""
    rows = make(N, dtype)[0]

    def change(piece: Any) -> Rows:
        if isinstance(piece, Stack):
            return Stack([(name, change(leaf)) for name, leaf in piece.items])
        if isinstance(piece, Sum):
            return Sum([change(leaf) for leaf in piece.pieces])
        if isinstance(piece, Dense):
            return Dense(changed(piece.values))
        if isinstance(piece, Lookup):
            return Lookup(piece.index, changed(piece.values), piece.q)
        assert isinstance(piece, Outer)
        if isinstance(piece.a, torch.Tensor):
            return Outer(changed(piece.a), changed(piece.b), piece.ones)
        a = piece.a.copy()
        a.data[a.indptr[at] : a.indptr[at + 1]] = value
        return Outer(a, changed(piece.b), piece.ones)

    def changed(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[at] = torch.tensor(value, dtype=torch.float64).to(x.dtype)
        return x

    return change(rows)


KINDS = [make for make in EXACT if make.__name__ != "lazy"]


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("at", [0, 2, N - 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_a_row_that_overflows_counts_as_zero_and_touches_nobody(
    make: Any, dtype: torch.dtype, at: int, value: float
) -> None:
    if dtype == torch.float64 and math.isfinite(value):
        value *= 1e260
    rows, exact = spoiled(make, dtype, at, value), make(N, dtype)[1].clone()
    exact[at] = 0.0
    means, tolerance = regrouped(rows, GROUPS), 1e-12 if dtype == torch.float64 else 2e-6
    widened = wide(means.dense())
    assert bool(torch.isfinite(widened).all())
    torch.testing.assert_close(widened, truth_of(exact, GROUPS), rtol=tolerance, atol=10 * tolerance)
    assert bool(torch.isfinite(means.norms()).all())


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_taken_rows_stay_factored_and_masked_ones_are_zero(make: Any) -> None:
    rows, exact = spoiled(make, torch.float32, 1, math.inf), make(N, torch.float32)[1]
    kept = rows.masked(torch.arange(N) != 1)
    assert bool((kept.dense()[1] == 0).all())
    index, factors = torch.tensor([5, 0, 5]), torch.tensor([2.0, 1.0, -1.0])
    taken = kept.mixed(index[:, None], factors[:, None])
    torch.testing.assert_close(wide(taken.dense()), exact[index] * factors[:, None], rtol=1e-5, atol=1e-5)
    if isinstance(rows, (Lookup, Sum)):
        assert type(taken) is type(rows)
