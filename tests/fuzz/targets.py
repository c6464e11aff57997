"""Every target by its name."""

from __future__ import annotations

from fuzz import commands, loaders, shapes, stores, texts, wires
from fuzz.target import Target

TARGETS: dict[str, Target] = {
    target.name: target for module in (wires, stores, texts, loaders, shapes, commands) for target in module.TARGETS
}
