"""The file that results go to as they come: what it has from the same code and machine is not measured again.

Rows of other code or of another machine stay until they are measured anew, and say that they are older.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

import isthmus
from isthmus.base import validate
from isthmus.base.atomic import atomic_write
from lab.bench import columns
from lab.bench.cases import Benchmark, PeerBenchmark
from lab.bench.columns import ColumnKey, Measured
from lab.bench.measure import FORM, machine, report
from lab.bench.registry import BENCHMARKS
from lab.reproduce.experiment import fingerprint
from lab.reproduce.sources import code_of, code_of_files

NOT_TIMED = ("audit", "cli", "diagnostics", "distributed", "opacus_compat", "report", "runs")
"""Folders of the package that no benchmark times; a benchmark's own code counts apart."""
EARLIER = "of an earlier run"


@cache
def library() -> str:
    """A fingerprint of the code that benchmarks time, without its words."""
    root = Path(isthmus.__file__).parent
    timed = (path for path in root.rglob("*.py") if path.relative_to(root).parts[0] not in NOT_TIMED)
    return code_of_files(tuple(sorted(timed)))


def stamp(case: Benchmark, quick: bool) -> str:
    """What a figure follows from: the code of a benchmark and of the library, its sizes, the machine with its packages.

    >>> stamp(BENCHMARKS["project-l1"], True) == stamp(BENCHMARKS["project-simplex"], True)
    False
    """
    build: Any = case.build
    given: dict[str, Any] = {"quick": quick, "threads": case.threads, "ways": case.ways(quick), "machine": machine()}
    while isinstance(build, partial):
        given |= {"given": [*build.args], **build.keywords}
        build = build.func
    return fingerprint(given | {"library": library(), "code": code_of(build, "lab.bench")})


class BenchResults:
    """Rows, and the columns of devices that they are made of; written after each of them where there is a file."""

    def __init__(self, path: str | Path | None, quick: bool) -> None:
        self.path, self.quick, self.began = None if path is None else Path(path), quick, time.perf_counter()
        self.rows: dict[tuple[str, str], dict[str, Any]] = {}
        self.columns: dict[ColumnKey, Measured] = {}
        self.stamps = {name: stamp(case, quick) for name, case in BENCHMARKS.items()}
        self.writes = self.path is not None
        if self.path is not None and self.path.exists():
            self._read(self.path)
            self.writes = False  # until there is a figure: a machine without the device leaves its file as it is

    def _read(self, path: Path) -> None:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            data = {}
        data = {"form": FORM, "rows": data, "quick": False} if isinstance(data, list) else data
        same = data.get("form") == FORM and bool(data.get("quick")) == self.quick
        kind = "a quick run" if self.quick else "a whole run"
        validate.check(same, "--json", str(path), f"give another name: this is no file of {kind} of the benchmarks")
        older = _told(data) if (data.get("when"), data.get("machine")) != (_today(), machine()) else ""
        for row in data["rows"]:
            self.rows[_key(row)] = row if not older or "before" in row else row | {"before": older}
        for column in data.get("columns", ()):
            if column.get("stamp") == self.stamps.get(column["name"], ""):
                self.columns[column["name"], column["way"]] = column

    def forget(self, cases: Iterable[Benchmark]) -> None:
        """Measure these again; what was found stays until then."""
        for case in cases:
            for key in [key for key in self.rows if key[0] == case.name]:
                self.rows[key] = {name: value for name, value in self.rows[key].items() if name != "stamp"}
            self.columns = {key: column for key, column in self.columns.items() if key[0] != case.name}

    def has(self, case: Benchmark) -> bool:
        """Whether all rows of a benchmark are there, and are of this code and machine."""
        ours = case.ours if isinstance(case, PeerBenchmark) else ("",)
        rows = [self.rows.get((case.name, own), {}) for own in ours]
        return all(row.get("stamp") == self.stamps[case.name] for row in rows)

    def add(self, case: Benchmark, rows: Iterable[dict[str, Any]]) -> None:
        """Keep rows; one without figures does not take the place of one that has them."""
        for row in rows:
            there = self.rows.get(_key(row), {})
            if _has_figures(row) or not _has_figures(there):
                stamped = {"stamp": self.stamps[case.name]} if _has_figures(row) else {}
                self.rows[_key(row)] = row | stamped | ({"quick": True} if self.quick else {})
                self.writes |= self.path is not None and _has_figures(row)
        self._write()

    def add_column(self, case: PeerBenchmark, column: Measured) -> None:
        """Keep a column, and the rows that are made of it."""
        if "ms" in column:
            column = column | {"stamp": self.stamps[case.name]}
        self.columns[case.name, column["way"]] = column
        self.add(case, columns.rows(case, self.columns))

    def known(self) -> set[ColumnKey]:
        """The columns that were measured."""
        return {key for key, column in self.columns.items() if "ms" in column}

    def report(self, names: Iterable[str] | None = None) -> dict[str, Any]:
        """What is kept as JSON; of some benchmarks."""
        wanted = None if names is None else set(names)
        order = {name: place for place, name in enumerate(BENCHMARKS)}
        rows = [row for (name, _), row in self.rows.items() if wanted is None or name in wanted]
        rows.sort(key=lambda row: order.get(row["name"], len(order)))
        measured = [column for column in self.columns.values() if "ms" in column]
        made = report(rows, time.perf_counter() - self.began, self.quick)
        return made | ({"columns": measured} if measured and wanted is None else {})

    def _write(self) -> None:
        if self.path is not None and self.writes:
            with atomic_write(self.path) as file:
                file.write_text(json.dumps(self.report(), indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _key(row: dict[str, Any]) -> tuple[str, str]:
    return row["name"], row.get("ours", "" if "points" in row or "variable" in row else "ours")


def _has_figures(row: dict[str, Any]) -> bool:
    return "ours_ms" in row or bool(row.get("points"))


def _today() -> str:
    return time.strftime("%Y-%m-%d")


def _told(data: dict[str, Any]) -> str:
    """When and on what rows were measured.

    >>> _told({"when": "2026-11-16", "machine": {"processor": "x", "device": "NVIDIA H200", "torch": "2.13.0"}})
    'measured 2026-11-16 on NVIDIA H200 with torch 2.13.0'
    """
    facts = data.get("machine", {})
    where = facts.get("device") or facts.get("processor")
    return f"measured {data.get('when', '')} on {where} with torch {facts.get('torch')}" if where else EARLIER
