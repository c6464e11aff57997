"""Loose solves for the optimisation loop: projected gradient with momentum, from the start, in torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from isthmus.geometry.sets import ConvexSet
from isthmus.geometry.sketches.base import Sketch


def fista(
    constraint: ConvexSet, sketch: Sketch, target: Tensor, start: Tensor, tol: float, max_iter: int
) -> tuple[Tensor, int, bool]:
    """(w, iterations, settled) with the step 1/norm^2 and a restart where momentum points uphill.

    It stops when ||w_{k+1} - w_k|| <= tol ||target - Phi start|| / norm: tol times the unconstrained move.
    """
    norm, project = float(sketch.norm), _warm_projection(constraint)
    enough = tol * float(torch.linalg.vector_norm(target - sketch.forward(start))) / norm
    w, ahead, momentum = start, start, 1.0
    for iteration in range(1, max_iter + 1):
        pull = sketch.adjoint((target - sketch.forward(ahead)) / norm) / norm
        new = project(ahead + pull)
        step = new - w
        if float(torch.linalg.vector_norm(step)) <= enough:
            return new, iteration, True
        if float((ahead - new) @ step) > 0:
            momentum = 1.0
        following = (1 + (1 + 4 * momentum * momentum) ** 0.5) / 2
        ahead = new + ((momentum - 1) / following) * step
        w, momentum = new, following
    return w, max_iter, False


def _warm_projection(constraint: ConvexSet) -> Callable[[Tensor], Tensor]:
    """The projection, handing each threshold to the next call where the set has one."""
    with_threshold = getattr(constraint, "project_with_threshold", None)
    if with_threshold is None:
        return constraint.project
    last: list[float | None] = [None]

    def project(x: Tensor) -> Tensor:
        w, last[0] = with_threshold(x, warm=last[0])
        return w

    return project
