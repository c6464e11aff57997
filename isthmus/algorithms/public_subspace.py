"""PDP-SGD (paper 004): the noise lives in the top-k eigenspace of public gradients; RPDP-SGD: in k random directions.

    y_i = V_k' g_i,   Y = sum_i y_i min(1, C / ||y_i||) + N(0, (z C)^2 I_k),   w <- w - eta V_k Y / (q n)

V_k comes from public data alone, so whatever it is the guarantee is that of the Gaussian sum.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from isthmus.algorithms.budget import Budget
from isthmus.algorithms.first_order import StepRule
from isthmus.algorithms.private import Relation, _Private
from isthmus.base import validate
from isthmus.geometry.sketches import GaussianSketch, PublicSubspace
from isthmus.privacy import AdaptiveClip
from isthmus.round.minimize import Recipe

_PUBLISHED = (
    "as claimed, by this accountant: gradients are clipped before the projection, which public directions allow "
    "(clipping after it, the default, cuts less of the gradient at the same cost)"
)


def pdp_sgd(
    *,
    epsilon: float,
    delta: float | None = None,
    k: int,
    data: Any,
    loss: Any = None,
    clip: float | AdaptiveClip,
    step: StepRule | None = None,
    batch_size: int | None = 256,
    refresh: int = 10,
    start_epoch: int = 0,
    n: int | str | None = None,
    adjacency: Relation = "add-remove",
    output: str = "last",
    as_published: bool = False,
) -> Recipe:
    """PDP-SGD: project each gradient on the top-k eigenspace of public gradients, clip there, add noise there.

    k, data       V_k: top eigenvectors of the second moment of the gradients of the public examples `data` (with
                  `loss` where the objective needs one), anew every `refresh` rounds, from `start_epoch` on
    output        "last" iterate, or the "average" of the convex version (Theorem 6), over a ball as `constraint`
    as_published  clip before the projection, as the paper does: sound, and its noise is the same

    >>> pdp_sgd(epsilon=1.0, k=10, data=([[1.0]], [1]), clip=1.0, step=0.1, n="exact").arguments["k"]
    10
    """
    encoder = PublicSubspace(k, data, loss, refresh, start_epoch, clip="before" if as_published else "after")
    filling = _Private(Budget(epsilon, delta, adjacency, n), clip, step, batch_size, output, 0.0, m=k, encoder=encoder)
    filling = replace(filling, guarantee=_PUBLISHED if as_published else "")
    return filling.recipe("pdp_sgd", as_published=as_published, k=k, refresh=refresh, start_epoch=start_epoch)


def rpdp_sgd(
    *,
    epsilon: float,
    delta: float | None = None,
    k: int = 800,
    clip: float | AdaptiveClip,
    step: StepRule | None = None,
    batch_size: int | None = 256,
    refresh: int = 10,
    n: int | str | None = None,
    adjacency: Relation = "add-remove",
    output: str = "last",
) -> Recipe:
    """RPDP-SGD: the same with k random orthonormal directions in place of public ones.

    >>> rpdp_sgd(epsilon=1.0, k=10, clip=1.0, step=0.1, n="exact").name
    'rpdp_sgd'
    """
    validate.positive_int(k=k)
    encoder = GaussianSketch(k, scaling="tight", refresh=refresh)
    filling = _Private(Budget(epsilon, delta, adjacency, n), clip, step, batch_size, output, 0.0, m=k, encoder=encoder)
    return filling.recipe("rpdp_sgd", k=k, refresh=refresh)
