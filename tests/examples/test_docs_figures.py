"""The code of docs/figures.md runs, in order, as one programme."""

import re
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[2] / "docs" / "figures.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


def test_every_block_of_the_figures_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    for number, block in enumerate(BLOCKS):
        exec(compile(block, f"docs/figures.md, block {number}", "exec"), names)
    out = capsys.readouterr().out
    assert len(BLOCKS) == 3 and "calibration error" in out and "income: number from" in out and "(intercept)" in out
