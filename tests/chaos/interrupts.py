"""Interrupts at random moments inside the ledger's code, hundreds of them, and the same process goes on.

Signals are real ones, from a timer: the interpreter delivers them where it would deliver Ctrl-C.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from pathlib import Path

from chaos.scenarios import Result, folders
from isthmus.privacy import Ledger

EVENT = {"event": "Gaussian", "noise_multiplier": 40.0}


def interrupted(runs: int, moments: random.Random) -> Result:
    """A ledger in use, interrupted and used again by the same process, which must not hang, nor miscount."""
    result = Result("Ctrl-C inside a ledger, and on")
    with folders() as place:
        began = time.perf_counter()
        _use(Ledger.open(place / "ledger", budget=(30.0, 1e-5)), [0])
        longest = time.perf_counter() - began
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for number in range(runs):
            with folders() as place:
                _once(place / "ledger", number, moments.uniform(0, longest), result)
    finally:
        signal.signal(signal.SIGINT, before)
    return result


def _once(path: Path, number: int, after: float, result: Result) -> None:
    released, ledger = [0], Ledger.open(path, budget=(30.0, 1e-5))
    timer = threading.Timer(after, signal.raise_signal, [signal.SIGINT])
    try:
        timer.start()
        _use(ledger, released)
        timer.join()
    except KeyboardInterrupt:
        result.runs += 1
    while timer.is_alive():
        timer.join(0.01)
    try:
        _use(ledger, released)
        here, there = (sum(view.rounds().values()) for view in (ledger, Ledger.open(path)))
    except Exception as error:
        result.corrupt.append(f"run {number}: going on: {type(error).__name__}: {error}"[:300])
        return
    if min(here, there) < released[0]:
        result.lost.append(f"run {number}: {released[0]} released, {here} charged here, {there} on the disk")
    if here != there:
        result.corrupt.append(f"run {number}: {here} rounds here, {there} on the disk")


def _use(ledger: Ledger, released: list[int]) -> None:
    for _ in range(3):
        with ledger.run({"main": EVENT, "rare": EVENT}, reserve=2) as run:
            for t in range(3):
                run.charge("main", t)
                released[0] += 1
            run.charge("rare", 0)
            released[0] += 1
