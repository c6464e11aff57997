"""Modules in which examples meet, modules that read weights of others, and how far one record moves a clipped sum."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from engine_cases import sums
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from isthmus import PrivacyEngine
from isthmus.gradients.layers import Layers


class Between(nn.Module):
    """A container whose own code stands between two layers with rules."""

    def __init__(self, function: Callable[..., Tensor], width: int = 6) -> None:
        super().__init__()
        self.a, self.b, self.function = nn.Linear(6, width), nn.Linear(width, 3), function

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.function(self.a(x), self))


def private(module: nn.Module, count: int = 64, lr: float = 0.1, **options: Any) -> tuple[nn.Module, PrivacyEngine]:
    """A module made private; batches are handed to its driver by hand."""
    engine = PrivacyEngine()
    loader = DataLoader(TensorDataset(torch.zeros(2 * count, 1)), batch_size=count)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        engine.make_private(
            module=module, optimizer=torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=lr),
            data_loader=loader, **{"noise_multiplier": 1.0, "max_grad_norm": 1.0, "loss_reduction": "sum"} | options,
        )  # fmt: skip
    return module, engine


def clipped_sum(module: nn.Module, engine: PrivacyEngine, x: Tensor, y: Tensor, loss: Any = F.cross_entropy) -> Tensor:
    """The sum of the clipped gradients, just before the noise."""
    return sums(engine, lambda: loss(module(x), y, reduction="sum"), len(x))["gradient"].value.double()


def rows_alone(module: nn.Module, x: Tensor, y: Tensor) -> list[list[Tensor]]:
    """The gradient of each example by leaf, from a pass of it alone."""
    bindings, parameters, rows = Layers(module).bindings.values(), list(module.parameters()), []
    for one, target in zip(x.split(1), y.split(1), strict=True):
        gradients = torch.autograd.grad(F.cross_entropy(module(one), target), parameters)
        by_id = {id(p): g for p, g in zip(parameters, gradients, strict=True)}
        rows.append([binding.packed(by_id) for binding in bindings])
    return rows


def movement(module: nn.Module, x: Tensor, y: Tensor) -> float:
    """How far the last record moves the clipped sum, in bounds of one record."""
    module, engine = private(module, len(x))
    clipped_sum(module, engine, 0.1 * x[:-1], y[:-1])  # a quiet batch, on which nothing may be seen
    with_it, without = (clipped_sum(module, engine, x[:n], y[:n]) for n in (len(x), len(x) - 1))
    return float((with_it - without).norm())


def worst(module: nn.Module, n: int = 65, size: float = 1e6) -> float:
    """The movement of one large record among n - 1 alike, on data that makes mixing plain."""
    x = torch.ones(n, 6) + 0.01 * torch.randn(n, 6, generator=torch.Generator().manual_seed(0))
    x[-1] = -size
    return movement(module, x, torch.zeros(n, dtype=torch.long))
