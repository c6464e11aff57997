"""Sketches that are never stored, checked without their matrix."""

import math

import pytest
import scipy.sparse as sp
import torch

from isthmus.sketches import SRHT, Coordinates, CountSketch, GaussianSketch, Nice, SparseJL, dense, hashed

D = 10_000_019


@pytest.mark.parametrize("encoder", [CountSketch(1000), SRHT(1000), Coordinates(1000), CountSketch(20_000)])
def test_projector_at_ten_million(encoder):
    sketch = encoder.draw(D, seed=1)
    y = torch.randn(sketch.m, dtype=torch.float64)
    torch.testing.assert_close(sketch.forward(sketch.adjoint(y)), y * sketch.norm**2)


def test_sparse_rows_at_ten_million():
    sketch = CountSketch(50).draw(D)
    x = sp.random_array((3, D), density=1e-6, format="csr", rng=0)
    want = torch.stack([sketch.forward(torch.from_numpy(x[[i]].toarray().ravel())) for i in range(3)])
    torch.testing.assert_close(sketch.rows(x), want)


@pytest.mark.parametrize("encoder", [SparseJL(60, s=4), GaussianSketch(60, scaling="jl")])
def test_coarse_norm_of_many_rows_is_still_above(encoder, monkeypatch):
    monkeypatch.setattr(hashed, "EIGEN_LIMIT", 10)
    monkeypatch.setattr(dense, "EIGEN_LIMIT", 10)
    sketch = encoder.draw(500)
    true = float(torch.linalg.svdvals(sketch.dense())[0])
    assert true <= sketch.norm <= math.sqrt(500) + 1


def test_classical_count_sketch_norm_is_the_largest_bucket():
    sketch = CountSketch(7, scaling="jl").draw(100)
    assert sketch.norm == pytest.approx(math.sqrt(int((sketch.dense() != 0).sum(1).max())), rel=1e-12)
    assert not sketch.tight


def test_dependent_sign_rows_are_drawn_again():
    from isthmus.sketches import RademacherSketch

    for t in range(40):
        phi = RademacherSketch(2).draw(2, t=t).dense()
        torch.testing.assert_close(phi @ phi.T, torch.eye(2, dtype=phi.dtype))


def test_nice_bound_keeps_codes_short():
    c = torch.rand(50, dtype=torch.float64) + 0.1
    for t in range(20):
        assert float(Nice(9, bounds=c).draw(50, t=t).forward(c).norm()) <= 1 + 1e-12
