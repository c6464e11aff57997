"""Public subspaces held as factors, against the matrix V itself; inner products of rows, against dense ones."""

import copy
import json
import math

import pytest
import scipy.sparse as sp
import torch
from safetensors.torch import load, save
from sketch_cases import normal
from test_sketches_devices import stays
from test_sketches_layers import SPACE as LAYERS
from test_sketches_layers import Rounds as LayerRounds
from torch import nn

from isthmus.base import storage
from isthmus.base.space import Space
from isthmus.core.driver import TorchDriver
from isthmus.core.pipeline import Pipeline, Release, Stage
from isthmus.gradients import Dense, Lazy, Lookup, Outer, Stack, Sum
from isthmus.gradients.layers import Layers
from isthmus.gradients.rows import inner
from isthmus.objectives.module import captured
from isthmus.parts import Shuffle
from isthmus.privacy import Clip
from isthmus.sketches import PublicSubspace, Residual, base
from isthmus.sketches import public as learning
from isthmus.sketches.compose import _BlockMap
from isthmus.sketches.public import SubspaceMap, _copied, _FactoredMap, _factors_of, _products, _stored

SPACE = Space.of({"table": (11, 4), "hidden": (5, 9), "conv": (3, 6), "out": (4, 6)})
PUBLIC, N = 7, 6
SMALL = {torch.float64: 1e-10, torch.float32: 1e-5}


def places(n, positions, vocabulary, seed=0):
    return torch.randint(vocabulary, (n, positions), generator=torch.Generator().manual_seed(seed))


def network(n, seed, dtype=torch.float64, positions=3):
    """An embedding, a layer with a bias, a convolution and a layer in 3-d form."""
    draw = [normal(n, *shape, seed=seed + i, dtype=dtype) for i, shape in enumerate([(positions, 4), (8,), (5,)])]
    conv = Outer(normal(n, 2, 6, seed=seed + 5, dtype=dtype), normal(n, 2, 3, seed=seed + 6, dtype=dtype))
    out = Outer(normal(n, 1, 6, seed=seed + 7, dtype=dtype), normal(n, 1, 4, seed=seed + 8, dtype=dtype))
    table = Lookup(places(n, positions, 11, seed), draw[0], 11)
    return Stack([("table", table), ("hidden", Outer(draw[1], draw[2], ones=True)), ("conv", conv), ("out", out)])


@pytest.fixture(autouse=True)
def _small_leaves_are_factored(monkeypatch):
    monkeypatch.setattr(learning, "FACTORED_FROM", 20)
    monkeypatch.setattr(learning, "WORTH", 0)


def Rounds(public, space=SPACE, dtype=torch.float64):
    return LayerRounds(public, space, dtype)


def learned(k=3, dtype=torch.float64, public=None):
    return PublicSubspace(k).bind(Rounds(public or network(PUBLIC, 100, dtype), dtype=dtype), None)


# ---------------------------------------------------------------- inner products


def kinds(n, seed, dtype=torch.float64):
    a, b = normal(n, 3, 5, seed=seed, dtype=dtype), normal(n, 3, 4, seed=seed + 1, dtype=dtype)
    sparse = sp.csr_array(a[:, 0].numpy() * (a[:, 0].numpy() > 0))
    index, values = places(n, 6, 5, seed), normal(n, 6, 4, seed=seed + 2, dtype=dtype)
    return {
        "one": Outer(a[:, 0], b[:, 0]),
        "one-3d": Outer(a[:, :1], b[:, :1]),
        "bias": Outer(a[:, 0, :4], b[:, 0], ones=True),
        "many": Outer(a, b),
        "many-bias": Outer(a[..., :4], b, ones=True),
        "sparse": Outer(sparse, b[:, 0]),
        "dense": Dense(normal(n, 20, seed=seed, dtype=dtype)),
        "lazy": Lazy(lambda lo, hi: normal(n, 20, seed=seed, dtype=dtype)[lo:hi], n, 20, dtype=dtype),
        "lookup": Lookup(index, values, 5),
        "sum": Sum([Lookup(places(n, 6, 4, seed), normal(n, 6, 5, seed=seed, dtype=dtype), 4), Outer(a, b)]),
    }


KINDS = list(kinds(1, 0))


@pytest.mark.parametrize("one", KINDS)
@pytest.mark.parametrize("two", KINDS)
def test_inner_products_of_any_two_kinds(one, two):
    left, right = kinds(5, 1)[one], kinds(7, 20)[two]
    torch.testing.assert_close(inner(left, right), left.dense() @ right.dense().T, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("positions", [(1, 1), (1, 3), (3, 1), (2, 2)])
def test_inner_products_of_wide_outer_products_use_factors(positions, monkeypatch):
    left, right = (Outer(normal(4, t, 31, seed=t), normal(4, t, 29, seed=9 + t)) for t in positions)
    want = left.dense() @ right.dense().T
    monkeypatch.setattr(Outer, "dense", lambda self: pytest.fail("built the matrix"))
    torch.testing.assert_close(inner(left, right), want, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("vocabulary", [1, 3, 400])
def test_inner_products_of_tables_for_rare_and_frequent_places(vocabulary, monkeypatch):
    left = Lookup(places(9, 12, vocabulary), normal(9, 12, 3), vocabulary)
    right = Lookup(places(5, 20, vocabulary, 1), normal(5, 20, 3, seed=1), vocabulary)
    want = left.dense() @ right.dense().T
    monkeypatch.setattr(Lookup, "dense", lambda self: pytest.fail("built the matrix"))
    torch.testing.assert_close(inner(left, right), want, rtol=1e-12, atol=1e-12)


def test_inner_products_take_the_wider_dtype_and_empty_rows():
    for name, left in kinds(5, 1, torch.float32).items():
        right = kinds(3, 20)[name]
        assert inner(left, right).dtype == torch.float64 and inner(left, left).dtype == torch.float32
        assert inner(left.part(0, 0), right).shape == (0, 3) and inner(left, right.part(0, 0)).shape == (5, 0)
    half = kinds(2, 1, torch.float32)["one"]
    assert inner(Outer(half.a.bfloat16(), half.b.bfloat16()), half).dtype == torch.float32


def test_inner_products_of_stacks_match_leaves_by_name():
    left, right = network(5, 1), network(3, 50)
    want = left.dense() @ right.dense().T
    torch.testing.assert_close(inner(left, right), want)
    torch.testing.assert_close(inner(left, Stack(right.items[::-1])), want)
    torch.testing.assert_close(inner(left, Dense(right.dense())), want)


def test_inner_products_with_rows_of_another_space_are_refused():
    for rows in kinds(2, 1).values():
        with pytest.raises(ValueError, match="same space"):
            inner(rows, Dense(torch.zeros(2, 21)))


# ---------------------------------------------------------------- factors


@pytest.mark.parametrize("kind", ["one", "sparse", "table"])
@pytest.mark.parametrize("chunk", [1, 1 << 26])
def test_factors_answer_as_their_matrix_does(kind, chunk, monkeypatch):
    monkeypatch.setattr(base, "CHUNK_BYTES", chunk)
    rows = kinds(7, 3)["lookup" if kind == "table" else kind]
    factors = _copied(rows, rows.device, rows.dtype)
    whole, x = rows.dense(), normal(3, 20)
    torch.testing.assert_close(factors.dense(), whole)
    torch.testing.assert_close(factors.part(2, 4).dense(), whole[2:4])
    torch.testing.assert_close(factors.sum(normal(7)), normal(7) @ whole)
    torch.testing.assert_close(_products(x, factors), x @ whole.T)
    torch.testing.assert_close(_factors_of(_stored(factors)).dense(), whole)


# ---------------------------------------------------------------- the map


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_factored_map_is_the_top_of_the_svd(dtype):
    public = network(PUBLIC, 100, dtype)
    sketch, state = learned(3, dtype, public)
    assert isinstance(sketch, _BlockMap)
    kinds_held = {name: type(block) for name, block in sketch.blocks.items()}
    assert kinds_held == {"table": _FactoredMap, "hidden": _FactoredMap, "conv": SubspaceMap, "out": _FactoredMap}
    assert set(state["leaves"]["conv"]) == {"basis"} and "basis" not in state["leaves"]["hidden"]
    V = sketch.dense().T
    exact = 1e-10 if dtype == torch.float64 else 1e-6
    torch.testing.assert_close(V.T @ V, torch.eye(3, dtype=torch.float64), rtol=0, atol=exact)
    whole = public.dense().double()
    _, singular, right = torch.linalg.svd(whole, full_matrices=False)
    torch.testing.assert_close(V @ V.T, right[:3].T @ right[:3], rtol=0, atol=10 * exact)
    share = float(singular[:3].square().sum() / singular.square().sum())
    inside = sketch.encode(public).norms().double().square().sum() / singular.square().sum()
    assert float(inside) == pytest.approx(share, rel=1e-5)
    assert float(torch.linalg.svdvals(V)[0]) <= sketch.norm <= 1 + 10 * exact
    assert sketch.tight and sketch.coverage == 1.0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("chunk", [1 << 8, 1 << 26])
def test_every_operation_equals_that_of_the_matrix(dtype, chunk, monkeypatch):
    monkeypatch.setattr(base, "CHUNK_BYTES", chunk)
    sketch, _ = learned(3, dtype)
    V, close = sketch.dense().T, {"rtol": SMALL[dtype], "atol": 10 * SMALL[dtype]}
    v, y, rows = normal(SPACE.d, dtype=dtype), normal(3, dtype=dtype), network(N, 1, dtype)
    assert sketch.forward(v).dtype == sketch.adjoint(y).dtype == sketch.encode(rows).dtype == dtype
    torch.testing.assert_close(sketch.forward(v).double(), V.T @ v.double(), **close)
    torch.testing.assert_close(sketch.adjoint(y).double(), V @ y.double(), **close)
    torch.testing.assert_close(sketch.pinv(y).double(), V @ y.double(), **close)
    for leaf in SPACE.leaves:
        piece = V[SPACE.slice(leaf.name)]
        torch.testing.assert_close(sketch.adjoint_leaf(leaf.name, y).double(), piece @ y.double(), **close)
        torch.testing.assert_close(sketch.pinv_leaf(leaf.name, y).double(), piece @ y.double(), **close)
        some = (piece @ y.double()).view(leaf.shape)[:, 1:3]
        torch.testing.assert_close(sketch.adjoint_columns(leaf.name, y, 1, 3).double(), some, **close)
    want = rows.dense().double() @ V
    torch.testing.assert_close(sketch.encode(rows).dense().double(), want, **close)
    torch.testing.assert_close(sketch.encode(Dense(rows.dense())).dense().double(), want, **close)
    torch.testing.assert_close(sketch.forward(rows.sum()).double(), want.sum(0), **close)
    for lo, hi in ((0, SPACE.d), (3, 41), (44, 89), (50, 60), (90, 131)):
        x = normal(4, hi - lo, seed=hi, dtype=dtype)
        torch.testing.assert_close(sketch.rows(x, lo).double(), x.double() @ V[lo:hi], **close)
        torch.testing.assert_close(sketch.rows(sp.csr_array(x.numpy()), lo).double(), x.double() @ V[lo:hi], **close)
        torch.testing.assert_close(sketch._block(lo, hi), V[lo:hi].T, **close)
    for ord, want_gain in ((1, V.abs().sum(1).max()), (2, 1.0), (math.inf, V.abs().sum(0).max())):
        assert float(want_gain) <= sketch.gain(ord) <= float(want_gain) * (1 + 1e-5)


@pytest.mark.parametrize(("lo", "q", "p"), [(44, 5, 9), (89, 3, 6), (44, 3, 9), (40, 4, 5)])
@pytest.mark.parametrize("positions", [None, 1, 2])
def test_outer_products_inside_and_across_leaves(lo, q, p, positions):
    sketch, _ = learned()
    middle = () if positions is None else (positions,)
    a, b = normal(N, *middle, p), normal(N, *middle, q, seed=1)
    want = Outer(a, b).dense() @ sketch.dense()[:, lo : lo + q * p].T
    torch.testing.assert_close(sketch.outer(a, b, lo), want)


def test_private_rows_of_other_kinds_than_the_public_ones():
    sketch, _ = learned()
    rows = network(N, 1)
    items = [(name, Dense(piece.dense())) for name, piece in rows.items]
    items[1] = ("hidden", Outer(normal(N, 2, 9), normal(N, 2, 5, seed=1)))
    items[2] = ("conv", Lookup(places(N, 4, 3), normal(N, 4, 6), 3))
    mixed = Stack(items)
    torch.testing.assert_close(sketch.encode(mixed).dense(), mixed.dense() @ sketch.dense().T)
    assert sketch.encode(rows.part(0, 0)).dense().shape == (0, 3)


def test_a_broken_row_spoils_its_own_code_only():
    sketch, _ = learned()
    rows = network(N, 1)
    rows.items[0][1].values[2, 1] = math.inf
    rows.items[1][1].a[4] = math.nan
    codes = sketch.encode(rows).dense()
    assert codes.isfinite().all(1).tolist() == [True, True, False, True, False, True]


def test_one_leaf_of_sparse_inputs_is_held_sparse():
    a = sp.random_array((PUBLIC, 200), density=0.05, rng=0, format="csr")
    public, space = Outer(a, normal(PUBLIC, 3)), Space.of({"w": (3, 200)})
    sketch, state = PublicSubspace(3).bind(Rounds(public, space), None)
    top = torch.linalg.svd(public.dense(), full_matrices=False)[2][:3]
    V = sketch.dense().T
    torch.testing.assert_close(V @ V.T, top.T @ top)
    private = Outer(sp.random_array((N, 200), density=0.05, rng=1, format="csr"), normal(N, 3, seed=1))
    torch.testing.assert_close(sketch.encode(private).dense(), private.dense() @ V)
    assert state["leaves"]["w"]["data"].numel() == a.nnz


@pytest.mark.parametrize("sparse", [False, True])
def test_a_restored_state_gives_the_same_map(sparse):
    if sparse:
        a = sp.random_array((PUBLIC, 200), density=0.05, rng=0, format="csr")
        public, space = Outer(a, normal(PUBLIC, 3)), Space.of({"w": (3, 200)})
    else:
        public, space = network(PUBLIC, 100), SPACE
    context, tensors = Rounds(public, space), {}
    sketch, state = PublicSubspace(3, refresh=5).bind(context, None)
    tree = json.loads(json.dumps(storage._encode(state, "state", tensors)))
    restored = storage._decode(tree, load(save(tensors)))
    context.t = 4
    again, _ = PublicSubspace(3, refresh=5).bind(context, restored)
    assert len(context.asked) == 1 and again.norm == sketch.norm and torch.equal(again.dense(), sketch.dense())


def test_maps_are_refreshed_and_do_not_follow_later_changes_of_the_public_rows():
    context, encoder, state, maps = Rounds(network(PUBLIC, 100)), PublicSubspace(3, refresh=2), None, []
    for context.t in range(4):
        sketch, state = encoder.bind(context, state)
        maps.append(sketch.dense())
        for piece in context.public.items[1:]:
            piece[1].b.mul_(3.0 + normal(*piece[1].b.shape, seed=context.t))
        context.public.items[0][1].values.neg_()
    assert torch.equal(maps[0], maps[1]) and torch.equal(maps[2], maps[3]) and not torch.allclose(maps[1], maps[2])
    assert len(context.asked) == 2


@pytest.mark.parametrize(
    ("dtype", "decades", "kept"), [(torch.float64, 5, 4), (torch.float32, 5, 7), (torch.float32, 7, 5)]
)
def test_directions_that_factors_cannot_hold_are_left_out(dtype, decades, kept):
    """Rows that nearly coincide leave tiny eigenvalues below rows of ordinary size."""
    scale = torch.logspace(0, -decades, 7, dtype=torch.float64)[:, None]
    mix = torch.linalg.qr(normal(7, 7))[0]
    a = mix @ (scale * torch.linalg.qr(normal(40, 7, seed=1))[0].T)
    public = Outer(a, torch.ones(7, 1, dtype=torch.float64))
    sketch = PublicSubspace(7).bind(Rounds(public, Space.of({"w": (1, 40)}), dtype), None)[0]
    V = sketch.dense().T
    exact = 1e-10 if dtype == torch.float64 else 1e-6
    torch.testing.assert_close(V.T @ V, torch.eye(kept, dtype=torch.float64), rtol=0, atol=exact)
    assert float(torch.linalg.svdvals(V)[0]) <= sketch.norm <= 1 + 100 * exact


def test_rows_of_unequal_size_lose_no_direction():
    scale = torch.logspace(0, -5, 7, dtype=torch.float64)[:, None]
    public = Outer(normal(7, 400), scale)
    sketch = PublicSubspace(7).bind(Rounds(public, Space.of({"w": (1, 400)})), None)[0]
    V = sketch.dense().T
    assert sketch.m == 7
    torch.testing.assert_close(V.T @ V, torch.eye(7, dtype=torch.float64), rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_residuals_keep_norms_that_are_never_too_small(dtype):
    encoder = PublicSubspace(3)
    public = network(PUBLIC, 100, dtype)
    context = Rounds(public, dtype=dtype)
    rest = Residual(encoder).bind(context, None)[0]
    assert isinstance(rest.inner, _BlockMap)
    projector = torch.eye(SPACE.d, dtype=torch.float64) - rest.inner.dense().T @ rest.inner.dense()
    inside = [(name, piece.mixed(torch.arange(3)[:, None], torch.ones(3, 1))) for name, piece in public.items[1:]]
    table = Lookup(public.items[0][1].index[:3], public.items[0][1].values[:3], 11)
    for rows in (network(N, 1, dtype), Stack([("table", table), *inside])):
        found, want = rest.encode(rows), rows.dense().double() @ projector
        torch.testing.assert_close(found.dense().double(), want, rtol=SMALL[dtype], atol=10 * SMALL[dtype])
        true = want.norm(dim=1)
        assert bool((found.norms().double() >= true).all())
        guard = math.sqrt(2.5 * torch.finfo(found.dtype).eps * (4 + math.log2(found.d))) * rows.norms().double()
        assert bool((found.norms().double() <= true * (1 + 1e-5) + 2 * guard).all())


@pytest.mark.parametrize("positions", [None, 1, 3])
def test_codes_and_lifts_stay_on_their_device(positions):
    draw = [normal(PUBLIC, size, seed=size) for size in (6, 4, 5, 3)]
    public = Stack([("hidden", Outer(draw[0], draw[1])), ("out", Outer(draw[2], draw[3]))])
    sketch = PublicSubspace(3).bind(Rounds(public, LAYERS), None)[0]
    assert {type(block) for block in sketch.blocks.values()} == {_FactoredMap, SubspaceMap}
    stays(sketch, positions)


@pytest.mark.parametrize("clip", ["after", "before"])
def test_a_private_round_of_a_network_with_factored_layers(clip):
    """One round without noise equals the clipped codes of per-example gradients, lifted by the dense matrix."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    public, x, y = (places(8, 3, 9, 1), torch.arange(8) % 3), places(5, 3, 9, 2), torch.arange(5) % 3
    layers = Layers(copy.deepcopy(module))
    layers.attach()
    public_rows = captured(layers, nn.functional.cross_entropy, *public)
    V = PublicSubspace(3).bind(Rounds(public_rows, layers.space), None)[0].dense().T
    rows = captured(layers, nn.functional.cross_entropy, x, y).dense()
    inside = rows @ V if clip == "after" else rows
    clipped = inside * (0.1 / inside.norm(dim=1, keepdim=True)).clamp_max(1.0)
    want = V @ (clipped.sum(0) if clip == "after" else V.T @ clipped.sum(0)) / 5
    release = Release(encode=PublicSubspace(3, public, clip=clip), clip=Clip(0.1, before=clip == "before"))
    pipe, optimizer = Pipeline([Stage(Shuffle(5), [release])], lambda t: 1.0), torch.optim.SGD(module.parameters(), 1.0)
    driver = TorchDriver(pipe, module, optimizer, n=5, loss=nn.functional.cross_entropy)
    before = driver.layers.pack()
    nn.functional.cross_entropy(module(x), y).backward()
    driver.step()
    torch.testing.assert_close(before - driver.layers.pack(), want, rtol=1e-6, atol=1e-9)


# ---------------------------------------------------------------- the basis itself


def test_small_leaves_keep_the_whole_basis(monkeypatch):
    monkeypatch.setattr(learning, "FACTORED_FROM", 1 << 15)
    sketch, state = learned()
    assert isinstance(sketch, SubspaceMap) and set(state) == {"basis", "norm", "t"}
    factored = PublicSubspace(3)
    monkeypatch.setattr(learning, "FACTORED_FROM", 20)
    other = factored.bind(Rounds(network(PUBLIC, 100)), None)[0].dense()
    torch.testing.assert_close(sketch.dense().T @ sketch.dense(), other.T @ other)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("chunk", [1 << 10, 1 << 26])
def test_a_basis_of_nearly_dependent_rows_is_orthonormal_in_place(dtype, chunk, monkeypatch):
    monkeypatch.setattr(base, "CHUNK_BYTES", chunk)
    scale = torch.logspace(0, -5.5, 6, dtype=torch.float64)[:, None]
    public = torch.linalg.qr(normal(6, 6))[0] @ (scale * normal(6, 500, seed=1))
    sketch, state = PublicSubspace(6).bind(Rounds(Dense(public), Space.flat(500), dtype), None)
    V = sketch.dense().T
    assert sketch.m == 6 and state["basis"].dtype == dtype
    exact = 1e-13 if dtype == torch.float64 else 1e-6
    torch.testing.assert_close(V.T @ V, torch.eye(6, dtype=torch.float64), rtol=0, atol=exact)
    assert float(torch.linalg.svdvals(V)[0]) <= sketch.norm <= 1 + 10 * exact


def test_factors_that_are_larger_than_the_basis_are_not_kept(monkeypatch):
    monkeypatch.setattr(learning, "WORTH", 2)
    public = Outer(normal(30, 40), normal(30, 2, seed=1))
    sketch = PublicSubspace(3).bind(Rounds(public, Space.of({"w": (2, 40)})), None)[0]
    assert isinstance(sketch, SubspaceMap)
