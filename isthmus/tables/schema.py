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
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import date
from pathlib import Path
from typing import Any

from isthmus.base import validate
from isthmus.base.shapes import LABEL, NAME, REAL, SIZE, checked, kind, one_of, setting, shape_of
from isthmus.tables.columns import _EPOCH, OTHER, TYPES, from_days, is_format

VERSION = 1
"""Of the rules of a schema's file; one without a version has this one."""
_FORMS = (
    'a range [low, high] or "number"; words ["a", "b"] or "hash"; dates [2010-01-01, 2024-12-31]; "bool", "id", "drop"'
)
"""How a column is declared, for those who are asked to."""
_OPEN = "?"
"""What stands where a declaration is still to be written."""
TASKS = ("classification", "regression")
BUCKETS = 16


# ---------------------------------------------------------------- declarations, key by key


def read_toml(path: str | Path) -> dict[str, Any]:
    """The tables in a TOML file."""
    validate.present(os.path.isfile(path), path)
    try:
        return parsed_toml(Path(path).read_text(encoding="utf-8"), path)
    except (UnicodeDecodeError, OSError) as error:
        validate.unreadable(path, f"it is not UTF-8 text ({error}); save it as UTF-8")


def parsed_toml(text: str, where: object) -> dict[str, Any]:
    """The tables in a TOML text; `where` is what errors name."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        validate.unreadable(where, f"it is not valid TOML ({error}); correct that line")


def known_keys(where: str, data: Mapping[str, object], allowed: Iterable[str]) -> None:
    """Refuse keys that mean nothing, with the nearest that does."""
    names = list(allowed)
    validate.check(isinstance(data, Mapping), where, data, f"give a table with {names[:3]} and the like")
    for key in data:
        if key not in names:
            near = difflib.get_close_matches(key, names, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"choose from {sorted(names)}"
            validate.refuse(f"{where}.{key}", data[key], hint)


def read_day(where: str, value: object) -> float:
    """A date in days since 1970, as such a number or as ISO has it."""
    try:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            from_days(value)
            return float(value)
        return float(date.fromisoformat(str(value)[:10]).toordinal() - _EPOCH)  # of a date too
    except (ValueError, OverflowError):
        validate.refuse(where, value, "give dates such as 2024-12-31")


WORDS = kind(
    "array",
    'give a list of words such as ["no", "yes"]; give each word once',
    items=LABEL,
    fits=lambda words: len({str(word).strip() for word in words}) == len(words),
)
SOME_WORDS = WORDS | {"minItems": 1}
_RISING = {"minItems": 2, "maxItems": 2, "fits": lambda ends: ends[0] < ends[1]}
RANGE = kind("array", "give a range [low, high]; give low < high", items=REAL, **_RISING)
SIGN = kind("string", "give one character", minLength=1, maxLength=1)
_FORMAT = kind(
    "string",
    "give a format such as %d/%m/%Y (day first) or %m/%d/%Y (month first), with day, month and year",
    fits=is_format,
)


# ---------------------------------------------------------------- columns, target, schema


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
    type: str = setting(one_of(*TYPES), "")
    bounds: tuple[float, float] | None = setting(RANGE, None)
    categories: tuple[str, ...] = setting(SOME_WORDS, ())
    buckets: int = setting(SIZE, BUCKETS)
    missing: str = setting(one_of("fill", "indicator"), "fill")
    absent: tuple[str, ...] = setting(WORDS, ())
    fill: float | None = setting(REAL, None)
    thousands: str | None = setting(SIGN | {"minLength": 0}, None)
    decimal: str = setting(SIGN, ".")
    format: str = setting(_FORMAT, "")
    source: str = setting(one_of("declared", "public", "name", "data"), "declared")

    @property
    def features(self) -> list[str]:
        """The names of the columns it becomes."""
        return TYPES[self.type].features(self)

    @property
    def has_signs(self) -> bool:
        """Whether it says itself which signs its numbers have."""
        return self.decimal != "." or self.thousands is not None

    def settled(self, bounds: tuple[float, float] | None, decimal: str | None, missing: tuple[str, ...] = ()) -> Column:
        """With what was declared for all columns: missing entries; a number's range and decimal sign if it has none."""
        if "absent" in TYPES[self.type].keys:
            self = replace(self, absent=tuple(dict.fromkeys([*self.absent, *missing])))
        if self.type != "number":
            return self
        column = replace(self, bounds=self.bounds or bounds)
        return column if self.has_signs else column.read_by(None, decimal)

    def read_by(self, separator: str | None, decimal: str | None = None) -> Column:
        """As a file with this separator of columns is read; what it says of its own signs stays.

        Where columns are not separated by commas a comma in a number may be either sign, and nothing but a declaration
        can tell: then none is taken for a sign of thousands.  A decimal sign that is declared for the file stands above
        what the column says.

        >>> [Column("a", "number").read_by(*file).thousands for file in ((",",), (";",), (";", ","))]
        [None, '', '.']
        """
        if self.type != "number":
            return self
        if decimal is not None:
            return replace(self, decimal=decimal, thousands=OTHER.get(decimal))
        if self.has_signs or separator in (None, ","):
            return self
        return replace(self, thousands="")

    def to_dict(self) -> dict[str, object]:
        """What it declares, as `read_column` takes it; where it came from is no part of it."""
        return {key: value for key, value in _told(self).items() if key != "source"}

    def words(self) -> str:
        """One line for a reader."""
        missing = "; missing is filled and marked" * (self.missing == "indicator")
        source = {"public": "from public rows"}.get(self.source, self.source)
        return f"{self.type}, {TYPES[self.type].words(self)}{missing} ({source})"


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

    `decimal` is the decimal sign of numbers in text; None was not declared, and reads "." (see `Column.read_by`).
    """

    name: str = setting(NAME)
    task: str | None = setting(one_of(*TASKS), None)
    classes: tuple[str, ...] | None = setting(SOME_WORDS, None)
    bounds: tuple[float, float] | None = setting(RANGE, None)
    decimal: str | None = setting(SIGN, None)


@dataclass(frozen=True)
class Schema:
    """A target and the columns, in the order they are encoded; `missing` are entries that are missing in all of them.

    >>> schema = Schema.from_toml('[columns]\\nage = [17, 90]\\nsex = ["f", "m"]')
    >>> schema.features
    ['age', 'sex=f', 'sex=m', 'sex=(other)', 'sex=(missing)']
    >>> Schema.from_toml('[columns.age]\\ntype = "nmber"')
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: columns.age.type='nmber' is not allowed: choose one of ...
    """

    columns: tuple[Column, ...] = ()
    target: Target | None = None
    missing: tuple[str, ...] = ()

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
        """As a file with this separator is read, column by column."""
        return replace(self, columns=tuple(column.read_by(separator, decimal) for column in self.columns))

    @staticmethod
    def from_toml(text: str, where: str = "schema") -> Schema:
        """The schema in a TOML text; what it does not understand is refused by name."""
        return Schema.from_dict(parsed_toml(text, where))

    @staticmethod
    def load(path: str | Path) -> Schema:
        """The schema in a TOML file."""
        return Schema.from_dict(read_toml(path))

    @staticmethod
    def from_dict(data: Mapping[str, object]) -> Schema:
        """The schema of the tables [target] and [columns]; `version` and `missing` may stand before them."""
        known_keys("schema", data, ("version", "missing", "target", "columns"))
        validate.known_format("schema: version", data.get("version", VERSION), [VERSION])
        columns, target = data.get("columns", {}), data.get("target")
        if not isinstance(columns, Mapping):
            validate.refuse("columns", columns, "give a table [columns]")
        missing = checked(data.get("missing", ()), WORDS, "missing")
        read = tuple(read_column(name, value).settled(None, None, missing) for name, value in columns.items())
        return Schema(read, None if target is None else read_target(target), missing)

    def to_toml(self, versioned: bool = False) -> str:
        """The schema as a text that `from_toml` reads; with the version of its rules first, for a file."""
        lines = [f"version = {VERSION}", ""] * versioned
        lines += [f"missing = {_toml_value(self.missing)}", ""] * bool(self.missing)
        if self.target is not None:
            lines += ["[target]", *_pairs(self.target), ""]
        for column in self.columns:
            lines += [f"[columns.{_toml_value(column.name)}]", *_pairs(column), ""]
        return "\n".join(lines)


# ---------------------------------------------------------------- reading


def read_target(data: object) -> Target:
    """The table [target]."""
    if not isinstance(data, Mapping):
        validate.refuse("target", data, 'give a table [target] with name = "..."')
    known_keys("target", data, [member.name for member in fields(Target)])
    return Target(**checked(data, shape_of(Target), "target"))


def read_column(name: str, value: object) -> Column:
    """A column in its short form (a type, a range, a list of words) or its long one (a table)."""
    where = f"columns.{name}"
    if isinstance(value, str):
        validate.check(value != _OPEN, where, value, f"declare how it becomes numbers, as one of {_FORMS}")
        validate.check(value in TYPES, where, value, f"give a type of {list(TYPES)}, a range or a list of words")
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
    guesses = [kind for key, kind in (("categories", "category"), ("buckets", "hash")) if key in value]
    kind = value.get("type", [*guesses, "number"][0])
    validate.one_of(TYPES, **{f"{where}.type": kind})
    known_keys(where, value, ("type", "source", *TYPES[kind].keys))
    needed = f'give the public range, ["2010-01-01", "2024-12-31"] or --bounds "{name}=2010-01-01,2024-12-31"'
    validate.check(kind != "date" or value.get("bounds") is not None, f"{where}.bounds", None, needed)
    value = {"type": kind, **{key: entry for key, entry in value.items() if entry is not None}}
    if kind == "category":
        value.setdefault("categories", ())
    if kind == "date" and isinstance(value["bounds"], list | tuple):
        value["bounds"] = [read_day(f"{where}.bounds", end) for end in value["bounds"]]
    column = Column(name, **checked(value, shape_of(Column), where))
    same = "give another sign, or another decimal: it is the decimal sign too, and a number would have two readings"
    validate.check(column.thousands != column.decimal, f"{where}.thousands", column.thousands, same)
    return column


# ---------------------------------------------------------------- writing


def _told(item: Column | Target) -> dict[str, Any]:
    """Everything that is not left at its default; a column's name is the name of its table."""
    members = fields(item)[isinstance(item, Column) :]
    return {member.name: vars(item)[member.name] for member in members if vars(item)[member.name] != member.default}


def _pairs(item: Column | Target) -> list[str]:
    """`key = value` of everything that is told."""
    told = _told(item)
    if told.get("type") == "date" and all(day == int(day) for day in told.get("bounds", [0.5])):
        told["bounds"] = [from_days(day).isoformat() for day in told["bounds"]]
    return [f"{key} = {_toml_value(value)}" for key, value in told.items()]


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
    alone = " (if it has more, give its --separator or --encoding)" * (len(names) == 1)
    return ", ".join(map(repr, names[:20])) + " ..." * (len(names) > 20) + alone
