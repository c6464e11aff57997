"""Real data sets from a folder of `.npz` files: `ISTHMUS_DATA`, or a path argument.  None is part of the package."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from isthmus.base import validate

FILES = {
    "mnist": "mnist.npz",
    "fashion_mnist": "fashion_mnist.npz",
    "imdb": "imdb_bow10k.npz",
    "reuters46": "reuters46_bow10k.npz",
    "lending_club": "lending_club_2007_2011.npz",
    "a9a": "a9a.npz",
    "news20": "news20.npz",
    "madelon": "madelon.npz",
    "california_housing": "california_housing.npz",
}


@dataclass(frozen=True)
class Dataset:
    """Inputs and targets as they are stored; the test part is None where the source has no split."""

    x_train: np.ndarray | sp.csr_matrix
    y_train: np.ndarray
    x_test: Any = None
    y_test: np.ndarray | None = None


def folder(path: str | Path | None = None) -> Path:
    """The data folder: the argument, else `ISTHMUS_DATA`."""
    place = path or os.environ.get("ISTHMUS_DATA")
    if place is None:
        validate.refuse("path", None, "set ISTHMUS_DATA to the folder with the .npz files, or give path=")
    return Path(place)


def available(name: str, path: str | Path | None = None) -> bool:
    """Whether a set can be loaded here.

    >>> available("mnist", path="/nowhere")
    False
    """
    validate.one_of(FILES, name=name)
    return (path is not None or "ISTHMUS_DATA" in os.environ) and os.path.exists(folder(path) / FILES[name])


def load(name: str, path: str | Path | None = None) -> Dataset:
    """A data set by name: images scaled to [0, 1], bags of words as presence (CSR), tables as stored.

    >>> load("nonsense")
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: name='nonsense' is not allowed: choose one of ...
    """
    validate.one_of(FILES, name=name)
    file = folder(path) / FILES[name]
    validate.present(os.path.exists(file), file, "put it there, or give another path=")
    with np.load(file) as stored:
        return _read(name, stored)


def _read(name: str, z: Mapping[str, np.ndarray]) -> Dataset:
    if name in ("mnist", "fashion_mnist"):
        return Dataset(_images(z["x_train"]), _labels(z["y_train"]), _images(z["x_test"]), _labels(z["y_test"]))
    if name in ("imdb", "reuters46", "a9a"):
        return Dataset(_csr(z, "train_"), _labels(z["y_train"]), _csr(z, "test_"), _labels(z["y_test"]))
    if name == "news20":
        return Dataset(_csr(z, ""), _labels(z["y"]) - 1)
    if name == "madelon":
        return Dataset(z["x_train"].astype(np.float64), z["y_train"], z["x_test"].astype(np.float64), z["y_test"])
    if name == "lending_club":
        return Dataset(np.hstack([z["X_num"], z["X_cat"]]).astype(np.float64), z["int_rate"].astype(np.float64))
    return Dataset(z["X"].astype(np.float64), z["y"].astype(np.float64))


def _labels(y: np.ndarray) -> np.ndarray:
    return y.astype(np.int64)


def _images(x: np.ndarray) -> np.ndarray:
    return (x.reshape(len(x), -1) / np.float32(255)).astype(np.float32)


def _csr(z: Mapping[str, np.ndarray], prefix: str) -> sp.csr_matrix:
    """Presence of each word or feature; counts are dropped."""
    indices = z[prefix + "indices"].astype(np.int32)
    ones = np.ones(len(indices), np.float32)
    return sp.csr_matrix((ones, indices, z[prefix + "indptr"]), shape=tuple(z[prefix + "shape"]))
