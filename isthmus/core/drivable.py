"""What a user's loop can drive, and the small questions that its driver asks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from isthmus.base import validate
from isthmus.core.parts import Last, current
from isthmus.core.pipeline import Pipeline, slots
from isthmus.core.wire import Message
from isthmus.privacy.clips import SPAN


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


ROWS = 4
"""Examples that are looked at for mixtures."""
PLACES = 1024
"""Numbers of an example that are looked at, at most."""
FEWEST = 16
"""Of fewer numbers too many are combinations of others by chance."""


def mixed(given: Any, handed: Any, n: int, dim: int = 0) -> bool:
    """Whether examples that a module is given were made from pairs of those that were handed out.

    Sums of two examples (and a constant), and examples with a piece of another, are known by their numbers; those of
    other functions are not.  Half precision has too few digits to tell.

    >>> x = torch.randn(8, 20)
    >>> mixed(0.7 * x + 0.3 * x.flip(0), x, 8), mixed(2 * x - 1, x, 8), mixed(x.sin(), x, 8)
    (True, False, False)
    """
    theirs = [x.detach() for x in tree_flatten(given)[0] if _comparable(x, n, dim)]
    ours = [x.detach() for x in tree_flatten(handed)[0] if _comparable(x, n, dim)]
    theirs = [x for x in theirs if not any(x is y or (x.shape == y.shape and torch.equal(x.to(y), y)) for y in ours)]
    return any(_pairs(x.movedim(dim, 0), y.movedim(dim, 0)) for x in theirs for y in ours if x.shape == y.shape)


def _comparable(x: object, n: int, dim: int) -> bool:
    """Whether a tensor has enough digits and numbers for each of three examples or more."""
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim <= dim or x.shape[dim] != n or n < 3:
        return False
    return x.dtype.itemsize >= 4 and x.numel() // n >= FEWEST


def _pairs(x: Tensor, y: Tensor) -> bool:
    """Whether some rows of x are made of pairs of rows of y, and not of the row in their own place alone."""
    x, y = x.flatten(1), y.flatten(1)
    places = torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(0))[:PLACES]
    x, y = x[:, places.to(x.device)].double().cpu(), y[:, places.to(y.device)].double().cpu()
    return sum(_summed(x[i], y, i) or _pasted(x[i], y, i) for i in range(min(ROWS, len(x)))) >= 2


def _summed(row: Tensor, y: Tensor, i: int) -> bool:
    """Whether a row is a y_i + b y_j + c for another j, and is not for b = 0."""
    row, y = row - row.mean(), y - y.mean(1, keepdim=True)
    own = y[i] / y[i].norm().clamp_min(1e-300)
    size, rest, others = row.norm(), row - own * (row @ own), y - torch.outer(y @ own, own)
    explained = (others @ rest) / others.norm(dim=1).clamp_min(1e-9 * y.norm(dim=1).max() + 1e-300)
    explained[i] = 0
    left = rest.norm() ** 2 - explained.abs().max() ** 2
    return bool(rest.norm() > 1e-2 * size and left <= (1e-4 * size) ** 2)


def _pasted(row: Tensor, y: Tensor, i: int) -> bool:
    """Whether a row is y_i but for a piece of y_j, which is no constant."""
    piece = row != y[i]
    if not FEWEST // 2 <= int(piece.sum()) < len(row) or bool((row[piece] == row[piece][0]).all()):
        return False
    same = (y[:, piece] == row[piece]).all(1)
    return bool(same.any())


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
