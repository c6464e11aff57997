"""What the world sees of a run, taken apart: every number, text and file by its path, to be compared to the bit."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import re
import types
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, timedelta
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Facts = dict[str, object]
"""Texts, numbers and arrays by the path on which they were found."""
_Parts = list[tuple[str, object]]
_PLAIN = (str, int, float, complex, bool, bytes, type(None), np.generic)
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, functools.partial)
_TABLES = frozenset(("_parameters", "_buffers", "_modules"))
_MODULE = frozenset(vars(nn.Module())) - _TABLES - {"training"}
"""What torch keeps in every module: hooks, which are no facts about the data."""
_LONG = 160
_DAYS = "|".join((date.today() + timedelta(days=k)).isoformat() for k in (-1, 0, 1))
_MOMENT = re.compile(rf"({_DAYS})[T ]\d\d:\d\d:\d\d[0-9.:+Z]*")
_NAMES = re.compile("[0-9a-f]{16,}")
"""Names drawn at random: in a path they stand for themselves, whatever they are."""


def _facts_of(value: object, name: str = "result") -> Facts:
    """Everything in a value, whatever it is made of.

    >>> _facts_of({"w": np.ones(2), "privacy": ("yes", 1.0)})["result['privacy'][1]"]
    1.0
    """
    found: Facts = {}
    seen: dict[int, object] = {}  # kept alive, so that no other gets its place in memory
    waiting = [(name, value)]
    while waiting:
        path, item = waiting.pop()
        if isinstance(item, Enum) or not isinstance(item, _PLAIN):
            if id(item) in seen and not isinstance(item, (Tensor, np.ndarray, Enum)):
                found[path] = "seen elsewhere"
                continue
            seen[id(item)] = item
        leaf, parts = _opened(item)
        found[_NAMES.sub("...", path)] = leaf
        waiting += [(path + suffix, part) for suffix, part in parts]
    return found


def _opened(item: object) -> tuple[object, _Parts]:
    """What is said of a value itself, and its parts."""
    if isinstance(item, Enum):
        return str(item), []
    if isinstance(item, str):
        return _text(item)
    if isinstance(item, _PLAIN):
        return item, []
    if isinstance(item, Tensor):
        return _array(item), []
    if isinstance(item, np.ndarray):
        if item.dtype == object:
            return f"array of {item.shape}", [(f"[{i}]", part) for i, part in enumerate(item.reshape(-1).tolist())]
        return item.copy(), []
    if isinstance(item, sp.sparray | sp.spmatrix):
        whole = item.tocoo()
        return f"{type(item).__name__} {whole.shape}", [(".data", whole.data), (".places", np.stack(whole.coords))]
    if isinstance(item, torch.Generator):
        return _digest(item.get_state().numpy().tobytes()), []
    if isinstance(item, np.random.Generator):
        return json.dumps(item.bit_generator.state, default=str), []
    if isinstance(item, Mapping):
        keys = [repr(key) for key in item]
        return f"{type(item).__name__} of {keys}", [(f"[{key!r}]", part) for key, part in item.items()]
    if isinstance(item, (list, tuple)):
        return f"{type(item).__name__} of {len(item)}", [(f"[{i}]", part) for i, part in enumerate(item)]
    if isinstance(item, (set, frozenset)):
        return f"{sorted(map(repr, item))}", []
    if isinstance(item, _NAMED):
        return getattr(item, "__qualname__", type(item).__name__), []
    if isinstance(item, nn.Module):
        return type(item).__qualname__, [(f".{k}", v) for k, v in vars(item).items() if k not in _MODULE]
    return type(item).__qualname__, [(f".{name}", part) for name, part in _attributes(item)]


def _text(text: str) -> tuple[str, _Parts]:
    """A text, its moments of today left out: they tick between one training and the next; JSON in it is read."""
    if text[:1] in "{[":
        try:
            return "JSON", [("", json.loads(text))]
        except ValueError:
            pass
    return _MOMENT.sub("(a moment ago)", text), []


def _digest(data: bytes) -> str:
    """A short name for many bytes."""
    return hashlib.sha256(data).hexdigest()[:16]


def _attributes(item: object) -> _Parts:
    if hasattr(item, "__dict__"):
        return list(vars(item).items())
    if is_dataclass(item):  # with slots
        return [(field.name, getattr(item, field.name)) for field in fields(item)]
    return []


def _array(x: Tensor) -> NDArray[Any]:
    x = x.detach().cpu()
    if x.layout is not torch.strided:
        x = x.to_dense()
    if x.dtype is torch.bfloat16:  # which numpy does not have
        x = x.to(torch.float64)
    return x.numpy().copy()


def _facts_of_folder(folder: Path) -> Facts:
    """The names and contents of all files in a folder."""
    found: Facts = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir():
            found[f"folder {name}"] = "here"
            continue
        data = path.read_bytes()
        found[f"file {name}"] = "here"
        found |= dict(_contents(f"contents of {name}", data))
    return found


def _contents(name: str, data: bytes) -> Iterator[tuple[str, object]]:
    """What is in a file: archives are opened, JSON is read, of other texts every line is compared by itself."""
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for member in archive.namelist():
                yield from _contents(f"{name}/{member}", archive.read(member))
        return
    size = int.from_bytes(data[:8], "little")
    if data[8:9] == b"{" and 8 < size <= len(data) - 8:  # safetensors, whose header is in any order
        header = json.loads(json.dumps(json.loads(data[8 : 8 + size]), sort_keys=True))
        yield from _facts_of(header, f"{name}, header").items()
        yield f"{name}, tensors", data[8 + size :]
        return
    try:
        text = data.decode()
    except UnicodeDecodeError:
        yield name, data
        yield f"{name}, size", len(data)
        return
    if _text(text)[1]:  # JSON
        yield from _facts_of(text, name).items()
        return
    yield f"{name}, lines", text.count("\n")
    for number, line in enumerate(text.splitlines(), 1):
        yield from _facts_of(line, f"{name}, line {number}").items()


def _unequal(ours: Facts, theirs: Facts) -> list[str]:
    """The paths on which two runs differ, in the order of the first."""
    paths = dict.fromkeys([*ours, *theirs])
    return [path for path in paths if not (path in ours and path in theirs and _same(ours[path], theirs[path]))]


def _same(one: object, other: object) -> bool:
    """Equal to the bit, in type and shape too; NaN equals NaN, and 0 is not -0."""
    if isinstance(one, np.ndarray | np.generic) and isinstance(other, np.ndarray | np.generic):
        alike = type(one) is type(other) and one.dtype == other.dtype and one.shape == other.shape
        return alike and one.tobytes() == other.tobytes()
    return type(one) is type(other) and repr(one) == repr(other)


def _told(path: str, ours: Facts, theirs: Facts) -> str:
    """A difference in words."""
    if path not in ours:
        return f"{path}: only with the neighbour, {_short(theirs[path])}"
    if path not in theirs:
        return f"{path}: not with the neighbour, {_short(ours[path])}"
    one, other = ours[path], theirs[path]
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray) and one.shape == other.shape and one.shape:
        for place, (first, second) in enumerate(zip(one.reshape(-1), other.reshape(-1), strict=True)):
            if not _same(first, second):
                return f"{path}: at place {place} {first!r} against {second!r}"
    return f"{path}: {_short(one)} against {_short(other)}"


def _short(value: object) -> str:
    text = repr(value)
    if len(text) > _LONG:
        text = f"{text[:_LONG]}..."
    return text
