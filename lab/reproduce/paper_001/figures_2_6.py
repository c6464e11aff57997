"""Figures 2 and 6: the network trained by SGD and by CompSGD with a tenth of each layer's gradient; the same runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from isthmus.algorithms import comp_sgd, sgd
from isthmus.core.minimize import Recipe, minimize
from lab.reproduce.experiment import Cell, Experiment, Judgement, Observed, Results, RunSetting
from lab.reproduce.figures import finish, line, one_legend
from lab.reproduce.measures import thinned
from lab.reproduce.paper_001.compressed import BATCH, COMP, FEEDBACK, SGD
from lab.reproduce.paper_001.networks import Accuracies, problem, tenth
from lab.reproduce.paper_001.splits import splits

STEP, ALIKE, NEAR = 0.1, 0.01, 0.02
METHODS = (SGD, COMP, FEEDBACK)


def cells(config: Mapping[str, Any]) -> Sequence[Cell]:
    """One a method."""
    return [{"method": method} for method in METHODS]


def recipe(method: str) -> Recipe:
    """A tenth of each layer, memoryless as in the paper or with error feedback."""
    if method == SGD:
        return sgd(step=STEP, batch_size=BATCH)
    return comp_sgd(m=0.1, step=STEP, batch_size=BATCH, sketch=tenth, error_feedback=method == FEEDBACK)


def run(cell: Cell, setting: RunSetting) -> Observed:
    """Both accuracies after every epoch; those of the end are medians of the last three, as SGD slips now and then."""
    data = splits(setting.config)
    train, unseen = data.dense(setting.device)
    objective, balls = problem(train, data.classes, setting.seed)
    watch = Accuracies(objective, {"test": unseen, "train": train})
    result = minimize(objective, recipe(cell["method"]), balls, epochs=setting.config["epochs"], seed=setting.seed,
                      x0=balls.project(objective.start()), callbacks=[watch], progress=False)  # fmt: skip
    metrics = {f"{name} accuracy": median(values[-3:]) for name, values in watch.accuracies.items()}
    metrics["numbers a step"] = result.dims / result.state.t
    return Observed(metrics, {name: thinned(watch.at, values) for name, values in watch.accuracies.items()})


def verdict(results: Results) -> Judgement:
    """Near identical: both accuracies within a point of SGD's; in part: the test accuracy within two."""
    test = {m: results.mean("test accuracy", method=m) for m in METHODS}
    train = {m: results.mean("train accuracy", method=m) for m in METHODS}
    fewer = results.mean("numbers a step", method=SGD) / results.mean("numbers a step", method=COMP)
    why = (
        f"CompSGD uses {fewer:.1f} times fewer numbers and ends at {test[COMP]:.3f} on test and {train[COMP]:.3f} on "
        f"training rows, where SGD ends at {test[SGD]:.3f} and {train[SGD]:.3f}. With error feedback the same numbers "
        f"give {test[FEEDBACK]:.3f} and {train[FEEDBACK]:.3f}."
    )
    unseen, gap = test[SGD] - test[COMP], max(test[SGD] - test[COMP], train[SGD] - train[COMP])
    if fewer < 9:
        return Judgement("fails", why)
    return Judgement("holds" if gap <= ALIKE else "holds in part" if unseen <= NEAR else "fails", why)


def plot(results: Results, figure: Any) -> None:
    """Figure 2 on the left, Figure 6 on the right."""
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, name, title in ((left, "test", "test"), (right, "train", "training")):
        for cell in results.cells:
            line(axes, results.curve(name, **cell), cell["method"])
        finish(axes, "epoch", f"{title} accuracy")
    one_legend(figure)


CLAIM = (
    "In test accuracy (Figure 2) and training accuracy (Figure 6) the convergence of CompSGD with a tenth of each "
    "layer's gradient is near identical to that of SGD."
)


def _experiment(letter: str, data: str, title: str, small: dict[str, Any], full: dict[str, Any]) -> Experiment:
    words = f" and its {small['words']} most frequent words" if "words" in small else ""
    return Experiment(
        name=f"001-figure-2{letter}-6{letter}",
        item=f"Figures 2, 6: {title}",
        title=f"Network of three layers on {title}",
        claim=CLAIM,
        cells=cells,
        run=run,
        verdict=verdict,
        plot=plot,
        small={"data": data, **small},
        full={"data": data, **full},
        data=(data,),
        note=f"Small: {small['rows']} of {full['rows']} rows{words}, {small['epochs']} epochs ({full['epochs']} at "
        "full scale). The paper states neither radii nor epochs: here each layer's ball has the start on its boundary.",
    )


EXPERIMENTS = (
    _experiment("a", "mnist", "MNIST", {"rows": 6000, "epochs": 8}, {"rows": 60_000, "epochs": 10}),
    _experiment("b", "reuters46", "Reuters", {"rows": 3000, "words": 2000, "epochs": 10}, {"rows": 8982, "epochs": 20}),
    _experiment("c", "imdb", "IMDB", {"rows": 4000, "test rows": 4000, "words": 2000, "epochs": 8},
                {"rows": 25_000, "epochs": 10}),
)  # fmt: skip
