"""Whose turn it is: calls of `partial_fit` share one budget, so of all copies of a model one makes the next call.

A run of such calls has a random name that every copy keeps (deep copies, pickles, saved files), and the process that
began it knows how many calls were made.  A call is taken before it spends: a copy that was overtaken, a call that was
interrupted, and a copy in another process, which cannot know what others have spent, are refused.  A ledger that was
charged from the first call on counts what every copy spends, and needs no claims.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading

from isthmus.base import validate
from isthmus.privacy import Ledger

_MADE: dict[str, int] = {}
"""How many calls were begun, by run; of runs of this process only."""
_LOCK = threading.Lock()
if sys.platform != "win32":
    os.register_at_fork(after_in_child=_MADE.clear)
LEDGER = "charge a ledger on disk from the first call on (ledger=path), which counts what every copy spends"


def _begin() -> str:
    """The name of a new run."""
    name = secrets.token_hex(16)
    _MADE[name] = 0
    return name


def _claim(run: str, done: int) -> None:
    """Take the call after `done` others, or refuse where it may have been spent.

    >>> name = _begin()
    >>> _claim(name, 0)
    >>> _claim(name, 0)
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: Call 1 of partial_fit was begun before, by another copy ...
    """
    call = f"Call {done + 1} of partial_fit"
    with _LOCK:
        calls = _MADE.get(run)
        elsewhere = "comes in another process than the first, where the rest of the budget may be spent"
        validate.require(calls is not None, f"{call} {elsewhere}: {LEDGER}")
        before = "was begun before, by another copy or before an interruption"
        validate.require(calls == done, f"{call} {before}: continue there, or {LEDGER}")
        _MADE[run] = done + 1


def identities(ledger: object) -> tuple[str, ...]:
    """Those of a ledger and of the ones that it is charged to besides; of none there are none."""
    found = []
    while isinstance(ledger, Ledger):
        found.append(ledger.identity)
        ledger = ledger.shared
    return tuple(found)
