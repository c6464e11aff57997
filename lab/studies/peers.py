"""What others offer for private learning from tables, each as a careful user would call it, and what is not private.

Every peer is told what Isthmus is told: the range of each column, the classes or the range of the target, epsilon and
delta = 1e-5.  Fields of words go into DP-EBM as words, elsewhere as 0/1 columns; where a method needs rows of bounded
norm, numbers are scaled to [-1, 1] by their declared range, so that a row of k fields has norm sqrt(k) at most.

    DP-EBM                 interpret's DPExplainableBoosting*, its defaults (two classes or regression); also with
                           words as 0/1 columns, for it drops a word's rare levels (all 51 states of the births)
    diffprivlib ...        its forest, naive Bayes, logistic and linear regression; pure epsilon (`diffprivlib_worker`)
    AdaSSP                 Wang (2018): noisy X'X and X'y, a third of the budget each, and a ridge chosen by the last
    DP-GD, untuned         as in docs/glm.md: all records, 100 rounds, step 2 / L, clip .5, .3 or 1 by the loss
    linear, boosting       scikit-learn without privacy;  majority or mean: without the features
    public labels alone    scikit-learn on the 100 public rows
"""

import json
import math
import subprocess
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from interpret.privacy import DPExplainableBoostingClassifier, DPExplainableBoostingRegressor
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from table_form import Table

from isthmus import LeastSquares, Logistic, Softmax, algorithms, minimize

DELTA, PUBLIC, TEST = 1e-5, 100, 0.2
CURVATURE = {"logistic": 0.25, "squared": 1.0, "softmax": 0.5}
CLIP = {"logistic": 0.5, "squared": 0.3, "softmax": 1.0}
WORKER = Path(__file__).with_name("diffprivlib_worker.py")


@dataclass(frozen=True)
class Parts:
    """A table's rows, parted by a seed into test, public and private ones."""

    table: Table
    test: np.ndarray
    public: np.ndarray
    private: np.ndarray

    def rows(self, which: str) -> tuple[np.ndarray, np.ndarray]:
        """Features and targets of the `test`, `public` or `private` rows."""
        chosen = getattr(self, which)
        return self.table.X[chosen], self.table.y[chosen]

    def score(self, predicted: np.ndarray) -> float:
        """Accuracy or R2 of predictions for the test rows."""
        y = self.table.y[self.test]
        return float((accuracy_score if self.table.classes else r2_score)(y, predicted))


def parts(table: Table, seed: int) -> Parts:
    """A fifth of the rows for the test, 100 public ones, the rest private."""
    order = np.random.default_rng(seed).permutation(len(table.y))
    held = round(TEST * len(order))
    return Parts(table, order[:held], order[held : held + PUBLIC], order[held + PUBLIC :])


def scaled(table: Table, X: np.ndarray) -> tuple[np.ndarray, float]:
    """Numbers on [-1, 1], words as they are, and the largest norm that a row can have then."""
    words = np.zeros(X.shape[1], dtype=bool)
    words[[column for field in table.fields if len(field) > 1 for column in field]] = True
    unit = (X - table.low) / (table.high - table.low)
    return np.where(words, unit, 2 * unit - 1), math.sqrt(len(table.fields))


def _fitted(parts: Parts, model: Any, which: str = "private") -> float:
    return parts.score(model.fit(*parts.rows(which)).predict(parts.rows("test")[0]))


# ------------------------------------------------------------ private peers


def dp_ebm(parts: Parts, epsilon: float, words: bool = True) -> float:
    """Explainable boosting with noise: a word is one nominal feature, or each of its levels is a feature."""
    table, types, bounds = parts.table, [], {}
    fields = table.fields if words else [[column] for column in range(len(table.names))]
    for i, field in enumerate(fields):
        types.append("nominal" if len(field) > 1 else "continuous")
        if len(field) == 1:
            bounds[i] = (table.low[field[0]], table.high[field[0]])

    def as_fields(X: np.ndarray) -> np.ndarray:
        return np.column_stack([X[:, f].argmax(1) if len(f) > 1 else X[:, f[0]] for f in fields])

    options = {"epsilon": epsilon, "delta": DELTA, "privacy_bounds": bounds, "feature_types": types, "n_jobs": 1}
    if table.target:
        low, high = table.target
        model = DPExplainableBoostingRegressor(privacy_target_min=low, privacy_target_max=high, **options)
    else:
        model = DPExplainableBoostingClassifier(**options)
    X, y = parts.rows("private")
    return parts.score(model.fit(as_fields(X), y).predict(as_fields(parts.rows("test")[0])))


def ada_ssp(X: np.ndarray, Y: np.ndarray, norm: float, size: float, epsilon: float, rng: Any) -> np.ndarray:
    """Least squares from noisy moments (Wang 2018, algorithm 2): rows of X have `norm` at most, rows of Y `size`.

    Each of the three releases has a third of epsilon and of delta; the ridge is what the noise of X'X asks for beyond
    the smallest eigenvalue, with failure probability .05.
    """
    d, third, log = X.shape[1], epsilon / 3, math.log(6 / DELTA)
    gram = X.T @ X
    smallest = np.linalg.eigvalsh(gram)[0] + (math.sqrt(log) * rng.standard_normal() - log) * norm**2 / third
    ridge = max(0.0, math.sqrt(d * log * math.log(2 * d**2 / 0.05)) * norm**2 / third - max(smallest, 0.0))
    upper = np.triu(rng.standard_normal((d, d)))
    noisy = gram + math.sqrt(log) * norm**2 / third * (upper + np.triu(upper, 1).T)
    moments = X.T @ Y + math.sqrt(log) * norm * size / third * rng.standard_normal((d, Y.shape[1]))
    # the paper's ridge makes the matrix positive definite but for .05 of the draws
    return np.linalg.lstsq(noisy + ridge * np.eye(d), moments, rcond=None)[0]


def _with_bias(parts: Parts, which: str) -> tuple[np.ndarray, float]:
    X, norm = scaled(parts.table, parts.rows(which)[0])
    return np.column_stack([X, np.ones(len(X))]), math.sqrt(norm**2 + 1)


def adaptive_moments(parts: Parts, epsilon: float) -> float:
    """AdaSSP on targets from -1 to 1; classes by least squares on +1 and -1, or on one column for each class."""
    table, rng = parts.table, np.random.default_rng()
    X, norm = _with_bias(parts, "private")
    y = parts.rows("private")[1]
    if table.target:
        middle, half = sum(table.target) / 2, (table.target[1] - table.target[0]) / 2
        Y = ((y - middle) / half)[:, None]
    else:
        Y = 2.0 * y[:, None] - 1 if table.classes == 2 else np.eye(table.classes)[y]
    margins = _with_bias(parts, "test")[0] @ ada_ssp(X, Y, norm, 1.0, epsilon, rng)
    if table.target:
        return parts.score(middle + half * margins[:, 0])
    return parts.score((margins[:, 0] > 0).astype(int) if table.classes == 2 else margins.argmax(1))


def untuned_descent(parts: Parts, epsilon: float) -> float:
    """DP gradient descent filled by hand, on rows of norm 1 at most with a bias; the score of the loss's own model."""
    table = parts.table
    loss = "squared" if table.target else "logistic" if table.classes == 2 else "softmax"
    make: Callable[..., Any] = {"squared": LeastSquares, "logistic": Logistic, "softmax": Softmax}[loss]
    declared = {"classes": tuple(range(table.classes))} if table.classes else {}

    def posed(which: str) -> Any:
        (X, norm), y = _with_bias(parts, which), parts.rows(which)[1]
        if table.target:
            y = 2 * (y - table.target[0]) / (table.target[1] - table.target[0]) - 1
        return make(X / norm, y, **declared)

    recipe = algorithms.dp_gd(epsilon=epsilon, delta=DELTA, n="exact", step=2 / CURVATURE[loss], clip=CLIP[loss])
    result = minimize(posed("private"), recipe, steps=100, record=None, progress=False)
    return float(posed("test").score(result.x))


def diffprivlib(parts: Parts, epsilons: list[float], methods: list[str], python: str) -> dict[str, dict[str, Any]]:
    """Scores by method and epsilon from the worker, which runs in an environment of its own (`python`)."""
    table, (X, y) = parts.table, parts.rows("private")
    unit, norm = scaled(table, X)
    options = {"x": X, "y": y, "x_test": parts.rows("test")[0], "unit": unit, "norm": norm, "low": table.low}
    options |= {"unit_test": scaled(table, parts.rows("test")[0])[0], "high": table.high, "classes": table.classes}
    options |= {"target": table.target or (0, 0), "unit_low": scaled(table, table.low[None])[0][0]}
    options["free"] = np.array(sorted(column for f in table.fields for column in (f[1:] if len(f) > 1 else f)))
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "in.npz", **options)
        entries = [json.dumps(epsilons), json.dumps(methods)]
        subprocess.run([python, str(WORKER), folder, *entries], check=True, env={"OMP_NUM_THREADS": "1"})
        data = json.loads((Path(folder) / "out.json").read_text())
        predicted = np.load(Path(folder) / "out.npz")
        return {
            key: {"score": parts.score(predicted[key])} if key in predicted else {"score": None, "error": error}
            for key, error in data.items()
        }


# ------------------------------------------------------------ not private


def linear(parts: Parts) -> float:
    """Logistic or ridge regression on standardised columns."""
    model = LogisticRegression(max_iter=2000) if parts.table.classes else Ridge()
    return _fitted(parts, make_pipeline(StandardScaler(), model))


def boosting(parts: Parts) -> float:
    """Gradient boosting with scikit-learn's defaults."""
    model = HistGradientBoostingClassifier if parts.table.classes else HistGradientBoostingRegressor
    return _fitted(parts, model(random_state=0))


def nothing(parts: Parts) -> float:
    """The most frequent class, or the mean."""
    return _fitted(parts, DummyClassifier() if parts.table.classes else DummyRegressor())


def public_alone(parts: Parts) -> float:
    """The linear model of the public rows, its penalty by cross-validation on them."""
    grid = {"model__C": [1e-3, 0.01, 0.1, 1, 10]} if parts.table.classes else {"model__alpha": [0.1, 1, 10, 100, 1000]}
    model = LogisticRegression(max_iter=2000) if parts.table.classes else Ridge()
    pipeline = make_pipeline(StandardScaler(), model)
    pipeline.steps[-1] = ("model", model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fold of 80 rows may have one class only
        try:
            return _fitted(parts, GridSearchCV(pipeline, grid, cv=KFold(5, shuffle=True, random_state=0)), "public")
        except ValueError:  # one class in all 100 rows
            return _fitted(parts, DummyClassifier(), "public")


PRIVATE: dict[str, Callable[[Parts, float], float]] = {
    "DP-EBM": dp_ebm,
    "DP-EBM, 0/1 columns": partial(dp_ebm, words=False),
    "AdaSSP": adaptive_moments,
    "DP-GD, untuned": untuned_descent,
}
DIFFPRIVLIB = {
    "classification": ["diffprivlib forest", "diffprivlib naive Bayes", "diffprivlib logistic"],
    "regression": ["diffprivlib linear"],
}
FREE: dict[str, Callable[[Parts], float]] = {
    "majority or mean": nothing,
    "linear, not private": linear,
    "boosting, not private": boosting,
    "public labels alone": public_alone,
}
