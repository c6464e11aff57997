"""An append-only file of JSON lines, each sealed to the one before it by a hash.

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
import hashlib
import json
import math
import os
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from numbers import Integral
from pathlib import Path
from typing import TypedDict

from isthmus.base.atomic import sync, writing
from isthmus.base.validate import UNREADABLE, refuse
from isthmus.privacy.accounting import Adjacency
from isthmus.privacy.event_json import Json, Keyed, canonical, keyed

_FORMAT = 1
_SILENT = ("begin", "ran", "refund", "close", "seeded")  # a torn record of these kinds has charged nothing
START = "0" * 64
"""What stands as `previous` in the first record."""


class LedgerCorrupt(RuntimeError):
    """A ledger whose lines were altered, removed or reordered: the message has the file and the line."""


class Agreed(TypedDict):
    """What a ledger is opened with; None where nothing is said."""

    budget: tuple[float, float] | None
    adjacency: str | None
    dataset: str | None


class FileStore:
    """A file and, beside it, its lock file `<path>.lock`; both are opened anew every time (forks share nothing)."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.name = str(self.path)
        self._lock_path = self.path.with_name(self.path.name + ".lock")
        self._inode: int | None = None
        self._threads = threading.Lock()
        self._file = self._lock = -1

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the lock file exclusively: against threads, forks and other processes."""
        import fcntl  # POSIX only; a ledger in memory works without it

        with self._threads, contextlib.ExitStack() as stack:
            try:
                self._lock = _open_locked(self._lock_path, stack)
                self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
            except OSError as error:
                refuse(
                    "path",
                    str(self.path),
                    "give a path that can be written to: no ledger can be written to this one "
                    f"({error.strerror or error})",
                )
            stack.callback(os.close, self._file)
            inode = os.fstat(self._file).st_ino
            if self._inode not in (None, inode):
                raise LedgerCorrupt(
                    f"{self.name} was replaced by another file while it was in use: put the first one back"
                )
            self._inode = inode
            try:
                yield
            finally:
                fcntl.flock(self._lock, fcntl.LOCK_UN)  # also where a fork has inherited the descriptor

    def read(self, offset: int) -> bytes:
        """Everything from `offset` on; fewer bytes than that is a loss."""
        size = os.fstat(self._file).st_size
        if size < offset:
            raise LedgerCorrupt(
                f"{self.name} has shrunk from {offset} to {size} bytes while it was in use: restore the file"
            )
        data = bytearray()
        while piece := os.pread(self._file, 1 << 20, offset + len(data)):
            data += piece
        return bytes(data)

    def append(self, data: bytes) -> None:
        """Returns when `data` is on the disk, and for a new file its directory entry too."""
        created = os.fstat(self._file).st_size == 0
        with writing(self.path, "nothing was released for it; make room, and go on: what is there still counts"):
            self.write(self._file, data)
            os.fsync(self._file)
            if created:
                sync(self.path.parent)

    def write(self, file: int, data: bytes) -> None:
        """All of `data`, in order."""
        while data:
            data = data[os.write(file, data) :]

    def mark(self) -> tuple[int, str]:
        """Number and hash of a record known to be durable; (0, START) where nothing readable is kept."""
        number, _, digest = os.pread(self._lock, 128, 0).decode("ascii", "replace").strip().partition(" ")
        return (int(number), digest) if number.isdecimal() and len(digest) == 64 else (0, START)

    def set_mark(self, number: int, digest: str) -> None:
        """Remember a durable record; its numbers have one width, so that no write leaves a mixture behind."""
        with writing(self._lock_path, "nothing was released for it; make room, and go on: what is there still counts"):
            os.pwrite(self._lock, f"{number:020d} {digest}\n".encode("ascii"), 0)


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


class Chain:
    """The verified records of a store, read once and then only as it grows.

    `apply(record)` is told every record in order; `mend(junk)` says what record takes the place of a torn tail.
    `forget()` undoes every `apply`: where an interrupt came in between, all is read again.
    """

    def __init__(
        self,
        store: FileStore,
        apply: Callable[[Json], None],
        mend: Callable[[bytes], Json],
        forget: Callable[[], None] = lambda: None,
    ) -> None:
        self.store, self._apply, self._mend, self._forget = store, apply, mend, forget
        self.first, self._taking = "", False
        self._restart()

    def _restart(self) -> None:
        self._forget()
        self.number, self._head, self._offset = 0, START, 0
        self._taking = False

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """The lock, with everything read that others have written, and a torn tail mended."""
        with self.store.locked():
            self.sync()
            yield

    def append(self, *bodies: Json) -> None:
        """Seal the records to the chain in one durable write; call it inside `locked`."""
        if bodies:  # an empty line would be read as a record that was altered
            self._write(b"", *bodies)

    def _write(self, junk: bytes, *bodies: Json) -> None:
        lines, number, head = [], self.number, self._head
        for body in bodies:
            number += 1
            line, head = _seal(body, number, head)
            lines.append(line)
        self.store.append((b"\t" if junk else b"") + b"\n".join(lines) + b"\n")
        lines[0] = junk + b"\t" + lines[0] if junk else lines[0]
        for line in lines:
            self._take(line)
        self.store.set_mark(self.number, self._head)

    def sync(self) -> None:
        """Read and verify what is new; call it inside the store's lock."""
        if self._taking:
            self._restart()
        marked, digest = self.store.mark()
        *lines, tail = self.store.read(self._offset).split(b"\n")
        for line in lines:
            self._take(line)
            if self.number == marked and self._head != digest:
                raise LedgerCorrupt(f"{self._line(0)} is not the record that was written there: it was altered")
        if tail and _is_json(tail.rpartition(b"\t")[2]):  # all but its newline was written
            self._check(tail)
            self.store.append(b"\n")
            self._take(tail)
            tail = b""
        if self.number < marked:
            raise LedgerCorrupt(
                f"{self._line()} is cut or missing: {marked} records were written to this ledger, {self.number} are "
                "left: restore the file"
            )
        if tail:
            self._write(tail, self._mend(tail) | {"torn": _digest(tail)})

    def _take(self, line: bytes) -> None:
        record = self._check(line)
        self._taking = True
        self._apply(record)
        self.first = self.first or record["hash"]
        self.number, self._head, self._offset = record["number"], record["hash"], self._offset + len(line) + 1
        self._taking = False

    def _check(self, line: bytes) -> Json:
        """The record of a line that is whole, unaltered and next in the chain."""
        junk, tab, text = line.rpartition(b"\t")
        try:
            record = json.loads(text)
            sealed = record.pop("hash")
            whole = isinstance(sealed, str) and _encode(record | {"hash": sealed}) == text
        except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
            cause = "this is not a ledger" if self.number == 0 else "it was altered"
            raise LedgerCorrupt(f"{self._line()} is not a record: {cause}") from None
        if not whole or hashlib.sha256(canonical(record).encode()).hexdigest() != sealed:
            raise LedgerCorrupt(f"{self._line()} was altered: its content does not match its hash")
        if record.get("number") != self.number + 1:
            raise LedgerCorrupt(
                f"{self._line()} holds record {record.get('number')} where record {self.number + 1} belongs: "
                "lines are missing, repeated or out of order"
            )
        if record.get("previous") != self._head:
            raise LedgerCorrupt(f"{self._line()} does not continue the line before it: one of the two was altered")
        if (record.get("torn") != _digest(junk)) if tab else ("torn" in record):
            raise LedgerCorrupt(f"{self._line()} was altered: the torn piece it begins with is not the one recorded")
        checked: Json = record | {"hash": sealed}
        return checked

    def _line(self, ahead: int = 1) -> str:
        return f"{self.store.name}: line {self.number + ahead}"


def _seal(body: Json, number: int, previous: str) -> tuple[bytes, str]:
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    record = body | {"number": number, "time": time, "previous": previous}
    digest = hashlib.sha256(canonical(record).encode()).hexdigest()
    return _encode(record | {"hash": digest}), digest


def _encode(record: Json) -> bytes:
    return json.dumps(record, separators=(",", ":"), allow_nan=False).encode("ascii")


def _digest(junk: bytes) -> Json:
    return {"bytes": len(junk), "sha256": hashlib.sha256(junk).hexdigest()}


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


# ---------------------------------------------------------------- what the records say


@dataclass
class Announced:
    """What a run said of its stages when it began, and what it was charged for since."""

    announced: Json
    charged: Counter[str] = field(default_factory=Counter)
    closed: bool = False
    keys: dict[str, Keyed] = field(init=False)
    """The releases of one round of each stage."""

    def __post_init__(self) -> None:
        self.keys = {what: keyed(offer["event"]) for what, offer in self.announced.items()}


@dataclass
class Tally:
    """Running totals of a chain: rounds by event (canonical JSON) and by name."""

    budget: tuple[float, float] | None = None
    adjacency: str = Adjacency.ADD_REMOVE.value
    dataset: str = ""
    totals: Counter[str] = field(default_factory=Counter)
    rounds: Counter[str] = field(default_factory=Counter)
    runs: dict[str, Announced] = field(default_factory=dict)
    opened: bool = False
    seeded: bool = False
    """Whether any charge was made for noise that can be subtracted: never forgotten."""

    def apply(self, record: Json) -> None:
        """Count one verified record."""
        try:
            self._apply(record)
        except UNREADABLE as error:
            raise LedgerCorrupt(f"record {record.get('number')} cannot be what a ledger wrote ({error!r})") from None

    def _apply(self, record: Json) -> None:
        kind = record["kind"]
        if (kind == "open") == self.opened:
            raise ValueError("a ledger begins with its one 'open' record")
        if kind == "open":
            if record["format"] != _FORMAT:
                raise ValueError(f"format {record['format']}: this version reads format {_FORMAT}")
            self.budget = checked_budget(record["budget"])
            self.adjacency, self.dataset = Adjacency(record["adjacency"]).value, str(record["dataset"])
            self.opened = True
        elif kind == "torn":
            for charge in record["charges"]:
                check_rounds(rounds=charge["rounds"])
                self._count(charge["what"], keyed(charge["event"]), charge["rounds"])
        elif kind == "seeded":
            self.seeded = True
        elif kind == "begin":
            self.runs[record["run"]] = Announced(record["announced"])
        else:
            self._apply_to_run(kind, self.runs[record["run"]], record)

    def _apply_to_run(self, kind: str, run: Announced, record: Json) -> None:
        if run.closed or kind not in ("charge", "ran", "refund", "close"):
            raise ValueError(f"no record of kind {kind!r} can stand here")
        if kind == "close":
            run.closed = True
        elif kind != "ran":
            check_rounds(rounds=record["rounds"])
            change = record["rounds"] if kind == "charge" else -record["rounds"]
            same = record["event"] == run.announced[record["what"]]["event"]
            run.charged[record["what"]] += change
            if not same or run.charged[record["what"]] < 0:
                raise ValueError("this charge or refund was never announced or made")
            self._count(record["what"], run.keys[record["what"]], change)

    def clear(self) -> None:
        """As it was made."""
        for name, value in vars(Tally()).items():
            setattr(self, name, value)

    def _count(self, what: str, event: Keyed, rounds: int) -> None:
        for key, count in event:
            self.totals[key] += count * rounds
        self.rounds[what] += rounds


def opening(given: Agreed) -> Json:
    """The first record of a ledger, with a word of its own: two that are opened at once are two."""
    return {
        "kind": "open",
        "run": secrets.token_hex(8),
        "format": _FORMAT,
        "budget": given["budget"] and list(given["budget"]),
        "adjacency": given["adjacency"] or Adjacency.ADD_REMOVE.value,
        "dataset": given["dataset"] or "",
    }


def mended(tally: Tally, junk: bytes, given: Agreed, name: str) -> Json:
    """The record that takes the place of a torn one: it charges the most that the torn one may have charged."""
    head = junk.split(b"\t")[0]  # later pieces are recoveries that were killed in their turn
    if not tally.opened:
        if _may_be(head, '{"kind":"open",'):
            return opening(given)
        raise LedgerCorrupt(f"{name}: line 1 is not a record: this is not a ledger")
    live = [
        (f'{{"kind":"charge","run":"{run}","what":{json.dumps(what)},', {"what": what, **offer})
        for run, state in tally.runs.items()
        if not state.closed
        for what, offer in state.announced.items()
    ]
    fitting = [charge for beginning, charge in live if _may_be(head, beginning)]
    if not fitting and not any(_may_be(head, f'{{"kind":"{kind}",') for kind in _SILENT):
        fitting = [charge for _, charge in live]
    most: dict[str, Json] = {}  # it was one record: equal events are not added up
    for charge in fitting:
        key = canonical(charge["event"])
        if key not in most or most[key]["rounds"] < charge["rounds"]:
            most[key] = charge
    return {"kind": "torn", "run": "", "charges": list(most.values())}


def _may_be(head: bytes, beginning: str) -> bool:
    text = beginning.encode()
    return head.startswith(text) or text.startswith(head)


# ---------------------------------------------------------------- arguments


def checked_budget(budget: object) -> tuple[float, float] | None:
    """(epsilon, delta) as floats; None where there is no limit, be it said (`math.inf`) or not."""
    if budget is None or budget == math.inf:
        return None
    if not isinstance(budget, (tuple, list)) or [isinstance(part, (int, float)) for part in budget] != [True, True]:
        refuse("budget", budget, "give (epsilon, delta), or math.inf for no limit")
    epsilon, delta = map(float, budget)
    if not (0 < epsilon < math.inf and 0 < delta < 1):
        refuse("budget", (epsilon, delta), "give a finite epsilon above 0 and a delta strictly between 0 and 1")
    return epsilon, delta


def adjacency_value(adjacency: Adjacency | str | None) -> str | None:
    """The text of an `Adjacency`, checked."""
    value = adjacency.value if isinstance(adjacency, Adjacency) else adjacency
    if value not in (None, *(member.value for member in Adjacency)):
        refuse("adjacency", adjacency, f"choose one of {[member.value for member in Adjacency]}")
    return value


def check_rounds(**arguments: object) -> None:
    """Each argument is an integer >= 1."""
    for name, value in arguments.items():
        if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
            refuse(name, value, "give a whole number of at least 1")
