"""What training a module asks of sketches: leafwise lifts, factored blocks, kept copies, public data of the engine."""

from dataclasses import replace

import pytest
import torch
from grids import pairs
from sketch_cases import normal
from test_sketches_layers import SPACE, N, Rounds, rows

from isthmus import sketches
from isthmus.base.space import Space
from isthmus.gradients import Dense, Outer, Stack
from isthmus.sketches import base as sketch_base

LAYERED = {
    "identity": sketches.Identity(),
    "count": sketches.CountSketch(7),
    "gaussian": sketches.GaussianSketch(7),
    "coordinates": sketches.Coordinates(7),
    "nice": sketches.Nice(7),
    "blocks": sketches.Blocks(3),
    "blocks-leaves": sketches.Blocks(["out", "hidden"], bounds=[2.0, 3.0]),
    "blocks-group": sketches.Blocks([["hidden", "out"]], bounds=[2.0]),
    "kronecker": sketches.Kronecker(3, 2),
    "public": sketches.PublicSubspace(4, data="public"),
    "public-kronecker": sketches.KroneckerSubspace(3, 2, data="public"),
    "per-leaf": sketches.PerLeaf(sketches.CountSketch(0.3)),
    "per-leaf-kronecker": sketches.PerLeaf(sketches.Kronecker(2, 2)),
    "tensor": sketches.TensorSketch(7),
    "per-leaf-tensor": sketches.PerLeaf(sketches.TensorSketch(0.4)),
    "residual": sketches.Residual(sketches.CountSketch(5)),
    "residual-tensor": sketches.Residual(sketches.TensorSketch(5)),
    "residual-public": sketches.Residual(sketches.PublicSubspace(3, data="public")),
}
TOLERANCE = {torch.float32: {"rtol": 1e-5, "atol": 1e-5}, torch.float64: {"rtol": 1e-10, "atol": 1e-10}}


def bound(name, public=None):
    return LAYERED[name].bind(Rounds(rows() if public is None else public), None)[0]


def with_ones(positions, dtype=torch.float64, n=N):
    """Layers with a bias: the last input is always 1 and is not stored."""
    middle = () if positions is None else (positions,)
    hidden = Outer(normal(n, *middle, 5).to(dtype), normal(n, *middle, 4, seed=1).to(dtype), ones=True)
    out = Outer(normal(n, *middle, 4, seed=2).to(dtype), normal(n, *middle, 3, seed=3).to(dtype), ones=True)
    return Stack([("hidden", hidden), ("out", out)])


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("name", list(LAYERED))
def test_lifting_leaf_by_leaf_is_the_whole_lift(name, dtype):
    sketch = bound(name)
    for seed in (0, 1):
        y = normal(sketch.m, seed=seed).to(dtype)
        leaves = [sketch.adjoint_leaf(leaf.name, y) for leaf in SPACE.leaves]
        assert [len(leaf) for leaf in leaves] == [24, 15]
        torch.testing.assert_close(torch.cat(leaves), (sketch.dense().T @ y.double()).to(dtype), **TOLERANCE[dtype])
        lifted = torch.cat(
            [(sketch.pinv_leaf if sketch.tight else sketch.adjoint_leaf)(leaf.name, y) for leaf in SPACE.leaves]
        )
        torch.testing.assert_close(lifted, sketch.pinv(y), **TOLERANCE[dtype])


@pytest.mark.parametrize("name", list(LAYERED))
def test_a_code_changed_in_place_is_lifted_anew(name):
    sketch = bound(name)
    lift = sketch.pinv_leaf if sketch.tight else sketch.adjoint_leaf  # what a sketch lost is its own adjoint
    y = normal(sketch.m)
    lift("hidden", y)
    y.mul_(2.0)
    torch.testing.assert_close(lift("hidden", y), sketch.pinv(y)[:24])
    with torch.inference_mode():
        fixed = normal(sketch.m)
        torch.testing.assert_close(lift("out", fixed), sketch.pinv(fixed)[24:])


@pytest.mark.parametrize("name, positions, dtype", pairs(LAYERED, [None, 1, 3], TOLERANCE))
def test_codes_of_layers_with_a_bias(name, positions, dtype):
    sketch, given = bound(name), with_ones(positions, dtype)
    want = (given.dense().double() @ sketch.dense().T).to(dtype)
    pieces = {leaf: sketch.leaf(leaf, piece) for leaf, piece in given.leaves()}
    torch.testing.assert_close(sketch.join(pieces).dense(), want, **TOLERANCE[dtype])
    torch.testing.assert_close(sketch.encode(given).sum(), want.sum(0), rtol=1e-4, atol=1e-4)
    none = sketch.encode(with_ones(positions, n=0))
    assert (none.n, none.d) == (0, sketch.m) and not none.sum().any()


@pytest.mark.parametrize("kind", ["sparse", "dense"])
@pytest.mark.parametrize("name", list(LAYERED))
def test_codes_of_sparse_and_dense_layers(name, kind):
    sketch, given = bound(name), rows(None, sparse=True)
    if kind == "dense":
        given = Dense(given.dense())
    want = given.dense() @ sketch.dense().T
    torch.testing.assert_close(sketch.encode(given).dense(), want)
    torch.testing.assert_close(sketch.forward(given.sum()), want.sum(0))


def test_blocks_of_whole_leaves_keep_their_rows_factored():
    space = Space.of({"a": (4, 6), "b": (3, 5), "c": (2, 2)})
    recipe = sketches.Blocks([("c", "a"), "b"], bounds=[2.0, 1.0])
    by_name = {
        name: Outer(normal(N, p), normal(N, q, seed=1)) for name, (q, p) in [(x.name, x.shape) for x in space.leaves]
    }
    whole = Stack(list(by_name.items()))
    seen = set()
    for t in range(12):
        sketch = recipe.draw(space, t=t)
        pieces = {name: sketch.leaf(name, piece) for name, piece in by_name.items()}
        outside = ["b"] if sketch.m == 28 else ["a", "c"]
        assert [name for name in pieces if pieces[name] is None] == outside
        assert all(isinstance(piece, Outer) for piece in pieces.values() if piece is not None)
        want = whole.dense() @ sketch.dense().T
        torch.testing.assert_close(sketch.join(pieces).dense(), want)
        shown = {name: piece for name, piece in reversed(pieces.items()) if piece is not None}
        torch.testing.assert_close(sketch.join(shown).dense(), want)
        seen.add(sketch.m)
    assert seen == {28, 15}
    assert recipe.draw(space, t=0).leaf("b", by_name["b"]) in (None, by_name["b"])


def test_blocks_that_cut_a_leaf():
    sketch = sketches.Blocks([range(0, 30), range(30, 39)]).draw(SPACE)
    pieces = {name: sketch.leaf(name, piece) for name, piece in rows().leaves()}
    torch.testing.assert_close(sketch.join(pieces).dense(), rows().dense() @ sketch.dense().T)


@pytest.mark.parametrize("blocks", [["nothing"], ["hidden", ["out", "bias"]], [["hidden", 3], ["out"]]])
def test_wrong_groups_are_refused(blocks):
    with pytest.raises((KeyError, ValueError), match="this space has|names of leaves or as indices"):
        sketches.Blocks(blocks).draw(SPACE)


@pytest.mark.parametrize("encoder", [sketches.PublicSubspace(3), sketches.KroneckerSubspace(3, 2)])
def test_without_data_the_context_is_asked_for_its_own(encoder):
    context = Rounds(rows())
    assert encoder.bind(context, None)[0].m == (3 if isinstance(encoder, sketches.PublicSubspace) else 12)
    assert context.asked == [None]
    replace(encoder, loss="own").bind(context, None)
    assert context.asked == [None, (None, "own")]


@pytest.mark.parametrize("name", ["kronecker", "public", "tensor", "coordinates", "count"])
def test_copies_are_made_once_for_each_dtype(name):
    sketch = bound(name)

    def use(dtype):
        given = with_ones(2, dtype)
        sketch.join({leaf: sketch.leaf(leaf, piece) for leaf, piece in given.leaves()})
        sketch.adjoint_leaf("out", sketch.forward(given.sum()))
        return dict(sketch._memo.kept)

    first = use(torch.float32)
    again = use(torch.float32)
    assert first.keys() == again.keys() and all(first[key] is again[key] for key in first)
    torch.testing.assert_close(sketch.forward(normal(39)), sketch.dense() @ normal(39))


SIDES = [(3, 8), (8, 3), (1, 6), (6, 1)]


@pytest.mark.parametrize("shape, positions, chunk", pairs(SIDES, [None, 1, 2], [1 << 10, 1 << 26]))
def test_codes_in_a_public_subspace_for_either_longer_side(shape, positions, chunk, monkeypatch):
    monkeypatch.setattr(sketch_base, "CHUNK_BYTES", chunk)
    space, middle = Space.of({"w": shape}), () if positions is None else (positions,)
    q, p = shape
    sketch = sketches.PublicSubspace(4).bind(Rounds(Dense(normal(5, q * p, seed=7)), space), None)[0]
    a, b = normal(N, *middle, p), normal(N, *middle, q, seed=1)
    torch.testing.assert_close(sketch.outer(a, b), Outer(a, b).dense() @ sketch.dense().T)
    torch.testing.assert_close(sketch.outer(a[:0], b[:0]), torch.zeros(0, 4, dtype=torch.float64))
