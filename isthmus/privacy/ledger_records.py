"""The records of a ledger: what they add up to, in memory or in a database file, each sealed to the one before it.

A file is an SQLite database with one table, `records(number, hash, body)`.  A body is the canonical JSON of
`{"kind":...,"run":...,<what the kind needs>,"number":n,"time":...,"previous":hash}`, and `hash` is its SHA-256, so that
a record that is altered, removed or moved breaks the chain.  Every operation opens the file anew, in one transaction
that excludes all others, and has it on the disk before it returns (`synchronous=EXTRA`): a killed process leaves all of
its transaction or nothing, and a fork inherits nothing.

Beside the file `<path>.lock` keeps a mark, the number and hash of the last durable record.  It is written after the
record is safe, so it may lag but never lead: a ledger that does not hold its mark has lost records.

Format 1 was a file of JSON lines, with the same records.  It is brought into a database when it is first opened, and
the old file is kept as `<path>.format-1`.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import math
import os
import secrets
import shutil
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from isthmus.base.atomic import CannotWrite, atomic_write, writing
from isthmus.base.validate import UNREADABLE, positive_int, refuse
from isthmus.privacy.accounting import Adjacency
from isthmus.privacy.event_json import Json, _keyed, canonical

FORMAT = 1
"""The format of a ledger's records, in the first of them."""
START = "0" * 64
"""What stands as `previous` in the first record."""
_SIGN = {"charge": 1, "refund": -1}
"""Records that change what a run was charged."""
_TABLE = "CREATE TABLE records (number INTEGER PRIMARY KEY, hash TEXT NOT NULL, body TEXT NOT NULL)"
_INSERT = "INSERT INTO records VALUES (?, ?, ?)"
_DATABASE = b"SQLite format 3\0"
_PATIENCE = 600.0
"""Seconds that an operation waits for those of other processes."""
_FULL = "nothing was released for it; make room, and go on: what is there still counts"

_alone = threading.Lock()
"""Held while this process has the file of a ledger open, and while it forks: a fork inherits no open database."""
if os.name == "posix":
    os.register_at_fork(before=_alone.acquire, after_in_parent=_alone.release, after_in_child=_alone.release)


class LedgerCorrupt(RuntimeError):
    """A ledger whose records were altered, removed or reordered: the message has the file and the record."""


@dataclass
class _Announced:
    """What a run said of a stage when it began: the event of a round, how many it reserves, what it was charged."""

    event: Json
    rounds: int
    charged: int = 0

    def __post_init__(self) -> None:
        positive_int(rounds=self.rounds)
        self.releases = _keyed(self.event)


class _Records:
    """Records that are only ever added to, and their totals; these live and die with the process that made them.

    totals   how often each release was made, by the canonical JSON of its event
    rounds   how many rounds were charged, by name
    runs     the stages of every run that is not closed
    seeded   whether any charge was made for noise that can be subtracted: never forgotten

    >>> records = _Records({"kind": "open", "format": 1, "budget": None, "adjacency": "add-remove", "dataset": ""})
    >>> with records.locked():
    ...     records.append(records.opening)
    >>> records.opened, records.all()[0]["number"]
    (True, 1)
    """

    def __init__(self, opening: Json) -> None:
        self.opening, self.identity = opening, secrets.token_hex(32)
        self._kept: list[Json] = []
        self._threads, self._pid = threading.Lock(), os.getpid()
        self._forget()

    def _forget(self) -> None:
        self.budget: tuple[float, float] | None = None
        self.adjacency, self.dataset = Adjacency.ADD_REMOVE.value, ""
        self.totals: Counter[str] = Counter()
        self.rounds: Counter[str] = Counter()
        self.runs: dict[str, dict[str, _Announced]] = {}
        self.opened = self.seeded = False

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One thread of the process that made them."""
        if os.getpid() != self._pid:
            remedy = "give the ledger a path, through which processes share it"
            refuse("ledger", "in the memory of another process", remedy)
        with self._threads:
            yield

    def append(self, *bodies: Json) -> None:
        """Count and keep records; call it inside `locked`."""
        for body in bodies:
            record = _dated(body, len(self._kept) + 1)
            self._apply(record)
            self._kept.append(record)

    def all(self) -> list[Json]:
        """Copies of every record."""
        with self.locked():
            return copy.deepcopy(self._kept)

    def _apply(self, record: Json) -> None:
        """Count one record; one that no ledger can have written is refused, however well it is sealed."""
        try:
            self._count(record)
        except UNREADABLE as error:
            raise LedgerCorrupt(f"record {record.get('number')} cannot be what a ledger wrote ({error!r})") from None

    def _count(self, record: Json) -> None:
        kind = record["kind"]
        if (kind == "open") == self.opened:
            raise ValueError("a ledger begins with its one 'open' record")
        if kind == "open":
            if record["format"] != FORMAT:
                raise ValueError(f"format {record['format']}: this version reads format {FORMAT}")
            self.budget = _checked_budget(record["budget"])
            self.adjacency, self.dataset = Adjacency(record["adjacency"]).value, str(record["dataset"])
            self.opened = True
        elif kind == "seeded":
            self.seeded = True
        elif kind == "torn":
            for charge in record["charges"]:
                positive_int(rounds=charge["rounds"])
                self._add(charge["what"], _keyed(charge["event"]), charge["rounds"])
        elif kind == "begin":
            stages = {what: _Announced(**stage) for what, stage in record["announced"].items()}
            self.runs[record["run"]] = stages
        elif kind in _SIGN:
            positive_int(rounds=record["rounds"])
            stage, change = self.runs[record["run"]][record["what"]], _SIGN[kind] * record["rounds"]
            stage.charged += change
            if record["event"] != stage.event or stage.charged < 0:
                raise ValueError("this charge or refund was never announced or made")
            self._add(record["what"], stage.releases, change)
        elif kind == "close":
            del self.runs[record["run"]]
        elif kind != "ran":  # how many rounds a run had made: no longer written
            raise ValueError(f"no record of kind {kind!r} can stand here")

    def _add(self, what: str, releases: Counter[str], rounds: int) -> None:
        for key, count in releases.items():
            self.totals[key] += count * rounds
        self.rounds[what] += rounds


class _FileRecords(_Records):
    """Records in a file, verified once and then only as it grows."""

    def __init__(self, path: str | os.PathLike[str], opening: Json) -> None:
        super().__init__(opening)
        self.path, self.identity = Path(path).absolute(), ""
        self._mark_path = self.path.with_name(self.path.name + ".lock")
        self._inode: int | None = None

    def _forget(self) -> None:
        super()._forget()
        self._number, self._head = 0, START
        self._unsettled = False

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One transaction against threads, forks and other processes, with all that they wrote read.

        What it appends is on the disk when it ends.  Where it fails, what was counted here may not be in the file: the
        next one reads everything again.
        """
        with _alone:
            try:
                self._look()
                mark = self._mark()  # before the transaction: what others write meanwhile may be ahead of it
                with contextlib.closing(_connected(self.path)) as self._database:
                    self._database.execute("BEGIN IMMEDIATE")
                    if self._unsettled:
                        self._forget()
                    self._unsettled = True
                    new = self._made_table()
                    self._read_on(*mark)
                    if not (new or self.opened):
                        raise LedgerCorrupt(f"{self.path}: record 1 is missing: restore the file")
                    found = self._number
                    yield
                    self._database.execute("COMMIT")
            except sqlite3.OperationalError as error:
                raise CannotWrite(f"{self.path} cannot be written ({error}): {_FULL}") from error
            except (sqlite3.DatabaseError, UnicodeError) as error:  # of names in a damaged database
                raise LedgerCorrupt(f"{self.path}: this is not a ledger, or a damaged one ({error})") from error
            if self._number > found:
                self._write_mark()
            self._unsettled = False

    def append(self, *bodies: Json) -> None:
        """Seal the records to the chain; call it inside `locked`."""
        for body in bodies:
            record = _dated(body, self._number + 1) | {"previous": self._head}
            text = canonical(record)
            self._take(record | {"hash": _digest(text.encode())})
            self._database.execute(_INSERT, (self._number, self._head, text))

    def all(self) -> list[Json]:
        """Every record, read and verified anew from the first."""
        with self.locked():
            return list(self._verified(0, START))

    # ------------------------------------------------------------ the file

    def _look(self) -> None:
        """Make the file where there is none, convert one of an earlier version, and refuse one that took its place."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            remedy = "give a path that can be written to: no ledger can be written to this one"
            refuse("path", str(self.path), f"{remedy} ({error.strerror or error})")
        inode, first = os.fstat(descriptor).st_ino, os.pread(descriptor, 1, 0)
        os.close(descriptor)
        if self._inode is None and first == b"{":
            self._convert()
            inode = self.path.stat().st_ino
        if self._inode not in (None, inode):
            raise LedgerCorrupt(f"{self.path} was replaced by another file while it was in use: put the first one back")
        self._inode = inode

    def _made_table(self) -> bool:
        """Whether the file was empty; a ledger's table and its first record are made in one transaction."""
        tables = self._database.execute("SELECT sql FROM sqlite_master").fetchall()
        if not tables and self.path.stat().st_size == 0:
            self._database.execute(_TABLE)
            return True
        if tables != [(_TABLE.encode(),)]:
            raise LedgerCorrupt(f"{self.path} holds something else: this is not a ledger")
        return False

    def _read_on(self, marked: int, digest: bytes) -> None:
        """Read and verify what is new, in a file that still holds what was read before and what its mark says."""
        for number, known in ((self._number, self._head.encode()), (marked, digest)):
            row = self._database.execute("SELECT hash FROM records WHERE number = ?", (number,)).fetchone()
            if number and row != (known,):
                raise LedgerCorrupt(
                    f"{self.path}: record {number}, which was written to this ledger, is missing or altered: "
                    "restore the file"
                )
        for record in self._verified(self._number, self._head):
            self._take(record)

    def _verified(self, number: int, head: str) -> Iterator[Json]:
        """The records after so many others, each whole, unaltered and the next one."""
        rows = self._database.execute("SELECT hash, body FROM records WHERE number > ? ORDER BY number", (number,))
        for digest, body in rows:
            at = f"{self.path}: record {number + 1}"
            try:
                record = json.loads(str(body, "ascii"))
                intact = _digest(body).encode() == digest
                place = record["number"], record["previous"]
            except UNREADABLE:
                cause = {0: "this is not a ledger"}.get(number, "it was altered")
                raise LedgerCorrupt(f"{at} is not a record: {cause}") from None
            if not intact:
                raise LedgerCorrupt(f"{at} was altered: its content does not match its hash")
            if place != (number + 1, head):
                raise LedgerCorrupt(
                    f"{at} does not continue the one before it: records were removed, repeated, moved or altered"
                )
            number, head = number + 1, digest.decode()
            yield record | {"hash": head}

    def _take(self, record: Json) -> None:
        self._apply(record)
        self.identity = self.identity or record["hash"]
        self._number, self._head = record["number"], record["hash"]

    def _mark(self) -> tuple[int, bytes]:
        """The number and hash of a record that the file must hold; 0 where none is known."""
        number, digest = b"", b""
        with contextlib.suppress(FileNotFoundError):
            number, _, digest = self._mark_path.read_bytes().strip().partition(b" ")
        if number.isdigit() and len(digest) == len(START):
            return int(number), digest
        return 0, b""

    def _write_mark(self) -> None:
        with writing(self._mark_path, _FULL):
            descriptor = os.open(self._mark_path, os.O_WRONLY | os.O_CREAT, 0o666)
            try:  # numbers of one width: no write leaves a mixture behind
                os.pwrite(descriptor, f"{self._number:020d} {self._head}\n".encode("ascii"), 0)
            finally:
                os.close(descriptor)

    # ------------------------------------------------------------ files of format 1

    def _convert(self) -> None:
        """Put a database with the same records in the place of JSON lines, and keep the old file beside it."""
        import fcntl  # only POSIX has old files

        place = self.path.resolve()
        with self._mark_path.open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # as earlier versions lock it
            data = place.read_bytes()
            if data.startswith(_DATABASE):  # another process was faster
                return
            with atomic_write(place) as new, contextlib.closing(_connected(new)) as self._database:
                self._database.execute("PRAGMA journal_mode=OFF")
                self._database.execute("BEGIN")
                self._database.execute(_TABLE)
                *lines, torn = data.split(b"\n")
                self._database.executemany(_INSERT, ((n, *_old_record(line)) for n, line in enumerate(lines, 1)))
                self._unsettled = True
                self._read_on(*self._mark())
                if torn:
                    self._charge_torn(torn)
                self._database.execute("COMMIT")
                shutil.copymode(place, new)
                with atomic_write(f"{place}.format-1") as kept:
                    kept.write_bytes(data)

    def _charge_torn(self, piece: bytes) -> None:
        """A last line without its end was cut by a kill: charge the most that it may have been.

        That is one reservation of every event that an open run has announced; it was one record, so that equal events
        are not added up.
        """
        if not self.opened:
            beginning = b'{"kind":"open",'
            if not (piece.startswith(beginning) or beginning.startswith(piece)):
                raise LedgerCorrupt(f"{self.path}: record 1 is not a record: this is not a ledger")
            self.append(self.opening)
            return
        stages = [(stage.rounds, what, stage.event) for run in self.runs.values() for what, stage in run.items()]
        most: dict[str, Json] = {}
        for rounds, what, event in sorted(stages, key=lambda stage: stage[0]):
            most[canonical(event)] = {"what": what, "event": event, "rounds": rounds}
        self.append({"kind": "torn", "run": "", "charges": list(most.values())})


def _connected(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None)
    database.text_factory = bytes
    database.execute("PRAGMA synchronous=EXTRA")
    return database


def _old_record(line: bytes) -> tuple[str, bytes | str]:
    """The hash and the body of a line of format 1; a piece before a tab is what a kill had left in it."""
    text = line.rpartition(b"\t")[2]
    try:
        record = json.loads(text)
        return str(record.pop("hash")), canonical(record)
    except UNREADABLE:  # which is told when it is verified
        return "", text


def _dated(body: Json, number: int) -> Json:
    return body | {"number": number, "time": datetime.now(UTC).isoformat(timespec="milliseconds")}


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _checked_budget(budget: object) -> tuple[float, float] | None:
    """(epsilon, delta) as floats; None where there is no limit, be it said (`math.inf`) or not."""
    if budget is None or budget == math.inf:
        return None
    if not isinstance(budget, (tuple, list)) or [isinstance(part, (int, float)) for part in budget] != [True, True]:
        refuse("budget", budget, "give (epsilon, delta), or math.inf for no limit")
    epsilon, delta = map(float, budget)
    if not (0 < epsilon < math.inf and 0 < delta < 1):
        refuse("budget", (epsilon, delta), "give a finite epsilon above 0 and a delta strictly between 0 and 1")
    return epsilon, delta
