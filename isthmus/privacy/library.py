"""The accounting library, imported when it is first used: runs that are not private never pay for it."""

from __future__ import annotations

import importlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent as DpEvent
else:
    DpEvent = object
    """What was released, in the accountant's terms: `dp_accounting.dp_event.DpEvent`, which is not loaded for types."""


class LateModule:
    """A module that is imported at its first attribute."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._module: Any = None

    def __getattr__(self, attribute: str) -> Any:
        if self._module is None:
            _quiet()
            self._module = importlib.import_module(self._name)
        return getattr(self._module, attribute)


class _LeftOut(logging.Filter):
    """Drops the library's word on single Renyi orders it leaves out: the bound from the others holds."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is shown."""
        return "failed to converge" not in str(record.msg)


_FILTER = _LeftOut()


def _quiet() -> None:
    """`logging` keeps a logger's filters, also where the logger is made before the library that writes to it."""
    logging.getLogger("absl").addFilter(_FILTER)


dpa: Any = LateModule("dp_accounting")


@dataclass(frozen=True)
class SkellamDpEvent:
    """Skellam noise on integers, which the library does not know: no worse than Gaussian noise of this multiplier.

    For pairs of neighbours, that is; where a bound looks at three laws at once it is not taken for a Gaussian (see
    `isthmus.privacy.skellam` and `accounting`).
    """

    noise_multiplier: float
