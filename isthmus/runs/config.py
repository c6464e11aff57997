"""The settings of a training run, from a TOML file and options; an option beats the file.

The file has the options' names with underscores, and the tables [target] and [columns] of a schema:

    data = "people.csv"
    epsilon = 1.0
    test_fraction = 0.2

    [target]
    name = "income"
    classes = ["low", "high"]

    [columns]
    age = [17, 90]

Paths in it are relative to the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import isthmus
from isthmus.base import shapes, validate
from isthmus.base.shapes import FLAG, NAME, REAL, SHARE, SIZE, TEXT, kind, one_of, setting
from isthmus.tables.files import Reading, format_of, has_part, overlap
from isthmus.tables.schema import (
    RANGE,
    SIGN,
    SOME_WORDS,
    TASKS,
    WORDS,
    Schema,
    Target,
    known_keys,
    read_column,
    read_target,
    read_toml,
)

if TYPE_CHECKING:
    from isthmus.sets import ConvexSet

_NEEDS_ROWS = "give test or test_fraction with it: it needs test rows"
_HIDDEN = "give a public test file instead: the held-out rows would give the private number of rows away"
_EITHER = "give either test_epsilon or release_test_metrics: figures are published with noise or without, not both"
_LESS = "give less than epsilon={:g}: the figures are bought from it, and the training needs the rest"
_PATHS = ("data", "public", "test", "budget", "schema", "out")


_SETS: Mapping[str, tuple[Callable[..., ConvexSet], int]] = {
    "l1": (lambda radius: isthmus.L1Ball(radius), 1),
    "l2": (lambda radius: isthmus.L2Ball(radius), 1),
    "linf": (lambda radius: isthmus.LInfBall(radius), 1),
    "box": (lambda low, high: isthmus.Box(low, high), 2),
    "simplex": (lambda *total: isthmus.Simplex(*total), 1),
}
"""How each is made, by a name that is loaded when it is first used: a schema is begun without torch."""


def read_constraint(text: str | None) -> ConvexSet | None:
    """The set that a text names, or None.

    >>> read_constraint("l1:50"), read_constraint("linf:2")
    (L1Ball(radius=50.0), LInfBall(radius=2.0...))
    """
    if text is None:
        return None
    kind, _, numbers = text.partition(":")
    form = "give l1:RADIUS, l2:RADIUS, linf:RADIUS, box:LOW,HIGH or simplex"
    try:
        build, size = _SETS[kind.strip().lower()]
        values = [float(number) for number in numbers.split(",") if numbers]
        if len(values) == size or (kind.strip().lower() == "simplex" and not values):
            return build(*values)
    except (KeyError, ValueError) as error:
        form += f" ({error})"
    validate.refuse("constraint", text, form)


def _is_encoding(name: str) -> bool:
    with suppress(LookupError, ValueError):
        "".encode(name)
        return bool(name)
    return False


_EPSILON = kind("number infinity", "give a number above 0; inf trains without privacy", exclusiveMinimum=0)
_POSITIVE = kind("number", "give a finite number above 0", exclusiveMinimum=0)
_NATURAL = kind("number", "give a finite number of at least 0", minimum=0)
_TABLE = kind("object", "give a table")
_WEIGHTS = kind("object string", "give a table of weights by class", additionalProperties=REAL, pattern="^balanced$")
_CONSTRAINT = NAME | {"fits": read_constraint}
_ENCODING = kind("string", "give an encoding that Python knows, such as utf-8, latin-1 or cp1252", fits=_is_encoding)


@dataclass(frozen=True)
class Settings:
    """Every choice of a run; None leaves a choice to the estimator.

    data, target, task, classes, target_bounds   what is read and predicted
    epsilon, delta, adjacency, n     the promise: who is protected, and how far
    loss ... options                 what the estimator is given
    bounds                           the public range of every number that has none of its own
    public                           a file of public rows: types, words, ranges and scales are taken from it
    test, test_fraction              a file of rows to measure on, or the share of the rows that is kept out for it
    test_epsilon                     what noisy figures of the test rows cost, out of epsilon
    release_test_metrics             publish those figures without noise
    budget                           a ledger shared with other runs on the same data
    title, purpose, owner            what the report says: of what, what the model is for, who answers for it
    decimal                          the decimal sign of a text file; None: ".", and other signs are refused
    missing                          entries that count as missing in all columns and in the target, such as -999
    query                            the rows of a database that are meant, or the sheet of an Excel file
    """

    data: str = setting(kind("string", "give the file to train on", minLength=1), "")
    target: str | None = setting(NAME, None)
    task: str | None = setting(one_of(*TASKS), None)
    classes: tuple[str, ...] | None = setting(SOME_WORDS, None)
    target_bounds: tuple[float, float] | None = setting(RANGE, None)
    epsilon: float = setting(_EPSILON, 1.0)
    delta: float | None = setting(SHARE, None)
    adjacency: str = setting(one_of("add-remove", "replace-one"), "add-remove")
    n: int | None = setting(SIZE, None)
    loss: str | None = setting(NAME, None)
    algorithm: str = setting(NAME, "auto")
    constraint: str | None = setting(_CONSTRAINT, None)
    l1: float = setting(_NATURAL, 0.0)
    l2: float = setting(_NATURAL, 0.0)
    clip: float | None = setting(_POSITIVE, None)
    step: float | None = setting(_POSITIVE, None)
    max_iter: int | None = setting(SIZE, None)
    batch_size: int | None = setting(SIZE, None)
    scale: str = setting(NAME, "auto")
    shape: str = setting(one_of("auto", "linear", "smooth"), "auto")
    data_norm: float | None = setting(_POSITIVE, None)
    intercept: bool = setting(FLAG, True)
    class_weight: dict[str, float] | str | None = setting(_WEIGHTS, None)
    options: dict[str, Any] | None = setting(_TABLE, None)
    bounds: tuple[float, float] | None = setting(RANGE, None)
    public: str | None = setting(TEXT, None)
    test: str | None = setting(TEXT, None)
    test_fraction: float | None = setting(SHARE, None)
    test_epsilon: float | None = setting(_POSITIVE, None)
    release_test_metrics: bool = setting(FLAG, False)
    budget: str | None = setting(TEXT, None)
    title: str | None = setting(NAME, None)
    purpose: str | None = setting(NAME, None)
    owner: str | None = setting(NAME, None)
    schema: str | None = setting(TEXT, None)
    out: str | None = setting(TEXT, None)
    separator: str | None = setting(SIGN, None)
    encoding: str = setting(_ENCODING, "utf-8")
    decimal: str | None = setting(one_of(".", ","), None)
    missing: tuple[str, ...] = setting(WORDS, ())
    features: int | None = setting(SIZE, None)
    zero_based: bool = setting(FLAG, False)
    query: str | None = setting(NAME, None)

    def __post_init__(self) -> None:
        if self.separator == "\\t":  # as one types it
            vars(self)["separator"] = "\t"
        vars(self).update(shapes.checked(vars(self), shapes.shape_of(Settings)))
        if self.task is None and self.classes is not None:
            vars(self)["task"] = "classification"
        elif self.task is None and self.target_bounds is not None:
            vars(self)["task"] = "regression"
        fraction, bought = self.test_fraction, self.test_epsilon
        tested = self.test is not None or fraction is not None
        refusals: list[tuple[bool, str, str]] = [
            (self.test is not None and fraction is not None, "test_fraction", "give test or test_fraction, not both"),
            (bool(bought) and not tested, "test_epsilon", _NEEDS_ROWS),
            (self.release_test_metrics and not tested, "release_test_metrics", _NEEDS_ROWS),
            (self.n is not None and fraction is not None, "n", _HIDDEN),
            (bool(bought) and self.release_test_metrics, "test_epsilon", _EITHER),
            (bought is not None and bought >= self.epsilon, "test_epsilon", _LESS.format(self.epsilon)),
            (bool(self.budget) and not self.private, "budget", "leave it out: epsilon = inf spends none of it"),
        ]
        for wrong, name, remedy in refusals:
            validate.check(not wrong, name, vars(self)[name], remedy)

    @property
    def private(self) -> bool:
        """Whether epsilon is finite."""
        return math.isfinite(self.epsilon)

    @property
    def reading(self) -> Reading:
        """How files are read."""
        return Reading(self.separator, self.encoding, self.features, self.zero_based, self.query)

    @property
    def measure_epsilon(self) -> float | None:
        """What is kept free of epsilon for noisy figures of the test rows, None where they are bare or public.

        For a share of the private rows it is a tenth unless told otherwise (and only needed where the training does not
        cover them, see `measure`); a file of test rows counts as public unless `test_epsilon` says that it is not.
        """
        held_out = self.test_fraction is not None and not self.release_test_metrics
        if not self.private or not (self.test_epsilon or held_out):
            return None
        return self.test_epsilon or self.epsilon / 10

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON; infinity is the text "inf"."""
        return dict(shapes.plain(vars(self)))

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Settings:
        """What `to_dict` wrote."""
        known_keys("settings", data, [member.name for member in fields(Settings)])
        return Settings(**data)


def load(file: str | Path | None, options: Mapping[str, Any]) -> tuple[Settings, Schema]:
    """Settings and declared schema from a TOML file (or none) and the options that were given.

    >>> settings, schema = load(None, {"data": "people.csv", "target": "income", "epsilon": 2.0})
    >>> settings.epsilon, settings.target, settings.measure_epsilon
    (2.0, 'income', None)
    >>> load(None, {"data": "people.csv", "epsilon": -1.0})
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: epsilon=-1.0 is not allowed: give a number above 0; inf trains without privacy
    """
    settings: dict[str, Any] = {}
    if file is not None:
        settings = read_toml(file)
        given = [name for name in _PATHS if isinstance(settings.get(name), str)]
        settings |= {name: str(Path(file).parent / settings[name]) for name in given}
    known_keys("config", settings, [*(member.name for member in fields(Settings)), "columns"])
    chosen = {key: value for key, value in options.items() if value not in (None, ())}
    path, declared = chosen.get("schema") or settings.get("schema"), Schema()
    if path is not None:  # whoever hands a schema in declares it public, wherever it came from
        declared = Schema.load(path)
        columns = [replace(c, source={"public": "public"}.get(c.source, "declared")) for c in declared.columns]
        declared = replace(declared, columns=tuple(columns))
        settings = {"missing": declared.missing} | settings
    target = settings.pop("target", None)
    if isinstance(target, str):
        target = {"name": target}
    if target is not None:
        declared = replace(declared, target=read_target(target))
    for tables in (settings.pop("columns", {}), chosen.pop("columns", {})):
        validate.check(isinstance(tables, dict), "columns", tables, "give a table for each column: [columns.NAME]")
        declared = declared.with_columns([read_column(name, value) for name, value in tables.items()])
    told = declared.target
    if told is not None and chosen.get("target") in (None, told.name):  # what it says of another target is of no use
        known = {"target": told.name, "task": told.task, "classes": told.classes}
        settings = known | {"target_bounds": told.bounds, "decimal": told.decimal} | settings
    whole = Settings(**settings | chosen)
    _check_files(whole)
    return whole, replace(declared, target=None)


def target_of(settings: Settings) -> Target | None:
    """What the settings declare of the target, None where they do not name it."""
    if settings.target is None:
        return None
    return Target(settings.target, settings.task, settings.classes, settings.target_bounds, settings.decimal)


def _check_files(settings: Settings) -> None:
    """Refuse options of another kind of file, and private rows that would be declared public by giving them twice."""
    for name, value in (("features", settings.features), ("zero_based", settings.zero_based)):
        fits = not value or format_of(settings.data) == "libsvm"
        validate.check(fits, name, value, "leave it out: it is for libsvm files (--drop COL leaves columns out)")
    fits = not settings.query or format_of(settings.data) in ("sheet", "sqlite", "duckdb")
    validate.check(fits, "query", settings.query, "leave it out: it is for SQLite, DuckDB and Excel files")
    twice = ": this is the file to train on, whose rows are private"
    other = "give a file of other rows, which are public, or leave it out" + twice
    validate.check(not _same(settings.public, settings.data), "public", settings.public, other)
    bare = settings.private and settings.test_epsilon is None and _same(settings.test, settings.data)
    apart = "keep a share of the rows out of training with test_fraction, or give a file of other rows" + twice
    validate.check(not bare or has_part(settings.data, "test"), "test", settings.test, apart)


def _same(path: str | None, other: str) -> bool:
    """Whether two paths lead to a common file or folder."""
    return path is not None and overlap(path, other)
