"""Doors where several holders have the records: clients of Flower, and sums that are aggregated in secret."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch

from isthmus import CountSketch, Logistic, Pipeline, Release, Stage, algorithms, minimize
from isthmus.core.pipeline import Clients, Promise
from isthmus.distributed.flower import Federation, LocalGrid, SketchStrategy, client_app
from isthmus.distributed.secagg import SecureClient, SecurePlan, SecureServer, run_round
from isthmus.privacy import Clip, FullBatch, Gaussian, Ledger
from replay.trials import Rng, Trial, labels, numbers

N, D, M = 36, 4, 3


def _parts(data: tuple[Any, Any]) -> list[Logistic]:
    """The records of each client: the last has what is left."""
    cuts = [slice(12 * k, 12 * (k + 1) if k + 1 < M else None) for k in range(M)]
    return [Logistic(torch.as_tensor(data[0][cut]), data[1][cut], classes=[0, 1]) for cut in cuts]


def _recipe(rng: Rng) -> tuple[str, Any]:
    options: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-5, "clip": 1.0, "step": 0.5, "n": N}
    kind = str(rng.choice(["dp_gd", "dp_sgd", "priv_sgd"]))
    more = {"dp_sgd": {"batch_size": 12}, "priv_sgd": {"m": 3}}.get(kind, {})
    return kind, getattr(algorithms, kind)(**options, **more)


def _clients(rng: Rng) -> Trial:
    """Clients in one process."""
    X, (kind, recipe) = numbers(rng, N, D), _recipe(rng)

    def run(data: tuple[Any, Any]) -> object:
        parts = _parts(data)
        whole = Logistic(torch.as_tensor(data[0]), data[1], classes=[0, 1])
        return minimize(whole, recipe, clients=Clients(parts, uniform=False), steps=3, progress=False)

    return Trial(run, (X, labels(rng, X, 2)), kind, ("end", "replaced"))


def _flower(rng: Rng) -> Trial:
    """The same over Flower."""
    X, (kind, recipe) = numbers(rng, N, D), _recipe(rng)

    def run(data: tuple[Any, Any]) -> object:
        parts = _parts(data)
        plan = Federation(recipe, D, rounds=2, clients=M, n=N, dtype=torch.float64, linear=True)
        app = client_app(plan, lambda context: parts[context.node_config["partition-id"]])
        strategy = SketchStrategy(plan, wait=0.0)
        strategy.start(LocalGrid(app, M))
        return strategy.found, strategy.outsiders, strategy.insiders

    return Trial(run, (X, labels(rng, X, 2)), kind, ("end", "replaced"))


def _secret(rng: Rng) -> Trial:
    """Secure aggregation over Flower: what is protected is a client, so a record here is all that a client has."""
    people = [(numbers(rng, 6, D), labels(rng, numbers(rng, 6, D), 2)) for _ in range(6)]
    release = Release(encode=CountSketch(3), clip=Clip(1.0), mechanism=Gaussian(1.0))
    pipe = Pipeline([Stage(FullBatch(6.0), [release])], lambda t: 0.5, promise=Promise(60.0, 1e-5, n=6, records=6))

    def run(data: list[tuple[Any, Any]]) -> object:
        parts = [Logistic(torch.as_tensor(x), y, classes=[0, 1]) for x, y in data]
        facts: dict[str, Any] = {"rounds": 2, "clients": 6, "unit": "client", "dtype": torch.float64, "dropouts": 0.2}
        plan = Federation(pipe, D, **facts)
        strategy = SketchStrategy(plan, wait=0.0)
        strategy.start(LocalGrid(client_app(plan, lambda context: parts[context.node_config["partition-id"]]), 6))
        return strategy.found, strategy.outsiders

    return Trial(run, people, "", ("replaced",))


def _sums(rng: Rng) -> Trial:
    """Secure sums of vectors, a few of each client."""
    plan = SecurePlan(clients=4, m=5, bound=1.0, noise_multiplier=1.0, dropouts=1)

    def run(data: tuple[Any, ...]) -> object:
        (rows,) = data
        ledger = Ledger()
        server, clients = SecureServer(plan, ledger), {k: SecureClient(plan, k) for k in range(plan.clients)}
        parts = {k: rows[3 * k : 3 * (k + 1) if k + 1 < plan.clients else None] for k in clients}
        return run_round(server, clients, parts), ledger.rounds(), plan.statement(1e-5)

    return Trial(run, (numbers(rng, 12, 5),), "", ("end", "replaced"))


CLIENTS: dict[str, Callable[[Rng], Trial]] = {"clients": _clients}
if find_spec("flwr") is not None:
    CLIENTS["flower"] = _flower
if find_spec("cryptography") is not None:
    CLIENTS["secure sums"] = _sums
if find_spec("flwr") is not None and find_spec("cryptography") is not None:
    CLIENTS["flower secure"] = _secret
