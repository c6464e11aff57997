"""Tables from kept JSON: docs/benchmarks.md, and the marked blocks of README and docs.

A block begins with `<!-- bench:begin NAME -->` and ends with `<!-- bench:end -->`; what is between is written here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from isthmus.base import validate
from lab.bench import device_page
from lab.bench.cases import Growth
from lab.bench.digits import number, spread
from lab.bench.kept import GoalCheck, KeptRun, comparisons, load, skipped, verdicts, whole
from lab.bench.registry import BENCHMARKS

FAMILIES = {
    "step": "A private step",
    "compressed": "A compressed step",
    "sketch": "Sketches",
    "project": "Projections",
    "lift": "Lifts",
    "codec": "Codecs",
    "calibrate": "Calibration",
    "fit": "Private fits",
    "device": "On a GPU",
}
HEADLINES = (
    ("step-mlp", "no sketch"),
    ("step-mlp", "Kronecker(32, 32)"),
    ("step-cnn", "no sketch"),
    ("step-transformer", "no sketch"),
    ("step-transformer", "Kronecker(32, 32)"),
    ("compressed-imdb", "error feedback"),
    ("sketch-forward", "CountSketch"),
    ("project-l1", "ours"),
    ("lift-l1-countsketch", "ours"),
    ("lift-basis-pursuit", "ours"),
    ("lift-cosamp", "cosamp"),
    ("calibrate-sampled", "ours"),
    ("fit-dense", "PrivateClassifier"),
    ("device-mlp", "Kronecker(64, 64)"),
    ("device-gpt-tf32", "no sketch"),
    ("device-gpt-bf16", "Kronecker(16, 16)"),
)
INTRO = """# Benchmarks

This page is written by `python -m lab bench --pages` from the files in `lab/bench/results`; no figure in it is typed.

`make bench` (or `python -m lab bench [NAME...]`) measures ours and every peer in the same run. The ways of a benchmark
take turns, so that a busy moment hits all of them. Times are medians in milliseconds with quartiles, and a ratio is the
median of the ratios of neighbouring measurements: ours over the peer, below 1 where ours is faster. Each benchmark has
processes of its own. On a GPU, where nothing else runs, the ways are measured one after the other: times are those of a
loop that does not wait after every step, and memory is the peak of the allocator.
"""
QUICK = "a quick run: smaller sizes than are named and two rounds, for the form alone."
BEGIN, END = re.compile(r"<!-- bench:begin ([\w-]+) -->\n"), "<!-- bench:end -->"


def sources(root: Path) -> list[KeptRun]:
    """The kept results of a checkout: those of processors first."""
    runs = [load(path) for path in sorted((root / "lab" / "bench" / "results").glob("*.json"))]
    remedy = "run python -m lab bench --json lab/bench/results/cpu.json first: there is no lab/bench/results/*.json"
    validate.check(bool(runs), "root", str(root), remedy)
    return runs


def write(root: Path) -> list[Path]:
    """Write docs/benchmarks.md and every marked block; the files that changed."""
    changed = []
    for path, text in texts(root).items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            changed.append(path)
    return changed


def texts(root: Path) -> dict[Path, str]:
    """What docs/benchmarks.md and all files with marked blocks have to say."""
    runs = sources(root)
    pages = {root / "docs" / "benchmarks.md": page(runs)}
    for path in (root / "README.md", *sorted((root / "docs").glob("*.md"))):
        text = path.read_text(encoding="utf-8")
        if BEGIN.search(text) and path.name != "benchmarks.md":
            pages[path] = filled(text, runs)
    return pages


def filled(text: str, runs: list[KeptRun]) -> str:
    """A text with its blocks written anew."""
    rows = [row for source in runs for row in source.rows]

    def block(match: re.Match[str]) -> str:
        name = match.group(1)
        validate.one_of((*BLOCKS, *FAMILIES), block=name)
        body = BLOCKS[name](rows) if name in BLOCKS else _family([_marked(row) for row in rows], name, starred=True)
        return f"<!-- bench:begin {name} -->\n{body}\n{END}"

    return re.sub(BEGIN.pattern + ".*?" + re.escape(END), block, text, flags=re.DOTALL)


def page(sources: list[KeptRun]) -> str:
    """docs/benchmarks.md."""
    parts = [INTRO]
    for source in sources:
        rows = source.rows
        if all("lower" in row for row in rows):  # audits, which are no times
            continue
        parts.append(f"## {_heading(source)}\n\n{_machine(source)}\n")
        for family, title in FAMILIES.items():
            if any(comparisons(row for row in rows if _family_of(row) == family)):
                parts.append(f"### {title}\n\n{_family(rows, family)}\n")
        if any(row.get("points") for row in rows):
            parts.append(f"### How time grows\n\n{_growths(rows)}\n")
    rows = [row for source in sources for row in source.rows]
    parts.append(f"## Goals\n\n{_goals(list(verdicts(rows)))}\n")
    parts.append(f"## Not measured\n\n{_skipped(sources)}\n")
    return "\n".join(parts)


def _heading(source: KeptRun) -> str:
    device = source.machine.get("device")
    return device or {"cpu": "On a processor"}.get(source.label, source.label.upper())


def _machine(source: KeptRun) -> str:
    facts = source.machine
    if not facts:
        return "Median milliseconds."
    parts = [f"{facts.get('processors', '?')} x {facts.get('processor', '?')}", f"Python {facts.get('python', '?')}"]
    parts += [f"{name} {fact}" for name, fact in facts.items() if name not in ("processors", "processor", "python")]
    quick = f" This was {QUICK}" if source.quick else ""
    return f"Measured {source.when} on {', '.join(parts)}.{quick}"


def _marked(row: dict[str, Any]) -> dict[str, Any]:
    """A row with a star behind its title if it is of a quick run; one sentence below the table says what it means."""
    return row | {"title": f"{row['title']} *"} if "quick" in row else row


def _star(rows: Iterable[dict[str, Any]]) -> str:
    """The sentence of the star, where a row has one."""
    return f"\\* These rows are of {QUICK}" if any("quick" in row for row in rows) else ""


def _family_of(row: dict[str, Any]) -> str:
    return str(row["name"]).partition("-")[0]


def _family(rows: Iterable[dict[str, Any]], family: str, starred: bool = False) -> str:
    """The table of a family, with facts and memory below, and what a star means where quick rows have one."""
    rows = [row for row in rows if _family_of(row) == family and "ours_ms" in row]
    met = {(check.name, check.label): check for check in verdicts(rows)}
    lines = ["| | ours | ms | beside | ms | ratio | asked |", "|---|---|---|---|---|---|---|"]
    last = ""
    for pair in comparisons(rows):
        verdict = met.get((pair.name, f"{pair.name}: {pair.ours} / {pair.peer}"))
        goal = "" if verdict is None else f"{number(verdict.goal.at_most)}{'' if verdict.met else ': missed'}"
        cells = (pair.title if pair.title != last else "", pair.ours, spread(pair.ours_ms), pair.peer)
        lines.append(f"| {' | '.join((*cells, spread(pair.peer_ms), spread(pair.ratio), goal))} |")
        last = pair.title
    notes = [*_facts(rows), *_memory(rows), *device_page.notes_of(rows)]
    words = "\n" + _star(rows) + "\n" if starred and _star(rows) else ""
    return "\n".join(lines) + (f"\n{words}" if words else "") + ("\n\n" + "\n".join(notes) if notes else "")


def _facts(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Figures beside the times, ours and the peers'."""
    written: set[str] = set()
    for row in rows:
        facts_by_way = {row["ours"]: row["facts"], **{peer: entry["facts"] for peer, entry in row["peers"].items()}}
        for way, facts in facts_by_way.items():
            words = ", ".join(f"{name} {number(value)}" for name, value in facts.items())
            line = f"* `{row['name']}`, {way}: {words}."
            if facts and line not in written:
                written.add(line)
                yield line


def _memory(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Peak resident memory of processes that did one way each."""
    peaks: dict[str, dict[str, int]] = {}
    for row in rows:
        peaks.setdefault(row["name"], {}).update(row.get("mib", {}))
    for name, peaks_by_way in peaks.items():
        if peaks_by_way:
            yield (
                f"* `{name}`, peak memory in MiB: "
                + ", ".join(f"{way} {mib}" for way, mib in peaks_by_way.items())
                + "."
            )


def _growths(rows: Iterable[dict[str, Any]]) -> str:
    """Times at every size, and exponents."""
    lines = ["| | sizes: ms | exponent | of the last sizes |", "|---|---|---|---|"]
    for row in rows:
        if row.get("points"):
            times = ", ".join(f"{_power(point['size'])}: {number(point['ms'][0])}" for point in row["points"])
            slopes = (number(row[key]) if key in row else "" for key in ("slope", "last_slope"))
            lines.append(f"| {row['title']} | {row['variable']} = {times} | {' | '.join(slopes)} |")
    words = (
        "The exponent is the slope of the logarithm of the time over that of the size, fitted to all sizes and to the "
        "three largest: a call has fixed costs, which flatten the first one."
    )
    return "\n".join(lines) + "\n\n" + words


def _power(size: int) -> str:
    """Powers of ten as such.

    >>> _power(1000), _power(256)
    ('10^3', '256')
    """
    digits = str(size)
    return f"10^{len(digits) - 1}" if digits.strip("0") == "1" and size >= 1000 else digits


def _goals(checks: list[GoalCheck]) -> str:
    """What was asked for: missed goals with their causes first."""
    missed = [item for item in checks if not item.met]
    lines = [f"{len(checks) - len(missed)} of {len(checks)} goals were met."]
    lines += ["", "Missed:", ""] if missed else []
    for check in missed:
        cause = check.goal.cause or "the cause is not known"
        lines.append(f"* {check.label}: {number(check.figure)}, asked {number(check.goal.at_most)}. Cause: {cause}.")
    met = [item for item in checks if item.met]
    lines += ["", "Met:", ""] if met else []
    lines += [f"* {item.label}: {number(item.figure)}, asked {number(item.goal.at_most)}." for item in met]
    return "\n".join(lines)


def _skipped(runs: list[KeptRun]) -> str:
    reasons = skipped(runs)
    there = {row["name"] for source in runs for row in source.rows}
    missing = [name for name in BENCHMARKS if name not in there]
    reasons |= {"not measured yet": missing} if missing else {}
    lines = [f"* {why}: {', '.join(f'`{name}`' for name in names)}." for why, names in reasons.items()]
    return "\n".join(lines) or "Nothing was left out."


def headline(rows: Iterable[dict[str, Any]]) -> str:
    """README's table: one line for each headline, with all its peers."""
    rows = list(rows)
    by = {(row["name"], row["ours"]): row for row in rows if "ours_ms" in row}
    lines = ["| | ours | ms | ratio of times to peers (below 1: ours is faster) |", "|---|---|---|---|"]
    for key in HEADLINES:
        if key in by:
            row = _marked(by[key])
            ratios = ", ".join(f"{number(entry['ratio'][0])} {peer}" for peer, entry in row["peers"].items())
            lines.append(f"| {row['title']} | {row['ours']} | {number(row['ours_ms'][0])} | {ratios} |")
    missed = [check for check in verdicts(by.values()) if not check.met]
    words = f"{len(missed)} of {len(list(verdicts(by.values())))} goals were missed." if missed else ""
    more = "Quartiles, goals, causes, peers that were left out and how time grows are in"
    star = _star(by[key] for key in HEADLINES if key in by)
    return "\n".join(lines) + "\n\n" + " ".join(filter(None, (star, words, more))) + " "


def codecs(rows: Iterable[dict[str, Any]]) -> str:
    """The table of docs/codecs.md."""
    by = {(row["name"], row["ours"]): row for row in rows if "ours_ms" in row and _family_of(row) == "codec"}
    lines = [
        "| codec | bits a number | encode MB/s | decode MB/s | error | chi | exact |",
        "|---|---|---|---|---|---|---|",
    ]
    for (name, way), row in by.items():
        if name == "codec-encode":
            times = [by[key]["ours_ms"][0] if key in by else None for key in ((name, way), ("codec-decode", way))]
            size = 4e-3 * row["facts"]["numbers"]
            rates = ["" if seconds is None else f"{size / seconds:.0f}" for seconds in times]
            facts = [number(row["facts"].get(key, "")) for key in ("bits a number", "error", "chi", "exact")]
            lines.append(f"| {' | '.join((f'`{way}`', facts[0], *rates, *facts[1:]))} |")
    return "\n".join(lines)


def audit(rows: Iterable[dict[str, Any]]) -> str:
    """The table of docs/privacy.md: what an auditor found out of a whole training."""
    lines = ["| passes | right guesses | epsilon is at least (95 %) | stated |", "|---|---|---|---|"]
    for row in rows:
        if row["name"] == "audit-precision":
            caught = "" if row["passed"] else ": caught"
            right, stated = f"{row['right']} of {row['guesses']}", number(round(row["stated"], 2))
            lines.append(f"| {row['ours']} | {right} | {row['lower']:.2f}{caught} | {stated} |")
    return "\n".join(lines)


BLOCKS: dict[str, Callable[[Iterable[dict[str, Any]]], str]] = {
    "headline": lambda rows: headline(rows) + "[docs/benchmarks.md](docs/benchmarks.md).",
    "codecs": codecs,
    "audit": audit,
    "device-gpt": lambda rows: device_page.grid(rows, "device-gpt"),
    "device-mlp": lambda rows: device_page.grid(rows, "device-mlp"),
    "device-noise": lambda rows: device_page.grid(rows, "device-noise"),
}


def table(rows: list[dict[str, Any]]) -> str:
    """The same for a terminal."""
    rows = [whole(row) for row in rows]
    lines = [f"{'benchmark':22} {'ours':22} {'ms':>9}  {'beside':28} {'ms':>9} {'ratio':>8} {'quartiles':>16}  asked"]
    met = {check.label: check for check in verdicts(rows)}
    for pair in comparisons(rows):
        verdict = met.get(f"{pair.name}: {pair.ours} / {pair.peer}")
        goal = "" if verdict is None else f"{number(verdict.goal.at_most)} {'met' if verdict.met else 'MISSED'}"
        between = f"{number(pair.ratio[1])} - {number(pair.ratio[2])}"
        ours, theirs, ratio = (number(value[0]) for value in (pair.ours_ms, pair.peer_ms, pair.ratio))
        start = f"{pair.name[:22]:22} {pair.ours[:22]:22} {ours:>9}"
        lines.append(f"{start}  {pair.peer[:28]:28} {theirs:>9} {ratio:>8} {between:>16}  {goal}".rstrip())
    for row in rows:
        if row.get("points"):
            slopes = " ".join(f"{words} {number(row[key])}" for words, key in SLOPES if key in row)
            lines.append(f"{row['name'][:22]:22} in {row['variable']}: {slopes}")
    for why, names in skipped([KeptRun("", "", {}, rows)]).items():
        lines.append(f"skipped, {why}: {', '.join(names)}")
    return "\n".join(lines)


SLOPES = (("exponent", "slope"), ("of the last sizes", "last_slope"))


def listed() -> str:
    """Names and what they measure."""
    return "\n".join(
        f"{name:24} {benchmark.title}" + (f" (in {benchmark.variable})" if isinstance(benchmark, Growth) else "")
        for name, benchmark in BENCHMARKS.items()
    )
