"""Figure 4: how much ten runs of CompSGD differ, logistic regression over an l1 ball on Reuters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from lab.reproduce.experiment import Cell, Experiment, Judgement, Observed, Results, RunSetting
from lab.reproduce.figures import finish
from lab.reproduce.measures import thinned
from lab.reproduce.paper_001.compressed import COMP, SGD
from lab.reproduce.paper_001.logistic import train

LOW, MODERATE = 0.01, 0.02


def cells(config: Mapping[str, Any]) -> Sequence[Cell]:
    """CompSGD, and SGD to compare with: only the order of the rows differs between its runs."""
    return [{"method": SGD}, {"method": COMP}]


def run(cell: Cell, setting: RunSetting) -> Observed:
    """So many runs with seeds of their own; mean and standard deviation after every epoch."""
    runs = setting.config["runs"]
    curves = [train(cell["method"], setting.config, runs * setting.seed + i).curves["test"] for i in range(runs)]
    epochs, points = curves[0][0], list(zip(*(heights for _, heights in curves), strict=True))
    middle, spread = [fmean(point) for point in points], [stdev(point) for point in points]
    metrics = {"test accuracy": middle[-1], "mean deviation of the epochs": fmean(spread)}
    return Observed(metrics | {"last deviation": spread[-1]},
                    {"middle": thinned(epochs, middle), "spread": thinned(epochs, spread)})  # fmt: skip


def verdict(results: Results) -> Judgement:
    """Low: one deviation between runs is at most a point of accuracy, at the end and over the epochs."""
    last, way = ({m: results.mean(name, method=m) for m in (SGD, COMP)}
                 for name in ("last deviation", "mean deviation of the epochs"))  # fmt: skip
    why = (
        f"Ten runs of CompSGD end at {results.mean('test accuracy', method=COMP):.3f} on test rows with a standard "
        f"deviation of {last[COMP]:.4f} ({way[COMP]:.4f} over all epochs); those of SGD, where only the order of the "
        f"rows differs, have {last[SGD]:.4f} ({way[SGD]:.4f})."
    )
    largest = max(last[COMP], way[COMP])
    return Judgement("holds" if largest <= LOW else "holds in part" if largest <= MODERATE else "fails", why)


def plot(results: Results, figure: Any) -> None:
    """Error bars of one deviation."""
    axes = figure.subplots()
    for cell in results.cells:
        epochs, middle, _ = results.curve("middle", **cell)
        axes.errorbar(
            epochs, middle, results.curve("spread", **cell)[1], label=cell["method"], capsize=3, linewidth=1.3
        )
    finish(axes, "epoch", "test accuracy")


EXPERIMENT = Experiment(
    name="001-figure-4",
    item="Figure 4",
    title="Ten runs on Reuters",
    claim="The variance across runs of CompSGD is low: the error bars of ten runs on Reuters are short.",
    cells=cells,
    run=run,
    verdict=verdict,
    plot=plot,
    small={"data": "reuters46", "rows": 1200, "words": 2000, "epochs": 12, "radius": 1000.0, "runs": 10},
    full={"data": "reuters46", "rows": 8982, "epochs": 12, "radius": 1000.0, "runs": 10},
    data=("reuters46",),
    note="Small: 1200 of 8982 rows and the 2000 most frequent words. The plot's bars are means over the seeds, each of "
    "which stands for ten runs of its own.",
)
