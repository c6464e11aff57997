"""The search: trials of all doors in turn, and a table of what they said."""

from __future__ import annotations

import gc
import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from isthmus.audit import Replayed
from isthmus.base.validate import InvalidInput
from replay.doors import DOORS, draw

NOTHING = "drawn by the place in a batch", "draws about parts of the records"
"""What a replay says where a record more shifts secret draws: no fault, and nothing to compare."""


@dataclass
class Line:
    """What the trials of one door said."""

    pairs: int = 0
    refused: int = 0
    releases: int = 0
    failed: int = 0
    ratio: float = 0.0


@dataclass
class Table:
    """By door; and every failure, in words."""

    seed: int
    lines: dict[str, Line] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def add(self, door: str, number: int, label: str, found: Replayed) -> None:
        """One more trial."""
        line = self.lines.setdefault(door, Line())
        line.pairs += 1
        line.refused += bool(found.refused)
        line.releases += len(found.releases)
        line.ratio = max(line.ratio, found.ratio)
        if not found.holds:
            line.failed += 1
            self.failures.setdefault(door, f"{self.command(door, number)}\n  {label}\n{found}")

    def command(self, door: str, number: int) -> str:
        """How to run a trial again."""
        return f'make replay REPLAY="{self.seed}:{number}:{door}"'

    def __str__(self) -> str:
        head = f"{'door':34} {'pairs':>5} {'refused':>7} {'releases':>8} {'failed':>6} {'worst':>10}"
        lines = [
            f"{door:34} {line.pairs:5} {line.refused:7} {line.releases:8} {line.failed:6} {line.ratio:10.4g}"
            for door, line in self.lines.items()
        ]
        pairs, failed = (sum(getattr(line, name) for line in self.lines.values()) for name in ("pairs", "failed"))
        total = f"seed {self.seed}: {len(self.lines)} doors, {pairs} pairs, {failed} failed"
        return "\n".join([head, *lines, total, *(f"FAILED {words}" for words in self.failures.values())])


def attempt(door: str, seed: int, number: int) -> tuple[str, Replayed | None]:
    """One trial in words, and what it said; None where secret draws by place leave nothing to compare."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        rng, trial = draw(door, seed, number)
        try:
            words, found = trial.replayed(rng, seed)
        except InvalidInput as error:
            if any(words in str(error) for words in NOTHING):
                return trial.label, None
            raise
    return f"{trial.label}; {words}", found


def search(seed: int, seconds: float = math.inf, rounds: float = math.inf, doors: Sequence[str] = ()) -> Table:
    """All doors, one trial each and then again, until the time is over or so many were made of each."""
    gc.freeze()  # trainings collect garbage: not that of everything that was imported
    table, end, number = Table(seed), time.monotonic() + seconds, 0
    while number < rounds:
        for door in doors or DOORS:
            if time.monotonic() > end:
                return table
            label, found = attempt(door, seed, number)
            if found is not None:
                table.add(door, number, label, found)
        number += 1
    return table
