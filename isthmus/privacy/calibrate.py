"""A safeguarded secant search for the scale at which a decreasing cost meets its target from below."""

from __future__ import annotations

import math
from collections.abc import Callable

from isthmus.base import validate


def solve(
    cost: Callable[[float], float],
    target: float,
    guess: float,
    *,
    slope: float = -1.0,
    tolerance: float = 2e-5,
    evaluations: int = 60,
) -> tuple[float, float]:
    """`s` with `target (1 - tolerance) <= cost(s) <= target`, and d log cost / d log s there.

    Costs fall like a power of the scale, so the secant is taken in logarithms; a bracket keeps it honest.

    >>> round(solve(lambda s: 8 / s**3, 1.0, 1.0)[0], 4)
    2.0
    """
    x, below, above, moved = math.log(guess), -math.inf, math.inf, 0.0
    last: tuple[float, float] | None = None
    widths = [math.inf] * 3
    for _ in range(evaluations):
        value = cost(math.exp(x))
        y = math.inf if value == math.inf else math.log(value / target) if value > 0 else -math.inf
        if -tolerance <= y <= 0:
            return math.exp(x), slope
        below, above = (max(below, x), above) if y > 0 else (below, min(above, x))
        widths.append(above - below)
        if widths[-1] < 1e-10:
            return math.exp(above), slope
        if last is not None and math.isfinite(y) and math.isfinite(last[1]) and y != last[1]:
            slope = min(-0.02, (y - last[1]) / (x - last[0]))
        last = (x, y)
        step = -(y + tolerance / 2) / slope if math.isfinite(y) else math.copysign(2.0, y)
        if widths[-1] == math.inf:  # nothing on the other side yet: a cost that is flat here has no slope to follow
            step = math.copysign(max(abs(step), 2 * abs(moved)), step)
        moved = min(2.0, max(-2.0, step))
        middle = not below < x + moved < above or widths[-1] > widths[-4] / 2  # the secant crawls
        x = (below + above) / 2 if middle and widths[-1] < math.inf else x + moved
    validate.refuse(
        "epsilon", target, "give a larger epsilon: no amount of noise reaches this one with this accountant"
    )
