"""Sums, norms and weights in one kernel each, against obvious ones; skipped where there is no GPU."""

import pytest
import torch
import torch.nn.functional as F

from isthmus.gradients import Dense, Outer, fused, rounding
from isthmus.gradients.fused import _weighted_sum_of, can_sum

pytestmark = pytest.mark.skipif(
    not can_sum(torch.device("cuda", 0), torch.float32) or not torch.cuda.is_available(), reason="no GPU here"
)


@pytest.mark.parametrize("factor", [1.0, 3.0, 2.0**-20])
@pytest.mark.parametrize(
    "n, q, p, wide", [(1, 1, 1, 0), (5, 3, 7, 1), (16, 33, 129, 1), (64, 100, 768, 0), (300, 2, 5, 3), (16, 70, 1, 9)]
)
def test_the_kernel_adds_what_a_sum_adds(n: int, q: int, p: int, wide: int, factor: float) -> None:
    torch.manual_seed(n)
    g, c = torch.randn(n, q, p, device="cuda"), torch.rand(n, device="cuda")
    c[::3] = 0.0
    g[::3] = torch.nan
    whole = torch.full((q, p + wide), 7.0, device="cuda")
    _weighted_sum_of(g, c, whole[:, :p], factor)
    wanted = factor * torch.einsum("n,nqp->qp", c.double(), g.double().nan_to_num(0.0))
    size = factor * torch.einsum("n,nqp->qp", c.double(), g.double().nan_to_num(0.0).abs())
    assert bool(((whole[:, :p].double() - wanted).abs() <= 2.0**-23 * (n + 3) * size).all())
    assert bool((whole[:, p:] == 7.0).all())


@pytest.mark.parametrize("n, q, p", [(1, 1, 1), (3, 5, 7), (16, 40, 129), (4, 3000, 768)])
def test_sums_of_squares_are_never_too_small(n: int, q: int, p: int) -> None:
    torch.manual_seed(p)
    g = torch.randn(n, q, p, device="cuda")
    scale = 1 + 2 * rounding.gamma(fused.SQUARES + 8, torch.float32)
    found = fused.square_sums(g).sum(1, dtype=torch.float64).sqrt() * scale
    true = torch.linalg.vector_norm(g.flatten(1), dim=1, dtype=torch.float64)
    assert bool((found >= true).all()) and bool((found <= true * (1 + 1e-3)).all())
    g[0, 0, 0] = torch.nan
    assert bool(fused.square_sums(g)[0].sum().isnan())


@pytest.mark.parametrize("n, width", [(1, 1), (3, 5), (70, 4097), (5, 20_000)])
def test_rows_of_any_size_are_measured_in_float64(n: int, width: int) -> None:
    torch.manual_seed(width)
    sizes = 10.0 ** torch.linspace(-40, 36, n, device="cuda", dtype=torch.float64)
    x = (sizes[:, None] * torch.randn(n, width, device="cuda", dtype=torch.float64)).float()
    found, true = rounding.upper_norms(x), torch.linalg.vector_norm(x.double(), dim=1)
    torch.testing.assert_close(found, true, rtol=1e-11, atol=0.0)
    assert bool((found >= true).all())


def test_there_may_be_more_records_than_a_grid_has_columns() -> None:
    g = torch.ones(70_000, 1, 3, device="cuda")
    assert bool((fused.square_sums(g) == 3.0).all())
    sums = fused.norm_sums(g, g, 1e-5)
    assert sums is not None and bool((sums[:, 1::2] == 1.0).all())


def test_a_few_rows_are_added_without_those_of_weight_zero() -> None:
    values, c = torch.randn(5, 100, device="cuda"), torch.tensor([0.5, 0.0, 1.0, 0.0, 0.25], device="cuda")
    values[1] = torch.nan
    for rho in (1e-3, 1e-9):  # in float32, and in float64 where float32 cannot hold the sum
        found = Dense(values).sum_to(c, rho)
        torch.testing.assert_close(found.double(), c.double() @ values.double().nan_to_num(0.0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n, t, width", [(1, 1, 3), (3, 5, 24), (4, 40, 768), (2, 33, 5000)])
def test_norm_layers_are_summed_as_torch_normalises(n: int, t: int, width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(width)
    x, b = (3 * torch.randn(n, t, width, device="cuda") + 1).to(dtype), torch.randn(n, t, width, device="cuda")
    sums = fused.norm_sums(x, b, 1e-5)
    assert sums is not None
    scale = (b * F.layer_norm(x.float(), (width,), None, None, 1e-5)).sum(1)
    torch.testing.assert_close(sums, torch.stack([scale, b.sum(1)], 2).flatten(1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("n, p, q", [(45, 70, 130), (300, 33, 31), (128, 64, 9000)])
def test_sums_in_whole_numbers_are_those_of_the_host(n: int, p: int, q: int) -> None:
    torch.manual_seed(n)
    a, b, c = torch.randn(n, p), torch.randn(n, q), torch.rand(n)
    a[3] = 0.0
    bound, sums = float((c * a.norm(dim=1) * b.norm(dim=1)).max()), []
    for device in ("cpu", "cuda"):
        out = torch.full((q, p + 1), 7.0, device=device)
        rounding._integer_sum(a.to(device), b.to(device), c.to(device), bound, out[:, :p])
        assert bool((out[:, p] == 7.0).all())
        sums.append(out[:, :p].cpu())
    torch.testing.assert_close(sums[1], sums[0], rtol=1e-4, atol=1e-3 * float(sums[0].abs().max()))


@pytest.mark.parametrize("rho", [50 * 2.0**-24, 1e-3])
def test_what_a_record_of_weight_zero_holds_is_nothing_to_a_sum_in_whole_numbers(rho: float) -> None:
    """In integers where there are many records, as products where they are few: the same bits in every case."""
    torch.manual_seed(0)
    a, b, c = torch.randn(300, 37, device="cuda"), torch.randn(300, 21, device="cuda"), torch.rand(300, device="cuda")
    c[::4] = 0.0
    sums = []
    for inputs, outputs in ((0.0, 0.0), (torch.nan, 1.0), (1.0, torch.nan), (torch.inf, 0.0), (3e38, -torch.inf)):
        a[::4], b[::4] = inputs, outputs
        rows = Outer(a.clone(), b.clone(), ones=True, grid=1e3)
        assert rows.skips
        sums.append(rows.sum_to(c, rho))
    assert bool(sums[0].isfinite().all()) and all(torch.equal(found, sums[0]) for found in sums)
