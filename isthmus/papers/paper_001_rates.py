"""CompSGD: the steps, distortions, batches, rounds and convergence bounds of Section 2 and Appendix B of paper 001."""

from __future__ import annotations

import math
from collections.abc import Mapping

from isthmus.base import validate
from isthmus.papers.arguments import check_arguments, log_over_root
from isthmus.papers.schedules import Rule, Schedule, round_up

# ---------------------------------------------------------------- convex


def strongly_convex_schedule(strong_convexity: float) -> Schedule:
    """eta_t = 2 / (lambda t), beta_t = 1/t: Theorem 2.3, parts 1 and 2 (B.7, B.8; D.2, parts 1 and 2), paper 001.

    Section 1.1 prints eta_t = 1 / (lambda t); the theorems and their proofs use 2 / (lambda t).  At t = 1 the
    distortion is 1 and Lemma 2.2 says nothing; the induction of Lemma B.6 does not need it there.

    >>> strongly_convex_schedule(2.0).step(1)
    0.5
    """
    validate.positive(strong_convexity=strong_convexity)
    return Schedule(Rule(2 / strong_convexity, power=1.0), Rule(1.0, power=1.0))


def convex_schedule(diameter: float, gradient_bound: float) -> Schedule:
    """eta_t = phi / sqrt(t) with phi = ||C|| / G, beta_t = 1/t: Theorem 2.3, part 3 (B.9), paper 001.

    >>> convex_schedule(6.0, 2.0).step(8)
    1.0
    """
    validate.positive(diameter=diameter, gradient_bound=gradient_bound)
    return Schedule(Rule(diameter / gradient_bound, power=0.5), Rule(1.0, power=1.0))


# ---------------------------------------------------------------- nonconvex: first-order stationary points


def stationary_threshold(accuracy: float, *, smoothness: float, diameter: float, gradient_bound: float) -> float:
    """The move below which w_t is an alpha-FOSP: alpha / (G + mu ||C||), Theorem 2.4 (B.4), paper 001.

    >>> stationary_threshold(0.75, smoothness=1.0, diameter=2.0, gradient_bound=1.0)
    0.25
    """
    validate.positive(accuracy=accuracy)
    return accuracy / _speed(smoothness, diameter, gradient_bound)


def compressed_threshold(threshold: float, d: int, m: int) -> float:
    """The threshold for the move of a compressed round, sqrt(m / d) times that of Theorem 2.4 (paper 001).

    A round lifted nearest to w_t moves it by about sqrt(m / d) of what the gradient would, so the rule as printed
    fires early unless m meets the theorem.  Equivalently, multiply the move by sqrt(d / m_t).

    >>> compressed_threshold(0.25, d=400, m=100)
    0.125
    """
    check_arguments(locals())
    validate.at_most(d, "d", m=m)
    return threshold * math.sqrt(m / d)


def stationary_beta(
    accuracy: float, *, smoothness: float, diameter: float, gradient_bound: float, code_bound: float | None = None
) -> float:
    """beta = min(1/4, mu alpha^2 / (64 G ||C|| (G + mu ||C||)^2)): Theorem 2.4 (B.4), paper 001.

    code_bound  the G' of Corollary D.2, part 4, which takes the place of the first G

    >>> stationary_beta(2.0, smoothness=1.0, diameter=1.0, gradient_bound=1.0)
    0.015625
    """
    validate.positive(accuracy=accuracy)
    speed = _speed(smoothness, diameter, gradient_bound)
    bound = gradient_bound if code_bound is None else code_bound
    validate.positive(code_bound=bound)
    return min(0.25, smoothness * accuracy**2 / (64 * bound * diameter * speed**2))


def stationary_batch(
    accuracy: float,
    *,
    smoothness: float,
    diameter: float,
    gradient_bound: float,
    noise: float,
    failure: float,
    constant: float = 1.0,
) -> float:
    """b = (1/rho) max(1, (||C|| zeta (G + mu ||C||)^2 / (alpha^2 mu))^2), up to a constant: Theorem 2.4, paper 001.

    Before rounding up.  `constant` is at least (64/7)^2 rho for the proof's inequality (10) at its own beta.

    >>> stationary_batch(2.0, smoothness=1.0, diameter=1.0, gradient_bound=1.0, noise=3.0, failure=0.1)
    90.0
    """
    check_arguments(locals())
    speed = _speed(smoothness, diameter, gradient_bound)
    needed = diameter * noise * speed**2 / (accuracy**2 * smoothness)
    return constant * max(1.0, needed**2) / failure


def stationary_rounds(
    accuracy: float,
    *,
    smoothness: float,
    diameter: float,
    gradient_bound: float,
    gap: float,
    failure: float,
    constant: float = 1.0,
) -> int:
    """T = (F(w_1) - F*) (G + mu ||C||)^2 / (mu alpha^2 rho), up to a constant: Theorem 2.4 (B.4), paper 001.

    The proof gives the constant 8 (its line on E[T] inverts mu alpha^2 / 8; the next line is right).

    >>> stationary_rounds(1.0, smoothness=1.0, diameter=1.0, gradient_bound=1.0, gap=0.5, failure=0.1)
    20
    """
    check_arguments(locals())
    speed = _speed(smoothness, diameter, gradient_bound)
    return max(1, round_up(constant * gap * speed**2 / (smoothness * accuracy**2 * failure)))


def stationary_schedule(
    accuracy: float,
    *,
    smoothness: float,
    diameter: float,
    gradient_bound: float,
    noise: float,
    gap: float,
    failure: float = 0.1,
    constant: float = 1.0,
) -> Schedule:
    """eta = 1/mu with the beta, batch, T and threshold of Theorem 2.4 (B.4), paper 001; batch and T up to a constant.

    The first w_t that moves by no more than the threshold is an alpha-FOSP with probability (1 - rho)^2.

    >>> plan = stationary_schedule(1.0, smoothness=1.0, diameter=1.0, gradient_bound=1.0, noise=0.0, gap=0.5)
    >>> plan.step(5), plan.beta(5), plan.batch_size(), plan.rounds, plan.threshold
    (1.0, 0.00390625, 10, 20, 0.5)
    """
    problem = {"smoothness": smoothness, "diameter": diameter, "gradient_bound": gradient_bound}
    batch = stationary_batch(accuracy, **problem, noise=noise, failure=failure, constant=constant)
    return stationary_plan(accuracy, problem, gap, failure, constant, batch=batch)


def stationary_plan(
    accuracy: float,
    problem: Mapping[str, float],
    gap: float,
    failure: float,
    constant: float,
    *,
    batch: float = 1.0,
    code_bound: float | None = None,
) -> Schedule:
    """eta = 1/mu with the beta, T and threshold of Theorem 2.4 for a problem (mu, ||C||, G), and a batch.

    >>> stationary_plan(1.0, {"smoothness": 1.0, "diameter": 1.0, "gradient_bound": 1.0}, 0.5, 0.1, 1.0).rounds
    20
    """
    threshold = stationary_threshold(accuracy, **problem)
    beta = stationary_beta(accuracy, **problem, code_bound=code_bound)
    rounds = stationary_rounds(accuracy, **problem, gap=gap, failure=failure, constant=constant)
    return Schedule(Rule(1 / problem["smoothness"]), Rule(beta), Rule(batch), rounds, threshold)


# ---------------------------------------------------------------- nonconvex: gradient mapping


def mapping_beta(accuracy: float, *, smoothness: float, diameter: float, gradient_bound: float) -> float:
    """beta = min(1/4, alpha^2 / (mu G ||C||)): Theorem B.5, paper 001 (with G' for G: Corollary D.2, part 5).

    >>> mapping_beta(1.0, smoothness=2.0, diameter=5.0, gradient_bound=1.0)
    0.1
    """
    validate.positive(accuracy=accuracy, smoothness=smoothness, diameter=diameter, gradient_bound=gradient_bound)
    return min(0.25, accuracy**2 / (smoothness * gradient_bound * diameter))


def mapping_batch(accuracy: float, *, smoothness: float, diameter: float, noise: float, constant: float = 1.0) -> float:
    """b = max(1, zeta^2 / alpha^2, zeta^2 ||C||^2 mu^2 / alpha^4), up to a constant: Theorem B.5, paper 001.

    >>> mapping_batch(0.5, smoothness=1.0, diameter=2.0, noise=1.0)
    64.0
    """
    check_arguments(locals())
    plain = (noise / accuracy) ** 2
    return constant * max(1.0, plain, plain * (diameter * smoothness / accuracy) ** 2)


def mapping_rounds(accuracy: float, *, smoothness: float, gap: float, constant: float = 1.0) -> int:
    """T = mu (F(w_1) - F*) / alpha^2, up to a constant: Theorem B.5, paper 001.

    >>> mapping_rounds(0.5, smoothness=2.0, gap=3.0)
    24
    """
    validate.positive(accuracy=accuracy, smoothness=smoothness, gap=gap, constant=constant)
    return max(1, round_up(constant * smoothness * gap / accuracy**2))


def mapping_schedule(
    accuracy: float,
    *,
    smoothness: float,
    diameter: float,
    gradient_bound: float,
    noise: float,
    gap: float,
    constant: float = 1.0,
) -> Schedule:
    """eta = 1/(2 mu) with the beta, batch and T of Theorem B.5, paper 001; batch and T up to a constant.

    The output is one of w_1..w_T at random; its compressed gradient mapping is at most alpha in expectation.

    >>> plan = mapping_schedule(1.0, smoothness=2.0, diameter=5.0, gradient_bound=1.0, noise=0.0, gap=4.0)
    >>> plan.step(0), plan.beta(0), plan.batch_size(), plan.rounds
    (0.25, 0.1, 1, 8)
    """
    batch = mapping_batch(accuracy, smoothness=smoothness, diameter=diameter, noise=noise, constant=constant)
    return mapping_plan(accuracy, smoothness, diameter, gradient_bound, gap, constant, batch=batch)


def mapping_plan(
    accuracy: float, mu: float, diameter: float, bound: float, gap: float, constant: float, *, batch: float = 1.0
) -> Schedule:
    """eta = 1/(2 mu) with the beta and T of Theorem B.5 at G = `bound`, and a batch.

    >>> mapping_plan(1.0, 2.0, 5.0, 1.0, 4.0, 1.0).rounds
    8
    """
    beta = mapping_beta(accuracy, smoothness=mu, diameter=diameter, gradient_bound=bound)
    rounds = mapping_rounds(accuracy, smoothness=mu, gap=gap, constant=constant)
    return Schedule(Rule(1 / (2 * mu)), Rule(beta), Rule(batch), rounds)


def _speed(smoothness: float, diameter: float, gradient_bound: float) -> float:
    """G + mu ||C||."""
    validate.positive(smoothness=smoothness, diameter=diameter, gradient_bound=gradient_bound)
    return gradient_bound + smoothness * diameter


# ---------------------------------------------------------------- bounds


def expansion(beta: float) -> float:
    """How much a compressed step may stretch a squared distance, 1 / (1 - beta): Lemma 2.2 (B.2), paper 001.

    (1 - beta_t) ||w_{t+1} - w||^2 <= ||w_t - eta_t g - w||^2 for w in C; `narrow_dimension` says when that holds.

    >>> expansion(0.5)
    2.0
    """
    validate.check(0 <= beta < 1, "beta", beta, "give a number of at least 0 and below 1")
    return 1 / (1 - beta)


def distance_bound(rounds: int, *, gradient_bound: float, strong_convexity: float) -> float:
    """E ||w_T - w*||^2 <= 4 G^2 / (lambda^2 T) under `strongly_convex_schedule`: Lemma B.6, paper 001.

    >>> distance_bound(4, gradient_bound=3.0, strong_convexity=1.0)
    9.0
    """
    check_arguments(locals())
    return 4 * (gradient_bound / strong_convexity) ** 2 / rounds


def strongly_convex_smooth_rate(
    rounds: int, *, gradient_bound: float, strong_convexity: float, smoothness: float, constant: float = 1.0
) -> float:
    """E F(w_T) - F* = O(mu G^2 / (lambda^2 T)), up to a constant: Theorem 2.3, part 1 (B.7), paper 001.

    It is Lemma B.6 and F(w) - F* <= (mu/2) ||w - w*||^2, which gives the constant 2 and needs grad F(w*) = 0:
    the paper's smoothness (Definition 5) implies it only when w* is not held at the boundary of C.

    >>> strongly_convex_smooth_rate(10, gradient_bound=2.0, strong_convexity=1.0, smoothness=5.0)
    2.0
    """
    validate.positive(smoothness=smoothness, constant=constant)
    distance = distance_bound(rounds, gradient_bound=gradient_bound, strong_convexity=strong_convexity)
    return constant * smoothness * distance / 4


def strongly_convex_rate(
    rounds: int, *, gradient_bound: float, strong_convexity: float, constant: float = 1.0
) -> float:
    """E F(w_T) - F* = O(G^2 (1 + log T) / (lambda T)), up to a constant: Theorem 2.3, part 2 (B.8), paper 001.

    >>> strongly_convex_rate(1, gradient_bound=3.0, strong_convexity=2.0)
    4.5
    """
    check_arguments(locals())
    return constant * gradient_bound**2 * (1 + math.log(rounds)) / (strong_convexity * rounds)


def convex_rate(
    rounds: int, *, diameter: float, gradient_bound: float, phi: float | None = None, constant: float = 1.0
) -> float:
    """E F(w_T) - F* = O((||C||^2 / phi + phi G^2) log T / sqrt(T)), up to a constant: Theorem 2.3, part 3 (B.9).

    phi  the scale of eta_t = phi / sqrt(t); by default ||C|| / G, which gives 2 ||C|| G log T / sqrt(T)

    >>> convex_rate(4, diameter=1.0, gradient_bound=1.0) == math.log(4)
    True
    """
    validate.positive(diameter=diameter, gradient_bound=gradient_bound, constant=constant)
    scale = diameter / gradient_bound if phi is None else phi
    validate.positive(phi=scale)
    return constant * (diameter**2 / scale + scale * gradient_bound**2) * log_over_root(rounds)


def stationary_decrease(accuracy: float, *, smoothness: float, diameter: float, gradient_bound: float) -> float:
    """What a round that does not stop gains, mu alpha^2 / (8 (G + mu ||C||)^2): inequality (10), Theorem 2.4.

    >>> stationary_decrease(4.0, smoothness=1.0, diameter=1.0, gradient_bound=1.0)
    0.5
    """
    validate.positive(accuracy=accuracy, smoothness=smoothness, diameter=diameter, gradient_bound=gradient_bound)
    return smoothness * accuracy**2 / (8 * (gradient_bound + smoothness * diameter) ** 2)


def stationary_step_bound(
    accuracy: float,
    *,
    smoothness: float,
    diameter: float,
    gradient_bound: float,
    beta: float,
    noise: float,
    batch: float,
) -> float:
    """E F(w_{t+1}) - F(w_t) of a round that does not stop, at any beta <= 1/4 and batch: the line before (10).

        -mu alpha^2 / (4 (G + mu ||C||)^2) + beta ||C|| G + zeta ||C|| / sqrt(b),    Theorem 2.4 (B.4), paper 001

    >>> stationary_step_bound(4.0, smoothness=1.0, diameter=1.0, gradient_bound=1.0, beta=0.25, noise=1.0, batch=4)
    -0.25
    """
    check_arguments(locals(), beta=None)
    validate.check(0 <= beta <= 0.25, "beta", beta, "give a number from 0 to 1/4")
    gain = 2 * stationary_decrease(accuracy, smoothness=smoothness, diameter=diameter, gradient_bound=gradient_bound)
    return -gain + beta * diameter * gradient_bound + noise * diameter / math.sqrt(batch)


def success_probability(failure: float) -> float:
    """The chance (1 - rho)^2 that an alpha-FOSP is found: Theorems 2.4 and E.1, Corollary D.2 part 4, paper 001.

    >>> success_probability(0.5)
    0.25
    """
    validate.open_unit(failure=failure)
    return (1 - failure) ** 2


def mapping_rate(
    rounds: int,
    *,
    smoothness: float,
    diameter: float,
    gradient_bound: float,
    noise: float,
    gap: float,
    batch: float,
    beta: float,
    constant: float = 1.0,
) -> float:
    """E ||(w_k - w_k^+) / eta||^2 of a random iterate, up to a constant: (12) and Theorem B.5, paper 001.

        mu (F(w_1) - F*) / T + mu zeta ||C|| / sqrt(b) + zeta^2 / b + mu beta G ||C||

    Under `mapping_schedule` no term is more than alpha^2.

    >>> mapping_rate(8, smoothness=2.0, diameter=5.0, gradient_bound=1.0, noise=0.0, gap=4.0, batch=1, beta=0.1)
    2.0
    """
    check_arguments(locals(), beta=None)
    validate.check(0 <= beta <= 0.25, "beta", beta, "give a number from 0 to 1/4")
    noisy = smoothness * noise * diameter / math.sqrt(batch) + noise**2 / batch
    return constant * (smoothness * gap / rounds + noisy + smoothness * beta * gradient_bound * diameter)
