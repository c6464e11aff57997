"""The slow two-stage answer, and one small instance of every set."""

import contextlib
import warnings
from typing import Any

import cvxpy as cp
import numpy as np
import torch

from isthmus import sets

D = 60


def instances(seed: int = 0) -> dict[str, sets.ConvexSet]:
    """Every convex set in dimension D."""
    rng = np.random.default_rng(seed)
    return {
        "l1": sets.L1Ball(1.0),
        "l2": sets.L2Ball(1.0),
        "linf": sets.LInfBall(0.1),
        "lp1.5": sets.LpBall(1.5, 1.0),
        "lp3": sets.LpBall(3.0, 0.5),
        "box": sets.Box(-0.05, 0.2),
        "simplex": sets.Simplex(1.0),
        "hull": sets.ConvexHull(rng.standard_normal((30, D)) / np.sqrt(D)),
        "hull-redundant": sets.ConvexHull(np.repeat(rng.standard_normal((12, D)) / np.sqrt(D), 8, axis=0)),
        "subspace": sets.Subspace(rng.standard_normal((5, D)), 1.0),
        "nuclear": sets.NuclearBall(1.0, (6, 10)),
        "nuclear-tall": sets.NuclearBall(1.0, (12, 5)),
        "group": sets.GroupBall([list(range(i, i + 4)) for i in range(0, D, 4)], 1.0),
        "ellipsoid": sets.Ellipsoid(rng.uniform(0.2, 2.0, D)),
        "product": sets.Product([(sets.L1Ball(1.0), D // 2), (sets.L2Ball(0.5), D - D // 2)]),
        "from-projection": sets.FromProjection(lambda x: x.clamp(-0.1, 0.1)),
    }


def member(constraint: sets.ConvexSet, rng: np.random.Generator, size: float = 1.0) -> np.ndarray:
    """A member of a set: the projection of noise."""
    return constraint.project(size * rng.standard_normal(D))


def target(
    constraint: sets.ConvexSet, sketch: Any, start: np.ndarray, where: str, rng: np.random.Generator
) -> np.ndarray:
    """A target in Phi C, on its edge, or outside."""
    other = member(constraint, rng)
    point = {
        "inside": 0.5 * start + 0.5 * other,
        "edge": other,
        "outside": start + rng.standard_normal(D) * np.linalg.norm(other) / np.sqrt(D) * 3,
        "zero": np.zeros(D),
    }[where]
    return sketch.forward(torch.from_numpy(point)).numpy()


def gauge(kind: str, constraint: Any, w: Any) -> Any:
    """The gauge of a set about 0 for cvxpy."""
    if kind == "ellipsoid":
        return cp.norm(cp.multiply(1 / constraint.axes.numpy(), w))
    if kind == "group":
        ids = constraint.groups.numpy()
        return sum(cp.norm(w[ids == i]) for i in range(ids.max() + 1)) / constraint.radius
    if kind == "nuclear":
        return cp.normNuc(cp.reshape(w, constraint.shape, order="C")) / constraint.radius
    return {"l1": cp.norm1, "l2": cp.norm, "linf": cp.norm_inf}[kind](w) / constraint.radius


def inside(kind: str, constraint: Any, w: Any) -> tuple[Any, list[Any]]:
    """(w, constraints) for cvxpy."""
    if kind == "simplex":
        return w, [cp.sum(w) == constraint.radius, w >= 0]
    if kind == "hull":
        weights = cp.Variable(len(constraint.vertices), nonneg=True)
        return constraint.vertices.numpy().T @ weights, [cp.sum(weights) == 1]
    if kind == "box":
        return w, [w >= constraint.lo.numpy(), w <= constraint.hi.numpy()]
    return w, [gauge(kind, constraint, w) <= 1]


def two_stage(kind: str, constraint: Any, phi: np.ndarray, v: np.ndarray, start: np.ndarray) -> tuple[float, float]:
    """(f*, distance of the nearest minimiser) by Clarabel.

    Where the boundary is curved and the target outside, the minimiser is one point: the second stage has no interior,
    Clarabel gives up on it, and the first stage already has the answer.
    """
    w, limits = inside(kind, constraint, cp.Variable(D))
    first = cp.Problem(cp.Minimize(cp.sum_squares(phi @ w - v)), limits)
    first.solve(solver=cp.CLARABEL)
    found, theta = w.value, phi @ w.value
    w, limits = inside(kind, constraint, cp.Variable(D))
    second = cp.Problem(cp.Minimize(cp.sum_squares(w - start)), [*limits, phi @ w == theta])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        with contextlib.suppress(cp.error.SolverError):
            second.solve(solver=cp.CLARABEL)
    curved = kind in ("l2", "ellipsoid", "group")
    assert curved or second.status == cp.OPTIMAL
    found = w.value if second.status == cp.OPTIMAL else found
    return float(np.sum((theta - v) ** 2)), float(np.linalg.norm(found - start))


def least_gauge(kind: str, constraint: Any, phi: np.ndarray, v: np.ndarray) -> float:
    """min gauge(w) subject to Phi w = v, by Clarabel."""
    w = cp.Variable(D)
    problem = cp.Problem(cp.Minimize(gauge(kind, constraint, w)), [phi @ w == v])
    problem.solve(solver=cp.CLARABEL)
    return float(problem.value)


def problem_of(kind: str, sketch: Any, where: str, seed: int) -> tuple[sets.ConvexSet, np.ndarray, np.ndarray]:
    """A set, a member to start from, and a target."""
    constraint, rng = instances()[kind], np.random.default_rng(seed)
    start = member(constraint, rng)
    return constraint, start, target(constraint, sketch, start, where, rng)
