"""`private_summary`: counts, histograms, quantiles and means of a table, with noise that is paid for.

At most three looks at the rows, with Gaussian noise:

    summary ranges   in which power of two an entry lies, for columns of numbers whose range was not declared
    summary counts   in which cell an entry lies, one cell for each column: a word, a part of the range, missing
    summary means    the sums of u and u^2, u in [-1, 1] the place of an entry in its range (0 where it is missing)

A row adds 1 to the number of rows and to one cell of each of p columns, so that it moves all counts together by
sqrt(p + 1), and the sums of q columns of numbers by at most sqrt(2 q).  Quantiles, shares and missing entries follow
from the counts.  Nothing else is read: what was not declared is left out, and the number of rows is noisy.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from isthmus.algorithms.purchases import BINS, octaves, ranges
from isthmus.base import validate
from isthmus.estimators.linear import LedgerLike
from isthmus.estimators.looks import Looks
from isthmus.estimators.scoring import _Bins
from isthmus.privacy import PrivacyStatement
from isthmus.tables.columns import TYPES, from_days, readable
from isthmus.tables.encode import NamedColumns, as_frame, encode
from isthmus.tables.schema import Column, Schema

_RANGES, _COUNTS, _MEANS = "summary ranges", "summary counts", "summary means"
_SHARES = {_RANGES: 0.15, _COUNTS: 0.6, _MEANS: 0.25}
"""Of mu^2, in which costs add up; what is not needed goes to the others."""
_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
DELTA = 1e-6
_MOST_BINS = 1000
_DECLARED = "the types, words and ranges that were declared are public, and so are the names of the columns"


@dataclass(frozen=True)
class ColumnSummary:
    """One column: how many rows each cell has, and what follows from that.

    cells      (what it is, how many rows), with noise of standard deviation `noise` in each; below and above are
               entries outside the range
    missing    rows without an entry
    mean, sd   of numbers and dates (in days since 1970), entries outside the range counted as its ends; with noise
    quantiles  {level: place}, told to within a cell; empty where the noise would hide them
    """

    name: str
    type: str
    cells: tuple[tuple[str, float], ...]
    missing: float
    noise: float
    bounds: tuple[float, float] | None = None
    mean: float | None = None
    mean_noise: float = 0.0
    sd: float | None = None
    quantiles: dict[float, float] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class Summary:
    """What `private_summary` found; `left_out` has the columns that were not looked at, and why."""

    rows: float
    rows_noise: float
    columns: tuple[ColumnSummary, ...]
    left_out: Mapping[str, str]
    privacy: PrivacyStatement

    def __getitem__(self, name: str) -> ColumnSummary:
        """A column by its name."""
        by_name = {column.name: column for column in self.columns}
        validate.check(name in by_name, "name", name, f"name a column that was summarised: {sorted(by_name)}")
        return by_name[name]

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        columns = [{**vars(column), "cells": [list(cell) for cell in column.cells]} for column in self.columns]
        values = {"rows": self.rows, "rows_noise": self.rows_noise, "columns": columns, "left_out": dict(self.left_out)}
        return {**values, "epsilon": self.privacy.epsilon, "delta": self.privacy.delta, "words": self.privacy.words()}

    def table(self) -> str:
        """All of it as text."""
        lines = [f"rows       {self.rows:,.0f} (noise s.d. {self.rows_noise:.2g})"]
        for column in self.columns:
            lines += ["", *_lines(column)]
        for why in dict.fromkeys(self.left_out.values()):
            names = [name for name, reason in self.left_out.items() if reason == why]
            lines += ["", f"left out because {why}: {', '.join(names)}"]
        return "\n".join(lines)

    __str__ = table


def private_summary(
    table: object,
    schema: Schema | Mapping[str, object] | str | Path,
    *,
    epsilon: float = 1.0,
    delta: float = DELTA,
    bins: int = 20,
    adjacency: str = "add-remove",
    ledger: LedgerLike = None,
    noise_seed: int | None = None,
) -> Summary:
    """Counts, histograms, quantiles and means of a table's declared columns, (epsilon, delta)-differentially private.

    table       a pandas or polars frame, or a dict of columns: one row a record
    schema      a `Schema`, its TOML file, or its columns {"age": [17, 90], "sex": ["f", "m"], "income": "number"}: all
                of it public.  The range of a number without one is bought; other columns are left out
    bins        into how many equal parts the range of a number or date is cut at most; between whole numbers (and
                dates) it is cut at whole numbers, by the range alone
    delta       well below one over the number of rows, which is not read from the table
    ledger      a `privacy.Ledger` or its path: charged before anything is released, refuses what exceeds it
    noise_seed  for tests only: the statement then says "not private"

    >>> rng = np.random.default_rng(0)
    >>> people = {"age": rng.uniform(20, 60, 5000), "sex": ["f", "m"] * 2500, "name": ["x"] * 5000}
    >>> table = private_summary(people, {"age": [0, 100], "sex": ["f", "m"]}, epsilon=1.0)
    >>> abs(table.rows - 5000) < 100, abs(table["age"].mean - 40) < 2, abs(dict(table["sex"].cells)["f"] - 2500) < 100
    (True, True, True)
    >>> table.left_out
    {'name': 'it was not declared'}
    >>> print(table.privacy)
    (epsilon=1, delta=1e-06)-differentially private, for adding or removing one record
    """
    validate.open_unit(delta=delta)
    validate.positive_int(bins=bins)
    validate.check(bins <= _MOST_BINS, "bins", bins, f"give at most {_MOST_BINS} bins")
    frame = as_frame(table, "table")
    if isinstance(schema, (str, os.PathLike)):
        schema = Schema.load(schema)
    elif not isinstance(schema, Schema):
        remedy = 'give a Schema, its file, or columns such as {"age": [17, 90]}'
        validate.check(isinstance(schema, Mapping), "schema", schema, remedy)
        schema = Schema.from_dict({"columns": schema})
    columns, left_out = _chosen(frame, schema)
    looks = Looks.paid_from(ledger, epsilon, delta, adjacency, noise_seed=noise_seed)
    entries = {column.name: _entries(frame, column) for column in columns}
    rows, noise, summaries = _look(columns, entries, bins, looks)
    return Summary(rows, noise, summaries, left_out, looks.statement(assumptions=(_DECLARED,)))


# ---------------------------------------------------------------- what is looked at


def _chosen(frame: NamedColumns, schema: Schema) -> tuple[list[Column], dict[str, str]]:
    """The columns to look at, the target among them, and why the others are left out."""
    declared = list(schema.columns)
    target = schema.target
    if target is not None and target.name not in schema.names:
        if target.classes is not None:
            declared.append(Column(target.name, "category", categories=target.classes, absent=schema.missing))
        elif target.task != "classification":
            number = Column(target.name, "number", bounds=target.bounds, decimal=target.decimal or ".")
            declared.append(replace(number, absent=schema.missing))
    absent = [column.name for column in declared if column.name not in frame.columns and column.type != "drop"]
    validate.check(not absent, "schema", absent, f"name columns of the table, which has {frame.columns[:20]}")
    why = {column.name: TYPES[column.type].left_out for column in declared}
    left_out = {name: reason for name, reason in why.items() if reason}
    others = set(frame.columns) - {column.name for column in declared}
    left_out |= {name: "it was not declared" for name in frame.columns if name in others}
    chosen = [column for column in declared if not why[column.name]]
    remedy = "declare at least one column: a range, words, a date, or bool"
    validate.check(bool(chosen), "schema", [column.name for column in declared], remedy)
    return chosen, left_out


def _entries(frame: NamedColumns, column: Column) -> np.ndarray:
    """A number for each row, NaN where it is missing; of words, the place among them (the last is missing)."""
    values = frame[column.name]
    if column.type == "category":
        return np.asarray(encode(frame, Schema((column,))).argmax(1))
    return readable(values, column)


def _look(
    columns: list[Column], entries: dict[str, np.ndarray], bins: int, looks: Looks
) -> tuple[float, float, tuple[ColumnSummary, ...]]:
    """The number of rows, its noise and the columns, by looks that are charged before they are released."""
    unknown = [column.name for column in columns if column.type == "number" and column.bounds is None]
    numeric = [column.name for column in columns if column.type in ("number", "date")]
    wanted = {_RANGES: bool(unknown), _COUNTS: True, _MEANS: bool(numeric)}
    whole = math.fsum(_SHARES[name] for name in wanted if wanted[name])
    shares = {name: _SHARES[name] / whole for name in wanted if wanted[name]}
    with looks.announced(shares):
        if unknown:
            # the outer edges of the powers of two that clearly hold entries
            values = torch.from_numpy(np.nan_to_num(np.stack([entries[name] for name in unknown], axis=1)))
            counts, noise = looks.counts(_RANGES, octaves(values).numpy(), BINS, shares[_RANGES])
            some = max(1, round(float(np.clip(counts, 0, None).sum() / len(counts))))
            low, high, _ = ranges(torch.from_numpy(counts), noise, some)
            bought = dict(zip(unknown, zip(low.tolist(), high.tolist(), strict=True), strict=True))
            columns = [replace(column, bounds=bought.get(column.name, column.bounds)) for column in columns]
        grids = {column.name: _Grid(column, bins) for column in columns}
        width = max(len(grid.labels) for grid in grids.values())
        placed = [grids[column.name].cells(entries[column.name]) for column in columns]
        cells = np.stack([np.zeros_like(placed[0]), *placed], axis=1)  # the first counts the rows
        counts, noise = looks.counts(_COUNTS, cells, width, shares[_COUNTS])
        sums: dict[str, tuple[float, float, float]] = {}
        if numeric:
            terms = np.concatenate([grids[name].terms(entries[name]) for name in numeric], axis=1)
            noisy_sums, spread = looks.sums(_MEANS, terms, math.sqrt(terms.shape[1]), shares[_MEANS])
            sums = {name: (noisy_sums[2 * i], noisy_sums[2 * i + 1], spread) for i, name in enumerate(numeric)}
    sizes = np.array([len(grids[column.name].labels) for column in columns])
    own = [row[:size] for row, size in zip(counts[1:], sizes, strict=True)]
    # each column's counts sum to the number of rows too: the fewer cells, the quieter the sum
    precision = 1 + (1 / sizes).sum()
    rows = float((counts[0, 0] + sum(part.sum() / len(part) for part in own)) / precision)
    found = zip(grids.items(), own, strict=True)
    summaries = tuple(grid.summary(part, rows, noise, sums.get(name)) for (name, grid), part in found)
    return rows, noise / math.sqrt(precision), summaries


# ---------------------------------------------------------------- cells, and what follows from their counts


class _Grid:
    """The cells of one column: below, parts of the range, above (or words), and missing."""

    def __init__(self, column: Column, parts: int) -> None:
        self.column, self.bins = column, None
        if column.type == "bool":
            self.labels: tuple[str, ...] = ("false", "true", "(missing)")
        elif column.bounds is None:
            self.labels = (*column.categories, "(other)", "(missing)")
        else:
            edges = _edges(*column.bounds, parts)
            places = [_place(column, edge) for edge in edges]
            between = [f"{a} to {b}" for a, b in zip(places, places[1:], strict=False)]
            self.labels = (f"below {places[0]}", *between, f"above {places[-1]}", "(missing)")
            edges[-1] = np.nextafter(edges[-1], np.inf)  # the end of the range is part of it
            self.bins = _Bins(edges)

    def cells(self, entries: np.ndarray) -> np.ndarray:
        """The cell of each entry."""
        if entries.dtype.kind in "iu":
            return entries.astype(np.int64)
        missing = np.isnan(entries)
        if self.bins is None:
            return np.where(missing, 2, np.nan_to_num(entries) > 0.5).astype(np.int64)
        return np.where(missing, len(self.labels) - 1, self.bins.of(np.nan_to_num(entries)))

    def terms(self, entries: np.ndarray) -> np.ndarray:
        """(u, u^2), u the place of the entry in the range, 0 where it is missing."""
        assert self.bins is not None
        low, high = self.bins.edges[[0, -1]]
        u = np.nan_to_num(np.clip((entries - (low + high) / 2) / ((high - low) / 2), -1.0, 1.0))
        return np.stack([u, u**2], axis=1)

    def summary(
        self, counts: np.ndarray, rows: float, noise: float, sums: tuple[float, float, float] | None
    ) -> ColumnSummary:
        """What the counts, moved alike so that they sum to the number of rows, tell of the column."""
        column = self.column
        counts = counts + (rows - counts.sum()) / len(counts)
        cells = tuple((label, float(count)) for label, count in zip(self.labels[:-1], counts, strict=False))
        column_summary = ColumnSummary(column.name, column.type, cells, float(counts[-1]), noise, column.bounds)
        if self.bins is None or sums is None:
            return column_summary
        present, low, high = rows - float(counts[-1]), self.bins.edges[0], self.bins.edges[-1]
        if noise * math.sqrt(len(counts)) > 0.1 * present:
            return replace(column_summary, note="too few rows for a mean and quantiles: the noise would hide them")
        half, u, square = (high - low) / 2, sums[0] / present, sums[1] / present
        spread = half * math.hypot(sums[2], u * noise) / present
        sd = half * math.sqrt(max(square - u**2, 0.0))
        mean = min(max((low + high) / 2 + half * u, low), high)
        # where the running sum of the counts passes each level, between the edges of its cell
        below = np.clip(np.maximum.accumulate(np.cumsum(counts[:-1])), 0, None)
        below = np.append(0.0, below / max(float(below[-1]), 1e-300))
        places = np.interp(_LEVELS, below, np.append(self.bins.low, self.bins.high[-1]))
        quantiles = dict(zip(_LEVELS, places.tolist(), strict=True))
        return replace(column_summary, mean=float(mean), mean_noise=spread, sd=sd, quantiles=quantiles)


def _edges(low: float, high: float, parts: int) -> np.ndarray:
    """Where the parts of a range begin, and its end: whole numbers fall into parts between whole ones alike.

    >>> _edges(0.0, 7.0, 3).tolist(), _edges(1.0, 3.0, 5).tolist(), _edges(0.0, 0.5, 2).tolist()
    ([0.0, 3.0, 6.0, 7.0], [1.0, 1.5, 2.0, 2.5, 3.0], [0.0, 0.25, 0.5])
    """
    span = high - low
    if low % 1 or high % 1 or max(abs(low), abs(high)) >= 2**53:
        return np.linspace(low, high, parts + 1)
    if span < parts:
        return np.linspace(low, high, int(parts // span * span) + 1)
    return np.append(np.arange(low, high, math.ceil(span / parts)), high)


def _place(column: Column | ColumnSummary, value: float) -> str:
    return from_days(value).isoformat() if column.type == "date" else f"{value:.5g}"


def _lines(column: ColumnSummary) -> list[str]:
    """A column as text: what it is, what it has on average, and a bar for each cell."""
    where, days = "", " days" * (column.type == "date")
    if column.bounds is not None:
        where = " from " + " to ".join(_place(column, bound) for bound in column.bounds)
    lines = [f"{column.name}: {column.type}{where}; counts have noise of s.d. {column.noise:.3g}"]
    if column.note:
        lines.append(f"  {column.note}")
    if column.mean is not None:
        noise = f"(noise s.d. {column.mean_noise:.2g}{days})"
        lines.append(f"  mean {_place(column, column.mean)} {noise}, standard deviation {column.sd:.4g}{days}")
        lines.append("  " + ", ".join(f"{level:.0%} {_place(column, at)}" for level, at in column.quantiles.items()))
    cells = [*column.cells, ("(missing)", column.missing)]
    cells = [cell for cell in cells if cell[1] > 2 * column.noise or column.bounds is None]
    most = max([count for _, count in cells], default=1.0)
    wide = max([len(label) for label, _ in cells], default=1)
    for label, count in cells:
        bar = "#" * round(24 * max(count, 0.0) / max(most, 1e-9))
        lines.append(f"  {label:{wide}}  {max(count, 0.0):>10,.0f}  {bar}".rstrip())
    hidden = len(column.cells) + 1 - len(cells)
    if hidden:
        lines.append(f"  {hidden} further cells are not shown: what they hold may be noise")
    return lines
