"""What a user's loop can drive, and the small questions that its driver asks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from isthmus.base import validate
from isthmus.privacy.clips import SPAN
from isthmus.round.averages import Last
from isthmus.round.pipeline import Pipeline, slots
from isthmus.round.sources import current
from isthmus.round.wire import Message


@dataclass(frozen=True, eq=False)
class Ticket:
    """A physical batch: how many examples it holds, whether its logical batch ends with it, its micro-batches.

    `groups` has the micro-batch of every example, drawn independently of every other example.  Examples that do not
    count stand in for a batch that has none: they pass as any other, and their gradient is dropped.  `look` is shown
    the arguments that a batch became, and refuses those that depend on how records were put together.
    """

    size: int
    last: bool = True
    groups: Tensor | None = None
    counts: bool = True
    look: Callable[[tuple[Any, ...], dict[str, Any]], None] | None = None


def batches_of(args: tuple[Any, ...], kwargs: dict[str, Any], dim: int) -> list[int]:
    """How many examples a module may be given: the sizes of its tensors where their examples would be."""
    return [x.shape[dim] for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.ndim > dim]


def least_bound(pipe: Pipeline) -> float:
    """The least bound that rows of a pipeline may be clipped to."""
    clips = [release.clip for _, release, _ in slots(pipe.stages) if release.clip is not None]
    bounds = [clip.each(clip.init()) for clip in clips]
    least = [min(bound.values()) if isinstance(bound, Mapping) else bound for bound in bounds]
    return min(least, default=math.inf) / (SPAN if any(clip.moves for clip in clips) else 1.0)


def counted(message: Message) -> Message:
    """The message with its numbers and bytes, its values free to be used up."""
    values = message.values.values()
    return replace(
        message,
        values={name: replace(bounded, spare=True) for name, bounded in message.values.items()},
        dims=sum(bounded.value.numel() for bounded in values),
        bytes=sum(bounded.size for bounded in values),
    )


def check_drivable(pipe: Pipeline) -> None:
    """What a user's loop cannot hold is refused when the driver is made."""
    stage = pipe.stages[0]
    remedy = "use `minimize`, which alone runs several stages, variance reduction, codecs and error feedback"
    simple = len(pipe.stages) == 1 and stage.every == 1 and stage.source is current
    validate.check(simple, "pipe.stages", [s.name for s in pipe.stages], remedy)
    validate.check(not pipe.wire.remembers and pipe.wire.codec is None, "pipe.wire", pipe.wire, remedy)
    validate.check(pipe.stop is None, "pipe.stop", pipe.stop, remedy)
    validate.check(not pipe.before, "pipe.before", [item.name for item in pipe.before], remedy)
    validate.check(isinstance(pipe.average, Last), "pipe.average", pipe.average, "average the module's own weights")
