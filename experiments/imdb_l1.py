"""Paper 001, Figure 1d: l1-constrained logistic regression on IMDB, SGD beside CompSGD.

10,000 words (presence, no intercept), l1 ball of radius 150, batch 32, step 0.1, 5 epochs.  The paper's own rule
m_t = t^2 log d (t the epoch) is run beside a fixed m = 1000, memoryless and with error feedback.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from common import arguments, curves, save, table

from isthmus import L1Ball, Logistic, algorithms, datasets, minimize

STEP, BATCH, RADIUS, M = 0.1, 32, 150.0, 1000


def recipes(d: int, per_epoch: int) -> dict[str, object]:
    """The compared runs."""
    paper = lambda t: min(d, max(1, round((t // per_epoch + 1) ** 2 * math.log(d))))  # noqa: E731
    common, comp_sgd = {"step": STEP, "batch_size": BATCH}, algorithms.comp_sgd
    return {
        "SGD": algorithms.sgd(**common),
        "CompSGD + error feedback": comp_sgd(m=M, error_feedback=True, **common),
        "same, map kept 4 rounds": comp_sgd(m=M, error_feedback=True, refresh=4, **common),
        "CompSGD memoryless": comp_sgd(m=M, **common),
        "CompSGD m_t = t^2 log d": comp_sgd(m=paper, **common),
        "same + error feedback": comp_sgd(m=paper, error_feedback=True, **common),
    }


def main() -> None:
    """Run, print, save."""
    args = arguments(__doc__, seeds=3, epochs=5)
    torch.set_num_threads(1)
    data = datasets.load("imdb", args.data)
    train, test = Logistic(data.x_train, data.y_train), Logistic(data.x_test, data.y_test)
    seeds, epochs = (1, 1) if args.quick else (args.seeds, args.epochs)
    names = recipes(train.d, -(-train.n // BATCH))
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    series = {}
    for seed in range(seeds):  # the runs alternate, so that a busy moment of the machine hits all of them
        for name, recipe in names.items():
            found = minimize(train, recipe, L1Ball(RADIUS), epochs=epochs, seed=seed, record=None if seed else "epoch")
            accuracy = test.accuracy(found.x)
            runs[name].append({"accuracy": accuracy, "ms": 1e3 * found.seconds / found.state.t, "dims": found.dims})
            if not seed:
                series[name] = found.curve("loss", "dims")
    rows, summary, plain = [], {}, runs["SGD"]
    for name, found in runs.items():
        accuracy = np.array([run["accuracy"] for run in found])
        ratio = float(np.median([run["ms"] / other["ms"] for run, other in zip(found, plain, strict=True)]))
        dims = float(np.mean([run["dims"] for run in found]))
        row = {"accuracy": float(accuracy.mean()), "std": float(accuracy.std()), "fewer": plain[0]["dims"] / dims}
        rows.append({"run": name, **row, "ms a step": float(np.median([r["ms"] for r in found])), "x SGD": ratio})
        summary |= {f"{name}: accuracy": row["accuracy"], f"{name}: step time ratio": ratio}
    table(f"IMDB, l1 ball {RADIUS:g}, {epochs} epochs, {seeds} seeds", rows)
    curves(args.out, "imdb_l1", series, "gradient numbers used", "training loss")
    save(args.out, "imdb_l1", {"summary": summary, "rows": rows})


if __name__ == "__main__":
    main()
