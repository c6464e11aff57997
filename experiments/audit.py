"""Does every private pipeline keep its promise?  One release of each, attacked on its worst neighbours.

Claimed is (1, 1e-5) for one round.  `ratio` is how far the worst pair moves the value in front of the mechanism,
relative to the stated sensitivity; `lower` a lower bound of epsilon that holds with the stated confidence; `gaussian
curve` the sharper one that takes the noise to be Gaussian.  Exits with status 1 if a sound pipeline is refuted, or a
broken one is not.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from common import table

from isthmus import algorithms
from isthmus.audit import attack, known_bad, worst_pair
from isthmus.lifts import adjoint, pinv
from isthmus.parts import FrankWolfe
from isthmus.penalties import NoPenalty
from isthmus.pipeline import Pipeline, Promise, Release, Stage
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
    SeededSource,
    TopK,
    calibrate,
    noise_multiplier,
)
from isthmus.sets import L1Ball, Whole
from isthmus.sketches import Blocks, CountSketch, GaussianSketch, Identity
from isthmus.solve import Binding
from isthmus.space import Space

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
        return any(release.clip.ord == math.inf for stage in self.pipe.stages for release in stage.releases)


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
    return single(sampler, Release("gradient", encode, Clip(1.0, before=before), (), mechanism, adjoint), adjacency)


def fixed_size(batch_size: int, n: int) -> Pipeline:
    """Batches without replacement, accounted for replace-one."""
    sampler = FixedSize(batch_size, n)
    z = calibrate(lambda scale: sampler.event(Gaussian(scale).event()), EPSILON, DELTA, REPLACE)
    return single(sampler, Release(clip=Clip(1.0), mechanism=Gaussian(z)), REPLACE)


def private_pipelines() -> dict[str, Case]:
    """Every kind of private pipeline, built by hand from its parts."""
    jl = GaussianSketch(50, scaling="jl")
    half = multiplier(steps=2)
    embedding = [
        Release("inside", clip=Clip(1.0), mechanism=Gaussian(half)),
        Release("outside", clip=Clip(3.0), mechanism=Gaussian(half)),
    ]
    laplace = Release("gradient", jl, Clip(1.0, ord=1), (), Laplace(multiplier(mechanism="laplace")), adjoint)
    chosen = Release(clip=Clip(1.0, ord=math.inf), mechanism=NoisyMax(EPSILON), lift=pinv)
    places = Release(clip=Clip(1.0, ord=math.inf), mechanism=TopK(2, EPSILON / 2), lift=pinv)
    return {
        "DP-SGD, full batch": Case(gaussian(Identity()), d=20),
        "DP-SGD, full batch, replace-one": Case(gaussian(Identity(), adjacency=REPLACE), d=20),
        "DP-SGD, Poisson": Case(gaussian(Identity(), Poisson(RATE)), d=20),
        "DP-SGD, fixed-size batches, replace-one": Case(fixed_size(10, 100), d=20),
        "DP-CompGD, count-sketch": Case(gaussian(CountSketch(50))),
        "DP-CompGD, Gaussian jl": Case(gaussian(jl), d=10000, n=1000),
        "DP-CompGD, replace-one": Case(gaussian(jl, adjacency=REPLACE), d=10000, n=1000),
        "DP-CompGD, clip before": Case(gaussian(jl, before=True)),
        "DP-CompMiniBatch, Poisson": Case(gaussian(jl, Poisson(RATE))),
        "compressive Laplace": Case(single(FullBatch(), laplace)),
        "compressive Laplace, Poisson": Case(
            single(
                Poisson(RATE),
                replace(laplace, mechanism=Laplace(multiplier(RATE, mechanism="laplace"))),
            )
        ),
        "DP-SkGD, blocks": Case(gaussian(Blocks(8, bounds=[0.5 + i for i in range(8)]))),
        "embedding and residual": Case(
            Pipeline([Stage(FullBatch(), embedding)], lambda t: 0.1, promise=Promise(EPSILON, DELTA)), d=20
        ),
        "Frank-Wolfe, noisy max": Case(single(FullBatch(), chosen, update=FrankWolfe(L1Ball(1.0))), d=20),
        "top-2 places": Case(single(FullBatch(), places), d=20),
    }


def recipe_pipelines() -> dict[str, Case]:
    """The recipes of `isthmus.algorithms`, bound to one round."""
    common: dict[str, Any] = {"epsilon": EPSILON, "delta": DELTA, "clip": 1.0, "n": "exact"}
    step: dict[str, Any] = {**common, "step": 0.1}
    narrow: dict[str, Any] = {**step, "m": 50}
    sparse: dict[str, Any] = {**step, "p": 50, "kappa": 5}
    a, ball = algorithms, L1Ball(1.0)
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
    }


def broken_pipelines() -> dict[str, Case]:
    """Pipelines whose promise is false."""
    sound = private_pipelines()
    published = known_bad.published_privsgd(1000, 50, epsilon=EPSILON, delta=DELTA)
    names = ("DP-SGD, full batch", "DP-CompGD, Gaussian jl", "compressive Laplace", "Frank-Wolfe, noisy max")
    halves = {f"{name}, half the noise": sound[name] for name in names}
    return {
        "PRIVSGD as published": Case(published, d=10000, n=1000, sound=False),
        **{name: replace(case, pipe=known_bad.halved(case.pipe), sound=False) for name, case in halves.items()},
    }


def bound(recipe: Any, d: int = 400, n: int = 100, constraint: Any = None) -> Case:
    """A recipe for one round on n records."""
    constraint = Whole() if constraint is None else constraint
    return Case(recipe.bind(Binding(constraint, NoPenalty(), Space.flat(d), n, 1, None)), d, n)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=200_000, help="releases drawn for each of two neighbours")
    parser.add_argument("--confidence", type=float, default=0.999)
    parser.add_argument("--seed", type=int, default=None, help="repeatable noise; by default it is fresh")
    options = parser.parse_args()
    torch.set_num_threads(1)
    wrong = 0
    for title, cases in (
        ("pipelines by hand", private_pipelines()),
        ("recipes", recipe_pipelines()),
        ("broken on purpose", broken_pipelines()),
    ):
        rows = []
        for name, case in cases.items():
            began = time.perf_counter()
            noise = SecretSource() if options.seed is None else SeededSource(options.seed)
            worst = worst_pair(case.pipe, case.d, case.n)
            draws = min(options.draws, 100_000) if case.selects else options.draws
            report = attack(case.pipe, worst, draws, options.confidence, noise)
            ok = (report.verdict == "consistent" and report.ratio <= 1 + 1e-9) == case.sound
            wrong += not ok
            seconds = time.perf_counter() - began
            rows.append({"pipeline": name, **report.row(), "seconds": seconds, "": "ok" if ok else "WRONG"})
        table(f"{title}: claimed ({EPSILON:g}, {DELTA:g}), confidence {options.confidence:g}", rows)
    print(f"\n{wrong} wrong verdict(s)")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
