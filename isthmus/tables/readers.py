"""Declarations in a file or by options, key by key: what a value may be, and how it is read.

A reader is called with the place of a value and the value, and returns what it stands for, or refuses it by its place.
"""

from __future__ import annotations

import contextlib
import difflib
import math
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, fields
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

from isthmus.base import validate
from isthmus.tables.entries import _EPOCH, from_days

Reader = Callable[[str, object], object]


def setting(default: object, read: Reader) -> Any:
    """A field of a dataclass: its value where none is declared, and what reads one that is."""
    return field(default=default, metadata={"read": read})


def declared(kind: type, where: str, data: Mapping[str, object]) -> dict[str, Any]:
    """What a table declares of such a dataclass, each entry as its field reads it; None stands for nothing."""
    readers = {member.name: member.metadata["read"] for member in fields(kind) if member.metadata}
    return {key: readers[key](f"{where}.{key}", entry) for key, entry in data.items() if entry is not None}


def toml(path: str | Path) -> dict[str, Any]:
    """The tables in a TOML file."""
    validate.present(os.path.isfile(path), path)
    try:
        return parsed(Path(path).read_text(encoding="utf-8"), path)
    except (UnicodeDecodeError, OSError) as error:
        validate.unreadable(path, f"it is not UTF-8 text ({error}); save it as UTF-8")


def parsed(text: str, where: object) -> dict[str, Any]:
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


def checked(check: Callable[..., None], kind: Callable[[Any], object]) -> Reader:
    """A reader of what a check of `validate` lets pass."""

    def read(where: str, value: object) -> object:
        check(**{where: value})
        return kind(value)

    return read


def one_of(*choices: str) -> Reader:
    """A reader of one of these words."""
    return checked(partial(validate.one_of, choices), str)


def sign(where: str, value: object) -> str:
    """One character; none at all for thousands that are not grouped."""
    empty = value == "" and where.endswith("thousands")
    validate.check(empty or (isinstance(value, str) and len(value) == 1), where, value, "give one character")
    return str(value)


def words(where: str, value: object) -> tuple[str, ...]:
    """Distinct words; numbers are taken as they are written."""
    if not isinstance(value, (list, tuple)) or not value or any(isinstance(item, (dict, list)) for item in value):
        validate.refuse(where, value, 'give a list of words such as ["no", "yes"]')
    distinct = tuple(str(item).strip() for item in value)
    validate.check(len(set(distinct)) == len(distinct), where, value, "give each word once")
    return distinct


def number(where: str, value: object) -> float:
    """A finite number, also as text."""
    found = math.nan
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        with contextlib.suppress(ValueError, OverflowError):
            found = float(value)
    validate.check(math.isfinite(found), where, value, "give a finite number")
    return found


def day(where: str, value: object) -> float:
    """A date in days since 1970, as such a number or as ISO has it."""
    try:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            from_days(value)
            return float(value)
        return float(date.fromisoformat(str(value)[:10]).toordinal() - _EPOCH)  # of a date too
    except (ValueError, OverflowError):
        validate.refuse(where, value, "give dates such as 2024-12-31")


def bounds(where: str, value: object, end: Callable[[str, object], float] = number) -> tuple[float, float]:
    """A range low < high of numbers, or of what `end` reads."""
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        validate.refuse(where, value, "give a range [low, high]")
    low, high = (end(where, item) for item in value)
    validate.check(low < high, where, value, "give low < high")
    return low, high


def unless_empty(read: Reader, empty: object) -> Reader:
    """A reader that also takes nothing, such as [] or ""."""
    return lambda where, value: read(where, value) if value else empty
