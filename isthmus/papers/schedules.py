"""Steps, distortions, batches and round counts of paper 001, as rules of the round t = 0, 1, ... (its t - 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from isthmus.base import validate
from isthmus.papers.dimensions import narrow_dimension, round_up


@dataclass(frozen=True)
class Rule:
    """A number for each round: scale / (t + offset)^power, kept between `low` and `high`.

    >>> [Rule(2.0, power=1.0)(t) for t in range(4)]
    [2.0, 1.0, 0.6666666666666666, 0.5]
    >>> Rule(2.0, power=1.0, high=0.25)(0)
    0.25
    """

    scale: float
    power: float = 0.0
    offset: int = 1
    low: float = 0.0
    high: float = math.inf

    def __post_init__(self) -> None:
        validate.non_negative(scale=self.scale, low=self.low)
        validate.positive_int(offset=self.offset)
        validate.check(math.isfinite(self.power), "power", self.power, "give a finite number")
        validate.check(self.high >= self.low, "high", self.high, f"give at least low = {self.low}")

    def __call__(self, t: int) -> float:
        validate.non_negative_int(t=t)
        return min(self.high, max(self.low, self.scale / (t + self.offset) ** self.power))


@dataclass(frozen=True)
class Schedule:
    """What a theorem prescribes.

    step       eta_t
    beta       the distortion beta_t that sets m_t; None when nothing is compressed
    batch      the minibatch size (clients a round in the distributed theorems), before rounding up
    rounds     T, where the theorem fixes it
    threshold  stop when a round moves the iterate by no more than this, where the theorem stops

    >>> plan = strongly_convex_schedule(0.5)
    >>> plan.step(0), plan.step(3), plan.beta(3), plan.batch_size(3), plan.dimension(3, 1000, 2.0)
    (4.0, 1.0, 0.25, 1, 64)
    """

    step: Rule
    beta: Rule | None
    batch: Rule = field(default_factory=lambda: Rule(1.0))
    rounds: int | None = None
    threshold: float | None = None

    def batch_size(self, t: int = 0) -> int:
        """The batch of round t, rounded up."""
        return round_up(self.batch(t))

    def dimension(self, t: int, d: int, width: float, constant: float = 1.0) -> int:
        """m_t = min(d, c w(C)^2 / beta_t^2); d when nothing is compressed."""
        return d if self.beta is None else narrow_dimension(d, width, self.beta(t), constant)


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
    validate.positive(threshold=threshold)
    validate.positive_int(d=d, m=m)
    validate.at_most(d, "d", m=m)
    return threshold * math.sqrt(m / d)


def stationary_beta(
    accuracy: float,
    *,
    smoothness: float,
    diameter: float,
    gradient_bound: float,
    code_bound: float | None = None,
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
    validate.positive(accuracy=accuracy, constant=constant)
    validate.non_negative(noise=noise)
    validate.open_unit(failure=failure)
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
    validate.positive(accuracy=accuracy, gap=gap, constant=constant)
    validate.open_unit(failure=failure)
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
    return Schedule(
        step=Rule(1 / smoothness),
        beta=Rule(stationary_beta(accuracy, **problem)),
        batch=Rule(stationary_batch(accuracy, **problem, noise=noise, failure=failure, constant=constant)),
        rounds=stationary_rounds(accuracy, **problem, gap=gap, failure=failure, constant=constant),
        threshold=stationary_threshold(accuracy, **problem),
    )


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
    validate.positive(accuracy=accuracy, smoothness=smoothness, diameter=diameter, constant=constant)
    validate.non_negative(noise=noise)
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
    beta = mapping_beta(accuracy, smoothness=smoothness, diameter=diameter, gradient_bound=gradient_bound)
    batch = mapping_batch(accuracy, smoothness=smoothness, diameter=diameter, noise=noise, constant=constant)
    return Schedule(
        step=Rule(1 / (2 * smoothness)),
        beta=Rule(beta),
        batch=Rule(batch),
        rounds=mapping_rounds(accuracy, smoothness=smoothness, gap=gap, constant=constant),
    )


def _speed(smoothness: float, diameter: float, gradient_bound: float) -> float:
    """G + mu ||C||."""
    validate.positive(smoothness=smoothness, diameter=diameter, gradient_bound=gradient_bound)
    return gradient_bound + smoothness * diameter
