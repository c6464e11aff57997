"""A private fit beside scikit-learn's SGDClassifier: the same rows, the same number of passes."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
from sklearn.linear_model import SGDClassifier

from isthmus import datasets
from isthmus.estimators import PrivateClassifier
from lab.bench.cases import Facts, Growth, PeerBenchmark, Skipped, Work

SGD = "scikit-learn SGDClassifier"


@cache
def dense(n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Two classes, rows of norm near 1."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    X /= np.sqrt(d)
    return X, (X @ rng.standard_normal(d) + 0.3 * rng.standard_normal(n) > 0).astype(int)


def rows(kind: str, quick: bool) -> tuple[Any, np.ndarray]:
    """The rows and labels of a kind."""
    if kind == "dense":
        return dense(*((500, 20) if quick else (100_000, 100)))
    if not datasets.available("imdb"):
        raise Skipped("ISTHMUS_DATA names no folder with imdb_bow10k.npz")
    data = datasets.load("imdb")
    return (data.x_train[:500], data.y_train[:500]) if quick else (data.x_train, data.y_train)


def build(way: str, quick: bool, kind: str) -> Work:
    """One fit."""
    X, y = rows(kind, quick)
    labels = sorted(set(np.asarray(y).tolist()))
    passes = 2 if quick else 20
    models: list[Any] = []

    def fit() -> None:
        if way == SGD:
            model: Any = SGDClassifier(loss="log_loss", max_iter=passes, tol=None, random_state=0)
        else:
            model = PrivateClassifier(epsilon=1.0, classes=labels, data_norm=1.5, max_iter=passes)
        models[:] = [model.fit(X, y)]

    def facts() -> Facts:
        return {"training accuracy": float(models[0].score(X[:20_000], y[:20_000]))}

    return Work(fit, facts)


def grown(n: int) -> Work:
    """A private fit of n rows of 50 numbers, 20 passes."""
    X, y = dense(n, 50)
    return Work(lambda: PrivateClassifier(epsilon=1.0, classes=[0, 1], data_norm=1.5, max_iter=20).fit(X, y))


BENCHMARKS = (
    *(
        PeerBenchmark(
            f"fit-{kind}",
            f"a fit of {words}, 20 passes; ours at epsilon 1",
            partial(build, kind=kind),
            ("PrivateClassifier",),
            (SGD,),
            rounds=5,
            seconds=25,
        )
        for kind, words in (("dense", "100,000 x 100 dense rows"), ("imdb", "IMDB (25,000 x 10,000, CSR)"))
    ),
    Growth(
        "grows-fit-n",
        "a private fit of n dense rows of 50 numbers, 20 passes",
        "n",
        grown,
        (10**3, 10**4, 10**5, 10**6),
        (100, 1000),
        rounds=3,
        seconds=10,
    ),
)
