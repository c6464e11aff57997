"""Loose solves for the optimisation loop: projected gradient with momentum, from the start, in torch."""

from __future__ import annotations

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
    norm, warm = float(sketch.norm), None
    enough = tol * float(torch.linalg.vector_norm(target - sketch.forward(start))) / norm
    w, ahead, momentum = start, start, 1.0
    for iteration in range(1, max_iter + 1):
        pull = sketch.adjoint((target - sketch.forward(ahead)) / norm) / norm
        new, warm = constraint.project_with_threshold(ahead + pull, warm)
        step = new - w
        if float(torch.linalg.vector_norm(step)) <= enough:
            return new, iteration, True
        if float((ahead - new) @ step) > 0:
            momentum = 1.0
        following = (1 + (1 + 4 * momentum * momentum) ** 0.5) / 2
        ahead = new + ((momentum - 1) / following) * step
        w, momentum = new, following
    return w, max_iter, False
