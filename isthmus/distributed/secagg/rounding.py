"""From clipped vectors to integer vectors whose norm is bounded for certain.

A vector of length at most C is divided by the grid and rounded at random, up or down, without bias: its squared
length in grid steps is then (C / grid)^2 + m / 4 on average at most, give or take.  What is promised is more than
what is likely: the squared length of the integers is computed exactly, and a vector beyond `limit` is rounded anew, a
few times, and then towards zero, which makes nothing longer.  So every row that is returned has squared length at
most `limit`, whatever it was, and the noise is scaled to that.  Up to the share of vectors that are rounded anew
(about 1 in 1,000 of those of full length) the integers have the vector over the grid as their mean.

>>> import numpy as np
>>> from isthmus.privacy import SeededSource
>>> limit = squared_limit(10.0, 4)
>>> int((to_integers(np.full((1, 4), 7e9), 10.0, limit, SeededSource(0)) ** 2).sum()) <= limit
True
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from isthmus.base import validate
from isthmus.privacy.noise import Noise

LONGEST = 1 << 28
"""The longest vector, in grid steps: squares of its numbers add up in 64 bits."""
_TRIES = 8


def squared_limit(steps: float, m: int) -> int:
    """The promised squared length of m integers that were `steps` = C / grid long: its mean and three deviations more.

    With errors e of mean 0 and variance at most 1/4, ||v + e||^2 - E = 2 v'e + (||e||^2 - E): the two have
    deviations of at most ||v|| and sqrt(m) / 4.
    """
    validate.positive(steps=steps)
    validate.positive_int(m=m)
    validate.at_most(LONGEST, "the longest vector in grid steps: take a coarser grid", steps=steps)
    return math.floor(steps**2 + m / 4 + 3 * (steps + math.sqrt(m) / 4))


def to_integers(rows: NDArray[np.float64], steps: float, limit: int, noise: Noise) -> NDArray[np.int64]:
    """Each row (in grid steps) clipped to `steps`, rounded to integers of squared length at most `limit`.

    A row with anything that is no finite number counts as zero.
    """
    validate.check(rows.ndim == 2, "rows", rows.shape, "give a matrix, one vector a row")
    sound = np.asarray(np.isfinite(rows).all(axis=1))
    values = np.where(sound[:, None], rows, 0.0)
    peak = np.abs(values).max(axis=1, initial=0.0)[:, None]
    values = values / np.maximum(peak, 1e-300)  # squares neither overflow nor vanish
    values *= np.minimum(peak, steps / np.maximum(np.linalg.norm(values, axis=1)[:, None], 1.0))
    out = np.zeros(values.shape, np.int64)
    undrawn = np.arange(len(values))
    for _ in range(_TRIES):
        down = np.floor(values[undrawn])
        up = noise.uniform(values[undrawn].shape).numpy() < values[undrawn] - down
        drawn = (down + up).astype(np.int64)
        good = _fits(drawn, limit)
        out[undrawn[good]] = drawn[good]
        undrawn = undrawn[~good]
        if not len(undrawn):
            return out
    inward = np.trunc(values[undrawn]).astype(np.int64)
    out[undrawn] = np.where(_fits(inward, limit)[:, None], inward, 0)
    return out


def _fits(rows: NDArray[np.int64], limit: int) -> NDArray[np.bool_]:
    """Whether the squared length is at most the limit, in integers: rows are clipped, so that the sums fit 64 bits."""
    within: NDArray[np.bool_] = np.einsum("ij,ij->i", rows, rows) <= limit
    return within
