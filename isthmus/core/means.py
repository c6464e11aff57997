"""Undoing the division of a mean loss, before anything is rounded to fewer than 32 bits.

A mean over n examples divides every example's gradient by n.  In float32 the rows are multiplied by n when all of them
are known.  In bfloat16 that is too late: what rounding left of g / n is another number for every n, and one record more
would change every record's share.  So the outputs of the module are handed on in float32 (nothing is lost by that), and
the gradient that comes back is multiplied by n there, in float32, before the network's own backward pass rounds it.
What a later rounding sees is the gradient of the example's own loss, up to the last of 24 bits, whatever n is; for a
loss that the module computes itself, a number, it is exact (n / n is 1).

That last bit is the assumption which every mean loss rests on (see docs/privacy.md); a sum has no division to undo.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from isthmus.base import validate
from isthmus.gradients.layers.between import mapped
from isthmus.gradients.layers.tap import trains


class _Undone(torch.autograd.Function):
    """The identity, in float32 at least; its gradient is multiplied by n in the pass that trains."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, n: int, fired: Callable[[], None]) -> Tensor:
        """The same numbers."""
        ctx.n, ctx.dtype, ctx.fired = n, x.dtype, fired
        return x.to(torch.promote_types(x.dtype, torch.float32), copy=True)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        """n g, rounded to the output's dtype last."""
        if not trains(ctx):
            return gradients[0].to(ctx.dtype), None, None, None
        ctx.fired()
        if torch.is_grad_enabled():  # a gradient of this gradient is asked for
            return (gradients[0] * ctx.n).to(ctx.dtype), None, None, None
        scaled = torch.empty_like(gradients[0], dtype=ctx.dtype)
        return (
            torch.mul(gradients[0], ctx.n, out=scaled),
            None,
            None,
            None,
        )  # multiplied in float32 and rounded, in one kernel


class Undo:
    """The state of one batch: whether its outputs were handed on, and whether a gradient has come back through them."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Another batch."""
        self.on, self._fired = False, False
        self._low: bool | None = None

    def outputs(self, output: Any, anchor: Tensor, n: int, low: bool) -> Any:
        """The outputs of a pass of `low` precision with the division undone behind them; those of others as they are.

        `anchor` is that of the layers' taps, by which the backward pass that trains is known.

        All passes of one batch must agree: their rows are added, and all of them are divided by n or none is.
        """
        if self._low not in (None, low):
            raise validate.InvalidInput(
                "a batch went through the module both with and without autocast: a mean loss is undone in another "
                "place for each; run all passes of a batch in one precision, or use a sum, loss_reduction='sum'"
            )
        self._low = low
        if not low:
            return output

        def fired() -> None:
            self._fired = True

        def tapped(x: Tensor) -> Tensor:
            if not (x.requires_grad and x.is_floating_point()):
                return x
            self.on = True
            tap: Tensor = _Undone.apply(x, anchor, n, fired)  # type: ignore[no-untyped-call]
            return tap

        return mapped(tapped, output)

    def check_kept(self, things: Mapping[str, object]) -> None:
        """Refuse what a module keeps of a pass: a loss of it beside the outputs would be divided by n still."""
        names = sorted(name for name, x in things.items() if isinstance(x, Tensor) and x.grad_fn is not None)
        if self.on and names:
            raise validate.InvalidInput(
                f"the module keeps {names} of its pass with their graph: in less than 32 bits a mean loss must be one "
                "of what the module returns; return them too, keep them with .detach(), or use a sum, "
                "loss_reduction='sum'"
            )

    def check(self) -> None:
        """Refuse gradients that came another way, and are divided by n still."""
        if self.on and not self._fired:
            raise validate.InvalidInput(
                "a gradient reached a layer without passing the module's own output (through a tensor that a hook or "
                "an attribute kept): in less than 32 bits a mean loss must be one of what the module returns; return "
                "that tensor too, or use a sum, loss_reduction='sum'"
            )


def reduced(module: nn.Module, device: torch.device) -> bool:
    """Whether gradients of a pass may have fewer than 32 bits."""
    return torch.is_autocast_enabled(device.type) or any(p.dtype.itemsize < 4 for p in module.parameters())
