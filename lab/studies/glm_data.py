"""The tables and texts of the private experiments, scaled by public constants only.

No mean, spread or extreme of a private column enters: every divisor below is a round number that anyone could have
chosen without the data.  Rows are clipped to norm 1, a bias column is part of x (not for the text), and 200 training
rows count as public: they are set aside, and only an experiment that says so looks at them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from isthmus import datasets
from lab.reproduce.scaled import california, lending

PUBLIC = 200


@dataclass(frozen=True)
class Split:
    """Private training rows, test rows, the public rows, and `bound`, a public bound of |x_ij|.

    `y_public` are the targets of the public rows; only "public labels alone" and what says so looks at them.
    """

    x: Any
    y: np.ndarray
    x_test: Any
    y_test: np.ndarray
    x_public: Any
    bound: float
    y_public: np.ndarray

    @property
    def n(self) -> int:
        """How many private rows there are."""
        return self.x.shape[0]

    @property
    def d(self) -> int:
        """How many columns, the bias among them."""
        return self.x.shape[1]


def load(name: str, path: Any = None, *, seed: int = 0, rows: int | None = None) -> Split:
    """A set by name; `seed` draws the public rows and the split, `rows` keeps a random subset of the private rows."""
    data, rng = datasets.load(name, path), np.random.default_rng(seed)
    x, y, bound = SCALED[name](data.x_train, data.y_train)
    if data.x_test is None:
        order, held = rng.permutation(x.shape[0]), HELD_OUT[name]
        test, rest = order[:held], order[held:]
        x_test, y_test, x, y = x[test], y[test], x[rest], y[rest]
    else:
        x_test, y_test, _ = SCALED[name](data.x_test, data.y_test)
        order = rng.permutation(x.shape[0])
        x, y = x[order], y[order]
    stop = None if rows is None else PUBLIC + rows
    return Split(x[PUBLIC:stop], y[PUBLIC:stop], x_test, y_test, x[:PUBLIC], bound, y[:PUBLIC])


def a9a(x: sp.csr_matrix, y: np.ndarray) -> tuple[Any, np.ndarray, float]:
    """Presence and bias over sqrt 15 (14 active columns and the bias)."""
    ones = sp.csr_matrix(np.ones((x.shape[0], 1)))
    return _clipped(sp.hstack([x, ones], format="csr") / np.sqrt(15)), y, 1 / np.sqrt(15)


def imdb(x: sp.csr_matrix, y: np.ndarray) -> tuple[Any, np.ndarray, float]:
    """Presence of a word, rows of norm 1, no bias; CSR as it is.  Reuters and 20 Newsgroups are treated alike.

    An entry is 1 / sqrt(different words); 0.1 for a review of 100: a shorter one is clipped where that counts.
    """
    x = x.astype(np.float64)
    norms = np.sqrt(x.multiply(x).sum(1)).A1
    return sp.csr_matrix(sp.diags(1 / np.maximum(norms, 1)) @ x), y, 0.1


def madelon(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """500 integers from 0 to 999: (x - 500)/100, a bias, rows clipped at norm sqrt 501, over it."""
    scaled = np.hstack([(x - 500) / 100, np.ones((len(x), 1))])
    return _clipped(scaled / np.sqrt(501)), y, 5 / np.sqrt(501)


def _clipped(x: Any) -> Any:
    """Rows of norm 1 at most."""
    if sp.issparse(x):
        norms = np.sqrt(x.multiply(x).sum(1)).A1
        return sp.csr_matrix(sp.diags(1 / np.maximum(norms, 1)) @ x)
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1)


SCALED = {
    "a9a": a9a,
    "imdb": imdb,
    "california_housing": california,
    "lending_club": lending,
    "madelon": madelon,
    "reuters46": imdb,
    "news20": imdb,
}
HELD_OUT = {"california_housing": 5160, "lending_club": 10600, "news20": 3984}
CLASSES = {"a9a": (0, 1), "imdb": (0, 1), "madelon": (-1, 1), "reuters46": tuple(range(46)), "news20": tuple(range(20))}
