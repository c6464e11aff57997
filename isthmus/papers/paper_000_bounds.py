"""The bounds behind Theorems 2-10 of paper 000 with their explicit constants, for any step rule.

`step` gives eta of round t = 0, 1, ..., and w_T is the papers' w_T: the start w_1 and T - 1 rounds.  Divergences are
bounds on ||w_T - w'_T|| of two runs on samples that differ in one of n records; uniform stability is L times that.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from isthmus.base import validate
from isthmus.papers.arguments import check_arguments, harmonic

NumberOfRound = Callable[[int], float]


def smooth_divergence(rounds: int, *, n: int, lipschitz: float, step: NumberOfRound) -> float:
    """E ||w_T - w'_T|| <= (2 L / n) sqrt(T) sum_{t<T} eta_t / sqrt(t): (21) and (87), paper 000.

    At beta_t = 1/(t + 1), for smooth losses: CompSGD (Theorem 2), CompGD (Theorem 5) and CompMinibatch of any batch
    size (Theorem 9).  With eta / sqrt(t) it is (2 eta L / n) sqrt(T) H_{T-1}; constant, at most 4 eta L T / n.

    >>> smooth_divergence(4, n=10, lipschitz=5.0, step=lambda t: 1 / (t + 1) ** 0.5)
    3.6666666666666665
    """
    _check(rounds, n, lipschitz)
    total = math.fsum(step(t - 1) / math.sqrt(t) for t in range(1, rounds))
    return 2 * lipschitz / n * math.sqrt(rounds) * total


def sgd_divergence(rounds: int, *, n: int, lipschitz: float, step: NumberOfRound) -> float:
    """The root of E ||w_T - w'_T||^2 for CompSGD without smoothness: (33), Theorem 3, paper 000.

        E ||w_T - w'_T||^2 <= L^2 (4 + 4 (1 + T/n) / n) sum_{t<T} (T/t) (1 + 1/T)^{T - t - 1} eta_t^2

    >>> sgd_divergence(2, n=1, lipschitz=1.0, step=lambda t: 8**-0.5)
    2.0
    """
    _check(rounds, n, lipschitz)
    T = rounds
    total = math.fsum(T / t * (1 + 1 / T) ** (T - t - 1) * step(t - 1) ** 2 for t in range(1, T))
    return lipschitz * math.sqrt((4 + 4 * (1 + T / n) / n) * total)


def nonsmooth_divergence(rounds: int, *, n: int, lipschitz: float, step: NumberOfRound) -> float:
    """||w_T - w'_T|| without smoothness, CompGD (Theorem 7) and CompMinibatch (Theorem 10): (63), paper 000.

        2 L sqrt(T) sqrt(sum_{t<T} eta_t^2 / t) + (2 L T / n) sum_{t<T} eta_t / t

    The paper's step from (66), x <= 2 a + sqrt(b), proves 4 L T / n here.  The printed form holds all the same: the
    recursion (97) gives x <= a' + sqrt(b) with a' = `smooth_divergence`, which is at most a.

    >>> nonsmooth_divergence(4, n=12, lipschitz=3.0, step=lambda t: (t + 1.0)) == 12 * 6**0.5 + 6
    True
    """
    _check(rounds, n, lipschitz)
    etas = [(t, step(t - 1)) for t in range(1, rounds)]
    squares = math.fsum(eta**2 / t for t, eta in etas)
    first = 2 * lipschitz * math.sqrt(rounds * squares)
    return first + 2 * lipschitz * rounds / n * math.fsum(eta / t for t, eta in etas)


def smooth_divergence_path(
    rounds: int, *, n: int, lipschitz: float, step: NumberOfRound, beta: NumberOfRound
) -> np.ndarray:
    """The recursion (86) of Theorems 2, 5 and 9 (paper 000) after 0, 1, ..., `rounds` rounds, for any beta_t < 1.

        delta_{t+1} = (delta_t + 2 L eta_t / n) / sqrt(1 - beta_t)

    Entry T - 1 is `smooth_divergence(T)` at beta_t = 1/(t + 2), t from 0.

    >>> smooth_divergence_path(2, n=2, lipschitz=1.0, step=lambda t: 1.0, beta=lambda t: 0.75)
    array([0., 2., 6.])
    """
    _check(rounds, n, lipschitz)
    path = np.zeros(rounds + 1)
    for t in range(rounds):
        path[t + 1] = (path[t] + 2 * lipschitz * step(t) / n) / math.sqrt(_keep(beta, t))
    return path


def nonsmooth_divergence_path(
    rounds: int, *, n: int, lipschitz: float, step: NumberOfRound, beta: NumberOfRound
) -> np.ndarray:
    """The recursion (97), (107) of Theorems 7 and 10 (paper 000) after 0, 1, ..., `rounds` rounds, any beta_t < 1.

        delta_{t+1}^2 = (delta_t^2 + 4 L eta_t (delta_t / n + L eta_t)) / (1 - beta_t)

    CompSGD is the batch of one.  Entry T - 1 is at most `nonsmooth_divergence(T)` at beta_t = 1/(t + 2), t from 0.

    >>> nonsmooth_divergence_path(1, n=2, lipschitz=1.0, step=lambda t: 1.0, beta=lambda t: 0.75)
    array([0., 4.])
    """
    _check(rounds, n, lipschitz)
    path = np.zeros(rounds + 1)
    for t in range(rounds):
        move = lipschitz * step(t)
        path[t + 1] = math.sqrt((path[t] ** 2 + 4 * move * (path[t] / n + move)) / _keep(beta, t))
    return path


def optimisation_bound(rounds: int, *, diameter: float, lipschitz: float, step: NumberOfRound) -> float:
    """E F_S(w_bar) - F_S(w*) <= (||C||^2 H_{T+1} + L^2 sum eta_t^2) / (2 sum eta_t), sums to T, at beta_t = 1/(t + 1).

    Theorems 6 (CompGD), 8 (CompMinibatch) and 16 (CompSGD), paper 000, before their O(.); H_{T+1} is 1 + sum beta_t.
    Theorem 6 prints 4 L^2 in (90), where ||grad F_S||^2 <= L^2 gives L^2.

    >>> optimisation_bound(1, diameter=2.0, lipschitz=3.0, step=lambda t: 1.0)
    7.5
    """
    check_arguments(locals(), step=None)
    etas = [step(t) for t in range(rounds)]
    squares = math.fsum(eta**2 for eta in etas)
    return (diameter**2 * harmonic(rounds + 1) + lipschitz**2 * squares) / (2 * math.fsum(etas))


def smooth_optimisation_bound(rounds: int, *, diameter: float, smoothness: float, step: float | None = None) -> float:
    """E F_S(w_bar) - F_S(w*) <= ||C||^2 H_{T+1} / (2 eta (1 - mu eta) T) of CompGD: Theorem 4, paper 000.

    Before its O(.); `step` is eta <= 1/(2 mu), the default.  The proof takes
    ||grad F_S(w)||^2 <= 2 mu (F_S(w) - F_S(w*)), which needs grad F_S(w*) = 0: a minimiser that C does not hold back.

    >>> smooth_optimisation_bound(1, diameter=2.0, smoothness=1.0)
    12.0
    """
    check_arguments(locals(), step=None)
    eta = 1 / (2 * smoothness) if step is None else step
    validate.positive(step=eta)
    validate.at_most(1 / (2 * smoothness), "1 / (2 smoothness)", step=eta)
    return diameter**2 * harmonic(rounds + 1) / (2 * eta * (1 - smoothness * eta) * rounds)


def _keep(beta: NumberOfRound, t: int) -> float:
    value = beta(t)
    validate.check(0 <= value < 1, f"beta({t})", value, "give a number of at least 0 and below 1")
    return 1 - value


def _check(rounds: int, n: int, lipschitz: float) -> None:
    check_arguments(locals())
