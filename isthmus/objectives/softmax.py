"""Multinomial logistic regression."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from isthmus.gradients import Outer
from isthmus.objectives.linear import LinearModel
from isthmus.objectives.targets import ClassLabels
from isthmus.space import Space


class Softmax(LinearModel):
    """l = log sum_k exp(z_k) - z_y with z = W x; w is the K x p matrix W, flat and row-major.

    Slopes are softmax(z) - e_y, so the gradient of example i is the outer product (softmax(z_i) - e_{y_i}) x_i'.
    The Hessian in z is at most 1/2, and ||slope|| <= sqrt 2.

    Args:
        classes: the number of classes (labels 0..K-1), the labels in order, or None: the sorted labels of y.

    >>> f = Softmax([[1.0, 0.0], [0.0, 1.0]], [0, 2], classes=3)
    >>> f.space.shape("w"), round(f.loss(torch.zeros(6, dtype=torch.float64)), 4)
    ((3, 2), 1.0986)
    """

    curvature = 0.5
    slope_bound = 2.0**0.5

    def __init__(self, X: Any, y: Any, *, classes: Any = None, **penalty: Any) -> None:
        super().__init__(X, y, ClassLabels(classes), **penalty)

    def losses(self, z: Tensor, y: Tensor) -> Tensor:
        """log sum_k exp(z_k) - z_y."""
        return torch.logsumexp(z, dim=1) - z.gather(1, y[:, None])[:, 0]

    def slopes(self, z: Tensor, y: Tensor) -> Tensor:
        """softmax(z) - e_y."""
        return torch.softmax(z, dim=1).scatter_add(1, y[:, None], z.new_full((len(y), 1), -1.0))

    def rows(self, w: Tensor, index: Any = None) -> Outer:
        """The per-example gradients, factored."""
        X, y = self._batch(index)
        return Outer(X, self._slopes(X, y, w, index))

    def _space(self) -> Space:
        return Space.of({"w": (len(self.classes or ()), self.X.shape[1])})

    def _as_columns(self, w: Tensor) -> Tensor:
        return w.view(-1, self.X.shape[1]).T

    def _target_dtype(self, z: Tensor) -> torch.dtype:
        return torch.int64
