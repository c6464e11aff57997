"""Penalties: the part of an objective that does not look at data.

A penalty has a value, the gradient of its smooth (l2) part, and its proximal map.  There are two sound ways
to use one, and mixing them counts the l2 part twice:

* step along the DATA gradient, then `prox` (the whole penalty); what the pipeline does;
* step along `objective.gradient` (data and l2 part), then `prox_rest` (the l1 part).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
    def prox(self, w: Tensor, eta: float | Tensor) -> Tensor:
        """argmin_v R(v) + sum_j (v_j - w_j)^2 / (2 eta_j); eta is a number or one a coordinate."""

    def gradient(self, w: Tensor) -> Tensor:
        """The gradient of the smooth part; there is none unless a class says so."""
        return torch.zeros_like(w)

    def prox_rest(self, w: Tensor, eta: float | Tensor) -> Tensor:
        """The proximal map of the other part alone: of all of it where nothing is smooth."""
        return self.prox(w, eta)

    def separates(self, block: Tensor, d: int) -> bool:
        """Whether R(w) = R_1(w on the block) + R_2(the rest), so that descent may move the block alone."""
        return len(block) == d


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
        return self.l2 * w if self.l2 else torch.zeros_like(w)

    def prox(self, w: Tensor, eta: float | Tensor) -> Tensor:
        """Soft-threshold, then shrink."""
        return self.prox_rest(w, eta) / (1 + eta * self.l2)

    def prox_rest(self, w: Tensor, eta: float | Tensor) -> Tensor:
        """Soft-threshold at eta l1."""
        if not self.l1:
            return w
        return torch.sign(w) * (w.abs() - eta * self.l1).clamp_min(0.0)

    def separates(self, block: Tensor, d: int) -> bool:
        """Always: it is a sum over coordinates."""
        return True


class L2Penalty(ElasticNet):
    """(lam / 2) ||w||^2; prox(w) = w / (1 + eta lam).

    >>> L2Penalty(1.0).prox(torch.tensor([3.0]), 0.5)
    tensor([2.])
    """

    def __init__(self, lam: float) -> None:
        super().__init__(l2=lam)


class L1Penalty(ElasticNet):
    """lam ||w||_1; prox(w)_j = sign(w_j) max(|w_j| - eta lam, 0).  It has no smooth part.

    >>> L1Penalty(1.0).prox(torch.tensor([3.0, -0.5]), torch.tensor([1.0, 0.1]))
    tensor([ 2.0000, -0.4000])
    """

    def __init__(self, lam: float) -> None:
        super().__init__(l1=lam)


class NoPenalty(ElasticNet):
    """Zero.

    >>> NoPenalty().value(torch.ones(2))
    0.0
    """


class GroupPenalty(Penalty):
    """lam sum_g ||w_g||_2: whole groups of coordinates vanish together.

    groups  a group number for each coordinate

    With a step for each coordinate v_j = z_j / (1 + eta_j lam / r) on a group, where r = ||v_g|| is the root of
    sum_j (z_j / (r + eta_j lam))^2 = 1; v_g = 0 where sum_j (z_j / eta_j)^2 <= lam^2.

    >>> GroupPenalty([0, 0, 1], 1.0).prox(torch.tensor([3.0, 4.0, 0.5]), 1.0)
    tensor([2.4000, 3.2000, 0.0000])
    """

    def __init__(self, groups: Tensor | Sequence[int], lam: float) -> None:
        validate.non_negative(lam=lam)
        ids = torch.as_tensor(groups)
        whole = ids.ndim == 1 and ids.numel() > 0 and not ids.is_floating_point() and int(ids.min()) >= 0
        validate.check(whole, "groups", groups, "give a group number of at least 0 for each coordinate")
        self.groups, self.lam = ids.long(), lam

    def value(self, w: Tensor) -> float:
        """R(w)."""
        return self.lam * float(self._sums(w * w).sqrt().sum())

    def prox(self, w: Tensor, eta: float | Tensor) -> Tensor:
        """w_g max(1 - eta lam / ||w_g||, 0), or by Newton's method where steps differ within a group."""
        steps = torch.as_tensor(eta, dtype=w.dtype, device=w.device).expand_as(w) * self.lam
        length = self._lengths(w, steps)[self.groups]
        return torch.where(length > 0, w * (length / (length + steps)), torch.zeros_like(w))

    def separates(self, block: Tensor, d: int) -> bool:
        """Where no group is cut by the block."""
        remedy = f"give {d} group numbers, one for each coordinate"
        validate.check(len(self.groups) == d, "groups", len(self.groups), remedy)
        inside = torch.bincount(self.groups[block], minlength=int(self.groups.max()) + 1)
        return bool(((inside == 0) | (inside == torch.bincount(self.groups))).all())

    def _lengths(self, w: Tensor, steps: Tensor) -> Tensor:
        """||v_g|| of each group: Newton from below on a convex, decreasing function never passes its root."""
        widest = w.new_zeros(int(self.groups.max()) + 1).scatter_reduce_(0, self.groups, steps, "amax")
        length = (self._sums(w * w).sqrt() - widest).clamp_min(0.0)
        length = torch.maximum(length, self._sums(w * w * (steps == 0)).sqrt())
        for _ in range(60):
            reach = (length[self.groups] + steps).clamp_min(torch.finfo(w.dtype).tiny)
            ratio = (w / reach).square()
            above = self._sums(ratio) - 1
            new = length + above.clamp_min(0.0) / (2 * self._sums(ratio / reach)).clamp_min(torch.finfo(w.dtype).tiny)
            if bool((new <= length * (1 + 4 * torch.finfo(w.dtype).eps)).all()):
                break
            length = new
        return length

    def _sums(self, values: Tensor) -> Tensor:
        """The sum over each group."""
        validate.shape(tuple(self.groups.shape), w=values)
        return values.new_zeros(int(self.groups.max()) + 1).index_add_(0, self.groups, values)


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

    def prox(self, w: Tensor, eta: float | Tensor) -> Tensor:
        """The given map; a step for each coordinate counts by its mean."""
        return self.proximal(w, float(torch.as_tensor(eta, dtype=torch.float64).mean()))


def penalty_of(l1: float = 0.0, l2: float = 0.0, penalty: Penalty | None = None) -> Penalty:
    """The penalty given as an object or by its two strengths, l1 ||w||_1 + (l2 / 2) ||w||^2; not both.

    >>> penalty_of(l2=0.1), penalty_of()
    (ElasticNet(l1=0.0, l2=0.1), NoPenalty(l1=0.0, l2=0.0))
    """
    none = l1 == l2 == 0
    if penalty is not None:
        validate.check(isinstance(penalty, Penalty), "penalty", penalty, "give a Penalty, such as ElasticNet(l2=0.1)")
        validate.check(none, "penalty", penalty, "give either penalty= or l1= and l2=")
        return penalty
    if none:
        return NoPenalty()
    return ElasticNet(l1, l2)
