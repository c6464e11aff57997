"""Figure 5: least squares over a 10-dimensional subspace and over the simplex, objective (a, c) and m_t (b, d)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from isthmus.algorithms import WidthRule, comp_sgd, sgd
from isthmus.core.minimize import Recipe, minimize
from isthmus.objectives import LeastSquares
from isthmus.sets import ConvexSet, Simplex, Subspace
from lab.reproduce.experiment import Cell, Experiment, Judgement, Observed, Results, RunSetting
from lab.reproduce.figures import finish, line
from lab.reproduce.measures import first_below, log10, thinned

BATCH, INSIDE = 32, 10
SGD, COMP, FEEDBACK = "SGD", "CompSGD", "CompSGD + error feedback, m = d/10"


def subspace_problem(config: Mapping[str, Any], rng: np.random.Generator) -> tuple[LeastSquares, ConvexSet, float]:
    """y = A w* with w* in a random subspace; its width is that of its 10 directions."""
    a = _rows(config, rng)
    basis = np.linalg.qr(rng.standard_normal((a.shape[1], INSIDE)))[0].T
    target = 10 * basis.T @ rng.standard_normal(INSIDE)
    return LeastSquares(a, a @ target), Subspace(basis, radius=100.0), INSIDE**0.5


def simplex_problem(config: Mapping[str, Any], rng: np.random.Generator) -> tuple[LeastSquares, ConvexSet, float]:
    """y = A w* with w* uniform on the simplex."""
    a = _rows(config, rng)
    weights = np.asarray(rng.exponential(size=a.shape[1]))
    target = 100 * weights / weights.sum()
    return LeastSquares(a, a @ target), Simplex(100.0), float(Simplex(1.0).gaussian_width(a.shape[1]))


PROBLEMS = {"subspace": subspace_problem, "simplex": simplex_problem}


def _rows(config: Mapping[str, Any], rng: np.random.Generator) -> np.ndarray:
    """Gaussian rows of unit length on average."""
    n, d = config["n"], config["d"]
    return np.asarray(rng.standard_normal((n, d)) / np.sqrt(d))


def cells(config: Mapping[str, Any]) -> Sequence[Cell]:
    """SGD, the paper's rule, and a memory beside it."""
    return [{"method": method} for method in (SGD, COMP, FEEDBACK)]


def recipe_of(method: str, config: Mapping[str, Any], width: float) -> Recipe:
    """m_t = w(C)^2 t^2 with t the epoch."""
    common = {"step": config["step"], "batch_size": BATCH}
    if method == SGD:
        return sgd(**common)
    if method == COMP:
        return comp_sgd(m=WidthRule(per="epoch", width=width), **common)
    return comp_sgd(m=0.1, error_feedback=True, **common)


def run(cell: Cell, setting: RunSetting) -> Observed:
    """One method: the objective after every epoch, as a share of that of the start."""
    config = setting.config
    objective, constraint, width = PROBLEMS[config["set"]](config, np.random.default_rng(setting.seed))
    recipe, epochs = recipe_of(cell["method"], config, width), config["epochs"]
    result = minimize(objective, recipe, constraint, epochs=epochs, seed=setting.seed)
    epoch, loss = result.curve("loss", "epoch")
    share = [value / loss[0] for value in loss]
    steps = result.state.t / epochs
    # an epoch's m_t from the numbers used until its end
    used = result.curve("dims", "epoch")[1]
    sizes = [(b - a) / steps for a, b in zip(used, used[1:], strict=False)]
    metrics = {
        "log10 share of the first objective": log10(share[-1]),
        "epochs to a hundredth": first_below(epoch, share, 0.01) or float(epochs),
        "numbers a step": result.dims / result.state.t,
    }
    logs = [log10(value) for value in share]
    return Observed(metrics, {"objective": thinned(epoch, logs), "m": thinned(epoch[1:], sizes)})


def verdict(results: Results) -> Judgement:
    """Alike: a hundredth of the first objective in at most 1.25 times the epochs of SGD, with fewer numbers."""
    name = "epochs to a hundredth"
    plain, comp, memory = (results.mean(name, method=method) for method in (SGD, COMP, FEEDBACK))
    fewer = results.mean("numbers a step", method=SGD) / results.mean("numbers a step", method=COMP)
    last = {m: results.mean("log10 share of the first objective", method=m) for m in (SGD, COMP, FEEDBACK)}
    why = (
        f"CompSGD uses {fewer:.1f} times fewer numbers and needs {comp:.1f} epochs for a hundredth of the first "
        f"objective, where SGD needs {plain:.1f}; at the end it stands at 10^{last[COMP]:.1f} of the first objective, "
        f"SGD at 10^{last[SGD]:.1f}. With error feedback and m = d/10 it takes {memory:.1f} epochs and ends at "
        f"10^{last[FEEDBACK]:.1f}."
    )
    slower = comp / plain
    if fewer < 2 or slower > 3:
        return Judgement("fails", why)
    return Judgement("holds" if slower <= 1.25 else "holds in part", why)


def plot(results: Results, figure: Any) -> None:
    """The objective on the left, the dimension of the gradients on the right."""
    left, right = figure.subplots(1, 2)
    for cell in results.cells:
        line(left, results.curve("objective", **cell), cell["method"])
        line(right, results.curve("m", **cell), cell["method"])
    finish(left, "epoch", "log10 of the share of the first objective")
    finish(right, "epoch", "numbers of each gradient", "y")


def _experiment(name: str, item: str, kind: str, claim: str, step: float) -> Experiment:
    config = {"set": kind, "step": step, "epochs": 20, "n": 1000, "d": 10_000}
    return Experiment(
        name=name,
        item=item,
        title=f"Least squares over a {kind}",
        claim=claim,
        cells=cells,
        run=run,
        verdict=verdict,
        plot=plot,
        small=config,
        full=config,
        note="Small is the paper's own size. The paper states no scale of A and no number of epochs: here rows have "
        f"length 1 on average, the step is {step:g}, and 20 epochs are run.",
    )


EXPERIMENTS = (
    _experiment(
        "001-figure-5ab",
        "Figure 5a, 5b",
        "subspace",
        "Over a 10-dimensional subspace CompSGD with m_t = 10 t^2 (t the epoch) is quite identical to SGD and uses "
        "much lower-dimensional gradients.",
        300.0,
    ),
    _experiment(
        "001-figure-5cd",
        "Figure 5c, 5d",
        "simplex",
        "Over the simplex CompSGD with m_t = w^2 t^2 (w the width of the simplex, t the epoch) is quite identical to "
        "SGD and uses much lower-dimensional gradients.",
        30.0,
    ),
)
