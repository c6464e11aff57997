"""Normalisations against one backward pass an example."""

import pytest
import torch
from layer_reference import Built, agree, capture, squares, truth
from torch import nn

from isthmus.base.validate import InvalidInput
from isthmus.gradients.layers import Layers, rules

DTYPES = [torch.float64, torch.float32]
CASES = {
    "layer": (nn.LayerNorm(5), (5,)),
    "layer at places": (nn.LayerNorm(5), (3, 2, 5)),
    "layer of two dimensions": (nn.LayerNorm((2, 5)), (3, 2, 5)),
    "layer of all dimensions": (nn.LayerNorm((3, 2, 5)), (3, 2, 5)),
    "layer without shift": (nn.LayerNorm(5, bias=False), (4, 5)),
    "root mean square": (nn.RMSNorm(5), (4, 5)),
    "root mean square of two dimensions": (nn.RMSNorm((4, 5), eps=1e-3), (4, 5)),
    "group": (nn.GroupNorm(2, 6), (6, 4, 3)),
    "group without places": (nn.GroupNorm(2, 6), (6,)),
    "group of one channel": (nn.GroupNorm(6, 6, eps=0.1), (6, 5)),
    "instance 1d": (nn.InstanceNorm1d(3, affine=True), (3, 5)),
    "instance 2d": (nn.InstanceNorm2d(3, affine=True), (3, 4, 5)),
    "instance 3d": (nn.InstanceNorm3d(3, affine=True, eps=0.1), (3, 2, 3, 4)),
}


def case(layer, shape, dtype=torch.float64, n=4, seed=0):
    """The layer with a scale and shift of its own, inputs and targets."""
    draws = torch.Generator().manual_seed(seed)
    layer = layer.to(dtype)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draws, dtype=torch.float64))
    x, y = (torch.randn(n, *shape, generator=draws, dtype=torch.float64).to(dtype) for _ in range(2))
    return layer, 1 + 2 * x, y


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("name", "n"),
    [(name, n) for name in CASES for n in (0, 1, 4) if n or "instance" not in name],  # torch's own cannot do 0
)
def test_layers(name, n, dtype):
    agree(*case(*CASES[name], dtype, n))


@pytest.mark.parametrize("frozen", ["weight", "bias"])
@pytest.mark.parametrize("name", ["layer at places", "group", "instance 2d"])
def test_frozen_scale_or_shift(name, frozen):
    layer, x, y = case(*CASES[name])
    getattr(layer, frozen).requires_grad_(False)
    try:
        agree(layer, x, y)
    finally:
        getattr(layer, frozen).requires_grad_(True)


def test_scale_and_shift_are_two_columns_of_one_leaf():
    assert [(leaf.name, leaf.shape) for leaf in Layers(nn.Sequential(nn.LayerNorm(5))).space.leaves] == [("0", (5, 2))]
    assert Layers(nn.Sequential(nn.RMSNorm(5))).space.leaves[0].shape == (5, 1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_shared_layers_and_shared_scales(dtype):
    torch.manual_seed(1)
    norm, other = nn.LayerNorm(4), nn.LayerNorm(4)
    other.weight = norm.weight
    parts = {"norm": norm, "other": other, "mix": nn.Linear(4, 4)}
    module = Built(lambda m, x: m.other(torch.tanh(m.mix(m.norm(torch.tanh(m.norm(x)))))), **parts)
    rows = agree(*case(module, (3, 4), dtype))
    assert [name for name, _ in rows.leaves()] == ["norm.weight", "norm.bias", "other.bias", "mix"]


def test_sequences_with_the_examples_second():
    layer, x, y = case(nn.Sequential(nn.LayerNorm(5), nn.Tanh(), nn.RMSNorm(5)), (4, 5), n=3)
    agree(layer, x.transpose(0, 1), y.transpose(0, 1), batch_dim=1)


def test_chunks_change_nothing(monkeypatch):
    layer, x, y = case(nn.GroupNorm(2, 6), (6, 5), n=7)
    exact = truth(layer, squares, x, y)
    monkeypatch.setattr(rules, "row_spans", lambda n, _: [(lo, min(lo + 3, n)) for lo in range(0, n, 3)])
    torch.testing.assert_close(capture(layer, squares, x, y)[1].dense(), exact)


def test_half_precision_is_added_up_in_float32():
    layer, x, y = case(nn.LayerNorm(6), (300, 6), torch.bfloat16)
    rows = capture(layer, squares, x, y)[1]
    b = (layer(x) - y).detach().double()
    assert rows.dtype == torch.float32
    shift = rows.dense().double().unflatten(1, (6, 2))[..., 1]
    torch.testing.assert_close(shift, b.sum(1), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", [nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d])
def test_running_statistics_are_refused_with_the_remedy(kind):
    with pytest.raises(InvalidInput, match="takes statistics from the batch"):
        Layers(nn.Sequential(kind(3, affine=True, track_running_stats=True)))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(nn.InstanceNorm2d(3, affine=True), (3, 5, 5)), (nn.LayerNorm((3, 4)), (3, 4))],
    ids=["instance", "layer"],
)
def test_inputs_without_examples_are_refused(layer, shape):
    with pytest.raises(InvalidInput, match="input.ndim"):
        capture(layer, squares, torch.randn(shape), torch.zeros(shape))
