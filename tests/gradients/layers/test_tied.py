"""Parameters that several layers share, and the row kinds that hold their gradients."""

import math
from functools import partial

import pytest
import torch
from layer_reference import agree, draw
from layer_reference import places as any_places
from reference import DenseSketch
from refusals import refuses
from torch import nn

from isthmus.base.space import Space
from isthmus.gradients import Dense, Lazy, Outer, rounding
from isthmus.gradients import rows as module
from isthmus.gradients.rows import Lookup, Sum, regrouped, total
from isthmus.sketches import CountSketch, Kronecker

DTYPES = [torch.float64, torch.float32]
V, D = 12, 9


places = partial(any_places, vocabulary=V)


class Language(nn.Module):
    """An embedding, a recurrence of sorts over places, and an output layer tied to the embedding."""

    def __init__(self, bias=False, twice=False, width=D):
        super().__init__()
        self.embed, self.mix, self.out = nn.Embedding(V, width), nn.Linear(width, width), nn.Linear(width, V, bias=bias)
        self.out.weight, self.twice = self.embed.weight, twice

    def forward(self, x):
        h = self.mix(self.embed(x).cumsum(1))
        h = torch.tanh(h + self.embed(x.flip(1))) if self.twice else torch.tanh(h)
        return self.out(h)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("positions", [1, 2, 9], ids=["one", "ghost", "products"])
@pytest.mark.parametrize(("bias", "twice"), [(False, False), (True, False), (False, True)])
def test_an_output_layer_tied_to_its_embedding(positions, bias, twice, dtype):
    torch.manual_seed(0)
    network = Language(bias, twice).to(dtype)
    rows = agree(network, places(4, positions), draw(4, positions, V, dtype=dtype))
    assert [name for name, _ in rows.leaves()] == ["embed.weight", "mix"] + ["out.bias"] * bias


def test_no_rows():
    for rows in (lookup(0), Sum([outer(0), lookup(0)])):
        assert rows.norms().shape == (0,) and rows.dense().shape == (0, V * D) and regrouped(rows, places(0)).n == 0
        assert torch.equal(rows.sum(), torch.zeros(V * D, dtype=torch.float64))
        assert Kronecker(3, 2).draw(Space.of({"table": (V, D)})).leaf("table", rows).dense().shape == (0, 6)


def test_tied_tables_stay_factored_and_their_norms_ghosts(monkeypatch):
    torch.manual_seed(0)
    rows = agree(Language().double(), places(4, 2), draw(4, 2, V))
    piece = rows.leaves()[0][1]
    assert isinstance(piece, Sum) and {type(r) for r in piece.pieces} == {Outer, Lookup}
    assert rounding._cheaper_ghost(4, D, V)
    whole = piece.norms()
    direct = Dense(piece.dense()).norms()
    torch.testing.assert_close(whole, direct, rtol=1e-12, atol=0)
    monkeypatch.setattr(Lookup, "dense", None)
    assert torch.equal(piece.norms(), whole)


def outer(n=5, t=3, dtype=torch.float64, seed=1, ones=False):
    return Outer(draw(n, t, D - ones, seed=seed, dtype=dtype), draw(n, t, V, seed=seed + 1, dtype=dtype), ones)


def lookup(n=5, t=4, dtype=torch.float64, seed=3):
    return Lookup(places(n, t, seed=seed), draw(n, t, D, seed=seed, dtype=dtype), V)


def wide(n=5, dtype=torch.float64, seed=7):
    return Dense(draw(n, V * D, seed=seed, dtype=dtype))


def lazy(n=5, dtype=torch.float64, seed=8):
    values = draw(n, V * D, seed=seed, dtype=dtype)
    return Lazy(lambda lo, hi: values[lo:hi], n, V * D, dtype=dtype)


KINDS = [outer, lookup, wide, lazy]


def matrix(rows):
    """The rows in float64, from float64 factors."""
    if isinstance(rows, Sum):
        return sum(matrix(piece) for piece in rows.pieces)
    return rows.dense(torch.float64) if isinstance(rows, (Outer, Lookup)) else rows.dense().double()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("two", KINDS, ids=lambda k: k.__name__)
@pytest.mark.parametrize("one", KINDS, ids=lambda k: k.__name__)
def test_any_two_kinds_add_up(one, two, dtype):
    first, second = one(dtype=dtype), two(dtype=dtype, seed=21)
    rows, exact = total([first, second]), matrix(first) + matrix(second)
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(rows.dense().double(), exact, **close)
    torch.testing.assert_close(rows.sum(c := draw(5, seed=9)).double(), c @ exact, **close)
    for ord in (1, 2, math.inf):
        norms, true = rows.norms(ord).double(), torch.linalg.vector_norm(exact, ord, dim=1)
        own = torch.linalg.vector_norm(matrix(rows), ord, dim=1)
        assert bool((norms >= own * (1 - 1e-14)).all())
        assert bool((norms <= true * (1 + (1e-5 if dtype == torch.float32 else 1e-10))).all())


def test_what_sums_do():
    rows = Sum([outer(7, 1), lookup(7)])
    exact = matrix(rows)
    assert [type(r) for r in total([rows, rows]).pieces] == [type(r) for r in rows.pieces]
    out = torch.zeros(rows.d, dtype=torch.float64)
    assert rows.sum_to(torch.ones(7).double(), 1.0, out) is out
    torch.testing.assert_close(out, exact.sum(0))


@pytest.mark.parametrize("make", [lookup, lambda: Sum([outer(), lookup()])])
def test_codes(make):
    rows, space = make(), Space.of({"before": (1, 4), "table": (V, D)})
    exact = torch.nn.functional.pad(matrix(rows), (4, 0))
    for sketch in (Kronecker(3, 2).draw(space), CountSketch(10).draw(space)):
        code = sketch.leaf("table", rows).dense()
        start = sketch.code_space.slice("table") if hasattr(sketch, "code_space") else slice(None)
        torch.testing.assert_close(code, sketch.rows(exact)[:, start])
    dense = DenseSketch(draw(5, V * D + 4))
    torch.testing.assert_close(rows.through(dense, 4).dense(), dense.rows(exact))


def test_codes_of_a_kronecker_sketch_build_no_table(monkeypatch):
    sketch = Kronecker(3, 2).draw(Space.of({"table": (V, D)}))
    rows = Sum([outer(t=1), lookup(t=1)])
    expected = sketch.rows(matrix(rows))
    monkeypatch.setattr(Lookup, "dense", None)
    torch.testing.assert_close(sketch.leaf("table", rows).dense(), expected)


@pytest.mark.parametrize("t", [1, 2, 8], ids=["ghost", "small", "direct"])
@pytest.mark.parametrize("share", [0.0, 1e-12, 1e-6, 1e-2])
def test_pieces_that_nearly_cancel_are_not_under_estimated(t, share):
    """An embedding gradient that undoes the output layer's but for a share."""
    index, c = places(6, t, seed=1), draw(6, t, D, seed=2)
    table = torch.nn.functional.one_hot(index, V).double()
    rows = Sum([Outer(c, -table), Lookup(index, c * (1 + share), V)])
    exact = Lookup(index, c * (1 + share) - c, V)  # the difference of two close numbers is exact
    most = torch.linalg.vector_norm(c, dim=2).sum(1)
    for ord in (1, 2, math.inf):
        true = torch.linalg.vector_norm(exact.dense(), ord, dim=1)
        assert bool((rows.norms(ord) >= true * (1 - 1e-13)).all())
    true = torch.linalg.vector_norm(exact.dense(), dim=1)
    assert bool((rows.norms() <= true + 1e-6 * most).all())


@pytest.mark.parametrize(("scale_a", "scale_b"), [(1e-160, 1e100), (1e100, 1e100), (1e-100, 1e-100), (1e150, 1e-150)])
def test_factors_far_from_one(scale_a, scale_b):
    a, b, c = draw(4, 1, D, seed=1) * scale_a, draw(4, 1, V, seed=2) * scale_b, draw(4, 1, D, seed=3)
    index, size = places(4, 1), scale_a * scale_b
    rows, near = (
        Sum([Outer(a, b), Lookup(index, c * size, V)]),
        Sum([Outer(a / scale_a, b / scale_b), Lookup(index, c, V)]),
    )
    assert rounding._cheaper_ghost(2, D, V)
    true = torch.linalg.vector_norm(matrix(near), dim=1) * size
    assert bool((rows.norms() >= true * (1 - 1e-13)).all()) and bool((rows.norms() <= true * (1 + 1e-10)).all())


def test_broken_pieces_have_infinite_norm():
    first, second = outer(t=1), lookup(t=1)
    first.a[1, 0, 2], first.b[2, 0, 1], second.values[3, 0, 0] = math.nan, math.inf, math.inf
    for ord in (1, 2, math.inf):
        assert Sum([first, second]).norms(ord).isinf().tolist() == [False, True, True, True, False]


def test_chunks_change_nothing(monkeypatch):
    cases = [Sum([outer(7, 1), lookup(7, 1)]), Sum([outer(7), lookup(7, 7)])]
    whole = [rows.norms() for rows in cases]
    monkeypatch.setattr(module, "row_spans", lambda n, _: [(lo, min(lo + 3, n)) for lo in range(0, n, 3)])
    for rows, norms in zip(cases, whole, strict=True):
        torch.testing.assert_close(rows.norms(), norms, rtol=1e-12, atol=0)


def test_sparse_factors_and_unlike_shapes():
    import numpy as np
    import scipy.sparse as sp

    sparse = Outer(sp.csr_array(np.eye(5, V * D)), torch.ones(5, 1, dtype=torch.float64))
    turned = Outer(draw(5, 2, V, seed=4), draw(5, 2, D, seed=5))
    for other in (sparse, turned):
        rows = total([lookup(), other])
        exact = matrix(lookup()) + other.dense()
        torch.testing.assert_close(rows.dense(), exact)
        torch.testing.assert_close(rows.norms(), torch.linalg.vector_norm(exact, dim=1), rtol=1e-10, atol=0)


test_wrong_arguments_are_refused = refuses(
    (lambda: Sum([]), "at least one"),
    (lambda: Sum([lookup(4), lookup(5)]), "give rows with"),
    (lambda: total([lookup(4), wide(5)]), "give rows with"),
    (lambda: Sum([outer(), lookup()]).norms(3), "choose one of"),
    (lambda: Sum([outer(), lookup()]).sum(torch.ones(4)), "weights.shape"),
)
