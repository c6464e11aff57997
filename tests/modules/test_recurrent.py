"""Recurrent layers built of linear ones: torch's numbers, torch's names, and per-example gradients."""

import copy

import pytest
import torch
from gradients.layers.layer_reference import Built, agree, capture, squares, truth
from refusals import refuses
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence

from isthmus.modules import GRU, LSTM, RNN

PAIRS = {
    "rnn": (RNN, nn.RNN, {}),
    "relu": (RNN, nn.RNN, {"nonlinearity": "relu"}),
    "lstm": (LSTM, nn.LSTM, {}),
    "gru": (GRU, nn.GRU, {}),
}
OPTIONS = [
    {},
    {"bias": False, "batch_first": True},
    {"num_layers": 2, "bidirectional": True},
    {"num_layers": 3, "batch_first": True},
]


def both(kind, dtype=torch.float64, **options):
    """Our layer and torch's, with the same weights."""
    ours, theirs, more = PAIRS[kind]
    torch.manual_seed(0)
    theirs = theirs(3, 4, **options, **more).to(dtype)
    mine = ours(3, 4, **options, **more).to(dtype)
    mine.load_state_dict(theirs.state_dict())
    return mine, theirs


def alike(found, expected, tolerance):
    found, expected = ((x,) if isinstance(x, torch.Tensor) else x for x in (found, expected))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def some_state(layer, n, dtype):
    count = layer.num_layers * (1 + layer.bidirectional)
    pieces = tuple(torch.randn(count, n, 4, dtype=dtype) for _ in range(2))
    return pieces if isinstance(layer, nn.LSTM) else pieces[0]


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_outputs_are_torchs(kind, options, dtype, tolerance):
    mine, theirs = both(kind, dtype, **options)
    for n, steps in ((5, 7), (1, 1)):
        x = torch.randn((n, steps, 3) if theirs.batch_first else (steps, n, 3), dtype=dtype)
        for state in (None, some_state(theirs, n, dtype)):
            (found, last), (expected, end) = mine(x, state), theirs(x, state)
            alike(found, expected, tolerance)
            alike(last, end, tolerance)


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("given", [True, False])
def test_packed_sequences(kind, ordered, given):
    mine, theirs = both(kind, num_layers=2, bidirectional=True, batch_first=True)
    lengths = [6, 4, 4, 1] if ordered else [4, 1, 6, 4]
    packed = pack_sequence([torch.randn(n, 3, dtype=torch.float64) for n in lengths], enforce_sorted=ordered)
    state = some_state(theirs, 4, torch.float64) if given else None
    (found, last), (expected, end) = mine(packed, state), theirs(packed, state)
    alike(found[:2], expected[:2], 1e-12)
    assert (found.sorted_indices is None) == ordered
    if not ordered:
        alike(found[2:], expected[2:], 0)
    alike(last, end, 1e-12)


@pytest.mark.parametrize("kind", PAIRS)
def test_dropout_between_layers_draws_as_torch_does(kind):
    mine, theirs = both(kind, num_layers=3, dropout=0.4)
    x = torch.randn(5, 6, 3, dtype=torch.float64)
    results = []
    for layer in (mine, theirs):
        torch.manual_seed(1)
        results.append(layer(x)[0])
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(results[0], mine.eval()(x)[0])


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("options", OPTIONS)
def test_the_state_dict_goes_both_ways_with_torchs_names(kind, options):
    mine, theirs = both(kind, **options)
    assert sorted(mine.state_dict()) == sorted(theirs.state_dict())
    fresh = copy.deepcopy(theirs)
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.zero_()
    fresh.load_state_dict(mine.state_dict())
    assert all(torch.equal(a, theirs.state_dict()[name]) for name, a in fresh.state_dict().items())
    assert all(torch.equal(getattr(mine, name), value) for name, value in theirs.named_parameters())
    for row, expected in zip(mine.all_weights, theirs.all_weights, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(row, expected, strict=True))
    whole = nn.Sequential(nn.Linear(2, 3), mine)
    again = nn.Sequential(nn.Linear(2, 3), type(mine)(3, 4, **options, **PAIRS[kind][2]).double())
    again.load_state_dict(whole.state_dict())
    assert list(whole.state_dict())[2:] == [f"1.{name}" for name in mine.state_dict()]


def test_a_wrong_state_dict_is_noticed():
    state = nn.LSTM(3, 4).state_dict()
    del state["weight_hh_l0"]
    with pytest.raises(RuntimeError, match="Missing key"):
        LSTM(3, 4).load_state_dict(state)
    with pytest.raises(RuntimeError, match="Unexpected key"):
        LSTM(3, 4).load_state_dict(nn.LSTM(3, 4, bidirectional=True).state_dict())


class Reads(nn.Module):
    """Sequences of many lengths, a recurrent layer over them packed, and a linear layer on its last state."""

    def __init__(self, kind, packed, **options):
        super().__init__()
        ours, _, more = PAIRS[kind]
        self.body = ours(3, 4, **options, **more)
        self.head = nn.Linear(4, 2)
        self.packed = packed

    def forward(self, x):
        dim = 0 if self.body.batch_first else 1
        if self.packed:
            first = x if dim == 0 else x.transpose(0, 1)
            lengths = 1 + (first[:, 1:, 0] > 0).sum(1)
            x = pack_padded_sequence(x, lengths, batch_first=dim == 0, enforce_sorted=False)
        output, last = self.body(x)
        if self.packed:
            output = pad_packed_sequence(output, batch_first=dim == 0)[0]
        last = last[0] if isinstance(last, tuple) else last
        return self.head(last[-1] + last[0]) + output.square().sum((1 - dim, 2)).unsqueeze(-1)


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_and_their_codes_are_those_of_the_reference(kind, packed, dtype):
    torch.manual_seed(2)
    module = Reads(kind, packed, num_layers=2, bidirectional=True, batch_first=True).to(dtype)
    agree(module, torch.randn(4, 5, 3, dtype=dtype), torch.randn(4, 2, dtype=dtype))


@pytest.mark.parametrize("bias", [False, True])
def test_steps_first_inside_a_module_with_examples_first_and_the_reverse(bias):
    torch.manual_seed(3)
    module = Reads("gru", False, bias=bias).double()

    swapped = Built(lambda m, x: m.body(x.transpose(0, 1)), body=module)
    x, y = torch.randn(4, 4, 3).double(), torch.randn(4, 2).double()  # as many steps as examples
    agree(swapped, x, y)
    layers, rows = capture(module, squares, x.transpose(0, 1), y, batch_dim=1)
    torch.testing.assert_close(rows.dense(), truth(swapped, squares, x, y), rtol=1e-10, atol=1e-10)


def test_a_frozen_half_and_an_empty_batch():
    torch.manual_seed(4)
    module = Reads("lstm", False, batch_first=True).double()
    module.body.weight_hh_l0.requires_grad_(False)
    module.body.bias_ih_l0.requires_grad_(False)
    agree(module, torch.randn(3, 4, 3).double(), torch.randn(3, 2).double())
    _, rows = capture(module, squares, torch.zeros(0, 4, 3).double(), torch.zeros(0, 2).double())
    assert rows.n == 0


test_what_is_refused = refuses(
    (lambda: LSTM(3, 4, proj_size=2), "proj_size"),
    (lambda: GRU(3, 0), "hidden_size"),
    (lambda: GRU(3, 4, dropout=1.5), "dropout"),
    (lambda: RNN(3, 4, nonlinearity="sine"), "nonlinearity"),
    (lambda: GRU(3, 4)(torch.zeros(5, 3)), "three dimensions"),
    (lambda: GRU(3, 4)(torch.zeros(5, 2, 3), torch.zeros(1, 3, 4)), "hx.shape"),
    (lambda: LSTM(3, 4)(torch.zeros(5, 2, 3), (torch.zeros(1, 2, 4),)), "2 tensors"),
)
