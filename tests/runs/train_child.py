"""Trains in forks of itself and kills them: arguments `data folder seed signals...`.

A short run that nobody stops is made first.  Each fork then begins the run, or goes on with it where its folder is
there, and is stopped at a random moment; the last one is left to finish.  After each a line of JSON says what the
ledgers hold.  Forks need no second import of torch.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

COMMON = "--classes 0,1 --bounds=-1,1 --algorithm dp_gd --scale none --step 4 --max-iter 600 --delta 1e-5 --quiet"


def child(arguments: list[str], log: Path) -> None:
    from isthmus.cli import main

    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    try:
        main(arguments)
    except SystemExit as done:
        os._exit(int(done.code or 0))
    finally:
        os._exit(99)


def charges(path: Path) -> int:
    return path.read_bytes().count(b'"kind":"charge"') if path.exists() else 0


def state(run: Path, budget: Path) -> dict[str, Any]:
    from isthmus.privacy import Ledger
    from isthmus.privacy.pair import RunLedgers

    found: dict[str, Any] = {"charged": {}, "epsilon": 0.0, "done": (run / "run.json").exists()}
    if (run / "ledger").exists():
        ledger = RunLedgers(run / "ledger")
        found |= {"charged": ledger.rounds(), "epsilon": ledger.spent(1e-5)}
    shared = Ledger.open(budget)
    return found | {"shared": shared.rounds(), "shared_epsilon": shared.spent()}


def main(data: str, folder: str, seed: int, signals: list[int]) -> None:
    from isthmus.cli import main as command

    command(["train", data, *COMMON.split(), "--max-iter", "5", "--out", f"{folder}/whole"], standalone_mode=False)
    run, budget = Path(folder) / "run", Path(folder) / "budget"
    moments = random.Random(seed)
    for number in (*signals, 0):
        begin = ["train", data, *COMMON.split(), "--out", str(run), "--budget", str(budget)]
        arguments = ["train", "--resume", str(run), "--quiet"] if run.exists() else begin
        before, pid = charges(run / "ledger"), os.fork()
        if not pid:
            child(arguments, Path(folder) / "log")
        if number:
            wanted, until = before + moments.randint(1, 2), time.monotonic() + 60
            while charges(run / "ledger") < wanted and time.monotonic() < until:  # a run reserves ten times or more
                time.sleep(0.001)
            time.sleep(moments.uniform(0, 0.003))
            os.kill(pid, number)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(json.dumps({**state(run, budget), "code": code}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), [getattr(signal, name) for name in sys.argv[4:]])
