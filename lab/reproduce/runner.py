"""Run an experiment's cells on several processes; what is done is kept line by line, and not done again."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from lab.reproduce.experiment import Cell, Experiment, Observed, Results, RunSetting, fingerprint, key_of
from lab.reproduce.sources import code_of

Identity = tuple[str, str, int, str, str, str]
KEYS = ("name", "cell", "seed", "config", "device", "code")
"""What a line says of its `identity`."""
VERSIONS = ("torch", "numpy", "scipy", "scikit-learn", "dp-accounting")


@dataclass(frozen=True)
class Job:
    """One run: everything a worker needs to know."""

    paper: str
    name: str
    cell: Cell
    setting: RunSetting


def jobs(experiment: Experiment, scale: str, seeds: Sequence[int], device: str) -> list[Job]:
    """Every cell with every seed."""
    config = experiment.config(scale)
    cells = experiment.cells(config)
    return [
        Job(experiment.paper, experiment.name, cell, RunSetting(config, s, device)) for s in seeds for cell in cells
    ]


def do(job: Job) -> dict[str, Any]:
    """One run, on one thread, as a line of JSON; the experiment is looked up by name, for other processes."""
    torch.set_num_threads(1)
    experiment = _experiment(job)
    began = time.perf_counter()
    measured = experiment.run(job.cell, job.setting)
    took = time.perf_counter() - began
    return _line(job, measured) | {"took": took, "machine": machine(job.setting.device)}


def run(todo: Sequence[Job], folder: Path, workers: int) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Do what is not done yet; yields each job with its line as it ends, done ones first."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = done(folder)
    remaining = []
    for job in todo:
        line = lines.get(identity(job))
        if line is None:
            remaining.append(job)
        else:
            yield job, line
    if workers == 1:
        for job in remaining:
            yield job, _keep(folder, job, do(job))
        return
    yield from _in_processes(remaining, folder, workers)


def _in_processes(remaining: Sequence[Job], folder: Path, workers: int) -> Iterator[tuple[Job, dict[str, Any]]]:
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting: dict[Future[dict[str, Any]], Job] = {pool.submit(do, job): job for job in remaining}
        try:
            for future in as_completed(waiting):
                yield waiting[future], _keep(folder, waiting[future], future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def results_of(lines: Sequence[tuple[Job, dict[str, Any]]]) -> Results:
    """In the order of cells and seeds, whatever the order in which they ended."""
    ordered = sorted(lines, key=lambda pair: pair[0].setting.seed)
    return Results((job.cell, job.setting.seed, Observed(line["metrics"], line["curves"])) for job, line in ordered)


def identity(job: Job) -> Identity:
    """What makes a kept line the answer to this job: the same numbers, kind of device and code of the experiment.

    The library's own code is not part of it: its version stands beside every line, as torch's does.
    """
    config, code = fingerprint(job.setting.config), code_of(_experiment(job).run)
    return job.name, key_of(job.cell), job.setting.seed, config, job.setting.device.partition(":")[0], code


def _experiment(job: Job) -> Experiment:
    package = import_module(f"lab.reproduce.paper_{job.paper}")
    experiment: Experiment = next(candidate for candidate in package.EXPERIMENTS if candidate.name == job.name)
    return experiment


def done(folder: Path) -> dict[Identity, dict[str, Any]]:
    """The lines that are kept in a folder; what a kill cut off, or does not say all of `KEYS`, is left out."""
    lines = {}
    for path in sorted(folder.glob("*.jsonl")):
        for text in path.read_text(encoding="utf-8").splitlines():
            try:
                line = json.loads(text)
                name, cell, seed, config, device, code = (line[key] for key in KEYS)
                lines[(name, cell, seed, config, device, code)] = line
            except (ValueError, KeyError, TypeError):
                continue
    return lines


def machine(device: str) -> dict[str, Any]:
    """Versions and the machine, as they are recorded beside every run."""
    used = {name: version_of(name) for name in (*VERSIONS, "isthmus")}
    name = torch.cuda.get_device_name() if device.startswith("cuda") else platform.machine()
    return {"python": platform.python_version(), "versions": used, "device": name, "cores": os.cpu_count()}


def version_of(name: str) -> str:
    """Of a package, or that it runs from its sources.

    >>> version_of("no-such-package")
    'not installed'
    """
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _line(job: Job, measured: Observed) -> dict[str, Any]:
    curves = {key: (list(map(float, x)), list(map(float, y))) for key, (x, y) in measured.curves.items()}
    metrics = {key: float(value) for key, value in measured.metrics.items()}
    return dict(zip(KEYS, identity(job), strict=True)) | {"metrics": metrics, "curves": curves}


def _keep(folder: Path, job: Job, line: dict[str, Any]) -> dict[str, Any]:
    """Append in one write, and say so to the disk: a killed run loses at most the line it was writing."""
    with (folder / f"{job.name}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())
    return line
