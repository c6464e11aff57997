"""An experiment at a tiny size: every cell runs, its numbers are finite, the verdict is one, the plot draws."""

import math
from dataclasses import replace

from matplotlib.figure import Figure

from lab.reproduce import Judgement, Results, RunSetting


def smoke(experiment, config):
    cells = experiment.cells(config)
    results = Results([(cell, 0, experiment.run(cell, RunSetting(config, 0))) for cell in cells])
    assert all(math.isfinite(value) for _, _, run in results.runs for value in run.metrics.values())
    judgement = experiment.verdict(results)
    assert isinstance(judgement, Judgement) and judgement.kind and judgement.why.endswith(".")
    experiment.plot(results, Figure())
    return results


def changed(results, metric, value, **cell):
    """The same results with another number in some cells."""

    def other(own, run):
        hit = all(own.get(name) == wanted for name, wanted in cell.items())
        return replace(run, metrics=run.metrics | {metric: value}) if hit else run

    return Results([(own, seed, other(own, run)) for own, seed, run in results.runs])


def judged(experiment, results):
    return experiment.verdict(results).kind
