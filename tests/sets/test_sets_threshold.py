"""The linear-time l1 and simplex projections against the sort method, on hard inputs and from any warm start."""

import math

import numpy as np
import pytest
import torch
from grids import pairs

from isthmus.sets import L1Ball, Simplex

DENORMAL = 5e-324


def sort_simplex(u, radius):
    """max(u - tau, 0) with tau from the sorted entries, in extended precision."""
    w = np.sort(u.astype(np.longdouble))[::-1]
    excess = np.cumsum(w) - radius
    last = np.nonzero(w * np.arange(1, len(w) + 1) > excess)[0][-1]
    return np.maximum(u - excess[last] / (last + 1), 0).astype(float)


def sort_l1(x, radius):
    if np.abs(x).astype(np.longdouble).sum() <= radius:
        return x
    return np.sign(x) * sort_simplex(np.abs(x), radius)


def hard_inputs(d):
    rng = np.random.default_rng(0)
    gaussian = rng.standard_normal(d)
    return {
        "gaussian": gaussian,
        "all equal": np.full(d, 0.7),
        "one huge": np.where(np.arange(d) == d // 3, 1e9, gaussian),
        "zeros": np.zeros(d),
        "mostly zeros": np.where(np.arange(d) % 997 == 5, 3.0, 0.0),
        "denormals": np.full(d, 3 * DENORMAL),
        "denormals and ones": np.where(np.arange(d) % 2 == 0, DENORMAL, 1.0),
        "sorted": np.sort(gaussian),
        "reversed": np.sort(gaussian)[::-1].copy(),
        "heavy tails": rng.standard_cauchy(d),
        "geometric": 2.0 ** -(np.arange(d) % 60),
        "two levels": np.where(np.arange(d) % 3 == 0, 1.0, 1.0 - 1e-12),
        "negative": -np.abs(gaussian) - 5,
    }


@pytest.mark.parametrize("name, d, radius", pairs(hard_inputs(1), [1, 2, 1000, 50_000], [1e-6, 1.0, 50.0, "norm"]))
def test_agrees_with_sorting(name, d, radius):
    x = hard_inputs(d)[name]
    total = float(np.abs(x).sum())
    if radius == "norm":
        radius = total * (1 - 1e-12)
    if radius <= 1e-300:
        radius = 1.0
    # the sorted reference rounds tau at the size of the largest entry
    slack = 1e-12 * max(1.0, float(np.abs(x).max()) * 1e-3)
    for ball, reference in ((L1Ball(radius), sort_l1), (Simplex(radius), sort_simplex)):
        y = ball.project(x)
        np.testing.assert_allclose(y, reference(x, radius), rtol=1e-9, atol=slack)
        assert ball.gauge(y) <= 1 + 8 * np.finfo(float).eps
        y32 = ball.project(x.astype(np.float32))
        assert y32.dtype == np.float32 and ball.gauge(y32) <= 1 + 8 * np.finfo(np.float32).eps


@pytest.mark.parametrize("ball", [L1Ball(1.0), L1Ball(400.0), Simplex(1.0), Simplex(400.0)])
@pytest.mark.parametrize("d", [7, 3000, 60_000])
def test_every_warm_start_gives_the_identical_point(ball, d):
    x = torch.randn(d, dtype=torch.float64, generator=torch.Generator().manual_seed(d))
    cold, tau = ball.project_with_threshold(x)
    absurd = [0.0, -1e300, 1e300, math.inf, -math.inf, math.nan, float(x.abs().max())]
    for warm in [tau, tau * (1 + 1e-9), tau * (1 - 1e-9), tau + 0.1, tau - 0.1, *absurd]:
        assert torch.equal(ball.project(x, warm=warm), cold), warm
        assert torch.equal(ball.project_with_threshold(x, warm=warm)[0], cold), warm


@pytest.mark.parametrize("warm", [None, 0.0, 1.0, 1e9, -5.0])
def test_ties_at_the_threshold_are_not_decided_by_the_start(warm):
    x = torch.tensor([2.0] * 5 + [1.0] * 50, dtype=torch.float64)
    assert torch.equal(L1Ball(5.0).project(x, warm=warm), L1Ball(5.0).project(x))
    assert L1Ball(5.0).project(x, warm=warm).tolist() == [1.0] * 5 + [0.0] * 50


def test_threshold_is_the_soft_threshold():
    x = torch.randn(500, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y, tau = L1Ball(3.0).project_with_threshold(x)
    torch.testing.assert_close(y, x.sign() * (x.abs() - tau).clamp(min=0), rtol=1e-12, atol=1e-14)
    assert L1Ball(1e6).project_with_threshold(x)[1] == 0.0
    z, tau = Simplex(3.0).project_with_threshold(x)
    torch.testing.assert_close(z, (x - tau).clamp(min=0), rtol=1e-12, atol=1e-14)


def test_small_radius_keeps_its_digits_next_to_large_entries():
    y = L1Ball(1e-9).project(torch.tensor([1e8, -1e8, 3.0], dtype=torch.float64))
    assert y.tolist() == pytest.approx([5e-10, -5e-10, 0.0], rel=1e-14)
    y = L1Ball(1.0).project(torch.ones(1_000_000, dtype=torch.float32))
    assert y.unique().tolist() == pytest.approx([1e-6], rel=1e-6)


def test_one_dtype_and_memory_layout_for_another():
    base = torch.randn(2000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    strided = base[::2]
    assert torch.equal(L1Ball().project(strided), L1Ball().project(strided.contiguous()))
    assert L1Ball().project(base.bfloat16()).dtype == torch.bfloat16
    assert np.array_equal(L1Ball().project(base.numpy()[::-1]), L1Ball().project(base.numpy()[::-1].copy()))
    readonly = base.numpy().copy()
    readonly.flags.writeable = False
    assert np.array_equal(L1Ball().project(readonly), L1Ball().project(base.numpy()))
    assert L1Ball().project(base.clone().requires_grad_()).requires_grad is False
