"""Project-and-lift against the two-stage conic answer, over every set, and at the edges."""

import numpy as np
import pytest
import torch
from grids import pairs
from lift_reference import D, instances, least_gauge, member, problem_of, target, two_stage
from refusals import refuses

from isthmus.lifts import ProjectAndLift, project_and_lift, solve_lift
from isthmus.lifts.project_lift import _BucketOperator, _DenseOperator, _MatrixFree, _operator
from isthmus.sets import Box, ConvexHull, FromLMO, L1Ball, L2Ball, LowRank, NuclearBall, Simplex, Whole
from isthmus.sketches import SRHT, Coordinates, CountSketch, GaussianSketch, Identity, SparseJL

SKETCHES = {
    "count": CountSketch(15),
    "jl": GaussianSketch(15, scaling="jl"),
    "srht": SRHT(15),
    "coordinates": Coordinates(15),
}

SOLVED = ["l1", "simplex", "hull", "nuclear", "box", "l2", "ellipsoid", "group"]


@pytest.mark.parametrize("kind, family, where", pairs(SOLVED, ["count", "jl"], ["inside", "outside"]))
def test_two_stage(kind: str, family: str, where: str) -> None:
    sketch = SKETCHES[family].draw(D, seed=5)
    constraint, start, v = problem_of(kind, sketch, where, 3)
    result = solve_lift(constraint, sketch, v, start)
    f_star, distance = two_stage(kind, constraint, sketch.dense().numpy(), v, start)
    size = float(v @ v)
    assert result.converged and constraint.contains(result.point)
    assert abs(result.residual**2 - f_star) <= 1e-6 * size
    assert result.certificate <= 1e-6 * size
    # the acceptance level; the conic solver's own stage-2 error is of the same order where the optimal set is thin
    assert abs(np.linalg.norm(result.point - start) / distance - 1) <= 1e-2


@pytest.mark.parametrize("kind, family, where", pairs(instances(), SKETCHES, ["inside", "edge", "outside", "zero"]))
def test_every_set_is_certified(kind: str, family: str, where: str) -> None:
    sketch = SKETCHES[family].draw(D, seed=2)
    constraint, start, v = problem_of(kind, sketch, where, 1)
    result = solve_lift(constraint, sketch, v, start)
    assert result.converged
    assert constraint.contains(result.point, 1e-9)
    size = float(v @ v) or sketch.norm**2 * max(float(result.point @ result.point), float(start @ start))
    f = float(((sketch.forward(torch.from_numpy(result.point)).numpy() - v) ** 2).sum())
    assert f == pytest.approx(result.residual**2, abs=1e-12 * size)
    if constraint.can("support"):
        assert result.certificate <= 1e-6 * size


@pytest.mark.parametrize("kind", ["l1", "simplex", "hull", "nuclear", "box", "l2"])
def test_nearest_beats_every_other_minimiser(kind: str) -> None:
    """Moves within the optimal set never come nearer to the start: the obtuse-angle criterion."""
    constraint, rng = instances()[kind], np.random.default_rng(7)
    sketch = CountSketch(15).draw(D, seed=3)
    start = 2 * rng.standard_normal(D) / np.sqrt(D)
    other = member(constraint, rng)
    v = sketch.forward(torch.from_numpy(other)).numpy()
    w = solve_lift(constraint, sketch, v, start, tol=1e-8).point
    scale = np.linalg.norm(start - w) * np.linalg.norm(other - w)
    assert (start - w) @ (other - w) <= 1e-4 * scale


@pytest.mark.parametrize("kind", ["l1", "simplex", "hull", "nuclear", "ellipsoid"])
@pytest.mark.parametrize("factor", [1e8, 1e-8])
def test_scales(kind: str, factor: float) -> None:
    rng = np.random.default_rng(2)
    unit, sketch = instances()[kind], GaussianSketch(15, scaling="jl").draw(D, seed=1)
    start = member(unit, rng)
    v = target(unit, sketch, start, "outside", rng)
    scaled = {
        "l1": lambda: L1Ball(factor),
        "simplex": lambda: Simplex(factor),
        "hull": lambda: ConvexHull(unit.vertices * factor),
        "nuclear": lambda: NuclearBall(factor, unit.shape),
        "ellipsoid": lambda: type(unit)(unit.axes, radius=factor),
    }[kind]()
    one = solve_lift(unit, sketch, v, start).point
    many = solve_lift(scaled, sketch, factor * v, factor * start).point
    np.testing.assert_allclose(many / factor, one, atol=1e-6)


def test_target_of_the_start_returns_the_start() -> None:
    sketch, start = CountSketch(5).draw(D), member(L1Ball(1.0), np.random.default_rng(0))
    result = solve_lift(L1Ball(1.0), sketch, sketch.forward(torch.from_numpy(start)), start)
    assert np.array_equal(result.point, start) and result.residual == 0 and result.converged


@pytest.mark.parametrize("m", [1, D])
@pytest.mark.parametrize("kind", ["l1", "simplex", "hull", "nuclear", "l2"])
def test_extreme_widths(kind: str, m: int) -> None:
    sketch = GaussianSketch(m).draw(D, seed=1)
    constraint, start, v = problem_of(kind, sketch, "outside", 4)
    result = solve_lift(constraint, sketch, v, start)
    assert result.converged
    if m == D:
        straight = constraint.project(sketch.pinv(torch.from_numpy(v)).numpy())
        np.testing.assert_allclose(result.point, straight, atol=1e-4)  # sqrt of the tolerance on f


def test_singleton() -> None:
    vertex = np.random.default_rng(0).standard_normal((1, D))
    result = solve_lift(ConvexHull(vertex), CountSketch(5).draw(D), np.ones(5), np.zeros(D))
    np.testing.assert_allclose(result.point, vertex[0], atol=1e-12)
    assert solve_lift(Box(1.0, 1.0), CountSketch(5).draw(D), np.ones(5), np.zeros(D)).point == pytest.approx(np.ones(D))


@pytest.mark.parametrize("encoder", [CountSketch(5), GaussianSketch(5, scaling="jl")])
def test_whole_space(encoder: CountSketch | GaussianSketch) -> None:
    sketch, rng = encoder.draw(D), np.random.default_rng(0)
    start, v = rng.standard_normal(D), rng.standard_normal(5)
    phi = sketch.dense().numpy()
    expected = start + np.linalg.pinv(phi) @ (v - phi @ start)
    np.testing.assert_allclose(project_and_lift(Whole(), sketch, v, start), expected, atol=1e-9)


def test_a_ball_about_a_centre() -> None:
    rng = np.random.default_rng(0)
    centre = rng.standard_normal(D)
    ball, sketch = L2Ball(1.0, center=centre), CountSketch(15).draw(D, seed=1)
    v = sketch.forward(torch.from_numpy(centre + 3 * rng.standard_normal(D))).numpy()
    result = solve_lift(ball, sketch, v, np.zeros(D))
    shifted = solve_lift(L2Ball(1.0), sketch, v - sketch.forward(torch.from_numpy(centre)).numpy(), -centre)
    assert result.converged and ball.contains(result.point)
    assert result.residual == pytest.approx(shifted.residual, rel=1e-6)


def test_set_known_by_its_linear_minimiser() -> None:
    ball = L2Ball(1.0)
    derived = FromLMO(ball.lmo)
    sketch, start = CountSketch(5).draw(D, seed=1), np.zeros(D)
    v = 3 * np.ones(5)
    exact, result = solve_lift(ball, sketch, v, start), solve_lift(derived, sketch, v, start, tol=1e-4)
    assert result.residual**2 - exact.residual**2 <= 1e-4 * float(v @ v)


def test_operators_agree() -> None:
    rng = np.random.default_rng(0)
    w, y = rng.standard_normal(D), rng.standard_normal(12)
    for encoder, kind in [
        (CountSketch(12), _BucketOperator),
        (Coordinates(12), _BucketOperator),
        (SparseJL(12, s=2), _DenseOperator),
        (GaussianSketch(12), _DenseOperator),
    ]:
        sketch = encoder.draw(D, seed=1)
        fast, free = _operator(sketch), rng.random(D) < 0.6
        assert isinstance(fast, kind)
        assert isinstance(_operator(Identity().draw(D)), _BucketOperator)
        phi = sketch.dense().numpy()
        np.testing.assert_allclose(fast.scale * fast.forward(w), phi @ w, atol=1e-12)
        np.testing.assert_allclose(fast.scale * fast.adjoint(y), phi.T @ y, atol=1e-12)
        for each in (fast, _MatrixFree(sketch)):
            part = phi[:, free] / each.scale
            expected = np.linalg.solve(part @ part.T + 0.1 * np.eye(12), y)
            np.testing.assert_allclose(each.solve(free, 0.1, (y,))[0], expected, atol=1e-8)


def test_matrix_free_solve_equals_the_dense_one(monkeypatch: pytest.MonkeyPatch) -> None:
    constraint, rng = L1Ball(1.0), np.random.default_rng(0)
    sketch = SRHT(15).draw(D, seed=1)
    start = member(constraint, rng)
    v = target(constraint, sketch, start, "outside", rng)
    dense = solve_lift(constraint, sketch, v, start)
    monkeypatch.setattr("isthmus.lifts.project_lift.DENSE_BYTES", 0)
    free = solve_lift(constraint, sketch, v, start)
    assert free.converged
    np.testing.assert_allclose(free.point, dense.point, atol=1e-5)


@pytest.mark.parametrize("kind", instances())
def test_cheap_mode(kind: str) -> None:
    sketch = CountSketch(15).draw(D, seed=1)
    constraint, start, v = problem_of(kind, sketch, "outside", 5)
    exact = solve_lift(constraint, sketch, v, start)
    cheap = solve_lift(constraint, sketch, v, start, tol=1e-2, max_iter=50)
    assert cheap.method == "fista" and cheap.iterations <= 50 and constraint.contains(cheap.point)
    gap = cheap.residual**2 - exact.residual**2
    assert gap <= cheap.certificate + 2e-6 * float(v @ v)
    assert gap <= 0.05 * float(v @ v)


def test_fista_by_name_reaches_tight_tolerances() -> None:
    sketch, v = CountSketch(15).draw(D, seed=1), 2 * np.ones(15)
    exact = solve_lift(L1Ball(1.0), sketch, v, np.zeros(D))
    plain = solve_lift(L1Ball(1.0), sketch, v, np.zeros(D), tol=1e-9, method="fista", max_iter=5000)
    assert plain.residual == pytest.approx(exact.residual, rel=1e-6)


def test_types_and_dtypes() -> None:
    sketch, ball = CountSketch(5).draw(D), L1Ball(1.0)
    assert isinstance(project_and_lift(ball, sketch, np.ones(5), np.zeros(D)), np.ndarray)
    for dtype in (torch.float32, torch.float64):
        for tol in (1e-6, 1e-2):
            start = torch.zeros(D, dtype=dtype)
            w = project_and_lift(ball, sketch, torch.ones(5, dtype=dtype), start, tol=tol)
            assert w.dtype == dtype and ball.contains(w) and not torch.equal(w, start)
    assert project_and_lift(ball, sketch, [1.0] * 5, np.zeros(D, dtype=np.float32)).dtype == np.float32


@pytest.mark.parametrize("kind", ["l1", "l2", "linf", "nuclear", "group", "ellipsoid"])
@pytest.mark.parametrize("family", ["count", "jl"])
def test_min_gauge(kind: str, family: str) -> None:
    constraint, rng = instances()[kind], np.random.default_rng(6)
    sketch = SKETCHES[family].draw(D, seed=2)
    point = 0.3 * member(constraint, rng)
    v = sketch.forward(torch.from_numpy(point)).numpy()
    result = solve_lift(constraint, sketch, v, member(constraint, rng), pick="min_gauge")
    assert result.converged and result.residual <= 1e-4 * np.linalg.norm(v)
    # a residual of 1e-4 ||v|| leaves this much of the gauge open
    expected = least_gauge(kind, constraint, sketch.dense().numpy(), v)
    assert constraint.gauge(result.point) == pytest.approx(expected, rel=1e-3)


def test_min_gauge_outside_is_on_the_boundary() -> None:
    sketch = CountSketch(5).draw(D, seed=1)
    result = solve_lift(L1Ball(1.0), sketch, 100 * np.ones(5), np.zeros(D), pick="min_gauge")
    assert L1Ball(1.0).gauge(result.point) == pytest.approx(1.0)
    zero = solve_lift(L2Ball(1.0), sketch, np.zeros(5), np.ones(D), pick="min_gauge")
    assert not zero.point.any()
    simplex = solve_lift(Simplex(), sketch, np.ones(5), np.full(D, 1 / D), pick="min_gauge")
    assert simplex.point.sum() == pytest.approx(1.0)


FACTS = {"constraint": L1Ball(1.0), "sketch": CountSketch(5).draw(D), "target": np.ones(5), "start": np.zeros(D)}
test_bad_input = refuses(
    ({"target": np.ones(4)}, "target.shape"),
    ({"start": np.ones(D + 1)}, "start.shape"),
    ({"target": np.full(5, np.nan)}, "NaN"),
    ({"start": np.full(D, np.inf)}, "NaN or infinite"),
    ({"pick": "any"}, "choose one of"),
    ({"method": "magic"}, "choose one of"),
    ({"tol": 0.0}, "tol"),
    ({"tol": -1.0}, "tol"),
    ({"max_iter": 0}, "max_iter"),
    ({"constraint": LowRank(1, 1.0, (6, 10))}, "NuclearBall"),
    ({"constraint": NuclearBall(1.0, (3, 3))}, "dimension 9"),
    by=lambda change: solve_lift(**FACTS | change),
)


def test_min_gauge_needs_the_origin() -> None:
    sketch = CountSketch(5).draw(D)
    inside = sketch.forward(torch.full((D,), 1.5, dtype=torch.float64))
    with pytest.raises(ValueError, match="contains the origin"):
        solve_lift(Box(1.0, 2.0), sketch, inside, np.full(D, 1.2), pick="min_gauge")


def test_budget_is_reported() -> None:
    sketch = CountSketch(15).draw(D)
    constraint, start, v = problem_of("nuclear", sketch, "outside", 0)
    result = solve_lift(constraint, sketch, v, start, max_iter=1)
    assert not result.converged and constraint.contains(result.point)
    assert result.certificate >= result.residual**2 - solve_lift(constraint, sketch, v, start).residual ** 2 - 1e-9


def test_lift_part_takes_vector_steps() -> None:
    sketch, w = CountSketch(15).draw(D), torch.zeros(D, dtype=torch.float64)
    lift, y = ProjectAndLift(L1Ball(1.0)), torch.ones(15, dtype=torch.float64)
    scalar, vector = lift(sketch, y, w, 0.1), lift(sketch, y, w, torch.full((D,), 0.1, dtype=torch.float64))
    torch.testing.assert_close(scalar.point, vector.point)
    torch.testing.assert_close(w - 0.1 * scalar.direction, scalar.point)
