"""Noise in few directions: those of public gradients (PDP-SGD, paper 004), random ones, or ones that are bought first.

    y_i = V_k' g_i,   Y = sum_i y_i min(1, C / ||y_i||) + N(0, (z C)^2 I_k),   w <- w - eta V_k Y / (q n)

V_k comes from public data alone, so whatever it is the guarantee is that of the Gaussian sum.  Without public data it
is found privately, for a share of the budget (the paper's next step):

    Y = X'X Omega + noise,   V_k = the top left singular vectors of Y

The gradients of a linear model are multiples of its rows, so the top eigenspace of X'X is theirs.  One record moves
x x' Omega by at most |x|^2 <= 1 when the columns of Omega are orthonormal: one look, d (k + 10) numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch
from torch import Tensor

from isthmus.algorithms.base import StepRule, _BudgetOptions, _unless_bought
from isthmus.algorithms.facts import Facts
from isthmus.algorithms.private import _PrivateDescent, _PrivateOptions
from isthmus.algorithms.purchases import Lambda, SumPurchase, Terms, _with_unit_rows
from isthmus.algorithms.suggest import Build, Choice, Refusal, _sampled_run, _sketched, _stepped, algorithm, require
from isthmus.base import validate
from isthmus.base.matrix import matmul
from isthmus.core.minimize import Purchased
from isthmus.gradients import Outer
from isthmus.objectives.linear import LinearModel
from isthmus.privacy import AdaptiveClip, Clip
from isthmus.problems.scaling import unit_rows
from isthmus.sketches import Context, Encoder, GaussianSketch, Identity, Progressive, PublicSubspace, Sketch
from isthmus.sketches.dense import random_rows
from isthmus.sketches.public import SubspaceMap

_PUBLISHED = (
    "as claimed, by this accountant: gradients are clipped before the projection, which public directions allow "
    "(clipping after it, the default, cuts less of the gradient at the same cost)"
)


@algorithm(words="public records show the few directions that matter, and noise is added in those alone")
def pdp_sgd(
    *,
    k: int,
    data: Any,
    loss: Any = None,
    batch_size: int | None = 256,
    refresh: int = 10,
    start_epoch: int = 0,
    method: str = "gram",
    as_published: bool = False,
    **options: Unpack[_PrivateOptions],
) -> Build:
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
    where, guarantee = "after", ""
    if as_published:
        where, guarantee = "before", _PUBLISHED
    encoder = PublicSubspace(k, data, loss, refresh, start_epoch, clip=where, method=method)
    return _PrivateDescent(batch_size=batch_size, encoder=encoder, dims=k, guarantee=guarantee, **options).build


@algorithm(words="noise is added in a few random directions, and the step stays in them")
def rpdp_sgd(
    *,
    k: int = 800,
    batch_size: int | None = 256,
    refresh: int = 10,
    start_epoch: int = 0,
    clipped: str = "after",
    **options: Unpack[_PrivateOptions],
) -> Build:
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
    return _PrivateDescent(batch_size=batch_size, encoder=encoder, dims=k, clipped=clipped, **options).build


# ---------------------------------------------------------------- arguments by public facts


REFRESH = 10
"""Rounds that directions of PDP-SGD and RPDP-SGD serve."""


@rpdp_sgd.suggest_arguments(
    evidence="the baseline of paper 004: random directions in place of public ones",
    shortfall=(0.012, 0.06),
    research=True,
)
def _suggest_random(facts: Facts) -> Choice:
    """k random orthonormal directions for ten rounds at a time."""
    k = facts.narrow_size
    run = _sampled_run(facts, facts.the_clip, k)
    flops = run.rounds * k * (k * facts.parameters / REFRESH + (run.batch_size or 0) * facts.filled)
    return _sketched(run, "k", held=k * facts.parameters, flops=flops)


@pdp_sgd.suggest_arguments(shortfall=(0.014, 0.11))
def _suggest_public(facts: Facts) -> Choice:
    """The top-k eigenspace of public gradients, k from the energy curve."""
    if facts.public is None:
        raise Refusal("no public rows: give public=X or (X, y)")
    require(facts.outputs == 1 or facts.public.labelled, "several outputs: the public rows need labels")
    k, captured = facts.public_size, "no energy curve"
    share = facts.public.share(k)
    if share:
        captured = f"{share:.0%} of the public hold-out energy in k = {k} directions"
    gain = math.sqrt(share or 1.0)  # a row lies in the subspace up to what the subspace misses
    run = _sampled_run(facts, facts.the_clip, k)
    rows, parameters = facts.public.rows, facts.parameters
    flops = run.rounds / REFRESH * (2 * rows**2 * parameters + rows**3)
    evidence, arguments = f"{captured}; Theorem 6 (004)", {"k": k, "refresh": REFRESH}
    return _stepped(run, arguments, gain, held=k * parameters, flops=flops, evidence=evidence)


_MORE = 10
"""Directions that are tried beyond k: the span of a few more holds the top k far better."""


@algorithm(
    left_out="for linear models with far fewer directions than columns: planned where it is asked for by name",
    words="the few directions that matter are found with noise, and then noise is added in those alone",
)
def dp_subspace_gd(
    *,
    k: int,
    clip: float | AdaptiveClip,
    step: StepRule | str = "auto",
    share: float = 0.3,
    output: str = "last",
    **terms: Unpack[_BudgetOptions],
) -> Build:
    """PDP-SGD on all records, in a subspace that is bought first: for linear models whose rows have norm at most 1.

    k      at most so many directions; those that do not stand out of the noise of their purchase are left out
    share  of the budget, for the directions
    step   a number or a rule; "auto" takes 2 % more and finds the longest stable step, as `dp_gd` does

    Other arguments as for `dp_gd`.  Where rows lie near few directions, and n is large against d sqrt(k) / epsilon, a
    round sends k numbers in place of d at the accuracy of `dp_gd`; where all directions matter `dp_gd` is better.

    >>> dp_subspace_gd(epsilon=1.0, k=5, clip=1.0, n="exact").arguments["k"]
    5
    """
    validate.positive_int(k=k)
    validate.open_unit(share=share)
    rule, buys = _unless_bought(step), list[SumPurchase]([_Directions(k, share=share)])
    if rule is None:
        buys.append(Lambda())
    return _PrivateDescent(clip=clip, step=rule, output=output, dims=k, buys=tuple(buys), **terms).build


@dataclass(frozen=True)
class _Basis(Encoder):
    """g -> V' g for a basis that was paid for."""

    basis: Tensor

    def bind(self, context: Context, state: object) -> tuple[Sketch, None]:
        """The same map every round."""
        return _FoundMap(context.space, self.basis), None


class _FoundMap(SubspaceMap):
    def describe(self) -> str:
        """One sentence for reports."""
        return f"{self.m} directions that were found with noise, of {self.d} parameters"


@dataclass(frozen=True)
class _Directions(SumPurchase):
    """X'X Omega for k + 10 random orthonormal columns, and the top directions of what was released."""

    k: int
    share: float = 0.3
    name: str = "directions"

    def check(self, objective: LinearModel) -> None:
        """One output, and at most as many directions as columns."""
        remedy = "give one with a single output: directions are not learned for several"
        validate.check(objective.space.d == objective.X.shape[1], "objective", objective, remedy)
        validate.at_most(objective.space.d, "the number of columns", k=self.k)

    def clip(self, objective: LinearModel) -> Clip:
        """1: |x| |Omega' x| for rows of norm at most 1."""
        return Clip(1.0)

    def rows(self, objective: LinearModel) -> Outer:
        """x (Omega' x)'."""
        X = unit_rows(objective.X).plain()
        omega = random_rows(self._tried(X.shape[1]), X.shape[1], key=self.k)  # orthonormal, from a public key
        return Outer(X, matmul(X, omega.T))

    def apply(self, prepared: Purchased, bought: Tensor, noise: float, terms: Terms) -> Purchased:
        """The top directions that stand out of the noise."""
        prepared = _with_unit_rows(prepared)
        d = int(prepared.objective.X.shape[1])
        tried = self._tried(d)
        _, sizes, directions = torch.linalg.svd(bought.double().view(tried, d), full_matrices=False)
        # a matrix of noise has no singular value above this, but for a chance that falls like exp(-x^2 / 2)
        clear = int((sizes[: self.k] > noise * (math.sqrt(d) + math.sqrt(tried))).sum())
        basis = directions[: max(1, clear)].T.contiguous()
        return replace(prepared, encode=_Basis(basis))

    def _tried(self, d: int) -> int:
        return min(d, self.k + _MORE)
