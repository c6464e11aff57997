"""The public rules that turn a table into numbers, and their TOML form.

    [target]
    name = "income"
    task = "classification"
    classes = ["low", "high"]

    [columns]
    age = [17, 90]                 # a number between 17 and 90
    sex = ["female", "male"]       # one of these words
    city = "hash"                  # any word, into 16 fixed buckets
    customer = "id"                # never a feature; predictions carry it along
    name = "drop"

    [columns.joined]               # the long form
    type = "date"
    format = "%d/%m/%Y"            # else ISO, 2024-12-31
    bounds = ["2010-01-01", "2024-12-31"]

Everything here counts as public: whoever writes it down must not take it from the private rows.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

from isthmus.base import validate
from isthmus.tables.entries import _EPOCH, OTHER, Signs, check_format, from_days

VERSION = 1
"""Of the rules of a schema's file; one without a version has this one."""
_TYPES = ("number", "bool", "category", "hash", "date", "id", "drop")
_FORMS = (
    'a range [low, high] or "number"; words ["a", "b"] or "hash"; dates [2010-01-01, 2024-12-31]; "bool", "id", "drop"'
)
"""How a column is declared, for those who are asked to."""
_OPEN = "?"
"""What stands where a declaration is still to be written."""
TASKS = ("classification", "regression")
SOURCES = ("declared", "public", "name", "data")
BUCKETS = 16
_OWN_KEYS = {
    "number": ("bounds", "missing", "absent", "fill", "thousands", "decimal"),
    "bool": ("missing", "absent"),
    "category": ("categories", "absent"),
    "hash": ("buckets", "absent"),
    "date": ("bounds", "missing", "absent", "format"),
    "id": (),
    "drop": (),
}
"""What can be declared of a column of each type."""
_TREATMENT = {
    "bool": "0 or 1",
    "hash": "words hashed into {0.buckets} fixed buckets; none is learned",
    "id": "carried along by predictions, never a feature",
    "drop": "left out",
}


@dataclass(frozen=True)
class Column:
    """How one column becomes numbers.

    type        "number", "bool", "category", "hash", "date", "id" (carried along, never a feature) or "drop"
    bounds      the public range of a number, or of a date in days since 1970; None: the estimator buys it
    categories  the public words of a category; any other word counts as "(other)"
    buckets     into how many fixed buckets words are hashed
    missing     "fill" puts the middle of the range (or `fill`) where nothing is, "indicator" also says so in a column
    absent      entries that count as missing beside the usual ones, such as -999
    decimal     the decimal sign of numbers in text
    thousands   the sign between thousands in text; None: the other one of "." and ",", "": neither of them
    format      of dates in text, such as %d/%m/%Y; "" is ISO
    source      "declared", "public" (from public rows), "name" (by its name) or "data" (private rows: a leak)
    """

    name: str
    type: str
    bounds: tuple[float, float] | None = None
    categories: tuple[str, ...] = ()
    buckets: int = BUCKETS
    missing: str = "fill"
    absent: tuple[str, ...] = ()
    fill: float | None = None
    thousands: str | None = None
    decimal: str = "."
    format: str = ""
    source: str = "declared"

    @property
    def features(self) -> list[str]:
        """The names of the columns it becomes."""
        if self.type in ("number", "bool", "date"):
            return [self.name, f"{self.name} (missing)"][: 1 + (self.missing == "indicator")]
        if self.type == "category":
            return [f"{self.name}={category}" for category in (*self.categories, "(other)", "(missing)")]
        if self.type == "hash":
            return [*(f"{self.name}#{k}" for k in range(self.buckets)), f"{self.name}=(missing)"]
        return []

    @property
    def filled(self) -> float:
        """What stands where a number is missing: `fill`, else the middle of the range, else 0."""
        if self.fill is not None:
            return self.fill
        low, high = (0.0, 1.0) if self.type == "bool" else self.bounds or (0.0, 0.0)
        return (low + high) / 2

    def settled(self, bounds: tuple[float, float] | None, decimal: str | None) -> Column:
        """A number with the range and the decimal sign that were declared for all, where it has none of its own."""
        if self.type != "number":
            return self
        column = replace(self, bounds=self.bounds or bounds)
        if decimal is None or self.decimal != "." or self.thousands is not None:
            return column
        return replace(column, decimal=decimal, thousands=OTHER.get(decimal))

    def to_dict(self) -> dict[str, object]:
        """Its long form, as `read_column` takes it; where it came from is no part of it."""
        own = {name: vars(self)[name] for name in ("type", *_OWN_KEYS[self.type])}
        empty = {"format": "", "absent": ()}  # in which nothing is said
        return {name: value for name, value in own.items() if value is not None and value != empty.get(name)}

    def words(self) -> str:
        """One line for a reader."""
        treatment = _TREATMENT.get(self.type, "range bought privately").format(self)
        if self.type == "category":
            treatment = f"{len(self.categories)} words and (other)"
        elif self.bounds is not None and self.type == "number":
            treatment = "from {:g} to {:g}".format(*self.bounds)
        elif self.bounds is not None and self.type == "date":
            treatment = " to ".join(from_days(bound).isoformat() for bound in self.bounds)
            treatment += f", written as {self.format}" * bool(self.format)
        missing = "; missing is filled and marked" * (self.missing == "indicator")
        return f"{self.type}, {treatment}{missing} ({self.source})"


@dataclass(frozen=True)
class Field:
    """What one encoded column is: the table's column it comes from, and how that was treated, in words."""

    feature: str
    column: str
    type: str
    treatment: str


@dataclass(frozen=True)
class Target:
    """What is predicted: its column (or "y"), the task, the public classes or range.

    `decimal` is the decimal sign of numbers in text; None was not declared, and reads "." (see `Signs.of`).
    """

    name: str
    task: str | None = None
    classes: tuple[str, ...] | None = None
    bounds: tuple[float, float] | None = None
    decimal: str | None = None


@dataclass(frozen=True)
class Schema:
    """A target and the columns, in the order they are encoded.

    >>> schema = Schema.from_toml('[columns]\\nage = [17, 90]\\nsex = ["f", "m"]')
    >>> schema.features
    ['age', 'sex=f', 'sex=m', 'sex=(other)', 'sex=(missing)']
    >>> Schema.from_toml('[columns.age]\\ntype = "nmber"')
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: columns.age.type='nmber' is not allowed: choose one of ...
    """

    columns: tuple[Column, ...] = ()
    target: Target | None = None

    @property
    def features(self) -> list[str]:
        """The names of the encoded columns."""
        return [name for column in self.columns for name in column.features]

    @property
    def fields(self) -> tuple[Field, ...]:
        """What each encoded column is."""
        return tuple(Field(name, c.name, c.type, c.words()) for c in self.columns for name in c.features)

    @property
    def names(self) -> list[str]:
        """The names of the table's columns that it speaks of."""
        return [column.name for column in self.columns]

    def get(self, name: str) -> Column | None:
        """A column by its name."""
        return next((column for column in self.columns if column.name == name), None)

    def with_columns(self, columns: Iterable[Column]) -> Schema:
        """With further columns, or others in the place of those of the same name."""
        new = {column.name: column for column in self.columns}
        new |= {column.name: column for column in columns}
        return replace(self, columns=tuple(new.values()))

    def read_by(self, separator: str | None, decimal: str | None = None) -> Schema:
        """As a file with this separator is read: see `Signs.of`; what a column says of its own signs stays.

        A decimal sign that is declared for the file stands above what the columns say.
        """
        signs = Signs.of(None, separator)
        columns = []
        for column in self.columns:
            if column.type == "number" and decimal is not None:
                column = replace(column, decimal=decimal, thousands=OTHER.get(decimal))
            elif column.type == "number" and column.decimal == signs.decimal and column.thousands is None:
                column = replace(column, thousands=signs.thousands)
            columns.append(column)
        return replace(self, columns=tuple(columns))

    @staticmethod
    def from_toml(text: str, where: str = "schema") -> Schema:
        """The schema in a TOML text; what it does not understand is refused by name."""
        try:
            return Schema.from_dict(tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            validate.unreadable(where, f"it is not valid TOML ({error}); correct that line")

    @staticmethod
    def load(path: str | Path) -> Schema:
        """The schema in a TOML file."""
        file = Path(path)
        validate.present(os.path.isfile(file), path)
        try:
            text = file.read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError) as error:
            validate.unreadable(path, f"it is not UTF-8 text ({error}); save it as UTF-8")
        return Schema.from_toml(text, str(path))

    @staticmethod
    def from_dict(data: Mapping[str, object]) -> Schema:
        """The schema of the tables [target] and [columns]; `version`, where it stands before them, is checked."""
        known_keys("schema", data, ("version", "target", "columns"))
        validate.known_format("schema: version", data.get("version", VERSION), [VERSION])
        columns, target = data.get("columns", {}), data.get("target")
        if not isinstance(columns, Mapping):
            validate.refuse("columns", columns, "give a table [columns]")
        read = tuple(read_column(name, value) for name, value in columns.items())
        return Schema(read, None if target is None else read_target(target))

    def to_toml(self, versioned: bool = False) -> str:
        """The schema as a text that `from_toml` reads; with the version of its rules first, for a file."""
        lines = [f"version = {VERSION}", ""] if versioned else []
        if self.target is not None:
            lines += ["[target]", *_pairs(self.target), ""]
        for column in self.columns:
            lines += [f"[columns.{_toml_value(column.name)}]", *_pairs(column), ""]
        return "\n".join(lines)


# ---------------------------------------------------------------- reading


def known_keys(where: str, data: Mapping[str, object], allowed: Iterable[str]) -> None:
    """Refuse keys that mean nothing, with the nearest that does."""
    names = list(allowed)
    validate.check(isinstance(data, Mapping), where, data, f"give a table with {names[:3]} and the like")
    for key in data:
        if key not in names:
            near = difflib.get_close_matches(key, names, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"choose from {sorted(names)}"
            validate.refuse(f"{where}.{key}", data[key], hint)


def read_target(data: object) -> Target:
    """The table [target]."""
    if not isinstance(data, Mapping):
        validate.refuse("target", data, 'give a table [target] with name = "..."')
    known_keys("target", data, _TARGET)
    name = data.get("name")
    validate.check(isinstance(name, str) and bool(name), "target.name", name, "give the name of a column")
    return Target(**_declared("target", _TARGET, data))


def read_column(name: str, value: object) -> Column:
    """A column in its short form (a type, a range, a list of words) or its long one (a table)."""
    where = f"columns.{name}"
    if isinstance(value, str):
        validate.check(value != _OPEN, where, value, f"declare how it becomes numbers, as one of {_FORMS}")
        validate.check(value in _TYPES, where, value, f"give a type of {list(_TYPES)}, a range or a list of words")
        value = {"type": value}
    elif isinstance(value, (list, tuple)):
        if all(isinstance(item, str) for item in value):
            value = {"categories": value}
        elif len(value) == 2 and all(isinstance(item, date) for item in value):
            value = {"type": "date", "bounds": value}
        else:
            value = {"bounds": value}
    if not isinstance(value, Mapping):
        validate.refuse(where, value, "give a type, a range, a list of words or a table")
    guess = "category" if "categories" in value else "hash" if "buckets" in value else "number"
    kind = value.get("type", guess)
    validate.one_of(_TYPES, **{f"{where}.type": kind})
    known_keys(where, value, ("type", "source", *_OWN_KEYS[kind]))
    needed = f'give the public range, ["2010-01-01", "2024-12-31"] or --bounds "{name}=2010-01-01,2024-12-31"'
    validate.check(kind != "date" or value.get("bounds") is not None, f"{where}.bounds", None, needed)
    if kind == "category":
        value = {**value, "categories": value.get("categories") or ()}
    readers = {**_COLUMN, "bounds": {"date": _read_days}.get(kind, read_bounds)}
    column = Column(name, **{"type": kind, **_declared(where, readers, value)})
    same = "give another sign, or another decimal: it is the decimal sign too, and a number would have two readings"
    validate.check(column.thousands != column.decimal, f"{where}.thousands", column.thousands, same)
    return column


def _declared(where: str, readers: Mapping[str, _Reader], data: Mapping[str, object]) -> dict[str, Any]:
    """What a table declares, each entry read by the reader of its key; None stands for what is not declared."""
    return {key: readers[key](f"{where}.{key}", entry) for key, entry in data.items() if entry is not None}


_Reader = Callable[[str, object], object]


def read_sign(where: str, value: object) -> str:
    """One character; none at all for thousands that are not grouped."""
    length = len(value) if isinstance(value, str) else -1
    validate.check(length == 1 or (length == 0 and where.endswith("thousands")), where, value, "give one character")
    return str(value)


def read_words(where: str, value: object) -> tuple[str, ...]:
    """Distinct words; numbers are taken as they are written."""
    if not isinstance(value, (list, tuple)) or not value or any(isinstance(item, (dict, list)) for item in value):
        validate.refuse(where, value, 'give a list of words such as ["no", "yes"]')
    words = tuple(str(item).strip() for item in value)
    validate.check(len(set(words)) == len(words), where, value, "give each word once")
    return words


def read_bounds(
    where: str, value: object, read_end: Callable[[str, object], float] | None = None
) -> tuple[float, float]:
    """A range low < high of numbers, or of what `read_end` reads."""
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        validate.refuse(where, value, "give a range [low, high]")
    low, high = ((read_end or _read_number)(where, item) for item in value)
    validate.check(low < high, where, value, "give low < high")
    return low, high


def _read_days(where: str, value: object) -> tuple[float, float]:
    return read_bounds(where, value, _read_day)


def _read_number(where: str, value: object) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    validate.check(math.isfinite(number), where, value, "give a finite number")
    return number


def _read_day(where: str, value: object) -> float:
    """A date in days since 1970, as such a number or as ISO has it."""
    try:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            from_days(value)
            return float(value)
        day = value if isinstance(value, date) else date.fromisoformat(str(value)[:10])
    except (ValueError, OverflowError):
        validate.refuse(where, value, "give dates such as 2024-12-31")
    return float(day.toordinal() - _EPOCH)


def checked(check: Callable[..., None], kind: Callable[[Any], object]) -> _Reader:
    """A reader of what a check of `validate` lets pass."""

    def read(where: str, value: object) -> object:
        check(**{where: value})
        return kind(value)

    return read


def one_of(*choices: str) -> _Reader:
    """A reader of one of these words."""
    return checked(partial(validate.one_of, choices), str)


def _unless_empty(read: _Reader, empty: object) -> _Reader:
    return lambda where, value: read(where, value) if value else empty


_TARGET: Mapping[str, _Reader] = {
    "name": lambda where, value: value,
    "task": one_of(*TASKS),
    "classes": read_words,
    "bounds": read_bounds,
    "decimal": read_sign,
}
_COLUMN: Mapping[str, _Reader] = {
    "type": one_of(*_TYPES),
    "source": one_of(*SOURCES),
    "bounds": read_bounds,
    "categories": read_words,
    "buckets": checked(validate.positive_int, int),
    "missing": one_of("fill", "indicator"),
    "absent": _unless_empty(read_words, ()),
    "fill": _read_number,
    "thousands": read_sign,
    "decimal": read_sign,
    "format": _unless_empty(check_format, ""),
}


# ---------------------------------------------------------------- writing


def _pairs(item: Column | Target) -> list[str]:
    """`key = value` of everything that is not left at its default."""
    lines = []
    for member in fields(item):
        value = vars(item)[member.name]
        if value is None or (value == member.default and member.name != "type"):
            continue
        if isinstance(item, Column) and member.name == "name":
            continue
        if member.name == "bounds" and vars(item).get("type") == "date" and all(day == int(day) for day in value):
            value = tuple(from_days(day).isoformat() for day in value)
        lines.append(f"{member.name} = {_toml_value(value)}")
    return lines


def _toml_value(value: object) -> str:
    """A text, number, truth value or list as TOML writes it, which is as JSON does but for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def check_names(names: list[str], declared: Schema, target: str | None) -> None:
    """Refuse a target or a declared column that the header of a file does not have.

    >>> check_names(["age", "Income"], Schema(), "income")
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: Column not found: 'income', given as target (did you mean 'Income'?)
    """
    remedy = f"the columns are {listed(names)}"
    if any(map(_is_fraction, names)):  # it may be a person's: its entries are not repeated
        remedy = "the first line looks like a row: put a line with the names of the columns before it"
    for where, name in [("target", target), *(("columns", name) for name in declared.names)]:
        if name is not None and name not in names:
            near = difflib.get_close_matches(name, names, 1) if len(names) > 1 else []
            hint = f"did you mean {near[0]!r}?" if near else remedy
            validate.require(False, f"Column not found: {name!r}, given as {where} ({hint})")


def _is_fraction(name: str) -> bool:
    """Whether a name is a number such as 29738.65 or -1; columns may well be called 0, 1, 2.

    >>> [_is_fraction(name) for name in ("29738.65", "-1", "2019", "age", "nan")]
    [True, True, False, False, False]
    """
    return re.fullmatch(r"-\d+|-?\d*[.,]\d+", name) is not None


def listed(names: list[str]) -> str:
    """Some names of columns, for a message."""
    alone = " (if it has more, give its --separator or --encoding)" if len(names) == 1 else ""
    return ", ".join(map(repr, names[:20])) + (" ..." if len(names) > 20 else "") + alone
