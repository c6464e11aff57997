"""The scales t with x in t C, for sets that need not hold 0: against a search through all t by the definition."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from isthmus.geometry.sets import Box, ConvexHull, ConvexSet, L2Ball, Product, Simplex

Member = Callable[[np.ndarray], np.ndarray]
"""Which rows are points of the set."""
TRIANGLE = np.array([[1.0, 1.0], [3.0, 1.5], [1.5, 3.0]])
ROUND_ZERO = np.array([[2.0, 0.0], [-1.0, 1.0], [-1.0, -1.5]])
SCALES = np.geomspace(1e-4, 1e4, 40_001)


def ball(center: tuple[float, float], radius: float) -> Member:
    return lambda y: np.linalg.norm(y - np.array(center), axis=1) <= radius


def box(lo: tuple[float, float], hi: tuple[float, float]) -> Member:
    return lambda y: ((np.array(lo) <= y) & (y <= np.array(hi))).all(1)


def hull(corners: np.ndarray) -> Member:
    inverse = np.linalg.inv(np.vstack([corners.T, np.ones(3)]))  # to barycentric coordinates
    return lambda y: (inverse @ np.column_stack([y, np.ones(len(y))]).T >= 0).all(0)


CASES: dict[str, tuple[ConvexSet, Member]] = {
    "ball beside 0": (L2Ball(1.0, center=[3.0, 1.0]), ball((3.0, 1.0), 1.0)),
    "ball with 0 inside": (L2Ball(2.0, center=[1.0, 0.5]), ball((1.0, 0.5), 2.0)),
    "ball with 0 far inside": (L2Ball(20.0, center=[1.0, 0.5]), ball((1.0, 0.5), 20.0)),
    "box beside 0": (Box([1.0, 0.5], [2.0, 3.0]), box((1.0, 0.5), (2.0, 3.0))),
    "box below 0": (Box([-2.0, -3.0], [-1.0, -0.5]), box((-2.0, -3.0), (-1.0, -0.5))),
    "box with an edge at 0": (Box([0.0, 1.0], [2.0, 3.0]), box((0.0, 1.0), (2.0, 3.0))),
    "flat box": (Box([0.0, 1.0], [0.0, 3.0]), box((0.0, 1.0), (0.0, 3.0))),
    "box with 0 inside": (Box([-1.0, -2.0], [2.0, 3.0]), box((-1.0, -2.0), (2.0, 3.0))),
    "hull beside 0": (ConvexHull(TRIANGLE), hull(TRIANGLE)),
    "hull with 0 inside": (ConvexHull(ROUND_ZERO), hull(ROUND_ZERO)),
}
POINTS = [
    (2.0, 1.1),
    (3.0, 3.0),
    (0.5, 0.7),
    (-1.0, -1.2),
    (-2.0, 1.0),
    (0.0, 2.0),
    (5.0, 0.1),
    (30.0, 20.0),
    (4.5, 1.5),
]


def searched(member: Member, x: tuple[float, float]) -> tuple[float, float]:
    """The least and the greatest of many scales that hold the point."""
    found = SCALES[member(np.array(x) / SCALES[:, None])]
    return (found[0], found[-1]) if len(found) else (math.inf, math.inf)


@pytest.mark.parametrize("x", POINTS)
@pytest.mark.parametrize("name", list(CASES))
def test_scales_are_those_of_the_definition(name: str, x: tuple[float, float]) -> None:
    points, member = CASES[name]
    low, high = searched(member, x)
    least, most = points._scales(torch.tensor(x, dtype=torch.float64))
    if least > most:  # no scale at all
        least = most = math.inf
    assert least == pytest.approx(low, rel=1e-3)
    assert min(most, 1e4) == pytest.approx(min(high, 1e4), rel=1e-3)


@pytest.mark.parametrize("name", list(CASES))
def test_a_product_has_a_gauge_only_where_all_its_blocks_have_it(name: str) -> None:
    points, member = CASES[name]
    for x in POINTS:
        low, high = searched(member, x)
        for t in (0.9 * low, 1.001 * low, 0.5 * (low + high), 0.999 * high, 1.1 * high):
            if not 1e-3 < t < 1e3:
                continue
            both = Product([(points, 2), (Box(1.0, 1.0), 1)])  # the last number is the only scale of its block
            wanted = t if low <= t <= high else math.inf
            assert both.gauge([*x, t]) == pytest.approx(wanted, rel=1e-9), (x, t)


@pytest.mark.parametrize("x, wanted", [((0.5, 1.0), 1.5), ((0.0, 0.0), 0.0), ((-0.5, 1.0), math.inf)])
def test_a_simplex_has_one_scale(x: tuple[float, float], wanted: float) -> None:
    assert Simplex(1.0)._scales(torch.tensor(x, dtype=torch.float64)) == (wanted, wanted)


@pytest.mark.parametrize("name", list(CASES))
def test_a_point_of_the_set_has_scale_one_among_its_scales(name: str) -> None:
    points, _ = CASES[name]
    generator = torch.Generator().manual_seed(0)
    for draw in torch.randn(20, 2, generator=generator, dtype=torch.float64) * 5:
        low, high = points._scales(points.project(draw))
        assert low <= 1.0 <= high, draw
