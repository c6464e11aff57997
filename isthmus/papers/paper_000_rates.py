"""Optimisation and generalisation of CompSGD, CompGD and CompMinibatch: the rates, steps and T of paper 000.

`algorithm` is "sgd" (the uncompressed rows of Tables 1 and 2), "comp_sgd", "comp_gd" or "comp_minibatch".  Bounds with
explicit constants are in `isthmus.papers.paper_000_bounds`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from isthmus.base import validate
from isthmus.papers.arguments import log_over_root
from isthmus.papers.paper_001_dimensions import direction_width
from isthmus.papers.schedules import Rule, Schedule, round_up

COMPRESSED = ("comp_sgd", "comp_gd", "comp_minibatch")
ALGORITHMS = ("sgd", *COMPRESSED)
GOALS = ("optimisation", "generalisation")


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
