"""Links between pages, to anchors in them and to files lead somewhere; places beyond the repository are listed."""

import os
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pages import FENCE, ROOT, TEXTS, anchors, prose

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
ELSEWHERE = {"flower.ai", "download.pytorch.org"}
"""Where pages send a reader beyond the repository.  Nothing is fetched: a new place is added here, by hand."""
GENERATED = {ROOT / "docs" / "changelog.md"}
"""Pages that exist on the site only."""


@pytest.mark.parametrize("page", [str(path.relative_to(ROOT)) for path in TEXTS])
def test_links_lead_somewhere(page: str) -> None:
    path, broken = ROOT / page, []
    for target in LINK.findall(prose(TEXTS[path])):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = Path(os.path.normpath(path.parent / name)) if name else path
        if file in GENERATED:
            continue
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(TEXTS[file])):
            broken.append(target)
    assert not broken


def test_files_that_are_named_exist() -> None:
    """`tests/...`, `lab/studies/...` and the like in backticks: the site shows these files."""
    named = re.compile(r"`((?:tests|lab|examples|isthmus|tools)/[\w./-]+\.\w+)`")
    gone = {
        (str(page.relative_to(ROOT)), name)
        for page, text in TEXTS.items()
        for name in named.findall(FENCE.sub("", text))
        if not (ROOT / name).exists() and not (ROOT / "examples" / "flower" / name).exists()
    }
    assert not gone


def test_links_elsewhere_are_known() -> None:
    hosts = {
        urlsplit(target).netloc for text in TEXTS.values() for target in LINK.findall(prose(text)) if "://" in target
    }
    assert hosts <= ELSEWHERE
