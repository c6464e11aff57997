"""The work behind `isthmus describe`: a file, what was declared of it, and a private summary that is paid for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from isthmus.base import validate
from isthmus.estimators.summary import DELTA, Summary, private_summary
from isthmus.privacy import Ledger
from isthmus.runs.budget import open_shared
from isthmus.runs.config import Settings, target_of
from isthmus.tables.files import read
from isthmus.tables.schema import Column, Schema


def describe(settings: Settings, declared: Schema, bins: int) -> Summary:
    """The summary of a file's declared columns, charged to the shared budget where there is one."""
    validate.check(settings.private, "epsilon", settings.epsilon, "give a finite number: a summary is of private rows")
    remedy = "declare columns with --bounds, --categories or a schema, which `isthmus schema DATA` begins"
    validate.check(bool(declared.columns) or settings.target is not None, "schema", settings.schema, remedy)
    shared = None if settings.budget is None else open_shared(settings.budget)
    table = read(settings.data, reading=settings.reading)
    remedy = "give a csv or parquet file: a summary needs named columns"
    validate.check(table.frame is not None, "data", settings.data, remedy)
    delta = settings.delta or (DELTA if shared is None or shared.budget is None else shared.budget[1])
    budget = (settings.epsilon, delta) if shared is None else None
    label = f"describe {table.name}"
    ledger = Ledger(None, budget, shared=shared, label=label, adjacency=settings.adjacency)
    schema = Schema(tuple(_ranged(settings, column) for column in declared.columns), target_of(settings))
    options: dict[str, Any] = {"epsilon": settings.epsilon, "delta": delta, "adjacency": settings.adjacency}
    return private_summary(table.frame, schema, bins=bins, ledger=ledger, **options)


def _ranged(settings: Settings, column: Column) -> Column:
    """With the range that was declared of all numbers, where it has none of its own."""
    bare = column.type == "number" and column.bounds is None
    return replace(column, bounds=settings.bounds) if bare and settings.bounds is not None else column
