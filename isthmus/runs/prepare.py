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
from typing import Any, NoReturn

import numpy as np
import torch

from isthmus.base import validate
from isthmus.base.streamed import ChosenRows, Streamed
from isthmus.core.group import ALONE, Group
from isthmus.runs.config import Settings
from isthmus.tables.encode import as_labels, as_numbers, as_words, bounds_of, encode, encode_target, target_column
from isthmus.tables.entries import Signs
from isthmus.tables.files import Table, check_numbers, columns_of, numbers_of, read
from isthmus.tables.infer import Guess, check_decimal, infer
from isthmus.tables.schema import BUCKETS, Schema, Target, check_names, listed

MOST_CLASSES = 100
FEW = 10
"""Labels of fewer rows are never read off private data."""
_RARE_LABEL = (
    "name all labels that may be public with --classes A,B,.. and remove the other rows, or give --task "
    f"regression: fewer than {FEW} rows have one of the labels, and reading it off them would publish it"
)
_ONE_LABEL = (
    "name all labels that may occur with --classes, check --target, or give --task regression to predict a number: "
    "a classifier needs two labels"
)


@dataclass(frozen=True)
class PreparedRows:
    """The rows to train on, as numbers, and everything public about them.

    features   names of the encoded columns, None for a matrix
    bounds     public ranges of the columns (NaN: to be bought), or None: none is known
    public     public rows, with targets where the file has them
    test       rows and targets kept out of training
    leaks      what was read off private rows without being paid for, each with its remedy
    notes      what a user should know and that is no leak
    """

    name: str
    schema: Schema
    x: Any
    y: np.ndarray
    features: list[str] | None
    bounds: tuple[np.ndarray, np.ndarray] | None
    public: Any = None
    test: tuple[Any, np.ndarray] | None = None
    leaks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    whole: tuple[int, int | None] | None = None
    """Rows to train on and test rows of all ranks, where several train together."""

    @property
    def target(self) -> Target:
        """The target, its task and classes settled."""
        assert self.schema.target is not None
        return self.schema.target

    @property
    def n(self) -> int:
        """Rows to train on, of all ranks."""
        return int(self.x.shape[0]) if self.whole is None else self.whole[0]

    @property
    def test_rows(self) -> int | None:
        """Test rows, of all ranks; None: there are none."""
        if self.test is None:
            return None
        return len(self.test[1]) if self.whole is None else self.whole[1]

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
    leaks, notes = list(table.notes), []
    known = "the names of the columns" if table.frame is not None else "the number of columns"
    if settings.n is None:
        notes.append(f"{known} and the number of rows count as public (--rows N hides the number of rows)")
    else:
        notes.append(f"{known} count as public; the number of rows is not published, {settings.n} stands for it")
    if table.frame is not None:
        schema, more, notices = _complete(settings, declared, table, public)
        leaks, notes = leaks + more, notes + notices
    else:
        schema = replace(declared, columns=())
    target, more, notices = _settle_target(settings, schema, table, public)
    schema, leaks, notes = replace(schema, target=target), leaks + more, notes + notices
    validate.check(
        not (settled and leaks),
        "schema",
        leaks,
        "continue with the table that the run began with: its schema does not cover this one",
    )
    if crew.size > 1:
        _check_agreed(crew, schema, leaks)
    fixed = settings.private and settings.adjacency == "replace-one"  # then no record may change the number of rows
    x, y = rows_of(table, schema, all_have=fixed)
    _check_words(schema, x, crew)
    validate.check(
        sum(crew.all(len(y))) > 0, "target", target.name, "check the name of the target column: no row has a target"
    )
    test = None
    if settings.test is not None:
        rows, hidden = _filled("test", settings.test, settings, part="test"), settings.measure_epsilon is not None
        if hidden:  # public ones are measured whole
            rows = rows.part(crew.rank, crew.size)[0]
        test = rows_of(rows, schema, "test", all_have=fixed and hidden)
    if settings.test_fraction is not None:
        (x, y), test = split(x, y, settings.test_fraction, salt, first, crew)
    bounds, features = None, None
    if table.frame is not None:
        bounds, features = bounds_of(schema), schema.features
    elif settings.bounds is not None:
        bounds = np.full(x.shape[1], settings.bounds[0]), np.full(x.shape[1], settings.bounds[1])
    public_rows = _public_rows(public, schema)
    prepared = PreparedRows(table.name, schema, x, y, features, bounds, public_rows, test, tuple(leaks), tuple(notes))
    return replace(prepared, whole=_whole(prepared, settings, crew)) if crew.size > 1 else prepared


def _check_agreed(crew: Group, schema: Schema, leaks: list[str]) -> None:
    """Refuse guesses where every rank sees other rows: its guess would be its own."""
    remedy = (
        "run it once in one process with --dry-run --write-schema schema.toml, review that file, and give it as "
        "--schema, with --classes or --target-bounds: ranks guess nothing from their rows"
    )
    validate.check(not leaks, "schema", leaks, remedy)
    schemas = crew.all(schema.to_toml())
    validate.check(len(set(schemas)) == 1, "schema", f"{len(set(schemas))} schemas of the ranks", remedy)


def _whole(rows: PreparedRows, settings: Settings, crew: Group) -> tuple[int, int | None]:
    """Rows to train on and test rows of all ranks; every rank has the whole of a public test file."""
    tested = None if rows.test is None else len(rows.test[1])
    if tested is not None and not (settings.test is not None and settings.measure_epsilon is None):
        tested = sum(crew.all(tested))
    return sum(crew.all(int(rows.x.shape[0]))), tested


def _filled(argument: str, path: str, settings: Settings, part: str = "train") -> Table:
    """The table in a file that must have rows."""
    table = read(path, part=part, reading=settings.reading)
    validate.check(table.n > 0, argument, path, "give a file with rows: this one has none")
    return table


def rows_of(table: Table, schema: Schema, what: str = "data", *, all_have: bool = False) -> tuple[Any, np.ndarray]:
    """The encoded rows that have a target, and their targets; refused if `all_have` one and some have not."""
    target = schema.target
    assert target is not None
    if table.frame is None:
        validate.check(table.y is not None, what, table.name, "give a file with targets y: this one has none")
        check_numbers(table, what)
    else:
        validate.check(
            target.name in table.frame.columns,
            what,
            table.name,
            f"give a file with the column {target.name!r}: this one does not have it",
        )
    y, present = encode_target(_targets(table, target.name), target, table.separator)
    whole = bool(present.all())
    remedy = (
        "remove the rows that have no target first, or use add-remove: leaving them out would show how many they are"
    )
    validate.check(whole or not all_have, "adjacency", "replace-one", remedy)
    if table.frame is None:
        return (table.x if whole else table.x[present]), y
    return numbers_of(table.frame if whole else table.frame[present], schema.read_by(table.separator)), y


# ---------------------------------------------------------------- columns


def _complete(
    settings: Settings, declared: Schema, table: Table, public: Table | None
) -> tuple[Schema, list[str], list[str]]:
    """The schema of every column, in the table's order; what cannot be guessed is refused, all columns at once."""
    columns, guessed, notes = [], [], []
    refused: dict[str, validate.InvalidInput] = {}
    for name in table.frame.columns:
        if name == settings.target:
            continue
        column = declared.get(name)
        if column is None:
            try:
                inferred = _inferred(name, settings, table, public)
            except validate.InvalidInput as error:
                refused[name] = error
                continue
            column = inferred.column
            guessed += [name] if column.source == "data" else []
            if inferred.why:
                outcome = "left out" if column.type == "drop" else f"read as {column.type}"
                notes.append(f"column {name!r} is {outcome}: {inferred.why}")
        columns.append(column.settled(settings.bounds, settings.decimal))
    if refused:
        _refuse_all(refused)
    schema = Schema(tuple(columns))
    validate.check(
        bool(schema.features),
        "columns",
        schema.names,
        "declare at least one column as a number, words, a date or bool: none is left to learn from",
    )
    leaks = []
    if guessed:
        leaks = [
            f"the types of {_listed(guessed)} were read from the private rows. Review the schema.toml in the run's "
            "folder and give it as --schema next time, or declare types with [columns], --categories, --bounds, --drop"
        ]
    return schema, leaks, notes + _notes_of(schema)


def _notes_of(schema: Schema) -> list[str]:
    """What follows from the types of the columns and that a user should know."""
    notes = []
    hashed = [column.name for column in schema.columns if column.type == "hash" and column.source == "data"]
    if hashed:
        notes.append(
            f"the words of {_listed(hashed)} were not declared, and are never read from private rows: they go into "
            f"fixed buckets by a fixed hash, {BUCKETS} for a column even where it has two words, and two words may "
            f'share one. Name the words to tell them apart: --categories "{hashed[0]}=a,b,c"; where a column holds '
            f'numbers with a word among them, give its range: --bounds "{hashed[0]}=LOW,HIGH"'
        )
    ids = [column.name for column in schema.columns if column.type == "id"]
    if ids:
        notes.append(
            f"epsilon protects one row; where one {ids[0]!r} has several rows, it does not protect all of them"
        )
    return notes


def _check_words(schema: Schema, x: Any, crew: Group) -> None:
    """Refuse a column of words in which none of the declared ones ever occurs: all rows would be "(other)"."""
    at, occurring = 0, {}
    for column in schema.columns:
        width = len(column.features)
        if column.type == "category":
            declared, undeclared = _occurs(x, at, at + width - 2), _occurs(x, at + width - 2, at + width - 1)
            occurring[column.name] = [declared, undeclared]
        at += width
    counts = crew.all(occurring)
    for name in occurring:
        known, unknown = (any(count[name][k] for count in counts) for k in (0, 1))
        remedy = "check how its words are written, or declare it anew: no row has one of the words declared for it"
        validate.check(known or not unknown, f"columns.{name}", "category", remedy)


def _occurs(x: Any, lo: int, hi: int) -> bool:
    """Whether some row has something in the columns lo, ..., hi - 1."""
    if isinstance(x, Streamed):
        return any(bool(rows[:, lo:hi].any()) for _, _, rows in x.chunks())
    return bool(x[:, lo:hi].any())


def _inferred(name: str, settings: Settings, table: Table, public: Table | None) -> Guess:
    """A column that was not declared: as public rows have it, where they have it."""
    is_public = public is not None and public.frame is not None and name in public.frame.columns
    source = public if public is not None and is_public else table
    signs = Signs.of(settings.decimal, source.separator)
    return infer(name, source.frame[name], public=is_public, signs=signs)


def _refuse_all(refused: dict[str, validate.InvalidInput]) -> NoReturn:
    """One error for all columns; the decimal sign is that of the file, and is asked for once."""
    words = {("decimal" if str(error).startswith("decimal=") else name): str(error) for name, error in refused.items()}
    if len(refused) == 1:
        raise next(iter(refused.values()))
    lines = [f"\n  {word.replace(' is not allowed: ', ': ', 1)}" for word in words.values()]
    raise validate.InvalidInput(f"The columns {_listed(list(refused))} are not allowed as they are:{''.join(lines)}")


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names[:8])) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


# ---------------------------------------------------------------- the target


def _settle_target(
    settings: Settings, schema: Schema, table: Table, public: Table | None
) -> tuple[Target, list[str], list[str]]:
    """The target with its task and classes: declared, taken from public rows, or guessed with a leak."""
    name = settings.target or "y"
    values = _targets(table, name)
    validate.check(values is not None, "data", table.name, "give a file with targets y: this one has none")
    public_targets = None if public is None else _targets(public, name)
    free = public_targets is not None
    source, origin = (public_targets, public) if public is not None and free else (values, table)
    leaks, notes = [], []
    task = settings.task or ("classification" if settings.classes is not None else None)
    task = task or ("regression" if settings.target_bounds is not None else None)
    if task is None:
        task = _guess_task(name, source, settings.decimal, origin.separator)
        guess = f"the task, {task}, was guessed from the target column {name!r}"
        other = "regression" if task == "classification" else "classification"
        leaks += [] if free else [f"{guess}: give --task {task}, or --task {other} where that is meant"]
    classes = settings.classes
    if task == "classification" and classes is None:
        words, absent = as_words(source)
        classes = tuple(sorted(as_labels(words[~absent]), key=_label_order))
        counted = f"{len(classes)} label{'s' * (len(classes) != 1)}"
        validate.check(len(classes) >= 2, "classes", counted, _ONE_LABEL)
        remedy = f"give --task regression, or --classes: there may be at most {MOST_CLASSES}"
        validate.check(len(classes) <= MOST_CLASSES, "classes", counted, remedy)
        if settings.private and not free:  # a label that few rows have would tell of those rows
            rows = Counter(encode_target(source, Target(name, task, classes))[0].tolist())
            validate.check(min(rows.values()) >= FEW, "classes", "(read from the data)", _RARE_LABEL)
        guess = f"the classes {list(classes)} were read from the target column {name!r}"
        leaks += [] if free else [f"{guess}: give --classes {as_option(classes)}"]
    ranged = settings.target_bounds
    validate.check(
        task == "regression" or ranged is None, "target_bounds", ranged, "leave it out: classes have no range"
    )
    if task == "regression":
        validate.check(classes is None, "classes", classes, "leave it out: --task regression has no classes")
        if ranged is None and public_targets is not None and public is not None:
            ranged = _range_of(public_targets, settings.decimal, public.separator)
    if table.frame is not None:
        notes.append("rows without a target are left out")
    labels = classes if task == "classification" else None
    return Target(name, task, labels, ranged, settings.decimal if labels is None else None), leaks, notes


def as_option(words: Iterable[str]) -> str:
    """Words as an option takes them: with commas between, quoted where one holds a comma or a quote."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(words)
    return shlex.quote(line.getvalue())


def _range_of(values: Any, decimal: str | None, separator: str | None) -> tuple[float, float] | None:
    """The range of public targets, where they have one."""
    numbers = _numbers_of(values, decimal, separator)
    numbers = numbers[np.isfinite(numbers)]
    return (float(numbers.min()), float(numbers.max())) if len(np.unique(numbers)) > 1 else None


def _numbers_of(values: Any, decimal: str | None, separator: str | None) -> np.ndarray:
    return as_numbers(values, target_column(Target("y", decimal=decimal), separator))


def _targets(table: Table, name: str) -> Any:
    if table.frame is None:
        return table.y
    return table.frame[name] if name in table.frame.columns else None


def _guess_task(name: str, values: Any, decimal: str | None, separator: str | None) -> str:
    """Words, truth values, two different numbers: classes.  Anything else: a number to predict."""
    numbers = _numbers_of(values, decimal, separator)
    words, absent = as_words(values)
    check_decimal(name, words[~absent].tolist(), Signs.of(decimal, separator))
    worded = bool((~np.isfinite(numbers) & ~absent).any())
    return "classification" if worded or len(np.unique(numbers[np.isfinite(numbers)])) <= 2 else "regression"


def _label_order(word: str) -> tuple[int, float, str]:
    try:
        return 0, float(word), word
    except ValueError:
        return 1, 0.0, word


# ---------------------------------------------------------------- public rows, matrices, test rows


def _public_rows(public: Table | None, schema: Schema) -> Any:
    """Public rows as the estimator takes them: X, or (X, y) where they have targets."""
    if public is None:
        return None
    assert schema.target is not None
    if _targets(public, schema.target.name) is None:
        return encode(public.frame, schema.read_by(public.separator)) if public.frame is not None else public.x
    return rows_of(public, schema, "public")


def split(
    x: Any, y: np.ndarray, fraction: float, salt: str, first: int = 0, crew: Group = ALONE
) -> tuple[tuple[Any, np.ndarray], tuple[Any, np.ndarray]]:
    """Training and test rows by one coin for each place, drawn by a secret salt: coins that look at no record.

    first   the place of the first row: that of a rank's part in the whole

    The coins are independent and alike, so a record more or less, or another in its place, leaves the law of the sides
    of all others as it was, and the sizes tell nothing but the public number of rows.
    """
    bound, secret = int(fraction * 2**64), salt.encode()
    places = range(first, first + len(y))
    digests = (hashlib.blake2b(str(i).encode(), digest_size=8, key=secret).digest() for i in places)
    held_out = np.fromiter((int.from_bytes(digest, "big") < bound for digest in digests), dtype=bool, count=len(y))
    sizes = sum(crew.all(int((~held_out).sum()))), sum(crew.all(int(held_out.sum())))
    validate.check(min(sizes) > 0, "test_fraction", fraction, "give another share: no row is left on one side")
    return (_side(x, ~held_out), y[~held_out]), (_side(x, held_out), y[held_out])


def _side(x: Any, mask: np.ndarray) -> Any:
    """The rows that a mask keeps."""
    return ChosenRows(x, torch.from_numpy(np.flatnonzero(mask))) if isinstance(x, Streamed) else x[mask]
