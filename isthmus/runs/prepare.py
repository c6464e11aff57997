"""From settings to what an estimator takes: rows, targets, public ranges, test rows, and what leaked on the way.

What is not declared is taken from public rows where there are some; only what is left is guessed from the private rows,
and every such guess is named as a leak with the option that avoids it.
"""

from __future__ import annotations

import csv
import hashlib
import io
import shlex
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np
import torch

from isthmus.base import validate
from isthmus.base.streamed import ChosenRows, Streamed
from isthmus.core.group import ALONE, Group
from isthmus.runs.config import Settings
from isthmus.tables.columns import as_labels, as_words, number
from isthmus.tables.encode import bounds_of, encode_target
from isthmus.tables.files import Table, check_numbers, columns_of, format_of, read
from isthmus.tables.infer import guess_task, infer, target_numbers
from isthmus.tables.rows import Rows, numbers_of
from isthmus.tables.schema import BUCKETS, TASKS, Schema, Target, check_names, listed

_MOST_CLASSES = 100
FEW = 10
"""Labels of fewer rows are never read off private data."""
_RARE_LABEL = (
    f"give --classes A,B,.. or --task regression: fewer than {FEW} rows have one of the labels, and reading it would "
    "publish it"
)
_ONE_ROW = (
    "epsilon protects one row of what the query gives: it is one record where the query only chooses rows and columns, "
    "each by itself, and not where it joins, groups, ranks or limits them"
)
_ONE_LABEL = "name all labels with --classes, check --target, or give --task regression: two labels are needed"


@dataclass(frozen=True)
class PreparedRows:
    """The rows to train on, as numbers, and everything public about them.

    features   names of the encoded columns, None for a matrix
    bounds     public ranges of the columns (NaN: to be bought), or None: none is known
    n, test_rows   rows to train on and test rows, of all ranks that train together; None: there are no test rows
    public     public rows, with targets where the file has them
    test       rows and targets to measure on
    leaks      what was read off private rows without being paid for, each with its remedy
    notes      what a user should know and that is no leak
    """

    name: str
    schema: Schema
    x: Rows
    y: np.ndarray
    features: list[str] | None
    bounds: tuple[np.ndarray, np.ndarray] | None
    n: int
    test_rows: int | None = None
    public: Rows | tuple[Rows, np.ndarray] | None = None
    test: tuple[Rows, np.ndarray] | None = None
    leaks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def target(self) -> Target:
        """The target, its task and classes settled."""
        assert self.schema.target is not None
        return self.schema.target

    @property
    def d(self) -> int:
        """Columns as numbers."""
        return int(self.x.shape[1])


def prepare(
    settings: Settings, declared: Schema, *, salt: str, settled: bool = False, crew: Group = ALONE
) -> PreparedRows:
    """Read and encode the data, on ranks this rank's part of it.

    `settled` says that the schema is complete: nothing may be guessed any more.
    """
    names = columns_of(settings.data, settings.reading)
    if names is not None:
        needed = f"give the column to predict, one of {listed(names)}"  # names are public: the header alone is read
        validate.check(settings.target is not None, "target", None, needed)
        check_names(names, declared, settings.target)
    public = None if settings.public is None else _filled("public", settings.public, settings)
    table, first = _filled("data", settings.data, settings).part(crew.rank, crew.size)
    leaks, schema = list(table.notes), replace(declared, columns=())
    notes: list[str] = []
    known, rest = "the number of columns", "and the number of rows count as public (--rows N hides the number of rows)"
    if settings.n is not None:
        rest = f"count as public; the number of rows is not published, {settings.n} stands for it"
    if table.frame is not None:
        known = "the names of the columns"
        schema, more, notes = _complete(settings, declared, table, public)
        leaks, notes = leaks + more, [*notes, "rows without a target are left out"]
    if table.nameless:
        notes.append(f"the columns at the end without a name ({table.nameless}) are empty and left out")
    remedy = "leave it out: it is for tables with named columns"
    validate.check(table.frame is not None or not settings.missing, "missing", settings.missing, remedy)
    if settings.query and format_of(settings.data) != "sheet":
        notes.append(_ONE_ROW)
    notes = [f"{known} {rest}", *notes]
    target, more = _settle_target(settings, table, public)
    schema, leaks = replace(schema, target=target, missing=settings.missing), leaks + more
    remedy = "continue with the table that the run began with: its schema does not cover this one"
    validate.check(not (settled and leaks), "schema", leaks, remedy)
    if crew.size > 1:  # every rank sees other rows: its guess would be its own
        remedy = "begin one with --dry-run --write-schema, and declare the target: ranks guess nothing from their rows"
        validate.check(not leaks, "schema", leaks, remedy)
        schemas = set(crew.all(schema.to_toml()))
        validate.check(len(schemas) == 1, "schema", f"{len(schemas)} schemas of the ranks", remedy)
    fixed = settings.private and settings.adjacency == "replace-one"  # then no record may change the number of rows
    x, y = rows_of(table, schema, all_have=fixed)
    _check_words(schema, x, crew)
    there = sum(crew.all(len(y))) > 0
    validate.check(there, "target", target.name, "check the name of the target column: no row has a target")
    test = None
    if settings.test is not None:
        rows, hidden = _filled("test", settings.test, settings, part="test"), settings.measure_epsilon is not None
        if hidden:  # public ones are measured whole
            rows = rows.part(crew.rank, crew.size)[0]
        test = rows_of(rows, schema, "test", all_have=fixed and hidden)
    if settings.test_fraction is not None:
        (x, y), test = split(x, y, settings.test_fraction, salt, first, crew)
    bounds, features, tested = None, None, None
    shared: Rows | tuple[Rows, np.ndarray] | None = None
    if table.frame is not None:
        bounds, features = bounds_of(schema), schema.features
    elif settings.bounds is not None:
        bounds = np.full(x.shape[1], settings.bounds[0]), np.full(x.shape[1], settings.bounds[1])
    if test is not None:
        tested = len(test[1])
        if settings.test is None or settings.measure_epsilon is not None:  # of a public file every rank has the whole
            tested = sum(crew.all(tested))
    if public is not None and public.targets(target.name) is not None:
        shared = rows_of(public, schema, "public")
    elif public is not None:
        shared = public.x if public.frame is None else numbers_of(public.frame, schema.read_by(public.separator))
    sizes, told = (sum(crew.all(int(x.shape[0]))), tested), (tuple(leaks), tuple(notes))
    return PreparedRows(table.name, schema, x, y, features, bounds, *sizes, shared, test, *told)


def _filled(argument: str, path: str, settings: Settings, part: str = "train") -> Table:
    """The table in a file that must have rows."""
    table = read(path, part=part, reading=settings.reading)
    validate.check(table.n > 0, argument, path, "give a file with rows: this one has none")
    return table


def rows_of(table: Table, schema: Schema, what: str = "data", *, all_have: bool = False) -> tuple[Rows, np.ndarray]:
    """The encoded rows that have a target, and their targets; refused if `all_have` one and some have not."""
    target = schema.target
    assert target is not None
    targets = table.targets(target.name)
    remedy = f"give a file with the column {target.name!r}: this one does not have it"
    if table.frame is None:
        remedy = "give a file with targets y: this one has none"
    validate.check(targets is not None, what, table.name, remedy)
    if table.frame is None:
        check_numbers(table, what)
    y, present = encode_target(targets, target, table.separator, schema.missing)
    whole = bool(present.all())
    remedy = "remove the rows that have no target first, or use add-remove: leaving them out would show how many"
    validate.check(whole or not all_have, "adjacency", "replace-one", remedy)
    if table.frame is not None:
        frame = table.frame if whole else table.frame.chosen(present)
        return numbers_of(frame, schema.read_by(table.separator)), y
    return table.x if whole else table.x[present], y


# ---------------------------------------------------------------- columns


def _complete(
    settings: Settings, declared: Schema, table: Table, public: Table | None
) -> tuple[Schema, list[str], list[str]]:
    """The schema of every column, in the table's order; what cannot be guessed is refused, all columns at once."""
    columns, notes = [], []
    refused: dict[str, validate.InvalidInput] = {}
    for name in [name for name in table.frame.columns if name != settings.target]:
        column = declared.get(name)
        if column is None:
            source = table
            if public is not None and public.frame is not None and name in public.frame.columns:
                source = public
            try:
                file = {"decimal": settings.decimal, "separator": source.separator}
                values, missing = source.frame[name], settings.missing
                inferred = infer(name, values, public=source is public, missing=missing, **file)
            except validate.InvalidInput as error:
                refused[name] = error
                continue
            column = inferred.column
            if inferred.why:
                outcome = {"drop": "left out"}.get(column.type, f"read as {column.type}")
                notes.append(f"column {name!r} is {outcome}: {inferred.why}")
        columns.append(column.settled(settings.bounds, settings.decimal, settings.missing))
    if refused:
        _refuse_all(refused)
    schema, leaks = Schema(tuple(columns)), []
    remedy = "declare at least one column as a number, words, a date or bool: none is left to learn from"
    validate.check(bool(schema.features), "columns", schema.names, remedy)
    guessed = [column.name for column in columns if column.source == "data" and declared.get(column.name) is None]
    if guessed:
        leaks.append(
            f"the types of {_listed(guessed)} were read from the private rows. Review the schema.toml in the run's "
            "folder and give it as --schema next time, or declare types with [columns], --categories, --bounds, --drop"
        )
    hashed = [column.name for column in schema.columns if column.type == "hash" and column.source == "data"]
    if hashed:
        notes.append(
            f"the words of {_listed(hashed)} were not declared, and are never read from private rows: they go into "
            f"fixed buckets, {BUCKETS} for a column even where it has two words. Name the words to tell them apart: "
            f'--categories "{hashed[0]}=a,b,c"; where numbers have a word among them, give their range: --bounds '
            f'"{hashed[0]}=LOW,HIGH"'
        )
    ids = [column.name for column in schema.columns if column.type == "id"]
    if ids:
        notes.append(f"epsilon protects one row; where one {ids[0]!r} has several rows, not all of them together")
    return schema, leaks, notes


def _check_words(schema: Schema, x: Rows, crew: Group) -> None:
    """Refuse a column of words in which none of the declared ones ever occurs: all rows would be "(other)"."""
    at, occurring = 0, {}
    for column in schema.columns:
        end = at + len(column.features)
        if column.type == "category":
            occurring[column.name] = [_occurs(x, at, end - 2), _occurs(x, end - 2, end - 1)]
        at = end
    counts = crew.all(occurring)
    for name in occurring:
        known, unknown = (any(count[name][k] for count in counts) for k in (0, 1))
        remedy = "check how its words are written, or declare it anew: no row has one of the words declared for it"
        validate.check(known or not unknown, f"columns.{name}", "category", remedy)


def _occurs(x: Rows, lo: int, hi: int) -> bool:
    """Whether some row has something in the columns lo, ..., hi - 1."""
    if isinstance(x, Streamed):
        return any(bool(rows[:, lo:hi].any()) for _, _, rows in x.chunks())
    return bool(x[:, lo:hi].any())


def _refuse_all(refused: dict[str, validate.InvalidInput]) -> NoReturn:
    """One error for all columns; the decimal sign is that of the file, and is asked for once."""
    if len(refused) == 1:
        raise next(iter(refused.values()))
    words = {}
    for name, error in refused.items():
        if str(error).startswith("decimal="):
            name = "decimal"
        words[name] = str(error)
    lines = [f"\n  {word.replace(' is not allowed: ', ': ', 1)}" for word in words.values()]
    raise validate.InvalidInput(f"The columns {_listed(list(refused))} are not allowed as they are:{''.join(lines)}")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 8} more" * (len(names) > 8)
    return ", ".join(map(repr, names[:8])) + more


# ---------------------------------------------------------------- the target


def _settle_target(settings: Settings, table: Table, public: Table | None) -> tuple[Target, list[str]]:
    """The target with its task and classes: declared, taken from public rows, or guessed with a leak."""
    name, task, classes, ranged = settings.target or "y", settings.task, settings.classes, settings.target_bounds
    validate.check(table.targets(name) is not None, "data", table.name, "give a file with targets y: this one has none")
    free, origin, leaks = public is not None and public.targets(name) is not None, table, []
    if free and public is not None:
        origin = public
    source = origin.targets(name)
    if task is None:
        task = guess_task(name, source, settings.missing, settings.decimal, origin.separator)
        (other,) = set(TASKS) - {task}
        guess = f"the task, {task}, was guessed from the target column {name!r}"
        leaks.append(f"{guess}: give --task {task}, or --task {other} where that is meant")
    if task == "regression":
        validate.check(classes is None, "classes", classes, "leave it out: --task regression has no classes")
        if ranged is None and free:
            numbers = target_numbers(source, settings.missing, settings.decimal, origin.separator)
            numbers = numbers[np.isfinite(numbers)]
            if len(np.unique(numbers)) > 1:
                ranged = float(numbers.min()), float(numbers.max())
        return Target(name, task, None, ranged, settings.decimal), leaks * (not free)
    validate.check(ranged is None, "target_bounds", ranged, "leave it out: classes have no range")
    if classes is None:
        words, absent = as_words(source, settings.missing)
        values = {word: number(word) for word in as_labels(words[~absent])}
        classes = tuple(sorted(values, key=lambda word: (np.isnan(values[word]), np.nan_to_num(values[word]), word)))
        counted = f"{len(classes)} label{'s' * (len(classes) != 1)}"
        validate.check(len(classes) >= 2, "classes", counted, _ONE_LABEL)
        remedy = f"give --task regression, or --classes: there may be at most {_MOST_CLASSES}"
        validate.check(len(classes) <= _MOST_CLASSES, "classes", counted, remedy)
        if settings.private and not free:  # a label that few rows have would tell of those rows
            rows = Counter(encode_target(source, Target(name, task, classes), missing=settings.missing)[0].tolist())
            validate.check(min(rows.values()) >= FEW, "classes", "(read from the data)", _RARE_LABEL)
        guess = f"the classes {list(classes)} were read from the target column {name!r}"
        leaks.append(f"{guess}: give --classes {_as_option(classes)}")
    return Target(name, task, classes), leaks * (not free)


def _as_option(words: Iterable[str]) -> str:
    """Words as an option takes them: with commas between, quoted where one holds a comma or a quote."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(words)
    return shlex.quote(line.getvalue())


# ---------------------------------------------------------------- public rows, matrices, test rows


def split(
    x: Rows, y: np.ndarray, fraction: float, salt: str, first: int = 0, crew: Group = ALONE
) -> tuple[tuple[Rows, np.ndarray], tuple[Rows, np.ndarray]]:
    """Training and test rows by one coin for each place, drawn by a secret salt: coins that look at no record.

    first   the place of the first row: that of a rank's part in the whole

    The coins are independent and alike, so a record more or less, or another in its place, leaves the law of the sides
    of all others as it was, and the sizes tell nothing but the public number of rows.
    """
    bound, secret = int(fraction * 2**64), salt.encode()
    places = range(first, first + len(y))
    digests = (hashlib.blake2b(str(i).encode(), digest_size=8, key=secret).digest() for i in places)
    held_out = np.fromiter((int.from_bytes(digest, "big") < bound for digest in digests), dtype=bool, count=len(y))
    sides = [sum(crew.all(int(side.sum()))) for side in (~held_out, held_out)]
    validate.check(min(sides) > 0, "test_fraction", fraction, "give another share: no row is left on one side")
    return (_side(x, ~held_out), y[~held_out]), (_side(x, held_out), y[held_out])


def _side(x: Rows, mask: np.ndarray) -> Rows:
    """The rows that a mask keeps."""
    if isinstance(x, Streamed):
        return ChosenRows(x, torch.from_numpy(np.flatnonzero(mask)))
    return x[mask]
