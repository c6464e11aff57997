"""Sparsified, compressed and noised gradients: paper 002, and when compressing helps at all.

Paper 002 is Farokhi, "Gradient sparsification can improve performance of differentially-private convex machine
learning".  d is its n_theta, k its kappa, `bound` its Xi (every entry of a record's loss gradient lies in [-Xi, Xi]).
Its epsilon is that of one iteration: T of them cost T epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isthmus.base import validate
from isthmus.theory.schedules import check_arguments, compressive_scale, dense_scale, round_up
from lab.theory.schedules import check_sparsity

# ---------------------------------------------------------------- the mechanism


def largest_entries(v: Sequence[float] | np.ndarray, k: int) -> np.ndarray:
    """Q_kappa(v): the k entries of largest magnitude, the others 0: (2), paper 002.  Of equal ones the first stay.

    >>> largest_entries([1.0, -3.0, 2.0, 3.0], 2)
    array([ 0., -3.,  0.,  3.])
    """
    array = np.asarray(v, dtype=float)
    validate.check(array.ndim == 1, "v.shape", array.shape, "give a vector, of one dimension")
    check_sparsity(array.size, k)
    keep = np.argsort(-np.abs(array), kind="stable")[:k]
    sparse = np.zeros_like(array)
    sparse[keep] = array[keep]
    return sparse


def sparsification_loss(d: int, k: int) -> float:
    """||Q_kappa(v) - v||^2 <= (1 - kappa/d) ||v||^2 for every v, with equality when all |v_i| are equal.

    The proof of Theorem 1, paper 002, prints 2 (1 - kappa/d): true, but the 2 is not needed.

    >>> sparsification_loss(100, 25)
    0.75
    """
    check_sparsity(d, k)
    return 1 - k / d


def compressive_dimension(d: int, k: int, constant: float = 1.0) -> int:
    """p = kappa log(d / kappa), at least 3 and at most max(3, d), up to a constant: Algorithm 2, step 1, paper 002.

    The experiments take p = 20 at kappa = 5.

    >>> compressive_dimension(75, 5), compressive_dimension(75, 5, constant=1.45), compressive_dimension(10, 10)
    (14, 20, 3)
    """
    check_sparsity(d, k)
    validate.positive(constant=constant)
    return max(3, min(d, round_up(constant * k * math.log(d / k))))


def cosamp_rounds(k: int) -> int:
    """The 6 (kappa + 1) iterations of CoSaMP: Algorithm 1, paper 002.

    >>> cosamp_rounds(5)
    36
    """
    validate.positive_int(k=k)
    return 6 * (k + 1)


# ---------------------------------------------------------------- Proposition 2 and Theorem 1


def compressive_error(d: int, k: int, *, epsilon: float, bound: float, constant: float = 1.0) -> float:
    """E ||M(v) - v||^2 <= C Xi^2 kappa^4 log^2(d/kappa) / epsilon^2: Proposition 2, paper 002.

    It holds up to a constant, its C.  The proof takes p exp(-x) for exp(-x log p), which is false; `laplace_noise`
    mends it, with C = 8 C'^2 C''^2, C' the factor of CoSaMP and p = C'' kappa log(d/kappa).  C' exists only where Psi
    has the restricted isometry property.

    >>> compressive_error(10, 10, epsilon=1.0, bound=1.0), round(compressive_error(8, 1, epsilon=3.0, bound=3.0), 6)
    (0.0, 4.324077)
    """
    check_sparsity(d, k)
    validate.positive(epsilon=epsilon, bound=bound, constant=constant)
    return constant * (bound * k**2 * math.log(d / k) / epsilon) ** 2


def compressive_gradient_bound(d: int, k: int, *, epsilon: float, bound: float, constant: float = 1.0) -> float:
    """G = Xi sqrt(kappa (1 + C kappa^3 log^2(d/kappa) / epsilon^2)), up to a constant (its C): Theorem 1, paper 002.

    G^2 = Xi^2 kappa + `compressive_error` leaves out the cross term of E ||Q(g) + w||^2: decoded noise has a mean.
    With it, (Xi sqrt(kappa) + W)^2 is at most twice this.

    >>> compressive_gradient_bound(9, 9, epsilon=1.0, bound=2.0)
    6.0
    """
    error = compressive_error(d, k, epsilon=epsilon, bound=bound, constant=constant)
    return math.sqrt(bound**2 * k + error)


def last_iterate_bound(
    rounds: int,
    *,
    diameter: float,
    gradient_bound: float,
    bias: float = 0.0,
    noise: float = 0.0,
    scale: float | None = None,
) -> float:
    """E f(theta[T]) - f* for any biased, noisy gradient: the last display in the proof of Theorem 1, paper 002.

        (2 + log T) ((D^2 / (2 c) + c G^2) / sqrt(T) + D (bias + W))

    bias   the norm of what is left out of the gradient, at most; sqrt(2 (d - kappa)) Xi in the theorem
    noise  W, the root of E ||w[k]||^2; the proof does not use that w[k] has mean 0, so W does not fall with T
    scale  c; by default D / (sqrt(2) G), with which the first term is sqrt(2) D G / sqrt(T)

    Algorithm 3 prints no projection onto Theta; the proof needs it.

    >>> round(last_iterate_bound(1, diameter=2.0, gradient_bound=2**0.5, bias=1.0, noise=2.0), 12)
    20.0
    """
    check_arguments(locals(), scale=None)
    c = diameter / (math.sqrt(2) * gradient_bound) if scale is None else scale
    validate.positive(scale=c)
    moving = (diameter**2 / (2 * c) + c * gradient_bound**2) / math.sqrt(rounds)
    return (2 + math.log(rounds)) * (moving + diameter * (bias + noise))


def sparse_bound(
    rounds: int, *, d: int, k: int, epsilon: float, diameter: float, bound: float, constant: float = 1.0
) -> float:
    """E f(theta[T]) - f* of Algorithm 3, up to a constant (its C): Theorem 1, paper 002.

        D Xi (2 + log T) (sqrt(2 kappa / T) sqrt(1 + C kappa^3 log^2(d/kappa) / epsilon^2)
                          + sqrt(2 (d - kappa)) + sqrt(C) kappa^2 log(d/kappa) / epsilon)

    It does not go to 0 with T: the bound holds for a bias and a noise that always point the wrong way.  For whether to
    compress use `compression_helps`, which knows the noise itself.

    >>> sparse_bound(1, d=8, k=8, epsilon=1.0, diameter=1.0, bound=1.0)
    8.0
    """
    validate.positive(diameter=diameter)
    problem = {"epsilon": epsilon, "bound": bound, "constant": constant}
    return last_iterate_bound(
        rounds,
        diameter=diameter,
        gradient_bound=compressive_gradient_bound(d, k, **problem),
        bias=math.sqrt(2 * d * sparsification_loss(d, k)) * bound,
        noise=math.sqrt(compressive_error(d, k, **problem)),
    )


# ---------------------------------------------------------------- does compression help?


@dataclass(frozen=True)
class Comparison:
    """The mean squared error of one noised gradient, compressed and not.  True when compression helps.

    bias   squared norm of what compression leaves out
    noise  the noise of the compressed gradient, after it is decoded
    plain  the noise of the whole gradient

    >>> verdict = Comparison(bias=1.0, noise=2.0, plain=6.0)
    >>> bool(verdict), verdict.compressed, verdict.reach
    (True, 3.0, 2.0)
    """

    bias: float
    noise: float
    plain: float

    def __bool__(self) -> bool:
        return self.compressed < self.plain

    @property
    def compressed(self) -> float:
        """bias + noise."""
        return self.bias + self.noise

    @property
    def reach(self) -> float:
        """Compression helps up to this multiple of the present epsilon, both noises falling as 1 / epsilon^2."""
        if self.plain <= self.noise:
            return 0.0
        return math.sqrt((self.plain - self.noise) / self.bias) if self.bias > 0 else math.inf


def compression_helps(
    d: int,
    m: int,
    *,
    scale: float,
    norm: float,
    energy: float | None = None,
    sparsity: int | None = None,
    recovery: float = 1.0,
    plain_scale: float | None = None,
    noise: str = "gaussian",
) -> Comparison:
    """Does compression help at this noise?  Noise in R^m and what is left out, against noise in R^d.

        (1 - energy) ||g||^2 + r m v(scale)  <  d v(plain_scale),    v(s) = s^2 (Gaussian) or 2 s^2 (Laplace, 2 p b^2)

    The question of section 3 of paper 002 (epsilon small or large) answered from the explicit noise: Proposition 2
    leaves its C open.  The default mechanism releases (sum of clipped codes + N(0, (z C)^2 I_m)) / n, scale z C / n.

    scale        of the noise on each of the m numbers: standard deviation, or b of Laplace
    norm         ||g|| of the mean gradient, a public guess or bound
    energy       the share of ||g||^2 that the compressed gradient can carry; or else
    sparsity     kappa entries are kept, which carry kappa/d at least (`sparsification_loss`)
    recovery     r = E ||decoded noise||^2 / E ||noise||^2: 1 for orthonormal rows (a public subspace, chosen
                 coordinates), d/m for the transpose of a Gaussian map (with which nothing is gained), C'^2 of CoSaMP
    plain_scale  without compression; by default the same, as with Gaussian noise at one clipping bound

    >>> bool(compression_helps(10_000, 50, scale=0.01, norm=1.0, energy=0.5))
    True
    >>> bool(compression_helps(10_000, 50, scale=0.001, norm=1.0, energy=0.5))
    False
    >>> bool(compression_helps(10_000, 50, scale=0.01, norm=1.0, energy=1.0, recovery=10_000 / 50))
    False
    """
    validate.positive_int(d=d, m=m)
    validate.at_most(max(3, d), "d", m=m)
    validate.one_of(("gaussian", "laplace"), noise=noise)
    validate.check((energy is None) != (sparsity is None), "energy", energy, "give either energy or sparsity")
    lost = sparsification_loss(d, sparsity) if sparsity is not None else 1 - _share(energy)
    wide = scale if plain_scale is None else plain_scale
    validate.non_negative(scale=scale, plain_scale=wide, norm=norm, recovery=recovery)
    factor = 2 if noise == "laplace" else 1
    return Comparison(lost * norm**2, recovery * factor * m * scale**2, factor * d * wide**2)


def sparsification_helps(
    epsilon: float,
    *,
    d: int,
    k: int,
    p: int | None = None,
    bound: float = 1.0,
    n: int = 1,
    norm: float | None = None,
    energy: float | None = None,
    recovery: float = 1.0,
) -> Comparison:
    """`compression_helps` for Algorithm 2 of paper 002 at `epsilon` an iteration: Laplace noise, Q_kappa before it.

        (1 - energy) ||g||^2 + 8 r Xi^2 kappa^2 p^2 / epsilon^2  <  8 Xi^2 d^3 / (n^2 epsilon^2)

    The paper's claim, small epsilon helps and large does not, is n = 1.  With n it needs sqrt(r) kappa p < d^{3/2} / n
    at any epsilon, which ordinary n does not give: see `compressive_scale`.

    p       by default `compressive_dimension`
    norm    by default sqrt(d) Xi, the largest there is
    energy  by default kappa/d, the least there is

    >>> verdict = sparsification_helps(1.0, d=75, k=5, p=20)
    >>> bool(verdict), round(verdict.reach, 1), bool(sparsification_helps(1.0, d=75, k=5, p=20, n=10_000))
    (True, 217.0, False)
    """
    width = compressive_dimension(d, k) if p is None else p
    narrow = compressive_scale(width, epsilon, k=k, bound=bound)
    return compression_helps(
        d,
        width,
        scale=narrow,
        norm=math.sqrt(d) * bound if norm is None else norm,
        energy=energy,
        sparsity=k if energy is None else None,
        recovery=recovery,
        plain_scale=dense_scale(d, epsilon, bound=bound, n=n),
        noise="laplace",
    )


def _share(energy: float | None) -> float:
    value = 0.0 if energy is None else energy
    validate.check(0 <= value <= 1, "energy", energy, "give a number from 0 to 1")
    return value
