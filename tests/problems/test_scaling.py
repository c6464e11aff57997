"""Matrices seen through public maps of their rows, against rows mapped one by one."""

import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

from isthmus import InvalidInput, Kronecker, Logistic, PrivateClassifier
from isthmus.algorithms.purchases import Shapes
from isthmus.base.matrix import is_sparse, matmul, rmatmul, take, to_dense
from isthmus.gradients import Glm
from isthmus.gradients.rows import inner
from isthmus.objectives.linear import top_eigenvalue
from isthmus.privacy import Clip
from isthmus.problems.features import grid
from isthmus.problems.queries import Squares
from isthmus.problems.scaling import RowMap, RowMaps, Scaled

D = 5
KINDS = ("dense64", "dense32", "csr64", "csr32")
SHIFT, WEIGHT = torch.tensor([1.0, -2.0, 0.0, 0.5, 30.0]).double(), torch.tensor([2.0, 0.1, 5.0, 1.0, 0.3]).double()
AFTER = torch.tensor([3.0, 1.0, 0.5, 2.0, 1.0, 4.0]).double()
MAPS: dict[str, list[RowMap]] = {
    "none": [],
    "shortened": [RowMap(limit=2.0)],
    "unit": [RowMap(limit=None)],
    "weighted": [RowMap(weight=WEIGHT, limit=3.0)],
    "centred": [RowMap(shift=SHIFT, weight=WEIGHT, limit=4.0, bias=1.0)],
    "unit with bias": [RowMap(limit=None), RowMap(limit=1.5, bias=0.5)],
    "constant kept": [RowMap(shift=SHIFT, limit=2.0, bias=1.0), RowMap(weight=AFTER, limit=0.5)],
    "twice": [
        RowMap(shift=SHIFT, limit=9.0, bias=1.0),
        RowMap(shift=torch.full((D + 1,), 0.1), weight=torch.full((D + 1,), 3.0), limit=1.5, bias=0.5),
    ],
}
CLIPPED = [
    RowMap(-torch.ones(D).double(), torch.full((D,), 2.0).double(), torch.full((D,), 0.5).double(), WEIGHT, 2.0, 1.0)
]
CASES = [(maps, kind) for maps in MAPS for kind in KINDS] + [("clipped", "dense64"), ("clipped", "dense32")]


def maps_of(name: str) -> list[RowMap]:
    return CLIPPED if name == "clipped" else MAPS[name]


def data(kind: str, n: int = 40, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, D)) * np.array([1.0, 10.0, 0.1, 1.0, 3.0]) * (rng.random((n, D)) < 0.6)
    X[0] = 0
    X = X.astype(np.float32 if kind.endswith("32") else np.float64)
    return sp.csr_matrix(X) if kind.startswith("csr") else torch.from_numpy(X)


def by_hand(maps: list[RowMap], X: Any) -> Tensor:
    """Each row mapped on its own, as the definition says."""
    rows = []
    for row in to_dense(X, torch.float64):
        bias = 0.0
        for each in maps:
            v = row if each.low is None else torch.minimum(torch.maximum(row, each.low), each.high)
            v = v if each.shift is None else v - each.shift.double()
            v = v if each.weight is None else v * each.weight.double()
            v, kept = (v[:-1], float(v[-1])) if bias else (v, 0.0)
            bias, length = each.bias or kept, float(v.norm())
            v = v / (length or 1.0) if each.limit is None else v * min(1.0, each.limit / (length or 1.0))
            row = torch.cat([v, torch.tensor([bias] if bias else [], dtype=torch.float64)]) / math.hypot(
                each.limit or 1.0, bias
            )
        rows.append(row)
    return torch.stack(rows)


def test_a_long_row_keeps_its_bias() -> None:
    """Features alone are shortened, by later maps too: the last column is the same constant in every row."""
    X = torch.tensor([[0.1, 0.0], [1e6, -3.0], [0.0, 0.0]]).double()
    first = RowMap(limit=2.0, bias=1.0)
    second = RowMap(weight=torch.tensor([5.0, 1.0, 2.0]).double(), limit=0.5)
    for maps in ([first], [first, second], [first, RowMap(limit=None, bias=0.25)], [RowMap(limit=None, bias=0.1)]):
        view = RowMaps(maps)(X)
        last = view.dense()[:, -1]
        assert view.bias > 0 and bool((last == view.bias).all())
        assert bool((view.dense().norm(dim=1) <= 1).all()) and bool((view.upper <= 1).all())


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_products_are_those_of_rows_mapped_by_hand(name: str, kind: str, draws: torch.Generator) -> None:
    X = data(kind)
    view, rows = RowMaps(maps_of(name))(X), by_hand(maps_of(name), X)
    n, d = rows.shape
    assert view.shape == (n, d)
    close = {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(view.dense(), rows, **close)
    for shape in ((), (3,)):
        w = torch.randn(d, *shape, generator=draws, dtype=torch.float64)
        v = torch.randn(n, *shape, generator=draws, dtype=torch.float64)
        torch.testing.assert_close(matmul(view, w), rows @ w, **close)
        torch.testing.assert_close(rmatmul(view, v), rows.T @ v, **close)
    assert matmul(view, torch.ones(d)).dtype == torch.float32
    torch.testing.assert_close(view.gram(), rows.T @ rows, **close)
    torch.testing.assert_close(torch.cat([part.clone() for _, _, part in view.chunks()]), rows, **close)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_some_rows_are_those_rows(name: str, kind: str) -> None:
    X = data(kind)
    view, rows = RowMaps(maps_of(name))(X), by_hand(maps_of(name), X)
    index = torch.tensor([7, 3, 3, 0, 39])
    for part, expected in ((take(view, index), rows[index]), (view[5:11], rows[5:11]), (view[0:0], rows[0:0])):
        torch.testing.assert_close(part.dense(), expected, rtol=1e-9, atol=1e-9)
        assert bool((part.upper >= expected.norm(dim=1) * (1 - 1e-12)).all())


def moments(view: Scaled, bound: float) -> torch.Tensor:
    """sum_i c_i x_i^2 with every row's squares shortened to the bound."""
    rows = Squares(view)
    return rows.sum() if bound == float("inf") else rows.sum_to(Clip(bound).weights(rows, bound), 2.0**-30)


@pytest.mark.parametrize("bound", [1.0, 0.05, float("inf")])
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_row_adds_at_most_the_bound_to_the_second_moments(name: str, kind: str, bound: float) -> None:
    X = data(kind)
    view, squares = RowMaps(maps_of(name))(X), by_hand(maps_of(name), X) ** 2
    lengths = squares.norm(dim=1, keepdim=True)
    expected = (squares * (bound / lengths.clamp(min=1e-300)).clamp(max=1.0)).sum(0)
    torch.testing.assert_close(moments(view, bound), expected, rtol=1e-9, atol=1e-12)
    for i in range(4):
        assert float(moments(view[i : i + 1], bound).norm()) <= bound


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_copy_is_sparse_where_it_can_be(name: str, kind: str) -> None:
    X, maps = data(kind), maps_of(name)
    view = RowMaps(maps)(X)
    if is_sparse(X) and any(each.shift is not None for each in maps):
        with pytest.raises(InvalidInput, match="centred"):
            view.plain()
        return
    copy = view.plain()
    assert is_sparse(copy) == is_sparse(X)
    torch.testing.assert_close(to_dense(copy, torch.float64), by_hand(maps, X), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["weighted", "centred", "constant kept", "twice", "clipped"])
def test_the_affine_map_is_that_of_rows_inside(name: str) -> None:
    maps = [replace(each, limit=1e3 if each.limit else None) for each in maps_of(name)]
    X = data("dense64").clamp(-1, 2)
    weight, offset = RowMaps(maps).affine(D)
    image = offset.expand(len(X), -1).clone()
    image[:, :D] += X * weight
    torch.testing.assert_close(image, by_hand(maps, X), rtol=1e-12, atol=1e-12)


# ---------------------------------------------------------------- norms


def exact_squares(view: Scaled) -> list[Fraction]:
    """Squared norms of r (x * weight) + U B in exact arithmetic, from the numbers as they are stored."""
    X = to_dense(view.X).double().tolist()
    weight, r, U, B = (each.tolist() for each in (view.weight, view.r, view.U, view.B))
    collected = []
    for i, row in enumerate(X):
        total = Fraction(0)
        for j in range(view.shape[1]):
            entry = sum((Fraction(u) * Fraction(B[k][j]) for k, u in enumerate(U[i])), Fraction(0))
            entry += Fraction(r[i]) * Fraction(row[j]) * Fraction(weight[j]) if j < len(weight) else 0
            total += entry**2
        collected.append(total)
    return collected


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_upper_is_never_below_the_norm(name: str, kind: str) -> None:
    view = RowMaps(maps_of(name))(data(kind, n=12))
    for upper, square in zip(view.upper.tolist(), exact_squares(view), strict=True):
        assert Fraction(upper) ** 2 >= square
    tight = view.upper / by_hand(maps_of(name), data(kind, n=12)).norm(dim=1).clamp(min=1e-9)
    assert float(tight[1:].max()) < 1 + 1e-9  # and not far above it


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1e3, 1e8, 1e15])
def test_upper_holds_where_a_shift_cancels(kind: str, size: float) -> None:
    X = data(kind, n=12)
    X = sp.csr_matrix(X.toarray() + X.dtype.type(size)) if is_sparse(X) else X + size
    centred = RowMap(shift=torch.full((D,), size).double(), limit=2.0, bias=1.0)(X)
    for upper, square in zip(centred.upper.tolist(), exact_squares(centred), strict=True):
        assert Fraction(upper) ** 2 >= square


ADVERSARIAL = {
    "huge": [1e300, 0, 0, 0, 0],
    "huge everywhere": [1e300, -1e300, 1e300, 1e300, -1e300],
    "largest": [np.finfo(float).max] * D,
    "denormal": [5e-324, 0, 0, 0, 5e-324],
    "tiny": [1e-170, 1e-160, 0, 0, 0],
    "zero": [0.0] * D,
    "negative zero": [-0.0] * D,
    "mixed": [1e300, 1e-300, 1.0, -1.0, 5e-324],
    "near the limit": [1.0, 1.0, 1.0, 1.0, 1.0 + 1e-15],
}


@pytest.mark.parametrize("row", ADVERSARIAL)
@pytest.mark.parametrize(("name", "sparse"), [*((m, s) for m in MAPS if m != "none" for s in (0, 1)), ("clipped", 0)])
def test_no_row_leaves_the_unit_ball(name: str, sparse: bool, row: str) -> None:
    X: Any = np.array([ADVERSARIAL[row], np.ones(D)])
    view = RowMaps(maps_of(name))(sp.csr_matrix(X) if sparse else torch.from_numpy(X))
    rows = view.dense()
    assert bool(rows.isfinite().all()), "an entry that is no number would poison every sum"
    assert bool((view.upper <= 1).all())
    assert float(rows.norm(dim=1).max()) <= 1 + 1e-15
    everything = (
        view.transposed_times(torch.ones(2).double()), view.times(torch.ones(view.shape[1]).double()),
        view.gram(), moments(view, 1.0), moments(view, 0.1),
    )  # fmt: skip
    assert all(bool(each.isfinite().all()) for each in everything)
    assert float(moments(view[0:1], 0.1).norm()) <= 0.1
    assert float(view[0:1].gram().norm()) <= 1 + 1e-12


def test_nan_and_infinity_are_refused() -> None:
    for bad in (float("nan"), float("inf")):
        X = np.ones((2, D))
        X[1, 1] = bad
        for given in (X, sp.csr_matrix(X)):
            with pytest.raises(InvalidInput, match="NaN or infinite"):
                RowMap()(given)


@pytest.mark.parametrize("name", MAPS)
def test_a_row_is_mapped_alike_whatever_the_others_are(name: str) -> None:
    X = np.random.default_rng(0).standard_normal((3, D))
    X[1] *= 1e120
    for other in ADVERSARIAL.values():
        for kind in (torch.from_numpy, sp.csr_matrix):
            beside = RowMaps(maps_of(name))(kind(np.vstack([X, other])))[0:3]
            torch.testing.assert_close(beside.dense(), RowMaps(maps_of(name))(kind(X)).dense(), rtol=0, atol=0)


def test_ranges_of_sparse_rows_and_maps_of_another_width_are_refused() -> None:
    with pytest.raises(InvalidInput, match="data_norm"):
        RowMaps(CLIPPED)(sp.csr_matrix(np.ones((1, D))))
    with pytest.raises(InvalidInput, match="give 5 columns"):
        RowMap(weight=WEIGHT)(np.ones((2, 4)))


def test_a_constant_column_is_added() -> None:
    for kind in KINDS:
        view = Scaled.of(data(kind)).with_constant(3.0)
        expected = torch.cat([to_dense(data(kind), torch.float64), torch.full((40, 1), 3.0).double()], 1)
        torch.testing.assert_close(view.dense(), expected)


def test_no_copy_is_made_of_rows_that_lie_inside() -> None:
    X = data("dense64").clamp(-1, 2)
    assert RowMaps(CLIPPED)(X).X.data_ptr() == X.data_ptr()
    outside = X.clone()
    outside[3, 2] = 99.0
    assert RowMaps(CLIPPED)(outside).X.data_ptr() != outside.data_ptr()


@pytest.mark.parametrize("sparse", [False, True])
def test_sums_of_many_rows_are_compensated(sparse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In short chunks whose sums are compensated: the same numbers as in one go."""
    g = torch.Generator().manual_seed(0)
    X = torch.randn(50, 4, generator=g, dtype=torch.float64)
    view = RowMap(bias=0.5)(sp.csr_array(X.numpy()) if sparse else X)
    whole = view.gram(), moments(view, 0.3)
    monkeypatch.setattr("isthmus.problems.scaling.MANY", 10)
    monkeypatch.setattr("isthmus.problems.scaling.STEP", 7)
    for found, expected in zip((view.gram(), moments(view, 0.3)), whole, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-14)
    rows = view.dense()
    torch.testing.assert_close(view.gram(), rows.T @ rows, rtol=1e-12, atol=1e-12)


def test_views_are_taken_where_matrices_are() -> None:
    view = RowMap(shift=SHIFT, weight=WEIGHT, limit=4.0)(torch.randn(8, D, dtype=torch.float64))
    seen, plain = (Glm(torch.arange(1.0, 9.0).double(), X) for X in (view, view.dense()))
    torch.testing.assert_close(inner(seen, seen), inner(plain, plain))
    torch.testing.assert_close(inner(seen, plain), inner(plain, plain))
    sketch = Kronecker(2, 1).draw(D)
    torch.testing.assert_close(sketch.encode(seen).dense(), sketch.encode(plain).dense())
    assert top_eigenvalue(view) == pytest.approx(top_eigenvalue(view.dense()))


# ---------------------------------------------------------------- what a row becomes depends on no other row


SIZES = (2, 3, 4, 5, 8, 9, 17, 33)


def neighbours(n: int) -> Iterator[Tensor]:
    """Which rows stay where one of n goes."""
    for at in {0, n // 2, n - 1}:
        yield torch.arange(n) != at


def drawn_maps(d: int, twice: bool, g: torch.Generator) -> RowMaps:
    first = RowMap(
        shift=torch.randn(d, generator=g).double(), weight=torch.rand(d, generator=g).double() + 0.1, bias=1.0
    )
    second = RowMap(shift=torch.randn(d + 1, generator=g).double(), limit=1.5)
    return RowMaps([first, second] if twice else [first])


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("d", [1, 3, 16, 17, 64, 257])
def test_mapped_rows_do_not_depend_on_the_other_rows(d: int, twice: bool) -> None:
    g = torch.Generator().manual_seed(d)
    seen = drawn_maps(d, twice, g)
    for n in SIZES:
        X = torch.randn(n, d, dtype=torch.float64, generator=g)
        whole = seen(X)
        for keep in neighbours(n):
            view = seen(X[keep])
            assert torch.equal(view.dense(), whole.dense()[keep]) and torch.equal(view.upper, whole.upper[keep])
            assert torch.equal(chunked(view), chunked(whole)[keep])


def chunked(view: Scaled) -> Tensor:
    return torch.cat([rows.clone() for _, _, rows in view.chunks()])


def on_borders(d: int, seen: RowMap, g: torch.Generator) -> Tensor:
    """A row whose entries lie on borders of the bins that histograms have, but for their last digits."""
    assert seen.shift is not None and seen.weight is not None and seen.limit is not None
    edges = grid(2)[4:-4]
    at = edges[torch.randint(len(edges), (d,), generator=g)]
    view = seen(torch.zeros(1, d, dtype=torch.float64))
    whole = float(torch.hypot(torch.tensor(seen.limit), torch.tensor(seen.bias)))
    return at * view.reach * whole / seen.weight + seen.shift


@pytest.mark.parametrize("d", [16, 31, 64])
def test_a_record_on_the_border_of_two_bins_stays_where_it_is(d: int) -> None:
    """All records alike: where one more changed the bin of one, it would change those of many."""
    g = torch.Generator().manual_seed(d)
    low, high = torch.full((d,), -2.0).double(), torch.full((d,), 3.0).double()
    seen = RowMap(low, high, torch.rand(d, generator=g).double(), torch.rand(d, generator=g).double() + 0.5, 100.0, 1.0)
    item = Shapes(d, level=2)
    for n in SIZES:
        for _ in range(10):
            X = on_borders(d, seen, g).expand(n, d).contiguous()
            whole = item.rows(Logistic(seen(X), torch.ones(n), classes=(-1, 1)))
            less = item.rows(Logistic(seen(X[1:]), torch.ones(n - 1), classes=(-1, 1)))
            assert torch.equal(whole.bins(0, n)[1:], less.bins(0, n - 1))


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("features", ["linear", "smooth"])
def test_what_a_model_says_of_a_row_does_not_depend_on_the_other_rows(classes: int, features: str) -> None:
    rng = np.random.default_rng(classes)
    X = rng.uniform(-1, 1, (600, 33))
    y = np.arange(600) % classes
    options = {"epsilon": 50.0, "bounds": (-1, 1), "algorithm": "dp_gd", "max_iter": 2, "features": features}
    model = PrivateClassifier(classes=list(range(classes)), **options).fit(X, y)
    for n in SIZES:
        rows = rng.uniform(-1, 1, (n, 33))
        whole = model.predict_proba(rows), model.decision_function(rows)
        for keep in neighbours(n):
            less = model.predict_proba(rows[keep.numpy()]), model.decision_function(rows[keep.numpy()])
            assert all(np.array_equal(a[keep.numpy()], b) for a, b in zip(whole, less, strict=True))


def test_a_map_with_one_end_of_a_range_is_refused() -> None:
    """A stored model of a stranger had one, and its first prediction ended in an assertion."""
    with pytest.raises(InvalidInput, match="give low and high, or neither"):
        RowMap(low=torch.zeros(2))
