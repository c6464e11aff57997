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
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from isthmus import sets
from isthmus.base import validate
from isthmus.tables.files import Reading, has_part, is_libsvm
from isthmus.tables.schema import (
    TASKS,
    Schema,
    Target,
    known_keys,
    read_bounds,
    read_column,
    read_sign,
    read_target,
    read_words,
)

_NEEDS_ROWS = "give test or test_fraction with it: it needs test rows"
_HIDDEN = (
    "give a public test file instead of test_fraction: the number of held-out rows would give the private "
    "number of rows away"
)
_EITHER = "give either test_epsilon or release_test_metrics: figures are published with noise or without, not both"
_LESS = "give less than epsilon={:g}: the figures are bought from it, and the training needs the rest"
PATHS = ("data", "public", "test", "budget", "schema", "out")
SETS = "l1:RADIUS, l2:RADIUS, linf:RADIUS, box:LOW,HIGH or simplex"


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

    data: str = ""
    target: str | None = None
    task: str | None = None
    classes: tuple[str, ...] | None = None
    target_bounds: tuple[float, float] | None = None
    epsilon: float = 1.0
    delta: float | None = None
    adjacency: str = "add-remove"
    n: int | None = None
    loss: str | None = None
    algorithm: str = "auto"
    constraint: str | None = None
    l1: float = 0.0
    l2: float = 0.0
    clip: float | None = None
    step: float | None = None
    max_iter: int | None = None
    batch_size: int | None = None
    scale: str = "auto"
    shape: str = "auto"
    data_norm: float | None = None
    intercept: bool = True
    class_weight: dict[str, float] | str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    bounds: tuple[float, float] | None = None
    public: str | None = None
    test: str | None = None
    test_fraction: float | None = None
    test_epsilon: float | None = None
    release_test_metrics: bool = False
    budget: str | None = None
    title: str | None = None
    purpose: str | None = None
    owner: str | None = None
    schema: str | None = None
    out: str | None = None
    separator: str | None = None
    encoding: str = "utf-8"
    decimal: str | None = None
    features: int | None = None
    zero_based: bool = False

    def __post_init__(self) -> None:
        for setting in fields(self):
            value, check = getattr(self, setting.name), _CHECKS.get(setting.name)
            validate.check(
                value is not None or setting.default is None, setting.name, None, "give a value, or leave it out"
            )
            if value is not None and check is not None:
                object.__setattr__(self, setting.name, check(setting.name, value))
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
    def reading(self) -> Reading:
        """How files are read."""
        return Reading(self.separator, self.encoding, self.features, self.zero_based)

    @property
    def measure_epsilon(self) -> float | None:
        """What is kept free of epsilon for noisy figures of the test rows, None where they are bare or public.

        For a share of the private rows it is a tenth unless told otherwise (and only needed where the training does not
        cover them, see `measure`); a file of test rows counts as public unless `test_epsilon` says that it is not.
        """
        if self.test_epsilon is not None or not self.private:
            return self.test_epsilon
        return self.epsilon / 10 if self.test_fraction is not None and not self.release_test_metrics else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; infinity is the text "inf"."""
        values = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
        return values | {"epsilon": self.epsilon if self.private else "inf"}

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
    settings = {} if file is None else _read_toml(Path(file))
    known_keys("config", settings, [*(member.name for member in fields(Settings)), "columns"])
    chosen = {key: value for key, value in options.items() if value is not None and value != ()}
    path = chosen.get("schema") or settings.get("schema")
    declared = Schema()
    if path is not None:  # whoever hands a schema in declares it public, wherever it came from
        declared = Schema.load(path)
        declared = replace(declared, columns=tuple(replace(column, source="declared") for column in declared.columns))
    target = settings.pop("target", None)
    if target is not None:
        declared = replace(declared, target=read_target({"name": target} if isinstance(target, str) else target))
    tables = settings.pop("columns", {})
    validate.check(isinstance(tables, dict), "columns", tables, "give a table for each column: [columns.NAME]")
    columns = [read_column(name, value) for name, value in tables.items()]
    columns += [read_column(name, value) for name, value in chosen.pop("columns", {}).items()]
    declared = declared.with_columns(columns)
    told = declared.target
    if told is not None and chosen.get("target") in (None, told.name):  # what it says of another target is of no use
        known = {"target": told.name, "task": told.task, "classes": told.classes}
        settings = known | {"target_bounds": told.bounds, "decimal": told.decimal} | settings
    whole = Settings(**{**settings, **chosen})
    _check_files(whole)
    return whole, replace(declared, target=None)


def target_of(settings: Settings) -> Target | None:
    """What the settings declare of the target, None where they do not name it."""
    if settings.target is None:
        return None
    task = settings.task or ("classification" if settings.classes is not None else None)
    task = task or ("regression" if settings.target_bounds is not None else None)
    return Target(settings.target, task, settings.classes, settings.target_bounds, settings.decimal)


def _check_files(settings: Settings) -> None:
    """Refuse options of another kind of file, and private rows that would be declared public by giving them twice."""
    for name in ("features", "zero_based"):
        value = getattr(settings, name)
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


def _read_toml(file: Path) -> dict[str, Any]:
    validate.present(os.path.isfile(file), file)
    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        validate.unreadable(file, f"it is not valid TOML ({error}); correct that line")
    for name in PATHS:
        if isinstance(tree.get(name), str):
            tree[name] = str(file.parent / tree[name])
    return tree


_SETS: Mapping[str, tuple[Callable[..., sets.ConvexSet], tuple[int, ...]]] = {
    "l1": (sets.L1Ball, (1,)),
    "l2": (sets.L2Ball, (1,)),
    "linf": (sets.LInfBall, (1,)),
    "box": (sets.Box, (2,)),
    "simplex": (sets.Simplex, (0, 1)),
}


def read_constraint(text: str | None) -> sets.ConvexSet | None:
    """The set that a text names, or None.

    >>> read_constraint("l1:50"), read_constraint("linf:2")
    (L1Ball(radius=50.0), LInfBall(radius=2.0...))
    """
    if text is None:
        return None
    kind, _, numbers = text.partition(":")
    try:
        values = [float(number) for number in numbers.split(",")] if numbers else []
        build, sizes = _SETS[kind.strip().lower()]
        validate.check(
            len(values) in sizes, "constraint", text, f"give {sizes[0]} number(s) after {kind}, as many as it takes"
        )
        return build(*values)
    except (KeyError, TypeError, ValueError) as error:
        reason = f" ({error})" if isinstance(error, validate.InvalidInput) else ""
        validate.refuse("constraint", text, f"give {SETS}{reason}")


# ---------------------------------------------------------------- checks, one for each setting


def _epsilon(name: str, value: object) -> float:
    try:
        number = float(value) if isinstance(value, (int, float, str)) else math.nan
    except ValueError:
        number = math.nan
    validate.check(number > 0 and value is not True, name, value, "give a number above 0; inf trains without privacy")
    return number


def _checked(check: Callable[..., None], kind: type) -> Callable[[str, Any], Any]:
    def read(name: str, value: Any) -> Any:
        check(**{name: value})
        return kind(value)

    return read


def _text(name: str, value: Any) -> str:
    validate.check(isinstance(value, str) and bool(value), name, value, "give text")
    return value


def _encoding(name: str, value: object) -> str:
    text = _text(name, value)
    try:
        "".encode(text)
    except (LookupError, ValueError):
        validate.refuse(name, value, "give an encoding that Python knows, such as utf-8, latin-1 or cp1252")
    return text


def _flag(name: str, value: Any) -> bool:
    validate.check(isinstance(value, bool), name, value, "give true or false")
    return value


def _among(*choices: str) -> Callable[[str, Any], str]:
    def read(name: str, value: Any) -> str:
        validate.one_of(choices, **{name: value})
        return value

    return read


def _table(name: str, value: Any) -> Any:
    validate.check(isinstance(value, Mapping), name, value, "give a table")
    return dict(value)


def _weights(name: str, value: Any) -> Any:
    if value == "balanced":
        return value
    validate.check(isinstance(value, Mapping), name, value, "give a table of weights by class")
    return {str(key): float(weight) for key, weight in value.items()}


def _constraint(name: str, value: Any) -> str:
    read_constraint(_text(name, value))
    return value


_POSITIVE, _SIZE = _checked(validate.positive, float), _checked(validate.positive_int, int)
_NATURAL, _UNIT = _checked(validate.non_negative, float), _checked(validate.open_unit, float)
_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(("clip", "step", "data_norm", "test_epsilon"), _POSITIVE),
    **dict.fromkeys(("n", "max_iter", "batch_size", "features"), _SIZE),
    **dict.fromkeys(("l1", "l2"), _NATURAL),
    **dict.fromkeys(("delta", "test_fraction"), _UNIT),
    **dict.fromkeys(("intercept", "release_test_metrics", "zero_based"), _flag),
    **dict.fromkeys(("target", "loss", "algorithm", "scale", "title", "purpose", "owner"), _text),
    "decimal": _among(".", ","),
    "encoding": _encoding,
    "separator": lambda name, value: read_sign(name, "\t" if value == "\\t" else value),
    **dict.fromkeys(PATHS, lambda name, value: str(value)),
    "epsilon": _epsilon,
    "adjacency": _among("add-remove", "replace-one"),
    "task": _among(*TASKS),
    "shape": _among("auto", "linear", "smooth"),
    "classes": read_words,
    **dict.fromkeys(("bounds", "target_bounds"), read_bounds),
    "constraint": _constraint,
    "class_weight": _weights,
    "options": _table,
}
