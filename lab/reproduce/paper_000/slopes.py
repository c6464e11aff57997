"""How fitted slopes are judged and drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lab.reproduce.experiment import Cell, Judgement, Plot, Results
from lab.reproduce.figures import finish, line
from lab.reproduce.measures import log10
from lab.reproduce.paper_000.problems import NAMES

SLACK = 0.15
"""How far a fitted slope may be above the theorem's: what a few points of a random run can tell."""


def curves_of(x: Sequence[int], errors: Sequence[float], theorem: Sequence[float]) -> dict[str, Any]:
    """Logarithms, the theorem's moved to where the first error is."""
    shift = log10(errors[0]) - log10(theorem[0])
    across = [log10(value) for value in x]
    return {
        "error": (across, [round(log10(e), 4) for e in errors]),
        "theorem": (across, [round(log10(t) + shift, 4) for t in theorem]),
    }


def theorem_slope(results: Results, cell: Cell) -> float:
    """Of the theorem's rate over the same points."""
    return straight(*results.curve("theorem", **cell)[:2])


def straight(x: list[float], y: list[float]) -> float:
    """The least-squares slope of y against x.

    >>> straight([0.0, 1.0, 2.0], [1.0, 3.0, 5.0])
    2.0
    """
    middle, level = sum(x) / len(x), sum(y) / len(y)
    both = sum((a - middle) * (b - level) for a, b in zip(x, y, strict=True))
    return both / sum((a - middle) ** 2 for a in x)


def called(cell: Cell) -> str:
    """A row of the table in words."""
    case = "smooth" if cell["smooth"] else "nonsmooth"
    return f"{NAMES[cell['algorithm']]} {case}" + ("" if cell["m"] == "m_t" else f" at m = {cell['m']}")


def judged(results: Results, against: str, own: str) -> Judgement:
    """Holds where every row at the theorem's m_t falls at least as fast as its rate does over the same points."""
    late, sentences = [], []
    for cell in results.cells:
        measured, theorem = results.mean("slope", **cell), theorem_slope(results, cell)
        slow = measured > theorem + SLACK
        sentences.append(f"{called(cell)} {measured:.2f} ({theorem:.2f})")
        if slow:
            late.append((cell, called(cell)))
    own_late = [name for cell, name in late if cell["m"] == own]
    rest = [name for cell, name in late if cell["m"] != own]
    rows = sum(cell["m"] == own for cell in results.cells)
    why = f"Slopes against {against}, the theorem's over the same points in brackets: " + ", ".join(sentences) + "."
    if own_late:
        why += f" Slower than the theorem by more than {SLACK}: {', '.join(own_late)}."
    else:
        why += " Every row falls at least as fast as its theorem says at the theorem's m_t."
    why += f" At a fixed m, where no theorem speaks, slower: {', '.join(rest)}." if rest else ""
    kind = "holds" if not own_late else "fails" if len(own_late) > rows / 2 else "holds in part"
    return Judgement(kind, why)  # type: ignore[arg-type]


def plot_slopes(against: str) -> Plot:
    """Smooth on the left, nonsmooth on the right; the theorem's rates dotted."""

    def plot(results: Results, figure: Any) -> None:
        for axes, smooth in zip(figure.subplots(1, 2), (True, False), strict=True):
            _panel(axes, results, smooth)
            finish(axes, f"log10 {against}", "log10 of the error" if smooth else "")
            axes.set_title("smooth" if smooth else "nonsmooth")

    return plot


def _panel(axes: Any, results: Results, smooth: bool) -> None:
    for cell in (one for one in results.cells if one["smooth"] == smooth):
        line(axes, results.curve("error", **cell), called(cell).replace(" smooth", "").replace(" nonsmooth", ""))
        x, y, _ = results.curve("theorem", **cell)
        axes.plot(x, y, ":", color=axes.lines[-1].get_color(), linewidth=0.8)
