"""The models and batches of the engine benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

BATCH = {"mlp": 256, "cnn": 250, "transformer": 64, "embedding": 256}


class Patches(nn.Module):
    """28 x 28 images as 64 tokens: padded to 32 x 32 and cut into 4 x 4 patches."""

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.pad(x.reshape(-1, 28, 28), (2, 2, 2, 2))
        return x.unfold(1, 4, 4).unfold(2, 4, 4).reshape(len(x), 64, 16)


class Pool(nn.Module):
    """The mean over positions."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )


def cnn() -> nn.Module:
    """Paper 004's network, d = 26,010."""
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


def transformer() -> nn.Module:
    """Four encoder layers of width 256 over 64 positions."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    return nn.Sequential(
        Patches(),
        nn.Linear(16, 256),
        nn.TransformerEncoder(layer, 4, enable_nested_tensor=False),
        Pool(),
        nn.Linear(256, 10),
    )


def embedding() -> nn.Module:
    """A table of 50,000 words, mean pooling and a classifier."""
    return nn.Sequential(nn.Embedding(50_000, 64), Pool(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "cnn": cnn,
    "transformer": transformer,
    "embedding": embedding,
}


def batch(model: str, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random inputs of the right shape: time and memory do not depend on the values."""
    g = torch.Generator().manual_seed(seed)
    if model == "embedding":
        return torch.randint(0, 50_000, (n, 128), generator=g), torch.randint(0, 2, (n,), generator=g)
    return torch.rand(n, 28, 28, generator=g), torch.randint(0, 10, (n,), generator=g)


def sketch(column: str, public: Any) -> Any:
    """The sketch of a column of the table."""
    import isthmus

    return {
        "kronecker": lambda: isthmus.Kronecker(32, 32, refresh=20),
        "kronecker-public": lambda: isthmus.KroneckerSubspace(32, 32, public, refresh=20),
        "subspace": lambda: isthmus.PublicSubspace(50, public, refresh=10),
    }.get(column, lambda: None)()
