"""What is used of `flwr`, which is an extra: loaded when it is first needed."""

from __future__ import annotations

import importlib
import warnings
from functools import lru_cache
from types import SimpleNamespace

from isthmus.base import validate


@lru_cache(maxsize=1)
def flower() -> SimpleNamespace:
    """The modules of Flower's message API: `app`, `clientapp`, `serverapp`, `strategy`."""
    names = {"app": "app", "clientapp": "clientapp", "serverapp": "serverapp", "strategy": "serverapp.strategy"}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its command line warns of a later click while it is imported
            return SimpleNamespace(**{key: importlib.import_module(f"flwr.{name}") for key, name in names.items()})
    except ImportError as error:
        raise ImportError(f"Clients of Flower need flwr 1.41 or later; {validate.extra('flower')}") from error
