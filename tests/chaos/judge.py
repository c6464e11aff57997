"""What the files of a training say after a fault."""

from __future__ import annotations

import errno
from pathlib import Path

from chaos.child import Ended
from isthmus import InvalidInput, estimators
from isthmus.core.wire import State
from isthmus.engine import checkpoint
from isthmus.privacy import Ledger
from isthmus.report import Record
from isthmus.runs.folder import METRICS, RunFolder
from isthmus.tables.files import read

CLEAR = (
    "InvalidInput",
    "LedgerCorrupt",
    "FolderDamaged",
    "BudgetExceeded",
    "KeyboardInterrupt",
    "Interrupted",
    "CannotWrite",
)
"""Errors of the package whose words say what to do; those of the command line come with an exit code."""


def charged(place: Path) -> int:
    """The rounds that the ledger of a training holds; the shared one of the command line holds as many at least."""
    path = place / "ledger" if (place / "ledger").exists() else place / "run" / "ledger"
    own = sum(Ledger.open(path).rounds().values()) if path.exists() else 0
    if (place / "budget").exists():
        shared = sum(Ledger.open(place / "budget").rounds().values())
        if shared < own:
            raise AssertionError(f"the shared budget holds {shared} rounds, the run {own}")
        return shared if not path.exists() else own
    return own


def corrupt(place: Path, killed: bool) -> list[str]:
    """The files that cannot be read as what they are; a kill alone may leave an unfinished `.part` behind."""
    collected = []
    for file in sorted(path for path in place.rglob("*") if path.is_file()):
        if file.name.endswith(".part"):
            collected += [] if killed else [f"{file.name} was left behind"]
            continue
        try:
            _read(file)
        except Exception as error:
            collected.append(f"{file.name}: {type(error).__name__}: {error}"[:200])
    return collected


def _read(file: Path) -> None:
    name = file.name
    if name in ("ledger", "budget", "checkpoint.ledger"):
        Ledger.open(file).records()
    elif name in ("state", "checkpoint"):
        try:
            State.load(file)
        except InvalidInput:
            checkpoint.FORMAT.read(file, dict)
    elif name in ("model", "model.safetensors"):
        estimators.load(file)
    elif name == "run.json":
        Record.from_file(file)
    elif name == "settings.json":
        RunFolder.open(file.parent)
    elif name == "metrics.json":
        RunFolder.open(file.parent).read_sealed(METRICS)
    elif name in ("out.csv", "data.npz"):
        read(file)


def unclear(ended: Ended, memory: bool = False) -> str:
    """What is wrong with the words that a training ended with, if anything."""
    if ended.kind == "hang":
        return ended.words
    if not ended.kind or ended.code < 0:
        return "" if ended.kind or ended.code in (0, -9) else f"ended by signal {-ended.code} without a word"
    if ended.kind in CLEAR or ended.kind in ("exit 2", "exit 3", "exit 4", "exit 5"):
        return "" if ended.words and "Traceback" not in ended.words else f"{ended.kind}: {ended.words}"[:200]
    if ended.kind == "exit 1" and "cannot be written" in ended.words and "Traceback" not in ended.words:
        return ""
    if memory and (ended.kind == "MemoryError" or "alloc" in ended.words or "memory" in ended.words):
        return ""
    if ended.kind.endswith("Error") and _is_system(ended):
        return ""
    return f"{ended.kind}: {ended.words}"[:200]


def _is_system(ended: Ended) -> bool:
    """An error of the operating system that names its file."""
    system = any(f"[Errno {number}]" in ended.words for number in errno.errorcode)
    return system and "/" in ended.words
