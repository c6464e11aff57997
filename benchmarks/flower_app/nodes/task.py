"""What server and clients of the benchmark share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from isthmus import Identity, L1Ball, Logistic, algorithms
from isthmus.distributed.flower import Federation

CLIENTS, RECORDS, D = 4, 250, 10_000
BALL = L1Ball(10.0)


def recipe(run: str) -> Any:
    """Sketches with a codec and memory at the clients, the whole gradient (FedSGD), or a private run over records."""
    if run == "fedsgd":
        return algorithms.comp_dist_sgd(m=1.0, step=2.0, batch_size=50, sketch=lambda m: Identity())
    if run == "private":
        return algorithms.priv_sgd(m=200, clip=1.0, step=2.0, epsilon=4.0, delta=1e-5, n="exact")
    return algorithms.comp_dist_sgd(m=1000, step=2.0, batch_size=50, codec="qsgd", error_feedback=True)


def federation(config: Mapping[str, Any]) -> Federation:
    """The plan of one of the runs."""
    told = {"rounds": int(config["rounds"]), "clients": CLIENTS, "n": CLIENTS * RECORDS}
    return Federation(recipe(str(config["run"])), D, constraint=BALL, linear=True, **told)


def records(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Made-up records of client `number`."""
    draws = torch.Generator().manual_seed(number)
    x = torch.randn(RECORDS, D, generator=draws) / D**0.5
    return x, (x[:, :20].sum(1) > 0).long()


def objective(number: int) -> Logistic:
    """The loss of one client."""
    return Logistic(*records(number), classes=[0, 1])
