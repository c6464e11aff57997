"""What every filling shares: drawing the numbers of one run together into a `Choice`, and refusing with a reason."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from isthmus.planner import costs
from isthmus.planner.choice import Choice, frozen
from isthmus.planner.constants import CONSTANTS
from isthmus.planner.facts import Facts

AVERAGED = {"last": 1.0, "tail": math.sqrt(2 / 3), "average": math.sqrt(1 / 3)}
"""s.d. of a random walk's last point, of the mean of its second half, and of its mean, relative to the last."""


@dataclass(frozen=True)
class Refusal:
    """Why an algorithm cannot run, or has nothing to offer, on these facts."""

    reason: str


@dataclass(frozen=True)
class Run:
    """The skeleton of a filling: how long, on what batches, with which noise on how many numbers."""

    facts: Facts
    rounds: int
    batch_size: int | None
    clip: float
    multiplier: float | None
    dims: int
    looks: int = 0

    @property
    def divisor(self) -> int:
        """What the noisy sum is divided by."""
        return self.facts.n if self.batch_size is None else self.batch_size

    @property
    def sigma(self) -> float:
        """Noise s.d. in one number of the released mean."""
        return 0.0 if self.multiplier is None else self.multiplier * self.clip / self.divisor

    @property
    def passes(self) -> float:
        """Passes over the data, those before the loop among them."""
        return self.rounds * self.divisor / self.facts.n + self.looks

    def choice(self, algorithm: str, variant: str, arguments: dict[str, Any], **more: Any) -> Choice:
        """The choice; `more` overrides what the skeleton says."""
        facts, private = self.facts, self.multiplier is not None
        told = {
            "noise_multiplier": self.multiplier,
            "noise_norm": self.sigma * math.sqrt(self.dims) if private else None,
            "margin_noise": None,
            "dims": self.dims,
            "bytes": costs.NUMBER * self.dims * self.rounds,
            "memory": costs.memory(facts, self.batch_size),
            "seconds": costs.seconds(facts, self.rounds, self.batch_size, self.dims),
            "batch_size": self.batch_size,
            "passes": self.passes,
            "epsilon": facts.epsilon,
            "delta": facts.delta if private else None,
            "adjacency": facts.adjacency,
        }
        return Choice(algorithm, variant, frozen(arguments), self.rounds, **{**told, **more})


def full_rounds(facts: Facts, wanted: int, looks: int = 0) -> int:
    """Rounds on all records: the caller's, or as wanted, within the allowed passes; 0 where none is left."""
    if facts.rounds is not None:
        return facts.rounds
    return wanted if facts.max_passes is None else min(wanted, int(facts.max_passes) - looks)


def batch_of(facts: Facts) -> int:
    """The expected size of a Poisson batch: the caller's, else a hundredth of the records."""
    return facts.batch_size or max(1, facts.n // CONSTANTS.batches)


def sampled_rounds(facts: Facts, batch_size: int, passes: float | None = None, wanted: int | None = None) -> int:
    """Rounds on batches: the caller's, or as wanted, within the allowed passes."""
    if facts.rounds is not None:
        return facts.rounds
    wanted = CONSTANTS.sampled_rounds if wanted is None else wanted
    return wanted if passes is None else max(1, min(wanted, int(passes * facts.n / batch_size)))


def sampled_run(facts: Facts, clip: float, dims: int) -> Run | Refusal:
    """Poisson batches with the shared calibration."""
    batch = batch_of(facts)
    rounds = sampled_rounds(facts, batch, facts.max_passes)
    return Run(facts, rounds, batch, clip, costs.poisson_multiplier(facts, batch / facts.n, rounds), dims)


def full_run(facts: Facts, clip: float, dims: int, wanted: int, share: float = 1.0, looks: int = 0) -> Run | Refusal:
    """All records every round; the step's share of the budget where something else is bought, in so many looks."""
    rounds = full_rounds(facts, wanted, looks)
    if rounds < 1:
        return Refusal(f"it takes more than max_passes = {facts.max_passes:g} passes over the data")
    return Run(facts, rounds, None, clip, costs.full_multiplier(facts, rounds, share), dims, looks)


def walk(run: Run, step: float, averaged: str = "last", gain: float = 1.0) -> float:
    """Accumulated noise in the margin of a unit row: step sqrt(T) sigma, times what a lift keeps of it."""
    return step * math.sqrt(run.rounds) * run.sigma * gain * AVERAGED[averaged]


def allowed_step(facts: Facts, run: Run, longest: float, gain: float = 1.0) -> float:
    """The caller's step; else the longest stable one, shortened where its accumulated noise would exceed tau."""
    if facts.step is not None:
        return facts.step
    return min(longest, facts.tau / (math.sqrt(run.rounds) * run.sigma * gain))
