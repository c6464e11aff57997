"""Attacks on rows directly: every kind of them, every clip and norm, through the loop and its mechanisms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from attack.cases import Case, size
from attack.data import SERIES, Rng, Series, spoilt
from attack.probes import Arrays, noise_seed
from isthmus import gradients, minimize
from isthmus.base.space import Space
from isthmus.core.pipeline import Pipeline, Promise, Release, Stage
from isthmus.gradients import Dense, Glm, Lazy, Outer, Rows, Stack
from isthmus.gradients.rows import Lookup, Sum, regrouped
from isthmus.privacy import Clip, FullBatch, Gaussian, Laplace, Ledger, NoisyMax, PerLeafClip, TopK
from isthmus.privacy.clips import GroupClip
from isthmus.problems.scaling import RowMap
from isthmus.sketches import SRHT, CountSketch, GaussianSketch, Identity, Kronecker, PublicSubspace, Residual

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
P, Q = 4, 2


class Problem:
    """Records whose gradients are given: rows made of slices of arrays."""

    penalty, dtype = None, torch.float64

    def __init__(self, make: Callable[[Arrays], Rows], arrays: Arrays, space: Space) -> None:
        self.make, self.arrays, self.space, self.n = make, arrays, space, len(next(iter(arrays.values())))

    def rows(self, w: Tensor, index: Any = None) -> Rows:
        """The rows of some records."""
        chosen = slice(None) if index is None else np.asarray(index)
        return self.make({name: values[chosen] for name, values in self.arrays.items()})

    def on(self, data: Rows) -> Problem:
        """Public records, given as rows."""
        return Problem(lambda _: data, {"": np.zeros(data.n)}, self.space)

    def loss(self, w: Tensor) -> float:
        """Unknown, and never asked for."""
        return math.nan


class Everyone(FullBatch):
    """All records, and a number of them that is declared: the true one stays private."""

    def divisor(self, n: int, t: int = 0) -> float:
        return 100.0


def _tensor(values: np.ndarray, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(dtype)


def dense(arrays: Arrays, dtype: torch.dtype) -> Rows:
    """Dense."""
    return Dense(_tensor(arrays["b"].reshape(len(arrays["b"]), -1), dtype))


def lazy(arrays: Arrays, dtype: torch.dtype) -> Rows:
    """Lazy."""
    values = _tensor(arrays["b"].reshape(len(arrays["b"]), -1), dtype)
    return Lazy(lambda lo, hi: values[lo:hi], len(values), values.shape[1], dtype=dtype)


def outer(arrays: Arrays, dtype: torch.dtype) -> Rows:
    """Outer with T positions."""
    return Outer(_tensor(arrays["a"], dtype), _tensor(arrays["b"], dtype))


def outer_ones(arrays: Arrays, dtype: torch.dtype) -> Rows:
    """Outer with a bias."""
    return Outer(_tensor(arrays["a"], dtype), _tensor(arrays["b"], dtype), ones=True)


def glm(arrays: Arrays, dtype: torch.dtype) -> Rows:
    """The rows of a linear model."""
    return Glm(_tensor(arrays["b"][:, 0, 0], dtype), _tensor(arrays["a"][:, 0], dtype))


def csr(arrays: Arrays, dtype: torch.dtype) -> Rows:
    """Outer with a sparse factor."""
    number = np.float64 if dtype == torch.float64 else np.float32
    return Outer(sp.csr_array(arrays["a"][:, 0].astype(number)), _tensor(arrays["b"][:, 0], dtype))


def scaled(arrays: Arrays, dtype: torch.dtype) -> Rows:
    """Outer with a mapped factor."""
    p = arrays["a"].shape[2]
    view = RowMap(shift=torch.full((p,), 0.25), weight=torch.linspace(0.5, 2, p), limit=1.5, bias=1.0)
    a = np.clip(np.nan_to_num(arrays["a"][:, 0]), -1e30, 1e30)
    return Outer(view(_tensor(a, torch.float32)), _tensor(arrays["b"][:, 0], dtype))


def lookup(arrays: Arrays, dtype: torch.dtype) -> Rows:
    """Lookup."""
    return Lookup(torch.from_numpy(arrays["index"]), _tensor(arrays["a"], dtype), Q)


def tied(arrays: Arrays, dtype: torch.dtype) -> Rows:
    """Sum."""
    return Sum([outer(arrays, dtype), lookup(arrays, dtype)])


def difference(arrays: Arrays, dtype: torch.dtype) -> Rows:
    """The difference of two rows of one input."""
    return gradients.rows.difference(glm(arrays, dtype), glm({**arrays, "b": arrays["b"][..., ::-1]}, dtype))


def stack(arrays: Arrays, dtype: torch.dtype) -> Rows:
    """Stack."""
    return Stack([("one", outer(arrays, dtype)), ("two", dense(arrays, dtype)), ("three", lookup(arrays, dtype))])


KINDS = {
    make.__name__: make for make in (dense, lazy, outer, outer_ones, glm, csr, scaled, lookup, tied, difference, stack)
}


def _factors(rng: Rng, series: Series, T: int, bound: float, pure: bool) -> dict[str, np.ndarray]:
    """Factors whose products follow the series, some with positions that cancel each other."""
    n, kind = len(series.values), 1 if pure else rng.integers(4)
    a, b = np.zeros((n, T, P)), np.zeros((n, T, Q))
    a[..., 0] = 1.0
    if kind == 0:
        a, b = rng.standard_normal((n, T, P)), rng.standard_normal((n, T, Q)) * series.values[:, None, None]
    elif kind == 1:
        b[:, 0, 0] = series.values
    elif kind == 2:  # positions that cancel: a record's sum is small, its terms are not
        large = bound * 10.0 ** rng.uniform(0, rng.choice([7, 16]))
        b[..., 0] = large * np.where(np.arange(T) % 2, -1.0, 1.0)
        b[:, -1, 0] = series.values + (large if T % 2 == 0 else 0.0) * -1.0
    else:
        b[..., 0] = series.values[:, None] / T
        a *= 2.0 ** rng.integers(-10, 10)
    index = rng.integers(0, Q, (n, T)) if rng.random() < 0.5 else np.zeros((n, T), np.int64)
    if kind != 0 and rng.random() < 0.5:  # a lookup reads a only
        a[..., 0] = b[..., 0]
    return {"a": a, "b": b, "index": index}


def _clip(rng: Rng, kind: str, bound: float) -> tuple[Any, Any]:
    """A clip and a mechanism for its norm."""
    if kind == "stack" and rng.random() < 0.5:
        return PerLeafClip({"one": bound, "two": bound / 2, "three": bound / 3}), Gaussian(50.0)
    ord = float(rng.choice([2.0, 2.0, 1.0, math.inf]))
    mechanism = {1.0: Laplace(50.0), 2.0: Gaussian(50.0), math.inf: NoisyMax(0.01)}[ord]
    if ord == math.inf and rng.random() < 0.5:
        mechanism = TopK(1, 0.01)
    return Clip(bound, ord, before=bool(rng.random() < 0.3)), mechanism


def _encoder(rng: Rng, kind: str, d: int, clip: Any) -> Any:
    if isinstance(clip, PerLeafClip) or rng.random() < 0.6:
        return Identity()
    public = Dense(torch.eye(d, dtype=torch.float64)[:2] + 0.1)
    some = [
        CountSketch(max(1, d // 2)),
        GaussianSketch(max(1, d // 2)),
        SRHT(max(1, d // 2)),
        PublicSubspace(2, public),
    ]
    some += [Residual(PublicSubspace(2, public))] if not clip.before else []
    some += [Kronecker(2, 1)] if kind in ("outer", "lookup", "tied", "stack") else []
    return some[rng.integers(len(some))]


def draw(rng: Rng, most: int) -> Case:
    """A kind of rows, a clip, a sketch and numbers."""
    kind, dtype = str(rng.choice(list(KINDS))), str(rng.choice(list(DTYPES), p=[0.6, 0.25, 0.15]))
    name, T = str(rng.choice(list(SERIES))), int(rng.choice([1, 2, 3, 6]))
    n = size(rng, most, name)
    bound = float(rng.choice([1.0, 1.0, 0.3, 1e-6, 1e4]))
    pure = name == "power_of_two" and rng.random() < 0.6  # nothing but the series: its places are exact
    bound = float(rng.choice([1.0, 2.0**-20, 2.0**10])) if pure else bound
    series = SERIES[name](rng, n).times(bound if pure or rng.random() < 0.7 else 1.0)
    arrays = _factors(rng, series, T, bound, pure)
    if pure and kind == "lookup":
        arrays["a"], arrays["index"] = arrays["b"].repeat(2, 2) * (np.arange(P) == 0), 0 * arrays["index"]
    bad = not pure and rng.random() < 0.25
    if bad and kind != "csr":
        target = str(rng.choice(["a", "b"]))
        arrays[target] = spoilt(rng, arrays[target], series.at)
    groups = bool(rng.random() < 0.1) and kind not in ("scaled", "difference", "csr")
    clip, mechanism = (GroupClip(bound), Gaussian(50.0)) if groups else _clip(rng, kind, bound)
    if groups:
        arrays["groups"] = rng.integers(0, max(1, n // 3), n + 1)
    with np.errstate(all="ignore"):
        sample = KINDS[kind]({field: values[:2] for field, values in arrays.items()}, DTYPES[dtype])
    space = _space(kind, sample)
    encode = Identity() if groups or pure else _encoder(rng, kind, sample.d, clip)
    physical = max(1, n // 3) if rng.random() < 0.3 and not groups else None
    fork = int(rng.integers(1 << 30))

    def make(parts: Arrays) -> Rows:
        rows = KINDS[kind](parts, DTYPES[dtype])
        return regrouped(rows, torch.from_numpy(parts["groups"])) if groups else rows

    def train(given: Arrays) -> object:
        release = Release("gradient", encode, clip, mechanism)
        pipe = Pipeline([Stage(Everyone(), [release])], lambda t: 0.0, promise=Promise(1.0, 1e-5))
        options = {"steps": 1, "noise_seed": noise_seed(), "ledger": Ledger(), "physical_batch_size": physical}
        return minimize(Problem(make, given, space), pipe, record=None, progress=False, **options)

    facts = {"n": n, "T": T, "dtype": dtype, "data": name, "clip": clip, "encode": encode, "spoilt": bad}
    facts |= {"groups": groups, "physical": physical}
    label = f"{kind}: " + ", ".join(f"{k}={v}" for k, v in facts.items())
    return Case(f"rows {kind}", label, arrays, series.at, train, ("a", "b"), fork)


def _space(kind: str, rows: Rows) -> Space:
    if kind == "stack":
        return Space.of({"one": (Q, P), "two": (rows.leaves()[1][1].d,), "three": (Q, P)})
    if kind in ("outer", "lookup", "tied"):
        return Space.of({"w": (Q, P)})
    return Space.flat(rows.d)
