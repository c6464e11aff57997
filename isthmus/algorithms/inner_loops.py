"""Private descent in inner loops, each of which starts again at the mean of the last one.

DP-SkGD is random block coordinate descent (paper 003), with DP-CD as a special case:

    theta <- theta - Gamma C (grad f + noise),   C = I_S P^{-1},   Gamma = P M^{-1},   w = mean of each inner loop

A round draws a block S, clips every record's gradient on it to the public bound C_S, and adds noise z C_S: the noise
multiplier is the same for all blocks, so the cost does not depend on their law.

DP-SVRG has a private anchor now and then, and private differences to it in between.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from isthmus.algorithms import base, suggest
from isthmus.algorithms.base import Budget, StepRule, rounds_of
from isthmus.algorithms.suggest import AVERAGED, NUMBER, Build, Choice, Facts, Run, algorithm, full_run, walk
from isthmus.base import validate
from isthmus.core.minimize import Binding
from isthmus.core.parts import AgainstAnchor, Restart
from isthmus.core.pipeline import Pipeline, Release, Stage
from isthmus.lifts import unbiased
from isthmus.privacy import Adjacency, Charge, Clip, Gaussian, Poisson
from isthmus.sketches import Blocks, Encoder, Nice
from isthmus.theory import schedules
from isthmus.theory.printed import Printed, skgd_sigma


@algorithm(words="each round changes one random block of coefficients, with noise for that block alone")
def dp_skgd(
    *,
    smoothness: object,
    clip: object,
    sampling: str = "block",
    blocks: int | Sequence[Sequence[int]] = 10,
    probabilities: str | Sequence[float] = "uniform",
    tau: int = 1,
    inner: int | None = None,
    step: float = 1.0,
    batch_size: int | None = None,
    schedule: schedules.Loops | None = None,
    as_published: bool = False,
    **terms: Unpack[base._BudgetOptions],
) -> Build:
    """DP-SkGD (003): noisy steps on random blocks of coordinates, each with its own step 1 / M_j.

    smoothness     M_j, the component smoothness: a number or one for each coordinate; or a matrix M with Hessian <= M,
                   from which come the steps 1 / v_j that the law allows (`isthmus.theory.expected_smoothness`).
                   Public, never from the data
    clip           c_j, a bound of each coordinate of a record's gradient: a number or one for each; the bound of a
                   block is the l2 norm of its coordinates' bounds
    sampling       "full" (all coordinates), "single" (one), "block" (one of some subsets), "nice" (a random tau-subset)
    blocks         how many equal blocks, or the subsets themselves: they may overlap, and any law over subsets is a
                   list of them with its `probabilities`
    probabilities  "uniform", "importance" (largest M_j of a block, normalised), or numbers
    inner          K, the rounds of an inner loop; the iterate restarts at its average.  None: one loop (convex rule)
    step           multiplies every step 1 / M_j
    schedule       the loops of Theorem 4.2 (`theory.convex_block_loops`, `theory.strongly_convex_block_loops`): K, and
                   K T rounds unless the run says how many
    as_published   the paper's noise, sigma_U^2 = 12 L_U^2 K T ln(1/delta) / (n^2 epsilon^2) for replace-one, on all
                   records: sound where the bounds hold (they are clipped to), and about 1.6 times what is needed

    A penalty acts where the step does: its proximal map moves the drawn coordinates alone, with their steps 1 / M_j.
    It must therefore be a sum over the blocks; one that is not (a group that a block cuts, a `ProxPenalty`) is refused.

    >>> dp_skgd(epsilon=1.0, smoothness=1.0, clip=0.1, sampling="single", n="exact").arguments["sampling"]
    'single'
    """
    budget = Budget(**terms)
    if as_published:
        budget = replace(budget, adjacency=Adjacency.REPLACE_ONE)
    sampled = as_published and batch_size is not None
    validate.check(not sampled, "batch_size", batch_size, "leave it out: the paper looks at all records in every round")
    validate.one_of(schedules.SAMPLINGS, sampling=sampling)
    validate.positive(step=step)
    validate.positive_int(tau=tau)
    if inner is not None:
        validate.positive_int(inner=inner)
        validate.check(schedule is None, "inner", inner, "give either inner or a schedule, which has it already")
    if isinstance(probabilities, str):
        validate.one_of(("uniform", "importance"), probabilities=probabilities)
    bounds, smooth = validate.as_tensor("clip", clip).double(), validate.as_tensor("smoothness", smoothness).double()
    validate.check(bool((bounds > 0).all()), "clip", clip, "give finite numbers above 0")
    if smooth.ndim == 2:
        schedules.smoothness_matrix(smooth.numpy())
    else:
        validate.check(bool((smooth > 0).all()), "smoothness", smoothness, "give finite numbers above 0")

    def build(binding: Binding) -> Pipeline:
        parts = schedules.subsets(sampling, binding.d, blocks)
        encode, drawn, m = _law(binding, bounds, smooth, parts, probabilities, tau if sampling == "nice" else None)
        sampler, records = budget.sampler(binding, batch_size), budget.records(binding)
        loop, scheduled = inner, None
        if schedule is not None:
            loop, scheduled = schedule.inner, schedule.steps
        rounds = rounds_of(binding, sampler, records, scheduled)
        plan = budget.plan(binding, [Charge("gradient", rounds=rounds, sampler=sampler)])
        mechanism = plan.mechanism("gradient")
        if as_published:
            claim = skgd_sigma(lipschitz=1.0, n=records, steps=rounds, epsilon=budget.epsilon, delta=plan.delta or 0.0)
            remedy = (
                f"leave out as_published: the paper's noise gives epsilon {claim.epsilon:.6g} at so large an epsilon"
            )
            validate.check(claim.epsilon <= budget.epsilon, "epsilon", budget.epsilon, remedy)
            mechanism = Printed(Gaussian(claim.sigma * records), f"epsilon = {claim.epsilon:.4f}: {claim.guarantee}")
        stages = [Stage(sampler, [Release(encode=encode, clip=Clip(1.0), mechanism=mechanism, lift=unbiased)])]
        gamma, average = step * drawn / m, Restart(loop or rounds)
        return budget.pipeline(binding, plan, rounds, stages, lambda t: gamma, average=average, output="average")

    return build


@algorithm(private=True, words="each round changes one coefficient, with noise for that one alone")
def dp_cd(*, probabilities: str | Sequence[float] = "uniform", **arguments: Any) -> Build:
    """DP-CD: `dp_skgd` on single coordinates, uniform unless told otherwise."""
    return dp_skgd(sampling="single", probabilities=probabilities, **arguments).build


def _law(
    binding: Binding,
    clip: Tensor,
    smoothness: Tensor,
    parts: list[list[int]],
    probabilities: str | Sequence[float],
    tau: int | None,
) -> tuple[Encoder, Tensor, Tensor]:
    """The sketch x -> x[S] / C_S; the probability of each coordinate, and its M_j, or the v_j of a matrix M.

    parts, tau  the blocks that are drawn; or the size of a random subset
    """
    d, matrix, law = binding.d, smoothness.ndim == 2, None
    c, alone = _spread("clip", clip, d), parts
    if tau is not None and tau < d:  # random subsets can cut between any two coordinates
        alone = schedules.subsets("single", d)
    separate = all(binding.penalty.separates(torch.tensor(part), d) for part in alone)
    remedy = "its proximal map mixes coordinates of different blocks: give blocks that keep it whole, or use dp_gd"
    validate.check(separate, "penalty", type(binding.penalty).__name__, remedy)
    if matrix:
        validate.shape((d, d), smoothness=smoothness)
        v = smoothness.diagonal()  # what one coordinate needs
    else:
        v = _spread("smoothness", smoothness, d)
    if probabilities == "importance":
        law = schedules.importance_probabilities(v.numpy(), parts)
    elif probabilities != "uniform":
        law = np.array([float(value) for value in probabilities])
    if tau is not None:
        drawn = schedules.sampling_probabilities("nice", d, tau=tau)
        encode: Encoder = Nice(tau, bounds=c.tolist())
    else:
        drawn = schedules.sampling_probabilities("block", d, blocks=parts, chances=law)
        encode = Blocks(parts, [float(torch.linalg.vector_norm(c[part])) for part in parts], law)
    if matrix:
        v = torch.from_numpy(schedules.expected_smoothness(smoothness.numpy(), None if tau else parts, law, tau=tau))
    return encode, torch.from_numpy(drawn), v


def _spread(name: str, numbers: Tensor, d: int) -> Tensor:
    """One number for each coordinate, from as many or from one for all."""
    numbers = numbers.reshape(-1)
    if numbers.numel() == 1:
        numbers = numbers.expand(d)
    validate.shape((d,), **{name: numbers})
    return numbers


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
    **terms: Unpack[base._BudgetOptions],
) -> Build:
    """DP-SVRG: w+ = w - eta (anchor gradient + g(w) - g(anchor)), restarted at the mean of each inner loop.

    inner         K, the rounds of an inner loop, at least 2
    inner_clip    the bound of a record's difference; by default `clip`
    anchor_share  the anchor's share of the budget: its noise is used K times, so it must be small

    >>> dp_svrg(epsilon=1.0, clip=1.0, step=0.1, inner=20, n="exact").name
    'dp_svrg'
    """
    budget = Budget(**terms)
    rule, whole, single = base._step_rule(step, None), Clip(clip), Clip(clip if inner_clip is None else inner_clip)
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


@dp_skgd.suggest_arguments(
    evidence="measured (private_tables): IMDB .833 with word ranks, .771 without; a9a .828, at epsilon 0.5",
    shortfall=(0.022, 0.07),
    research=True,
)
def _suggest_blocks(facts: Facts) -> Choice:
    """Ten blocks (more where fewer numbers may leave), of like columns where their smoothness is public."""
    shape, d, name, shortfall = facts.component_smoothness, facts.parameters, "equal blocks", None
    blocks = min(d, max(10, -(-d // (facts.max_dims or d))))
    size = -(-d // blocks)
    run = suggest._sampled_run(facts, facts.the_clip * math.sqrt(size / d), size)
    base = facts.smooth / 2  # steps of 2 / L
    arguments: dict[str, Any] = {"clip": facts.the_clip / math.sqrt(d), "batch_size": run.batch_size}
    arguments |= {"inner": min(250, run.rounds), "smoothness": base, "blocks": blocks}
    unit = math.sqrt(run.rounds / blocks) * run.sigma / base * AVERAGED["average"]
    if shape is not None:
        wide = base * np.maximum(shape / shape.max(), 0.1)
        parts = [part.tolist() for part in np.array_split(np.argsort(-wide, kind="stable"), blocks)]
        arguments |= {"smoothness": wide.tolist(), "probabilities": "importance"}
        if not (np.diff(wide) <= 0).all():
            arguments["blocks"] = parts
        chances = schedules.importance_probabilities(wide, parts)
        law = schedules.sampling_probabilities("block", d, blocks=parts, chances=chances)
        unit, name = _margin(run, wide, law, np.full(d, run.sigma)), "M by public smoothness, importance"
        if facts.wide:
            shortfall = 0.015  # word ranks were measured too
    arguments["step"] = facts.step or min(1.0, facts.tau / unit)
    return run.choice(arguments, name, margin_noise=arguments["step"] * unit, shortfall=shortfall)


@dp_cd.suggest_arguments(
    evidence="measured (003-uneven-columns): .014 of the loss left where scales differ by 100, DP-GD .157",
    shortfall=(0.028, 0.18),
)
def _suggest_single(facts: Facts) -> Choice:
    """One coordinate a round, on all records."""
    wide, d = facts.component_smoothness, facts.parameters
    if wide is None:  # one number stands for all coordinates where nothing tells them apart
        wide = np.array([facts.smooth * facts.entry**2])
    bounds = facts.the_clip * np.sqrt(wide / facts.smooth)
    run = full_run(facts, 1.0, 1, min(max(20 * d, 500), 2000))
    sigma = run.sigma * bounds
    unit = _margin(run, wide, np.full(len(wide), 1 / d), sigma)
    step = facts.step or min(1.0, facts.tau / unit)
    return run.choice(
        {"smoothness": _few(wide), "clip": _few(bounds), "inner": max(1, run.rounds // 4), "step": step},
        noise_norm=float(np.sqrt((sigma**2).mean())),
        margin_noise=step * unit,
        seconds=facts.seconds(run.rounds, None, 1),
    )


def _margin(run: Run, wide: np.ndarray, law: np.ndarray, sigma: np.ndarray) -> float:
    """Noise in the margin of a unit row whose squares are spread as M is; inner loops return their means."""
    visits = run.rounds * law
    walked = np.sqrt((wide / wide.sum() * visits * (sigma / wide) ** 2).sum())
    return float(walked) * AVERAGED["average"]


def _few(values: np.ndarray) -> float | list[float]:
    """One number where all are equal."""
    return float(values[0]) if bool((values == values[0]).all()) else values.tolist()


@dp_svrg.suggest_arguments(
    evidence="measured (private_tables): a9a .840, IMDB .804 at epsilon 0.5; DP-SGD .846, .813",
    shortfall=(0.010, 0.044),
    research=True,
)
def _suggest(facts: Facts) -> Choice:
    """A private anchor every 20 rounds, private differences in between."""
    clip, batch, inner = facts.the_clip, facts.batch_size or max(1, facts.n // 100), 20
    rounds = suggest._sampled_rounds(facts, batch, facts.passes / (1 + facts.n / (inner * batch)))
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
