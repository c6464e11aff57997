"""PDP-SGD (paper 004): the noise lives in the top-k eigenspace of public gradients; RPDP-SGD: in k random directions.

    y_i = V_k' g_i,   Y = sum_i y_i min(1, C / ||y_i||) + N(0, (z C)^2 I_k),   w <- w - eta V_k Y / (q n)

V_k comes from public data alone, so whatever it is the guarantee is that of the Gaussian sum.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from isthmus.algorithms.budget import Budget
from isthmus.algorithms.declare import algorithm
from isthmus.algorithms.filling import Choice, Facts, Refusal, allowed_step, costs, sampled_run, sketched, walk
from isthmus.algorithms.first_order import StepRule
from isthmus.algorithms.private import Relation, _Private
from isthmus.base import validate
from isthmus.core.minimize import Recipe
from isthmus.privacy import AdaptiveClip
from isthmus.sketches import Encoder, GaussianSketch, Identity, Progressive, PublicSubspace
from isthmus.theory import Schedule

_PUBLISHED = (
    "as claimed, by this accountant: gradients are clipped before the projection, which public directions allow "
    "(clipping after it, the default, cuts less of the gradient at the same cost)"
)


@algorithm(words="public records show the few directions that matter, and noise is added in those alone")
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
    method: str = "gram",
    micro_batch: int = 1,
    schedule: Schedule | None = None,
    stop: Any = None,
    as_published: bool = False,
) -> Recipe:
    """PDP-SGD: project each gradient on the top-k eigenspace of public gradients, clip there, add noise there.

    k, data       V_k: top eigenvectors of the second moment of the gradients of the public examples `data` (with
                  `loss` where the objective needs one), anew every `refresh` rounds, from `start_epoch` on
    method        "gram": all eigenvectors of the n x n Gram matrix of the public gradients; "lanczos": its top k only,
                  for many public examples (the paper's choice); never a d x d matrix
    micro_batch   as for `dp_sgd` (the paper has 5 on Fashion-MNIST, and counts C where a record moves the sum by 2C)
    output        "last" iterate; "random" with `schedule=theory.subspace_schedule(n, epsilon)` is Theorem 4, "average"
                  over a ball as `constraint` Theorem 6
    as_published  clip before the projection, as the paper does: sound, and its noise is the same

    >>> pdp_sgd(epsilon=1.0, k=10, data=([[1.0]], [1]), clip=1.0, step=0.1, n="exact").arguments["k"]
    10
    """
    where = "before" if as_published else "after"
    encoder = PublicSubspace(k, data, loss, refresh, start_epoch, clip=where, method=method)
    filling = _Private(Budget(epsilon, delta, adjacency, n), clip, step, batch_size, output, 0.0, m=k, encoder=encoder)
    filling = replace(filling, guarantee=_PUBLISHED if as_published else "", micro=micro_batch)
    filling = replace(filling, schedule=schedule, stop=stop)
    return filling.recipe("pdp_sgd", as_published=as_published, k=k, refresh=refresh, start_epoch=start_epoch)


@algorithm(words="noise is added in a few random directions, and the step stays in them")
def rpdp_sgd(
    *,
    epsilon: float,
    delta: float | None = None,
    k: int = 800,
    clip: float | AdaptiveClip,
    step: StepRule | None = None,
    batch_size: int | None = 256,
    refresh: int = 10,
    start_epoch: int = 0,
    n: int | str | None = None,
    adjacency: Relation = "add-remove",
    output: str = "last",
    clipped: str = "after",
    micro_batch: int = 1,
    schedule: Schedule | None = None,
    stop: Any = None,
) -> Recipe:
    """RPDP-SGD: the same with k random orthonormal directions in place of public ones.

    start_epoch  before it nothing is projected, and the noise is in R^d (15 in Fig. 4b of paper 004)
    clipped      codes "after" the projection, or gradients "before" it, as the paper does; codes have the scale of
                 gradients, sqrt(d/k) V'g

    >>> rpdp_sgd(epsilon=1.0, k=10, clip=1.0, step=0.1, n="exact").name
    'rpdp_sgd'
    """
    validate.positive_int(k=k)
    validate.non_negative_int(start_epoch=start_epoch)
    encoder: Encoder = GaussianSketch(k, scaling="tight", refresh=refresh)
    if start_epoch > 0:
        encoder = Progressive([(start_epoch, Identity()), (math.inf, encoder)])
    filling = _Private(Budget(epsilon, delta, adjacency, n), clip, step, batch_size, output, 0.0, m=k, encoder=encoder)
    filling = replace(filling, clipped=clipped, micro=micro_batch, schedule=schedule, stop=stop)
    return filling.recipe("rpdp_sgd", k=k, refresh=refresh, start_epoch=start_epoch)


# ---------------------------------------------------------------- how it is filled from public facts


REFRESH = 10
"""Rounds that directions of PDP-SGD and RPDP-SGD serve."""


@rpdp_sgd.filling(
    evidence="the baseline of paper 004: random directions in place of public ones",
    shortfall=(0.012, 0.06),
    research=True,
)
def _fill_random(facts: Facts) -> Choice | Refusal:
    """k random orthonormal directions for ten rounds at a time."""
    k = facts.narrow_size
    run = sampled_run(facts, facts.the_clip, k)
    filled = sketched(run, {"k": k, "batch_size": run.batch_size})
    drawn = run.rounds / REFRESH * k**2 * facts.parameters / costs.FLOPS
    multiplied = run.rounds * (run.batch_size or 0) * k * facts.filled / costs.FLOPS
    memory = filled.memory + costs.NUMBER * k * facts.parameters
    return replace(filled, memory=memory, seconds=filled.seconds + drawn + multiplied)


@pdp_sgd.filling(shortfall=(0.014, 0.11))
def _fill_public(facts: Facts) -> Choice | Refusal:
    """The top-k eigenspace of public gradients, k from the energy curve."""
    if facts.public is None:
        return Refusal("no public rows: give public=X or (X, y)")
    if facts.outputs > 1 and not facts.public.labelled:
        return Refusal("several outputs: the public rows need labels")
    k = facts.public_size
    share = facts.public.share(k)
    run = sampled_run(facts, facts.the_clip, k)
    gain = math.sqrt(share) if share else 1.0  # a row lies in the subspace up to what the subspace misses
    step = allowed_step(run, gain)
    captured = f"{share:.0%} of the public hold-out energy in k = {k} directions" if share else "no energy curve"
    rows = facts.public.rows
    learned = run.rounds / REFRESH * (2 * rows**2 * facts.parameters + rows**3) / costs.FLOPS
    return run.choice(
        {"clip": facts.the_clip, "step": step, "batch_size": run.batch_size, "k": k, "refresh": REFRESH},
        margin_noise=walk(run, step, gain=gain),
        memory=costs.memory(facts, run.batch_size, extra=costs.NUMBER * k * facts.parameters),
        seconds=costs.seconds(facts, run.rounds, run.batch_size, k, learned),
        evidence=f"{captured}; Theorem 6 (004)",
    )
