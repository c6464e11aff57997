"""Sheets and queries: what reads them gives the names first, then rows of Python values, one by one.

An entry stays as it is stored there, text as text and a number as a number: no column gets a type.
"""

from __future__ import annotations

import importlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from types import ModuleType

from isthmus.base import validate


def _import_or_say(package: str, path: str | Path) -> ModuleType:
    """A package of the extra `table`, or words that say what to install."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        needed = f"{error.name or package} is needed for it; {validate.extra('table')}"
        validate.unreadable(path, f"{needed} (csv, JSON lines, SQLite, npz and libsvm files need no extra)")


def _sheet(file: Path, query: str | None) -> Iterator[Sequence[object]]:
    """The rows of an Excel sheet that hold something; `query` names it where there are several."""
    openpyxl = _import_or_say("openpyxl", file)
    with closing(openpyxl.load_workbook(file, read_only=True, data_only=True)) as book:
        sheets = {sheet.title: sheet for sheet in book.worksheets}
        remedy = f"name the sheet that is meant, one of {[*sheets]}, as in --query {next(iter(sheets))!r}"
        name = query
        if len(sheets) == 1:
            name = query or next(iter(sheets))
        validate.check(name in sheets, "query", name, remedy)
        sheets[name].reset_dimensions()  # some programs write wrong ones
        for row in sheets[name].iter_rows(values_only=True):
            while row and row[-1] is None:  # cells that were formatted only
                row = row[:-1]
            if row:
                yield row


def _selected(file: Path, query: str | None, connect: Callable[[], sqlite3.Connection]) -> Iterator[Sequence[object]]:
    """The rows that a query selects; their names are asked for without looking at a row."""
    validate.check(bool(query), "query", query, 'say which rows are meant, as in --query "select * from people"')
    rows = f"select * from (\n{str(query).strip().rstrip(';')}\n) as chosen"
    with closing(connect()) as database:
        try:
            names = database.cursor().execute(f"{rows} limit 0").description
        except Exception as error:  # the words of its package; no row was looked at
            validate.unreadable(file, f"the query cannot be asked of it ({error})")
        yield [name for name, *_ in names]
        cursor = database.cursor().execute(rows)
        while row := cursor.fetchone():
            yield row


def _of_sqlite(file: Path, query: str | None) -> Iterator[Sequence[object]]:
    return _selected(file, query, lambda: sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True))


def _of_duckdb(file: Path, query: str | None) -> Iterator[Sequence[object]]:
    duckdb = _import_or_say("duckdb", file)
    return _selected(file, query, lambda: duckdb.connect(str(file), read_only=True))
