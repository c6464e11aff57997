"""The privacy ledger: a durable record of everything that was released, written before it is released.

A ledger is an append-only file of JSON lines, each sealed to the one before it by a hash.  A run announces what one
round of each of its stages costs, then charges the ledger before every private release.

Guarantees:

* **Never below the truth.**  A charge is on the disk (`fsync`) before `charge` returns, so whatever moment a
  process is killed at, the ledger holds at least what was released.
* **Little above it.**  One record may reserve k rounds; a kill leaves at most the rest of one reservation of each
  stage charged in vain.  `RunLedger.close` gives back rounds that were reserved and never begun, and only the live
  process that reserved them can do so: nothing gives back the rounds of a dead run.
* **A torn write counts.**  A record cut by a kill is recognised by its missing newline.  Where all of it but the
  newline is there, it counts as it stands; where it shows its run and stage, that stage's announced reservation is
  charged; where it shows less, one reservation of every announced event it may have been.
* **One budget for many.**  Processes and threads share a ledger under an exclusive lock: no update is lost, and a
  charge that would carry the total beyond the budget is refused before anything is released.
* **Tampering shows.**  A line that was altered, removed, repeated or moved is refused with its number, and so are
  lost lines at the end as long as the lock file is there.
* **Seeded noise is never forgotten.**  A run whose noise can be subtracted says so before its first charge, in a
  record of the chain: every statement about the ledger is "not private" from then on.

Limits.  A deliberate rewrite of the whole chain is outside the threat model: whoever may write the file can forge
a consistent one.  The lock is `flock`: keep the ledger on a local disk.  Epsilon is that of the charged rounds taken
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

import json
import math
import os
import secrets
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, NoReturn

from isthmus.base.validate import refuse
from isthmus.privacy import event_json
from isthmus.privacy.chain import (
    Account,
    Chain,
    FileStore,
    LedgerCorrupt,
    MemoryStore,
    Store,
    adjacency_value,
    check_rounds,
    checked_budget,
    mended,
    opening,
)
from isthmus.privacy.event_json import Json

__all__ = ["BudgetExceeded", "Ledger", "LedgerCorrupt", "RunLedger"]

Totals = Mapping[str, int]


class BudgetExceeded(RuntimeError):
    """A charge was refused and nothing was released: `spent`, `asked` (the total with the charge) and `left`."""

    def __init__(self, what: str, rounds: int, spent: float, asked: float, budget: tuple[float, float]) -> None:
        super().__init__(what, rounds, spent, asked, budget)
        self.what, self.rounds, self.budget = what, rounds, budget
        self.spent, self.asked, self.left = spent, asked, max(0.0, budget[0] - spent)

    def __str__(self) -> str:
        return (
            f"{self.what!r} is refused: {self.rounds} more round(s) would bring epsilon from {self.spent:.6g} to "
            f"{self.asked:.6g}, and {self.left:.6g} is left of the budget epsilon={self.budget[0]:g} at "
            f"delta={self.budget[1]:g}"
        )


class Ledger:
    """Everything released from one dataset, kept in a file or, with `path=None`, in memory.

    `budget` is `(epsilon, delta)`, or None for a record without a limit; `adjacency` is an `Adjacency` or its value
    (add-remove unless said otherwise); `dataset` is a public name.  An existing ledger is continued: what is left
    out is taken from it, and what is given must agree with it.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "census.ledger"
    >>> first = Ledger.open(path, budget=(2.0, 1e-6), dataset="census")
    >>> Ledger.open(path).budget
    (2.0, 1e-06)
    >>> Ledger.open(path, budget=(3.0, 1e-6))
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: budget=(3.0, 1e-06) is not allowed: this ledger was opened with (2.0, 1e-06)
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        budget: tuple[float, float] | None = None,
        *,
        adjacency: Any = None,
        dataset: str | None = None,
    ) -> None:
        if not isinstance(dataset, str | None):
            refuse("dataset", dataset, "give a public name, as a string")
        given = {"budget": checked_budget(budget), "adjacency": adjacency_value(adjacency), "dataset": dataset}
        self._store = self._make_store(path)
        self._pid = os.getpid()
        self._account = Account()
        mend = partial(mended, self._account, given=given, name=self._store.name)
        self._chain = Chain(self._store, self._account.apply, mend)
        with self._chain.locked():
            if not self._chain.number:
                self._chain.append(opening(given))
        for name, value in given.items():
            kept = getattr(self._account, name)
            if value is not None and value != kept:
                refuse(name, value, f"this ledger was opened with {kept!r}")
        self._meter = _Meter(self._account.budget, self._account.adjacency)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        budget: tuple[float, float] | None = None,
        *,
        adjacency: Any = None,
        dataset: str | None = None,
    ) -> Ledger:
        """Continue the ledger at `path`, or create it."""
        return cls(path, budget, adjacency=adjacency, dataset=dataset)

    @staticmethod
    def _make_store(path: str | os.PathLike[str] | None) -> Store:
        return MemoryStore() if path is None else FileStore(path)

    @property
    def budget(self) -> tuple[float, float] | None:
        """Epsilon and delta that all charges together must not exceed, or None."""
        return self._account.budget

    @property
    def adjacency(self) -> Any:
        """The `Adjacency` that the events are counted for."""
        return self._meter.adjacency

    @property
    def dataset(self) -> str:
        """The public name of the data."""
        return self._account.dataset

    @property
    def seeded(self) -> bool:
        """Whether anything was charged for noise that can be subtracted: what the ledger holds is then not private.

        `spent` is the epsilon that the same releases would have with secret noise.
        """
        with self._locked():
            return self._account.seeded

    def taint(self) -> None:
        """Write down, for good, that noise of a seed was released about this data.

        >>> ledger = Ledger()
        >>> ledger.taint()
        >>> ledger.seeded
        True
        """
        with self._locked():
            if not self._account.seeded:
                self._chain.append(*self._tainting(True))

    def run(
        self, events: Mapping[str, Any], reserve: int | Mapping[str, int] = 1, *, seeded: bool = False
    ) -> RunLedger:
        """Begin a run whose stage `name` costs `events[name]` a round, reserving `reserve` rounds at a time.

        `seeded` says that the run's noise can be subtracted: its first charge marks the ledger for good.
        """
        return RunLedger(self, events, reserve, seeded=seeded)

    def pay(self, what: str, event: Any, rounds: int = 1, *, seeded: bool = False) -> None:
        """Charge something that is released outside a run, such as a tuned constant: all its rounds or none.

        >>> ledger = Ledger()
        >>> ledger.pay("quantile", {"event": "Laplace", "noise_multiplier": 4.0})
        >>> ledger.rounds()
        {'quantile': 1}
        """
        check_rounds(rounds=rounds)
        with RunLedger(self, {what: event}, rounds, whole=True, seeded=seeded) as run:
            for t in range(rounds):
                run.charge(what, t)

    def require(self, event: Any, what: str = "run") -> None:
        """Raise `BudgetExceeded` where the budget does not hold this event on top of what is spent; charges nothing.

        >>> from dp_accounting import dp_event
        >>> Ledger(budget=(1.0, 1e-5)).require(dp_event.GaussianDpEvent(1.0))
        Traceback (most recent call last):
        isthmus.privacy.ledger.BudgetExceeded: 'run' is refused: ... is left of the budget epsilon=1 at delta=1e-05
        """
        if self.budget is None:
            return
        data = event_json.to_json(event)
        self._meter.check_supported([data])
        with self._locked():
            totals = dict(self._account.totals)
        asked = self._meter.epsilon(_plus(totals, data, 1), self.budget[1])
        if asked > self.budget[0] * (1 + 1e-9):
            raise BudgetExceeded(what, 1, self._meter.epsilon(totals, self.budget[1]), asked, self.budget)

    def spent(self, delta: float | None = None) -> float:
        """Epsilon, at `delta` (the budget's unless given), of everything charged so far, by all runs.

        It holds where the number of rounds was fixed beforehand; where what was released decided when to stop, the
        budget (or a run's statement, which counts its whole plan) is what holds.
        """
        delta = self._delta(delta)
        return self._meter.epsilon(self._totals(), delta)

    def remaining(self, delta: float | None = None) -> float:
        """The budget's epsilon less what is spent; infinite without a budget."""
        if self.budget is None:
            return math.inf
        if delta not in (None, self.budget[1]):
            refuse("delta", delta, f"the budget is one at delta={self.budget[1]:g}")
        return max(0.0, self.budget[0] - self.spent())

    def event(self) -> Any:
        """All charges as one `dp_accounting` event, equal ones counted together."""
        return event_json.composed((json.loads(key), count) for key, count in self._totals().items())

    def rounds(self) -> dict[str, int]:
        """How many rounds each stage or release was charged for, by name."""
        with self._locked():
            return {what: count for what, count in self._account.rounds.items() if count}

    def records(self) -> list[Json]:
        """Every record, read and verified anew from the first line."""
        records: list[Json] = []
        with self._locked():  # what was torn is mended now
            Chain(self._store, records.append, lambda junk: {}).sync()
        return records

    def _totals(self) -> dict[str, int]:
        with self._locked():
            return {key: count for key, count in self._account.totals.items() if count}

    def _locked(self) -> Any:
        self._require_owner()
        return self._chain.locked()

    def _require_owner(self) -> None:
        if isinstance(self._store, MemoryStore) and os.getpid() != self._pid:
            refuse("ledger", "in memory of another process", "share a ledger between processes through a path")

    def _delta(self, delta: float | None) -> float:
        if delta is None and self.budget is not None:
            return self.budget[1]
        if not isinstance(delta, (int, float)) or not 0 < delta < 1:
            refuse("delta", delta, "give a number strictly between 0 and 1")
        return float(delta)

    def _begin(self, run: str, announced: Json) -> None:
        if self.budget is not None:
            self._meter.check_supported(offer["event"] for offer in announced.values())
        with self._locked():
            self._chain.append({"kind": "begin", "run": run, "announced": announced})

    def _reserve(self, run: str, what: str, t: int, event: Json, rounds: int, least: int, seeded: bool = False) -> int:
        """Charge as many of `rounds` as the budget allows, or refuse if not even `least`; durable on return."""
        with self._locked():
            if self.budget is not None:
                rounds = self._meter.affordable(what, self._account.totals, event, rounds, least)
            charge = {"kind": "charge", "run": run, "what": what, "rounds": rounds, "event": event, "t": t}
            self._chain.append(*self._tainting(seeded), charge)
        return rounds

    def _tainting(self, seeded: bool) -> list[Json]:
        """The record that says so, where it was not said before; older versions refuse a ledger that has it."""
        return [{"kind": "seeded", "run": ""}] if seeded and not self._account.seeded else []

    def _write(self, bodies: list[Json]) -> None:
        with self._locked():
            self._chain.append(*bodies)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Ledger is not copied or pickled: open it by its path where it is needed")


class RunLedger:
    """One run's hold on a ledger: what the pipeline calls before each release.

    | moment | on the disk | in memory |
    |---|---|---|
    | begun | the event of each stage and its reservation | |
    | `charge`, nothing reserved | k rounds charged, or as many as the budget still allows | k - 1 left |
    | `charge`, k left | | k - 1 left |
    | `close` | what ran, a refund of what is left, the end | closed |
    | killed | all reserved rounds stay charged | |

    A run belongs to the process that began it: a fork or a copy would spend the same reservation twice and is
    refused.  Use it as a context manager, or call `close`.  `whole` refuses a reservation that fits only in part.

    >>> run = Ledger().run({"main": {"event": "Gaussian", "noise_multiplier": 2.0}}, reserve=5)
    >>> run.charge("main", 0)
    >>> run.held()
    {'main': 4}
    >>> run.charge("tuning", 0)
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: stage='tuning' is not allowed: this run announced ['main']
    """

    def __init__(
        self,
        ledger: Ledger,
        events: Mapping[str, Any],
        reserve: int | Mapping[str, int] = 1,
        *,
        whole: bool = False,
        seeded: bool = False,
    ) -> None:
        if not events or not all(isinstance(name, str) and name for name in events):
            refuse("events", events, "give the event of a round for each stage, by its name")
        sizes = dict(reserve) if isinstance(reserve, Mapping) else dict.fromkeys(events, reserve)
        if set(sizes) != set(events):
            refuse("reserve", sorted(sizes), f"give one number, or one for each of {sorted(events)}")
        check_rounds(**{f"reserve[{name!r}]": size for name, size in sizes.items()})
        self._offers: Json = {
            name: {"event": event_json.to_json(event), "rounds": int(sizes[name])} for name, event in events.items()
        }
        self.ledger, self.id, self._whole, self.seeded = ledger, secrets.token_hex(8), whole, seeded
        self._pid, self._lock, self._closed = os.getpid(), threading.Lock(), False
        self._left, self._used = dict.fromkeys(events, 0), dict.fromkeys(events, 0)
        ledger._begin(self.id, self._offers)

    def charge(self, stage: Any, t: int = 0) -> None:
        """Pay for one round of a stage (or its name): when this returns, the release may be made."""
        name = stage if isinstance(stage, str) else stage.name
        with self._lock:
            self._require_open()
            if name not in self._offers:
                refuse("stage", name, f"this run announced {sorted(self._offers)}")
            if not self._left[name]:
                event, rounds = self._offers[name]["event"], self._offers[name]["rounds"]
                least = rounds if self._whole else 1
                self._left[name] = self.ledger._reserve(self.id, name, int(t), event, rounds, least, self.seeded)
            self._left[name] -= 1
            self._used[name] += 1

    def held(self) -> dict[str, int]:
        """The rounds of each stage that are charged and not yet begun."""
        return dict(self._left)

    def note(self) -> None:
        """Write down what has run so far, for a reader; no charge changes."""
        with self._lock:
            self._require_open()
            self.ledger._write(self._ran())

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
            back = [
                {"kind": "refund", "run": self.id, "what": name, "rounds": count, "event": self._offers[name]["event"]}
                for name, count in left.items()
                if count and refund
            ]
            self.ledger._write([*self._ran(), *back, {"kind": "close", "run": self.id}])

    def _ran(self) -> list[Json]:
        used = {name: count for name, count in self._used.items() if count}
        return [{"kind": "ran", "run": self.id, "what": name, "rounds": count} for name, count in used.items()]

    def _require_open(self) -> None:
        if os.getpid() != self._pid:
            refuse("process", os.getpid(), f"this run belongs to process {self._pid}: begin another one here")
        if self._closed:
            refuse("run", self.id, "it is closed: begin another one")

    def __enter__(self) -> RunLedger:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a RunLedger is not copied or pickled: its reservation would be spent twice")


# ---------------------------------------------------------------- what it costs


class _Meter:
    """Epsilon of totals, computed seldom.

    Epsilon grows with every count, so totals found within the budget vouch for all smaller ones.  A check looks
    ahead, to totals grown by a factor that doubles with success and halves with failure: a run of T
    reservations asks the accountant about log T times.
    """

    def __init__(self, budget: tuple[float, float] | None, adjacency: str) -> None:
        self.budget, self._adjacency = budget, adjacency
        self._cache: dict[tuple[frozenset[tuple[str, int]], float], float] = {}
        self._within: Totals = {}
        self._beyond: Totals | None = None
        self._ahead = 1.0

    @property
    def adjacency(self) -> Any:
        """The enum member."""
        from isthmus.privacy.adjacency import Adjacency

        return Adjacency(self._adjacency)

    def check_supported(self, events: Iterable[Json]) -> None:
        """Refuse events the accountant cannot compose, before a run begins."""
        from isthmus.privacy import accounting

        for event in events:
            if not accounting.supports(event_json.from_json(event), self.adjacency):
                refuse("event", event, f"no accountant composes it for {self._adjacency}")

    def epsilon(self, totals: Totals, delta: float) -> float:
        """By the accountant, remembered."""
        from isthmus.privacy import accounting

        if not any(totals.values()):
            return 0.0
        key = (frozenset(totals.items()), delta)
        if key not in self._cache:
            if len(self._cache) >= 256:
                self._cache.clear()
            event = event_json.composed((json.loads(each), count) for each, count in totals.items())
            self._cache[key] = float(accounting.epsilon_of(event, delta, self.adjacency))
        return self._cache[key]

    def affordable(self, what: str, totals: Totals, event: Json, rounds: int, least: int) -> int:
        """The most of `rounds` that fit into the budget on top of `totals`; `BudgetExceeded` below `least`."""
        assert self.budget is not None
        if self._affords(_plus(totals, event, rounds)):
            return rounds
        if rounds == least or not self._affords(_plus(totals, event, least)):
            spent, asked = (self.epsilon(_plus(totals, event, more), self.budget[1]) for more in (0, least))
            raise BudgetExceeded(what, least, spent, asked, self.budget)
        low, high = least, rounds
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._affords(_plus(totals, event, middle)) else (low, middle)
        return low

    def _affords(self, totals: Totals) -> bool:
        if _covers(self._within, totals):
            return True
        if self._beyond is not None and _covers(totals, self._beyond):
            return False
        ahead = {key: count + int(count * self._ahead) for key, count in totals.items()}
        if self._try(ahead):
            self._ahead = min(1.0, 2 * self._ahead)
            return True
        self._ahead = max(1e-4, self._ahead / 2)
        return self._try(totals)

    def _try(self, totals: Totals) -> bool:
        assert self.budget is not None
        if self._beyond is not None and _covers(totals, self._beyond):
            return False
        fits = self.epsilon(totals, self.budget[1]) <= self.budget[0]
        if fits:
            self._within = totals
        else:
            self._beyond = totals
        return fits


def _plus(totals: Totals, event: Json, rounds: int) -> dict[str, int]:
    new = Counter(totals)
    for each, count in event_json.flatten(event, rounds):
        new[event_json.canonical(each)] += count
    return {key: count for key, count in new.items() if count}


def _covers(large: Totals, small: Totals) -> bool:
    return all(large.get(key, 0) >= count for key, count in small.items())
