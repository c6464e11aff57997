"""Convolutions of every shape against one backward pass an example."""

import pytest
import torch
from layer_reference import Built, agree, capture, squares, truth
from torch import nn

from isthmus.base.validate import InvalidInput
from isthmus.gradients import Dense, Outer, Stack
from isthmus.gradients.layers import rules
from isthmus.gradients.layers.rules import _patches
from isthmus.gradients.rows import row_spans

KINDS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
SIZES = {1: (13,), 2: (9, 8), 3: (5, 6, 5)}
SHAPES = [
    {"kernel_size": 3},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 2, "padding": "same"},
    {"kernel_size": 4, "padding": "same", "dilation": 1},
    {"kernel_size": 2, "padding": "valid", "dilation": 2},
    {"kernel_size": 3, "padding": 2, "padding_mode": "circular", "stride": 2},
    {"kernel_size": 3, "padding": 1, "padding_mode": "reflect", "bias": False},
    {"kernel_size": 2, "padding": "same", "padding_mode": "replicate"},
    {"kernel_size": 3, "groups": 2, "stride": 3},
    {"kernel_size": 2, "groups": 4, "padding": 1, "bias": False},
    {"kernel_size": 1, "stride": 5},
]


def case(module, x, dtype, n, seed=0):
    """The module, an input batch and targets of the output's shape, in a dtype."""
    draws = torch.Generator().manual_seed(seed)
    module = module.to(dtype)
    x = torch.randn(n, *x, generator=draws, dtype=torch.float64).to(dtype)
    y = torch.randn(module(x).shape, generator=draws, dtype=torch.float64).to(dtype)
    return module, x, y


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("options", SHAPES, ids=str)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_shapes(k, options, dtype):
    torch.manual_seed(k)
    first = KINDS[k](4, 8, **options)
    agree(*case(first, (4, *SIZES[k]), dtype, 3))


@pytest.mark.parametrize("seed", range(12))
def test_random_shapes_below_other_layers(seed):
    draws = torch.Generator().manual_seed(seed)
    pick = lambda *choices: choices[int(torch.randint(len(choices), (), generator=draws))]  # noqa: E731
    groups, size = pick(1, 1, 2, 3), pick(5, 7, 10)
    inside, outside = groups * pick(1, 2, 5), groups * pick(1, 3, 4)
    options = {"stride": (pick(1, 2), pick(1, 2, 3)), "padding": (pick(0, 1), pick(0, 2)), "groups": groups}
    torch.manual_seed(seed)
    conv = nn.Conv2d(inside, outside, (pick(1, 2, 3), pick(1, 4)), bias=pick(True, False), **options)
    module = nn.Sequential(nn.Conv2d(2, inside, 3, padding=1), nn.Tanh(), conv, nn.Tanh(), nn.Flatten())
    agree(*case(module, (2, size, size), torch.float64, pick(1, 2, 5), seed))


@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("size", [3, 12], ids=["factors", "products"])
def test_empty_and_single_batches(n, groups, size):
    agree(*case(nn.Conv2d(4, 6, 3, groups=groups), (4, size, size), torch.float64, n))


@pytest.mark.parametrize("frozen", ["weight", "bias"])
@pytest.mark.parametrize("groups", [1, 3])
def test_frozen_weight_or_bias(frozen, groups):
    conv = nn.Conv1d(6, 6, 3, groups=groups)
    getattr(conv, frozen).requires_grad_(False)
    agree(*case(conv, (6, 9), torch.float64, 4))


@pytest.mark.parametrize("places", [3, 40], ids=["factors", "products"])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_kernel_used_twice_and_one_shared_by_two_layers(places, groups):
    conv, other = (nn.Conv1d(4, 4, 3, padding=1, groups=groups) for _ in range(2))
    other.weight = conv.weight
    twice = Built(lambda m, x: m.other(torch.tanh(m.conv(torch.tanh(m.conv(x))))), conv=conv, other=other)
    rows = agree(*case(twice, (4, places), torch.float64, 3))
    assert [name for name, _ in rows.leaves()] == ["conv.weight", "conv.bias", "other.bias"]


def test_one_weight_with_and_without_groups():
    """A kernel of 3 channels applied to 3 channels and, in two groups, to 6: factors of different kinds."""
    whole, split = nn.Conv1d(3, 40, 3, bias=False), nn.Conv1d(6, 40, 3, groups=2, bias=False)
    split.weight = whole.weight
    mixed = Built(lambda m, x: torch.cat([m.whole(x[:, :3]), m.split(x)], 1), whole=whole, split=split)
    for dtype in (torch.float64, torch.float32):
        agree(*case(mixed, (6, 4), dtype, 3))


def leaf(conv, size, n=2):
    module, x, y = case(conv, (conv.in_channels, *size), torch.float32, n)
    (_, rows), *_ = capture(module, squares, x, y)[1].leaves()
    return rows


def test_the_smaller_of_products_and_factors_is_kept():
    assert isinstance(leaf(nn.Conv2d(1, 16, 8, 2, 3), (28, 28)), Dense)
    assert isinstance(leaf(nn.Conv2d(16, 32, 4, 2), (13, 13)), Dense)
    assert isinstance(leaf(nn.Conv2d(16, 64, 3), (4, 4)), Outer)
    assert isinstance(leaf(nn.Conv2d(32, 128, 3, groups=2), (4, 4)), Stack)
    assert isinstance(leaf(nn.Conv2d(256, 256, 3, groups=256), (6, 6)), Dense)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", [o for o in SHAPES if "groups" not in o], ids=str)
@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
def test_convolving_with_the_gradient_is_multiplying_patches_by_it(k, options, dtype):
    """What layers with one channel a group do, against the patches."""
    torch.manual_seed(k)
    layer = KINDS[k](5, 5, groups=5, **options).to(dtype)
    x = torch.randn(2, 5, *SIZES[k]).to(dtype)
    b = torch.randn(layer(x).shape).to(dtype).flatten(2)[:, :, None]
    wide = x.double(), b.double()
    torch.testing.assert_close(rules._convolved(layer, *wide), rules._multiplied(layer, *wide))
    torch.testing.assert_close(
        rules._multiplied(layer, *wide), wide[1] @ _patches(layer, wide[0]), msg="patches in another layout"
    )
    rows = rules._weight_rows(layer, x, b[:, :, 0], False)
    torch.testing.assert_close(rows.dense().double(), (wide[1] @ _patches(layer, wide[0])).flatten(1), **loose(dtype))


def loose(dtype):
    return {} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-5}


@pytest.mark.parametrize("size", [4, 12], ids=["factors", "products"])
def test_chunks_change_nothing_and_no_more_patches_are_held(size, monkeypatch):
    torch.manual_seed(0)
    module, x, y = case(nn.Conv2d(4, 24, 3), (4, size, size), torch.float64, 7)
    exact, seen, limit = truth(module, squares, x, y), [], 2 * (size - 2) ** 2 * 36 * 8
    inner = rules._windows
    monkeypatch.setattr(rules, "row_spans", lambda n, size: row_spans(n, size, limit))
    monkeypatch.setattr(rules, "_windows", lambda layer, x: seen.append(inner(layer, x)) or seen[-1])
    _, rows = capture(module, squares, x, y)
    torch.testing.assert_close(rows.dense(), exact)
    assert isinstance(rows.leaves()[0][1], Outer if size == 4 else Dense)
    assert len(seen) == 4 and all(part.numel() * 8 <= limit for part in seen)


@pytest.mark.parametrize("groups", [1, 2])
def test_half_precision_is_added_up_in_float32(groups):
    torch.manual_seed(0)
    module, x, y = case(nn.Conv2d(2, 4, 3, groups=groups), (2, 12, 12), torch.bfloat16, 3)
    _, rows = capture(module, squares, x, y)
    b = (module(x) - y).detach().double().flatten(2)
    a = _patches(module, x.double())
    expected = torch.einsum("ngqt,ngtp->ngqp", b.unflatten(1, (groups, -1)), a).flatten(1, 2)
    expected = torch.cat([expected, b.sum(2)[:, :, None]], 2).flatten(1)
    assert rows.dtype == torch.float32
    torch.testing.assert_close(rows.dense().double(), expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))
    assert bool((rows.norms().double() >= torch.linalg.vector_norm(rows.dense().double(), dim=1)).all())


def test_an_input_without_examples_is_refused():
    with pytest.raises(InvalidInput, match="input.ndim=3"):
        capture(nn.Conv2d(2, 3, 3), squares, torch.randn(2, 5, 5), torch.zeros(3, 3, 3))
