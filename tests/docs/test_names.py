"""Names that the pages give exist: dotted names of the package in backticks, and extras of `pip install`."""

import importlib
import re
import tomllib

import pytest
from pages import FENCE, ROOT, TEXTS

import isthmus

SHORT = ("privacy", "theory", "modules", "sets", "sketches", "objectives", "lifts", "diagnostics", "audit", "planner")
SHORT = (*SHORT, "estimators", "algorithms", "report", "codecs", "datasets", "penalties", "tensorboard")
"""Modules that pages also name without the package before them; `engine.x` is an engine of the reader's own."""
NAME = re.compile(rf"`(?:isthmus\.|(?=(?:{'|'.join(SHORT)})\.))([a-z]\w*(?:\.\w+)*|[A-Z]\w*(?:\.\w+)*)")
FILES = re.compile(r"\.(?:md|py|toml|json|html|ledger|csv)$")


def resolve(name: str) -> object:
    """What stands under a dotted name of the package: modules are imported, the rest is looked up."""
    here: object = isthmus
    path = "isthmus"
    for part in name.split("."):
        path = f"{path}.{part}"
        if hasattr(here, part):
            here = getattr(here, part)
        else:
            here = importlib.import_module(path)
    return here


NAMED = sorted({(name, str(path.relative_to(ROOT))) for path, text in TEXTS.items() for name in NAME.findall(text)})


@pytest.mark.parametrize("name, page", [pair for pair in NAMED if not FILES.search(pair[0])])
def test_a_name_on_a_page_exists(name: str, page: str) -> None:
    try:
        resolve(name)
    except ImportError as error:
        missing = error.name or ""
        if missing.split(".")[0] == "isthmus" or not missing:
            raise
        pytest.skip(f"{missing} is not installed")


def test_imports_on_pages_exist() -> None:
    """Blocks of Python that need what is not installed are not run: their imports from the package are looked up."""
    gone = []
    for path, text in TEXTS.items():
        for block in FENCE.finditer(text):
            for module, names in re.findall(r"^from isthmus\.?([\w.]*) import ([\w, ]+)", block["code"], re.M):
                for name in names.replace(" ", "").split(","):
                    try:
                        resolve(f"{module}.{name}".lstrip("."))
                    except (ImportError, AttributeError):
                        gone.append((str(path.relative_to(ROOT)), module, name))
    assert not gone


def test_extras_are_installed_from_a_clone() -> None:
    """No package index has the package: an extra is named with -e and the folder of a clone."""
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    suffixes = (".md", ".py", ".toml", ".ipynb", ".cfg")
    folders = ("isthmus", "docs", "examples", "experiments", "benchmarks", "tests")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in suffixes]
    files += [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "Makefile")]
    from_index = re.compile(r"install [^\n]*isthmus" + r"\[")
    wrong, named = [], set()
    for path in files:
        text = path.read_text(encoding="utf-8")
        if from_index.search(text):
            wrong.append(str(path.relative_to(ROOT)))
        for found in re.findall(r"(?:-e '\.|validate\.extra\(['\"]|-e '\.\./\.\.)\[?([\w,]+)[\]'\"]", text):
            named |= set(found.split(","))
    assert not wrong
    assert len(named) > 8 and named <= extras, named - extras
