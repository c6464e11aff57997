"""How many records PrivSGD needs: Corollaries C.2 and C.3 and Tables 1 and 4 of paper 001.

Utility only: the corollaries take sigma^2 = 32 L^2 T log(1/delta) / (n^2 epsilon^2), whose claim of privacy has a gap
(the proof bounds the sensitivity by 2 L and uses 2 L / n); another sigma with the same 1/n changes the constant.
"""

from __future__ import annotations

import math

from isthmus.base import validate
from isthmus.papers.arguments import check_arguments, log_inverse
from isthmus.papers.paper_001_rates import mapping_beta, mapping_plan, stationary_beta, stationary_plan
from isthmus.papers.schedules import Schedule, round_up


def private_stationary_schedule(
    accuracy: float,
    *,
    smoothness: float,
    diameter: float,
    lipschitz: float,
    gap: float,
    failure: float = 0.1,
    constant: float = 1.0,
) -> Schedule:
    """eta = 1/mu, beta, T and the threshold of Corollary C.2, paper 001; T up to a constant.

    Theorem 2.4 with G = L, on full batches (`batch` has no meaning here).

    >>> plan = private_stationary_schedule(1.0, smoothness=1.0, diameter=1.0, lipschitz=1.0, gap=0.5)
    >>> plan.step(5), plan.beta(5), plan.rounds, plan.threshold
    (1.0, 0.00390625, 20, 0.5)
    """
    problem = {"smoothness": smoothness, "diameter": diameter, "gradient_bound": lipschitz}
    return stationary_plan(accuracy, problem, gap, failure, constant)


def private_mapping_schedule(
    accuracy: float, *, smoothness: float, diameter: float, lipschitz: float, gap: float, constant: float = 1.0
) -> Schedule:
    """eta = 1/(2 mu), beta and T of Corollary C.3, paper 001; T up to a constant.

    Theorem B.5 with G = L, on full batches (`batch` has no meaning here).

    >>> plan = private_mapping_schedule(1.0, smoothness=2.0, diameter=5.0, lipschitz=1.0, gap=4.0)
    >>> plan.step(0), plan.beta(0), plan.rounds
    (0.25, 0.1, 8)
    """
    return mapping_plan(accuracy, smoothness, diameter, lipschitz, gap, constant)


def stationary_samples(
    accuracy: float,
    *,
    smoothness: float,
    diameter: float,
    lipschitz: float,
    rounds: int,
    epsilon: float,
    delta: float,
    d: int,
    width: float | None = None,
    failure: float = 0.1,
    constant: float = 1.0,
) -> int:
    """The n that makes an alpha-FOSP, up to a constant: Corollary C.2, Table 1, row 1 of Table 4, paper 001.

        n = min(w(C) / beta, sqrt(d)) ||C|| (L + mu ||C||)^2 L sqrt(T log(1/delta)) / (sqrt(rho) alpha^2 mu epsilon)

    It is Theorem 2.4 with ||e|| = sigma sqrt(m) for zeta / sqrt(b) (the text says sigma), so sqrt(32) goes into the
    constant.  beta is that of the corollary: it falls as alpha^2, and w(C) / beta < sqrt(d) needs d > (w(C) / beta)^2.
    The sketch says E[s_t] = 1; what it needs is E <Phi v, s_t Phi g> = C_m <v, g>, `shrinkage`.

    rounds  T, as in `private_stationary_schedule`
    width   w(C); None is the column of DP-SGD, sqrt(d)

    >>> problem = {"smoothness": 1.0, "diameter": 1.0, "lipschitz": 1.0, "rounds": 16, "failure": 0.25}
    >>> budget = {"epsilon": 0.5, "delta": math.exp(-4)}
    >>> [stationary_samples(1.0, **problem, **budget, d=10**6, width=w) for w in (None, 1.0, 100.0)]
    [128000, 32768, 128000]
    """
    log = log_inverse(epsilon, delta)
    check_arguments(locals(), width=None)
    beta = stationary_beta(accuracy, smoothness=smoothness, diameter=diameter, gradient_bound=lipschitz)
    reach = diameter * (lipschitz + smoothness * diameter) ** 2 / (accuracy**2 * smoothness)
    spread = lipschitz * math.sqrt(rounds * log) / (math.sqrt(failure) * epsilon)
    return max(1, round_up(constant * _root_dimension(d, width, beta) * reach * spread))


def mapping_samples(
    accuracy: float,
    *,
    smoothness: float,
    diameter: float,
    lipschitz: float,
    rounds: int,
    epsilon: float,
    delta: float,
    d: int,
    width: float | None = None,
    constant: float = 1.0,
) -> int:
    """The n for an alpha compressed gradient mapping, up to a constant: Corollary C.3, row 2 of Table 4, paper 001.

        n = min(w(C) / beta, sqrt(d)) (L sqrt(T log(1/delta)) / epsilon) max(mu ||C|| / alpha^2, 1 / alpha)

    Table 4 keeps the first term of the maximum, which is the larger when alpha <= mu ||C||.

    rounds  T, as in `private_mapping_schedule`
    width   w(C); None is the column of DP-SGD, sqrt(d)

    >>> problem = {"smoothness": 1.0, "diameter": 2.0, "lipschitz": 1.0, "rounds": 16, "d": 10**6}
    >>> [mapping_samples(0.5, **problem, width=w, epsilon=0.5, delta=math.exp(-4)) for w in (None, 1.0)]
    [128000, 1024]
    """
    log = log_inverse(epsilon, delta)
    check_arguments(locals(), width=None)
    beta = mapping_beta(accuracy, smoothness=smoothness, diameter=diameter, gradient_bound=lipschitz)
    reach = max(smoothness * diameter / accuracy**2, 1 / accuracy)
    spread = lipschitz * math.sqrt(rounds * log) / epsilon
    return max(1, round_up(constant * _root_dimension(d, width, beta) * reach * spread))


def _root_dimension(d: int, width: float | None, beta: float) -> float:
    """min(w(C) / beta, sqrt(d))."""
    check_arguments(locals(), width=None if width is None else validate.positive)
    return math.sqrt(d) if width is None else min(width / beta, math.sqrt(d))
