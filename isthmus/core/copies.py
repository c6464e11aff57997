"""Copies and pickles of a module in private training: the plain module, without the driver that listens to it.

`copy.deepcopy`, `pickle` and `torch.save` ask a module for its state.  While a driver is attached every layer answers
for itself (`__reduce_ex__` in its own dictionary): what it gives away is its state without the hooks of this package.
What was gathered of private batches and not released is in the driver, and never in a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

NAME = "__reduce_ex__"
TABLES = "_hooks"
"""How the names of a module's tables of hooks, and of what is kept beside them, look."""


class PlainCopies:
    """The handle of one layer's answer: `remove` takes it away."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer
        layer.__dict__[NAME] = _reducer(layer)

    def remove(self) -> None:
        """Copies are made as before."""
        self.layer.__dict__.pop(NAME, None)


def plain_copies(module: nn.Module) -> list[PlainCopies]:
    """Let every layer of a module be copied and pickled without hooks of this package; returns the handles.

    >>> import copy
    >>> module = nn.Linear(2, 2)
    >>> handles = plain_copies(module)
    >>> sorted(vars(copy.deepcopy(module)).keys() ^ vars(module).keys())
    ['__reduce_ex__']
    """
    return [PlainCopies(layer) for layer in module.modules() if not isinstance(layer, torch.jit.ScriptModule)]


def _reducer(layer: nn.Module) -> Callable[[int], Any]:
    def reduce(protocol: int) -> Any:
        reduced = type(layer).__reduce_ex__(layer, protocol)
        return reduced if isinstance(reduced, str) else tuple(_cleaned(part) for part in reduced)

    return reduce


def _cleaned(part: Any) -> Any:
    """What a layer gives away of itself, in its state or among the arguments that it is made anew with."""
    if isinstance(part, tuple):
        return tuple(_cleaned(item) for item in part)
    if not isinstance(part, dict) or "_modules" not in part:
        return part
    ours = {
        key
        for name, table in part.items()
        if name.endswith(TABLES) and isinstance(table, dict)
        for key, hook in table.items()
        if _of_this_package(hook)
    }
    state = {name: value for name, value in part.items() if name != NAME and not _of_this_package(value)}
    for name, table in state.items():
        if TABLES in name and isinstance(table, dict):  # those with the marks of hooks too, which have the same keys
            state[name] = type(table)((key, hook) for key, hook in table.items() if key not in ours)
    return state


def _of_this_package(value: object) -> bool:
    """Whether something that can be called, and is no part of a model, was defined here."""
    function = getattr(value, "__func__", value)
    local = "<locals>" in getattr(function, "__qualname__", "")
    return local and str(getattr(function, "__module__", "")).split(".")[0] == __name__.split(".")[0]
