"""Run benchmarks: each in processes of its own, its ways in turn, so that a busy moment hits all of them."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lab.bench.cases import Benchmark, Growth, PeerBenchmark
from lab.bench.registry import HOMES

FORM = 1
NO_DEVICE = "there is no CUDA device"
PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "opacus", "cvxpy", "clarabel", "dp-accounting")


class Failed(Exception):
    """A worker ended, with the end of what it wrote."""


class Worker:
    """A process that builds and times works of one benchmark, or of others of its family."""

    def __init__(self, benchmark: Benchmark, quick: bool) -> None:
        threads = str(1 if quick else benchmark.threads or os.cpu_count() or 1)
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        self.name, self.words = benchmark.name, tempfile.TemporaryFile("w+")
        arguments = (HOMES[benchmark.name], "quick" if quick else "whole", threads)
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "lab.bench.worker", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.words,
            text=True,
            env=os.environ | dict.fromkeys(names, threads),
        )

    def ask(self, verb: str, way: str, name: str = "") -> dict[str, Any]:
        """Give an order and wait for the answer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps([verb, name or self.name, way]) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self.process.wait()
            raise Failed((self._last_words() or f"exit status {self.process.returncode}")[:300])
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        """The last line that the process wrote, which names its error; of one that hung, where it was."""
        self.words.seek(0)
        lines = [line.strip() for line in self.words.read().splitlines() if line.strip()]
        hung = next((i for i, line in enumerate(lines) if line.startswith("Timeout (")), None)
        return "; ".join(lines[-1:] if hung is None else lines[hung : hung + 5])

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.words):
            try:
                stream.close()
            except BrokenPipeError:
                pass


def run(benchmark: Benchmark, quick: bool = False) -> list[dict[str, Any]]:
    """The rows of one benchmark; those of a device are measured by `columns`."""
    rows = _compare(benchmark, quick) if isinstance(benchmark, PeerBenchmark) else [_grow(benchmark, quick)]
    return [row | {"quick": True} for row in rows] if quick else rows


def _compare(case: PeerBenchmark, quick: bool) -> list[dict[str, Any]]:
    """One row for each of our ways."""
    ways = case.ways(quick)
    apart = case.apart and not quick
    workers: dict[str, Worker] = {}
    skipped: dict[str, str] = {}
    try:
        for way in ways:
            workers[way] = Worker(case, quick) if apart or not workers else workers[ways[0]]
            try:
                answer = workers[way].ask("make", way)
            except Failed as error:
                if not apart:
                    raise
                answer = {"skipped": f"it failed: {error}"}
            if "skipped" in answer:
                skipped[way] = answer["skipped"]
        there = [way for way in ways if way not in skipped]
        samples = _samples(case, {way: workers[way] for way in there}, 2 if quick else case.rounds)
        facts_by_way = {way: workers[way].ask("facts", way) for way in there}
    finally:
        for worker in set(workers.values()):
            worker.close()
    rows = [row_of(case, way, samples, facts_by_way, skipped) for way in case.ours]
    return [row | {"mib": _peaks(row, facts_by_way)} if apart and "peers" in row else row for row in rows]


def _samples(case: Benchmark, workers: dict[str, Worker], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each way, the ways in turn, every other round backwards."""
    times: dict[str, list[float]] = {way: [] for way in workers}
    began = time.perf_counter()
    for number in range(rounds):
        if number >= 2 and time.perf_counter() - began > case.seconds:
            break
        for way in list(workers)[:: -1 if number % 2 else 1]:
            times[way].append(workers[way].ask("time", way)["ms"])
    return times


def row_of(case: PeerBenchmark, own: str, samples: Any, reports: Any, skipped: dict[str, str]) -> dict[str, Any]:
    """Ours beside every peer."""
    row: dict[str, Any] = {"name": case.name, "title": case.title, "ours": own, "threads": case.threads}
    row["skipped"] = {way: why for way, why in skipped.items() if way == own or way in case.beside(own)}
    if own in samples:
        row |= {"ours_ms": spread(samples[own]), "facts": reports[own]["facts"], "rounds": len(samples[own])}
        row["peers"] = {
            peer: {
                "ms": spread(samples[peer]),
                "ratio": spread([a / b for a, b in zip(samples[own], samples[peer], strict=False)]),
                "facts": reports[peer]["facts"],
            }
            for peer in case.beside(own)
            if peer in samples
        }
    return row


def _peaks(row: dict[str, Any], reports: dict[str, Any]) -> dict[str, int]:
    """Peak memory of processes that did one way each, in MiB."""
    return {way: round(reports[way]["peak"]) for way in (row["ours"], *row["peers"])}


def _grow(case: Growth, quick: bool) -> dict[str, Any]:
    """Times at every size, and the slope of their logarithms."""
    row: dict[str, Any] = {"name": case.name, "title": case.title, "variable": case.variable, "threads": case.threads}
    points: list[dict[str, Any]] = []
    skipped = {}
    worker = Worker(case, quick)
    try:
        for way in case.ways(quick):
            answer = worker.ask("make", way)
            if "skipped" in answer:
                skipped[way] = answer["skipped"]
                continue
            times = _samples(case, {way: worker}, 2 if quick else case.rounds)[way]
            worker.ask("drop", way)
            points.append({"size": int(way), "ms": spread(times)})
    finally:
        worker.close()
    row |= {"points": points, "skipped": skipped}
    if len(points) > 1:
        row |= {"slope": slope(points), "last_slope": slope(points[-3:])}
    return row


def slope(points: list[dict[str, Any]]) -> float:
    """The fitted exponent: the slope of log time over log size.

    >>> slope([{"size": s, "ms": [2.0 * s**2, 0, 0]} for s in (10, 100, 1000)])
    2.0
    """
    sizes = np.log([point["size"] for point in points])
    times = np.log([point["ms"][0] for point in points])
    return round(float(np.polyfit(sizes, times, 1)[0]), 4)


def spread(values: Any) -> list[float]:
    """Median, lower and upper quartile, to five digits.

    >>> spread([4.0, 1.0, 2.0, 3.0, 5.0])
    [3.0, 2.0, 4.0]
    """
    return [float(f"{quantile:.5g}") for quantile in np.quantile(values, (0.5, 0.25, 0.75))]


def report(rows: Iterable[dict[str, Any]], seconds: float, quick: bool) -> dict[str, Any]:
    """What is kept as JSON."""
    return {
        "form": FORM,
        "quick": quick,
        "when": time.strftime("%Y-%m-%d"),
        "seconds": round(seconds, 1),
        "machine": machine(),
        "rows": list(rows),
    }


def machine() -> dict[str, str]:
    """Processor, cores, versions: what a figure belongs to."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        cpu = (names or [cpu])[0]
    versions = {"processor": cpu, "processors": str(os.cpu_count()), "python": platform.python_version()}
    if torch.cuda.is_available():
        versions["device"] = torch.cuda.get_device_name()
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions
