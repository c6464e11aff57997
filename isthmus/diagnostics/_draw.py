"""The one place that imports matplotlib, when something is drawn."""

from __future__ import annotations

from typing import Any


def axes(ax: Any, xlabel: str, ylabel: str) -> Any:
    """The given axes, or those of a new figure, labelled."""
    import matplotlib.pyplot as plt

    ax = plt.subplots()[1] if ax is None else ax
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    return ax
