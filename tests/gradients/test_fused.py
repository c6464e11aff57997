"""The sum of matrices in one kernel against an obvious one; skipped where there is no GPU."""

from __future__ import annotations

import pytest
import torch

from isthmus.gradients.fused import can_sum, weighted_sum_of

pytestmark = pytest.mark.skipif(
    not can_sum(torch.device("cuda", 0), torch.float32) or not torch.cuda.is_available(), reason="no GPU here"
)


@pytest.mark.parametrize(
    "n, q, p, wide", [(1, 1, 1, 0), (5, 3, 7, 1), (16, 33, 129, 1), (64, 100, 768, 0), (300, 2, 5, 3)]
)
def test_the_kernel_adds_what_a_sum_adds(n: int, q: int, p: int, wide: int) -> None:
    torch.manual_seed(n)
    g, c = torch.randn(n, q, p, device="cuda"), torch.rand(n, device="cuda")
    c[::3] = 0.0
    g[::3] = torch.nan
    whole = torch.full((q, p + wide), 7.0, device="cuda")
    weighted_sum_of(g, c, whole[:, :p])
    wanted = torch.einsum("n,nqp->qp", c.double(), g.double().nan_to_num(0.0))
    size = torch.einsum("n,nqp->qp", c.double(), g.double().nan_to_num(0.0).abs())
    assert bool(((whole[:, :p].double() - wanted).abs() <= 2.0**-23 * (n + 2) * size).all())
    assert bool((whole[:, p:] == 7.0).all())
