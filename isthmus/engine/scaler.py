"""Loss scaling for float16: the user's own `GradScaler`, with a scale that the data cannot move.

A `GradScaler` multiplies the loss by S, so that small gradients do not vanish in float16, and divides gradients by S
before the optimiser moves.  Here the rows of every example are divided by S before they are clipped, in float32.

A scaler also looks for gradients that are not finite, skips the step then and makes S smaller.  Whether that happens
depends on the raw gradients of private records: one record with a large gradient would decide whether a round is
released at all.  So S stays what it was when training was made private, every step is taken and charged, and an
example whose gradient overflows counts as zero, which changes the sum by no more than C.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from isthmus.base import validate

LARGE = 2.0**15
"""Of a loss that is a sum, gradients of 1 are near the largest float16 number beyond this scale."""
KEPT = (
    "leave the scale as it is: it is fixed when training is made private, and may not follow what overflows in "
    "private gradients"
)


class _Fixed(torch.amp.GradScaler):
    """A scaler whose scale stays, for the optimisers of private training only."""

    _private: set[int]
    _plain: type[torch.amp.GradScaler]

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Nothing: what a private optimiser is given was divided by the scale before it was clipped."""
        self._check(optimizer)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """The optimiser's step, always: whether one is taken must not depend on the data."""
        self._check(optimizer)
        return optimizer.step(*args, **kwargs)

    def update(self, new_scale: Any = None) -> None:
        """Nothing: the scale stays."""
        validate.check(new_scale is None, "new_scale", new_scale, KEPT)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Only a state with the same scale."""
        scale = state_dict.get("scale", self.get_scale())
        validate.check(scale == self.get_scale(), "scale", scale, KEPT)

    def _check(self, optimizer: Any) -> None:
        is_private = id(optimizer) in self._private
        remedy = "give other optimisers a scaler of their own: this one belongs to private training"
        validate.check(is_private, "optimizer", type(optimizer).__name__, remedy)

    def __reduce_ex__(self, protocol: Any) -> Any:
        state = {name: value for name, value in self.__getstate__().items() if name not in ("_private", "_plain")}
        return _bare, (self._plain,), state


def _bare(kind: type[torch.amp.GradScaler]) -> torch.amp.GradScaler:
    """A scaler of a class that is about to be given its state."""
    return kind.__new__(kind)


def scale_of(scaler: Any, reduction: str) -> float:
    """The scale that a loop multiplies its loss by: 1 without a scaler, or with one that is switched off.

    >>> scale_of(None, "mean"), scale_of(torch.amp.GradScaler("cpu", init_scale=8.0), "mean")
    (1.0, 8.0)
    """
    if scaler is None:
        return 1.0
    is_scaler = isinstance(scaler, torch.amp.GradScaler)
    validate.check(is_scaler, "grad_scaler", type(scaler).__name__, "give the torch.amp.GradScaler of the loop")
    scale = float(scaler.get_scale())
    validate.positive(**{"grad_scaler.get_scale()": scale})
    if scale > LARGE and reduction == "sum":
        warnings.warn(
            f"the loss is a sum, and the GradScaler keeps its scale of {scale:g}: gradients of 1 overflow in "
            "float16, and examples that overflow count as zero; make it with init_scale=2.0**8 or so",
            stacklevel=3,
        )
    return scale


def fix_scale(scaler: Any, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """Let the scale of a user's scaler stay from now on; returns what makes the scaler the user's own again.

    >>> weights = [torch.nn.Parameter(torch.zeros(1))]
    >>> scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    >>> free = fix_scale(scaler, torch.optim.SGD(weights, lr=0.1))
    >>> scaler.update(), scaler.get_scale()
    (None, 8.0)
    >>> free()
    """
    if scaler is None or not scaler.is_enabled():
        return lambda: None
    if isinstance(scaler, _Fixed):
        scaler._private.add(id(optimizer))
    else:
        kind = type(scaler)
        scaler._private, scaler._plain = {id(optimizer)}, kind
        scaler.__class__ = type(kind.__name__, (_Fixed, kind), {"__module__": kind.__module__})

    def free() -> None:
        scaler._private.discard(id(optimizer))
        if not scaler._private:
            scaler.__class__ = scaler._plain
            del scaler._private, scaler._plain

    return free
