"""Compressive private SGD (paper 002): sketch, clip, noise in R^p, then decode a sparse gradient.

Decoding and keeping the largest entries come AFTER the noise, where they cost nothing.  The paper keeps the largest
entries of the average before the noise: that destroys the 1/n by which one record's influence falls.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from isthmus.algorithms.facts import CONSTANTS, FLOPS, NUMBER, Facts
from isthmus.algorithms.filling import Choice, Refusal, Run, algorithm, allowed_step, full_rounds, full_run
from isthmus.algorithms.first_order import StepRule, step_rule
from isthmus.algorithms.private import Budget, Relation, published_budget, rounds_of
from isthmus.base import validate
from isthmus.core.minimize import Binding, Recipe
from isthmus.core.parts import average_of
from isthmus.core.pipeline import Pipeline, Release, Stage, StepSize
from isthmus.lifts import CoSaMP, discard, pinv
from isthmus.parts import Step
from isthmus.privacy import Charge, Clip, Laplace
from isthmus.sketches import Context, Encoder, GaussianSketch, RademacherSketch, Sketch
from isthmus.sketches.selection import SelectionMap
from isthmus.theory import Rule, Schedule
from isthmus.theory.printed import Inside, LargestEntries, Printed
from isthmus.theory.schedules import compressive_scale, dense_scale, laplace_noise

VARIANTS = ("gaussian", "laplace", "selection", "dense")


@algorithm(words="each round adds noise to a short code, from which a sparse step is decoded")
def compressive_dp_sgd(
    *,
    epsilon: float,
    delta: float | None = None,
    p: int | None = None,
    kappa: int | None = None,
    clip: float,
    step: StepRule | None = None,
    variant: str = "gaussian",
    batch_size: int | None = None,
    n: int | str | None = None,
    adjacency: Relation = "add-remove",
    output: str = "last",
    schedule: Schedule | None = None,
    as_published: bool = False,
) -> Recipe:
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
    validate.one_of(VARIANTS, variant=variant)
    needed = {"kappa": kappa} if variant != "dense" else {}
    if as_published or variant in ("gaussian", "laplace"):
        needed = {**needed, "p": p} if variant != "dense" else {}
    for name, value in needed.items():
        validate.check(value is not None, name, value, f"give a number, which variant={variant!r} needs")
        validate.positive_int(**{name: value or 0})
    validate.check(p is None or p >= 3, "p", p, "give a whole number of at least 3")
    sampled = batch_size is not None and (variant == "selection" or as_published)
    validate.check(not sampled, "batch_size", batch_size, "leave it out: selection gains nothing from sampling")
    budget = published_budget(epsilon, delta, n) if as_published else Budget(epsilon, delta, adjacency, n)
    filling = _Compressive(budget, p or 0, kappa or 0, clip, step, variant, batch_size, output, as_published, schedule)
    arguments = {"epsilon": epsilon, "delta": delta, "p": p, "kappa": kappa, "clip": clip, "variant": variant}
    return Recipe("compressive_dp_sgd", filling.build, {**arguments, "as_published": as_published})


@dataclass(frozen=True)
class _Compressive:
    """The variants: which stages they have."""

    budget: Budget
    p: int
    kappa: int
    clip: float
    step: StepRule | None
    variant: str
    batch_size: int | None
    output: str
    published: bool
    schedule: Schedule | None = None

    def __post_init__(self) -> None:
        Clip(self.clip)
        if self.step is not None:
            step_rule(self.step, None)
        average_of(self.output)

    def build(self, binding: Binding) -> Pipeline:
        """The pipeline for a space and a public number of records and rounds."""
        used = {name: value for name, value in {"p": self.p, "kappa": self.kappa}.items() if value}
        validate.at_most(binding.d, "the dimension d", **used)
        budget, n = self.budget, self.budget.records(binding)
        sampler = budget.sampler(binding, self.batch_size)
        rounds = rounds_of(binding, sampler, n, None if self.schedule is None else self.schedule.rounds)
        if self.published:
            stages, promise = self._printed(binding, sampler, rounds)
        else:
            plan = budget.plan(binding, self._charges(rounds, sampler))
            stages, promise = self._stages(plan, sampler), budget.promise(plan, binding)
        return Pipeline(
            stages,
            self._step(binding, stages[-1].releases[0], sampler.divisor(n), rounds),
            Step(binding.constraint, binding.penalty),
            average_of(self.output),
            output="last" if self.output == "last" else "average",
            rounds=rounds,
            promise=promise,
        )

    def _step(self, binding: Binding, release: Release, divisor: float, rounds: int) -> StepSize:
        """The given step, or ||C|| / (G sqrt(2 t)): Theorem 1, paper 002, with the noise that this run has in G."""
        if self.step is not None or self.schedule is not None:
            return step_rule(self.step, self.schedule)
        bounded = binding.constraint.bounded and binding.constraint.can("diameter")
        validate.check(bounded, "step", None, "give a step: the default needs a bounded set, for its diameter")
        length = self._printed_length(binding, rounds) if self.published else self._length(binding.d, release, divisor)
        return Rule(binding.constraint.diameter(binding.d) / (math.sqrt(2) * length), power=0.5)

    def _length(self, d: int, release: Release, divisor: float) -> float:
        """G of the sound variants: the bound of a record, and the noise on the mean."""
        bound = release.clip.init() if release.clip is not None else math.inf
        dims = {"selection": self.kappa, "dense": d}.get(self.variant, self.p)
        scale = release.mechanism.number * bound / divisor
        laplace = isinstance(release.mechanism, Laplace)
        return math.hypot(bound, math.sqrt(laplace_noise(dims, scale) if laplace else dims * scale**2))

    def _printed_length(self, binding: Binding, rounds: int) -> float:
        """G of the paper's mechanism: kappa (or d) entries of at most Xi, and its Laplace noise."""
        terms = {"epsilon": self.budget.epsilon / rounds, "bound": self.clip}
        if self.variant == "dense":
            noise = laplace_noise(binding.d, dense_scale(binding.d, n=binding.n, **terms))
            return math.sqrt(binding.d * self.clip**2 + noise)
        noise = laplace_noise(self.p, compressive_scale(self.p, k=self.kappa, **terms))
        return math.sqrt(self.kappa * self.clip**2 + noise)

    def _charges(self, rounds: int, sampler: Any) -> list[Charge]:
        if self.variant != "selection":
            kind = "laplace" if self.variant == "dense" else self.variant
            return [Charge("gradient", kind, rounds, sampler=sampler)]
        choose = Charge("choose", "top-k", rounds, share=0.5, sampler=sampler, k=self.kappa)
        return [choose, Charge("gradient", "gaussian", rounds, share=0.5, sampler=sampler)]

    def _stages(self, plan: Any, sampler: Any) -> list[Stage]:
        mechanism = plan.mechanism("gradient")
        if self.variant == "selection":
            entries, selection = Clip(self.clip, ord=math.inf), plan.mechanism("choose")
            chosen = Release("choose", clip=entries, mechanism=selection, lift=discard)
            # kappa entries of at most `clip` each have this l2 norm
            values = Clip(self.clip * math.sqrt(self.kappa))
            value = Release(encode=Chosen("choose", "choose"), clip=values, mechanism=mechanism, lift=pinv)
            return [Stage(sampler, [chosen], "choose"), Stage(sampler, [value])]
        if self.variant == "dense":
            return [Stage(sampler, [Release(clip=Clip(self.clip, ord=1), mechanism=mechanism)])]
        encode = GaussianSketch(self.p, scaling="jl")
        clip = Clip(self.clip, ord=1 if self.variant == "laplace" else 2)
        return [Stage(sampler, [Release(encode=encode, clip=clip, mechanism=mechanism, lift=CoSaMP(self.kappa))])]

    def _printed(self, binding: Binding, sampler: Any, rounds: int) -> tuple[list[Stage], Any]:
        """Top-kappa of the average, Psi of signs / sqrt(p), Laplace noise for a pure epsilon / T a round."""
        per_round = self.budget.epsilon / rounds
        words = (
            f"pure epsilon = {self.budget.epsilon:g} over all {rounds} rounds for replace-one with n fixed and public"
        )
        # The bound is that of one record, and replace-one moves the sum by two.  All rounds together have to fit into
        # epsilon to its last digit, whatever the roundings of a quotient.
        scale = 2 / per_round * (1 + 1e-12)
        if self.variant == "dense":  # d entries of at most Xi have an l1 norm of at most d Xi
            noise = Printed(Laplace(scale), words)
            release = Release(clip=Clip(self.clip * binding.d, ord=1), mechanism=noise)
            plan = self.budget.plan(binding, [Charge("gradient", "laplace", rounds)])
            return [Stage(sampler, [release])], self.budget.promise(plan, binding)
        words += (
            "; the noise does not fall with n, because the largest entries of an average can change with one record"
        )
        release = Release(
            encode=LargestEntries(RademacherSketch(self.p, scaling="jl"), self.kappa, self.clip, binding.n),
            clip=Clip(self.clip, ord=math.inf),
            mechanism=Printed(Laplace(scale), words),
            lift=Inside(CoSaMP(self.kappa)),
        )
        plan = self.budget.plan(binding, [Charge("gradient", "laplace", rounds)])
        return [Stage(sampler, [release])], self.budget.promise(plan, binding)


@dataclass(frozen=True)
class Chosen(Encoder):
    """The coordinates that an earlier stage of the round released as a 0/1 vector: v -> v[chosen].

    What it selects was paid for, so the map is public.
    """

    stage: str
    release: str

    def bind(self, context: Context, state: Any) -> tuple[Sketch, Any]:
        """The map of the coordinates chosen in this round."""
        chosen: Tensor = context.released[self.stage][self.release]  # type: ignore[attr-defined]
        index = chosen.nonzero().reshape(-1)
        return SelectionMap(context.space, index, 1.0, 1.0), None


# ---------------------------------------------------------------- how it is filled from public facts


@compressive_dp_sgd.filling(
    "gaussian",
    evidence="measured: relative loss .25 on Lending Club, DP-GD .081 (002-total-budget); a9a .825, IMDB .605",
    shortfall=(0.025, 0.243),
    research=True,
)
def _fill_gaussian(facts: Facts) -> Choice | Refusal:
    """Noise on Gaussian codes, a sparse gradient decoded by CoSaMP."""
    d = facts.parameters
    if d < 3:
        return Refusal("fewer than 3 parameters: nothing to compress")
    p = min(d, CONSTANTS.codes[int(facts.sparse)])
    p = p if facts.max_dims is None else max(3, min(p, facts.max_dims))
    kappa = max(1, min(CONSTANTS.kappa, p // 5))
    rounds = CONSTANTS.full_rounds[0] if d <= CONSTANTS.small else CONSTANTS.decodings
    run = full_run(facts, facts.the_clip, p, rounds)
    if isinstance(run, Refusal):
        return run
    gain = math.sqrt(kappa / d)
    step = allowed_step(run, gain)
    return run.choice(
        {"p": p, "kappa": kappa, "clip": facts.the_clip, "step": step},
        noise_norm=run.sigma * math.sqrt(kappa),  # what the decoder keeps of it
        margin_noise=step * math.sqrt(run.rounds) * run.sigma * gain,
        memory=facts.memory(None, extra=NUMBER * p * d),
        seconds=facts.seconds(run.rounds, None, p, run.rounds * p * (60 * d + facts.n * facts.filled) / FLOPS),
    )


@compressive_dp_sgd.filling(
    "selection",
    evidence="measured: 1.00 where DP-GD has .59 (5 of d = 2000 coefficients, n = 2000); a9a .827, IMDB .693",
    shortfall=(0.023, 0.155),
)
def _fill_selection(facts: Facts) -> Choice | Refusal:
    """kappa coordinates chosen by the exponential mechanism, then their values."""
    if facts.parameters < 3:
        return Refusal("fewer than 3 parameters: nothing to compress")
    rounds = full_rounds(facts, CONSTANTS.selections if facts.sparsity else CONSTANTS.full_rounds[0])
    if rounds < 1:
        return Refusal(f"it takes more than max_passes = {facts.max_passes:g} passes over the data")
    kappa = min(facts.sparsity or CONSTANTS.kappa, facts.parameters)
    items = Charge("choose", "top-k", rounds, share=0.5, k=kappa), Charge("gradient", rounds=rounds, share=0.5)
    numbers, entry = facts.split(*items), facts.the_clip * facts.entry
    run = Run(facts, rounds, None, entry * math.sqrt(kappa), numbers["gradient"], facts.parameters + kappa)
    gain = math.sqrt(kappa / facts.parameters)
    step = allowed_step(run, gain)
    arguments = {"kappa": kappa, "clip": entry, "step": step, "variant": "selection"}
    return run.choice(
        arguments,
        noise_norm=run.sigma * math.sqrt(kappa),
        margin_noise=step * math.sqrt(rounds) * run.sigma * gain,
    )
