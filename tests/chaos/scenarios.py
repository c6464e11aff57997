"""The faults: each is put in place in a fork that trains, and judged by what its files say afterwards."""

from __future__ import annotations

import math
import os
import random
import resource
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch

from chaos.child import Child, Ended
from chaos.judge import charged, corrupt, unclear
from chaos.work import BUDGET, ROUNDS, WORK, prepare, warm
from isthmus.privacy import Ledger, LedgerCorrupt, ledger

NOBODY = 65534
RESERVED = 64
"""Rounds that one run may have charged and not yet begun when it is stopped."""


@dataclass
class Result:
    """What a scenario came to: runs, and what went wrong in words."""

    name: str
    runs: int = 0
    lost: list[str] = field(default_factory=list)
    corrupt: list[str] = field(default_factory=list)
    unclear: list[str] = field(default_factory=list)
    said: str = ""

    @property
    def failed(self) -> bool:
        """Whether anything went wrong."""
        return bool(self.lost or self.corrupt or self.unclear)


@contextmanager
def folders(work: str | None = None) -> Iterator[Path]:
    """A folder for one training, with what its user has before it."""
    fast = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=fast if os.access(fast, os.W_OK) else None) as name:
        place = Path(name)
        if work is not None:
            warm(work)
            prepare(work, place)
        yield place


def look(result: Result, label: str, place: Path, released: int, ended: Ended, *, memory: bool = False) -> None:
    """Judge one training after its fault."""
    result.runs += 1
    try:
        charges = charged(place)
    except Exception as error:
        result.corrupt.append(f"{label}: {type(error).__name__}: {error}"[:200])
        return
    if charges < released:
        result.lost.append(f"{label}: {released} values were released, {charges} rounds are charged")
    result.corrupt += [f"{label}: {damage}" for damage in corrupt(place, ended.code == -signal.SIGKILL)]
    words = unclear(ended, memory)
    result.unclear += [f"{label}: {words}"] if words else []
    if ended.kind and not result.said:
        result.said = ended.words.replace(str(place), "...").splitlines()[0] if ended.words else ended.kind
    if ended.code == -signal.SIGKILL:
        for unfinished in place.rglob("*.part"):  # left by this kill, and no fault of what goes on from here
            unfinished.unlink()


def go_on(result: Result, label: str, work: str, place: Path, released: int) -> None:
    """After the fault the training goes on to its end, on the same accounts."""
    ended = Child(work, place).wait()
    total = released + ended.released
    if ended.kind:
        result.unclear.append(f"{label}, going on: {ended.kind}: {ended.words} {ended.trace[-400:]}"[:700])
    else:
        look(result, f"{label}, going on", place, total, ended)


def stopped(name: str, number: int, works: list[str], runs: int, moments: random.Random) -> Result:
    """A signal at a random moment, again and again, until the training is done."""
    result = Result(name)
    for work in works:
        longest = _length(work)
        for run in range(runs):
            with folders(work) as place:
                released = 0
                for turn in range(3):
                    child = Child(work, place)
                    child.stop(number, moments.uniform(0, longest))
                    ended = child.wait()
                    released += ended.released
                    look(result, f"{work} {run}.{turn}", place, released, ended)
                go_on(result, f"{work} {run}", work, place, released)
    return result


def _length(work: str) -> float:
    """Seconds of a processor that a training takes when nobody stops it."""
    with folders(work) as place:
        child = Child(work, place)
        used = 0.0
        while os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            used = max(used, child._used() if child._used() < 1e6 else 0.0)
        child.wait()
    return used


def faulty(
    name: str,
    fault: Callable[[random.Random], Any],
    works: list[str],
    runs: int,
    moments: random.Random,
    memory: bool = False,
) -> Result:
    """A fault inside the fork; afterwards the training goes on without it."""
    result = Result(name)
    for work in works:
        for run in range(runs):
            with folders(work) as place:
                ended = Child(work, place, fault(moments)).wait()
                _writable(place)
                look(result, f"{work} {run}", place, ended.released, ended, memory=memory)
                go_on(result, f"{work} {run}", work, place, ended.released)
    return result


# ---------------------------------------------------------------- faults inside a fork


def small_files(moments: random.Random) -> Callable[[Path], None]:
    """A file ends after so many bytes: a quota, or a disk that is full."""

    def fault(place: Path) -> None:
        most = int(2 ** moments.uniform(6, 14))
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    return fault


def read_only(moments: random.Random) -> Callable[[Path], None]:
    """A folder that may not be written to, by a user who is not root."""

    def fault(place: Path) -> None:
        for file in [place, *place.rglob("*")]:
            file.chmod(0o555 if file.is_dir() else 0o444)
        if os.getuid() == 0:
            os.setgid(NOBODY)
            os.setuid(NOBODY)

    return fault


def clock_back(moments: random.Random) -> Callable[[Path], None]:
    """Every look at the clock is earlier than the last."""

    def fault(place: Path) -> None:
        class Back(datetime):
            moment = datetime.now(UTC)

            @classmethod
            def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
                cls.moment -= timedelta(days=moments.randint(1, 400))
                return cls.moment

        ledger.datetime = Back  # type: ignore[misc]

    return fault


class NaN:
    """Rows of NaN from some round on."""

    def __init__(self, moments: random.Random) -> None:
        self.at, self.t = moments.randint(0, ROUNDS - 1), 0

    def __call__(self, t: int) -> None:
        self.t = t

    def data(self, value: Any) -> Any:
        """Half of the rows spoilt."""
        if isinstance(value, torch.Tensor):
            if self.t >= self.at:
                value = value.clone()
                value[::2] = float("nan")
            return value
        value = np.array(value)
        value[::2] = np.nan
        return value


class Memory:
    """A batch of one round that needs more memory than the process may have: the module's own layers run out of it."""

    def __init__(self, moments: random.Random) -> None:
        self.at, self.now = moments.randint(0, 3), False

    def __call__(self, t: int) -> None:
        self.now = t == self.at
        if self.now:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            least = pages * resource.getpagesize() + (64 << 20)
            resource.setrlimit(resource.RLIMIT_AS, (least, resource.RLIM_INFINITY))

    def data(self, value: Any) -> Any:
        """The rows, each a million times: a view, which costs nothing until a layer computes with it."""
        return value.unsqueeze(1).expand(-1, 1 << 20, -1) if self.now else value


def tmpfs_full(works: list[str], runs: int, moments: random.Random) -> Result | None:
    """A real file system with no room left; None where none can be mounted."""
    result = Result("disk full (a small file system)")
    for work in works:
        for run in range(runs):
            with folders() as place:
                room = moments.choice([4, 8, 12, 16, 20, 28, 48])
                mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)]
                if subprocess.run(mount, capture_output=True, check=False).returncode:
                    return None
                try:
                    prepare(work, place)  # what the training needs is there, and then little room is left
                    _resize(place, f"{shutil.disk_usage(place).used // 1024 + room}k")
                    ended = Child(work, place).wait()
                    _resize(place, "4m")
                    look(result, f"{work} {run} {room}k", place, ended.released, ended)
                    go_on(result, f"{work} {run} {room}k", work, place, ended.released)
                finally:
                    subprocess.run(["umount", "-l", str(place)], capture_output=True, check=False)
    return result


def _resize(place: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(place)], capture_output=True, check=True)


# ---------------------------------------------------------------- files and neighbours


def truncated(works: list[str], runs: int, moments: random.Random) -> Result:
    """Each file of a stopped training cut at a random place: refused by name, or gone on with; never forgotten."""
    result = Result("truncated files")
    for work in works:
        with folders(work) as whole:
            child = Child(work, whole)
            child.stop(signal.SIGKILL, 0.7 * _length(work))
            released = child.wait().released
            files = [path for path in whole.rglob("*") if path.is_file() and path.name not in ("data.npz", ".lock")]
            for file in moments.sample(files, min(runs, len(files))):
                with folders() as place:
                    shutil.copytree(whole, place, dirs_exist_ok=True)
                    cut = place / file.relative_to(whole)
                    cut.write_bytes(cut.read_bytes()[: moments.randint(0, max(0, cut.stat().st_size - 1))])
                    ended = Child(work, place).wait()
                    result.runs += 1
                    words = unclear(ended)
                    result.unclear += [f"{work} {file.name}: {words}"] if words else []
                    result.said = result.said or ended.words.replace(str(place), "...")
                    try:
                        charges: float = charged(place)
                    except LedgerCorrupt:
                        charges = math.inf  # the loss is shown to whoever looks
                    if charges < released + ended.released and (ended.released or not ended.kind):
                        result.lost.append(f"{work}: {file.name} was cut: {charges} < {released} + {ended.released}")
    return result


def neighbours(works: list[str], runs: int, moments: random.Random) -> Result:
    """Several processes at once on one ledger with a budget."""
    result = Result("several processes on one ledger")
    for work in works:
        for run in range(runs):
            with folders() as base:
                shared = base / "ledger"
                Ledger.open(shared, budget=BUDGET)
                places = [base / str(k) for k in range(3)]
                for place in places:
                    place.mkdir()
                    (place / "ledger").symlink_to(shared)
                    (place / "ledger.lock").symlink_to(base / "ledger.lock")
                children = [Child(work, place) for place in places]
                ended = [child.wait() for child in children]
                released = sum(end.released for end in ended)
                result.runs += 1
                total = sum(Ledger.open(shared).rounds().values())
                if total < released:
                    result.lost.append(f"{work} {run}: {released} released, {total} charged")
                if Ledger.open(shared).spent() > BUDGET[0]:
                    result.lost.append(f"{work} {run}: the budget was exceeded")
                for end in ended:
                    words = unclear(end)
                    result.unclear += [f"{work} {run}: {words} {end.trace[-300:]}"] if words else []
                result.corrupt += [f"{work} {run}: {damage}" for damage in corrupt(base, False)]
    return result


def _writable(place: Path) -> None:
    for file in [place, *place.rglob("*")]:
        if not file.is_symlink():
            file.chmod(0o777 if file.is_dir() else 0o666)


ALL = list(WORK)


def scenarios(runs: int, moments: random.Random) -> dict[str, Callable[[], Result | None]]:
    """Every scenario by its name."""
    return {
        "kill": lambda: stopped("kill -9 at any moment", signal.SIGKILL, ALL, runs, moments),
        "ctrl-c": lambda: stopped("Ctrl-C at any moment", signal.SIGINT, ALL, runs, moments),
        "full": lambda: faulty("disk full (files end early)", small_files, ALL, runs, moments),
        "tmpfs": lambda: tmpfs_full(ALL, runs, moments),
        "read-only": lambda: faulty("read-only folder", read_only, ALL, 1, moments),
        "clock": lambda: faulty("clock going back", clock_back, ALL, 1, moments),
        "truncated": lambda: truncated(ALL, 3 * runs, moments),
        "neighbours": lambda: neighbours(["engine", "minimize", "estimator"], 1, moments),
        "nan": lambda: faulty("NaN mid-run", lambda m: lambda place: NaN(m), ["engine"], runs, moments),
        "memory": lambda: faulty(
            "out of memory in a batch", lambda m: lambda place: Memory(m), ["engine"], 2 * runs, moments, True
        ),
    }
