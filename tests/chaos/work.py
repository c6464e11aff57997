"""Trainings as users run them, small: each goes on with what an earlier, stopped one left in its folder."""

from __future__ import annotations

import contextlib
import io
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import isthmus
from isthmus import PrivacyEngine, PrivateClassifier, algorithms
from isthmus.cli import main as command_line
from isthmus.core.wire import State
from isthmus.privacy import Ledger

ROUNDS = 12
BUDGET = (50.0, 1e-5)


@cache
def rows() -> tuple[np.ndarray, np.ndarray]:
    """Two classes."""
    x = np.random.default_rng(0).uniform(-1, 1, (200, 4))
    return x, (x[:, 0] > 0).astype(int)


def engine(place: Path, spoil: Callable[[int], None]) -> PrivacyEngine:
    """A PyTorch loop with a ledger and a checkpoint every second round."""
    torch.manual_seed(0)
    x, y = rows()
    module: Any = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    private = PrivacyEngine(ledger=place / "ledger", seed=3)
    module, optimizer, loader = private.make_private(
        module=module,
        optimizer=torch.optim.Adam(module.parameters(), lr=0.01),
        data_loader=DataLoader(TensorDataset(torch.from_numpy(x).float(), torch.from_numpy(y)), batch_size=50),
        noise_multiplier=2.0,
        max_grad_norm=1.0,
    )
    path = place / "checkpoint"
    done = private.load_checkpoint(path=path, module=module, optimizer=optimizer)["done"] if path.exists() else 0
    while done < ROUNDS:
        for batch, target in loader:
            if done == ROUNDS:
                break
            spoil(done)
            optimizer.zero_grad()
            F.cross_entropy(module(spoiled(batch, spoil)), target).backward()
            optimizer.step()
            done += 1
            if done % 2 == 0:
                private.save_checkpoint(path=path, module=module, optimizer=optimizer, checkpoint_dict={"done": done})
    if not all(bool(parameter.isfinite().all()) for parameter in module.parameters()):
        raise ArithmeticError("the module holds NaN")
    return private


def minimize(place: Path, spoil: Callable[[int], None]) -> None:
    """`isthmus.minimize` with a ledger and a state every round."""
    x, y = rows()
    problem = isthmus.Logistic(torch.from_numpy(x), torch.from_numpy(2.0 * y - 1), classes=(-1, 1))
    path = place / "state"

    def keep(record: dict[str, Any], state: State) -> None:
        spoil(state.t)
        state.save(path)

    recipe = algorithms.dp_gd(epsilon=5.0, delta=1e-5, clip=0.5, step=1.0, n="exact")
    result = isthmus.minimize(
        problem,
        recipe,
        steps=ROUNDS,
        ledger=Ledger.open(place / "ledger"),
        resume=State.load(path) if path.exists() else None,
        callbacks=[keep],
        record=1,
        progress=False,
    )
    if result.x is None or not bool(result.x.isfinite().all()):
        raise ArithmeticError("the model holds NaN")


def estimator(place: Path, spoil: Callable[[int], None]) -> None:
    """A classifier with a ledger and a checkpoint, saved at the end."""
    x, y = rows()
    model = PrivateClassifier(
        epsilon=5.0,
        delta=1e-5,
        bounds=(-1, 1),
        classes=[0, 1],
        max_iter=ROUNDS,
        algorithm="dp_gd",
        step=1.0,
        scale="none",
        ledger=place / "ledger",
        checkpoint=place / "checkpoint",
    )
    spoil(0)
    model.fit(spoiled(x, spoil), y)
    spoil(1)
    model.save(place / "model")


def command(place: Path, spoil: Callable[[int], None]) -> None:
    """`isthmus train` with a shared budget, or `--resume`, then `isthmus predict`."""
    data, run = place / "data.npz", place / "run"
    options = "--classes 0,1 --bounds=-1,1 --algorithm dp_gd --scale none --step 4 --epsilon 5 --delta 1e-5 --quiet"
    begin = ["train", str(data), *options.split(), "--max-iter", str(ROUNDS)]
    begin += ["--out", str(run), "--budget", str(place / "budget")]
    spoil(0)
    invoke(["train", "--resume", str(run), "--quiet"] if run.exists() else begin)
    spoil(1)
    invoke(["predict", str(run), str(data), "-o", str(place / "out.csv"), "--quiet"])


class Exited(Exception):
    """The command line ended with an exit code that is not 0; its words are what it said."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code


def invoke(arguments: list[str]) -> None:
    """`isthmus` with these arguments."""
    output = io.StringIO()
    with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
        code = command_line(arguments, standalone_mode=False)
    if code:
        raise Exited(code, output.getvalue())


def prepare(work: str, place: Path) -> None:
    """What a user has before a training: the data and the budget of the command line."""
    if work == "command":
        x, y = rows()
        np.savez(place / "data.npz", X=x, y=y)
        Ledger.open(place / "budget", budget=BUDGET)


@cache
def warm(work: str) -> None:
    """Train once in this process: what is imported on the way is there for forks that may read nothing."""
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepare(work, Path(place))
        WORK[work](Path(place), lambda t: None)


def spoiled(value: Any, spoil: Any) -> Any:
    """The data as the fault has it."""
    change = getattr(spoil, "data", None)
    return value if change is None else change(value)


WORK = {"engine": engine, "minimize": minimize, "estimator": estimator, "command": command}
