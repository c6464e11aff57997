"""A tap: whoever listens is shown the gradient of a tensor during the backward pass that a step belongs to.

Other passes may go through the same tensors: `torch.autograd.grad` for the slope at an input, an adversarial example, a
penalty.  Torch adds nothing to a parameter's `.grad` in them, and a tap says nothing.  It knows them by its anchor, a
tensor that every tap hangs on as a layer hangs on its parameters: only a pass that ends in all leaves ends there too.

A slope with a graph of its own (`create_graph=True`) depends on the weights once more, by a way that has no tap.  A
backward pass that goes back through such a slope is refused; a slope that no loss uses may be anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from isthmus.base import validate

_Push = Callable[[Tensor], None]


def trains(node: Any) -> bool:
    """Inside the backward pass of a node whose second tensor is the anchor: whether the pass ends there."""
    return bool(torch._C._will_engine_execute_node(node.next_functions[1][0]))


class _GradientTap(torch.autograd.Function):
    """Makes a tensor need a gradient although no weight does, and shows that gradient to `push`.

    The memory is handed on as a tensor of its own, not as a view, so that activations may still be computed in place
    and cannot cut off the tap.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, anchor: Tensor, push: _Push) -> Tensor:
        """The output's memory."""
        ctx.push, ctx.anchor = push, anchor
        return output.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Show the gradient; nothing below needs it."""
        if torch._C._will_engine_execute_node(ctx.next_functions[1][0]):  # as `trains` asks, without a call
            ctx.push(gradients[0])
        if not torch.is_grad_enabled():
            return gradients[0], None, None
        slope: Tensor = _Slope.apply(gradients[0], ctx.anchor)  # type: ignore[no-untyped-call]
        return slope, None, None


class _Slope(torch.autograd.Function):
    """A gradient that has a graph of its own, through which no training pass may come back."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, anchor: Tensor) -> Tensor:
        """The same numbers, which need a gradient even where they follow from weights alone."""
        return gradient.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Only into a slope of the slope, which is none of the weights' gradient."""
        if trains(ctx):
            raise validate.InvalidInput(
                "the loss goes back through a gradient of the private module (torch.autograd.grad with "
                "create_graph=True, as in a gradient penalty): this gradient of a gradient cannot be told example by "
                "example. Use .detach() on that gradient where it is only a number, or write the loss of one example "
                "as a function for isthmus.TorchObjective, which may call torch.func.grad, and train with minimize"
            )
        return gradients[0], None


def tap(output: Tensor, anchor: Tensor, push: _Push) -> Tensor:
    """The output, with `push` called once with its gradient.

    >>> x, gradients = torch.ones(2), []
    >>> tap(x * 3, torch.zeros((), requires_grad=True), gradients.append).sum().backward()
    >>> gradients
    [tensor([1., 1.])]
    """
    tapped: Tensor = _GradientTap.apply(output, anchor, push)  # type: ignore[no-untyped-call]
    return tapped
