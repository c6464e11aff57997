"""Every code block of README and docs runs by itself, as it stands: in a fresh namespace, in an empty folder."""

import importlib.util
import os
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from click.testing import CliRunner
from pages import Block, blocks

from isthmus.cli import main

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


def commands(block: Block) -> list[str]:
    """The lines of a shell block, those that end in a backslash joined to the next."""
    lines = block.code.replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


SHELL = {page: [block for block in blocks("bash") if block.page == page] for page in {b.page for b in blocks("bash")}}


@pytest.mark.parametrize("page", sorted(SHELL))
def test_commands_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`isthmus` commands of a page, in order and in one folder, after the block of Python that makes its files."""
    monkeypatch.chdir(tmp_path)
    for block in [each for each in blocks("python") if each.page == page][:1]:
        exec(compile(block.code, page, "exec", dont_inherit=True), {})
    for line in [line for block in SHELL[page] for line in commands(block)]:
        words = shlex.split(line, comments=True)
        if words[0] != "isthmus":
            continue
        words, file = (words[: words.index(">")], words[words.index(">") + 1]) if ">" in words else (words, None)
        ran = CliRunner().invoke(main, words[1:])
        assert ran.exit_code == 0, f"{page}: {line}\n{ran.output}\n{ran.exception!r}"
        if file is not None:
            Path(file).write_text(ran.stdout, encoding="utf-8")
