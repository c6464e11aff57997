"""Table 2: the generalisation error against n, as fitted slopes beside those of the theorems."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from isthmus.theory import Schedule, goal_schedule, private_generalisation_schedule
from lab.reproduce.experiment import Cell, Experiment, Judgement, Observed, Results, RunSetting
from lab.reproduce.measures import slope
from lab.reproduce.paper_000.problems import Regression, averages, recipe_of
from lab.reproduce.paper_000.slopes import curves_of, judged, plot_slopes
from lab.theory import generalisation_rate, private_generalisation_rate

DELTA, NOISE = 1e-5, 0.5


def cells(config: Mapping[str, Any]) -> Sequence[Cell]:
    """Every row of the table, smooth and not; the compressed ones also at a quarter."""
    rows: list[Cell] = []
    for smooth in (True, False):
        for algorithm in config["algorithms"]:
            for m in ("m_t",) if algorithm == "sgd" else ("m_t", "d/4"):
                rows.append({"algorithm": algorithm, "smooth": smooth, "m": m})
    return rows


def plan_of(algorithm: str, n: int, smoothness: float | None, scale: float) -> Schedule:
    """The step and T of the table: T = n or sqrt(n) where the loss is smooth, else n^2."""
    if algorithm.startswith("dp"):
        return private_generalisation_schedule(n, scale=scale)
    largest = None if smoothness is None else min(scale, 1 / (2 * smoothness))
    return goal_schedule(algorithm, "generalisation", smoothness=smoothness, n=n, scale=largest or scale)


def run(cell: Cell, setting: RunSetting) -> Observed:
    """The mean excess risk of some samples of each size, small ones more often."""
    config, algorithm, smooth, d = setting.config, cell["algorithm"], cell["smooth"], setting.config["d"]
    problem = Regression(d, smooth, NOISE, setting.seed)
    m = None if cell["m"] == "m_t" else d // 4
    sizes = config["sizes"]["smooth" if smooth and not algorithm.startswith("dp") else "nonsmooth"]
    private = {"epsilon": config["epsilon"], "delta": DELTA} if algorithm.startswith("dp") else {}
    risks, theorem = [], []
    for n in sizes:
        repeats = max(1, config["repeats"] * sizes[0] // n)
        risks_of_repeats = []
        for repeat in range(repeats):
            objective = problem.sample(n)
            plan = plan_of(algorithm, n, objective.smoothness() if smooth else None, config["scale"])
            recipe = recipe_of(algorithm, plan, m, batch=max(1, n // 5), **private)
            assert plan.rounds is not None
            seed = 1000 * setting.seed + repeat
            (average,) = averages(objective, recipe, problem.ball, plan.step, [plan.rounds], seed)
            risks_of_repeats.append(problem.excess_risk(average))
        risks.append(math.fsum(risks_of_repeats) / repeats)
        theorem.append(_rate(algorithm, n, smooth, d if m is None else m, config))
    metrics = {"slope": slope(sizes, risks)}
    return Observed(metrics, curves_of(sizes, risks, theorem))


def _rate(algorithm: str, n: int, smooth: bool, m: int, config: Mapping[str, Any]) -> float:
    if not algorithm.startswith("dp"):
        return generalisation_rate(algorithm, n, smooth=smooth)
    return private_generalisation_rate(algorithm, n, total=float(n**2 * m), epsilon=config["epsilon"], delta=DELTA,
                                       batch=max(1, n // 5))  # fmt: skip


def verdict(results: Results) -> Judgement:
    """The risk falls at least as fast as the theorem says."""
    return judged(results, "n", "m_t")


_PLAIN = ["sgd", "comp_sgd", "comp_gd", "comp_minibatch"]
_PRIVATE = ["dp_comp_gd", "dp_comp_minibatch"]
_NOTE = (
    "The paper has no experiments. Linear regressions with Gaussian rows over an l1 ball: the risk of squares (smooth) "
    "and absolute values (not smooth) has a closed form."
)
EXPERIMENTS = (
    Experiment(
        name="000-table-2",
        item="Table 2, rows 1-4",
        title="Generalisation error: slopes against n",
        claim="CompSGD, CompGD and CompMinibatch have an excess risk of O(log n / sqrt n), as SGD O(1 / sqrt n), at "
        "T = n (CompGD sqrt n) rounds where the loss is smooth and n^2 where it is not.",
        cells=cells,
        run=run,
        verdict=verdict,
        plot=plot_slopes("n"),
        small={"algorithms": _PLAIN, "d": 16, "scale": 1.0, "repeats": 5,
               "sizes": {"smooth": [30, 60, 120, 240, 480], "nonsmooth": [8, 16, 32]}},
        full={"algorithms": _PLAIN, "d": 100, "scale": 1.0, "repeats": 20,
              "sizes": {"smooth": [100, 400, 1600, 6400], "nonsmooth": [16, 32, 64, 128]}},
        note=_NOTE,
    ),
    Experiment(
        name="000-table-2-private",
        item="Table 2, rows 5-6",
        title="Private generalisation error: slopes against n",
        claim="DP-CompGD and DP-CompMiniBatch at eta / T^(3/4), T = n^2, have an excess risk of O(log n / sqrt n + "
        "log(1/delta) / (n^(3/2) epsilon^2)).",
        cells=cells,
        run=run,
        verdict=verdict,
        plot=plot_slopes("n"),
        small={"algorithms": _PRIVATE, "d": 16, "scale": 1.0, "repeats": 6, "epsilon": 16.0,
               "sizes": {"nonsmooth": [6, 12, 24]}},
        full={"algorithms": _PRIVATE, "d": 100, "scale": 1.0, "repeats": 20, "epsilon": 16.0,
              "sizes": {"nonsmooth": [16, 32, 64, 128]}},
        note=_NOTE + " epsilon = 16 (at epsilon = 1 the noise of so few records covers everything), delta = 1e-5, "
        "replace-one, noise from a tight accountant after a clip of every record's code. The theorem's "
        "rate is that of Theorems 13 and 15 with its sum of m_t, which the table drops.",
    ),
)  # fmt: skip
