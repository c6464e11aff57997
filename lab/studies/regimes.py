"""The cells of `regret.py`: real sets, whole and cut to 4,000 rows or fewer, and a regime for each algorithm.

A cell is data and what is public about it.  `facts` go to the planner as they are: at most so many passes
(`max_passes`), at most so many numbers of a gradient in a round (`max_dims`), a bound of the entries, the smoothness of
the columns.  Constructed rows have norm 1 at most, targets lie in [-1, 1].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import glm_data
import numpy as np
import scipy.sparse as sp
from glm_data import CLASSES, Split

from isthmus import L1Ball, Subspace

TEST, WORDS = 4000, 1000
Made = tuple[Split, dict[str, Any]]
"""Rows, and what the estimator is told beside its defaults."""


@dataclass(frozen=True)
class Cell:
    """A name, how rows are made from a seed, the classes (None: a regression), the planner's facts.

    `late` cells were added when a fifth of the others had been seen; shares are given with and without them.
    `intercept`: whether the estimator adds one, as `glm_tables` does for its dense tables; others keep their columns.
    """

    name: str
    make: Callable[[int, Any], Made]
    classes: tuple[int, ...] | None = (0, 1)
    facts: dict[str, Any] = field(default_factory=dict)
    late: bool = False

    @property
    def intercept(self) -> bool:
        """California housing and Lending Club."""
        return self.name.startswith(("california", "lending"))


# ---------------------------------------------------------------- real sets


def real(name: str, rows: int, *, dense: bool = False, words: int = 0, public: str = "", **more: Any) -> Any:
    """`rows` private rows of a set; texts keep their `words` most frequent words; public: "", "rows" or "labelled"."""

    def make(seed: int, folder: Any) -> Made:
        data = glm_data.load(name, folder, seed=seed, rows=rows)
        data = replace(data, x_test=data.x_test[:TEST], y_test=data.y_test[:TEST])
        if words:
            data = _few_words(data, words, hashed=name == "news20")
        if dense and sp.issparse(data.x):
            data = replace(data, **{part: getattr(data, part).toarray() for part in ("x", "x_test", "x_public")})
        facts = {"": {}, "rows": {"public": data.x_public}, "labelled": {"public": (data.x_public, data.y_public)}}
        return data, {**facts[public], **more}

    return make


def _few_words(data: Split, words: int, hashed: bool) -> Split:
    """The first columns (the vocabularies are by falling frequency), or columns hashed to so many; rows of norm 1."""

    def few(x: Any) -> Any:
        if hashed:
            into = sp.csr_matrix((np.ones(x.shape[1]), (np.arange(x.shape[1]), np.arange(x.shape[1]) % words)))
            x = (x @ into).tocsr()
        else:
            x = x[:, :words]
        norms = np.sqrt(x.multiply(x).sum(1)).A1
        return sp.csr_matrix(sp.diags(1 / np.maximum(norms, 1e-12)) @ x)

    return replace(data, x=few(data.x), x_test=few(data.x_test), x_public=few(data.x_public))


# ---------------------------------------------------------------- constructed


def _split(x: np.ndarray, y: np.ndarray, n: int, **declared: Any) -> Made:
    """n private rows, 200 public ones, the rest for the test."""
    at = n + glm_data.PUBLIC
    return Split(x[:n], y[:n], x[at:], y[at:], x[n:at], float(np.abs(x).max()), y[n:at]), declared


def _labels(z: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return (rng.random(len(z)) < 1 / (1 + np.exp(-z))).astype(int)


def signs(n: int, d: int, ball: bool, k: int = 5) -> Callable[[int, Any], Made]:
    """Rows of +-1/sqrt(d), k of the d coefficients are not 0; the l1 ball is as large as the truth, or not told."""

    def make(seed: int, folder: Any) -> Made:
        rng = np.random.default_rng(seed)
        x = rng.choice([-1.0, 1.0], (n + glm_data.PUBLIC + TEST, d)) / np.sqrt(d)
        radius, w = 4 * np.sqrt(d), np.zeros(d)
        w[rng.choice(d, k, replace=False)] = radius / k * rng.choice([-1.0, 1.0], k)
        return _split(x, _labels(x @ w, rng), n, **({"constraint": L1Ball(float(radius))} if ball else {}))

    return make


def scales(n: int, d: int = 60) -> tuple[Callable[[int, Any], Made], tuple[float, ...]]:
    """Columns bounded by 1 down to 0.01 that matter alike; a penalty keeps them as they are.  Their law is public."""
    bounds = np.logspace(0, -2, d)
    bounds = bounds / np.linalg.norm(bounds)

    def make(seed: int, folder: Any) -> Made:
        rng = np.random.default_rng(seed)
        x = bounds * rng.uniform(-1, 1, (n + glm_data.PUBLIC + TEST, d))
        z = x @ (0.6 * rng.choice([-1.0, 1.0], d) / bounds / np.sqrt(d))
        return _split(x, np.clip(z + 0.05 * rng.standard_normal(len(z)), -1, 1), n, l2=1e-8)

    return make, tuple((bounds**2 / 3).tolist())


def low_rank(n: int, d: int, k: int, share: float, public: bool = True, inside: bool = False) -> Any:
    """`share` of a row's energy in k directions that hold all the signal, the rest anywhere.

    public   200 public rows with labels
    inside   w is known to lie in those directions: the constraint is their span
    """

    def make(seed: int, folder: Any) -> Made:
        rng = np.random.default_rng(seed)
        basis = np.linalg.qr(rng.standard_normal((d, k)))[0]
        m = n + glm_data.PUBLIC + TEST
        z, rest = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (_normal(rng, m, k), _normal(rng, m, d)))
        w = rng.standard_normal(k)
        y = _labels(4 * np.sqrt(k) * z @ w / np.linalg.norm(w), rng)
        data, _ = _split(np.sqrt(share) * z @ basis.T + np.sqrt(1 - share) * rest, y, n)
        declared: dict[str, Any] = {"public": (data.x_public, data.y_public)} if public else {}
        return data, declared | ({"constraint": Subspace(basis.T)} if inside else {})

    return make


def _normal(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    return rng.standard_normal((rows, columns))


# ---------------------------------------------------------------- the list


def cells() -> list[Cell]:
    """All private cells; each runs at every epsilon."""
    uneven, smooth = scales(4000)
    # h |x_ij|^2 times how often a word is on, by its rank (Zipf's law)
    often = np.minimum(1.0, 30 / (1 + np.arange(WORDS)))
    ranks = tuple((0.25 * 0.01 * often).tolist())
    signed = {"bound": 500**-0.5}
    return [
        Cell("a9a, all rows", real("a9a", 32300), late=True),
        Cell("california, all rows", real("california_housing", 15200), None, late=True),
        Cell("lending, all rows", real("lending_club", 31600), None, late=True),
        Cell("IMDB, all rows", real("imdb", 24800), late=True),
        Cell("a9a", real("a9a", 4000)),
        Cell("IMDB, 1000 words", real("imdb", 4000, words=WORDS)),
        Cell("california", real("california_housing", 4000), None),
        Cell("lending", real("lending_club", 4000), None),
        Cell("madelon", real("madelon", 1800), CLASSES["madelon"]),
        Cell("Reuters-46, 300 words", real("reuters46", 2000, words=300), CLASSES["reuters46"]),
        Cell("20 Newsgroups, 500 hashes", real("news20", 2000, words=500), CLASSES["news20"]),
        Cell("a9a, public rows", real("a9a", 1500, public="labelled")),
        Cell("california, public rows", real("california_housing", 1500, public="labelled"), None),
        Cell("lending, public rows", real("lending_club", 4000, public="labelled"), None),
        Cell("IMDB, 1000 words, public rows", real("imdb", 2000, words=WORDS, public="labelled")),
        Cell("a9a, 2 passes", real("a9a", 4000), facts={"max_passes": 2}),
        Cell("lending, 2 passes", real("lending_club", 4000), None, {"max_passes": 2}),
        Cell("IMDB, 1000 words, 2 passes", real("imdb", 4000, words=WORDS), facts={"max_passes": 2}),
        Cell("a9a, 12 numbers", real("a9a", 4000, dense=True), facts={"max_dims": 12}),
        Cell("a9a, 12 numbers, 10 passes", real("a9a", 4000, dense=True), facts={"max_dims": 12, "max_passes": 10}),
        Cell("lending, 10 numbers, public rows", real("lending_club", 4000, public="rows"), None, {"max_dims": 10}),
        Cell("l1 ball, d = 500", signs(4000, 500, ball=True), facts=signed),
        Cell("l1 ball, d = 50", signs(4000, 50, ball=True), facts={"bound": 50**-0.5}),
        Cell("5 of 500 matter", signs(4000, 500, ball=False), facts={**signed, "sparsity": 5}),
        Cell("uneven columns, penalty", uneven, None, {"smoothness": smooth}),
        Cell("IMDB, 1000 words, penalty", real("imdb", 4000, words=WORDS, l2=1e-8), facts={"smoothness": ranks}),
        Cell(
            "IMDB, 1000 words, 50 numbers, ranks",
            real("imdb", 4000, words=WORDS),
            facts={"smoothness": ranks, "max_dims": 50},
        ),
        Cell("half the energy public", low_rank(4000, 200, 8, 0.5)),
        Cell("all the energy public", low_rank(4000, 200, 8, 0.95)),
        Cell("all the energy public, 20 numbers", low_rank(4000, 200, 8, 0.95), facts={"max_dims": 20}),
        Cell("span known, 20 numbers", low_rank(4000, 200, 8, 0.5, False, True), facts={"max_dims": 20}),
    ]


def free_cells() -> list[Cell]:
    """Without a budget: what the compressed solvers are for."""
    return [
        Cell("a9a, dense", real("a9a", 4000, dense=True)),
        Cell("lending", real("lending_club", 4000), None),
        Cell("IMDB, 1000 words", real("imdb", 4000, words=WORDS)),
        Cell("IMDB, 1000 words, 2 passes", real("imdb", 4000, words=WORDS), facts={"max_passes": 2}),
        Cell("IMDB, 1000 words, 100 numbers", real("imdb", 4000, words=WORDS), facts={"max_dims": 100}),
        Cell(
            "IMDB, 1000 words, 100 numbers, 5 passes",
            real("imdb", 4000, words=WORDS),
            facts={"max_dims": 100, "max_passes": 5},
        ),
        Cell("lending, 10 numbers", real("lending_club", 4000), None, {"max_dims": 10}),
        Cell("l1 ball, d = 500", signs(4000, 500, ball=True)),
    ]
