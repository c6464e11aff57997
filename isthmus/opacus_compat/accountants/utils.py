"""The noise that a target epsilon asks for."""

from __future__ import annotations

from typing import Any

from isthmus.base import validate
from isthmus.engine.accountant import Accountant
from isthmus.privacy import Ledger, Poisson


def get_noise_multiplier(
    *,
    target_epsilon: float,
    target_delta: float,
    sample_rate: float,
    epochs: float | None = None,
    steps: int | None = None,
    accountant: str = "prv",
    epsilon_tolerance: float = 0.01,
    **kwargs: Any,
) -> float:
    """The noise multiplier with which Poisson batches at `sample_rate` spend the target, from below within 0.01 %.

    >>> round(get_noise_multiplier(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.01, steps=99), 2)
    0.9
    """
    validate.positive(target_epsilon=target_epsilon)
    validate.open_unit(target_delta=target_delta)
    validate.check((epochs is None) != (steps is None), "steps", steps, "give either epochs or steps")
    rounds = max(1, int(epochs / sample_rate)) if epochs is not None else int(steps or 0)
    validate.positive_int(steps=rounds)
    return Accountant(Ledger(), accountant).multiplier(Poisson(sample_rate), rounds, target_epsilon, target_delta)
