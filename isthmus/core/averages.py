"""Averages: what a run returns beside its last iterate; one of them also replaces the iterate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.randomness import generator

Memo = dict[str, Any]


class Average(Protocol):
    """Is given the start w_1, and after round t the point w_{t+1} with the step eta_t that led there."""

    def init(self, w: Tensor, seed: int) -> Memo:
        """The state before the first round."""
        ...

    def observe(self, memo: Memo, w: Tensor, eta: float | Tensor, t: int) -> tuple[Memo, Tensor]:
        """The new state, and the iterate to go on from."""
        ...

    def output(self, memo: Memo, w: Tensor) -> Tensor:
        """The averaged point."""
        ...


@dataclass(frozen=True)
class Last:
    """The last iterate."""

    def init(self, w: Tensor, seed: int) -> Memo:
        """Nothing to remember."""
        return {}

    def observe(self, memo: Memo, w: Tensor, eta: float | Tensor, t: int) -> tuple[Memo, Tensor]:
        """Nothing changes."""
        return memo, w

    def output(self, memo: Memo, w: Tensor) -> Tensor:
        """The iterate."""
        return w


@dataclass(frozen=True)
class Weighted:
    """sum_t eta_t w_t / sum_t eta_t, from round `start` on: eta_t is the step that was taken FROM w_t, so the start
    counts and the last point, which no step was taken from, does not (a per-coordinate step counts by its mean).

    >>> memo = Weighted().init(torch.tensor([1.0]), 0)
    >>> for t, (w, eta) in enumerate([(4.0, 1.0), (9.0, 2.0)]):
    ...     memo, _ = Weighted().observe(memo, torch.tensor([w]), eta, t)
    >>> Weighted().output(memo, torch.zeros(1))
    tensor([3.])
    """

    start: int = 0

    def init(self, w: Tensor, seed: int) -> Memo:
        """An empty mean, and the point that the first step is taken from."""
        return {"mean": w.clone(), "weight": 0.0, "point": w}

    def observe(self, memo: Memo, w: Tensor, eta: float | Tensor, t: int) -> tuple[Memo, Tensor]:
        """The running weighted mean."""
        if t < self.start:
            return {**memo, "point": w}, w
        step = float(eta.mean()) if isinstance(eta, Tensor) else float(eta)
        weight = memo["weight"] + step
        mean = torch.lerp(memo["mean"], memo["point"], step / weight) if weight > 0 else memo["point"].clone()
        return {"mean": mean, "weight": weight, "point": w}, w

    def output(self, memo: Memo, w: Tensor) -> Tensor:
        """The mean, or the iterate when nothing was averaged yet."""
        return memo["mean"] if memo["weight"] > 0 else w


@dataclass(frozen=True)
class UniformRandom:
    """One of the iterates w_1..w_T, the start among them, each with the same probability (a reservoir of one).

    Which one follows from the run's public seed: equal seeds choose equal rounds.
    """

    def init(self, w: Tensor, seed: int) -> Memo:
        """Nothing chosen yet."""
        return {"choice": w.clone(), "seed": seed, "point": w}

    def observe(self, memo: Memo, w: Tensor, eta: float | Tensor, t: int) -> tuple[Memo, Tensor]:
        """Take w_t with probability 1/(t+1)."""
        replaces = generator(memo["seed"], t, "reservoir").random() * (t + 1) < 1
        return {**memo, "choice": memo["point"].clone() if replaces else memo["choice"], "point": w}, w

    def output(self, memo: Memo, w: Tensor) -> Tensor:
        """The chosen iterate."""
        chosen: Tensor = memo["choice"]
        return chosen


@dataclass(frozen=True)
class Tail:
    """The mean of the points that the rounds from `start` on arrived at."""

    start: int = 0

    def init(self, w: Tensor, seed: int) -> Memo:
        """An empty mean."""
        return {"mean": w.clone(), "count": 0}

    def observe(self, memo: Memo, w: Tensor, eta: float | Tensor, t: int) -> tuple[Memo, Tensor]:
        """The running mean."""
        if t < self.start:
            return memo, w
        count = memo["count"] + 1
        return {"mean": torch.lerp(memo["mean"], w, 1 / count) if count > 1 else w.clone(), "count": count}, w

    def output(self, memo: Memo, w: Tensor) -> Tensor:
        """The mean, or the iterate when nothing was averaged yet."""
        return memo["mean"] if memo["count"] else w


@dataclass(frozen=True)
class Suffix:
    """The mean of the last `count` points, however long the run turns out to be: it keeps them, count x d numbers.

    Section 2.2 of paper 001 averages the last 10.

    >>> memo = Suffix(2).init(torch.zeros(1), 0)
    >>> for t in range(5):
    ...     memo, _ = Suffix(2).observe(memo, torch.tensor([float(t)]), 1.0, t)
    >>> Suffix(2).output(memo, torch.zeros(1))
    tensor([3.5000])
    """

    count: int

    def __post_init__(self) -> None:
        validate.positive_int(count=self.count)

    def init(self, w: Tensor, seed: int) -> Memo:
        """No points."""
        return {"points": ()}

    def observe(self, memo: Memo, w: Tensor, eta: float | Tensor, t: int) -> tuple[Memo, Tensor]:
        """The last points."""
        return {"points": (*memo["points"], w)[-self.count :]}, w

    def output(self, memo: Memo, w: Tensor) -> Tensor:
        """Their mean."""
        return torch.stack(memo["points"]).mean(0) if memo["points"] else w


@dataclass(frozen=True)
class Restart:
    """Every K rounds the iterate is replaced by the mean of the last K: inner loops restarted at their average.

    The output is the mean of the last inner loop that is at least half done; before that, of what there is.

    >>> memo = Restart(4).init(torch.zeros(1), 0)
    >>> for t in range(3):
    ...     memo, _ = Restart(4).observe(memo, torch.tensor([float(t)]), 1.0, t)
    >>> Restart(4).output(memo, torch.zeros(1))
    tensor([1.])
    """

    rounds: int

    def __post_init__(self) -> None:
        validate.positive_int(rounds=self.rounds)

    def init(self, w: Tensor, seed: int) -> Memo:
        """An empty inner mean."""
        return {"mean": w.clone(), "output": w.clone()}

    def observe(self, memo: Memo, w: Tensor, eta: float | Tensor, t: int) -> tuple[Memo, Tensor]:
        """The mean of this inner loop; at its end, the iterate."""
        position = t % self.rounds + 1
        mean = w.clone() if position == 1 else torch.lerp(memo["mean"], w, 1 / position)
        counts = 2 * position >= self.rounds or t < self.rounds
        following = {"mean": mean, "output": mean if counts else memo["output"]}
        return following, mean if position == self.rounds else w

    def output(self, memo: Memo, w: Tensor) -> Tensor:
        """The average of the last inner loop that counts."""
        mean: Tensor = memo["output"]
        return mean


OUTPUTS = ("last", "average", "random", "last K")
NAMED: dict[str, Average] = {"last": Weighted(), "average": Weighted(), "random": UniformRandom()}


def average_of(output: str) -> Average:
    """The average behind the `output` of a recipe: "last", "average", "random" or, for a number K, "last K".

    >>> average_of("last 10")
    Suffix(count=10)
    """
    word, _, count = output.partition(" ") if isinstance(output, str) else ("", "", "")
    valid = output in NAMED if not count else word == "last" and count.isdecimal() and int(count) > 0
    validate.check(valid, "output", output, f"choose one of {list(OUTPUTS)}, such as 'last 10'")
    return Suffix(int(count)) if count else NAMED[output]
