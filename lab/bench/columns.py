"""Contests of a device: one way after the other, in one process, and each handed on as soon as it is measured.

Nothing else runs on a device, so the ways need not take turns to be compared; all of them at once would not fit into
its memory.  A process is kept as long as it gives back what a way has used (works of a device see to that themselves):
a way that fails in a process that did others is tried again in one of its own.  Contests that share what is built for a
way are measured way by way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch

from lab.bench.cases import PeerBenchmark
from lab.bench.measure import NO_DEVICE, Failed, Worker, row_of

ColumnKey = tuple[str, str]
"""Benchmark and way."""
Measured = dict[str, Any]
"""{name, way, ms: samples, facts}, or {name, way, skipped: why}."""
LATER = "the time was up: another call goes on"


def in_order(case: PeerBenchmark, cases: Sequence[PeerBenchmark]) -> list[PeerBenchmark]:
    """The contests that are measured together with one: those that share with it, or itself.

    >>> a, b = (PeerBenchmark(name, "", lambda way, quick: None, (), (), shares="x") for name in "ab")
    >>> [case.name for case in in_order(b, [a, b])]
    ['a', 'b']
    """
    return [other for other in cases if other is case or (case.shares and other.shares == case.shares)]


def measured(
    cases: Sequence[PeerBenchmark], quick: bool, known: Collection[ColumnKey], late: Callable[[], bool]
) -> Iterator[Measured]:
    """The columns of several contests that are not known yet, as they come."""
    process = Process(quick)
    try:
        for case, way in _todo(cases, known):
            column: Measured = {"name": case.name, "way": way}
            if not (quick or torch.cuda.is_available()):
                yield column | {"skipped": NO_DEVICE}
            elif late():
                yield column | {"skipped": LATER}
            else:
                yield column | process.measured(case, way)
    finally:
        process.close()


def _todo(cases: Sequence[PeerBenchmark], known: Collection[ColumnKey]) -> Iterator[tuple[PeerBenchmark, str]]:
    """What is to be measured: contests in their order, those that share with one beside it, way by way."""
    done: set[str] = set()
    for case in cases:
        if case.name in done:
            continue
        together = in_order(case, cases)
        done |= {contest.name for contest in together}
        for way in dict.fromkeys(way for contest in together for way in contest.wanted()):
            for contest in together:
                if way in contest.wanted() and (contest.name, way) not in known:
                    yield contest, way


class Process:
    """The process that measures, which is another one after a failure."""

    def __init__(self, quick: bool) -> None:
        self.quick = quick
        self.worker: Worker | None = None

    def measured(self, case: PeerBenchmark, way: str) -> Measured:
        """One column; a failure where others were measured before is tried again alone."""
        while True:
            fresh = self.worker is None
            self.worker = self.worker or Worker(case, self.quick)
            try:
                return self._column(self.worker, case, way)
            except Failed as error:
                self.close()
                if fresh:
                    return {"skipped": f"it failed: {error}"}

    def _column(self, worker: Worker, case: PeerBenchmark, way: str) -> Measured:
        answer = worker.ask("make", way, case.name)
        if "skipped" in answer:
            return answer
        samples: list[float] = []
        began = time.perf_counter()
        while len(samples) < (2 if self.quick else case.rounds):
            if len(samples) >= 2 and time.perf_counter() - began > case.seconds:
                break
            samples.append(worker.ask("time", way, case.name)["ms"])
        facts = worker.ask("facts", way, case.name)["facts"]
        worker.ask("drop", way, case.name)
        return {"ms": [float(f"{sample:.5g}") for sample in samples], "facts": facts}

    def close(self) -> None:
        """End it."""
        if self.worker is not None:
            self.worker.close()
        self.worker = None


def rows(case: PeerBenchmark, columns: dict[ColumnKey, Measured]) -> list[dict[str, Any]]:
    """The rows of a contest, made of the columns that there are; those without ours say why."""
    own = {way: columns[case.name, way] for way in case.wanted() if (case.name, way) in columns}
    samples = {way: column["ms"] for way, column in own.items() if "ms" in column}
    facts = {way: {"facts": own[way]["facts"]} for way in samples}
    missing = {way: own.get(way, {}).get("skipped", LATER) for way in case.wanted() if way not in samples}
    return [row_of(case, way, samples, facts, missing) for way in case.ours]
