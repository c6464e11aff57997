"""Shapes of what is read from files and options, declared as JSON Schema and checked in one place.

The `description` of a shape is what an error tells the reader to do.  Two keywords are our own: `fits`, a function that
says whether a value of the right type is allowed, and the type "infinity", which is the text "inf".

>>> age = an_object({"low": REAL}, high=kind("number", "give an age", maximum=150))
>>> checked({"low": 3}, age)
mappingproxy({'low': 3.0, 'high': None})
>>> checked({"low": 3, "high": 200}, age, "ages")
Traceback (most recent call last):
isthmus.base.validate.InvalidInput: ages.high=200 is not allowed: give an age
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, field, fields
from types import MappingProxyType
from typing import Any

from jsonschema import Draft202012Validator, ValidationError, validators

from isthmus.base import validate

Shape = dict[str, Any]


def kind(names: str, remedy: str, **limits: object) -> Shape:
    """What is of one of these types and within these limits."""
    return {"type": names.split(), "description": remedy, **limits}


def many(items: Shape) -> Shape:
    """A list, empty unless given."""
    return kind("array null", "give a list", items=items, default=[])


def named(values: Shape) -> Shape:
    """An object with names of the user's own, empty unless given."""
    return kind("object null", "give an object", additionalProperties=values, default={})


def an_object(required: Mapping[str, Shape], **optional: Shape) -> Shape:
    """An object with these fields; an optional one may be missing or null."""
    unset = {name: part | {"type": [*part["type"], "null"]} for name, part in optional.items()}
    return kind("object", "give an object", required=[*required], properties={**required, **unset})


def setting(shape: Shape, default: object = MISSING) -> Any:
    """A field of a dataclass: its shape, and its value where none is declared."""
    if default is None:
        shape = {"default": None} | shape | {"type": [*shape["type"], "null"]}
    elif default is not MISSING:
        shape = {"default": default} | shape
    return field(default=default, metadata=shape)


def shape_of(declared: type) -> Shape:
    """The shape of an object with the fields of a dataclass, each a `setting`."""
    parts = {member.name: dict(member.metadata) for member in fields(declared) if member.metadata}
    required = [name for name, part in parts.items() if "default" not in part]
    return kind("object", "give a table", required=required, properties=parts)


def one_of(*choices: str) -> Shape:
    """One of these words."""
    return kind("string", f"choose one of {list(choices)}", fits=choices.__contains__)


TEXT = kind("string", "give text")
NAME = kind("string", "give text", minLength=1)
LABEL = kind("string number boolean", "give text or a number", text=True)
REAL = kind("number", "give a finite number, or null where there is none")
COUNT = kind("integer", "give a whole number of at least 0", minimum=0)
SHARE = kind("number", "give a number strictly between 0 and 1", exclusiveMinimum=0, exclusiveMaximum=1)
SIZE = kind("integer", "give a whole number of at least 1", minimum=1)
FLAG = kind("boolean", "give true or false")
ANY = kind("null boolean number string array object", "give a JSON value")


def _is_number(value: object) -> bool:
    """Whether a float can hold it: NaN and infinity are none here."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _fits(validator: object, fits: Callable[[Any], object], value: object, shape: Shape) -> Iterator[ValidationError]:
    if value is not None and not fits(value):
        yield ValidationError(shape["description"])


_TYPES = Draft202012Validator.TYPE_CHECKER.redefine_many(
    {
        "number": lambda _, value: _is_number(value),
        "integer": lambda _, value: _is_number(value) and value == int(value),
        "infinity": lambda _, value: value == "inf",
    }
)
_Validator = validators.extend(Draft202012Validator, {"fits": _fits}, type_checker=_TYPES)


def plain(value: object, written: Callable[[object], str] = str) -> Any:
    """The value as JSON has it, what it has not as text: dates, paths, and numbers that are not finite."""
    if isinstance(value, Mapping):
        return {written(key): plain(item, written) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, written) for item in value]
    if value is None or isinstance(value, int | float) and math.isfinite(value):
        return value
    return written(value)


def checked(value: object, shape: Shape, where: str = "") -> Any:
    """The value as its shape has it, frozen; the first part that does not fit is refused with its place."""
    tree = plain(value)
    error = next(_Validator(shape).iter_errors(tree), None)
    if error is not None:
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.absolute_path)
        remedy = error.schema["description"]
        if error.validator == "required":
            missing = next(name for name in error.validator_value if name not in error.instance)
            remedy = f"give {missing!r} too, which is missing"
        validate.refuse("".join([where, *steps]).removeprefix("."), error.instance, remedy)
    return _frozen(tree, shape)


def _frozen(value: object, shape: Shape) -> Any:
    """What fits the shape, with its defaults, without fields that it does not know, and so that nobody changes it."""
    kinds = shape["type"]
    if value is None:
        value = shape.get("default")
    if isinstance(value, dict):
        parts = shape.get("properties", {})
        inner = shape.get("additionalProperties", ANY)
        return MappingProxyType({name: _frozen(value.get(name), parts.get(name, inner)) for name in parts or value})
    if isinstance(value, list):
        return tuple(_frozen(item, shape.get("items", ANY)) for item in value)
    if value == "inf" and "infinity" in kinds:
        return math.inf
    if "text" in shape:
        return str(value).strip()
    if "integer" in kinds and isinstance(value, float):
        return int(value)
    if "number" in kinds and "boolean" not in kinds and isinstance(value, int):
        return float(value)
    return value
