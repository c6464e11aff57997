"""The convergence bounds of CompSGD: Section 2 and Appendix B of paper 001."""

from __future__ import annotations

import math

from isthmus.base import validate


def expansion(beta: float) -> float:
    """How much a compressed step may stretch a squared distance, 1 / (1 - beta): Lemma 2.2 (B.2), paper 001.

    (1 - beta_t) ||w_{t+1} - w||^2 <= ||w_t - eta_t g - w||^2 for w in C; `narrow_dimension` says when that holds.

    >>> expansion(0.5)
    2.0
    """
    validate.check(0 <= beta < 1, "beta", beta, "give a number in [0, 1)")
    return 1 / (1 - beta)


def distance_bound(rounds: int, *, gradient_bound: float, strong_convexity: float) -> float:
    """E ||w_T - w*||^2 <= 4 G^2 / (lambda^2 T) under `strongly_convex_schedule`: Lemma B.6, paper 001.

    >>> distance_bound(4, gradient_bound=3.0, strong_convexity=1.0)
    9.0
    """
    validate.positive_int(rounds=rounds)
    validate.positive(gradient_bound=gradient_bound, strong_convexity=strong_convexity)
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
    validate.positive_int(rounds=rounds)
    validate.positive(gradient_bound=gradient_bound, strong_convexity=strong_convexity, constant=constant)
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
    validate.positive(batch=batch)
    validate.non_negative(noise=noise)
    validate.check(0 <= beta <= 0.25, "beta", beta, "give a number in [0, 1/4]")
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
    validate.positive_int(rounds=rounds)
    validate.positive(smoothness=smoothness, diameter=diameter, gradient_bound=gradient_bound, gap=gap)
    validate.positive(batch=batch, constant=constant)
    validate.non_negative(noise=noise)
    validate.check(0 <= beta <= 0.25, "beta", beta, "give a number in [0, 1/4]")
    noisy = smoothness * noise * diameter / math.sqrt(batch) + noise**2 / batch
    return constant * (smoothness * gap / rounds + noisy + smoothness * beta * gradient_bound * diameter)


def log_over_root(rounds: int) -> float:
    """log T / sqrt(T), for T >= 2: at T = 1 a bound of this form would be 0.

    >>> log_over_root(4) == math.log(4) / 2
    True
    """
    validate.positive_int(rounds=rounds)
    validate.check(rounds >= 2, "rounds", rounds, "give at least 2: the bound has a factor log T")
    return math.log(rounds) / math.sqrt(rounds)
