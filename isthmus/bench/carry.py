"""A run of several benchmarks: which, in what order, and what is kept."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from isthmus.base import validate
from isthmus.bench.cases import Benchmark
from isthmus.bench.measure import Failed, report, run
from isthmus.bench.registry import BENCHMARKS


def chosen(names: Sequence[str]) -> list[Benchmark]:
    """Benchmarks by name or by family (what stands before a dash); all without names.

    >>> [each.name for each in chosen(["project"])]
    ['project-l1', 'project-simplex']
    >>> chosen(["nonsense"])
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: name='nonsense' is not allowed: choose a benchmark or a family: ...
    """
    for name in names:
        known = any(name in (each, each.partition("-")[0]) for each in BENCHMARKS)
        validate.check(known, "name", name, f"choose a benchmark or a family: {', '.join(BENCHMARKS)}")
    wanted = set(names)
    return [each for name, each in BENCHMARKS.items() if not names or wanted & {name, name.partition("-")[0]}]


def carry_out(
    benchmarks: Sequence[Benchmark], quick: bool, keep: str | Path | None, progress: bool
) -> tuple[dict[str, Any], dict[str, str]]:
    """Run them one after the other; (what is kept as JSON, why some failed).  The file is written after each one."""
    began, rows, failed = time.perf_counter(), [], {}
    with tqdm(benchmarks, disable=not progress, unit="benchmark", leave=False) as bar:
        for benchmark in bar:
            bar.set_postfix_str(benchmark.name)
            try:
                rows += run(benchmark, quick)
            except Failed as error:
                failed[benchmark.name] = str(error)
            if keep is not None:
                summary = report(rows, time.perf_counter() - began, quick)
                Path(keep).write_text(json.dumps(summary, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return report(rows, time.perf_counter() - began, quick), failed
