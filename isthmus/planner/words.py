"""A plan as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isthmus.planner.choice import Choice, Plan

WIDTH = 120


def table(plan: Plan) -> str:
    """The choices, best first, aligned and at most 120 columns wide."""
    head = ["", "algorithm", "noise mult.", "noise norm", "in a margin", "numbers", "bytes", "memory", "time", "passes"]
    rows = [[str(i), *_row(choice)] for i, choice in enumerate(plan.choices, 1)]
    widths = [max(len(line[j]) for line in [head, *rows]) for j in range(len(head))]

    def line(cells: list[str]) -> str:
        padded = [c.ljust(w) if j == 1 else c.rjust(w) for j, (c, w) in enumerate(zip(cells, widths, strict=True))]
        return "  ".join(padded).rstrip()[:WIDTH]

    return "\n".join([line(head), line(["-" * w for w in widths]), *map(line, rows)])


def _row(choice: Choice) -> list[str]:
    star = " *" if choice.research else ""
    return [
        choice.name + star,
        _short(choice.noise_multiplier),
        _short(choice.noise_norm),
        _short(choice.margin_noise),
        _count(choice.dims),
        _bytes(choice.bytes),
        _bytes(choice.memory),
        _time(choice.seconds),
        _short(choice.passes),
    ]


def words(plan: Plan) -> str:
    """What is recommended, what it costs, why, and what was left out."""
    facts, best = plan.facts, plan.best
    budget = f"epsilon {facts.epsilon:g}, delta {facts.delta:.3g}" if facts.private else "no privacy"
    lines = [
        f"{facts.n:,} records, {facts.d:,} columns, {facts.loss} loss, {budget}.",
        f"Use {best.name}: {best.why}.",
        f"It runs {best.rounds:,} rounds ({_short(best.passes)} passes over the data), about {_time(best.seconds)} on "
        f"one core, and {_bytes(best.memory)} beside the data (estimates).",
    ]
    if best.private and best.noise_multiplier is not None:
        lines.append(_noise(best))
    lines.append(f"Behind it: {best.evidence}.")
    lines += [f"Note: {note}." for note in plan.notes]
    lines += [f"Not used: {name}: {reason}." for name, reason in plan.refused.items()]
    return "\n".join(lines)


def _noise(best: Choice) -> str:
    told = f"Noise multiplier {_short(best.noise_multiplier)}"
    if best.noise_norm is not None:
        told += f", noise of norm {_short(best.noise_norm)} in an update of {best.dims:,} numbers"
    if best.margin_noise is not None:
        told += f", at most {_short(best.margin_noise)} in the margin of a row of norm 1 in the end"
    return told + "."


def _short(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _count(value: int) -> str:
    return f"{value:,}"


def _bytes(value: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{value:.3g} {unit}"
        value /= 1000
    raise AssertionError


def _time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
