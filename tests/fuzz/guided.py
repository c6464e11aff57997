"""A target under atheris, in a fork of its own: crashes are kept and the search goes on.

The package is instrumented as it is imported, once; every target then has a fork.  What was found is in its folder:
`corpus/` (inputs that reach something new), `crashes/` (one input for each place of a crash), `stats.json`.  A hang
ends the fork; its input is kept too.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

TIMEOUT = 60
"""Seconds after which an input counts as a hang."""


def instrumented() -> dict[str, Any]:
    """Every target, with the package under observation."""
    import atheris

    with _silent(), atheris.instrument_imports(include=["isthmus"]):
        import isthmus  # noqa: F401
        from fuzz.targets import TARGETS
    return dict(TARGETS)


def search(target: Any, seconds: float, place: Path) -> int:
    """So many seconds of processor time for one target; the exit code of its fork."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "stats.json").unlink(missing_ok=True)
    pid = os.fork()
    if not pid:
        log = os.open(place / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        try:
            _fuzz(target, seconds, place)
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _fuzz(target: Any, seconds: float, place: Path) -> None:
    import atheris

    from fuzz.target import digest, limit_memory, place_of

    corpus, crashes = place / "corpus", place / "crashes"
    for part in (corpus, crashes):
        part.mkdir(exist_ok=True)
    for seed in target.seeds():
        (corpus / digest(seed)).write_bytes(seed)
    (place / "words").write_text("".join(f'"{_escaped(word)}"\n' for word in target.words))
    by_name: dict[str, dict[str, Any]] = {}
    began, last = time.process_time(), [0.0]

    def one(data: bytes) -> None:
        try:
            target(data)
        except Exception as error:
            where = place_of(error)
            if where not in by_name or len(data) < by_name[where]["size"]:
                file = crashes / digest(where.encode())
                file.write_bytes(data)
                by_name[where] = {
                    "size": len(data),
                    "file": str(file),
                    "error": f"{type(error).__name__}: {error}"[:300],
                }
                file.with_suffix(".txt").write_text("".join(traceback.format_exception(error)))
        now = time.process_time() - began
        if now - last[0] > 0.5:
            last[0] = now
            (place / "stats.json").write_text(json.dumps({**target.counts, "seconds": now, "crashes": by_name}))
            if now > seconds:
                os._exit(0)

    limit_memory()
    options = [f"-timeout={TIMEOUT}", "-rss_limit_mb=0", "-len_control=20", "-max_len=4096", "-verbosity=0"]
    options += [f"-artifact_prefix={crashes}/", *([f"-dict={place / 'words'}"] if target.words else [])]
    atheris.Setup([sys.argv[0], *options, str(corpus)], one)
    atheris.Fuzz()


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


class _silent:
    """Without the hundreds of lines that name what is instrumented."""

    def __enter__(self) -> None:
        self.stderr, sink = os.dup(2), os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 2)
        os.close(sink)

    def __exit__(self, *error: object) -> None:
        os.dup2(self.stderr, 2)
        os.close(self.stderr)
