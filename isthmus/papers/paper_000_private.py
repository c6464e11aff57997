"""DP-CompGD and DP-CompMiniBatch: the steps, T, rates and bounds of Theorems 11-15 (paper 000).

`algorithm` is "dp_comp_gd" or "dp_comp_minibatch".  `noise` is sigma, the standard deviation of each released
coordinate of the mean gradient.  These are statements on utility: bounds hold for any sigma, rates take the sigma of
Algorithms 4 and 5 up to a constant, and the sigma of a run comes from its accountant, not from here.
"""

from __future__ import annotations

import math

from isthmus.base import validate
from isthmus.papers.arguments import check_arguments, harmonic, log_inverse, log_over_root
from isthmus.papers.paper_000_bounds import NumberOfRound
from isthmus.papers.paper_000_rates import shrinkage
from isthmus.papers.schedules import Rule, Schedule, dimension_at, rounds_until_full

PRIVATE = ("dp_comp_gd", "dp_comp_minibatch")


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


# ---------------------------------------------------------------- steps and T by goal


def private_optimisation_schedule(
    algorithm: str,
    *,
    diameter: float,
    lipschitz: float,
    dimension: int,
    noise: float,
    smoothness: float | None = None,
    rounds: int | None = None,
) -> Schedule:
    """The steps of Theorems 11, 12 and 14 (Table 1) with beta_t = 1/(t + 1) (papers' t), paper 000.

        ||C|| / sqrt(t (L^2 + m_T sigma^2))    DP-CompGD (Theorem 11); DP-CompMiniBatch, smooth or not (Theorem 14)
        ||C|| / (L sqrt(m_T))                  smooth DP-CompGD (Theorem 12), at most 1/(4 mu)

    Theorem 12 assumes its step to be below 1/(4 mu); here it is cut to that (Remark 6 leaves constants free).

    dimension   m_T, the largest m_t
    noise       sigma; the step of Theorem 12 does not use it
    smoothness  mu; None when the loss is not smooth

    >>> plan = private_optimisation_schedule("dp_comp_gd", diameter=10.0, lipschitz=3.0, dimension=4, noise=2.0)
    >>> plan.step(0), plan.step(3), plan.beta(0)
    (2.0, 1.0, 0.5)
    >>> problem = {"diameter": 10.0, "lipschitz": 5.0, "dimension": 4, "noise": 2.0}
    >>> [private_optimisation_schedule("dp_comp_gd", smoothness=mu, **problem).step(9) for mu in (0.125, 0.5)]
    [1.0, 0.5]
    """
    validate.one_of(PRIVATE, algorithm=algorithm)
    check_arguments(locals(), smoothness=None, rounds=None)
    beta = Rule(1.0, power=1.0, offset=2)
    if smoothness is not None and algorithm == "dp_comp_gd":
        validate.positive(smoothness=smoothness)
        eta = min(diameter / (lipschitz * math.sqrt(dimension)), 1 / (4 * smoothness))
        return Schedule(Rule(eta), beta, rounds=rounds)
    eta = diameter / math.hypot(lipschitz, math.sqrt(dimension) * noise)
    return Schedule(Rule(eta, power=0.5), beta, rounds=rounds)


def private_generalisation_schedule(n: int, *, scale: float = 1.0, rounds: int | None = None) -> Schedule:
    """eta / T^{3/4} with T = n^2 and beta_t = 1/(t + 1) (papers' t): Theorems 13, 15 and Table 2, paper 000.

    The same for DP-CompGD and DP-CompMiniBatch, smooth or not.  `rounds` takes the place of n^2.

    >>> plan = private_generalisation_schedule(4, scale=2.0)
    >>> plan.rounds, plan.step(0), plan.step(15), plan.beta(0)
    (16, 0.25, 0.25, 0.5)
    """
    check_arguments(locals(), rounds=None)
    T = n**2 if rounds is None else rounds
    validate.positive_int(rounds=T)
    return Schedule(Rule(scale / T**0.75), Rule(1.0, power=1.0, offset=2), rounds=T)


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
    return (diameter**2 * harmonic(rounds + 1) + squares) / (2 * least * math.fsum(etas))


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
    total = diameter**2 * harmonic(rounds + 1) + (step * noise) ** 2 * math.fsum(dims)
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
