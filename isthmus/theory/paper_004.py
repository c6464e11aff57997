"""Private gradients in a subspace learned from public ones: Theorems 2, 3, 4 and 6 of paper 004.

Paper 004 is Zhou, Wu and Banerjee, "Bypassing the ambient dimension: private SGD with gradient subspace identification"
(PDP-SGD).  V is the top-k eigenspace of the second moment Sigma_t of gradients over the population, V^ that of the
second moment M_t of m public examples, alpha_t = lambda_k(Sigma_t) - lambda_{k+1}(Sigma_t) the eigen-gap.  Utility
only: the noise of a run comes from its accountant.  All constants must be public.

    c_0      `concentration_scale`, the scale of sqrt(m) ||M_t - Sigma_t||
    gamma_2  the complexity of the set of iterates (or, with smoothness 1, of mean gradients): its Gaussian width up to
             a constant, `isthmus.L2Ball(r).gaussian_width(d)` or `ellipsoid_gamma2`
    gaps     the alpha_t of the rounds; one number when they are all alike
"""

from __future__ import annotations

import math

from isthmus.theory.arguments import check_arguments
from isthmus.theory.schedules import Rule, Schedule, round_up

# ---------------------------------------------------------------- the noise


def subspace_schedule(n: int, epsilon: float) -> Schedule:
    """T = n^2 epsilon^2 and eta_t = 1 / sqrt(T): Theorems 4 and 6, paper 004.  T is rounded up, at least 1.

    The theorems say nothing of the batch.  Output: a uniformly random iterate (Theorem 4), the average (Theorem 6).

    >>> plan = subspace_schedule(100, 0.5)
    >>> plan.rounds, plan.step(0)
    (2500, 0.02)
    """
    check_arguments(locals())
    rounds = max(1, round_up((n * epsilon) ** 2))
    return Schedule(step=Rule(1 / math.sqrt(rounds)), beta=None, rounds=rounds)
