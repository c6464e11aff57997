"""What notebooks show: small pieces of HTML, figures of a budget, and progress bars, which work on a terminal too.

All text is escaped, there are no scripts, and colours are the page's own: text keeps the colour of the page and lines
are half-transparent, so that a card reads in light and in dark notebooks.

>>> table(("what", "how often"), [("a <sum>", 3)]).count("&lt;sum&gt;")
1
>>> with bar(2, visible=False, unit="round") as steps:
...     steps.update(1)
>>> steps.disable
True
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

_LINE = "1px solid rgba(128,128,128,.45)"

_CELL = f"text-align:left;vertical-align:top;padding:.2em .9em .2em 0;border-bottom:{_LINE};background:none"

_TABLE = "border-collapse:collapse;margin:.4em 0"

_TONES = {"good": "#2e8b57", "weak": "#c77700", "bad": "#c62828", "plain": "rgba(128,128,128,.8)"}


def rounded_up(value: float) -> str:
    """Four digits, never below the value: as statements and reports print an epsilon.

    >>> rounded_up(0.91761), rounded_up(math.inf)
    ('0.9177', 'inf')
    """
    return _rounded(value, math.ceil)


def rounded_down(value: float) -> str:
    """Four digits, never above the value: what is left of a budget.

    >>> rounded_down(1.11029), rounded_down(0.0)
    ('1.11', '0')
    """
    return _rounded(value, lambda units: math.floor(units + 1e-9))


def _rounded(value: float, whole: Callable[[float], int]) -> str:
    if value <= 0 or math.isinf(value):
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(max(value, 1e-300))) - 3)
    return f"{whole(value / unit) * unit:.4g}"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table with a line of headings."""
    top = "".join(f'<th scope="col" style="{_CELL}">{escape(str(name))}</th>' for name in head)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{escape(str(value))}</td>' for value in row) + "</tr>" for row in rows
    )
    return f'<table style="{_TABLE}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'


def facts(rows: Iterable[tuple[str, object]]) -> str:
    """Names and values, one pair on a line; pairs without a value are left out."""
    body = "".join(
        f'<tr><th scope="row" style="{_CELL};font-weight:normal;opacity:.75">{escape(name)}</th>'
        f'<td style="{_CELL}">{escape(str(value))}</td></tr>'
        for name, value in rows
        if value is not None and value != ""
    )
    return f'<table style="{_TABLE}"><tbody>{body}</tbody></table>'


def paragraph(text: str) -> str:
    """A paragraph; lines stay lines."""
    return f'<p style="margin:.4em 0">{"<br>".join(map(escape, text.splitlines()))}</p>'


def items(texts: Iterable[str]) -> str:
    """A list of sentences."""
    return '<ul style="margin:.3em 0">' + "".join(f"<li>{escape(text)}</li>" for text in texts) + "</ul>"


def details(summary: str, *pieces: str) -> str:
    """Pieces that are folded away under one line."""
    return f'<details style="margin:.4em 0"><summary>{escape(summary)}</summary>{"".join(pieces)}</details>'


def card(title: str, *pieces: str, tone: str = "plain") -> str:
    """A card: a headline in bold, a coloured edge (`tone` is good, weak, bad or plain), and pieces of HTML under it."""
    edge = f"border-left:4px solid {_TONES[tone]};padding:.2em 0 .2em .9em;margin:.5em 0;max-width:60em"
    head = f'<p style="margin:.2em 0"><b>{escape(title)}</b></p>'
    return f'<div class="isthmus" style="{edge}">{head}{"".join(pieces)}</div>'


with warnings.catch_warnings():  # without ipywidgets a notebook gets the bar as text, and needs no advice
    warnings.filterwarnings("ignore", message="IProgress not found")
    from tqdm.auto import tqdm


def bar(total: int, visible: bool | None = None, **options: Any) -> Any:
    """A tqdm bar; `visible=None` shows it on a terminal and in a notebook, and nowhere else."""
    disable, shell = None, getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    in_notebook = shell is not None and "IPKernelApp" in shell.config  # no terminal, and shows bars all the same
    if visible is not None or in_notebook:  # else tqdm shows it on a terminal alone
        disable = visible is False
    return tqdm(total=total, disable=disable, **options)
