"""Noise in few numbers: in directions of public gradients, random or bought ones, or in codes of a sparse gradient.

    y_i = V_k' g_i,   Y = sum_i y_i min(1, C / ||y_i||) + N(0, (z C)^2 I_k),   w <- w - eta V_k Y / (q n)

V_k comes from public data alone (PDP-SGD, paper 004), so whatever it is the guarantee is that of the Gaussian sum.
Without public data it is found privately, for a share of the budget (the paper's next step):

    Y = X'X Omega + noise,   V_k = the top left singular vectors of Y

The gradients of a linear model are multiples of its rows, so the top eigenspace of X'X is theirs.  One record moves
x x' Omega by at most |x|^2 <= 1 when the columns of Omega are orthonormal: one look, d (k + 10) numbers.

Compressive private SGD (paper 002) sketches, clips, adds noise in R^p, then decodes a sparse gradient.  Decoding and
keeping the largest entries come AFTER the noise, where they cost nothing.  The paper keeps the largest entries of the
average before the noise: that destroys the 1/n by which one record's influence falls.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch
from torch import Tensor

from isthmus.algorithms import base, suggest
from isthmus.algorithms.base import Budget, StepRule, rounds_of
from isthmus.algorithms.private import _PrivateDescent, _PrivateOptions
from isthmus.algorithms.purchases import Lambda, SumPurchase, Terms, _with_unit_rows
from isthmus.algorithms.suggest import CONSTANTS, Build, Choice, Facts, Refusal, Run, algorithm, full_run, require
from isthmus.base import validate
from isthmus.base.matrix import matmul
from isthmus.core.minimize import Binding, Purchased
from isthmus.core.pipeline import Pipeline, Release, Stage, StepSize
from isthmus.gradients import Outer
from isthmus.lifts import CoSaMP, discard, pinv
from isthmus.objectives.linear import LinearModel
from isthmus.privacy import AdaptiveClip, Charge, Clip, Gaussian, Laplace, Mechanism, PrivacyPlan, TopK
from isthmus.problems.scaling import unit_rows
from isthmus.sketches import Context, Encoder, GaussianSketch, Identity, Progressive, PublicSubspace, Sketch
from isthmus.sketches.dense import RademacherSketch, random_rows
from isthmus.sketches.public import SubspaceMap
from isthmus.sketches.selection import SelectionMap
from isthmus.theory import Rule, Schedule, compressive_scale, dense_scale, laplace_noise
from isthmus.theory.printed import Inside, LargestEntries, Printed

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
    **terms: Unpack[base._BudgetOptions],
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
    rule, buys = base._unless_bought(step), list[SumPurchase]([_Directions(k, share=share)])
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


@algorithm(words="each round adds noise to a short code, from which a sparse step is decoded")
def compressive_dp_sgd(
    *,
    p: int | None = None,
    kappa: int | None = None,
    clip: float,
    step: StepRule | None = None,
    variant: str = "gaussian",
    batch_size: int | None = None,
    output: str = "last",
    schedule: Schedule | None = None,
    as_published: bool = False,
    **terms: Unpack[base._BudgetOptions],
) -> Build:
    """Compressive DP-SGD (002): a private gradient with at most kappa non-zeros a round.

    p        the narrow dimension, about kappa log(d / kappa) and at least 3; variants "gaussian" and "laplace"
    kappa    non-zeros of a decoded or chosen gradient; every variant but "dense"
    clip     the bound of a record: l2 of its code ("gaussian"), l1 of its code ("laplace") or gradient ("dense"), or of
             every entry of its gradient ("selection", and `as_published`)
    step     eta, or a rule t -> eta; by default, over a bounded set, ||C|| / (G sqrt(2 t)) of Theorem 1, where G^2 is
             what a noisy direction has on average: the square of its bound, and its noise
    variant  "gaussian": noise on codes, decoded by CoSaMP (the default);
             "laplace": the paper's noise with a scale that holds;
             "selection": kappa coordinates chosen by the exponential mechanism, then their values (all records only);
             "dense": Laplace noise on the whole gradient, the baseline that the paper compares with
    schedule      a schedule of `isthmus.theory` in place of step and number of rounds
    as_published  the paper's mechanism (top-kappa of the average, signs / sqrt(p), Laplace; "dense": Laplace on the
                  average) with epsilon as the TOTAL budget of pure differential privacy, replace-one; the paper prints
                  epsilon per iteration

    >>> compressive_dp_sgd(epsilon=1.0, p=20, kappa=5, clip=1.0, step=0.1, n="exact").arguments["variant"]
    'gaussian'
    """
    validate.one_of(("gaussian", "laplace", "selection", "dense"), variant=variant)
    for name, value in {"kappa": kappa, "p": p}.items():
        if variant != "dense" and (name == "kappa" or as_published or variant != "selection"):
            validate.check(value is not None, name, value, f"give a number, which variant={variant!r} needs")
            validate.positive_int(**{name: value or 0})
    validate.check(p is None or p >= 3, "p", p, "give a whole number of at least 3")
    sampled = batch_size is not None and (variant == "selection" or as_published)
    validate.check(not sampled, "batch_size", batch_size, "leave it out: selection gains nothing from sampling")
    budget = Budget(**terms)
    if as_published:
        budget = budget.as_published()
    descent, kept, codes = base._Descent(step=step, schedule=schedule, output=output), kappa or 0, p or 0
    Clip(clip)

    def build(binding: Binding) -> Pipeline:
        validate.at_most(binding.d, "the dimension d", p=codes, kappa=kept)
        records, sampler = budget.records(binding), budget.sampler(binding, batch_size)
        rounds = rounds_of(binding, sampler, records, descent.scheduled)
        noise: Mechanism = Gaussian(1.0)
        if as_published or variant in ("laplace", "dense"):
            noise = Laplace(1.0)
        items = [Charge("gradient", noise, rounds, sampler=sampler)]
        if variant == "selection" and not as_published:
            choose = Charge("choose", TopK(kept, 1.0), rounds, share=0.5, sampler=sampler)
            items = [choose, replace(items[0], share=0.5)]
        plan = budget.plan(binding, items)
        if as_published:
            release, length = _printed(binding, variant == "dense", budget.epsilon, rounds, clip, codes, kept)
        else:
            release = _sound(variant, plan, clip, codes, kept)
            numbers = {"selection": kept, "dense": binding.d}.get(variant, codes)
            bound = release.clipped.init()
            scale = release.mechanism.number * bound / sampler.divisor(records)
            if isinstance(release.mechanism, Laplace):  # twice the variance of Gaussian noise of that scale
                scale *= math.sqrt(2)
            length = math.hypot(bound, math.sqrt(numbers) * scale)  # G
        stages = [Stage(sampler, [release])]
        if len(items) > 1:
            entries = Clip(clip, ord=math.inf)
            choosing = Release("choose", clip=entries, mechanism=plan.mechanism("choose"), lift=discard)
            stages.insert(0, Stage(sampler, [choosing], "choose"))
        if step is None and schedule is None:  # Theorem 1, with the noise that this run has in G
            rule: StepSize = Rule(base._diameter_of(binding) / (math.sqrt(2) * length), power=0.5)
        else:
            rule = base._step_rule(step, schedule)
        return descent.pipeline(binding, stages, rule, rounds=rounds, promise=budget.promise(plan, binding))

    return build


def _sound(variant: str, plan: PrivacyPlan, clip: float, p: int, kappa: int) -> Release:
    """The release of a gradient, with noise that holds."""
    mechanism = plan.mechanism("gradient")
    if variant == "dense":
        return Release(clip=Clip(clip, ord=1), mechanism=mechanism)
    if variant == "selection":  # kappa entries of at most `clip` each have this l2 norm
        values = Clip(clip * math.sqrt(kappa))
        return Release(encode=_Chosen("choose", "choose"), clip=values, mechanism=mechanism, lift=pinv)
    bound = Clip(clip, ord={"gaussian": 2, "laplace": 1}[variant])
    return Release(encode=GaussianSketch(p, scaling="jl"), clip=bound, mechanism=mechanism, lift=CoSaMP(kappa))


def _printed(
    binding: Binding, dense: bool, epsilon: float, rounds: int, clip: float, p: int, kappa: int
) -> tuple[Release, float]:
    """Top-kappa of the average, Psi of signs / sqrt(p), Laplace noise for a pure epsilon / T a round; and its G."""
    words = f"pure epsilon = {epsilon:g} over all {rounds} rounds for replace-one with n fixed and public"
    # The bound is that of one record, and replace-one moves the sum by two.  All rounds together have to fit into
    # epsilon to its last digit, whatever the roundings of a quotient.
    noise = Laplace(2 / (epsilon / rounds) * (1 + 1e-12))
    if dense:  # d entries of at most Xi have an l1 norm of at most d Xi
        scale = dense_scale(binding.d, n=binding.n, epsilon=epsilon / rounds, bound=clip)
        length = math.sqrt(binding.d * clip**2 + laplace_noise(binding.d, scale))
        return Release(clip=Clip(clip * binding.d, ord=1), mechanism=Printed(noise, words)), length
    length = math.sqrt(kappa * clip**2 + laplace_noise(p, compressive_scale(p, epsilon / rounds, k=kappa, bound=clip)))
    words += "; the noise does not fall with n, because the largest entries of an average can change with one record"
    encode = LargestEntries(RademacherSketch(p, scaling="jl"), kappa, clip, binding.n)
    entries, lift = Clip(clip, ord=math.inf), Inside(CoSaMP(kappa))
    return Release(encode=encode, clip=entries, mechanism=Printed(noise, words), lift=lift), length


@dataclass(frozen=True)
class _Chosen(Encoder):
    """The coordinates that an earlier stage of the round released as a 0/1 vector: v -> v[chosen].

    What it selects was paid for, so the map is public.
    """

    stage: str
    release: str

    def bind(self, context: Context, state: object) -> tuple[Sketch, None]:
        """The map of the coordinates chosen in this round."""
        chosen: Tensor = context.released[self.stage][self.release]  # type: ignore[attr-defined]
        index = chosen.nonzero().reshape(-1)
        return SelectionMap(context.space, index, 1.0, 1.0), None


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
    run = suggest._sampled_run(facts, facts.the_clip, k)
    flops = run.rounds * k * (k * facts.parameters / REFRESH + (run.batch_size or 0) * facts.filled)
    return suggest._sketched(run, "k", held=k * facts.parameters, flops=flops)


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
    run = suggest._sampled_run(facts, facts.the_clip, k)
    rows, parameters = facts.public.rows, facts.parameters
    flops = run.rounds / REFRESH * (2 * rows**2 * parameters + rows**3)
    evidence, arguments = f"{captured}; Theorem 6 (004)", {"k": k, "refresh": REFRESH}
    return suggest._stepped(run, arguments, gain, held=k * parameters, flops=flops, evidence=evidence)


@compressive_dp_sgd.suggest_arguments(
    "gaussian",
    evidence="measured: relative loss .25 on Lending Club, DP-GD .081 (002-total-budget); a9a .825, IMDB .605",
    shortfall=(0.025, 0.243),
    research=True,
)
def _suggest_gaussian(facts: Facts) -> Choice:
    """Noise on Gaussian codes, a sparse gradient decoded by CoSaMP."""
    d = facts.parameters
    require(d >= 3, "fewer than 3 parameters: nothing to compress")
    p = max(3, min(d, 100 if facts.sparse else 50, facts.max_dims or d))
    kappa, rounds = max(1, min(10, p // 5)), 100
    if d > CONSTANTS.small:  # decoding takes long
        rounds = 20
    run = full_run(facts, facts.the_clip, p, rounds)
    norm = run.sigma * math.sqrt(kappa)  # what the decoder keeps of the noise
    flops = run.rounds * p * (60 * d + facts.n * facts.filled)
    arguments, gain = {"p": p, "kappa": kappa}, math.sqrt(kappa / d)
    return suggest._stepped(run, arguments, gain, noise_norm=norm, held=p * d, flops=flops)


@compressive_dp_sgd.suggest_arguments(
    "selection",
    evidence="measured: 1.00 where DP-GD has .59 (5 of d = 2000 coefficients, n = 2000); a9a .827, IMDB .693",
    shortfall=(0.023, 0.155),
)
def _suggest_selection(facts: Facts) -> Choice:
    """kappa coordinates chosen by the exponential mechanism, then their values."""
    require(facts.parameters >= 3, "fewer than 3 parameters: nothing to compress")
    rounds = suggest._full_rounds(facts, 20 if facts.sparsity else 100)
    kappa = min(facts.sparsity or 10, facts.parameters)
    items = Charge("choose", TopK(kappa, 1.0), rounds, share=0.5), Charge("gradient", rounds=rounds, share=0.5)
    numbers, entry = facts.split(*items), facts.the_clip * facts.entry
    run = Run(facts, rounds, None, entry * math.sqrt(kappa), numbers["gradient"], facts.parameters + kappa)
    arguments, gain = {"kappa": kappa, "clip": entry, "variant": "selection"}, math.sqrt(kappa / facts.parameters)
    return suggest._stepped(run, arguments, gain, noise_norm=run.sigma * math.sqrt(kappa))
