"""Small tables for tests of estimators, and predictions made the slow way."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from isthmus import PrivateClassifier, PrivateRegressor

QUICK: dict[str, Any] = {"algorithm": "dp_gd", "max_iter": 4, "noise_seed": 0, "random_state": 0}
"""A few rounds of seeded noise: two fits are alike."""
PLAIN: dict[str, Any] = {**QUICK, "scale": "none", "step": 1.0, "bounds": (-2, 2)}
"""The same, with nothing to buy."""


def labelled(n: int = 400, d: int = 4, seed: int = 0, classes: int = 2) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, d))
    W = np.random.default_rng(99).standard_normal((d, classes))
    return X, (X @ W + 0.3 * rng.standard_normal((n, classes))).argmax(1)


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
    """Fits two classes with nothing read off the data and nothing bought."""
    return PrivateClassifier(**{**PLAIN, "classes": [0, 1], **changes})


def regressor(**changes: Any) -> PrivateRegressor:
    """The same for numbers."""
    return PrivateRegressor(**{**PLAIN, "target_bounds": (-5, 15), **changes})


def slow_margins(model: Any, X: Any) -> np.ndarray:
    """Each row through the model's maps by their definition, then a dot product with each output's weights."""
    weights = model._weights.numpy()
    rows = []
    for row in X.toarray() if sp.issparse(X) else np.asarray(X, dtype=float):
        for each in model._maps.maps:
            v = row if each.low is None else np.clip(row, each.low.numpy(), each.high.numpy())
            v = v if each.shift is None else v - each.shift.numpy()
            v = v if each.weight is None else v * each.weight.numpy()
            v = np.append(v, each.bias) if each.bias else v
            length = np.linalg.norm(v)
            row = v / (length or 1.0) if each.limit is None else v / max(length, each.limit)
        rows.append([float(row @ weights[:, k]) for k in range(weights.shape[1])])
    return np.array(rows)
