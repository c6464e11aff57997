"""`nn.MultiheadAttention` and what torch builds of it, against one backward pass an example."""

import copy

import pytest
import torch
from layer_reference import Built, agree, agrees_in_bfloat16, attached
from torch import nn

from isthmus.base.validate import InvalidInput
from isthmus.gradients.layers import Layers

KINDS = {
    "plain": {},
    "no bias": {"bias": False},
    "other sizes": {"kdim": 3, "vdim": 5},
    "key bias": {"add_bias_kv": True},
    "zero": {"add_zero_attn": True},
    "all": {"kdim": 3, "vdim": 5, "add_bias_kv": True, "add_zero_attn": True},
}


class Attend(nn.Module):
    """Attention of x over parts of itself; a mask of padding comes from x, so that it goes with the example."""

    def __init__(self, batch_first=True, cross=False, padding=False, mask=None, weights=False, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=batch_first, **options)
        self.cross, self.padding, self.mask, self.weights = cross, padding, mask, weights
        for parameter in self.parameters():  # torch starts biases at zero
            nn.init.normal_(parameter, std=0.4)

    def forward(self, x):
        layer, first = self.attention, self.attention.batch_first
        source = x[:, 1:] if first else x[1:]
        key = value = x
        if self.cross == "shared" and layer.kdim == 6:
            key = value = source
        elif self.cross:
            key, value = source[..., : layer.kdim], source[..., : layer.vdim]
        padding, mask = None, self.mask
        if self.padding:
            padding = (key if first else key.transpose(0, 1))[..., 0] > 0.8
            padding[:, 0] = False
        if mask == "causal":
            mask = torch.ones(x.shape[int(first)], key.shape[int(first)]).triu(1) > 0
        elif mask == "each":
            mask = (x[:, :, :1] * key[:, :, 0][:, None]).detach().repeat_interleave(2, 0)
        options = {"need_weights": bool(self.weights), "average_attn_weights": self.weights != "heads"}
        output, weights = layer(x, key, value, key_padding_mask=padding, attn_mask=mask, **options)
        if weights is None:
            return output
        return output + weights.square().flatten(1).sum(1).reshape((-1, 1, 1) if first else (1, -1, 1))


def data(n=4, length=3, dtype=torch.float64, batch_dim=0, seed=0):
    draws = torch.Generator().manual_seed(seed)
    shape = (n, length, 6) if batch_dim == 0 else (length, n, 6)
    return (torch.randn(shape, generator=draws, dtype=dtype) for _ in range(2))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weights", [False, True, "heads"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_and_their_codes_are_those_of_the_reference(kind, weights, dtype):
    torch.manual_seed(1)
    options = KINDS[kind]
    agree(Attend(cross="kdim" in options, weights=weights, **options).to(dtype), *data(dtype=dtype))


@pytest.mark.parametrize("cross", [False, True, "shared"])
@pytest.mark.parametrize("mask", [None, "causal", "each"])
@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask and attn_mask")
def test_masks_and_cross_attention(cross, mask, padding):
    torch.manual_seed(2)
    for weights in (False, True):
        module = Attend(cross=cross, mask=mask, padding=padding, weights=weights, add_bias_kv=True, add_zero_attn=True)
        agree(module.double(), *data(n=3, length=4))


@pytest.mark.parametrize("n, length", [(1, 1), (1, 5), (5, 2), (7, 1), (3, 3)])
def test_shapes(n, length):
    torch.manual_seed(3)
    agree(Attend().double(), *data(n, length))


@pytest.mark.parametrize("own_batch_first", [False, True])
@pytest.mark.parametrize("weights", [False, True])
def test_examples_in_the_second_dimension(own_batch_first, weights):
    torch.manual_seed(4)
    attend = Attend(batch_first=own_batch_first, weights=weights, padding=True, add_bias_kv=True).double()

    swapped = Built(lambda m, x: m.attend(x.transpose(0, 1)).transpose(0, 1), attend=attend)
    agree(swapped if own_batch_first else attend, *data(batch_dim=1), batch_dim=1)
    agree(attend if own_batch_first else swapped, *data(batch_dim=0), batch_dim=0)


@pytest.mark.parametrize(
    "frozen",
    [["in_proj_weight"], ["in_proj_bias"], ["in_proj_weight", "in_proj_bias"], ["out_proj.weight"], ["bias_k"]],
)
def test_frozen_parts_are_left_out(frozen):
    torch.manual_seed(5)
    module = Attend(add_bias_kv=True).double()
    for name in frozen:
        module.attention.get_parameter(name).requires_grad_(False)
    agree(module, *data())


@pytest.mark.parametrize("weights", [False, True])
def test_the_output_projection_alone(weights):
    torch.manual_seed(16)
    module = nn.Sequential(Attend(weights=weights), nn.Linear(6, 6)).double()
    module[0].attention.requires_grad_(False).out_proj.requires_grad_(True)
    agree(module, *data())
    module[1].requires_grad_(False)
    rows = agree(module.eval(), *data())
    assert rows.d == 42


def test_two_layers_with_one_output_projection():
    torch.manual_seed(17)
    module = nn.Sequential(Attend(), nn.Tanh(), Attend()).double()
    module[2].attention.out_proj = module[0].attention.out_proj
    module[2].attention.in_proj_weight.requires_grad_(False)
    module[2].attention.in_proj_bias.requires_grad_(False)
    agree(module, *data())


@pytest.mark.parametrize("tied", [["in_proj_weight"], ["in_proj_bias"], ["in_proj_weight", "in_proj_bias", "bias_v"]])
def test_tied_weights_of_two_layers_are_one_leaf(tied):
    torch.manual_seed(6)
    module = nn.Sequential(Attend(add_bias_kv=True), nn.Tanh(), Attend(add_bias_kv=True)).double()
    for name in tied:
        setattr(module[2].attention, name, getattr(module[0].attention, name))
    rows = agree(module, *data())
    assert rows.d == sum(p.numel() for p in module.parameters())


def layer_options(**options):
    return {"d_model": 6, "nhead": 2, "dim_feedforward": 7, "dropout": 0.0, **options}


class Encode(nn.Module):
    """A torch encoder with masks."""

    def __init__(self, layers=2, padding=False, mask=False, **options):
        super().__init__()
        self.body = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(**layer_options(**options)), layers, enable_nested_tensor=False
        )
        self.padding, self.mask, self.first = padding, mask, options["batch_first"]

    def forward(self, x):
        first = x if self.first else x.transpose(0, 1)
        padding = (first[..., 0] > 1) & (torch.arange(first.shape[1]) > 0) if self.padding else None
        mask = nn.Transformer.generate_square_subsequent_mask(first.shape[1]) < 0 if self.mask else None
        return self.body(x, src_key_padding_mask=padding, mask=mask)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_a_transformer_encoder(batch_first, norm_first, training):
    torch.manual_seed(7)
    module = Encode(batch_first=batch_first, norm_first=norm_first, padding=True, mask=True).double().train(training)
    batch_dim = 0 if batch_first else 1
    agree(module, *data(batch_dim=batch_dim), batch_dim=batch_dim)


def test_only_the_attention_of_an_encoder_in_eval_mode():
    torch.manual_seed(8)
    module = Encode(batch_first=True).double().eval()
    for name, parameter in module.named_parameters():
        parameter.requires_grad_("in_proj" in name)
    agree(module, *data())


def decode(m, x):
    mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
    return m.layer(x, x[:, :2].tanh(), tgt_mask=mask, tgt_is_causal=True)


def test_a_decoder_layer_attends_across():
    torch.manual_seed(9)
    layer = nn.TransformerDecoderLayer(**layer_options(batch_first=True))
    agree(Built(decode, layer=layer).double(), *data())


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize("weights", [False, True])
def test_the_replaced_forward_gives_torchs_numbers_with_torchs_draws(options, weights):
    torch.manual_seed(10)
    module = Attend(cross="kdim" in options, weights=weights, dropout=0.4, **options).double()
    x, _ = data()
    plain = copy.deepcopy(module)
    layers = attached(module)
    torch.manual_seed(11)
    expected = plain(x)
    torch.manual_seed(11)
    with layers.listening(lambda *_: None):
        outputs = module(x)
    torch.testing.assert_close(outputs, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("weights", [False, True])
def test_autocast(weights):
    torch.manual_seed(15)
    module = Attend(weights=weights, padding=True, add_bias_kv=True)
    agrees_in_bfloat16(module, *data(dtype=torch.float32))


def test_objects_names_and_inference_stay_as_they_were():
    module = nn.TransformerEncoder(nn.TransformerEncoderLayer(**layer_options(batch_first=True)), 2)
    plain, parameters, names = copy.deepcopy(module).eval(), list(module.parameters()), list(module.state_dict())
    layers = Layers(module)
    handles = layers.attach()
    module.eval()
    x = torch.randn(3, 4, 6)
    padding = torch.arange(4) > torch.tensor([[1], [3], [2]])
    with torch.no_grad(), layers.listening(lambda *_: None):
        outputs = module(x, src_key_padding_mask=padding)
        plain.use_nested_tensor = False  # torch warns that these are new
        expected = plain(x, src_key_padding_mask=padding)
    torch.testing.assert_close(outputs.masked_fill(padding[..., None], 0), expected.masked_fill(padding[..., None], 0))
    assert all(a is b for a, b in zip(parameters, module.parameters(), strict=True))
    assert names == list(module.state_dict())
    for handle in handles:
        handle.remove()
    assert "forward" not in module.layers[0].self_attn.__dict__ and module.use_nested_tensor


def test_an_activation_in_place_after_attention():
    torch.manual_seed(12)
    for batch_first in (True, False):
        module = nn.Sequential(Attend(batch_first=batch_first), nn.ReLU(inplace=True), Attend(batch_first=batch_first))
        agree(module.double(), *data(batch_dim=1 - batch_first), batch_dim=1 - batch_first)


def test_a_sequence_that_is_not_a_batch_is_refused():
    layers = attached(nn.MultiheadAttention(6, 2))
    x = torch.randn(3, 6)
    with layers.listening(lambda *_: None), pytest.raises(InvalidInput, match="three dimensions"):
        layers.module(x, x, x)
