"""Paper 001, Figures 7 and 8: the MLP of Figure 2 with quantised gradients, SGD beside CompDistSGD.

One client sends QSGD codes without Elias coding: of the whole gradient (SGD), or of a tenth of each layer's
(CompDistSGD, m = d_layer / 10).  Figure 7 is the test accuracy after each epoch, Figure 8 the training accuracy.  The
paper states neither its levels nor its radii: here s = sqrt(m), where chi = 1, and the radii of `mlp_mnist.py`.  Beside
the memoryless form of the paper stands error feedback, and beside both of them no codec.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from common import arguments, curves, save, table
from mlp_mnist import BATCH, RADII, STEP, network, tenth
from torch import Tensor, nn

from isthmus import Identity, L1Ball, ModuleObjective, Product, algorithms, codecs, datasets, minimize

SEEN = 10_000
"""Training images that the training accuracy is measured on."""


def recipes() -> dict[str, Any]:
    """The compared runs."""
    codec, comp = codecs.QSGD(coding="fixed"), algorithms.comp_dist_sgd
    whole: dict[str, Any] = {"step": STEP, "batch_size": BATCH, "m": 1.0, "sketch": lambda m: Identity()}
    narrow: dict[str, Any] = {"step": STEP, "batch_size": BATCH, "m": 0.1, "sketch": tenth}
    return {
        "SGD": comp(**whole),
        "SGD, quantised": comp(**whole, codec=codec),
        "CompDistSGD": comp(**narrow),
        "CompDistSGD, quantised": comp(**narrow, codec=codec),
        "CompDistSGD, quantised, error feedback": comp(**narrow, codec=codec, error_feedback=True),
        "the same with Elias gamma": comp(**narrow, codec=codecs.QSGD(), error_feedback=True),
    }


class Accuracies:
    """A callback: training and test accuracy at each record."""

    def __init__(self, objective: ModuleObjective, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> None:
        self.objective, self.sets = objective, {"train": train, "test": test}
        self.found: dict[str, list[float]] = {"epoch": [], "train": [], "test": []}

    def __call__(self, record: dict[str, Any], state: Any) -> None:
        """Measure at the state's point."""
        self.objective.layers.unpack(state.w)
        self.found["epoch"].append(record["epoch"])
        with torch.no_grad():
            for name, (x, y) in self.sets.items():
                hits = self.objective.layers.module(x).argmax(1) == y
                self.found[name].append(float(hits.double().mean()))


def main() -> None:
    """Run, print, save."""
    args = arguments(__doc__, seeds=2, epochs=5)
    torch.set_num_threads(1)
    data = datasets.load("mnist", args.data)
    x, y = torch.from_numpy(data.x_train), torch.from_numpy(data.y_train)
    test = torch.from_numpy(data.x_test), torch.from_numpy(data.y_test)
    seeds, epochs = (1, 0.05) if args.quick else (args.seeds, args.epochs)
    runs: dict[str, list[dict[str, Any]]] = {}
    for seed in range(seeds):
        for name, recipe in recipes().items():
            objective = ModuleObjective(network(seed), nn.functional.cross_entropy, (x, y))
            balls = Product([(L1Ball(RADII[leaf.name]), leaf.size) for leaf in objective.space.leaves])
            watch, w = Accuracies(objective, (x[:SEEN], y[:SEEN]), test), balls.project(objective.start())
            found = minimize(objective, recipe, balls, epochs=epochs, seed=seed, x0=w, callbacks=[watch],
                             clients=[objective])  # fmt: skip
            runs.setdefault(name, []).append({**watch.found, "bytes": found.bytes, "seconds": found.seconds})
    report(args, runs, epochs, seeds)


def report(args: Any, runs: dict[str, list[dict[str, Any]]], epochs: float, seeds: int) -> None:
    """Table, both figures, and the comparison with what was measured before."""
    rows, summary, plain = [], {}, runs["SGD"][0]["bytes"]
    for name, found in runs.items():
        last = {each: np.array([run[each][-1] for run in found]) for each in ("train", "test")}
        summary |= {f"{name}: {each} accuracy": float(values.mean()) for each, values in last.items()}
        summary[f"{name}: fewer bytes"] = plain / found[0]["bytes"]
        rows.append({"run": name, **{each: float(values.mean()) for each, values in last.items()},
                     "std": float(last["test"].std()), "bytes": int(found[0]["bytes"]),
                     "fewer": plain / found[0]["bytes"], "seconds": found[0]["seconds"]})  # fmt: skip
    table(f"MLP on MNIST, QSGD, {epochs} epochs, {seeds} seeds", rows)
    for figure, each in (("figure7", "test"), ("figure8", "train")):
        series = {name: (found[0]["epoch"], found[0][each]) for name, found in runs.items()}
        curves(args.out, f"mlp_qsgd_{figure}", series, "epoch", f"{each} accuracy", log=False)
    save(args.out, "mlp_qsgd", {"summary": summary, "rows": rows, "runs": runs})


if __name__ == "__main__":
    main()
