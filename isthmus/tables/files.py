"""Reading a data file: csv and tsv, JSON lines, parquet and feather, Excel, SQLite and DuckDB, npz, libsvm.

A `Table` has either named columns (`frame`) or a matrix with its targets (`x`, `y`).  How a file is read depends on its
name, its header line and what the caller declares, never on the values: names of columns are public, values are not.
The entries of a csv are kept as they are written: a type for the whole column would let one entry decide how all others
are read.  Lines that are too long and quotes that do not close, which would move other rows, are refused.  Parquet
and Feather need the extra `table`; their columns are read by name when they are asked for, and the rows of folders and
of large files are encoded a slice at a time.  Several files of one kind are one table: give a pattern of their names.
"""

from __future__ import annotations

import bz2
import codecs
import copy
import csv
import gzip
import io
import json
import os
import re
import sys
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

import numpy as np
import scipy.sparse as sp

from isthmus.base import validate
from isthmus.base.atomic import atomic_write
from isthmus.base.parquet import column_names, matching, parquet_dataset, tables_of
from isthmus.tables.encode import NamedColumns, encode
from isthmus.tables.schema import Schema
from isthmus.tables.sources import _import_or_say, _of_duckdb, _of_sqlite, _sheet

if TYPE_CHECKING:
    from pandas import Series
    from pyarrow import Schema as ArrowSchema

_BLOCK = 1 << 16
"""So many lines of text become a frame at a time: lists of words take more memory."""


@dataclass(frozen=True)
class Table:
    """The rows of one file: named columns, or a matrix `x` with targets `y` (None where it has none)."""

    name: str
    frame: Any = None
    x: Any = None
    y: np.ndarray | None = None
    notes: tuple[str, ...] = ()
    """What the reading had to take from the values, in words: each is a privacy leak unless the file is public."""
    separator: str | None = None
    """Of the columns of a text file, by which the signs in its numbers are judged."""
    nameless: int = 0
    """How many columns at its end have no name, and are left out."""

    @property
    def n(self) -> int:
        """How many rows."""
        return len(self.frame) if self.frame is not None else int(self.x.shape[0])

    def targets(self, name: str) -> Any:
        """Its column of this name, or the targets of a matrix; None where it has none."""
        if self.frame is None:
            return self.y
        return self.frame[name] if name in self.frame.columns else None

    def part(self, number: int, parts: int) -> tuple[Table, int]:
        """One of so many runs of neighbouring rows that make up the table, and how many rows come before it.

        >>> table = Table("t", x=np.arange(7)[:, None], y=np.arange(7))
        >>> [table.part(k, 3)[0].y.tolist() for k in range(3)]
        [[0, 1], [2, 3], [4, 5, 6]]
        """
        if parts == 1:
            return self, 0
        first, last = (self.n * k // parts for k in (number, number + 1))
        if self.frame is not None:
            place = np.arange(self.n)
            return replace(self, frame=self.frame.chosen((first <= place) & (place < last))), first
        return replace(self, x=self.x[first:last], y=None if self.y is None else self.y[first:last]), first


@dataclass(frozen=True)
class Reading:
    """How to read a file: public choices.

    separator    of a csv; None takes the one that is most frequent in the header line
    features     columns of a libsvm file; None takes the largest index found, which is read from the data
    zero_based   whether the indices of a libsvm file begin with 0
    query        of a database the rows that are meant, of an Excel file the sheet
    """

    separator: str | None = None
    encoding: str = "utf-8"
    features: int | None = None
    zero_based: bool = False
    query: str | None = None


def read(path: str | Path, *, part: str = "train", reading: Reading | None = None) -> Table:
    """The table in a file, or in all files whose names match a pattern such as "part-*.csv".

    part   "train" or "test": which arrays of an npz file with both are meant

    >>> read("people.xls")
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: data='people.xls' is not allowed: give a file of csv, tsv or JSON lines ...
    """
    file, reading = Path(path), reading or Reading()
    kind = format_of(file)
    kinds = "csv, tsv or JSON lines (also .gz, .bz2), parquet (also a folder of it), feather, Excel (.xlsx), SQLite, "
    kinds += "DuckDB, npz or libsvm; save other formats as csv first"
    validate.check(kind in _READERS, "data", str(path), f"give a file of {kinds}")
    files, name = matching(file), file.name.split(".")[0] or file.name
    there = [os.path.isfile(each) or kind == "parquet" and os.path.isdir(each) for each in files]
    validate.present(bool(there) and all(there), path)
    if len(files) == 1 or kind in _ARROW:
        return _READERS[kind](file if kind in _ARROW else files[0], name, part, reading)
    return _joined(file, [_READERS[kind](each, name, part, reading) for each in files])


def _joined(pattern: Path, tables: list[Table]) -> Table:
    """The rows of several files that have the same columns."""
    first = tables[0]
    remedy = "give files with the same named columns and separator: those that match differ"
    for table in tables:
        alike = table.frame is not None and sorted(table.frame.columns) == sorted(first.frame.columns)
        validate.check(alike and table.separator == first.separator, "data", str(pattern), remedy)
    columns = {name: np.concatenate([table.frame[name] for table in tables]) for name in first.frame.columns}
    return replace(first, frame=NamedColumns(columns, sum(table.n for table in tables)))


def overlap(path: str | Path, other: str | Path) -> bool:
    """Whether two paths or patterns lead to a common file or folder."""
    return bool({file.resolve() for file in matching(path)} & {file.resolve() for file in matching(other)})


def columns_of(path: str | Path, reading: Reading | None = None) -> list[str] | None:
    """The column names of a file, from its header alone; None for files without names."""
    pattern, reading = Path(path), reading or Reading()
    kind, file = format_of(pattern), next(iter(matching(pattern)), pattern)
    if kind in _ARROW and os.path.exists(file):
        return list(_stored_names(pattern, parquet_dataset(pattern, "data").schema))
    if kind == "text" or kind in _SOURCES:
        validate.present(os.path.isfile(file), path)
    if kind == "text":
        return _header(file, reading)[0]
    return next(_entries_of(file, kind, reading))[0] if kind in _SOURCES else None


def has_part(path: str | Path, part: str) -> bool:
    """Whether an npz file has arrays of its own for "train" or "test" rows, by their names alone.

    >>> has_part("people.csv", "test")
    False
    """
    file = Path(path)
    if format_of(file) != "npz" or not os.path.isfile(file) or not zipfile.is_zipfile(file):
        return False
    with zipfile.ZipFile(file) as stored:
        return bool({f"x_{part}.npy", f"{part}_indptr.npy"} & {name.lower() for name in stored.namelist()})


def _types_of(path: str | Path) -> dict[str, str]:
    """The columns of numbers and of truth values of a parquet or feather file, by its stored types; no row is read."""
    file, kinds = Path(path), {}
    if format_of(file) in _ARROW:
        from pyarrow import types

        schema = parquet_dataset(file, "data").schema
        for name, stored in _stored_names(file, schema).items():
            kind = schema.field(stored).type
            if types.is_boolean(kind):
                kinds[name] = "bool"
            elif types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
                kinds[name] = "number"
    return kinds


def check_numbers(table: Table, what: str = "data") -> None:
    """A matrix has no schema that says what stands for a missing number."""
    values = table.x.data if sp.issparse(table.x) else table.x
    validate.check(values.dtype.kind in "iufb", what, str(values.dtype), "give a matrix of numbers")
    finite = bool(np.isfinite(values).all())
    validate.require(finite, f"The matrix of {what}={table.name!r} holds NaN or infinite numbers: fill them in first")


def write(path: str | Path, columns: dict[str, np.ndarray]) -> None:
    """Columns of equal length as csv (by the standard library), parquet or npz."""
    file = Path(path)
    suffix = file.suffix.lower()
    known = suffix in (".csv", ".tsv", ".npz", ".parquet")
    validate.check(known, "output", str(path), "end it in .csv, .tsv, .npz or .parquet")
    with atomic_write(file) as partial:
        if suffix == ".npz":
            with partial.open("wb") as stream:
                np.savez(stream, allow_pickle=False, **columns)
        elif suffix == ".parquet":
            _import_or_say("pyarrow", path)
            _import_or_say("pandas", path).DataFrame(columns).to_parquet(partial, index=False)
        else:
            with partial.open("w", encoding="utf-8", newline="") as out:
                writer = csv.writer(out, delimiter={".tsv": "\t"}.get(suffix, ","))
                writer.writerow(columns)
                writer.writerows(zip(*(values.tolist() for values in columns.values()), strict=True))


# ---------------------------------------------------------------- by kind


def format_of(path: str | Path) -> str:
    """The format of a file by its name, "" for any other; texts may be packed."""
    file = Path(path)
    try:
        if file.is_dir():
            return "parquet"
    except OSError as error:  # a name that is too long for any file
        validate.refuse("data", str(file), f"give the path of a file: none can have this name ({error.strerror})")
    name = file.name.lower()
    plain = name.removesuffix(".gz").removesuffix(".bz2")
    kind = _FORMATS.get(plain.rpartition(".")[2], "")
    return kind if plain == name or kind in ("text", "libsvm", "json") else ""


def _open(file: Path) -> BinaryIO:
    opener = {".gz": gzip.open, ".bz2": bz2.open}.get(file.suffix.lower(), open)
    return opener(file, "rb")  # type: ignore[operator]


@contextmanager
def _unpacked(file: Path) -> Iterator[None]:
    """Refuse a packed file that was cut or altered, and one that cannot be opened."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        validate.unreadable(file, f"it was cut or altered, or its name ends wrongly ({error})")


def _header(file: Path, reading: Reading) -> tuple[list[str], str, int]:
    """The names in the first line, each of them once, and the separator between them; no other line is looked at.

    Separators at its end, which spreadsheets leave there, name no columns.
    """
    try:
        with _unpacked(file), _open(file) as stream:  # not a byte of the rows after it is looked at
            letters = codecs.iterdecode(iter(partial(stream.read, 1), b""), _codec(reading))
            line = "".join(takewhile(lambda letter: letter != "\n", letters)).rstrip("\r")
    except (UnicodeError, LookupError):
        _bad_encoding(file, reading)
    separator = reading.separator or max(",;\t|", key=re.sub(r'"[^"]*"', "", line).count)  # outside of quoted names
    names = next(_rows([line], file, separator), None)
    if names is None:
        validate.unreadable(file, "its first line is empty, and must hold the names of the columns")
    named, nameless = _names_of(names, file)
    return named, separator, nameless


def _codec(reading: Reading) -> str:
    return {"utf8": "utf-8-sig"}.get(reading.encoding.lower().replace("-", ""), reading.encoding)


def _bad_encoding(file: Path, reading: Reading) -> NoReturn:
    with _open(file) as stream:
        wide = stream.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    such = "--encoding utf-16" if wide else "such as --encoding latin-1 or cp1252"
    validate.unreadable(file, f"it is not {reading.encoding} text; give its encoding, {such}")


def _read_text(file: Path, name: str, part: str, reading: Reading) -> Table:
    """All entries as they are written, missing where nothing is written ("NA" may be a declared word)."""
    names, separator, nameless = _header(file, reading)
    try:
        with _unpacked(file), _open(file) as stream:
            lines = io.TextIOWrapper(stream, encoding=_codec(reading), newline="")
            rows = _rows(lines, file, separator, len(names))
            next(rows)
            return Table(name, _framed(names, rows), separator=separator, nameless=nameless)
    except UnicodeError:
        _bad_encoding(file, reading)


def _framed(names: Sequence[str], rows: Iterator[Sequence[object]]) -> NamedColumns:
    """Rows as columns of entries; a short row has nothing in the last ones."""
    blocks = [np.empty((0, len(names)), dtype=object)]
    while block := [[*row, *[None] * (len(names) - len(row))] for row in islice(rows, _BLOCK)]:
        blocks.append(np.array(block, dtype=object))
    entries = np.concatenate(blocks)
    return NamedColumns(dict(zip(names, entries.T, strict=True)), len(entries))


def _source_reader(kind: str) -> Callable[[Path, str, str, Reading], Table]:
    def table(file: Path, name: str, part: str, reading: Reading) -> Table:
        rows = _entries_of(file, kind, reading)
        names, nameless = next(rows)
        return Table(name, _framed(names, rows), nameless=nameless)

    return table


def _entries_of(file: Path, kind: str, reading: Reading) -> Iterator[list[Any]]:
    """The names of the columns and how many have none, then the entries of each row; lists and the like as text."""
    try:
        rows = _SOURCES[kind](file, reading)
        names, nameless = _names_of(next(rows, ()), file)
        validate.require(bool(names), f"Cannot read {file}: it is empty, and has no names of columns")
        yield [names, nameless]
        for number, row in enumerate(rows, 2):
            if any(map(_holds, row[len(names) :])):
                validate.unreadable(file, f"row {number} has more entries than there are names of columns")
            if any(map(_holds, row)):
                yield [str(item) if isinstance(item, (list, dict, tuple)) else item for item in row[: len(names)]]
    except validate.InvalidInput:
        raise
    except UnicodeDecodeError:
        _bad_encoding(file, reading)
    except Exception as error:  # of many packages; its words may quote an entry
        causes = "it is damaged, its name ends wrongly, or a query fails on one of its rows"
        validate.unreadable(file, f"{causes} ({type(error).__name__})")


def _json_lines(file: Path, reading: Reading) -> Iterator[Sequence[object]]:
    """One object a line; the first one names the columns, as the header of a csv does."""
    names: list[str] = []
    with _open(file) as stream, io.TextIOWrapper(stream, encoding=_codec(reading)) as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                row = json.loads(line)
                if not isinstance(row, dict):
                    validate.unreadable(file, f"line {number} is no JSON object")
                if not names:
                    names = list(row)
                    yield names
                if row.keys() - set(names):
                    first = "every name must stand in the first line, with null where nothing is"
                    validate.unreadable(file, f"line {number} has a name that the first line does not have: {first}")
                yield [row.get(name) for name in names]


def _rows(lines: Iterable[str], file: Path, separator: str, width: int = sys.maxsize) -> Iterator[list[str | None]]:
    """The lines that hold something; one that is too long, or has a quote that does not close, would move others.

    A line of separators alone, as spreadsheets write below a table, is no record; nor do separators at a line's end
    make it too long.
    """
    reader = csv.reader(lines, delimiter=separator, skipinitialspace=True, strict=True)
    try:
        for row in reader:
            if any(map(_holds, row[width:])):
                _bad_line(file, f"Expected {width} fields in line {reader.line_num}, saw {len(row)}")
            if any(map(_holds, row)):
                yield [entry or None for entry in row[:width]]
    except csv.Error as error:
        _bad_line(file, f"{error} in line {reader.line_num}")


def _bad_line(file: Path, where: str) -> NoReturn:
    validate.unreadable(file, f"a line does not fit the header ({where}); check --separator and the quotes around text")


def _read_npz(file: Path, name: str, part: str, reading: Reading) -> Table:
    remedy = "give arrays X and y, or x_train and y_train, or CSR pieces indptr, indices, data and shape with y"
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            members = {key: stored[key] for key in stored.files}  # bytes, where one is no array
    except (*validate.UNREADABLE, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        validate.unreadable(file, f"it is no npz file, or needs pickle ({error}); {remedy}")
    arrays = {key.lower(): value for key, value in members.items() if isinstance(value, np.ndarray)}
    try:
        x = _matrix(arrays, part)
    except (ValueError, TypeError, ArithmeticError, LookupError) as error:
        validate.unreadable(file, f"its arrays are no CSR matrix ({error}); {remedy}")
    if x is None or x.ndim != 2:
        validate.unreadable(file, f"it holds the arrays {sorted(arrays)}; {remedy}")
    y = arrays.get(f"y_{part}", arrays.get("y"))
    if y is not None:
        y = np.asarray(y).reshape(-1)
        if len(y) != x.shape[0]:
            validate.unreadable(file, f"it has {x.shape[0]} rows and {len(y)} targets; give one target for each row")
    return Table(name, x=x, y=y)


def _matrix(arrays: dict[str, np.ndarray], part: str) -> np.ndarray | sp.csr_matrix | None:
    """The dense or CSR matrix of one part."""
    for key in (f"x_{part}", "x"):
        if key in arrays:
            return arrays[key]
    for prefix in (f"{part}_", ""):
        if {f"{prefix}indptr", f"{prefix}indices", f"{prefix}shape"} <= set(arrays):
            indptr, indices, shape = (arrays[prefix + key] for key in ("indptr", "indices", "shape"))
            data = arrays.get(f"{prefix}data", np.ones(len(indices), np.float32))
            return sp.csr_matrix((data, indices, indptr), shape=tuple(int(size) for size in shape))
    return None


def _read_libsvm(file: Path, name: str, part: str, reading: Reading) -> Table:
    from sklearn.datasets import load_svmlight_file

    try:
        x, y = load_svmlight_file(str(file), n_features=reading.features, zero_based=reading.zero_based)
    except ValueError:  # its words quote the entry, which is private
        where = "give --zero-based where they begin with 0, and --features at least as large as the largest"
        validate.unreadable(file, f"a line is not of the form `label index:value ...` with indices from 1; {where}")
    note = f"the number of columns ({x.shape[1]}) is the largest index of the file; give it with --features"
    return Table(name, x=x, y=y, notes=(note,) * (not reading.features))


def _holds(entry: object) -> bool:
    """Whether an entry of a row is more than blanks."""
    return entry is not None and str(entry).strip() != ""


def _names_of(given: Sequence[object], file: Path) -> tuple[list[str], int]:
    """The names of the columns up to the last one that has a name, and how many come after it."""
    end = max((place for place, name in enumerate(given, 1) if str(name or "").strip()), default=0)
    return _stripped_names(given[:end], file), len(given) - end


def _stripped_names(column_names: Iterable[object], file: Path) -> list[str]:
    """The names without the blanks around them, each of them once; one that is all blanks is named by its place.

    >>> _stripped_names(["age", " city ", ""], Path("people.csv"))
    ['age', 'city', 'Unnamed: 2']
    """
    names = [str(name or "").strip() or f"Unnamed: {place}" for place, name in enumerate(column_names)]
    twice = sorted(name for name, times in Counter(names).items() if times > 1)
    if twice:
        validate.unreadable(file, f"the column names {twice} occur twice; rename these columns")
    return names


def _stored_names(file: Path, schema: ArrowSchema) -> dict[str, str]:
    """The names of the columns of a Parquet file, and how each is written there."""
    try:
        stored = column_names(schema)
    except UnicodeDecodeError as error:
        validate.unreadable(file, f"a name of its columns is not UTF-8 text ({error}); rename that column")
    return dict(zip(_stripped_names(stored, file), stored, strict=True))


class ParquetColumns(NamedColumns):
    """The columns of Parquet or Feather files, read one at a time; `kept` are the rows that count."""

    def __init__(self, file: Path) -> None:
        _import_or_say("pyarrow", file)
        _import_or_say("pandas", file)
        self.file, self.dataset = file, parquet_dataset(file, "data")
        self.stored = _stored_names(file, self.dataset.schema)
        with self._readable():
            self.kept = np.arange(self.dataset.count_rows())

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.stored)

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, name: str) -> Series:
        """A whole column as a pandas Series."""
        import pyarrow

        with self._readable():
            table = pyarrow.concat_tables(tables_of(self.dataset, [self.stored[name]]), promote_options="permissive")
            series = table.to_pandas(ignore_metadata=True).iloc[:, 0]
        return series.iloc[self.kept].reset_index(drop=True)

    def chosen(self, mask: np.ndarray) -> ParquetColumns:
        """The rows that a mask keeps."""
        chosen = copy.copy(self)
        chosen.kept = self.kept[mask]
        return chosen

    def encoded(self, schema: Schema) -> Iterator[np.ndarray]:
        """All rows of the file as numbers, some at a time."""
        given = {self.stored[column.name]: column.name for column in schema.columns if column.name in self.stored}
        tables = tables_of(self.dataset, [*given], min(_BLOCK, (1 << 23) // len(schema.features) + 1))
        # what pandas wrote into the file may rename columns or hide them
        frames = (table.to_pandas(ignore_metadata=True).rename(columns=given) for table in tables)
        while True:
            with self._readable():
                frame = next(frames, None)
            if frame is None:
                return
            yield encode(frame, schema)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        import pyarrow

        try:
            yield
        except validate.InvalidInput:
            raise
        except (pyarrow.ArrowException, OSError, *validate.UNREADABLE) as error:  # its words may quote an entry
            remedy = f"it is no file that pyarrow reads ({type(error).__name__}); write it anew"
            validate.unreadable(self.file, remedy)


_FORMATS = dict.fromkeys(("csv", "tsv", "tab"), "text") | dict.fromkeys(("parquet", "pq"), "parquet") | {"npz": "npz"}
_FORMATS |= dict.fromkeys(("svm", "libsvm", "svmlight", "txt"), "libsvm") | dict.fromkeys(("jsonl", "ndjson"), "json")
_FORMATS |= {"xlsx": "sheet", "duckdb": "duckdb"} | dict.fromkeys(("sqlite", "sqlite3", "db"), "sqlite")
_FORMATS |= dict.fromkeys(("feather", "arrow"), "arrow")
_ARROW = ("parquet", "arrow")
_SOURCES: dict[str, Callable[[Path, Reading], Iterator[Sequence[object]]]] = {
    "json": _json_lines,
    "sheet": lambda file, reading: _sheet(file, reading.query),
    "sqlite": lambda file, reading: _of_sqlite(file, reading.query),
    "duckdb": lambda file, reading: _of_duckdb(file, reading.query),
}
"""What gives the names of its columns and then its rows, for each format whose entries have types of their own."""


_READERS = {
    "text": _read_text,
    "libsvm": _read_libsvm,
    **dict.fromkeys(_ARROW, lambda file, name, part, reading: Table(name, ParquetColumns(file))),
    "npz": _read_npz,
    **{kind: _source_reader(kind) for kind in _SOURCES},
}
"""What reads a file of each format: its path, the name of the table, "train" or "test", and how."""
