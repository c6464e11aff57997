"""CompSGD: the steps, distortions, batches, rounds and convergence bounds of Section 2 and Appendix B of paper 001.

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
from collections.abc import Mapping

from isthmus.base import validate
from isthmus.theory.arguments import check_arguments
from isthmus.theory.schedules import Rule, Schedule, round_up

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


def private_stationary_schedule(
    accuracy: float,
    *,
    smoothness: float,
    diameter: float,
    lipschitz: float,
    gap: float,
    failure: float = 0.1,
    constant: float = 1.0,
) -> Schedule:
    """eta = 1/mu, beta, T and the threshold of Corollary C.2, paper 001; T up to a constant.

    Theorem 2.4 with G = L, on full batches (`batch` has no meaning here).

    >>> plan = private_stationary_schedule(1.0, smoothness=1.0, diameter=1.0, lipschitz=1.0, gap=0.5)
    >>> plan.step(5), plan.beta(5), plan.rounds, plan.threshold
    (1.0, 0.00390625, 20, 0.5)
    """
    problem = {"smoothness": smoothness, "diameter": diameter, "gradient_bound": lipschitz}
    return stationary_plan(accuracy, problem, gap, failure, constant)


def private_mapping_schedule(
    accuracy: float, *, smoothness: float, diameter: float, lipschitz: float, gap: float, constant: float = 1.0
) -> Schedule:
    """eta = 1/(2 mu), beta and T of Corollary C.3, paper 001; T up to a constant.

    Theorem B.5 with G = L, on full batches (`batch` has no meaning here).

    >>> plan = private_mapping_schedule(1.0, smoothness=2.0, diameter=5.0, lipschitz=1.0, gap=4.0)
    >>> plan.step(0), plan.beta(0), plan.rounds
    (0.25, 0.1, 8)
    """
    return mapping_plan(accuracy, smoothness, diameter, lipschitz, gap, constant)


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
