"""Attacks on `minimize`: every private recipe, every linear model, dense and CSR, whole and in physical batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from attack.cases import Case, size
from attack.data import SERIES, Rng, table
from attack.probes import Arrays, noise_seed
from isthmus import SRHT, CountSketch, GaussianSketch, L1Ball, RademacherSketch, Simplex, algorithms, minimize
from isthmus.algorithms.purchases import ClassCounts, Ranges, TargetRange, buying
from isthmus.objectives import Hinge, Huber, LeastSquares, Logistic, Poisson, SmoothHinge, Softmax

LABELLED: dict[str, Any] = {"Logistic": Logistic, "Hinge": Hinge, "SmoothHinge": SmoothHinge}
NUMBERS: dict[str, Any] = {"LeastSquares": LeastSquares, "Huber": Huber}
STORAGE = ("dense32", "dense64", "csr32", "csr64", "counts")
CLASSES = 3
SKETCHES: dict[str, Any] = {"count": CountSketch, "gaussian": GaussianSketch, "srht": SRHT, "signs": RademacherSketch}


def _descent(name: str) -> Callable[..., Any]:
    def make(rng: Rng, common: dict[str, Any], d: int, n: int, public: Any) -> Any:
        return getattr(algorithms, name)(**common, step=1.0)

    return make


def _sampled(name: str) -> Callable[..., Any]:
    def make(rng: Rng, common: dict[str, Any], d: int, n: int, public: Any) -> Any:
        return getattr(algorithms, name)(**common, step=1.0, batch_size=max(1, n // 2))

    return make


def _sketched(name: str, sampled: bool) -> Callable[..., Any]:
    def make(rng: Rng, common: dict[str, Any], d: int, n: int, public: Any) -> Any:
        family = SKETCHES[str(rng.choice(list(SKETCHES)))]
        batch = {"batch_size": max(1, n // 2)} if sampled else {}
        return getattr(algorithms, name)(**common, **batch, step=1.0, m=max(1, d // 2), sketch=family)

    return make


def _compressive(rng: Rng, common: dict[str, Any], d: int, n: int, public: Any) -> Any:
    variant = str(rng.choice(["gaussian", "laplace", "selection"]))
    return algorithms.compressive_dp_sgd(**common, step=1.0, p=max(3, d // 2), kappa=min(2, d), variant=variant)


def _blocks(rng: Rng, common: dict[str, Any], d: int, n: int, public: Any) -> Any:
    law = str(rng.choice(["full", "single", "block", "nice"]))
    return algorithms.dp_skgd(**common, smoothness=1.0, sampling=law, blocks=min(3, d), tau=min(2, d))


def _coordinates(rng: Rng, common: dict[str, Any], d: int, n: int, public: Any) -> Any:
    return algorithms.dp_cd(**common, smoothness=1.0)


def _variance(rng: Rng, common: dict[str, Any], d: int, n: int, public: Any) -> Any:
    return algorithms.dp_svrg(**common, step=1.0, inner=2, batch_size=max(1, n // 2))


def _vertices(rng: Rng, common: dict[str, Any], d: int, n: int, public: Any) -> Any:
    return algorithms.dp_fw(**common)


def _public(rng: Rng, common: dict[str, Any], d: int, n: int, public: Any) -> Any:
    options = {"k": 2, "data": public, "batch_size": max(1, n // 2), "as_published": bool(rng.random() < 0.5)}
    return algorithms.pdp_sgd(**common, **options, step=1.0)


def _random(rng: Rng, common: dict[str, Any], d: int, n: int, public: Any) -> Any:
    return algorithms.rpdp_sgd(**common, k=min(2, d), batch_size=max(1, n // 2), step=1.0)


def _adaptive(rng: Rng, common: dict[str, Any], d: int, n: int, public: Any) -> Any:
    from isthmus.privacy import AdaptiveClip

    return algorithms.dp_gd(**{**common, "clip": AdaptiveClip(common["clip"])}, step=1.0)


def _bought(rng: Rng, common: dict[str, Any], d: int, n: int, public: Any) -> Any:
    kind = rng.integers(5)
    if kind < 2:
        return algorithms.dp_gd(**common, scale=("moments", "columns")[kind], step="auto")
    if kind == 2:
        return algorithms.dp_gd(**common, scale="columns", precondition=True)
    items = [Ranges(bias=1.0)] if kind == 3 else [Ranges(), ClassCounts()] if public[2] else [Ranges(), TargetRange()]
    return buying(algorithms.dp_gd(**common, step=1.0), items, copy=bool(rng.random() < 0.5))


RECIPES: dict[str, Callable[..., Any]] = {
    "dp_gd": _descent("dp_gd"),
    "dp_sgd": _sampled("dp_sgd"),
    "adaptive": _adaptive,
    "priv_sgd": _sketched("priv_sgd", False),
    "dp_comp_gd": _sketched("dp_comp_gd", False),
    "dp_comp_minibatch": _sketched("dp_comp_minibatch", True),
    "compressive_dp_sgd": _compressive,
    "dp_skgd": _blocks,
    "dp_cd": _coordinates,
    "dp_svrg": _variance,
    "dp_fw": _vertices,
    "pdp_sgd": _public,
    "rpdp_sgd": _random,
    "purchases": _bought,
}

SAMPLED = ("dp_sgd", "dp_comp_minibatch", "dp_svrg", "pdp_sgd", "rpdp_sgd")
"""Recipes whose batches are half of the declared records: one rate for all cases, calibrated once."""


def draw(rng: Rng, most: int) -> Case:
    """A recipe, a linear model and data for both."""
    recipe, storage = str(rng.choice(list(RECIPES))), str(rng.choice(STORAGE))
    objective = str(rng.choice([*LABELLED, *NUMBERS, "Poisson", "Softmax"]))
    kind, clip = str(rng.choice(list(SERIES))), float(rng.choice([1.0, 1.0, 0.1, 3.0, 1e-6, 1e4]))
    n, d = size(rng, most, kind), int(rng.choice([1, 1, 2, 3, 5, 8, 16]))
    pure = kind == "power_of_two" and rng.random() < 0.6  # nothing but the series: its places are exact
    if pure:
        objective, d, clip = str(rng.choice(list(NUMBERS))), 1, float(rng.choice([1.0, 2.0**-20, 2.0**10]))
    series = SERIES[kind](rng, n).times(clip if pure or rng.random() < 0.7 else 1.0)
    X, y = (np.ones((n + 1, 1)), series.values) if pure else _data(rng, objective, series, d)
    if storage == "counts":
        X = np.clip(np.round(X / np.abs(X).max(initial=1.0) * 9), -100, 100)
    exact = recipe not in (*SAMPLED, "purchases") and rng.random() < 0.3
    rounds = 1 if exact else int(rng.integers(1, 3))
    common = {"epsilon": 1.0, "delta": 1e-6, "clip": clip, "n": "exact" if exact else 2 * (n // 2)}
    replaced = rng.random() < 0.15
    if replaced:
        common["adjacency"] = "replace-one"
    width = d * (CLASSES if objective == "Softmax" else 1)
    x0 = rng.standard_normal(width) * 10.0 ** rng.uniform(-3, 2) if rng.random() < 0.5 and not pure else None
    physical = max(1, n // int(rng.integers(2, 6))) if rng.random() < 0.3 else None
    public = (np.eye(max(3, d))[:, :d], np.arange(max(3, d)) % 2, objective in LABELLED or objective == "Softmax")
    fork = int(rng.integers(1 << 30))

    def train(arrays: Arrays) -> object:
        problem = _problem(objective, storage, arrays)
        own = np.random.default_rng(fork)  # the same options for both neighbours
        filled = RECIPES[recipe](own, common, width, n, public if recipe == "purchases" else public[:2])
        constraint = (L1Ball(2.0) if own.random() < 0.6 else Simplex(1.0)) if recipe == "dp_fw" else None
        start = None if x0 is None or recipe in ("dp_fw", "purchases") else torch.from_numpy(x0).to(problem.dtype)
        options = {"steps": rounds, "x0": start, "noise_seed": noise_seed(), "physical_batch_size": physical}
        return minimize(problem, filled, constraint, record=None, progress=False, **options)

    arrays = {"X": X, "y": y}
    other = {"X": -X[series.at], "y": y[series.at]} if replaced else None
    facts = {"n": n, "d": d, "storage": storage, "data": kind, "clip": clip, "rounds": rounds, "exact": exact}
    facts |= {"x0": x0 is not None, "physical": physical, "options": fork}
    label = f"{recipe} on {objective} " + ", ".join(f"{k}={v}" for k, v in facts.items())
    free = ("X", "y") if objective in NUMBERS else ("X",)
    free = () if storage == "counts" else free
    share = 1.0 if pure else float(rng.choice([1.0, 0.9]))
    return Case(f"recipe {recipe}", label, arrays, series.at, train, free, fork, share, other, exact)


def _data(rng: Rng, objective: str, series: Any, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets such that the gradients follow the series."""
    n = len(series.values)
    if objective in NUMBERS and rng.random() < 0.6:  # the slope carries the series
        return np.ones((n, d)) / np.sqrt(d), np.clip(series.values, -1e30, 1e30)
    X = table(rng, series, d)
    if objective in NUMBERS:
        return X, np.full(n, rng.choice([1.0, -1.0, 0.3]))
    if objective in LABELLED:
        return X, np.ones(n) if rng.random() < 0.7 else rng.choice([-1.0, 1.0], n)
    return X, rng.integers(0, CLASSES, n).astype(float)


def _problem(objective: str, storage: str, arrays: Arrays) -> Any:
    number = np.float32 if storage in ("dense32", "csr32") else np.float64
    limit = 3e38 if number is np.float32 else 1e300
    X = np.clip(arrays["X"], -limit, limit).astype(number)
    if storage == "counts":
        X = sp.csr_array(X.astype(np.int64))
    elif storage.startswith("csr"):
        X = sp.csr_array(X)
    y = arrays["y"]
    if objective in NUMBERS:
        return NUMBERS[objective](X, y)
    if objective in LABELLED:
        return LABELLED[objective](X, np.where(y > 0, 1, -1), classes=(-1, 1))
    whole = np.abs(y).astype(np.int64)
    return Poisson(X, whole) if objective == "Poisson" else Softmax(X, whole % CLASSES, classes=CLASSES)
