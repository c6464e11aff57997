"""Multinomial logistic regression."""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.space import Space
from isthmus.gradients import Outer
from isthmus.objectives.base import Index
from isthmus.objectives.linear import Hinge, LinearModel, Logistic, Options, SmoothHinge
from isthmus.objectives.targets import ClassLabels


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

    name, reads, probabilities = "softmax", ClassLabels, True
    extends: type[LinearModel] | None = Logistic
    curvature, slope_bound = 0.5, 2.0**0.5

    @classmethod
    def outputs(cls, classes: int = 2) -> int:
        """One margin for each class."""
        return classes

    @classmethod
    def clip_for(cls, classes: int = 2) -> float:
        """sqrt(1 - 1/K), the norm of the slope at w = 0, unless the class has a number of its own."""
        return math.sqrt(1 - 1 / classes) if cls.default_clip is None else cls.default_clip

    def losses(self, z: Tensor, y: Tensor) -> Tensor:
        """log sum_k exp(z_k) - z_y."""
        return torch.logsumexp(z, dim=1) - z.gather(1, y[:, None])[:, 0]

    def slopes(self, z: Tensor, y: Tensor) -> Tensor:
        """softmax(z) - e_y."""
        return torch.softmax(z, dim=1).scatter_add(1, y[:, None], z.new_full((len(y), 1), -1.0))

    def rows(self, w: Tensor, index: Index = None) -> Outer:
        """The per-example gradients, factored."""
        X, y = self._batch(index)
        return Outer(X, self._slopes(X, y, w, index), sizes=self._sizes(X, index))

    def _space(self) -> Space:
        return Space.of({"w": (len(self.classes or ()), self.X.shape[1])})

    def _as_columns(self, w: Tensor) -> Tensor:
        return w.view(-1, self.X.shape[1]).T

    def _target_dtype(self, z: Tensor) -> torch.dtype:
        return torch.int64


class OneVsRest(Softmax):
    """l = sum_k h(s_k z_k), s_k = 1 for the right class and -1 else; h the hinge, or the smooth hinge of width gamma.

    >>> OneVsRest([[1.0, 0.0]], [2], classes=3).loss(torch.zeros(6, dtype=torch.float64))
    3.0
    """

    name, probabilities, default_clip = "", False, 1.0
    extends: type[LinearModel] | None = Hinge

    def __init__(self, X: object, y: object, *, gamma: float = 0.0, **options: Unpack[Options]) -> None:
        validate.non_negative(gamma=gamma)
        super().__init__(X, y, **options)
        self.gamma, self.curvature = gamma, 1 / gamma if gamma else None  # type: ignore[assignment]
        self.slope_bound = len(self.classes or ()) ** 0.5

    def losses(self, z: Tensor, y: Tensor) -> Tensor:
        """The hinges of all classes."""
        gap = 1 - self._signs(z, y) * z
        if not self.gamma:
            return gap.clamp_min(0).sum(1)
        t = (gap / self.gamma).clamp(0, 1)
        return (t * (gap - self.gamma / 2 * t)).sum(1)

    def slopes(self, z: Tensor, y: Tensor) -> Tensor:
        """-s_k where the margin is short."""
        signs = self._signs(z, y)
        gap = 1 - signs * z
        return -signs * ((gap / self.gamma).clamp(0, 1) if self.gamma else (gap > 0).to(z.dtype))

    def _signs(self, z: Tensor, y: Tensor) -> Tensor:
        return torch.full_like(z, -1.0).scatter_(1, y[:, None], 1.0)


class SmoothOneVsRest(OneVsRest):
    """`OneVsRest` of smooth hinges, of width 1 unless told otherwise.

    >>> SmoothOneVsRest([[1.0, 0.0]], [2], classes=3).gamma
    1.0
    """

    extends = SmoothHinge

    def __init__(self, X: object, y: object, *, gamma: float = 1.0, **options: Unpack[Options]) -> None:
        super().__init__(X, y, gamma=gamma, **options)
