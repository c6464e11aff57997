"""What a row becomes depends on no other row, to the last digit: a digit may decide on a bin, or on a label.

Products of matrices round a row by its place in a block and by the number of rows.  A record that lies on the border of
two bins would change its bin when another record comes, and many of them would move a histogram by far more than one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from isthmus import Logistic, PrivateClassifier
from isthmus.algorithms.purchases import Shapes
from isthmus.problems.features import grid
from isthmus.problems.scaling import RowMap, RowMaps, Scaled

SIZES = (2, 3, 4, 5, 8, 9, 17, 33)


def neighbours(n: int) -> Iterator[Tensor]:
    """Which rows stay where one of n goes."""
    for at in {0, n // 2, n - 1}:
        yield torch.arange(n) != at


def maps(d: int, twice: bool, g: torch.Generator) -> RowMaps:
    first = RowMap(
        shift=torch.randn(d, generator=g).double(), weight=torch.rand(d, generator=g).double() + 0.1, bias=1.0
    )
    second = RowMap(shift=torch.randn(d + 1, generator=g).double(), limit=1.5)
    return RowMaps([first, second] if twice else [first])


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("d", [1, 3, 16, 17, 64, 257])
def test_mapped_rows_do_not_depend_on_the_other_rows(d: int, twice: bool) -> None:
    g = torch.Generator().manual_seed(d)
    seen = maps(d, twice, g)
    for n in SIZES:
        X = torch.randn(n, d, dtype=torch.float64, generator=g)
        whole = seen(X)
        for keep in neighbours(n):
            view = seen(X[keep])
            assert torch.equal(view.dense(), whole.dense()[keep]) and torch.equal(view.upper, whole.upper[keep])
            assert torch.equal(chunked(view), chunked(whole)[keep])


def chunked(view: Scaled) -> Tensor:
    return torch.cat([rows.clone() for _, _, rows in view.chunks()])


def on_borders(d: int, seen: RowMap, g: torch.Generator) -> Tensor:
    """A row whose entries lie on borders of the bins that histograms have, but for their last digits."""
    assert seen.shift is not None and seen.weight is not None and seen.limit is not None
    edges = grid(2)[4:-4]
    at = edges[torch.randint(len(edges), (d,), generator=g)]
    view = seen(torch.zeros(1, d, dtype=torch.float64))
    whole = float(torch.hypot(torch.tensor(seen.limit), torch.tensor(seen.bias)))
    return at * view.reach * whole / seen.weight + seen.shift


@pytest.mark.parametrize("d", [16, 31, 64])
def test_a_record_on_the_border_of_two_bins_stays_where_it_is(d: int) -> None:
    """All records alike: where one more changed the bin of one, it would change those of many."""
    g = torch.Generator().manual_seed(d)
    low, high = torch.full((d,), -2.0).double(), torch.full((d,), 3.0).double()
    seen = RowMap(low, high, torch.rand(d, generator=g).double(), torch.rand(d, generator=g).double() + 0.5, 100.0, 1.0)
    item = Shapes(d, level=2)
    for n in SIZES:
        for _ in range(10):
            X = on_borders(d, seen, g).expand(n, d).contiguous()
            whole = item.rows(Logistic(seen(X), torch.ones(n), classes=(-1, 1)))
            less = item.rows(Logistic(seen(X[1:]), torch.ones(n - 1), classes=(-1, 1)))
            assert torch.equal(whole.bins(0, n)[1:], less.bins(0, n - 1))


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("features", ["linear", "smooth"])
def test_what_a_model_says_of_a_row_does_not_depend_on_the_other_rows(classes: int, features: str) -> None:
    rng = np.random.default_rng(classes)
    X = rng.uniform(-1, 1, (600, 33))
    y = np.arange(600) % classes
    options = {"epsilon": 50.0, "bounds": (-1, 1), "algorithm": "dp_gd", "max_iter": 2, "features": features}
    model = PrivateClassifier(classes=list(range(classes)), **options).fit(X, y)
    for n in SIZES:
        rows = rng.uniform(-1, 1, (n, 33))
        whole = model.predict_proba(rows), model.decision_function(rows)
        for keep in neighbours(n):
            less = model.predict_proba(rows[keep.numpy()]), model.decision_function(rows[keep.numpy()])
            assert all(np.array_equal(a[keep.numpy()], b) for a, b in zip(whole, less, strict=True))
