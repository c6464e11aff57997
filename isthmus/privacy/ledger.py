"""The privacy ledger: a durable record of everything that was released, written before it is released.

A ledger is a database file to which records are only ever added, each sealed to the one before it by a hash.  A run
announces what one round of each of its stages costs, then charges the ledger before every private release.  Without a
path the same records are kept plainly in memory, for the process that made the ledger.

Guarantees:

* **Never below the truth.**  A charge is on the disk before `charge` returns, so whatever moment a process is killed
  at, the ledger holds at least what was released.
* **Little above it.**  One record may reserve k rounds; a kill leaves at most the rest of one reservation of each
  stage charged in vain.  `RunLedger.close` gives back rounds that were reserved and never begun, and only the live
  process that reserved them can do so: nothing gives back the rounds of a dead run.
* **All or nothing.**  An operation is one transaction: a kill inside it leaves the ledger as it was before.
* **One budget for many.**  Processes and threads share a ledger: no update is lost, and a charge that would carry the
  total beyond the budget is refused before anything is released.
* **Tampering shows.**  A record that was altered, removed, repeated or moved is refused with its number, and so are
  lost records at the end as long as the file `<path>.lock` is there.
* **Seeded noise is never forgotten.**  A run whose noise can be subtracted says so before its first charge, in a
  record of the chain: every statement about the ledger is "not private" from then on.

The file.  It is an SQLite database with one table, `records(number, hash, body)`.  A body is the canonical JSON of
`{"kind":...,"run":...,<what the kind needs>,"number":n,"time":...,"previous":hash}`, and `hash` is its SHA-256, so that
a record that is altered, removed or moved breaks the chain.  Every operation opens the file anew, in one transaction
that excludes all others, and has it on the disk before it returns (`synchronous=EXTRA`): a killed process leaves all of
its transaction or nothing, and a fork inherits nothing.  Beside the file `<path>.lock` keeps a mark, the number and
hash of the last durable record.  It is written after the record is safe, so it may lag but never lead: a ledger that
does not hold its mark has lost records.  Format 1 was a file of JSON lines, with the same records.  It is brought into
a database when it is first opened, and the old file is kept as `<path>.format-1`.

Limits.  A deliberate rewrite of the whole chain is outside the threat model: whoever may write the file can forge
a consistent one.  SQLite locks the file: keep the ledger on a local disk.  Epsilon is that of the charged rounds taken
as if their number had been fixed beforehand; where the releases themselves decided when to stop, quote the budget.

>>> from dp_accounting import dp_event
>>> ledger = Ledger(budget=(1.0, 1e-5))
>>> with ledger.run({"main": dp_event.GaussianDpEvent(50.0)}, reserve=10) as run:
...     for t in range(12):
...         run.charge("main", t)
>>> ledger.rounds()
{'main': 12}
>>> ledger.event()
SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=50.0), count=12)
>>> round(ledger.spent(), 3), round(ledger.remaining(), 3)
(0.228, 0.772)
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import NoReturn, TypeAlias, TypeVar

from isthmus.base import secret
from isthmus.base.atomic import CannotWrite, atomic_write, writing
from isthmus.base.validate import UNREADABLE, check, positive_int, refuse
from isthmus.privacy import accounting, event_json
from isthmus.privacy.accounting import Adjacency, _Relation
from isthmus.privacy.event_json import DpEvent, Json, _keyed, canonical
from isthmus.privacy.leaks import PrivacyBudgetWarning, warn

__all__ = ["BudgetExceeded", "Ledger", "LedgerCorrupt", "RunLedger"]

Event: TypeAlias = "DpEvent | Mapping[str, object]"
"""An event of `dp_accounting`, or its JSON form."""
_Totals: TypeAlias = "Counter[str]"
"""How often each release was made, by the canonical JSON of its event."""
_Path: TypeAlias = "str | os.PathLike[str]"
_Budget: TypeAlias = "tuple[float, float] | float | None"
_Sizes: TypeAlias = "int | Mapping[str, int]"
_Given = TypeVar("_Given")
_Limit: TypeAlias = "Callable[[str, Json, int], None]"
"""Asked before every charge of a run, by the stage, the event of its round, and how many of them were made: it refuses
rounds beyond those that a target pays for, whatever the ledger has left."""


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
_SILENCE = 5.0
"""How many of them it waits before it says so."""
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
            stage, change = self.runs[record["run"]][record["what"]], _SIGN[kind] * record["rounds"]
            if type(record["rounds"]) is not int or record["rounds"] < 1:
                positive_int(rounds=record["rounds"])
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
                    _begin(self._database, self.path)
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
                remedy = _FULL
                if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
                    remedy = "nothing was released for it; look for another process that has the ledger open"
                raise CannotWrite(f"{self.path} cannot be written ({error}): {remedy}") from error
            except (sqlite3.DatabaseError, UnicodeError) as error:  # of names in a damaged database
                raise LedgerCorrupt(f"{self.path}: this is not a ledger, or a damaged one ({error})") from error
            if self._number > found:
                with writing(self._mark_path, _FULL):
                    descriptor = os.open(self._mark_path, os.O_WRONLY | os.O_CREAT, 0o666)
                    try:  # numbers of one width: no write leaves a mixture behind
                        os.pwrite(descriptor, f"{self._number:020d} {self._head}\n".encode("ascii"), 0)
                    finally:
                        os.close(descriptor)
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
    database = sqlite3.connect(path, timeout=_SILENCE, isolation_level=None)
    database.text_factory = bytes
    return database


_BEGIN = "PRAGMA synchronous=EXTRA", "BEGIN EXCLUSIVE"
"""What may wait for another process: in the transaction nothing does."""


def _begin(database: sqlite3.Connection, path: Path) -> None:
    """Begin a transaction; where another process holds the file, say so once, and wait on."""
    try:
        for statement in _BEGIN:
            database.execute(statement)
        return
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
            raise
    warn(
        f"another process has held the ledger {str(path)!r} for {_SILENCE:g} seconds, and this one goes on "
        "waiting for it: look for another process that has the ledger open (stopped in a debugger, say), and let "
        "it go on or end it",
        RuntimeWarning,
    )
    for statement in (f"PRAGMA busy_timeout={round(1000 * (_PATIENCE - _SILENCE))}", *_BEGIN):
        database.execute(statement)


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


# ---------------------------------------------------------------- what is charged


class BudgetExceeded(RuntimeError):
    """A charge was refused and nothing was released: `spent`, `asked` (the total with the charge) and `left`."""

    def __init__(self, what: str, rounds: int, spent: float, asked: float, budget: tuple[float, float]) -> None:
        super().__init__(what, rounds, spent, asked, budget)
        self.what, self.rounds, self.budget = what, rounds, budget
        self.spent, self.asked, self.left = spent, asked, max(0.0, budget[0] - spent)

    def __str__(self) -> str:
        if math.isinf(self.asked):
            return f"{self.what!r} has no finite epsilon, and no budget is enough for that. Nothing was released."
        (limit, delta), rounds = self.budget, {1: "one more round"}.get(self.rounds, f"{self.rounds} more rounds")
        return (
            f"{self.what!r} needs epsilon {self.asked:.6g} in total; the budget holds {limit:g} at delta {delta:g}. "
            f"{self.spent:.6g} is spent already and {self.left:.6g} is left, too little for {rounds}. "
            "Nothing was released."
        )


_SEEDED: Json = {"kind": "seeded", "run": ""}
"""The record that says so; older versions refuse a ledger that has it."""


class Ledger:
    """Everything released from one dataset, kept in a file or, with `path=None`, in memory.

    `budget` is `(epsilon, delta)`, or `math.inf` for a record without a limit; `adjacency` is an `Adjacency` or its
    value (add-remove unless said otherwise); `dataset` is a public name.  An existing ledger is continued: what is left
    out is taken from it, and what is given must agree with it.  A new file whose limit is not said is warned of: with
    a mistake in its path, the ledger that was meant would not be charged.

    With `shared`, the ledger is one run's own beside one that it shares with others: every charge goes to both, first
    to the shared one, under the run's `label`.  `planned` are events that the run will release after its training;
    they count when it asks whether it will fit.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "census.ledger"
    >>> first = Ledger.open(path, budget=(2.0, 1e-6), dataset="census")
    >>> Ledger.open(path).budget
    (2.0, 1e-06)
    >>> Ledger.open(path, budget=(3.0, 1e-6))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: budget=(3.0, 1e-06) is not allowed: leave it out, or give (2.0, 1e-06), ...
    >>> own = Ledger(shared=first, label="census-1")
    >>> own.pay("test", {"event": "Gaussian", "noise_multiplier": 5.0})
    >>> own.rounds(), first.rounds()
    ({'test': 1}, {'census-1/test': 1})
    """

    def __init__(
        self,
        path: _Path | None = None,
        budget: _Budget = None,
        *,
        adjacency: _Relation | None = None,
        dataset: str | None = None,
        shared: Ledger | None = None,
        label: str | None = None,
        planned: Sequence[Event] = (),
    ) -> None:
        check(isinstance(dataset, str | None), "dataset", dataset, "give a public name, as a string")
        given: Json = {"budget": _checked_budget(budget), "dataset": dataset}
        if adjacency is not None:
            given["adjacency"] = Adjacency.of(adjacency).value
        opening: Json = {
            "kind": "open",
            "run": secrets.token_hex(8),  # a word of its own: two ledgers that are opened at once are two
            "format": FORMAT,
            "budget": given["budget"] and list(given["budget"]),
            "adjacency": given.get("adjacency", Adjacency.ADD_REMOVE.value),
            "dataset": dataset or "",
        }
        self._records = _Records(opening) if path is None else _FileRecords(path, opening)
        with self._records.locked():
            found = self._records.opened
            if not found:
                self._records.append(opening)
        if path is not None and not found and budget is None and shared is None:
            warn(
                f"there was no ledger at {os.fspath(path)!r}: a new one was opened, which knows of nothing that was "
                "spent before and refuses nothing. If you meant another file, correct its path; else say what it may "
                "hold, Ledger.open(path, budget=(epsilon, delta)), or budget=math.inf for a record without a limit",
                PrivacyBudgetWarning,
            )
        agreed = {"budget": self.budget, "dataset": self.dataset, "adjacency": self._records.adjacency}
        for name, value in given.items():
            remedy = f"leave it out, or give {agreed[name]!r}, with which this ledger was opened"
            check(value in (None, agreed[name]), name, value, remedy)
        self.adjacency = Adjacency(self._records.adjacency)
        self._within: _Totals = Counter()
        self._ahead = 1.0
        self.shared, self.label, self.planned = shared, label, tuple(planned)
        if shared is not None:
            remedy = f"give {shared.adjacency.value}, which the shared budget counts"
            check(shared.adjacency is self.adjacency, "adjacency", self.adjacency.value, remedy)
            # a refusal by the second would come after a charge
            check(self.budget is None, "budget", self.budget, "leave it out: the shared ledger has the budget")

    @classmethod
    def open(
        cls, path: _Path, budget: _Budget = None, *, adjacency: _Relation | None = None, dataset: str | None = None
    ) -> Ledger:
        """Continue the ledger at `path`, or create it.

        While another process is in the middle of a transaction, this waits for up to ten minutes, as every operation
        does; after five seconds it warns.
        """
        return cls(path, budget, adjacency=adjacency, dataset=dataset)

    @property
    def budget(self) -> tuple[float, float] | None:
        """Epsilon and delta that all charges together must not exceed, or None."""
        return self._records.budget

    @property
    def dataset(self) -> str:
        """The public name of the data."""
        return self._records.dataset

    @property
    def identity(self) -> str:
        """What tells this ledger from every other, wherever it is opened: the seal of a file's first record."""
        return self._records.identity

    @property
    def seeded(self) -> bool:
        """Whether anything was charged for noise that can be subtracted: what the ledger holds is then not private.

        `spent` is the epsilon that the same releases would have with secret noise.
        """
        with self._records.locked():
            return self._records.seeded

    def mark_seeded(self) -> None:
        """Write down, for good, that noise of a seed was released about this data.

        >>> ledger = Ledger()
        >>> ledger.mark_seeded()
        >>> ledger.seeded
        True
        """
        if self.shared is not None:
            self.shared.mark_seeded()
        with self._records.locked():
            if not self._records.seeded:
                self._records.append(_SEEDED)

    def run(
        self, events: Mapping[str, Event], reserve: _Sizes = 1, *, seeded: bool = False, limit: _Limit | None = None
    ) -> RunLedger:
        """Begin a run whose stage `name` costs `events[name]` a round, reserving `reserve` rounds at a time.

        `seeded` says that the run's noise can be subtracted: its first charge marks the ledger for good.  `limit` may
        refuse rounds before they are charged.
        """
        return RunLedger(self, events, reserve, seeded=seeded, limit=limit)

    def pay(self, what: str, event: Event, rounds: int = 1, *, seeded: bool = False) -> None:
        """Charge something that is released outside a run, such as a tuned constant: all its rounds or none.

        >>> ledger = Ledger()
        >>> ledger.pay("quantile", {"event": "Laplace", "noise_multiplier": 4.0})
        >>> ledger.rounds()
        {'quantile': 1}
        """
        with RunLedger(self, {what: event}, rounds, seeded=seeded) as run:
            run._take(what, 0, least=rounds)
            run._left[what] = 0  # all of them are made

    def require(self, event: Event, what: str = "run") -> None:
        """Raise `BudgetExceeded` where the budget does not hold this event on top of what is spent; charges nothing.

        A shared budget must hold it together with what the run has planned for afterwards.

        >>> from dp_accounting import dp_event
        >>> Ledger(budget=(1.0, 1e-5)).require(dp_event.GaussianDpEvent(1.0))
        Traceback (most recent call last):
        isthmus.privacy.ledger.BudgetExceeded: 'run' needs epsilon ... in total; the budget holds 1 ...
        """
        if self.shared is not None:
            all_of_it = [event_json.to_json(planned) for planned in (event, *self.planned)]
            self.shared.require({"event": "Composed", "events": all_of_it}, self.label or what)
        data = event_json.to_json(event)
        self._check_supported(data)
        totals, more = self._totals(), _keyed(data)
        if not self._fits(totals + more, ahead=False):
            raise self._exceeded(what, totals, more, 1)

    def spent(self, delta: float | None = None) -> float:
        """Epsilon, at `delta` (the budget's unless given), of everything charged so far, by all runs.

        It holds where the number of rounds was fixed beforehand; where what was released decided when to stop, the
        budget (or a run's statement, which counts its whole plan) is what holds.
        """
        if delta is None and self.budget is not None:
            delta = self.budget[1]
        if not isinstance(delta, (int, float)) or not 0 < delta < 1:
            refuse("delta", delta, "give a number strictly between 0 and 1")
        return self._epsilon(self._totals(), float(delta))

    def remaining(self, delta: float | None = None) -> float:
        """The budget's epsilon less what is spent; infinite without a budget."""
        if self.budget is None:
            return math.inf
        if delta not in (None, self.budget[1]):
            refuse("delta", delta, f"leave it out, or give {self.budget[1]:g}, which is the delta of the budget")
        return max(0.0, self.budget[0] - self.spent())

    def event(self) -> DpEvent:
        """All charges as one `dp_accounting` event, equal ones counted together."""
        return event_json._counted(self._totals())

    def rounds(self) -> dict[str, int]:
        """How many rounds each stage or release was charged for, by name."""
        with self._records.locked():
            return dict(+self._records.rounds)

    def records(self) -> list[Json]:
        """Every record, those of a file read and verified anew from the first."""
        return self._records.all()

    # ------------------------------------------------------------ what a run does

    def _begin(self, run: str, announced: Json) -> None:
        if self.shared is not None:
            self.shared._begin(run, {self._labelled(what): stage for what, stage in announced.items()})
        for stage in announced.values():
            self._check_supported(stage["event"])
        with self._records.locked():
            self._records.append({"kind": "begin", "run": run, "announced": announced})

    def _reserve(self, run: str, what: str, t: int, event: Json, rounds: int, least: int, seeded: bool = False) -> int:
        """Charge as many of `rounds` as the budget allows, or refuse if not even `least`; durable on return."""
        if self.shared is not None:
            rounds = self.shared._reserve(run, self._labelled(what), t, event, rounds, least, seeded)
        with self._records.locked():
            rounds = self._affordable(what, self._records.runs[run][what].releases, rounds, least)
            charge = {"kind": "charge", "run": run, "what": what, "rounds": rounds, "event": event, "t": t}
            if seeded and not self._records.seeded:
                self._records.append(_SEEDED, charge)
            else:
                self._records.append(charge)
        return rounds

    def _end(self, run: str, back: Mapping[str, tuple[int, Json]]) -> None:
        """Give back rounds of these stages, each with its event, and close the run."""
        refunds = [
            {"kind": "refund", "run": run, "what": what, "rounds": rounds, "event": event}
            for what, (rounds, event) in back.items()
        ]
        with self._records.locked():
            self._records.append(*refunds, {"kind": "close", "run": run})
        if self.shared is not None:  # after its own, unlike a charge: a refund that is lost in between is no loss
            self.shared._end(run, {self._labelled(what): rounds for what, rounds in back.items()})

    def _labelled(self, what: str) -> str:
        """What the shared ledger calls it."""
        if self.label is None:
            return what
        return f"{self.label}/{what}"

    # ------------------------------------------------------------ the budget

    def _affordable(self, what: str, event: _Totals, rounds: int, least: int) -> int:
        """The most of `rounds` that fit into the budget on top of what is spent."""
        totals = self._records.totals
        if self._records.budget is None or self._fits(totals + _times(event, rounds)):
            return rounds
        if rounds == least or not self._fits(totals + _times(event, least)):
            raise self._exceeded(what, totals, event, least)
        while rounds - least > 1:
            middle = (least + rounds) // 2
            if self._fits(totals + _times(event, middle)):
                least = middle
            else:
                rounds = middle
        return least

    def _fits(self, totals: _Totals, ahead: bool = True) -> bool:
        """Whether the budget holds these totals, asking the accountant seldom.

        Epsilon grows with every count, so totals found within the budget vouch for all smaller ones.  A check looks
        ahead, to totals grown by a factor that doubles with success and halves with failure: a run of T
        reservations asks about log T times.  What a run has planned is asked for as it is, before it begins: a bound
        of fewer rounds can be the larger number where the grid that it is computed on is another one, and must not
        refuse the last rounds of what was found to fit.
        """
        if self.budget is None or totals <= self._within:
            return True
        if ahead:
            grown = Counter({key: count + int(count * self._ahead) for key, count in totals.items()})
            if self._fits(grown, ahead=False):
                self._ahead = min(1.0, 2 * self._ahead)
                return True
            self._ahead /= 2
        fits = self._epsilon(totals, self.budget[1]) <= self.budget[0]
        if fits:
            self._within = totals
        return fits

    def _epsilon(self, totals: _Totals, delta: float) -> float:
        if not totals:
            return 0.0
        return accounting.epsilon_of(event_json._counted(totals), delta, self.adjacency)

    def _exceeded(self, what: str, totals: _Totals, event: _Totals, rounds: int) -> BudgetExceeded:
        assert self.budget is not None
        spent, asked = (self._epsilon(totals + _times(event, more), self.budget[1]) for more in (0, rounds))
        return BudgetExceeded(what, rounds, spent, asked, self.budget)

    def _check_supported(self, event: Json) -> None:
        """Refuse events the accountant cannot compose, before a run begins."""
        if self.budget is not None and not accounting.supports(event_json.from_json(event), self.adjacency):
            remedy = "use a mechanism that an accountant composes for"
            refuse("event", event, f"{remedy} {self.adjacency.value}: none composes this event")

    def _totals(self) -> _Totals:
        with self._records.locked():
            return +self._records.totals

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Ledger is not copied or pickled: open it by its path where it is needed")


def opened(ledger: _Given | _Path, adjacency: Adjacency) -> _Given | Ledger:
    """What was given as `ledger=`: for a path, the ledger that is kept there."""
    if isinstance(ledger, (str, os.PathLike)):
        return Ledger.open(ledger, adjacency=adjacency)
    return ledger


def _times(event: _Totals, rounds: int) -> _Totals:
    """The releases of so many rounds of an event."""
    return Counter({key: count * rounds for key, count in event.items()})


class RunLedger:
    """One run's hold on a ledger: what the pipeline calls before each release.

    | moment | on the disk | in memory |
    |---|---|---|
    | begun | the event of each stage and its reservation | |
    | `charge`, nothing reserved | k rounds charged, or as many as the budget still allows | k - 1 left |
    | `charge`, k left | | k - 1 left |
    | `close` | a refund of what is left, the end | closed |
    | killed | all reserved rounds stay charged | |

    A run belongs to the process that began it: a fork or a copy would spend the same reservation twice and is
    refused.  Use it as a context manager, or call `close`.

    >>> run = Ledger().run({"main": {"event": "Gaussian", "noise_multiplier": 2.0}}, reserve=5)
    >>> run.charge("main", 0)
    >>> run.ledger.rounds()
    {'main': 5}
    >>> run.charge("tuning", 0)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: stage='tuning' is not allowed: name a stage that this run announced, ...
    """

    def __init__(
        self,
        ledger: Ledger,
        events: Mapping[str, Event],
        reserve: _Sizes = 1,
        *,
        seeded: bool = False,
        limit: _Limit | None = None,
    ) -> None:
        good = bool(events) and all(isinstance(name, str) and name for name in events)
        check(good, "events", events, "give the event of a round for each stage, by its name")
        if not isinstance(reserve, Mapping):
            reserve = dict.fromkeys(events, reserve)
        remedy = f"give one number, or one for each of {sorted(events)}"
        check(set(reserve) == set(events), "reserve", sorted(reserve), remedy)
        positive_int(**{f"reserve[{name!r}]": size for name, size in reserve.items()})
        self._announced: Json = {
            name: {"event": event_json.to_json(event), "rounds": int(reserve[name])} for name, event in events.items()
        }
        self.ledger, self.id = ledger, secrets.token_hex(8)
        self.seeded, self._limit = seeded or secret.rehearsed(), limit
        self._pid, self._lock, self._closed = os.getpid(), threading.Lock(), False
        self._left, self._used = dict.fromkeys(events, 0), dict.fromkeys(events, 0)
        ledger._begin(self.id, self._announced)

    def charge(self, stage: str, t: int = 0) -> None:
        """Pay for one round of a stage: when this returns, the release may be made."""
        with self._lock:
            self._require_open()
            if stage not in self._announced:
                refuse("stage", stage, f"name a stage that this run announced, which are {sorted(self._announced)}")
            if self._limit is not None:
                self._limit(stage, self._announced[stage]["event"], max(int(t), self._used[stage]))
            if not self._left[stage]:
                self._take(stage, int(t))
            self._left[stage] -= 1
            self._used[stage] += 1

    def _take(self, stage: str, t: int, least: int = 1) -> None:
        """Charge the ledger for the rounds that the stage reserves, or for as many as the budget still allows."""
        event, rounds = self._announced[stage]["event"], self._announced[stage]["rounds"]
        self._left[stage] = self.ledger._reserve(self.id, stage, t, event, rounds, least, self.seeded)

    def close(self, refund: bool = True) -> None:
        """End the run; rounds reserved and never begun are given back.  Closing twice does nothing.

        With `refund=False` they stay charged: so that epsilon is that of a number of rounds fixed beforehand, where
        the releases decided when to stop.
        """
        with self._lock:
            if self._closed:
                return
            self._require_open()
            left, self._left = self._left, dict.fromkeys(self._left, 0)
            self._closed = True  # before the refund is written: what is given back can no longer be spent
            back = {name: (k, self._announced[name]["event"]) for name, k in left.items() if k and refund}
            self.ledger._end(self.id, back)

    def _require_open(self) -> None:
        if os.getpid() != self._pid:
            refuse("process", os.getpid(), f"begin a new run in this process: this one belongs to process {self._pid}")
        if self._closed:
            refuse("run", self.id, "begin a new run: this one is closed")

    def __enter__(self) -> RunLedger:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a RunLedger is not copied or pickled: its reservation would be spent twice")
