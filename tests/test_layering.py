"""Imports point one way: a module may import only modules that stand before it in this list."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import isthmus

ROOT = Path(isthmus.__file__).parent
LAYERS = [
    "_validate",
    "datasets",
    "space",
    "randomness",
    "matrix",
    "scaling",
    "sets",
    "penalties",
    "sketches",
    "gradients",
    "modules",
    "objectives",
    "bounded",
    "privacy",
    "lifts",
    "state",
    "parts",
    "message",
    "soundness",
    "pipeline",
    "spending",
    "result",
    "solve",
    "theory",
    "passes",
    "driver",
    "algorithms",
    "audit",
    "diagnostics",
    "planner",
    "estimators",
    "engine",
    "tensorboard",
    "auditing",
    "report",
    "runs",
    "demo",
    "cli",
]


def layer_of(module: str) -> str:
    return module.removeprefix("isthmus.").split(".")[0]


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


def test_every_module_has_its_layer() -> None:
    found = {
        p.stem if p.is_file() else p.name for p in ROOT.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()
    }
    assert found - {"__init__"} == set(LAYERS)


def test_imports_point_up_the_list_only() -> None:
    wrong = []
    for path in ROOT.rglob("*.py"):
        relative = path.relative_to(ROOT).with_suffix("")
        if str(relative) == "__init__":
            continue
        own = LAYERS.index(relative.parts[0])
        for name in imports_of(path):
            layer = layer_of(name)
            if layer not in LAYERS:  # a front-door name: its home is a layer
                layer = isthmus._HOME_OF[layer].split(".")[0]
            if LAYERS.index(layer) > own:
                wrong.append(f"{relative} imports {name}")
    assert not wrong


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, isthmus; dir(isthmus); assert 'torch' not in sys.modules; isthmus.L1Ball; sys.modules['torch']"
    subprocess.run([sys.executable, "-c", code], check=True)
