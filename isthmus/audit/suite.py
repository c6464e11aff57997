"""Does every private recipe keep its promise?  One release of each, attacked on its worst neighbours.

Claimed is (1, 1e-5) for one round.  `ratio` is how far the worst pair moves the value in front of the mechanism,
relative to the stated sensitivity; `lower` a lower bound of epsilon that holds with the stated confidence; `gaussian
curve` the sharper one that takes the noise to be Gaussian.  Bounds of whole runs, each from one run with
canaries, stand beside them.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from isthmus import algorithms
from isthmus.audit import attack, known_bad, one_run, training, worst_pair
from isthmus.base.space import Space
from isthmus.core.minimize import Binding, Recipe
from isthmus.core.pipeline import Pipeline
from isthmus.gradients import Dense
from isthmus.penalties import NoPenalty
from isthmus.sets import ConvexSet, L1Ball, Simplex, Whole

EPSILON, DELTA = 1.0, 1e-5


@dataclass(frozen=True)
class _Case:
    """A pipeline, its public sizes, and whether its promise is one it can keep."""

    pipe: Pipeline
    d: int = 400
    n: int = 100
    sound: bool = True


def _bound(recipe: Recipe, d: int = 400, n: int = 100, constraint: ConvexSet | None = None, steps: int = 1) -> _Case:
    """A recipe for `steps` rounds on n records."""
    return _Case(recipe.bind(Binding(constraint or Whole(), NoPenalty(), Space.flat(d), n, steps, None)), d, n)


def _recipe_pipelines() -> dict[str, _Case]:
    """Every private recipe of `isthmus.algorithms`, bound to one round."""
    common: dict[str, Any] = {"epsilon": EPSILON, "delta": DELTA, "clip": 1.0, "n": "exact"}
    step: dict[str, Any] = {**common, "step": 0.1}
    narrow: dict[str, Any] = {**step, "m": 50}
    sparse: dict[str, Any] = {**step, "p": 50, "kappa": 5}
    a, ball = algorithms, L1Ball(1.0)
    public = Dense(torch.randn(12, 40, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    return {
        "dp_sgd": _bound(a.dp_sgd(**step, batch_size=10), d=20),
        "dp_gd": _bound(a.dp_gd(**step), d=20),
        "priv_sgd": _bound(a.priv_sgd(**narrow)),
        "priv_sgd, replace-one": _bound(a.priv_sgd(**narrow, adjacency="replace-one")),
        "dp_comp_minibatch": _bound(a.dp_comp_minibatch(**narrow, batch_size=10)),
        "compressive_dp_sgd, Gaussian": _bound(a.compressive_dp_sgd(**sparse)),
        "compressive_dp_sgd, Laplace": _bound(a.compressive_dp_sgd(**sparse, variant="laplace")),
        "dp_skgd": _bound(a.dp_skgd(**common, smoothness=1.0)),
        "dp_svrg": _bound(a.dp_svrg(**step, inner=5, batch_size=None), d=20),
        "compressive_dp_sgd, selection": _bound(a.compressive_dp_sgd(**sparse, variant="selection"), d=60),
        "dp_fw": _bound(a.dp_fw(**common), d=20, constraint=ball),
        "dp_cd": _bound(a.dp_cd(**common, smoothness=1.0), d=20),
        "dp_mirror_descent": _bound(a.dp_mirror_descent(**step), d=20, constraint=Simplex()),
        "dp_subspace_gd": _bound(a.dp_subspace_gd(**step, k=5), d=40),
        "rpdp_sgd": _bound(a.rpdp_sgd(**step, k=5, batch_size=10), d=40),
        "pdp_sgd": _bound(a.pdp_sgd(**step, k=5, data=public, batch_size=10), d=40),
    }


def _broken_pipelines() -> dict[str, _Case]:
    """Pipelines whose promise is false."""
    sound = _recipe_pipelines()
    published = known_bad.published_privsgd(1000, 50, epsilon=EPSILON, delta=DELTA)
    return {"PRIVSGD as published": _Case(published, d=10000, n=1000, sound=False)} | {
        f"{name}, half the noise": _halved(sound[name])
        for name in ("dp_gd", "priv_sgd", "compressive_dp_sgd, Laplace", "dp_fw")
    }


def _halved(case: _Case) -> _Case:
    return replace(case, pipe=known_bad.halved(case.pipe), sound=False)


def _examine(case: _Case, draws: int, confidence: float) -> dict[str, Any]:
    """Attack a case on its worst pair; `ok` when a sound one is consistent and a broken one is caught."""
    began = time.perf_counter()
    releases = [release for stage in case.pipe.stages for release in stage.releases]
    if any(release.clipped.ord == math.inf for release in releases):  # choices are drawn one by one
        draws = min(draws, 100_000)
    report = attack(case.pipe, worst_pair(case.pipe, case.d, case.n), draws, confidence)
    ok = report.verdict == "violation"
    if case.sound:
        ok = report.verdict == "consistent" and report.ratio <= 1 + 1e-9
    return {**report.row(), "seconds": round(time.perf_counter() - began, 1), "ok": ok}


def _canary_runs(count: int = 100_000) -> dict[str, dict[str, Any]]:
    """Whole runs with a canary on every coordinate but one; the last has half the noise of its claim."""
    common: dict[str, Any] = {"epsilon": EPSILON, "delta": DELTA, "clip": 1.0, "step": 0.1, "n": count // 2}
    narrow: dict[str, Any] = {**common, "n": count // 20, "m": count // 50}
    cases = {
        "dp_gd": _bound(algorithms.dp_gd(**common), count, count // 2, steps=5),
        "dp_sgd": _bound(algorithms.dp_sgd(**common, batch_size=count // 20), count, count // 2, steps=5),
        "priv_sgd": _bound(algorithms.priv_sgd(**narrow), count // 10, count // 20, steps=5),
    }
    by_name: dict[str, dict[str, Any]] = {}
    for name, case in {**cases, "dp_gd, half the noise": _halved(cases["dp_gd"])}.items():
        canaries = torch.arange(case.d - 1)
        result = one_run(training(case.pipe, canaries, steps=5), canaries, delta=DELTA)
        by_name[name] = {"right": f"{result.correct}/{result.guesses}", "claimed": EPSILON, "lower": result.lower}
        by_name[name]["ok"] = (result.lower <= EPSILON) == case.sound
    return by_name


def main(draws: int = 200_000, confidence: float = 0.999, as_json: bool = False) -> int:
    """Run everything, print the tables (or JSON), return how many verdicts were wrong, at most 1."""
    torch.set_num_threads(1)
    results: dict[str, dict[str, dict[str, Any]]] = {}
    for title, cases in {"recipes": _recipe_pipelines(), "broken on purpose": _broken_pipelines()}.items():
        results[title] = {name: _examine(case, draws, confidence) for name, case in cases.items()}
        if not as_json:
            _print(f"{title}: claimed ({EPSILON:g}, {DELTA:g}), confidence {confidence:g}", results[title])
    results["one run with canaries"] = _canary_runs()
    wrong = sum(not row["ok"] for rows in results.values() for row in rows.values())
    if as_json:
        print(json.dumps(results, indent=1))
    else:
        _print("one run with canaries, confidence 0.95", results["one run with canaries"])
        print(f"\n{wrong} wrong verdict(s)")
    return min(1, wrong)


def _print(title: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """A table, numbers to four digits."""
    print(f"\n{title}\n{'':36}" + "".join(f"{heading:>16}" for heading in next(iter(rows.values()))))
    for name, row in rows.items():
        cells = [f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row.values()]
        print(f"  {name:34}" + "".join(f"{cell:>16}" for cell in cells), flush=True)
