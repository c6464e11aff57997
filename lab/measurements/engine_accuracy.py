"""Test accuracy after a short private training through the engine: no speed without it.

Noise multiplier 1, clip 1, the ranks of the benchmark `step`.  Steps were set once for each way, not tuned: it shows
that a way learns, not which is best.  The images are those of MNIST in ISTHMUS_DATA.

    python lab/measurements/engine_accuracy.py [--models mlp cnn transformer] [--steps 300]
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from isthmus import datasets
from lab.bench.models import BATCH, MODELS
from lab.bench.steps import KRONECKER, LEARNED, NONE, PLAIN, SKETCHES, SUBSPACE, our_parts

RATE = {PLAIN: 0.1, NONE: 0.3, KRONECKER: 10.0, LEARNED: 0.5, SUBSPACE: 0.5}


def examples() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images and labels, training and test."""
    data = datasets.load("mnist")
    arrays = (data.x_train, data.y_train, data.x_test, data.y_test)
    x, y, x_test, y_test = (torch.as_tensor(np.asarray(part)) for part in arrays)
    return x.float().reshape(-1, 28, 28), y.long(), x_test.float().reshape(-1, 28, 28), y_test.long()


def accuracy(way: str, model: str, steps: int) -> float:
    """Test accuracy after so many steps."""
    torch.manual_seed(0)
    x, y, x_test, y_test = examples()
    module, public, x, y = MODELS[model](), (x[-100:], y[-100:]), x[:-100], y[:-100]
    loader = DataLoader(TensorDataset(x, y), batch_size=BATCH[model], shuffle=True)
    if way == PLAIN:
        optimizer = torch.optim.SGD(module.parameters(), lr=RATE[way])
    else:
        loss = nn.functional.cross_entropy
        module, optimizer, loader, _ = our_parts(module, loader, RATE[way], SKETCHES[way](public), criterion=loss)
    done = 0
    while done < steps:
        for xb, yb in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(xb), yb).backward()
            optimizer.step()
            done += 1
            if done == steps:
                break
    module.eval()
    chosen = torch.linspace(0, len(y_test) - 1, 2000).long()  # spread out: a test set may be sorted
    with torch.no_grad():
        right = [(module(x_test[part]).argmax(1) == y_test[part]).float().mean() for part in chosen.split(500)]
    return float(torch.stack(right).mean())


def main() -> None:
    """Print a line for each model and way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=["mlp", "cnn"], choices=["mlp", "cnn", "transformer"])
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    for model in options.models:
        for way in RATE:
            print(f"{model:12} {way:28} {accuracy(way, model, options.steps):.3f}", flush=True)


if __name__ == "__main__":
    main()
