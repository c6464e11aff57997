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
from isthmus.core.aggregators import Aggregator
from isthmus.core.pipeline import Pipeline, Stage, StepSize
from isthmus.core.updates import Update
from isthmus.privacy.clips import Clip
from isthmus.problems.scaling import RowMaps
from isthmus.sketches import Encoder, Identity

Look = Callable[[Stage, Aggregator, Space], Tensor]
"""A stage, the holders of what it looks at and the space of what it releases -> the released values."""


@dataclass(frozen=True)
class Prepared:
    """What follows from releases before the loop: another problem, a step, a start, an update, a map for new rows.

    target  the range that targets were clipped to, where it was bought
    centre  (shift, width): targets that were mapped into [-1, 1] are learned as (y - shift) / width
    clip    of the gradients, in place of the pipeline's own: what was bought is public, and so is what follows from it
    spread  the usual size of a margin, where it is known
    encode  of the gradients, in place of the pipeline's own: directions that were bought
    """

    objective: Any
    step: StepSize | None = None
    start: Tensor | None = None
    update: Update | None = None
    transform: RowMaps | None = None
    target: tuple[float, float] | None = None
    centre: tuple[float, float] | None = None
    clip: float | None = None
    spread: float | None = None
    encode: Encoder | None = None

    def fill(self, pipe: Pipeline) -> Pipeline:
        """The pipeline with what was prepared in its slots."""
        step = pipe.step if self.step is None else self.step
        stages = pipe.stages if self.clip is None else [_clipped(stage, self.clip) for stage in pipe.stages]
        stages = stages if self.encode is None else [_encoded(stage, self.encode) for stage in stages]
        return replace(pipe, stages=stages, step=step, update=pipe.update if self.update is None else self.update)


def _clipped(stage: Stage, bound: float) -> Stage:
    """The stage with another bound in place of every constant clip; one that follows the norms keeps its own."""
    return replace(
        stage,
        releases=[
            replace(release, clip=replace(release.clip, bound=bound)) if type(release.clip) is Clip else release
            for release in stage.releases
        ],
    )


def _encoded(stage: Stage, encode: Encoder) -> Stage:
    """The stage with another map in place of the identity."""
    return replace(
        stage,
        releases=[
            replace(release, encode=encode) if isinstance(release.encode, Identity) else release
            for release in stage.releases
        ],
    )


def prepare(
    pipe: Pipeline, objective: Any, look: Look, aggregator: Aggregator
) -> tuple[Prepared, dict[str, Tensor], Aggregator]:
    """Take every look before the loop, and what follows from them: here, the released values by name, and for holders.

    What was released is public: every holder of data sees its own records through the same maps.
    """
    for item in pipe.before:
        item.check(objective)
    prepared, bought = Prepared(objective), {}
    holders = [prepared if problem is objective else Prepared(problem) for problem in aggregator.problems]
    for item in pipe.before:
        purchase = item.stage(prepared.objective)
        if purchase is not None:
            bought[item.name] = look(purchase[0], aggregator, purchase[1])
        with aggregator.group.alike():
            before, prepared = prepared, item.apply(prepared, bought.get(item.name))
            holders = [
                prepared if holder is before else item.apply(holder, bought.get(item.name)) for holder in holders
            ]
        aggregator = aggregator.holding([holder.objective for holder in holders])
    return prepared, bought, aggregator
