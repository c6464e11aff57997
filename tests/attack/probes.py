"""What reaches a mechanism: every bounded sum, of a training on the data and of one on a neighbour.

A replay (`isthmus.audit.replay`) that looks at nothing else.  The second training is given what the first one released.
So both hold the same public transcript, and the movement of every release, also of later rounds and of what is bought
before the loop, is that of one record alone.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from isthmus.audit.replays import _Place, _Tape
from isthmus.base import secret
from isthmus.base.validate import InvalidInput

Arrays = Mapping[str, np.ndarray]


@dataclass
class Crowd(_Tape):
    """Draws in which so many of the other records are in every batch, whatever its rate is."""

    share: float = 1.0

    def mask(self, n: int, q: float) -> Tensor:
        """Which of n records are in a batch: the one that comes and goes always is."""
        return super().mask(n, self.share)


@dataclass(frozen=True)
class Movement:
    """How far one record moved a release, in units of its stated bound; which release, or why that is infinite."""

    ratio: float
    words: str


def noise_seed() -> int | None:
    """The seed of a training's noise: none where a replay draws for it, as production does."""
    return None if secret.rehearsed() else 7


def movement(
    train: Callable[[Arrays], object], data: Arrays, neighbour: Arrays, place: _Place, seed: int, share: float
) -> Movement | None:
    """The largest movement over all releases of a training on the data and on the neighbour; None if refused alike."""
    first = Crowd(seed, place, True, present=True, share=share)
    second = Crowd(seed, place, True, place.more == 0, first.kept, first.sizes, first=False, share=share)
    for given, tape in ((data, first), (neighbour, second)):
        with warnings.catch_warnings(), np.errstate(all="ignore"), secret.standing_in(tape):
            warnings.simplefilter("ignore")
            try:
                train(given)
            except (InvalidInput, NotImplementedError) as error:
                tape.error, tape.ended = error, f"{type(error).__name__}: {error}"
    if first.error and second.error:
        return None
    if first.error or second.error:
        return Movement(math.inf, f"only one of the two trainings was refused: {first.ended} against {second.ended}")
    if not first.count:
        raise RuntimeError("a training that released nothing tests nothing")
    if (first.count, first.facts) != (second.count, second.facts):
        return Movement(math.inf, f"what is released depends on one record: {first.facts} against {second.facts}")
    worst = max(second.moved, key=lambda release: release.ratio)
    return Movement(worst.ratio, str(worst))
