"""Wrong arguments and missing operations are refused by name, value and remedy."""

import math

import pytest
import torch

from isthmus import InvalidInput, sets

WITH_RADIUS = {
    "L1Ball": sets.L1Ball,
    "L2Ball": sets.L2Ball,
    "LInfBall": sets.LInfBall,
    "LpBall": lambda r: sets.LpBall(3.0, r),
    "Simplex": sets.Simplex,
    "Subspace": lambda r: sets.Subspace([[1.0, 0.0]], r),
    "NuclearBall": lambda r: sets.NuclearBall(r, (2, 2)),
    "LowRank": lambda r: sets.LowRank(1, r, (2, 2)),
    "GroupBall": lambda r: sets.GroupBall([0, 1], r),
    "Ellipsoid": lambda r: sets.Ellipsoid([1.0, 2.0], r),
}


@pytest.mark.parametrize("build", WITH_RADIUS.values(), ids=WITH_RADIUS)
@pytest.mark.parametrize("radius", [0.0, -1.0, math.nan, math.inf, "1", True])
def test_bad_radius(build, radius):
    with pytest.raises(InvalidInput, match=r"radius=.* is not allowed: give a finite number above 0"):
        build(radius)


BAD = {
    "p below 1": (lambda: sets.LpBall(0.5), "p=0.5"),
    "p nan": (lambda: sets.LpBall(math.nan), "p=nan"),
    "p text": (lambda: sets.LpBall("2"), "p='2'"),
    "no vertices": (lambda: sets.ConvexHull(torch.zeros(0, 3)), "vertices"),
    "flat vertices": (lambda: sets.ConvexHull([1.0, 2.0]), "vertices"),
    "nan vertices": (lambda: sets.ConvexHull([[math.nan]]), "vertices"),
    "ragged vertices": (lambda: sets.ConvexHull([[1.0], [1.0, 2.0]]), "vertices"),
    "lo above hi": (lambda: sets.Box(1.0, 0.0), "lo=1.0"),
    "lo above hi once": (lambda: sets.Box([0.0, 2.0], [1.0, 1.0]), "lo="),
    "infinite hi": (lambda: sets.Box(0.0, math.inf), "hi"),
    "two lengths": (lambda: sets.Box([0.0, 0.0], [1.0, 1.0, 1.0]), "hi.shape"),
    "matrix bound": (lambda: sets.Box(torch.zeros(2, 2), 1.0), "lo.shape"),
    "nan center": (lambda: sets.L2Ball(1.0, [math.nan]), "center"),
    "empty groups": (lambda: sets.GroupBall([]), "groups"),
    "empty group": (lambda: sets.GroupBall([[0], []]), "groups"),
    "overlapping groups": (lambda: sets.GroupBall([[0, 1], [1, 2]]), "exactly once"),
    "gap in groups": (lambda: sets.GroupBall([[0], [2]]), "exactly once"),
    "negative index": (lambda: sets.GroupBall([[0], [-1]]), "exactly once"),
    "fractional group": (lambda: sets.GroupBall([0.5, 1.0]), "integers"),
    "zero axis": (lambda: sets.Ellipsoid([1.0, 0.0]), "axes"),
    "short axis": (lambda: sets.Ellipsoid([1.0, 1e-60], 1e-60), "axes"),
    "long axis": (lambda: sets.Ellipsoid([1.0, 1e60], 1e60), "axes"),
    "zero basis": (lambda: sets.Subspace([[0.0, 0.0]]), "basis"),
    "flat basis": (lambda: sets.Subspace([1.0, 0.0]), "basis"),
    "shape of three": (lambda: sets.NuclearBall(1.0, (2, 2, 2)), "shape"),
    "shape missing": (lambda: sets.NuclearBall(1.0), "shape"),
    "rank zero": (lambda: sets.LowRank(0, 1.0, (2, 2)), "rank=0"),
    "rank too large": (lambda: sets.LowRank(3, 1.0, (2, 5)), "rank=3"),
    "no parts": (lambda: sets.Product([]), "parts"),
    "part not a set": (lambda: sets.Product([("l1", 3)]), "parts"),
    "part of wrong size": (lambda: sets.Product([(sets.Ellipsoid([1.0, 1.0]), 3)]), "size=3"),
    "part size zero": (lambda: sets.Product([(sets.L1Ball(), 0)]), "size=0"),
    "not a projection": (lambda: sets.FromProjection(3), "project=3"),
    "not an lmo": (lambda: sets.FromLMO(3), "lmo=3"),
    "tolerance": (lambda: sets.FromLMO(torch.sign, tol=0.0), "tol=0.0"),
    "width without d": (lambda: sets.L1Ball().gaussian_width(), "d=None"),
    "width samples": (lambda: sets.L1Ball().gaussian_width(3, samples=0), "samples=0"),
    "diameter d": (lambda: sets.L1Ball().diameter(0), "d=0"),
    "operation": (lambda: sets.L1Ball().can("fly"), "operation='fly'"),
    "negative tol": (lambda: sets.L1Ball().contains([0.0], tol=-1.0), "tol=-1.0"),
}


@pytest.mark.parametrize(("build", "message"), BAD.values(), ids=BAD)
def test_bad_arguments(build, message):
    with pytest.raises(InvalidInput) as refusal:
        build()
    assert message in str(refusal.value)


def call(subject, operation):
    if operation in ("diameter", "gaussian_width"):
        return getattr(subject, operation)(4)
    return getattr(subject, operation)(torch.ones(4))


MISSING = {
    "LowRank": (sets.LowRank(1, 1.0, (2, 2)), {"contains", "lmo", "gauge", "diameter"}, "nonconvex"),
    "Whole": (sets.Whole(), {"lmo", "support", "diameter", "gaussian_width"}, "unbounded"),
    "Subspace": (sets.Subspace(torch.eye(4)[:2]), {"lmo", "support", "diameter", "gaussian_width"}, "unbounded"),
    "Product": (
        sets.Product([(sets.L1Ball(), 2), (sets.Whole(), 2)]),
        {"lmo", "support", "diameter", "gaussian_width"},
        "part Whole",
    ),
    "FromProjection": (
        sets.FromProjection(lambda x: x.clamp(0, 1)),
        {"lmo", "support", "diameter", "gaussian_width", "gauge"},
        "",
    ),
    "FromLMO": (sets.FromLMO(lambda g: -g.sign()), {"diameter", "gauge"}, ""),
}


@pytest.mark.parametrize("name", MISSING)
@pytest.mark.parametrize("operation", sets.OPERATIONS)
def test_capabilities_are_declared_and_held(name, operation):
    subject, missing, reason = MISSING[name]
    assert subject.can(operation) == (operation not in missing)
    if operation in missing:
        with pytest.raises(sets.UnsupportedOperation, match=f"{name} has no {operation}: .*{reason}"):
            call(subject, operation)
    else:
        call(subject, operation)


def test_flags():
    assert not sets.LowRank(1, 1.0, (2, 2)).convex and sets.L1Ball().convex
    assert not sets.Whole().bounded and sets.Subspace(torch.eye(2), 1.0).bounded
    assert not sets.Product([(sets.LowRank(1, 1.0, (2, 2)), (2, 2)), (sets.L1Ball(), 1)]).convex
    assert not sets.Product([(sets.Whole(), 2)]).bounded


def test_sets_are_frozen_and_own_their_data():
    with pytest.raises(AttributeError):
        sets.L1Ball().radius = 2.0
    vertices = torch.eye(3)
    hull = sets.ConvexHull(vertices)
    vertices.zero_()
    assert hull.support(torch.tensor([1.0, 2.0, 3.0])) == 3.0


class Halfspace(sets.ConvexSet):
    """{x : x_1 <= 0}, with nothing but its projection."""

    def _project(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x[:1].clamp(max=0), x[1:]])


def test_a_class_can_do_what_it_writes():
    subject = Halfspace()
    assert [operation for operation in sets.OPERATIONS if subject.can(operation)] == ["contains", "project"]
    assert subject.contains(-torch.ones(2)) and not subject.contains(torch.ones(2))
    for operation in ("lmo", "gauge", "support", "diameter", "gaussian_width"):
        with pytest.raises(sets.UnsupportedOperation, match=f"Halfspace has no {operation}: its class has no formula"):
            call(subject, operation)


class Segment(Halfspace):
    """A third party's polytope: the segment between -e_1 and e_1."""

    def _vertex_form(self) -> sets.VertexForm:
        return sets.VertexForm(signed=True, rows=torch.tensor([[1.0, 0.0]]))


@pytest.mark.parametrize(
    "subject",
    [sets.L1Ball(2.0), sets.Simplex(3.0), sets.ConvexHull([[1.0, 2.0], [0.0, -1.0]]), Segment()],
    ids=lambda each: type(each).__name__,
)
def test_the_vertex_of_the_best_score_is_the_linear_minimiser(subject):
    form, g = subject.vertex_form(), torch.tensor([0.5, -2.0])
    scores = form.scores(g)
    best = int((scores.abs() if form.signed else scores).argmax())
    choice = torch.zeros(len(scores))
    choice[best] = scores[best].sign() if form.signed else 1.0
    expected = torch.tensor([-1.0, 0.0]) if isinstance(subject, Segment) else subject.lmo(g)
    torch.testing.assert_close(form.vertex(choice), expected)


@pytest.mark.parametrize(
    "subject",
    [sets.Box(0.0, 1.0), sets.Whole(), sets.Product([(sets.L1Ball(), 2), (sets.Simplex(), 2)])],
    ids=lambda each: type(each).__name__,
)
def test_sets_with_many_vertices_bring_none(subject):
    assert not subject.can("vertex_form")
    with pytest.raises(sets.UnsupportedOperation, match="has no vertex_form"):
        subject.vertex_form()
