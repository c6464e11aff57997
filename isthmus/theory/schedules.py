"""What theorems of papers 000, 001, 002 and 004 prescribe, round by round: steps, batches, dimensions, stop rules.

Recipes take a `Schedule`.  Rounds are counted from 0 here; the papers' t is t + 1.  These are statements on utility:
the noise of a run comes from its accountant.  A letter of the papers has one name here, and one name has one range
(`check_arguments`).  Rates and bounds are in `lab.theory`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Required, TypedDict, Unpack

import numpy as np

from isthmus.base import validate

Check = Callable[..., None]

_RANGES: dict[Check, str] = {
    validate.positive: "accuracy batch beta bound constant curvature diameter epsilon gap gradient_bound "
    "lipschitz margin radius scale slope smoothness step strong_convexity threshold total width",
    validate.non_negative: "between bias chi complexity deviation level noise optimisation power projection residual "
    "ridge sigma stability",
    validate.positive_int: "a clients d dimension every inner k m n offset p points rank rounds steps vertices",
    validate.open_unit: "delta failure",
}

_OF: dict[str, Check] = {name: check for check, names in _RANGES.items() for name in names.split()}


def check_arguments(arguments: Mapping[str, Any], **other: Check | None) -> None:
    """Check the arguments of a function, its `locals()`: each lies in the range that its name has.

    other  names that have another range in this function, or (None) are checked by it

    >>> check_arguments({"accuracy": 0.5, "rounds": 0})
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: rounds=0 is not allowed: give a whole number of at least 1
    >>> check_arguments({"noise": 0.0}), check_arguments({"noise": 0.0, "scale": None}, scale=None)
    (None, None)
    """
    checks = {**_OF, **other}
    for name, value in arguments.items():
        check = checks.get(name)
        if check is not None:
            check(**{name: value})


def log_inverse(epsilon: float, delta: float) -> float:
    """log(1/delta) of a budget (epsilon, delta).

    >>> log_inverse(1.0, 1.0)
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: delta=1.0 is not allowed: give a number strictly between 0 and 1
    """
    check_arguments(locals())
    return math.log(1 / delta)


def round_up(x: float) -> int:
    """The least integer that is at least x, up to a relative rounding error of 1e-12.

    >>> round_up(3 * 1.1 / 1.1), round_up(3.01)
    (3, 4)
    """
    return math.ceil(x * (1 - 1e-12))


def narrow_dimension(d: int, width: float, beta: float, constant: float = 1.0) -> int:
    """The dimension of a compressed gradient, m = min(d, c w(C)^2 / beta^2), up to a constant.

    Algorithm CompSGD (paper 001), step 2a, rounded up.  Its section 2.2 prints max{d, t^2 log d}, which is min.

    Lemma 2.2 derives ||Phi v||^2 >= (1 - beta) ||v||^2 for v = w_{t+1} - w from this m by Gordon's theorem, but
    applies that to the *normalised* directions of C - C: when C has an interior these fill the sphere, whose width
    is `direction_width(d)`, about sqrt(d), and not w(C).  The step is right for the tangent cone at a fixed w*: give
    `sparse_cone_width(d, k)` as the width for a k-sparse w* on the boundary of an l1 ball.

    >>> narrow_dimension(10_000, 3.0, 0.1), narrow_dimension(500, 3.0, 0.1)
    (900, 500)
    """
    check_arguments(locals())
    return max(1, round_up(min(d, constant * (width / beta) ** 2)))


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
        return min(self.high, max(self.low, self.scale / float((t + self.offset) ** self.power)))


@dataclass(frozen=True)
class Schedule:
    """What a theorem prescribes.

    step       eta_t
    beta       the distortion beta_t that sets m_t; None when nothing is compressed
    batch      the minibatch size (clients a round in the distributed theorems), before rounding up
    rounds     T, where the theorem fixes it
    threshold  stop when a round moves the iterate by no more than this, where the theorem stops
    gap        stop when the compressed Frank-Wolfe gap is no more than this, where the theorem stops

    >>> plan = Schedule(step=Rule(4.0, power=1.0), beta=Rule(1.0, power=1.0))
    >>> plan.step(0), plan.step(3), plan.beta(3), plan.batch_size(3), plan.dimension(3, 1000, 2.0)
    (4.0, 1.0, 0.25, 1, 64)
    """

    step: Rule
    beta: Rule | None
    batch: Rule = field(default_factory=lambda: Rule(1.0))
    rounds: int | None = None
    threshold: float | None = None
    gap: float | None = None

    def batch_size(self, t: int = 0) -> int:
        """The batch of round t, rounded up."""
        return round_up(self.batch(t))

    def dimension(self, t: int, d: int, width: float, constant: float = 1.0) -> int:
        """m_t = min(d, c w(C)^2 / beta_t^2); d when nothing is compressed."""
        if self.beta is None:
            return d
        return narrow_dimension(d, width, self.beta(t), constant)


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


# ---------------------------------------------------------------- nonconvex


class _Smooth(TypedDict, total=False):
    """What the schedules of smooth losses ask for beside their own terms; bounds hold up to `constant`."""

    smoothness: Required[float]
    diameter: Required[float]
    gap: Required[float]
    constant: float


class _Stationary(_Smooth, total=False):
    """The same with the probability of failure."""

    failure: float


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
    chi: float | None = None,
) -> Schedule:
    """The rules of Theorem 2.4 (B.4), paper 001; batch and T up to a constant.

        eta = 1/mu          beta = min(1/4, mu alpha^2 / (64 G ||C|| (G + mu ||C||)^2))
        b = (1/rho) max(1, (||C|| zeta (G + mu ||C||)^2 / (alpha^2 mu))^2)
        T = (F(w_1) - F*) (G + mu ||C||)^2 / (mu alpha^2 rho)

    The first w_t that moves by no more than the threshold alpha / (G + mu ||C||) is an alpha-FOSP with probability
    (1 - rho)^2.  For the proof's inequality (10) at its own beta the constant of b is at least (64/7)^2 rho; that of
    T is 8 (the proof's line on E[T] inverts mu alpha^2 / 8; the next line is right).

    chi  that of codes, whose bound at so many clients then takes the place of the first G (Corollary D.2, part 4)

    >>> plan = stationary_schedule(1.0, smoothness=1.0, diameter=1.0, gradient_bound=1.0, noise=0.0, gap=0.5)
    >>> plan.step(5), plan.beta(5), plan.batch_size(), plan.rounds, plan.threshold
    (1.0, 0.00390625, 10, 20, 0.5)
    """
    check_arguments(locals(), chi=None)
    speed = gradient_bound + smoothness * diameter
    needed = diameter * noise * speed**2 / (accuracy**2 * smoothness)
    batch = constant * max(1.0, needed**2) / failure
    rounds = constant * gap * speed**2 / (smoothness * accuracy**2 * failure)
    bound = _code_bound(gradient_bound, chi, batch)
    beta = min(0.25, smoothness * accuracy**2 / (64 * bound * diameter * speed**2))
    return Schedule(Rule(1 / smoothness), Rule(beta), Rule(batch), max(1, round_up(rounds)), accuracy / speed)


def private_stationary_schedule(accuracy: float, *, lipschitz: float, **problem: Unpack[_Stationary]) -> Schedule:
    """eta = 1/mu, beta, T and the threshold of Corollary C.2, paper 001; T up to a constant.

    Theorem 2.4 with G = L, on full batches (`batch` has no meaning here); `problem` as for `stationary_schedule`.

    >>> plan = private_stationary_schedule(1.0, smoothness=1.0, diameter=1.0, lipschitz=1.0, gap=0.5)
    >>> plan.step(5), plan.beta(5), plan.rounds, plan.threshold
    (1.0, 0.00390625, 20, 0.5)
    """
    validate.positive(lipschitz=lipschitz)
    plan = stationary_schedule(accuracy, gradient_bound=lipschitz, noise=0.0, **problem)
    return replace(plan, batch=Rule(1.0))


def mapping_schedule(
    accuracy: float,
    *,
    smoothness: float,
    diameter: float,
    gradient_bound: float,
    noise: float,
    gap: float,
    constant: float = 1.0,
    chi: float | None = None,
) -> Schedule:
    """The rules of Theorem B.5, paper 001; batch and T up to a constant.

        eta = 1/(2 mu)      beta = min(1/4, alpha^2 / (mu G ||C||))
        T = mu (F(w_1) - F*) / alpha^2          b = max(1, zeta^2 / alpha^2, zeta^2 ||C||^2 mu^2 / alpha^4)

    The output is one of w_1..w_T at random; its compressed gradient mapping is at most alpha in expectation.

    chi  that of codes, whose bound at so many clients then takes the place of G (Corollary D.2, part 5)

    >>> plan = mapping_schedule(1.0, smoothness=2.0, diameter=5.0, gradient_bound=1.0, noise=0.0, gap=4.0)
    >>> plan.step(0), plan.beta(0), plan.batch_size(), plan.rounds
    (0.25, 0.1, 1, 8)
    """
    check_arguments(locals(), chi=None)
    plain = (noise / accuracy) ** 2
    batch = constant * max(1.0, plain, plain * (diameter * smoothness / accuracy) ** 2)
    beta = min(0.25, accuracy**2 / (smoothness * _code_bound(gradient_bound, chi, batch) * diameter))
    rounds = max(1, round_up(constant * smoothness * gap / accuracy**2))
    return Schedule(Rule(1 / (2 * smoothness)), Rule(beta), Rule(batch), rounds)


def private_mapping_schedule(accuracy: float, *, lipschitz: float, **problem: Unpack[_Smooth]) -> Schedule:
    """eta = 1/(2 mu), beta and T of Corollary C.3, paper 001; T up to a constant.

    Theorem B.5 with G = L, on full batches (`batch` has no meaning here).

    >>> plan = private_mapping_schedule(1.0, smoothness=2.0, diameter=5.0, lipschitz=1.0, gap=4.0)
    >>> plan.step(0), plan.beta(0), plan.rounds
    (0.25, 0.1, 8)
    """
    validate.positive(lipschitz=lipschitz)
    plan = mapping_schedule(accuracy, gradient_bound=lipschitz, noise=0.0, **problem)
    return replace(plan, batch=Rule(1.0))


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


def _code_bound(gradient_bound: float, chi: float | None, clients: float) -> float:
    """G, or G' of the codes of so many clients, before rounding up."""
    if chi is None:
        return gradient_bound
    return math.sqrt(aggregate_second_moment(gradient_bound, chi, round_up(clients)))


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
    plain = convex_schedule(diameter, _code_bound(gradient_bound, chi, clients))
    return replace(plain, batch=Rule(float(clients)))


def distributed_stationary_schedule(
    accuracy: float, *, gradient_bound: float, noise: float, between: float, chi: float, **problem: Unpack[_Stationary]
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
    spread = math.sqrt(aggregate_variance(gradient_bound, chi, noise, between))
    return stationary_schedule(accuracy, gradient_bound=gradient_bound, noise=spread, chi=chi, **problem)


def distributed_mapping_schedule(
    accuracy: float, *, gradient_bound: float, noise: float, between: float, chi: float, **problem: Unpack[_Smooth]
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
    return mapping_schedule(accuracy, gradient_bound=gradient_bound, noise=spread, chi=chi, **problem)


# ---------------------------------------------------------------- steps and T by goal


COMPRESSED = ("comp_sgd", "comp_gd", "comp_minibatch")

ALGORITHMS = ("sgd", *COMPRESSED)


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
    n           records: with the goal "generalisation" T balances optimisation and stability for them unless `rounds`
                is given: smooth n, but ceil(sqrt(n)) for CompGD (Theorem 5); otherwise n^2 (Theorems 3, 7, 10)

    >>> plan = goal_schedule("comp_gd", "generalisation", smoothness=2.0, n=400)
    >>> plan.step(0), plan.step(9), plan.beta(0), plan.rounds
    (0.25, 0.25, 0.5, 20)
    >>> goal_schedule("comp_sgd", "generalisation", n=4).step(0)
    0.125
    """
    check_arguments({name: value for name, value in locals().items() if value is not None})
    validate.one_of(ALGORITHMS, algorithm=algorithm)
    validate.one_of(("optimisation", "generalisation"), goal=goal)
    smooth, learning, whole = smoothness is not None, goal == "generalisation", algorithm == "comp_gd"
    if rounds is None and learning:
        if n is None:
            validate.refuse("n", n, "give the number of records, or rounds")
        rounds = n if smooth else n**2
        if smooth and whole:
            rounds = round_up(math.sqrt(n))
    largest = math.inf
    if smoothness is not None and whole:
        largest = 1 / (2 * smoothness)
    elif smoothness is not None and learning:
        largest = 2 / smoothness
    if scale is None:
        scale = 1.0 if math.isinf(largest) else largest
    validate.at_most(largest, "the largest step of the theorem", scale=scale)
    beta = None if algorithm == "sgd" else Rule(1.0, power=1.0, offset=2)
    if smooth and whole:
        step = Rule(scale)
    elif learning and rounds is not None and (not smooth or algorithm == "sgd"):
        step = Rule(scale / rounds ** (0.5 if smooth else 0.75))
    else:
        step = Rule(scale, power=0.5)
    return Schedule(step, beta, rounds=rounds)


PRIVATE = ("dp_comp_gd", "dp_comp_minibatch")


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


def compressive_scale(p: int, epsilon: float, *, k: int, bound: float) -> float:
    """The Laplace scale b of Algorithm 2, paper 002, in the units of the gradient: 2 Xi kappa sqrt(p) / epsilon.

    It does not fall with n: taking the largest entries of the mean can change all of them with one record.

    >>> compressive_scale(16, 2.0, k=5, bound=0.5)
    10.0
    """
    check_arguments(locals())
    return 2 * bound * k * math.sqrt(p) / epsilon


def dense_scale(d: int, epsilon: float, *, bound: float, n: int = 1) -> float:
    """The Laplace scale without sparsification, 2 Xi d / (n epsilon), what Algorithm 2 (paper 002) is compared with.

    The mean of n gradients moves by at most 2 Xi d / n in l1 when a record is replaced.  n = 1 leaves out, as the
    paper's comparison does, that it falls with n.

    >>> dense_scale(100, 2.0, bound=0.5), dense_scale(100, 2.0, bound=0.5, n=10)
    (50.0, 5.0)
    """
    check_arguments(locals())
    return 2 * bound * d / (n * epsilon)


def laplace_noise(p: int, scale: float) -> float:
    """E ||e||^2 = 2 p b^2 for p independent Laplace numbers of scale b: what Proposition 2 of paper 002 bounds.

    At its b = sqrt(p) / epsilon this is 2 p^2 / epsilon^2, the next to last line of the proof, without the false
    p exp(-x) = exp(-x log p) on the way there.

    >>> laplace_noise(20, 0.5)
    10.0
    """
    check_arguments(locals(), scale=validate.non_negative)
    return 2 * p * scale**2


def sparse_schedule(diameter: float, gradient_bound: float, *, rounds: int | None = None) -> Schedule:
    """rho_k = c / sqrt(k) with c = D / (sqrt(2) G): Theorem 1, paper 002.

    Its footnote prints D / (2 G); the c that minimises D^2 / (2 c) + c G^2, and that the proof takes, is this one.
    The experiments take rho_k = 0.1 / sqrt(k).

    >>> round(sparse_schedule(2.0, 2**0.5).step(3), 12)
    0.5
    """
    validate.positive(diameter=diameter, gradient_bound=gradient_bound)
    return Schedule(Rule(diameter / (math.sqrt(2) * gradient_bound), power=0.5), None, rounds=rounds)


def subspace_schedule(n: int, epsilon: float) -> Schedule:
    """T = n^2 epsilon^2 and eta_t = 1 / sqrt(T): Theorems 4 and 6, paper 004.  T is rounded up, at least 1.

    The theorems say nothing of the batch.  Output: a uniformly random iterate (Theorem 4), the average (Theorem 6).

    >>> plan = subspace_schedule(100, 0.5)
    >>> plan.rounds, plan.step(0)
    (2500, 0.02)
    """
    check_arguments(locals())
    rounds = max(1, round_up((n * epsilon) ** 2))
    return Schedule(step=Rule(1 / math.sqrt(rounds)), beta=None, rounds=rounds)


Vector = Sequence[float] | np.ndarray

Blocks = Sequence[Sequence[int]]

SAMPLINGS = ("full", "single", "block", "nice")


# ---------------------------------------------------------------- which coordinates


def importance_probabilities(smoothness: Vector, blocks: Blocks | None = None) -> np.ndarray:
    """q_i = max_{j in A_i} M_j / sum over blocks, of each block: section 4.2.1, paper 003.

    blocks  a partition of the coordinates; None is singletons, q_j = M_j / Tr(M).  Blocks may overlap: p_j is no less
            than the q_i of any block of j, and M P^-1 <= I sum_i max_{j in A_i} M_j stays true

    >>> importance_probabilities([1.0, 3.0, 4.0], [[0, 1], [2]])
    array([0.42857143, 0.57142857])
    """
    smooth = _positive("smoothness", smoothness)
    largest = smooth
    if blocks is not None:
        largest = np.array([smooth[block].max() for block in cover(blocks, smooth.size)])
    return np.asarray(largest / largest.sum())


def sampling_probabilities(
    sampling: str, d: int, *, blocks: Blocks | None = None, chances: Vector | None = None, tau: int | None = None
) -> np.ndarray:
    """p_j = Prob(j in S) of each coordinate: sections 3.2, 3.4 and 4.2.1, paper 003.

        full    1                   single  q_j, or 1/d
        nice    tau / d             block   the sum of q_i over the blocks that hold j, each 1/b by default

    chances  the q_i of single coordinates or blocks, uniform by default (`importance_probabilities`)

    >>> sampling_probabilities("block", 3, blocks=[[0, 1], [2]], chances=[0.25, 0.75])
    array([0.25, 0.25, 0.75])
    >>> sampling_probabilities("nice", 4, tau=1), sampling_probabilities("full", 2)
    (array([0.25, 0.25, 0.25, 0.25]), array([1., 1.]))
    """
    validate.positive_int(d=d)
    parts = subsets(sampling, d, blocks)
    if sampling == "nice":
        return np.full(d, check_subset_size(tau, d) / d)
    p = np.zeros(d)
    for block, chance in zip(parts, law_of(chances, len(parts)), strict=True):
        p[block] += chance
    return p


def smoothness_ratios(smoothness: Vector, probabilities: Vector | None = None) -> np.ndarray:
    """M_j / p_j, the inverse of the step Gamma = P M^-1 of each coordinate: Theorem 4.2, paper 003.

    >>> smoothness_ratios([1.0, 4.0], [0.5, 1.0])
    array([2., 4.])
    """
    smooth = _positive("smoothness", smoothness)
    p = np.ones_like(smooth) if probabilities is None else _positive("probabilities", probabilities)
    validate.check(p.shape == smooth.shape, "probabilities.shape", p.shape, f"give shape {smooth.shape}")
    validate.check(bool((p <= 1 + 1e-12).all()), "probabilities", p, "give numbers above 0 and at most 1")
    return np.asarray(smooth / p)


# ---------------------------------------------------------------- checks


def _positive(name: str, values: Vector) -> np.ndarray:
    array = np.asarray(values, dtype=float)
    validate.check(array.ndim == 1 and array.size > 0, f"{name}.shape", array.shape, "give a vector, of one dimension")
    validate.check(bool((np.isfinite(array) & (array > 0)).all()), name, values, "give finite numbers above 0")
    return array


def law_of(chances: Vector | None, count: int) -> np.ndarray:
    """The probabilities of `count` subsets, uniform by default."""
    if chances is None:
        return np.full(count, 1 / count)
    q = _positive("chances", chances)
    validate.check(q.size == count, "chances", chances, f"give {count}, one a block")
    validate.check(abs(q.sum() - 1) < 1e-9, "chances", chances, "give probabilities that add up to 1")
    return q


def check_subset_size(tau: int | None, d: int) -> int:
    """tau, where it is the size of a subset of 0..d-1."""
    validate.check(tau is not None, "tau", tau, "give the size of the random subset")
    size = tau or 0
    validate.positive_int(tau=size)
    validate.at_most(d, "d", tau=size)
    return size


def cover(blocks: Blocks | None, d: int) -> list[list[int]]:
    """Subsets of 0..d-1 that together hold every coordinate (Assumption 3.1); None is one of all."""
    every = [[int(j) for j in block] for block in ([range(d)] if blocks is None else blocks)]
    good = all(block and len(set(block)) == len(block) and 0 <= min(block) <= max(block) < d for block in every)
    validate.check(bool(every) and good, "blocks", blocks, f"give non-empty sets of different numbers in 0..{d - 1}")
    missing = d - len({j for block in every for j in block})
    remedy = f"give sets that hold every coordinate (Assumption 3.1): {missing} are never drawn"
    validate.check(missing == 0, "blocks", blocks, remedy)
    return every


def subsets(sampling: str, d: int, blocks: int | Blocks | None = None) -> list[list[int]]:
    """What is drawn from: single coordinates, the blocks (a number: equal ones); or all of them at once."""
    validate.one_of(SAMPLINGS, sampling=sampling)
    if sampling == "single":
        return [[j] for j in range(d)]
    if sampling != "block":
        return [list(range(d))]
    validate.check(blocks is not None, "blocks", blocks, "give the blocks")
    if isinstance(blocks, int):
        validate.positive_int(blocks=blocks)
        validate.at_most(d, "the dimension d", blocks=blocks)
        return [part.tolist() for part in np.array_split(np.arange(d), blocks)]
    return cover(blocks, d)


def expected_smoothness(
    matrix: Any, blocks: Blocks | None = None, chances: Vector | None = None, *, tau: int | None = None
) -> np.ndarray:
    """v_1..v_d with Pi o M <= P Diag(v), the steps 1 / v_j that a law over subsets allows: for Lemma E.3, paper 003.

        a law     v_j = M_jj E[lambda_S | j in S],  lambda_S the largest eigenvalue of the correlations of M on S
        tau-nice  v_j = M_jj (1 + (tau - 1)/(d - 1) (lambda_[d] - 1))

    From I_S M I_S <= lambda_S I_S Diag(M), in the mean over S.  Single coordinates have v_j = M_jj, whatever the rest
    of M; all coordinates at once have a majorant of M.

    blocks   the subsets, which may overlap; None is single coordinates
    chances  their probabilities, uniform by default
    tau      the size of a uniformly random subset, in place of blocks

    >>> M = [[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 2.0]]
    >>> expected_smoothness(M), expected_smoothness(M, [[0, 1], [1, 2]]), expected_smoothness(M, tau=3)
    (array([1., 1., 2.]), array([1.5 , 1.25, 2.  ]), array([1.5, 1.5, 3. ]))
    """
    M = smoothness_matrix(matrix)
    d, diagonal = len(M), np.diagonal(M)
    if tau is not None:
        validate.check(blocks is None, "blocks", blocks, "give the subsets or tau, not both")
        share = (check_subset_size(tau, d) - 1) / max(1, d - 1)
        return np.asarray(diagonal * (1 + share * (_top(M, np.arange(d)) - 1)))
    parts = subsets("single" if blocks is None else "block", d, blocks)
    drawn, weighted = np.zeros(d), np.zeros(d)
    for subset, chance in zip(parts, law_of(chances, len(parts)), strict=True):
        drawn[subset] += chance
        weighted[subset] += chance * _top(M, np.asarray(subset))
    return np.asarray(diagonal * weighted / drawn)


def smoothness_matrix(matrix: Any) -> np.ndarray:
    """A symmetric matrix without negative eigenvalues and with a positive diagonal, or a refusal that says why.

    >>> smoothness_matrix([[2.0, 1.0], [1.0, 2.0]]).shape
    (2, 2)
    """
    M = np.asarray(matrix, dtype=float)
    validate.check(M.ndim == 2 and M.shape[0] == M.shape[1] > 0, "smoothness.shape", M.shape, "give a d x d matrix")
    validate.check(bool(np.isfinite(M).all()), "smoothness", "a matrix", "give finite numbers")
    scale, least = float(np.abs(M).max()), float(np.diagonal(M).min())
    same = bool((np.abs(M - M.T) <= 1e-10 * scale).all())
    validate.check(same, "smoothness", "a matrix that is not symmetric", "give (M + M') / 2: only that part counts")
    validate.check(least > 0, "smoothness", f"a diagonal entry {least:g}", "give entries above 0")
    least = float(np.linalg.eigvalsh(M)[0])
    remedy = "give M >= 0, as a bound of Hessians of convex losses is"
    validate.check(least >= -1e-10 * scale, "smoothness", f"an eigenvalue {least:g}", remedy)
    return np.asarray((M + M.T) / 2)


def _top(M: np.ndarray, subset: np.ndarray) -> float:
    """The largest eigenvalue of the correlations of M on a subset, rounded up."""
    if len(subset) == 1:
        return 1.0
    root = np.sqrt(np.diagonal(M)[subset])
    part = M[np.ix_(subset, subset)] / np.outer(root, root)
    return max(1.0, float(np.linalg.eigvalsh(part)[-1])) * (1 + 2.0**-48)


@dataclass(frozen=True)
class Loops:
    """How long DP-SkGD runs: `outer` = T loops of `inner` = K steps; each loop starts at the last one's average.

    >>> Loops(inner=10, outer=3).steps
    30
    """

    inner: int
    outer: int = 1

    @property
    def steps(self) -> int:
        """K T, the number of releases."""
        return self.inner * self.outer


# ---------------------------------------------------------------- Theorem 4.2


def convex_block_loops(n: int, *, noise: float, radius: float, epsilon: float, delta: float) -> Loops:
    """T = 1 and K = n epsilon R / (Sigma_S sqrt(log(1/delta))): Theorem 4.2, convex case, paper 003.  K rounded up.

    The K that minimises the proof's bound is 1/sqrt(12) of it: the constant is then 6.9 instead of 13.

    >>> convex_block_loops(100, noise=2.0, radius=3.0, epsilon=0.5, delta=math.exp(-4))
    Loops(inner=38, outer=1)
    """
    check_arguments(locals(), noise=validate.positive)
    log = log_inverse(epsilon, delta)
    return Loops(max(1, round_up(n * epsilon * radius / (noise * math.sqrt(log)))))


def strongly_convex_block_loops(
    n: int,
    *,
    smoothness: Vector,
    probabilities: Vector,
    strong_convexity: float,
    noise: float,
    gap: float,
    epsilon: float,
    delta: float,
) -> Loops:
    """K = 2 (1 + c) and T = log2(gap n^2 epsilon^2 / ((1 + c) Sigma_S^2 log(1/delta))): Theorem 4.2, paper 003.

    c = max_j (M_j / p_j) / mu.  The theorem prints K = 2 (1 + 1 / (mu max_j M_j / p_j)), with which a loop need not
    halve the gap; Appendix E.2 has this form.  Both rounded up, T at least 1.  mu is strong convexity in l2 (the
    proof's; Assumption 3.5 has ||.||_M), and `gap` a public bound on f(w0) - f*.

    >>> problem = {"smoothness": [1.0, 2.0], "probabilities": [0.5, 0.5], "strong_convexity": 1.0}
    >>> strongly_convex_block_loops(80, noise=1.0, gap=1.0, epsilon=1.0, delta=math.exp(-1), **problem)
    Loops(inner=10, outer=11)
    """
    validate.positive_int(n=n)
    validate.positive(noise=noise, gap=gap)
    validate.positive(strong_convexity=strong_convexity)
    factor = 1 + float(smoothness_ratios(smoothness, probabilities).max()) / strong_convexity
    level = factor * noise**2 * log_inverse(epsilon, delta) / (n * epsilon) ** 2
    return Loops(round_up(2 * factor), max(1, round_up(math.log2(max(gap / level, 1.0)))))
