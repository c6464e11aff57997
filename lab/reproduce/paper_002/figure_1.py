"""Figure 1: the relative loss along the iterations, with and without sparsified gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from lab.reproduce import figures
from lab.reproduce.experiment import Cell, Experiment, Judgement, Observed, Results, RunSetting
from lab.reproduce.paper_002 import common
from lab.reproduce.paper_002.common import CODES, DENSE, PLAIN, SPARSE, STRAW

EACH, ALL = "an iteration", "in all"


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Both accountings: the paper's epsilon is that of one iteration."""
    mine = [{"epsilon": e, "of": EACH, "method": m} for e in config["epsilons"] for m in (SPARSE, DENSE, STRAW)]
    return mine + [{"epsilon": 1.0, "of": ALL, "method": m} for m in (SPARSE, DENSE, CODES, PLAIN)]


def run(cell: Cell, setting: RunSetting) -> Observed:
    """One descent."""
    config, method, epsilon = setting.config, cell["method"], cell["epsilon"]
    n, rounds = config["n"], config["rounds"]
    if cell["of"] == EACH:
        recipe = common.per_iteration(method, epsilon, n=n, rounds=rounds)
        total = common.spent(epsilon / (n if method == STRAW else 1), rounds)
    else:
        recipe, total = common.total(method, epsilon, rounds=rounds), epsilon
    loss, curve = common.descend(common.lending(n), recipe, rounds, setting.seed)
    return Observed({"log10 relative loss": math.log10(loss), "epsilon in all": total}, {"loss": curve})


def verdict(results: Results) -> Judgement:
    """The claim needs the sparsified gradient ahead at the small epsilon and not ahead at the large one."""
    small, large = sorted({cell["epsilon"] for cell in results.cells if cell["of"] == EACH})

    def loss(of: str, epsilon: float, method: str) -> float:
        return 10 ** results.mean("log10 relative loss", of=of, epsilon=epsilon, method=method)

    helps = loss(EACH, small, SPARSE) < loss(EACH, small, DENSE)
    stops = loss(EACH, large, SPARSE) >= loss(EACH, large, DENSE)
    spent = results.mean("epsilon in all", of=EACH, epsilon=small, method=SPARSE)
    start = results.of(of=EACH, epsilon=small, method=SPARSE)[0].curves["loss"][1][0]
    why = (
        f"At epsilon {small:g} an iteration the sparsified run ends at a relative loss of "
        f"{loss(EACH, small, SPARSE):.3g} "
        f"(it starts at {start:.3g}), the dense one at {loss(EACH, small, DENSE):.3g}. It is ahead only of a dense "
        f"baseline "
        f"whose noise does not fall with n ({loss(EACH, small, STRAW):.3g}), as if the data were one record. At "
        f"epsilon "
        f"{large:g} it ends at {loss(EACH, large, SPARSE):.3g}, the dense one at {loss(EACH, large, DENSE):.3g}. The "
        f"whole "
        f"run at {small:g} an iteration costs epsilon {spent:.3g} at delta 1e-5. At (1, 1e-5) in all: sparsified "
        f"{loss(ALL, 1.0, SPARSE):.3g}, dense {loss(ALL, 1.0, DENSE):.3g}, Gaussian noise on codes "
        f"{loss(ALL, 1.0, CODES):.3g}, DP-GD {loss(ALL, 1.0, PLAIN):.3g}."
    )
    return Judgement("holds" if helps and stops else "holds in part" if helps else "fails", why)


def plot(results: Results, figure: Any) -> None:
    """A panel an epsilon and accounting."""
    panels = list(dict.fromkeys((cell["epsilon"], cell["of"]) for cell in results.cells))
    for axes, (epsilon, of) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        for cell in results.cells:
            if (cell["epsilon"], cell["of"]) == (epsilon, of):
                figures.line(axes, results.curve("loss", **cell), cell["method"])
        name = "f(theta) / f(theta*) - 1" if (epsilon, of) == panels[0] else ""
        high = max(max(run.curves["loss"][1]) for run in results.of(epsilon=epsilon, of=of))
        figures.panel(axes, f"epsilon {epsilon:g} {of}", "iteration", name, "y" if high > 10 else "")


EXPERIMENT = Experiment(
    name="002-figure-1",
    item="Figure 1",
    title="Sparsified and dense private gradients along the iterations, Lending Club",
    claim="At epsilon = 1 gradient sparsification (kappa = 5, p = 20) lowers the relative loss of private linear "
    "regression; at a larger epsilon it does not.",
    cells=cells,
    run=run,
    verdict=verdict,
    plot=plot,
    small={"n": 10_000, "rounds": 300, "epsilons": (1.0, 100.0)},
    full={"n": 10_000, "rounds": 1000, "epsilons": (1.0, 100.0)},
    data=("lending_club",),
    note="Small: 300 of the paper's 1000 iterations, its n, kappa, p and steps. " + common.SILENT,
)
