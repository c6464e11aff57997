"""What server and clients share: the recipe and its public facts, and here also how the data are made."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch

from isthmus import L1Ball, Logistic, algorithms
from isthmus.distributed.flower import Federation

FEATURES, RECORDS = 1000, 200
"""Of every record, and of every client."""


def federation(config: Mapping[str, Any]) -> Federation:
    """The plan of a run; every process makes the same one from the run's configuration."""
    clients, m = int(config["clients"]), int(config["numbers"])
    shared: dict[str, Any] = {"rounds": int(config["rounds"]), "clients": clients, "constraint": L1Ball(10.0)}
    budget: dict[str, Any] = {"epsilon": float(config["epsilon"]), "delta": 1e-5, "n": "exact"}
    if config["protects"] == "records":
        recipe = algorithms.priv_sgd(m=m, clip=1.0, step=5.0, **budget)
        return Federation(recipe, FEATURES, n=clients * RECORDS, linear=True, **shared)
    if config["protects"] == "clients":
        recipe = algorithms.priv_sgd(m=m, clip=0.2, step=5.0, **budget)
        return Federation(recipe, FEATURES, unit="client", **shared)
    recipe = algorithms.comp_dist_sgd(m=m, step=10.0, codec="qsgd", error_feedback=True)
    return Federation(recipe, FEATURES, n=clients * RECORDS, **shared)


@lru_cache(maxsize=32)
def records(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Made-up records of client `number`; 10 of the 1,000 features matter."""
    draws = torch.Generator().manual_seed(number)
    x = torch.randn(RECORDS, FEATURES, generator=draws) / FEATURES**0.5
    margin = 10 * x[:, :10].sum(1) * (FEATURES / 100) ** 0.5 + 0.1 * torch.randn(RECORDS, generator=draws)
    return x, (margin > 0).long()


def objective(number: int) -> Logistic:
    """The loss of one client; the classes are public."""
    return Logistic(*records(number), classes=[0, 1])
