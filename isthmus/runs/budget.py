"""One budget for several runs on one data set: a ledger file that every run charges beside its own.

A run with `--budget FILE` keeps its own ledger in its folder and charges the shared one first, record by record.  A run
that would not fit is refused before it starts; should two runs start at once, the ledger itself refuses the charge
that does not fit, before anything is released.

The work behind `isthmus describe`: a file, what was declared of it, and a private summary that is paid for.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

from isthmus.base import validate
from isthmus.estimators.summary import DELTA, Summary, private_summary
from isthmus.privacy import Ledger, epsilon_of, event_json
from isthmus.runs.config import Settings, target_of
from isthmus.tables.files import read
from isthmus.tables.schema import Schema


def open_shared(path: str | Path) -> Ledger:
    """The ledger of a shared budget; one that is not there, or has no limit, is refused with how to make it."""
    file = Path(path)
    make = f"make it first: isthmus budget {file} --epsilon 3 --delta 1e-6"
    validate.present(os.path.isfile(file), path, make)  # False also of a name that no file can have
    ledger = Ledger.open(file)
    validate.check(ledger.budget is not None, "budget", str(path), f"give a ledger that has a limit: {make}")
    return ledger


def spenders(ledger: Ledger) -> list[dict[str, Any]]:
    """Who has spent, in the order they began: runs by their label, charges without one by the id of their run.

    Of each its label, when it began and last charged, its rounds, and their epsilon.
    """
    assert ledger.budget is not None
    by_label: dict[str, list[dict[str, Any]]] = {}
    for record in ledger.records():
        if record["kind"] in ("charge", "refund"):
            label, _, _ = record["what"].rpartition("/")
            by_label.setdefault(label or record["run"], []).append(record)
        elif record["kind"] == "torn" and record["charges"]:
            charges = [{**charge, "kind": "charge", "time": record["time"]} for charge in record["charges"]]
            by_label.setdefault("(cut by a kill)", []).extend(charges)
    found = []
    for label, records in by_label.items():
        rounds: Counter[str] = Counter()
        events: Counter[str] = Counter()
        for record in records:
            change = record["rounds"] * {"charge": 1, "refund": -1}[record["kind"]]
            rounds[record["what"].rpartition("/")[2]] += change
            events[event_json.canonical(record["event"])] += change
        charged, epsilon = [(json.loads(event), count) for event, count in events.items() if count], 0.0
        if charged:
            epsilon = float(epsilon_of(event_json.composed(charged), ledger.budget[1], ledger.adjacency))
        times = {"began": records[0]["time"], "last": records[-1]["time"]}
        found.append({"label": label, **times, "rounds": dict(rounds), "epsilon": epsilon})
    return found


def describe(settings: Settings, declared: Schema, bins: int) -> Summary:
    """The summary of a file's declared columns, charged to the shared budget where there is one."""
    validate.check(settings.private, "epsilon", settings.epsilon, "give a finite number: a summary is of private rows")
    remedy = "declare columns with --bounds, --categories or a schema, which `isthmus schema DATA` begins"
    validate.check(bool(declared.columns) or settings.target is not None, "schema", settings.schema, remedy)
    shared = None if settings.budget is None else open_shared(settings.budget)
    table = read(settings.data, reading=settings.reading)
    remedy = "give a csv or parquet file: a summary needs named columns"
    validate.check(table.frame is not None, "data", settings.data, remedy)
    delta, budget = settings.delta or DELTA, None
    if shared is None:
        budget = (settings.epsilon, delta)
    elif settings.delta is None and shared.budget is not None:
        delta = shared.budget[1]
    label = f"describe {table.name}"
    ledger = Ledger(None, budget, shared=shared, label=label, adjacency=settings.adjacency)
    columns = tuple(column.settled(settings.bounds, None, settings.missing) for column in declared.columns)
    schema = Schema(columns, target_of(settings), settings.missing)
    promise: dict[str, Any] = {"epsilon": settings.epsilon, "delta": delta, "adjacency": settings.adjacency}
    return private_summary(table.frame, schema, bins=bins, ledger=ledger, **promise)
