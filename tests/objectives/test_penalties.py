"""Proximal maps against brute force, and the two ways of using a penalty against each other."""

import pytest
import torch

from isthmus.base.validate import InvalidInput
from isthmus.penalties import ElasticNet, GroupPenalty, L1Penalty, L2Penalty, NoPenalty, ProxPenalty

ALL = [NoPenalty(), L2Penalty(0.7), L1Penalty(0.4), ElasticNet(0.4, 0.7), ElasticNet(0.0, 0.3), L1Penalty(0.0)]
EACH = torch.tensor([0.1, 0.5, 1.0, 2.0, 3.0], dtype=torch.float64)
W = torch.tensor([-2.0, -0.3, 0.0, 0.25, 1.7], dtype=torch.float64)


@pytest.mark.parametrize("penalty", ALL, ids=str)
@pytest.mark.parametrize("eta", [0.5, EACH], ids=["one", "each"])
def test_prox_is_the_minimiser(penalty, eta):
    found = penalty.prox(W, eta)
    grid = torch.linspace(-2.5, 2.5, 100_001, dtype=torch.float64)
    each = torch.as_tensor(eta, dtype=torch.float64).expand(5)
    for w, step, v in zip(W.tolist(), each.tolist(), found, strict=True):
        one = torch.tensor([penalty.value(x) for x in (torch.ones(1), -torch.ones(1))])
        assert one[0] == one[1]
        values = penalty.l1 * grid.abs() + penalty.l2 / 2 * grid.square() + (grid - w).square() / (2 * step)
        assert abs(float(v) - float(grid[values.argmin()])) <= 5.1e-5, "half the grid's spacing, rounded up"


@pytest.mark.parametrize("penalty", ALL, ids=str)
def test_value_and_gradient(penalty):
    l1, l2 = penalty.l1, penalty.l2
    assert penalty.value(W) == pytest.approx(float(l1 * W.abs().sum() + l2 / 2 * W.square().sum()))
    torch.testing.assert_close(penalty.gradient(W), l2 * W)


@pytest.mark.parametrize("penalty", ALL, ids=str)
def test_both_ways_have_the_same_fixed_point(penalty):
    """min R(w) + ||w - c||^2 / 2, by prox after the data step and by prox_rest after the full step."""
    c, eta = W * 1.5, 0.3
    first = second = torch.zeros_like(W)
    for _ in range(200):
        first = penalty.prox(first - eta * (first - c), eta)
        second = penalty.prox_rest(second - eta * (second - c + penalty.gradient(second)), eta)
    torch.testing.assert_close(first, second, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(first, penalty.prox(c, 1.0), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("build", [lambda: L2Penalty(-1.0), lambda: L1Penalty(-1.0), lambda: ElasticNet(0.1, -1.0)])
def test_negative_strengths_are_refused(build):
    with pytest.raises(InvalidInput, match="give a finite number of at least 0"):
        build()


def test_group_prox_against_cvxpy():
    import cvxpy as cp

    groups, penalty = [0, 1, 0, 2, 1], GroupPenalty([0, 1, 0, 2, 1], 0.6)
    for eta in (0.1, 0.7, 3.0):
        v = cp.Variable(5)
        norms = sum(cp.norm(v[[i for i in range(5) if groups[i] == g]]) for g in range(3))
        cp.Problem(cp.Minimize(0.6 * norms + cp.sum_squares(v - W.numpy()) / (2 * eta))).solve(solver="CLARABEL")
        torch.testing.assert_close(penalty.prox(W, eta), torch.from_numpy(v.value), rtol=0, atol=1e-5)


def test_group_penalty_of_single_coordinates_is_l1():
    single = GroupPenalty(torch.arange(5), 0.4)
    for eta in (0.5, EACH):
        torch.testing.assert_close(single.prox(W, eta), L1Penalty(0.4).prox(W, eta))
    assert single.value(W) == pytest.approx(L1Penalty(0.4).value(W))


def test_a_penalty_that_does_not_separate():
    """lam ||w||_inf by Moreau: w minus the projection onto the l1 ball of radius eta lam."""
    from isthmus.sets import L1Ball

    largest = ProxPenalty(lambda w: 0.5 * float(w.abs().max()), lambda w, eta: w - L1Ball(0.5 * eta).project(w))
    found = largest.prox(W, 1.0)
    base = largest.value(found) + float((found - W).square().sum()) / 2
    for direction in torch.randn(200, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)):
        other = found + 0.01 * direction
        assert largest.value(other) + float((other - W).square().sum()) / 2 >= base - 1e-12


@pytest.mark.parametrize("groups", [[], [0.5, 1.0], [[0, 1]], [-1, 0]])
def test_bad_groups_are_refused(groups):
    with pytest.raises(InvalidInput, match="groups"):
        GroupPenalty(groups, 1.0)
