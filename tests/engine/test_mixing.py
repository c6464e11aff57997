"""Examples that meet and weights that are read elsewhere: impossible by construction, or found and refused."""

import copy
import random
import secrets
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gradients.layers.layer_reference import Built
from mixing_cases import Between, clipped_sum, private, rows_alone, worst
from torch import Tensor, nn

from isthmus import InvalidInput, ModuleObjective
from isthmus.core.driver import Ticket
from isthmus.gradients.layers import Layers, trial

LAYERS = {"largest": lambda x, w: x / x.abs().max().clamp(min=1) * w, "mean": lambda x, w: (x + 5e-4 * x.mean(0)) * w}


@pytest.mark.parametrize("case", LAYERS)
@pytest.mark.parametrize("size", [1e3, 1e6])
def test_a_layer_of_ones_own_hands_on_what_each_example_gives_alone(
    case: str, size: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code mixes by less than a comparison on a first batch can see: a record still moves the sum by its bound."""
    monkeypatch.setattr("isthmus.gradients.layers.trial.AGAIN", 1 << 60)  # a later look would see it, and refuse
    torch.manual_seed(0)
    own = Built(lambda m, x: LAYERS[case](x, m.w), w=nn.Parameter(torch.ones(6)))
    assert worst(nn.Sequential(own, nn.Linear(6, 3)), size=size) <= 1 + 1e-5


def normed(h: Tensor, module: nn.Module) -> Tensor:
    """Gradients divided by the norm of the whole batch's: nothing is to be seen in the forward pass."""
    if h.requires_grad:
        h.register_hook(lambda g: g / g.norm())
    return h * 1


MEETING = {
    "centred": lambda h, m: h - h.mean(0),
    "a little of the mean": lambda h, m: h + 1e-7 * h.mean(0),
    "largest": lambda h, m: h / h.abs().max().clamp(min=1),
    "branch above": lambda h, m: h if h.max() < 50 else -h,
    "branch below": lambda h, m: h if h.min() > -50 else -h,
    "bounded": lambda h, m: h + 0.01 * (h > 0).float().mean(0),
    "cleaned": lambda h, m: h - h.nan_to_num().clamp(-1, 1).mean(0),
    "batch norm": lambda h, m: F.batch_norm(h, None, None, training=True),
    "attention": lambda h, m: torch.softmax(h @ h.T, 1) @ h,
    "neighbour": lambda h, m: h + 0.1 * h.roll(1, 0),
    "first": lambda h, m: h - h[0],
    "sorted": lambda h, m: h.sort(0).values,
    "divided by their number": lambda h, m: h / len(h),
    "gradients": normed,
}


@pytest.mark.parametrize("case", MEETING)
@pytest.mark.parametrize("n", [2, 3, 40])
def test_code_between_layers_in_which_examples_meet_is_refused_before_its_gradients_are_used(case: str, n: int) -> None:
    module, engine = private(Between(MEETING[case]), n)
    x, y = torch.randn(n, 6), torch.randint(0, 3, (n,))
    with pytest.raises(InvalidInput, match="examples meet in the module"):
        clipped_sum(module, engine, x, y)
    assert engine.driver._sum is None and len(engine.accountant) == 0


APART = {
    "in place": lambda h, m: h.relu_(),
    "random": lambda h, m: F.dropout(h, 0.5),
    "own norm": lambda h, m: F.normalize(h, dim=1),
    "own largest": lambda h, m: h / h.abs().amax(1, keepdim=True).clamp(min=1),
    "own choice": lambda h, m: h * (h >= h.topk(2, 1).values[:, -1:]),
    "squeezed": lambda h, m: h.unsqueeze(1).squeeze(),
    "huge": lambda h, m: (1e5 * h).tanh(),
    "not finite": lambda h, m: h / 0,
}


@pytest.mark.parametrize("case", APART)
@pytest.mark.parametrize("n", [2, 3, 40])
def test_modules_that_keep_examples_apart_pass_at_every_batch(case: str, n: int, monkeypatch) -> None:
    monkeypatch.setattr(trial, "AGAIN", 1)
    layers = Layers(Between(APART[case]))
    layers.attach()
    for _ in range(4):
        trial.look(layers, (torch.randn(n, 6),), {}, n)


def test_what_waits_for_a_later_batch_is_found_when_chance_comes_to_it(monkeypatch) -> None:
    calls = []

    def later(h: Tensor, module: nn.Module) -> Tensor:
        return h - h.mean(0) if calls else h

    layers = Layers(Between(later))
    layers.attach()
    trial.look(layers, (torch.randn(8, 6),), {}, 8)
    calls.append(1)
    monkeypatch.setattr(trial, "AGAIN", 1)
    with pytest.raises(InvalidInput, match="examples meet"):
        trial.look(layers, (torch.randn(8, 6),), {}, 8)


def test_a_shape_is_tried_out_once_and_then_by_chance(monkeypatch) -> None:
    layers, tried = Layers(Between(lambda h, m: h)), []
    monkeypatch.setattr(trial, "_try_out", lambda *_, **__: tried.append(1))
    monkeypatch.setattr(trial.secret, "randbelow", lambda n: n - 1)
    for n in (1, 4, 9, 1, 7):
        trial.look(layers, (torch.randn(n, 6),), {}, n)
    trial.look(layers, (torch.randn(5, 3, 6),), {}, 5)
    assert len(tried) == 2


def test_a_trial_leaves_no_trace() -> None:
    class Keeper(Between):
        def __init__(self) -> None:
            super().__init__(lambda h, m: F.dropout(h, 0.5))
            self.register_buffer("count", torch.zeros(()))
            self.calls, self.last = 0, None
            self.own = torch.Generator().manual_seed(1)

        def forward(self, x: Tensor) -> Tensor:
            self.count += 1
            self.calls += 1
            self.last = super().forward(x) + torch.rand(x.shape[0], 3, generator=self.own) + np.random.rand()
            return self.last

    module = Keeper()
    module(torch.randn(3, 6))  # leaves a tensor with a history behind
    layers = Layers(module)
    layers.attach()
    before = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy(), module.own.get_state())
    last, x = module.last, torch.randn(8, 6)
    torch.set_rng_state(before[0])
    trial.look(layers, (x,), {}, 8)
    assert (module.calls, float(module.count)) == (1, 1.0) and module.last is last
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]
    assert np.array_equal(np.random.get_state()[1], before[2]) and torch.equal(module.own.get_state(), before[3])
    assert all(parameter.grad is None and parameter.requires_grad for parameter in module.parameters())
    assert layers.now.batch is None and layers.now.listener is None


def test_an_argument_that_all_examples_share_may_have_as_many_rows_as_there_are_examples() -> None:
    body = nn.TransformerEncoderLayer(6, 2, 8, 0.1, batch_first=True)
    layers = Layers(Built(lambda m, x, mask: m.body(x, src_mask=mask), body=body))
    layers.attach()
    for n in (3, 8):
        mask = nn.Transformer.generate_square_subsequent_mask(n)
        trial.look(layers, (torch.randn(n, n, 6), mask), {}, n)


IN_THE_MODULE = {
    "transposed": lambda h, m: F.linear(h, m.a.weight.T),
    "its norm": lambda h, m: h * m.a.weight.norm(),
    "its bias": lambda h, m: (h + m.a.bias).tanh() * m.b.bias.sum(),
    "shorter": lambda h, m: h @ m.a.weight[:, :2] @ m.a.weight[:2],
}


@pytest.mark.parametrize("case", IN_THE_MODULE)
def test_weights_that_the_module_reads_outside_their_layer_have_the_rows_of_all_their_uses(case: str) -> None:
    torch.manual_seed(0)
    module = Between(IN_THE_MODULE[case]).double()
    x, y = torch.randn(8, 6, dtype=torch.float64), torch.randint(0, 3, (8,))
    objective = ModuleObjective(copy.deepcopy(module), F.cross_entropy, (x, y))
    expected = torch.stack([torch.cat(leaves) for leaves in rows_alone(module, x, y)])
    torch.testing.assert_close(objective.rows(objective.start()).dense(), expected, rtol=1e-10, atol=1e-12)


def test_a_weight_that_is_written_to_or_hidden_from_torch_is_refused() -> None:
    class Hidden(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, w: Tensor) -> Tensor:
            return w.sum()

        @staticmethod
        def backward(ctx: Any, *g: Tensor) -> Tensor:
            return g[0] * torch.ones(6, 6)

    for between in (lambda h, m: h * Hidden.apply(m.a.weight), lambda h, m: h * m.a._parameters["weight"].sum()):
        module, engine = private(Between(between), 8)
        engine.driver.begin(Ticket(8))
        with pytest.raises(InvalidInput, match="'a.weight' is used"):
            F.cross_entropy(module(torch.randn(8, 6)), torch.randint(0, 3, (8,)), reduction="sum").backward()
        assert engine.driver._sum is None and all(parameter.grad is None for parameter in module.parameters())


IN_THE_LOSS = {"a norm": lambda m: 0.1 * m.a.weight.norm(), "a bias": lambda m: m.b.bias.square().sum()}


@pytest.mark.parametrize("case", IN_THE_LOSS)
def test_weights_that_are_read_in_the_loss_are_refused(case: str) -> None:
    module, engine = private(Between(lambda h, m: h.relu()), 8)
    engine.driver.begin(Ticket(8))
    with pytest.raises(InvalidInput, match="is used outside the pass of its own layer"):
        loss = F.cross_entropy(module(torch.randn(8, 6)), torch.randint(0, 3, (8,)), reduction="sum")
        (loss + IN_THE_LOSS[case](module)).backward()
    assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.parametrize("reads", [True, False])
def test_a_hook_is_part_of_the_module_whether_or_not_it_reads_its_layers_weight(reads: bool) -> None:
    module = Between(lambda h, m: h.relu())
    module.a.register_forward_hook(lambda m, _, out: out * (m.weight.norm() if reads else 3))
    plain = Between(lambda h, m: (h * (m.a.weight.norm() if reads else 3)).relu())
    plain.load_state_dict(module.state_dict())
    x, y = torch.randn(5, 6), torch.randint(0, 3, (5,))
    objective, want = (ModuleObjective(each, F.cross_entropy, (x, y)) for each in (module, plain))
    got = objective.rows(objective.start()).dense()
    torch.testing.assert_close(got, want.rows(want.start()).dense(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("detached", [True, False])
def test_a_weight_without_a_gradient_may_be_read_anywhere(detached: bool) -> None:
    module = Between(lambda h, m: h * (m.a.weight.detach() if detached else m.a.weight).norm())
    if not detached:
        module.a.requires_grad_(False)
    module, engine = private(module, 8)
    assert clipped_sum(module, engine, torch.randn(8, 6), torch.randint(0, 3, (8,))).isfinite().all()


def contrast(output: Tensor, target: Tensor) -> Tensor:
    """Every example against every other."""
    return F.cross_entropy(output @ output.T, torch.arange(len(output)))


def weighted(output: Tensor, target: Tensor) -> Tensor:
    """A mean whose divisor is made of all targets."""
    return F.cross_entropy(output, target, weight=torch.tensor([1.0, 5.0, 25.0]))


@pytest.mark.parametrize("loss", [contrast, weighted])
def test_a_loss_in_which_examples_meet_is_refused_where_it_is_known(loss) -> None:
    x, y = torch.randn(24, 6), torch.arange(24) % 3
    objective = ModuleObjective(Between(lambda h, m: h.relu()), loss, (x, y))
    with pytest.raises(InvalidInput, match="examples meet"):
        for _ in range(20):  # the labels drawn for a trial may be alike
            objective.layers.known.trusted.clear()
            objective.rows(objective.start())


def test_rows_that_no_rule_gets_right_are_found() -> None:
    """Examples of a layer lie in another dimension than the module says, and there are as many of both."""
    swapped = Built(lambda m, x: m.b(m.a(x.transpose(0, 1)).transpose(0, 1)), a=nn.Linear(3, 4), b=nn.Linear(4, 2))
    layers = Layers(swapped)
    layers.attach()
    with pytest.raises(InvalidInput, match="examples"):
        trial.look(layers, (torch.randn(5, 5, 3),), {}, 5)
        trial.look(layers, (torch.randn(2, 2, 3),), {}, 2)


class Unsteady(nn.Module):
    """The last digits differ from pass to pass, as where threads add in any order."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + 200 * torch.finfo(x.dtype).eps * secrets.randbelow(2))


def test_rounding_is_not_taken_for_examples_that_meet() -> None:
    """A difference counts where float64 shows it too."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), Unsteady(), nn.Tanh(), nn.Linear(8, 3))
    for seed in range(8):
        x = torch.randn(32, 4, generator=torch.Generator().manual_seed(seed))
        trial.look(Layers(module), (x,), {}, 32)


def test_as_many_classes_as_examples_in_the_second_dimension_are_no_mixing() -> None:
    """An output of n examples and n classes has two readings: neither is held against the module."""
    for n in (2, 3, 4):
        turned = Built(lambda m, words: m.head(m.embed(words)).mean(0), embed=nn.Embedding(9, 8), head=nn.Linear(8, 3))
        trial.look(Layers(turned, batch_first=False), (torch.randint(0, 9, (5, n)),), {}, n)
