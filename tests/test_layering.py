"""Imports point one way: a folder imports only folders that stand before it in this list."""

from __future__ import annotations

import ast
import subprocess
import sys
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
