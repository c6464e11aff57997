"""What reaches a mechanism: every bounded sum, of a training on the data and of one on a neighbour.

The second training is given what the first one released.  So both hold the same public transcript, and the movement of
every release, also of later rounds and of what is bought before the loop, is that of one record alone.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from isthmus.base import validate
from isthmus.base.secret import rehearsed
from isthmus.privacy.mechanisms import DiscreteGaussian, Gaussian, Laplace, NoisyMax, TopK
from isthmus.privacy.noise import Source

MECHANISMS = (Gaussian, Laplace, NoisyMax, TopK, DiscreteGaussian)
Arrays = Mapping[str, np.ndarray]


@dataclass
class Seen:
    """What one training handed to its mechanisms, what these answered, and why it was refused, if it was."""

    values: list[np.ndarray] = field(default_factory=list)
    bounds: list[tuple[str, float, float]] = field(default_factory=list)
    released: list[torch.Tensor] = field(default_factory=list)
    refused: str = ""


@dataclass(frozen=True)
class Membership:
    """Secret draws that are the same for every record but one: `extra` is its place, None where it is not there."""

    seed: int
    extra: int | None
    share: float = 1.0

    def drawn(self, call: int, n: int) -> np.ndarray:
        """Which of n records are in a batch: the one that comes and goes always is."""
        others = np.random.default_rng([self.seed, call]).random(n - (self.extra is not None)) < self.share
        return others if self.extra is None else np.insert(others, self.extra, True)


@contextmanager
def _patched(owner: Any, **methods: Callable[..., Any]) -> Iterator[None]:
    by_name = {name: getattr(owner, name) for name in methods}
    for name, method in methods.items():
        setattr(owner, name, method)
    try:
        yield
    finally:
        for name, method in by_name.items():
            setattr(owner, name, method)


@contextmanager
def aligned(member: Membership) -> Iterator[None]:
    """Batches and micro-batches drawn so that the other records do not notice the one that comes and goes."""
    calls, place = [0], [member.extra]

    def mask(source: Source, n: int, q: float, device: Any = None) -> torch.Tensor:
        calls[0] += 1
        drawn = member.drawn(calls[0], n)
        place[0] = None if member.extra is None else int(drawn[: member.extra].sum())
        return torch.from_numpy(drawn)

    def integers(source: Source, high: int, size: int) -> torch.Tensor:
        calls[0] += 1
        rng = np.random.default_rng([member.seed, calls[0], 1])
        own = int(rng.integers(high))
        others = rng.integers(high, size=size - (place[0] is not None))
        return torch.from_numpy(others if place[0] is None else np.insert(others, place[0], own))

    with _patched(Source, mask=mask, integers=integers):
        yield


@contextmanager
def recorded(record: Seen, transcript: list[torch.Tensor] | None) -> Iterator[None]:
    """Every release within is written down; with a transcript it answers what was answered before."""

    def recording(kind: type, release: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def wrapper(mechanism: Any, bounded: Any, noise: Any) -> torch.Tensor:
            record.values.append(bounded.value.detach().cpu().to(torch.float64).reshape(-1).numpy().copy())
            record.bounds.append((kind.__name__, float(bounded.ord), float(bounded.bound)))
            number = len(record.values) - 1
            if transcript is not None and number < len(transcript):
                out = transcript[number].clone()
            else:
                out = release(mechanism, bounded, noise)
            record.released.append(out.clone())
            return out

        return wrapper

    table = {kind: kind.release for kind in MECHANISMS}
    for kind, release in table.items():
        kind.release = recording(kind, release)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for kind, release in table.items():
            kind.release = release  # type: ignore[method-assign]


def noise_seed() -> int | None:
    """The seed of a training's noise: none where a replay draws for it, as production does."""
    return None if rehearsed() else 7


def observe(
    train: Callable[[Arrays], object], arrays: Arrays, member: Membership, transcript: list[torch.Tensor] | None = None
) -> Seen:
    """One training, watched."""
    record = Seen()
    with warnings.catch_warnings(), aligned(member), recorded(record, transcript), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            train(arrays)
        except (validate.InvalidInput, NotImplementedError) as error:
            record.refused = f"{type(error).__name__}: {error}"
    return record


@dataclass(frozen=True)
class Movement:
    """How far one record moved a release, in units of its stated bound; which release, and why if that is infinite."""

    ratio: float
    release: int = 0
    mechanism: str = ""
    bound: float = math.nan
    why: str = ""


def compare(one: Seen, two: Seen, factor: float = 1.0) -> Movement | None:
    """The largest movement over all releases; `factor` is 2 for replace-one.  None where both were refused."""
    if one.refused and two.refused:
        return None
    if one.refused or two.refused:
        return Movement(math.inf, why=f"only one of the two trainings was refused: {one.refused or two.refused}")
    if not one.values:
        raise RuntimeError("a training that released nothing tests nothing")
    if one.bounds != two.bounds:
        return Movement(math.inf, why=f"what is released depends on one record: {one.bounds} against {two.bounds}")
    values = [
        Movement(_ratio(a, b, ord, bound * factor), i, kind, bound)
        for i, (a, b, (kind, ord, bound)) in enumerate(zip(one.values, two.values, one.bounds, strict=True))
    ]
    return max(values, key=lambda move: move.ratio)


def _ratio(a: np.ndarray, b: np.ndarray, ord: float, bound: float) -> float:
    if a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return math.inf
    gap = np.abs(a - b)
    largest = float(gap.max(initial=0.0))
    if largest == 0 or ord == math.inf:
        return largest / bound
    return float(np.linalg.norm(gap / largest, ord)) * (largest / bound)
