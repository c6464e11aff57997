"""The data of the paper's figures: MNIST, Reuters newswires and IMDB reviews, whole or a fixed share of their rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isthmus import datasets

Split = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Splits:
    """Training and test rows (dense images, or CSR with a column a word) and their labels 0, ..., classes - 1."""

    x_train: Any
    y_train: np.ndarray
    x_test: Any
    y_test: np.ndarray
    classes: int

    @property
    def inputs(self) -> int:
        """Columns."""
        return int(self.x_train.shape[1])

    def dense(self, device: str) -> tuple[Split, Split]:
        """Both parts as tensors on a device."""
        return _tensors(self.x_train, self.y_train, device), _tensors(self.x_test, self.y_test, device)


def splits(config: Mapping[str, Any]) -> Splits:
    """As `config` says: "data", "rows" of training, "test rows", and of texts the most frequent "words".

    The rows are drawn once and for all, whatever the seed of a run.
    """
    return _splits(datasets.folder(), config["data"], config["rows"], config.get("test rows"), config.get("words"))


@lru_cache(maxsize=2)
def _splits(folder: Path, name: str, rows: int, test_rows: int | None, words: int | None) -> Splits:
    data = datasets.load(name, folder)
    assert data.y_test is not None
    labels, choose = np.unique(data.y_train), np.random.default_rng(0)
    train = choose.permutation(len(data.y_train))[:rows]
    test = choose.permutation(len(data.y_test))[:test_rows]
    x_train, x_test = data.x_train[train], data.x_test[test]
    if words is not None:
        occurrences = np.asarray((x_train != 0).sum(0)).ravel()
        columns = np.sort(np.argsort(-occurrences, kind="stable")[:words])
        x_train, x_test = x_train[:, columns], x_test[:, columns]
    y_train, y_test = (np.searchsorted(labels, y) for y in (data.y_train[train], data.y_test[test]))
    return Splits(x_train, y_train, x_test, y_test, len(labels))


def _tensors(x: Any, y: np.ndarray, device: str) -> Split:
    full = x.toarray() if hasattr(x, "toarray") else x
    return torch.from_numpy(np.asarray(full, dtype=np.float32)).to(device), torch.from_numpy(y).to(device)
