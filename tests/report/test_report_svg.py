"""The charts: well-formed, true to their numbers, and told in words."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from isthmus.report.svg import lines

NASTY = '<b>&"name"</b>'


def drawn(text: str) -> list[ElementTree.Element]:
    """The charts of a piece of HTML, parsed as XML: the one for pages and the one for phones."""
    return [each for each in ElementTree.fromstring(f"<div>{text}</div>") if each.tag == "svg"]


def path(chart: ElementTree.Element, style: str) -> np.ndarray:
    """The points of a line, in pixels."""
    first = next(element for element in chart.iter("path") if element.get("class") == f"line {style}")
    return np.array([[float(v) for v in pair.split()] for pair in re.split("[ML]", first.get("d", ""))[1:]])


def ticks(chart: ElementTree.Element) -> list[tuple[float, float]]:
    """(pixel, value) of the ticks of y."""
    elements = [
        element
        for element in chart.iter("text")
        if element.get("class") == "tick end" and float(element.get("x", 0)) < 100
    ]
    return [
        (float(element.get("y", 0)) - 4, float((element.text or "").replace(",", "").rstrip("%")))
        for element in elements
    ]


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e7])
def test_a_line_stands_where_its_axis_says(scale: float, rng: np.random.Generator) -> None:
    y = scale * rng.uniform(0.3, 0.9, 50)
    for chart in drawn(lines("a", "t", [("one", list(enumerate(y)))], "round", "loss")):
        (low_pixel, low), (high_pixel, high) = ticks(chart)[0], ticks(chart)[-1]
        read = low + (path(chart, "s1")[:, 1] - low_pixel) / (high_pixel - low_pixel) * (high - low)
        assert np.abs(read - y).max() < 2e-3 * scale  # a tenth of a pixel


def test_a_logarithmic_axis_says_so_and_is_true() -> None:
    y = np.geomspace(1e-3, 10.0, 9)
    for chart in drawn(lines("a", "t", [("one", list(enumerate(y)))], "round", "loss")):
        assert any("log scale" in (element.text or "") for element in chart.iter("text"))
        steps = np.diff(path(chart, "s1")[:, 1])
        assert np.ptp(steps) < 0.25 and (steps < 0).all()
    for chart in drawn(lines("a", "t", [("one", list(enumerate(y)))], "round", "loss", zero=True)):
        assert not any("log scale" in (element.text or "") for element in chart.iter("text"))


def test_gaps_break_the_line_and_single_points_are_dots() -> None:
    chart = drawn(lines("a", "t", [("one", list(enumerate([1.0, 2.0, None, 3.0, 4.0])))], "x", "y"))[0]
    line = next(element for element in chart.iter("path") if element.get("class") == "line s1")
    assert line.get("d", "").count("M") == 2
    for y in (0.0, 5.0):
        assert drawn(lines("a", "t", [("one", [(3, y)])], "x", "y"))[0].find("circle") is not None


def test_charts_are_told_in_words_and_escaped() -> None:
    series = [(NASTY, [(1, 5.0), (2, 1.0), (3, 4.0)]), ("flat", [(1, 2.0), (3, 2.0)])]
    text = lines("a", NASTY, series, "round", NASTY, levels=[(3.0, NASTY)], marks=[(2, NASTY)])
    assert "<b>" not in text
    for chart in drawn(text):
        told = chart.findtext("desc") or ""
        assert f"{NASTY}: 5 at round 1, 4 at round 3, between 1 and 5" in told and "flat: 2 at round 1, 2" in told
        assert chart.findtext("title") == NASTY


def test_lines_differ_by_more_than_colour() -> None:
    text = lines("a", "t", [(f"line {i}", [(0, i), (1, i + 1)]) for i in range(4)], "x", "y")
    legend = ElementTree.fromstring(text[: text.index("</ul>") + len("</ul>")])
    assert ["".join(item.itertext()) for item in legend] == [f"line {i}" for i in range(4)]
    styles = [item.find("svg/path").get("class") for item in legend]  # type: ignore[union-attr]
    assert styles == [f"line s{i}" for i in range(1, 5)]  # the style sheet gives each its own dashes
    assert all(len(path(chart, "s4")) == 2 for chart in drawn(text))
    assert "legend" not in lines("a", "t", [("one", [(0, 1.0), (1, 2.0)])], "x", "y")
