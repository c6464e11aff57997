"""Tables of a device: a row for each size and a column for each way; and what rows say of themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from lab.bench.cases import PeerBenchmark
from lab.bench.devices import LABELS
from lab.bench.digits import number
from lab.bench.gauges import GIB, MIB
from lab.bench.registry import BENCHMARKS
from lab.bench.steps import PLAIN


def grid(rows: Iterable[dict[str, Any]], family: str) -> str:
    """The contests whose names begin with `family`; below, what else was measured of those that have goals."""
    cases = [case for name, case in BENCHMARKS.items() if name.startswith(family) and isinstance(case, PeerBenchmark)]
    rows = [row for row in rows if row["name"].startswith(family) and "ours_ms" in row]
    by_name = {case.name: _ways([row for row in rows if row["name"] == case.name]) for case in cases}
    order = [
        PLAIN,
        *(way for case in cases for way in case.ways(False)),
        *(way for by_way in by_name.values() for way in by_way),
    ]
    ways = [way for way in dict.fromkeys(order) if any(way in by_way for by_way in by_name.values())]
    lines = [f"| | {' | '.join(ways)} |", f"|---|{'---|' * len(ways)}"]
    for name, by_way in by_name.items():
        if by_way:
            lines.append(f"| {LABELS[name]} | {' | '.join(_cell(by_way, way) for way in ways)} |")
    with_goals = {LABELS[case.name]: by_name[case.name] for case in cases if case.goals}
    return "\n\n".join(filter(None, ("\n".join(lines), _facts(with_goals, ways), "\n".join(notes_of(rows)))))


def _facts(by_label: dict[str, dict[str, dict[str, Any]]], ways: list[str]) -> str:
    """A table of facts other than memory, where there are any."""
    facts_of = {
        (label, way): by_way[way]["facts"] for label, by_way in by_label.items() for way in ways if way in by_way
    }
    names = [
        name for name in dict.fromkeys(name for facts in facts_of.values() for name in facts) if name not in (GIB, MIB)
    ]
    lines = [f"| | | {' | '.join(names)} |", f"|---|---|{'---|' * len(names)}"]
    for (label, way), facts in facts_of.items():
        if any(name in facts for name in names):
            cells = (number(facts[name]) if name in facts else "" for name in names)
            lines.append(f"| {label} | {way} | {' | '.join(cells)} |")
    return "\n".join(lines) if names else ""


def _ways(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Times, memory and other facts of each way, ours with the ratio to plain that was measured."""
    by_way: dict[str, dict[str, Any]] = {}
    for row in rows:
        for peer, figures in row["peers"].items():
            by_way.setdefault(peer, {"ms": figures["ms"][0], "facts": figures["facts"]})
    for row in rows:
        plain = row["peers"].get(PLAIN)
        by_way[row["ours"]] = {"ms": row["ours_ms"][0], "facts": row["facts"]}
        by_way[row["ours"]] |= {"ratio": plain["ratio"][0]} if plain else {}
    return by_way


def _cell(by_way: dict[str, dict[str, Any]], way: str) -> str:
    """Milliseconds, how many times those of plain training, and memory.

    >>> _cell({"plain torch": {"ms": 4.0, "facts": {}}, "x": {"ms": 5.0, "facts": {"peak GiB": 1.5}}}, "x")
    '5 ms (1.25x), 1.5 GiB'
    """
    if way not in by_way:
        return ""
    one = by_way[way]
    ratio = one.get("ratio") or (one["ms"] / by_way[PLAIN]["ms"] if PLAIN in by_way else None)
    words = f"{number(one['ms'])} ms" + (f" ({number(ratio)}x)" if ratio and way != PLAIN else "")
    if GIB in one["facts"]:
        words += f", {number(one['facts'][GIB])} GiB"
    if MIB in one["facts"]:
        mib = one["facts"][MIB]
        words += f", {number(mib)} MiB" if mib >= 0.5 else ", no memory beyond the vector"
    return words


def notes_of(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    """What rows say of themselves, each once: that they are older than the others, and their notes."""
    by_words: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        for words in filter(None, (row.get("before"), *(row.get("note") or "").split("; "))):
            by_words.setdefault(words, {}).setdefault(row["name"], []).append(row.get("ours", ""))
    for words, names in by_words.items():
        whose = "; ".join(f"`{name}`, {', '.join(ways)}" for name, ways in names.items())
        yield f"* {whose}: {words.removesuffix('.')}."
