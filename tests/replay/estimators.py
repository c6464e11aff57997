"""Doors of the estimators, and of what is measured and summarised beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from replay.trials import Rng, Trial

ESTIMATORS: dict[str, Callable[[Rng], Trial]] = {}
