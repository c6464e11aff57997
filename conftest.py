"""Every test computes in float64 unless it says otherwise, on one thread, from its own fixed generator."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest
import torch

gc.disable()  # until the tests are collected: nothing is garbage before
collect_ignore = ["conftest.py"]  # several folders have one: it is no module of doctests


def pytest_collection_finish() -> None:
    _keep()
    gc.enable()


@pytest.fixture(autouse=True, scope="module")
def _kept() -> Iterator[None]:
    yield
    _keep()


def _keep() -> None:
    """What was imported and collected stays to the end: no collection of garbage need look through it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _threads() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20240229)


@pytest.fixture
def draws() -> torch.Generator:
    return torch.Generator().manual_seed(20240229)
