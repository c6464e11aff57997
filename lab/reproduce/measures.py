"""Small measurements that experiments share: slopes on log-log axes, crossings, curves of at most a hundred points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from lab.reproduce.experiment import Curve

TINY = 1e-300


def log10(value: float) -> float:
    """The decimal logarithm, -300 at zero and below.

    >>> log10(0.01), log10(0.0)
    (-2.0, -300.0)
    """
    return math.log10(max(value, TINY))


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The least-squares slope of log y against log x: the exponent of a power law.

    >>> round(slope([1, 2, 4, 8], [3.0, 1.5, 0.75, 0.375]), 9)
    -1.0
    """
    across, up = [math.log(value) for value in x], [math.log(max(value, TINY)) for value in y]
    middle, level = fmean(across), fmean(up)
    both = math.fsum((a - middle) * (b - level) for a, b in zip(across, up, strict=True))
    return both / math.fsum((a - middle) ** 2 for a in across)


def first_below(x: Sequence[float], y: Sequence[float], level: float) -> float | None:
    """Where y first falls to a level, between its points along log y; None where it never does.

    >>> first_below([0, 1, 2], [1.0, 0.1, 0.001], 0.01)
    1.5
    """
    for i, value in enumerate(y):
        if value <= level:
            if i == 0:
                return float(x[0])
            high, low = math.log(y[i - 1]), math.log(max(value, TINY))
            share = (high - math.log(level)) / (high - low)
            return float(x[i - 1] + share * (x[i] - x[i - 1]))
    return None


def thinned(x: Sequence[float], y: Sequence[float], points: int = 60, digits: int = 4) -> Curve:
    """At most so many points of a curve, first and last among them, y rounded to some digits.

    >>> thinned(range(5), [0.123456] * 5, points=3)
    ([0.0, 2.0, 4.0], [0.1235, 0.1235, 0.1235])
    """
    last = len(x) - 1
    places = sorted({round(i * last / max(1, min(points, len(x)) - 1)) for i in range(min(points, len(x)))})
    return [float(x[i]) for i in places], [float(f"{y[i]:.{digits}g}") for i in places]
