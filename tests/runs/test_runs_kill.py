"""Stopped in the middle and resumed: epsilon is never lower than what was released, and little above it.

tests/chaos stops the command at any moment, and in other ways.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isthmus.privacy import Ledger

ROUNDS, CHECKPOINT, RESERVED = 600, 1, 60
"""Of the run: rounds in all, between checkpoints, and at most charged at a time."""
COMMON = f"--classes 0,1 --bounds=-1,1 --algorithm dp_gd --scale none --step 4 --max-iter {ROUNDS} --delta 1e-5 --quiet"
CHILD = """
import json, os, signal, sys
import isthmus.runs.train
from isthmus.cli import main
from isthmus.privacy.ledger import RunLedger

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits that it is ignored
charge, seen = RunLedger.charge, []
for line in sys.stdin:  # each command in a fork, which needs no second import of torch
    number, at, before, arguments = json.loads(line)
    pid = os.fork()
    if pid:
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
        continue

    def charged(self, stage, t=0):
        seen.append(t)
        if not before:
            charge(self, stage, t)
        if len(seen) == at:
            os.kill(os.getpid(), number)
        if before:
            charge(self, stage, t)

    RunLedger.charge = charged
    os.dup2(2, 1)
    try:
        main(arguments)
    except SystemExit as done:
        sys.stderr.flush()
        os._exit(done.code or 0)
    finally:
        os._exit(99)
"""
STOPS = [(9, 30, True, -9), (15, 41, False, 4), (9, 77, False, -9), (2, 12, True, 4), (0, 0, True, 0)]
"""A signal, the round of the process in which it comes, whether before its charge, and the exit code."""


def test_stopped_again_and_again(tmp_path: Path) -> None:
    rng, run = np.random.default_rng(0), tmp_path / "run"
    x = rng.uniform(-1, 1, (4000, 20))
    np.savez(tmp_path / "data.npz", X=x, y=(x[:, 0] + x[:, 1] > 0).astype(int))
    Ledger.open(tmp_path / "budget", budget=(5.0, 1e-5))
    begin = [str(tmp_path / "data.npz"), *COMMON.split(), "--out", str(run), "--budget", str(tmp_path / "budget")]
    charged, spent, log = [0], [0.0], (tmp_path / "log").open("w")
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
    process: Any = subprocess.Popen(
        [sys.executable, "-c", CHILD], text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, **pipes
    )
    for number, at, before, code in STOPS:
        arguments = ["train", *(["--resume", str(run), "--quiet"] if run.exists() else begin)]
        process.stdin.write(json.dumps([number, at, before, arguments]) + "\n")
        process.stdin.flush()
        assert int(process.stdout.readline()) == code, (tmp_path / "log").read_text()
        assert (run / "run.json").exists() is (code == 0)
        own, shared = Ledger(run / "ledger"), Ledger.open(tmp_path / "budget")
        charged.append(own.rounds()["main"])
        spent.append(own.spent(1e-5))
        assert 0 <= shared.rounds()["run/main"] - charged[-1] <= len(STOPS) * RESERVED  # the shared one is first
        assert shared.spent() >= spent[-1]
    assert charged == sorted(charged) and spent == sorted(spent) and spent[-1] > 1.0 == pytest.approx(spent[-1], 0.5)
    assert ROUNDS < charged[-1] <= ROUNDS + len(STOPS) * (CHECKPOINT + RESERVED)
    process.communicate()
    log.close()
    assert (tmp_path / "log").read_text().count(f"Continue with: isthmus train --resume {run}") == 2
    record, lost = json.loads((run / "run.json").read_text()), charged[-1] - ROUNDS
    assert record["privacy"]["epsilon"] == spent[-1] and record["model"]["rounds"] == ROUNDS
    assert f"epsilon counts {lost} releases that were paid for and lost" in record["warnings"][-1]
    assert not (run / "checkpoint").exists()
