"""A tap: whoever listens is shown the gradient of a tensor during the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

Push = Callable[[Tensor], None]


class _Kept(Protocol):
    """What a tap keeps for the backward pass."""

    push: Push


class GradientTap(torch.autograd.Function):
    """Makes a tensor need a gradient although no weight does, and shows that gradient to `push`.

    The memory is handed on as a tensor of its own, not as a view, so that activations may still be computed in place
    and cannot cut off the tap.
    """

    @staticmethod
    def forward(ctx: _Kept, output: Tensor, anchor: Tensor, push: Push) -> Tensor:
        """The output's memory."""
        ctx.push = push
        return output.detach()

    @staticmethod
    def backward(ctx: _Kept, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Show the gradient; nothing below needs it."""
        ctx.push(gradients[0])
        return gradients[0], None, None


def tap(output: Tensor, anchor: Tensor, push: Push) -> Tensor:
    """The output, with `push` called once with its gradient.

    >>> x, gradients = torch.ones(2), []
    >>> tap(x * 3, torch.zeros((), requires_grad=True), gradients.append).sum().backward()
    >>> gradients
    [tensor([1., 1.])]
    """
    tapped: Tensor = GradientTap.apply(output, anchor, push)  # type: ignore[no-untyped-call]
    return tapped
