"""The site builds without a warning, loads nothing from elsewhere, and its reference has the whole front door; opened
from the disk it can be searched, and read on a narrow screen, light or dark.
"""

import importlib.util
import os
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from pages import ROOT

import isthmus

sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests" / "report")]
MISSING = [name for name in ("mkdocs", "mkdocstrings", "latex2mathml") if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {MISSING}; pip install -e '.[docs]'")


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


SEARCH = """new Promise(done => {
    const field = document.querySelector(".md-search__input")
    document.querySelector("#__search").click()
    field.focus()
    field.value = "ledger"
    field.dispatchEvent(new Event("keyup", {bubbles: true}))
    const said = () => document.querySelector(".md-search-result__meta").innerText
    const look = left => /matching|No /.test(said()) || !left ? done(said()) : setTimeout(look, 100, left - 1)
    look(200)
})"""
CONTRAST = """(() => {
    const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true})
    const rgba = css => {
        canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = css; canvas.fillRect(0, 0, 1, 1)
        const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data
        return [[r, g, b], a / 255]
    }
    const over = (below, [colour, a]) => below.map((v, i) => v * (1 - a) + colour[i] * a)
    const behind = e => e ? over(behind(e.parentElement), rgba(getComputedStyle(e).backgroundColor)) : [255, 255, 255]
    const linear = v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4
    const light = c => 0.2126 * linear(c[0]) + 0.7152 * linear(c[1]) + 0.0722 * linear(c[2]) + 0.05
    const ratio = e => {
        const ground = behind(e), [a, b] = [light(ground), light(over(ground, rgba(getComputedStyle(e).color)))]
        return Math.max(a, b) / Math.min(a, b)
    }
    const shown = e => e.innerText && e.getBoundingClientRect().width
    const read = "a:not(.headerlink), p, h1, code, .highlight span"
    return [...document.querySelectorAll(`.md-typeset :is(${read}), .md-header__topic`)]
        .filter(shown).map(e => [ratio(e), e.className + ": " + e.innerText])
        .filter(([r, _]) => r < 4.5).map(([r, words]) => r.toFixed(2) + " " + words.slice(0, 60))
})()"""


def test_opened_from_the_disk_it_is_searched_and_read(site: Path) -> None:
    from chromium import PATH, Browser

    if PATH is None:
        pytest.skip("no Chromium here")
    for dark in (False, True):
        with closing(Browser()) as browser:  # one each: the site remembers the colours of the first page
            for width, page in ((1280, "tutorials/table.html"), (390, "engine.html")):
                browser.open(site / page, width=width, dark=dark)
                scheme = browser.evaluate('document.body.getAttribute("data-md-color-scheme")')
                assert scheme == ("slate" if dark else "default")
                assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
                assert browser.evaluate(CONTRAST) == []
                assert "matching documents" in browser.evaluate(SEARCH)
                assert not browser.errors and all(url.startswith(("file:", "data:")) for url in browser.requests)


def test_docstrings_become_markdown() -> None:
    from griffe_docstrings import markdown

    text = "Adds.\n\nx    the first\n     of them\ny    the other\n\n>>> 1 + 1\n2"
    assert markdown(text) == "Adds.\n\n- `x`: the first of them\n- `y`: the other\n\n```pycon\n>>> 1 + 1\n2\n```"
