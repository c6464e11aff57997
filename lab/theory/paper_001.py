"""How narrow a sketch may be: the theorems of Gordon and of Johnson and Lindenstrauss behind m_t (paper 001).

CompSGD: the steps, distortions, batches, rounds and convergence bounds of Section 2 and Appendix B of paper 001.

How many records PrivSGD needs: Corollaries C.2 and C.3 and Tables 1 and 4 of paper 001.

Utility only: the corollaries take sigma^2 = 32 L^2 T log(1/delta) / (n^2 epsilon^2), whose claim of privacy has a gap
(the proof bounds the sensitivity by 2 L and uses 2 L / n); another sigma with the same 1/n changes the constant.

CompFW, Frank-Wolfe on compressed gradients: Appendix E of paper 001.

CompDistSGD: contractions, Lemma D.1, Corollary D.2 and the communication costs of Tables 2 and 5 (paper 001).

A contraction C of a numbers has E C(v) = v and E ||C(v) - v||^2 <= chi ||v||^2 ((16)) and sends gamma bits.  Parts 1
and 2 of Corollary D.2 keep `strongly_convex_schedule`; parts 1-3 are the rates of CompSGD with G' for G.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import optimize, special

from isthmus.base import validate
from isthmus.theory.schedules import (
    Schedule,
    aggregate_second_moment,
    check_arguments,
    distributed_mapping_schedule,
    distributed_stationary_schedule,
    log_inverse,
    narrow_dimension,
    private_mapping_schedule,
    private_stationary_schedule,
    round_up,
)
from lab.theory.schedules import check_sparsity, log_over_root


def gordon_dimension(width: float, beta: float, constant: float = 1.0) -> int:
    """Rows of a Gaussian map that keep every norm of S to beta: m = c w(S)^2 / beta^2, up to a constant.

    Theorem A.3 (paper 001), Theorem 18 (paper 000): E sup_{x in S} | ||Phi x||^2 - 1 | <= beta for S on the unit
    sphere and Phi with entries N(0, 1/m).

    >>> gordon_dimension(2.0, 0.5)
    16
    """
    validate.positive(width=width, beta=beta, constant=constant)
    return max(1, round_up(constant * (width / beta) ** 2))


def gordon_range(m: int, width: float) -> tuple[float, float]:
    """Gordon's inequalities without a hidden constant: (a_m - w(S)) / sqrt(m) <= E min ||Phi x||, and
    E max ||Phi x|| <= (a_m + w(S)) / sqrt(m), over x in S on the unit sphere, a_m = E ||g|| in R^m.

    They are what Theorem A.3 (paper 001) restates.  The lower end is 0 when m is too small to say anything.

    >>> low, high = gordon_range(1, 0.5)
    >>> round((high + low) ** 2 * math.pi, 12), round(high - low, 12)
    (8.0, 1.0)
    """
    check_arguments(locals(), width=validate.non_negative)
    mean = direction_width(m)
    return max(0.0, (mean - width) / math.sqrt(m)), (mean + width) / math.sqrt(m)


def direction_width(d: int) -> float:
    """The width of all directions of R^d, E ||g|| = sqrt(2) Gamma((d+1)/2) / Gamma(d/2), just below sqrt(d).

    It is the width that Lemma 2.2 (paper 001) needs for a C with an interior, where it uses w(C).

    >>> round(direction_width(1) ** 2 * math.pi, 12)
    2.0
    """
    validate.positive_int(d=d)
    if d > 1000:
        return math.sqrt(d) * (1 - 1 / (4 * d) + 1 / (32 * d**2) + 5 / (128 * d**3))
    return math.sqrt(2) * math.exp(math.lgamma((d + 1) / 2) - math.lgamma(d / 2))


def jl_dimension(points: int, beta: float) -> int:
    """Rows that keep the squared distances of finitely many points to 1 +- beta: 4 ln N / (beta^2/2 - beta^3/3).

    The Johnson-Lindenstrauss lemma with the constant of Dasgupta and Gupta (2003); section 1.1 of paper 001.

    >>> jl_dimension(1000, 0.5)
    332
    """
    check_arguments(locals(), beta=validate.open_unit)
    return max(1, round_up(4 * math.log(points) / (beta**2 / 2 - beta**3 / 3)))


def sparse_jl_dimension(d: int, width: float, beta: float, power: float = 1.0, constant: float = 1.0) -> int:
    """Rows of a sparse JL map, m = c log(d)^power w(S)^2 / beta^2, up to a constant and the power of the logarithm.

    Theorem A.4 (paper 001), after Bourgain, Dirksen and Nelson.  The paper prints polylog(n): n is the ambient
    dimension of the source, here d.

    >>> sparse_jl_dimension(10_000, 2.0, 0.5)
    148
    """
    check_arguments(locals())
    return max(1, round_up(constant * _log(d) ** power * (width / beta) ** 2))


def sparse_jl_columns(m: int, d: int, beta: float, power: float = 1.0, constant: float = 1.0) -> int:
    """Non-zeros a column of a sparse JL map, s = min(m, c log(d)^power / beta^2), up to a constant and the power.

    Theorem A.4 (paper 001), with its polylog(n) read as a power of log d; s = m is a dense map.

    >>> sparse_jl_columns(200, 10_000, 0.5), sparse_jl_columns(20, 10_000, 0.5)
    (37, 20)
    """
    check_arguments(locals())
    return min(m, max(1, round_up(constant * _log(d) ** power / beta**2)))


def sparse_jl_condition(m: int, d: int, complexity: float, beta: float) -> bool:
    """Whether (log m)^2 (log d)^{5/2} v(S) <= beta: the last condition of Theorem A.4 (paper 001).

    `complexity` is the theorem's v(S), for which the source gives bounds for common S.

    >>> sparse_jl_condition(8, 8, 0.01, 0.5), sparse_jl_condition(8, 8, 0.02, 0.5)
    (True, False)
    """
    check_arguments(locals())
    return bool(math.log(m) ** 2 * math.log(d) ** 2.5 * complexity <= beta)


def sparse_cone_width(d: int, k: int) -> float:
    """The width of the tangent cone (cut to the unit ball) of an l1 ball at a k-sparse point of its boundary, at most

        inf_{tau >= 0} sqrt( k (1 + tau^2) + (d - k) E (|g| - tau)_+^2 ).

    The exact formula of Chandrasekaran et al. (2012) and Amelunxen et al. (2014): its square is above the cone's
    statistical dimension by at most 2 sqrt(d / k).  It is the width for which Lemma 2.2 (paper 001) is right.

    >>> round(sparse_cone_width(10_000, 10) ** 2), round(sparse_cone_width(10, 10) ** 2, 6)
    (95, 10.0)
    """
    check_sparsity(d, k)

    def square(tau: float) -> float:
        tail = 2 * ((1 + tau**2) * special.ndtr(-tau) - tau * math.exp(-(tau**2) / 2) / math.sqrt(2 * math.pi))
        return float(k * (1 + tau**2) + (d - k) * max(0.0, tail))

    top = math.sqrt(2 * math.log(d / k)) + 1
    best = optimize.minimize_scalar(square, bounds=(0.0, top), method="bounded", options={"xatol": 1e-10})
    return math.sqrt(min(best.fun, square(0.0)))


def sparse_cone_width_bound(d: int, k: int) -> float:
    """The closed form above `sparse_cone_width`: sqrt(min(d, 2 k log(d/k) + 5 k / 4)).

    Proposition 3.10 of Chandrasekaran et al. (2012): the k log(d/k) that Lemma 2.2 (paper 001) needs for w(C)^2.

    >>> round(sparse_cone_width_bound(10_000, 10) ** 2, 3)
    150.655
    """
    check_sparsity(d, k)
    return math.sqrt(min(d, 2 * k * math.log(d / k) + 1.25 * k))


def table_width(
    name: str,
    d: int,
    *,
    p: float = 2.0,
    vertices: int = 2,
    radius: float = 1.0,
    rank: int = 1,
    columns: int | None = None,
    constant: float = 1.0,
) -> float:
    """The Gaussian widths of Table 3 (paper 001), up to a constant; a set's own `gaussian_width` is exact.

        l1, simplex      sqrt(log d)                      lp (1 < p <= inf)   d^{1 - 1/p}
        hull             radius sqrt(log vertices)        subspace            sqrt(rank), of its unit ball
        low_rank         sqrt(rank (d + columns))         nuclear             sqrt(d), of d x d matrices

    The constant of the lp row grows like 1 / sqrt(p - 1) as p falls to 1.

    >>> table_width("lp", 100, p=2.0), table_width("low_rank", 30, columns=20, rank=2)
    (10.0, 10.0)
    """
    validate.one_of(("l1", "simplex", "lp", "hull", "subspace", "low_rank", "nuclear"), name=name)
    check_arguments(locals(), p=None)
    validate.check(p > 1, "p", p, "give p > 1, or 'l1' for p = 1")
    if columns is not None:
        validate.positive_int(columns=columns)
    orders: dict[str, float] = {
        "l1": math.sqrt(math.log(d)),
        "simplex": math.sqrt(math.log(d)),
        "lp": d ** (1 - 1 / p),
        "hull": radius * math.sqrt(math.log(vertices)),
        "subspace": math.sqrt(rank),
        "low_rank": math.sqrt(rank * (d + (d if columns is None else columns))),
        "nuclear": math.sqrt(d),
    }
    return constant * orders[name]


def _log(d: int) -> float:
    return math.log(max(d, 2))


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


def stationary_samples(
    accuracy: float,
    *,
    smoothness: float,
    diameter: float,
    lipschitz: float,
    rounds: int,
    epsilon: float,
    delta: float,
    d: int,
    width: float | None = None,
    failure: float = 0.1,
    constant: float = 1.0,
) -> int:
    """The n that makes an alpha-FOSP, up to a constant: Corollary C.2, Table 1, row 1 of Table 4, paper 001.

        n = min(w(C) / beta, sqrt(d)) ||C|| (L + mu ||C||)^2 L sqrt(T log(1/delta)) / (sqrt(rho) alpha^2 mu epsilon)

    It is Theorem 2.4 with ||e|| = sigma sqrt(m) for zeta / sqrt(b) (the text says sigma), so sqrt(32) goes into the
    constant.  beta is that of the corollary: it falls as alpha^2, and w(C) / beta < sqrt(d) needs d > (w(C) / beta)^2.
    The sketch says E[s_t] = 1; what it needs is E <Phi v, s_t Phi g> = C_m <v, g>, `shrinkage`.

    rounds  T, as in `private_stationary_schedule`
    width   w(C); None is the column of DP-SGD, sqrt(d)

    >>> problem = {"smoothness": 1.0, "diameter": 1.0, "lipschitz": 1.0, "rounds": 16, "failure": 0.25}
    >>> budget = {"epsilon": 0.5, "delta": math.exp(-4)}
    >>> [stationary_samples(1.0, **problem, **budget, d=10**6, width=w) for w in (None, 1.0, 100.0)]
    [128000, 32768, 128000]
    """
    log = log_inverse(epsilon, delta)
    check_arguments(locals(), width=None)
    problem = {"smoothness": smoothness, "diameter": diameter, "lipschitz": lipschitz}
    beta = _distortion(private_stationary_schedule(accuracy, **problem, gap=1.0))
    reach = diameter * (lipschitz + smoothness * diameter) ** 2 / (accuracy**2 * smoothness)
    spread = lipschitz * math.sqrt(rounds * log) / (math.sqrt(failure) * epsilon)
    return max(1, round_up(constant * _root_dimension(d, width, beta) * reach * spread))


def mapping_samples(
    accuracy: float,
    *,
    smoothness: float,
    diameter: float,
    lipschitz: float,
    rounds: int,
    epsilon: float,
    delta: float,
    d: int,
    width: float | None = None,
    constant: float = 1.0,
) -> int:
    """The n for an alpha compressed gradient mapping, up to a constant: Corollary C.3, row 2 of Table 4, paper 001.

        n = min(w(C) / beta, sqrt(d)) (L sqrt(T log(1/delta)) / epsilon) max(mu ||C|| / alpha^2, 1 / alpha)

    Table 4 keeps the first term of the maximum, which is the larger when alpha <= mu ||C||.

    rounds  T, as in `private_mapping_schedule`
    width   w(C); None is the column of DP-SGD, sqrt(d)

    >>> problem = {"smoothness": 1.0, "diameter": 2.0, "lipschitz": 1.0, "rounds": 16, "d": 10**6}
    >>> [mapping_samples(0.5, **problem, width=w, epsilon=0.5, delta=math.exp(-4)) for w in (None, 1.0)]
    [128000, 1024]
    """
    log = log_inverse(epsilon, delta)
    check_arguments(locals(), width=None)
    problem = {"smoothness": smoothness, "diameter": diameter, "lipschitz": lipschitz}
    beta = _distortion(private_mapping_schedule(accuracy, **problem, gap=1.0))
    reach = max(smoothness * diameter / accuracy**2, 1 / accuracy)
    spread = lipschitz * math.sqrt(rounds * log) / epsilon
    return max(1, round_up(constant * _root_dimension(d, width, beta) * reach * spread))


def _distortion(schedule: Schedule) -> float:
    """beta of a schedule whose theorem takes one distortion for all rounds."""
    assert schedule.beta is not None
    return schedule.beta(0)


def _root_dimension(d: int, width: float | None, beta: float) -> float:
    """min(w(C) / beta, sqrt(d))."""
    check_arguments(locals(), width=None if width is None else validate.positive)
    return math.sqrt(d) if width is None else min(width / beta, math.sqrt(d))


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


@dataclass(frozen=True)
class Contraction:
    """An encoding of a numbers: chi, the variance it adds, and the bits it sends.

    >>> Contraction(chi=1.0, bits=60.0).bits
    60.0
    """

    chi: float
    bits: float


def floats(a: int) -> Contraction:
    """No contraction: 32 bits a number, chi = 0; section 3.2, paper 001.

    >>> floats(10)
    Contraction(chi=0.0, bits=320.0)
    """
    validate.positive_int(a=a)
    return Contraction(0.0, 32.0 * a)


def qsgd_chi(a: int, levels: float) -> float:
    """chi = min(a / s^2, sqrt(a) / s) of stochastic rounding to s levels: Appendix D.1, paper 001.

    >>> qsgd_chi(16, 2), qsgd_chi(16, 8)
    (2.0, 0.25)
    """
    validate.positive_int(a=a)
    validate.check(levels >= 1, "levels", levels, "give at least 1")
    return min(a / levels**2, math.sqrt(a) / levels)


def qsgd_nonzeros(a: int, levels: float) -> float:
    """At most s (s + sqrt(a)) of the a numbers are not 0, in expectation: Appendix D.1, paper 001.

    >>> qsgd_nonzeros(16, 1)
    5.0
    """
    validate.positive_int(a=a)
    validate.check(levels >= 1, "levels", levels, "give at least 1")
    return min(float(a), levels * (levels + math.sqrt(a)))


def qsgd(a: int, levels: int | None = None, coding: str = "elias") -> Contraction:
    """Stochastic rounding of QSGD (Alistarh et al., 2017): Appendix D.1, paper 001.

    levels  s; by default sqrt(a), where chi = 1 and Elias coding sends about 2.8 a + 32 bits (section 3.2)
    coding  "elias": for a given s at most k (3 + (3/2) log2(2 (s^2 + a) / k)) + 32 bits with k = s (s + sqrt(a)), the
            expected length of their Theorem 3.2 without its o(1); "fixed": 1 + ceil(log2(s + 1)) bits a number + 32,
            as in the paper's experiments

    >>> qsgd(100), qsgd(16, levels=3, coding="fixed")
    (Contraction(chi=1.0, bits=312.0), Contraction(chi=1.3333333333333333, bits=80.0))
    """
    validate.one_of(("elias", "fixed"), coding=coding)
    if levels is not None:
        validate.positive_int(levels=levels)
    validate.positive_int(a=a)
    s = math.sqrt(a) if levels is None else float(levels)
    chi = 1.0 if levels is None else qsgd_chi(a, s)
    if coding == "fixed":
        return Contraction(chi, 32.0 + a * (1 + math.ceil(math.log2(s + 1))))
    if levels is None:
        return Contraction(chi, 2.8 * a + 32)
    k = s * (s + math.sqrt(a))
    return Contraction(chi, k * (3 + 1.5 * math.log2(2 * (s**2 + a) / k)) + 32)


def terngrad(a: int) -> Contraction:
    """TernGrad (Wen et al., 2017): signs kept with probability |v_i| / ||v||_inf; chi = (sqrt(a) - 1) / 2.

    E ||C(v) - v||^2 = ||v||_inf ||v||_1 - ||v||^2, whose largest ratio to ||v||^2 is chi; log2(3) bits a number + 32.

    >>> terngrad(9).chi, round(terngrad(9).bits, 3)
    (1.0, 46.265)
    """
    validate.positive_int(a=a)
    return Contraction((math.sqrt(a) - 1) / 2, a * math.log2(3) + 32)


def vqsgd(a: int, repetitions: int = 1) -> Contraction:
    """vqSGD (Gandikota et al., 2019): a random vertex of the cross-polytope +-sqrt(a) ||v|| e_i; chi = (a - 1) / r.

    The mean of r independent vertices; log2(2 a) bits each + 32 for the norm.

    >>> vqsgd(8), vqsgd(8, repetitions=7)
    (Contraction(chi=7.0, bits=36.0), Contraction(chi=1.0, bits=60.0))
    """
    validate.positive_int(a=a, repetitions=repetitions)
    return Contraction((a - 1) / repetitions, repetitions * math.log2(2 * a) + 32)


def random_sparsification(a: int, k: int, shared_seed: bool = False) -> Contraction:
    """k random entries times a/k (Stich et al., 2018): chi = a/k - 1; 32 bits each, and their places.

    shared_seed  the receiver rebuilds the places, which then cost nothing

    >>> random_sparsification(16, 4), random_sparsification(16, 4, shared_seed=True).bits
    (Contraction(chi=3.0, bits=144.0), 128.0)
    """
    validate.positive_int(a=a, k=k)
    validate.at_most(a, "a", k=k)
    place = 0 if shared_seed else math.ceil(math.log2(a))
    return Contraction(a / k - 1, float(k * (32 + place)))


Scheme = Callable[[int], Contraction]


# ---------------------------------------------------------------- Corollary D.2


def distributed_strongly_convex_smooth_rate(
    rounds: int,
    *,
    gradient_bound: float,
    strong_convexity: float,
    smoothness: float,
    chi: float,
    clients: int = 1,
    constant: float = 1.0,
) -> float:
    """E F(w_T) - F* = O(mu G'^2 / (lambda^2 T)), up to a constant: Corollary D.2, part 1, paper 001.

    >>> distributed_strongly_convex_smooth_rate(10, gradient_bound=1.0, strong_convexity=1.0, smoothness=5.0, chi=1.0)
    2.0
    """
    bound = math.sqrt(aggregate_second_moment(gradient_bound, chi, clients))
    return strongly_convex_smooth_rate(
        rounds, gradient_bound=bound, strong_convexity=strong_convexity, smoothness=smoothness, constant=constant
    )


def distributed_strongly_convex_rate(
    rounds: int, *, gradient_bound: float, strong_convexity: float, chi: float, clients: int = 1, constant: float = 1.0
) -> float:
    """E F(w_T) - F* = O(G'^2 (1 + log T) / (lambda T)), up to a constant: Corollary D.2, part 2, paper 001.

    >>> distributed_strongly_convex_rate(1, gradient_bound=1.0, strong_convexity=2.0, chi=1.0)
    2.0
    """
    bound = math.sqrt(aggregate_second_moment(gradient_bound, chi, clients))
    return strongly_convex_rate(rounds, gradient_bound=bound, strong_convexity=strong_convexity, constant=constant)


def distributed_convex_rate(
    rounds: int, *, diameter: float, gradient_bound: float, chi: float, clients: int = 1, constant: float = 1.0
) -> float:
    """E F(w_T) - F* = O(||C|| G' log T / sqrt(T)), up to a constant: Corollary D.2, part 3, paper 001.

    As `convex_rate`, which has 2 ||C|| G' log T / sqrt(T) at this step.

    >>> round(distributed_convex_rate(4, diameter=1.0, gradient_bound=1.0, chi=1.0) / math.log(4), 12)
    2.0
    """
    bound = math.sqrt(aggregate_second_moment(gradient_bound, chi, clients))
    return convex_rate(rounds, diameter=diameter, gradient_bound=bound, constant=constant)


# ---------------------------------------------------------------- Tables 2 and 5


@dataclass(frozen=True)
class Communication:
    """Bits sent over a run (a row of Tables 2 and 5): SGD, SGD with the contraction, and CompDistSGD.

    dimension  the r of the table: the largest narrow dimension that CompDistSGD uses
    """

    sgd: float
    contraction: float
    compressed: float
    dimension: int


def strongly_convex_smooth_communication(
    accuracy: float,
    *,
    gradient_bound: float,
    strong_convexity: float,
    smoothness: float,
    d: int,
    width: float,
    scheme: Scheme,
    constant: float = 1.0,
) -> Communication:
    """Table 5, row 1 (paper 001): T = (1 + chi) mu G^2 / (lambda^2 alpha) rounds of one client, up to a constant.

    CompDistSGD sends T min(gamma_d, gamma_r) bits with r = (w(C) T)^2.  The tables print chi where 1 + chi stands:
    the same order for chi >= 1, but without a contraction chi = 0 and their cost would be 0.

    >>> strongly_convex_smooth_communication(1.0, gradient_bound=1.0, strong_convexity=1.0, smoothness=5.0, d=1000,
    ...                                      width=1.0, scheme=floats)
    Communication(sgd=160000.0, contraction=160000.0, compressed=4000.0, dimension=25)
    """
    check_arguments(locals())
    return _single_client(smoothness * (gradient_bound / strong_convexity) ** 2 / accuracy, d, width, scheme, constant)


def strongly_convex_communication(
    accuracy: float,
    *,
    gradient_bound: float,
    strong_convexity: float,
    d: int,
    width: float,
    scheme: Scheme,
    constant: float = 1.0,
) -> Communication:
    """Table 5, row 2 (paper 001): T = (1 + chi) G^2 / (lambda alpha), up to a constant and logarithms.

    The rest as `strongly_convex_smooth_communication`.

    >>> strongly_convex_communication(0.5, gradient_bound=1.0, strong_convexity=1.0, d=1000, width=3.0,
    ...                               scheme=floats).dimension
    36
    """
    validate.positive(accuracy=accuracy, gradient_bound=gradient_bound, strong_convexity=strong_convexity)
    return _single_client(gradient_bound**2 / (strong_convexity * accuracy), d, width, scheme, constant)


def convex_communication(
    accuracy: float,
    *,
    gradient_bound: float,
    diameter: float,
    d: int,
    width: float,
    scheme: Scheme,
    constant: float = 1.0,
) -> Communication:
    """Table 2, row 1 and Table 5, row 3 (paper 001): T = (1 + chi) G^2 ||C||^2 / alpha^2, up to a constant and logs.

    The rest as `strongly_convex_smooth_communication`.

    >>> convex_communication(0.5, gradient_bound=1.0, diameter=1.0, d=1000, width=2.0, scheme=floats).dimension
    64
    """
    validate.positive(accuracy=accuracy, gradient_bound=gradient_bound, diameter=diameter)
    return _single_client((gradient_bound * diameter / accuracy) ** 2, d, width, scheme, constant)


def stationary_communication(
    accuracy: float,
    *,
    smoothness: float,
    diameter: float,
    gradient_bound: float,
    noise: float,
    between: float,
    gap: float,
    d: int,
    width: float,
    scheme: Scheme,
    failure: float = 0.1,
    constant: float = 1.0,
) -> Communication:
    """Table 2, row 2 and Table 5, row 4 (paper 001): kappa T min(gamma_d, gamma_r) bits, up to a constant.

    r = w(C)^2 / beta^2; kappa, T and beta are those of `distributed_stationary_schedule`.  Plain SGD has its kappa_1
    at chi = 0 (the tables say chi = 1, the same order).

    >>> stationary_communication(2.0, smoothness=1.0, diameter=1.0, gradient_bound=1.0, noise=0.0, between=0.0,
    ...                          gap=1.0, d=100, width=1.0, scheme=floats, failure=0.5)
    Communication(sgd=12800.0, contraction=12800.0, compressed=12800.0, dimension=100)
    """
    return _many_clients(distributed_stationary_schedule, locals())


def mapping_communication(
    accuracy: float,
    *,
    smoothness: float,
    diameter: float,
    gradient_bound: float,
    noise: float,
    between: float,
    gap: float,
    d: int,
    width: float,
    scheme: Scheme,
    constant: float = 1.0,
) -> Communication:
    """Table 5, row 5 (paper 001), up to a constant: as the row above, with `distributed_mapping_schedule`.

    >>> mapping_communication(1.0, smoothness=1.0, diameter=1.0, gradient_bound=1.0, noise=0.0, between=0.0, gap=3.0,
    ...                       d=1000, width=1.0, scheme=floats)
    Communication(sgd=96000.0, contraction=96000.0, compressed=1536.0, dimension=16)
    """
    return _many_clients(distributed_mapping_schedule, locals())


def _single_client(base: float, d: int, width: float, scheme: Scheme, constant: float) -> Communication:
    """One client a round, T = c (1 + chi) base rounds, r = (w(C) T)^2."""
    validate.positive(constant=constant)
    wide, rounds = scheme(d), constant * base * (1 + scheme(d).chi)
    r = narrow_dimension(d, width, 1 / rounds)
    bits = min(wide.bits, scheme(r).bits)
    return Communication(constant * base * floats(d).bits, rounds * wide.bits, rounds * bits, r)


def _many_clients(schedule: Callable[..., Schedule], own: Mapping[str, Any]) -> Communication:
    """kappa T codes, r = w(C)^2 / beta^2; `own` are the arguments of the row, those of the schedule among them."""
    d, scheme = own["d"], own["scheme"]
    wide, problem = scheme(d), {name: own[name] for name in own if name not in ("d", "width", "scheme")}
    plain, encoded = schedule(**problem, chi=0.0), schedule(**problem, chi=wide.chi)
    r = encoded.dimension(0, d, own["width"])
    bits = min(wide.bits, scheme(r).bits)
    codes = float(encoded.batch_size() * (encoded.rounds or 1))
    return Communication(plain.batch_size() * (plain.rounds or 1) * floats(d).bits, codes * wide.bits, codes * bits, r)
