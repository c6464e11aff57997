"""What `python -m lab reproduce` does: all runs of the chosen experiments, then each one's plot, bands and verdict."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isthmus import datasets
from isthmus.base.notebook import bar as progress_bar
from lab.reproduce import bands, figures, runner
from lab.reproduce.experiment import Experiment, Judgement, Results


@dataclass(frozen=True)
class Request:
    """What to run, how, and where it goes."""

    experiments: Sequence[Experiment]
    scale: str
    seeds: Sequence[int]
    out: Path
    device: str = "cpu"
    workers: int = 1


@dataclass(frozen=True)
class Finished:
    """One experiment after its runs."""

    experiment: Experiment
    results: Results
    judgement: Judgement
    checked: list[bands.Checked] | None
    seconds: float
    """Of all its runs together, on one thread each."""
    machines: list[dict[str, Any]]
    """Where they ran, each once."""

    @property
    def outside(self) -> list[bands.Checked]:
        """Numbers that left their bands."""
        return [figure for figure in self.checked or [] if not figure.holds]

    def line(self) -> str:
        """One line for the screen."""
        total = len(self.checked or [])
        within = f"{total - len(self.outside)} of {total} within bands" if total else "no bands yet"
        return f"{self.experiment.name:28} {self.judgement.kind:15} {within:28} {self.seconds:7.1f} s"


def missing(experiment: Experiment) -> list[str]:
    """Data sets that are not here."""
    return [name for name in experiment.data if not datasets.available(name)]


def carry_out(plan: Request, say: Callable[[str], None], progress: bool = True) -> list[Finished]:
    """Run everything that is not done yet; each experiment is written when its last run has ended."""
    ready = [candidate for candidate in plan.experiments if not missing(candidate)]
    for candidate in plan.experiments:
        if candidate not in ready:
            absent = ", ".join(missing(candidate))
            say(f"{candidate.name} is left out: ISTHMUS_DATA, the folder of data sets, has no {absent}.")
    todo = {candidate.name: runner.jobs(candidate, plan.scale, plan.seeds, plan.device) for candidate in ready}
    lines: dict[str, list[Any]] = {name: [] for name in todo}
    finished: dict[str, Finished] = {}
    every = [job for jobs in todo.values() for job in jobs]
    with progress_bar(len(every), None if progress else False, unit="run") as bar:
        for job, line in runner.run(every, plan.out / plan.scale, plan.workers):
            bar.update()
            lines[job.name].append((job, line))
            if len(lines[job.name]) == len(todo[job.name]):
                experiment = next(candidate for candidate in ready if candidate.name == job.name)
                finished[job.name] = finish(experiment, plan, lines[job.name])
                say(finished[job.name].line())
    return [finished[candidate.name] for candidate in ready]


def finish(experiment: Experiment, plan: Request, lines: list[Any]) -> Finished:
    """Judge, check, draw and write one experiment."""
    results = runner.results_of(sorted(lines, key=lambda pair: _place(experiment, plan, pair[0])))
    checked = bands.check(experiment, results, plan.scale)
    seconds, machines = sum(line["took"] for _, line in lines), [line["machine"] for _, line in lines]
    distinct = [machine for i, machine in enumerate(machines) if machine not in machines[:i]]
    outcome = Finished(experiment, results, experiment.judged(results), checked, seconds, distinct)
    folder = plan.out / plan.scale
    figures.draw(experiment, results, folder / f"{experiment.name}.svg")
    (folder / f"{experiment.name}.json").write_text(
        json.dumps(record(outcome, plan), indent=1) + "\n", encoding="utf-8"
    )
    return outcome


def record(done: Finished, plan: Request) -> dict[str, Any]:
    """Everything that was measured, with seeds and versions."""
    experiment = done.experiment
    return {
        "name": experiment.name,
        "scale": plan.scale,
        "seeds": list(plan.seeds),
        "config": {key: str(value) for key, value in experiment.config(plan.scale).items()},
        "machines": done.machines,
        "cpu_seconds": done.seconds,
        "verdict": {"kind": done.judgement.kind, "why": done.judgement.why},
        "metrics": bands.summary(experiment, done.results),
        "shown": _unbanded(done),
    }


def expect(done: Finished, plan: Request, pages: Path) -> None:
    """Keep this run as what is expected from now on, and its plot for the page."""
    bands.store(done.experiment.name, plan.scale, record(done, plan))
    figures.draw(done.experiment, done.results, pages / "reproduction" / f"{done.experiment.name}-{plan.scale}.svg")


def _unbanded(outcome: Finished) -> dict[str, float]:
    means = {}
    for cell in outcome.results.cells:
        for name in outcome.experiment.unbanded:
            if any(name in run.metrics for run in outcome.results.of(**cell)):
                means[f"{runner.key_of(cell)} / {name}"] = outcome.results.mean(name, **cell)
    return means


def _place(experiment: Experiment, plan: Request, job: runner.Job) -> int:
    """Where a cell stands in its experiment."""
    keys = [runner.key_of(cell) for cell in experiment.cells(experiment.config(plan.scale))]
    return keys.index(runner.key_of(job.cell))
