"""Line charts as inline SVG text: no script, colours by CSS variables, a title and a description for those who listen.

Each chart is drawn twice, for a page and for a phone, and the style sheet shows the one that fits: text keeps its size.

>>> chart = lines("fig", "Privacy", [("spent", [(0, 0.0), (1, 0.5), (2, 0.8)])], "round", "epsilon")
>>> chart.count("<svg"), chart.count("<title"), "<script" in chart
(2, 2, False)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape

_Line = tuple[str, Sequence[tuple[float, float | None]]]
"""A name and points; where y is None there is a gap."""
_Named = Sequence[tuple[float, str]]

_FONT, _STYLES = 13, 6
_LARGE = 1e300
"""Larger values are drawn as if they were this one."""


@dataclass(frozen=True)
class _Scale:
    """Values to pixels, with the ticks that are written beside them."""

    low: float
    high: float
    start: float
    end: float
    ticks: Sequence[float]
    log: bool = False

    def __call__(self, value: float) -> float:
        ends = [self.low, self.high]
        if self.log:
            value, ends = math.log(max(value, self.low)), [math.log(end) for end in ends]
        return float(np.interp(value, ends, [self.start, self.end]))


def _short(value: float, percent: bool = False) -> str:
    """A number as an axis shows it.

    >>> _short(12500), _short(0.25), _short(0.25, percent=True), _short(3e-7)
    ('12,500', '0.25', '25%', '3e-07')
    """
    if percent:
        return f"{100 * value:.4g}%"
    if 1000 <= abs(value) < 1e9:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def lines(
    name: str,
    title: str,
    series: Sequence[_Line],
    x_label: str,
    y_label: str,
    *,
    levels: _Named = (),
    marks: _Named = (),
    zero: bool = False,
    shares: bool = False,
    decades: bool = False,
) -> Markup:
    """A line chart; `name` makes its ids unique.  Lines differ by dashes too, not by colour alone.

    levels, marks  values of y and of x that have a name
    zero, shares   y starts at 0, or is a share from 0 to 1 in percent; otherwise it is logarithmic where it spans more
                   than two decades, as x with `decades`
    """
    drawn = [(line, points) for line, points in series if any(y is not None for _, y in points)]
    seen = [[(x, y) for x, y in points if y is not None] for _, points in drawn]
    words, xs, ys = [], [x for x, _ in marks], [y for y, _ in levels]
    for (line, _), points in zip(drawn, seen, strict=True):
        heights = [y for _, y in points]
        first, last = (f"{_short(y, shares)} at {x_label} {_short(x)}" for x, y in (points[0], points[-1]))
        words.append(
            f"{line}: {first}, {last}, between {_short(min(heights), shares)} and {_short(max(heights), shares)}"
        )
        xs += [x for x, _ in points]
        ys += heights
    words += [f"marked: {marked}" for _, marked in (*levels, *marks)]
    styles = [f"s{i % _STYLES + 1}" for i in range(len(drawn))]

    def draw(width: float, height: float) -> str:
        foot, right = height - 46, width - 14
        vertical = _scale(ys, foot, 30, 5, not zero and not shares, zero or shares, float(shares))
        left = 12 + 0.58 * _FONT * max(len(_short(tick, shares)) for tick in vertical.ticks)
        across = _scale(xs, left, right, 4 + 3 * (width >= 500), decades)
        body = []
        for tick in vertical.ticks:
            y = vertical(tick)
            body += [_path("grid", f"M{left:.1f} {y:.1f}H{right:.1f}")]
            body += [_text(left - 6, y + 4, _short(tick, shares), "tick end")]
        for tick in across.ticks:
            x = across(tick)
            body += [_path("axis", f"M{x:.1f} {foot:.1f}v5")]
            body += [_text(x, foot + 19, _short(tick), "tick mid" if x < right - 10 else "tick end")]
        body += [_path("axis", f"M{left:.1f} {foot:.1f}H{right:.1f}")]
        body += [_text(2, 14, _cut(y_label + " (log scale)" * vertical.log, right), "label")]
        body += [_text(right, height - 6, _cut(x_label + " (log scale)" * across.log, right), "label end")]
        for value, marked in levels:
            y = vertical(value)
            body += [_path("level", f"M{left:.1f} {y:.1f}H{right:.1f}")]
            body += [_text(left + 6, y - 6 if y > 50 else y + 16, marked, "note")]  # clear of the axis label
        for value, marked in marks:
            x, side, style = across(value), 6, "note"
            if x > (left + right) / 2:  # words stay inside the chart
                side, style = -6, "note end"
            body += [_path("level", f"M{x:.1f} {foot:.1f}V30"), _text(x + side, foot - 8, marked, style)]
        for (_, points), style, there in zip(drawn, styles, seen, strict=True):
            way, pen = "", "M"
            for x, at in points:
                if at is None or (vertical.log and at <= 0):
                    pen = "M"
                else:
                    way += f"{pen}{across(x):.1f} {vertical(at):.1f}"
                    pen = "L"
            x, y = across(there[-1][0]), vertical(there[-1][1])
            body += [_path(f"line {style}", way), f'<circle class="dot {style}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>']
        return "".join(body)

    charts = []
    if len(drawn) > 1:
        samples = (_path(f"line {style}", "M0 5H30") for style in styles)
        entries = (
            f'<li><svg viewBox="0 0 30 10" width="30" height="10" aria-hidden="true">{sample}</svg>{escape(line)}</li>'
            for (line, _), sample in zip(drawn, samples, strict=True)
        )
        charts.append(f'<ul class="legend">{"".join(entries)}</ul>')
    told = escape(f"{y_label} by {x_label}. {'; '.join(words)}.")
    for kind, width, height in (("wide", 720.0, 280.0), ("narrow", 340.0, 240.0)):
        own = f"{name}-{kind}"
        charts.append(
            f'<svg class="{kind}" viewBox="0 0 {width:g} {height:g}" role="img" aria-labelledby="{own}-t {own}-d">'
            f'<title id="{own}-t">{escape(title)}</title><desc id="{own}-d">{told}</desc>{draw(width, height)}</svg>'
        )
    return Markup("".join(charts))


def _text(x: float, y: float, words: str, style: str) -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def _path(style: str, way: str) -> str:
    return f'<path class="{style}" d="{way}"/>'


def _cut(name: str, width: float) -> str:
    most = int(width / (0.56 * _FONT))
    return name if len(name) <= most else name[: most - 1] + "\u2026"


def _scale(
    values: Iterable[float], start: float, end: float, ticks: int, decades: bool, zero: bool = False, top: float = 0.0
) -> _Scale:
    """A scale that shows all values; where it may be, logarithmic for positive ones that span over two decades."""
    numbers = [min(max(value, -_LARGE), _LARGE) for value in values]
    low, high = min(numbers), max(numbers)
    if decades and low > 0 and high / low > 100:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        powers = [10.0**k for k in range(first, last + 1, max(1, -(-(last - first) // ticks)))]
        return _Scale(low, high, start, end, [t for t in powers if low <= t <= high] or [low, high], log=True)
    if zero:
        low, high = min(0.0, low), max(high, top)
    if high - low <= 1e-12 * max(abs(low), abs(high), 1e-280):  # one value, but for rounding
        room = max(1.0, abs(high) / 2)
        low, high = low - room * (not zero), high + room
    least = (high - low) / ticks
    power = 10.0 ** math.floor(math.log10(least))
    step = next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= least * (1 - 1e-9))
    marks = [k * step for k in range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-8) + 1)]
    if end < start:  # the grid closes the chart above and below; along x the data does
        low, high = marks[0], marks[-1]
    return _Scale(low, high, start, end, [t for t in marks if low - 1e-9 * step <= t <= high + 1e-9 * step])
