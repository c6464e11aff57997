"""Updates: from the lifted directions of a round to the next iterate.  Post-processing: no data is read here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.lifts import Lifted
from isthmus.penalties import NoPenalty, Penalty
from isthmus.sets import ConvexSet, Whole

Memo = dict[str, Any]


class Update(Protocol):
    """One step of the iterate."""

    def init(self, w: Tensor) -> Memo:
        """The state before the first round."""
        ...

    def apply(self, memo: Memo, w: Tensor, lifted: Sequence[Lifted], eta: float | Tensor) -> tuple[Memo, Tensor]:
        """The new state and the new iterate."""
        ...


def direction_of(lifted: Sequence[Lifted]) -> Tensor:
    """The sum of the directions of all releases (a subspace and its residual, an anchor and a difference)."""
    total = lifted[0].direction
    for item in lifted[1:]:
        total = total + item.direction
    return total


def stretch_of(lifted: Sequence[Lifted]) -> float | Tensor:
    """What the step of each coordinate is multiplied with; several releases together move them all."""
    return lifted[0].stretch if len(lifted) == 1 else 1.0


@dataclass(frozen=True)
class Step:
    """w+ = P_C(prox_{eta C penalty}(w - eta (direction + momentum))), C = I but where coordinates are drawn.

    A lift that already found a point of C is taken at its word: the point is kept exactly, zeros and all.  One that
    moves drawn coordinates by steps eta / p_j says so (`Lifted.stretch`), and the proximal map takes those steps too:
    of coordinate descent it acts on the drawn coordinates alone.

    >>> Step().apply({}, torch.ones(2), [Lifted(torch.ones(2))], 0.5)[1]
    tensor([0.5000, 0.5000])
    """

    constraint: ConvexSet = field(default_factory=Whole)
    penalty: Penalty = field(default_factory=NoPenalty)
    momentum: float = 0.0

    def __post_init__(self) -> None:
        validate.check(0 <= self.momentum < 1, "momentum", self.momentum, "give a number of at least 0 and below 1")

    def init(self, w: Tensor) -> Memo:
        """A zero velocity when there is momentum."""
        return {"velocity": torch.zeros_like(w)} if self.momentum else {}

    def apply(self, memo: Memo, w: Tensor, lifted: Sequence[Lifted], eta: float | Tensor) -> tuple[Memo, Tensor]:
        """The projected (proximal) step."""
        point = lifted[0].point if len(lifted) == 1 and not self.momentum else None
        if point is not None and isinstance(self.penalty, NoPenalty):
            return memo, point
        if point is None:
            direction = direction_of(lifted)
            if self.momentum:
                direction = memo["velocity"].mul(self.momentum).add_(direction)
                memo = {"velocity": direction}
            point = w - eta * direction
        everywhere = bool(self.momentum) or isinstance(self.penalty, NoPenalty)
        step = eta if everywhere else eta * stretch_of(lifted)
        return memo, self.constraint.project(self.penalty.prox(point, step))


@dataclass(frozen=True)
class Shifted:
    """The step of senders with shifts (DIANA): direction = H + what was lifted, and H moves by `rate` of that.

    H is the mean of all senders' shifts, which the receiver knows without being told: they move by what was sent.

    >>> update, one = Shifted(Step(), 0.5), torch.ones(1)
    >>> memo, w = update.apply(update.init(one), one, [Lifted(one)], 0.1)
    >>> w, memo["shift"]
    (tensor([0.9000]), tensor([0.5000]))
    """

    inner: Step
    rate: float

    def __post_init__(self) -> None:
        validate.probability(rate=self.rate)

    def init(self, w: Tensor) -> Memo:
        """No shift."""
        return {"shift": torch.zeros_like(w), "inner": self.inner.init(w)}

    def apply(self, memo: Memo, w: Tensor, lifted: Sequence[Lifted], eta: float | Tensor) -> tuple[Memo, Tensor]:
        """The step of the inner update along the shifted direction."""
        news = direction_of(lifted)
        inner, point = self.inner.apply(memo["inner"], w, [Lifted(memo["shift"] + news)], eta)
        return {"shift": memo["shift"] + self.rate * news, "inner": inner}, point


@dataclass(frozen=True)
class Mirror:
    """Entropic mirror descent on the simplex of a radius: w+ = argmin eta <g, u> + sum_j u_j log(u_j / w_j).

        w+_j = radius w_j exp(-eta g_j) / sum_i w_i exp(-eta g_i)

    Its rate depends on the largest entry of a gradient and on log d, where projected steps have its length and sqrt(d).

    >>> Mirror().apply({}, torch.full((2,), 0.5), [Lifted(torch.tensor([0.0, 1.0]))], 1.0)[1]
    tensor([0.7311, 0.2689])
    """

    radius: float = 1.0

    def __post_init__(self) -> None:
        validate.positive(radius=self.radius)

    def init(self, w: Tensor) -> Memo:
        """Nothing to remember."""
        return {}

    def apply(self, memo: Memo, w: Tensor, lifted: Sequence[Lifted], eta: float | Tensor) -> tuple[Memo, Tensor]:
        """The multiplicative step; a coordinate that is 0 stays there."""
        return memo, self.radius * torch.softmax(w.log() - eta * direction_of(lifted), 0)


@dataclass(frozen=True, eq=False)
class Preconditioned:
    """w+ = w - eta (A direction + S (w - w_0)), with public matrices: an inverse Hessian that was paid for, say.

    pull, towards  S and w_0: directions that A leaves to noise go back to w_0; None: none do

    >>> Preconditioned(torch.eye(2) / 2).apply({}, torch.ones(2), [Lifted(torch.ones(2))], 1.0)[1]
    tensor([0.5000, 0.5000])
    """

    matrix: Tensor
    pull: Tensor | None = None
    towards: Tensor | None = None

    def init(self, w: Tensor) -> Memo:
        """Nothing to remember."""
        return {}

    def apply(self, memo: Memo, w: Tensor, lifted: Sequence[Lifted], eta: float | Tensor) -> tuple[Memo, Tensor]:
        """The preconditioned step."""
        direction = self.matrix.to(w) @ direction_of(lifted)
        if self.pull is not None:
            direction = direction + self.pull.to(w) @ (w if self.towards is None else w - self.towards.to(w))
        return memo, w - eta * direction


@dataclass(frozen=True)
class Delegate:
    """Hands the directions to an optimiser of somebody else, as the gradient of their parameters."""

    take: Callable[[Sequence[Lifted]], None]

    def init(self, w: Tensor) -> Memo:
        """The optimiser keeps its own state."""
        return {}

    def apply(self, memo: Memo, w: Tensor, lifted: Sequence[Lifted], eta: float | Tensor) -> tuple[Memo, Tensor]:
        """The optimiser moves its parameters; the iterate lives there."""
        self.take(lifted)
        return memo, w
