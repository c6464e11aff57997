"""What commands are made of, loaded when a command first asks for it: `isthmus --help` answers at once.

This is the one place of the command line that imports late; a part is an attribute of this module.
"""

from __future__ import annotations

import importlib
from typing import Any

_PARTS = {
    "audit": "isthmus.audit.suite",
    "budget": "isthmus.app.runs.budget",
    "config": "isthmus.app.runs.config",
    "demo": "isthmus.app.demo",
    "describe": "isthmus.app.runs.describe",
    "folder": "isthmus.app.runs.folder",
    "leaks": "isthmus.privacy.leaks",
    "model": "isthmus.app.runs.model",
    "planner": "isthmus.planner",
    "privacy": "isthmus.privacy",
    "record": "isthmus.app.report.record",
    "report": "isthmus.app.report",
    "tables": "isthmus.tables.files",
    "template": "isthmus.tables.template",
    "train": "isthmus.app.runs.train",
    "validate": "isthmus.base.validate",
    "whole": "isthmus.base.whole",
}


def __getattr__(name: str) -> Any:
    """A part by its name."""
    if name not in _PARTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(_PARTS[name])
