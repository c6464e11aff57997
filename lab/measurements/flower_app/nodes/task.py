"""What server and clients of the benchmark share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from isthmus import Identity, L1Ball, Logistic, algorithms
from isthmus.distributed.flower import Federation

CLIENTS, D = 4, 10_000
BALL = L1Ball(10.0)


def held(d: int) -> int:
    """How many records a client has."""
    return max(8, 2_500_000 // d)


def recipe(run: str, d: int = D) -> Any:
    """Sketches with a codec and memory at the clients, the whole gradient (FedSGD), or a private run over records."""
    batch = min(50, held(d))
    if run == "fedsgd":
        return algorithms.comp_dist_sgd(m=1.0, step=2.0, batch_size=batch, sketch=lambda m: Identity())
    if run == "secure":
        return algorithms.priv_sgd(m=200, clip=0.1, step=2.0, epsilon=50.0, delta=1e-5, n="exact")
    if run == "private":
        return algorithms.priv_sgd(m=200, clip=1.0, step=2.0, epsilon=4.0, delta=1e-5, n="exact")
    return algorithms.comp_dist_sgd(
        m=min(d // 10, 10_000), step=2.0, batch_size=batch, codec="qsgd", error_feedback=True
    )


def federation(config: Mapping[str, Any]) -> Federation:
    """The plan of one of the runs."""
    d = int(config["features"])
    options: dict[str, Any] = {"rounds": int(config["rounds"]), "clients": CLIENTS, "n": CLIENTS * held(d)}
    if config["run"] == "secure":  # noise of the clients, one of which may be lost
        options |= {"unit": "client", "dropouts": 0.25}
    return Federation(recipe(str(config["run"]), d), d, constraint=BALL, linear=True, **options)


def records(number: int, d: int = D) -> tuple[torch.Tensor, torch.Tensor]:
    """Made-up records of client `number`."""
    draws = torch.Generator().manual_seed(number)
    x = torch.randn(held(d), d, generator=draws) / d**0.5
    return x, (x[:, :20].sum(1) > 0).long()


def objective(number: int, d: int = D) -> Logistic:
    """The loss of one client."""
    return Logistic(*records(number, d), classes=[0, 1])
