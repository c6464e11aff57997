"""Figure 2: the relative loss against the level of sparsification kappa, and against the number of records n."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from lab.reproduce import figures
from lab.reproduce.experiment import Cell, Experiment, Judgement, Observed, Results, RunSetting
from lab.reproduce.paper_002 import common
from lab.reproduce.paper_002.common import DENSE, SPARSE, STRAW
from lab.theory import compressive_dimension

WIDE = 1.39  # p = 1.39 kappa log(d / kappa) is the paper's 20 at kappa = 5, d = 89
COLUMNS = 89
METRIC = "log10 relative loss"


def kappa_cells(config: Mapping[str, Any]) -> list[Cell]:
    """Every kappa, and the dense baseline."""
    dense = [{"epsilon": e, "kappa": COLUMNS, "method": DENSE} for e in config["epsilons"]]
    return [{"epsilon": e, "kappa": k, "method": SPARSE} for e in config["epsilons"] for k in config["kappas"]] + dense


def n_cells(config: Mapping[str, Any]) -> list[Cell]:
    """Every n, with both baselines."""
    methods = (SPARSE, DENSE, STRAW)
    return [{"epsilon": e, "n": n, "method": m} for e in config["epsilons"] for n in config["ns"] for m in methods]


def run(cell: Cell, setting: RunSetting) -> Observed:
    """One descent in the paper's own accounting: epsilon is that of one iteration."""
    n, rounds, kappa = cell.get("n", setting.config.get("n")), setting.config["rounds"], cell.get("kappa", common.KAPPA)
    assert n is not None
    wide = compressive_dimension(COLUMNS, kappa, WIDE)
    recipe = common.per_iteration(cell["method"], cell["epsilon"], n=n, rounds=rounds, kappa=kappa, p=wide)
    loss, _ = common.descend(common.lending(n), recipe, rounds, setting.seed)
    return Observed({METRIC: math.log10(loss)})


def loss_of(results: Results, **cell: Any) -> float:
    """The geometric mean over the seeds."""
    return 10 ** results.mean(METRIC, **cell)


def kappa_verdict(results: Results) -> Judgement:
    """Some kappa must beat the dense baseline at the small epsilon, and none at the large one."""
    small, large = sorted({cell["epsilon"] for cell in results.cells})
    kappas = sorted({cell["kappa"] for cell in results.cells if cell["method"] == SPARSE})
    losses = {e: {k: loss_of(results, epsilon=e, kappa=k, method=SPARSE) for k in kappas} for e in (small, large)}
    dense = {e: loss_of(results, epsilon=e, method=DENSE) for e in (small, large)}
    best = {e: min(kappas, key=lambda k, e=e: losses[e][k]) for e in (small, large)}  # type: ignore[misc]
    helps, stops = losses[small][best[small]] < dense[small], losses[large][best[large]] >= dense[large]
    why = " ".join(
        f"At epsilon {e:g} an iteration the best kappa is {best[e]} with a relative loss of {losses[e][best[e]]:.3g} "
        f"(kappa = {kappas[-1]}: {losses[e][kappas[-1]]:.3g}); the dense gradient, whose noise falls with n, has "
        f"{dense[e]:.3g}."
        for e in (small, large)
    )
    why += " The printed noise grows as kappa^2 and does not fall with n."
    return Judgement("holds" if helps and stops else "holds in part" if helps else "fails", why)


def n_verdict(results: Results) -> Judgement:
    """Sparsification must be ahead at the small epsilon for the n of the figure."""
    small, large = sorted({cell["epsilon"] for cell in results.cells})
    ns = sorted({cell["n"] for cell in results.cells})

    def wins(epsilon: float, over: str) -> list[int]:
        mine = {n: loss_of(results, epsilon=epsilon, n=n, method=SPARSE) for n in ns}
        return [n for n in ns if mine[n] < loss_of(results, epsilon=epsilon, n=n, method=over)]

    low, high = ns[0], ns[-1]
    ends = {m: [loss_of(results, epsilon=small, n=n, method=m) for n in (low, high)] for m in (SPARSE, DENSE, STRAW)}
    why = (
        f"At epsilon {small:g} an iteration, from n = {low:,} to {high:,}, the sparsified run goes from a relative "
        f"loss of "
        f"{ends[SPARSE][0]:.3g} to {ends[SPARSE][1]:.3g}, the dense one from {ends[DENSE][0]:.3g} to "
        f"{ends[DENSE][1]:.3g}: "
        f"sparsification wins at {len(wins(small, DENSE))} of {len(ns)} n. Against noise that does not fall with n "
        f"({ends[STRAW][0]:.3g} to {ends[STRAW][1]:.3g}) it wins at {len(wins(small, STRAW))}. At epsilon {large:g} "
        f"it wins "
        f"at {len(wins(large, DENSE))} and {len(wins(large, STRAW))}."
    )
    helps, stops = len(wins(small, DENSE)), not wins(large, DENSE)
    return Judgement("holds" if helps == len(ns) and stops else "holds in part" if helps else "fails", why)


def kappa_plot(results: Results, figure: Any) -> None:
    """A curve an epsilon, the dense baseline as a line."""
    axes = figure.subplots()
    for epsilon in sorted({cell["epsilon"] for cell in results.cells}):
        kappas = sorted({cell["kappa"] for cell in results.cells if cell["method"] == SPARSE})
        y = [loss_of(results, epsilon=epsilon, kappa=k, method=SPARSE) for k in kappas]
        (drawn,) = axes.plot(kappas, y, marker="o", label=f"sparsified, epsilon {epsilon:g} an iteration")
        level = loss_of(results, epsilon=epsilon, method=DENSE)
        axes.axhline(level, color=drawn.get_color(), linestyle="--", label=f"dense, epsilon {epsilon:g}")
    figures.finish(axes, "kappa", "f(theta) / f(theta*) - 1", "xy")
    figures.few_ticks(axes, kappas)


def n_plot(results: Results, figure: Any) -> None:
    """A panel an epsilon."""
    epsilons = sorted({cell["epsilon"] for cell in results.cells})
    for axes, epsilon in zip(figure.subplots(1, len(epsilons)), epsilons, strict=True):
        ns = sorted({cell["n"] for cell in results.cells})
        for method in (SPARSE, DENSE, STRAW):
            axes.plot(ns, [loss_of(results, epsilon=epsilon, n=n, method=method) for n in ns], marker="o", label=method)
        figures.panel(axes, f"epsilon {epsilon:g} an iteration", "records n", "f(theta) / f(theta*) - 1", "xy")
        figures.few_ticks(axes, ns)


_CLAIM = (
    "With a large privacy budget sparsification does not improve the relative loss; with a small one it can improve it "
    "significantly, {}."
)
KAPPA = Experiment(
    name="002-figure-2-kappa",
    item="Figure 2 (kappa)",
    title="Relative loss against the level of sparsification, Lending Club",
    claim=_CLAIM.format("for suitable kappa"),
    cells=kappa_cells,
    run=run,
    verdict=kappa_verdict,
    plot=kappa_plot,
    small={"n": 10_000, "rounds": 150, "epsilons": (1.0, 100.0), "kappas": (1, 2, 5, 10)},
    full={"n": 10_000, "rounds": 1000, "epsilons": (1.0, 100.0), "kappas": (1, 2, 3, 5, 7, 10, 15, 20, 30, 40)},
    data=("lending_club",),
    note="Small: 150 of the paper's 1000 iterations. p = 1.39 kappa log(d / kappa), the paper's 20 at kappa = 5. "
    + common.SILENT,
)
RECORDS = Experiment(
    name="002-figure-2-n",
    item="Figure 2 (n)",
    title="Relative loss against the number of records, Lending Club",
    claim=_CLAIM.format("for every size of the training set that is shown"),
    cells=n_cells,
    run=run,
    verdict=n_verdict,
    plot=n_plot,
    small={"rounds": 150, "epsilons": (1.0, 100.0), "ns": (1000, 10_000, 30_000)},
    full={"rounds": 1000, "epsilons": (1.0, 100.0), "ns": (300, 1000, 3000, 10_000, 30_000)},
    data=("lending_club",),
    note="Small: 150 of the paper's 1000 iterations. " + common.SILENT,
)
