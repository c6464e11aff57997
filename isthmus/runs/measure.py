"""How the test rows of a run are measured, and from what it is paid: everything is inside the epsilon of the run.

| test rows | figures | paid for |
|---|---|---|
| public, or published bare | exact | nothing is (bare ones are named as not covered) |
| held out, all training noise Gaussian | noisy, as much as it | by the training: a record is in one part only |
| held out, other training | noisy | from the run's epsilon: the training gets the rest |
| private, from a file; or `test_epsilon` was given | noisy | the same |

The figures themselves are those of `isthmus.estimators.scoring`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from dp_accounting import GaussianDpEvent

from isthmus.base import validate
from isthmus.core.group import Group
from isthmus.core.pipeline import Promise
from isthmus.estimators.looks import Looks, covers
from isthmus.estimators.scoring import FIGURES, RANGES, Figure, Model, exact_figures, noisy_figures
from isthmus.privacy import Adjacency, Gaussian, Ledger, compose, epsilon_of, joint
from isthmus.privacy.event_json import DpEvent
from isthmus.privacy.plan import mu_of
from isthmus.runs.config import Settings
from isthmus.tables.rows import Rows

_COVERED = (
    "the held-out rows were drawn by coins that look at no record, and a record is either trained on or held out: the "
    "figures of the held-out rows, which have at least as much noise as the training, cost nothing beside it; how many "
    "rows were held out is public"
)
_PAID = (
    "the figures of the test rows are noisy sums, counted as if those rows were the ones trained on; how many test "
    "rows there are is public"
)
COUNTED = "how many test rows there are is public, though nothing was measured on them"
_LITTLE = "nothing is left of epsilon for it: rounds were paid for and lost in an interruption"
_STEPS, _FACTOR = 24, 1.25


@dataclass(frozen=True)
class Measured:
    """The figures of a run: `releases` were paid for from its epsilon; `covered` ones were paid for by the training."""

    figures: tuple[Figure, ...] = ()
    curves: tuple[Mapping[str, object], ...] = ()
    releases: int = 0
    covered: bool = False

    def to_dict(self) -> dict[str, object]:
        """For `metrics.json`."""
        values = {"curves": list(self.curves), "releases": self.releases, "covered": self.covered}
        return {"metrics": [vars(figure) for figure in self.figures], **values}

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Measured:
        """What `to_dict` wrote; figures of an earlier version were all paid for."""
        with validate.reading("metrics.json", sorted(data), "restore the file as the run wrote it, or begin a new run"):
            figures, curves = tuple(Figure(**metric) for metric in data["metrics"]), tuple(data.get("curves", ()))
        noisy = int(any(figure.noise for figure in figures))
        return Measured(figures, curves, data.get("releases", noisy), data.get("covered", False))

    @property
    def assumptions(self) -> list[str]:
        """What a statement says of them; figures that have no value still say how many rows there were."""
        if self.covered:
            return [_COVERED]
        if self.releases:
            return [_PAID]
        if self.figures and all(figure.value is None for figure in self.figures):
            return [COUNTED]
        return []


def planned(settings: Settings, delta: float) -> list[DpEvent]:
    """The event that is kept free for the figures."""
    if settings.measure_epsilon is None:
        return []
    return [Gaussian(1 / mu_of(settings.measure_epsilon, delta, Adjacency(settings.adjacency))).event()]


def _training_epsilon(settings: Settings, delta: float) -> float:
    """What the training may spend: epsilon, less what is kept free for the figures.

    Costs add up in mu^2, so that figures for a tenth of epsilon leave .99 of it and more.

    >>> round(_training_epsilon(Settings(data="a.csv", epsilon=1.0, test_fraction=0.2), 1e-5), 3)
    0.992
    """
    if settings.measure_epsilon is None:
        return settings.epsilon
    adjacency = Adjacency(settings.adjacency)
    whole, part = (mu_of(epsilon, delta, adjacency) for epsilon in (settings.epsilon, settings.measure_epsilon))
    rest = Gaussian(1 / math.sqrt(whole**2 - part**2)).event()
    return float(epsilon_of(rest, delta, adjacency)) * (1 - 1e-7)


_Rows = tuple[Rows, np.ndarray]


def measure(
    settings: Settings, fitted: Model, test: _Rows, delta: float, ledger: Ledger | None, crew: Group, rows: int
) -> Measured:
    """The figures of the test rows; on ranks everybody looks at its own, and `rows` is how many there are in all."""
    if settings.measure_epsilon is None:
        exact = exact_figures(fitted, *test, _where(settings, rows))
        return Measured(exact.figures, exact.curves)
    multiplier, bought = crew.on_leader(lambda: [*_noise(settings, delta, ledger)])  # type: ignore[arg-type]
    covered = not bought
    if not multiplier:
        name = {"classification": "accuracy"}.get(settings.task or "", "R2")
        return Measured((Figure(name, None, _where(settings, rows), note=_LITTLE),))
    if ledger is not None:
        ledger.planned = ()  # what was kept free is asked for now
    promise = Promise(settings.epsilon, delta, Adjacency(settings.adjacency))
    looks = Looks(multiplier, promise, ledger, covered=covered, ranks=crew, whole=rows)
    scores = noisy_figures(fitted, *test, looks)
    on = _where(settings, rows)
    if looks.taken and covered:
        on += ", with noise, inside the epsilon of the training"
    elif looks.taken:
        paid = epsilon_of(Gaussian(multiplier).event(), delta, promise.adjacency)
        on += f", with noise for epsilon = {paid:.3g} of the whole"
    figures = tuple(replace(figure, on=on) for figure in scores.figures)
    return Measured(figures, scores.curves, scores.releases, covered and bool(looks.taken))


def _noise(settings: Settings, delta: float, ledger: Ledger) -> tuple[float, bool]:
    """The multiplier of the figures' noise, and whether it has to be bought; 0: nothing is left for it.

    A first measurement of held-out rows is covered; one that is repeated, as a look of the first was lost, is bought.
    """
    assert settings.measure_epsilon is not None
    event = ledger.event()
    whole = joint([event])
    free = settings.test_fraction is not None and settings.test_epsilon is None
    first = not {RANGES, FIGURES} & set(ledger.rounds())
    if free and first and isinstance(whole, GaussianDpEvent) and covers(event, whole.noise_multiplier):
        return float(whole.noise_multiplier), False
    multiplier = 1 / mu_of(settings.measure_epsilon, delta, ledger.adjacency)
    for _ in range(_STEPS):
        total = epsilon_of(compose([event, Gaussian(multiplier).event()]), delta, ledger.adjacency)
        if total <= settings.epsilon:
            return multiplier, True
        multiplier *= _FACTOR
    return 0.0, True


def _where(settings: Settings, rows: int) -> str:
    """What the figures were measured on, for a reader."""
    source, bare = f"{rows} held-out rows", "published without noise"
    if settings.test is not None:
        source, bare = f"{rows} rows of {Path(settings.test).name}", "which counts as public"
    if settings.measure_epsilon is not None or not settings.private:
        return source
    return f"{source}, {bare}"
