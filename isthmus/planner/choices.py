"""What the planner returns: ranked choices, each a complete filling of one algorithm.

A plan as text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from isthmus.algorithms.choice import Choice
from isthmus.algorithms.facts import Facts
from isthmus.base import notebook, validate

FORMAT = "isthmus-choices-1"
"""What the JSON of a plan says that it is."""


@dataclass(frozen=True)
class Plan:
    """Ranked choices (best first), those refused with their reasons, and remarks.

    >>> from isthmus.planner import plan
    >>> ranked = plan(n=30_000, d=100, epsilon=1.0)
    >>> ranked.best.algorithm, ranked.best is ranked.choices[0]
    ('dp_gd', True)
    """

    facts: Facts
    choices: tuple[Choice, ...]
    refused: Mapping[str, str]
    notes: tuple[str, ...] = ()
    energy: Mapping[str, Any] | None = field(default=None)

    @property
    def best(self) -> Choice:
        """The first choice; refused where every algorithm is."""
        reasons = "; ".join(f"{name}: {reason}" for name, reason in self.refused.items())
        validate.check(
            bool(self.choices),
            "algorithms",
            list(self.refused),
            f"name another algorithm or give other facts: none of these can run here ({reasons})",
        )
        return self.choices[0]

    def choice(self, name: str) -> Choice:
        """The best choice of an algorithm, or the one of a full name such as "dp_gd (plain)"."""
        for choice in self.choices:
            if name in (choice.algorithm, choice.name):
                return choice
        reasons = [reason for key, reason in self.refused.items() if name in (key, key.split(" ")[0])]
        names = sorted({choice.algorithm for choice in self.choices})
        why = f" (this one cannot run here: {'; '.join(reasons)})" if reasons else ""
        validate.refuse("algorithm", name, f"choose one of {names}{why}")

    def words(self) -> str:
        """The plan in plain sentences."""
        return words(self)

    def table(self) -> str:
        """The choices as a text table."""
        return table(self)

    def _repr_html_(self) -> str:
        """The plan as a card of a notebook."""
        return as_html(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a file or a report."""
        return {
            "format": FORMAT,
            "facts": self.facts.to_dict(),
            "choices": [choice.to_dict() for choice in self.choices],
            "refused": dict(self.refused),
            "notes": list(self.notes),
            "energy": None if self.energy is None else dict(self.energy),
        }

    def to_json(self) -> str:
        """The same as JSON text."""
        return json.dumps(self.to_dict(), indent=1, sort_keys=True, allow_nan=False)


if TYPE_CHECKING:
    from isthmus.algorithms.choice import Choice
    from isthmus.planner.choices import Plan

WIDTH = 120

HEAD = ("", "algorithm", "noise mult.", "noise norm", "in a score", "numbers", "bytes", "memory", "time", "passes")


def table(plan: Plan) -> str:
    """The choices, best first, aligned and at most 120 columns wide."""
    head = [*HEAD]
    rows = rows_of(plan)
    widths = [max(len(line[j]) for line in [head, *rows]) for j in range(len(head))]
    widths[1] = min(widths[1], WIDTH - sum(widths) + widths[1] - 2 * (len(head) - 1))  # names give way, numbers do not
    rows = [[row[0], _cut(row[1], widths[1]), *row[2:]] for row in rows]

    def line(cells: list[str]) -> str:
        padded = [c.ljust(w) if j == 1 else c.rjust(w) for j, (c, w) in enumerate(zip(cells, widths, strict=True))]
        return "  ".join(padded).rstrip()

    return "\n".join([line(head), line(["-" * w for w in widths]), *map(line, rows)])


def rows_of(plan: Plan) -> list[list[str]]:
    """The cells of the table."""
    return [[str(i), *_row(choice)] for i, choice in enumerate(plan.choices, 1)]


def as_html(plan: Plan) -> str:
    """The plan as a card of a notebook: the recommendation in words, and the table folded away."""
    best, facts = plan.best, plan.facts
    title = f"Use {best.name}" + (f" at epsilon {facts.epsilon:g}" if facts.private else " (not private)")
    lines = [line for line in words(plan).splitlines() if not line.startswith("Not used: ")]
    refused = notebook.items(f"{name}: {reason}" for name, reason in plan.refused.items())
    return notebook.card(
        title,
        *map(notebook.paragraph, lines),
        notebook.details(f"All {len(plan.choices)} choices, best first", notebook.table(HEAD, rows_of(plan))),
        notebook.details(f"{len(plan.refused)} algorithms that cannot run here", refused) if plan.refused else "",
    )


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
        f"{facts.n:,} records, {facts.d:,} columns, {facts.loss_name} loss, {budget}.",
        f"Use {best.name}: {best.why}.",
        f"It needs {best.rounds:,} rounds ({_short(best.passes)} passes over the data): about {_time(best.seconds)} on "
        f"one core, and {_bytes(best.memory)} of memory besides the data (estimates).",
    ]
    if best.private and best.noise_multiplier is not None:
        lines.append(_noise(best))
    lines.append(f"Evidence: {best.evidence}.")
    lines += [f"Note: {note}." for note in plan.notes]
    lines += [f"Not used: {name} ({reason})." for name, reason in plan.refused.items()]
    return "\n".join(lines)


def _noise(best: Choice) -> str:
    sentence = f"Noise multiplier {_short(best.noise_multiplier)}"
    if best.noise_norm is not None:
        sentence += f"; noise of length {_short(best.noise_norm)} in an update of {best.dims:,} numbers"
    if best.margin_noise is not None:
        sentence += f"; in the end at most {_short(best.margin_noise)} of noise in the score of a row of length 1"
    return sentence + "."


def _short(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _cut(name: str, width: int) -> str:
    return name if len(name) <= width else name[: width - 3] + "..."


def _count(value: int) -> str:
    return f"{value:,}" if value < 10**7 else f"{value:.2g}"


def _bytes(value: float) -> str:
    units = ("B", "KB", "MB", "GB", "TB", "PB", "EB")
    power = 0 if value < 1 else min(len(units) - 1, int(math.log10(value) // 3))
    return f"{value / 1000**power:.3g} {units[power]}"


def _time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.2g} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    years = seconds / 3.156e7
    return f"{seconds / 3600:.1f} h" if seconds < 360_000 else f"{years:,.1f} y"
