"""What commands are made of, loaded when a command first asks for it: `isthmus --help` answers at once.

This is the one place of the command line that imports late; a part is an attribute of this module.
"""

from __future__ import annotations

import importlib
from typing import Any

_PARTS = {
    "audit": "isthmus.audit.suite",
    "budget": "isthmus.runs.budget",
    "config": "isthmus.runs.config",
    "demo": "isthmus.demo",
    "describe": "isthmus.runs.describe",
    "folder": "isthmus.runs.folder",
    "leaks": "isthmus.privacy.leaks",
    "model": "isthmus.runs.model",
    "planner": "isthmus.planner",
    "privacy": "isthmus.privacy",
    "record": "isthmus.report.record",
    "report": "isthmus.report",
    "tables": "isthmus.tables.files",
    "template": "isthmus.tables.template",
    "train": "isthmus.runs.train",
    "validate": "isthmus.base.validate",
    "atomic": "isthmus.base.atomic",
}


def __getattr__(name: str) -> Any:
    """A part by its name."""
    if name not in _PARTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(_PARTS[name])
