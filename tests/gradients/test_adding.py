"""Sums that are certain: constructed worst cases for every kind of rows, against exact sums and between neighbours."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

from isthmus.base.space import Space
from isthmus.core.pipeline import Release, measure
from isthmus.gradients import Dense, Lazy, Lookup, Outer, ResidualRows, Rows, Stack, rounding
from isthmus.gradients.rows import Sum
from isthmus.privacy import Clip, GroupClip, PerLeafClip
from isthmus.privacy.clips import ClippedSum, Rounding, encoded_sum, part_of_error, weighted_sum
from isthmus.problems.scaling import RowMap
from isthmus.sketches import CountSketch
from isthmus.sketches.compose import IdentityMap

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"))]
F32, F64 = torch.float32, torch.float64
CLIP, EXACT = Clip(1.0), Rounding()
SUMS = ("positions", "lookup", "stacked", "residual")


def worst(k: int, extra: bool, dtype: torch.dtype) -> Tensor:
    """Numbers in [-1, 1] whose plain sum, one after the other, jumps by 2^k u when one more -1 comes."""
    size = 2**k
    u = size * torch.finfo(dtype).eps / 2
    head = torch.full((size,), -1.0, dtype=F64)
    head[-1] = -0.5
    more = torch.full((int(extra),), -1.0, dtype=F64)
    return torch.cat([head, more, torch.full((size,), 0.99 * u, dtype=F64)]).to(dtype)


def dense(v: Tensor) -> Rows:
    return Dense(v[:, None].expand(-1, 3) / 2)


def outer(v: Tensor) -> Rows:
    return Outer(torch.ones(len(v), 1, dtype=v.dtype, device=v.device), v[:, None])


def with_ones(v: Tensor) -> Rows:
    return Outer(torch.zeros(len(v), 1, dtype=v.dtype, device=v.device), v[:, None], ones=True)


def csr(v: Tensor) -> Rows:
    return Outer(sp.csr_array(np.ones((len(v), 1), dtype=str(v.dtype).removeprefix("torch."))), v.cpu()[:, None])


def mapped(v: Tensor) -> Rows:
    """Rows seen through a centring map: 100 is subtracted again."""
    X = RowMap(shift=torch.tensor([100.0]), limit=1.0)(torch.full((len(v), 1), 101.0, dtype=v.dtype))
    return Outer(X, v.cpu()[:, None])


def positions(v: Tensor) -> Rows:
    """Three terms each, of which two cancel and are a thousand times as long."""
    b = torch.stack([torch.full_like(v, 1000.0), v, torch.full_like(v, -1000.0)], 1)[:, :, None]
    return Outer(torch.ones_like(b), b)


def lookup(v: Tensor) -> Rows:
    values = torch.stack([torch.full_like(v, 50.0), v, torch.full_like(v, -50.0)], 1)[:, :, None]
    return Lookup(torch.ones(len(v), 3, dtype=torch.long, device=v.device), values, 4)


def lazy(v: Tensor) -> Rows:
    return Lazy(lambda lo, hi: v[lo:hi, None], len(v), 1, dtype=v.dtype, device=v.device)


def tied(v: Tensor) -> Rows:
    index = torch.zeros(len(v), 1, dtype=torch.long, device=v.device)
    return Sum([Lookup(index, v[:, None, None] / 2, 1), Outer(torch.ones_like(v)[:, None], v[:, None] / 2)])


def stacked(v: Tensor) -> Rows:
    return Stack([("a", outer(v * 0.5)), ("b", lookup(v * 0.5)), ("c", dense(v * 0.5))])


def residual(v: Tensor) -> Rows:
    """What a count sketch loses of rows that it nearly keeps."""
    rows = Dense(v[:, None] * torch.ones(1, 8, dtype=v.dtype, device=v.device))
    sketch = CountSketch(4).draw(8, seed=0)
    return ResidualRows(rows, sketch.encode(rows), sketch)


KINDS: dict[str, Callable[[Tensor], Rows]] = {
    kind.__name__: kind
    for kind in (dense, outer, with_ones, csr, mapped, positions, lookup, lazy, tied, stacked, residual)
}


def measured(rows: Rows, clip: Any = CLIP, rounding: Rounding = EXACT) -> ClippedSum:
    """The clipped sum of rows that no sketch encodes."""
    return measure(Release(clip=clip), IdentityMap(Space.flat(rows.d)), 1.0, rows, rounding=rounding)


def moved(kind: str, k: int, dtype: torch.dtype, device: str, batch: float | None) -> tuple[float, float]:
    """How far one record moves the computed sum, and the stated bound."""
    before, after = (
        measured(KINDS[kind](worst(k, extra, dtype).to(device)), rounding=Rounding(batch)) for extra in (False, True)
    )
    return float((after.value.double() - before.value.double()).norm()), before.bound


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [F32, F64], ids=["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_record_moves_the_computed_sum_by_no_more_than_its_bound(
    kind: str, dtype: torch.dtype, device: str
) -> None:
    if device == "cuda" and kind in ("csr", "mapped"):
        pytest.skip("sparse and mapped rows live on the CPU")
    for k, batch in ((9, None), (13, None), (9, 2.0**10), (13, 2.0**14)):
        movement, bound = moved(kind, k, dtype, device, batch)
        assert movement <= bound
        kappa = rounding.kappa(batch, dtype, encoded=False)
        assert bound == pytest.approx(1 + kappa) and kappa <= (rounding.KAPPA if batch is None else rounding.WIDE)


@pytest.mark.parametrize("kind", ["csr", "lookup"])
def test_the_construction_breaks_plain_sums(kind: str) -> None:
    """What the guard is for: the same rows, added in their own dtype, move by far more than the bound."""
    before, after = (
        rows.sum(Clip(1.0).weights(rows, 1.0)) for rows in (KINDS[kind](worst(13, extra, F32)) for extra in (0, 1))
    )
    assert float((after - before).double().norm()) > 2.0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rho", [1e-3, 1e-5, 1e-7, 1e-10, 1e-13])
@pytest.mark.parametrize("kind", KINDS)
def test_sums_are_as_exact_as_they_say(kind: str, rho: float, device: str) -> None:
    """Against exact rational sums; every route (one product, chunks, float64, compensated) is taken by some rho."""
    if device == "cuda" and kind in ("csr", "mapped"):
        pytest.skip("sparse and mapped rows live on the CPU")
    g = torch.Generator().manual_seed(3)
    v = torch.cat([worst(6, True, F32), torch.randn(140, generator=g) * 10.0 ** torch.randn(140, generator=g)])
    rows = KINDS[kind](v.to(device))
    weights = (2.0 ** -torch.randint(0, 9, (len(v),), generator=g)).to(device, rows.dtype)  # products are exact
    whole, c = rows.dense().double().cpu(), weights.double().cpu()
    exact = [sum(Fraction(float(c[i])) * Fraction(float(x)) for i, x in enumerate(column)) for column in whole.T]
    found = rows.sum_to(weights, rho).double().cpu()
    sizes = rows.mass()
    sizes = rows.norm_upper() if sizes is None else sizes + rows.norm_upper()
    error = math.sqrt(sum(float(Fraction(float(x)) - true) ** 2 for x, true in zip(found, exact, strict=True)))
    # the rows themselves, as `dense` writes them, are rounded where they are differences and sums of pieces
    own = 4 * torch.finfo(rows.dtype).eps * float(c @ sizes.cpu()) * (kind in SUMS)
    assert error <= rho * float(c @ sizes.cpu()) + own


def test_a_long_sum_of_float64_is_compensated() -> None:
    """Where float64 in any order is not enough, chunks are short and what their sum loses is kept."""
    rows = Dense(torch.cat([torch.full((4000,), 1.0, dtype=F64), torch.full((4000,), 1e-16, dtype=F64)])[:, None])
    found = rows.sum_to(torch.ones(8000, dtype=F64), 2.0**-53 * 12)
    assert float(found) == 4000 + 4e-13
    assert float(rows.values.cumsum(0)[-1]) == 4000.0  # one after the other, nothing of the second half is left


def test_records_whose_terms_are_far_too_long_are_shortened() -> None:
    """A record of norm 1 made of terms of length 10^9 could not be added up: it counts for less."""
    b = torch.tensor([[[1e9], [1.0], [-1e9]]], dtype=F64)
    rows = Outer(torch.ones_like(b), b)
    short = weighted_sum(rows, Clip(1.0).weights(rows, 1.0), 1.0, rounding.KAPPA)
    assert 0 < float(short) <= rounding.RATIO / 1e9
    mild = Outer(torch.ones_like(b), torch.tensor([[[1e3], [1.0], [-1e3]]], dtype=F64))
    assert float(weighted_sum(mild, Clip(1.0).weights(mild, 1.0), 1.0, rounding.KAPPA)) == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 3e38])
@pytest.mark.parametrize("kind", KINDS)
def test_a_record_that_is_no_number_leaves_the_others_alone(kind: str, value: float) -> None:
    v = torch.tensor([0.5, value, -0.25, 0.125])
    rows, others = KINDS[kind](v), KINDS[kind](v[[0, 2, 3]])
    with_it, without = measured(rows), measured(others)
    assert with_it.value.isfinite().all()
    assert float((with_it.value - without.value).double().norm()) <= with_it.bound
    if not math.isfinite(value) and kind != "residual":
        assert torch.allclose(with_it.value, without.value, rtol=1e-6, atol=1e-6)


def test_physical_batches_share_the_error() -> None:
    """However a batch is cut, the parts together may be off by what one sum may be off by."""
    for count in (1, 2, 7, 50):
        assert 0.5 <= sum(part_of_error(j, j == count) for j in range(1, count + 1)) <= 1.0
    assert sum(part_of_error(j, False) for j in range(1, 1000)) < 1.0
    results = []
    for extra in (False, True):
        v, total = worst(12, extra, F32), None
        parts = v.split(97)
        for number, part in enumerate(parts, start=1):
            rows = lookup(part)
            share = part_of_error(number, number == len(parts))
            one = measured(rows, rounding=Rounding(4096.0, share))
            total = one if total is None else total + one
        assert total is not None
        results.append(total)
    assert float((results[1].value - results[0].value).norm()) <= results[0].bound


@pytest.mark.parametrize("dtype", [F32, F64])
def test_a_sum_before_the_sketch_is_mapped_as_exactly(dtype: torch.dtype) -> None:
    """Clip before the sketch: the map of a long sum must not round more than a record weighs."""
    sketch = CountSketch(3).draw(5, seed=1)
    results = []
    for extra in (False, True):
        v = worst(12, extra, dtype)
        rows = Dense(v[:, None] * torch.full((1, 5), 0.4, dtype=dtype))
        results.append(measure(Release(encode=CountSketch(3), clip=Clip(1.0, before=True)), sketch, 1.0, rows))
    assert float((results[1].value - results[0].value).norm()) <= results[0].bound
    many = Dense(torch.full((8, 5), 0.4, dtype=dtype))
    one_by_one = encoded_sum(sketch, many, torch.ones(8, dtype=dtype), 1e-15, 1e-3, 2)  # nothing may be lost: by rows
    assert torch.allclose(one_by_one, sketch.forward(many.sum()).double(), atol=1e-5)


def test_per_leaf_and_group_clips_state_their_own_bounds() -> None:
    collected = []
    for extra in (False, True):
        rows = stacked(worst(11, extra, F32))
        clip = PerLeafClip({"a": 0.1, "b": 0.2, "c": 0.3})
        collected.append(measured(rows, clip))
    assert collected[0].bound == pytest.approx(math.sqrt(0.14) * (1 + rounding.KAPPA))
    assert float((collected[1].value.double() - collected[0].value.double()).norm()) <= collected[0].bound
    grouped = measured(outer(worst(5, False, F32)), GroupClip(1.0))
    assert grouped.bound == pytest.approx(2 * (1 + rounding.KAPPA))


def test_tiny_bounds_do_not_underflow() -> None:
    """Clip bounds below what float32 can add up are met in float64."""
    g = torch.Generator().manual_seed(0)
    rows = Outer(torch.rand(50, 4, generator=g), torch.rand(50, 3, generator=g))
    bound = 1e-36
    value = weighted_sum(rows, torch.full((50,), 1e-37), bound, rounding.KAPPA)
    assert value.dtype == F64
    assert torch.allclose(value * 1e37, rows.dense().double().sum(0), rtol=1e-5)


@pytest.mark.parametrize("batch, kappa", [(1, 0.01), (100, 0.01), (256, 0.0117), (512, 0.0469), (4096, 0.05)])
def test_kappa_of_whole_gradients(batch: int, kappa: float) -> None:
    assert rounding.kappa(float(batch), F32, False) == pytest.approx(kappa, abs=1e-4)
    assert rounding.kappa(float(batch), F32, True) == rounding.kappa(float(batch), F64, False) == rounding.KAPPA


def test_a_residual_whose_code_overflows_is_left_out() -> None:
    """The row itself is finite, its code is not: there is no residual to speak of, and no weight."""
    sketch = CountSketch(1).draw(4, seed=0)
    signs = torch.sign(sketch.dense()[0]).to(F32)
    values = torch.stack([3e38 * signs, torch.tensor([0.1, 0.2, 0.0, 0.0]), torch.tensor([0.0, 0.0, 0.1, 0.0])])
    rows = Dense(values)
    codes = sketch.encode(rows)
    assert not codes.dense()[0].isfinite().all()
    residual = ResidualRows(rows, codes, sketch)
    assert Clip(1.0).weights(residual, 1.0)[0] == 0
    alone = ResidualRows(Dense(values[1:]), sketch.encode(Dense(values[1:])), sketch)
    torch.testing.assert_close(measured(residual).value, measured(alone).value)


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("k, q, p", [(3, 530, 999), (1, 1, 1 << 18), (5, 3, 7), (0, 600, 600)])
@pytest.mark.parametrize("beside", [0, 1])
def test_outer_sum_leaves_what_stands_beside_its_rows(dtype: torch.dtype, k: int, q: int, p: int, beside: int) -> None:
    """Every entry within its roundings of the slow sum, whatever stands beside it untouched."""
    g = torch.Generator().manual_seed(k + q)
    y, x = (torch.randn(*size, generator=g, dtype=dtype) for size in ((k, q), (k, p)))
    whole = torch.full((q, p + beside), 7.0, dtype=dtype)
    rounding._outer_sum(x, y, 1.0, whole[:, :p])
    assert (whole[:, p:] == 7).all()
    slow = (y.double()[:, :, None] * x.double()[:, None, :]).sum(0) if q * p < 1e6 else y.double().T @ x.double()
    off, mass = (whole[:, :p].double() - slow).abs(), y.double().abs().T @ x.double().abs()
    assert (off <= 2 * (k + 1) * torch.finfo(dtype).eps / 2 * mass).all()


@pytest.mark.parametrize("few", [True, False])
def test_sums_of_rows_are_within_their_error(few: bool) -> None:
    """Into a column, by one product where that is exact enough, else in float64."""
    v = worst(10, True, F32)[:, None] * torch.tensor([1.0, 0.5])
    rho = (len(v) + 8) * 2.0**-24 if few else 2.0**-22
    column = torch.full((2, 3), 7.0)
    rounding._outer_sum(torch.ones(len(v), 1), v, rho, column[:, 1:2])
    exact = [sum(Fraction(float(x)) for x in v[:, j]) for j in range(2)]
    for j in range(2):
        mass = sum(Fraction(abs(float(x))) for x in v[:, j])
        assert abs(Fraction(float(column[j, 1])) - exact[j]) <= Fraction(rho) * mass
    assert (column[:, [0, 2]] == 7).all()
    wide = torch.empty(2, 1, dtype=F64)
    rounding._outer_sum(torch.ones(len(v), 1), v, rho, wide)
    torch.testing.assert_close(wide[:, 0], v.double().sum(0), rtol=0, atol=rho * float(v.abs().sum()))
