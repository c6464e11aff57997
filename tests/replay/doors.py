"""Every door of the library by its name: each draws a trial.  Recipes, modules and rows are those of the attacks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from attack import kinds, modules, recipes
from attack.cases import Case

from replay.clients import CLIENTS
from replay.estimators import ESTIMATORS
from replay.networks import NETWORKS
from replay.trials import Rng, Trial, record

MOST = 96
"""Records of a trial."""


def _attacked(draw: Callable[[Rng, int], Case], family: str) -> Callable[[Rng], Trial]:
    """The cases of the attacks of one family, as trials: with other numbers the same trainings."""

    def trial(rng: Rng) -> Trial:
        while True:
            case = draw(rng, MOST)
            if case.family == family:
                pair = case.at, case.other
                if case.counted and case.other is None:
                    pair = case.at, record(dict(case.arrays), int(rng.integers(case.n)))
                return Trial(case.train, dict(case.arrays), case.label, pair=pair, counted=family.startswith("engine"))

    return trial


DOORS: dict[str, Callable[[Rng], Trial]] = {
    **{f"recipe {name}": _attacked(recipes.draw, f"recipe {name}") for name in recipes.RECIPES},
    **{f"engine {name}": _attacked(modules.draw, f"engine {name}") for name in modules.ZOO},
    **{f"rows {name}": _attacked(kinds.draw, f"rows {name}") for name in kinds.KINDS},
    **NETWORKS,
    **ESTIMATORS,
    **CLIENTS,
}


def draw(door: str, seed: int, number: int) -> tuple[Rng, Trial]:
    """The trial of a number, and the generator that goes on to draw its neighbour."""
    rng = np.random.default_rng([seed, number, *door.encode()])
    return rng, DOORS[door](rng)
