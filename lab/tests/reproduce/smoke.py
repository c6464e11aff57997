"""A tiny run of every cell of an experiment: finite numbers, a verdict, a plot."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from matplotlib.figure import Figure

from isthmus import datasets
from lab.reproduce.experiment import Experiment, Judgement, Results, RunSetting


def smoke(experiment: Experiment, tiny: Mapping[str, Any]) -> Results:
    """Run it at a config; skips where its data is missing."""
    for name in experiment.data:
        if not datasets.available(name):
            pytest.skip(f"needs {name}")
    config = {**experiment.small, **tiny}
    assert config.keys() <= {*experiment.small, *experiment.full}
    setting = RunSetting(config, seed=0)
    results = Results((cell, 0, experiment.run(cell, setting)) for cell in experiment.cells(config))
    for _, _, found in results.runs:
        assert found.metrics and all(math.isfinite(value) for value in found.metrics.values())
        assert all(len(x) == len(y) <= 100 for x, y in found.curves.values())
    judged = experiment.verdict(results)
    assert isinstance(judged, Judgement) and judged.why.endswith(".")
    figure = Figure()
    experiment.plot(results, figure)
    assert figure.axes
    return results
