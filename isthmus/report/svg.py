"""Small charts as inline SVG text: no script, colours by CSS variables, a title and a description for those who listen.

Each chart is drawn twice, for a page and for a phone, and the style sheet shows the one that fits: text keeps its size.

>>> chart = lines("fig", "Privacy", [("spent", [(0, 0.0), (1, 0.5), (2, 0.8)])], "round", "epsilon")
>>> chart.count("<svg"), chart.count("<title"), "<script" in chart
(2, 2, False)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup, escape

_Line = tuple[str, Sequence[tuple[float, float | None]]]
"""A name and points; where y is None there is a gap."""
_Named = Sequence[tuple[float, str]]

_FONT, _STYLES, _POINTS = 13, 6, 300
_LARGE = 1e300
"""Larger values are drawn as if they were this one."""


@dataclass(frozen=True)
class _Scale:
    """Values to pixels, with the ticks that are written beside them."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    ticks: Sequence[float] = field(default=())

    def __call__(self, value: float) -> float:
        low, high, at = self.low, self.high, min(max(value, -_LARGE), _LARGE)
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(max(value, low))
        return self.start + (at - low) / (high - low) * (self.end - self.start)


def short(value: float, percent: bool = False) -> str:
    """A number as an axis shows it.

    >>> short(12500), short(0.25), short(0.25, percent=True), short(3e-7)
    ('12,500', '0.25', '25%', '3e-07')
    """
    if percent:
        return f"{100 * value:.4g}%"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"


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
    drawn = [(line, _thinned(points)) for line, points in series if any(y is not None for _, y in points)]
    seen = [[(x, y) for x, y in points if y is not None] for _, points in drawn]
    words = []
    for (line, _), points in zip(drawn, seen, strict=True):
        ends = [f"{short(y, shares)} at {x_label} {short(x)}" for x, y in (points[0], points[-1])]
        span = [short(pick(y for _, y in points), shares) for pick in (min, max)]
        words.append(f"{line}: {ends[0]}, {ends[1]}, between {span[0]} and {span[1]}")
    words += [f"marked: {marked}" for _, marked in (*levels, *marks)]
    ys = [y for points in seen for _, y in points] + [y for y, _ in levels]
    xs = [x for points in seen for x, _ in points] + [x for x, _ in marks]

    def draw(width: float, height: float) -> str:
        vertical = _scale(ys, height - 46, 30, 5, not zero and not shares, zero or shares, float(shares))
        left = 12 + 0.58 * _FONT * max(len(short(tick, shares)) for tick in vertical.ticks)
        right, foot = width - 14, height - 46
        across = _scale(xs, left, right, 4 if width < 500 else 7, decades)
        body = []
        for tick in vertical.ticks:
            y = vertical(tick)
            body += [_path("grid", f"M{left:.1f} {y:.1f}H{right:.1f}")]
            body += [_text(left - 6, y + 4, short(tick, shares), "tick end")]
        for tick in across.ticks:
            x = across(tick)
            body += [_path("axis", f"M{x:.1f} {foot:.1f}v5")]
            body += [_text(x, foot + 19, short(tick), "tick mid" if x < right - 10 else "tick end")]
        body += [_path("axis", f"M{left:.1f} {foot:.1f}H{right:.1f}")]
        up, along = (
            _cut(label + " (log scale)" * scale.log, right) for label, scale in ((y_label, vertical), (x_label, across))
        )
        body += [_text(2, 14, up, "label"), _text(right, height - 6, along, "label end")]
        for value, marked in levels:
            y = vertical(value)
            body += [_path("level", f"M{left:.1f} {y:.1f}H{right:.1f}")]
            body += [_text(left + 6, y - 6 if y > 50 else y + 16, marked, "note")]  # clear of the axis label
        for value, marked in marks:
            x = across(value)
            past = x > (left + right) / 2  # words stay inside the chart
            body += [_path("level", f"M{x:.1f} {foot:.1f}V30")]
            body += [_text(x - 6 if past else x + 6, foot - 8, marked, "note end" if past else "note")]
        for i, (_, points) in enumerate(drawn):
            pieces, pen, style = [], "M", f"s{i % _STYLES + 1}"
            for x, at in points:
                if at is None or (vertical.log and at <= 0):
                    pen = "M"
                    continue
                pieces.append(f"{pen}{across(x):.1f} {vertical(at):.1f}")
                pen = "L"
            body += [_path(f"line {style}", "".join(pieces))]
            last = seen[i][-1]
            body += [f'<circle class="dot {style}" cx="{across(last[0]):.1f}" cy="{vertical(last[1]):.1f}" r="3"/>']
        return "".join(body)

    legend = "".join(
        '<li><svg viewBox="0 0 30 10" width="30" height="10" aria-hidden="true">'
        f"{_path(f'line s{i % _STYLES + 1}', 'M0 5H30')}</svg>{escape(line)}</li>"
        for i, (line, _) in enumerate(drawn)
    )
    key = f'<ul class="legend">{legend}</ul>' * (len(drawn) > 1)
    return Markup(key) + _twice(name, title, f"{y_label} by {x_label}. {'; '.join(words)}.", draw)


def bars(name: str, title: str, rows: Sequence[tuple[str, float, bool]], percent: bool = False) -> Markup:
    """Horizontal bars from zero: (name, value, whether it stands out), each with its name and its value."""
    values = [value for _, value, _ in rows]
    low, high = min(0.0, *values), max(1.0 if percent else 0.0, *values)

    def draw(width: float, _: float) -> str:
        scale, body = _Scale(low, high if high > low else low + 1.0, 0.0, width), []
        for i, (row, value, own) in enumerate(rows):
            y, (begin, end) = 40.0 * i, sorted((scale(0.0), scale(value)))
            body += [_text(0, y + 14, _cut(row, width - 80), "name own" if own else "name")]
            body += [_text(width, y + 14, short(value, percent), "value end"), _rect(0, y + 20, width, 12, "rest")]
            body += [_rect(begin, y + 20, max(1.0, end - begin), 12, "strong" if own else "soft")]
        return "".join(body)

    words = "; ".join(f"{row}: {short(value, percent)}" for row, value, _ in rows)
    return _twice(name, title, words, draw, 40.0 * len(rows) + 4)


def meter(
    name: str, title: str, parts: Sequence[tuple[float, str, str]], total: float, ends: tuple[str, str]
) -> Markup:
    """One bar of length `total`, filled from the left by parts (length, words, style), with words at both ends.

    A style is "strong", "soft" or "empty".
    """

    def draw(width: float, _: float) -> str:
        body, at = [_rect(0, 0, width, 16, "rest")], 0.0
        for i, (value, part, style) in enumerate(parts):
            step, y = min(width * value / total, width - at), 50.0 + 18 * i
            body += [_rect(at, 0, max(0.0, step), 16, style), _rect(0.5, y - 10, 11, 11, style)]
            body += [_text(18, y, part, "name")]
            at += step
        body += [_rect(0.5, 0.5, width - 1, 15, "edge"), _text(0, 31, ends[0], "tick")]
        return "".join([*body, _text(width, 31, ends[1], "tick end")])

    words = f"{'; '.join(part for _, part, _ in parts)}. The whole bar is {ends[1]}."
    return _twice(name, title, words, draw, 18.0 * len(parts) + 46)


def _twice(
    name: str, title: str, words: str, draw: Callable[[float, float], str], height: float | None = None
) -> Markup:
    """A drawing for a page and for a phone; `height` where it does not follow from the width."""
    charts = []
    for kind, width, high in (("wide", 720.0, 280.0), ("narrow", 340.0, 240.0)):
        own = f"{name}-{kind}"
        charts.append(
            f'<svg class="{kind}" viewBox="0 0 {width:g} {height or high:g}" role="img" '
            f'aria-labelledby="{own}-t {own}-d"><title id="{own}-t">{escape(title)}</title>'
            f'<desc id="{own}-d">{escape(words)}</desc>{draw(width, high)}</svg>'
        )
    return Markup("".join(charts))


def _text(x: float, y: float, words: str, style: str) -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def _rect(x: float, y: float, width: float, height: float, style: str) -> str:
    return f'<rect class="{style}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def _path(style: str, way: str) -> str:
    return f'<path class="{style}" d="{way}"/>'


def _cut(name: str, width: float) -> str:
    most = int(width / (0.56 * _FONT))
    return name if len(name) <= most else name[: most - 1] + "\u2026"


def _thinned(points: Sequence[tuple[float, float | None]]) -> Sequence[tuple[float, float | None]]:
    """At most 300 points: the lowest and the highest of each stretch, so that no peak is lost."""
    if len(points) <= _POINTS:
        return points
    stretch, kept = -(-2 * len(points) // (_POINTS - 2)), {0, len(points) - 1}
    for begin in range(0, len(points), stretch):
        heights = [(y, i) for i, (_, y) in enumerate(points[begin : begin + stretch], begin) if y is not None]
        kept |= {min(heights)[1], max(heights)[1]} if heights else {begin}
    return [points[i] for i in sorted(kept)]


def _scale(
    values: Iterable[float], start: float, end: float, ticks: int, decades: bool, zero: bool = False, top: float = 0.0
) -> _Scale:
    """A scale that shows all values; where it may be, logarithmic for positive ones that span over two decades."""
    numbers = [min(max(value, -_LARGE), _LARGE) for value in values]
    low, high = min(numbers), max(numbers)
    if decades and low > 0 and high / low > 100:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        powers = [10.0**k for k in range(first, last + 1, max(1, -(-(last - first) // ticks)))]
        return _Scale(low, high, start, end, True, [t for t in powers if low <= t <= high] or [low, high])
    if zero:
        low, high = min(0.0, low), max(high, top)
    if high - low <= 1e-12 * max(abs(low), abs(high), 1e-280):  # one value, but for rounding
        room = max(1.0, abs(high) / 2)
        low, high = (low, low + room) if zero else (low - room, high + room)
    least = (high - low) / ticks
    power = 10.0 ** math.floor(math.log10(least))
    step = next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= least * (1 - 1e-9))
    marks = [k * step for k in range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-8) + 1)]
    if end < start:  # the grid closes the chart above and below; along x the data does
        low, high = marks[0], marks[-1]
    return _Scale(low, high, start, end, False, [t for t in marks if low - 1e-9 * step <= t <= high + 1e-9 * step])
