"""The margin of a record is its own: other records do not change its last digit."""

from typing import Any

import pytest
import scipy.sparse as sp
import torch

from isthmus.base.matrix import margins
from isthmus.base.streamed import DerivedRows
from isthmus.objectives import Hinge, Huber, LeastSquares, Logistic, Poisson, SmoothHinge, Softmax
from isthmus.problems.scaling import RowMap, Scaled


@pytest.mark.parametrize("kind", ["float32", "float64", "csr", "mapped", "streamed", "far"])
@pytest.mark.parametrize("columns", [0, 1, 2, 3, 5, 7, 12, 33])
def test_margins_do_not_depend_on_the_other_rows(kind: str, columns: int) -> None:
    """Products of matrices round a row by its place among the others, and one row alone by another rule again.

    Without columns w is a vector.
    """
    g = torch.Generator().manual_seed(columns)
    for n in (2, 3, 4, 5, 8, 9, 17, 65):
        d = int(torch.randint(1, 300, (1,), generator=g))
        dtype = torch.float32 if kind == "float32" else torch.float64
        X = torch.randn(n, d, dtype=dtype, generator=g)
        w = torch.randn(d, *[columns][:columns], dtype=dtype, generator=g)
        view: Any = {
            "csr": lambda x: sp.csr_array(x.numpy()),
            "mapped": RowMap(shift=torch.ones(d), limit=9.0),
            "streamed": lambda x: DerivedRows(Scaled.of(x), lambda part, _: part.dense(), x.shape[1], torch.float64),
            "far": RowMap(shift=torch.full((d,), 1e6), limit=9.0),
        }.get(kind, lambda x: x)
        whole = margins(view(X), w)
        for at in range(0, n, max(1, n // 4)):
            keep = torch.arange(n) != at
            assert torch.equal(whole[keep], margins(view(X[keep]), w))
            assert torch.equal(whole[at : at + 1], margins(view(X[at : at + 1]), w))


def test_records_on_the_kink_of_a_hinge_stay_where_they_are() -> None:
    """Margins that are 1 by cancellation: in another order of additions they would be below it or not."""
    g, flips = torch.Generator().manual_seed(1), 0
    for n in range(17, 80):
        big = torch.randn(1, 31, generator=g) * 1e4
        x = torch.cat([big, -big, torch.ones(1, 1)], 1)[:, torch.randperm(63, generator=g)].expand(n, -1).contiguous()
        objective, w = Hinge(x, torch.ones(n), classes=(-1, 1)), torch.ones(63)
        before, after = objective.rows(w).b, objective.on((x[1:], torch.ones(n - 1))).rows(w).b
        flips += int((before[1:] != after).sum())
    assert flips == 0


LOSSES = [Logistic, Hinge, SmoothHinge, LeastSquares, Huber, Poisson, Softmax]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_slopes_do_not_depend_on_the_other_rows(loss: Any, dtype: torch.dtype) -> None:
    """A vectorised function may take the last entries of a vector, or of a thread's share, one by one."""
    g = torch.Generator().manual_seed(2)
    columns = (3,) if loss is Softmax else ()
    for n in (5, 17, 33, 100, 1001, 40_001, 100_003):
        z, y = 5 * torch.randn(n, *columns, dtype=dtype, generator=g), torch.randint(0, 2, (n,), generator=g)
        y = y if loss is Softmax else (2 * y - 1 if loss in (Logistic, Hinge, SmoothHinge) else y).to(dtype)
        options = {"classes": [0, 1, 2]} if loss is Softmax else {}
        objective = loss(torch.zeros(2, 1), [0, 1], **options)
        whole = objective.slopes(z, y)
        for k in (1, 2, 3, 7):
            assert torch.equal(whole[k:], objective.slopes(z[k:].clone(), y[k:].clone())), (n, k)


def test_a_logistic_slope_is_exact_for_every_margin() -> None:
    z = torch.tensor([-1e308, -800.0, -40.0, -1.0, 0.0, 1.0, 40.0, 700.0, 800.0, 1e308], dtype=torch.float64)
    slopes = Logistic(torch.zeros(2, 1), [0, 1]).slopes(z, torch.ones_like(z))
    assert torch.allclose(slopes, -torch.special.expit(-z), rtol=1e-14, atol=0.0)
