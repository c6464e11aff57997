"""Project-and-lift beside a two-stage conic solve: the same answer to the same tolerance, timed.

    python benchmarks/bench_project_and_lift.py [--sets l1 simplex hull nuclear] [--d 2000] [--m 200]

Reference: cvxpy with Clarabel.  Stage 1 finds f* = min_{w in C} ||Phi w - v||^2, stage 2 the point of the optimal set
nearest to the start.  Its seconds are problem construction and solve, as a user sees them; the solver's own seconds
are beside them (medians of five where a run is short).  Ours are the median of repeated calls of `solve_lift`,
operator analysis included.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
import torch

from isthmus.geometry.lifts import ProjectAndLift, solve_lift
from isthmus.geometry.sets import ConvexHull, ConvexSet, L1Ball, NuclearBall, Simplex
from isthmus.geometry.sketches import CountSketch, GaussianSketch

SETS = ("l1", "simplex", "hull", "nuclear")


@dataclass(frozen=True)
class Case:
    """One set with a start in it and another member."""

    constraint: ConvexSet
    start: np.ndarray
    other: np.ndarray


def make_case(kind: str, d: int, rng: np.random.Generator) -> Case:
    """A set of unit size, a structured start and a generic member."""
    noise = rng.standard_normal(d)
    if kind == "l1":
        start = np.where(np.arange(d) < d // 40, rng.standard_normal(d), 0.0)
        return Case(L1Ball(1.0), start / np.abs(start).sum(), noise / np.abs(noise).sum())
    if kind == "simplex":
        return Case(Simplex(1.0), rng.dirichlet(np.full(d, 0.1)), rng.dirichlet(np.full(d, 0.3)))
    if kind == "hull":
        vertices = rng.standard_normal((80, d)) / np.sqrt(d)
        members = rng.dirichlet(np.full(80, 0.3), 2) @ vertices
        return Case(ConvexHull(vertices), members[0], members[1])
    shape = (d // 50, 50)
    low = (rng.standard_normal((shape[0], 3)) @ rng.standard_normal((3, 50))).ravel()

    def unit(x: np.ndarray) -> np.ndarray:
        return x / np.linalg.svd(x.reshape(shape), compute_uv=False).sum()

    return Case(NuclearBall(1.0, shape), unit(low), unit(noise))


def variables(case: Case, phi: Any) -> tuple[Any, Any, list[Any]]:
    """(w, Phi w, constraints) as cvxpy expressions."""
    constraint, d = case.constraint, len(case.start)
    if isinstance(constraint, ConvexHull):
        vertices = constraint.vertices.numpy()
        weights = cp.Variable(len(vertices), nonneg=True)
        return vertices.T @ weights, (phi @ vertices.T) @ weights, [cp.sum(weights) == 1]
    if isinstance(constraint, NuclearBall):
        matrix = cp.Variable(constraint.shape)
        w = cp.vec(matrix, order="C")
        return w, phi @ w, [cp.normNuc(matrix) <= 1]
    if isinstance(constraint, Simplex):
        w = cp.Variable(d, nonneg=True)
        return w, phi @ w, [cp.sum(w) == 1]
    w = cp.Variable(d)
    return w, phi @ w, [cp.norm1(w) <= 1]


def reference(case: Case, phi: Any, v: np.ndarray) -> tuple[float, np.ndarray, float, float]:
    """(f*, nearest minimiser, seconds, seconds in the solver)."""
    begin = time.perf_counter()
    w, image, inside = variables(case, phi)
    first = cp.Problem(cp.Minimize(cp.sum_squares(image - v)), inside)
    first.solve(solver=cp.CLARABEL)
    theta = image.value
    w, image, inside = variables(case, phi)
    second = cp.Problem(cp.Minimize(cp.sum_squares(w - case.start)), [*inside, image == theta])
    second.solve(solver=cp.CLARABEL)
    seconds = time.perf_counter() - begin
    inner = first.solver_stats.solve_time + second.solver_stats.solve_time
    return float(np.sum((phi @ w.value - v) ** 2)), np.asarray(w.value), seconds, inner


def timed(call: Any, repeats: int) -> tuple[Any, float]:
    """(result, median seconds)."""
    result, seconds = call(), []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return result, float(np.median(seconds))


def compare(kind: str, family: str, where: str, d: int, m: int, rng: np.random.Generator) -> str:
    """One line of the table."""
    case = make_case(kind, d, rng)
    sketch = (CountSketch(m) if family == "count" else GaussianSketch(m, scaling="jl")).draw(d, seed=1)
    dense = sketch.dense().numpy()
    phi = sp.csr_matrix(dense) if family == "count" else dense
    if where == "outside":
        step = rng.standard_normal(d) * 2 * np.linalg.norm(case.start) / np.sqrt(d)
        v = phi @ (case.start + step)
    else:
        v = phi @ (0.5 * case.start + (0.45 if kind in ("l1", "nuclear") else 0.5) * case.other)
    quick = family == "count" and kind in ("l1", "simplex")
    runs = [reference(case, phi, v) for _ in range(5 if quick else 1)]
    f_star, w_star = runs[0][:2]
    slow, inner = (float(np.median([run[i] for run in runs])) for i in (2, 3))
    repeats = 50 if quick else 5
    result, fast = timed(lambda: solve_lift(case.constraint, sketch, v, case.start), repeats)
    w, size = result.point, float(v @ v)
    error = (float(np.sum((phi @ w - v) ** 2)) - f_star) / size
    distance = np.linalg.norm(w - case.start) / np.linalg.norm(w_star - case.start)
    outside = float(np.linalg.norm(w - case.constraint.project(w)))
    return (
        f"{kind:8} {family:6} {where:8} {1e3 * fast:9.2f} {slow:9.3f} {inner:9.3f} {slow / fast:8.0f}x "
        f"{error:10.1e} {result.certificate / size:9.1e} {distance:9.5f} {outside:9.1e} {result.iterations:5d} "
        f"{result.converged!s:>5}"
    )


def cheap_mode(rng: np.random.Generator) -> str:
    """The optimisation loop's solve: d = 10^4, m = 1000, l1 ball, tol 1e-2."""
    d, m = 10_000, 1000
    sketch = CountSketch(m).draw(d, seed=2)
    w = torch.from_numpy(np.where(np.arange(d) < 200, rng.standard_normal(d), 0.0))
    constraint = L1Ball(float(w.abs().sum()))
    y = sketch.forward(torch.from_numpy(rng.standard_normal(d)))
    lines, lift = [], ProjectAndLift(constraint)
    for eta in (0.01, 0.1, 1.0):
        target = sketch.forward(w) - eta * y
        result, seconds = timed(
            lambda target=target: solve_lift(constraint, sketch, target, w, tol=1e-2, max_iter=50), 20
        )
        _, whole = timed(lambda eta=eta: lift(sketch, y, w, eta), 20)
        ours = f"{result.iterations:3d} iterations {1e3 * seconds:7.2f} ms"
        lines.append(f"eta {eta:5.2f}: {ours}, as a lift {1e3 * whole:7.2f} ms")
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS)
    parser.add_argument("--d", type=int, default=2000)
    parser.add_argument("--m", type=int, default=200)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    print(
        f"{'set':8} {'sketch':6} {'target':8} {'ours ms':>9} {'cvxpy s':>9} {'solver s':>9} {'ratio':>9} "
        f"{'(f-f*)/v2':>10} {'bound/v2':>9} {'dist':>9} {'outside':>9} {'iter':>5} {'conv':>5}"
    )
    for kind in arguments.sets:
        for family in ("count", "jl"):
            for where in ("outside", "inside"):
                print(compare(kind, family, where, arguments.d, arguments.m, rng), flush=True)
    print("\ncheap mode, d = 10000, m = 1000, l1 ball, tol 1e-2")
    print(cheap_mode(rng))


if __name__ == "__main__":
    main()
