"""The computations behind the projections of several sets.

In NumPy their directional derivatives, what a Newton solver asks of a set: `J(x)` is that of the projection at z along
x.

In torch, the projection onto {y >= 0, sum y = radius} in expected linear time, without a sort (Michelot 1986, Condat
2016).  It is y = max(u - tau, 0) with tau the root of f(tau) = sum max(u - tau, 0) - radius.  f is convex and
decreasing, so a Newton step from anywhere lands at or left of the root and from then on the steps increase: entries
below the current tau never come back and are dropped.

Then Wolfe's nearest point of a convex hull that is known through its linear maximiser, and the projection onto the
unit lp ball, 1 < p < inf, from its optimality conditions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor

from isthmus.base.matrix import Array

Derivative = Callable[[Array], Array]


def norm(x: Tensor) -> float:
    """||x||_2 in float64: float32 squares keep their digits; float64 ones are scaled where they would overflow."""
    size = float(torch.linalg.vector_norm(x.flatten(), dtype=torch.float64))
    if 1e-140 < size < math.inf:
        return size
    if x.numel() == 0:
        return size
    top = float(x.abs().max())
    if not 0 < top < math.inf:
        return size
    return float(torch.linalg.vector_norm(x.flatten().double() / top)) * top


def same(x: Array) -> Array:
    """x: the derivative inside a set."""
    return x


def _unthresholded(w: Array) -> Derivative:
    """The derivative of a threshold with the image w: its coordinates move, less their mean (with their signs)."""
    signs = np.sign(w)
    mean = signs / np.count_nonzero(w)
    return lambda x: np.abs(signs) * x - signs * (mean @ x)


def shortened(z: Array, w: Array) -> Derivative:
    """The derivative of the projection on a Euclidean ball about 0, with the image w of z."""
    length = float(np.linalg.norm(z))
    if length <= float(np.linalg.norm(w)):
        return same
    unit, ratio = z / length, float(np.linalg.norm(w)) / length
    return lambda x: ratio * (x - unit * (unit @ x))


def smooth(z: Array, w: Array, normal: Array, curvature: Array) -> Derivative:
    """That of a ball {g <= 1} with separable smooth g: z - w = c n(w), J = D - D n n'D / n'Dn, D = 1/(1 + c g'')."""
    length = float(normal @ normal)
    if length == 0 or float((z - w) @ normal) <= 0:
        return same
    c = float((z - w) @ normal) / length
    damp = 1 / (1 + c * curvature)
    bent = damp * normal
    total = float(normal @ bent)
    return lambda x: damp * x - bent * ((bent @ x) / total)


def sorted_threshold(u: Array, radius: float) -> float:
    """tau with sum max(u - tau, 0) = radius, by a sort.

    >>> sorted_threshold(np.array([3.0, 1.0]), 1.0)
    2.0
    """
    ordered = np.sort(u)[::-1]
    excess = np.cumsum(ordered) - radius
    count = max(1, int(np.count_nonzero(ordered * np.arange(1, len(u) + 1) > excess)))
    return float(excess[count - 1] / count)


_SAMPLE = 2048


def threshold(u: Tensor, radius: float, warm: float | None = None) -> tuple[float, float]:
    """(top, drop) with top = max u and tau = top + drop, the root of sum max(u - tau, 0) = radius.

    The pair keeps digits that tau alone loses when radius is small against top.
    """
    top = float(u.max())
    mean = float(u.sum(dtype=torch.float64)) / u.numel()
    lower = max(top - radius, mean - radius / u.numel())
    start = min(max(lower, _guess(u, radius, top, warm)), top)  # the mean of equal entries may round to above them
    active = _above(u, start) - top
    drop = _newton_step(active, radius)
    if drop < start - top:
        active = _above(u, top + drop) - top
    return top, _michelot(active, radius)


def shrink(u: Tensor, radius: float, top: float, drop: float) -> Tensor:
    """max(u - top - drop, 0) in place, with sum <= radius up to rounding."""
    y = u.sub_(top).sub_(drop).clamp_(min=0)
    total = float(y.sum(dtype=torch.float64))
    if total <= radius:
        return y
    return y.mul_(radius / total)


def _michelot(active: Tensor, radius: float) -> float:
    """The root for shifted entries (max 0) of which no entry above the root is missing."""
    candidates = active
    while True:
        drop = _newton_step(candidates, radius)
        above = _compress(candidates, candidates > drop)
        if above.numel() in (0, candidates.numel()):
            break
        candidates = above
    # Entries equal to tau up to rounding are left out, so that every start ends in the same sum.
    clear = _compress(candidates, candidates > drop * (1 - 16 * torch.finfo(torch.float64).eps))
    if 0 < clear.numel() < candidates.numel():
        return _newton_step(clear, radius)
    return drop


def _newton_step(active: Tensor, radius: float) -> float:
    return (float(active.sum()) - radius) / active.numel()


def _guess(u: Tensor, radius: float, top: float, warm: float | None) -> float:
    """A value near tau, rather below it: the warm start or the threshold of a strided sample."""
    tau = -math.inf if warm is None or not math.isfinite(warm) else float(warm)
    if warm is None and u.numel() > 16 * _SAMPLE:
        sample = u[:: u.numel() // _SAMPLE].contiguous()
        tau = sum(threshold(sample, radius * sample.numel() / u.numel()))
    return tau - 0.05 * abs(top - tau)


def _above(u: Tensor, level: float) -> Tensor:
    return _compress(u, u >= level).double()


def _compress(u: Tensor, mask: Tensor) -> Tensor:
    # Boolean indexing in torch builds int64 positions first: five times slower than NumPy on the CPU.
    if u.device.type == "cpu":
        return torch.from_numpy(np.compress(mask.numpy(), u.numpy()))
    return u[mask]


_EPS = torch.finfo(torch.float64).eps


def nearest(x: Tensor, oracle: Callable[[Tensor], Tensor], tol: float, max_iterations: int) -> tuple[Tensor, float]:
    """(p, gap): the nearest point p to x in float64; `oracle(g)` maximises <g, s> over the set.

    The gap max_s <x - p, s - p> bounds ||p - Px||^2.  It stops at gap <= tol ||x - p|| max ||s||, or when rounding
    ends the decrease; a polytope is finished in finitely many steps (Wolfe 1976).
    """
    atoms = oracle(x)[None]
    weights = torch.ones(1).to(atoms)
    p = atoms[0].clone()  # the oracle may hand out its own memory
    gap = float("inf")
    for _ in range(max_iterations):
        step = x - p
        s = oracle(step)
        gap = max(float(step @ (s - p)), 0.0)
        size = max(norm(s), norm(p))
        small = norm(step) <= 4 * _EPS * max(norm(x), size) or gap <= tol * norm(step) * size
        if small or bool((atoms == s).all(1).any()):
            break
        atoms, weights = _correct(x, torch.cat([atoms, s[None]]), torch.cat([weights, weights.new_zeros(1)]))
        following = weights @ atoms
        if norm(x - following) >= norm(step):
            break
        p = following
    return p, gap


def _correct(x: Tensor, atoms: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Move to the nearest point of the affine hull, dropping the atoms whose weight reaches 0 on the way."""
    while True:
        # On the CPU, where the solver reveals rank: the CUDA one assumes that no atom depends on the others.
        directions, offset = (atoms[1:] - atoms[0]).T.cpu(), (x - atoms[0]).cpu()
        rest = torch.linalg.lstsq(directions, offset[:, None]).solution[:, 0].to(x.device)
        target = torch.cat([1 - rest.sum()[None], rest])  # of sum 1, minimising ||x - target @ atoms||
        if bool((target >= 0).all()):
            return atoms, target / target.sum()
        falling = target < 0
        ratio = torch.where(falling, weights / (weights - target), torch.inf)
        # Only the blocking atom leaves: after a step of length 0 the newest one has weight 0 as well.
        keep = torch.arange(len(atoms), device=atoms.device) != ratio.argmin()
        weights = (weights + ratio.min() * (target - weights)).clamp_min(0)
        atoms, weights = atoms[keep], weights[keep]


def _pnorm(x: Tensor, p: float) -> Tensor:
    """||x||_p over the last dimension, scaled so that no power overflows."""
    top = x.abs().amax(-1, keepdim=True)
    safe = torch.where((top > 0) & (top < math.inf), top, torch.ones_like(top))
    norms: Tensor = torch.linalg.vector_norm(x / safe, ord=p, dim=-1)
    return norms * safe.squeeze(-1)


def _project_unit_lp(a: Tensor, p: float) -> Tensor:
    """The nearest point of the unit lp ball to a >= 0 in float64 with ||a||_p > 1.

    The conditions are y + mu y^(p-1) = a coordinate by coordinate and ||y||_p = 1.  They give
    mu = ||a - y||_{p*}, hence ||a||_{p*} - max ||y||_{p*} <= mu <= ||a||_{p*}; within that bracket Brent's method
    runs on log ||y(mu)||_p against log mu, where the curve is nearly straight.  The unknowns are w = log y: near
    p = 1 and for large p the powers of a rounded y would be wrong in every digit, those of w are not.
    """
    dual = p / (p - 1)
    high = float(_pnorm(a, dual))
    low = max(high - a.numel() ** max(0.0, 1 / dual - 1 / p), 1e-300)

    @cache
    def excess(log_mu: float) -> float:
        return float(torch.logsumexp(p * _logarithms(a, math.exp(log_mu), p - 1), 0)) / p

    ends = [math.log(low), math.log(high)]
    best = min(ends, key=lambda end: abs(excess(end)))  # where rounding leaves no change of sign
    if excess(ends[0]) > 0 > excess(ends[1]):
        best = brentq(excess, *ends, xtol=1e-300, rtol=4 * _EPS)
    y = _logarithms(a, math.exp(best), p - 1).exp()
    return y / _pnorm(y, p)  # far away the last digit of mu is more than y


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
