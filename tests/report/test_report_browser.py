"""The report in a real Chromium: phone and desktop, light and dark, on screen and on paper."""

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from chromium import Browser
from report_cases import CASES, hostile, record

from isthmus.report import render, write

WIDTHS = (360, 390, 768, 1280)

# Elements that reach beyond the page, other than inside a box that scrolls by itself.
OUTSIDE = """[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll, .skip')
  && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 120))"""

# Every text node that shows, with the contrast of its colour against the ground that it stands on.
CONTRAST = """(() => {
  const parts = c => c.match(/[\\d.]+/g).map(Number);
  const linear = v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = c => { const [r, g, b] = c.map(v => linear(v / 255)); return .2126 * r + .7152 * g + .0722 * b; };
  const ground = e => { for (; e; e = e.parentElement) { const c = parts(getComputedStyle(e).backgroundColor);
    if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
  for (let n = walk.nextNode(); n; n = walk.nextNode()) {
    const e = n.parentElement;
    if (!n.data.trim() || e.closest('style, title, desc') || !e.getClientRects().length) continue;
    const style = getComputedStyle(e), ink = parts(e.closest('svg') ? style.fill : style.color);
    const [a, b] = [light(ink), light(ground(e))].sort((x, y) => y - x);
    found.push([(a + .05) / (b + .05), n.data.trim().slice(0, 40)]);
  }
  return found;
})()"""

# Words of charts that show: do they stay inside their chart, do two of them overlap, how large are they on the page?
CHART_WORDS = """[...document.querySelectorAll('svg[role=img]')].filter(s => s.getClientRects().length).map(s => {
  const box = s.getBoundingClientRect(), words = [...s.querySelectorAll('text')].map(t => ({
    t: t.textContent, r: t.getBoundingClientRect(), size: 13 * s.getScreenCTM().a }));
  const cut = words.filter(w => w.r.left < box.left - 1 || w.r.right > box.right + 1
    || w.r.top < box.top - 1 || w.r.bottom > box.bottom + 1).map(w => w.t);
  const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 4 && b.top < a.bottom - 4;
  const over = words.flatMap((w, i) => words.slice(i + 1).filter(v => meet(w.r, v.r)).map(v => w.t + ' / ' + v.t));
  return {name: s.querySelector('title').textContent, cut, over, size: Math.min(...words.map(w => w.size))};
})"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with closing(Browser()) as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    records = {name: record(name) for name in CASES} | {"hostile": hostile()}
    return {name: write(each, folder / f"{name}.html") for name, each in records.items()}


@pytest.mark.parametrize("name", [*CASES, "hostile"])
def test_it_fits_loads_nothing_and_does_not_complain(name: str, browser: Browser, pages: dict[str, Path]) -> None:
    for width in WIDTHS:
        for dark in (False, True):
            browser.open(pages[name], width=width, dark=dark)
            assert browser.evaluate("innerWidth") == width
            assert browser.evaluate("document.documentElement.scrollWidth") <= width
            assert browser.evaluate(OUTSIDE) == []
            assert browser.errors == []
            assert [url for url in browser.requests if not url.startswith("data:")] == [pages[name].as_uri()]


@pytest.mark.parametrize("dark", [False, True])
def test_every_text_has_contrast(dark: bool, browser: Browser, pages: dict[str, Path]) -> None:
    for name in ("full", "seeded"):
        browser.open(pages[name], width=1280, dark=dark)
        seen = browser.evaluate(CONTRAST)
        assert len(seen) > 50
        assert [(round(ratio, 2), words) for ratio, words in seen if ratio < 4.5] == []
    assert (browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(252, 251, 248)") is not dark


@pytest.mark.parametrize("width", [360, 1280])
def test_words_in_charts_can_be_read(width: int, browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["full"], width=width)
    charts = browser.evaluate(CHART_WORDS)
    assert len(charts) == 4
    for chart in charts:
        assert chart["cut"] == [] and chart["over"] == [], chart
        assert chart["size"] >= 11.5, chart


def test_assistive_software_is_told_the_structure(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["full"], width=1280)
    nodes = browser.tree()
    roles = [node["role"] for node in nodes]
    assert [roles.count(each) for each in ("banner", "main", "contentinfo", "navigation")] == [1, 1, 1, 1]
    levels = [node["properties"]["level"] for node in nodes if node["role"] == "heading"]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False))
    named = [node["name"] for node in nodes if node["role"] in ("image", "img", "region", "table", "navigation")]
    assert len(named) > 20 and all(named)
    assert sum(node["role"] in ("image", "img") for node in nodes) == 6


def test_boxes_that_scroll_are_reached_by_the_keyboard(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["full"], width=360)
    folded = browser.evaluate("[...document.querySelectorAll('details')].filter(e => !e.open).length")
    assert folded >= 1 and not browser.evaluate("document.querySelector('details .scroll').checkVisibility()")
    browser.evaluate("document.querySelectorAll('details').forEach(e => e.open = true)")
    boxes = browser.evaluate("[...document.querySelectorAll('.scroll')].map(e => e.getAttribute('aria-label'))")
    reached, outlined = [], []
    for _ in range(30):
        for kind in ("keyDown", "keyUp"):
            browser.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
        reached.append(browser.evaluate("document.activeElement.getAttribute('aria-label')"))
        outlined.append(browser.evaluate("getComputedStyle(document.activeElement).outlineStyle"))
    assert len(boxes) == 4 and set(boxes) <= set(reached)
    assert {style for label, style in zip(reached, outlined, strict=True) if label in boxes} == {"solid"}
    assert browser.evaluate("[...document.querySelectorAll('.scroll')].some(e => e.scrollWidth > e.clientWidth)")


def test_paper_is_light_and_nothing_is_cut(browser: Browser, pages: dict[str, Path], tmp_path: Path) -> None:
    browser.open(pages["full"], width=680, dark=True, media="print")
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.evaluate("getComputedStyle(document.body).color") == "rgb(28, 32, 37)"
    assert browser.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert browser.evaluate("document.documentElement.scrollWidth") <= 680
    beyond = "[...document.querySelectorAll('.scroll table')].map(e => e.getBoundingClientRect().right - innerWidth)"
    assert all(over <= 1 for over in browser.evaluate(beyond))
    unfolded = "[...document.querySelectorAll('details > :not(summary)')].every(e => e.checkVisibility())"
    assert browser.evaluate(unfolded)
    browser.pdf(tmp_path / "report.pdf")
    content = (tmp_path / "report.pdf").read_bytes()
    assert content.startswith(b"%PDF") and 4 <= len(re.findall(rb"/Type\s*/Page\b", content)) <= 8


def test_markup_in_a_record_is_inert(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["hostile"], width=1280)
    title = browser.evaluate("document.title")
    assert title.startswith("<script>document.title") and title.endswith(": privacy report")
    assert browser.evaluate("[document.scripts.length, document.images.length]") == [0, 0]
    assert "{{7*7}}" in browser.evaluate("document.querySelector('h1').textContent")


def test_a_script_would_not_run_even_if_it_got_in(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "opened.html"
    page.write_text(render(record("bare")).replace("</main>", "<script>document.title = 'spoilt'</script></main>"))
    browser.open(page, width=1280)
    assert browser.evaluate("document.scripts.length") == 1
    assert browser.evaluate("document.title") == "Benign or malignant: privacy report"
    assert any("Content Security Policy" in error for error in browser.errors)
