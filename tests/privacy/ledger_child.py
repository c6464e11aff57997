"""A process that charges a ledger and then releases, made to be killed: arguments `path out reserve mode rounds`.

A release is one byte, on the disk, in the file `out`.  Mode "torn" stops for ever in its `rounds`-th transaction, with
what it writes half in the file, and says so; "plain" goes on until it is killed; "together" waits for a line before
each of its first rounds and answers after it, then goes on; "budget" waits once, also loads the accountant and stops
when the budget refuses.
"""

import os
import sys
import types
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
EVENT = {"event": "Gaussian", "noise_multiplier": 40.0}
TURNS = 3
Json = dict[str, Any]


def light_package() -> None:
    """`isthmus.privacy` without its front door, which imports torch."""
    sys.path.insert(0, str(ROOT))
    package = types.ModuleType("isthmus.privacy")
    package.__path__ = [str(ROOT / "isthmus" / "privacy")]
    sys.modules["isthmus.privacy"] = package


def main(path: str, out: str, reserve: int, mode: str, rounds: int) -> None:
    light_package()
    from isthmus.privacy.ledger import BudgetExceeded, Ledger, _FileRecords

    append, written = _FileRecords.append, []

    def torn(self: _FileRecords, *bodies: Json) -> None:
        written.append(bodies)
        if len(written) < rounds:
            return append(self, *bodies)
        self._database.execute("PRAGMA cache_size=1")  # so that pages are written before the transaction ends
        append(self, *bodies, *[{"kind": "ran", "run": "", "padding": "." * 5000}] * 50)
        print("torn", flush=True)
        sys.stdin.readline()  # until it is killed

    if mode == "torn":
        _FileRecords.append = torn  # type: ignore[method-assign]
    ledger = Ledger(path)
    releases = os.open(out, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    print("ready", flush=True)
    if mode == "budget":
        sys.stdin.readline()
    run = ledger.run({"main": EVENT}, reserve=reserve)
    try:
        for t in range(10**6 if mode == "torn" else rounds):
            turn = mode == "together" and t < TURNS
            if turn:
                sys.stdin.readline()
            run.charge("main", t)
            os.write(releases, b".")
            os.fsync(releases)
            if turn:
                print("done", flush=True)
    except BudgetExceeded:
        print("refused", flush=True)
    run.close()
    if mode != "budget":
        assert not {"torch", "dp_accounting"} & set(sys.modules)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
