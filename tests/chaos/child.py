"""A training in a fork: every value that leaves private data is told through a pipe, at the moment it is made."""

from __future__ import annotations

import json
import os
import signal
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.work import WORK
from isthmus.privacy import mechanisms


@dataclass(frozen=True)
class Ended:
    """How a fork ended: its exit code, how many values it released, what it raised and the words of that."""

    code: int
    released: int
    kind: str = ""
    words: str = ""
    trace: str = ""


class Child:
    """A fork that runs one training, with a fault that is put in place first."""

    def __init__(self, work: str, place: Path, fault: Callable[[Path], Any] | None = None) -> None:
        self._counts, counts = os.pipe()
        self._told, pipe_in = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            try:
                self._run(work, place, fault, counts, pipe_in)
            finally:
                os._exit(99)
        os.close(counts)
        os.close(pipe_in)

    def _run(self, work: str, place: Path, fault: Callable[[Path], Any] | None, counts: int, pipe_in: int) -> None:
        log = os.open(os.devnull, os.O_WRONLY)
        os.dup2(log, 1)
        os.dup2(log, 2)
        warnings.simplefilter("ignore")
        _tell_releases(counts)
        result: dict[str, Any] = {"kind": "", "words": ""}
        try:
            WORK[work](place, _nothing if fault is None else fault(place) or _nothing)
        except BaseException as error:
            code = getattr(error, "code", None) or getattr(error, "exit_code", None)
            kind = f"exit {code}" if isinstance(error, SystemExit) or code else type(error).__name__
            words = str(error) or ("interrupted" if isinstance(error, KeyboardInterrupt) else "")
            result = {"kind": kind, "words": words, "trace": traceback.format_exc()[-3000:]}
        os.write(pipe_in, json.dumps(result).encode()[:60000])
        os._exit(1 if result["kind"] else 0)

    def stop(self, number: int, after: float) -> None:
        """Send a signal once the fork has had so many seconds of a processor; one that has ended is left alone."""
        while self._used() < after:
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None:
                return
            time.sleep(1e-3)
        os.kill(self.pid, number)

    def _used(self) -> float:
        try:
            return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[0]) / 1e9
        except (OSError, IndexError, ValueError):
            return float("inf")

    def wait(self, seconds: float = 300.0) -> Ended:
        """How it ended; one that hangs is ended and counts as such."""
        end, hung = time.monotonic() + seconds, False
        while os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            if time.monotonic() > end:
                os.kill(self.pid, signal.SIGKILL)
                hung = True
                break
            time.sleep(2e-3)
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        released, text = len(_all(self._counts)), _all(self._told)
        if hung:
            return Ended(code, released, "hang", f"no end after {seconds:.0f} s")
        return Ended(code, released, **(json.loads(text) if text else {}))


def _nothing(t: int) -> None:
    pass


def _tell_releases(pipe: int) -> None:
    """Write a byte for every noisy value, before anybody has it."""
    release = mechanisms.Gaussian.release

    def telling(self: Any, bounded: Any, noise: Any) -> Any:
        out = release(self, bounded, noise)
        os.write(pipe, b".")
        return out

    mechanisms.Gaussian.release = telling  # type: ignore[method-assign]


def _all(pipe: int) -> bytes:
    data = b""
    while piece := os.read(pipe, 1 << 16):
        data += piece
    os.close(pipe)
    return data
