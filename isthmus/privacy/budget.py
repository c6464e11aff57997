"""One budget: the default delta, its Gaussian-DP parameter mu, and the split of one multiplier over several releases.

Costs add up in mu^2: a Gaussian release of multiplier z spends 1 / z^2 of it, so shares of mu^2 that sum to 1 are
releases that together cost what the whole costs.
"""

from __future__ import annotations

import math

from isthmus.base import validate
from isthmus.privacy.accounting import noise_multiplier
from isthmus.privacy.adjacency import Adjacency


def default_delta(n: int) -> float:
    """`min(1e-5, n^-1.1)`: below 1/n for any public number n of records, and never generous.

    >>> default_delta(100), f"{default_delta(10**6):.3g}"
    (1e-05, '2.51e-07')
    """
    validate.positive_int(n=n)
    return min(1e-5, math.pow(n, -1.1))


def mu_of(epsilon: float, delta: float, adjacency: Adjacency | str = Adjacency.ADD_REMOVE) -> float:
    """The Gaussian-DP parameter mu of a budget: one release of multiplier 1 / mu spends all of it.

    >>> round(1 / mu_of(1.0, 1e-5), 4), round(1 / mu_of(1.0, 1e-5, Adjacency.REPLACE_ONE), 4)
    (3.7306, 7.4613)
    """
    return 1 / noise_multiplier(epsilon=epsilon, delta=delta, adjacency=adjacency)


def split(z: float, *shares: float) -> tuple[float, ...]:
    """`z / sqrt(share)` for each share: releases of one sample that together cost what one of multiplier z costs.

    >>> split(3.0, 0.25, 0.75)[0]
    6.0
    """
    total = math.fsum(shares)
    validate.check(abs(total - 1) < 1e-9, "shares", shares, "give shares that add up to 1")
    for share in shares:
        validate.probability(share=share)
    return tuple(z / math.sqrt(share) for share in shares)
