"""What users train: frozen layers, biases only, adapters, tied weights, checkpointed blocks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine_cases import BATCH, C, clipped, data, mlp, per_example, private, train
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from isthmus import InvalidInput, Kronecker


class Low(nn.Module):
    """A frozen layer with a low-rank update of two linear layers."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.down = nn.Linear(inner.in_features, 2, bias=False).to(inner.weight)
        self.up = nn.Linear(2, inner.out_features, bias=False).to(inner.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self.up(self.down(x))


class Bare(nn.Module):
    """The same with bare parameters."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(2, inner.in_features).to(inner.weight))
        self.b = nn.Parameter(torch.randn(inner.out_features, 2).to(inner.weight))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + x @ self.a.T @ self.b.T


class Tied(nn.Module):
    """One weight at both ends."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.middle(torch.tanh(self.first(x)))))


class Checkpointed(nn.Module):
    """Activations of a block are computed again in the backward pass."""

    def __init__(self, on: bool = True) -> None:
        super().__init__()
        self.on = on
        self.block = nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 5))
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = checkpoint(self.block, x, use_reentrant=False) if self.on else self.block(x)
        return self.head(hidden)


def frozen() -> nn.Module:
    module = mlp()
    module[0].requires_grad_(False)
    return module


def biases() -> nn.Module:
    module = mlp()
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name.endswith("bias"))
    return module


def weights() -> nn.Module:
    module = mlp()
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name.endswith("weight"))
    return module


def adapters(kind: type) -> Any:
    def make() -> nn.Module:
        module = mlp()
        torch.manual_seed(9)
        return nn.Sequential(kind(module[0]), nn.Tanh(), kind(module[2]))

    return make


def seeded(make: Any) -> Any:
    def build() -> nn.Module:
        torch.manual_seed(4)
        return make().double()

    return build


CASES = {
    "frozen": frozen,
    "biases": biases,
    "weights": weights,
    "low-rank": adapters(Low),
    "tied": seeded(Tied),
    "checkpointed": seeded(Checkpointed),
}


def build(name: str) -> nn.Module:
    return CASES[name]() if name != "bare" else adapters(Bare)()


@pytest.mark.parametrize("sketched", [False, True])
@pytest.mark.parametrize("name", [*CASES, "bare"])
@pytest.mark.filterwarnings("ignore:layer .* owns parameters:UserWarning")
def test_trained_parameters_move_as_in_the_plain_loop_and_others_stay(name: str, sketched: bool) -> None:
    """The plain loop knows no layers: it clips the norm over all trained parameters; the noise is next to nothing."""
    sketch = Kronecker(99, 99) if sketched else None  # full ranks: a rotation of every layer
    run = train(private(build(name), data(), noise_multiplier=1e-9, sketch=sketch), 2)
    plain = build(name)
    if isinstance(plain, Checkpointed):
        plain.on = False  # torch.func knows no checkpoints
    trained = {n: p for n, p in plain.named_parameters() if p.requires_grad}
    start = {n: p.detach().clone() for n, p in plain.named_parameters()}
    assert sum(map(len, run.batches)) > 0
    for index in run.batches:
        gradients = per_example(plain, data().x[index], data().y[index])
        total = clipped(torch.cat([gradients[n].flatten(1) for n in trained], 1), C).sum(0) / BATCH
        with torch.no_grad():
            for parameter, piece in zip(
                trained.values(), total.split([p.numel() for p in trained.values()]), strict=True
            ):
                parameter -= 0.5 * piece.view(parameter.shape)
    mine = dict(run.module.named_parameters())
    for n in start:
        if n in trained:
            torch.testing.assert_close(mine[n].detach(), trained[n].detach(), rtol=0, atol=1e-8)
            assert not torch.equal(mine[n], start[n])
        else:
            assert torch.equal(mine[n], start[n])


@pytest.mark.parametrize("kind", ["mlp", "attention"])
def test_raw_gradients_never_reach_the_optimiser(kind: str) -> None:
    """Whether or not someone asks for the gradients of all parameters again: `.grad` holds released values only."""
    collected = []
    for again in (False, True):
        torch.manual_seed(6)
        block = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True).double()
        module = mlp() if kind == "mlp" else nn.Sequential(nn.Unflatten(1, (1, 6)), block, nn.Flatten())
        run = private(module, data())
        for _, x, y in run.loader:
            if again:
                module.requires_grad_(True)
            run.optimizer.zero_grad()
            F.cross_entropy(module(x), y).backward()
            assert not any(parameter.grad.any() for parameter in module.parameters() if parameter.grad is not None)
            run.optimizer.step()
        collected.append(module)
    for a, b in zip(collected[0].parameters(), collected[1].parameters(), strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=0, atol=1e-12)


def test_raw_gradients_are_never_written() -> None:
    """A parameter in the loss, or one that came later: refused, and nothing is left in `.grad`."""
    module = mlp()
    run = private(module, data())
    x, y = next((x, y) for _, x, y in run.loader if len(x))
    first = next(module.parameters()).requires_grad_(True)
    loss = F.cross_entropy(module(x), y)
    with pytest.raises(InvalidInput):
        (loss + (first * x.sum()).sum()).backward()
    assert all(p.grad is None for p in module.parameters())
    module.register_parameter("late", nn.Parameter(torch.zeros(3)))
    with pytest.raises(InvalidInput, match="a gradient of their own"):
        module(x)


def test_dropout_and_training_mode_are_left_alone() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 50), nn.Dropout(0.5), nn.Linear(50, 3)).double()
    run = private(module, data())
    for _, x, y in run.loader:
        hidden = module[1](torch.ones(4, 50, dtype=torch.float64))
        assert 0 < int((hidden == 0).sum()) < 200
        F.cross_entropy(run.module(x), y).backward()
        run.optimizer.step()
    assert len(run.rounds) == 4


def test_a_layer_that_never_takes_part_is_named() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = nn.Linear(6, 3).double(), nn.Linear(6, 3).double()

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    run = private(Unused(), data())
    with pytest.warns(UserWarning, match=r"\['idle'\] took no part"):
        train(run, 1)
    assert run.engine.ledger.rounds() == {"main": 4}
