"""The distributions behind the maps: means, variances and coverage, accepted and rejected."""

import math

import pytest
import torch

from isthmus import sketches
from isthmus.base import randomness
from isthmus.base.space import Space
from isthmus.sketches.hashed import Buckets, Permutation, _next_prime
from isthmus.sketches.selection import _block_sizes

D, M = 60, 12


def vector(d=D):
    v = torch.randn(d, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    v[0] = 3.0
    return v


def lengths(encoder, v, draws):
    return torch.stack([encoder.draw(len(v), t=t).forward(v).square().sum() for t in range(draws)])


def mixed(v):
    """||v||_2^4 - ||v||_4^4 = sum over j != k of v_j^2 v_k^2."""
    return float(v.square().sum() ** 2 - v.pow(4).sum())


def sparse_variance(v, m, s):
    sizes = [(r + 1) * m // s - r * m // s for r in range(s)]
    return 2 / s**2 * sum(1 / size for size in sizes) * mixed(v)


# E||Phi v||^2 = ||v||^2 for all of them; the variance is each family's own formula.
VARIANCES = {
    "gaussian-jl": (sketches.GaussianSketch(M, scaling="jl"), lambda v: 2 / M * float(v.square().sum()) ** 2),
    "gaussian": (sketches.GaussianSketch(M), lambda v: 2 * (D - M) / (M * (D + 2)) * float(v.square().sum()) ** 2),
    "rademacher-jl": (sketches.RademacherSketch(M, scaling="jl"), lambda v: 2 / M * mixed(v)),
    "count-jl": (sketches.CountSketch(M, scaling="jl"), lambda v: 2 / M * mixed(v)),
    "count": (sketches.CountSketch(M), lambda v: 2 * (D / M - 1) / (D - 1) * mixed(v)),
    "sparse-divides": (sketches.SparseJL(M, s=4), lambda v: sparse_variance(v, M, 4)),
    "sparse-uneven": (sketches.SparseJL(M, s=5), lambda v: sparse_variance(v, M, 5)),
    "coordinates": (
        sketches.Coordinates(M),
        lambda v: (D - M) / (M * (D - 1)) * (D * float(v.pow(4).sum()) - float(v.square().sum()) ** 2),
    ),
}


@pytest.mark.parametrize("name", list(VARIANCES))
def test_length_is_kept_on_average_with_the_predicted_variance(name):
    encoder, formula = VARIANCES[name]
    v, draws = vector(), 4000
    found = lengths(encoder, v, draws)
    want, square = formula(v), float(v.square().sum())
    assert abs(float(found.mean()) - square) < 4.5 * math.sqrt(want / draws)
    deviations = (found - found.mean()).square()
    error = float(deviations.std()) / math.sqrt(draws)

    def accepted(variance):
        return abs(float(deviations.mean()) - variance) < 4.5 * error

    assert accepted(want)
    assert not accepted(want * 2 / 3)
    assert not accepted(want * 3 / 2)


LAYERS = Space.of({"a": (3, 4), "b": (1, 6)})
LIFTED = {
    "gaussian": (sketches.GaussianSketch(5), 18),
    "rademacher": (sketches.RademacherSketch(5), 18),
    "count": (sketches.CountSketch(5), 18),
    "srht": (sketches.SRHT(5), 18),
    "coordinates": (sketches.Coordinates(5), 18),
    "nice": (sketches.Nice(5, bounds=[1.0 + j for j in range(18)]), 18),
    "blocks": (sketches.Blocks([[0, 5], range(1, 5), range(6, 18)], [1.0, 2.0, 3.0], [0.5, 0.3, 0.2]), 18),
    "blocks-uniform": (sketches.Blocks(4), 18),
    "kronecker": (sketches.Kronecker(2, 2), LAYERS),
    "tensor": (sketches.TensorSketch(5), LAYERS),
}


@pytest.mark.parametrize("name", list(LIFTED))
def test_pinv_over_coverage_is_unbiased(name):
    encoder, space = LIFTED[name]
    v, draws = vector(18), 2000
    total, squares = torch.zeros(18, dtype=torch.float64), torch.zeros(18, dtype=torch.float64)
    for t in range(draws):
        sketch = encoder.draw(space, t=t)
        lifted = sketch.pinv(sketch.forward(v)) / sketch.coverage
        total, squares = total + lifted, squares + lifted.square()
    mean = total / draws
    error = (squares / draws - mean.square()).clamp_min(1e-12).sqrt() / math.sqrt(draws)
    assert bool(((mean - v).abs() < 4.5 * error).all())
    assert not bool(((1.25 * mean - v).abs() < 4.5 * error).all())


def test_blocks_are_drawn_with_their_probabilities():
    probs, draws = torch.tensor([0.5, 0.3, 0.2]), 4000
    recipe = sketches.Blocks([slice(0, 1), slice(1, 3), slice(3, 6)], probs=probs)
    sizes = torch.tensor([recipe.draw(6, t=t).m for t in range(draws)])
    shares = torch.stack([(sizes == m).double().mean() for m in (1, 2, 3)])
    assert bool(((shares - probs).abs() < 4.5 * (probs * (1 - probs) / draws).sqrt()).all())
    assert recipe.draw(6).coverage.tolist() == pytest.approx([0.5, 0.3, 0.3, 0.2, 0.2, 0.2])


@pytest.mark.parametrize("small", [0, 1 << 14])
@pytest.mark.parametrize("d", [1, 2, 3, 10, 997, 4096, 100_000])
def test_permutations_are_bijections(d, small, monkeypatch):
    monkeypatch.setattr(Permutation, "SMALL", small)
    assert torch.equal(Permutation(9, d)(torch.arange(d)).sort().values, torch.arange(d))


@pytest.mark.parametrize(("d", "small", "draws"), [(6, 1 << 14, 6000), (1 << 16, 0, 1500)])
def test_permutation_pairs_are_uniform(d, small, draws, monkeypatch):
    monkeypatch.setattr(Permutation, "SMALL", small)
    pairs = [Permutation(randomness.key(k), d)(torch.tensor([1, 4])).tolist() for k in range(draws)]
    counts = torch.zeros(6, 6)
    for i, j in pairs:
        counts[i * 6 // d, j * 6 // d] += 1
    cells = counts[~torch.eye(6, dtype=torch.bool)] if d == 6 else counts.view(-1)
    chi = float((cells - draws / len(cells)).square().sum() / (draws / len(cells)))
    assert chi < len(cells) + 4.5 * math.sqrt(2 * len(cells))


@pytest.mark.parametrize(("d", "m"), [(1, 1), (10, 10), (997, 100), (1500, 37), (200_000, 999)])
def test_buckets_are_balanced_and_counted_in_closed_form(d, m):
    buckets = Buckets(11, d, m)
    found = torch.bincount(buckets.range(0, d), minlength=m)
    assert torch.equal(found, Buckets.sizes(d, m))
    assert int(found.max() - found.min()) <= 1


def test_buckets_of_a_huge_dimension_follow_the_formula():
    d, m = (1 << 31) + 11, 12_345
    buckets, lo = Buckets(2, d, m), (1 << 31) - 70_000
    found = buckets.range(lo, d)
    for j in (lo, lo + 65_535, lo + 65_536, d - 1):
        image = (buckets.a * j + buckets.c) % buckets.p
        while image >= d:
            image = (buckets.a * image + buckets.c) % buckets.p
        assert int(found[j - lo]) == image % m


def test_primes():
    sieve = [n for n in range(3, 2000) if all(n % k for k in range(2, math.isqrt(n) + 1))]
    assert all(_next_prime(d) == next(p for p in sieve if p >= d) for d in range(1, 1900))


@pytest.mark.parametrize("d", [1, 511, 1023, 1024, 1025, 1535, 1536, 2**20 + 1, 2**21 - 1, 3 * 2**20 + 700, 10**8])
def test_srht_blocks(d):
    sizes = _block_sizes(d)
    assert sum(sizes) == d
    odd = [size for size in sizes if size & (size - 1)]
    assert len(odd) <= 1 and all(512 <= size < 1024 for size in odd if d >= 1024)
    assert all(size >= 512 for size in sizes if d >= 512)


RANDOM = [sketches.GaussianSketch, sketches.RademacherSketch, sketches.SparseJL, sketches.CountSketch, sketches.SRHT]
RANDOM += [sketches.Coordinates, sketches.Nice, lambda m, **k: sketches.Blocks(40 // m, **k)]
RANDOM += [lambda m, **k: sketches.Kronecker(m, 1, **k)]


@pytest.mark.parametrize("make", RANDOM)
def test_maps_change_with_seed_and_round_and_last_for_refresh_rounds(make):
    def matrix(encoder, seed, t):
        return encoder.draw(40, seed=seed, t=t).dense()

    fresh, kept = make(4), make(4, refresh=5)
    first = matrix(fresh, 0, 0)
    assert torch.equal(first, matrix(fresh, 0, 0))
    assert any(not torch.equal(first, matrix(fresh, 0, t)) for t in range(1, 5))
    assert any(not torch.equal(first, matrix(fresh, seed, 0)) for seed in range(1, 5))
    assert all(torch.equal(matrix(kept, 0, t), matrix(kept, 0, 5)) for t in range(5, 10))
    assert any(not torch.equal(matrix(kept, 0, 4), matrix(kept, 0, t)) for t in (5, 10, 15))


def test_sizes_may_be_fractions_and_rules():
    assert sketches.CountSketch(0.25).draw(40).m == 10
    growing = sketches.CountSketch(lambda t: t + 1, refresh=4)
    assert [growing.draw(40, t=t).m for t in (0, 3, 4, 9)] == [1, 1, 5, 9]
