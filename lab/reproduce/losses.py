"""Losses that experiments need and the library has no use for: absolute values, and a nonconvex one."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from isthmus.objectives import LinearModel


class AbsoluteLoss(LinearModel):
    """l = |z - y|: convex and Lipschitz, not smooth.

    >>> AbsoluteLoss(torch.eye(2), [1.0, -3.0]).loss(torch.zeros(2))
    2.0
    """

    slope_bound = 1.0

    def losses(self, z: Tensor, y: Tensor) -> Tensor:
        """|r|."""
        return (z - y).abs()

    def slopes(self, z: Tensor, y: Tensor) -> Tensor:
        """The sign of r."""
        return torch.sign(z - y)


class Welsch(LinearModel):
    """l = 1 - exp(-(z - y)^2 / 2), a loss that outliers do not move: nonconvex, slopes of at most e^{-1/2}.

    >>> f = Welsch(torch.eye(2), [0.0, 2.0])
    >>> round(f.loss(torch.zeros(2)), 4)
    0.4323
    """

    curvature = 1.0
    slope_bound = math.exp(-0.5)

    def losses(self, z: Tensor, y: Tensor) -> Tensor:
        """1 - exp(-r^2 / 2)."""
        return -torch.expm1(-((z - y) ** 2) / 2)

    def slopes(self, z: Tensor, y: Tensor) -> Tensor:
        """r exp(-r^2 / 2)."""
        return (z - y) * torch.exp(-((z - y) ** 2) / 2)
