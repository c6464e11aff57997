"""`python -m lab bench`: the form of its results, the pages made of them, and that nothing in them is typed by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from lab.__main__ import main
from lab.bench import carry, kept, measure, page
from lab.bench.cases import EXPONENT, Growth, PeerBenchmark, Skipped, Work
from lab.bench.registry import BENCHMARKS
from lab.bench.worker import Works

ROOT = Path(__file__).parents[3]


def test_a_quick_run_keeps_its_figures(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    result = CliRunner().invoke(main, ["bench", "project-l1", "grows-project-d", "--quick", "--json", str(file)])
    assert result.exit_code == 0, result.output
    assert "project-l1" in result.stdout and "exponent" in result.stdout
    data = json.loads(file.read_text())
    assert data["form"] == measure.FORM and data["quick"] and data["machine"]["torch"] == torch.__version__
    ours, grown = data["rows"]
    beside = ours["peers"]["NumPy sort"]
    for median, low, high in (ours["ours_ms"], beside["ms"], beside["ratio"]):
        assert 0 < low <= median <= high
    assert ours["facts"]["largest difference"] < 1e-12 and ours["skipped"] == {} and ours["rounds"] == 2
    assert [point["size"] for point in grown["points"]] == [1000, 10_000] and isinstance(grown["slope"], float)
    text = page.page([kept.load(file)])
    assert "NumPy sort" in text and text.count("quick run") == 1
    readme = page.filled("<!-- bench:begin headline -->\n<!-- bench:end -->", [kept.load(file)])
    assert readme.count("quick run") == 1 and readme.count(" * |") == 1


def test_committed_tables_are_those_of_the_committed_figures() -> None:
    texts = page.texts(ROOT)
    named = {"benchmarks.md", "README.md", "engine.md", "codecs.md", "algorithms.md", "privacy.md"}
    assert {path.name for path in texts} >= named
    for path, text in texts.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run python -m lab bench --pages"


def test_missed_goals_are_listed_with_their_cause_and_met_ones_without(tmp_path: Path) -> None:
    case = BENCHMARKS["compressed-imdb"]
    (goal,) = case.goals
    row = {"name": case.name, "title": case.title, "ours": goal.ours, "ours_ms": [1.5, 1.4, 1.6]}
    for other, missed in ((1.0, True), (1.5, False)):
        file = tmp_path / "cpu.json"
        file.write_text(json.dumps([{**row, "peers": {goal.against: other}}]))
        text = page.page([kept.load(file)])
        assert (goal.cause in text) is missed and ("1 of 1 goals were met" in text) is not missed


def test_memory_is_asked_for_beside_a_peer(tmp_path: Path) -> None:
    case = BENCHMARKS["device-gpt-tf32"]
    peers = {"plain torch": {"ms": 4.0, "facts": {"peak GiB": 2.0}}}
    row = {"name": case.name, "ours": "no sketch", "ours_ms": 4.0, "facts": {"peak GiB": 3.0}, "peers": peers}
    (memory,) = (each for each in kept.verdicts([kept.whole(row)]) if each.goal.fact)
    assert memory.figure == 1.5 and not memory.met and memory.label.endswith("no sketch / plain torch, peak GiB")
    assert not [each for each in kept.verdicts([kept.whole(row | {"facts": {}})]) if each.goal.fact]


def test_rows_of_other_machines_may_be_short(tmp_path: Path) -> None:
    file = tmp_path / "h200.json"
    facts = {"name": "device-new", "ours_ms": 6.0, "peers": {"plain": 4.0}, "goal": 1.25, "note": "One product more."}
    file.write_text(json.dumps([facts]))
    text = page.page([kept.load(file)])
    assert "## H200" in text and "| 6 | plain | 4 | 1.5 | 1.25: missed |" in text and "Cause: One product more." in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_what_cannot_run_is_skipped_with_the_reason() -> None:
    (row,) = carry.carry_out([BENCHMARKS["device-noise"]], False, None, progress=False).report["rows"]
    assert set(row["skipped"].values()) == {measure.NO_DEVICE}
    assert kept.skipped([kept.KeptRun("", "", {}, [kept.whole(row)])]) == {measure.NO_DEVICE: ["device-noise"]}

    def build(way: str, quick: bool) -> Work:
        if way == "absent":
            import opacus_that_is_not_there  # noqa: F401
        raise Skipped("for a reason")

    works = Works(PeerBenchmark("x-y", "", build, ("ours",), ("absent",)), quick=True)
    assert works.make("absent") == {"skipped": "opacus_that_is_not_there is not installed"}
    assert works.make("ours") == {"skipped": "for a reason"}


def test_goals_name_ways_that_are_there() -> None:
    for name, case in BENCHMARKS.items():
        assert name.partition("-")[0] in {*page.FAMILIES, "grows"}
        for goal in case.goals:
            if isinstance(case, Growth):
                assert goal.against == EXPONENT
            else:
                assert goal.ours in ("", *case.ours)
                assert goal.against in case.peers or (goal.against == "bits a number" and not goal.fact)
    assert all(own in BENCHMARKS[name].ways(False) for name, own in page.HEADLINES)


def test_bench_lists_and_names_what_is_missing() -> None:
    assert "project-l1 " in CliRunner().invoke(main, ["bench", "--list"]).output
    result = CliRunner().invoke(main, ["bench", "worse"])
    assert result.exit_code == 2
    assert "name='worse' is not allowed: choose a benchmark or a family: step-mlp" in result.output
