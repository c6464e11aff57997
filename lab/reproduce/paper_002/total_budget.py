"""Paper 002's setting at a budget for the whole run, with the step chosen for each method."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from lab.reproduce import figures
from lab.reproduce.experiment import Cell, Experiment, Judgement, Observed, Results, RunSetting
from lab.reproduce.paper_002 import common
from lab.reproduce.paper_002.common import CODES, DENSE, PLAIN, SPARSE

CHOSEN = "selection"
NARROW, WIDE = (SPARSE, CODES, CHOSEN), (DENSE, PLAIN)
METRIC = "log10 relative loss"


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Every method with every step constant."""
    return [{"method": method, "c": c} for method in (*NARROW, *WIDE) for c in config["steps"]]


def run(cell: Cell, setting: RunSetting) -> Observed:
    """One descent at (1, 1e-5)."""
    rounds = setting.config["rounds"]
    recipe = common.total(cell["method"], setting.config["epsilon"], rounds=rounds, step=cell["c"])
    loss, curve = common.descend(common.lending(setting.config["n"]), recipe, rounds, setting.seed)
    return Observed({METRIC: math.log10(loss)}, {"loss": curve})


def best(results: Results) -> dict[str, tuple[float, float]]:
    """Of each method the step whose mean is least, and that loss; picking on the result flatters all alike."""
    best_of = {}
    for method in (*NARROW, *WIDE):
        losses = {cell["c"]: results.mean(METRIC, **cell) for cell in results.cells if cell["method"] == method}
        c = min(losses, key=lambda c: losses[c])
        best_of[method] = c, 10 ** losses[c]
    return best_of


def verdict(results: Results) -> Judgement:
    """Some narrow method must beat both wide ones."""
    best_of = best(results)
    narrow, wide = (min(group, key=lambda m: best_of[m][1]) for group in (NARROW, WIDE))
    paper = best_of[SPARSE][1] < best_of[DENSE][1]
    words = "; ".join(f"{method} {loss:.3g} (c = {c:g})" for method, (c, loss) in best_of.items())
    why = (
        f"Relative loss at (1, 1e-5) for the whole run, the best step of each: {words}. The best that compresses is "
        f"{narrow}; the loss of {wide}, the best that does not, is "
        f"{best_of[wide][1] / best_of[narrow][1]:.2g} times that."
    )
    better = best_of[narrow][1] < best_of[wide][1]
    return Judgement("holds" if paper and better else "holds in part" if paper or better else "fails", why)


def plot(results: Results, figure: Any) -> None:
    """The best step of each method."""
    axes = figure.subplots()
    for method, (c, _) in best(results).items():
        figures.line(axes, results.curve("loss", method=method, c=c), f"{method}, c = {c:g}")
    figures.finish(axes, "iteration", "f(theta) / f(theta*) - 1", "y")


EXPERIMENT = Experiment(
    name="002-total-budget",
    item="Section 4, at a total budget",
    title="Compressed and dense gradients at (1, 1e-5) for the whole run, Lending Club",
    claim="For a small privacy budget sparsified gradients give a better model than dense ones (the paper's budget "
    "is that "
    "of one iteration; here it is that of the run).",
    cells=cells,
    run=run,
    verdict=verdict,
    plot=plot,
    small={"n": 10_000, "rounds": 250, "epsilon": 1.0, "steps": (0.1, 1.0, 10.0)},
    full={"n": 10_000, "rounds": 1000, "epsilon": 1.0, "steps": (0.01, 0.1, 1.0, 10.0, 30.0)},
    data=("lending_club",),
    note="Small: 250 of the paper's 1000 iterations and three step constants c, rho_k = c / sqrt(k). Gaussian codes "
    "(noise on "
    "clipped codes of 20 numbers, decoded by CoSaMP) and selection (5 entries by the exponential mechanism, then their "
    "values) are ours. One record replaced, n public.",
)
