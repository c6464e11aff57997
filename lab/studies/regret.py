"""The planner's regret: what `algorithm="auto"` loses against the best algorithm, in hindsight, on each of many cells.

Every algorithm is run as the planner fills it (`algorithm=name`), at epsilon 0.1 and 1 (delta = 1e-5), 2 seeds, on real
sets (whole, and cut to what all methods can afford) and on a constructed problem or two for the regime that each
algorithm is meant for (`regimes.py`).  Regret is in points: 100 times the accuracy or R2 of the best minus that of
auto's pick, means over seeds; an R2 below 0 counts as 0, for a constant is always at hand.  The best is chosen on test,
so a regret holds the luck of the winner; "held out" is the regret against the algorithm that is best on the other seed.

An algorithm has earned its place where it is picked AND has the best mean; one that has not done so in any cell is
listed as for research only.  The cells without a budget (epsilon = inf) are about the compressed solvers and counted
apart.

A method that would break the cell's limits (max_passes, max_dims) does not compete; where auto does it, the cell counts
as missed.  A method whose planned time exceeds LIMIT seconds is left out of a cell, and listed.  Fits that are done are
kept as lines of JSON and not run again; `--shard i/k` runs every k-th piece of work (see `shards`).
"""

from __future__ import annotations

import math
import time
import warnings
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from common import arguments, save, table
from regimes import Cell, cells, free_cells
from shards import Lines

from isthmus import InvalidInput, PrivateClassifier, PrivateRegressor, plan

EPSILONS, LIMIT, WITHIN = (0.1, 1.0), 60.0, 2.0
PRIVATE = (
    "dp_gd",
    "dp_sgd",
    "dp_svrg",
    "priv_sgd",
    "dp_comp_minibatch",
    "pdp_sgd",
    "rpdp_sgd",
    "compressive_dp_sgd",
    "dp_skgd",
    "dp_cd",
    "dp_fw",
)
FREE = ("sgd", "gd", "comp_sgd", "comp_gd", "comp_minibatch", "comp_fw")


def planned_seconds(cell: Cell, data: Any, declared: dict[str, Any], algorithm: str, epsilon: float) -> float:
    """What the planner thinks that it takes; nothing where it is refused."""
    loss = "squared" if cell.classes is None else "logistic" if len(cell.classes) == 2 else "softmax"
    facts = {"sparse": sp.issparse(data.x), "constraint": declared.get("constraint"), "penalty": "l2" in declared}
    facts |= cell.facts
    ranked = plan(
        n=data.n,
        d=data.d,
        epsilon=epsilon,
        loss=loss,
        classes=len(cell.classes or (0, 1)),
        public=declared.get("public"),
        algorithms=[algorithm],
        **facts,
    )
    return ranked.best.seconds if ranked.choices else 0.0


def contest(
    cell: Cell, data: Any, declared: dict[str, Any], algorithm: str, epsilon: float, seed: int
) -> dict[str, Any]:
    """One fit: score and what was run, or why it did not."""
    common = {"epsilon": epsilon, "data_norm": 1.0, "random_state": seed, "facts": cell.facts}
    common["fit_intercept"] = cell.intercept
    if cell.classes is None:
        model: Any = PrivateRegressor(target_bounds=(-1, 1), algorithm=algorithm, **common, **declared)
    else:
        model = PrivateClassifier(classes=cell.classes, algorithm=algorithm, **common, **declared)
    began = time.perf_counter()
    long = 0.0 if algorithm == "auto" else planned_seconds(cell, data, declared, algorithm, epsilon)
    if long > LIMIT:
        return {"score": None, "why": f"too slow: {long:.0f} s planned", "seconds": time.perf_counter() - began}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(data.x, data.y)
    except (InvalidInput, NotImplementedError) as error:
        return {"score": None, "why": str(error)[:200], "seconds": time.perf_counter() - began}
    choice = model.choice_
    score = float(model.score(data.x_test, data.y_test))
    return {
        "score": max(score, 0.0) if cell.classes is None else score,
        "raw": score,
        "pick": choice.name,
        "algorithm": choice.algorithm,
        "dims": choice.dims,
        "passes": choice.passes,
        "fits": _fits(choice, cell.facts),
        "rounds": choice.rounds,
        "seconds": time.perf_counter() - began,
    }


def _fits(choice: Any, facts: dict[str, Any]) -> bool:
    """Whether the limits of the cell hold."""
    return choice.dims <= facts.get("max_dims", math.inf) and choice.passes <= facts.get("max_passes", math.inf) + 1e-9


def run(cell: Cell, epsilon: float, seed: int, done: Lines, folder: Any) -> None:
    """auto, then every algorithm that is not its pick."""
    made: Any = None
    for algorithm in ("auto", *(FREE if epsilon == math.inf else PRIVATE)):
        key = f"{cell.name} | {algorithm} | epsilon {epsilon:g} | seed {seed}"
        picked = done.get(f"{cell.name} | auto | epsilon {epsilon:g} | seed {seed}", {}).get("algorithm")
        if key in done or picked == algorithm:
            continue
        made = cell.make(seed, folder) if made is None else made
        done.add(key, contest(cell, *made, algorithm, epsilon, seed))
        words = done[key]["why"] if done[key]["score"] is None else f"{done[key]['score']:.4f} {done[key]['pick']}"
        print(f"{key}: {words}, {done[key]['seconds']:.1f} s", flush=True)


def judged(cell: Cell, epsilon: float, done: dict[str, Any]) -> dict[str, Any]:
    """auto's pick, the best, the regret; scores of all that ran."""
    head = f"{cell.name} | "
    runs: dict[str, list[dict[str, Any]]] = {}
    for key, result in sorted(done.items(), key=lambda item: int(item[0].split("seed ")[1])):
        name, algorithm, at, _ = key.split(" | ")
        if name == cell.name and at == f"epsilon {epsilon:g}":
            runs.setdefault(algorithm, []).append(result)
    auto = runs.pop("auto")
    assert all(result["score"] is not None for result in auto), (head, auto)
    picks = sorted({result["algorithm"] for result in auto})
    by_algorithm = {
        algorithm: np.array([result["score"] for result in several])
        for algorithm, several in runs.items()
        if all(result["score"] is not None and result["fits"] for result in several) and len(several) == len(auto)
    }
    own = np.array([result["score"] for result in auto])
    lawful = all(result["fits"] for result in auto)
    if lawful and len(picks) == 1:
        by_algorithm[picks[0]] = own
    mine, scores = float(own.mean()), {algorithm: float(values.mean()) for algorithm, values in by_algorithm.items()}
    # a tie goes to the pick
    best = max(scores, key=lambda name: (scores[name], name in picks)) if scores else picks[0]
    regret = 100 * (max(scores.values(), default=mine) - mine) if lawful else math.inf
    order = sorted(scores, key=lambda name: -scores[name])
    return {
        "cell": cell.name,
        "epsilon": f"{epsilon:g}",
        "pick": "/".join(sorted({result["pick"] for result in auto})) + ("" if lawful else " BREAKS ITS LIMITS"),
        "auto": mine,
        "best": best,
        "score": scores.get(best, mine),
        "regret": regret,
        "held out": _held_out(by_algorithm, own) if lawful else math.inf,
        "others": ", ".join(f"{name} {scores[name]:.3f}" for name in order[:4]),
        "picks": picks,
        "late": cell.late,
        "scores": scores,
    }


def _held_out(by_algorithm: dict[str, np.ndarray], own: np.ndarray) -> float:
    """The regret against the algorithm that is best on the other seeds: the winner's luck is not counted."""
    lost = []
    for seed in range(len(own)):
        others = [i for i in range(len(own)) if i != seed] or [seed]
        best = max(by_algorithm, key=lambda name: by_algorithm[name][others].mean())
        lost.append(by_algorithm[best][seed] - own[seed])
    return 100 * float(np.mean(lost))


def earned(rows: list[dict[str, Any]], names: tuple[str, ...]) -> dict[str, list[str]]:
    """Where each algorithm is picked and wins."""
    return {
        name: [f"{row['cell']} at {row['epsilon']}" for row in rows if row["picks"] == [name] and row["best"] == name]
        for name in names
    }


def told_of(rows: list[dict[str, Any]], names: tuple[str, ...], title: str) -> dict[str, Any]:
    """Print one table and its verdicts; returns the figures."""
    columns = ("cell", "epsilon", "pick", "auto", "best", "score", "regret", "held out", "others")
    table(title, [{name: row[name] for name in columns} for row in rows])
    within, unlucky = (float(np.mean([row[kind] <= WITHIN for row in rows])) for kind in ("regret", "held out"))
    wins = earned(rows, names)
    first = [row for row in rows if not row["late"]]
    listed = float(np.mean([row["regret"] <= WITHIN for row in first])) if first else within
    print(f"\nwithin {WITHIN:g} points of the best: {listed:.0%} of the {len(first)} cells listed first (asked: 90 %)")
    print(f"with those added later: {within:.0%} of {len(rows)}; against the best on the other seed: {unlucky:.0%}")
    for name, where in wins.items():
        best = [f"{row['cell']} at {row['epsilon']}" for row in rows if row["best"] == name and row["picks"] != [name]]
        print(f"  {name}: picked and best in {len(where)}: {'; '.join(where) or '-'}")
        if best:
            print(f"      best but not picked: {'; '.join(best)}")
    never = [name for name, where in wins.items() if not where]
    print(f"  for research only (never picked and best): {', '.join(never) or 'none'}")
    return {"within": listed, "within, all": within, "within, held out": unlucky, "wins": wins, "research only": never}


def main() -> None:
    """Run, print, save."""
    args = arguments(__doc__, seeds=2, first=0, only="", shard="0/1")
    torch.set_num_threads(1)
    args.first = 100 if args.quick else args.first
    name = "regret" + ("_quick" if args.quick else f"_{args.first}" if args.first else "")
    lines = Lines(args.out, name, args.shard)
    everything = [(cell, epsilon) for cell in cells() for epsilon in EPSILONS] + [(c, math.inf) for c in free_cells()]
    chosen = [(cell, epsilon) for cell, epsilon in everything if args.only.lower() in cell.name.lower()]
    if args.quick:
        chosen = [(cell, epsilon) for cell, epsilon in chosen if cell.name in ("madelon", "half the energy public")]
    seeds = range(args.first, args.first + (1 if args.quick else args.seeds))
    for cell, epsilon, seed in lines.mine([(cell, epsilon, seed) for cell, epsilon in chosen for seed in seeds]):
        run(cell, epsilon, seed, lines, args.data)
    if lines.whole:
        _report(args, name, chosen, lines)


def _report(args: Any, name: str, chosen: list[tuple[Cell, float]], done: Lines) -> None:
    """The tables and what they come to."""
    rows = [judged(cell, epsilon, done) for cell, epsilon in chosen if epsilon != math.inf]
    free = [judged(cell, epsilon, done) for cell, epsilon in chosen if epsilon == math.inf]
    results: dict[str, Any] = {"rows": rows, "free rows": free}
    summary = {}
    if rows:
        results["private"] = told_of(rows, PRIVATE, "regret of auto, in points")
        summary["share of the private cells listed first within 2 points"] = results["private"]["within"]
        summary["share of all private cells within 2 points"] = results["private"]["within, all"]
    if free:
        results["free"] = told_of(free, FREE, "without a budget")
        summary["share of free cells within 2 points"] = results["free"]["within"]
    summary |= {f"{row['cell']}, epsilon {row['epsilon']}: auto": row["auto"] for row in [*rows, *free]}
    save(args.out, name, {"summary": summary, **results, "cells": dict(done)})


if __name__ == "__main__":
    main()
