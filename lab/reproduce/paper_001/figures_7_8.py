"""Figures 7 and 8: the MLP of Figure 2 with quantised gradients (QSGD without Elias codes), one client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from isthmus.algorithms import comp_dist_sgd
from isthmus.codecs import QSGD
from isthmus.core.minimize import Recipe, minimize
from isthmus.sketches import Identity
from lab.reproduce.experiment import Cell, Experiment, Judgement, Observed, Results, RunSetting
from lab.reproduce.figures import finish, line
from lab.reproduce.measures import thinned
from lab.reproduce.paper_001.networks import Accuracies, problem, tenth
from lab.reproduce.paper_001.splits import splits

STEP, BATCH = 0.1, 32
PLAIN, SGD, COMP = "SGD, not quantised", "SGD, quantised", "CompDistSGD, quantised"
FEEDBACK = "CompDistSGD, quantised, error feedback"


def cells(config: Mapping[str, Any]) -> Sequence[Cell]:
    """Quantised SGD and CompDistSGD, what quantising costs, and what a memory brings."""
    return [{"method": method} for method in (PLAIN, SGD, COMP, FEEDBACK)]


def recipe_of(method: str) -> Recipe:
    """SGD is CompDistSGD without a map."""
    common: dict[str, Any] = {"step": STEP, "batch_size": BATCH, "error_feedback": method == FEEDBACK}
    common["codec"] = None if method == PLAIN else QSGD(coding="fixed")
    if method in (PLAIN, SGD):
        return comp_dist_sgd(m=1.0, sketch=lambda m: Identity(), **common)
    return comp_dist_sgd(m=0.1, sketch=tenth, **common)


def run(cell: Cell, setting: RunSetting) -> Observed:
    """One training run; its accuracies are means of the last three records."""
    config = setting.config
    data = splits(config)
    train, test = data.dense(setting.device)
    objective, balls = problem(train, data.classes, setting.seed)
    rows = config["test rows"]
    parts = {"train": (train[0][:rows], train[1][:rows]), "test": test}
    watch = Accuracies(objective, parts, by="t")
    result = minimize(objective, recipe_of(cell["method"]), balls, steps=config["steps"], seed=setting.seed,
                      x0=balls.project(objective.start()), clients=[objective], callbacks=[watch],
                      record=max(1, config["steps"] // 20), progress=False)  # fmt: skip
    last = {name: float(np.mean(watch.accuracies[name][-3:])) for name in parts}
    metrics = {f"{name} accuracy": value for name, value in last.items()}
    metrics["bytes a step"] = result.bytes / result.state.t
    curves = {name: thinned(watch.at, watch.accuracies[name]) for name in parts}
    return Observed(metrics, curves)


def verdict(results: Results) -> Judgement:
    """Matches: both accuracies within two points of those of quantised SGD."""
    test = {m: results.mean("test accuracy", method=m) for m in (PLAIN, SGD, COMP, FEEDBACK)}
    train = {m: results.mean("train accuracy", method=m) for m in (SGD, COMP, FEEDBACK)}
    sent = {m: results.mean("bytes a step", method=m) for m in (PLAIN, SGD, COMP)}
    why = (
        f"CompDistSGD sends {sent[SGD] / sent[COMP]:.1f} times fewer bytes than quantised SGD "
        f"({sent[PLAIN] / sent[COMP]:.0f} times fewer than floats) and reaches {test[COMP]:.3f} on test and "
        f"{train[COMP]:.3f} on training rows, where quantised SGD reaches {test[SGD]:.3f} and {train[SGD]:.3f} "
        f"({test[PLAIN]:.3f} on test rows without quantising). With error feedback the same bytes give "
        f"{test[FEEDBACK]:.3f} and {train[FEEDBACK]:.3f}."
    )
    gap = max(test[SGD] - test[COMP], train[SGD] - train[COMP])
    return Judgement("holds" if gap <= 0.02 else "holds in part" if gap <= 0.05 else "fails", why)


def plot(results: Results, figure: Any) -> None:
    """Figure 7 on the left, Figure 8 on the right."""
    for axes, name in zip(figure.subplots(1, 2, sharey=True), ("test", "train"), strict=True):
        for cell in results.cells:
            line(axes, results.curve(name, **cell), cell["method"])
        finish(axes, "step", f"{name} accuracy")


CLAIM = (
    "Under the same quantisation (QSGD without Elias codes) CompDistSGD with a tenth of each layer's gradient matches "
    "SGD in test accuracy (Figure 7) and in training accuracy (Figure 8)."
)


def _experiment(letter: str, data: str, title: str, small: dict[str, Any], full: dict[str, Any]) -> Experiment:
    return Experiment(
        name=f"001-figure-7{letter}-8{letter}",
        item=f"Figures 7, 8: {title}",
        title=f"Quantised MLP on {title}",
        claim=CLAIM,
        cells=cells,
        run=run,
        verdict=verdict,
        plot=plot,
        small={"data": data, **small},
        full={"data": data, **full},
        data=(data,),
        note=f"Small: {small['steps']} steps on {small['rows']} rows"
        + (f" and the {small['words']} most frequent words. " if "words" in small else ". ")
        + "The paper states neither levels nor radii: here s = sqrt(m), where chi = 1, and each layer's ball has the "
        "start on its boundary.",
    )


_TEXT = {"rows": 6400, "test rows": 2000, "words": 2000, "steps": 500}
EXPERIMENTS = (
    _experiment("a", "mnist", "MNIST", {"rows": 12_800, "test rows": 2000, "steps": 500},
                {"rows": 60_000, "test rows": 10_000, "steps": 18_750}),
    _experiment("b", "reuters46", "Reuters", _TEXT,
                {"rows": 8982, "test rows": 2246, "words": 10_000, "steps": 5620}),
    _experiment("c", "imdb", "IMDB", _TEXT,
                {"rows": 25_000, "test rows": 25_000, "words": 10_000, "steps": 7820}),
)  # fmt: skip
