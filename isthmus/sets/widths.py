"""Gaussian widths w(C) = E max_{s in C} <g, s>: closed forms, one-dimensional integrals and Monte Carlo."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy import integrate, special
from torch import Tensor

_CHUNK = 4_000_000


@dataclass(frozen=True)
class Width:
    """A Gaussian width; the standard error is 0 when it is exact.

    >>> float(Width(2.0, 0.0, exact=True))
    2.0
    """

    value: float
    standard_error: float
    exact: bool

    def __float__(self) -> float:
        return self.value

    def __add__(self, other: Width) -> Width:
        error = math.hypot(self.standard_error, other.standard_error)
        return Width(self.value + other.value, error, self.exact and other.exact)


def _exactly(value: float) -> Width:
    """A width known without sampling error."""
    return Width(float(value), 0.0, exact=True)


def _chi_mean(k: int) -> float:
    """E ||g||_2 in R^k, sqrt(2) Gamma((k+1)/2) / Gamma(k/2).

    >>> round(_chi_mean(1) ** 2 * math.pi, 12)
    2.0
    """
    return math.sqrt(2) * float(special.poch(k / 2, 0.5))


def _max_normal(d: int) -> float:
    """E max_i g_i = int_0^inf (1 - Phi^d) dt - int_0^inf Phi(-t)^d dt.

    >>> round(_max_normal(2) * math.sqrt(math.pi), 12)
    1.0
    """
    upper = _tail(lambda t: d * special.log_ndtr(t), d)
    return upper - _integral(lambda t: np.exp(d * special.log_ndtr(-t)), 40.0, 0.0)


def _max_chi(sizes: Tensor) -> float:
    """E max_k ||g_k||_2 over independent groups of the given sizes, int_0^inf (1 - prod_k F_k(t)) dt.

    Groups of one number: E max_i |g_i|.
    """
    degrees, counts = (v.cpu().numpy() for v in torch.unique(sizes, return_counts=True))

    def log_cdf(t: float) -> float:
        with np.errstate(divide="ignore"):  # -inf where a tail is 1
            return float(counts @ np.log1p(-np.minimum(special.gammaincc(degrees / 2, t * t / 2), 1.0)))

    return _tail(log_cdf, int(counts.sum()), math.sqrt(float(degrees.max())))


def _weighted_norm(weights: Tensor) -> float:
    """E ||weights * g||_2 from E sqrt(Q) = (1 / (2 sqrt(pi))) int_0^inf (1 - E e^{-sQ}) s^{-3/2} ds.

    With s = e^v the integrand is analytic and bounded for |Im v| < pi/2, so the trapezoid rule of step 1/4 is exact
    to rounding.
    """
    scale = float(torch.linalg.vector_norm(weights))
    squares = (weights.double().cpu() / scale) ** 2
    step, total = 0.25, 0.0
    for v in torch.arange(-80.0, 80.0, step, dtype=torch.float64):
        log_laplace = -0.5 * float(torch.log1p(2 * torch.exp(v) * squares).sum())
        total += -math.expm1(log_laplace) * math.exp(-float(v) / 2)
    return scale * step * total / (2 * math.sqrt(math.pi))


def _monte_carlo(support: Callable[[Tensor], Tensor], d: int, samples: int, seed: int) -> Width:
    """The mean of support(g) over `samples` rows g ~ N(0, I_d), with its standard error."""
    generator = torch.Generator().manual_seed(seed)
    rows = max(1, _CHUNK // d)
    draws = [
        support(torch.randn(min(rows, samples - start), d, generator=generator, dtype=torch.float64))
        for start in range(0, samples, rows)
    ]
    values = torch.cat(draws)
    error = math.inf
    if samples > 1:
        error = float(values.std()) / math.sqrt(samples)
    return Width(float(values.mean()), error, exact=False)


def _tail(log_cdf: Callable[[float], float], count: int, shift: float = 0.0) -> float:
    """int_0^inf (1 - exp(log_cdf(t))) dt for a maximum of `count` variables with Gaussian tails past `shift`."""
    knee = shift + math.sqrt(2 * math.log(max(count, 2)))
    return _integral(lambda t: -math.expm1(log_cdf(t)), knee + 12.0, knee)


def _integral(f: Callable[[float], float], end: float, knee: float) -> float:
    points = [p for p in (knee / 2, knee - 1, knee, knee + 2) if 0 < p < end]
    edges = sorted({0.0, *points, end})
    pieces = zip(edges[:-1], edges[1:], strict=True)
    return math.fsum(integrate.quad(f, a, b, epsabs=1e-14, epsrel=1e-13, limit=200)[0] for a, b in pieces)
