"""A run of several benchmarks: which, in what order, how long, and what is kept."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from isthmus.base import validate
from lab.bench import columns
from lab.bench.cases import Benchmark, PeerBenchmark
from lab.bench.measure import NO_DEVICE, Failed, run, spread
from lab.bench.registry import BENCHMARKS
from lab.bench.results import BenchResults


def chosen(names: Sequence[str]) -> list[Benchmark]:
    """Benchmarks by name or by family (what stands before a dash); all without names.

    >>> [case.name for case in chosen(["project"])]
    ['project-l1', 'project-simplex']
    >>> chosen(["nonsense"])
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: name='nonsense' is not allowed: choose a benchmark or a family: ...
    """
    for name in names:
        known = any(name in (benchmark, benchmark.partition("-")[0]) for benchmark in BENCHMARKS)
        validate.check(known, "name", name, f"choose a benchmark or a family: {', '.join(BENCHMARKS)}")
    wanted = set(names)
    return [benchmark for name, benchmark in BENCHMARKS.items() if not names or wanted & {name, name.partition("-")[0]}]


@dataclass(frozen=True)
class Carried:
    """What a run has come to: what is kept as JSON, why some failed, and what it had no time for."""

    report: dict[str, Any]
    failed: dict[str, str]
    left: list[str]


def carry_out(
    benchmarks: Sequence[Benchmark],
    quick: bool,
    keep: str | Path | None,
    progress: bool,
    minutes: float | None = None,
    again: bool = False,
) -> Carried:
    """Run them one after the other; the file is written after each one, on a device after each way.

    keep       a file; what it has from the same code and machine is not measured again, unless `again`
    minutes    nothing begins after so many
    """
    results, end = BenchResults(keep, quick), None if minutes is None else time.monotonic() + 60 * minutes
    results.forget(benchmarks if again else ())
    late: Callable[[], bool] = lambda: end is not None and time.monotonic() >= end  # noqa: E731
    failed: dict[str, str] = {}
    left: list[str] = []
    on_device = [case for case in benchmarks if isinstance(case, PeerBenchmark) and case.device]
    todo = [case for case in benchmarks if case not in on_device and not results.has(case)]
    with tqdm(todo, disable=not progress, unit="benchmark", leave=False) as bar:
        for benchmark in bar:
            bar.set_postfix_str(benchmark.name)
            if late():
                left.append(benchmark.name)
                continue
            try:
                results.add(benchmark, run(benchmark, quick))
            except Failed as error:
                failed[benchmark.name] = str(error)
    left += _carry_columns(on_device, results, late, progress)
    return Carried(results.report(case.name for case in benchmarks), failed, left)


def _carry_columns(
    cases: Sequence[PeerBenchmark], results: BenchResults, late: Callable[[], bool], progress: bool
) -> list[str]:
    """Measure the contests of a device, and say each figure; the names of those that have ways left."""
    left: dict[str, None] = {}
    by_name = {case.name: case for case in cases}
    for column in columns.measured(cases, results.quick, results.known(), late):
        results.add_column(by_name[column["name"]], column)
        words = column.get("skipped") or f"{spread(column['ms'])[0]:.4g} ms"
        if words == columns.LATER:
            left[column["name"]] = None
        elif progress and words != NO_DEVICE:
            print(f"{column['name']}, {column['way']}: {words}", file=sys.stderr, flush=True)
    return list(left)
