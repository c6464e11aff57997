"""Does every private pipeline keep its promise?  One release of each, attacked on its worst neighbours.

Claimed is (1, 1e-5) for one round.  `ratio` is how far the worst pair moves the value in front of the mechanism,
relative to the stated sensitivity; `lower` a lower bound of epsilon that holds with the stated confidence; `gaussian
curve` the sharper one that takes the noise to be Gaussian.  Bounds of whole runs, each from one run with
canaries, stand beside them.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, replace
from typing import Any

import torch

from isthmus import algorithms
from isthmus.audit import attack, known_bad, one_run, training, worst_pair
from isthmus.base.space import Space
from isthmus.core.minimize import Binding
from isthmus.core.pipeline import Pipeline, Promise, Release, Stage
from isthmus.gradients import Dense
from isthmus.lifts import adjoint, pinv
from isthmus.parts import FrankWolfe
from isthmus.penalties import NoPenalty
from isthmus.privacy import (
    Adjacency,
    Clip,
    FixedSize,
    FullBatch,
    Gaussian,
    Laplace,
    NoisyMax,
    Poisson,
    SecretSource,
    TopK,
    calibrate,
    noise_multiplier,
)
from isthmus.sets import L1Ball, Simplex, Whole
from isthmus.sketches import Blocks, CountSketch, GaussianSketch, Identity

EPSILON, DELTA = 1.0, 1e-5
ADD, REPLACE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE
RATE = 0.1


@dataclass(frozen=True)
class Case:
    """A pipeline, its public sizes, and whether its promise is one it can keep."""

    pipe: Pipeline
    d: int = 400
    n: int = 100
    sound: bool = True

    @property
    def selects(self) -> bool:
        """Whether it chooses coordinates: such releases are drawn one by one, and fewer of them tell enough."""
        return any(release.clipped.ord == math.inf for stage in self.pipe.stages for release in stage.releases)


def multiplier(rate: float = 1.0, adjacency: Adjacency = ADD, mechanism: str = "gaussian", steps: int = 1) -> float:
    """The noise of one round at the claim."""
    return noise_multiplier(
        epsilon=EPSILON, delta=DELTA, sampling_rate=rate, adjacency=adjacency, mechanism=mechanism, steps=steps
    )


def single(sampler: Any, release: Release, adjacency: Adjacency = ADD, **rest: Any) -> Pipeline:
    """One stage with one release."""
    return Pipeline([Stage(sampler, [release])], lambda t: 0.1, promise=Promise(EPSILON, DELTA, adjacency), **rest)


def gaussian(encode: Any, sampler: Any = None, adjacency: Adjacency = ADD, before: bool = False) -> Pipeline:
    """Encode, clip, Gaussian noise."""
    sampler = FullBatch() if sampler is None else sampler
    mechanism = Gaussian(multiplier(getattr(sampler, "rate", 1.0), adjacency))
    return single(sampler, Release("gradient", encode, Clip(1.0, before=before), mechanism, adjoint), adjacency)


def fixed_size(batch_size: int, n: int) -> Pipeline:
    """Batches without replacement, accounted for replace-one."""
    sampler = FixedSize(batch_size, n)
    z = calibrate(lambda scale: sampler.event(Gaussian(scale).event()), EPSILON, DELTA, REPLACE)
    return single(sampler, Release(clip=Clip(1.0), mechanism=Gaussian(z)), REPLACE)


def private_pipelines() -> dict[str, Case]:
    """Kinds of private pipelines that no recipe has, built by hand from their parts."""
    jl = GaussianSketch(50, scaling="jl")
    half = multiplier(steps=2)
    embedding = [
        Release("inside", clip=Clip(1.0), mechanism=Gaussian(half)),
        Release("outside", clip=Clip(3.0), mechanism=Gaussian(half)),
    ]
    laplace = Laplace(multiplier(RATE, mechanism="laplace"))
    chosen = Release(clip=Clip(1.0, ord=math.inf), mechanism=NoisyMax(EPSILON), lift=pinv)
    places = Release(clip=Clip(1.0, ord=math.inf), mechanism=TopK(2, EPSILON / 2), lift=pinv)
    return {
        "DP-SGD, full batch, replace-one": Case(gaussian(Identity(), adjacency=REPLACE), d=20),
        "DP-SGD, fixed-size batches, replace-one": Case(fixed_size(10, 100), d=20),
        "DP-CompGD, count-sketch": Case(gaussian(CountSketch(50))),
        "DP-CompGD, Gaussian jl": Case(gaussian(jl), d=10000, n=1000),
        "DP-CompGD, replace-one": Case(gaussian(jl, adjacency=REPLACE), d=10000, n=1000),
        "DP-CompGD, clip before": Case(gaussian(jl, before=True)),
        "compressive Laplace, Poisson": Case(single(Poisson(RATE), Release("gradient", jl, Clip(1.0, ord=1), laplace))),
        "DP-SkGD, blocks": Case(gaussian(Blocks(8, bounds=[0.5 + i for i in range(8)]))),
        "embedding and residual": Case(
            Pipeline([Stage(FullBatch(), embedding)], lambda t: 0.1, promise=Promise(EPSILON, DELTA)), d=20
        ),
        "Frank-Wolfe, noisy max": Case(single(FullBatch(), chosen, update=FrankWolfe(L1Ball(1.0))), d=20),
        "top-2 places": Case(single(FullBatch(), places), d=20),
    }


def recipe_pipelines() -> dict[str, Case]:
    """Every private recipe of `isthmus.algorithms`, bound to one round."""
    common: dict[str, Any] = {"epsilon": EPSILON, "delta": DELTA, "clip": 1.0, "n": "exact"}
    step: dict[str, Any] = {**common, "step": 0.1}
    narrow: dict[str, Any] = {**step, "m": 50}
    sparse: dict[str, Any] = {**step, "p": 50, "kappa": 5}
    a, ball = algorithms, L1Ball(1.0)
    public = Dense(torch.randn(12, 40, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    return {
        "dp_sgd": bound(a.dp_sgd(**step, batch_size=10), d=20),
        "dp_gd": bound(a.dp_gd(**step), d=20),
        "priv_sgd": bound(a.priv_sgd(**narrow)),
        "priv_sgd, replace-one": bound(a.priv_sgd(**narrow, adjacency="replace-one")),
        "dp_comp_minibatch": bound(a.dp_comp_minibatch(**narrow, batch_size=10)),
        "compressive_dp_sgd, Gaussian": bound(a.compressive_dp_sgd(**sparse)),
        "compressive_dp_sgd, Laplace": bound(a.compressive_dp_sgd(**sparse, variant="laplace")),
        "dp_skgd": bound(a.dp_skgd(**common, smoothness=1.0)),
        "dp_svrg": bound(a.dp_svrg(**step, inner=5, batch_size=None), d=20),
        "compressive_dp_sgd, selection": bound(a.compressive_dp_sgd(**sparse, variant="selection"), d=60),
        "dp_fw": bound(a.dp_fw(**common), d=20, constraint=ball),
        "dp_cd": bound(a.dp_cd(**common, smoothness=1.0), d=20),
        "dp_mirror_descent": bound(a.dp_mirror_descent(**step), d=20, constraint=Simplex()),
        "dp_subspace_gd": bound(a.dp_subspace_gd(**step, k=5), d=40),
        "rpdp_sgd": bound(a.rpdp_sgd(**step, k=5, batch_size=10), d=40),
        "pdp_sgd": bound(a.pdp_sgd(**step, k=5, data=public, batch_size=10), d=40),
    }


def broken_pipelines() -> dict[str, Case]:
    """Pipelines whose promise is false."""
    sound = private_pipelines() | recipe_pipelines()
    published = known_bad.published_privsgd(1000, 50, epsilon=EPSILON, delta=DELTA)
    names = ("dp_gd", "DP-CompGD, Gaussian jl", "compressive_dp_sgd, Laplace", "Frank-Wolfe, noisy max")
    halves = {f"{name}, half the noise": sound[name] for name in names}
    return {
        "PRIVSGD as published": Case(published, d=10000, n=1000, sound=False),
        **{name: replace(case, pipe=known_bad.halved(case.pipe), sound=False) for name, case in halves.items()},
    }


def bound(recipe: Any, d: int = 400, n: int = 100, constraint: Any = None, steps: int = 1) -> Case:
    """A recipe for `steps` rounds on n records."""
    constraint = Whole() if constraint is None else constraint
    return Case(recipe.bind(Binding(constraint, NoPenalty(), Space.flat(d), n, steps, None)), d, n)


def examine(case: Case, draws: int, confidence: float) -> dict[str, Any]:
    """Attack a case on its worst pair; `ok` when a sound one is consistent and a broken one is caught."""
    began = time.perf_counter()
    worst = worst_pair(case.pipe, case.d, case.n)
    report = attack(case.pipe, worst, min(draws, 100_000) if case.selects else draws, confidence, SecretSource())
    consistent = report.verdict == "consistent" and report.ratio <= 1 + 1e-9
    ok = consistent if case.sound else report.verdict == "violation"
    return {**report.row(), "seconds": round(time.perf_counter() - began, 1), "ok": ok}


def canary_runs(count: int = 100_000) -> dict[str, dict[str, Any]]:
    """Whole runs with a canary on every coordinate but one; the last has half the noise of its claim."""
    common: dict[str, Any] = {"epsilon": EPSILON, "delta": DELTA, "clip": 1.0, "step": 0.1, "n": count // 2}
    narrow: dict[str, Any] = {**common, "n": count // 20, "m": count // 50}
    cases = {
        "dp_gd": bound(algorithms.dp_gd(**common), count, count // 2, steps=5),
        "dp_sgd": bound(algorithms.dp_sgd(**common, batch_size=count // 20), count, count // 2, steps=5),
        "priv_sgd": bound(algorithms.priv_sgd(**narrow), count // 10, count // 20, steps=5),
    }
    half = replace(cases["dp_gd"], pipe=known_bad.halved(cases["dp_gd"].pipe), sound=False)
    by_name = {}
    for name, case in {**cases, "dp_gd, half the noise": half}.items():
        canaries = torch.arange(case.d - 1)
        result = one_run(training(case.pipe, canaries, steps=5), canaries, delta=DELTA)
        by_name[name] = {"right": f"{result.correct}/{result.guesses}", "claimed": EPSILON, "lower": result.lower}
        by_name[name]["ok"] = (result.lower <= EPSILON) == case.sound
    return by_name


def main(draws: int = 200_000, confidence: float = 0.999, as_json: bool = False) -> int:
    """Run everything, print the tables (or JSON), return how many verdicts were wrong, at most 1."""
    torch.set_num_threads(1)
    groups = {
        "pipelines by hand": private_pipelines(),
        "recipes": recipe_pipelines(),
        "broken on purpose": broken_pipelines(),
    }
    results: dict[str, dict[str, Any]] = {}
    for title, cases in groups.items():
        results[title] = {name: examine(case, draws, confidence) for name, case in cases.items()}
        if not as_json:
            _print(f"{title}: claimed ({EPSILON:g}, {DELTA:g}), confidence {confidence:g}", results[title])
    results["one run with canaries"] = canary_runs()
    wrong = sum(not row["ok"] for rows in results.values() for row in rows.values())
    if as_json:
        print(json.dumps(results, indent=1))
    else:
        _print("one run with canaries, confidence 0.95", results["one run with canaries"])
        print(f"\n{wrong} wrong verdict(s)")
    return 1 if wrong else 0


def _print(title: str, rows: dict[str, dict[str, Any]]) -> None:
    names = list(next(iter(rows.values())))
    lines = [["", *names]] + [[name, *(_text(row[key]) for key in names)] for name, row in rows.items()]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    print(f"\n{title}", flush=True)
    for line in lines:
        cells = [
            text.ljust(w) if i < 2 else text.rjust(w) for i, (text, w) in enumerate(zip(line, widths, strict=True))
        ]
        print("  " + "  ".join(cells), flush=True)


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
