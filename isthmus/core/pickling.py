"""Copies and pickles of a module in private training: the plain module, without the driver that listens to it.

`copy.deepcopy`, `pickle` and `torch.save` ask a module for its state.  While a driver is attached every layer answers
for itself (`__reduce_ex__` in its own dictionary): what it gives away is its state without the hooks of this package.
What was gathered of private batches and not released is in the driver, and never in a copy.
"""

from __future__ import annotations

from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn

_NAME = "__reduce_ex__"
_TABLES = "_hooks"
"""How the names of a module's tables of hooks, and of what is kept beside them, look."""


class _PlainCopies:
    """The handle of one layer's answer: `remove` takes it away."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer

        def reduce(protocol: int) -> Any:
            reduced = type(layer).__reduce_ex__(layer, protocol)
            return reduced if isinstance(reduced, str) else _cleaned(reduced)

        layer.__dict__[_NAME] = reduce

    def remove(self) -> None:
        """Copies are made as before."""
        self.layer.__dict__.pop(_NAME, None)


def plain_copies(module: nn.Module) -> list[_PlainCopies]:
    """Let every layer of a module be copied and pickled without hooks of this package; returns the handles.

    >>> import copy
    >>> module = nn.Linear(2, 2)
    >>> handles = plain_copies(module)
    >>> sorted(vars(copy.deepcopy(module)).keys() ^ vars(module).keys())
    ['__reduce_ex__']
    """
    return [_PlainCopies(layer) for layer in module.modules() if not isinstance(layer, torch.jit.ScriptModule)]


def _cleaned(part: Any) -> Any:
    """What a layer gives away of itself, in its state or among the arguments that it is made anew with."""
    if isinstance(part, tuple):
        return tuple(map(_cleaned, part))
    if not isinstance(part, dict) or "_modules" not in part:
        return part
    state = {name: value for name, value in part.items() if name != _NAME and not _ours(value)}
    tables = {name: table for name, table in state.items() if _TABLES in name and isinstance(table, dict)}
    hooks = {
        key for name, table in tables.items() if name.endswith(_TABLES) for key, hook in table.items() if _ours(hook)
    }
    for name, table in tables.items():  # those with the marks of hooks too, which have the same keys
        state[name] = type(table)((key, hook) for key, hook in table.items() if key not in hooks)
    return state


def _ours(value: object) -> bool:
    """Whether a function was defined inside one of this package: those of its users' models are not."""
    function = value.__func__ if isinstance(value, MethodType) else value
    local = isinstance(function, FunctionType) and "<locals>" in function.__qualname__
    return local and str(function.__module__).split(".")[0] == __name__.split(".")[0]
