"""Copies and pickles of a module in private training are plain modules, and leave the training alone."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine_cases import CLASSES, N, data, mlp, private, train
from torch import Tensor, nn
from torch.optim import Adam


def saved(module: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


WAYS: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "pickle 0": lambda x: pickle.loads(pickle.dumps(x, 0)),
    "torch.save": saved,
}


class Own(nn.Module):
    """A layer without a rule, with a state of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6, dtype=torch.float64))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "extra": 1}

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class Attention(nn.Module):
    """Its rule takes the place of a layer's forward."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True).double()
        self.head = nn.Linear(6, CLASSES).double()

    def forward(self, x: Tensor) -> Tensor:
        h = x[:, None, :].expand(-1, 2, -1)
        return self.head(self.attention(h, h, h, need_weights=False)[0].mean(1))


def own() -> nn.Module:
    return nn.Sequential(Own(), nn.Linear(6, CLASSES).double())


MODULES = {"mlp": mlp, "own": own, "attention": Attention}
pytestmark = pytest.mark.filterwarnings("ignore:.*owns parameters|.*one example at a time")


def plain_hooks(module: nn.Module) -> list[str]:
    """The tables of hooks that hold anything."""
    tables = [(name, t) for m in module.modules() for name, t in vars(m).items() if "hooks" in name]
    return [name for name, table in tables if isinstance(table, dict) and table]


@pytest.mark.parametrize("kind", list(MODULES))
@pytest.mark.parametrize("way", list(WAYS))
def test_a_copy_is_the_plain_module(way: str, kind: str) -> None:
    torch.manual_seed(0)
    fresh = MODULES[kind]()
    names = [set(vars(layer)) for layer in fresh.modules()]
    run = train(private(copy.deepcopy(fresh), data()), 1)
    again = WAYS[way](run.module)
    assert type(again) is type(fresh) and not plain_hooks(again)
    for layer, before in zip(again.modules(), names, strict=True):
        assert set(vars(layer)) - before <= {"extra"}
    assert all(p.requires_grad and p.grad is None or way == "deepcopy" for p in again.parameters())
    x, y = data().x, data().y
    F.cross_entropy(again(x), y).backward()  # trains by itself, and the private training has seen nothing
    assert all(p.grad is not None for p in again.parameters())
    assert run.engine.ledger.rounds() == {"main": 4}
    train(run, 1)
    assert run.engine.ledger.rounds() == {"main": 8}


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_what_is_not_released_is_in_no_copy(way: str) -> None:
    """In the middle of a batch, and with pieces of it gathered, a copy holds parameters and nothing of the data."""
    run = private(mlp(), data(), max_physical_batch_size=2)
    clean = pickle.dumps(run.module)
    secret = torch.tensor([123456.789], dtype=torch.float64)
    for _, x, y in run.loader:
        if len(x) == 2:
            x[:] = secret
            F.cross_entropy(run.module(x), y).backward()
            again = WAYS[way](run.module)
            assert secret.numpy().tobytes() not in pickle.dumps(again)
            assert len(pickle.dumps(again)) == len(clean)
            assert all(p.grad is None for p in again.parameters())
            break


def test_hooks_of_the_user_stay() -> None:
    run = private(mlp(), data())
    run.module[0].register_forward_hook(doubled)
    again = pickle.loads(pickle.dumps(run.module))
    assert plain_hooks(again) == ["_forward_hooks"]
    assert list(again[0]._forward_hooks.values()) == [doubled]


def doubled(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return 2 * output


def test_after_detach_nothing_of_it_is_left() -> None:
    run = train(private(mlp(), data()), 1)
    run.engine.detach()
    assert all("__reduce_ex__" not in vars(layer) for layer in run.module.modules())
    assert pickle.loads(pickle.dumps(run.module))(data().x).shape == (N, CLASSES)


def test_module_and_optimiser_in_one_file_go_on_without_privacy() -> None:
    run = train(private(mlp(), data(), optimizer=lambda p: Adam(p, lr=0.05)), 1)
    module, optimizer = saved((run.module, run.optimizer))
    assert type(optimizer) is Adam and len(optimizer.state) == 4
    distinct = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert distinct == {id(p) for p in module.parameters()}
    before = [p.clone() for p in run.module.parameters()]
    F.cross_entropy(module(data().x), data().y).backward()
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, run.module.parameters(), strict=True))
