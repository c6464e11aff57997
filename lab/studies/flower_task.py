"""What server and clients of `flower_bytes.py` share: two problems, ten clients, three ways to send gradients."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from isthmus import CountSketch, Identity, L1Ball, Logistic, ModuleObjective, Product, SparseJL, algorithms, datasets
from isthmus.distributed.flower import Federation
from lab.reproduce.paper_001.networks import network, tenth

CLIENTS, BATCH = 10, 32
STEPS = {"imdb": 0.3, "mlp": 0.3}
RADII = {"0": 600.0, "2": 150.0, "4": 60.0}
"""Of each layer's l1 ball: loose enough for SGD to reach what it reaches without them."""


def recipe(problem: str, way: str) -> Any:
    """FedSGD; a tenth of the numbers through QSGD with memory at the clients; the same with memory at the server."""
    common: dict[str, Any] = {"step": STEPS[problem], "batch_size": BATCH}
    narrow = tenth if problem == "mlp" else lambda m: CountSketch(1000)
    if way == "FedSGD":
        return algorithms.comp_dist_sgd(m=1.0, sketch=lambda m: Identity(), **common)
    if way == "sketch, QSGD, memory at the clients":
        return algorithms.comp_dist_sgd(m=0.1, sketch=narrow, codec="qsgd", error_feedback=True, **common)
    return algorithms.comp_dist_sgd(
        m=0.1, sketch=lambda m: SparseJL(0.1, s=5), codec="qsgd", heavy=500, refresh=10, **common
    )


WAYS = ("FedSGD", "sketch, QSGD, memory at the clients", "sketch, QSGD, memory at the server")


@lru_cache(maxsize=2)
def data(problem: str, folder: str | None) -> Any:
    """The data set, and which records each client has."""
    dataset = datasets.load("imdb" if problem == "imdb" else "mnist", folder)
    order = np.random.default_rng(0).permutation(dataset.x_train.shape[0])
    return dataset, [order[k::CLIENTS] for k in range(CLIENTS)]


@lru_cache(maxsize=CLIENTS)
def objective(problem: str, number: int, folder: str | None) -> Any:
    """The records of one client."""
    dataset, parts = data(problem, folder)
    x, y = dataset.x_train[parts[number]], dataset.y_train[parts[number]]
    if problem == "imdb":
        return Logistic(x.astype(np.float32), y, classes=[0, 1])
    return ModuleObjective(
        network(784, 10, seed=0), nn.functional.cross_entropy, (torch.from_numpy(x), torch.from_numpy(y))
    )


@lru_cache(maxsize=8)
def federation(problem: str, way: str, rounds: int, folder: str | None) -> Federation:
    """The plan of one run."""
    space = objective(problem, 0, folder).space
    ball: Any = L1Ball(150.0)
    if problem == "mlp":
        ball = Product([(L1Ball(RADII[leaf.name]), leaf.size) for leaf in space.leaves])
    n = 25_000 if problem == "imdb" else 60_000
    linear = problem == "imdb"
    return Federation(recipe(problem, way), space, rounds, CLIENTS, n=n, constraint=ball, linear=linear)


def start(problem: str, plan: Federation, folder: str | None) -> Tensor | None:
    """Where every run begins: the weights of a new network, projected (those of `objective` move with each run)."""
    if problem == "imdb":
        return None
    few = torch.zeros(1, 784), torch.zeros(1, dtype=torch.long)
    return plan.constraint.project(ModuleObjective(network(784, 10, seed=0), nn.functional.cross_entropy, few).start())


def accuracy(problem: str, w: Tensor, folder: str | None) -> float:
    """On the test set."""
    dataset, _ = data(problem, folder)
    if problem == "imdb":
        return float(Logistic(dataset.x_test.astype(np.float32), dataset.y_test, classes=[0, 1]).score(w))
    mine = objective(problem, 0, folder)
    mine.layers.unpack(w)
    with torch.no_grad():
        hits = mine.layers.module(torch.from_numpy(dataset.x_test)).argmax(1) == torch.from_numpy(dataset.y_test)
    return float(hits.double().mean())
