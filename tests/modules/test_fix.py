"""Which modules are refused, why, and what the repaired copy is."""

import copy

import pytest
import torch
from gradients.layers.layer_reference import agree
from torch import nn

from isthmus import InvalidInput, modules
from isthmus.gradients.layers import Layers
from isthmus.modules import get_compatible_module, is_compatible, validate


def errors(module):
    return [problem for problem in validate(module) if problem.kind == "error"]


class Token(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return x + self.token


class DataParallel(nn.Module):
    """Stands for torch's wrapper, which warns where there is no accelerator."""

    def __init__(self, module):
        super().__init__()
        self.module = module


MIXES = "mixes the examples"
BAD = {
    "batch norm": (nn.BatchNorm2d(4), MIXES),
    "sync": (nn.SyncBatchNorm(4), MIXES),
    "frozen, training": (nn.BatchNorm1d(4).requires_grad_(False), MIXES),
    "no affine": (nn.BatchNorm1d(4, affine=False), "running statistics"),
    "eval, trained": (nn.BatchNorm1d(4).eval(), "trainable BatchNorm1d"),
    "eval, no statistics": (nn.BatchNorm1d(4, track_running_stats=False).requires_grad_(False).eval(), MIXES),
    "instance norm": (nn.InstanceNorm2d(4, track_running_stats=True), "running statistics"),
    "rnn": (nn.RNN(3, 4), "get_compatible_module"),
    "lstm": (nn.LSTM(3, 4), "get_compatible_module"),
    "gru": (nn.GRU(3, 4), "get_compatible_module"),
    "lazy": (nn.LazyLinear(4), "run one batch"),
    "lazy norm": (nn.LazyBatchNorm1d(), "run one batch"),
    "wrapped": (DataParallel(nn.Linear(2, 2)), "bare module"),
}


@pytest.mark.parametrize("case", BAD)
def test_every_problem_names_the_layer_the_reason_and_the_remedy(case):
    layer, words = BAD[case]
    module = nn.ModuleDict({"first": nn.Linear(3, 3), "odd": layer})
    found = errors(module)
    assert found and all(problem.layer == "odd" for problem in found)
    assert any(words in str(problem) for problem in found)
    assert all(problem.why and problem.remedy for problem in found)
    assert not is_compatible(module)


def test_quantised_modules_are_refused():
    module = nn.Sequential(nn.Linear(3, 3), torch.ao.nn.quantized.FloatFunctional())
    assert "quantised" in str(errors(module)[0])


def test_all_problems_come_at_once_and_strict_raises_them():
    module = nn.Sequential(nn.BatchNorm1d(3), nn.LSTM(3, 4), Token())
    assert {problem.layer for problem in validate(module)} == {"0", "1"}
    with pytest.raises(InvalidInput, match=r"(?s)3 problem.*'0'.*'1'") as error:
        validate(module, strict=True)
    assert "'2'" not in str(error.value)


def test_a_layer_of_ones_own_is_no_problem_with_or_without_dropout():
    assert validate(nn.Sequential(Token(), nn.Linear(3, 2)), strict=True) == []
    assert is_compatible(Token()) and is_compatible(WithDropout())
    assert errors(nn.Sequential(nn.ModuleList([Token()]), WithDropout())) == []


class WithDropout(Token):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)


@pytest.mark.parametrize("module", [nn.ReLU(), nn.Linear(2, 2).requires_grad_(False)], ids=["none", "frozen"])
def test_nothing_to_train(module):
    assert "no trainable parameter" in str(errors(module)[0])


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm2d(4).requires_grad_(False).eval(),
        nn.InstanceNorm2d(4, affine=True),
        nn.LSTM(3, 4).requires_grad_(False),
        nn.MultiheadAttention(4, 2),
        nn.TransformerEncoderLayer(4, 2),
        modules.LSTM(3, 4),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_what_is_fine(layer):
    assert validate(nn.Sequential(nn.Linear(2, 2), layer)) == []


class Everything(nn.Module):
    """One of each kind that must go, in place activations after all of them, one norm used twice."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.again, self.each = self.norm, nn.InstanceNorm2d(4, affine=True, track_running_stats=True)
        self.read = nn.LSTM(4, 5, num_layers=2, batch_first=True, bidirectional=True)
        self.act, self.flat = nn.ReLU(inplace=True), nn.BatchNorm1d(10)
        self.out = nn.Linear(10, 2)

    def forward(self, x):
        x = self.act(self.norm(self.act(self.conv(x))))
        x = self.act(self.each(self.act(self.again(x))))
        x, _ = self.read(x.flatten(2).transpose(1, 2))
        return self.act(self.out(self.act(self.flat(self.act(x[:, -1])))) + 1)


def test_the_copy_trains_and_the_module_is_untouched():
    torch.manual_seed(0)
    module = Everything().double()
    before = copy.deepcopy(module.state_dict())
    fixed = get_compatible_module(module)
    assert not is_compatible(module) and validate(fixed) == []
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert fixed.norm is fixed.again and isinstance(fixed.norm, nn.GroupNorm)
    assert fixed.flat.num_groups == 1 and fixed.norm.num_groups == 4
    assert isinstance(fixed.read, modules.LSTM)
    agree(fixed, torch.randn(3, 3, 4, 4).double(), torch.randn(3, 2).double())


VECTORS, IMAGES = nn.BatchNorm1d, nn.BatchNorm2d
GROUPS = [(IMAGES, 4, 4), (IMAGES, 48, 24), (IMAGES, 64, 32), (IMAGES, 31, 31), (IMAGES, 37, 1), (IMAGES, 1, 1)]
GROUPS += [(VECTORS, 4, 1), (VECTORS, 16, 2), (VECTORS, 48, 6), (VECTORS, 512, 32)]


@pytest.mark.parametrize("kind, channels, groups", GROUPS)
def test_groups_are_the_largest_divisor_up_to_32_of_eight_features_or_more_of_a_vector(kind, channels, groups):
    fixed = get_compatible_module(kind(channels))
    assert fixed.num_groups == groups
    if kind is VECTORS:
        assert float(fixed(torch.randn(2, channels)).detach().abs().max()) > 0


def test_the_number_of_groups_can_be_given():
    module = nn.Sequential(nn.BatchNorm2d(12), nn.BatchNorm1d(8))
    assert [layer.num_groups for layer in get_compatible_module(module, num_groups=4)] == [4, 4]
    with pytest.raises(InvalidInput, match="num_groups=3 is not allowed: .* one has 8"):
        get_compatible_module(module, num_groups=3)
    with pytest.raises(InvalidInput, match="num_groups=0"):
        get_compatible_module(module, num_groups=0)


def test_modes_types_and_freezing_stay():
    module = nn.Sequential(nn.BatchNorm1d(8), nn.GRU(8, 3), nn.InstanceNorm1d(4, track_running_stats=True)).double()
    module.eval()[1].train()
    module[0].bias.requires_grad_(False)
    module[1].weight_hh_l0.requires_grad_(False)
    with torch.no_grad():
        module[0].weight.uniform_()
    fixed = get_compatible_module(module)
    assert [layer.training for layer in fixed] == [False, True, False]
    assert all(parameter.dtype == torch.float64 for parameter in fixed.parameters())
    assert torch.equal(fixed[0].weight, module[0].weight) and not fixed[0].bias.requires_grad
    assert not fixed[1].weight_hh_l0.requires_grad and fixed[1].weight_ih_l0.requires_grad
    assert not fixed[2].track_running_stats and not list(fixed[2].buffers())
    frozen = nn.Sequential(nn.BatchNorm1d(3).requires_grad_(False).eval(), nn.Linear(3, 2))
    assert isinstance(get_compatible_module(frozen)[0], nn.BatchNorm1d)


def test_tied_recurrent_weights_stay_tied():
    module = nn.Sequential(nn.GRU(3, 3), nn.GRU(3, 3))
    module[1].weight_hh_l0 = module[0].weight_hh_l0
    fixed = get_compatible_module(module)
    assert fixed[1].weight_hh_l0 is fixed[0].weight_hh_l0


@pytest.mark.parametrize(
    "layer, shape",
    [
        (nn.Linear(4, 4), (4,)),
        (nn.Linear(4, 4), (2, 4)),
        (nn.Conv1d(2, 2, 3, padding=1), (2, 4)),
        (nn.Conv2d(2, 2, 3, padding=1), (2, 3, 4)),
        (nn.LayerNorm(4), (2, 4)),
        (nn.GroupNorm(2, 2), (2, 4)),
        (nn.InstanceNorm1d(2, affine=True), (2, 4)),
        (modules.GRU(4, 4, batch_first=True), (2, 4)),
        (nn.MultiheadAttention(4, 2, batch_first=True), (2, 4)),
        (nn.TransformerEncoderLayer(4, 2, 5, 0.0, batch_first=True), (2, 4)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else str(len(value)),
)
def test_an_activation_in_place_right_after_a_layer(layer, shape):
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.layer, self.act = nn.Linear(4, 4), layer, nn.ReLU(inplace=True)

        def forward(self, x):
            for _ in range(2):
                x = self.first(x)
                x = self.layer(x, x, x) if isinstance(self.layer, nn.MultiheadAttention) else self.layer(x)
                x = self.act(x[0] if isinstance(x, tuple) else x)
            return x

    torch.manual_seed(1)
    agree(InPlace().double(), torch.randn(3, *shape).double(), torch.randn(3, *shape).double())


def test_a_subclass_with_a_forward_of_its_own_is_not_replaced_but_reported():
    class Mine(nn.LSTM):
        def forward(self, x):
            return super().forward(x)[0]

    fixed = get_compatible_module(nn.Sequential(Mine(3, 4)))
    assert isinstance(fixed[0], Mine) and not is_compatible(fixed)
    with pytest.raises(InvalidInput, match="Mine"):
        Layers(fixed)
    with pytest.raises(InvalidInput, match="proj_size"):
        get_compatible_module(nn.LSTM(3, 4, proj_size=2))
