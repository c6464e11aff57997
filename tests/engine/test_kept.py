"""What a private pass leaves behind in a module: kept data is named, raw gradients are never written."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine_cases import data, mlp, private, train
from torch import Tensor, nn

from isthmus import InvalidInput


class Keeper(nn.Module):
    """Keeps something of its input, in the way that is asked for."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.inner = way, mlp()
        self.register_buffer("mu", torch.zeros(6, dtype=torch.float64))
        self.frozen = nn.Parameter(torch.zeros(6, dtype=torch.float64), requires_grad=False)
        self.plain, self.several, self.named = torch.zeros(6, dtype=torch.float64), [], {}

    def forward(self, x: Tensor) -> Tensor:
        mean = x.detach().mean(0)
        if self.way == "in place":
            self.mu.copy_(mean)
        elif self.way == "assigned":
            self.mu = mean
        elif self.way == "assigned in part":
            self.mu = torch.cat([self.mu[:5], mean[5:]])
        elif self.way == "data":
            self.mu.data = mean
        elif self.way == "behind its back":
            self.mu.data.copy_(mean)
        elif self.way == "new buffer":
            self.register_buffer("fresh", mean)
        elif self.way == "attribute":
            self.plain = mean
        elif self.way == "new attribute":
            self.another = mean
        elif self.way == "list":
            self.several.append(mean)
        elif self.way == "dict":
            self.named["mean"] = mean
        elif self.way == "frozen parameter":
            self.frozen = nn.Parameter(mean, requires_grad=False)
        elif self.way == "child":
            self.inner[0].seen = mean
        elif self.way == "recomputed":
            self.plain = self.plain.clone()  # the same numbers, of no data
        return self.inner(x)


KEPT = {
    "in place": "mu",
    "assigned": "mu",
    "assigned in part": "mu",
    "data": "mu",
    "behind its back": "mu",
    "new buffer": "fresh",
    "attribute": "plain",
    "new attribute": "another",
    "list": r"several\[0\]",
    "dict": r"named\['mean'\]",
    "frozen parameter": "frozen",
    "child": "inner.0.seen",
}


@pytest.mark.parametrize("way", list(KEPT))
def test_what_is_kept_is_named_and_stated(way: str) -> None:
    run = private(Keeper(way), data(), noise_generator=None)
    x = next(x for _, x, _ in run.loader if len(x))
    with pytest.warns(UserWarning, match=KEPT[way]):
        run.module(x)
    assert "NOT protected" in run.engine.statement(1e-5).words()


@pytest.mark.parametrize("way", ["nothing", "recomputed"])
def test_what_is_not_kept_is_not_named(way: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = train(private(Keeper(way), data(), noise_generator=None), 1)
    assert "NOT protected" not in run.engine.statement(1e-5).words()


def test_a_pass_without_gradients_keeps_nothing_unseen_either() -> None:
    run = private(Keeper("assigned"), data(), noise_generator=None)
    x = next(x for _, x, _ in run.loader if len(x))
    with torch.no_grad(), pytest.warns(UserWarning, match="mu"):
        run.module(x)


# ---------------------------------------------------------------- raw gradients


def old_norm(**options: Any) -> nn.Module:
    module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has deprecated it
        nn.utils.weight_norm(module[0])
    return module


@pytest.mark.filterwarnings("ignore:.*weight_norm.*")
def test_an_old_weight_norm_is_refused_when_training_is_made_private() -> None:
    module = old_norm()
    with pytest.raises(InvalidInput, match="give the optimiser exactly the . parameters that the module trains"):
        private(module, data())
    module = old_norm()
    mine = [module[0].bias, *module[2].parameters()]
    with pytest.raises(InvalidInput, match="weight_g"):
        private(module, data(), optimizer=lambda _: torch.optim.SGD(mine, lr=0.1))
    assert all(p.grad is None for p in module.parameters())


@pytest.mark.filterwarnings("ignore:.*weight_norm.*")
def test_a_weight_norm_that_comes_later_is_refused_before_the_pass() -> None:
    run = private(mlp(), data())
    nn.utils.weight_norm(run.module[0])
    x = next(x for _, x, _ in run.loader if len(x))
    with pytest.raises(InvalidInput, match=r"0.weight_g"):
        run.module(x)


class Sneaky(nn.Module):
    """Asks for raw gradients in the middle of a pass."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.inner, self.on = way, mlp(), False
        self.register_buffer("shift", torch.zeros(6, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        if self.on and self.way == "new parameter":
            self.scale = nn.Parameter(torch.ones(6, dtype=torch.float64))
            x = x * self.scale
        elif self.on and self.way == "buffer":
            x = x + self.shift.requires_grad_(True)
        elif self.on and self.way == "attribute":
            self.free = torch.ones(6, dtype=torch.float64, requires_grad=True)
            x = x * self.free
        return self.inner(x)


@pytest.mark.filterwarnings("ignore:the forward pass changed")
@pytest.mark.parametrize("way", ["new parameter", "buffer", "attribute"])
def test_a_pass_that_asks_for_raw_gradients_is_refused_when_it_ends(way: str) -> None:
    run = private(Sneaky(way), data())
    x, y = next((x, y) for _, x, y in run.loader if len(x))
    run.module.on = True
    with pytest.raises(InvalidInput, match="a gradient of their own"):
        F.cross_entropy(run.module(x), y).backward()
    assert all(p.grad is None for p in (*run.module.parameters(), run.module.shift))
    assert run.engine.ledger.rounds() == {}


def test_after_detach_gradients_are_torchs_own_again() -> None:
    run = train(private(mlp(), data()), 1)
    run.engine.detach()
    run.optimizer.zero_grad()
    F.cross_entropy(run.module(data().x), data().y).backward()
    assert all(p.grad is not None for p in run.module.parameters())
    run.module.extra = nn.Parameter(torch.ones(1))
    run.optimizer.add_param_group({"params": [run.module.extra]})
