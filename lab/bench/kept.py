"""Kept results: reading JSON, one form for all rows, goals that were met or missed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isthmus.base import validate
from lab.bench.cases import EXPONENT, Goal, PeerBenchmark
from lab.bench.measure import FORM
from lab.bench.registry import BENCHMARKS

Spread3 = tuple[float, float, float]
"""Median and quartiles."""


@dataclass(frozen=True)
class KeptRun:
    """One kept file: the machine that it was measured on, and its rows."""

    label: str
    when: str
    machine: dict[str, str]
    rows: list[dict[str, Any]]
    quick: bool = False


@dataclass(frozen=True)
class Beside:
    """One of our ways beside one peer."""

    name: str
    title: str
    ours: str
    ours_ms: Spread3
    peer: str
    peer_ms: Spread3
    ratio: Spread3


@dataclass(frozen=True)
class GoalCheck:
    """A goal with what was measured; `label` names both."""

    name: str
    label: str
    goal: Goal
    figure: float

    @property
    def met(self) -> bool:
        """Whether the figure is small enough."""
        return self.figure <= self.goal.at_most


def load(path: Path) -> KeptRun:
    """A report of `python -m lab bench`, or a list of rows {name, ours_ms, peers: {peer: ms}, goal, note}."""
    data = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(data, list):
        return KeptRun(path.stem, "", {}, [whole(row) for row in data])
    validate.check(data.get("form") == FORM, "form", data.get("form"), f"measure again: this version reads form {FORM}")
    rows = [whole(row) for row in data["rows"]]
    return KeptRun(path.stem, data.get("when", ""), data.get("machine", {}), rows, bool(data.get("quick")))


def whole(row: dict[str, Any]) -> dict[str, Any]:
    """A row with all its fields: times as median and quartiles, ratios where only times were given.

    >>> row = whole({"name": "device-x", "ours_ms": 6, "peers": {"plain": 4}, "goal": 1.25})
    >>> row["peers"]["plain"]["ratio"], row["ours"]
    ([1.5, 1.5, 1.5], 'ours')
    """
    row = {"title": row["name"], "ours": "ours", "skipped": {}, "facts": {}, **row}
    row["title"] = str(row["title"]).removesuffix(" (a quick run: smaller sizes)")  # of files that said it in every row
    if "points" in row or "ours_ms" not in row:
        return {"peers": {}, **row}
    own, peers = _spread(row["ours_ms"]), {}
    for peer, peer_row in row.get("peers", {}).items():
        theirs = _spread(peer_row["ms"] if isinstance(peer_row, dict) else peer_row)
        ratio = peer_row.get("ratio") if isinstance(peer_row, dict) else None
        peers[peer] = {"ms": theirs, "ratio": _spread(ratio or own[0] / theirs[0]), "facts": {}}
        peers[peer] |= {"facts": peer_row["facts"]} if isinstance(peer_row, dict) and "facts" in peer_row else {}
    return {**row, "ours_ms": own, "peers": peers}


def _spread(value: Any) -> list[float]:
    return [float(number) for number in value] if isinstance(value, list) else [float(value)] * 3


def comparisons(rows: Iterable[dict[str, Any]]) -> Iterator[Beside]:
    """Every one of our ways beside every peer."""
    for row in rows:
        for peer, peer_row in row["peers"].items():
            yield Beside(
                row["name"],
                row["title"],
                row["ours"],
                _three(row["ours_ms"]),
                peer,
                _three(peer_row["ms"]),
                _three(peer_row["ratio"]),
            )


def _three(values: list[float]) -> Spread3:
    return values[0], values[1], values[2]


def verdicts(rows: Iterable[dict[str, Any]]) -> Iterator[GoalCheck]:
    """The goals of all rows that have a figure; those of a quick run say nothing about it."""
    for row in rows:
        for goal in () if row.get("quick") else _goals(row):
            figure = _figure(row, goal)
            if figure is not None:
                words = goal.against if "points" in row else f"{row['ours']} / {goal.against}"
                words = words if goal.against in row["peers"] else words.replace(" / ", ", ")
                words += f", {goal.fact}" if goal.fact else ""
                yield GoalCheck(row["name"], f"{row['name']}: {words}", goal, figure)


def _goals(row: dict[str, Any]) -> list[Goal]:
    """Those of the registry; of a row that is not there, its own: a ratio to its first peer, or ratios by peer."""
    benchmark = BENCHMARKS.get(row["name"])
    if benchmark is not None:
        return [goal for goal in benchmark.goals if goal.ours in ("", row["ours"])]
    own, note = row.get("goal"), row.get("note") or ""
    if isinstance(own, dict):
        return [Goal(peer, float(most), cause=note) for peer, most in own.items()]
    first = next(iter(row["peers"]), "")
    return [Goal(first, float(own), cause=note)] if isinstance(own, (int, float)) and first else []


def _figure(row: dict[str, Any], goal: Goal) -> float | None:
    """What was measured of a goal."""
    if goal.against == EXPONENT:
        return row.get("last_slope")
    if goal.fact:
        own, theirs = row["facts"].get(goal.fact), row["peers"].get(goal.against, {"facts": {}})["facts"].get(goal.fact)
        return float(own) / float(theirs) if own and theirs else None
    if goal.against in row["peers"]:
        return float(row["peers"][goal.against]["ratio"][0])
    figure = row["facts"].get(goal.against)
    return None if figure is None or "ours_ms" not in row else float(figure)


def skipped(sources: Iterable[KeptRun]) -> dict[str, list[str]]:
    """Why something was not measured, with what that was: 'benchmark: way'; rows measured elsewhere are left out."""
    sources = list(sources)
    there = {row["name"] for source in sources for row in source.rows if "ours_ms" in row or row.get("points")}
    by_reason: dict[str, list[str]] = {}
    for source in sources:
        for row in source.rows:
            case = BENCHMARKS.get(row["name"])
            if isinstance(case, PeerBenchmark) and case.device and row["name"] in there:
                continue
            own = row["ours"] in row["skipped"]
            for way, why in row["skipped"].items():
                words = row["name"] if own else f"{row['name']}: {way}"
                if words not in by_reason.setdefault(why, []):
                    by_reason[why].append(words)
    return by_reason
