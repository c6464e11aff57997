"""Smooth features: distributions behind noisy counts, orthonormal functions, rows that depend on no other row."""

import math

import numpy as np
import pytest
import torch

from isthmus import InvalidInput
from isthmus.problems.features import Distribution, bins_of, distribution, grid, smooth_map
from isthmus.problems.scaling import RowMap, RowMaps

EDGES = grid(5)


def counted(x: np.ndarray) -> torch.Tensor:
    """Counts of each column in the bins of the grid, one entry at a time."""
    counts = torch.zeros(x.shape[1], len(EDGES) - 1, dtype=torch.float64)
    for row in x:
        for j, value in enumerate(row):
            counts[j, min(max(int(np.searchsorted(EDGES.numpy(), value, side="right")) - 1, 0), len(EDGES) - 2)] += 1
    return counts


def columns(n: int = 2000, seed: int = 0) -> np.ndarray:
    """A bell, a skewed column, an indicator, a constant, three values."""
    rng = np.random.default_rng(seed)
    skewed = np.minimum(rng.lognormal(-4, 1, n), 1)
    return np.stack(
        [rng.normal(0, 0.2, n).clip(-1, 1), skewed, rng.random(n) < 0.3, np.zeros(n), rng.integers(-1, 2, n) / 2], 1
    )


def shapes(n: int = 2000, noise: float = 0.0, seed: int = 0) -> Distribution:
    counts = counted(columns(n, seed))
    draws = torch.randn(counts.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return distribution(counts + noise * draws, noise, n, EDGES)


def test_bins_are_those_of_a_search_through_the_edges() -> None:
    x = torch.tensor([-9.0, -1.0, -0.5, -1e-6, 0.0, 1e-12, 0.3, 1.0, 9.0]).double()
    slow = [max([i for i in range(len(EDGES) - 1) if EDGES[i] <= value], default=0) for value in x]
    assert bins_of(EDGES, x).tolist() == slow
    for point in (-1.0, 0.0, 1.0):  # in a bin of its own
        low, high = EDGES[int(bins_of(EDGES, torch.tensor([point]).double()))], point + 1e-9
        assert point - 2e-9 <= float(low) <= point <= high


def test_without_noise_the_distribution_is_that_of_the_counts() -> None:
    torch.testing.assert_close(shapes().p, counted(columns()) / 2000)


@pytest.mark.parametrize("noise", [1.0, 10.0, 40.0])
def test_noisy_counts_tell_mean_and_spread(noise: float) -> None:
    found, x = shapes(noise=noise), columns()
    assert (found.p >= 0).all() and torch.allclose(found.p.sum(1), torch.ones(5).double())
    far = 3 * noise * math.sqrt(len(EDGES)) / 2 / 2000 + 0.01  # three deviations of half of all bins
    np.testing.assert_allclose(found.mean.numpy(), x.mean(0), atol=far)
    np.testing.assert_allclose(found.variance.clamp(min=0).numpy(), x.var(0), atol=far)


@pytest.mark.parametrize("noise", [10.0, 40.0, 80.0])
def test_an_indicator_has_the_noise_of_its_own_bins(noise: float) -> None:
    """A 0/1 column is in two bins: those between them, where nothing is, add no noise."""
    for seed in range(5):
        found, x = shapes(noise=noise, seed=seed), columns(seed=seed)
        assert float(found.mean[2]) == pytest.approx(float(x[:, 2].mean()), abs=4 * noise / math.sqrt(2) / 2000)
        assert float(found.variance[3]) < 1e-12


def test_records_between_the_points_are_not_lost() -> None:
    """A column of numbers alone keeps all of its mass between -1, 0 and 1; one with many zeros shares it."""
    rng = np.random.default_rng(0)
    x = np.stack([rng.uniform(0.2, 0.8, 2000), np.where(rng.random(2000) < 0.5, 0, rng.uniform(0.2, 0.8, 2000))], 1)
    noise = torch.randn(2, len(EDGES) - 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = distribution(counted(x) + 5 * noise, 5.0, 2000, EDGES)
    zero = int(bins_of(EDGES, torch.zeros(1).double()))
    assert float(found.p[0, zero]) == 0.0 and float(found.p[1, zero]) == pytest.approx(0.5, abs=0.05)
    np.testing.assert_allclose(found.mean.numpy(), x.mean(0), atol=0.05)


def test_noise_alone_is_no_tail() -> None:
    """An empty end of the range stays empty: its bins do not stand out of the noise."""
    low, high = shapes(noise=10.0).ends
    assert float(high[0]) < 0.9 and float(low[0]) > -0.9


def test_functions_are_orthonormal_and_as_many_as_a_column_has() -> None:
    mapped = smooth_map(shapes(), features=100, functions=6, longer=1e6)
    x = columns()
    rows = mapped(x).dense()[:, :-1] * math.hypot(mapped.limit, mapped.bias)
    of = {j: [i for i, c in enumerate(mapped.columns.tolist()) if c == j] for j in range(5)}
    assert [len(of[j]) for j in range(5)] == [6, 6, 1, 1, 2]  # two values have one function, three have two
    for j in (0, 1, 2, 4):
        # up to what entries vary within a bin, which the linear function's scale counts and the middles do not
        values, p = mapped.values[of[j]], shapes().p[j]
        gram = (values * p) @ values.T
        sizes = gram.diagonal().sqrt()
        assert float((values @ p).abs().max()) < 1e-6 and float(sizes[0]) == pytest.approx(1, abs=0.03)
        np.testing.assert_allclose(1 / sizes.numpy(), np.round(1 / sizes.numpy()), rtol=0.03)
        torch.testing.assert_close(gram, torch.diag(sizes**2), atol=0.02, rtol=0)  # the k-th has weight 1 / k
    bell = rows[:, of[0]]
    np.testing.assert_allclose((bell.T @ bell / len(rows)).numpy(), np.diag(1 / np.arange(1, 7) ** 2.0), atol=0.03)


def test_fewer_features_are_the_first_functions_of_all_columns() -> None:
    assert len(smooth_map(shapes(), features=5, functions=6).columns) == 5
    assert len(smooth_map(shapes(), features=9, functions=6).columns) == 7
    assert len(smooth_map(shapes(), features=6, functions=6).columns) == 5  # of all columns, or of none
    assert len(smooth_map(shapes(), features=100, functions=1).columns) == 5


def test_rows_have_norm_at_most_one_and_keep_their_bias() -> None:
    mapped = smooth_map(shapes(), features=20, functions=6)
    strange = np.vstack([columns(50), np.full((1, 5), 1e300), np.full((1, 5), -1e300), np.zeros((1, 5))])
    view = mapped(strange)
    rows = view.dense()
    assert bool((rows.norm(dim=1) <= 1).all()) and bool((view.upper <= 1).all())
    assert bool((view.upper >= rows.norm(dim=1) * (1 - 1e-12)).all())
    assert bool((rows[:, -1] == view.bias).all()) and view.bias > 0.1


def test_a_row_depends_on_no_other_to_the_bit() -> None:
    found, x = smooth_map(shapes(noise=5.0), features=20, functions=6), columns(997, seed=4)
    together = found(x).dense()
    for lo, hi in ((0, 1), (3, 17), (500, 997)):
        assert torch.equal(found(x[lo:hi]).dense(), together[lo:hi])


@pytest.mark.parametrize("shift", [None, 0.1])
def test_nor_where_it_is_seen_through_another_map_first(shift: float | None) -> None:
    """Entries in steps lie at the edges of bins: one digit would put them, and all records like them, in another."""
    x = np.random.default_rng(1).integers(-8, 9, (1003, 5)) / 8
    ends = torch.ones(5).double()
    moved = None if shift is None else torch.full((5,), shift).double()
    first = RowMap(-ends, ends, moved, ends / 1.1, math.sqrt(5))
    chain = RowMaps([first, smooth_map(shapes(noise=5.0), reach=first(x).reach, features=20, functions=6)])
    rows, bins = chain(x).dense(), bins_of(EDGES, first(x).dense() / first(x).reach)
    for lo, hi in ((0, 1), (0, 5), (100, 777), (1, 1003)):
        assert torch.equal(chain(x[lo:hi]).dense(), rows[lo:hi])
        assert torch.equal(bins_of(EDGES, first(x[lo:hi]).dense() / first(x).reach), bins[lo:hi])


def test_other_columns_are_refused() -> None:
    with pytest.raises(InvalidInput, match="give 5 columns"):
        smooth_map(shapes(), features=20, functions=6)(np.zeros((3, 4)))
