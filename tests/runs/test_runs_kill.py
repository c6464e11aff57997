"""Stopped at any moment and resumed: epsilon is never lower than what was released, and little above it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isthmus.privacy import Ledger

CHILD = Path(__file__).with_name("train_child.py")
SIGNALS = ["SIGKILL", "SIGTERM", "SIGKILL", "SIGKILL", "SIGINT", "SIGKILL"]
ROUNDS, CHECKPOINT, RESERVED = 600, 1, 60
"""Of the child's runs: rounds in all, between checkpoints, and at most charged at a time."""

Stops = tuple[Path, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def stops(tmp_path_factory: pytest.TempPathFactory) -> Stops:
    """A folder, and what the ledgers held after each signal and at the end."""
    folder, rng = tmp_path_factory.mktemp("kill"), np.random.default_rng(0)
    x = rng.uniform(-1, 1, (4000, 20))
    np.savez(folder / "data.npz", X=x, y=(x[:, 0] + x[:, 1] > 0).astype(int))
    Ledger.open(folder / "budget", budget=(5.0, 1e-5))
    command = [sys.executable, str(CHILD), str(folder / "data.npz"), str(folder), "1", *SIGNALS]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    log = folder / "log"
    assert process.returncode == 0, process.stderr + (log.read_text() if log.exists() else "")
    return folder, [json.loads(line) for line in process.stdout.splitlines()[1:]]  # the first names the whole run


def test_each_stop_leaves_its_code(stops: Stops) -> None:
    folder, lines = stops
    codes = {"SIGKILL": -9, "SIGTERM": 4, "SIGINT": 4}
    assert [line["code"] for line in lines] == [*(codes[name] for name in SIGNALS), 0]
    assert [line["done"] for line in lines] == [False] * len(SIGNALS) + [True]
    assert (folder / "log").read_text().count(f"Continue with: isthmus train --resume {folder / 'run'}") == 2


def test_epsilon_is_never_lower_and_higher_by_the_rounds_in_flight(stops: Stops) -> None:
    _, lines = stops
    charged = [line["charged"]["main"] for line in lines]
    assert charged == sorted(charged)
    assert [line["epsilon"] for line in lines] == sorted(line["epsilon"] for line in lines)
    assert ROUNDS < charged[-1] <= ROUNDS + len(SIGNALS) * (CHECKPOINT + RESERVED)


def test_the_shared_budget_is_charged_first(stops: Stops) -> None:
    _, lines = stops
    for line in lines:
        assert 0 <= line["shared"]["run/main"] - line["charged"]["main"] <= len(SIGNALS) * RESERVED
        assert line["shared_epsilon"] >= line["epsilon"]


def test_the_record_states_what_was_lost(stops: Stops) -> None:
    folder, lines = stops
    record, whole = (json.loads((folder / name / "run.json").read_text()) for name in ("run", "whole"))
    assert record["privacy"]["epsilon"] == lines[-1]["epsilon"] > whole["privacy"]["epsilon"] == pytest.approx(1, 1e-3)
    lost = lines[-1]["charged"]["main"] - ROUNDS
    assert f"epsilon counts {lost} releases that were paid for and lost" in record["warnings"][-1]
    assert record["model"]["rounds"] == ROUNDS and not (folder / "run" / "checkpoint").exists()
