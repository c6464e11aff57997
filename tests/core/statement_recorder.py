"""Listens where noise is drawn: `release` of every mechanism, `draw` of every sampler and the round's `close_stage`."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from scipy.stats import chi2, gamma

import isthmus.core.driver
import isthmus.core.pipeline
from isthmus import privacy
from isthmus.privacy import Exact, Gaussian, Laplace, event_json, joint
from isthmus.privacy.clips import ClippedSum

MECHANISMS = (Exact, Gaussian, Laplace, privacy.NoisyMax, privacy.TopK, privacy.DiscreteGaussian)
SAMPLERS = (privacy.FullBatch, privacy.Poisson, privacy.FixedSize)
RARE = 1e-10
"""Of secret noise nothing is certain: sums of it are this rare beyond their limits."""


@dataclass
class Recorder:
    """Everything that was released while it listened."""

    rounds: list[Any] = field(default_factory=list)
    """The event of every group of releases that looked at one sample."""
    squares: list[torch.Tensor] = field(default_factory=list)
    """Of the added Gaussian noise, relative to multiplier times bound: chi-squared."""
    sizes: list[torch.Tensor] = field(default_factory=list)
    """Of the added Laplace noise, relative to the same: exponential."""
    made: list[Any] = field(default_factory=list)
    """The mechanisms, in the order of their releases."""
    used: set[str] = field(default_factory=set)
    drew: set[str] = field(default_factory=set)
    open: list[Any] | None = None

    def heard(self, mechanism: Any, bounded: ClippedSum, before: torch.Tensor, after: torch.Tensor) -> None:
        self.made.append(mechanism)
        event = mechanism.event()
        if self.open is None:
            self.rounds.append(event)
        else:
            self.open.append(event)
        if isinstance(mechanism, (Gaussian, Laplace)):
            unit = (after.double() - before) / (mechanism.multiplier * bounded.bound)
            kept, values = (
                (self.squares, unit.square()) if isinstance(mechanism, Gaussian) else (self.sizes, unit.abs())
            )
            kept.append(values.reshape(-1))

    def events(self) -> Counter[str]:
        return counted(self.rounds)

    def check(self, statement: privacy.PrivacyStatement) -> None:
        """The statement counts what ran; the noise is as large as is said; samplers are those that drew."""
        assert not any(isinstance(each, Exact) for each in self.made), "released without noise"
        assert counted([event_json.from_json(statement.event)]) == self.events()
        self.check_noise()

    def check_noise(self) -> None:
        for kept, law in ((self.squares, chi2), (self.sizes, gamma)):
            values = torch.cat([torch.zeros(0), *kept])
            low, high = law.ppf(RARE, len(values)), law.isf(RARE, len(values))
            assert not len(values) or low <= float(values.sum()) <= high, "the noise is not as large as is said"
        assert self.used <= self.drew, "a sampler is accounted for and did not draw"


def counted(events: list[Any]) -> Counter[str]:
    """Single releases, with how often each was made; numbers to 12 digits."""
    total: Counter[str] = Counter()
    for event in events:
        for leaf, count in event_json.flatten(event_json.to_json(event)):
            total[json.dumps(_rounded(leaf), sort_keys=True)] += count
    return total


def _rounded(data: Any) -> Any:
    if isinstance(data, dict):
        if data.get("event") == "PoissonSampled" and data["sampling_probability"] == 1:
            return _rounded(data["inner"])  # every record, every time
        return {key: _rounded(value) for key, value in data.items()}
    return float(f"{data:.12g}") if isinstance(data, float) else data


def listening(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """A recorder at the places where noise is drawn; everything runs as it would without it."""
    recorder = Recorder()
    for kind in MECHANISMS:
        monkeypatch.setattr(kind, "release", _heard(kind.release, recorder))
    for kind in SAMPLERS:
        monkeypatch.setattr(kind, "draw", _drawn(kind.draw, recorder))
    closing = _closing(isthmus.core.pipeline._release, recorder)
    monkeypatch.setattr(isthmus.core.pipeline, "_release", closing)
    yield recorder


def _heard(release: Any, found: Recorder) -> Any:
    def heard(self: Any, bounded: ClippedSum, noise: Any) -> torch.Tensor:
        before = bounded.value.detach().double().clone()
        after = release(self, bounded, noise)
        found.heard(self, bounded, before, after.detach())
        return after

    return heard


def _drawn(draw: Any, found: Recorder) -> Any:
    def drawn(self: Any, *arguments: Any, **named: Any) -> Any:
        found.drew.add(self.describe())
        return draw(self, *arguments, **named)

    return drawn


def _closing(close: Any, found: Recorder) -> Any:
    def closing(round: Any, stage: Any, *rest: Any, **named: Any) -> Any:
        found.open = []
        try:
            return close(round, stage, *rest, **named)
        finally:
            if found.open:
                found.rounds.append(stage.sampler.event(joint(found.open)))
                found.used.add(stage.sampler.describe())
            found.open = None

    return closing
