"""Optimisation and generalisation of CompSGD, CompGD and CompMinibatch: the rates, steps and T of paper 000.

`algorithm` is "sgd" (the uncompressed rows of Tables 1 and 2), "comp_sgd", "comp_gd" or "comp_minibatch".  Bounds with
explicit constants are in `isthmus.theory.paper_000_bounds`.

DP-CompGD and DP-CompMiniBatch: the steps, T, rates and bounds of Theorems 11-15 (paper 000).

`algorithm` is "dp_comp_gd" or "dp_comp_minibatch".  `noise` is sigma, the standard deviation of each released
coordinate of the mean gradient.  These are statements on utility: bounds hold for any sigma, rates take the sigma of
Algorithms 4 and 5 up to a constant, and the sigma of a run comes from its accountant, not from here.

The bounds behind Theorems 2-10 of paper 000 with their explicit constants, for any step rule.

`step` gives eta of round t = 0, 1, ..., and w_T is the papers' w_T: the start w_1 and T - 1 rounds.  Divergences are
bounds on ||w_T - w'_T|| of two runs on samples that differ in one of n records; uniform stability is L times that.

Uniform stability, measured: runs on neighbouring samples with the same randomness (Definition 1, paper 000).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.randomness import key
from isthmus.core.minimize import Binding, Recipe, minimize
from isthmus.core.pipeline import Pipeline
from isthmus.penalties import NoPenalty
from isthmus.sets import ConvexSet, Whole
from isthmus.theory.schedules import (
    ALGORITHMS,
    COMPRESSED,
    PRIVATE,
    check_arguments,
    log_inverse,
)
from lab.theory.paper_001 import direction_width
from lab.theory.schedules import check_sizes, dimension_at, log_over_root, rounds_until_full


def _harmonic(k: int) -> float:
    """H_k = 1 + 1/2 + ... + 1/k."""
    return math.fsum(1 / i for i in range(1, k + 1))


def shrinkage(m: int) -> float:
    """C_m = sqrt(2) Gamma((m + 1)/2) / (Gamma(m/2) sqrt(m)), in [sqrt(m / (m + 1)), 1): Lemma 4, paper 000.

    E <Phi v, (||g|| / ||Phi g||) Phi g> = C_m <v, g> for Phi in R^{m x d} with entries N(0, 1/m).

    >>> round(shrinkage(1) ** 2 * math.pi, 12), round(shrinkage(2) ** 2 * 4 / math.pi, 12)
    (2.0, 1.0)
    """
    validate.positive_int(m=m)
    return direction_width(m) / math.sqrt(m)


def expansiveness(beta: float) -> float:
    """||w_{t+1} - w'_{t+1}|| <= ||w_t - w'_t|| / sqrt(1 - beta_t) on the same example: Lemma 2, paper 000.

    For a smooth loss and eta_t <= 2/mu.  It rests on Lemma 1, which has the caveat of Lemma 2.2 of paper 001 (see
    `narrow_dimension`).

    >>> expansiveness(0.75)
    2.0
    """
    validate.check(0 <= beta < 1, "beta", beta, "give a number of at least 0 and below 1")
    return 1 / math.sqrt(1 - beta)


def boundedness(beta: float, step: float, lipschitz: float) -> float:
    """||w_{t+1} - w_t|| <= eta_t L / sqrt(1 - beta_t): Lemma 3, paper 000.

    >>> boundedness(0.75, 0.5, 3.0)
    3.0
    """
    validate.positive(step=step, lipschitz=lipschitz)
    return step * lipschitz * expansiveness(beta)


def weighted_average(points: Sequence[Sequence[float]] | np.ndarray, steps: Sequence[float] | np.ndarray) -> np.ndarray:
    """The output sum_t eta_t w_t / sum_t eta_t of every theorem of paper 000 (section 2.2).

    >>> weighted_average([[1.0, 0.0], [4.0, 3.0]], [1.0, 2.0])
    array([3., 2.])
    """
    stack, weights = np.asarray(points, dtype=float), np.asarray(steps, dtype=float)
    validate.check(
        weights.shape == stack.shape[:1],
        "steps.shape",
        weights.shape,
        f"give one step for each point, which is shape {stack.shape[:1]}",
    )
    validate.check(
        bool((weights >= 0).all()) and weights.sum() > 0,
        "steps",
        weights,
        "give steps of at least 0, not all of them 0",
    )
    return np.asarray(weights @ stack / weights.sum())


# ---------------------------------------------------------------- Tables 1 and 2


def optimisation_rate(
    algorithm: str, rounds: int, *, smooth: bool, diameter: float = 1.0, lipschitz: float = 1.0, constant: float = 1.0
) -> float:
    """E F_S(w_bar) - F_S(w*) after T rounds, up to a constant: Table 1, paper 000.

        (||C||^2 + L^2) log T / sqrt(T)    SGD, CompSGD, CompMinibatch (Theorem 8), nonsmooth CompGD (Theorem 6)
        ||C||^2 log T / T                  smooth CompGD (Theorem 4)

    The table sets ||C|| = L = 1.  Theorem 4 uses grad F_S(w*) = 0, so w* is not held at the boundary of C.

    >>> optimisation_rate("comp_gd", 4, smooth=True) == math.log(4) / 4
    True
    >>> optimisation_rate("comp_sgd", 4, smooth=True) == math.log(4)
    True
    """
    validate.one_of(ALGORITHMS, algorithm=algorithm)
    validate.positive(diameter=diameter, lipschitz=lipschitz, constant=constant)
    order = log_over_root(rounds)
    if smooth and algorithm == "comp_gd":
        return constant * diameter**2 * order / math.sqrt(rounds)
    return constant * (diameter**2 + lipschitz**2) * order


def small_step_rate(rounds: int, *, diameter: float = 1.0, lipschitz: float = 1.0, constant: float = 1.0) -> float:
    """The optimisation error at eta_t = eta / T^{3/4}, up to a constant: Theorem 16, paper 000.

        ||C||^2 log T / T^{1/4} + L^2 / T^{3/4}

    as its proof has it in (27); the theorem prints L^2 / T^{1/4}.

    >>> round(small_step_rate(16), 12) == round(math.log(16) / 2 + 1 / 8, 12)
    True
    """
    validate.positive(diameter=diameter, lipschitz=lipschitz, constant=constant)
    order = float(log_over_root(rounds) * rounds**0.25)
    return float(constant * (diameter**2 * order + lipschitz**2 / rounds**0.75))


def stability_rate(algorithm: str, n: int, *, smooth: bool, lipschitz: float = 1.0, constant: float = 1.0) -> float:
    """Uniform stability at the T and step of `goal_schedule`, up to a constant: part 1 of six theorems, paper 000.

        L^2 log n / sqrt(n)          Theorem 2 (CompSGD, smooth), 7 (CompGD), 9 and 10 (CompMinibatch)
        L^2 sqrt(log n) / sqrt(n)    Theorem 3 (CompSGD)
        L^2 / sqrt(n)                Theorem 5 (CompGD, smooth)

    Theorem 7 prints "mu-smooth" among its assumptions; it is the nonsmooth case.  Theorems 7 and 10 hold with
    sqrt(log n) too, by the sharper form that `nonsmooth_divergence` tells of.

    >>> stability_rate("comp_gd", 100, smooth=True)
    0.1
    """
    validate.one_of(COMPRESSED, algorithm=algorithm)
    validate.positive(lipschitz=lipschitz, constant=constant)
    power = {("comp_gd", True): 0.0, ("comp_sgd", False): 0.5}.get((algorithm, smooth), 1.0)
    return constant * lipschitz**2 * _log_power(n, power)


def generalisation_rate(
    algorithm: str, n: int, *, smooth: bool, diameter: float = 1.0, lipschitz: float = 1.0, constant: float = 1.0
) -> float:
    """E F(w_bar) - F(w*) at the T and step of `goal_schedule`, up to a constant: Table 2, paper 000.

        (||C||^2 + L^2) log n / sqrt(n)    Theorems 2, 3, 5, 7, 9, 10, part 2
        (||C||^2 + L^2) / sqrt(n)          uncompressed SGD

    (5) of Theorem 2 prints L^2 log n / sqrt(n): the optimisation error it adds has ||C||^2 too.

    >>> generalisation_rate("sgd", 16, smooth=True), generalisation_rate("comp_sgd", 16, smooth=True) == math.log(4)
    (0.5, True)
    """
    validate.one_of(ALGORITHMS, algorithm=algorithm)
    validate.positive(diameter=diameter, lipschitz=lipschitz, constant=constant)
    return constant * (diameter**2 + lipschitz**2) * _log_power(n, 0.0 if algorithm == "sgd" else 1.0)


def excess_risk(stability: float, optimisation: float) -> float:
    """E F(A(S)) - F(w*) <= uniform stability + optimisation error: (3) and Theorem 1, paper 000.

    >>> excess_risk(0.25, 0.5)
    0.75
    """
    validate.non_negative(stability=stability, optimisation=optimisation)
    return stability + optimisation


def _log_power(n: int, power: float) -> float:
    """(log n)^power / sqrt(n)."""
    validate.positive_int(n=n)
    validate.check(n >= 2 or power == 0, "n", n, "give at least 2: the bound has a factor log n")
    return float(math.log(n) ** power) / math.sqrt(n)


def total_dimension(
    rounds: int, d: int, width: float, *, every: int = 1, offset: int = 2, constant: float = 1.0
) -> int:
    """The sum of m_t over T rounds in Theorems 13 and 15, paper 000: `dimension_at` added up, up to a constant.

    At most d T, and nearly that: m_t = d after `rounds_until_full` rounds.  T = n^2 is no trouble.

    >>> total_dimension(3, 100, 2.0), total_dimension(10**8, 100, 2.0)
    (116, 9999999816)
    """
    validate.positive_int(rounds=rounds)
    full = rounds_until_full(d, width, every=every, offset=offset, constant=constant)
    head = (dimension_at(t, d, width, every=every, offset=offset, constant=constant) for t in range(min(rounds, full)))
    return sum(head) + d * max(0, rounds - full)


# ---------------------------------------------------------------- bounds with their constants


def private_optimisation_bound(
    rounds: int, *, diameter: float, lipschitz: float, noise: float, dimension: NumberOfRound, step: NumberOfRound
) -> float:
    """E F_S(w_bar) - F_S(w*) of DP-CompGD and DP-CompMiniBatch: Theorems 11 and 14, paper 000, before their O(.).

        (||C||^2 H_{T+1} + sum_t eta_t^2 (L^2 + m_t sigma^2)) / (2 C_m sum_t eta_t)

    at beta_t = 1/(t + 1): the sum of (47) or (108), w* the minimiser in C, any step.  C_m is `shrinkage` of the
    smallest m_t (the paper keeps C_{m_t} outside the sum over t); C = 1 and sigma = 0 is `optimisation_bound`.

    >>> once = {"diameter": 2.0, "lipschitz": 3.0, "noise": 1.0, "dimension": lambda t: 3, "step": lambda t: 1.0}
    >>> round(private_optimisation_bound(1, **once) * shrinkage(3), 12)
    9.0
    """
    check_arguments(locals(), dimension=None, step=None)
    etas = [step(t) for t in range(rounds)]
    dims = [dimension(t) for t in range(rounds)]
    squares = math.fsum(eta**2 * (lipschitz**2 + m * noise**2) for eta, m in zip(etas, dims, strict=True))
    least = shrinkage(int(min(dims)))
    return (diameter**2 * _harmonic(rounds + 1) + squares) / (2 * least * math.fsum(etas))


def private_smooth_optimisation_bound(
    rounds: int, *, diameter: float, smoothness: float, noise: float, dimension: NumberOfRound, step: float
) -> float:
    """E F_S(w_bar) - F_S(w*) of smooth DP-CompGD: Theorem 12, paper 000, before its O(.), for a constant step.

        (||C||^2 H_{T+1} + eta^2 sigma^2 sum_t m_t) / (2 eta (C_m - mu eta) T),    eta <= 1/(4 mu)

    from (51) and (52), C_m as in `private_optimisation_bound`; (53) takes the weaker eta / 2 for 2 eta (C_m - mu eta).
    (52) needs grad F_S(w*) = 0: a minimiser that C does not hold back.  (54) prints ||C|| for ||C||^2.

    >>> once = {"diameter": 2.0, "noise": 1.0, "dimension": lambda t: 10**9}
    >>> round(private_smooth_optimisation_bound(1, smoothness=1.0, step=0.25, **once) / (6 + 10**9 / 16), 6)
    2.666667
    """
    check_arguments(locals(), dimension=None)
    validate.at_most(1 / (4 * smoothness), "1 / (4 smoothness)", step=step)
    dims = [dimension(t) for t in range(rounds)]
    least = shrinkage(int(min(dims))) - smoothness * step
    total = diameter**2 * _harmonic(rounds + 1) + (step * noise) ** 2 * math.fsum(dims)
    return total / (2 * step * least * rounds)


# ---------------------------------------------------------------- Tables 1 and 2


def private_optimisation_rate(
    algorithm: str,
    rounds: int,
    *,
    smooth: bool,
    dimension: int,
    n: int,
    epsilon: float,
    delta: float,
    batch: int | None = None,
    diameter: float = 1.0,
    lipschitz: float = 1.0,
    constant: float = 1.0,
) -> float:
    """E F_S(w_bar) - F_S(w*) at `private_optimisation_schedule`, up to a constant: the DP rows of Table 1, paper 000.

        ||C|| L log T (1/sqrt(T) + sqrt(m_T log(1/delta) l) / (n epsilon))                   Theorems 11, 14
        ||C|| L sqrt(m_T) (log T / T + T log(1/delta) / (n^2 epsilon^2))                     Theorem 12 (smooth)

    l = 1 for full batches and log(4 T b / (delta n)) for DP-CompMiniBatch.  Table 1 drops log T from the second term of
    Theorem 11, and log(1/delta) and b from Theorem 14; Theorem 12 drops ||C|| from its second term.

    >>> common = {"dimension": 4, "n": 10, "epsilon": 1.0, "delta": math.exp(-25)}
    >>> round(private_optimisation_rate("dp_comp_gd", 4, smooth=False, **common) / math.log(4), 12)
    1.5
    >>> round(private_optimisation_rate("dp_comp_gd", 4, smooth=True, **common) - math.log(4) / 2, 12)
    2.0
    """
    validate.one_of(PRIVATE, algorithm=algorithm)
    check_arguments(locals(), batch=None)
    log, order = log_inverse(epsilon, delta), log_over_root(rounds)
    if smooth and algorithm == "dp_comp_gd":
        private = rounds * log / (n * epsilon) ** 2
        return constant * diameter * lipschitz * math.sqrt(dimension) * (order / math.sqrt(rounds) + private)
    more = _extra_log(algorithm, rounds, batch, n, delta)
    private = math.sqrt(dimension * log * more) / (n * epsilon)
    return constant * diameter * lipschitz * (order + math.log(rounds) * private)


def private_stability_rate(n: int, *, lipschitz: float = 1.0, constant: float = 1.0) -> float:
    """Uniform stability L^2 log n / sqrt(n), up to a constant: Theorems 13 and 15, part 1, paper 000.

    At `private_generalisation_schedule`; both algorithms, any noise, since two runs share it.  The theorems print L:
    the distance is O(L log n / sqrt(n)) and (55), (110) multiply it by L again.  Before its O(.) it is L times
    `nonsmooth_divergence`, the same (63).

    >>> private_stability_rate(16, lipschitz=2.0) == math.log(16)
    True
    """
    validate.positive(lipschitz=lipschitz, constant=constant)
    validate.check(n >= 2, "n", n, "give at least 2: the bound has a factor log n")
    return constant * lipschitz**2 * log_over_root(n)


def private_generalisation_rate(
    algorithm: str,
    n: int,
    *,
    total: float,
    epsilon: float,
    delta: float,
    batch: int | None = None,
    diameter: float = 1.0,
    lipschitz: float = 1.0,
    constant: float = 1.0,
) -> float:
    """E F(w_bar) - F(w*) at `private_generalisation_schedule`, up to a constant: Theorems 13, 15, part 2, paper 000.

        (||C||^2 + L^2) log n / sqrt(n) + L^2 log(1/delta) l / (n^{7/2} epsilon^2) sum_{t <= n^2} m_t

    l = 1 for DP-CompGD, log(4 n b / delta) for DP-CompMiniBatch (T = n^2).  Theorem 13 drops the last L^2.  Table 2
    drops the sum and prints n^{3/2} for n^{7/2}, which is m_t = 1: too small by the mean m_t, up to d; for batches it
    also drops log(1/delta) and b.

    total  the sum of m_t: `total_dimension(n**2, d, width)`, or n^2 m when m is fixed

    >>> common = {"epsilon": 1.0, "delta": math.exp(-2)}
    >>> plain = 2 * math.log(16) / 4
    >>> round(private_generalisation_rate("dp_comp_gd", 16, total=256 * 32, **common) - plain, 12)
    1.0
    """
    validate.one_of(PRIVATE, algorithm=algorithm)
    validate.positive(total=total, diameter=diameter, lipschitz=lipschitz, constant=constant)
    validate.check(n >= 2, "n", n, "give at least 2: the bound has a factor log n")
    validate.check(total >= n**2, "total", total, f"give the sum over n^2 = {n**2} rounds of m_t >= 1")
    log, more = log_inverse(epsilon, delta), _extra_log(algorithm, n**2, batch, n, delta)
    private = lipschitz**2 * log * more * total / (float(n**3.5) * epsilon**2)
    return constant * ((diameter**2 + lipschitz**2) * log_over_root(n) + private)


def _extra_log(algorithm: str, rounds: int, batch: int | None, n: int, delta: float) -> float:
    """log(4 T b / (delta n)) of Theorems 14 and 15; 1 for full batches."""
    if algorithm == "dp_comp_gd":
        return 1.0
    validate.check(batch is not None, "batch", batch, "give the batch size of dp_comp_minibatch")
    size = batch or 0
    validate.positive_int(batch=size)
    validate.at_most(n, "n", batch=size)
    inner = 4 * rounds * size / (delta * n)
    validate.check(inner > 1, "rounds", rounds, "give more: log(4 T b / (delta n)) must be > 0")
    return math.log(inner)


NumberOfRound = Callable[[int], float]


def smooth_divergence(rounds: int, *, n: int, lipschitz: float, step: NumberOfRound) -> float:
    """E ||w_T - w'_T|| <= (2 L / n) sqrt(T) sum_{t<T} eta_t / sqrt(t): (21) and (87), paper 000.

    At beta_t = 1/(t + 1), for smooth losses: CompSGD (Theorem 2), CompGD (Theorem 5) and CompMinibatch of any batch
    size (Theorem 9).  With eta / sqrt(t) it is (2 eta L / n) sqrt(T) H_{T-1}; constant, at most 4 eta L T / n.

    >>> smooth_divergence(4, n=10, lipschitz=5.0, step=lambda t: 1 / (t + 1) ** 0.5)
    3.6666666666666665
    """
    check_sizes(rounds, n, lipschitz)
    total = math.fsum(step(t - 1) / math.sqrt(t) for t in range(1, rounds))
    return 2 * lipschitz / n * math.sqrt(rounds) * total


def sgd_divergence(rounds: int, *, n: int, lipschitz: float, step: NumberOfRound) -> float:
    """The root of E ||w_T - w'_T||^2 for CompSGD without smoothness: (33), Theorem 3, paper 000.

        E ||w_T - w'_T||^2 <= L^2 (4 + 4 (1 + T/n) / n) sum_{t<T} (T/t) (1 + 1/T)^{T - t - 1} eta_t^2

    >>> sgd_divergence(2, n=1, lipschitz=1.0, step=lambda t: 8**-0.5)
    2.0
    """
    check_sizes(rounds, n, lipschitz)
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
    check_sizes(rounds, n, lipschitz)
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
    check_sizes(rounds, n, lipschitz)
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
    check_sizes(rounds, n, lipschitz)
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
    return (diameter**2 * _harmonic(rounds + 1) + lipschitz**2 * squares) / (2 * math.fsum(etas))


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
    return diameter**2 * _harmonic(rounds + 1) / (2 * eta * (1 - smoothness * eta) * rounds)


def _keep(beta: NumberOfRound, t: int) -> float:
    value = beta(t)
    validate.check(0 <= value < 1, f"beta({t})", value, "give a number of at least 0 and below 1")
    return 1 - value


Problem = Any | tuple[Any, Any] | Callable[[int | None], Any]


@dataclass(frozen=True, eq=False)
class Stability:
    """||w_t - w'_t|| after t = 0..steps rounds, for every seed and every replaced record.

    distances  an array of shape (seeds, neighbours, steps + 1)

    >>> measured = Stability(np.array([[[0.0, 1.0], [0.0, 4.0]], [[0.0, 3.0], [0.0, 2.0]]]))
    >>> measured.mean, measured.worst
    (array([[0., 2.],
           [0., 3.]]), array([0., 3.]))
    """

    distances: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """The expectation over the randomness of the algorithm, a row a neighbour."""
        return np.asarray(self.distances.mean(axis=0))

    @property
    def worst(self) -> np.ndarray:
        """The largest mean over the neighbours: what uniform stability bounds, up to the Lipschitz constant."""
        return np.asarray(self.mean.max(axis=0))

    def growth(self, start: int = 1) -> float:
        """The least-squares slope of log `worst` against log t from round `start` on: the exponent of t.

        >>> round(Stability(np.arange(9.0)[None, None] ** 2).growth(), 12)
        2.0
        """
        validate.positive_int(start=start)
        t = np.arange(start, len(self.worst))
        values = self.worst[start:]
        positive = values > 0
        validate.check(int(positive.sum()) >= 2, "start", start, "leave at least two rounds with a positive distance")
        return float(np.polyfit(np.log(t[positive]), np.log(values[positive]), 1)[0])


def uniform_stability(
    problem: Problem,
    recipe: Recipe | Pipeline,
    constraint: ConvexSet | None = None,
    *,
    steps: int,
    replaced: Sequence[int] = (0,),
    seeds: Sequence[int] = (0,),
    x0: Any = None,
    noise_seed: int | None = None,
) -> Stability:
    """Run a recipe on a sample and on its neighbours, each pair with the same seed, and follow ||w_t - w'_t||.

    The distances are to be held against `smooth_divergence` and its kin (Theorems 2, 3, 5, 7, 9, 10, paper 000), those
    of private recipes against `nonsmooth_divergence` (Theorems 13, 15).

    problem   an objective with `X` and `y`, whose records `replaced` are each overwritten (`replace_record`); or a
              function of None (the sample) or i (the sample with record i replaced) that returns an objective; or a
              pair (objective, neighbour), and then `replaced` does not count
    seeds     public randomness (sketches and batches)
    noise_seed  of private recipes, which are refused without: both runs of a pair share their noise and coins, as the
                theorems do, and neither is private

    >>> from isthmus import LeastSquares, algorithms
    >>> pair = LeastSquares([[1.0], [1.0]], [0.0, 0.0]), LeastSquares([[1.0], [1.0]], [0.0, 2.0])
    >>> uniform_stability(pair, algorithms.gd(step=0.5), steps=2).worst
    array([0.  , 0.5 , 0.75])
    """
    validate.positive_int(steps=steps)
    validate.check(len(seeds) > 0, "seeds", seeds, "give at least one seed")
    sample, neighbours = _neighbours(problem, replaced)
    bare = noise_seed is not None or not _is_private(sample, recipe, constraint, steps)
    remedy = "give a noise_seed, which the runs of a pair share: a private recipe draws its own noise in every run"
    validate.check(bare, "noise_seed", noise_seed, remedy)
    size = sample.n, sample.space.d
    for neighbour in neighbours:
        shape = neighbour.n, neighbour.space.d
        validate.check(shape == size, "problem", shape, f"give a neighbour with n, d = {size}")
    distances = np.zeros((len(seeds), len(neighbours), steps + 1))
    for row, seed in zip(distances, seeds, strict=True):
        terms = (recipe, constraint, steps, seed, x0, None if noise_seed is None else key(noise_seed, seed))
        path = _iterates(sample, *terms)
        for line, neighbour in zip(row, neighbours, strict=True):
            moved = _iterates(neighbour, *terms)
            line[1:] = torch.linalg.vector_norm(path - moved, dim=1).numpy()
    return Stability(distances)


def replace_record(objective: Any, index: int, record: tuple[Any, Any] | None = None) -> Any:
    """The same objective with record `index` of `X`, `y` replaced: a neighbouring sample.

    record  the new (x, y), y as the objective holds it; by default a copy of the record half the sample away

    >>> from isthmus import LeastSquares
    >>> other = replace_record(LeastSquares([[1.0], [2.0], [3.0]], [0.0, 0.0, 1.0]), 2, ([5.0], 7.0))
    >>> other.X.flatten().tolist(), other.y.tolist()
    ([1.0, 2.0, 5.0], [0.0, 0.0, 7.0])
    """
    replaceable = isinstance(getattr(objective, "X", None), Tensor) and isinstance(
        getattr(objective, "y", None), Tensor
    )
    validate.check(
        replaceable,
        "objective",
        objective,
        "give a pair, or a function that replaces a record: this objective has no dense X and y",
    )
    validate.non_negative_int(index=index)
    validate.at_most(objective.n - 1, "n - 1", index=index)
    neighbour = copy.copy(objective)
    neighbour.X, neighbour.y = objective.X.clone(), objective.y.clone()
    donor = (index + max(1, objective.n // 2)) % objective.n
    x, y = (objective.X[donor], objective.y[donor]) if record is None else record
    neighbour.X[index], neighbour.y[index] = torch.as_tensor(x).to(neighbour.X), torch.as_tensor(y).to(neighbour.y)
    getattr(neighbour, "forget", int)()  # the norms of the rows as they were
    return neighbour


def _neighbours(problem: Problem, replaced: Sequence[int]) -> tuple[Any, list[Any]]:
    if isinstance(problem, tuple):
        validate.check(len(problem) == 2, "problem", problem, "give a pair (objective, neighbour)")
        return problem[0], [problem[1]]
    validate.check(len(replaced) > 0, "replaced", replaced, "give at least one record")
    if not hasattr(problem, "rows"):
        validate.check(callable(problem), "problem", problem, "give an objective, a pair or a function")
        return problem(None), [problem(i) for i in replaced]
    return problem, [replace_record(problem, i) for i in replaced]


def _is_private(objective: Any, recipe: Recipe | Pipeline, constraint: ConvexSet | None, steps: int) -> bool:
    """Whether a recipe adds noise, from its pipeline alone."""
    if isinstance(recipe, Pipeline):
        return recipe.private
    penalty = getattr(objective, "penalty", None) or NoPenalty()
    return recipe.bind(Binding(constraint or Whole(), penalty, objective.space, objective.n, steps, None)).private


def _iterates(
    objective: Any, recipe: Any, constraint: Any, steps: int, seed: int, x0: Any, noise_seed: int | None
) -> Tensor:
    """w after rounds 1..steps; a run that stops early stays where it stopped."""
    path: list[Tensor] = []

    def keep(record: dict[str, Any], state: Any) -> None:
        path.append(state.w.detach().to("cpu", torch.float64))

    result = minimize(
        objective,
        recipe,
        constraint,
        steps=steps,
        seed=seed,
        x0=x0,
        record=1,
        callbacks=[keep],
        progress=False,
        noise_seed=noise_seed,
    )
    end = result.state.w.detach().to("cpu", torch.float64)
    return torch.stack(path + [end] * (steps - len(path)))
