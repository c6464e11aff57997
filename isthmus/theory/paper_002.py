"""Sparsified, compressed and noised gradients: paper 002, and when compressing helps at all.

Paper 002 is Farokhi, "Gradient sparsification can improve performance of differentially-private convex machine
learning".  d is its n_theta, k its kappa, `bound` its Xi (every entry of a record's loss gradient lies in [-Xi, Xi]).
Its epsilon is that of one iteration: T of them cost T epsilon.
"""

from __future__ import annotations

import math

from isthmus.base import validate
from isthmus.theory.arguments import check_arguments
from isthmus.theory.schedules import Rule, Schedule


def compressive_scale(p: int, epsilon: float, *, k: int, bound: float) -> float:
    """The Laplace scale b of Algorithm 2, paper 002, in the units of the gradient: 2 Xi kappa sqrt(p) / epsilon.

    It does not fall with n: taking the largest entries of the mean can change all of them with one record.

    >>> compressive_scale(16, 2.0, k=5, bound=0.5)
    10.0
    """
    check_arguments(locals())
    return 2 * bound * k * math.sqrt(p) / epsilon


def dense_scale(d: int, epsilon: float, *, bound: float, n: int = 1) -> float:
    """The Laplace scale without sparsification, 2 Xi d / (n epsilon), what Algorithm 2 (paper 002) is compared with.

    The mean of n gradients moves by at most 2 Xi d / n in l1 when a record is replaced.  n = 1 leaves out, as the
    paper's comparison does, that it falls with n.

    >>> dense_scale(100, 2.0, bound=0.5), dense_scale(100, 2.0, bound=0.5, n=10)
    (50.0, 5.0)
    """
    check_arguments(locals())
    return 2 * bound * d / (n * epsilon)


def laplace_noise(p: int, scale: float) -> float:
    """E ||e||^2 = 2 p b^2 for p independent Laplace numbers of scale b: what Proposition 2 of paper 002 bounds.

    At its b = sqrt(p) / epsilon this is 2 p^2 / epsilon^2, the next to last line of the proof, without the false
    p exp(-x) = exp(-x log p) on the way there.

    >>> laplace_noise(20, 0.5)
    10.0
    """
    check_arguments(locals(), scale=validate.non_negative)
    return 2 * p * scale**2


def sparse_schedule(diameter: float, gradient_bound: float, *, rounds: int | None = None) -> Schedule:
    """rho_k = c / sqrt(k) with c = D / (sqrt(2) G): Theorem 1, paper 002.

    Its footnote prints D / (2 G); the c that minimises D^2 / (2 c) + c G^2, and that the proof takes, is this one.
    The experiments take rho_k = 0.1 / sqrt(k).

    >>> round(sparse_schedule(2.0, 2**0.5).step(3), 12)
    0.5
    """
    validate.positive(diameter=diameter, gradient_bound=gradient_bound)
    return Schedule(Rule(diameter / (math.sqrt(2) * gradient_bound), power=0.5), None, rounds=rounds)
