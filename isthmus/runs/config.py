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
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from isthmus import sets
from isthmus.base import validate
from isthmus.tables.files import Reading, has_part, is_libsvm
from isthmus.tables.schema import (
    TASKS,
    Schema,
    Target,
    checked,
    known_keys,
    one_of,
    read_bounds,
    read_column,
    read_sign,
    read_target,
    read_toml,
    read_words,
    setting,
)

_NEEDS_ROWS = "give test or test_fraction with it: it needs test rows"
_HIDDEN = "give a public test file instead: the held-out rows would give the private number of rows away"
_EITHER = "give either test_epsilon or release_test_metrics: figures are published with noise or without, not both"
_LESS = "give less than epsilon={:g}: the figures are bought from it, and the training needs the rest"
_PATHS = ("data", "public", "test", "budget", "schema", "out")


_SETS: Mapping[str, tuple[Callable[..., sets.ConvexSet], int]] = {
    "l1": (sets.L1Ball, 1),
    "l2": (sets.L2Ball, 1),
    "linf": (sets.LInfBall, 1),
    "box": (sets.Box, 2),
    "simplex": (sets.Simplex, 1),
}


def read_constraint(text: str | None) -> sets.ConvexSet | None:
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


def _epsilon(name: str, value: object) -> float:
    number = math.nan
    if isinstance(value, (int, float, str)) and value is not True:
        with suppress(ValueError):
            number = float(value)
    validate.check(number > 0, name, value, "give a number above 0; inf trains without privacy")
    return number


def _reader(fits: Callable[[Any], object], remedy: str) -> Callable[[str, object], Any]:
    """A reader of what fits, as it is."""

    def read(name: str, value: object) -> object:
        validate.check(bool(fits(value)), name, value, remedy)
        return value

    return read


_text = _reader(lambda value: isinstance(value, str) and value, "give text")
_flag = _reader(lambda value: isinstance(value, bool), "give true or false")
_table = _reader(lambda value: isinstance(value, Mapping), "give a table")


def _encoding(name: str, value: object) -> str:
    text = _text(name, value)
    try:
        "".encode(text)
    except (LookupError, ValueError):
        validate.refuse(name, value, "give an encoding that Python knows, such as utf-8, latin-1 or cp1252")
    return text


def _weights(name: str, value: object) -> object:
    if value == "balanced":
        return value
    if not isinstance(value, Mapping):
        validate.refuse(name, value, "give a table of weights by class")
    return {str(key): float(weight) for key, weight in value.items()}


def _separator(name: str, value: object) -> str:
    return read_sign(name, "\t" if value == "\\t" else value)


def _path(name: str, value: object) -> str:
    return str(value)


def _constraint(name: str, value: object) -> str:
    read_constraint(_text(name, value))
    return str(value)


_POSITIVE, _SIZE = checked(validate.positive, float), checked(validate.positive_int, int)
_NATURAL, _UNIT = checked(validate.non_negative, float), checked(validate.open_unit, float)


@dataclass(frozen=True)
class Settings:
    """Every choice of a run; None leaves a choice to the estimator.

    data, target, task, classes, target_bounds   what is read and predicted
    epsilon, delta, adjacency, n     the promise: who is protected, and how far
    loss ... options                 what the estimator is given
    bounds                           the public range of every number that has none of its own
    public                           a file of public rows: types, words, ranges and scales are taken from it
    test, test_fraction              a file, or a share of the rows, kept out of training
    test_epsilon                     what noisy figures of the test rows cost, out of epsilon
    release_test_metrics             publish those figures without noise
    budget                           a ledger shared with other runs on the same data
    title, purpose, owner            what the report says: of what, what the model is for, who answers for it
    decimal                          the decimal sign of a text file; None: ".", and other signs are refused
    """

    data: str = setting("", _path)
    target: str | None = setting(None, _text)
    task: str | None = setting(None, one_of(*TASKS))
    classes: tuple[str, ...] | None = setting(None, read_words)
    target_bounds: tuple[float, float] | None = setting(None, read_bounds)
    epsilon: float = setting(1.0, _epsilon)
    delta: float | None = setting(None, _UNIT)
    adjacency: str = setting("add-remove", one_of("add-remove", "replace-one"))
    n: int | None = setting(None, _SIZE)
    loss: str | None = setting(None, _text)
    algorithm: str = setting("auto", _text)
    constraint: str | None = setting(None, _constraint)
    l1: float = setting(0.0, _NATURAL)
    l2: float = setting(0.0, _NATURAL)
    clip: float | None = setting(None, _POSITIVE)
    step: float | None = setting(None, _POSITIVE)
    max_iter: int | None = setting(None, _SIZE)
    batch_size: int | None = setting(None, _SIZE)
    scale: str = setting("auto", _text)
    shape: str = setting("auto", one_of("auto", "linear", "smooth"))
    data_norm: float | None = setting(None, _POSITIVE)
    intercept: bool = setting(True, _flag)
    class_weight: dict[str, float] | str | None = setting(None, _weights)
    options: dict[str, Any] | None = setting(None, _table)
    bounds: tuple[float, float] | None = setting(None, read_bounds)
    public: str | None = setting(None, _path)
    test: str | None = setting(None, _path)
    test_fraction: float | None = setting(None, _UNIT)
    test_epsilon: float | None = setting(None, _POSITIVE)
    release_test_metrics: bool = setting(False, _flag)
    budget: str | None = setting(None, _path)
    title: str | None = setting(None, _text)
    purpose: str | None = setting(None, _text)
    owner: str | None = setting(None, _text)
    schema: str | None = setting(None, _path)
    out: str | None = setting(None, _path)
    separator: str | None = setting(None, _separator)
    encoding: str = setting("utf-8", _encoding)
    decimal: str | None = setting(None, one_of(".", ","))
    features: int | None = setting(None, _SIZE)
    zero_based: bool = setting(False, _flag)

    def __post_init__(self) -> None:
        for member in fields(self):
            value = vars(self)[member.name]
            given = value is not None or member.default is None
            validate.check(given, member.name, None, "give a value, or leave it out")
            if value is not None:
                vars(self)[member.name] = member.metadata["read"](member.name, value)
        validate.check(bool(self.data), "data", self.data, "give the file to train on")
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
    def known_task(self) -> str | None:
        """The kind of the target, where the settings tell it."""
        if self.task is None and self.classes is not None:
            return "classification"
        if self.task is None and self.target_bounds is not None:
            return "regression"
        return self.task

    @property
    def reading(self) -> Reading:
        """How files are read."""
        return Reading(self.separator, self.encoding, self.features, self.zero_based)

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
        values = asdict(self)
        if not self.private:
            values["epsilon"] = "inf"
        return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}

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
        declared = replace(declared, columns=tuple(replace(column, source="declared") for column in declared.columns))
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
    return Target(settings.target, settings.known_task, settings.classes, settings.target_bounds, settings.decimal)


def _check_files(settings: Settings) -> None:
    """Refuse options of another kind of file, and private rows that would be declared public by giving them twice."""
    for name, value in (("features", settings.features), ("zero_based", settings.zero_based)):
        fits = not value or is_libsvm(settings.data)
        validate.check(fits, name, value, "leave it out: it is for libsvm files (--drop COL leaves columns out)")
    twice = ": this is the file to train on, whose rows are private"
    other = "give a file of other rows, which are public, or leave it out" + twice
    validate.check(not _same(settings.public, settings.data), "public", settings.public, other)
    bare = settings.private and settings.test_epsilon is None and _same(settings.test, settings.data)
    apart = "keep a share of the rows out of training with test_fraction, or give a file of other rows" + twice
    validate.check(not bare or has_part(settings.data, "test"), "test", settings.test, apart)


def _same(path: str | None, other: str) -> bool:
    """Whether two paths lead to one file or folder."""
    return path is not None and Path(path).resolve() == Path(other).resolve()
