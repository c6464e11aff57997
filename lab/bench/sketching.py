"""A sketch of a long vector beside a copy of it, which is what memory allows, and scikit-learn's projections."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import Any

import numpy as np
import torch
from sklearn.random_projection import GaussianRandomProjection, SparseRandomProjection

from isthmus.gradients.rows import Dense
from isthmus.sketches import SRHT, CountSketch, GaussianSketch, SparseJL
from lab.bench.cases import Growth, PeerBenchmark, Work, need_memory

COPY = "copy of the vector"
KINDS: dict[str, Any] = {"CountSketch": CountSketch, "SRHT": SRHT}


def long_vector(way: str, quick: bool, back: bool) -> Work:
    """A code of a float32 vector, or a vector of a code (back)."""
    d, m = (10**5, 10**3) if quick else (10**7, 10**5)
    if way == COPY:
        vector = torch.ones(d)
        return Work(vector.clone)
    sketch = KINDS[way](m).draw(d, seed=1)
    ones = torch.ones(m if back else d)
    return Work(partial(sketch.adjoint if back else sketch.forward, ones))


def many_rows(way: str, quick: bool, sparse: bool) -> Work:
    """Codes of many rows, float64, as scikit-learn computes them."""
    n, d, m = (20, 500, 50) if quick else (1000, 10_000, 500)
    rows = np.random.default_rng(0).standard_normal((n, d))
    if way.startswith("scikit-learn"):
        kind = SparseRandomProjection if sparse else GaussianRandomProjection
        map_ = kind(m, random_state=0).fit(rows)
        return Work(partial(map_.transform, rows))
    sketch: Any
    if sparse:
        sketch = CountSketch(m) if way == "CountSketch" else SparseJL(m, s=8)
    else:
        sketch = GaussianSketch(m, scaling="jl")
    drawn, table = sketch.draw(d, seed=0), Dense(torch.from_numpy(rows))
    return Work(lambda: drawn.encode(table).dense())


def grown(d: int, kind: str) -> Work:
    """A new map and the code of a float32 vector of d numbers, m = d / 100."""
    need_memory(12.0 * d)
    sketch, vector, rounds = KINDS[kind](max(1, d // 100)), torch.ones(d), count()
    return Work(lambda: sketch.draw(d, seed=1, t=next(rounds)).forward(vector))


SIZES = tuple(10**k for k in range(3, 9))
BENCHMARKS = (
    PeerBenchmark(
        "sketch-forward",
        "the code of 10^7 float32 numbers, m = 10^5, all threads",
        partial(long_vector, back=False),
        ("CountSketch", "SRHT"),
        (COPY,),
        threads=0,
    ),
    PeerBenchmark(
        "sketch-adjoint",
        "10^7 float32 numbers from a code, m = 10^5, all threads",
        partial(long_vector, back=True),
        ("CountSketch", "SRHT"),
        (COPY,),
        threads=0,
    ),
    PeerBenchmark(
        "sketch-rows-sparse",
        "codes of 1,000 dense rows of 10,000 numbers, m = 500: maps with few non-zeros",
        partial(many_rows, sparse=True),
        ("CountSketch", "SparseJL(s=8)"),
        ("scikit-learn SparseRandomProjection",),
    ),
    PeerBenchmark(
        "sketch-rows-dense",
        "codes of 1,000 dense rows of 10,000 numbers, m = 500: Gaussian maps",
        partial(many_rows, sparse=False),
        ("GaussianSketch",),
        ("scikit-learn GaussianRandomProjection",),
    ),
    Growth(
        "grows-countsketch-d",
        "a new CountSketch and the code of d float32 numbers, m = d / 100",
        "d",
        partial(grown, kind="CountSketch"),
        SIZES,
        SIZES[:2],
    ),
    Growth(
        "grows-srht-d",
        "a new SRHT and the code of d float32 numbers, m = d / 100",
        "d",
        partial(grown, kind="SRHT"),
        SIZES,
        SIZES[:2],
    ),
)
