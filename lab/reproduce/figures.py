"""Plots that several experiments share; SVG without a date or random names, so that equal data gives equal files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lab.reproduce.experiment import Experiment, Results, key_of


def draw(experiment: Experiment, results: Results, path: Path) -> Path:
    """The experiment's plot as an SVG file."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": experiment.name, "svg.fonttype": "none", "axes.grid": True,
                                "grid.alpha": 0.3, "font.size": 9, "figure.autolayout": True}):  # fmt: skip
        figure = Figure(figsize=(7, 4.2))
        experiment.plot(results, figure)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    return path


def curves(name: str, x: str, y: str, log: str = "", label: Callable[[dict[str, Any]], str] = key_of) -> Any:
    """A plot with one curve a cell, shaded by one deviation between seeds; `log` is "", "x", "y" or "xy"."""

    def plot(results: Results, figure: Any) -> None:
        axes = figure.subplots()
        for cell in results.cells:
            if any(name in run.curves for run in results.of(**cell)):
                line(axes, results.curve(name, **cell), label(cell))
        finish(axes, x, y, log)

    return plot


def line(axes: Any, curve: tuple[Sequence[float], Sequence[float], Sequence[float]], label: str) -> None:
    """One curve with its shade."""
    x, mean, sd = curve
    (drawn,) = axes.plot(x, mean, label=label, linewidth=1.3)
    low, high = [m - s for m, s in zip(mean, sd, strict=True)], [m + s for m, s in zip(mean, sd, strict=True)]
    axes.fill_between(x, low, high, color=drawn.get_color(), alpha=0.15, linewidth=0)


def finish(axes: Any, x: str, y: str, log: str = "") -> None:
    """Names, scales and the legend."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if "x" in log:
        axes.set_xscale("log")
    if "y" in log:
        axes.set_yscale("log")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7)


def panel(axes: Any, title: str, x: str, y: str, log: str = "") -> None:
    """`finish` for one of several narrow panels: the legend stands below."""
    finish(axes, x, y, log)
    axes.set_title(title, fontsize=9)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False)


def few_ticks(axes: Any, values: Sequence[float]) -> None:
    """A mark at each value that was measured, in place of those of a logarithmic axis."""
    axes.set_xticks(list(values), [f"{value:,}" for value in values])
    axes.set_xticks([], minor=True)


def one_legend(figure: Any) -> None:
    """The legend of the first panel above all of them, in place of one in each."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    for axes in figure.axes:
        if (own := axes.get_legend()) is not None:
            own.remove()
    figure.set_layout_engine("constrained")
    figure.legend(handles, labels, loc="outside upper center", ncols=4, fontsize=7)


def bars(metric: str, y: str, label: Callable[[dict[str, Any]], str] = key_of) -> Any:
    """A plot with one bar a cell and one deviation between seeds."""

    def plot(results: Results, figure: Any) -> None:
        axes, cells = figure.subplots(), results.cells
        heights, spread = [results.mean(metric, **c) for c in cells], [results.sd(metric, **c) for c in cells]
        axes.barh([label(cell) for cell in cells], heights, xerr=spread, height=0.6)
        axes.invert_yaxis()
        axes.set_xlabel(y)

    return plot
