"""Known values: vertices, diameters, gauges and widths worked out by hand."""

import itertools
import math

import pytest
import torch

from isthmus import sets
from isthmus.sets import widths
from isthmus.sets.projections import _pnorm
from isthmus.sets.widths import _chi_mean, _max_chi, _max_normal, _weighted_norm

VERTICES = torch.randn(7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def certified(subject, x):
    """The projection of x, optimal to rounding: max_s <x - Px, s - Px> is 0 there."""
    p = subject.project(x)
    gap = subject.support(x - p) - float((x - p) @ p)
    assert gap <= 1e-10 * max(1.0, float(x.norm())) * max(1.0, float(p.norm()))
    return p


def corners(values, d):
    return torch.tensor(list(itertools.product(values, repeat=d)), dtype=torch.float64)


EXPLICIT = {
    "simplex": (sets.Simplex(2.0), 2.0 * torch.eye(4, dtype=torch.float64)),
    "l1": (sets.L1Ball(2.0), torch.cat([torch.eye(4), -torch.eye(4)]).double() * 2.0),
    "hull": (sets.ConvexHull(VERTICES), VERTICES),
    "linf": (sets.LInfBall(0.5), corners([-0.5, 0.5], 4)),
    "box": (sets.Box(-1.0, 3.0), corners([-1.0, 3.0], 4)),
}


@pytest.mark.parametrize("name", EXPLICIT)
@pytest.mark.parametrize("g", [[1, 2, 3, 4], [-1, -2, -3, -4], [1, 1, 1, 1], [-2, -2, -2, -2], [3, -3, 3, -3]])
def test_lmo_is_the_best_explicit_vertex(name, g):
    subject, vertices = EXPLICIT[name]
    g = torch.tensor(g, dtype=torch.float64)
    s = subject.lmo(g)
    assert bool((vertices == s).all(1).any())
    assert float(g @ s) == pytest.approx(float((vertices @ g).min()), rel=1e-14)


DIAMETERS = [
    (sets.L1Ball(1.5), 5, 3.0),
    (sets.L2Ball(1.5), 5, 3.0),
    (sets.LInfBall(1.5), 4, 6.0),
    (sets.Box(0.0, 2.0), 9, 6.0),
    (sets.Box([0.0, 0.0], [3.0, 4.0]), None, 5.0),
    (sets.LpBall(1.5), 16, 2.0),
    (sets.LpBall(4.0), 16, 4.0),
    (sets.Simplex(3.0), 5, 3 * math.sqrt(2)),
    (sets.Simplex(3.0), 1, 0.0),
    (sets.ConvexHull([[0.0, 0.0], [3.0, 4.0], [1.0, 1.0]]), None, 5.0),
    (sets.ConvexHull([[1.0, 2.0]]), None, 0.0),
    (sets.Subspace([[1.0, 1.0]], 2.0), None, 4.0),
    (sets.NuclearBall(2.0, (3, 5)), (3, 5), 4.0),
    (sets.GroupBall([0, 0, 1], 2.0), 3, 4.0),
    (sets.Ellipsoid([1.0, 3.0], 0.5), 2, 3.0),
    (sets.Product([(sets.L2Ball(1.5), 2), (sets.L1Ball(2.0), 3)]), None, 5.0),
]


@pytest.mark.parametrize(("subject", "d", "value"), DIAMETERS)
def test_diameters(subject, d, value):
    assert subject.diameter(d) == pytest.approx(value, rel=1e-14)


def test_width_helpers_have_full_precision():
    assert _chi_mean(2) == pytest.approx(math.sqrt(math.pi / 2), rel=1e-14)
    assert _chi_mean(1001) == pytest.approx(math.sqrt(2) * math.exp(math.lgamma(501) - math.lgamma(500.5)), rel=1e-12)
    assert _max_normal(1) == pytest.approx(0.0, abs=1e-13)
    assert _max_normal(3) == pytest.approx(1.5 / math.sqrt(math.pi), rel=1e-12)
    assert _max_chi(torch.ones(1)) == pytest.approx(math.sqrt(2 / math.pi), rel=1e-12)
    assert _max_chi(torch.ones(2)) == pytest.approx(2 / math.sqrt(math.pi), rel=1e-12)
    assert _max_chi(torch.tensor([400])) == pytest.approx(_chi_mean(400), rel=1e-12)
    assert _weighted_norm(torch.full((50,), 3.0)) == pytest.approx(3 * _chi_mean(50), rel=1e-12)
    assert _weighted_norm(torch.tensor([2.0, 1e-9])) == pytest.approx(2 * _chi_mean(1), rel=1e-12)


def test_widths_grow_as_in_the_table_of_low_width_sets():
    d = 10**6
    assert float(sets.L1Ball().gaussian_width(d)) == pytest.approx(math.sqrt(2 * math.log(2 * d)), rel=0.1)
    assert float(sets.Simplex().gaussian_width(d)) < float(sets.L1Ball().gaussian_width(d))
    assert float(sets.L2Ball().gaussian_width(d)) == pytest.approx(math.sqrt(d), rel=1e-6)
    assert float(sets.NuclearBall(1.0, (40, 40)).gaussian_width(samples=200)) == pytest.approx(
        2 * math.sqrt(40), rel=0.05
    )
    low = sets.LowRank(2, shape=(40, 40)).gaussian_width(samples=200)
    assert 0.9 * 2 * math.sqrt(2 * 40) <= float(low) <= 2 * math.sqrt(2 * 40)
    assert float(sets.Subspace(torch.eye(100)[:10], 1.0).gaussian_width()) == pytest.approx(_chi_mean(10))


def test_width_seeds_repeat_and_matter():
    ball = sets.LpBall(3.0)
    assert ball.gaussian_width(20, samples=500, seed=3) == ball.gaussian_width(20, samples=500, seed=3)
    assert ball.gaussian_width(20, samples=500, seed=3) != ball.gaussian_width(20, samples=500, seed=4)


@pytest.mark.parametrize("p", [1.01, 1.05, 1.3, 1.999, 2.001, 2.5, 6.0, 30.0, 100.0])
@pytest.mark.parametrize("scale", [0.3, 1.0, 1e3, 1e8])
def test_lp_certificate_over_the_range_of_p(p, scale):
    ball = sets.LpBall(p, 0.7)
    x = scale * torch.randn(500, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) ** 3
    y = certified(ball, x)
    assert 1 - 1e-12 <= ball.gauge(y) <= 1 + 8 * torch.finfo(torch.float64).eps


@pytest.mark.parametrize("radius", [1e-10, 1.0, 1e10])
@pytest.mark.parametrize("p", [1.5, 3.0])
def test_a_point_very_far_away_is_projected_along_its_ray(p, radius):
    x = torch.tensor([9e299, -3e299, 0.0], dtype=torch.float64)
    near, far = (sets.LpBall(p, radius).project(t * x) for t in (1e-30, 1.0))
    assert torch.allclose(near, far, rtol=1e-9, atol=0.0)
    assert sets.LpBall(p, radius).gauge(far) == pytest.approx(1.0, rel=1e-12)


def test_the_p_norm_of_what_is_not_finite():
    x = torch.tensor([[math.inf, 1.0], [0.0, 0.0], [math.nan, 1.0]])
    norms = _pnorm(x, 3.0)
    assert norms[0] == math.inf and norms[1] == 0 and bool(norms[2].isnan())


@pytest.mark.parametrize("conditioning", [1.0, 1e3, 1e6])
def test_ellipsoid_certificate_over_conditioning(conditioning):
    generator = torch.Generator().manual_seed(4)
    axes = conditioning ** -torch.rand(200, dtype=torch.float64, generator=generator)
    body = sets.Ellipsoid(axes, 0.5)
    for scale in (1e-2, 1.0, 1e6):
        x = scale * torch.randn(200, dtype=torch.float64, generator=generator)
        certified(body, x)


@pytest.mark.parametrize(("count", "d"), [(200, 3), (30, 50), (300, 40)])
def test_hull_certificate_on_larger_hulls(count, d):
    generator = torch.Generator().manual_seed(6)
    hull = sets.ConvexHull(torch.randn(count, d, dtype=torch.float64, generator=generator))
    for scale in (0.1, 1.0, 10.0):
        x = scale * torch.randn(d, dtype=torch.float64, generator=generator)
        assert hull.contains(certified(hull, x))


def test_hull_projection_of_members_is_the_identity():
    generator = torch.Generator().manual_seed(0)
    for trial in range(300):
        count, d = (int(torch.randint(1, top, (1,), generator=generator)) for top in (30, 12))
        vertices = torch.randn(count, d, dtype=torch.float64, generator=generator)
        hull = sets.ConvexHull(vertices.round() if trial % 3 == 0 else vertices)  # rounding makes degenerate faces
        weights = torch.rand(count, dtype=torch.float64, generator=generator) ** 6
        inner = weights @ hull.vertices / weights.sum()
        for x in (inner, hull.project(2 * torch.randn(d, dtype=torch.float64, generator=generator))):
            torch.testing.assert_close(hull.project(x), x, rtol=0, atol=1e-13)


def test_hull_with_repeated_and_collinear_vertices():
    hull = sets.ConvexHull([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.5, 0.0], [0.0, 0.0]])
    assert hull.project([0.3, 2.0]).tolist() == pytest.approx([0.3, 0.0], abs=1e-14)
    assert hull.gauge([0.5, 0.0]) == pytest.approx(0.5)
    assert hull.gauge([0.5, 0.1]) == math.inf


def test_hull_gauge_in_a_narrow_cone_far_from_the_origin():
    generator = torch.Generator().manual_seed(20)
    shift = 100 * torch.randn(11, dtype=torch.float64, generator=generator)
    hull = sets.ConvexHull(torch.randn(27, 11, dtype=torch.float64, generator=generator) + shift)
    for x in (hull.project(shift), hull.project(shift.float())):
        assert hull.gauge(x) <= 1
        assert hull.gauge(3 * x) <= 3 * (1 + 1e-5)  # float32 rounds the point by 1e-7 of its distance
    assert hull.gauge(-shift) == math.inf


def test_gauges_of_sets_off_the_origin():
    assert sets.Simplex(2.0).gauge([1.0, 2.0]) == pytest.approx(1.5)
    assert sets.Simplex(2.0).gauge([1.0, -1e-9]) == math.inf
    assert sets.Box(1.0, 2.0).gauge([3.0, 4.0]) == pytest.approx(2.0)
    assert sets.Box(-1.0, 0.0).gauge([-3.0, 1.0]) == math.inf
    ball = sets.L2Ball(1.0, [3.0, 0.0])
    assert ball.gauge([8.0, 0.0]) == pytest.approx(2.0)
    assert ball.gauge([0.0, 1.0]) == math.inf
    assert ball.gauge([0.0, 0.0]) == 0.0
    assert sets.L2Ball(2.0, [1.0, 0.0]).gauge([-3.0, 0.0]) == pytest.approx(3.0)
    both = sets.Product([(sets.Simplex(1.0), 2), (sets.Simplex(1.0), 2)])
    assert both.gauge([1.0, 1.0, 2.0, 0.0]) == pytest.approx(2.0)
    assert both.gauge([1.0, 1.0, 1.0, 0.0]) == math.inf


def test_subspace_orthonormalises_and_drops_dependent_rows():
    plane = sets.Subspace([[1.0, 1.0, 0.0], [2.0, 2.0, 0.0], [0.0, 0.0, 5.0]])
    assert plane.rank == 2 and not plane.bounded
    assert plane.project([1.0, 3.0, 7.0]).tolist() == pytest.approx([2.0, 2.0, 7.0])
    assert plane.gauge([1.0, 1.0, 4.0]) == 0.0 and plane.gauge([1.0, 0.0, 0.0]) == math.inf


def test_matrix_and_flat_forms_agree():
    x = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
    for subject in (sets.NuclearBall(1.5, (4, 3)), sets.LowRank(2, 1.0, (4, 3))):
        y = subject.project(x)
        assert y.shape == (4, 3)
        assert torch.equal(subject.project(x.flatten()), y.flatten())
        assert subject.support(x) == subject.support(x.flatten())


def test_low_rank_projection_is_the_nearest_by_eckart_and_young():
    x = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
    singular = torch.linalg.svdvals(x)
    y = sets.LowRank(2, 100.0, (6, 5)).project(x)
    assert int(torch.linalg.matrix_rank(y)) == 2
    assert float((x - y).norm()) == pytest.approx(float(singular[2:].norm()), rel=1e-12)
    z = sets.LowRank(2, 1.0, (6, 5)).project(x)
    assert float(z.norm()) <= 1 + 1e-15
    assert sets.LowRank(2, 3.0, (6, 5)).support(x) == pytest.approx(3 * float(singular[:2].norm()), rel=1e-12)


def test_group_ids_and_lists_are_the_same_set():
    x = torch.arange(5.0).double()
    assert torch.equal(
        sets.GroupBall([[0, 3], [1, 4], [2]]).project(x), sets.GroupBall(torch.tensor([7, -1, 9, 7, -1])).project(x)
    )


def test_zero_is_in_no_multiple_of_a_hull_beside_it():
    beside = sets.ConvexHull([[1.0, 1.0], [2.0, 1.0]])
    zero = torch.zeros(2, dtype=torch.float64)
    assert beside.gauge(zero) == 0.0 and beside._scales(zero) == (0.0, 0.0)
    around = sets.ConvexHull([[1.0, 1.0], [-1.0, 1.0], [0.0, -1.0]])
    assert around.gauge(zero) == 0.0 and around._scales(zero) == (0.0, math.inf)


def test_widths_that_are_known_are_not_sampled():
    axes = torch.tensor([2.0, 1.0, 0.5], dtype=torch.float64)
    width = sets.Ellipsoid(axes, 1.5).gaussian_width(3)
    assert width.exact and width.standard_error == 0.0
    assert float(width) == pytest.approx(1.5 * _weighted_norm(axes), rel=1e-12)


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
def test_groups_of_any_size_have_a_length(size):
    ball = sets.GroupBall([0, 0, 1], 1.0)
    assert ball.gauge(torch.tensor([3.0, 4.0, 2.0], dtype=torch.float64) * size) == pytest.approx(7 * size, rel=1e-12)


def test_whole_space():
    space = sets.Whole()
    x = torch.tensor([1e9, -3.0])
    assert torch.equal(space.project(x), x) and space.contains(x) and space.gauge(x) == 0.0


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_wide_hulls_of_any_scale_project_the_origin_and_their_own_points(scale):
    generator = torch.Generator().manual_seed(1)
    vertices = scale * torch.randn(50, 480, generator=generator, dtype=torch.float64)
    hull = sets.ConvexHull(vertices)
    for x in (torch.zeros(480, dtype=torch.float64), vertices.mean(0), vertices[0], 10 * vertices[1]):
        p = hull.project(x)
        gap = hull.support(x - p) - float((x - p) @ p)
        assert gap <= 1e-10 * float(vertices.norm()) ** 2


@pytest.mark.parametrize("samples", [1, 7, 100])
def test_a_simulated_width_rests_on_as_many_draws_as_asked(samples, monkeypatch):
    monkeypatch.setattr(widths, "_CHUNK", 12)  # four rows at a time
    seen = []

    def support(rows):
        seen.append(len(rows))
        return rows.amax(-1)

    widths._monte_carlo(support, 3, samples, seed=0)
    assert sum(seen) == samples and max(seen) <= 4
