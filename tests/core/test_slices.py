"""Large data are looked at slice by slice: the same sums, norms that are kept, and no slice touches another."""

from typing import Any

import numpy as np
import pytest
import torch

from isthmus import LeastSquares, Logistic, Softmax, minimize
from isthmus.algorithms import dp_gd, dp_sgd, gd
from isthmus.base import matrix
from isthmus.base.parallel import in_order
from isthmus.problems.scaling import RowMap

N, D = 500, 7


def data(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, np.ndarray]:
    g = torch.Generator().manual_seed(0)
    X = torch.randn(N, D, dtype=dtype, generator=g)
    return X, (X[:, 0].numpy() > 0).astype(int)


def cut(monkeypatch: pytest.MonkeyPatch, rows: int = 60) -> None:
    monkeypatch.setattr(matrix, "CHUNK_BYTES", 1)
    monkeypatch.setattr(matrix, "SLICE_BYTES", 8 * D * rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["dp_gd", "bought", "dp_sgd", "gd", "softmax", "mapped"])
def test_slices_add_up_to_the_whole(kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = data(dtype)
    private: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "clip": 0.7, "n": "exact"}
    recipe = {
        "bought": dp_gd(**private, scale="moments", step="auto"),
        "dp_sgd": dp_sgd(**private, step=0.5, batch_size=200),
        "gd": gd(step=0.5),
    }.get(kind, dp_gd(**private, step=0.5))
    rows: Any = RowMap(shift=torch.full((D,), 0.3).double(), limit=2.0, bias=1.0)(X) if kind == "mapped" else X
    make = (lambda: Softmax(rows, y, classes=2)) if kind == "softmax" else (lambda: Logistic(rows, y, classes=(0, 1)))
    seed = {} if kind == "gd" else {"noise_seed": 3}
    whole = minimize(make(), recipe, steps=6, **seed)
    cut(monkeypatch)
    assert len(make().spans() or ()) > 5
    parts = minimize(make(), recipe, steps=6, **seed)
    assert float((parts.x - whole.x).norm()) <= (1e-12 if dtype == torch.float64 else 1e-6) * float(whole.x.norm())


def test_norms_are_kept_and_forgotten_when_a_run_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    cut(monkeypatch)
    X, y = data()
    objective = LeastSquares(X, y.astype(float))
    recipe = dp_gd(epsilon=1.0, delta=1e-6, clip=0.7, step=0.5, n="exact")
    minimize(objective, recipe, steps=2, noise_seed=0)
    lengths = objective.lengths
    true = torch.linalg.vector_norm(X, dim=1)
    found = objective.rows(torch.zeros(D).double(), slice(60, 120)).norm_upper()
    assert objective.lengths is lengths
    assert bool((found >= true[60:120] * torch.as_tensor(y[60:120])).all())
    X *= 10.0  # the same memory: a clip that trusted old norms would let records move ten times as much
    minimize(objective, recipe, steps=2, noise_seed=0)
    assert objective.lengths is not lengths
    assert bool((objective.lengths.of(objective.X, 2) >= 10 * true).all())


def test_micro_batches_are_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = data()
    options: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "clip": 0.7, "n": "exact", "step": 0.5}
    recipe = dp_sgd(**options, batch_size=200, micro_batch=4)
    whole = minimize(Logistic(X, y, classes=(0, 1)), recipe, steps=3, noise_seed=3)
    cut(monkeypatch)
    parts = minimize(Logistic(X, y, classes=(0, 1)), recipe, steps=3, noise_seed=3)
    assert torch.equal(parts.x, whole.x)


def test_a_part_is_the_same_problem_of_fewer_records() -> None:
    X, y = data()
    weights = torch.rand(N).double()
    whole, w = Logistic(X, y, classes=(0, 1), weights=weights), torch.randn(D).double()
    for index in (slice(10, 40), torch.arange(10, 40)):
        part = whole.part(index)
        assert part.n == 30
        assert torch.equal(part.rows(w).b, whole.rows(w, index).b)


def test_work_is_answered_in_order_and_errors_come_through() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert list(in_order(lambda x: -x, range(20))) == [-x for x in range(20)]
        with pytest.raises(ZeroDivisionError):
            list(in_order(lambda x: 1 // (x - 7), range(20)))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
