"""What every bounded convex set promises, over the one list in conftest.py."""

import math

import cvxpy as cp
import numpy as np
import pytest
import torch

from isthmus.sets import OPERATIONS

EPS = {dtype: torch.finfo(dtype).eps for dtype in (torch.float32, torch.float64)}


def certificate(case, x):
    """max_s <x - Px, s - Px>, 0 at the projection, over max(1, ||x||) max(1, ||Px||)."""
    p = case.set.project(x)
    gap = case.set.support(x - p) - float((x - p) @ p)
    return gap / (max(1.0, float(x.norm())) * max(1.0, float(p.norm())))


def members(case, count=60):
    """Points of the set at its boundary and inside: minimisers, projections and their mixtures."""
    generator = torch.Generator().manual_seed(5)
    g = torch.randn(count, case.d, dtype=torch.float64, generator=generator)
    ends = [case.set.lmo(row) for row in g[::2]] + [case.set.project(2 * row) for row in g[1::2]]
    stack = torch.stack(ends)
    mix = torch.rand(count, len(stack), dtype=torch.float64, generator=generator) ** 8
    return torch.cat([stack, (mix / mix.sum(1, keepdim=True)) @ stack])


def solve_with_cvxpy(case, x):
    """The projection as min ||y - x||, sharp at a boundary point; for huge x as min (||y||^2 - 2 <x, y>) / ||x||."""
    y, size = cp.Variable(case.d), float(x.norm())
    near, far = cp.norm2(y - x.numpy()), cp.sum_squares(y) / max(size, 1.0) - 2 * (x.numpy() / max(size, 1.0)) @ y
    objective = cp.Minimize(far if size > 1e6 else near)
    tight = {"tol_gap_abs": 1e-13, "tol_gap_rel": 1e-13, "tol_feas": 1e-13, "tol_ktratio": 1e-12}
    cp.Problem(objective, case.constraints(y)).solve(solver=cp.CLARABEL, **tight)
    return y.value


@pytest.mark.filterwarnings("ignore::UserWarning")  # CVXPY reports that the tolerance above was nearly met
@pytest.mark.parametrize("name", ["random", "random2", "zero", "interior", "boundary", "ties", "signed-ties", "huge"])
def test_projection_agrees_with_cvxpy(case, points, name):
    x = points[name]
    p = case.set.project(x).numpy()
    np.testing.assert_allclose(p, solve_with_cvxpy(case, x), atol=1e-5 * max(1.0, np.linalg.norm(p)))


def test_projection_has_an_optimality_certificate(case, points):
    for name, x in points.items():
        assert certificate(case, x) <= 1e-10, name


def test_projection_stays_inside_and_is_idempotent(case, points):
    for x in points.values():
        before, p = x.clone(), case.set.project(x)
        case.set.project(x).add_(1.0)
        case.set.lmo(x).add_(1.0)
        assert torch.equal(x, before), "a result shares memory with what was given"
        torch.testing.assert_close(case.set.project(x), p, msg="a result shares memory with the set")
        assert case.set.gauge(p) <= 1 + 8 * EPS[x.dtype]
        assert case.set.contains(p)
        torch.testing.assert_close(case.set.project(p), p, rtol=1e-11, atol=1e-11)
        if not case.set.contains(x):
            assert float((x - p).norm()) > 0


def test_single_precision(case, points):
    for name, x64 in points.items():
        x = x64.float()
        p = case.set.project(x)
        assert p.dtype == torch.float32
        assert case.set.gauge(p) <= 1 + 8 * EPS[torch.float32], name
        assert case.set.contains(p), name
        # float32 rounding of x moves Px by as much, projections being non-expansive
        slack = 4e-6 * max(1.0, float(p.norm()), float((x.double() - x64).norm()) / 1e-6)
        assert float((p.double() - case.set.project(x64)).norm()) <= slack, name


def test_projection_is_non_expansive(case):
    x, y = (3 * torch.randn(2, 20, case.d, dtype=torch.float64, generator=torch.Generator().manual_seed(3))).unbind()
    for a, b in zip(x, y, strict=True):
        moved = float((case.set.project(a) - case.set.project(b)).norm())
        assert moved <= float((a - b).norm()) * (1 + 1e-12)


def scores(d):
    generator = torch.Generator().manual_seed(9)
    g = torch.randn(8, d, dtype=torch.float64, generator=generator)
    return [*g, g[0].abs() + 0.1, -g[0].abs() - 0.1, torch.ones(d).double(), -torch.ones(d).double()]


def test_lmo_beats_every_member_and_gives_the_support(case):
    inside = members(case)
    for g in scores(case.d):
        s = case.set.lmo(g)
        scale = max(1.0, float(g.norm())) * max(1.0, float(s.norm()))
        assert case.set.contains(s)
        assert case.set.gauge(s) <= 1 + 1e-9  # the hull's gauge is a linear program
        assert float(g @ s) <= float((inside @ g).min()) + 1e-12 * scale
        assert abs(case.set.support(-g) + float(g @ s)) <= 1e-12 * scale
    zero, g = torch.zeros(case.d, dtype=torch.float64), torch.stack(scores(case.d))
    assert case.set.contains(case.set.lmo(zero)) and case.set.support(zero) == 0
    np.testing.assert_allclose(case.set._support(g), [case.set.support(row) for row in g], rtol=1e-12, atol=1e-12)


def test_gauge_is_homogeneous_and_marks_members(case):
    for x in members(case, 12):
        t = case.set.gauge(x)
        assert t <= 1 + 1e-9
        assert case.set.gauge(2.5 * x) == pytest.approx(2.5 * t, rel=1e-7)  # the hull's gauge is a linear program
        if t > 0:
            # x / gauge(x) lies in C and, where 0 does too, on its boundary
            assert case.set.contains(x / t, tol=1e-7)
            assert not case.contains_zero or not case.set.contains(1.01 * x / t, tol=1e-9)


def test_gauge_matches_the_least_scale_by_bisection(case):
    """inf{t : x in t C} with membership by projection, for x in the cone of C."""
    x = 1.7 * members(case, 12)[3]
    t = case.set.gauge(x)
    assert math.isfinite(t)
    assert case.set.contains(x / t, tol=1e-7)
    assert not case.set.contains(x / (0.98 * t), tol=1e-9)


def test_diameter_bounds_pairs_and_is_reached(case):
    diameter, inside = case.set.diameter(case.d), members(case)
    pairs = torch.cdist(inside, inside, compute_mode="donot_use_mm_for_euclid_dist")
    assert float(pairs.max()) <= diameter * (1 + 1e-12) + 1e-14
    far = 0.0
    for direction in [*torch.eye(case.d, dtype=torch.float64), *inside[:20]]:
        for _ in range(5):  # ascent on the convex ||a - b||: each pair maximises along the last difference
            a, b = case.set.lmo(-direction), case.set.lmo(direction)
            far, direction = max(far, float((a - b).norm())), a - b
    assert far >= 0.95 * diameter - 1e-12  # the ascent may stop at a local maximum; exact values are tested by hand


def test_width_agrees_with_monte_carlo(case):
    width = case.set.gaussian_width(case.d, samples=40_000, seed=1)
    g = torch.randn(100_000, case.d, dtype=torch.float64, generator=torch.Generator().manual_seed(77))
    values = case.set._support(g)
    mean, error = float(values.mean()), float(values.std()) / math.sqrt(len(values))
    spread = math.hypot(error, width.standard_error)
    assert abs(float(width) - mean) <= max(0.01 * abs(mean), 4 * spread)
    assert abs(float(width) - mean) <= 5 * spread + 1e-9
    assert width.exact == (width.standard_error == 0)


def test_numpy_and_lists_in_numpy_out(case, points):
    x = points["random"]
    for given in (x.numpy(), x.tolist(), x.float().numpy()):
        p = case.set.project(given)
        assert isinstance(p, np.ndarray)
        assert p.dtype == np.asarray(given).dtype
        np.testing.assert_allclose(p, case.set.project(x).numpy(), atol=1e-5)
    assert isinstance(case.set.lmo(x.numpy()), np.ndarray)
    assert case.set.project(x.half()).dtype == torch.float16
    assert case.set.project(x).device == x.device


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_keeps_the_device_and_agrees(case, points):
    for x in points.values():
        there = x.cuda()
        p = case.set.project(there)
        assert p.is_cuda and case.set.lmo(there).is_cuda
        torch.testing.assert_close(p.cpu(), case.set.project(x), rtol=1e-9, atol=1e-9)
        assert case.set.support(there) == pytest.approx(case.set.support(x), rel=1e-9)
        assert case.set.gauge(p) <= 1 + 8 * EPS[x.dtype]


def test_every_operation_is_offered_and_refuses_bad_points(case):
    case.set.require(*OPERATIONS)
    nan = torch.full((case.d,), math.nan)
    inf = torch.zeros(case.d).index_fill(0, torch.tensor([0]), math.inf)
    for bad in (nan, inf, torch.zeros(2, 2, 2), torch.tensor(1.0), torch.zeros(0), torch.zeros(case.d).cfloat()):
        for operation in (case.set.project, case.set.lmo, case.set.gauge, case.set.support, case.set.contains):
            with pytest.raises(ValueError, match="x|g"):
                operation(bad)
    if case.set.dim is not None:
        with pytest.raises(ValueError, match="x.shape"):
            case.set.project(torch.zeros(case.d + 1))
        with pytest.raises(ValueError, match="dimension"):
            case.set.diameter(case.d + 1)
