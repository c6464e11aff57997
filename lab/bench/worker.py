"""The process in which works are built and timed.

It reads one JSON line an order from standard input and answers with one on standard output: `make` a way of a
benchmark, `time` it so many times, its `facts`, `drop` it.  What a work prints goes to standard error.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from lab.bench.cases import Benchmark, Skipped, Work

LEAST = 2e-3
"""A shorter call is repeated until a sample takes so many seconds."""
HANGS = 240
"""An order of a device that takes so many seconds ends the process, which says where it was."""


class Works:
    """The works of one benchmark that are built at the moment."""

    def __init__(self, benchmark: Benchmark, quick: bool) -> None:
        self.benchmark, self.quick = benchmark, quick
        self.works: dict[str, Work] = {}
        self.calls: dict[str, int] = {}

    def make(self, way: str) -> dict[str, Any]:
        """Build and run it once or twice; the second call says how many make a sample."""
        try:
            work = self.benchmark.make(way, self.quick)
        except Skipped as error:
            return {"skipped": str(error)}
        except ModuleNotFoundError as error:
            return {"skipped": f"{error.name} is not installed"}
        taken = _timed(work, 1)
        if taken < 2:
            taken = _timed(work, 1)
        self.works[way], self.calls[way] = work, max(1, min(10_000, int(LEAST / max(taken, 1e-7))))
        return {"seconds": taken}

    def time(self, way: str) -> dict[str, Any]:
        """One sample: the milliseconds of a call."""
        calls, work = self.calls[way], self.works[way]
        return {"ms": 1e3 * _timed(work, calls) / calls / work.units}

    def facts(self, way: str) -> dict[str, Any]:
        """Figures of a way, and the peak memory of this process in MiB."""
        return {"facts": self.works[way].facts(), "peak": _peak()}

    def drop(self, way: str) -> dict[str, Any]:
        """Forget a way."""
        self.works.pop(way, None)
        return {}


def _timed(work: Work, calls: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        work.call()
    return time.perf_counter() - begin


def _peak() -> float:
    """The largest resident set of this process in MiB; 0 where the system does not tell."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0.0
    return next(int(line.split()[1]) / 1024 for line in status.read_text().splitlines() if line.startswith("VmHWM"))


def main(home: str, quick: bool, threads: int) -> None:
    """Answer orders until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a peer prints is no answer
    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    works = {case.name: Works(case, quick) for case in importlib.import_module(home).BENCHMARKS}
    for line in sys.stdin:
        verb, name, way = json.loads(line)
        if getattr(works[name].benchmark, "device", False):
            faulthandler.dump_traceback_later(HANGS, exit=True)
        answer = getattr(works[name], verb)(way)
        faulthandler.cancel_dump_traceback_later()
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "quick", int(sys.argv[3]))
