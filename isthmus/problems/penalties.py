"""Penalties: the part of an objective that does not look at data.

A penalty has a value, the gradient of its smooth (l2) part, and its proximal map.  There are two sound ways
to use one, and mixing them counts the l2 part twice:

* step along the DATA gradient, then `prox` (the whole penalty); what the pipeline does;
* step along `objective.gradient` (data and l2 part), then `prox_rest` (the l1 part).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isthmus.base import validate


class Penalty(ABC):
    """R(w) = smooth(w) + rest(w), with rest the part that has no gradient everywhere.

    >>> isinstance(L1Penalty(0.1), Penalty), L2Penalty(0.1).curvature
    (True, 0.1)
    """

    @property
    def curvature(self) -> float:
        """A Lipschitz constant of the gradient of the smooth part."""
        return 0.0

    @abstractmethod
    def value(self, w: Tensor) -> float:
        """R(w)."""

    @abstractmethod
    def gradient(self, w: Tensor) -> Tensor:
        """The gradient of the smooth part."""

    @abstractmethod
    def prox(self, w: Tensor, eta: float | Tensor) -> Tensor:
        """argmin_v R(v) + sum_j (v_j - w_j)^2 / (2 eta_j); eta is a number or one a coordinate."""

    @abstractmethod
    def prox_rest(self, w: Tensor, eta: float | Tensor) -> Tensor:
        """The same for the non-smooth part alone."""


@dataclass(frozen=True)
class ElasticNet(Penalty):
    """l1 ||w||_1 + (l2 / 2) ||w||^2; prox(w)_j = soft(w_j, eta l1) / (1 + eta l2).

    >>> ElasticNet(l1=1.0, l2=1.0).prox(torch.tensor([3.0, -0.5]), 1.0)
    tensor([1., -0.])
    """

    l1: float = 0.0
    l2: float = 0.0

    def __post_init__(self) -> None:
        validate.non_negative(l1=self.l1, l2=self.l2)

    @property
    def curvature(self) -> float:
        """l2."""
        return self.l2

    def value(self, w: Tensor) -> float:
        """R(w)."""
        return float(self.l1 * w.abs().sum() + self.l2 / 2 * w.square().sum())

    def gradient(self, w: Tensor) -> Tensor:
        """l2 w."""
        return self.l2 * w

    def prox(self, w: Tensor, eta: float | Tensor) -> Tensor:
        """Soft-threshold, then shrink."""
        return self.prox_rest(w, eta) / (1 + eta * self.l2)

    def prox_rest(self, w: Tensor, eta: float | Tensor) -> Tensor:
        """Soft-threshold at eta l1."""
        return soft_threshold(w, eta * self.l1) if self.l1 else w


@dataclass(frozen=True)
class L2Penalty(Penalty):
    """(lam / 2) ||w||^2; prox(w) = w / (1 + eta lam).

    >>> L2Penalty(1.0).prox(torch.tensor([3.0]), 0.5)
    tensor([2.])
    """

    lam: float

    def __post_init__(self) -> None:
        validate.non_negative(lam=self.lam)

    @property
    def curvature(self) -> float:
        """lam."""
        return self.lam

    def value(self, w: Tensor) -> float:
        """R(w)."""
        return float(self.lam / 2 * w.square().sum())

    def gradient(self, w: Tensor) -> Tensor:
        """lam w."""
        return self.lam * w

    def prox(self, w: Tensor, eta: float | Tensor) -> Tensor:
        """Shrink."""
        return w / (1 + eta * self.lam)

    def prox_rest(self, w: Tensor, eta: float | Tensor) -> Tensor:
        """w: all of it is smooth."""
        return w


@dataclass(frozen=True)
class L1Penalty(Penalty):
    """lam ||w||_1; prox(w)_j = sign(w_j) max(|w_j| - eta lam, 0).  It has no smooth part.

    >>> L1Penalty(1.0).prox(torch.tensor([3.0, -0.5]), torch.tensor([1.0, 0.1]))
    tensor([ 2.0000, -0.4000])
    """

    lam: float

    def __post_init__(self) -> None:
        validate.non_negative(lam=self.lam)

    def value(self, w: Tensor) -> float:
        """R(w)."""
        return float(self.lam * w.abs().sum())

    def gradient(self, w: Tensor) -> Tensor:
        """Zero."""
        return torch.zeros_like(w)

    def prox(self, w: Tensor, eta: float | Tensor) -> Tensor:
        """Soft-threshold."""
        return soft_threshold(w, eta * self.lam)

    prox_rest = prox


@dataclass(frozen=True)
class NoPenalty(Penalty):
    """Zero.

    >>> NoPenalty().value(torch.ones(2))
    0.0
    """

    def value(self, w: Tensor) -> float:
        """0."""
        return 0.0

    def gradient(self, w: Tensor) -> Tensor:
        """Zero."""
        return torch.zeros_like(w)

    def prox(self, w: Tensor, eta: float | Tensor) -> Tensor:
        """w."""
        return w

    prox_rest = prox


@dataclass(frozen=True, eq=False)
class GroupPenalty(Penalty):
    """lam sum_g ||w_g||_2: whole groups of coordinates vanish together.

    groups  a group number for each coordinate

    A step for each coordinate has no closed form here: the mean of eta over a group is used.

    >>> GroupPenalty([0, 0, 1], 1.0).prox(torch.tensor([3.0, 4.0, 0.5]), 1.0)
    tensor([2.4000, 3.2000, 0.0000])
    """

    groups: Any
    lam: float

    def __post_init__(self) -> None:
        validate.non_negative(lam=self.lam)
        ids = torch.as_tensor(self.groups)
        whole = ids.ndim == 1 and ids.numel() > 0 and not ids.is_floating_point() and int(ids.min()) >= 0
        validate.check(whole, "groups", self.groups, "give a group number >= 0 for each coordinate")
        object.__setattr__(self, "groups", ids.long())

    def value(self, w: Tensor) -> float:
        """R(w)."""
        return self.lam * float(self._norms(w).sum())

    def gradient(self, w: Tensor) -> Tensor:
        """0: the penalty is not smooth."""
        return torch.zeros_like(w)

    def prox(self, w: Tensor, eta: float | Tensor) -> Tensor:
        """w_g max(1 - eta lam / ||w_g||, 0)."""
        norms, threshold = self._norms(w), self.lam * self._mean(eta, w)
        shrink = torch.where(norms > threshold, 1 - threshold / norms.clamp(min=1e-300), torch.zeros_like(norms))
        return w * shrink[self.groups]

    prox_rest = prox

    def _norms(self, w: Tensor) -> Tensor:
        validate.shape(tuple(self.groups.shape), w=w)
        return w.new_zeros(int(self.groups.max()) + 1).index_add_(0, self.groups, w * w).sqrt_()

    def _mean(self, eta: float | Tensor, w: Tensor) -> float | Tensor:
        if not isinstance(eta, Tensor) or eta.ndim == 0:
            return eta
        totals = w.new_zeros(int(self.groups.max()) + 1).index_add_(0, self.groups, eta.to(w))
        return totals / torch.bincount(self.groups).clamp(min=1).to(w)


@dataclass(frozen=True, eq=False)
class ProxPenalty(Penalty):
    """Any penalty, separable or not, given by its value and its proximal map `prox(w, eta)` (eta a number).

    >>> ridge = ProxPenalty(lambda w: float(w @ w) / 2, lambda w, eta: w / (1 + eta))
    >>> ridge.prox(torch.tensor([2.0]), 1.0)
    tensor([1.])
    """

    evaluate: Callable[[Tensor], float]
    proximal: Callable[[Tensor, float], Tensor]

    def value(self, w: Tensor) -> float:
        """R(w)."""
        return float(self.evaluate(w))

    def gradient(self, w: Tensor) -> Tensor:
        """0: the penalty enters by its proximal map only."""
        return torch.zeros_like(w)

    def prox(self, w: Tensor, eta: float | Tensor) -> Tensor:
        """The given map; a step for each coordinate counts by its mean."""
        return self.proximal(w, float(eta.mean()) if isinstance(eta, Tensor) else float(eta))

    prox_rest = prox


def penalty_of(l1: float = 0.0, l2: float = 0.0) -> Penalty:
    """The penalty l1 ||w||_1 + (l2 / 2) ||w||^2, as the plainest type that holds it.

    >>> penalty_of(l2=0.1), penalty_of()
    (L2Penalty(lam=0.1), NoPenalty())
    """
    validate.non_negative(l1=l1, l2=l2)
    if l1 and l2:
        return ElasticNet(l1, l2)
    if l1:
        return L1Penalty(l1)
    return L2Penalty(l2) if l2 else NoPenalty()


def soft_threshold(w: Tensor, threshold: float | Tensor) -> Tensor:
    """sign(w) max(|w| - threshold, 0), coordinate by coordinate.

    >>> soft_threshold(torch.tensor([3.0, -1.0]), 2.0)
    tensor([1., -0.])
    """
    return torch.sign(w) * (w.abs() - threshold).clamp_min(0.0)
