"""Paper 001, Figure 2: an MLP (in x 50, 50 x 50, 50 x classes, ReLU) on MNIST with an l1 ball for each layer.

CompSGD sees a tenth of each layer's gradient, m = d_layer / 10, memoryless and with error feedback.  The paper does
not state the radii; here they are loose enough for SGD to reach its unconstrained accuracy.
"""

from __future__ import annotations

import numpy as np
import torch
from common import arguments, curves, save, table
from torch import nn

from isthmus import CountSketch, L1Ball, ModuleObjective, PerLeaf, Product, algorithms, datasets, minimize

STEP, BATCH = 0.1, 32
RADII = {"0": 600.0, "2": 150.0, "4": 60.0}


def network(seed: int) -> nn.Module:
    """The MLP."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(784, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 10))


def tenth(m: object) -> PerLeaf:
    """A count-sketch of a tenth of each layer."""
    return PerLeaf(CountSketch(0.1))


def main() -> None:
    """Run, print, save."""
    args = arguments(__doc__, seeds=2, epochs=5)
    torch.set_num_threads(1)
    data = datasets.load("mnist", args.data)
    x, y = torch.from_numpy(data.x_train), torch.from_numpy(data.y_train)
    x_test, y_test = torch.from_numpy(data.x_test), torch.from_numpy(data.y_test)
    seeds, epochs = (1, 0.05) if args.quick else (args.seeds, args.epochs)
    names = {
        "SGD": algorithms.sgd(step=STEP, batch_size=BATCH),
        "CompSGD": algorithms.comp_sgd(m=0.1, step=STEP, batch_size=BATCH, sketch=tenth),
        "CompSGD + error feedback": algorithms.comp_sgd(
            m=0.1, step=STEP, batch_size=BATCH, sketch=tenth, error_feedback=True
        ),
    }
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    series = {}
    for seed in range(seeds):
        for name, recipe in names.items():
            objective = ModuleObjective(network(seed), nn.functional.cross_entropy, (x, y))
            balls = Product([(L1Ball(RADII[leaf.name]), leaf.size) for leaf in objective.space.leaves])
            w = balls.project(objective.start())
            found = minimize(objective, recipe, balls, epochs=epochs, seed=seed, x0=w)
            objective.layers.unpack(found.x)
            with torch.no_grad():
                accuracy = float((objective.layers.module(x_test).argmax(1) == y_test).double().mean())
            runs[name].append({"accuracy": accuracy, "seconds": found.seconds, "dims": found.dims})
            series.setdefault(name, found.curve("loss", "epoch"))
    rows, summary = [], {}
    for name, found in runs.items():
        accuracy = np.array([run["accuracy"] for run in found])
        seconds = float(np.median([run["seconds"] for run in found]))
        rows.append({"run": name, "accuracy": float(accuracy.mean()), "std": float(accuracy.std()),
                     "numbers": int(found[0]["dims"]), "seconds": seconds})  # fmt: skip
        summary[f"{name}: accuracy"] = float(accuracy.mean())
    table(f"MLP on MNIST, {epochs} epochs, {seeds} seeds", rows)
    curves(args.out, "mlp_mnist", series, "epoch", "training loss")
    save(args.out, "mlp_mnist", {"summary": summary, "rows": rows})


if __name__ == "__main__":
    main()
