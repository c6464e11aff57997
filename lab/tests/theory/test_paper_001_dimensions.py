"""The rule for m_t, and the theorems behind it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from isthmus import InvalidInput
from isthmus.sets import L1Ball, LowRank, LpBall, NuclearBall, Simplex
from isthmus.sketches import SparseJL
from isthmus.theory import narrow_dimension
from isthmus.theory.schedules import round_up
from lab.theory import (
    dimension_at,
    direction_width,
    gordon_dimension,
    gordon_range,
    jl_dimension,
    rounds_until_full,
    sparse_cone_width,
    sparse_cone_width_bound,
    sparse_jl_columns,
    sparse_jl_condition,
    sparse_jl_dimension,
    table_width,
)


def test_round_up_forgives_rounding_only() -> None:
    assert round_up((1 / (1 / 49)) ** 2) == 2401
    assert round_up(0.0) == 0 and round_up(2.0000001) == 3


@pytest.mark.parametrize("t", range(1, 60))
def test_the_dimension_is_the_rule_of_the_paper(t: int) -> None:
    """min(d, w^2 t^2), in the paper's count, to the last integer."""
    assert dimension_at(t - 1, 10_000, 2.0) == min(10_000, 4 * t**2)
    assert dimension_at(t - 1, 10_000, 2.0, offset=2) == min(10_000, 4 * (t + 1) ** 2)
    assert dimension_at(t - 1, 10_000, 2.0, constant=0.25) == t**2


def test_the_dimension_lies_between_1_and_d() -> None:
    assert narrow_dimension(7, 1e-9, 1.0) == 1
    assert narrow_dimension(7, 1e200, 1e-200) == 7
    assert narrow_dimension(1, 3.0, 0.5) == 1


def test_the_dimension_falls_with_beta_and_grows_with_the_width() -> None:
    by_beta = [narrow_dimension(10**6, 3.0, beta) for beta in (0.01, 0.05, 0.1, 0.5, 1.0)]
    by_width = [narrow_dimension(10**6, width, 0.1) for width in (0.5, 1.0, 4.0, 9.0)]
    assert by_beta == sorted(by_beta, reverse=True) and by_width == sorted(by_width)


@pytest.mark.parametrize("every", [1, 2, 7])
@pytest.mark.parametrize("offset", [1, 2])
@pytest.mark.parametrize("d, width", [(10_000, 3.03), (500, 2.0), (3, 5.0), (1, 1.0), (10**6, 0.3)])
def test_rounds_until_full_is_the_first_full_round(d: int, width: float, offset: int, every: int) -> None:
    first = rounds_until_full(d, width, every=every, offset=offset)
    assert dimension_at(first, d, width, every=every, offset=offset) == d
    assert first == 0 or dimension_at(first - 1, d, width, every=every, offset=offset) < d


def test_the_step_count_of_the_erratum() -> None:
    """m_t reaches d = 10^4 after about 33 steps on the l1 ball, but only after 33 epochs when t is the epoch."""
    width = math.sqrt(math.log(10_000))
    assert rounds_until_full(10_000, width) + 1 == 33
    assert rounds_until_full(10_000, width, every=100) == 3200


def test_gordon_range_holds_on_a_subspace(rng: np.random.Generator) -> None:
    """Its norms are singular values of an m x k Gaussian matrix: E min and E max, within five standard errors."""
    m, k = 60, 10
    low, high = gordon_range(m, direction_width(k))
    values = np.linalg.svd(rng.standard_normal((400, m, k)) / math.sqrt(m), compute_uv=False)
    error = 5 * values.std(0).max() / math.sqrt(400)
    assert values[:, -1].mean() > low - error and values[:, 0].mean() < high + error
    assert abs(values[:, -1].mean() - low) < 0.1 and abs(values[:, 0].mean() - high) < 0.1  # of order m^{-1/2}


def test_gordon_says_nothing_when_m_is_small() -> None:
    assert gordon_range(4, 3.0)[0] == 0.0
    assert gordon_dimension(direction_width(900), 0.5) >= 900


def test_a_set_with_an_interior_needs_every_dimension() -> None:
    """The caveat of Lemma 2.2: at the width of all directions the rule asks for d at every beta_t = 1/t, t >= 2."""
    assert narrow_dimension(10_000, direction_width(10_000), 0.5) == 10_000


@pytest.mark.parametrize("d", [1, 2, 10, 999, 1000, 1001, 10**6])
def test_direction_width_is_just_below_the_root(d: int) -> None:
    assert d / math.sqrt(d + 1) < direction_width(d) < math.sqrt(d)


def test_direction_width_has_no_seam() -> None:
    """E||g||_d E||g||_{d+1} = d, across the change of formula."""
    for d in (5, 999, 1000, 1001):
        assert direction_width(d) * direction_width(d + 1) == pytest.approx(d, rel=1e-11)


def test_jl_dimension_keeps_distances(rng: np.random.Generator) -> None:
    m = jl_dimension(30, 0.5)
    assert m == math.ceil(4 * math.log(30) / (0.125 - 0.125 / 3))
    X = rng.standard_normal((30, 300))
    Y = X @ rng.standard_normal((300, m)) / math.sqrt(m)
    rows, columns = np.triu_indices(30, 1)
    ratio = ((Y[rows] - Y[columns]) ** 2).sum(1) / ((X[rows] - X[columns]) ** 2).sum(1)
    assert 0.5 < ratio.min() and ratio.max() < 1.5


def test_sparse_jl_columns_are_those_of_the_sketch() -> None:
    for m, d, beta in [(200, 10_000, 0.5), (20, 10_000, 0.5), (5000, 300, 0.1)]:
        assert sparse_jl_columns(m, d, beta) == SparseJL(m, s="theorem", beta=beta).sparsity(m, d)


def test_sparse_jl_powers() -> None:
    assert sparse_jl_dimension(100, 2.0, 0.5, power=0.0) == gordon_dimension(2.0, 0.5) == 16
    assert sparse_jl_columns(10**6, 100, 0.1, power=2.0) == math.ceil(math.log(100) ** 2 * 100)
    assert sparse_jl_condition(1, 100, 1e9, 0.1) and not sparse_jl_condition(100, 100, 1.0, 0.9)


@pytest.mark.parametrize("d, k", [(200, 1), (200, 5), (200, 60), (200, 200)])
def test_sparse_cone_width_against_sampling(d: int, k: int, rng: np.random.Generator) -> None:
    """E dist(g, normal cone)^2, the statistical dimension, is below the formula by at most 2 sqrt(d / k)."""
    g = rng.standard_normal((2000, d))
    t = np.linspace(0, 5, 251)[:, None]
    on = (g[:, :k] ** 2).sum(1) - 2 * t * g[:, :k].sum(1) + k * t**2
    off = np.stack([(np.maximum(np.abs(g[:, k:]) - s, 0) ** 2).sum(1) for s in t[:, 0]])
    sampled = (on + off).min(0)
    error = 5 * sampled.std() / math.sqrt(len(sampled))
    formula = sparse_cone_width(d, k) ** 2
    assert sampled.mean() - error < formula < sampled.mean() + 2 * math.sqrt(d / k) + error


@pytest.mark.parametrize("d", [10, 100, 10_000])
def test_sparse_cone_width_is_below_its_closed_form(d: int) -> None:
    widths = [sparse_cone_width(d, k) for k in (1, 2, 5, 10)]
    assert widths == sorted(widths)
    for k in (1, 2, 5, 10):
        assert 0 < sparse_cone_width(d, k) <= sparse_cone_width_bound(d, k) <= math.sqrt(d)


def test_the_cone_needs_a_compressed_sensing_dimension() -> None:
    """k log(d/k) and not log d: the honest rule for a 10-sparse point in d = 10^4 at beta = 1/2."""
    assert 300 < narrow_dimension(10_000, sparse_cone_width(10_000, 10), 0.5) < 500
    assert narrow_dimension(10_000, math.sqrt(math.log(10_000)), 0.5) == 37


@pytest.mark.parametrize(
    "name, options, exact",
    [
        ("l1", {}, lambda d: L1Ball(1.0).gaussian_width(d)),
        ("simplex", {}, lambda d: Simplex(1.0).gaussian_width(d)),
        ("lp", {"p": 3.0}, lambda d: LpBall(3.0, 1.0).gaussian_width(d)),
        ("nuclear", {}, lambda d: NuclearBall(1.0, (d, d)).gaussian_width(samples=20)),
        ("low_rank", {"rank": 2}, lambda d: LowRank(2, shape=(d, d)).gaussian_width(samples=20)),
    ],
)
def test_table_widths_have_the_order_of_the_exact_ones(name: str, options: dict, exact: object) -> None:
    ratios = [float(exact(d)) / table_width(name, d, **options) for d in (10, 40, 160)]  # type: ignore[operator]
    assert 0.4 < min(ratios) and max(ratios) < 2.5 and max(ratios) < 1.5 * min(ratios)


def test_table_widths_by_hand() -> None:
    assert table_width("hull", 5, vertices=10, radius=2.0) == pytest.approx(2 * math.sqrt(math.log(10)))
    assert table_width("subspace", 100, rank=16) == 4.0
    assert table_width("lp", 50, p=math.inf, constant=2.0) == 100.0


@pytest.mark.parametrize(
    "call",
    [
        lambda: narrow_dimension(0, 1.0, 0.5),
        lambda: narrow_dimension(10, 0.0, 0.5),
        lambda: narrow_dimension(10, 1.0, 0.0),
        lambda: narrow_dimension(10, math.nan, 0.5),
        lambda: dimension_at(-1, 10, 1.0),
        lambda: dimension_at(0, 10, 1.0, every=0),
        lambda: rounds_until_full(10, -1.0),
        lambda: gordon_range(0, 1.0),
        lambda: jl_dimension(10, 1.0),
        lambda: sparse_jl_columns(10, 10, 0.0),
        lambda: sparse_cone_width(10, 11),
        lambda: sparse_cone_width_bound(10, 0),
        lambda: table_width("cube", 10),
        lambda: table_width("lp", 10, p=1.0),
    ],
)
def test_refusals(call: object) -> None:
    with pytest.raises(InvalidInput):
        call()  # type: ignore[operator]
