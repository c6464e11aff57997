"""Gradient-embedding perturbation: the part in a public subspace, and what it left, released apart."""

from __future__ import annotations

from dataclasses import dataclass

from isthmus.base import validate
from isthmus.privacy.plan import split
from isthmus.sketches import Encoder


@dataclass(frozen=True, eq=False)
class GradientEmbedding:
    """Two releases of one sample: the code V_k' g, and the residual g - V_k V_k' g with a clip of its own.

    The residual is smaller than the gradient, so its clip, and with it the noise in R^d, can be smaller.  `share` is
    the code's share of the budget: with the stage's multiplier z the two have z / sqrt(share) and
    z / sqrt(1 - share), which together cost what z costs.

    encoder    the map of the code, tight: `PublicSubspace`, `KroneckerSubspace`, ...
    clip_rest  the clip bound of residuals

    >>> from isthmus.sketches import PublicSubspace
    >>> GradientEmbedding(PublicSubspace(4), clip_rest=0.1).multipliers(3.0)[1] > 3.0
    True
    """

    encoder: Encoder
    clip_rest: float
    share: float = 0.5

    def __post_init__(self) -> None:
        validate.check(isinstance(self.encoder, Encoder), "encoder", self.encoder, "give a sketch of isthmus")
        validate.positive(clip_rest=self.clip_rest)
        validate.open_unit(share=self.share)

    def multipliers(self, z: float) -> tuple[float, float]:
        """The noise multipliers of code and residual."""
        first, second = split(z, self.share, 1 - self.share)
        return first, second
