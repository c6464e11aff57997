"""Projection onto the unit lp ball, 1 < p < inf, from its optimality conditions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_EPS = torch.finfo(torch.float64).eps


def pnorm(x: Tensor, p: float) -> Tensor:
    """||x||_p over the last dimension, scaled so that no power overflows."""
    top = x.abs().amax(-1, keepdim=True)
    safe = torch.where((top > 0) & (top < math.inf), top, torch.ones_like(top))
    norms: Tensor = torch.linalg.vector_norm(x / safe, ord=p, dim=-1)
    return norms * safe.squeeze(-1)


def project_unit_lp(a: Tensor, p: float) -> Tensor:
    """The nearest point of the unit lp ball to a >= 0 in float64 with ||a||_p > 1.

    The conditions are y + mu y^(p-1) = a coordinate by coordinate and ||y||_p = 1.  They give
    mu = ||a - y||_{p*}, hence ||a||_{p*} - max ||y||_{p*} <= mu <= ||a||_{p*}; within that bracket Newton's method
    runs on log ||y(mu)||_p against log mu, where the curve is nearly straight.  The unknowns are w = log y: near
    p = 1 and for large p the powers of a rounded y would be wrong in every digit, those of w are not.
    """
    q, dual = p - 1, p / (p - 1)
    high = float(pnorm(a, dual))
    low = max(0.0, high - a.numel() ** max(0.0, 1 / dual - 1 / p))
    mu = min(max(_first_step(a, p), low, 1e-300), high)
    for _ in range(200):
        w = _logarithms(a, mu, q)
        y, excess = w.exp(), float(torch.logsumexp(p * w, 0)) / p
        low, high = (mu, high) if excess > 0 else (low, mu)
        if abs(excess) <= 2 * _EPS or high - low <= _EPS * high:
            break
        mu = _next(mu, excess, _slope(a - y, y, q), low, high)
    return y / pnorm(y, p)  # far away the last digit of mu is more than y


def _first_step(a: Tensor, p: float) -> float:
    """Newton's step from mu = 0, exact to first order for a point just outside."""
    size = float(pnorm(a, p))
    return float((size - 1) * size ** (1 - p) / float(((a / size) ** (2 * (p - 1))).sum()))


def _slope(b: Tensor, y: Tensor, q: float) -> float:
    """d log ||y||_p / d log mu, from b = a - y = mu y^q."""
    tiny = torch.finfo(b.dtype).tiny
    return -float((b * (b * y) / (y + q * b).clamp_min(tiny)).sum()) / max(float(y @ b), tiny)


def _next(mu: float, excess: float, slope: float, low: float, high: float) -> float:
    """The Newton step where it stays in the bracket, else the bracket's geometric middle."""
    step = -excess / slope if slope < 0 else math.inf
    candidate = mu * math.exp(step) if step < 700 else math.inf
    if low < candidate < high:
        return candidate
    middle = math.sqrt(low) * math.sqrt(high) if low > 0 else high / 16
    return middle if low < middle < high else (low + high) / 2


def _logarithms(a: Tensor, mu: float, q: float) -> Tensor:
    """w = log y for the root y of y + mu y^q = a, entry by entry; -inf where a is 0.

    log(exp(w) / a + (mu / a) exp(q w)) is convex and increasing in w: Newton's method from the upper bound decreases
    to its zero.
    """
    goal, ratio = a.log(), (mu / a).log()
    w = torch.minimum(goal, -ratio / q)
    for _ in range(100):
        first, second = w - goal, ratio + q * w
        total = torch.logaddexp(first, second)
        slope = torch.exp(first - total) + q * torch.exp(second - total)
        step = (total / slope).nan_to_num(0.0)  # where a is 0 there is nothing to do
        w = w - step
        if bool((step.abs() <= _EPS * w.abs().clamp_min(min(1.0, 1 / q))).all()):
            break
    return w
