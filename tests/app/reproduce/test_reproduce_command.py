"""The frame around the experiments: runs are kept and resumed, bands can fail, the page follows from the files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from isthmus.app.cli import main
from isthmus.app.reproduce import Cell, Experiment, Judgement, Observed, Results, RunSetting, bands, figures, page
from isthmus.app.reproduce import paper_000 as package


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
    kept = Path("reproduced/small/000-trial.jsonl")
    kept.write_text("\n".join(kept.read_text().splitlines()[:3]) + '\n{"cut')
    invoke("000-trial", "--seeds", "2")
    assert len(log.read_text().splitlines()) == 5
    stored = json.loads(Path("reproduced/small/000-trial.json").read_text())
    assert stored["seeds"] == [1000, 1001] and set(stored["machines"][0]["versions"]) >= {"torch", "isthmus"}
    assert Path("reproduced/small/000-trial.svg").read_text().startswith("<?xml")
    trial(shift=0.5)  # other numbers in the configuration: nothing kept answers for it
    invoke("000-trial")
    assert len(log.read_text().splitlines()) == 7


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
