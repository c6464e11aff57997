"""The site builds without a warning, loads nothing from elsewhere, and its reference has the whole front door."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT

import isthmus

sys.path.insert(0, str(ROOT / "tools"))
MISSING = [name for name in ("mkdocs", "mkdocstrings", "latex2mathml") if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {MISSING}; pip install 'isthmus[docs]'")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_the_site(site: Path) -> None:
    pages = {path.relative_to(site): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    loaded = re.compile(
        r'<(?:script|img|iframe|source)[^>]+src="(?:https?:)?//|<link[^>]+href="(?:https?:)?//(?!example)'
    )
    assert not {str(path) for path, text in pages.items() if loaded.search(text)}
    assert not {str(path) for path, text in pages.items() if "arithmatex" in text}  # every formula has become MathML
    reference = "".join(text for path, text in pages.items() if path.parts[0] == "reference")
    distinct = {name.rsplit(".", 1)[-1] for name in re.findall(r'id="isthmus\.([\w.]+)"', reference)}
    assert set(isthmus._HOME_OF) <= distinct


def test_docstrings_become_markdown() -> None:
    from griffe_docstrings import markdown

    text = "Adds.\n\nx    the first\n     of them\ny    the other\n\n>>> 1 + 1\n2"
    assert markdown(text) == "Adds.\n\n- `x`: the first of them\n- `y`: the other\n\n```pycon\n>>> 1 + 1\n2\n```"
