"""Large tables: CPU seconds of a private round in memory, a whole `PrivateClassifier`, a table that is read from disk.

rounds      `dp_gd` on a logistic loss, 10^6 x 100, float32 and float64: CPU seconds a round (asked: at most .2)
classifier  `PrivateClassifier` as it comes on 10^6 x 100: seconds (asked: at most 60 on 2 cores)
disk        `dp_gd` on 10^7 x 100 float32 in a .npy file (4 GB), and --parquet in Parquet files: seconds a round (asked:
            at most 2), and the most memory that the process has had (asked: at most 1 GB).  The file is written to
            --folder once, and left there
small       a 400 MB file: what a fit of it takes in memory

Each part runs in a process of its own.  What belongs to a process: VmHWM is the peak of its resident memory, RssAnon
what it has allocated.  The operating system's cache of the file is nobody's.

    python lab/measurements/tables.py [rounds classifier disk small] [--folder DIR] [--parquet] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

COLUMNS, EXTRA = 100, 10
"""Rounds are timed as the difference between a long and a short run."""


def memory() -> dict[str, float]:
    """What the kernel says of this process, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    table = {line.split(":")[0]: float(line.split()[1]) / 1024 for line in lines if line.startswith(("Vm", "Rss"))}
    return {name: round(table[name]) for name in ("VmHWM", "VmRSS", "RssAnon")}


class Peak:
    """The most that RssAnon was, looked at every few milliseconds."""

    def __enter__(self) -> Peak:
        self.most, self.open = 0.0, True
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.open = False
        self.thread.join()

    def _watch(self) -> None:
        while self.open:
            self.most = max(self.most, memory()["RssAnon"])
            time.sleep(0.01)


def timed(objective: Any, rounds: int = EXTRA) -> dict[str, float]:
    """Seconds of a round: of a run with more rounds less one with fewer, norms and checks left out."""
    import isthmus
    from isthmus.algorithms import dp_gd

    recipe = dp_gd(epsilon=1.0, delta=1e-8, clip=1.0, step=1.0, n="exact")

    def run(steps: int) -> tuple[float, float]:
        wall, cpu = time.perf_counter(), time.process_time()
        isthmus.minimize(objective, recipe, steps=steps, ledger=None)
        return time.perf_counter() - wall, time.process_time() - cpu

    short, long = run(1), run(1 + rounds)
    return {"seconds": (long[0] - short[0]) / rounds, "cpu_seconds": (long[1] - short[1]) / rounds, "first": short[0]}


def rows(n: int, dtype: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows and labels that depend on them."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, COLUMNS), dtype=np.float32).astype(dtype, copy=False)
    return X, (X[:, :10].sum(1) + rng.standard_normal(n) > 0).astype(np.int8)


def part_rounds(folder: Path, n: int) -> dict[str, Any]:
    """CPU seconds of a round in memory."""
    from isthmus.objectives import Logistic

    by_name = {}
    for dtype in ("float32", "float64"):
        X, y = rows(n, dtype)
        by_name[dtype] = timed(Logistic(X, y, classes=(0, 1)), 20)
        del X
    return by_name


def part_classifier(folder: Path, n: int) -> dict[str, Any]:
    """A whole fit."""
    from isthmus import PrivateClassifier

    X, y = rows(n, "float32")
    before, (wall, cpu) = memory()["VmRSS"], (time.perf_counter(), time.process_time())
    model = PrivateClassifier(epsilon=1.0, classes=[0, 1], bounds=(-6, 6)).fit(X, y)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    facts = {"seconds": wall, "cpu_seconds": cpu, "rounds": model.n_iter_, "numbers": model.result_.x.numel()}
    return {**facts, "accuracy": model.score(X[:50_000], y[:50_000]), "MB before": before, **memory()}


def file_of(folder: Path, n: int) -> Path:
    """The rows in a .npy file, written a piece at a time; labels beside it."""
    path = folder / f"rows_{n}.npy"
    if not path.exists():
        made = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(n, COLUMNS))
        labels, step = np.empty(n, dtype=np.int8), 500_000
        for piece, lo in enumerate(range(0, n, step)):
            X, y = rows(min(step, n - lo), "float32", seed=piece)
            made[lo : lo + step], labels[lo : lo + step] = X, y
        made.flush()
        np.save(folder / f"labels_{n}.npy", labels)
    return path


def parquet_of(folder: Path, n: int) -> Path:
    """The same rows as Parquet files of a million rows each, in one row group."""
    import pyarrow
    from pyarrow import parquet

    place = folder / f"parquet_{n}"
    if not place.exists():
        place.mkdir()
        X, y = np.load(file_of(folder, n), mmap_mode="r"), np.load(folder / f"labels_{n}.npy")
        for lo in range(0, n, 1_000_000):
            part = np.array(X[lo : lo + 1_000_000])
            columns = {f"x{j}": part[:, j] for j in range(COLUMNS)}
            table = pyarrow.table({**columns, "label": y[lo : lo + len(part)]})
            parquet.write_table(table, place / f"{lo:09d}.parquet", compression="none", use_dictionary=False)
    return place


def part_disk(folder: Path, n: int) -> dict[str, Any]:
    """Rounds over a file."""
    from isthmus.objectives import Logistic

    y = np.load(folder / f"labels_{n}.npy")
    with Peak() as peak:
        began = time.perf_counter()
        objective = Logistic(np.load(file_of(folder, n), mmap_mode="r"), y, classes=(0, 1))
        opened = time.perf_counter() - began
        seconds = timed(objective, 5)
    return {**seconds, "checked": opened, "RssAnon peak": peak.most, **memory()}


def part_parquet(folder: Path, n: int) -> dict[str, Any]:
    """Rounds over Parquet files."""
    from isthmus.objectives import Logistic

    with Peak() as peak:
        seconds = timed(Logistic(folder / f"parquet_{n}", "label", classes=(0, 1)), 3)
    return {**seconds, "RssAnon peak": peak.most, **memory()}


def part_small(folder: Path, n: int) -> dict[str, Any]:
    """A fit of a 400 MB file."""
    from isthmus import PrivateClassifier

    y, before = np.load(folder / f"labels_{n}.npy"), memory()["VmRSS"]
    options: dict[str, Any] = {"classes": [0, 1], "bounds": (-6, 6), "max_iter": 5}
    with Peak() as peak:
        began = time.perf_counter()
        model = PrivateClassifier(epsilon=1.0, **options).fit(np.load(file_of(folder, n), mmap_mode="r"), y)
        facts = {"seconds": time.perf_counter() - began, "numbers": model.result_.x.numel()}
    return {**facts, "MB before": before, "RssAnon peak": peak.most, **memory()}


SIZES = {"rounds": 10**6, "classifier": 10**6, "disk": 10**7, "parquet": 10**7, "small": 10**6}


def main() -> None:
    """Each part in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["rounds", "classifier", "disk", "small"])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "isthmus-tables")
    parser.add_argument("--parquet", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.only:
        warnings.simplefilter("ignore")
        print(json.dumps(globals()[f"part_{arguments.only}"](arguments.folder, SIZES[arguments.only])))
        return
    by_name = {}
    for part in [*arguments.parts, *(["parquet"] if arguments.parquet else [])]:
        for needed in {"disk", "small", "parquet"} & {part}:
            file_of(arguments.folder, SIZES[needed])
        if part == "parquet":
            parquet_of(arguments.folder, SIZES[part])
        command = [sys.executable, __file__, "--only", part, "--folder", str(arguments.folder)]
        by_name[part] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1])
        print(part, json.dumps(by_name[part], indent=2), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(by_name, indent=2))


if __name__ == "__main__":
    main()
