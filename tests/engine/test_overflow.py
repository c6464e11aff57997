"""Records that are not finite, or overflow: exactly 0 everywhere, and nobody else's share moves."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine_cases import C, private, sums
from grids import pairs
from test_sketches import public
from torch import Tensor, nn

from isthmus import GradientEmbedding, Kronecker, PublicSubspace

N, GROUPS = 32, 7
RECORDS = {"nan": math.nan, "inf": math.inf, "3e38": 3e38, "1e38": 1e38, "1e20": 1e20}
WAYS: dict[str, dict[str, Any]] = {
    "micro": {"micro_batch_size": 4},
    "micro-kronecker": {"micro_batch_size": 4, "sketch": Kronecker(4, 2)},
    "micro-embedding": {"micro_batch_size": 4, "sketch": GradientEmbedding(PublicSubspace(3, refresh=1), 0.1)},
    "plain": {},
    "kronecker": {"sketch": Kronecker(4, 2)},
    "per-layer": {"clipping": "per_layer"},
    "adaptive": {"clipping": "adaptive"},
}
DTYPES = [torch.float32, torch.float64, torch.bfloat16]
CASES = [(way, kind) for way in WAYS for kind in ("dense", "tied", "conv") if kind == "dense" or "embedding" not in way]


def net(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == "dense":
        return nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))
    if kind == "tied":
        table = nn.Embedding(9, 4)
        head = nn.Linear(4, 9, bias=False)
        head.weight = table.weight
        return nn.Sequential(Scaled(table), head)
    return nn.Sequential(nn.Conv1d(2, 4, 2, groups=2), nn.Flatten(), nn.Linear(8, 3))


class Scaled(nn.Module):
    """Words with a loudness: the first column is the factor of a record's embeddings."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.table = table

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x[:, 1:].long()).mean(1) * x[:, :1]


def records(kind: str, dtype: torch.dtype, value: float, at: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(3)
    if kind == "tied":
        x = torch.randint(0, 9, (N, 4), generator=g).to(dtype)
        x[:, 0], y = 1.0, torch.randint(0, 9, (N,), generator=g)
    else:
        shape = (N, 6) if kind == "dense" else (N, 2, 3)
        x, y = torch.randn(shape, generator=g).to(dtype), torch.randint(0, 3, (N,), generator=g)
    if dtype == torch.float64 and math.isfinite(value):
        value *= 1e260 if value > 1e30 else 1.0
    x[(at, 0) if kind == "tied" else (at,)] = value
    return x, y


@pytest.mark.parametrize("case, dtype, record, at", pairs(CASES, DTYPES, RECORDS, [0, N - 1]))
def test_a_record_that_overflows_moves_no_more_than_its_bound(
    case: tuple[str, str], dtype: torch.dtype, record: str, at: int
) -> None:
    way, kind = case
    options = dict(WAYS[way])
    if "embedding" in way:
        x, y = public("mlp")
        options["public"] = x.to(dtype), y
    reduction = "sum" if dtype == torch.bfloat16 else "mean"
    x, y = records(kind, dtype, RECORDS[record], at)
    dataset = torch.utils.data.TensorDataset(x, y)
    run = private(net(kind).to(dtype), dataset, batch=N, loss_reduction=reduction, **options)
    groups = torch.arange(N).sqrt().long() * 2 % GROUPS if "micro" in way else None  # some larger than others
    left = torch.arange(N) != at
    loss = lambda x, y: F.cross_entropy(run.module(x), y, reduction=reduction)  # noqa: E731
    whole = sums(run.engine, lambda: loss(x, y), N, groups)
    less = None if groups is None else groups[left]
    without = sums(run.engine, lambda: loss(x[left], y[left]), N - 1, less)
    for release, bounded in whole.items():
        assert bool(torch.isfinite(bounded.value).all())
        moved = float((bounded.value - without[release].value).double().norm())
        rounding = 1e-4 if dtype != torch.float64 else 1e-9  # of the sums, which others answer for
        assert moved <= bounded.bound * (1 + rounding) + rounding * C
        if release != "below" and "micro" not in way and record in ("nan", "inf"):
            assert moved <= 1e-5 * C  # exactly nothing, but for the size of the batch in a mean
