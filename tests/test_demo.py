"""The demo: every line it can run, the table it prints, the report it writes."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from isthmus import demo
from isthmus.report import Record

AUTO, SGD = next(iter(demo.RUNS)), next(name for name in demo.RUNS if name.startswith("dp_sgd"))
LINE = re.compile(r"^(\S.*?)\s+(\S+)\s+([01]\.\d{3})\s+(\S+)\s+(\S+)\s+(\d+\.\d\d)$", re.MULTILINE)


@pytest.fixture(autouse=True)
def threads() -> object:
    """The demo runs on one thread; others go on as they were."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def digits() -> demo.Digits:
    return demo._digits()


def test_the_parts_are_disjoint_and_within_the_public_bounds(digits: demo.Digits) -> None:
    parts = (digits.private, digits.public, digits.test)
    assert [len(y) for _, y in parts] == [1207, 50, 540]
    rows = np.concatenate([x for x, _ in parts])
    assert len(np.unique(rows, axis=0)) == len(rows) == 1797
    assert rows.min() == demo.PIXELS[0] and rows.max() == demo.PIXELS[1]
    assert all(set(y) == set(demo.CLASSES) for _, y in parts)


@pytest.mark.parametrize("name", demo.RUNS)
def test_every_run_keeps_its_epsilon(name: str, digits: demo.Digits, capsys: pytest.CaptureFixture[str]) -> None:
    row = demo._fitted(name, digits, 4.0, max_iter=3, **demo.RUNS[name](digits))
    promised = row.model.privacy_
    assert promised.private and 0.9 < promised.epsilon / 4.0 <= 1 and promised.delta == demo.DELTA
    assert row.numbers == row.model.result_.dims > 0 and 0 <= row.score <= 1
    assert row.model.algorithm == re.split("[,:]", name)[0]
    assert capsys.readouterr().out.startswith(name)


def test_at_least_four_algorithms_at_two_epsilons() -> None:
    assert len({re.split("[,:]", name)[0] for name in demo.RUNS}) >= 4 and len(demo.EPSILONS) >= 2


def test_the_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two of its runs: what is printed is what is in the report, and nothing is called private that is not."""
    demo.main(tmp_path / "out", epsilons=(4.0,), names=(AUTO, SGD))
    out = capsys.readouterr().out
    lines = {name: cells for name, *cells in LINE.findall(out)}
    epsilons = {"public labels alone (50 records)": "0", AUTO: "4", SGD: "4", "not private: comp_gd": "inf"}
    assert {name: cells[0] for name, cells in lines.items()} == epsilons
    scores = {name: float(cells[1]) for name, cells in lines.items()}
    assert scores[AUTO] > 0.85 and scores["not private: comp_gd"] > 0.9
    assert "Accuracies are of the held-out records, which are declared public" in out
    assert "differentially private with epsilon = 4 " in out
    together = float(re.search(r"together they spend ([\d.]+)\.\n", out)[1])  # type: ignore[index]
    assert 4.0 < together < 8.0
    assert [float(x) > 0.85 for x in re.findall(r"^(?:SGD|CompSGD).*? (0\.\d{3}) ", out, re.MULTILINE)] == [True] * 3

    record = Record.from_file(tmp_path / "out")
    assert record.private and record.privacy is not None
    assert record.privacy["epsilon"] == pytest.approx(together, rel=5e-3)
    names = ["public labels alone (50 records)", "auto, epsilon 4", "dp_sgd, epsilon 4", "not private"]
    assert [each["name"] for each in record.comparison] == names
    assert [round(each["score"], 3) for each in record.comparison] == list(scores.values())
    assert [each["epsilon"] for each in record.comparison] == [0.0, 4.0, 4.0, math.inf]
    assert record.metrics[0]["on"] == "540 held-out records, declared public"
    assert record.energy is not None and record.plan is not None and len(record.budget["curve"]) > 3
    assert record.energy["chosen"] is None
    assert f"epsilon = {together:g}" in record.warnings[0]
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert out.endswith(f"report: {tmp_path / 'out' / 'report.html'}\n")
    assert len(page) < 2_000_000 and "<h1>Handwritten digits, learned privately</h1>" in page


def test_long_words_are_broken_into_lines() -> None:
    text = demo._paragraphs("word " * 40 + "\n\n- " + "point " * 40, 60)
    assert max(map(len, text.split("\n"))) <= 60
    assert text.split("\n\n")[1].split("\n")[1].startswith("  point")
