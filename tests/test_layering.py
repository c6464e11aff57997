"""Imports point one way: a folder imports only folders that stand before it in this list."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import isthmus

ROOT = Path(isthmus.__file__).parent
LAYERS = [
    "base",
    "geometry",
    "gradients",
    "problems",
    "privacy",
    "round",
    "papers",
    "algorithms",
    "audit",
    "diagnostics",
    "planner",
    "estimators",
    "engine",
    "app",
]


def layer_of(module: str) -> str:
    """The folder of a module, or of a front-door name."""
    first = module.removeprefix("isthmus.").split(".")[0]
    home = {**isthmus._ALIASES, **isthmus._HOME_OF}.get(first, first)
    return home.split(".")[0]


def imports_of(path: Path) -> list[str]:
    """Every isthmus module that a file imports at any depth, doctests apart."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            plain = node.module == "isthmus"
            names += [f"isthmus.{alias.name}" for alias in node.names] if plain else [node.module]
    return [name for name in names if name.startswith("isthmus.")]


def test_every_folder_has_its_layer() -> None:
    found = {p.name for p in ROOT.iterdir() if (p / "__init__.py").exists()}
    loose = {p.name for p in ROOT.iterdir() if p.suffix == ".py"}
    assert (found, loose) == (set(LAYERS), {"__init__.py", "__main__.py"})


def test_a_folder_imports_only_folders_below_it() -> None:
    wrong = []
    for path in ROOT.rglob("*.py"):
        relative = path.relative_to(ROOT).with_suffix("")
        if len(relative.parts) == 1:
            continue
        own = LAYERS.index(relative.parts[0])
        for name in imports_of(path):
            if LAYERS.index(layer_of(name)) > own:
                wrong.append(f"{relative} imports {name}")
    assert not wrong


TWICE = {"Poisson", "Rule"}
"""Public names of two families: a loss and a sampler, a schedule of the papers and a rule of the planner."""


def test_the_library_is_imported_at_the_top_of_its_files() -> None:
    late = set()
    for path in ROOT.rglob("*.py"):
        functions = [each for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, ast.FunctionDef)]
        for node in (inner for each in functions for inner in ast.walk(each)):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if any(name.split(".")[0] == "isthmus" for name in names):
                late.add(path.relative_to(ROOT).as_posix())
    assert not late


def test_names_with_an_underscore_stay_in_their_folder() -> None:
    wrong = []
    for path in ROOT.rglob("*.py"):
        own = path.relative_to(ROOT).parts[0]
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("isthmus."):
                parts = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
                if parts[1] != own and any(part.startswith("_") for part in parts):
                    wrong.append(f"{path.relative_to(ROOT)} imports {node.module}")
    assert not wrong


def test_a_class_name_exists_once() -> None:
    trees = [ast.parse(path.read_text()) for path in ROOT.rglob("*.py")]
    names = Counter(each.name for tree in trees for each in ast.walk(tree) if isinstance(each, ast.ClassDef))
    found = {name for name, count in names.items() if count > 1 and not name.startswith("_")}
    assert found == TWICE


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, isthmus; dir(isthmus); assert 'torch' not in sys.modules; isthmus.L1Ball; sys.modules['torch']"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_names_that_users_import_are_the_modules_themselves() -> None:
    code = (
        "import isthmus.theory, isthmus.papers, isthmus.sets.balls as one, isthmus.geometry.sets.balls as two\n"
        "assert isthmus.theory is isthmus.papers and one is two and isthmus.L1Ball is one.L1Ball\n"
        "assert two.__spec__.name == two.__name__ == 'isthmus.geometry.sets.balls'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
