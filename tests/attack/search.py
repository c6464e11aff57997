"""The search: many cases, and from the worst of each family small changes that make it worse."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from attack.cases import Case, draw
from attack.probes import Movement

LIMIT = 1 + 1e-12
"""Of movement over bound: the room is for the norm of the difference, taken here in float64."""
KEPT = 3
"""The worst cases of a family that are changed further."""


@dataclass(frozen=True)
class Found:
    """A case and what it reached; `path` are the changes that made it what it is."""

    family: str
    seed: int
    number: int
    most: int
    path: tuple[int, ...]
    ratio: float
    words: str
    label: str

    def command(self) -> str:
        """How to run it again."""
        steps = "".join(f":{step}" for step in self.path)
        return f"make attack REPLAY={self.seed}:{self.most}:{self.number}{steps}"

    def __str__(self) -> str:
        return f"{self.ratio:.9g} x the bound: {self.label}\n    {self.words}\n    {self.command()}"


@dataclass
class Table:
    """What a search has found, by family."""

    cases: int = 0
    refused: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    worst: dict[str, list[Found]] = field(default_factory=dict)
    violations: dict[str, int] = field(default_factory=dict)

    def add(self, case: Found) -> None:
        """One more result: the worst of a family come first."""
        worst = self.worst.setdefault(case.family, [])
        worst.append(case)
        worst.sort(key=lambda one: -one.ratio)
        del worst[KEPT:]
        if case.ratio > LIMIT:
            self.violations[case.family] = self.violations.get(case.family, 0) + 1

    def broken(self) -> list[Found]:
        """The worst case of every family whose bound was broken."""
        return [worst[0] for _, worst in sorted(self.worst.items()) if worst[0].ratio > LIMIT]

    def __str__(self) -> str:
        lines = [f"{self.cases} cases, {self.refused} refused; movement / stated bound:"]
        for family, worst in sorted(self.worst.items()):
            broken = self.violations.get(family, 0)
            lines.append(f"  {family:28} {self.counts[family]:6} cases  worst {worst[0].ratio:<14.9g} {broken} broken")
        return "\n".join([*lines, *(f"BROKEN {worst}" for worst in self.broken())])

    def write(self, path: Path) -> None:
        """As JSON."""
        facts = {"cases": self.cases, "refused": self.refused, "counts": self.counts, "violations": self.violations}
        facts |= {"worst": {name: [asdict(case) for case in cases] for name, cases in sorted(self.worst.items())}}
        path.write_text(json.dumps(facts, indent=1, default=str))


@dataclass
class Search:
    """Deterministic by its seed: case numbers from 0, after every `every` of them `climb` changes of the worst."""

    seed: int = 0
    most: int = 1 << 14
    every: int = 40
    climb: int = 6
    table: Table = field(default_factory=Table)

    def run(self, count: int | None = None, seconds: float = math.inf) -> Table:
        """So many cases, or as many as there is time for."""
        end = time.monotonic() + seconds
        for _ in self._steps(math.inf if count is None else count):
            if time.monotonic() > end:
                break
        return self.table

    def _steps(self, count: float) -> Iterator[None]:
        number = 0
        while number < count:
            case = draw(self.seed, number, self.most)
            self._try(case, number, ())
            number += 1
            yield
            if number % self.every == 0:
                yield from self._climb(number)

    def _climb(self, turn: int) -> Iterator[None]:
        """Small changes of one of the worst cases of a family, each family in its turn."""
        families = sorted(self.table.worst)
        worst = self.table.worst[families[turn // self.every % len(families)]]
        start = worst[turn % len(worst)]
        if not math.isfinite(start.ratio):
            return
        case, best, path = self._again(start), start.ratio, start.path
        for _ in range(self.climb if case.free else 0):
            step = (path[-1] if path else 0) + 1 + int(np.random.default_rng([turn, len(path), _]).integers(1000))
            other = case.mutated(np.random.default_rng([self.seed, start.number, step]))
            ratio = self._try(other, start.number, (*path, step))
            if ratio is not None and ratio > best and math.isfinite(ratio):
                case, best, path = other, ratio, (*path, step)
            yield

    def _again(self, case: Found) -> Case:
        from attack.cases import replay

        return replay(case.seed, case.number, case.most, case.path)

    def _try(self, case: Case, number: int, path: tuple[int, ...]) -> float | None:
        moved = case.moved()
        self.table.cases += 1
        self.table.counts[case.family] = self.table.counts.get(case.family, 0) + 1
        if moved is None:
            self.table.refused += 1
            return None
        self.table.add(result(case, moved, self.seed, number, self.most, path))
        return moved.ratio


def result(case: Case, moved: Movement, seed: int, number: int, most: int, path: tuple[int, ...]) -> Found:
    """A case with its movement."""
    return Found(case.family, seed, number, most, path, moved.ratio, moved.words, case.label)
