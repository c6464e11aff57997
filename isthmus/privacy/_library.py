"""The accounting library, imported when it is first used: runs that are not private never pay for it."""

from __future__ import annotations

import importlib
from typing import Any


class Lazy:
    """A module that is imported at its first attribute."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


dpa: Any = Lazy("dp_accounting")
