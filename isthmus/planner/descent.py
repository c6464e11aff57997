"""DP-GD in its variants, DP-SGD and DP-SVRG: noise in all of R^d."""

from __future__ import annotations

import math
from typing import Any

from isthmus.algorithms.purchases import SMALL, Columns, Lambda, Moments, Statistics
from isthmus.planner import costs
from isthmus.planner.choice import Choice
from isthmus.planner.constants import CONSTANTS
from isthmus.planner.facts import Facts
from isthmus.planner.fillings import (
    AVERAGED,
    Refusal,
    Run,
    allowed_step,
    batch_of,
    full_run,
    sampled_rounds,
    sampled_run,
    walk,
)
from isthmus.privacy import Charge, Poisson
from isthmus.problems.objectives.linear import GRAM_LIMIT

SHARES = {"none": 0.0, "columns": Columns().share, "moments": Moments().share}
NO_RESCALING = "a set or a penalty is about the coefficients as they are: columns are not rescaled"


def plain(facts: Facts) -> Choice | Refusal:
    """All records, one public step; nothing is bought."""
    clip, longest = facts.the_clip, CONSTANTS.longest / facts.smooth
    low, high = CONSTANTS.full_rounds
    # step * T is what noise depends on: as long as the allowed noise lets it be
    wanted = min(max(math.ceil(facts.tau * facts.b / (clip * longest)), low), high)
    run = full_run(facts, clip, facts.parameters, wanted)
    if isinstance(run, Refusal):
        return run
    step = allowed_step(facts, run, longest)
    evidence = "measured (private_tables): a9a .839, IMDB .811 at epsilon 0.5 with 100 rounds"
    return run.choice("dp_gd", "plain", {"clip": clip, "step": step}, margin_noise=walk(run, step), evidence=evidence)


def step_bought(facts: Facts) -> Choice | Refusal:
    """2 % of the budget buys lambda_max, hence the longest stable step."""
    evidence = "measured: lending R2 .411 with 1500 rows at epsilon 1, moments .399; a9a .849 at epsilon 0.5"
    return _prepared(facts, "none", "step bought", evidence)


def columns_bought(facts: Facts) -> Choice | Refusal:
    """10 % buys second moments of the columns, 2 % the step."""
    evidence = "measured: IMDB .773 .851 .866 .880, a9a .846 .849 .850 .850 at epsilon .1 .5 1 3"
    return _prepared(facts, "columns", "columns and step bought", evidence)


def moments_bought(facts: Facts) -> Choice | Refusal:
    """10 % buys column means and second moments, 2 % the step."""
    evidence = "measured: lending R2 .479 .522 .523 .526 at epsilon .1 .5 1 3 (plain: .42)"
    return _prepared(facts, "moments", "moments and step bought", evidence)


def statistics_bought(facts: Facts) -> Choice | Refusal:
    """Moments, then 30 % for noisy X'X and X'y: start at their solution, step with their inverse."""
    reason = _cannot_prepare(facts, "moments")
    if reason is not None:
        return Refusal(reason)
    if not facts.free:
        return Refusal("preconditioned steps have no proximal map: leave out the set and the penalty")
    if facts.of_loss.curvature is None or facts.outputs > 1:
        return Refusal("noisy X'X is for a smooth loss with one output")
    if facts.d + 1 > SMALL:
        return Refusal(f"noisy X'X is for fewer than {SMALL} columns")
    if facts.b < CONSTANTS.statistics_b * facts.d**2:
        return Refusal(f"noise would drown X'X: n mu = {facts.b:.3g} is less than d^2 / 2")
    if facts.step is not None:
        return Refusal("preconditioned steps have length 1: leave step out")
    share = 1 - SHARES["moments"] - Statistics().share
    run = full_run(facts, facts.the_clip, facts.d + 1, CONSTANTS.statistics_rounds, share, looks=2)
    if isinstance(run, Refusal):
        return run
    # standardised rows of norm 1 have X'X / n near I / (d + 1); every step forgets the last, the tail is averaged
    inverse = (facts.d + 1) / (0.2 if facts.loss == "logistic" else 1.0)
    margin = inverse * run.sigma / math.sqrt(max(1, run.rounds - run.rounds // 2))
    arguments = {"clip": facts.the_clip, "scale": "moments", "precondition": True, "output": "average"}
    return run.choice(
        "dp_gd",
        "statistics bought",
        arguments,
        margin_noise=margin,
        seconds=costs.seconds(facts, run.rounds, None, run.dims, costs.gram_seconds(facts)),
        memory=costs.memory(facts, None, extra=3 * costs.NUMBER * facts.d**2),
        evidence="measured: california R2 .601 .647 .649 .650 at epsilon .1 .5 1 3 (plain: .38)",
    )


def dp_sgd(facts: Facts) -> Choice | Refusal:
    """Poisson batches of n / 100."""
    run = sampled_run(facts, facts.the_clip, facts.parameters)
    if isinstance(run, Refusal):
        return run
    step = allowed_step(facts, run, CONSTANTS.longest / facts.smooth)
    arguments = {"clip": facts.the_clip, "step": step, "batch_size": run.batch_size}
    evidence = "measured: a9a .840 in one pass, all records .764; .846 in 10 passes at epsilon 0.5 (private_tables)"
    return run.choice("dp_sgd", "", arguments, margin_noise=walk(run, step), evidence=evidence)


def dp_svrg(facts: Facts) -> Choice | Refusal:
    """A private anchor every 20 rounds, private differences in between."""
    clip, batch = facts.the_clip, batch_of(facts)
    inner = CONSTANTS.svrg_inner
    left = None if facts.max_passes is None else facts.max_passes / (1 + facts.n / (inner * batch))
    rounds = sampled_rounds(facts, batch, left)
    inner = min(inner, rounds)
    looks = -(-rounds // inner)
    items = (
        Charge("anchor", rounds=looks, share=0.5),
        Charge("difference", rounds=rounds, share=0.5, sampler=Poisson(batch / facts.n)),
    )
    numbers = costs.split(facts, *items)
    run = Run(facts, rounds, batch, clip, numbers["difference"], facts.parameters)
    anchor = numbers["anchor"] * clip / facts.n  # the same noise in every step of an inner loop
    unit = math.hypot(walk(run, 1.0, "average"), math.sqrt(looks) * inner / 2 * anchor)
    step = min(CONSTANTS.svrg_step / facts.smooth, facts.tau / unit) if facts.step is None else facts.step
    arguments = {"clip": clip, "inner": inner, "step": step, "batch_size": batch}
    return run.choice(
        "dp_svrg",
        "",
        arguments,
        noise_norm=math.hypot(run.sigma, anchor) * math.sqrt(facts.parameters),
        margin_noise=step * unit,
        passes=run.passes + looks,
        bytes=costs.NUMBER * facts.parameters * (rounds + looks),
        seconds=costs.seconds(facts, rounds, batch, run.dims, costs.seconds(facts, looks, None, run.dims)),
        evidence="measured (private_tables): a9a .840, IMDB .804 at epsilon 0.5; DP-SGD .846, .813",
    )


def preferred(facts: Facts) -> str:
    """Which preparation of DP-GD the facts ask for."""
    one = facts.of_loss.curvature is not None and facts.outputs == 1
    if not facts.free and facts.scale in ("auto", "none"):
        return "step bought"
    if facts.scale == "none":
        return "step bought"
    if facts.scale == "columns" or (facts.sparse and facts.scale == "auto"):
        return "columns and step bought"
    if one and facts.free and facts.d < SMALL and facts.b >= CONSTANTS.statistics_b * facts.d**2:
        return "statistics bought"
    if facts.scale == "moments" or facts.b >= CONSTANTS.moments_b * facts.d:
        return "moments and step bought"
    return "step bought" if facts.d <= CONSTANTS.small else "columns and step bought"


def _cannot_prepare(facts: Facts, scale: str) -> str | None:
    """Why this preparation is not for these facts."""
    if scale != "none" and not facts.free and (facts.scale == "auto" or facts.constraint is not None):
        return NO_RESCALING
    if facts.scale not in ("auto", scale):
        given = facts.scale == "none" and facts.public is not None
        return "columns were scaled by public rows" if given else f"scale={facts.scale!r} was asked for"
    if scale == "moments" and facts.sparse and facts.d > SMALL:
        return f"CSR rows of more than {SMALL} columns are not centred"
    return None


def _looks(facts: Facts, scale: str, automatic: bool) -> int:
    """Passes over the data before the loop."""
    spectrum = 1 if min(facts.n, facts.d) <= GRAM_LIMIT else CONSTANTS.lanczos_passes
    return int(scale != "none") + (spectrum if automatic else 0)


def _rounds(facts: Facts, scale: str) -> int:
    """T of the bought step."""
    if scale == "none":
        shown = facts.public is not None and not facts.sparse  # rows that were scaled by public moments
        return CONSTANTS.scaled_rounds if shown else CONSTANTS.unscaled_rounds
    if facts.sparse and facts.d > CONSTANTS.small:
        low, high = CONSTANTS.text_rounds
        return min(max(round(facts.tau * facts.b / (CONSTANTS.text_unit * facts.the_clip)), low), high)
    return CONSTANTS.scaled_rounds


def _prepared(facts: Facts, scale: str, variant: str, evidence: str) -> Choice | Refusal:
    reason = _cannot_prepare(facts, scale)
    if reason is not None:
        return Refusal(reason)
    automatic = facts.step is None
    spent = SHARES[scale] + (Lambda().share if automatic else 0)
    dims = (facts.d + (scale == "moments")) * facts.outputs
    looks = _looks(facts, scale, automatic)
    run = full_run(facts, facts.the_clip, dims, _rounds(facts, scale), 1 - spent, looks)
    if isinstance(run, Refusal):
        return run
    averaged = facts.loss in ("squared", "huber") and not facts.sparse and (scale != "none" or facts.public is not None)
    arguments: dict[str, Any] = {"clip": facts.the_clip, "scale": scale, "output": "average" if averaged else "last"}
    if facts.step is not None:
        margin = walk(run, facts.step)
        arguments["step"] = facts.step
    else:
        # the longest stable step is d times 1.8 / h at most, as the spectrum allows; or what tau allows
        margin = min(walk(run, CONSTANTS.longest * dims / facts.smooth), facts.tau * math.sqrt(1 / (1 - spent)))
        arguments |= {"step": "auto", "tau": facts.tau}
    large = automatic and looks < CONSTANTS.lanczos_passes
    return run.choice(
        "dp_gd",
        variant,
        arguments,
        margin_noise=margin * AVERAGED["tail" if averaged else "last"],
        seconds=costs.seconds(facts, run.rounds + looks, None, dims, costs.gram_seconds(facts) if large else 0.0),
        memory=costs.memory(facts, None, extra=costs.NUMBER * min(facts.n, facts.d) ** 2 if large else 0),
        evidence=evidence,
    )
