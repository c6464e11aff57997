"""What unbiased encodings of a numbers cost, variance chi and bits gamma: section 3.2 and Appendix D of paper 001.

A contraction C has E C(v) = v and E ||C(v) - v||^2 <= chi ||v||^2 (its (16)) and sends gamma bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from isthmus.base import validate


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
