"""The audit of a whole training run with many canaries in it at once (Steinke, Nasr and Jagielski 2023)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isthmus.audit.bounds import one_run_epsilon
from isthmus.audit.records import LinearRecords
from isthmus.base import validate
from isthmus.core.minimize import minimize
from isthmus.core.pipeline import Pipeline
from isthmus.privacy.noise import SecretSource

__all__ = ["OneRun", "one_run", "orthogonal_canaries", "training"]

Train = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class OneRun:
    """What one run gave away: `correct` of `guesses` about `canaries` records, so epsilon is at least `lower`."""

    canaries: int
    guesses: int
    correct: int
    delta: float
    confidence: float
    lower: float

    def __str__(self) -> str:
        return (
            f"{self.correct} of {self.guesses} guesses about {self.canaries} canaries were right: epsilon >= "
            f"{self.lower:.3f} at delta={self.delta:g} (confidence {self.confidence:g})"
        )


def one_run(
    train: Train,
    canaries: Tensor,
    *,
    guesses: int | None = None,
    delta: float = 0.0,
    confidence: float = 0.95,
    noise: Any = None,
) -> OneRun:
    """Include each canary with probability 1/2, train ONCE, guess who was in, and bound epsilon from below.

    train    takes the canaries that are in (a k x d tensor) and returns a score for EVERY canary, high for "in"
    guesses  how many canaries are guessed: half of them, the highest, "in", the lowest "out"; all by default.
             Fewer guesses are surer ones.  Fix the number before looking at a run.

    The bound is for adding or removing one record, and holds with the given confidence for every training function.

    >>> from isthmus.privacy import SeededSource
    >>> canaries = torch.eye(50)
    >>> leak = lambda included: canaries @ included.sum(0)  # releases everything
    >>> print(one_run(leak, canaries, guesses=30, noise=SeededSource(0)))
    30 of 30 guesses about 50 canaries were right: epsilon >= 2.254 at delta=0 (confidence 0.95)
    """
    validate.check(
        canaries.ndim == 2 and len(canaries) > 0,
        "canaries.shape",
        tuple(canaries.shape),
        "give an m x d matrix with at least one row",
    )
    m = len(canaries)
    guesses = m if guesses is None else guesses
    validate.positive_int(guesses=guesses)
    validate.at_most(m, "the number of canaries", guesses=guesses)
    member = (SecretSource() if noise is None else noise).mask(m, 0.5)
    result = train(canaries[member])
    validate.shape((m,), scores=result)
    validate.finite(scores=result)
    order = result.argsort(descending=True)
    high = (guesses + 1) // 2
    low = guesses - high
    correct = int(member[order[:high]].sum()) + int((~member[order[m - low :]]).sum())
    lower = one_run_epsilon(m, guesses, correct, delta, confidence)
    return OneRun(m, guesses, correct, delta, confidence, lower)


def orthogonal_canaries(count: int, d: int, size: float = 1.0, seed: int = 0) -> Tensor:
    """`count` orthogonal vectors of length `size` in R^d.

    >>> c = orthogonal_canaries(3, 5, size=2.0)
    >>> torch.allclose(c @ c.T, 4 * torch.eye(3, dtype=c.dtype))
    True
    """
    validate.positive_int(count=count, d=d)
    validate.at_most(d, "the dimension d", count=count)
    validate.positive(size=size)
    normal = torch.randn(d, count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.linalg.qr(normal)[0].T * size


def training(
    pipe: Pipeline,
    canaries: Tensor,
    *,
    steps: int,
    seed: int = 0,
    noise_seed: int | None = None,
    others: Tensor | None = None,
) -> Train:
    """A training function for `one_run`: `minimize` with a pipeline, scores `<w_0 - w_T, canary>`.

    Every canary is the gradient of one linear loss, so a canary that is in pulls the iterate along itself.  `others`
    are records that are always there, by default one zero vector.

    >>> from isthmus.core.pipeline import Promise, Release, Stage
    >>> from isthmus.privacy import Clip, FullBatch, Gaussian, SeededSource
    >>> pipe = Pipeline([Stage(FullBatch(), [Release(clip=Clip(1.0), mechanism=Gaussian(50.0))])], lambda t: 0.1,
    ...                 promise=Promise(1.0, 1e-5))
    >>> canaries = orthogonal_canaries(20, 30)
    >>> report = one_run(training(pipe, canaries, steps=3, noise_seed=0), canaries, noise=SeededSource(0))
    >>> report.lower <= 1.0
    True
    """
    validate.positive_int(steps=steps)
    always = torch.zeros(1, canaries.shape[1], dtype=canaries.dtype) if others is None else others.to(canaries)

    def train(included: Tensor) -> Tensor:
        objective = LinearRecords(torch.cat([always, included]))
        options: dict[str, Any] = {"record": None, "progress": False, "noise_seed": noise_seed}
        start = torch.zeros(objective.d, dtype=canaries.dtype)
        result = minimize(objective, pipe, steps=steps, seed=seed, x0=start, **options)
        return canaries @ (start - result.state.w)

    return train
