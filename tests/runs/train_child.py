"""Trains in forks of itself and kills them: arguments `data folder seed signals...`.

A short run that nobody stops is made first.  Each fork then begins the run, or goes on with it where its folder is
there, and sends itself a signal at a random round, before or after its charge; the last one is left to finish.  What
happens depends on the progress of the run alone, not on how fast the machine is, nor on whether a shell that put the
tests in the background made them deaf to Ctrl-C.  After each a line of JSON says what the ledgers hold.  Forks need no
second import of torch.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

LONGEST = 80
"""Rounds that a fork makes at most before its signal: six of them do not finish the run."""
COMMON = "--classes 0,1 --bounds=-1,1 --algorithm dp_gd --scale none --step 4 --max-iter 600 --delta 1e-5 --quiet"


def stop_at(number: int, round: int, before: bool) -> None:
    """Send this process a signal at its `round`-th charge, before it is written or after."""
    from isthmus.privacy.ledger import RunLedger

    charge, seen = RunLedger.charge, []

    def charged(self: Any, stage: Any, t: int = 0) -> None:
        seen.append(t)
        if before and len(seen) == round:
            os.kill(os.getpid(), number)
        charge(self, stage, t)
        if not before and len(seen) == round:
            os.kill(os.getpid(), number)

    RunLedger.charge = charged  # type: ignore[method-assign]


def child(arguments: list[str], log: Path) -> None:
    from isthmus.cli import main

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits that it is ignored
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    try:
        main(arguments)
    except SystemExit as done:
        os._exit(int(done.code or 0))
    finally:
        os._exit(99)


def state(run: Path, budget: Path) -> dict[str, Any]:
    from isthmus.privacy import Ledger

    facts: dict[str, Any] = {"charged": {}, "epsilon": 0.0, "done": (run / "run.json").exists()}
    if (run / "ledger").exists():
        ledger = Ledger(run / "ledger")
        facts |= {"charged": ledger.rounds(), "epsilon": ledger.spent(1e-5)}
    shared = Ledger.open(budget)
    return facts | {"shared": shared.rounds(), "shared_epsilon": shared.spent()}


def main(data: str, folder: str, seed: int, signals: list[int]) -> None:
    from isthmus.cli import main as command

    command(["train", data, *COMMON.split(), "--max-iter", "5", "--out", f"{folder}/whole"], standalone_mode=False)
    run, budget = Path(folder) / "run", Path(folder) / "budget"
    moments = random.Random(seed)
    for number in (*signals, 0):
        begin = ["train", data, *COMMON.split(), "--out", str(run), "--budget", str(budget)]
        arguments = ["train", "--resume", str(run), "--quiet"] if run.exists() else begin
        round, before, pid = moments.randint(2, LONGEST), moments.random() < 0.5, os.fork()
        if not pid:
            if number:
                stop_at(number, round, before)
            child(arguments, Path(folder) / "log")
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(json.dumps({**state(run, budget), "code": code}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), [getattr(signal, name) for name in sys.argv[4:]])
