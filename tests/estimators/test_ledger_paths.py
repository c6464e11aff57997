"""A mistake in the path of a ledger: no door opens a new one without a limit in silence."""

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import isthmus
from isthmus.objectives import LeastSquares
from isthmus.privacy import BudgetExceeded, Ledger
from isthmus.privacy.leaks import PrivacyBudgetWarning

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (400, 2))
Y = (X[:, 0] > 0).astype(int)
SMALL: dict[str, Any] = {"bounds": (-1, 1), "algorithm": "dp_gd", "max_iter": 2, "classes": [0, 1], "delta": 1e-5}
RECIPE = isthmus.algorithms.dp_gd(epsilon=0.5, delta=1e-5, clip=1.0, step=0.1, n="exact")


def parts() -> dict[str, Any]:
    module = nn.Linear(2, 1)
    loader = DataLoader(TensorDataset(torch.zeros(400, 2), torch.zeros(400, 1)), batch_size=100)
    return {"module": module, "optimizer": torch.optim.SGD(module.parameters(), 0.1), "data_loader": loader}


def engine(path: Path) -> None:
    made = isthmus.PrivacyEngine(ledger=path).make_private(**parts(), noise_multiplier=1.0, max_grad_norm=1.0)
    module, optimizer, batches = made
    for x, y in batches:
        nn.functional.mse_loss(module(x), y).backward()
        optimizer.step()


DOORS: dict[str, Callable[[Path], Any]] = {
    "engine": engine,
    "estimator": lambda path: isthmus.PrivateClassifier(epsilon=0.5, **SMALL, ledger=path).fit(X, Y),
    "search": lambda path: isthmus.PrivateSearch(
        isthmus.PrivateClassifier(**SMALL), {"l2": [0.1, 0.2]}, epsilon=0.5, delta=1e-5, ledger=path
    ).fit(X, Y),
    "scores": lambda path: isthmus.private_score(
        isthmus.PrivateClassifier(**SMALL).fit(X, Y), X, Y, epsilon=0.5, delta=1e-5, ledger=path
    ),
    "summary": lambda path: isthmus.private_summary({"a": X[:, 0]}, {"a": [-1, 1]}, epsilon=0.5, ledger=path),
    "minimize": lambda path: isthmus.minimize(LeastSquares(X, X[:, 0]), RECIPE, steps=2, ledger=path),
    "by-hand": lambda path: Ledger(path).pay("it", {"event": "Gaussian", "noise_multiplier": 4.0}),
}


@pytest.mark.parametrize("door", list(DOORS))
@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_where_no_ledger_is_warned_of_and_what_was_meant_is_named(door: str, kind: Any, tmp_path: Path) -> None:
    meant, typed = tmp_path / "study.ledger", tmp_path / "stduy.ledger"
    Ledger.open(meant, budget=(1e-3, 1e-5))
    with pytest.warns(
        PrivacyBudgetWarning, match=r"no ledger at '.*stduy.ledger'.*correct its path.*budget=math.inf"
    ) as seen:
        DOORS[door](kind(typed))
    assert len(seen) == 1 and seen[0].filename == __file__
    with pytest.raises(BudgetExceeded):
        DOORS[door](kind(meant))


@pytest.mark.parametrize("door", list(DOORS))
def test_a_ledger_that_exists_or_whose_limit_is_said_is_opened_without_a_word(door: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, budget in (("limited", (99.0, 1e-5)), ("unlimited", math.inf)):
            assert Ledger.open(tmp_path / name, budget=budget).budget == (budget if name == "limited" else None)
            DOORS[door](tmp_path / name)
            assert Ledger.open(tmp_path / name).rounds()
            Ledger.open(tmp_path / name, budget=budget)  # what is given agrees with what it was opened with


def test_a_target_is_the_limit_of_the_engines_new_ledger(tmp_path: Path) -> None:
    target = {"target_epsilon": 2.0, "target_delta": 1e-5, "epochs": 1, "max_grad_norm": 1.0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        isthmus.PrivacyEngine(ledger=tmp_path / "l").make_private_with_epsilon(**parts(), **target)
        assert Ledger.open(tmp_path / "l").budget == (2.0, 1e-5)
        isthmus.PrivateClassifier(epsilon=0.5, **SMALL, checkpoint=tmp_path / "run").fit(
            X, Y
        )  # its own ledger is ours to open
