"""The methods that Figures 1 to 4 and 6 compare, and the rule m_t = t^2 log d, t the epoch."""

from __future__ import annotations

import math
from collections.abc import Callable

from isthmus.algorithms import comp_sgd, sgd
from isthmus.core.minimize import Recipe

BATCH = 32
SGD, COMP, FEEDBACK = "SGD", "CompSGD", "CompSGD + error feedback"
GAUGE = "CompSGD, least gauge"
METHODS = (SGD, COMP, GAUGE, FEEDBACK)


def dimension(inputs: int, classes: int, per_epoch: int) -> Callable[[int], int]:
    """m_t = t^2 log(inputs) for each class (one for two classes), never more than there are parameters.

    >>> rule = dimension(inputs=10_000, classes=2, per_epoch=100)
    >>> rule(0), rule(99), rule(100), rule(10_000)
    (9, 9, 37, 10000)
    """
    columns = 1 if classes == 2 else classes
    return lambda t: min(columns * inputs, round(columns * (t // per_epoch + 1) ** 2 * math.log(inputs)))


def recipe_of(method: str, m: Callable[[int], int], step: float) -> Recipe:
    """SGD; CompSGD whose lift takes the nearest point of C, or that of least gauge; with a memory of what was lost."""
    if method == SGD:
        return sgd(step=step, batch_size=BATCH)
    pick = "min_gauge" if method == GAUGE else "nearest"
    return comp_sgd(m=m, step=step, batch_size=BATCH, pick=pick, error_feedback=method == FEEDBACK)
