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
import math
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import date, datetime
from pathlib import Path
from typing import Any

from isthmus.base import validate
from isthmus.tables.entries import EPOCH, OTHER, Signs, check_format, from_days

VERSION = 1
"""Of the rules of a schema's file; one without a version has this one."""
TYPES = ("number", "bool", "category", "hash", "date", "id", "drop")
FORMS = (
    'a range [low, high] or "number"; words ["a", "b"] or "hash"; dates [2010-01-01, 2024-12-31]; "bool", "id", "drop"'
)
"""How a column is declared, for those who are asked to."""
OPEN = "?"
"""What stands where a declaration is still to be written."""
TASKS = ("classification", "regression")
SOURCES = ("declared", "public", "name", "data")
BUCKETS = 16
_ALLOWED = {
    "number": {"bounds", "missing", "absent", "fill", "thousands", "decimal"},
    "bool": {"missing", "absent"},
    "category": {"categories", "absent"},
    "hash": {"buckets", "absent"},
    "date": {"bounds", "missing", "absent", "format"},
    "id": set(),
    "drop": set(),
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
        flag = [f"{self.name} (missing)"] if self.missing == "indicator" else []
        if self.type in ("number", "bool", "date"):
            return [self.name, *flag]
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
        if self.type == "bool":
            return 0.5
        return 0.0 if self.bounds is None else (self.bounds[0] + self.bounds[1]) / 2

    def settled(self, bounds: tuple[float, float] | None, decimal: str | None) -> Column:
        """A number with the range and the decimal sign that were declared for all, where it has none of its own."""
        if self.type != "number":
            return self
        column = replace(self, bounds=self.bounds or bounds)
        own = decimal is None or self.decimal != "." or self.thousands is not None
        return column if own else replace(column, decimal=str(decimal), thousands=OTHER.get(str(decimal)))

    def to_dict(self) -> dict[str, Any]:
        """Its long form, as `read_column` takes it; where it came from is no part of it."""
        values = {
            member.name: getattr(self, member.name) for member in fields(self) if member.name not in ("name", "source")
        }
        own = {"type", *_ALLOWED[self.type]} - {name for name in ("format", "absent") if not values[name]}
        return {key: value for key, value in values.items() if key in own and value is not None}

    def words(self) -> str:
        """One line for a reader."""
        if self.type == "number":
            rest = "range bought privately" if self.bounds is None else f"from {self.bounds[0]:g} to {self.bounds[1]:g}"
        elif self.type == "date" and self.bounds is not None:
            rest = " to ".join(from_days(bound).isoformat() for bound in self.bounds)
            rest += f", written as {self.format}" if self.format else ""
        else:
            rest = {
                "category": f"{len(self.categories)} words and (other)",
                "hash": f"words hashed into {self.buckets} fixed buckets; none is learned",
                "bool": "0 or 1",
                "id": "carried along by predictions, never a feature",
                "drop": "left out",
            }[self.type]
        missing = {"indicator": "; missing is filled and marked"}.get(self.missing, "")
        return f"{self.type}, {rest}{missing} ({self.source})"


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
        if decimal is not None:
            thousands = OTHER.get(decimal)
            all_read = (
                replace(c, decimal=decimal, thousands=thousands) if c.type == "number" else c for c in self.columns
            )
            return replace(self, columns=tuple(all_read))
        signs = Signs.of(None, separator)
        plain = (c.type == "number" and c.decimal == signs.decimal and c.thousands is None for c in self.columns)
        columns = (
            replace(c, thousands=signs.thousands) if own else c for c, own in zip(self.columns, plain, strict=True)
        )
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
    def from_dict(data: Mapping[str, Any]) -> Schema:
        """The schema of the tables [target] and [columns]; `version`, where it stands before them, is checked."""
        known_keys("schema", data, ("version", "target", "columns"))
        validate.known_format("schema: version", data.get("version", VERSION), [VERSION])
        columns = data.get("columns", {})
        validate.check(isinstance(columns, Mapping), "columns", columns, "give a table [columns]")
        target = data.get("target")
        return Schema(
            tuple(read_column(name, value) for name, value in columns.items()),
            None if target is None else read_target(target),
        )

    def to_toml(self, versioned: bool = False) -> str:
        """The schema as a text that `from_toml` reads; with the version of its rules first, for a file."""
        lines = [f"version = {VERSION}", ""] if versioned else []
        if self.target is not None:
            lines += ["[target]", *_pairs(self.target), ""]
        for column in self.columns:
            lines += [f"[columns.{_quoted(column.name)}]", *_pairs(column), ""]
        return "\n".join(lines)


# ---------------------------------------------------------------- reading


def known_keys(where: str, data: Mapping[str, Any], allowed: Iterable[str]) -> None:
    """Refuse keys that mean nothing, with the nearest that does."""
    names = list(allowed)
    validate.check(isinstance(data, Mapping), where, data, f"give a table with {names[:3]} and the like")
    for key in data:
        if key not in names:
            near = difflib.get_close_matches(key, names, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"choose from {sorted(names)}"
            validate.refuse(f"{where}.{key}", data[key], hint)


def read_target(data: Any) -> Target:
    """The table [target]."""
    validate.check(isinstance(data, Mapping), "target", data, 'give a table [target] with name = "..."')
    known_keys("target", data, [member.name for member in fields(Target)])
    name = data.get("name")
    validate.check(isinstance(name, str) and bool(name), "target.name", name, "give the name of a column")
    if data.get("task") is not None:
        validate.one_of(TASKS, **{"target.task": data["task"]})
    classes = data.get("classes")
    bounds = data.get("bounds")
    return Target(
        str(name),
        data.get("task"),
        None if classes is None else read_words("target.classes", classes),
        None if bounds is None else read_bounds("target.bounds", bounds),
        None if data.get("decimal") is None else read_sign("target.decimal", data["decimal"]),
    )


def read_column(name: str, value: Any) -> Column:
    """A column in its short form (a type, a range, a list of words) or its long one (a table)."""
    where = f"columns.{name}"
    if isinstance(value, str):
        validate.check(value != OPEN, where, value, f"declare how it becomes numbers, as one of {FORMS}")
        validate.check(value in TYPES, where, value, f"give a type of {list(TYPES)}, a range or a list of words")
        value = {"type": value}
    elif isinstance(value, (list, tuple)):
        words = all(isinstance(item, str) for item in value)
        dates = len(value) == 2 and all(isinstance(item, (date, datetime)) for item in value)
        kind = "category" if words else "date" if dates else "number"
        value = {"type": kind, "categories" if words else "bounds": value}
    validate.check(isinstance(value, Mapping), where, value, "give a type, a range, a list of words or a table")
    return _long_form(name, where, value)


def _long_form(name: str, where: str, value: Mapping[str, Any]) -> Column:
    guess = "category" if "categories" in value else "hash" if "buckets" in value else "number"
    kind = value.get("type", guess)
    validate.one_of(TYPES, **{f"{where}.type": kind})
    known_keys(where, value, {"type", "source", *_ALLOWED[kind]})
    validate.one_of(SOURCES, **{f"{where}.source": value.get("source", "declared")})
    fields_given: dict[str, Any] = {"name": name, "type": kind, "source": value.get("source", "declared")}
    if "bounds" in value:
        fields_given["bounds"] = read_bounds(f"{where}.bounds", value["bounds"], days=kind == "date")
    if kind == "category":
        fields_given["categories"] = read_words(f"{where}.categories", value.get("categories", ()))
    if kind == "date" and "bounds" not in fields_given:
        remedy = f'give the public range, ["2010-01-01", "2024-12-31"] or --bounds "{name}=2010-01-01,2024-12-31"'
        validate.refuse(f"{where}.bounds", None, remedy)
    if "buckets" in value:
        validate.positive_int(**{f"{where}.buckets": value["buckets"]})
        fields_given["buckets"] = value["buckets"]
    if "missing" in value:
        validate.one_of(("fill", "indicator"), **{f"{where}.missing": value["missing"]})
        fields_given["missing"] = value["missing"]
    if value.get("absent"):
        fields_given["absent"] = read_words(f"{where}.absent", value["absent"])
    if "fill" in value:
        fields_given["fill"] = _number(f"{where}.fill", value["fill"])
    for sign in ("thousands", "decimal"):
        if value.get(sign) is not None:
            fields_given[sign] = read_sign(f"{where}.{sign}", value[sign])
    same = "give another sign, or another decimal: it is the decimal sign too, and a number would have two readings"
    validate.check(
        fields_given.get("thousands") != fields_given.get("decimal", "."),
        f"{where}.thousands",
        value.get("thousands"),
        same,
    )
    if value.get("format"):
        fields_given["format"] = check_format(f"{where}.format", value["format"])
    return Column(**fields_given)


def read_sign(where: str, value: Any) -> str:
    """One character; none at all for thousands that are not grouped."""
    ok = isinstance(value, str) and (len(value) == 1 or (value == "" and where.endswith("thousands")))
    validate.check(ok, where, value, "give one character")
    return str(value)


def read_words(where: str, value: Any) -> tuple[str, ...]:
    """Distinct words; numbers are taken as they are written."""
    ok = (
        isinstance(value, (list, tuple))
        and len(value) > 0
        and not any(isinstance(item, (dict, list)) for item in value)
    )
    validate.check(ok, where, value, 'give a list of words such as ["no", "yes"]')
    words = tuple(str(item).strip() for item in value)
    validate.check(len(set(words)) == len(words), where, value, "give each word once")
    return words


def read_bounds(where: str, value: Any, days: bool = False) -> tuple[float, float]:
    """A range low < high; of dates, in days since 1970."""
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        validate.refuse(where, value, "give a range [low, high]")
    low, high = (_days(where, item) if days else _number(where, item) for item in value)
    validate.check(low < high, where, value, "give low < high")
    return low, high


def _number(where: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    validate.check(math.isfinite(number) and not isinstance(value, bool), where, value, "give a finite number")
    return number


def _days(where: str, value: Any) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        there = date.min.toordinal() - EPOCH <= value <= date.max.toordinal() - EPOCH
        validate.check(there, where, value, "give days since 1970 that are dates, or dates such as 2024-12-31")
        return float(value)
    try:
        day = value if isinstance(value, date) else date.fromisoformat(str(value)[:10])
    except ValueError:
        validate.refuse(where, value, "give dates such as 2024-12-31")
    return float(date(day.year, day.month, day.day).toordinal() - EPOCH)


# ---------------------------------------------------------------- writing


def _pairs(item: Any) -> list[str]:
    """`key = value` of everything that is not left at its default."""
    lines = []
    for member in fields(item):
        value = getattr(item, member.name)
        plain = value == member.default and member.name != "type"
        if value is None or plain or (member.name == "name" and isinstance(item, Column)):
            continue
        if member.name == "bounds" and getattr(item, "type", "") == "date" and all(day == int(day) for day in value):
            value = tuple(from_days(day).isoformat() for day in value)
        lines.append(f"{member.name} = {toml_value(value)}")
    return lines


def toml_value(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if isinstance(value, int):
        return str(value)
    return "inf" if value == math.inf else repr(float(value))


def _quoted(text: str) -> str:
    """A basic string of TOML; control characters by their number."""
    plain = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    return '"' + "".join(plain.get(c, c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}") for c in text) + '"'


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
