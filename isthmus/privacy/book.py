"""Where a ledger's records are kept: plainly in memory, or sealed in a file that survives kills and shows tampering."""

from __future__ import annotations

import contextlib
import copy
import os
import secrets
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Protocol

from isthmus.base.validate import refuse
from isthmus.privacy.chain import Agreed, Chain, FileStore, Tally, mended
from isthmus.privacy.event_json import Json


class Book(Protocol):
    """Records that are only ever added to, and their totals."""

    tally: Tally

    @property
    def identity(self) -> str: ...

    def locked(self) -> contextlib.AbstractContextManager[None]: ...

    def append(self, *bodies: Json) -> None: ...

    def records(self) -> list[Json]: ...


class MemoryBook:
    """Records that live and die with their process, and belong to it alone.

    >>> book = MemoryBook()
    >>> with book.locked():
    ...     book.append({"kind": "open", "format": 1, "budget": None, "adjacency": "add-remove", "dataset": ""})
    >>> book.tally.opened, book.records()[0]["number"]
    (True, 1)
    """

    def __init__(self) -> None:
        self.tally, self.identity = Tally(), secrets.token_hex(32)
        self._records: list[Json] = []
        self._lock, self._pid = threading.Lock(), os.getpid()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One thread of the process that made it."""
        if os.getpid() != self._pid:
            refuse(
                "ledger", "in the memory of another process", "give the ledger a path, through which processes share it"
            )
        with self._lock:
            yield

    def append(self, *bodies: Json) -> None:
        """Count and keep records."""
        for body in bodies:
            time = datetime.now(UTC).isoformat(timespec="milliseconds")
            record = body | {"number": len(self._records) + 1, "time": time}
            self.tally.apply(record)
            self._records.append(record)

    def records(self) -> list[Json]:
        """Copies of every record."""
        with self.locked():
            return copy.deepcopy(self._records)


class FileBook:
    """The hash chain of a file; `given` is what a first record that was torn had said."""

    def __init__(self, store: FileStore, given: Agreed) -> None:
        self.tally, self._store = Tally(), store
        self._chain = Chain(
            store, self.tally.apply, partial(mended, self.tally, given=given, name=store.name), self.tally.clear
        )

    @property
    def identity(self) -> str:
        """The seal of its first record."""
        return self._chain.first

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """One thread of one process; what others wrote is read and verified, what was torn is mended."""
        return self._chain.locked()

    def append(self, *bodies: Json) -> None:
        """Seal records to the chain in one durable write."""
        self._chain.append(*bodies)

    def records(self) -> list[Json]:
        """Every record, read and verified anew from the first line."""
        records: list[Json] = []
        with self.locked():
            Chain(self._store, records.append, lambda junk: {}).sync()
        return records
