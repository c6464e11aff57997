"""The tensor sketch: its hashes, its Fourier codes and its law."""

import pytest
import scipy.sparse as sp
import torch
from grids import pairs
from sketch_cases import normal

from isthmus.base.space import Space
from isthmus.sketches import CountSketch, TensorSketch, base
from isthmus.sketches.hashed import _counts, _layout

SPACE = Space.of({"hidden": (5, 8), "bias": (7,), "tall": (9, 1), "out": (1, 6)})
CHUNKS = [1 << 8, 1 << 26]
TOLERANCE = {torch.float32: {"rtol": 1e-5, "atol": 1e-5}, torch.float64: {"rtol": 1e-10, "atol": 1e-10}}


@pytest.mark.parametrize("shape", [(1, 1), (4, 6), (6, 4), (3, 17), (1, 9), (9, 1)])
@pytest.mark.parametrize("m", [1, 2, 5, 6, 12])
def test_bucket_sizes_are_those_of_the_windows(shape, m):
    q, p = shape
    for start in (0, 3):
        for stride in (1, p, 7):
            cells = [(start + stride * x + y) % m for x in range(q) for y in range(p)]
            want = torch.bincount(torch.tensor(cells), minlength=m)
            assert torch.equal(_counts(q, p, m, start % m, stride), want)


@pytest.mark.parametrize("shapes", [((4, 6),), ((4, 6), (1, 5), (9, 1)), ((2, 12), (12, 2)), ((1, 1), (3, 4))])
def test_no_bucket_is_ever_empty(shapes):
    d = sum(q * p for q, p in shapes)
    for m in range(1, d + 1):
        _, _, counts, covered = _layout(shapes, m)
        assert int(counts.min()) >= 1 and int(counts.sum()) == d
        shares = sum(share * q * p for share, (q, p) in zip(covered, shapes, strict=True))
        assert shares == pytest.approx(m, rel=1e-12)


@pytest.mark.parametrize("m", [1, 8, 13, 30, 62])
def test_buckets_and_signs_are_sums_and_products_of_two_sides(m):
    phi = TensorSketch(m).draw(SPACE, seed=2).dense()
    hidden = phi[:, :40].T.reshape(5, 8, m)
    assert bool(((hidden != 0).sum(2) == 1).all())
    bucket, sign = hidden.abs().argmax(2), hidden.sum(2).sign()
    assert bool(((bucket - bucket[:1] - bucket[:, :1] + bucket[0, 0]) % m == 0).all())
    assert torch.equal(sign, sign[:, :1] * sign[:1] * sign[0, 0])


@pytest.mark.parametrize("m, positions, dtype, chunk", pairs([1, 2, 9, 16, 62], [None, 1, 4], TOLERANCE, CHUNKS))
def test_fourier_codes_equal_the_dense_product(m, positions, dtype, chunk, monkeypatch):
    monkeypatch.setattr(base, "CHUNK_BYTES", chunk)
    sketch, middle = TensorSketch(m).draw(SPACE), () if positions is None else (positions,)
    phi = sketch.dense()
    for leaf, (q, p) in zip(SPACE.leaves, [(5, 8), (1, 7), (9, 1), (1, 6)], strict=True):
        a, b = normal(6, *middle, p), normal(6, *middle, q, seed=1)
        product = torch.einsum("ntq,ntp->nqp", b.view(6, -1, q), a.view(6, -1, p)).reshape(6, -1)
        want = (product @ phi[:, leaf.start : leaf.start + leaf.size].T).to(dtype)
        torch.testing.assert_close(sketch.outer(a.to(dtype), b.to(dtype), leaf.start), want, **TOLERANCE[dtype])
        assert sketch.outer(a[:0], b[:0], leaf.start).shape == (0, m)
        if positions is None:
            sparse = sp.csr_array(a.to(dtype).numpy())
            torch.testing.assert_close(sketch.outer(sparse, b.to(dtype), leaf.start), want, **TOLERANCE[dtype])


def test_factors_of_mixed_precision():
    sketch = TensorSketch(9).draw(SPACE)
    a, b = normal(6, 8).to(torch.bfloat16), normal(6, 5, seed=1).float()
    want = sketch.rows(torch.einsum("nq,np->nqp", b, a.float()).reshape(6, 40))
    torch.testing.assert_close(sketch.outer(a, b), want, **TOLERANCE[torch.float32])


def test_the_products_of_a_layer_are_never_built(monkeypatch):
    sketch = TensorSketch(64).draw(Space.of({"w": (3000, 4000)}))

    def built(*arguments):
        raise AssertionError("a product was built")

    monkeypatch.setattr(torch, "einsum", built)
    a, b = normal(2, 4000), normal(2, 3000, seed=1)
    code = sketch.outer(a, b)
    monkeypatch.undo()
    want = sketch.rows(torch.einsum("nq,np->nqp", b, a).reshape(2, -1))
    torch.testing.assert_close(code, want, rtol=1e-9, atol=1e-9 * float(want.abs().max()))


@pytest.mark.parametrize("shape", [(16, 16), (32, 8), (8, 32), (16, 17)])
def test_rank_one_gradients_keep_their_length_as_well_as_any(shape):
    """Strides that share a factor with m = 16 would fold whole columns together: variance 2 instead of 2 / m."""
    q, p = shape
    space, a, b = Space.of({"w": shape}), normal(1, p), normal(1, q, seed=1)
    length = float(a.square().sum() * b.square().sum())
    codes = {
        kind: torch.stack([kind(16).draw(space, t=t).outer(a, b).square().sum() / length for t in range(600)])
        for kind in (TensorSketch, CountSketch)
    }
    error = float(codes[TensorSketch].std()) / 600**0.5
    assert abs(float(codes[TensorSketch].mean()) - 1) < 4.5 * error
    assert float(codes[TensorSketch].var()) < 2 * float(codes[CountSketch].var())


def test_maps_of_other_rounds_and_leaves_differ():
    space = Space.of({"a": (4, 6), "b": (4, 6)})
    first, second = (TensorSketch(5).draw(space, t=t).dense() for t in range(2))
    assert not torch.equal(first, second) and not torch.equal(first[:, :24], first[:, 24:])
    assert torch.equal(
        TensorSketch(5, refresh=2).draw(space, t=1).dense(), TensorSketch(5, refresh=2).draw(space).dense()
    )
