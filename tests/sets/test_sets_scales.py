"""The scales t with x in t C, for sets that need not hold 0: against a search through all t by the definition."""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch

from isthmus.sets import Box, ConvexHull, ConvexSet, L2Ball, Product, Simplex

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
POINTS = [(2.0, 1.1), (3.0, 3.0), (0.5, 0.7), (-1.0, -1.2), (-2.0, 1.0), (0.0, 2.0), (5.0, 0.1), (30.0, 20.0)]
POINTS += [(4.5, 1.5)]


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


def quadratic(x: tuple[float, ...], center: tuple[float, ...], radius: float, t: float) -> Fraction:
    """|x - t c|^2 - (t radius)^2, without rounding."""
    away = sum((Fraction(a) - Fraction(t) * Fraction(b)) ** 2 for a, b in zip(x, center, strict=True))
    return away - (Fraction(t) * Fraction(radius)) ** 2


UNITS = [(size, unit) for size in (1e-200, 1e-8, 1.0, 1e8, 1e200) for unit in (2.0**-500, 1.0, 2.0**500)]


BALLS = [
    ((0.3, 0.45), (3.0, 4.0), 1.0),
    ((0.03, 0.05), (3.0, 4.0), 4.999999),  # 0 is nearly on the sphere: one formula of a root loses all its digits
    ((0.03, 0.05), (3.0, 4.0), 5.0),
    ((0.03, 0.05), (3.0, 4.0), 5.000001),
    ((-0.3, 0.1), (3.0, 4.0), 7.0),
    ((-0.3, -0.1), (3.0, 4.0), 7.0),
]


@pytest.mark.parametrize(("size", "unit"), [pair for pair in UNITS if 1e-290 < pair[0] / pair[1] < 1e290])
@pytest.mark.parametrize(("x", "center", "radius"), BALLS)
def test_scales_of_a_ball_are_the_roots_of_its_quadratic(
    x: tuple[float, ...], center: tuple[float, ...], radius: float, size: float, unit: float
) -> None:
    x, center, radius = tuple(size * a for a in x), tuple(unit * b for b in center), unit * radius
    low, high = L2Ball(radius, center=list(center))._scales(torch.tensor(x, dtype=torch.float64))
    assert 0 < low < high
    for root, inwards in ((low, 1), (high, -1)):
        if root < math.inf:
            assert quadratic(x, center, radius, root * (1 - inwards * 1e-7)) > 0
            assert quadratic(x, center, radius, root * (1 + inwards * 1e-7)) < 0
    if high == math.inf:
        assert quadratic(x, center, radius, 1e3 * low) < 0


@pytest.mark.parametrize("size", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize("turn", [0.1, 1.3, 2.9, 4.4])
def test_the_cone_of_a_ball_ends_at_its_tangents(turn: float, size: float) -> None:
    def turned(angle: float, length: float) -> torch.Tensor:
        return length * torch.tensor([math.cos(turn + angle), math.sin(turn + angle)], dtype=torch.float64)

    points, edge = L2Ball(3.0, center=turned(0.0, 5.0)), math.asin(0.6)
    low, high = points._scales(turned(edge, size))
    assert low == pytest.approx(size / 4, rel=1e-6) and high == pytest.approx(size / 4, rel=1e-6)
    assert points._scales(turned(edge + 1e-6, size)) == (math.inf, math.inf)
    inside = points._scales(turned(edge - 1e-6, size))
    assert inside[0] < size / 4 < inside[1]


@pytest.mark.parametrize(("radius", "most"), [(0.5, 0.0), (0.99, 0.0), (1.0, math.inf), (2.0, math.inf)])
def test_the_scales_of_zero(radius: float, most: float) -> None:
    assert L2Ball(radius, center=[1.0, 0.0])._scales(torch.zeros(2, dtype=torch.float64)) == (0.0, most)


@pytest.mark.parametrize("x", [(0.0, 1.0), (-1.0, 0.0), (-1.0, 1.0)])
def test_a_ball_that_touches_zero_has_no_points_behind_it(x: tuple[float, float]) -> None:
    touching = L2Ball(1.0, center=[1.0, 0.0])
    assert touching._scales(torch.tensor(x, dtype=torch.float64)) == (math.inf, math.inf)
