"""Projections onto the l1 ball and the simplex beside the sort that NumPy users write."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from isthmus.sets import ConvexSet, L1Ball, Simplex
from lab.bench.cases import Facts, Growth, PeerBenchmark, Work, need_memory

SORT = "NumPy sort"


def sort_simplex(x: np.ndarray, radius: float) -> np.ndarray:
    """The O(d log d) method: sort decreasingly, find the last entry above the running threshold.

    >>> sort_simplex(np.array([3.0, 1.0, -2.0]), 1.0).tolist()
    [1.0, 0.0, 0.0]
    """
    u = np.sort(x)[::-1]
    excess = np.cumsum(u) - radius
    last = np.nonzero(u * np.arange(1, len(u) + 1) > excess)[0][-1]
    return np.maximum(x - excess[last] / (last + 1), 0)


def sort_l1(x: np.ndarray, radius: float) -> np.ndarray:
    """The same for an l1 ball."""
    magnitude = np.abs(x)
    return x.copy() if magnitude.sum() <= radius else np.sign(x) * sort_simplex(magnitude, radius)


def build(way: str, quick: bool, kind: str) -> Work:
    """Project one normal vector."""
    d, radius = 10**4 if quick else 10**6, 100.0
    x = np.random.default_rng(0).standard_normal(d)
    reference = sort_l1 if kind == "l1" else sort_simplex
    if way == SORT:
        return Work(partial(reference, x, radius))
    ball: ConvexSet = L1Ball(radius) if kind == "l1" else Simplex(radius)
    point = torch.from_numpy(x)

    def facts() -> Facts:
        return {"largest difference": float(np.abs(ball.project(point).numpy() - reference(x, radius)).max())}

    return Work(partial(ball.project, point), facts)


def grown(d: int) -> Work:
    """Project d float32 numbers onto an l1 ball."""
    need_memory(16.0 * d)
    x = torch.from_numpy(np.random.default_rng(0).standard_normal(d, np.float32))
    return Work(partial(L1Ball(100.0).project, x))


BENCHMARKS = (
    PeerBenchmark(
        "project-l1", "10^6 normal numbers onto an l1 ball of radius 100", partial(build, kind="l1"), ("ours",), (SORT,)
    ),
    PeerBenchmark(
        "project-simplex",
        "10^6 normal numbers onto a simplex of size 100",
        partial(build, kind="simplex"),
        ("ours",),
        (SORT,),
    ),
    Growth(
        "grows-project-d",
        "d float32 numbers onto an l1 ball of radius 100",
        "d",
        grown,
        tuple(10**k for k in range(3, 9)),
        (10**3, 10**4),
    ),
)
