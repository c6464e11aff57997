"""Files that are whole or not there: written beside their place, forced to the disk, then renamed."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path


class CannotWrite(OSError):
    """A file that could not be written, with the reason; what was there before is untouched."""


@contextlib.contextmanager
def writing(path: str | Path, remedy: str = "what was there before is untouched") -> Iterator[None]:
    """Name the file where the system refuses to write: a full disk, say, or a folder that may only be read.

    >>> with writing("/nowhere/a.csv"):
    ...     open("/nowhere/a.csv", "w")
    Traceback (most recent call last):
    isthmus.base.atomic.CannotWrite: /nowhere/a.csv cannot be written (No such file or directory): what was there ...
    """
    try:
        yield
    except CannotWrite:
        raise
    except OSError as error:
        raise CannotWrite(f"{path} cannot be written ({error.strerror or error}): {remedy}") from error


@contextlib.contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """A file beside `path` to write to; it takes its place once it is whole and on the disk, or disappears.

    Its name is its own, so that two processes that write the same path do not mix: the later one's file stays.
    """
    target = Path(path)
    partial = target.with_name(f"{target.name}.{secrets.token_hex(8)}.part")
    with writing(target):
        try:
            yield partial
            sync(partial)
            partial.replace(target)
        finally:
            with contextlib.suppress(OSError):  # of a folder that may only be read
                partial.unlink(missing_ok=True)
        sync(target.parent)


def sync(path: str | Path) -> None:
    """Force a file's bytes, or a folder's entries, to the disk."""
    if os.name == "nt":  # it opens no folder, and writes out only what is open for writing
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
