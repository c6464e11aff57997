"""Norms where floating point is at its worst: cancellation, underflow, overflow, reduced precision."""

import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from reference import DenseSketch, exact_norms, orthonormal, outer_rows
from refusals import refuses
from row_cases import draw

from isthmus.base.space import Space
from isthmus.base.validate import InvalidInput
from isthmus.gradients import Dense, Glm, Lazy, Outer, ResidualRows, Stack, rounding
from isthmus.gradients import rows as module
from isthmus.gradients.rows import _direct, difference, regrouped, total


def cancelling(n, t, p, q, dtype, size, seed=0):
    """Positions in pairs that cancel but for a share `size`."""
    half, small = (draw(n, t // 2, p, dtype=torch.float64, seed=each) for each in (seed, seed + 1))
    b = draw(n, t // 2, q, dtype=torch.float64, seed=seed + 2)
    return torch.cat([half, half + size * small], 1).to(dtype), torch.cat([b, -b], 1).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [0.0, 1e-7, 1e-5, 1e-3, 1e-1])
@pytest.mark.parametrize(("p", "q"), [(200, 300), (40, 30)], ids=["ghost", "direct"])
def test_near_cancelling_sums_are_never_under_estimated(dtype, size, p, q):
    assert rounding._cheaper_ghost(64, p, q) == (p == 200)
    a, b = cancelling(12, 64, p, q, dtype, size)
    norms, true = Outer(a, b).norms().double(), torch.linalg.vector_norm(outer_rows(a, b), dim=1)
    assert bool((norms >= true * (1 - 1e-13)).all())
    total = (torch.linalg.vector_norm(a.double(), dim=2) * torch.linalg.vector_norm(b.double(), dim=2)).sum(1)
    assert bool((norms - true <= 0.01 * total).all())


def test_the_guard_is_needed():
    """Without it the same float32 ghost products fall below the true norm."""
    a, b = cancelling(200, 64, 200, 300, torch.float32, 1e-4)
    bare = ((a @ a.mT) * (b @ b.mT)).sum((1, 2)).clamp_min(0).sqrt().double()
    true = torch.linalg.vector_norm(outer_rows(a, b), dim=1)
    assert bool((bare < true * (1 - 1e-4)).any())
    assert bool((Outer(a, b).norms().double() >= true).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lost", [1e-1, 1e-4, 1e-6, 1e-8])
@pytest.mark.parametrize("norm", [1.0, 3.0])
def test_residual_norms_at_high_captured_energy(dtype, lost, norm, draws):
    d, k, n = 2000, 20, 40
    basis = orthonormal(k, d, draws)
    inside = torch.nn.functional.normalize(torch.randn(n, k, generator=draws, dtype=torch.float64) @ basis)
    outside = torch.randn(n, d, generator=draws, dtype=torch.float64)
    outside = torch.nn.functional.normalize(outside - outside @ basis.T @ basis)
    g = Dense((math.sqrt(1 - lost) * inside + math.sqrt(lost) * outside).to(dtype))
    sketch = DenseSketch((norm * basis).to(dtype))
    assert sketch.tight
    codes = g.through(sketch)
    norms = ResidualRows(g, codes, sketch).norms().double()
    added = g.values.double() - codes.dense().double() @ sketch.matrix.double() / sketch.norm**2
    ratio = norms / torch.linalg.vector_norm(added, dim=1)
    assert float(ratio.min()) >= 1
    assert float(ratio.max()) <= math.sqrt(1 + 2e-5 * (1 if dtype == torch.float32 else 1e-8) / lost) + 1e-3


@pytest.mark.parametrize("scale", [1e-45, 1e-38, 1e-30, 1e-22, 1e-19, 1.0, 1e18, 1e25, 1e38])
@pytest.mark.parametrize("ord", [1, 2, math.inf])
def test_float32_rows_near_the_ends_of_the_range(scale, ord):
    values = (draw(5, 30, dtype=torch.float64, seed=3).clamp(-3, 3) * scale).to(torch.float32)
    norms, true = Dense(values).norms(ord).double(), exact_norms(values.double(), ord)
    assert bool((norms >= true).all())
    assert bool((norms <= true.clamp_min(2e-45) * (1 + 1e-5 + (2 if scale == 1e-45 else 0))).all()) or scale == 1e38
    thin = torch.tensor([[1e-30]], dtype=torch.float32)
    product = Outer(values, thin.expand(5, 1)).norms(ord)
    assert bool((product > 0).all() or (values == 0).all(1).any())


@pytest.mark.parametrize("scale", [1e-320, 1e-200, 1e150, 1e300])
@pytest.mark.parametrize("sparse", [False, True])
def test_float64_rows_near_the_ends_of_the_range(scale, sparse):
    values = draw(5, 30, dtype=torch.float64, seed=3) * scale
    data = sp.csr_array(values.numpy()) if sparse else values
    norms, true = Outer(data, torch.ones(5, 1, dtype=torch.float64)).norms(), exact_norms(values)
    assert bool((norms >= true).all()) and bool((norms <= true * (1 + 1e-12) + 1e-307).all())


@pytest.mark.parametrize(
    ("scale_a", "scale_b"), [(1e-25, 1e-25), (1e-18, 1e-30), (1e25, 1e-30), (1e20, 1e10), (1e30, 1e30)]
)
@pytest.mark.parametrize("ord", [1, 2, math.inf])
def test_positions_with_factors_far_from_one(scale_a, scale_b, ord):
    a = (draw(6, 3, 30, dtype=torch.float64, seed=1) * scale_a).float()
    b = (draw(6, 3, 20, dtype=torch.float64, seed=2) * scale_b).float()
    norms, true = Outer(a, b).norms(ord).double(), exact_norms(outer_rows(a, b), ord)
    assert bool((norms >= true).all())
    in_range = (true > 1e-30) & (true < 1e37)
    assert bool((norms[in_range] <= true[in_range] * 1.001).all())


def test_zero_rows_have_norm_zero_and_broken_rows_infinity():
    a = torch.zeros(3, 2, 5)
    a[1, 0, 0], a[2, 1, 1] = math.nan, math.inf
    for rows in (Outer(a, torch.ones(3, 2, 4)), Outer(a, torch.ones(3, 2, 1)), Dense(a[:, 0] + a[:, 1])):
        for ord in (1, 2, math.inf):
            assert rows.norms(ord).tolist() == [0.0, math.inf, math.inf]
    assert Outer(torch.tensor([[math.nan]]), torch.zeros(1, 1)).norms().tolist() == [math.inf]
    assert Outer(torch.zeros(1, 2, 3), torch.full((1, 2, 2), math.inf)).norms().tolist() == [math.inf]
    assert Glm(torch.ones(1), sp.csr_array(np.array([[math.nan, 1.0]]))).norms().tolist() == [math.inf]


def test_norms_of_single_products_are_above_the_exact_rational_value():
    a, b = draw(20, 13, dtype=torch.float64, seed=1), draw(20, 1, dtype=torch.float64, seed=2)
    for norm, x, (r,) in zip(Outer(a, b).norms().tolist(), a.tolist(), b.tolist(), strict=True):
        assert Fraction(norm) ** 2 >= Fraction(r) ** 2 * sum(Fraction(v) ** 2 for v in x)


def test_clipped_rows_stay_inside_the_ball():
    """C / norm, cast to float32 and multiplied, never passes C: the reserve is enough."""
    a, b = draw(500, 60, dtype=torch.float32, seed=1), draw(500, 1, dtype=torch.float32, seed=2)
    rows = Outer(a, b)
    weights = 0.7 / rows.norms().double()
    clipped = (b * weights.float()[:, None]).double() * a.double()
    assert float(torch.linalg.vector_norm(clipped, dim=1).max()) <= 0.7


def test_long_rows_lose_little():
    values = draw(2, 300_000, dtype=torch.float32, seed=4)
    norms, true = Dense(values).norms().double(), torch.linalg.vector_norm(values.double(), dim=1)
    assert bool((norms >= true).all()) and bool((norms <= true * 1.0002).all())


def test_reduced_precision_settings_do_not_reach_the_norms():
    a, b = draw(6, 4, 64, dtype=torch.float32, seed=1), draw(6, 4, 48, dtype=torch.float32, seed=2)
    rows, c = Outer(a, b), torch.ones(6)
    norms, total = rows.norms(), rows.sum(c)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(rows.norms(), norms) and torch.equal(rows.sum(c), total)
        assert torch.get_float32_matmul_precision() == "medium"
        assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"
    finally:
        torch.set_float32_matmul_precision(before)


def test_chunks_do_not_change_the_norms(monkeypatch):
    a, b = draw(9, 6, 40, dtype=torch.float32, seed=1), draw(9, 6, 30, dtype=torch.float32, seed=2)
    for ord in (1, 2, math.inf):
        whole = Outer(a, b).norm_upper(ord)
        with monkeypatch.context() as patch:
            patch.setattr(rounding, "CHUNK_BYTES", 1)
            torch.testing.assert_close(Outer(a, b).norm_upper(ord), whole, rtol=1e-5, atol=0)
    direct = _direct(Outer(a, b), 2, torch.float64)
    torch.testing.assert_close(Outer(a, b).norms().double(), direct, rtol=1e-3, atol=0)


def test_no_buffer_passes_the_limit(monkeypatch):
    seen = []
    inner = module._direct
    monkeypatch.setattr(module, "_direct", lambda rows, *rest: seen.append(rows.n) or inner(rows, *rest))
    rows = Outer(torch.ones(3, 1, 1).expand(3, 600, 600), torch.ones(3, 1, 1).expand(3, 600, 700))
    rows.norms()
    assert sum(seen) == 3 and max(seen) * 8 * 600 * 700 <= rounding.CHUNK_BYTES


def test_lazy_rows_are_asked_for_in_chunks_and_once_for_all_leaves(monkeypatch):
    calls = []

    def chunk(lo, hi):
        calls.append((lo, hi))
        return torch.arange(lo, hi).float()[:, None] * torch.ones(5)

    space = Space.of({"one": (1, 2), "two": (1, 3)})
    rows = Lazy(chunk, 6, 5, space=space)
    assert [name for name, _ in rows.leaves()] == ["one", "two"]
    for _, piece in rows.leaves():
        piece.sum()
    assert calls == [(0, 6)]
    monkeypatch.setattr(Lazy, "_spans", lambda self: [(lo, min(lo + 4, self.n)) for lo in range(0, self.n, 4)])
    calls.clear()
    assert torch.equal(Lazy(chunk, 6, 5).sum(), torch.full((5,), 15.0))
    assert calls == [(0, 4), (4, 6)]


def test_kinds_keep_their_factors():
    a, b = draw(8, 2, 30, dtype=torch.float64, seed=1), draw(8, 2, 20, dtype=torch.float64, seed=2)
    X = sp.csr_array(np.eye(8))
    fours = torch.arange(8) // 4
    assert isinstance(regrouped(Outer(a, b), fours), Outer) and regrouped(Outer(a, b), fours).positions == 8
    assert isinstance(difference(Outer(a, b), Outer(a + 1, b)), Outer)
    assert difference(Outer(a, b), Outer(a.clone(), 2 * b)).positions == 2
    assert difference(Glm(b[:, 0, 0], X), Glm(b[:, 0, 1], X)).a is X
    assert total([Outer(a, b), Outer(2 * a, b)]).positions == 4
    codes = Glm(b[:, 0, 0], X).through(DenseSketch(torch.eye(8, dtype=torch.float64)[:3]))
    assert isinstance(codes, Outer) and codes.p == 3
    assert isinstance(total([codes, codes]), Dense)
    assert isinstance(regrouped(Stack([("w", Outer(a, b))]), fours).leaves()[0][1], Outer)


test_wrong_arguments_are_refused = refuses(
    (lambda: Dense(torch.ones(3)), "n x d"),
    (lambda: Outer(torch.ones(3, 2), torch.ones(4, 2)), "b.shape"),
    (lambda: Outer(torch.ones(3, 2), torch.ones(3)), "b.shape"),
    (lambda: Outer(torch.ones(3), torch.ones(3)), "a.shape"),
    (lambda: Glm(torch.ones(2), torch.ones(3, 2)), "r.shape"),
    (lambda: Stack([]), "at least one"),
    (lambda: Stack([("a", Dense(torch.ones(2, 1))), ("b", Dense(torch.ones(3, 1)))]), "rows in every leaf"),
    (lambda: difference(Dense(torch.ones(2, 1)), Dense(torch.ones(2, 3))), "give rows with"),
    (lambda: Lazy(lambda lo, hi: torch.ones(1, 1), 2, 3).sum(), "chunk.shape"),
)


def test_residual_needs_a_tight_sketch(draws):
    sketch = DenseSketch(torch.randn(2, 5, generator=draws, dtype=torch.float64))
    rows = Dense(torch.ones(1, 5, dtype=torch.float64))
    with pytest.raises(InvalidInput, match="tight"):
        ResidualRows(rows, rows.through(sketch), sketch)
