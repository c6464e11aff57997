"""Private gradients in a subspace learned from public ones: Theorems 2, 3, 4 and 6 of paper 004.

Paper 004 is Zhou, Wu and Banerjee, "Bypassing the ambient dimension: private SGD with gradient subspace identification"
(PDP-SGD).  V is the top-k eigenspace of the second moment Sigma_t of gradients over the population, V^ that of the
second moment M_t of m public examples, alpha_t = lambda_k(Sigma_t) - lambda_{k+1}(Sigma_t) the eigen-gap.  Utility
only: the noise of a run comes from its accountant.  All constants must be public.

    c_0      `concentration_scale`, the scale of sqrt(m) ||M_t - Sigma_t||
    gamma_2  the complexity of the set of iterates (or, with smoothness 1, of mean gradients): its Gaussian width up to
             a constant, `isthmus.L2Ball(r).gaussian_width(d)` or `ellipsoid_gamma2`
    gaps     the alpha_t of the rounds; one number when they are all alike
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from isthmus.base import validate
from isthmus.sets import Ellipsoid
from isthmus.theory.schedules import check_arguments, round_up
from lab.theory.schedules import check_sparsity

Gaps = float | Sequence[float] | np.ndarray


# ---------------------------------------------------------------- how near the public second moment is


def ellipsoid_gamma2(axes: Sequence[float] | np.ndarray, *, count: int = 1, constant: float = 1.0) -> float:
    """gamma_2 of mean gradients in `count` ellipsoids {sum_j m_j^2 / e_j^2 <= 1}, up to a constant: Appendix A.2.

        sqrt(1 + log D) w(ellipsoid),   w(ellipsoid) <= ||e||

    Paper 004 prints sqrt(log D) max_h gamma_2 for the union of D sets, which is 0 at D = 1; the 1 is the set itself.
    Axes e_j <= c / sqrt(j) have w <= c sqrt(1 + log d).

    axes  the half-axes e; of the union, those of the widest ellipsoid

    >>> ellipsoid_gamma2([1.0, 1e-12]) < math.sqrt(2 / math.pi) + 1e-9
    True
    """
    check_arguments(locals(), count=validate.positive_int)
    body = Ellipsoid(np.asarray(axes, dtype=float))
    return constant * math.sqrt(1 + math.log(count)) * body.gaussian_width(body.dim).value


def minkowski_gamma2(*parts: float, constant: float = 1.0) -> float:
    """gamma_2(M_1 + ... + M_h) <= c sum_i gamma_2(M_i) for a Minkowski sum, up to a constant: Appendix A.2, paper 004.

    Theorem 2.4.15 of Talagrand (2014).  As Gaussian widths (gamma_2 in l2 up to a constant) it is an equality with
    c = 1, because support functions add up: gradients that are one of an ellipsoid plus one of a small ball, say.

    parts  gamma_2 of each set, `ellipsoid_gamma2` or a Gaussian width

    >>> minkowski_gamma2(ellipsoid_gamma2([1.0, 1e-12]), 0.5) < math.sqrt(2 / math.pi) + 0.5 + 1e-9
    True
    """
    validate.check(len(parts) > 0, "parts", parts, "give gamma_2 of each set of the sum")
    validate.positive(constant=constant)
    for part in parts:
        validate.non_negative(parts=part)
    return constant * math.fsum(parts)


def concentration_scale(
    d: int, *, gradient_bound: float, smoothness: float, gamma2: float, constant: float = 1.0
) -> float:
    """c_0 = G (rho gamma_2 + G) sqrt(max(1, ln d)), up to a constant: Theorem 2, (38), paper 004.

    The paper prints G rho gamma_2 sqrt(ln p).  Its (31) has one more term, from one point of the set, that does not
    vanish with gamma_2; and (30) divides g g' by G where its norm is at most G^2, so that term is G^2, not G.

    gradient_bound  G, ||gradient of a record|| <= G
    smoothness      rho, the gradient of a record is rho-Lipschitz in the metric of gamma_2

    >>> concentration_scale(1, gradient_bound=2.0, smoothness=3.0, gamma2=0.5)
    7.0
    """
    check_arguments(locals(), smoothness=validate.non_negative, gamma2=validate.non_negative)
    reach = smoothness * gamma2 + gradient_bound
    return constant * gradient_bound * reach * math.sqrt(max(1.0, math.log(d)))


def moment_level(failure: float, constant: float = 1.0) -> float:
    """u = 2 sqrt(log(c / failure)), with which Theorem 2 of paper 004 fails with c exp(-u^2/4); c up to a constant.

    The proof ends at (c' + 2) p exp(-u^2/4); u sqrt(ln p) for u takes p away, with c at least e and p >= 3.

    >>> moment_level(math.exp(-4))
    4.0
    """
    check_arguments(locals())
    return 2 * math.sqrt(max(0.0, math.log(constant / failure)))


def moment_deviation(m: int, scale: float, *, level: float = 1.0) -> float:
    """sup_t ||M_t - Sigma_t|| <= u c_0 / sqrt(m): Theorem 2, paper 004, also in expectation with u = 1 ((37)).

    It holds for all iterates at once, although they depend on the public examples.

    m      public examples
    scale  c_0 of `concentration_scale`
    level  u of `moment_level`

    >>> moment_deviation(100, 5.0), moment_deviation(100, 5.0, level=4.0)
    (0.5, 2.0)
    """
    check_arguments(locals())
    return level * scale / math.sqrt(m)


def fresh_moment_deviation(m: int, *, d: int, gradient_bound: float, failure: float) -> float:
    """||M - Sigma|| at ONE point that the m examples did not choose, but for a chance `failure`: Theorem 5, paper 004.

        min(G^2, 2 G^2 sqrt(log(2 d / failure) / m))

    Explicit, from Ahlswede and Winter.  Section 3.1 prints p exp(-m u^2 / 4G): the norm of g g' is G^2, and the
    theorem has 2p.  Reused examples need `moment_deviation`.

    >>> round(fresh_moment_deviation(400, d=10, gradient_bound=1.0, failure=20 * math.exp(-4)), 12)
    0.2
    """
    check_arguments(locals())
    return gradient_bound**2 * min(1.0, 2 * math.sqrt(math.log(2 * d / failure) / m))


# ---------------------------------------------------------------- how near the subspace is


def subspace_perturbation(deviation: float, gap: float) -> float:
    """||V^ V^' - V V'|| <= y / (alpha - y) below y = alpha / 2, else 1, for y = ||M - Sigma||: (34)-(40), paper 004.

    Davis and Kahan with Weyl; never above 2 y / alpha.  The paper adds the two halves of (33), which are equal to the
    whole when both subspaces have k dimensions: a factor 2 is saved.

    >>> subspace_perturbation(0.25, 1.25), subspace_perturbation(1.0, 1.5), subspace_perturbation(0.0, 1.0)
    (0.25, 1.0, 0.0)
    """
    check_arguments(locals())
    return 1.0 if 2 * deviation >= gap else deviation / (gap - deviation)


def subspace_error(m: int, gap: float, scale: float) -> float:
    """E ||V^ V^' - V V'|| <= min(1, 2 c_0 / (alpha sqrt(m))): Theorem 3, paper 004.

    (41) takes the expectation inside y -> 2 alpha / (alpha - y) - 2, which is convex: Jensen goes the other way.
    2 y / alpha bounds the distance for every y and is linear, so the theorem holds, for every m.

    gap    alpha_t
    scale  c_0 of `concentration_scale`

    >>> subspace_error(400, 2.0, 5.0), subspace_error(4, 2.0, 5.0)
    (0.25, 1.0)
    """
    validate.positive(gap=gap)
    return min(1.0, 2 * moment_deviation(m, scale) / gap)


def public_samples(gaps: Gaps, scale: float, *, error: float = 1.0) -> int:
    """m = (2 c_0 / (error min_t alpha_t))^2 public examples, for a distance of at most `error`: Theorem 3, paper 004.

    error = 1 is the m of the theorem, 4 c_0^2 / min_t alpha_t^2: from there on its bound says something.  The proof
    prints c_0^2 / alpha_t^2 and then uses c_0 / sqrt(m) <= alpha_t / 2, which is four times that.

    gaps   the alpha_t
    scale  c_0 of `concentration_scale`

    >>> public_samples(2.0, 5.0), public_samples([2.0, 1.0], 5.0), public_samples(2.0, 5.0, error=0.5)
    (25, 100, 100)
    """
    validate.positive(scale=scale)
    validate.probability(error=error)
    return max(1, round_up((2 * scale / (error * float(_gaps(gaps).min()))) ** 2))


def eigen_gap_condition(gaps: Gaps, m: int, scale: float) -> bool:
    """Whether c_0 / sqrt(m) <= alpha_t / 2 in every round, what Theorem 3 of paper 004 asks of the eigen-gap: (38).

    >>> eigen_gap_condition(2.0, 25, 5.0), eigen_gap_condition([2.0, 1.0], 25, 5.0)
    (True, False)
    """
    return bool(2 * moment_deviation(m, scale) <= float(_gaps(gaps).min()) * (1 + 1e-12))


def gap_moment(gaps: Gaps, power: int = 2) -> float:
    """Lambda = (1/T) sum_t 1 / alpha_t^power: 2 in Theorem 4, 1 in Theorem 6 of paper 004.

    (62) and (74) print the sum without 1/T.  Gaps t^(-1/4) (power 2) or t^(-1/2) (power 1) make it about sqrt(T).  The
    text then asks for m = O(n epsilon) public examples at T = (n epsilon)^2; that keeps the projection term of Theorem
    4 from growing (it falls no further), and Theorem 6, with Lambda / sqrt(m), needs (n epsilon)^2 even for that.

    >>> gap_moment([1.0, 0.5]), gap_moment([1.0, 0.5], 1), gap_moment(0.5)
    (2.5, 1.5, 4.0)
    """
    validate.one_of((1, 2), power=power)
    return float((1 / _gaps(gaps) ** power).mean())


def subspace_noise(
    n: int, rounds: int, *, gradient_bound: float, epsilon: float, delta: float, constant: float = 1.0
) -> float:
    """sigma = G sqrt(c_2 T ln(1/delta)) / (n epsilon) a coordinate of the mean, up to a constant: Theorem 1, paper 004.

    For rates only.  At T = (n epsilon)^2 it no longer depends on n.  The end of the proof of Theorem 6 leaves
    ln(1/delta) out, and so does its (66).

    >>> subspace_noise(100, 2500, gradient_bound=3.0, epsilon=0.5, delta=math.exp(-4))
    6.0
    """
    check_arguments(locals())
    return gradient_bound * math.sqrt(constant * rounds * math.log(1 / delta)) / (n * epsilon)


def projected_second_moment(k: int, *, gradient_bound: float, sigma: float) -> float:
    """E ||V^ V^' (g + b)||^2 <= G^2 + k sigma^2: (58) and (71), paper 004; k = d is DP-SGD.

    (59) adds ||Delta_t||^2 on its left, which is not part of the step.

    >>> projected_second_moment(5, gradient_bound=2.0, sigma=1.0)
    9.0
    """
    check_arguments(locals())
    return gradient_bound**2 + k * sigma**2


# ---------------------------------------------------------------- Theorem 4: smooth, random iterate


def subspace_stationary_noise(
    rounds: int,
    *,
    k: int,
    smoothness: float,
    gradient_bound: float,
    sigma: float,
    gap: float,
    step: float | None = None,
) -> float:
    """2 (F(w_1) - F*) / (eta T) + rho eta (G^2 + k sigma^2): the noise term of Theorem 4, (60) and (62), paper 004.

    gap   a public bound on F(w_1) - F*
    step  eta, by default the theorem's 1 / sqrt(T)

    >>> subspace_stationary_noise(100, k=5, smoothness=2.0, gradient_bound=2.0, sigma=1.0, gap=1.0)
    2.0
    """
    check_arguments(locals(), gap=validate.non_negative, step=None)
    eta = _step(rounds, step)
    second = projected_second_moment(k, gradient_bound=gradient_bound, sigma=sigma)
    return 2 * gap / (eta * rounds) + smoothness * eta * second


def subspace_stationary_projection(
    m: int, *, k: int, d: int, gradient_bound: float, scale: float, gaps: Gaps, constant: float = 1.0
) -> float:
    """8 Lambda G^2 c_0^2 / m, up to a constant: the projection term of Theorem 4, (61), paper 004.

    2 G^2 times the mean over t of E ||V^ V^' - V V'||^2.  Theorem 3 bounds the distance, not its square, so the tail of
    Theorem 2 is used again (that is the constant).  (62) prints a stray L.  At k = d both projectors are the identity
    and the term is 0.

    >>> subspace_stationary_projection(400, k=2, d=9, gradient_bound=2.0, scale=5.0, gaps=2.0)
    0.5
    """
    check_sparsity(d, k)
    validate.positive(gradient_bound=gradient_bound, constant=constant)
    square = 4 * gap_moment(gaps, 2) * moment_deviation(m, scale) ** 2
    return 0.0 if k == d else constant * 2 * gradient_bound**2 * square


def subspace_stationary_bound(noise: float, projection: float, *, residual: float = 0.0) -> float:
    """E ||grad F(w_R)||^2 <= (1 + c) (noise + projection), R uniform in 1..T: Theorem 4, (64), paper 004.

    With c = 0 it is (3), the bound on the principal component V V' grad F.  `residual` is c, with
    sum_t ||residual component||^2 <= c sum_t ||principal component||^2 (`isthmus.diagnostics.principal_residual_ratio`
    is 1 / c on public gradients); c = 0 at k = d.

    noise       `subspace_stationary_noise`
    projection  `subspace_stationary_projection`

    >>> subspace_stationary_bound(2.0, 0.5), subspace_stationary_bound(2.0, 0.5, residual=0.5)
    (2.5, 3.75)
    """
    validate.non_negative(noise=noise, projection=projection, residual=residual)
    return (1 + residual) * (noise + projection)


def subspace_stationary_rate(
    n: int,
    *,
    k: int,
    smoothness: float,
    gradient_bound: float,
    epsilon: float,
    delta: float,
    projection: float = 0.0,
    constant: float = 1.0,
) -> float:
    """c k rho G^2 ln(1/delta) / (n epsilon) + projection, up to a constant: Theorem 4, (4), paper 004.

    The paper hides ln(1/delta) in O~, and next to it 2 (F(w_1) - F*) / (n epsilon), which is less only when the gap is
    at most of order k rho G^2: `subspace_stationary_noise` has both.  k = d, projection = 0 is the rate of DP-SGD.

    >>> subspace_stationary_rate(1000, k=5, smoothness=2.0, gradient_bound=1.0, epsilon=0.5, delta=math.exp(-4))
    0.08
    """
    validate.positive(smoothness=smoothness, gradient_bound=gradient_bound)
    return _private_rate(n, k, smoothness * gradient_bound**2, epsilon, delta, projection, constant)


# ---------------------------------------------------------------- Theorem 6: convex, ball, average


def subspace_convex_noise(
    rounds: int, *, k: int, radius: float, gradient_bound: float, sigma: float, step: float | None = None
) -> float:
    """(2 B)^2 / (2 eta T) + (eta / 2) (G^2 + k sigma^2): the noise term of Theorem 6, (72), paper 004.

    Two points of the ball of radius B are up to 2 B apart; the proof has B.  With eta = 1 / sqrt(T) the k stays linear;
    eta = 2 B / sqrt(T (G^2 + k sigma^2)) makes it sqrt(k), as the rates of DP-SGD it is compared with have sqrt(d).

    step  eta, by default the theorem's 1 / sqrt(T)

    >>> subspace_convex_noise(64, k=5, radius=1.0, gradient_bound=2.0, sigma=2.0)
    1.75
    """
    check_arguments(locals(), step=None)
    eta = _step(rounds, step)
    second = projected_second_moment(k, gradient_bound=gradient_bound, sigma=sigma)
    return 2 * radius**2 / (eta * rounds) + eta * second / 2


def subspace_convex_projection(
    m: int, *, k: int, d: int, radius: float, gradient_bound: float, scale: float, gaps: Gaps
) -> float:
    """2 B G 2 Lambda c_0 / sqrt(m), Lambda of power 1: the projection term of Theorem 6, (72)-(74), paper 004.

    2 B times the mean over t of G E ||V^ V^' - V V'||; it needs Sigma_t of rank k (then alpha_t = lambda_k).  (73)
    loses a factor G and prints ln p for sqrt(ln p), (74) loses B.  The proof measures <w_{t+1} - w*, Delta_t> before
    the projection onto the ball; <w_t - w*, Delta_t> gives the same bound with it.  0 at k = d.

    >>> subspace_convex_projection(400, k=2, d=9, radius=0.5, gradient_bound=3.0, scale=5.0, gaps=2.0)
    0.75
    """
    check_sparsity(d, k)
    validate.positive(radius=radius, gradient_bound=gradient_bound)
    distance = 2 * gap_moment(gaps, 1) * moment_deviation(m, scale)
    return 0.0 if k == d else 2 * radius * gradient_bound * distance


def subspace_convex_bound(noise: float, projection: float) -> float:
    """E F(average) - F(w*) <= noise + projection: Theorem 6, (74), paper 004.

    noise       `subspace_convex_noise`
    projection  `subspace_convex_projection`

    >>> subspace_convex_bound(1.5, 0.25)
    1.75
    """
    validate.non_negative(noise=noise, projection=projection)
    return noise + projection


def subspace_convex_rate(
    n: int,
    *,
    k: int,
    gradient_bound: float,
    epsilon: float,
    delta: float,
    projection: float = 0.0,
    constant: float = 1.0,
) -> float:
    """c k G^2 ln(1/delta) / (n epsilon) + projection, up to a constant: Theorem 6, (66), paper 004.

    (66) leaves ln(1/delta) out; the end of the proof, (75), prints k G^2 B^2, where (74) has B^2 + G^2 + k sigma^2.
    k = d, projection = 0 is DP-SGD with the same step.

    >>> subspace_convex_rate(1000, k=5, gradient_bound=1.0, epsilon=0.5, delta=math.exp(-4))
    0.04
    """
    validate.positive(gradient_bound=gradient_bound)
    return _private_rate(n, k, gradient_bound**2, epsilon, delta, projection, constant)


# ---------------------------------------------------------------- checks


def _private_rate(
    n: int, k: int, factor: float, epsilon: float, delta: float, projection: float, constant: float
) -> float:
    """factor k (sigma / G)^2 / sqrt(T) at T = (n epsilon)^2, plus the projection term."""
    check_arguments(locals())
    return constant * k * factor * math.log(1 / delta) / (n * epsilon) + projection


def _step(rounds: int, step: float | None) -> float:
    if step is None:
        return 1 / math.sqrt(rounds)
    validate.positive(step=step)
    return step


def _gaps(gaps: Gaps) -> np.ndarray:
    array = np.atleast_1d(np.asarray(gaps, dtype=float))
    validate.check(array.ndim == 1 and array.size > 0, "gaps.shape", array.shape, "give one eigen-gap a round")
    good = bool((np.isfinite(array) & (array > 0)).all())
    validate.check(
        good, "gaps", gaps, "give eigen-gaps above 0: where lambda_k = lambda_{k+1} there is no one subspace"
    )
    return array
