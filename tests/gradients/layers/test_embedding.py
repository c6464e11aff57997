"""Embeddings and bags against one backward pass an example, and the rows they have against their matrix."""

import math

import pytest
import torch
from layer_reference import Built, agree, attached, capture, draw, places
from refusals import refuses
from torch import nn

from isthmus.base.space import Space
from isthmus.base.validate import InvalidInput
from isthmus.gradients import Dense, Outer
from isthmus.gradients.layers import Layers
from isthmus.gradients.rows import Lookup
from isthmus.sketches import Kronecker

DTYPES = [torch.float64, torch.float32]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(5,), (5, 1), (5, 9), (5, 3, 4), (1, 6), (0, 4), (0,)], ids=str)
@pytest.mark.parametrize("padding", [None, 2])
def test_embeddings(shape, dtype, padding):
    layer = nn.Embedding(7, 4, padding_idx=padding).to(dtype)
    rows = agree(layer, places(*shape), draw(*shape, 4, dtype=dtype))
    assert isinstance(rows.leaves()[0][1], Lookup)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_below_other_layers_with_the_examples_second(dtype):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 3), nn.Tanh(), nn.LayerNorm(3)).to(dtype)
    agree(module, places(6, 5), draw(6, 5, 3, dtype=dtype), batch_dim=1)


def positioned(places):
    """Tokens plus positions, whose ids come from the shape of the batch."""
    parts = {"token": nn.Embedding(7, 4), "place": nn.Embedding(9, 4), "out": nn.Linear(4, 2)}
    return Built(lambda m, x: m.out(torch.tanh(m.token(x) + m.place(places(x)))), **parts).double()


@pytest.mark.parametrize("n", [1, 4, 6])
@pytest.mark.parametrize("batch_dim", [0, 1])
def test_position_ids_of_one_row_are_taken_for_every_example(n, batch_dim):
    torch.manual_seed(0)
    x, y = places(n, 6), draw(n, 6, 2)
    if batch_dim:
        x, y = x.T, y.transpose(0, 1)
    module = positioned(lambda x: torch.arange(x.shape[1 - batch_dim]).unsqueeze(batch_dim))
    agree(module, x, y, batch_dim=batch_dim)


@pytest.mark.parametrize("n", [1, 4, 9])
def test_positions_that_all_examples_share_are_rows_of_each(n):
    torch.manual_seed(0)
    module = positioned(lambda x: torch.arange(x.shape[1]))
    rows = agree(module, places(n, 6), draw(n, 6, 2))
    assert isinstance(dict(rows.leaves())["place"], Lookup)


class Bag(nn.Module):
    """A bag over one row of places an example, whichever way it is called."""

    def __init__(self, way, **options):
        super().__init__()
        self.bag, self.way = nn.EmbeddingBag(7, 4, **options), way

    def forward(self, x):
        if self.way == "rows":
            return self.bag(x)
        if self.way == "weights":
            return self.bag(x, per_sample_weights=torch.cos(x.to(self.bag.weight.dtype) + 1))
        sizes = 1 + (x[:, 0] % x.shape[1])  # ragged: as many places as the first one says
        flat = torch.cat([row[:size] for row, size in zip(x, sizes.tolist(), strict=True)]) if len(x) else x.flatten()
        starts = sizes.cumsum(0) - sizes
        if self.bag.include_last_offset:
            starts = torch.cat([starts, sizes.sum()[None]])
        return self.bag(flat, starts)


BAGS = [
    ("rows", "sum", False),
    ("rows", "mean", False),
    ("weights", "sum", False),
    ("flat", "sum", False),
    ("flat", "mean", False),
    ("flat", "mean", True),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize(("way", "mode", "last"), BAGS)
def test_bags(way, mode, last, padding, dtype):
    module = Bag(way, mode=mode, padding_idx=padding, include_last_offset=last).to(dtype)
    agree(module, places(6, 5), draw(6, 4, dtype=dtype))


def test_bags_that_hold_nothing():
    bags = torch.tensor([1, 1, 4]), torch.tensor([0, 0, 2])
    module = Built(lambda m, x: m.layer(*bags), layer=nn.EmbeddingBag(7, 3, mode="mean").double())
    _, rows = capture(module, lambda out, y: (out * y).sum(), torch.zeros(3), draw(3, 3))
    y, expected = draw(3, 3), torch.zeros(3, 7, 3, dtype=torch.float64)
    expected[1, 1], expected[2, 4] = y[1], y[2]
    torch.testing.assert_close(rows.dense(), expected.flatten(1))
    assert float(rows.norms()[0]) == 0


test_settings_without_a_per_example_gradient_are_refused = refuses(
    (lambda: nn.Embedding(5, 2, max_norm=1.0), "max_norm=None"),
    (lambda: nn.Embedding(5, 2, scale_grad_by_freq=True), "scale_grad_by_freq=False"),
    (lambda: nn.Embedding(5, 2, sparse=True), "sparse=False"),
    (lambda: nn.EmbeddingBag(5, 2, mode="max"), "use mode='sum' or mode='mean'"),
    (lambda: nn.EmbeddingBag(5, 2, max_norm=1.0), "max_norm=None"),
    (lambda: nn.EmbeddingBag(5, 2, sparse=True), "sparse=False"),
    by=lambda layer: Layers(nn.Sequential(layer())),
)


def lookup(n=6, t=8, vocabulary=7, width=3, dtype=torch.float64, scale=1.0, seed=0):
    index, values = places(n, t, vocabulary=vocabulary, seed=seed), (draw(n, t, width, seed=seed) * scale).to(dtype)
    exact = torch.zeros(n, vocabulary, width, dtype=torch.float64)
    for i in range(n):
        for j in range(t):
            exact[i, index[i, j]] += values[i, j].double()
    return Lookup(index, values, vocabulary), exact.flatten(1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1.0, 1e30])
@pytest.mark.parametrize("ord", [1, 2, math.inf])
def test_norms_are_never_below_and_hardly_above(dtype, scale, ord):
    rows, exact = lookup(dtype=dtype, scale=scale)
    norms, true = rows.norms(ord).double(), torch.linalg.vector_norm(exact, ord, dim=1)
    if scale == 1e-300:  # squares of the reference itself would vanish
        true = torch.linalg.vector_norm(exact * 2.0**900, ord, dim=1) * 2.0**-900
    assert bool((norms >= true * (1 - 1e-15)).all())
    # in float32 the bound holds the rounding of the sum at repeated places, gamma_T of the absolute values
    assert bool((norms <= true * (1 + (1e-12 if dtype == torch.float64 else 1e-5)) + 1e-307).all())


def test_sums_that_cancel_at_a_place_are_not_under_estimated():
    values = torch.tensor([[[1.0], [2.0**-60], [-1.0]], [[0.0], [0.0], [0.0]]], dtype=torch.float64)
    rows = Lookup(torch.zeros(2, 3, dtype=torch.long), values, 4)
    for i, norm in enumerate(rows.norms().tolist()):
        alone = torch.eye(2, dtype=torch.float64)[i]
        assert float(rows.sum(alone).norm()) <= norm < 1e-14


def test_a_large_table_is_never_built():
    """n x V x D would be 20 GB here."""
    n, t, vocabulary, width = 50, 20, 1_000_000, 100
    rows = Lookup(places(n, t, vocabulary=vocabulary), draw(n, t, width, dtype=torch.float32), vocabulary)
    norms = rows.norms().double()
    exact = torch.linalg.vector_norm(rows.values.double().flatten(1), dim=1)  # almost surely no place twice
    torch.testing.assert_close(norms, exact, rtol=1e-5, atol=0)
    space = Space.of({"table": (1000, width)})
    small = Lookup(rows.index % 1000, rows.values, 1000)
    codes = Kronecker(4, 3).draw(space).leaf("table", small)
    assert isinstance(codes, (Outer, Dense)) and codes.d == 12


@pytest.mark.parametrize(
    ("index", "values", "match"),
    [((3,), (3, 2), "index.shape"), ((3, 2), (3, 2), "values.shape"), ((3, 2), (3, 4, 2), "values.shape")],
)
def test_wrong_shapes_are_refused(index, values, match):
    with pytest.raises(InvalidInput, match=match):
        Lookup(torch.zeros(index, dtype=torch.long), torch.zeros(values), 5)


def test_positions_shared_by_all_examples_are_refused_even_when_there_are_as_many():
    """Shape (T,) with T examples would pass for one place an example: the rows would mix examples."""
    module = torch.nn.Sequential(torch.nn.Embedding(9, 3), torch.nn.Linear(3, 2))
    layers = attached(module)
    with layers.listening(lambda name, rows: None, 6), pytest.raises(InvalidInput, match=r"shape \(1, T\)"):
        module(torch.arange(6))
    with layers.listening(lambda name, rows: None, 6):
        module(torch.tensor([3, 1, 0, 2, 5, 4])).sum().backward()
