"""Changes of a JSON tree by a script of bytes: every input is a tree, so that a search spends nothing on syntax."""

from __future__ import annotations

import json
from typing import Any

SCRIPT = b"\xff"
"""The first byte of an input that is a script; no JSON text begins with it."""
ODD: list[Any] = [None, True, False, 0, -1, 1, 0.5, -0.0, 1e308, 1e-320, 2**63, 10**30, "", "inf", "nan", "é", "\0"]
ODD += [[], {}, [[]], {"": None}, ["a"], [1, 2], {"event": "NoOp"}, {"@tensor": "w"}, {"@float": "inf"}]
ODD += [{"@tuple": [1]}, "a" * 200]


def text_of(data: bytes, bases: list[bytes]) -> bytes:
    """A JSON text: the input itself, or one of the bases changed by the script that it is."""
    if data[:1] != SCRIPT:
        return data
    data = data.ljust(2, b"\0")
    tree = json.loads(bases[data[1] % len(bases)])
    for at in range(2, min(len(data) - 2, 26), 3):
        tree = _changed(tree, int.from_bytes(data[at : at + 2], "little"), data[at + 2])
    return json.dumps(tree).encode()


def scripts(count: int = 6) -> list[bytes]:
    """Scripts to begin with."""
    return [SCRIPT + bytes([k % 7, *((37 * k + 11 * j) % 256 for j in range(9))]) for k in range(count)]


def _places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path, *(place for key, value in inner for place in _places(value, (*path, key)))]


def _changed(tree: Any, which: int, how: int) -> Any:
    """One change at one place: another value, gone, twice, or the value of another place."""
    places = _places(tree)
    path = places[which % len(places)]
    if not path:
        return _copy(ODD[how % len(ODD)]) if how > 250 else tree
    parent = tree
    for key in path[:-1]:
        parent = parent[key]
    key, kind = path[-1], how % 5 if len(places) < 2000 else 0
    if kind == 0:
        del parent[key]
    elif kind == 1 and isinstance(parent, list):
        parent.insert(key, _copy(parent[key]))
    elif kind == 2:
        parent[key] = _at(tree, places[(which // 7 + how) % len(places)])
    else:
        parent[key] = _copy(ODD[(how // 5 + which) % len(ODD)])
    return tree


def _at(tree: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return _copy(tree)


def _copy(tree: Any) -> Any:
    """So that no value is inside itself."""
    return json.loads(json.dumps(tree))
