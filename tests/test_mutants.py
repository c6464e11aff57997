"""`make mutants` changes what it says it changes, and its lists name what exists."""

import ast
import importlib
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).parents[1] / "tools"

SOURCE = '''
LIMIT = 3

class Shape:
    flag: bool = True

    def describe(self) -> str:
        return f"{1 + 1} words"

def cut(x: float, most: int = 2) -> float:
    """A docstring with 1 + 1."""
    check(x)
    if x <= most and not done:
        return min(x, 2.0 * most) - 1
    raise ValueError("too long")
'''
EXPECTED = {
    "LIMIT: 3 -> 4 in LIMIT = 3",
    "Shape: True -> False in flag: bool = True",
    "cut: 2 -> 3 in def cut(x: float, most: int=2) -> float:",
    "cut: check(x) -> (nothing)",
    "cut: raise ValueError('too long') -> (nothing)",
    "cut: if x <= most and (not done) -> not (x <= most and (not done))",
    "cut: x <= most and (not done) -> x <= most or not done in if x <= most and (not done):",
    "cut: x <= most -> x < most in if x <= most and (not done):",
    "cut: x <= most -> x > most in if x <= most and (not done):",
    "cut: not done -> not not done in if x <= most and (not done):",
    "cut: return min(x, 2.0 * most) - 1 -> return None",
    "cut: min(x, 2.0 * most) - 1 -> min(x, 2.0 * most) + 1 in return min(x, 2.0 * most) - 1",
    "cut: min(x, 2.0 * most) -> max(x, 2.0 * most) in return min(x, 2.0 * most) - 1",
    "cut: 2.0 * most -> 2.0 / most in return min(x, 2.0 * most) - 1",
    "cut: 2.0 -> 4.0 in return min(x, 2.0 * most) - 1",
    "cut: 1 -> 2 in return min(x, 2.0 * most) - 1",
}


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    if not TOOLS.exists():
        pytest.skip("the tools are not beside the tests")
    monkeypatch.setattr(sys, "path", [str(TOOLS), *sys.path])
    return importlib.import_module("mutants")


def test_every_change_is_one_change(tool: Any) -> None:
    made = tool.mutants_of("some", SOURCE)
    assert {mutant.name.removeprefix("some:") for mutant in made} == EXPECTED
    sources = {tool.mutated(SOURCE, mutant) for mutant in made}
    assert len(sources) == len(made) and ast.unparse(ast.parse(SOURCE)) not in sources


def test_the_lists_name_what_exists(tool: Any) -> None:
    for module, files in tool.TESTS.items():
        assert all((TOOLS.parent / name).exists() for name in [f"isthmus/{module}.py", *files])
    assert set(tool.LEFT_OUT) <= set(tool.TESTS)
    for module in {name.split(":")[0] for name in tool.SAME}:
        known = tool.mutants_of(module, (TOOLS.parent / f"isthmus/{module}.py").read_text())
        own = [pattern for pattern in tool.SAME if pattern.startswith(f"{module}:")]
        assert [p for p in own if not any(fnmatchcase(mutant.name, p) for mutant in known)] == []
