"""The records of a ledger: what they add up to, in memory or in a file of JSON lines sealed to each other by a hash.

Layout of a line: `{"kind":...,"run":...,<what the kind needs>,"number":n,"time":...,"previous":hash,"hash":hash}`,
where `hash` is the SHA-256 of the canonical JSON of all the rest.  A write is one `write` and one `fsync` under an
exclusive lock, so a process killed inside it leaves a prefix of its lines: only the last line of the file can be
torn, and a torn line has no newline.  Recovery ends that line with a tab and a record that states the digest
of the piece before the tab: nothing is ever erased, and a recovery that is itself killed leaves a torn line again.
JSON escapes tabs and newlines, so neither occurs inside a record.

The lock file keeps a mark, the number and hash of the last durable record.  It is written after the record is
safe, so it may lag but never lead: a ledger shorter than its mark has lost lines.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import math
import os
import secrets
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from isthmus.base.atomic import sync, writing
from isthmus.base.validate import UNREADABLE, positive_int, refuse
from isthmus.privacy.accounting import Adjacency
from isthmus.privacy.event_json import Json, _keyed, canonical

FORMAT = 1
"""The format of a ledger, in its first record."""
_SILENT = ("begin", "ran", "refund", "close", "seeded")  # a torn record of these kinds has charged nothing
_SIGN = {"charge": 1, "refund": -1}
"""Records that change what a run was charged."""
START = "0" * 64
"""What stands as `previous` in the first record."""
_FULL = "nothing was released for it; make room, and go on: what is there still counts"


class LedgerCorrupt(RuntimeError):
    """A ledger whose lines were altered, removed or reordered: the message has the file and the line."""


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


class _SealedRecords(_Records):
    """Records in a file, verified once and then only as it grows.

    The file and, beside it, its lock file `<path>.lock` are opened anew every time: forks share nothing.
    """

    def __init__(self, path: str | os.PathLike[str], opening: Json) -> None:
        super().__init__(opening)
        self.path, self.identity = Path(path), ""
        self._lock_path = self.path.with_name(self.path.name + ".lock")
        self._inode: int | None = None
        self._file = self._lock = -1
        self._applying = False

    def _forget(self) -> None:
        super()._forget()
        self._number, self._head, self._offset = 0, START, 0
        self._applying = False

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the lock file exclusively, against threads, forks and other processes, with all that they wrote read.

        What was torn is mended.
        """
        import fcntl  # POSIX only; a ledger in memory works without it

        with self._threads, contextlib.ExitStack() as stack:
            try:
                self._lock = _open_locked(self._lock_path, stack)
                self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
            except OSError as error:
                remedy = "give a path that can be written to: no ledger can be written to this one"
                refuse("path", str(self.path), f"{remedy} ({error.strerror or error})")
            stack.callback(os.close, self._file)
            inode = os.fstat(self._file).st_ino
            if self._inode not in (None, inode):
                raise LedgerCorrupt(
                    f"{self.path} was replaced by another file while it was in use: put the first one back"
                )
            self._inode = inode
            try:
                self._sync()
                yield
            finally:
                fcntl.flock(self._lock, fcntl.LOCK_UN)  # also where a fork has inherited the descriptor

    def append(self, *bodies: Json) -> None:
        """Seal the records to the chain in one durable write; call it inside `locked`."""
        if bodies:  # an empty line would be read as a record that was altered
            self._seal(b"", *bodies)

    def all(self) -> list[Json]:
        """Every record, read and verified anew from the first line."""
        records: list[Json] = []
        with self.locked():
            head = START
            for line in self._read(0).split(b"\n")[:-1]:
                records.append(self._checked(line, len(records), head))
                head = records[-1]["hash"]
        return records

    def _sync(self) -> None:
        """Read and verify what is new; where an interrupt came while a record was counted, all is read again."""
        if self._applying:
            self._forget()
        number, _, digest = os.pread(self._lock, 128, 0).decode("ascii", "replace").strip().partition(" ")
        marked = int(number) if number.isdecimal() and len(digest) == 64 else 0
        *lines, torn = self._read(self._offset).split(b"\n")
        for line in lines:
            self._take(line)
            if self._number == marked and self._head != digest:
                at = f"{self.path}: line {self._number}"
                raise LedgerCorrupt(f"{at} is not the record that was written there: it was altered")
        if self._number < marked:
            raise LedgerCorrupt(
                f"{self.path}: line {self._number + 1} is cut or missing: {marked} records were written to this "
                f"ledger, {self._number} are left: restore the file"
            )
        if torn:
            self._seal(torn, self._mended(torn))

    def _seal(self, junk: bytes, *bodies: Json) -> None:
        """Write records, the first in the line of a torn one."""
        lines, number, head = [], self._number, self._head
        for body in bodies:
            number += 1
            line, head = _sealed(body, number, head)
            lines.append(line)
        if junk:
            lines[0] = b"\t" + lines[0]
        self._append(b"\n".join(lines) + b"\n")
        lines[0] = junk + lines[0]
        for line in lines:
            self._take(line)
        with writing(self._lock_path, _FULL):  # numbers of one width: no write leaves a mixture behind
            os.pwrite(self._lock, f"{self._number:020d} {self._head}\n".encode("ascii"), 0)

    def _take(self, line: bytes) -> None:
        record = self._checked(line, self._number, self._head)
        self._applying = True
        self._apply(record)
        self.identity = self.identity or record["hash"]
        self._number, self._head, self._offset = record["number"], record["hash"], self._offset + len(line) + 1
        self._applying = False

    def _read(self, offset: int) -> bytes:
        """Everything from `offset` on; fewer bytes than that is a loss."""
        size = os.fstat(self._file).st_size
        if size < offset:
            raise LedgerCorrupt(
                f"{self.path} has shrunk from {offset} to {size} bytes while it was in use: restore the file"
            )
        data = bytearray()
        while piece := os.pread(self._file, 1 << 20, offset + len(data)):
            data += piece
        return bytes(data)

    def _append(self, data: bytes) -> None:
        """Returns when `data` is on the disk, and for a new file its directory entry too."""
        created = os.fstat(self._file).st_size == 0
        with writing(self.path, _FULL):
            self._write(data)
            os.fsync(self._file)
            if created:
                sync(self.path.parent)

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._file, data) :]

    def _checked(self, line: bytes, number: int, head: str) -> Json:
        """The record of a line that is whole, unaltered and next after so many records."""
        at = f"{self.path}: line {number + 1}"
        junk, tab, text = line.rpartition(b"\t")
        try:
            record: Json = json.loads(text)
            digest = record.pop("hash")
            good = _written(record | {"hash": digest}) == text and _digest(canonical(record).encode()) == digest
        except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
            cause = {0: "this is not a ledger"}.get(number, "it was altered")
            raise LedgerCorrupt(f"{at} is not a record: {cause}") from None
        if not good or record.get("torn") != (_piece(junk) if tab else None):
            raise LedgerCorrupt(f"{at} was altered: its content does not match its hash")
        if record.get("number") != number + 1:
            raise LedgerCorrupt(
                f"{at} holds record {record.get('number')} where record {number + 1} belongs: lines are missing, "
                "repeated or out of order"
            )
        if record.get("previous") != head:
            raise LedgerCorrupt(f"{at} does not continue the line before it: one of the two was altered")
        return record | {"hash": digest}

    def _mended(self, junk: bytes) -> Json:
        """The record that takes the place of a torn one: it charges the most that the torn one may have charged."""
        head = junk.partition(b"\t")[0]  # later pieces are recoveries that were killed in their turn
        if not self.opened:
            if not _may_be(head, '{"kind":"open",'):
                raise LedgerCorrupt(f"{self.path}: line 1 is not a record: this is not a ledger")
            return self.opening | {"torn": _piece(junk)}
        live = [
            (f'{{"kind":"charge","run":"{run}","what":{json.dumps(what)},', what, stage)
            for run, stages in self.runs.items()
            for what, stage in stages.items()
        ]
        fitting = [charge for charge in live if _may_be(head, charge[0])]
        if not fitting and not any(_may_be(head, f'{{"kind":"{kind}",') for kind in _SILENT):
            fitting = live
        most: dict[str, Json] = {}  # it was one record: equal events are not added up
        for _, what, stage in sorted(fitting, key=lambda charge: charge[2].rounds):
            most[canonical(stage.event)] = {"what": what, "event": stage.event, "rounds": stage.rounds}
        return {"kind": "torn", "run": "", "charges": list(most.values()), "torn": _piece(junk)}


def _open_locked(path: Path, stack: contextlib.ExitStack) -> int:
    """A descriptor of the lock file with its lock, of the file that bears the name now."""
    import fcntl

    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        stack.callback(os.close, descriptor)  # before it is locked, and once: an interrupt may come at any line
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):  # removed while waiting: a nameless lock protects nothing
            if os.fstat(descriptor).st_ino == os.stat(path).st_ino:
                return descriptor


def _sealed(body: Json, number: int, previous: str) -> tuple[bytes, str]:
    """The line of a record after so many others, and its hash."""
    record = _dated(body, number) | {"previous": previous}
    digest = _digest(canonical(record).encode())
    return _written(record | {"hash": digest}), digest


def _dated(body: Json, number: int) -> Json:
    return body | {"number": number, "time": datetime.now(UTC).isoformat(timespec="milliseconds")}


def _written(record: Json) -> bytes:
    return json.dumps(record, separators=(",", ":"), allow_nan=False).encode("ascii")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _piece(junk: bytes) -> Json:
    """What a record says of the torn piece whose line it ends."""
    return {"bytes": len(junk), "sha256": _digest(junk)}


def _may_be(head: bytes, beginning: str) -> bool:
    text = beginning.encode()
    return head.startswith(text) or text.startswith(head)


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
