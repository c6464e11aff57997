"""Doors for networks: the engine with its options, and `minimize` on modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from replay.trials import Rng, Trial

NETWORKS: dict[str, Callable[[Rng], Trial]] = {}
