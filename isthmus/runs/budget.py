"""One budget for several runs on one data set: a ledger file that every run charges beside its own.

A run with `--budget FILE` keeps its own ledger in its folder and charges the shared one first, record by record.  A run
that would not fit is refused before it starts; should two runs start at once, the ledger itself refuses the charge
that does not fit, before anything is released.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isthmus.base import validate
from isthmus.privacy import Ledger, epsilon_of, event_json


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
    validate.present(os.path.isfile(file), path, make)  # False also of a name that no file can have
    ledger = Ledger.open(file)
    validate.check(ledger.budget is not None, "budget", str(path), f"give a ledger that has a limit: {make}")
    return ledger


def spenders(ledger: Ledger) -> list[Spender]:
    """Who has spent, in the order they began: runs by their label, charges without one by the id of their run."""
    by_label: dict[str, list[dict[str, Any]]] = {}
    for record in ledger.records():
        if record["kind"] in ("charge", "refund"):
            label, slash, _ = record["what"].rpartition("/")
            by_label.setdefault(label if slash else record["run"], []).append(record)
        elif record["kind"] == "torn":
            charges = [{**charge, "kind": "charge", "time": record["time"]} for charge in record["charges"]]
            by_label.setdefault("(cut by a kill)", []).extend(charges)
    return [_spender(ledger, label, records) for label, records in by_label.items() if records]


def _spender(ledger: Ledger, label: str, records: list[dict[str, Any]]) -> Spender:
    rounds: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for record in records:
        change = record["rounds"] if record["kind"] == "charge" else -record["rounds"]
        rounds[record["what"].rpartition("/")[2]] += change
        counts[event_json.canonical(record["event"])] += change
    charged = [(json.loads(event), count) for event, count in counts.items() if count]
    epsilon = None
    if ledger.budget is not None:
        whole = event_json.composed(charged)
        epsilon = float(epsilon_of(whole, ledger.budget[1], ledger.adjacency)) if charged else 0.0
    return Spender(label, records[0]["time"], records[-1]["time"], dict(rounds), epsilon)
