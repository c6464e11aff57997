"""Checkers for what was read from a file: each takes (where, value) and returns the value, frozen, or refuses it.

>>> shape = fields({"name": text}, {"rows": maybe(count)})
>>> dict(shape("data", {"name": "census"}))
{'name': 'census', 'rows': None}
>>> shape("data", {"rows": 3})
Traceback (most recent call last):
isthmus.base.validate.InvalidInput: data={'rows': 3} is not allowed: give 'name' too, which is missing
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from isthmus.base.validate import check as need

Checker = Callable[[str, Any], Any]

# Controls, lone surrogates, and marks that turn the direction of text: a column name could hide or reverse words.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def text(where: str, value: Any) -> str:
    """A string, its unprintable characters replaced by U+FFFD."""
    need(isinstance(value, str), where, value, "give text")
    return _UNPRINTABLE.sub("\ufffd", value)


def real(where: str, value: Any) -> float:
    """A finite number."""
    need(_is_number(value) and math.isfinite(value), where, value, "give a finite number, or null where there is none")
    return value


def unlimited(where: str, value: Any) -> float:
    """A number >= 0 or infinity, which JSON writes as the text "inf"."""
    value = math.inf if value == "inf" else value
    need(_is_number(value) and value >= 0, where, value, 'give a number of at least 0, or "inf"')
    return value


def count(where: str, value: Any) -> int:
    """An integer >= 0."""
    whole = _is_number(value) and math.isfinite(value) and value >= 0 and value == int(value)
    need(whole, where, value, "give a whole number of at least 0")
    return int(value)


def flag(where: str, value: Any) -> bool:
    """True or false."""
    need(isinstance(value, bool), where, value, "give true or false")
    return value


def plain(where: str, value: Any) -> Any:
    """Any JSON value, frozen; numbers that are not finite become text."""
    if isinstance(value, Mapping):
        return MappingProxyType({text(where, key): plain(f"{where}.{key}", item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return tuple(plain(f"{where}[{i}]", item) for i, item in enumerate(value))
    if isinstance(value, str):
        return text(where, value)
    need(value is None or isinstance(value, int | float), where, value, "give a JSON value")
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def label(where: str, value: Any) -> str:
    """A class or a column: text, or a number as text."""
    need(isinstance(value, str | int | float), where, value, "give text or a number")
    return text(where, str(value))


def maybe(inner: Checker) -> Checker:
    """What `inner` takes, or None."""
    return lambda where, value: None if value is None else inner(where, value)


def many(inner: Checker) -> Checker:
    """A list of what `inner` takes, as a tuple; an empty one in place of None."""

    def check(where: str, value: Any) -> tuple[Any, ...]:
        value = () if value is None else value
        need(isinstance(value, list | tuple), where, value, "give a list")
        return tuple(inner(f"{where}[{i}]", item) for i, item in enumerate(value))

    return check


def pair(first: Checker, second: Checker) -> Checker:
    """A list of two."""

    def check(where: str, value: Any) -> tuple[Any, Any]:
        need(isinstance(value, list | tuple) and len(value) == 2, where, value, "give a list of two")
        return first(f"{where}[0]", value[0]), second(f"{where}[1]", value[1])

    return check


def named(inner: Checker) -> Checker:
    """An object whose values are all what `inner` takes; an empty one in place of None."""

    def check(where: str, value: Any) -> Mapping[str, Any]:
        value = {} if value is None else value
        need(isinstance(value, Mapping), where, value, "give an object")
        return MappingProxyType({text(where, key): inner(f"{where}.{key}", item) for key, item in value.items()})

    return check


def fields(required: Mapping[str, Checker], optional: Mapping[str, Checker] | None = None) -> Checker:
    """An object with these fields; an optional one may be missing and is then given to its checker as None."""

    def check(where: str, value: Any) -> Mapping[str, Any]:
        need(isinstance(value, Mapping), where, value, "give an object")
        for name in required:
            need(name in value, where, value, f"give {name!r} too, which is missing")
        checked = {name: inner(f"{where}.{name}", value[name]) for name, inner in required.items()}
        checked |= {name: inner(f"{where}.{name}", value.get(name)) for name, inner in (optional or {}).items()}
        return MappingProxyType(checked)

    return check


def thawed(value: Any) -> Any:
    """The value as JSON writes it: dicts, lists, and "inf" for infinity."""
    if isinstance(value, Mapping):
        return {key: thawed(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [thawed(item) for item in value]
    return "inf" if isinstance(value, float) and math.isinf(value) else value


def _is_number(value: Any) -> bool:
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < 10**300  # what a float can hold
    return isinstance(value, float) and not math.isnan(value)
