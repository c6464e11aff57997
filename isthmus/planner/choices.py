"""What the planner returns: ranked choices, each a complete filling of one algorithm."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from isthmus.algorithms.choice import Choice
from isthmus.algorithms.facts import Facts
from isthmus.base import validate
from isthmus.planner import words

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
        return words.words(self)

    def table(self) -> str:
        """The choices as a text table."""
        return words.table(self)

    def _repr_html_(self) -> str:
        """The plan as a card of a notebook."""
        return words.as_html(self)

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
