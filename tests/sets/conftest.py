"""The one list of sets that every contract test runs over."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import cvxpy as cp
import numpy as np
import pytest
import torch

from isthmus import sets


@dataclass(frozen=True)
class Case:
    """A bounded convex set, its dimension and the same set in CVXPY."""

    name: str
    set: sets.ConvexSet
    d: int
    constraints: Callable[[cp.Expression], list[cp.Constraint]]
    contains_zero: bool = True


def draw(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def hull_of(vertices: np.ndarray) -> Callable[[cp.Expression], list[cp.Constraint]]:
    def constraints(y: cp.Expression) -> list[cp.Constraint]:
        w = cp.Variable(len(vertices))
        return [w >= 0, cp.sum(w) == 1, y == vertices.T @ w]

    return constraints


def subspace_of(rows: np.ndarray, radius: float) -> Callable[[cp.Expression], list[cp.Constraint]]:
    def constraints(y: cp.Expression) -> list[cp.Constraint]:
        return [y == rows.T @ cp.Variable(len(rows)), cp.norm2(y) <= radius]

    return constraints


POLYGON, SEGMENT, OFF_ORIGIN = draw(12, 6, seed=1), draw(4, 6, seed=2), draw(9, 5, seed=3) + 3.0
ROWS, AXES = draw(3, 7, seed=4), draw(8, seed=5).abs() + 0.1
LO, HI, CENTER = -draw(7, seed=6).abs(), draw(7, seed=7).abs(), torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
GROUPS = [[0, 4], [1, 2, 6], [3], [5, 7, 8]]


def group_norm(y: cp.Expression) -> cp.Expression:
    return sum(cp.norm2(y[group]) for group in GROUPS)


def nuclear(y: cp.Expression) -> list[cp.Constraint]:
    return [cp.normNuc(cp.reshape(y, (4, 3), order="C")) <= 1.5]


def product(y: cp.Expression) -> list[cp.Constraint]:
    return [cp.norm1(y[:4]) <= 1, y[4:7] >= 0, cp.sum(y[4:7]) == 2, cp.norm2(y[7:]) <= 0.5]


CASES = [
    Case("l1", sets.L1Ball(1.3), 10, lambda y: [cp.norm1(y) <= 1.3]),
    Case("l2", sets.L2Ball(0.7), 10, lambda y: [cp.norm2(y) <= 0.7]),
    Case("l2-center", sets.L2Ball(2.5, CENTER), 3, lambda y: [cp.norm2(y - CENTER.numpy()) <= 2.5]),
    Case("l2-far", sets.L2Ball(0.5, CENTER), 3, lambda y: [cp.norm2(y - CENTER.numpy()) <= 0.5], False),
    Case("linf", sets.LInfBall(0.4), 10, lambda y: [cp.norm_inf(y) <= 0.4]),
    Case("box", sets.Box(LO, HI), 7, lambda y: [y >= LO.numpy(), y <= HI.numpy()]),
    Case("box-off", sets.Box(0.5, 2.0), 5, lambda y: [y >= 0.5, y <= 2.0], False),
    Case("lp1", sets.LpBall(1, 1.2), 8, lambda y: [cp.norm1(y) <= 1.2]),
    Case("lp1.25", sets.LpBall(1.25, 1.2), 8, lambda y: [cp.pnorm(y, 1.25) <= 1.2]),
    Case("lp1.5", sets.LpBall(1.5, 1.2), 8, lambda y: [cp.pnorm(y, 1.5) <= 1.2]),
    Case("lp2", sets.LpBall(2, 1.2), 8, lambda y: [cp.norm2(y) <= 1.2]),
    Case("lp3", sets.LpBall(3, 0.6), 8, lambda y: [cp.pnorm(y, 3) <= 0.6]),
    Case("lp8", sets.LpBall(8.0), 8, lambda y: [cp.pnorm(y, 8) <= 1]),
    Case("lpinf", sets.LpBall(math.inf, 1.2), 8, lambda y: [cp.norm_inf(y) <= 1.2]),
    Case("simplex", sets.Simplex(2.0), 9, lambda y: [y >= 0, cp.sum(y) == 2.0], False),
    Case("hull", sets.ConvexHull(POLYGON), 6, hull_of(POLYGON.numpy())),
    Case("hull-flat", sets.ConvexHull(SEGMENT), 6, hull_of(SEGMENT.numpy()), False),
    Case("hull-off", sets.ConvexHull(OFF_ORIGIN), 5, hull_of(OFF_ORIGIN.numpy()), False),
    Case("subspace", sets.Subspace(ROWS, 1.1), 7, subspace_of(ROWS.numpy(), 1.1)),
    Case("nuclear", sets.NuclearBall(1.5, (4, 3)), 12, nuclear),
    Case("group", sets.GroupBall(GROUPS, 1.4), 9, lambda y: [group_norm(y) <= 1.4]),
    Case("ellipsoid", sets.Ellipsoid(AXES, 1.2), 8, lambda y: [cp.norm2(cp.multiply(1 / AXES.numpy(), y)) <= 1.2]),
    Case(
        "product",
        sets.Product([(sets.L1Ball(), 4), (sets.Simplex(2.0), 3), (sets.L2Ball(0.5), (2, 2))]),
        11,
        product,
        False,
    ),
    Case("l1-1d", sets.L1Ball(), 1, lambda y: [cp.abs(y) <= 1]),
    Case("lp-1d", sets.LpBall(1.7, 2.0), 1, lambda y: [cp.abs(y) <= 2]),
    Case("simplex-1d", sets.Simplex(3.0), 1, lambda y: [y == 3], False),
    Case("hull-1d", sets.ConvexHull([[-1.0], [2.0], [0.5]]), 1, lambda y: [y >= -1, y <= 2]),
    Case("ellipsoid-1d", sets.Ellipsoid([0.5]), 1, lambda y: [cp.abs(y) <= 0.5]),
    Case("group-1d", sets.GroupBall([[0]]), 1, lambda y: [cp.abs(y) <= 1]),
    Case("nuclear-1d", sets.NuclearBall(2.0, (1, 1)), 1, lambda y: [cp.abs(y) <= 2]),
]


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture
def points(case: Case) -> dict[str, torch.Tensor]:
    """Random and degenerate points: outside, inside, on the boundary, tied, zero and huge."""
    x, vertex = draw(case.d, seed=11), case.set.lmo(draw(case.d, seed=12))
    inner = torch.stack([case.set.lmo(draw(case.d, seed=s)) for s in range(20, 32)]).mean(0)
    return {
        "random": 2 * x,
        "random2": 3 * draw(case.d, seed=13),
        "zero": torch.zeros_like(x),
        "interior": inner,
        "boundary": vertex,
        "near": case.set.project(x) * (1 + 1e-9),
        "ties": torch.full_like(x, 3.0),
        "signed-ties": torch.full_like(x, 3.0).copysign(x),
        "one-big": torch.eye(case.d, dtype=x.dtype)[0] * 50,
        "huge": 1e8 * x,
    }
