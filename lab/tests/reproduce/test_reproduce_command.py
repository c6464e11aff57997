"""The frame around the experiments: runs are kept and resumed, bands can fail, the page follows from the files."""

from __future__ import annotations

import dataclasses
import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from lab.__main__ import main
from lab.reproduce import (
    Cell,
    Experiment,
    Judgement,
    Observed,
    Results,
    RunSetting,
    all_experiments,
    bands,
    figures,
    page,
    sources,
)
from lab.reproduce import paper_000 as package


def run(cell: Cell, setting: RunSetting) -> Observed:
    """A noisy number around m, and a count of calls."""
    with Path(setting.config["log"]).open("a") as file:
        file.write(f"{cell['m']} {setting.seed}\n")
    rng = np.random.default_rng([cell["m"], setting.seed])
    loss = cell["m"] + setting.config["shift"] + 0.1 * rng.standard_normal()
    return Observed({"loss": loss, "seconds": 1.0}, {"loss": ([1.0, 2.0], [loss, loss / 2])})


def judge(results: Results) -> Judgement:
    better = results.mean("loss", m=1) < results.mean("loss", m=2)
    return Judgement("holds" if better else "fails", f"One has {results.mean('loss', m=1):.2f}.")


def experiment(log: Path, shift: float = 0.0) -> Experiment:
    return Experiment(
        name="000-trial", item="Figure 0", title="a trial", claim="One is less than two.",
        cells=lambda config: [{"m": m} for m in (1, 2)], run=run, verdict=judge,
        plot=figures.curves("loss", "step", "loss"), small={"log": str(log), "shift": shift}, full={},
    )  # fmt: skip


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The trial in place of paper 000's experiments, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bands, "FOLDER", tmp_path / "expected")

    def use(shift: float = 0.0) -> Path:
        monkeypatch.setattr(package, "EXPERIMENTS", (experiment(tmp_path / "log", shift),))
        return tmp_path / "log"

    return use


def invoke(*arguments: str, code: int = 0) -> str:
    answer = CliRunner().invoke(
        main, ["reproduce", *arguments, *(["--workers", "1"] if arguments[0] != "--list" else [])]
    )
    assert answer.exit_code == code, answer.output
    return answer.output


def test_a_run_is_kept_and_a_second_one_goes_on(trial: Any) -> None:
    log = trial()
    first = invoke("000-trial", "--seeds", "2")
    assert "holds" in first and len(log.read_text().splitlines()) == 4
    path = Path("reproduced/small/000-trial.jsonl")
    path.write_text("\n".join(path.read_text().splitlines()[:3]) + '\n{"cut')
    invoke("000-trial", "--seeds", "2")
    assert len(log.read_text().splitlines()) == 5
    stored = json.loads(Path("reproduced/small/000-trial.json").read_text())
    assert stored["seeds"] == [1000, 1001] and set(stored["machines"][0]["versions"]) >= {"torch", "isthmus"}
    assert Path("reproduced/small/000-trial.svg").read_text().startswith("<?xml")
    trial(shift=0.5)  # other numbers in the configuration: nothing kept answers for it
    invoke("000-trial")
    assert len(log.read_text().splitlines()) == 7


MODULE = """
from lab.reproduce.measures import log10
SIZE = 3
def run(cell, setting):
    "A run."
    return helper(cell) + log10(SIZE)
def helper(cell):
    return cell["m"]  # as it is
def verdict(results):
    return "holds"
"""


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ('"holds"', '"fails"', True),
        ('"A run."', '"Words."', True),
        ("# as it is", "", True),
        ('cell["m"]', 'cell["m"] + 1', False),
        ("SIZE = 3", "SIZE = 4", False),
        ("import log10", "import slope as log10", False),
        ("SIZE = 3", "SIZE = 3\nprint(SIZE)", False),
    ],
)
def test_other_code_of_a_run_is_other_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, same: bool
) -> None:
    monkeypatch.syspath_prepend(tmp_path)

    def code(name: str, text: str) -> str:
        (tmp_path / f"{name}.py").write_text(text)
        seen: dict[tuple[str, str], str] = {}
        sources._reach(name, "run", seen)
        return "\n".join(text for _, text in sorted(seen.items(), key=lambda pair: pair[0][1]))

    assert old in MODULE
    before, after = (f"made_{tmp_path.name.replace('-', '_')}_{which}" for which in "ab")
    assert (code(before, MODULE) == code(after, MODULE.replace(old, new))) == same


def test_an_experiment_without_its_data_is_refused_before_anything_runs(
    trial: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = trial()
    monkeypatch.setenv("ISTHMUS_DATA", str(tmp_path / "nothing"))
    (ready,) = package.EXPERIMENTS
    lacking = dataclasses.replace(ready, name="000-lacking", data=("mnist",))
    monkeypatch.setattr(package, "EXPERIMENTS", (ready, lacking))
    answer = invoke("000", code=2)
    assert "000-lacking needs mnist" in answer and "ISTHMUS_DATA" in answer and not log.exists()
    for number in range(1, 5):  # of everything, what can be run is run
        monkeypatch.setattr(importlib.import_module(f"lab.reproduce.paper_00{number}"), "EXPERIMENTS", ())
    answer = invoke("--all")
    assert "000-lacking is left out" in answer and len(log.read_text().splitlines()) == 2
    monkeypatch.setattr(package, "EXPERIMENTS", (lacking,))
    assert "000-lacking needs mnist" in invoke("--all", code=2)


def test_lines_of_other_code_or_another_device_answer_for_nothing(trial: Any) -> None:
    log = trial()
    invoke("000-trial")
    path = Path("reproduced/small/000-trial.jsonl")
    line, *rest = [json.loads(text) for text in path.read_text().splitlines()]
    stale: list[Any] = [line | {"code": "0" * 12}, line | {"device": "cuda"}, {**line, "code": ["0"]}, *rest]
    path.write_text("".join(json.dumps(each) + "\n" for each in stale) + "[1]\n")
    invoke("000-trial")
    assert log.read_text().split()[::2] == ["1", "2", "1"]
    assert line["code"] == sources.code_of(run) != sources.code_of(judge)


def test_every_experiment_has_code() -> None:
    codes = {experiment.name: sources.code_of(experiment.run) for experiment in all_experiments().values()}
    assert codes["000-table-1"] != codes["000-table-1-private"]
    assert codes["004-figures-5a-9"] != codes["004-figures-3a-4a-7"]  # lambdas: the whole module, with what it imports


def test_what_was_not_measured_is_outside_its_band_and_outliers_widen_no_other(trial: Any) -> None:
    trial()
    invoke("000-trial", "--seeds", "5", "--seed", "0", "--expect")
    path = bands.FOLDER / "small" / "000-trial.json"
    stored = json.loads(path.read_text())
    stored["metrics"]["m=3 / loss"] = {"mean": 1e-9, "sd": 1.0, "seeds": 5}
    path.write_text(json.dumps(stored))
    answer = invoke("000-trial", code=1)
    assert "2 of 3 within bands" in answer and "m=3 / loss: nan" in answer
    spread = bands.deviations(stored["metrics"])
    assert spread["m=2 / loss"] < 1 == spread["m=3 / loss"]


def test_a_number_that_no_seed_moves_agrees_with_itself_after_its_file_was_rounded(trial: Any, tmp_path: Path) -> None:
    trial()
    own, fixed = experiment(tmp_path / "log"), 10.0000449  # the file says 10.0
    results = Results([({"m": 1}, seed, Observed({"loss": fixed}, {})) for seed in range(5)])
    bands.store(own.name, "small", {"seeds": [*range(5)], "metrics": bands.summary(own, results)})
    for value, held in ((fixed, True), (fixed * (1 + 3e-5), False), (fixed * (1 - 3e-5), False)):
        checked = bands.check(own, Results([({"m": 1}, 9, Observed({"loss": value}, {}))]), "small")
        assert [row.holds for row in checked or []] == [held]


def test_no_verdict_on_what_is_no_number(tmp_path: Path) -> None:
    runs = [({"m": m}, 0, Observed({"loss": loss})) for m, loss in ((1, 1.0), (2, float("nan")))]
    assert experiment(tmp_path).judged(Results(runs)).kind == "not comparable"
    assert (
        experiment(tmp_path).judged(Results([(c, s, Observed({"loss": float(c["m"])})) for c, s, _ in runs])).kind
        == "holds"
    )


def test_bands_hold_for_other_seeds_and_fail_for_other_numbers(trial: Any) -> None:
    trial()
    invoke("000-trial", "--seeds", "5", "--seed", "0", "--expect")
    assert "2 of 2 within bands" in invoke("000-trial")
    trial(shift=1.0)
    assert "outside its band: 000-trial, m=1 / loss" in invoke("000-trial", code=1)


def test_the_page_is_written_from_the_files(trial: Any) -> None:
    trial()
    assert "not run yet" in page.overview({"000-trial": package.EXPERIMENTS[0]})
    invoke("000-trial", "--seeds", "5", "--seed", "0", "--expect")
    stored = bands.load("000-trial", "small")
    assert stored is not None
    text = page.section(package.EXPERIMENTS[0])
    assert "One is less than two." in text and stored["verdict"]["why"] in text
    assert f"{stored['metrics']['m=2 / loss']['mean']:.4g}" in text and "| 1 |" in text
    assert Path("docs/reproduction/000-trial-small.svg").exists()


def test_the_committed_page_is_what_the_committed_files_say() -> None:
    committed = Path(__file__).parents[3] / "docs" / "reproduction.md"
    assert committed.read_text(encoding="utf-8") == page.page()
    assert "not run yet" not in committed.read_text(encoding="utf-8")


def test_what_is_asked_for_must_exist(trial: Any) -> None:
    trial()
    assert "000-trial" in invoke("--list")
    assert "choose a paper" in invoke("nonsense", code=2)
    assert "Name the experiments" in invoke("--all", "000-trial", code=2)
    assert "Name the experiments" in invoke("--seeds", "2", code=2)
