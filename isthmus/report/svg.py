"""Small charts as inline SVG text: no script, colours by CSS variables, a title and a description for those who listen.

Each chart is drawn twice, for a page and for a phone, and the style sheet shows the one that fits: text keeps its size.

>>> chart = lines("fig", "Privacy", [Series("spent", (0, 1, 2), (0.0, 0.5, 0.8))], Frame("round", "epsilon"))
>>> chart.count("<svg"), chart.count("<title"), "<script" in chart
(2, 2, False)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise

FONT = 13
STYLES = 6
LARGE = 1e300
"""Larger values are drawn as if they were this one."""
_POINTS = 300
_STEPS = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True)
class Series:
    """A named line; a y of None is a gap."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]

    def points(self) -> list[tuple[float, float]]:
        """The points that can be drawn."""
        return [(x, y) for x, y in zip(self.x, self.y, strict=True) if y is not None]


@dataclass(frozen=True)
class Frame:
    """Axes: their labels, levels (a value of y and its name), marks (of x), and what the scales must show.

    zero  y starts at 0; otherwise it is logarithmic where the values span more than two decades, as x is with `decades`
    """

    x_label: str
    y_label: str
    levels: Sequence[tuple[float, str]] = ()
    marks: Sequence[tuple[float, str]] = ()
    zero: bool = False
    percent: bool = False
    top: float | None = None
    decades: bool = False


@dataclass(frozen=True)
class Part:
    """A piece of a bar: its length, its words and its style ("strong", "soft" or "empty")."""

    value: float
    name: str
    style: str = "strong"


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
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        at = math.log(max(value, self.low)) if self.log else min(max(value, -LARGE), LARGE)
        return self.start + (at - low) / (high - low) * (self.end - self.start)


def short(value: float, percent: bool = False) -> str:
    """A number as an axis shows it.

    >>> short(12500), short(0.25), short(0.25, percent=True), short(3e-7)
    ('12,500', '0.25', '25%', '3e-07')
    """
    if percent:
        return f"{100 * value:.4g}%"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"


def lines(name: str, title: str, series: Sequence[Series], frame: Frame) -> str:
    """A line chart; `name` makes its ids unique.  Lines differ by dashes too, not by colour alone."""
    series = [line for line in series if line.points()]
    direct = len(series) > 1 and max(len(line.name) for line in series) <= 22
    key = _legend([line.name for line in series], direct) if len(series) > 1 else ""

    def draw(kind: str, width: float, height: float) -> str:
        return _lines(series, frame, width, height, kind == "wide" and direct)

    return key + _twice(name, (title, _described(series, frame)), draw)


def bars(name: str, title: str, rows: Sequence[tuple[str, float, bool]], percent: bool = False) -> str:
    """Horizontal bars from zero: (name, value, whether it stands out), each with its name and its value."""
    description = "; ".join(f"{label}: {short(value, percent)}" for label, value, _ in rows)
    return _twice(name, (title, description), lambda _, width, __: _bars(rows, width, percent), 40.0 * len(rows) + 4)


def meter(name: str, title: str, parts: Sequence[Part], total: float, ends: tuple[str, str]) -> str:
    """One bar of length `total`, filled by parts from the left, with words at both ends."""
    description = f"{'; '.join(part.name for part in parts)}. The whole bar is {ends[1]}."
    return _twice(
        name, (title, description), lambda _, width, __: _meter(parts, total, ends, width), 18.0 * len(parts) + 46
    )


_SIZES = {"wide": (720.0, 280.0), "narrow": (340.0, 240.0)}


def _twice(
    name: str, words: tuple[str, str], draw: Callable[[str, float, float], str], height: float | None = None
) -> str:
    """A drawing for a page and for a phone; `height` where it does not follow from the width."""
    return "".join(
        _svg(f"{name}-{kind}", kind, (width, high if height is None else height), words, draw(kind, width, high))
        for kind, (width, high) in _SIZES.items()
    )


def _svg(name: str, kind: str, size: tuple[float, float], words: tuple[str, str], body: str) -> str:
    width, height = size
    return (
        f'<svg class="{kind}" viewBox="0 0 {width:g} {height:g}" role="img" aria-labelledby="{name}-t {name}-d">'
        f'<title id="{name}-t">{escape(words[0])}</title><desc id="{name}-d">{escape(words[1])}</desc>{body}</svg>'
    )


def _legend(names: Sequence[str], direct: bool) -> str:
    """Names beside samples of their lines; where the lines carry their names, for narrow pages only."""
    items = "".join(
        '<li><svg viewBox="0 0 30 10" width="30" height="10" aria-hidden="true">'
        f'<path class="line {_style(i)}" d="M0 5H30"/></svg>{escape(name)}</li>'
        for i, name in enumerate(names)
    )
    return f'<ul class="legend{" spare" if direct else ""}">{items}</ul>'


def _text(x: float, y: float, words: str, style: str) -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def _rect(x: float, y: float, width: float, height: float, style: str) -> str:
    return f'<rect class="{style}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def _lines(series: Sequence[Series], frame: Frame, width: float, height: float, direct: bool) -> str:
    points = [one_series.points() for one_series in series]
    xs = [x for line in points for x, _ in line] + [x for x, _ in frame.marks]
    ys = [y for line in points for _, y in line] + [y for y, _ in frame.levels]
    room = 14 + 0.56 * FONT * max(len(one_series.name) for one_series in series) if direct else 14
    vertical = _scale(ys, height - 46, 30, 5, not frame.zero, frame.zero, frame.top)
    left = 12 + 0.58 * FONT * max(len(short(tick, frame.percent)) for tick in vertical.ticks)
    across = _scale(xs, left, width - room, 4 if width < 500 else 7, frame.decades)
    body = [_grid(across, vertical, frame, height)]
    body += [_level(y, words, across, vertical) for y, words in frame.levels]
    body += [_mark(x, words, across, vertical) for x, words in frame.marks]
    for i, (one_series, line) in enumerate(zip(series, points, strict=True)):
        x, y = across(line[-1][0]), vertical(line[-1][1])
        body.append(_path(one_series, across, vertical, _style(i)))
        body.append(f'<circle class="dot {_style(i)}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>')
    if direct:
        ends = _apart([(vertical(line[-1][1]), i) for i, line in enumerate(points)], 17, 20, height - 46)
        body += [_text(across.end + 8, y + 4, series[i].name, f"name {_style(i)}") for y, i in ends]
    return "".join(body)


def _style(i: int) -> str:
    return f"s{i % STYLES + 1}"


def _grid(across: _Scale, vertical: _Scale, frame: Frame, height: float) -> str:
    """Hairlines with their values, and the labels of the axes: both lie flat."""
    left, right, foot = across.start, across.end, vertical.start
    body = []
    for tick in vertical.ticks:
        y = vertical(tick)
        body.append(f'<path class="grid" d="M{left:.1f} {y:.1f}H{right:.1f}"/>')
        body.append(_text(left - 6, y + 4, short(tick, frame.percent), "tick end"))
    for tick in across.ticks:
        x = across(tick)
        body.append(f'<path class="axis" d="M{x:.1f} {foot:.1f}v5"/>')
        body.append(_text(x, foot + 19, short(tick), "tick mid" if x < right - 10 else "tick end"))
    body.append(f'<path class="axis" d="M{left:.1f} {foot:.1f}H{right:.1f}"/>')
    named = ((frame.y_label, vertical), (frame.x_label, across))
    up, along = (_cut(words + " (log scale)" * scale.log, right) for words, scale in named)
    body.append(_text(2, 14, up, "label") + _text(right, height - 6, along, "label end"))
    return "".join(body)


def _level(value: float, words: str, across: _Scale, vertical: _Scale) -> str:
    y = vertical(value)
    line = f'<path class="level" d="M{across.start:.1f} {y:.1f}H{across.end:.1f}"/>'
    return line + _text(across.start + 6, y - 6 if y > 50 else y + 16, words, "note")  # clear of the axis label


def _mark(value: float, words: str, across: _Scale, vertical: _Scale) -> str:
    x = across(value)
    line = f'<path class="level" d="M{x:.1f} {vertical.start:.1f}V{vertical.end:.1f}"/>'
    past = x > (across.start + across.end) / 2  # words stay inside the chart
    return line + _text(x - 6 if past else x + 6, vertical.start - 8, words, "note end" if past else "note")


def _path(series: Series, across: _Scale, vertical: _Scale, style: str) -> str:
    """The line, thinned to what can be seen, broken at its gaps."""
    pieces, pen = [], "M"
    for x, y in _thinned(list(zip(series.x, series.y, strict=True))):
        if y is None or (vertical.log and y <= 0):
            pen = "M"
            continue
        pieces.append(f"{pen}{across(x):.1f} {vertical(y):.1f}")
        pen = "L"
    return f'<path class="line {style}" d="{"".join(pieces)}"/>'


def _thinned(points: list[tuple[float, float | None]]) -> list[tuple[float, float | None]]:
    """At most 300 points: the lowest and the highest of each stretch, so that no peak is lost."""
    if len(points) <= _POINTS:
        return points
    stretch = -(-2 * len(points) // (_POINTS - 2))
    places = {0, len(points) - 1}
    for begin in range(0, len(points), stretch):
        inside = range(begin, min(begin + stretch, len(points)))
        gaps = [i for i in inside if points[i][1] is None]
        places |= {min(inside, key=_height(points, 1)), max(inside, key=_height(points, -1)), *gaps[:1]}
    return [points[i] for i in sorted(places)]


def _height(points: list[tuple[float, float | None]], sign: int) -> Callable[[int], float]:
    def key(i: int) -> float:
        value = points[i][1]
        return sign * math.inf if value is None else value

    return key


def _bars(rows: Sequence[tuple[str, float, bool]], width: float, percent: bool) -> str:
    values = [value for _, value, _ in rows]
    low, high = min(0.0, *values), max(1.0 if percent else 0.0, *values)
    scale = _Scale(low, high if high > low else low + 1.0, 0.0, width)
    body = []
    for i, (name, value, own) in enumerate(rows):
        y, (begin, end) = 40.0 * i, sorted((scale(0.0), scale(value)))
        body.append(_text(0, y + 14, _cut(name, width - 80), "name own" if own else "name"))
        body.append(_text(width, y + 14, short(value, percent), "value end"))
        body.append(_rect(0, y + 20, width, 12, "rest"))
        body.append(_rect(begin, y + 20, max(1.0, end - begin), 12, "strong" if own else "soft"))
    return "".join(body)


def _meter(parts: Sequence[Part], total: float, ends: tuple[str, str], width: float) -> str:
    body, at = [_rect(0, 0, width, 16, "rest")], 0.0
    for i, part in enumerate(parts):
        step, y = min(width * part.value / total, width - at), 50.0 + 18 * i
        body.append(_rect(at, 0, max(0.0, step), 16, part.style))
        body.append(_rect(0.5, y - 10, 11, 11, part.style))
        body.append(_text(18, y, part.name, "name"))
        at += step
    body.append(_rect(0.5, 0.5, width - 1, 15, "edge"))
    return "".join([*body, _text(0, 31, ends[0], "tick"), _text(width, 31, ends[1], "tick end")])


def _scale(
    values: Iterable[float],
    start: float,
    end: float,
    ticks: int,
    decades: bool = False,
    zero: bool = False,
    top: float | None = None,
) -> _Scale:
    """A scale that shows all values; where it may be, logarithmic for positive ones that span over two decades."""
    numbers = [min(max(value, -LARGE), LARGE) for value in values]
    low, high = min(numbers), max(numbers)
    if decades and low > 0 and high / low > 100:
        return _decades(low, high, start, end, ticks)
    low = min(0.0, low) if zero else low
    high = high if top is None else max(high, top)
    if high - low <= 1e-12 * max(abs(low), abs(high), 1e-280):  # one value, but for rounding
        room = max(1.0, abs(high) / 2)
        low, high = (low, low + room) if zero else (low - room, high + room)
    step = _step((high - low) / ticks)
    marks = [k * step for k in range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9) + 1)]
    if end < start:  # the grid closes the chart above and below; along x the data does
        low, high = marks[0], marks[-1]
    return _Scale(low, high, start, end, False, [t for t in marks if low - 1e-9 * step <= t <= high + 1e-9 * step])


def _decades(low: float, high: float, start: float, end: float, ticks: int) -> _Scale:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    marks = [10.0**k for k in range(first, last + 1, max(1, -(-(last - first) // ticks)))]
    return _Scale(low, high, start, end, True, [t for t in marks if low <= t <= high] or [low, high])


def _step(least: float) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that is not below."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in _STEPS if step * power >= least * (1 - 1e-9))


def _apart(ends: Sequence[tuple[float, int]], gap: float, top: float, bottom: float) -> list[tuple[float, int]]:
    """Labels pushed apart so that none covers another, within the chart."""
    placed = sorted(ends)
    heights = [max(top, y) for y, _ in placed]
    for i in range(1, len(heights)):
        heights[i] = max(heights[i], heights[i - 1] + gap)
    over = heights[-1] - bottom
    for i in reversed(range(len(heights))) if over > 0 else ():
        heights[i] = min(heights[i], bottom - gap * (len(heights) - 1 - i))
    return [(y, i) for y, (_, i) in zip(heights, placed, strict=True)]


def _cut(name: str, width: float) -> str:
    most = int(width / (0.56 * FONT))
    return name if len(name) <= most else name[: most - 1] + "\u2026"


def _described(series: Sequence[Series], frame: Frame) -> str:
    """The chart in words."""
    parts = []
    for line in series:
        points = line.points()
        (x0, y0), (x1, y1) = points[0], points[-1]
        at = [short(y, frame.percent) for y in (y0, y1)]
        words = f"{line.name}: {at[0]} at {frame.x_label} {short(x0)}, {at[1]} at {frame.x_label} {short(x1)}"
        turns = sum(1 for (_, a), (_, b), (_, c) in _triples(points) if (b - a) * (c - b) < 0)
        span = [short(pick(y for _, y in points), frame.percent) for pick in (min, max)]
        parts.append(words + (f", between {span[0]} and {span[1]}" if turns else ""))
    parts += [f"marked: {words}" for _, words in (*frame.levels, *frame.marks)]
    return f"{frame.y_label} by {frame.x_label}. {'; '.join(parts)}."


def _triples(
    line: Sequence[tuple[float, float]],
) -> list[tuple[tuple[float, float], tuple[float, float], tuple[float, float]]]:
    return [(a, b, c) for (a, b), (_, c) in pairwise(pairwise(line))]
