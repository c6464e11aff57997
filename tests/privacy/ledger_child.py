"""A process that charges a ledger and then releases, made to be killed: arguments `path out reserve mode rounds`.

A release is one byte, on the disk, in the file `out`.  Mode "slow" writes every record in two halves with a pause
between them, "plain" as the ledger does, "together" waits for a line first, and "budget" also loads the accountant
and stops when the budget refuses.
"""

from __future__ import annotations

import os
import random
import sys
import time
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EVENT = {"event": "Gaussian", "noise_multiplier": 40.0}


def light_package() -> None:
    """`isthmus.privacy` without its front door, which imports torch."""
    sys.path.insert(0, str(ROOT))
    package = types.ModuleType("isthmus.privacy")
    package.__path__ = [str(ROOT / "isthmus" / "privacy")]
    sys.modules["isthmus.privacy"] = package


def main(path: str, out: str, reserve: int, mode: str, rounds: int) -> None:
    light_package()
    from isthmus.privacy._chain import FileStore, Store
    from isthmus.privacy.ledger import BudgetExceeded, Ledger

    class SlowStore(FileStore):
        def write(self, file: int, data: bytes) -> None:
            half = random.randint(1, len(data) - 1)
            super().write(file, data[:half])
            time.sleep(0.004)
            super().write(file, data[half:])

    class SlowLedger(Ledger):
        @staticmethod
        def _make_store(path: str | os.PathLike[str] | None) -> Store:
            assert path is not None
            return SlowStore(path)

    ledger = (SlowLedger if mode == "slow" else Ledger)(path)
    releases = os.open(out, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    print("ready", flush=True)
    if mode in ("together", "budget"):
        sys.stdin.readline()
    run = ledger.run({"main": EVENT}, reserve=reserve)
    try:
        for t in range(rounds):
            run.charge("main", t)
            os.write(releases, b".")
            os.fsync(releases)
    except BudgetExceeded:
        print("refused", flush=True)
    run.close()
    if mode != "budget":
        assert not {"torch", "dp_accounting"} & set(sys.modules)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
