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
"""

from __future__ import annotations

import math

from isthmus.base import validate
from isthmus.theory.arguments import check_arguments
from isthmus.theory.schedules import Rule, Schedule, round_up

COMPRESSED = ("comp_sgd", "comp_gd", "comp_minibatch")

ALGORITHMS = ("sgd", *COMPRESSED)

GOALS = ("optimisation", "generalisation")


# ---------------------------------------------------------------- steps and T by goal


def goal_rounds(algorithm: str, n: int, *, smooth: bool) -> int:
    """T that balances optimisation and stability for n records: Table 2, paper 000.

    Smooth: n, but ceil(sqrt(n)) for CompGD (Theorem 5).  Otherwise n^2 (Theorems 3, 7, 10).

    >>> goal_rounds("comp_sgd", 100, smooth=True), goal_rounds("comp_gd", 100, smooth=True)
    (100, 10)
    """
    validate.one_of(ALGORITHMS, algorithm=algorithm)
    validate.positive_int(n=n)
    if not smooth:
        return n**2
    return round_up(math.sqrt(n)) if algorithm == "comp_gd" else n


def goal_schedule(
    algorithm: str,
    goal: str,
    *,
    smoothness: float | None = None,
    scale: float | None = None,
    n: int | None = None,
    rounds: int | None = None,
) -> Schedule:
    """The step, beta_t = 1/(t + 1) (papers' t) and T of Tables 1 and 2, paper 000.

        optimisation    eta / sqrt(t); smooth CompGD: eta <= 1/(2 mu)                 Theorems 4, 6, 8
        generalisation  smooth: eta / sqrt(t) <= 2/mu; CompGD: eta <= 1/(2 mu)        Theorems 2, 5, 9
                        otherwise: eta / T^{3/4}                                      Theorems 3, 7, 10

    smoothness  mu; None when the loss is not smooth
    scale       eta; by default the largest that is allowed, or 1
    n           records: with the goal "generalisation" T is `goal_rounds` unless `rounds` is given

    >>> plan = goal_schedule("comp_gd", "generalisation", smoothness=2.0, n=400)
    >>> plan.step(0), plan.step(9), plan.beta(0), plan.rounds
    (0.25, 0.25, 0.5, 20)
    >>> goal_schedule("comp_sgd", "generalisation", n=4).step(0)
    0.125
    """
    validate.one_of(ALGORITHMS, algorithm=algorithm)
    validate.one_of(GOALS, goal=goal)
    smooth, learning = smoothness is not None, goal == "generalisation"
    if rounds is None and learning:
        validate.check(n is not None, "n", n, "give the number of records, or rounds")
        rounds = goal_rounds(algorithm, n or 1, smooth=smooth)
    if rounds is not None:
        validate.positive_int(rounds=rounds)
    eta = _scale(scale, _largest_step(algorithm, learning, smoothness))
    beta = None if algorithm == "sgd" else Rule(1.0, power=1.0, offset=2)
    if smooth and algorithm == "comp_gd":
        return Schedule(Rule(eta), beta, rounds=rounds)
    if learning and rounds is not None and (not smooth or algorithm == "sgd"):
        return Schedule(Rule(eta / rounds ** (0.5 if smooth else 0.75)), beta, rounds=rounds)
    return Schedule(Rule(eta, power=0.5), beta, rounds=rounds)


def _largest_step(algorithm: str, learning: bool, smoothness: float | None) -> float:
    if smoothness is None:
        return math.inf
    validate.positive(smoothness=smoothness)
    if algorithm == "comp_gd":
        return 1 / (2 * smoothness)
    return 2 / smoothness if learning else math.inf


def _scale(scale: float | None, largest: float) -> float:
    if scale is None:
        return 1.0 if math.isinf(largest) else largest
    validate.positive(scale=scale)
    validate.at_most(largest, "the largest step of the theorem", scale=scale)
    return scale


PRIVATE = ("dp_comp_gd", "dp_comp_minibatch")


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


def _check(rounds: int, n: int, lipschitz: float) -> None:
    check_arguments(locals())
