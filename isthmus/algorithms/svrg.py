"""DP-SVRG: a private anchor now and then, and private differences to it in between."""

from __future__ import annotations

import math
from typing import Unpack

from isthmus.algorithms.base import Budget, StepRule, _BudgetOptions, _step_rule, rounds_of
from isthmus.algorithms.facts import NUMBER, Facts
from isthmus.algorithms.suggest import Build, Choice, Run, _sampled_rounds, algorithm, walk
from isthmus.base import validate
from isthmus.core.minimize import Binding
from isthmus.core.parts import AgainstAnchor, Restart
from isthmus.core.pipeline import Pipeline, Release, Stage
from isthmus.privacy import Charge, Clip, Poisson


@algorithm(
    left_out="for research only: planned where it is asked for by name",
    words="now and then a full look at the records, in between small corrections; both with noise",
)
def dp_svrg(
    *,
    clip: float,
    step: StepRule,
    inner: int,
    batch_size: int | None = 256,
    inner_clip: float | None = None,
    anchor_share: float = 0.5,
    **terms: Unpack[_BudgetOptions],
) -> Build:
    """DP-SVRG: w+ = w - eta (anchor gradient + g(w) - g(anchor)), restarted at the mean of each inner loop.

    inner         K, the rounds of an inner loop, at least 2
    inner_clip    the bound of a record's difference; by default `clip`
    anchor_share  the anchor's share of the budget: its noise is used K times, so it must be small

    >>> dp_svrg(epsilon=1.0, clip=1.0, step=0.1, inner=20, n="exact").name
    'dp_svrg'
    """
    budget = Budget(**terms)
    rule, whole, single = _step_rule(step, None), Clip(clip), Clip(clip if inner_clip is None else inner_clip)
    validate.positive_int(inner=inner)
    validate.check(inner > 1, "inner", inner, "give 2 or more: with an anchor in every round, use dp_gd")
    validate.open_unit(anchor_share=anchor_share)

    def build(binding: Binding) -> Pipeline:
        everything, sampler = budget.sampler(binding, None), budget.sampler(binding, batch_size)
        rounds = rounds_of(binding, sampler, budget.records(binding))
        looks = -(-rounds // inner)
        anchors = Charge("anchor", rounds=looks, share=anchor_share)
        differences = Charge("difference", rounds=rounds, share=1 - anchor_share, sampler=sampler)
        plan = budget.plan(binding, [anchors, differences])
        anchor = Release("anchor", clip=whole, mechanism=plan.mechanism("anchor"))
        difference = Release("difference", clip=single, mechanism=plan.mechanism("difference"))
        stages = [
            Stage(everything, [anchor], "anchor", every=inner),
            Stage(sampler, [difference], "inner", source=AgainstAnchor("anchor")),
        ]
        return budget.pipeline(binding, plan, rounds, stages, rule, average=Restart(inner), output="average")

    return build


# ---------------------------------------------------------------- arguments by public facts


@dp_svrg.suggest_arguments(
    evidence="measured (private_tables): a9a .840, IMDB .804 at epsilon 0.5; DP-SGD .846, .813",
    shortfall=(0.010, 0.044),
    research=True,
)
def _suggest(facts: Facts) -> Choice:
    """A private anchor every 20 rounds, private differences in between."""
    clip, batch, inner = facts.the_clip, facts.batch_size or max(1, facts.n // 100), 20
    rounds = _sampled_rounds(facts, batch, facts.passes / (1 + facts.n / (inner * batch)))
    inner = max(2, min(inner, rounds))
    looks = -(-rounds // inner)
    anchors = Charge("anchor", rounds=looks, share=0.5)
    numbers = facts.split(anchors, Charge("difference", rounds=rounds, share=0.5, sampler=Poisson(batch / facts.n)))
    run = Run(facts, rounds, batch, clip, numbers["difference"], facts.parameters)
    anchor = numbers["anchor"] * clip / facts.n  # the same noise in every step of an inner loop
    unit = math.hypot(walk(run, 1.0, "average"), math.sqrt(looks) * inner / 2 * anchor)
    step = facts.step or min(1 / facts.smooth, facts.tau / unit)
    arguments = {"clip": clip, "inner": inner, "step": step, "batch_size": batch}
    return run.choice(
        arguments,
        noise_norm=math.hypot(run.sigma, anchor) * math.sqrt(facts.parameters),
        margin_noise=step * unit,
        passes=run.passes + looks,
        bytes=NUMBER * facts.parameters * (rounds + looks),
        seconds=facts.seconds(rounds, batch, run.dims, facts.seconds(looks, None, run.dims)),
    )
