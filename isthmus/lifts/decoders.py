"""Sparse vectors from few measurements: CoSaMP (Needell and Tropp 2009) and basis pursuit.

Basis pursuit is the vector of least l1 norm with a given sketch.  For maps too large for a matrix it is the least t
with a target in t Phi C, by Newton's method on the value function (van den Berg, Friedlander 2008).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Generic, NoReturn

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor

from isthmus.base import validate
from isthmus.lifts._path import (
    Array,
    Operator,
    _BucketOperator,
    _LiftProblem,
    _MatrixFree,
    _nearest,
    _operator,
    _PathEnd,
    _spd_solve,
)
from isthmus.sets import L1Ball
from isthmus.sets.base import Point
from isthmus.sketches.base import Sketch

__all__ = ["BasisPursuit", "basis_pursuit", "cosamp"]


def cosamp(sketch: Sketch | Point, y: Point, k: int, iterations: int | None = None) -> Point:
    """A k-sparse z with Phi z near y.

    Each iteration joins the 2k largest entries of Phi'(y - Phi z) to the support of z, solves least squares there
    and keeps the k largest entries.

    Args:
        sketch: a Sketch or an m x d matrix.
        y: (m,) or (batch, m).
        k: the sparsity.
        iterations: most iterations; 6(k + 1) by default, the count after which exact recovery is proven.

    Returns:
        z, (d,) or (batch, d), of the type and dtype of y.  Of all iterates (the zero vector included) the one of
        least residual: more iterations never make it worse.  An example stops when its residual is rounding, or when
        the columns it fits on are those of an earlier iteration: from there on its iterates come again (a support that
        repeats is no fixed point, because the 2k columns joined to it depend on its values).  Least squares are solved
        by a rank-revealing method, so 3k > m and dependent columns give the least-norm solution.

    >>> matrix = torch.eye(4).double()
    >>> cosamp(matrix, torch.tensor([0.0, 3.0, 0.0, -1.0]).double(), k=1).tolist()
    [0.0, 3.0, 0.0, 0.0]
    """
    codes = validate.as_tensor("y", y).detach()
    validate.check(codes.ndim in (1, 2), "y.shape", tuple(codes.shape), "give codes of shape (m,) or (batch, m)")
    validate.positive_int(k=k)
    if iterations is not None:
        validate.positive_int(iterations=iterations)
    matrix = _matrix(sketch, codes)
    remedy = f"give codes of length {len(matrix)}, which is the number of rows of Phi"
    validate.check(codes.shape[-1] == len(matrix), "y.shape", tuple(codes.shape), remedy)
    validate.at_most(matrix.shape[1], "the dimension d", k=k)
    z = _decode(matrix, codes.reshape(-1, matrix.shape[0]).to(matrix), k, iterations or 6 * (k + 1))
    z = z.reshape(*codes.shape[:-1], matrix.shape[1]).to(codes.dtype)
    if isinstance(y, Tensor):
        return z
    array: np.ndarray = z.numpy()
    return array


def _decode(matrix: Tensor, y: Tensor, k: int, iterations: int) -> Tensor:
    best = y.new_zeros(len(y), matrix.shape[1])
    least = torch.linalg.vector_norm(y, dim=1)
    rounding = 8 * torch.finfo(y.dtype).eps * least
    going = torch.nonzero(least > 0)[:, 0]
    z, tried = best[going], torch.empty(0)
    for _ in range(iterations):
        if len(going) == 0:
            break
        columns = _identify(matrix, y[going] - z @ matrix.T, z, k)
        if tried.numel():  # the next iterate depends on these columns alone: one that was fitted on them came before
            new = ~(tried == columns[:, None]).all(2).any(1)
            going, columns, tried = going[new], columns[new], tried[new]
            if len(going) == 0:
                break
        if tried.numel():
            tried = torch.cat([tried, columns[:, None]], 1)
        else:
            tried = columns[:, None]
        z = _fitted(matrix, y[going], columns, k)
        misfit = torch.linalg.vector_norm(y[going] - z @ matrix.T, dim=1)
        better = misfit < least[going]
        best[going[better]], least[going[better]] = z[better], misfit[better]
        stays = misfit > rounding[going]
        going, z, tried = going[stays], z[stays], tried[stays]
    return best


def _identify(matrix: Tensor, rest: Tensor, z: Tensor, k: int) -> Tensor:
    """The support of each z and the 2k columns that its residual has most of, ascending; d stands for none."""
    d = matrix.shape[1]
    marked = z != 0
    marked.scatter_(1, (rest @ matrix).abs().topk(min(2 * k, d), dim=1).indices, True)
    places = torch.where(marked, torch.arange(d, device=z.device), d)
    chosen: Tensor = places.topk(min(3 * k, d), dim=1, largest=False).values.sort(dim=1).values
    return chosen


def _fitted(matrix: Tensor, y: Tensor, columns: Tensor, k: int) -> Tensor:
    """Least squares on the columns of each row, its k largest entries kept."""
    d = matrix.shape[1]
    real = columns < d
    at = columns.clamp(max=d - 1)
    fit = _least_squares(matrix.T[at].mT * real[:, None, :], y) * real
    largest = fit.abs().topk(min(k, fit.shape[1]), dim=1).indices
    whole = y.new_zeros(len(y), d + 1)  # the last place takes what stands for no column
    return whole.scatter_(1, columns.gather(1, largest), fit.gather(1, largest))[:, :d]


def _least_squares(columns: Tensor, y: Tensor) -> Tensor:
    """Least-norm least squares of each system; CPU by LAPACK's gelsd, elsewhere by the pseudo-inverse."""
    if columns.device.type == "cpu":
        fit: Tensor = torch.linalg.lstsq(columns, y[..., None], driver="gelsd").solution
    else:
        fit = torch.linalg.pinv(columns) @ y[..., None]
    return fit[..., 0]


def _matrix(sketch: object, codes: Tensor) -> Tensor:
    """The matrix in float32 or better, on the device of the codes."""
    dtype = torch.promote_types(codes.dtype, torch.float32)
    if isinstance(sketch, Sketch):
        return sketch.dense(dtype).detach().to(codes.device)
    return validate.as_tensor("matrix", sketch, ndim=2).detach().to(codes.device, dtype)


def _value_root(problem: _LiftProblem, tol: float, max_iter: int, limit: float = math.inf) -> _PathEnd | None:
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
        if pull <= 0:
            return None
        step = float(residual @ residual) / pull
        t += step
        if t >= limit or not math.isfinite(t):
            return None
        end = _nearest(_LiftProblem(constraint, phi, v / t, problem.w0 / t), min(1e-8, tol**2), max_iter)
        used += end.iterations
        w = t * end.w
        residual = v - phi.forward(w)
        size = float(np.linalg.norm(residual))
        if size <= enough or used >= max_iter or step <= 1e-14 * t:
            return _PathEnd(w, end.mu, residual, size * size, used, size <= enough)


def _least_gauge(problem: _LiftProblem, end: _PathEnd, tol: float, max_iter: int) -> _PathEnd:
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
    path_end = _value_root(problem, 0.1 * tol**0.5, max_iter, limit=1.0)
    if path_end is None:
        return end
    return replace(path_end, iterations=path_end.iterations + end.iterations)


@dataclass(frozen=True)
class BasisPursuit(Generic[Point]):
    """What `basis_pursuit` found: w, ||w||_1, and a proof.

    Attributes:
        point: w with Phi w = y.
        value: ||w||_1.
        dual: lam with ||Phi' lam||_inf <= 1, so that <lam, y> is below every feasible value.
        gap: value - <lam, y>, a proven bound of the distance to the least value.
        residual: ||Phi w - y||.
        iterations: breakpoints of the path, or solver iterations.
        method: "closed form", "homotopy", "linear program" or "value function".
    """

    point: Point
    value: float
    dual: Point
    gap: float
    residual: float
    iterations: int
    method: str


def basis_pursuit(sketch: Sketch | Point, y: Point, tol: float = 1e-8) -> BasisPursuit[Point]:
    """min ||w||_1 subject to Phi w = y.

    The l1-homotopy follows min 1/2 ||Phi w - y||^2 + lam ||w||_1 from lam = ||Phi' y||_inf down.  At every
    breakpoint, with support S and signs s, Phi_S (Phi_S' Phi_S)^{-1} s is tried as a dual certificate (the heuristic
    optimality check of Lorenz, Pfetsch and Tillmann 2015): where it is feasible the rest of the path is one step.
    A path that ends without a certificate (ties, dependent columns) hands over to a linear program (HiGHS).
    Sketches with one non-zero a column have a closed form; maps too large for a matrix use the value function.

    Args:
        sketch: a Sketch or an m x d matrix.
        y: the vector of R^m.
        tol: the gap and the residual are at most tol relative to ||w||_1 and ||y||.

    Returns:
        A `BasisPursuit`; float64 inside, `point` of the type of `y`.

    Raises:
        InvalidInput: y is not in the range of Phi.

    >>> pursuit = basis_pursuit(np.array([[1.0, 2.0, 0.0], [0.0, 0.0, 1.0]]), np.array([2.0, 3.0]))
    >>> pursuit.point.round(9).tolist(), round(pursuit.value, 9)
    ([0.0, 1.0, 3.0], 4.0)
    """
    validate.positive(tol=tol)
    right = validate.as_tensor("y", y, ndim=1).double().cpu().numpy()
    if isinstance(sketch, Sketch):
        phi = _operator(sketch)
    else:
        phi = _operator(validate.as_tensor("matrix", sketch, ndim=2).numpy())
    validate.shape((phi.m,), y=torch.from_numpy(right))
    w, dual, steps, method = _pursue(phi, right / phi.scale, tol)
    dual = dual / max(1.0, float(np.abs(phi.adjoint(dual)).max())) / phi.scale
    value = float(np.abs(w).sum())
    residual = float(np.linalg.norm(phi.scale * phi.forward(w) - right))
    gap = max(0.0, value - float(dual @ right))
    if isinstance(y, Tensor):
        point, certificate = (torch.from_numpy(x).to(y.device) for x in (w, dual))
        return BasisPursuit(point, value, certificate, gap, residual, steps, method)
    return BasisPursuit(w, value, dual, gap, residual, steps, method)


def _pursue(phi: Operator, y: Array, tol: float) -> tuple[Array, Array, int, str]:
    """(w, dual, iterations, method) for an operator."""
    size = float(np.linalg.norm(y))
    if size == 0:
        return np.zeros(phi.d), np.zeros(phi.m), 0, "closed form"
    if isinstance(phi, _BucketOperator):
        return *_closed_form(phi, y), 1, "closed form"
    if isinstance(phi, _MatrixFree):
        return _matrix_free(phi, y, tol)
    matrix = phi.matrix
    w, dual, steps = _homotopy(matrix, y / size, 10 * phi.m, tol)
    method = "homotopy"
    if not _proven(matrix, y / size, w, dual, tol):
        w, dual, steps = _linear_program(matrix, y / size)
        method = "linear program"
    return w * size, dual, steps, method


def _matrix_free(phi: Operator, y: Array, tol: float) -> tuple[Array, Array, int, str]:
    """The least radius of an l1 ball whose image holds y, for maps too large for a matrix."""
    end = _value_root(_LiftProblem(L1Ball(1.0), phi, y, np.zeros(phi.d)), max(tol, 1e-7), 100_000)
    if end is None or not end.converged:
        _out_of_range()
    return end.w, end.mu / float(np.abs(phi.adjoint(end.mu)).max()), end.iterations, "value function"


def _homotopy(matrix: Array, y: Array, max_iter: int, tol: float) -> tuple[Array, Array, int]:
    """(w, dual, breakpoints) at the end of the path or where a certificate was found."""
    m, d = matrix.shape
    w, correlation = np.zeros(d), y @ matrix
    support = [int(np.abs(correlation).argmax())]
    level = float(abs(correlation[support[0]]))
    signs = np.zeros(d)
    signs[support[0]] = np.sign(correlation[support[0]])
    dual, dropped = np.zeros(m), support[0]
    for iteration in range(1, max_iter + 1):
        part = matrix[:, support]
        direction = _spd_solve(part.T @ part, signs[support])
        dual = part @ direction
        slopes = dual @ matrix
        if np.abs(slopes).max() <= 1 + 0.1 * tol:
            candidate = w.copy()
            candidate[support] += level * direction
            if _proven(matrix, y, candidate, dual, tol):
                return candidate, dual, iteration
        blocked = [*support, dropped]
        step, entering, leaving = _breakpoint(correlation, slopes, level, w, direction, support, blocked)
        dropped = support[0]
        w[support] += step * direction
        correlation, level = correlation - step * slopes, level - step
        if leaving is not None:
            dropped = support.pop(leaving)
            w[dropped], signs[dropped] = 0.0, 0.0
        elif entering is not None and len(support) < m:
            support.append(entering)
            signs[entering] = np.sign(correlation[entering])
        if not support or level <= 1e-15 or (leaving is None and entering is None):
            break
    return w, dual, iteration


def _breakpoint(
    correlation: Array, slopes: Array, level: float, w: Array, direction: Array, support: list[int], blocked: list[int]
) -> tuple[float, int | None, int | None]:
    """(step, entering column, leaving place in the support) of the next event as the level falls."""
    with np.errstate(divide="ignore", invalid="ignore"):
        up, down = (level - correlation) / (1 - slopes), (level + correlation) / (1 + slopes)
        crossing = -w[support] / direction
    up[(1 - slopes) <= 1e-10] = np.inf
    down[(1 + slopes) <= 1e-10] = np.inf
    joins = np.minimum(np.where(up > -1e-14, up, np.inf), np.where(down > -1e-14, down, np.inf))
    joins[blocked] = np.inf
    crossing[~(crossing > 1e-14)] = np.inf
    entering, leaving = int(joins.argmin()), int(crossing.argmin())
    step = max(0.0, float(min(joins[entering], crossing[leaving], level)))
    if step >= level:
        return level, None, None
    if crossing[leaving] < joins[entering]:
        return step, None, leaving
    return step, entering, None


def _proven(matrix: Array, y: Array, w: Array, dual: Array, tol: float) -> bool:
    value = float(np.abs(w).sum())
    bound = float(dual @ y) / max(1.0, float(np.abs(dual @ matrix).max()))
    return value - bound <= tol * value and float(np.linalg.norm(matrix @ w - y)) <= tol


def _linear_program(matrix: Array, y: Array) -> tuple[Array, Array, int]:
    m, d = matrix.shape
    answer = linprog(np.ones(2 * d), A_eq=np.hstack([matrix, -matrix]), b_eq=y, method="highs")
    if answer.status == 2:
        _out_of_range()
    if answer.status != 0:
        raise ArithmeticError(f"Basis pursuit failed ({answer.message}): rescale the matrix")
    return answer.x[:d] - answer.x[d:], np.asarray(answer.eqlin.marginals), int(answer.nit)


def _closed_form(phi: _BucketOperator, y: Array) -> tuple[Array, Array]:
    """In each row the largest entry carries everything."""
    order = np.argsort(np.abs(phi.value), kind="stable")
    largest = np.full(phi.m, -1)
    largest[phi.index[order]] = order
    entries = np.where(largest >= 0, phi.value[largest], 0.0)
    if np.any((entries == 0) & (y != 0)):
        _out_of_range()
    used = entries != 0
    w, dual = np.zeros(phi.d), np.zeros(phi.m)
    w[largest[used]] = y[used] / entries[used]
    dual[used] = np.sign(y[used]) / np.abs(entries[used])
    return w, dual


def _out_of_range() -> NoReturn:
    raise validate.InvalidInput("y is not in the range of Phi, no w has Phi w = y: project y onto the range first")
