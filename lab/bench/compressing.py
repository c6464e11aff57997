"""A compressed step of SGD beside a plain one: paper 001's logistic regression on IMDB in an l1 ball."""

from __future__ import annotations

from functools import cache
from typing import Any

from isthmus import datasets
from isthmus.algorithms import comp_sgd, sgd
from isthmus.core.minimize import minimize
from isthmus.objectives import Logistic
from isthmus.sets import L1Ball
from lab.bench.cases import Facts, Goal, PeerBenchmark, Skipped, Work

FEEDBACK, KEPT, MEMORYLESS, PLAIN = "error feedback", "error feedback, map kept 4 rounds", "memoryless", "plain SGD"
STEPS = 200


@cache
def problem(part: str) -> Logistic:
    """The training or the test rows."""
    if not datasets.available("imdb"):
        raise Skipped("ISTHMUS_DATA names no folder with imdb_bow10k.npz")
    data = datasets.load("imdb")
    return Logistic(getattr(data, f"x_{part}"), getattr(data, f"y_{part}"))


def build(way: str, quick: bool) -> Work:
    """So many steps of batch 32."""
    common: dict[str, Any] = {"step": 0.1, "batch_size": 32}
    recipe = {
        PLAIN: lambda: sgd(**common),
        FEEDBACK: lambda: comp_sgd(m=1000, error_feedback=True, **common),
        KEPT: lambda: comp_sgd(m=1000, error_feedback=True, refresh=4, **common),
        MEMORYLESS: lambda: comp_sgd(m=1000, **common),
    }[way]()
    train = problem("train")

    def run(steps: int) -> Any:
        return minimize(train, recipe, L1Ball(150.0), steps=steps, seed=0, record=None)

    def facts() -> Facts:
        steps = 20 if quick else 2 * 782
        return {f"test accuracy after {steps} steps": float(problem("test").score(run(steps).x))}

    steps = 10 if quick else STEPS
    return Work(lambda: run(steps), facts, steps)


BENCHMARKS = (
    PeerBenchmark(
        "compressed-imdb",
        "a step on IMDB, l1 ball of radius 150, batch 32, d = 10,000, m = 1,000",
        build,
        (FEEDBACK, KEPT, MEMORYLESS),
        (PLAIN,),
        (
            Goal(
                PLAIN,
                1.06,
                FEEDBACK,
                "a plain step takes well under a millisecond; the passes over 10,000 numbers that come on top (the "
                "table of the round's map, the code, one way back, three sums for the error that is kept) take 6 % of "
                "it by themselves, with everything in cache, and the calls around passes this short about four times "
                "as much",
            ),
        ),
        rounds=21,
        seconds=30,
    ),
)
