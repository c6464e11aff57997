"""CompDistSGD: contractions, Lemma D.1, Corollary D.2 and the communication costs of Tables 2 and 5 (paper 001).

A contraction C of a numbers has E C(v) = v and E ||C(v) - v||^2 <= chi ||v||^2 ((16)) and sends gamma bits.  Parts 1
and 2 of Corollary D.2 keep `strongly_convex_schedule`; parts 1-3 are the rates of CompSGD with G' for G.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from isthmus.base import validate
from isthmus.papers.arguments import check_arguments
from isthmus.papers.paper_001_rates import (
    convex_rate,
    convex_schedule,
    mapping_batch,
    mapping_plan,
    stationary_batch,
    stationary_plan,
    strongly_convex_rate,
    strongly_convex_smooth_rate,
)
from isthmus.papers.schedules import Rule, Schedule, narrow_dimension, round_up


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


def aggregate_second_moment(gradient_bound: float, chi: float, clients: int = 1) -> float:
    """G'^2 = 2 (chi G^2 / kappa + G^2) bounds E ||mean of kappa codes||^2: Lemma D.1 (b), Corollary D.2, paper 001.

    The factor 2 stands for 1 + beta_t; the proof asks for beta_t <= 1/4, but beta_t <= 1 is enough and is what
    parts 1-3 use (beta_t = 1/t).

    >>> aggregate_second_moment(1.0, 1.0), aggregate_second_moment(1.0, 1.0, clients=4)
    (4.0, 2.5)
    """
    check_arguments(locals())
    return 2 * gradient_bound**2 * (chi / clients + 1)


def aggregate_variance(gradient_bound: float, chi: float, noise: float, between: float, clients: int = 1) -> float:
    """zeta'^2 / kappa with zeta'^2 = 2 (chi G^2 + zeta^2 + vartheta^2): Lemma D.1 (c), Corollary D.2, paper 001.

    It bounds E ||mean of codes - Phi grad F||^2.  The lemma prints no 1/kappa; clients drawn with replacement are
    independent, so it belongs there, and the kappa rules of parts 4 and 5 need it.  `clients=1` is zeta'^2.

    between  vartheta, the root of the variance of the clients' gradients about their mean (Assumption C)

    >>> aggregate_variance(1.0, 1.0, 2.0, 3.0), aggregate_variance(1.0, 1.0, 2.0, 3.0, clients=4)
    (28.0, 7.0)
    """
    check_arguments(locals())
    return 2 * (chi * gradient_bound**2 + noise**2 + between**2) / clients


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


def distributed_convex_schedule(diameter: float, gradient_bound: float, chi: float, clients: int = 1) -> Schedule:
    """eta_t = ||C|| / (G' sqrt(t)), beta_t = 1/t, kappa clients a round: Corollary D.2, part 3, paper 001.

    >>> distributed_convex_schedule(4.0, 1.0, 1.0).step(0)
    2.0
    """
    bound = math.sqrt(aggregate_second_moment(gradient_bound, chi, clients))
    plain = convex_schedule(diameter, bound)
    return Schedule(plain.step, plain.beta, batch=Rule(float(clients)))


def distributed_stationary_schedule(
    accuracy: float,
    *,
    smoothness: float,
    diameter: float,
    gradient_bound: float,
    noise: float,
    between: float,
    chi: float,
    gap: float,
    failure: float = 0.1,
    constant: float = 1.0,
) -> Schedule:
    """The rules of Corollary D.2, part 4 (paper 001); kappa (the batch) and T up to a constant.

        kappa = (1/rho) max(1, (||C|| zeta' (G + mu ||C||)^2 / (alpha^2 mu))^2)
        beta = min(1/4, mu alpha^2 / (64 G' ||C|| (G + mu ||C||)^2)),  G' at that kappa

    and eta = 1/mu, T and threshold of Theorem 2.4.

    >>> plan = distributed_stationary_schedule(2.0, smoothness=1.0, diameter=1.0, gradient_bound=1.0, noise=0.0,
    ...                                        between=0.0, chi=0.5, gap=1.0, failure=0.5)
    >>> plan.batch_size(), plan.rounds, round(plan.beta(0) ** -2)
    (2, 2, 10240)
    """
    problem = {"smoothness": smoothness, "diameter": diameter, "gradient_bound": gradient_bound}
    spread = math.sqrt(aggregate_variance(gradient_bound, chi, noise, between))
    clients = stationary_batch(accuracy, **problem, noise=spread, failure=failure, constant=constant)
    bound = math.sqrt(aggregate_second_moment(gradient_bound, chi, round_up(clients)))
    return stationary_plan(accuracy, problem, gap, failure, constant, batch=clients, code_bound=bound)


def distributed_mapping_schedule(
    accuracy: float,
    *,
    smoothness: float,
    diameter: float,
    gradient_bound: float,
    noise: float,
    between: float,
    chi: float,
    gap: float,
    constant: float = 1.0,
) -> Schedule:
    """The rules of Corollary D.2, part 5 (paper 001); kappa (the batch) and T up to a constant.

    eta = 1/(2 mu), T as in Theorem B.5; kappa = max(1, zeta'^2 / alpha^2, zeta'^2 ||C||^2 mu^2 / alpha^4) and
    beta = min(1/4, alpha^2 / (mu G' ||C||)) with G' at that kappa.

    >>> plan = distributed_mapping_schedule(1.0, smoothness=1.0, diameter=1.0, gradient_bound=8.0, noise=0.0,
    ...                                     between=0.0, chi=0.5, gap=3.0)
    >>> plan.batch_size(), plan.rounds, round(plan.beta(0) ** -2)
    (64, 3, 129)
    """
    spread = math.sqrt(aggregate_variance(gradient_bound, chi, noise, between))
    clients = mapping_batch(accuracy, smoothness=smoothness, diameter=diameter, noise=spread, constant=constant)
    bound = math.sqrt(aggregate_second_moment(gradient_bound, chi, round_up(clients)))
    return mapping_plan(accuracy, smoothness, diameter, bound, gap, constant, batch=clients)


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
