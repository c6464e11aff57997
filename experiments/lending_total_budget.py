"""Paper 002's setting at a total budget: Lending Club rates, n = 10,000, T = 1000, linear regression, (1, 1e-5) in all.

The paper's epsilon is for one iteration; over 1000 iterations it adds up.  Here every row states the epsilon of the
whole run.  Clips and steps are public constants: steps rho_k = c / sqrt(k) with c from a grid of five, the paper's 0.1
among them; 10 and 30 were added after smaller ones had been seen, and DP-GD and two compressive variants are best at
30, the edge.  The table shows every c as the mean of the seeds; "best" picks c on the result, which flatters all alike.
"""

from __future__ import annotations

import json
import time
from typing import Any

import glm_data
import numpy as np
import torch
from common import arguments, curves, save, table

from isthmus import LeastSquares, algorithms, minimize

EPSILON, DELTA, KAPPA, P = 1.0, 1e-5, 5, 20
GRID = (0.01, 0.1, 1.0, 10.0, 30.0)
CLIP = 0.3  # of a record's gradient: the targets lie in [-1, 1]
ENTRY = 0.1  # of one entry of it: columns are at most 1/3
CODE = 1.0  # of the l1 norm of a code of 20 numbers: about sqrt(2 p / pi) times the l2 norm
# a pure epsilon of 8.49 over 1000 rounds of Laplace noise is (1, 1e-5) by the accountant (privacy-loss distributions)
PURE = 8.49
NAME = "lending_total_budget"


def recipes(c: float, rounds: int) -> dict[str, Any]:
    """The compared runs for one step constant."""
    rule = lambda t: c / (t + 1) ** 0.5  # noqa: E731
    common = {"delta": DELTA, "step": rule, "n": "exact"}
    sparse = {"p": P, "kappa": KAPPA, **common}
    comp, same = algorithms.compressive_dp_sgd, {"epsilon": EPSILON}
    return {
        "DP-GD": algorithms.dp_gd(clip=CLIP, **same, **common),
        "002 as printed, pure epsilon 1": comp(clip=ENTRY, as_published=True, **same, **sparse),
        "002 as printed, (1, 1e-5)": comp(clip=ENTRY, as_published=True, epsilon=PURE * rounds / 1000, **sparse),
        "compressive, gaussian": comp(clip=CLIP, **same, **sparse),
        "compressive, laplace": comp(clip=CODE, variant="laplace", **same, **sparse),
        "compressive, selection": comp(clip=ENTRY, variant="selection", **same, **sparse),
    }


def main() -> None:
    """Run, print, save."""
    args = arguments(__doc__, seeds=2, steps=1000)
    torch.set_num_threads(1)
    rounds, seeds = (20, 1) if args.quick else (args.steps, args.seeds)
    name = NAME + ("_quick" if args.quick else "")
    data = glm_data.load("lending_club", args.data, rows=10_000)
    train, test = LeastSquares(data.x, data.y), LeastSquares(data.x_test, data.y_test)
    best = torch.from_numpy(np.linalg.lstsq(data.x, data.y, rcond=None)[0])
    least, zero = train.loss(best), train.loss(torch.zeros(train.d, dtype=torch.float64))
    print(f"n={train.n} d={train.d}, f(theta*)={least:.5f}, test R2 of theta* {test.score(best):.3f}")
    file = args.out / f"{name}.json"
    cells: dict[str, Any] = json.loads(file.read_text())["cells"] if file.exists() else {}
    for seed in range(seeds):
        for c in GRID:
            for method, recipe in recipes(c, rounds).items():
                key = f"{method} | c={c:g} | T={rounds} | seed {seed}"
                if key in cells:
                    continue
                curve: list[tuple[int, float]] = []
                look = lambda _, state: curve.append((state.t, train.loss(state.w) / least - 1))  # noqa: B023, E731
                began = time.perf_counter()
                every = max(1, rounds // 20)
                found = minimize(train, recipe, steps=rounds, seed=seed, record=every, callbacks=[look], progress=False)
                cells[key] = {
                    "relative loss": train.loss(found.x) / least - 1,
                    "test R2": test.score(found.x),
                    "epsilon": found.privacy.epsilon,
                    "adjacency": found.privacy.adjacency.value,
                    "seconds": time.perf_counter() - began,
                    "curve": curve,
                }
                print(f"{key}: {cells[key]['relative loss']:.4g}, {cells[key]['seconds']:.1f} s", flush=True)
                args.out.mkdir(parents=True, exist_ok=True)
                file.write_text(json.dumps({"cells": cells}, indent=1))
    rows, series, summary = [], {}, {"f(0)/f* - 1": zero / least - 1}
    for method in recipes(1.0, rounds):
        found = {c: [cells[f"{method} | c={c:g} | T={rounds} | seed {s}"] for s in range(seeds)] for c in GRID}
        mean = {c: float(np.mean([cell["relative loss"] for cell in found[c]])) for c in GRID}
        chosen = min(mean, key=lambda c: mean[c])
        row = {"run": method, "epsilon": found[chosen][0]["epsilon"], "best": mean[chosen]}
        row["+-"] = float(np.std([cell["relative loss"] for cell in found[chosen]]))
        row["test R2"] = float(np.mean([cell["test R2"] for cell in found[chosen]]))
        rows.append(row | {f"c={c:g}": mean[c] for c in GRID})
        series[f"{method}, c={chosen:g}"] = tuple(zip(*found[chosen][0]["curve"], strict=True))
        summary |= {f"{method}: best": mean[chosen], f"{method}: c=0.1": mean[0.1]}
    title = f"Lending Club, n=10,000, T={rounds}, {seeds} seeds: f(theta)/f(theta*) - 1"
    table(f"{title} (theta = 0: {zero / least - 1:.3g})", rows)
    curves(args.out, name, series, "iteration", "f(theta)/f(theta*) - 1")
    save(args.out, name, {"summary": summary, "rows": rows, "cells": cells})


if __name__ == "__main__":
    main()
