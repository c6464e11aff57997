"""Records whose gradients overflow, through `minimize`: exactly nothing of them, and nobody else's share moves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from isthmus import LeastSquares, Logistic, minimize
from isthmus.algorithms import dp_gd

N = 40
LARGE = {torch.float32: 3e38, torch.float64: 1.5e308}


def fitted(objective: Any, X: Tensor, y: Tensor, physical: int | None) -> Tensor:
    recipe = dp_gd(epsilon=1.0, delta=1e-5, clip=1.0, step=0.1, n="exact")
    problem = objective(X, y, classes=(-1, 1)) if objective is Logistic else objective(X, y)
    options: dict[str, Any] = {"steps": 2, "record": None, "progress": False, "noise_seed": 1}
    return minimize(problem, recipe, physical_batch_size=physical, **options).x


@pytest.mark.parametrize("at", [0, N - 1])
@pytest.mark.parametrize("physical", [None, 7])
@pytest.mark.parametrize("dtype", list(LARGE))
@pytest.mark.parametrize("objective", [LeastSquares, Logistic])
def test_a_record_that_overflows_is_left_out(objective: Any, dtype: torch.dtype, physical: int | None, at: int) -> None:
    g = torch.Generator().manual_seed(0)
    X = torch.randn(N, 30, generator=g).to(dtype)
    y = X.sum(1) if objective is LeastSquares else torch.sign(X.sum(1))
    X[at], nobody = LARGE[dtype], X.clone()
    nobody[at] = 0.0
    if objective is LeastSquares:
        y[at] = LARGE[dtype]
    point = fitted(objective, X, y, physical)
    assert bool(torch.isfinite(point).all())
    assert torch.equal(point, fitted(objective, nobody, y, physical))
