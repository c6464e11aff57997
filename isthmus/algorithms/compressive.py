"""Compressive private SGD (paper 002): sketch, clip, noise in R^p, then decode a sparse gradient.

Decoding and keeping the largest entries come AFTER the noise, where they cost nothing.  The paper keeps the largest
entries of the average before the noise: that destroys the 1/n by which one record's influence falls.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Unpack

from torch import Tensor

from isthmus.algorithms.base import Budget, StepRule, _BudgetOptions, _Descent, _diameter_of, _step_rule, rounds_of
from isthmus.algorithms.facts import CONSTANTS, Facts
from isthmus.algorithms.suggest import Build, Choice, Run, _full_rounds, _stepped, algorithm, full_run, require
from isthmus.base import validate
from isthmus.core.minimize import Binding
from isthmus.core.pipeline import Pipeline, Release, Stage, StepSize
from isthmus.lifts import CoSaMP, discard, pinv
from isthmus.privacy import Charge, Clip, Gaussian, Laplace, Mechanism, PrivacyPlan, TopK
from isthmus.sketches import Context, Encoder, GaussianSketch, RademacherSketch, Sketch
from isthmus.sketches.selection import SelectionMap
from isthmus.theory import Rule, Schedule, compressive_scale, dense_scale, laplace_noise
from isthmus.theory.printed import Inside, LargestEntries, Printed


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
    **terms: Unpack[_BudgetOptions],
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
    descent, kept, codes = _Descent(step=step, schedule=schedule, output=output), kappa or 0, p or 0
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
            length = _length(release, numbers, sampler.divisor(records))
        stages = [Stage(sampler, [release])]
        if len(items) > 1:
            entries = Clip(clip, ord=math.inf)
            choosing = Release("choose", clip=entries, mechanism=plan.mechanism("choose"), lift=discard)
            stages.insert(0, Stage(sampler, [choosing], "choose"))
        if step is None and schedule is None:  # Theorem 1, with the noise that this run has in G
            rule: StepSize = Rule(_diameter_of(binding) / (math.sqrt(2) * length), power=0.5)
        else:
            rule = _step_rule(step, schedule)
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


def _length(release: Release, dims: int, divisor: float) -> float:
    """G of the sound variants: the bound of a record, and the noise on the mean."""
    bound = release.clipped.init()
    scale = release.mechanism.number * bound / divisor
    if isinstance(release.mechanism, Laplace):  # twice the variance of Gaussian noise of that scale
        scale *= math.sqrt(2)
    return math.hypot(bound, math.sqrt(dims) * scale)


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
    return _stepped(run, arguments, gain, noise_norm=norm, held=p * d, flops=flops)


@compressive_dp_sgd.suggest_arguments(
    "selection",
    evidence="measured: 1.00 where DP-GD has .59 (5 of d = 2000 coefficients, n = 2000); a9a .827, IMDB .693",
    shortfall=(0.023, 0.155),
)
def _suggest_selection(facts: Facts) -> Choice:
    """kappa coordinates chosen by the exponential mechanism, then their values."""
    require(facts.parameters >= 3, "fewer than 3 parameters: nothing to compress")
    rounds, kappa = _full_rounds(facts, 20 if facts.sparsity else 100), min(facts.sparsity or 10, facts.parameters)
    items = Charge("choose", TopK(kappa, 1.0), rounds, share=0.5), Charge("gradient", rounds=rounds, share=0.5)
    numbers, entry = facts.split(*items), facts.the_clip * facts.entry
    run = Run(facts, rounds, None, entry * math.sqrt(kappa), numbers["gradient"], facts.parameters + kappa)
    arguments, gain = {"kappa": kappa, "clip": entry, "variant": "selection"}, math.sqrt(kappa / facts.parameters)
    return _stepped(run, arguments, gain, noise_norm=run.sigma * math.sqrt(kappa))
