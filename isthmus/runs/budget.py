"""One budget for several runs on one data set: a ledger file that every run charges beside its own.

A run with `--budget FILE` keeps its own ledger in its folder and charges the shared one first, record by record.  A run
that would not fit is refused before it starts; should two runs start at once, the ledger itself refuses the charge
that does not fit, before anything is released.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isthmus import _validate
from isthmus.privacy import Ledger, epsilon_of
from isthmus.privacy import _events as events
from isthmus.privacy._library import dpa


class RunLedgers(Ledger):
    """The ledger of one run that also charges a shared one, under its label: first the shared one, then its own.

    `planned` are events that the run will release after its training; they count when it asks whether it will fit.

    >>> shared = Ledger(budget=(1.0, 1e-5))
    >>> own = RunLedgers(None, shared=shared, label="census-1")
    >>> own.pay("test", dpa.GaussianDpEvent(5.0))
    >>> own.rounds(), shared.rounds()
    ({'test': 1}, {'census-1/test': 1})
    """

    def __init__(
        self,
        path: str | Path | None,
        *,
        shared: Ledger | None = None,
        label: str = "",
        adjacency: Any = None,
        planned: Sequence[Any] = (),
    ) -> None:
        super().__init__(path, adjacency=adjacency)
        self.shared, self.label, self.planned = shared, label, tuple(planned)
        if shared is not None:
            same = shared.adjacency is self.adjacency
            remedy = f"the shared budget counts {shared.adjacency.value}: give the same --adjacency"
            _validate.check(same, "adjacency", self.adjacency.value, remedy)

    def require(self, event: Any, what: str = "run") -> None:
        """Refuse a run that the shared budget does not hold, with what it will release afterwards; charges nothing."""
        if self.shared is not None:
            self.shared.require(dpa.ComposedDpEvent([event, *self.planned]), self.label)

    def _begin(self, run: str, announced: Any) -> None:
        if self.shared is not None:
            self.shared._begin(run, {self._labelled(what): offer for what, offer in announced.items()})
        super()._begin(run, announced)

    def _reserve(self, run: str, what: str, t: int, event: Any, rounds: int, least: int) -> int:
        if self.shared is not None:
            rounds = self.shared._reserve(run, self._labelled(what), t, event, rounds, least)
        return super()._reserve(run, what, t, event, rounds, least)

    def _write(self, bodies: list[Any]) -> None:
        super()._write(bodies)  # the other way round than a charge: a refund that is lost in between is no loss
        if self.shared is not None:
            self.shared._write(
                [body | {"what": self._labelled(body["what"])} if "what" in body else body for body in bodies]
            )

    def _labelled(self, what: str) -> str:
        return f"{self.label}/{what}"


@dataclass(frozen=True)
class Spender:
    """One run as the shared ledger saw it: its label, when it began and last charged, its rounds, their epsilon."""

    label: str
    began: str
    last: str
    rounds: dict[str, int]
    epsilon: float | None


def open_shared(path: str | Path) -> Ledger:
    """The ledger of a shared budget; one that is not there, or has no limit, is refused with how to make it."""
    file = Path(path)
    make = f"make it first: isthmus budget {file} --epsilon 3 --delta 1e-6"
    _validate.check(file.is_file(), "budget", str(path), f"there is no such file: {make}")
    ledger = Ledger.open(file)
    _validate.check(ledger.budget is not None, "budget", str(path), f"this ledger has no limit: {make}")
    return ledger


def spenders(ledger: Ledger) -> list[Spender]:
    """Who has spent, in the order they began: runs by their label, charges without one by the id of their run."""
    found: dict[str, list[dict[str, Any]]] = {}
    for record in ledger.records():
        if record["kind"] in ("charge", "refund"):
            label, slash, _ = record["what"].rpartition("/")
            found.setdefault(label if slash else record["run"], []).append(record)
        elif record["kind"] == "torn":
            charges = [{**charge, "kind": "charge", "time": record["time"]} for charge in record["charges"]]
            found.setdefault("(cut by a kill)", []).extend(charges)
    return [_spender(ledger, label, records) for label, records in found.items() if records]


def _spender(ledger: Ledger, label: str, records: list[dict[str, Any]]) -> Spender:
    rounds: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for record in records:
        change = record["rounds"] if record["kind"] == "charge" else -record["rounds"]
        rounds[record["what"].rpartition("/")[2]] += change
        counts[events.canonical(record["event"])] += change
    charged = [(json.loads(event), count) for event, count in counts.items() if count]
    epsilon = None
    if ledger.budget is not None:
        whole = events.composed(charged)
        epsilon = float(epsilon_of(whole, ledger.budget[1], ledger.adjacency)) if charged else 0.0
    return Spender(label, records[0]["time"], records[-1]["time"], dict(rounds), epsilon)
