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

import json
import math
import os
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import NoReturn, Protocol, TypeAlias, TypeVar

from isthmus.base import secret
from isthmus.base.validate import check, positive_int, refuse
from isthmus.privacy import accounting, event_json
from isthmus.privacy.accounting import Adjacency, _Relation
from isthmus.privacy.event_json import DpEvent, Json
from isthmus.privacy.leaks import PrivacyBudgetWarning, warn
from isthmus.privacy.ledger_records import FORMAT, LedgerCorrupt, _checked_budget, _FileRecords, _Records

__all__ = ["BudgetExceeded", "Chargeable", "Ledger", "LedgerCorrupt", "Limit", "RunLedger"]

Event: TypeAlias = "DpEvent | Mapping[str, object]"
"""An event of `dp_accounting`, or its JSON form."""
_Totals: TypeAlias = "Counter[str]"
"""How often each release was made, by the canonical JSON of its event."""
_Path: TypeAlias = "str | os.PathLike[str]"
_Budget: TypeAlias = "tuple[float, float] | float | None"
_Sizes: TypeAlias = "int | Mapping[str, int]"
_Given = TypeVar("_Given")


class _Named(Protocol):
    """Whatever has a name, as the stage of a pipeline has."""

    @property
    def name(self) -> str: ...


class Chargeable(Protocol):
    """What a pipeline needs: it is charged before anything private is released."""

    def charge(self, stage: _Named, t: int) -> None: ...


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


@dataclass(frozen=True)
class Limit:
    """The rounds of a run that its target (epsilon, delta) pays for, whatever the ledger it is charged to has left.

    `cost(event, delta)` is epsilon by the accountant that the target was set with.
    """

    rounds: int
    budget: tuple[float, float]
    cost: Callable[[DpEvent, float], float]


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
        for name, value in given.items():
            agreed = getattr(self._records, name)
            if value is not None and value != agreed:
                refuse(name, value, f"leave it out, or give {agreed!r}, with which this ledger was opened")
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
        """Continue the ledger at `path`, or create it."""
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
        self, events: Mapping[str, Event], reserve: _Sizes = 1, *, seeded: bool = False, limit: Limit | None = None
    ) -> RunLedger:
        """Begin a run whose stage `name` costs `events[name]` a round, reserving `reserve` rounds at a time.

        `seeded` says that the run's noise can be subtracted: its first charge marks the ledger for good.  Rounds beyond
        a `limit` are refused.
        """
        return RunLedger(self, events, reserve, seeded=seeded, limit=limit)

    def pay(self, what: str, event: Event, rounds: int = 1, *, seeded: bool = False) -> None:
        """Charge something that is released outside a run, such as a tuned constant: all its rounds or none.

        >>> ledger = Ledger()
        >>> ledger.pay("quantile", {"event": "Laplace", "noise_multiplier": 4.0})
        >>> ledger.rounds()
        {'quantile': 1}
        """
        positive_int(rounds=rounds)
        with RunLedger(self, {what: event}, rounds, whole=True, seeded=seeded) as run:
            for t in range(rounds):
                run.charge(what, t)

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
        totals, more = self._totals(), event_json._keyed(data)
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
        return _composed(self._totals())

    def rounds(self) -> dict[str, int]:
        """How many rounds each stage or release was charged for, by name."""
        with self._records.locked():
            return dict(+self._records.rounds)

    def records(self) -> list[Json]:
        """Every record, those of a file read and verified anew from the first line."""
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
        return accounting.epsilon_of(_composed(totals), delta, self.adjacency)

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


def _composed(totals: _Totals) -> DpEvent:
    return event_json.composed((json.loads(key), count) for key, count in totals.items())


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
    refused.  Use it as a context manager, or call `close`.  `whole` refuses a reservation that fits only in part,
    `limit` rounds beyond what a target pays for.

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
        whole: bool = False,
        seeded: bool = False,
        limit: Limit | None = None,
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
        self.ledger, self.id, self._whole = ledger, secrets.token_hex(8), whole
        self.seeded, self.limit = seeded or secret.rehearsed(), limit
        self._pid, self._lock, self._closed = os.getpid(), threading.Lock(), False
        self._left, self._used = dict.fromkeys(events, 0), dict.fromkeys(events, 0)
        ledger._begin(self.id, self._announced)

    def charge(self, stage: _Named | str, t: int = 0) -> None:
        """Pay for one round of a stage (or its name): when this returns, the release may be made."""
        name = stage
        if not isinstance(name, str):
            name = name.name
        with self._lock:
            self._require_open()
            if name not in self._announced:
                refuse("stage", name, f"name a stage that this run announced, which are {sorted(self._announced)}")
            event, rounds = self._announced[name]["event"], self._announced[name]["rounds"]
            if self.limit is not None and max(int(t), self._used[name]) >= self.limit.rounds:
                held = self.ledger.event()
                more = accounting.compose([held, event_json.from_json(event)])
                spent, asked = (self.limit.cost(events, self.limit.budget[1]) for events in (held, more))
                raise BudgetExceeded(name, 1, spent, asked, self.limit.budget)
            if not self._left[name]:
                least = 1
                if self._whole:
                    least = rounds
                self._left[name] = self.ledger._reserve(self.id, name, int(t), event, rounds, least, self.seeded)
            self._left[name] -= 1
            self._used[name] += 1

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
