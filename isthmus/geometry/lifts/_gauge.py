"""The least t with a target in t Phi C, by Newton's method on the value function (van den Berg, Friedlander 2008)."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch

from isthmus.base import validate
from isthmus.geometry.lifts._path import LiftProblem, PathEnd, nearest


def value_root(problem: LiftProblem, tol: float, max_iter: int, limit: float = math.inf) -> PathEnd | None:
    """w in t C with ||Phi w - v|| <= tol ||v|| for the least such t; None when that t is `limit` or more.

    phi(t) = min_{w in tC} ||Phi w - v|| is convex and decreasing with slope -h_C(Phi' r)/||r||, so the steps
    t + ||r||^2 / h_C(Phi' r) approach the root from below.  w in tC with target v is t u, u in C with target v/t.
    """
    constraint, phi, v = problem.constraint, problem.phi, problem.v
    constraint.require("support")
    enough = tol * float(np.linalg.norm(v))
    t, used, residual = 0.0, 0, v
    while True:
        pull = constraint.support(torch.from_numpy(phi.adjoint(residual)))
        step = float(residual @ residual) / pull if pull > 0 else math.inf
        t += step
        if t >= limit or not math.isfinite(t):
            return None
        end = nearest(LiftProblem(constraint, phi, v / t, problem.w0 / t), min(1e-8, tol**2), max_iter)
        used += end.iterations
        w = t * end.w
        residual = v - phi.forward(w)
        size = float(np.linalg.norm(residual))
        if size <= enough or used >= max_iter or step <= 1e-14 * t:
            return PathEnd(w, end.mu, end.eps, residual, size * size, used, size <= enough)


def least_gauge(problem: LiftProblem, end: PathEnd, tol: float, max_iter: int) -> PathEnd:
    """Of the minimisers one of least gauge, from one minimiser `end`.

    A target outside Phi C has minimisers of gauge 1 only, and so has every target over a simplex.
    """
    constraint, phi, v, form = problem.constraint, problem.phi, problem.v, problem.form
    simplex = form is not None and form.rows is None and not form.signed
    if simplex or float(end.residual @ end.residual) > tol * problem.reference(end.w):
        return end
    if not constraint.contains(torch.zeros(phi.d, dtype=torch.float64)):
        validate.refuse("constraint", constraint, "give a set that contains the origin: pick='min_gauge' needs one")
    if not np.any(v):
        return replace(end, w=np.zeros(phi.d), residual=v, certificate=0.0, converged=True)
    path_end = value_root(problem, 0.1 * tol**0.5, max_iter, limit=1.0)
    return end if path_end is None else replace(path_end, iterations=path_end.iterations + end.iterations)
