"""Frank-Wolfe updates: convex combinations of points of C, no projection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from isthmus.base import validate
from isthmus.core.updates import direction_of
from isthmus.lifts import Lifted
from isthmus.sets import ConvexSet

Memo = dict[str, Any]
RULES = ("open", "short", "line")


@dataclass(frozen=True)
class FrankWolfe:
    """w+ = w + gamma (s - w) with s = argmin over C of <g, s>.

    With `g = Phi' y` the same s gives the minimiser `Phi s` of `<y, .>` over `Phi C`: compression needs no lift.

    rule    "open": gamma is the pipeline's step, 2/(t+2) in the papers;
            "short": gamma = gap / (mu ||s - w||^2), capped;
            "line": the exact minimiser of the loss on the segment
    away    also consider moving away from the worst point used so far, which may be dropped again
    error   s may be this times gamma short of the minimum (`ConvexSet.lmo_near`): an approximate linear oracle

    The memo keeps the gap `<g, w - s>` of the last round, at the point the round started from, and what s may be short
    of the minimum is added: max over C of <g, w - u> is never more.

    >>> from isthmus.sets import Simplex
    >>> memo, w = FrankWolfe(Simplex()).apply({}, torch.ones(2) / 2, [Lifted(torch.tensor([1.0, 0.0]))], 0.5)
    >>> w.tolist(), memo["gap"]
    ([0.25, 0.75], 0.5)
    """

    constraint: ConvexSet
    rule: str = "open"
    smoothness: float | None = None
    loss: Callable[[Tensor], float] | None = None
    away: bool = False
    error: float = 0.0

    def __post_init__(self) -> None:
        validate.one_of(RULES, rule=self.rule)
        validate.non_negative(error=self.error)
        self.constraint.require("lmo")
        if self.rule == "short":
            validate.check(
                self.smoothness is not None, "smoothness", None, "give the smoothness, which the short step needs"
            )
            validate.positive(smoothness=self.smoothness or 0.0)
        needs_loss = self.rule != "line" or self.loss is not None
        validate.check(
            needs_loss, "loss", self.loss, "give the loss, which a line search needs; it is not for private runs"
        )

    def init(self, w: Tensor) -> Memo:
        """With away steps, the points in use and their weights: at first the start itself."""
        return {"atoms": w[None].clone(), "weights": torch.ones(1, dtype=w.dtype)} if self.away else {}

    def apply(self, memo: Memo, w: Tensor, lifted: Sequence[Lifted], eta: float | Tensor) -> tuple[Memo, Tensor]:
        """One step towards a vertex, or away from one."""
        g = direction_of(lifted)
        vertex = lifted[0].point  # a lift that chose the vertex itself is taken at its word
        s, short = self.constraint.lmo_near(g, self.error * float(eta)) if vertex is None else (vertex, 0.0)
        s = s.to(w)
        gap = float(g @ (w - s))
        if not self.away:
            gamma = self._length(g, w, s - w, 1.0, eta)
            return {"gap": gap + short}, torch.lerp(w, s, gamma)
        atoms, weights = memo["atoms"], memo["weights"]
        worst = int((atoms @ g).argmax())
        share = float(weights[worst])
        if float(g @ (atoms[worst] - w)) <= gap or share >= 1:
            gamma = self._length(g, w, s - w, 1.0, eta)
            atoms, weights = _toward(atoms, weights, s, gamma)
        else:
            gamma = self._length(g, w, w - atoms[worst], share / (1 - share), eta)
            weights = weights * (1 + gamma)
            weights[worst] -= gamma
        keep = weights > 1e-12
        atoms, weights = atoms[keep], weights[keep] / weights[keep].sum()
        return {"gap": gap + short, "atoms": atoms, "weights": weights}, weights @ atoms

    def _length(self, g: Tensor, w: Tensor, move: Tensor, longest: float, eta: float | Tensor) -> float:
        """gamma in [0, longest] by the rule."""
        if self.rule == "open":
            return min(float(eta), longest)
        if self.rule == "short":
            size = float(move @ move) * (self.smoothness or 1.0)
            return min(max(-float(g @ move) / size, 0.0), longest) if size > 0 else 0.0
        assert self.loss is not None
        loss = self.loss
        best = minimize_scalar(lambda gamma: loss(w + gamma * move), bounds=(0.0, longest), method="bounded")
        ends = {0.0: loss(w), longest: loss(w + longest * move), float(best.x): float(best.fun)}
        return min(ends, key=lambda gamma: ends[gamma])


def _toward(atoms: Tensor, weights: Tensor, s: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """Weights after w + gamma (s - w); s joins the atoms unless it is one."""
    weights = weights * (1 - gamma)
    same = (atoms == s).all(1).nonzero()
    if len(same):
        weights[same[0]] += gamma
        return atoms, weights
    return torch.cat([atoms, s[None]]), torch.cat([weights, weights.new_tensor([gamma])])
