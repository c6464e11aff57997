"""What every filling shares: drawing the numbers of one run together into a `Choice`, and refusing with a reason."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from isthmus.algorithms import costs
from isthmus.algorithms.choice import Choice, Refusal
from isthmus.algorithms.constants import CONSTANTS
from isthmus.algorithms.facts import Facts
from isthmus.sets import Subspace

AVERAGED = {"last": 1.0, "tail": math.sqrt(2 / 3), "average": math.sqrt(1 / 3)}
"""s.d. of a random walk's last point, of the mean of its second half, and of its mean, relative to the last."""


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

    def choice(self, arguments: Mapping[str, Any], variant: str = "", evidence: str = "", **more: Any) -> Choice:
        """The choice, which `Variant` puts its name to; `more` overrides what the skeleton says."""
        facts, private = self.facts, self.multiplier is not None
        values = {
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
        return Choice("", variant, dict(arguments), self.rounds, evidence=evidence, **{**values, **more})


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


def sampled_run(facts: Facts, clip: float, dims: int) -> Run:
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


def free_run(facts: Facts, dims: int, sampled: bool) -> Run:
    """Without a budget: all records, or shuffled batches for some epochs."""
    if not sampled:
        return Run(facts, max(1, full_rounds(facts, CONSTANTS.free_rounds)), None, 0.0, None, dims)
    batch = facts.batch_size or min(facts.n, CONSTANTS.free_batch)
    rounds = CONSTANTS.free_epochs * -(-facts.n // batch)
    if facts.max_passes is not None:  # the last batch of an epoch may be small: count whole ones
        rounds = max(1, min(rounds, int(facts.max_passes * facts.n / batch)))
    return Run(facts, facts.rounds or rounds, batch, 0.0, None, dims)


def plain_run(facts: Facts, dims: int) -> Run | Refusal:
    """All records, one public step: step * T is what noise depends on, as long as the allowed noise lets it be."""
    low, high = CONSTANTS.full_rounds
    rounds = math.ceil(facts.tau * facts.b / (facts.the_clip * (CONSTANTS.longest / facts.smooth)))
    return full_run(facts, facts.the_clip, dims, min(max(rounds, low), high))


def walk(run: Run, step: float, averaged: str = "last", gain: float = 1.0) -> float:
    """Accumulated noise in the margin of a unit row: step sqrt(T) sigma, times what a lift keeps of it."""
    return step * math.sqrt(run.rounds) * run.sigma * gain * AVERAGED[averaged]


def allowed_step(run: Run, gain: float = 1.0) -> float:
    """The caller's step; else the longest stable one, shortened where its accumulated noise would exceed tau."""
    facts = run.facts
    if facts.step is not None:
        return facts.step
    return min(CONSTANTS.longest / facts.smooth, facts.tau / (math.sqrt(run.rounds) * run.sigma * gain))


def sketched(run: Run, arguments: Mapping[str, Any]) -> Choice:
    """A tight random sketch: the pseudo-inverse shrinks signal and noise alike by m / d; a known subspace is kept."""
    facts = run.facts
    share = 1.0 if isinstance(facts.constraint, Subspace) else run.dims / facts.parameters
    step = allowed_step(run, share)
    return run.choice(
        {"clip": facts.the_clip, "step": step, "output": "last", **arguments},
        noise_norm=run.sigma * math.sqrt(facts.parameters) * share,
        margin_noise=walk(run, step, gain=share),
    )
