"""CompFW, Frank-Wolfe on compressed gradients: Appendix E of paper 001."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from isthmus.base import validate
from isthmus.papers.arguments import check_arguments
from isthmus.papers.schedules import Rule, Schedule, round_up


def compressed_gap(code: Sequence[float] | np.ndarray, move: Sequence[float] | np.ndarray) -> float:
    """The Frank-Wolfe gap seen in the narrow space, -<y, Phi (s - w)>, for a code y and `move` = Phi (s - w).

    Theorem E.1 (paper 001) stops at the first w with <y, Phi (s - w)> >= -alpha, a gap of at most alpha.  The theorem
    prints <Phi theta, Phi (s - w)>; the text and the proof have the code y.

    >>> compressed_gap([1.0, -2.0], [-3.0, 0.5])
    4.0
    """
    gradient, step = np.asarray(code, dtype=float), np.asarray(move, dtype=float)
    validate.check(
        gradient.ndim == 1 and gradient.shape == step.shape, "move.shape", step.shape, f"give {gradient.shape}"
    )
    return -float(gradient @ step)


def convex_fw_schedule(*, smoothness: float, diameter: float, gradient_bound: float, noise: float) -> Schedule:
    """The rules of Theorem E.2 (paper 001), its t counted from 1; the batch up to a constant.

        eta_t = 2 / (t + 1),  beta_t = min(1/4, mu eta_t ||C|| / G),  b_t = max(1, (zeta / (||C|| mu eta_t))^2)

    >>> plan = convex_fw_schedule(smoothness=1.0, diameter=1.0, gradient_bound=4.0, noise=1.0)
    >>> plan.step(0), plan.step(2), plan.beta(0), plan.beta(3), plan.batch_size(0), plan.batch_size(8)
    (1.0, 0.5, 0.25, 0.1, 1, 25)
    """
    check_arguments(locals())
    return Schedule(
        step=Rule(2.0, power=1.0, offset=2),
        beta=Rule(2 * smoothness * diameter / gradient_bound, power=1.0, offset=2, high=0.25),
        batch=Rule((noise / (2 * diameter * smoothness)) ** 2, power=-2.0, offset=2, low=1.0),
    )


def convex_fw_rate(
    rounds: int, *, smoothness: float, diameter: float, constant: float = 1.0, oracle: float = 0.0
) -> float:
    """E F(w_T) - F* <= 4 (1 + delta / 2) mu ||C||^2 / T: Theorem E.2 (paper 001), an exact linear oracle at delta = 0.

    oracle  delta of an approximate one, footnote 5: <y, Phi s_t> is at most delta mu eta_t ||C||^2 / 2 above the
            minimum (`oracle_error`), which adds delta / 2 to what a round may lose

    The printed bound needs the compression and the noise to add at most half of mu eta_t^2 ||C||^2 a round.  At the
    printed beta_t and a batch constant of 1 each adds all of it, and the same induction gives `constant=2.5`.

    >>> convex_fw_rate(8, smoothness=2.0, diameter=3.0)
    9.0
    """
    check_arguments(locals(), oracle=validate.non_negative)
    return (constant + oracle / 2) * 4 * smoothness * diameter**2 / rounds


def oracle_error(oracle: float, *, smoothness: float, diameter: float) -> float:
    """delta mu ||C||^2 / 2: footnote 5 (paper 001), the `lmo_error` of `comp_fw` at which E.2 has `oracle=delta`.

    Times eta_t it is how far <y, Phi s_t> may be above its minimum (Jaggi 2013, with mu ||C||^2 for his C_f).  In
    Theorem E.1 an error e < alpha costs a round's gain eta e, and nothing of what w_tau is: the stop rule adds it.

    >>> oracle_error(0.5, smoothness=2.0, diameter=3.0)
    4.5
    """
    check_arguments(locals())
    return oracle * smoothness * diameter**2 / 2


def stationary_fw_schedule(
    accuracy: float,
    *,
    smoothness: float,
    diameter: float,
    gradient_bound: float,
    noise: float,
    gap: float,
    failure: float = 0.1,
    constant: float = 1.0,
    margin: float = 1.0,
) -> Schedule:
    """The rules of Theorem E.1 (paper 001); batch and T up to a constant.  It ends at w_tau, or without a point.

        eta = alpha / (16 ||C||^2 mu)                      beta = alpha / (G ||C||)
        b = (1/rho) max(1, zeta^2 ||C||^2 / alpha^2)       T = (F(w_1) - F*) ||C||^2 mu / (alpha^2 rho)

    margin  multiplies beta.  At the printed beta the compression may cost all that a round gains
            (`stationary_fw_step_bound` is not negative); margin=0.25 with constant=16 gives a gain.

    >>> plan = stationary_fw_schedule(0.5, smoothness=1.0, diameter=2.0, gradient_bound=1.0, noise=0.0, gap=1.0)
    >>> plan.step(0), plan.beta(0), plan.batch_size(), plan.rounds, plan.gap
    (0.0078125, 0.25, 10, 160, 0.5)
    """
    check_arguments(locals())
    rounds = constant * gap * smoothness * (diameter / accuracy) ** 2 / failure
    return Schedule(
        step=Rule(accuracy / (16 * diameter**2 * smoothness)),
        beta=Rule(margin * accuracy / (gradient_bound * diameter)),
        batch=Rule(constant * max(1.0, (noise * diameter / accuracy) ** 2) / failure),
        rounds=max(1, round_up(rounds)),
        gap=accuracy,
    )


def stationary_fw_step_bound(
    accuracy: float,
    *,
    step: float,
    beta: float,
    batch: float,
    smoothness: float,
    diameter: float,
    gradient_bound: float,
    noise: float,
    oracle_error: float = 0.0,
) -> float:
    """E F(w_{t+1}) - F(w_t) of a round whose compressed gap is above alpha: (18), Theorem E.1 (paper 001).

        -eta alpha + eta beta ||C|| G + eta zeta ||C|| / sqrt(b) + mu eta^2 ||C||^2 / 2

    The paper bounds this by -alpha^2 / (8 ||C||^2 mu); at its own step the first term alone is only
    -alpha^2 / (16 ||C||^2 mu).

    oracle_error  e, what s_t may be short of the minimum: the certified gap is above alpha, that of s_t above alpha - e

    >>> stationary_fw_step_bound(1.0, step=0.5, beta=0.25, batch=4, smoothness=1.0, diameter=1.0,
    ...                          gradient_bound=1.0, noise=0.5)
    -0.125
    """
    check_arguments(locals(), beta=validate.non_negative, oracle_error=validate.non_negative)
    slope = oracle_error - accuracy + beta * diameter * gradient_bound + noise * diameter / math.sqrt(batch)
    return step * slope + smoothness * (step * diameter) ** 2 / 2
