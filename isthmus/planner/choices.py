"""What the planner returns: ranked choices, each a complete filling of one algorithm, as text and with remarks."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from isthmus.algorithms.facts import CONSTANTS, Facts
from isthmus.algorithms.filling import Choice
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
        """What is recommended, what it costs, why, and what was left out."""
        facts, best = self.facts, self.best
        budget = f"epsilon {facts.epsilon:g}, delta {facts.delta:.3g}" if facts.private else "no privacy"
        lines = [
            f"{facts.n:,} records, {facts.d:,} columns, {facts.loss_name} loss, {budget}.",
            f"Use {best.name}: {best.why}.",
            f"It needs {best.rounds:,} rounds ({_short(best.passes)} passes over the data): about "
            f"{_time(best.seconds)} on one core, and {_bytes(best.memory)} of memory besides the data (estimates).",
        ]
        if best.private and best.noise_multiplier is not None:
            lines.append(_noise(best))
        lines.append(f"Evidence: {best.evidence}.")
        lines += [f"Note: {note}." for note in self.notes]
        lines += [f"Not used: {name} ({reason})." for name, reason in self.refused.items()]
        return "\n".join(lines)

    def rows(self) -> list[list[str]]:
        """The cells of the table."""
        return [[str(i), *_row(choice)] for i, choice in enumerate(self.choices, 1)]

    def table(self) -> str:
        """The choices, best first, aligned and at most 120 columns wide."""
        head = [*HEAD]
        rows = self.rows()
        widths = [max(len(line[j]) for line in [head, *rows]) for j in range(len(head))]
        # names give way, numbers do not
        widths[1] = min(widths[1], WIDTH - sum(widths) + widths[1] - 2 * (len(head) - 1))
        rows = [[row[0], _cut(row[1], widths[1]), *row[2:]] for row in rows]

        def line(cells: list[str]) -> str:
            padded = [c.ljust(w) if j == 1 else c.rjust(w) for j, (c, w) in enumerate(zip(cells, widths, strict=True))]
            return "  ".join(padded).rstrip()

        return "\n".join([line(head), line(["-" * w for w in widths]), *map(line, rows)])

    def _repr_html_(self) -> str:
        """The plan as a card of a notebook: the recommendation in words, and the table folded away."""
        best, facts = self.best, self.facts
        title = f"Use {best.name}" + (f" at epsilon {facts.epsilon:g}" if facts.private else " (not private)")
        lines = [line for line in self.words().splitlines() if not line.startswith("Not used: ")]
        refused = notebook.items(f"{name}: {reason}" for name, reason in self.refused.items())
        return notebook.card(
            title,
            *map(notebook.paragraph, lines),
            notebook.details(f"All {len(self.choices)} choices, best first", notebook.table(HEAD, self.rows())),
            notebook.details(f"{len(self.refused)} algorithms that cannot run here", refused) if self.refused else "",
        )

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


WIDTH = 120

HEAD = ("", "algorithm", "noise mult.", "noise norm", "in a score", "numbers", "bytes", "memory", "time", "passes")


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


def notes_of(facts: Facts, choices: Sequence[Choice]) -> tuple[str, ...]:
    """What a reader of the plan should know."""
    if not choices or not facts.private:
        return ()
    notes = []
    best = choices[0]
    whole = best.of is not None and best.of.direct and not best.of.needs
    if whole and len({choice.algorithm for choice in choices}) > 1:
        notes.append(
            "compression does not help here: noise counts only in the directions that rows have, so a compressed "
            "release is no quieter where it counts, and it loses a part of each gradient"
        )
    start = facts.public is not None and facts.public.labelled
    if start:
        notes.append(_labelled(facts, best, whole))
    if (expect := _expectation(facts)) is not None:
        than = "the model of the public rows" if start and whole else _trivial(facts)
        notes.append(
            f"for {facts.d:,} columns there are too few records at this epsilon (n mu = {facts.b:.3g}): expect results "
            f"{expect} than {than}; more records, a larger epsilon, fewer columns or labelled public rows would help, "
            "another algorithm would not"
        )
    if best.research:
        notes.append(f"{best.name} is for research: no case is known in which it is the best choice")
    return tuple(notes)


def _trivial(facts: Facts) -> str:
    """What is predicted without any column."""
    return "the majority class" if facts.of_loss.labelled() else "the mean"


def _labelled(facts: Facts, best: Choice, whole: bool) -> str:
    """What becomes of labelled public rows."""
    assert facts.public is not None
    used = "the run starts from a model of these rows, and private steps improve on it as far as the budget allows"
    unused = (
        f"{best.name} cannot start from a model: compare it with one trained on these rows alone, at no privacy cost"
    )
    return f"{facts.public.rows:,} public rows have labels: {used if whole else unused}"


def _expectation(facts: Facts) -> str | None:
    """What to say where n mu is too small; CSR rows have far fewer directions than columns."""
    columns = min(facts.d, CONSTANTS.sparse_columns) if facts.sparse else facts.d
    least, enough = CONSTANTS.nothing_b
    if facts.b < max(least, columns):
        return "no better"
    return "little better" if facts.b < max(enough, 3 * columns) else None


def energy_of(facts: Facts) -> dict[str, Any] | None:
    """The public energy curve, with the k that was chosen from it."""
    if facts.public is None or facts.public.curve is None:
        return None
    curve = facts.public.curve
    return {
        "k": list(curve.ks),
        "captured": list(curve.shares),
        "chosen": facts.public_size,
        "source": f"{curve.n_fit} public rows, judged on {curve.n_holdout} others",
    }
