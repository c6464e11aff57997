"""Every code block of README and docs runs by itself, as it stands: in a fresh namespace, in an empty folder."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from pages import Block, blocks

SLOW = "ISTHMUS_SLOW" in os.environ


@pytest.mark.parametrize("block", list(blocks("python")), ids=str)
def test_python_runs_by_itself(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in block.needs:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    if block.slow and not SLOW:
        pytest.skip("slow: make docs-test runs it")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    module = ModuleType("__main__")  # what a script is: declared classes can be found again, workers can be started
    monkeypatch.setitem(sys.modules, "__main__", module)
    exec(compile("\n" * block.line + block.code, block.page, "exec", dont_inherit=True), vars(module))
