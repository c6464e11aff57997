"""A target: a function of bytes that returns, or raises an error that the package documents."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from isthmus.base.validate import InvalidInput
from isthmus.privacy.ledger import BudgetExceeded, LedgerCorrupt
from isthmus.runs.folder import FolderDamaged
from isthmus.sets.base import UnsupportedOperation

DOCUMENTED: tuple[type[Exception], ...] = (
    InvalidInput,
    UnsupportedOperation,
    LedgerCorrupt,
    BudgetExceeded,
    FolderDamaged,
)


class Broken(AssertionError):
    """An input that breaks a law: it was taken for something that it is not."""


@dataclass(frozen=True)
class Target:
    """One entrance to the package.

    run      what is done with an input
    seeds    inputs to begin with: real ones, as the package writes them
    words    tokens that a guided search may put in
    errors   documented errors of this entrance beside the common ones
    slow     an input costs milliseconds: the tests run fewer of them
    """

    name: str
    run: Callable[[bytes], None]
    seeds: Callable[[], Sequence[bytes]]
    words: Sequence[bytes] = ()
    errors: tuple[type[Exception], ...] = ()
    slow: int = 1
    counts: dict[str, int] = field(default_factory=lambda: {"cases": 0, "refused": 0}, compare=False)

    def __call__(self, data: bytes) -> None:
        """Run an input; whatever is raised here is a crash."""
        self.counts["cases"] += 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a leak warning is an answer
            try:
                self.run(data)
            except (*DOCUMENTED, *self.errors) as error:
                self.counts["refused"] += 1
                if not str(error).strip():
                    raise Broken(f"{type(error).__name__} says nothing") from error
                if _ran_out(error):
                    raise Broken("memory for much more than the input was asked for") from error


def _ran_out(error: BaseException | None) -> bool:
    """Whether memory ran out somewhere below an error; pyarrow asks for a whole page at once, and fills nothing."""
    while error is not None:
        if isinstance(error, MemoryError) and type(error).__name__ != "ArrowMemoryError":
            return True
        error = error.__cause__ or error.__context__
    return False


def check(holds: bool, what: str) -> None:
    """A law of a target."""
    if not holds:
        raise Broken(what)


def place_of(error: BaseException) -> str:
    """What tells one crash from another: the kind of error, and where in the package (or the target) it arose."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if f"{os.sep}isthmus{os.sep}" in frame.filename] or frames
    return f"{type(error).__name__} at {Path(own[-1].filename).name}:{own[-1].lineno}"


def digest(data: bytes) -> str:
    """A short name for an input."""
    return hashlib.sha256(data).hexdigest()[:12]


_FOLDER: list[tempfile.TemporaryDirectory[str]] = []


def folder() -> Path:
    """A place for the files of an input: in memory where the system has one."""
    if not _FOLDER:
        fast = Path("/dev/shm")
        _FOLDER.append(tempfile.TemporaryDirectory(dir=fast if os.access(fast, os.W_OK) else None))
    return Path(_FOLDER[0].name)


@contextlib.contextmanager
def a_file(name: str, data: bytes) -> Iterator[Path]:
    """An input as a file."""
    path = folder() / name
    path.write_bytes(data)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without what the package prints."""
    with open(os.devnull, "w") as sink, contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
        yield


def limit_memory(more: int = 2 << 30) -> None:
    """Let this process have so many bytes beyond what it has now: an input that asks for more shows."""
    import resource

    if sys.platform != "linux":
        return
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    used = pages * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more, resource.RLIM_INFINITY))
