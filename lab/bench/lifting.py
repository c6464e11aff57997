"""Project-and-lift beside a two-stage conic solve, basis pursuit beside linear programs, CoSaMP beside OMP."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from scipy.optimize import linprog
from sklearn.linear_model import orthogonal_mp

from isthmus.lifts import basis_pursuit, cosamp, solve_lift
from isthmus.sets import ConvexSet, L1Ball, Simplex
from isthmus.sketches import CountSketch, GaussianSketch, Sketch
from lab.bench.cases import Facts, Growth, PeerBenchmark, Work, need

CLARABEL, HIGHS, OMP = "CVXPY with Clarabel", "HiGHS (SciPy)", "scikit-learn OMP"
Problem = tuple[ConvexSet, Sketch, Any, np.ndarray, np.ndarray]


@cache
def problem(kind: str, family: str, d: int, m: int) -> Problem:
    """(set, sketch, its matrix, start, target): the target is the code of a point outside the set."""
    rng = np.random.default_rng(0)
    constraint: ConvexSet
    if kind == "l1":
        start = np.where(np.arange(d) < d // 40, rng.standard_normal(d), 0.0)
        constraint, start = L1Ball(1.0), start / np.abs(start).sum()
    else:
        constraint, start = Simplex(1.0), rng.dirichlet(np.full(d, 0.1))
    maker = CountSketch(m) if family == "CountSketch" else GaussianSketch(m, scaling="jl")
    sketch = maker.draw(d, seed=1)
    dense = sketch.dense().numpy()
    phi = sp.csr_matrix(dense) if family == "CountSketch" else dense
    step = rng.standard_normal(d) * 2 * np.linalg.norm(start) / np.sqrt(d)
    return constraint, sketch, phi, start, phi @ (start + step)


def conic(given: Problem) -> np.ndarray:
    """f* = min over C of ||Phi w - v||^2, then the point of the optimal set nearest to the start."""
    import cvxpy as cp

    constraint, _, phi, start, v = given
    w = cp.Variable(len(start), nonneg=isinstance(constraint, Simplex))
    inside = [cp.sum(w) == 1] if isinstance(constraint, Simplex) else [cp.norm1(w) <= 1]
    cp.Problem(cp.Minimize(cp.sum_squares(phi @ w - v)), inside).solve(solver=cp.CLARABEL)
    theta = phi @ w.value
    cp.Problem(cp.Minimize(cp.sum_squares(w - start)), [*inside, phi @ w == theta]).solve(solver=cp.CLARABEL)
    return np.asarray(w.value)


def lifted(way: str, quick: bool, kind: str, family: str) -> Work:
    """Project a target and lift it."""
    task = problem(kind, family, *((200, 20) if quick else (2000, 200)))
    constraint, sketch, phi, start, v = task
    if way == CLARABEL:
        need("cvxpy", "the extra bench")
        need("clarabel", "the extra bench")
        return Work(partial(conic, task))

    def facts() -> Facts:
        lift = solve_lift(constraint, sketch, v, start)
        facts_of_lift: Facts = {"gap / ||v||^2": float(lift.certificate / (v @ v))}
        try:
            need("cvxpy")
        except Exception:
            return facts_of_lift
        reference = conic(task)
        error = np.sum((phi @ lift.point - v) ** 2) - np.sum((phi @ reference - v) ** 2)
        return facts_of_lift | {"(f - f of Clarabel) / ||v||^2": float(error / (v @ v))}

    return Work(lambda: solve_lift(constraint, sketch, v, start), facts)


@cache
def sparse_signal(d: int, m: int, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A Gaussian matrix, its image of a k-sparse vector, and that vector."""
    rng = np.random.default_rng(0)
    matrix, signal = rng.standard_normal((m, d)) / np.sqrt(m), np.zeros(d)
    signal[rng.choice(d, k, replace=False)] = rng.standard_normal(k)
    return matrix, matrix @ signal, signal


def pursuit(way: str, quick: bool) -> Work:
    """min ||w||_1 subject to Phi w = y."""
    matrix, y, signal = sparse_signal(*((200, 50, 5) if quick else (2000, 400, 40)))
    d = matrix.shape[1]
    if way == HIGHS:
        both = np.hstack([matrix, -matrix])
        return Work(lambda: linprog(np.ones(2 * d), A_eq=both, b_eq=y, method="highs"))
    if way == CLARABEL:
        need("cvxpy", "the extra bench")
        import cvxpy as cp

        def solve() -> None:
            w = cp.Variable(d)
            cp.Problem(cp.Minimize(cp.norm1(w)), [matrix @ w == y]).solve(solver=cp.CLARABEL)

        return Work(solve)

    def ours() -> np.ndarray:
        return np.asarray(basis_pursuit(matrix, y).point)

    return Work(ours, lambda: {"error": float(np.abs(ours() - signal).max())})


def greedy(way: str, quick: bool) -> Work:
    """A k-sparse vector from its image."""
    size = (200, 50, 5) if quick else (10_000, 1000, 50)
    matrix, y, signal = sparse_signal(*size)

    def ours() -> np.ndarray:
        return np.asarray(cosamp(matrix, y, size[2]))

    def theirs() -> np.ndarray:
        return np.asarray(orthogonal_mp(matrix, y, n_nonzero_coefs=size[2]))

    solve = ours if way == "cosamp" else theirs
    return Work(solve, lambda: {"error": float(np.abs(solve() - signal).max())})


def grown(d: int) -> Work:
    """Project and lift with m = d / 10 onto an l1 ball, as in the optimisation loop: tol 1e-2."""
    rng = np.random.default_rng(0)
    sketch = CountSketch(d // 10).draw(d, seed=2)
    w = np.where(np.arange(d) < d // 50, rng.standard_normal(d), 0.0)
    moved = torch.from_numpy(w - 0.1 * rng.standard_normal(d))
    ball, target = L1Ball(float(np.abs(w).sum())), sketch.forward(moved).numpy()
    return Work(lambda: solve_lift(ball, sketch, target, w, tol=1e-2, max_iter=50))


BENCHMARKS = (
    *(
        PeerBenchmark(
            f"lift-{kind}-{family.lower()}",
            f"project_and_lift, {'l1 ball' if kind == 'l1' else kind}, {family}, d = 2000, m = 200, to 1e-6",
            partial(lifted, kind=kind, family=family),
            ("ours",),
            (CLARABEL,),
            rounds=9,
            seconds=10,
        )
        for kind in ("l1", "simplex")
        for family in ("CountSketch", "Gaussian")
    ),
    PeerBenchmark(
        "lift-basis-pursuit",
        "basis pursuit (the lift of least gauge on an l1 ball), d = 2000, m = 400, 40 non-zeros",
        pursuit,
        ("ours",),
        (HIGHS, CLARABEL),
        rounds=7,
    ),
    PeerBenchmark(
        "lift-cosamp",
        "a 50-sparse vector of 10,000 numbers from 1,000 Gaussian ones",
        greedy,
        ("cosamp",),
        (OMP,),
    ),
    Growth(
        "grows-lift-d",
        "project_and_lift, l1 ball, CountSketch(d / 10), tol 1e-2",
        "d",
        grown,
        tuple(10**k for k in range(3, 7)),
        (10**3, 10**4),
    ),
)
