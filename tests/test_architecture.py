"""docs/architecture.md shows the tree that is there, and the code keeps its rules."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import isthmus

ROOT = Path(isthmus.__file__).parent
PAGE = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
BLOCK = PAGE.split("<!-- tree:")[1].split("Users import from")[0]
ORDER = [name for row in re.findall(r"^\| ([\w, ]+) \|", BLOCK, re.M)[1:] for name in row.split(", ")]
INNER = {"__init__", "__main__"}
HEAVY = {
    "torch",
    "opendp",
    "sklearn",
    "tensorboard",
    "matplotlib",
    "pandas",
    "pyarrow",
    "importlib",
    "fcntl",
    "resource",
    "flwr",
} | {"dask", "distributed", "pyspark", "ray", "cvxpy", "opacus"}


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(ROOT.rglob("*.py")):
        yield path, ast.parse(path.read_text(encoding="utf-8"))


def test_the_page_shows_the_folders() -> None:
    there = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert sorted(ORDER) == sorted(there - INNER)


def test_a_folder_imports_only_folders_above_it_on_the_page() -> None:
    wrong = []
    for path, tree in modules():
        own = path.relative_to(ROOT).parts[0].removesuffix(".py")
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                plain = node.module == "isthmus"
                names = [f"isthmus.{alias.name}" for alias in node.names] if plain else [node.module]
            for name in names:
                first = name.removeprefix("isthmus.").split(".")[0]
                home = isthmus._HOME_OF.get(first, first).split(".")[0]
                if name.startswith("isthmus.") and own in ORDER and ORDER.index(home) > ORDER.index(own):
                    wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong


def test_nothing_is_imported_inside_a_function_but_what_is_heavy() -> None:
    wrong = []
    for path, tree in modules():
        for function in ast.walk(tree):
            if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            for node in ast.walk(function):
                names = [name.name for name in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                wrong += [f"{path.relative_to(ROOT)}: {name}" for name in names if name.split(".")[0] not in HEAVY]
    assert not wrong


def test_a_private_name_stays_in_its_folder() -> None:
    wrong = []
    for path, tree in modules():
        own = path.relative_to(ROOT).parts[0]
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("isthmus."):
                continue
            words = (node.module or "").split(".")
            private = [each for each in (*words, *(alias.name for alias in node.names)) if each.startswith("_")]
            if private and words[1] != own:
                wrong.append(f"{path.relative_to(ROOT)} imports {private} of {node.module}")
    assert not wrong


def test_noise_is_drawn_in_one_place() -> None:
    """`mechanism.release` is called by `close_stage` and by mechanisms that wrap another one, and nowhere else."""
    collected = []
    for path, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "release":
                collected.append(str(path.relative_to(ROOT)))
    allowed = {"core/pipeline.py", "theory/printed.py", "audit/known_bad.py", "audit/distinguish.py"}
    assert set(collected) <= allowed and collected.count("core/pipeline.py") == 1
