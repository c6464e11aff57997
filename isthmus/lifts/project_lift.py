"""Loose solves for the optimisation loop: projected gradient with momentum, from the start, in torch.

Project and lift in one solve: the point of C whose sketch is nearest to a target, nearest to where one stands.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Generic, TypedDict, Unpack

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, lsmr
from torch import Tensor

from isthmus.base import validate
from isthmus.lifts._path import (
    Array,
    Operator,
    _bound_from_gap,
    _LiftProblem,
    _MatrixFree,
    _nearest,
    _one_thread,
    _operator,
    _PathEnd,
)
from isthmus.lifts.decoders import _least_gauge, _pursue
from isthmus.sets import ConvexSet, Whole
from isthmus.sets.base import Point
from isthmus.sketches.base import Sketch

__all__ = ["LiftResult", "project_and_lift", "solve_lift"]


def _fista(
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


LOOSE = 1e-3
"""`method="auto"` takes FISTA at this tolerance and above, the path below it."""


@dataclass(frozen=True)
class LiftResult(Generic[Point]):
    """What `solve_lift` found.

    Attributes:
        point: w in the set.
        residual: ||Phi w - target||.
        certificate: a proven bound of f(w) - f*, f = ||Phi w - target||^2 (f(w) itself, as f* >= 0, for a set
            without a support function).
        iterations: linear systems, dual evaluations or gradient steps, by method.
        converged: whether the tolerance was met.
        method: "dual", "fista" or "exact".
    """

    point: Point
    residual: float
    certificate: float
    iterations: int
    converged: bool
    method: str


class _LiftOptions(TypedDict, total=False):
    """The options of `solve_lift`."""

    tol: float
    max_iter: int
    method: str


def project_and_lift(
    constraint: ConvexSet,
    sketch: Sketch,
    target: object,
    start: Point,
    pick: str = "nearest",
    **options: Unpack[_LiftOptions],
) -> Point:
    """A minimiser w of ||Phi w - target||^2 over the set: Phi w is the projection of the target onto Phi C.

    Args:
        constraint: a convex set with a projection.
        sketch: the map Phi, R^d -> R^m.
        target: a vector of R^m.
        start: a vector of R^d, in the set or not.
        pick: "nearest" (of all minimisers the nearest to `start`) or "min_gauge" (one of least gauge).
        **options: `tol`, `max_iter`, `method` of `solve_lift`.

    Returns:
        w in the set, of the type, dtype and device of `start`; `solve_lift` gives its certificate too.

    >>> from isthmus.sets import L1Ball
    >>> from isthmus.sketches import CountSketch
    >>> sketch = CountSketch(2).draw(4)
    >>> start = torch.tensor([0.5, 0.0, 0.0, 0.0])
    >>> w = project_and_lift(L1Ball(1.0), sketch, sketch.forward(start), start)
    >>> bool(torch.equal(w, start))
    True
    """
    return solve_lift(constraint, sketch, target, start, pick, **options).point


def compressed_gradient_mapping(
    constraint: ConvexSet,
    sketch: Sketch,
    code: Tensor,
    w: Tensor,
    eta: float,
    pick: str = "nearest",
    **options: Unpack[_LiftOptions],
) -> Tensor:
    """(w - w+) / eta with w+ in C and Phi w+ = Pi_{Phi C}(Phi w - eta code): Definition 8 of paper 001, as a vector.

    w is an alpha-compressed gradient mapping where its norm is at most alpha.  With Phi = I it is Nesterov's gradient
    mapping (w - Pi_C(w - eta g)) / eta.  Without a constraint the paper says ||.|| ~ ||g||; the nearest w+ gives
    Phi^+ Phi g, which is about sqrt(m/d) ||g||: multiply by sqrt(d/m) to compare (`isthmus.core.parts.MappingBelow`).

    code  Phi g, g the gradient at w

    >>> from isthmus.sets import L2Ball
    >>> from isthmus.sketches import Identity
    >>> w, g = torch.tensor([1.0, 0.0]).double(), torch.tensor([-1.0, 0.0]).double()
    >>> float(compressed_gradient_mapping(L2Ball(1.0), Identity().draw(2), g, w, 0.5).norm())  # the gradient points out
    0.0
    """
    validate.positive(eta=eta)
    point = solve_lift(constraint, sketch, sketch.forward(w) - eta * code, w, pick, **options).point
    return (w - point) / eta


def solve_lift(
    constraint: ConvexSet,
    sketch: Sketch,
    target: object,
    start: Point,
    pick: str = "nearest",
    *,
    tol: float = 1e-6,
    max_iter: int = 10_000,
    method: str = "auto",
) -> LiftResult[Point]:
    """`project_and_lift` with its certificate.

    With f(w) = ||Phi w - target||^2 and f* its least value over C, two methods:

    * "dual" (tol < 1e-3): the path w(eps) = argmin_{w in C} f(w)/2 + eps/2 ||w - start||^2 as eps -> 0, whose limit
      is the nearest minimiser; each point is a small Newton or active-set solve in R^m, in float64.  It ends when
      f - f* <= tol ||target||^2 is proven and w has settled to sqrt(tol) of its move.
    * "fista" (tol >= 1e-3): projected gradient with momentum and restart from `start`, in the dtype and on the
      device of `start`, until a step is at most tol of the unconstrained move: a minimiser near the start.

    Args:
        constraint, sketch, target, start, pick: as in `project_and_lift`.
        tol: relative accuracy, as above.
        max_iter: most systems, evaluations or gradient steps.
        method: "auto", "dual" or "fista".

    Returns:
        A `LiftResult`; its point is in the set whether or not it converged.

    >>> from isthmus.sets import Simplex
    >>> from isthmus.sketches import CountSketch
    >>> sketch = CountSketch(3).draw(6, seed=1)
    >>> result = solve_lift(Simplex(), sketch, 5 * np.ones(3), np.full(6, 1 / 6))
    >>> result.converged, round(float(result.point.sum()), 9), result.certificate <= 1e-6 * 75
    (True, 1.0, True)
    """
    _check(constraint, pick, tol, max_iter, method)
    v, w0 = _read(constraint, sketch, target, start)
    if isinstance(constraint, Whole):
        return _unconstrained(sketch, v, w0, start)
    loose = method == "fista" or (method == "auto" and tol >= LOOSE and pick == "nearest")
    if loose and pick == "nearest":
        return _loose(constraint, sketch, v, w0, start, tol, max_iter)
    phi = _operator(sketch)
    scaled, near = _working(v) / phi.scale, _working(w0)
    problem = _LiftProblem(constraint, phi, scaled, near)
    if _already_there(problem):
        return LiftResult(_like(near, start), 0.0, 0.0, 0, True, "exact")
    with _one_thread(phi):
        end = _nearest(problem, tol, max_iter)
        if pick == "min_gauge":
            end = _sparsest(problem, end, tol) or _least_gauge(problem, end, tol, max_iter)
    return _result(end, phi, start)


def _sparsest(problem: _LiftProblem, end: _PathEnd, tol: float) -> _PathEnd | None:
    """Least gauge in an l1 ball that holds the target is basis pursuit; None for other sets and targets."""
    form, phi, v = problem.form, problem.phi, problem.v
    if form is None or form.rows is not None or not form.signed or isinstance(phi, _MatrixFree):
        return None
    if float(end.residual @ end.residual) > tol * problem.reference(end.w):
        return None
    w, _, steps, _ = _pursue(phi, v, 1e-9)
    size = float(np.abs(w).sum())
    if size > form.radius:
        return end
    residual = v - phi.forward(w)
    return _PathEnd(w, end.mu, residual, float(residual @ residual), end.iterations + steps, True)


def _unconstrained(sketch: Sketch, v: Tensor, w0: Tensor, start: Point) -> LiftResult[Point]:
    """start + Phi^+ (target - Phi start)."""
    short = v.to(w0) - sketch.forward(w0)
    if sketch.tight:
        move = sketch.pinv(short)
    else:
        phi = _operator(sketch)
        apply = LinearOperator((phi.m, phi.d), matvec=phi.forward, rmatvec=phi.adjoint, dtype=np.float64)
        move = torch.from_numpy(lsmr(apply, _working(short) / phi.scale, atol=1e-14, btol=1e-14, conlim=0)[0])
    w = w0 + move.to(w0)
    residual = float(torch.linalg.vector_norm(v.to(w0) - sketch.forward(w)))
    return LiftResult(_like(w, start), residual, residual**2, 1, True, "exact")


def _loose(
    constraint: ConvexSet, sketch: Sketch, v: Tensor, w0: Tensor, start: Point, tol: float, max_iter: int
) -> LiftResult[Point]:
    w, iterations, settled = _fista(constraint, sketch, v.to(w0), w0, tol, max_iter)
    short = v.to(w0) - sketch.forward(w)
    f = float(short @ short)
    bound = f
    if f > 0 and constraint.can("support"):
        pull = sketch.adjoint(short)
        bound = _bound_from_gap(f, constraint.support(pull) - float(pull @ w))
    return LiftResult(_like(w, start), math.sqrt(f), bound, iterations, settled, "fista")


def _already_there(problem: _LiftProblem) -> bool:
    """Whether the start is in the set and meets the target to rounding."""
    short = problem.v - problem.phi.forward(problem.w0)
    close = float(np.linalg.norm(short)) <= 1e-14 * (float(np.linalg.norm(problem.v)) + 1e-300)
    if not close:
        return False
    try:
        return problem.constraint.contains(torch.from_numpy(problem.w0))
    except ArithmeticError:  # a projection that does not finish decides nothing: solve
        return False


def _result(end: _PathEnd, phi: Operator, start: Point) -> LiftResult[Point]:
    residual = phi.scale * float(np.linalg.norm(end.residual))
    bound = phi.scale**2 * end.certificate
    return LiftResult(_like(end.w, start), residual, bound, end.iterations, end.converged, "dual")


def _check(constraint: ConvexSet, pick: str, tol: float, max_iter: int, method: str) -> None:
    validate.one_of(("nearest", "min_gauge"), pick=pick)
    validate.one_of(("auto", "dual", "fista"), method=method)
    validate.positive(tol=tol)
    validate.positive_int(max_iter=max_iter)
    remedy = "give a convex set, which project-and-lift needs; NuclearBall is the one for low rank"
    validate.check(constraint.convex, "constraint", type(constraint).__name__, remedy)
    constraint.require("project")


def _read(constraint: ConvexSet, sketch: Sketch, target: object, start: object) -> tuple[Tensor, Tensor]:
    v, w0 = validate.as_tensor("target", target), validate.as_tensor("start", start).detach()
    validate.shape((sketch.m,), target=v)
    validate.shape((sketch.d,), start=w0)
    remedy = f"give a sketch of dimension {constraint.dim}, which is that of the set"
    validate.check(constraint.dim in (None, sketch.d), "sketch.d", sketch.d, remedy)
    return v.detach(), w0


def _working(x: Tensor) -> Array:
    array: Array = x.double().cpu().numpy()
    return array


def _like(w: Array | Tensor, start: Point) -> Point:
    """w as a new tensor or array in the dtype and place of `start`."""
    tensor = torch.as_tensor(w)
    if isinstance(start, Tensor):
        return tensor.to(start, copy=True)
    dtype = np.asarray(start).dtype
    array: np.ndarray = tensor.numpy().astype(dtype if dtype.kind == "f" else np.float64)
    return array
