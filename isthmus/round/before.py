"""What is released before the loop: looks at the data like every other, and what follows from them.

Each `Before` of a pipeline is one stage on its own.  What it released is public: the problem it leaves, its step, its
start and its update may depend on it, and cost nothing more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from isthmus.base.space import Space
from isthmus.problems.scaling import RowMaps
from isthmus.round.pipeline import Pipeline, Stage, StepSize
from isthmus.round.updates import Update

Look = Callable[[Stage, Any, Space], Tensor]
"""A stage, the problem it looks at and the space of what it releases -> the released values."""


@dataclass(frozen=True)
class Prepared:
    """What follows from releases before the loop: another problem, a step, a start, an update, a map for new rows.

    `target` is the range that targets were clipped to, where it was bought.
    """

    objective: Any
    step: StepSize | None = None
    start: Tensor | None = None
    update: Update | None = None
    transform: RowMaps | None = None
    target: tuple[float, float] | None = None

    def fill(self, pipe: Pipeline) -> Pipeline:
        """The pipeline with what was prepared in its slots."""
        step = pipe.step if self.step is None else self.step
        return replace(pipe, step=step, update=pipe.update if self.update is None else self.update)


def prepare(pipe: Pipeline, objective: Any, look: Look) -> tuple[Prepared, dict[str, Tensor]]:
    """Take every look before the loop, and what follows from them; the released values by name."""
    for item in pipe.before:
        item.check(objective)
    prepared, bought = Prepared(objective), {}
    for item in pipe.before:
        asked = item.stage(prepared.objective)
        if asked is not None:
            bought[item.name] = look(asked[0], prepared.objective, asked[1])
        prepared = item.apply(prepared, bought.get(item.name))
    return prepared, bought
