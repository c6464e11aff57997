"""Data of the form of the real sets, a few kilobytes large, for smoke tests of the experiments."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

ROWS = {"train": 80, "test": 60}


def images(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Pixels whose brightest row tells the class."""
    parts = {}
    for part, n in ROWS.items():
        y = np.arange(n) % 10
        x = rng.integers(0, 60, (n, 28, 28))
        x[np.arange(n), 2 * y] += 150
        parts |= {f"x_{part}": x.astype(np.uint8), f"y_{part}": y.astype(np.uint8)}
    return parts


def texts(rng: np.random.Generator, words: int, classes: int) -> dict[str, np.ndarray]:
    """Word counts; every class has a word of its own."""
    parts = {}
    for part, n in ROWS.items():
        y = np.arange(n) % classes
        dense = rng.random((n, words)) < 0.1
        dense[np.arange(n), y] = True
        x = sp.csr_matrix(dense.astype(np.uint8))
        pieces = {"data": x.data, "indices": x.indices, "indptr": x.indptr, "shape": np.array(x.shape)}
        parts |= {f"{part}_{name}": value for name, value in pieces.items()} | {f"y_{part}": y.astype(np.uint8)}
    return parts


@pytest.fixture
def small_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with MNIST, Fashion-MNIST, Reuters and IMDB in miniature."""
    rng = np.random.default_rng(0)
    for name in ("mnist", "fashion_mnist"):
        np.savez(tmp_path / f"{name}.npz", **images(rng))  # type: ignore[arg-type]
    np.savez(tmp_path / "reuters46_bow10k.npz", **texts(rng, 100, 46))  # type: ignore[arg-type]
    np.savez(tmp_path / "imdb_bow10k.npz", **texts(rng, 100, 2))  # type: ignore[arg-type]
    monkeypatch.setenv("ISTHMUS_DATA", str(tmp_path))
    return tmp_path
