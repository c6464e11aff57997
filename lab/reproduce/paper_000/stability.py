"""Uniform stability: how far runs on neighbouring samples drift apart, beside eight theorems."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from isthmus.objectives import Hinge, LinearModel, Logistic
from isthmus.sets import L1Ball
from isthmus.theory import Schedule, goal_schedule, private_generalisation_schedule
from lab.reproduce.experiment import Cell, Experiment, Judgement, Observed, Results, RunSetting
from lab.reproduce.figures import finish, line
from lab.reproduce.measures import log10, slope, thinned
from lab.reproduce.paper_000.problems import NAMES, recipe_of
from lab.theory import nonsmooth_divergence, replace_record, sgd_divergence, smooth_divergence, uniform_stability

RADIUS, DELTA = 5.0, 1e-5
Bound = Callable[..., float]


@dataclass(frozen=True)
class Theorem:
    """What it speaks of, and the bound on ||w_T - w'_T|| behind it."""

    algorithm: str
    smooth: bool
    bound: Bound


THEOREMS = {
    2: Theorem("comp_sgd", True, smooth_divergence),
    3: Theorem("comp_sgd", False, sgd_divergence),
    5: Theorem("comp_gd", True, smooth_divergence),
    7: Theorem("comp_gd", False, nonsmooth_divergence),
    9: Theorem("comp_minibatch", True, smooth_divergence),
    10: Theorem("comp_minibatch", False, nonsmooth_divergence),
    13: Theorem("dp_comp_gd", False, nonsmooth_divergence),
    15: Theorem("dp_comp_minibatch", False, nonsmooth_divergence),
}


def sample(n: int, d: int, smooth: bool, seed: int) -> LinearModel:
    """Unit rows with labels of a noisy direction: logistic or hinge loss, L = 1."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, d))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = np.sign(x[:, :3].sum(1) + 0.2 * rng.standard_normal(n))
    return (Logistic if smooth else Hinge)(x, y, classes=[-1.0, 1.0])


def plan_of(theorem: Theorem, n: int, smoothness: float) -> Schedule:
    """The step and T of Table 2."""
    if theorem.algorithm.startswith("dp"):
        return private_generalisation_schedule(n)
    return goal_schedule(theorem.algorithm, "generalisation", n=n, smoothness=smoothness if theorem.smooth else None)


def cells(config: Mapping[str, Any]) -> Sequence[Cell]:
    """Every theorem at its m_t and at a quarter of d."""
    return [{"theorem": number, "m": m} for number in config["theorems"] for m in ("m_t", "d/4")]


def run(cell: Cell, setting: RunSetting) -> Observed:
    """One record's label is flipped; pairs of runs share maps, batches and noise."""
    config, theorem = setting.config, THEOREMS[cell["theorem"]]
    n, d = config["n"][str(cell["theorem"])], config["d"]
    objective = sample(n, d, theorem.smooth, setting.seed)
    assert isinstance(objective.X, torch.Tensor)
    other = replace_record(objective, 0, (objective.X[0], -objective.y[0]))
    plan = plan_of(theorem, n, objective.curvature or 1.0)
    m = None if cell["m"] == "m_t" else d // 4
    private: dict[str, Any] = {}
    if theorem.algorithm.startswith("dp"):
        private = {"epsilon": config["epsilon"], "delta": DELTA}
    recipe = recipe_of(theorem.algorithm, plan, m, batch=max(1, n // 5), **private)
    assert plan.rounds is not None
    seeds = [100 * setting.seed + i for i in range(config["pairs"] * (3 if cell["theorem"] == 2 else 1))]
    distances = uniform_stability((objective, other), recipe, L1Ball(RADIUS), steps=plan.rounds, seeds=seeds,
                                  noise_seed=setting.seed if private else None)  # fmt: skip
    t, apart = list(range(plan.rounds + 1)), distances.worst
    # entry t is w after t rounds, the theorems' w_{t+1}
    bound = [theorem.bound(k + 1, n=n, lipschitz=1.0, step=plan.step) for k in t[1:]]
    late = [(k, float(apart[k])) for k in t[plan.rounds // 2 :] if apart[k] > 0]
    shares = [a / b for a, b in zip(apart[1:], bound, strict=True)]
    metrics = {
        "log10 share of the bound": log10(shares[-1]),
        "growth": slope([k for k, _ in late], [a for _, a in late]) if len(late) > 2 else 0.0,
    }
    return Observed(metrics, {
        "apart": thinned(t[1:], [log10(max(a, 1e-3)) for a in apart[1:]]),
        "bound": thinned(t[1:], [log10(b) for b in bound]),
        "share": thinned(t[1:], shares),
    })  # fmt: skip


def bound_growth(results: Results, cell: Cell) -> float:
    """The exponent of t in the bound over the second half of the rounds."""
    t, logs, _ = results.curve("bound", **cell)
    half = [(x, 10**y) for x, y in zip(t, logs, strict=True) if x >= t[-1] / 2]
    return slope([x for x, _ in half], [y for _, y in half])


def verdict(results: Results) -> Judgement:
    """At the theorem's m_t the distance is below the bound in every round; a quarter is told beside it."""
    broken, sentences, narrow = [], [], []
    for cell in results.cells:
        share = max(results.curve("share", **cell)[1])
        if cell["m"] == "m_t":
            sentences.append(
                f"Theorem {cell['theorem']}: {share:.2g} of the bound, grows as t^{results.mean('growth', **cell):.2f} "
                f"(bound t^{bound_growth(results, cell):.2f})"
            )
            broken += [str(cell["theorem"])] * (share > 1)
        else:
            narrow.append((share, cell["theorem"]))
    worst = max(narrow)
    why = "At the theorem's m_t: " + "; ".join(sentences) + f". At m = d/4 at most {worst[0]:.2g} (Theorem {worst[1]})."
    if not broken:
        return Judgement("holds", why)
    why += f" Above the bound: {', '.join(broken)}."
    return Judgement("fails" if len(broken) > len(sentences) / 2 else "holds in part", why)


def plot(results: Results, figure: Any) -> None:
    """A panel a theorem."""
    numbers = list(dict.fromkeys(cell["theorem"] for cell in results.cells))
    columns = min(3, len(numbers))
    rows = -(-len(numbers) // columns)
    for axes, number in zip(figure.subplots(rows, columns, squeeze=False).flat, numbers, strict=False):
        for m in ("m_t", "d/4"):
            line(axes, results.curve("apart", theorem=number, m=m), m)
        line(axes, results.curve("bound", theorem=number, m="m_t"), "bound")
        theorem = THEOREMS[number]
        case = "smooth" if theorem.smooth else "nonsmooth"
        axes.set_title(f"{number}: {NAMES[theorem.algorithm]}, {case}", fontsize=7)
        finish(axes, "round", "log10 distance" if number == numbers[0] else "", "x")
        if number != numbers[0]:
            axes.get_legend().remove()


_SMALL = {"2": 100, "3": 16, "5": 400, "7": 16, "9": 100, "10": 16, "13": 14, "15": 14}
_FULL = {"2": 2000, "3": 60, "5": 10_000, "7": 60, "9": 2000, "10": 60, "13": 60, "15": 60}
_NOTE = (
    "The paper has no experiments. Unit rows, logistic (smooth) and hinge loss, an l1 ball of radius 5; the "
    "neighbour has one label flipped. Distances are means over pairs of runs with the same maps and batches."
)
EXPERIMENTS = (
    Experiment(
        name="000-stability",
        item="Theorems 2, 3, 5, 7, 9, 10",
        title="Uniform stability of CompSGD, CompGD and CompMinibatch",
        claim="On samples that differ in one record the algorithms stay within the bounds behind Theorems 2, 3, 5, 7, "
        "9 and 10, which are O(L log n / sqrt n) at the T and steps of Table 2.",
        cells=cells,
        run=run,
        verdict=verdict,
        plot=plot,
        small={"theorems": [2, 3, 5, 7, 9, 10], "n": _SMALL, "d": 40, "pairs": 4},
        full={"theorems": [2, 3, 5, 7, 9, 10], "n": _FULL, "d": 400, "pairs": 10},
        note=_NOTE,
    ),
    Experiment(
        name="000-stability-private",
        item="Theorems 13, 15",
        title="Uniform stability of DP-CompGD and DP-CompMiniBatch",
        claim="With the same noise in both runs, the private algorithms are as stable as the others: O(L log n / sqrt "
        "n) at eta / T^(3/4), T = n^2.",
        cells=cells,
        run=run,
        verdict=verdict,
        plot=plot,
        small={"theorems": [13, 15], "n": _SMALL, "d": 40, "pairs": 4, "epsilon": 1.0},
        full={"theorems": [13, 15], "n": _FULL, "d": 400, "pairs": 10, "epsilon": 1.0},
        note=_NOTE + " Pairs share their noise, which is that of epsilon = 1 at delta = 1e-5.",
    ),
)
