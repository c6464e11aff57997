"""Projection onto {y >= 0, sum y = radius} in expected linear time, without a sort (Michelot 1986, Condat 2016).

The projection is y = max(u - tau, 0) with tau the root of f(tau) = sum max(u - tau, 0) - radius.  f is convex and
decreasing, so a Newton step from anywhere lands at or left of the root and from then on the steps increase: entries
below the current tau never come back and are dropped.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

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
    return y.mul_(radius / total) if total > radius else y


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
    return _newton_step(clear, radius) if 0 < clear.numel() < candidates.numel() else drop


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
