"""Paper 004's trainings: DP-SGD, PDP-SGD and RPDP-SGD on 10,000 images with 100 public ones, step by step as printed.

The CNN (d = 26,010), Poisson batches of 250, clip 1 before the projection, plain SGD, delta = 1e-5 are the paper's.  A
small run keeps the noise of the whole training: with fewer and smaller batches the noise multiplier becomes
sigma * (b / 250) * sqrt(T / 1200) and the step grows, which leaves the ratio of signal to noise at the end as it is.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from isthmus import datasets
from isthmus.engine import PrivacyEngine
from isthmus.sketches import GaussianSketch, Identity, PublicSubspace
from isthmus.sketches.compose import Progressive
from lab.reproduce.experiment import Cell, Observed, RunSetting

DELTA, BATCH, STEPS = 1e-5, 250, 1200
PRINTED = {18: 0.23, 14: 0.30, 10: 0.42, 8: 0.53, 6: 0.72, 4: 1.09, 2: 2.41}
"""The paper's epsilon of each noise multiplier, by its moments accountant."""
STEP = {
    ("mnist", "DP-SGD"): {18: 0.05, 14: 0.05, 10: 0.05, 8: 0.05, 6: 0.1, 4: 0.1, 2: 0.2},
    ("mnist", "PDP-SGD"): {18: 0.1, 14: 0.2, 10: 0.2, 8: 0.1, 6: 0.1, 4: 0.2, 2: 0.2},
    ("fashion_mnist", "DP-SGD"): {18: 0.01, 14: 0.01, 10: 0.01, 8: 0.02, 6: 0.02, 4: 0.02, 2: 0.05},
    ("fashion_mnist", "PDP-SGD"): {18: 0.01, 14: 0.01, 10: 0.02, 8: 0.02, 6: 0.02, 4: 0.02, 2: 0.05},
}
"""Tables 3 and 4 (8 and 2 where they are silent: those of the neighbour)."""
START = {"mnist": {8: 15, 6: 15, 4: 15, 2: 15}, "fashion_mnist": dict.fromkeys(PRINTED, 15)}
"""The epoch of 30 at which the projection starts, where it is not the first."""
D, RANDOM = 26_010, 800
DIMENSION = {"mnist": 50, "fashion_mnist": 70}
FULL = {"n": 10_000, "batch": BATCH, "epochs": 30, "test": 10_000}
SMALL = {"n": 4_000, "batch": 100, "epochs": 8, "test": 2_000}


class _RandomSubspace(GaussianSketch):
    """Random orthonormal directions for gradients that are clipped before they are projected, as printed."""

    clips_before = True


class _Unprojected(Identity):
    """Before the projection starts: clipped before it, too, which is the same."""

    clips_before = True


class _Images(TorchDataset[tuple[Tensor, Tensor]]):
    """Examples that are fetched a batch at a time."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        """Their number."""
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """One example as a batch."""
        return self.x[index : index + 1], self.y[index : index + 1]

    def __getitems__(self, index: list[int]) -> tuple[Tensor, Tensor]:
        """Many at once."""
        places = torch.tensor(index, dtype=torch.long, device=self.x.device)
        return self.x[places], self.y[places]


def loader_of(x: Tensor, y: Tensor, batch: int) -> DataLoader[Any]:
    """Batches of examples that lie on the device."""
    return DataLoader(_Images(x, y), batch_size=batch, collate_fn=whole)


def whole(batch: Any) -> tuple[Tensor, Tensor]:
    """A batch is fetched whole: nothing is left to collate."""
    return batch


def network() -> nn.Sequential:
    """The CNN of Papernot et al. with pools of stride 1: d = 26,010.

    >>> sum(p.numel() for p in network().parameters())
    26010
    """
    return nn.Sequential(
        nn.Unflatten(1, (1, 28)),
        nn.Conv2d(1, 16, 8, 2, padding=3),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.Tanh(),
        nn.Linear(32, 10),
    )


@cache
def stored(name: str) -> datasets.Dataset:
    """A data set, read once in a process."""
    data = datasets.load(name)
    return datasets.Dataset(np.float32(data.x_train), data.y_train, np.float32(data.x_test), data.y_test)


def images(name: str, n: int, public: int, test: int, setting: RunSetting) -> dict[str, tuple[Tensor, Tensor]]:
    """Private, public and test images: n and `public` random ones of this seed, the first `test` ones."""
    data = stored(name)
    order = np.random.default_rng([4, setting.seed]).permutation(len(data.x_train))
    parts = {
        "private": (data.x_train[order[:n]], data.y_train[order[:n]]),
        "public": (data.x_train[order[n : n + public]], data.y_train[order[n : n + public]]),
        "test": (data.x_test[:test], np.asarray(data.y_test)[:test]),
    }
    return {
        key: (
            torch.as_tensor(x).reshape(-1, 28, 28).to(setting.device),
            torch.as_tensor(np.asarray(y, dtype=np.int64)).to(setting.device),
        )
        for key, (x, y) in parts.items()
    }


@dataclass(frozen=True)
class PrintedTraining:
    """One training of the paper: what a cell says, with the paper's settings where it is silent."""

    data: str = "mnist"
    method: str = "PDP-SGD"
    sigma: int = 18
    k: int = 0
    public: int = 100
    refresh: int = 10
    n: int = 0
    micro: int = 1
    start: int | None = None

    def narrow(self, epochs: int) -> Any:
        """The narrow space: none, the top public directions (clipped before, as printed), random ones."""
        start = START[self.data].get(self.sigma, 0) if self.start is None else self.start
        first = round(start * epochs / 30)
        if self.method == "PDP-SGD":
            k = self.k or DIMENSION[self.data]
            return PublicSubspace(k, refresh=self.refresh, start_epoch=first, clip="before")
        if self.method == "RPDP-SGD":
            random = _RandomSubspace(self.k or RANDOM, scaling="tight", refresh=10**9)
            return Progressive([(first, _Unprojected()), (math.inf, random)]) if first else random
        return None

    def step(self, longer: float) -> float:
        """Tables 3 and 4, `longer` times."""
        like, own = ("DP-SGD" if self.method == "RPDP-SGD" else self.method), longer
        if self.method == "RPDP-SGD":  # noise in k directions is then as long as DP-SGD's in d
            own *= math.sqrt(D / (self.k or RANDOM))
        return STEP[(self.data, like)][self.sigma] * own


def accuracy(module: nn.Module, x: Tensor, y: Tensor) -> float:
    """Share of right answers."""
    with torch.no_grad():
        return float((module(x).argmax(1) == y).double().mean())


def made_private(
    training: PrintedTraining, setting: RunSetting
) -> tuple[dict[str, tuple[Tensor, Tensor]], Any, Any, Any, Any]:
    """Data, private module, optimiser, loader and engine."""
    config = setting.config
    n = round((training.n or FULL["n"]) * config["n"] / FULL["n"])
    parts = images(training.data, n, training.public, config["test"], setting)
    steps = config["epochs"] * (n // config["batch"])
    shorter = steps / (FULL["epochs"] * (training.n or FULL["n"]) // BATCH)  # than the paper's training
    noise = training.sigma * config["batch"] / BATCH * math.sqrt(shorter)
    torch.manual_seed(setting.seed)
    engine, module = PrivacyEngine(seed=setting.seed), network().to(setting.device)
    optimizer: Any = torch.optim.SGD(module.parameters(), lr=training.step(1 / shorter))
    loader: Any = loader_of(*parts["private"], config["batch"])
    private, optimizer, loader = engine.make_private(
        module=module, optimizer=optimizer, data_loader=loader, criterion=nn.functional.cross_entropy,
        noise_multiplier=noise, max_grad_norm=1.0, sketch=training.narrow(config["epochs"]), public=parts["public"],
        micro_batch_size=training.micro, noise_generator=torch.Generator().manual_seed(setting.seed),
    )  # fmt: skip
    return parts, private, optimizer, loader, engine


def run(cell: Cell, setting: RunSetting) -> Observed:
    """Train; accuracy on the training and the test images after every epoch."""
    training = PrintedTraining(**cell)
    parts, module, optimizer, loader, engine = made_private(training, setting)
    (x_train, y_train), began = parts["private"], time.perf_counter()
    train_part = (x_train[: setting.config["test"]], y_train[: setting.config["test"]])
    train, test = [accuracy(module, *train_part)], [accuracy(module, *parts["test"])]
    for _ in range(setting.config["epochs"]):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            optimizer.step()
        train.append(accuracy(module, *train_part))
        test.append(accuracy(module, *parts["test"]))
    epochs = [float(epoch) for epoch in range(len(test))]
    metrics = {"test accuracy": test[-1], "training accuracy": train[-1], "epsilon, ours": engine.get_epsilon(DELTA)}
    metrics["seconds"] = time.perf_counter() - began
    return Observed(metrics, {"test accuracy": (epochs, test), "training accuracy": (epochs, train)})
