"""`DPOptimizer`: what the optimiser of private training answers to when Opacus' names are asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from isthmus.core.driver import TorchDriver
from isthmus.opacus_compat.refused import methods, refuse

ONE = "call step(): it clips, sums, adds noise and charges the ledger in one go, and there is no way to do a part of it"
SKIP = (
    "use BatchMemoryManager, which cuts one batch into pieces: a batch of the loader that is not released "
    "would be added to the next one, where a record may be a second time"
)


class DPOptimizer:
    """The class of an optimiser while training is private, beside the optimiser's own: nothing is wrapped.

    noise_multiplier, max_grad_norm   as they were given; assignments are refused
    expected_batch_size               the public number that noisy sums are divided by
    accumulated_iterations            1: every batch of the loader is a release of its own
    summed_grad (of a parameter)      only where noise_multiplier is 0: the clipped sum, which was released as it is
    """

    _driver: TorchDriver
    accumulated_iterations = 1

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        refuse("DPOptimizer", "call make_private of an engine, which knows loader, clip and ledger")

    @property
    def original_optimizer(self) -> DPOptimizer:
        """The optimiser itself."""
        return self

    @property
    def expected_batch_size(self) -> float:
        """The public number that noisy sums are divided by."""
        return self._driver.stage.sampler.divisor(self._driver.n, 0)

    @property
    def params(self) -> list[nn.Parameter]:
        """The parameters that are trained."""
        return list(self._driver.layers.parameters())

    def attach_step_hook(self, fn: Callable[[Any], None]) -> None:
        """Call `fn(optimizer)` at every release: what it sees was released and charged."""
        self._driver.observers.append(lambda round: fn(self))

    (signal_skip_step,) = methods(SKIP, "signal_skip_step")
    clip_and_accumulate, add_noise, scale_grad, pre_step = methods(
        ONE, "clip_and_accumulate", "add_noise", "scale_grad", "pre_step"
    )


def answer(optimizer: torch.optim.Optimizer, driver: TorchDriver, sums: bool = False) -> None:
    """Let a private optimiser answer to Opacus' names too; `engine.detach()` makes it plain again.

    sums  give every parameter the sum it moves by as `summed_grad`: only where that was released without noise
    """
    kind = type(optimizer)
    own = {"_driver": driver, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    optimizer.__class__ = type(kind.__name__, (DPOptimizer, kind), own)

    def show(private: Any, args: Any, kwargs: Any) -> None:
        for parameter in private.params:
            if parameter.grad is not None:
                parameter.summed_grad = parameter.grad * private.expected_batch_size

    if sums:
        optimizer.register_step_pre_hook(show)
