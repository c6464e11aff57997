"""Wolfe's nearest point of a convex hull that is known through its linear maximiser."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from isthmus.geometry.sets.base import norm

_EPS = torch.finfo(torch.float64).eps


def nearest(x: Tensor, oracle: Callable[[Tensor], Tensor], tol: float, max_iterations: int) -> tuple[Tensor, float]:
    """(p, gap): the nearest point p to x in float64; `oracle(g)` maximises <g, s> over the set.

    The gap max_s <x - p, s - p> bounds ||p - Px||^2.  It stops at gap <= tol ||x - p|| max ||s||, or when rounding
    ends the decrease; a polytope is finished in finitely many steps (Wolfe 1976).
    """
    atoms = oracle(x)[None]
    weights = torch.ones(1).to(atoms)
    p = atoms[0]
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
        target = _affine_weights(x, atoms)
        if bool((target >= 0).all()):
            return atoms, target / target.sum()
        falling = target < 0
        ratio = torch.where(falling, weights / (weights - target), torch.inf)
        # Only the blocking atom leaves: after a step of length 0 the newest one has weight 0 as well.
        keep = torch.arange(len(atoms), device=atoms.device) != ratio.argmin()
        weights = (weights + ratio.min() * (target - weights)).clamp_min(0)
        atoms, weights = atoms[keep], weights[keep]


def _affine_weights(x: Tensor, atoms: Tensor) -> Tensor:
    """Weights of sum 1 that minimise ||x - weights @ atoms||, from least squares on differences."""
    if len(atoms) == 1:
        return torch.ones(1).to(atoms)
    # On the CPU, where the solver reveals rank: the CUDA one assumes that no atom depends on the others.
    directions, offset = (atoms[1:] - atoms[0]).T.cpu(), (x - atoms[0]).cpu()
    rest = torch.linalg.lstsq(directions, offset[:, None]).solution[:, 0].to(x.device)
    return torch.cat([1 - rest.sum()[None], rest])
