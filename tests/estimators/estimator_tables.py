"""Small tables for tests of estimators, and predictions made the slow way."""

import math
from typing import Any

import numpy as np
import scipy.sparse as sp

from isthmus import PrivateClassifier, PrivateRegressor
from isthmus.estimators.looks import Looks
from isthmus.problems.features import SmoothMap
from isthmus.problems.scaling import RowMap

QUICK: dict[str, Any] = {"algorithm": "dp_gd", "max_iter": 4, "noise_seed": 0, "random_state": 0}
"""A few rounds of seeded noise: two fits are alike."""
PLAIN: dict[str, Any] = {**QUICK, "scale": "none", "step": 1.0, "bounds": (-2, 2)}
"""The same, with nothing to buy."""


def labelled(n: int = 400, d: int = 4, seed: int = 0, classes: int = 2) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, d))
    W = np.random.default_rng(99).standard_normal((d, classes))
    return X, (X @ W + 0.3 * rng.standard_normal((n, classes))).argmax(1)


X, y = labelled()
"""What most tests fit to; nothing may write to it."""
X.flags.writeable = y.flags.writeable = False


def numbered(n: int = 400, d: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, d))
    return X, 5 + X @ np.linspace(2, -1, d) + 0.1 * rng.standard_normal(n)


def sparse_rows(n: int = 400, d: int = 30, seed: int = 0) -> tuple[Any, np.ndarray]:
    X = sp.random(n, d, density=0.2, format="csr", random_state=seed)
    X.data[: X.indptr[1]] = 0
    X.eliminate_zeros()  # the first row is empty
    left, right = (np.asarray(part.sum(1)).ravel() for part in (X[:, : d // 2], X[:, d // 2 :]))
    return X, (left > right).astype(int)


def classifier(**changes: Any) -> PrivateClassifier:
    """Fits two classes with nothing read from the data and nothing bought."""
    return PrivateClassifier(**{**PLAIN, "classes": [0, 1], **changes})


def regressor(**changes: Any) -> PrivateRegressor:
    """The same for numbers."""
    return PrivateRegressor(**{**PLAIN, "target_bounds": (-5, 15), **changes})


def slow_margins(model: Any, X: Any) -> np.ndarray:
    """Each row through the model's maps by their definition, then a dot product with each output's weights."""
    weights = model._weights.numpy()
    rows = []
    for row in X.toarray() if sp.issparse(X) else np.asarray(X, dtype=float):
        bias = 0.0
        for each in model._maps.maps:
            row, bias = smooth_by_hand(each, row) if isinstance(each, SmoothMap) else mapped_by_hand(each, row, bias)
        rows.append([float(row @ weights[:, k]) for k in range(weights.shape[1])])
    return np.array(rows)


def mapped_by_hand(each: RowMap, row: np.ndarray, bias: float) -> tuple[np.ndarray, float]:
    """A row clipped, shifted, weighted and shortened, and its constant."""
    v = row if each.low is None else np.clip(row, each.low.numpy(), each.high.numpy())
    v = v if each.shift is None else v - each.shift.numpy()
    v = v if each.weight is None else v * each.weight.numpy()
    v, kept = (v[:-1], v[-1]) if bias else (v, 0.0)
    return shortened(v, each.limit, each.bias or kept)


def smooth_by_hand(each: SmoothMap, row: np.ndarray) -> tuple[np.ndarray, float]:
    """The functions of every column, one number at a time, linear between the knots."""
    columns = [min(max(x / each.reach, float(each.knots[0])), float(each.knots[-1])) for x in row]
    values = [np.interp(columns[j], each.knots, each.values[i]) for i, j in enumerate(each.columns.tolist())]
    return shortened(np.array(values), each.limit, each.bias)


def shortened(v: np.ndarray, limit: float | None, bias: float) -> tuple[np.ndarray, float]:
    length, whole = float(np.linalg.norm(v)), math.hypot(limit or 1.0, bias)
    v = v / (length or 1.0) if limit is None else v * min(1.0, limit / (length or 1.0))
    return (np.append(v, bias) if bias else v) / whole, bias / whole


class Seen(Looks):
    """Looks that keep the longest row of what they were given, and the bound of it."""

    def take(self, name: str, rows: Any, clip: Any, mechanism: Any) -> np.ndarray:
        norms = rows.dense().norm(dim=1) if hasattr(rows, "dense") else rows.norms(2)
        self.rows = [*getattr(self, "rows", []), (float(norms.max()), clip.bound)]
        return super().take(name, rows, clip, mechanism)
