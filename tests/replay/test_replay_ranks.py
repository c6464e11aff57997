"""Ranks replay together: each its own rows, and the first of them sees what is released."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from gloo import together
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from isthmus import PrivacyEngine, PrivateRegressor
from isthmus.audit import replay

N, D = 40, 3


def rows(rank: int) -> np.ndarray:
    """The rows of a rank, the last of them far away."""
    x = np.random.default_rng(rank).uniform(-1, 1, (N, D))
    x[-1] *= 1e6
    return x


def fit(data: np.ndarray) -> Any:
    """One model of all ranks' rows."""
    facts: dict[str, Any] = {"n": 2 * N, "bounds": None, "max_iter": 3, "random_state": 0}
    model = PrivateRegressor(algorithm="dp_sgd", batch_size=20, **facts)
    return model.fit(data[:, :-1], data[:, -1], group=True)


def train(data: np.ndarray) -> Any:
    """One network, whose data all ranks have."""
    torch.manual_seed(0)
    module, engine, x = nn.Linear(D, 2), PrivacyEngine(), torch.as_tensor(data, dtype=torch.float32)
    module, optimizer, loader = engine.make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(x), batch_size=10),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        loss_reduction="sum",
        group=True,
    )
    for (batch,) in loader:
        module(batch).square().sum().backward()
        optimizer.step()
    return module.state_dict(), engine.ledger.rounds()


def scenario(rank: int) -> dict[str, tuple[bool, float, int, str]]:
    """On every rank: whether it holds, the worst ratio, how many releases it saw, and the words."""
    warnings.simplefilter("ignore")
    found = {
        f"fit, of {who}": replay(fit, rows(rank), rows(rank)[:-1] if rank == who else rows(rank)) for who in (0, 1)
    }
    changed = rows(0)
    changed[0] = 1e6
    found["train"] = replay(train, rows(0), changed)
    return {name: (each.holds, each.ratio, len(each.releases), str(each)) for name, each in found.items()}


def test_a_record_of_any_rank_moves_no_release_beyond_its_bound_and_nothing_public() -> None:
    pytest.importorskip("torch.distributed")
    first, second = together(scenario)
    for name, (holds, ratio, releases, words) in first.items():
        assert holds and releases > 3 and 0.1 < ratio, f"{name}: {words}"
        assert second[name][0], f"{name}: {second[name][3]}"
        assert second[name][2] == 0  # the noise is on the first rank
