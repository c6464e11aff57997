"""Table 1: the optimisation error against T, as fitted slopes beside those of the theorems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isthmus.privacy import noise_multiplier
from isthmus.theory import Schedule, goal_schedule, private_optimisation_schedule
from lab.reproduce.experiment import Cell, Experiment, Judgement, Observed, Results, RunSetting
from lab.reproduce.measures import log10, slope
from lab.reproduce.paper_000.problems import LIPSCHITZ, RADIUS, Regression, averages, least_on, recipe_of
from lab.reproduce.paper_000.slopes import curves_of, judged, plot_slopes
from lab.theory import optimisation_rate, private_optimisation_rate

DELTA = 1e-5


def cells(config: Mapping[str, Any]) -> Sequence[Cell]:
    """Every row of the table, smooth and not, at the theorem's m_t and at a quarter."""
    rows: list[Cell] = []
    for smooth in (True, False):
        for algorithm in config["algorithms"]:
            for m in ("m_t",) if algorithm == "sgd" else ("m_t", "d/4"):
                rows.append({"algorithm": algorithm, "smooth": smooth, "m": m})
    return rows


def run(cell: Cell, setting: RunSetting) -> Observed:
    """One run of the longest T: its step eta / sqrt(t) or eta does not depend on T, so it shows all shorter ones."""
    config, algorithm, smooth = setting.config, cell["algorithm"], cell["smooth"]
    problem = Regression(config["d"], smooth, config["noise"] if smooth else 0.0, setting.seed)
    objective = problem.sample(config["n"])
    scale = None if smooth and algorithm == "comp_gd" else config["scale"]["smooth" if smooth else "nonsmooth"]
    plan = goal_schedule(algorithm, "optimisation", smoothness=objective.smoothness() if smooth else None, scale=scale)
    m = None if cell["m"] == "m_t" else config["d"] // 4
    recipe, lengths = recipe_of(algorithm, plan, m), config["lengths"]
    iterates = averages(objective, recipe, problem.ball, plan.step, lengths, setting.seed)
    best = least_on(objective)
    errors = [objective.loss(w) - best for w in iterates]
    theorem = [optimisation_rate(algorithm, t, smooth=smooth) for t in lengths]
    return Observed({"slope": slope(lengths, errors)}, curves_of(lengths, errors, theorem))


def verdict(results: Results) -> Judgement:
    """The error falls at least as fast as the theorem says, at the theorem's m_t; a quarter is told beside it."""
    return judged(results, "T", "m_t")


# ---------------------------------------------------------------- the private rows


def private_cells(config: Mapping[str, Any]) -> Sequence[Cell]:
    """Both private algorithms."""
    return [
        {"algorithm": algorithm, "smooth": smooth, "m": m}
        for smooth in (True, False)
        for algorithm in config["algorithms"]
        for m in ("m_t", "d/4")
    ]


def private_schedule(algorithm: str, smoothness: float | None, m: int, sigma: float, rounds: int) -> Schedule:
    """Theorems 11, 12 and 14."""
    return private_optimisation_schedule(algorithm, diameter=2 * RADIUS, lipschitz=LIPSCHITZ, dimension=m, noise=sigma,
                                         smoothness=smoothness, rounds=rounds)  # fmt: skip


def private_run(cell: Cell, setting: RunSetting) -> Observed:
    """Sizes n with T = n / 8 rounds: the noise depends on T, so every size is a run of its own."""
    config, algorithm, smooth, d = setting.config, cell["algorithm"], cell["smooth"], setting.config["d"]
    problem = Regression(d, smooth, config["noise"] if smooth else 0.0, setting.seed)
    m = None if cell["m"] == "m_t" else d // 4
    errors, theorem = [], []
    for n in config["sizes"]:
        rounds, batch = max(2, n // 8), n // 5
        objective = problem.sample(n)
        widest = d if m is None else m
        # the noise of the whole batch: that of DP-CompMiniBatch is of the same order
        sigma = 2 * LIPSCHITZ * noise_multiplier(epsilon=config["epsilon"], delta=DELTA, steps=rounds) / n
        plan = private_schedule(algorithm, objective.smoothness() if smooth else None, widest, sigma, rounds)
        recipe = recipe_of(algorithm, plan, m, batch=batch, epsilon=config["epsilon"], delta=DELTA)
        (iterate,) = averages(objective, recipe, problem.ball, plan.step, [rounds], setting.seed)
        errors.append(objective.loss(iterate) - least_on(objective))
        theorem.append(private_optimisation_rate(algorithm, rounds, smooth=smooth, dimension=widest, n=n, batch=batch,
                                                 epsilon=config["epsilon"], delta=DELTA))  # fmt: skip
    metrics = {"slope": slope(config["sizes"], errors), "log10 last error": log10(errors[-1])}
    return Observed(metrics, curves_of(config["sizes"], errors, theorem))


def private_verdict(results: Results) -> Judgement:
    """As without privacy, against n."""
    return judged(results, "n", "m_t")


_ALGORITHMS = ["sgd", "comp_sgd", "comp_gd", "comp_minibatch"]
_PRIVATE = ["dp_comp_gd", "dp_comp_minibatch"]
_SCALE = {"smooth": 1.0, "nonsmooth": 2.0}
EXPERIMENTS = (
    Experiment(
        name="000-table-1",
        item="Table 1, rows 1-4",
        title="Optimisation error: slopes against T",
        claim="Classical SGD, CompSGD, CompMinibatch and nonsmooth CompGD have an error of O(log T / sqrt T), and "
        "smooth CompGD of O(log T / T): compression costs a logarithm at most.",
        cells=cells,
        run=run,
        verdict=verdict,
        plot=plot_slopes("T"),
        small={
            "algorithms": _ALGORITHMS,
            "d": 40,
            "noise": 0.1,
            "n": 300,
            "lengths": [25, 50, 100, 200, 400, 800],
            "scale": _SCALE,
        },
        full={
            "algorithms": _ALGORITHMS,
            "d": 400,
            "noise": 0.01,
            "n": 2000,
            "lengths": [2**k for k in range(5, 16)],
            "scale": _SCALE,
        },
        note="The paper has no experiments. Regressions with Gaussian rows over an l1 ball, squares (smooth) and "
        "absolute values (not smooth), whose optimum is known.",
    ),
    Experiment(
        name="000-table-1-private",
        item="Table 1, rows 5-6",
        title="Private optimisation error: slopes against n",
        claim="DP-CompGD and DP-CompMiniBatch have an optimisation error of O(log T / sqrt T + sqrt(m_T log(1/delta)) "
        "/ (n epsilon)) (smooth DP-CompGD: sqrt(m_T) (log T / T + T log(1/delta) / (n epsilon)^2)).",
        cells=private_cells,
        run=private_run,
        verdict=private_verdict,
        plot=plot_slopes("n"),
        small={"algorithms": _PRIVATE, "d": 40, "noise": 0.1, "sizes": [400, 800, 1600, 3200], "epsilon": 1.0},
        full={
            "algorithms": _PRIVATE,
            "d": 400,
            "noise": 0.01,
            "sizes": [1000, 2000, 4000, 8000, 16_000],
            "epsilon": 1.0,
        },
        note="T = n / 8, epsilon = 1, delta = 1e-5, replace-one, noise from a tight accountant after a clip of every "
        "record's code; the printed noise, which bounds no sensitivity as printed, is a constant factor away.",
    ),
)
