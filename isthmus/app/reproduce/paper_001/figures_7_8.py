"""Figures 7 and 8: the MLP of Figure 2 with quantised gradients (QSGD without Elias codes), one client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from isthmus.algorithms import comp_dist_sgd
from isthmus.app import datasets
from isthmus.app.reproduce.experiment import Cell, Experiment, Judgement, Observed, Results, RunSetting
from isthmus.app.reproduce.figures import finish, line
from isthmus.app.reproduce.measures import thinned
from isthmus.codecs import QSGD
from isthmus.geometry.sets import L1Ball, Product
from isthmus.geometry.sketches import CountSketch, Identity, PerLeaf
from isthmus.problems.objectives.module import ModuleObjective
from isthmus.round.minimize import Recipe, minimize

STEP, BATCH, HIDDEN = 0.1, 32, 50
PLAIN, SGD, COMP = "SGD, not quantised", "SGD, quantised", "CompDistSGD, quantised"
FEEDBACK = "CompDistSGD, quantised, error feedback"
Split = tuple[Tensor, Tensor]


def cells(config: Mapping[str, Any]) -> Sequence[Cell]:
    """Quantised SGD and CompDistSGD, what quantising costs, and what a memory brings."""
    return [{"method": method} for method in (PLAIN, SGD, COMP, FEEDBACK)]


def recipe_of(method: str) -> Recipe:
    """SGD is CompDistSGD without a map."""
    common: dict[str, Any] = {"step": STEP, "batch_size": BATCH, "error_feedback": method == FEEDBACK}
    common["codec"] = None if method == PLAIN else QSGD(coding="fixed")
    if method in (PLAIN, SGD):
        return comp_dist_sgd(m=1.0, sketch=lambda m: Identity(), **common)
    return comp_dist_sgd(m=0.1, sketch=lambda m: PerLeaf(CountSketch(0.1)), **common)


def splits(config: Mapping[str, Any]) -> tuple[Split, Split, int]:
    """The first rows of each part, drawn once and for all; of texts the words that occur in most of the rows."""
    data = datasets.load(config["data"])
    assert data.y_test is not None
    labels = np.unique(data.y_train)
    choose = np.random.default_rng(0)
    rows = choose.permutation(len(data.y_train))[: config["rows"]]
    tests = choose.permutation(len(data.y_test))[: config["test rows"]]
    train, test = data.x_train[rows], data.x_test[tests]
    if hasattr(train, "toarray"):
        seen = np.asarray((train != 0).sum(0)).ravel()
        words = np.sort(np.argsort(-seen, kind="stable")[: config["words"]])
        train, test = train[:, words].toarray(), test[:, words].toarray()
    return _tensors(train, data.y_train[rows], labels), _tensors(test, data.y_test[tests], labels), len(labels)


def _tensors(x: Any, y: np.ndarray, labels: np.ndarray) -> Split:
    inputs = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32)).flatten(1)
    return inputs, torch.from_numpy(np.searchsorted(labels, y))


def problem(train: Split, classes: int, setting: RunSetting) -> tuple[ModuleObjective, Product]:
    """In x 50, 50 x 50, 50 x classes, each layer in the l1 ball that has its start on the boundary."""
    width = train[0].shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(setting.seed)
        first, second, third = nn.Linear(width, HIDDEN), nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, classes)
    module = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), third).to(setting.device)
    inputs, labels = (each.to(setting.device) for each in train)
    objective = ModuleObjective(module, nn.functional.cross_entropy, (inputs, labels))
    sizes = {str(2 * i): sum(float(p.detach().abs().sum()) for p in layer.parameters())
             for i, layer in enumerate((first, second, third))}  # fmt: skip
    balls = [(L1Ball(sizes[leaf.name]), leaf.size) for leaf in objective.space.leaves]
    return objective, Product(balls)


class Accuracies:
    """A callback: training and test accuracy at each record."""

    def __init__(self, objective: ModuleObjective, parts: dict[str, Split]) -> None:
        self.objective, self.parts = objective, parts
        self.found: dict[str, list[float]] = {"step": [], **{name: [] for name in parts}}

    @torch.no_grad()
    def __call__(self, record: dict[str, Any], state: Any) -> None:
        """Measure at the state's point."""
        self.objective.layers.unpack(state.w)
        self.found["step"].append(float(record["t"]))
        for name, (x, y) in self.parts.items():
            hits = self.objective.layers.module(x).argmax(1) == y
            self.found[name].append(float(hits.double().mean()))


def run(cell: Cell, setting: RunSetting) -> Observed:
    """One training run; its accuracies are means of the last three records."""
    config = setting.config
    train, test, classes = splits(config)
    objective, balls = problem(train, classes, setting)
    seen = config["test rows"]
    parts = {"train": (train[0][:seen], train[1][:seen]), "test": test}
    watch = Accuracies(objective, {k: (x.to(setting.device), y.to(setting.device)) for k, (x, y) in parts.items()})
    found = minimize(objective, recipe_of(cell["method"]), balls, steps=config["steps"], seed=setting.seed,
                     x0=balls.project(objective.start()), clients=[objective], callbacks=[watch],
                     record=max(1, config["steps"] // 20), progress=False)  # fmt: skip
    last = {name: float(np.mean(watch.found[name][-3:])) for name in parts}
    metrics = {f"{name} accuracy": value for name, value in last.items()}
    metrics["bytes a step"] = found.bytes / found.state.t
    curves = {name: thinned(watch.found["step"], watch.found[name]) for name in parts}
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


def plot(results: Results, figure: Figure) -> None:
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
