"""What every kind of rows promises, against its float64 matrix."""

import math

import pytest
import torch
from reference import DenseSketch, exact_norms, never_densified
from row_cases import DERIVED, DTYPES, EXACT, csr, draw

from isthmus.base.space import Space
from isthmus.base.validate import InvalidInput
from isthmus.gradients import Dense, Outer, Rows, Stack
from isthmus.gradients.rows import difference, regrouped

ORDS = [1, 2, math.inf]
KINDS = EXACT + DERIVED


def tolerance(dtype):
    """bfloat16 factors are raised to float32 before anything is computed."""
    return {"rtol": 1e-12, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 2e-5, "atol": 2e-5}


@pytest.fixture(params=KINDS, ids=lambda make: make.__name__)
def make(request):
    return request.param


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request):
    return request.param


@pytest.mark.parametrize("n", [0, 1, 7])
def test_shape_dense_and_sums(make, dtype, n, draws):
    rows, truth = make(n, dtype)
    assert isinstance(rows, Rows) and (rows.n, rows.d) == tuple(truth.shape)
    assert rows.dtype == (torch.float64 if truth.numel() and dtype == torch.float64 else rows.dtype)
    assert rows.dense().shape == truth.shape
    torch.testing.assert_close(rows.dense().double(), truth, **tolerance(dtype))
    c = torch.randn(rows.n, generator=draws, dtype=torch.float64)
    torch.testing.assert_close(rows.sum(c).double(), c @ truth, **tolerance(dtype))
    torch.testing.assert_close(rows.sum().double(), truth.sum(0), **tolerance(dtype))
    assert rows.sum().shape == (rows.d,) and rows.sum().dtype == rows.dtype != torch.bfloat16


@pytest.mark.parametrize("ord", ORDS)
@pytest.mark.parametrize("n", [0, 1, 7])
def test_norms_are_never_below_and_hardly_above(make, dtype, n, ord):
    rows, truth = make(n, dtype)
    norms, true = rows.norms(ord), exact_norms(truth, ord)
    assert norms.shape == (rows.n,) and norms.dtype == rows.dtype != torch.bfloat16
    exact = make in EXACT
    reference = true if exact else exact_norms(rows.dense().double(), ord)
    assert bool((norms.double() >= reference).all())
    assert bool((norms.double() <= true * (1 + (1e-12 if dtype == torch.float64 else 1e-4)) + 1e-12).all())


@pytest.mark.parametrize("n", [0, 1, 7])
def test_parts_scaling_and_leaves(make, dtype, n):
    rows, truth = make(n, dtype)
    half = rows.n // 2
    torch.testing.assert_close(rows.part(half, rows.n).dense().double(), truth[half:], **tolerance(dtype))
    torch.testing.assert_close(rows.scaled(-2.0).sum().double(), -2 * truth.sum(0), **tolerance(dtype))
    pieces = [piece.dense().double() for _, piece in rows.leaves()]
    torch.testing.assert_close(torch.cat(pieces, dim=1), truth, **tolerance(dtype))


@pytest.mark.parametrize("n", [0, 1, 7])
def test_codes_equal_the_dense_product(make, dtype, n, draws):
    rows, truth = make(n, dtype)
    matrix = torch.randn(5, rows.d + 3, generator=draws, dtype=torch.float64)
    sketch = DenseSketch(matrix)
    codes = rows.through(sketch, 2)
    assert (codes.n, codes.d) == (rows.n, 5)
    wanted = truth @ matrix[:, 2 : 2 + rows.d].T
    loose = {"rtol": 1e-4, "atol": 1e-4} if dtype != torch.float64 else tolerance(dtype)
    torch.testing.assert_close(codes.dense().double(), wanted, **loose)
    assert bool((codes.norms().double() >= exact_norms(codes.dense().double()) * (1 - 1e-16)).all())


@pytest.mark.parametrize("ord", [0, 3, 0.5, "fro"])
def test_other_norms_are_refused(make, ord):
    with pytest.raises(InvalidInput, match="choose one of"):
        make(3, torch.float64)[0].norms(ord)


def test_weights_of_the_wrong_length_are_refused(make):
    rows = make(3, torch.float64)[0]
    with pytest.raises(InvalidInput, match="weights.shape"):
        rows.sum(torch.ones(rows.n + 1))


def test_encoding_through_leaves_adds_the_codes(draws):
    a, b = draw(4, 3, dtype=torch.float64, seed=1), draw(4, 2, dtype=torch.float64, seed=2)
    rows = Stack([("one", Dense(a)), ("two", Dense(b))])
    matrix = torch.randn(3, 5, generator=draws, dtype=torch.float64)
    sketch = DenseSketch(matrix, Space.of({"one": (1, 3), "two": (1, 2)}))
    torch.testing.assert_close(sketch.encode(rows).dense(), rows.dense() @ matrix.T)


def test_csr_is_never_densified(monkeypatch):
    X = csr(8, 6, torch.float64)
    never_densified(X, monkeypatch)
    r = torch.ones(8, 2, dtype=torch.float64)
    rows, other, groups = Outer(X, r), Outer(X.copy(), 2 * r), torch.arange(8) // 3
    for kind in (rows, difference(rows, other), regrouped(rows, groups), rows.scaled(2.0), rows.part(1, 4)):
        for ord in ORDS:
            kind.norms(ord)
        kind.sum(torch.ones(kind.n))
