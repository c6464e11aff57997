"""How DP-GD in its variants, DP-SGD and the sketched descents are filled from public facts (see `private`)."""

from __future__ import annotations

import math
from typing import Any

from isthmus.algorithms import costs
from isthmus.algorithms.constants import CONSTANTS
from isthmus.algorithms.filling import (
    AVERAGED,
    Choice,
    Facts,
    Refusal,
    allowed_step,
    full_run,
    plain_run,
    sampled_run,
    sketched,
    walk,
)
from isthmus.algorithms.histograms import Shapes, TargetShape
from isthmus.algorithms.private import dp_comp_minibatch, dp_gd, dp_sgd, priv_sgd
from isthmus.algorithms.purchases import SMALL, Columns, Lambda, Moments, Statistics
from isthmus.objectives.spectrum import GRAM_LIMIT

SHARES = {
    "none": 0.0,
    "columns": Columns().share,
    "moments": Moments().share,
    "shapes": Shapes(0).share + TargetShape().share,
}


def centred(facts: Facts, scale: str) -> bool:
    """Whether the distribution of the targets is bought beside a scale that does not bring it."""
    return scale in ("none", "moments") and facts.of_loss.equivariant and not facts.sparse and facts.free


def spent_on(facts: Facts, scale: str) -> float:
    """The share of the budget that a scale takes, with the targets' where they are bought."""
    return SHARES[scale] + (TargetShape().share if centred(facts, scale) else 0.0)


NO_RESCALING = "a set or a penalty is about the coefficients as they are: columns are not rescaled"


@dp_gd.filling(
    "plain",
    evidence="measured (private_tables): a9a .839, IMDB .811 at epsilon 0.5 with 100 rounds",
    shortfall=(0.011, 0.037),
)
def plain(facts: Facts) -> Choice | Refusal:
    """All records, one public step; nothing is bought."""
    run = plain_run(facts, facts.parameters)
    if isinstance(run, Refusal):
        return run
    step = allowed_step(run)
    return run.choice({"clip": facts.the_clip, "step": step}, margin_noise=walk(run, step))


@dp_gd.filling(
    "step bought",
    evidence="measured: lending R2 .411 with 1500 rows at epsilon 1, moments .399; a9a .849 at epsilon 0.5",
    shortfall=(0.002, 0.023),
)
def step_bought(facts: Facts) -> Choice | Refusal:
    """2 % of the budget buys lambda_max, hence the longest stable step."""
    return _prepared(facts, "none")


@dp_gd.filling(
    "columns and step bought",
    evidence="measured: IMDB .773 .851 .866 .880, a9a .846 .849 .850 .850 at epsilon .1 .5 1 3",
    shortfall=(0.001, 0.0),
)
def columns_bought(facts: Facts) -> Choice | Refusal:
    """10 % buys second moments of the columns, 2 % the step."""
    return _prepared(facts, "columns")


@dp_gd.filling(
    "moments and step bought",
    evidence="measured: lending R2 .479 .522 .523 .526 at epsilon .1 .5 1 3 (plain: .42)",
    shortfall=(0.001, 0.03),
)
def moments_bought(facts: Facts) -> Choice | Refusal:
    """10 % buys column means and second moments, 2 % the step."""
    return _prepared(facts, "moments")


@dp_gd.filling(
    "statistics bought",
    evidence="measured: california R2 .601 .647 .649 .650 at epsilon .1 .5 1 3 (plain: .38)",
    shortfall=(0.0, 0.0),
)
def statistics_bought(facts: Facts) -> Choice | Refusal:
    """Moments, then 30 % for noisy X'X and X'y: start at their solution, step with their inverse."""
    return _preconditioned(facts, "moments")


@dp_gd.filling(
    "shapes and statistics bought",
    evidence="measured: docs/glm.md, tables kept apart",
    shortfall=(0.0, 0.0),
)
def shapes_and_statistics_bought(facts: Facts) -> Choice | Refusal:
    """Histograms of columns and targets, smooth features; then X'X and X'y of these."""
    return _preconditioned(facts, "shapes")


@dp_gd.filling(
    "shapes and step bought",
    evidence="measured: docs/glm.md, tables kept apart",
    shortfall=(0.0, 0.03),
)
def shapes_bought(facts: Facts) -> Choice | Refusal:
    """Histograms of columns and targets, smooth features; 2 % for the step."""
    return _prepared(facts, "shapes")


def _preconditioned(facts: Facts, scale: str) -> Choice | Refusal:
    """A scale, then X'X."""
    reason = _cannot_prepare(facts, scale)
    if reason is not None:
        return Refusal(reason)
    if not facts.free:
        return Refusal("preconditioned steps have no proximal map: leave out the set and the penalty")
    if facts.of_loss.curvature is None or facts.outputs > 1:
        return Refusal("noisy X'X is for a smooth loss with one output")
    columns = facts.smooth_features if scale == "shapes" else facts.d
    if columns + 1 > SMALL:
        return Refusal(f"noisy X'X is for fewer than {SMALL} columns")
    least = facts.smooth_statistics if scale == "shapes" else CONSTANTS.statistics_b * columns**2
    if facts.b < least:
        return Refusal(f"noise would drown X'X: n mu = {facts.b:.3g} is less than {least:.3g}")
    if facts.step is not None:
        return Refusal("preconditioned steps have length 1: leave step out")
    share = 1 - spent_on(facts, scale) - Statistics().share
    looks = 1 + _looks(facts, scale, automatic=False)
    rounds = CONSTANTS.shapes_rounds if scale == "shapes" else CONSTANTS.statistics_rounds
    run = full_run(facts, facts.the_clip, columns + 1, rounds, share, looks)
    if isinstance(run, Refusal):
        return run
    # standardised rows of norm 1 have X'X / n near I / (d + 1); the points of all rounds are averaged
    inverse = (columns + 1) / (facts.of_loss.usual_curvature or facts.of_loss.curvature)
    margin = inverse * run.sigma / math.sqrt(max(1, run.rounds - run.rounds // 2))
    return run.choice(
        {"clip": facts.the_clip, "scale": scale, "precondition": True, **_ending(scale), **_shaped(facts, scale)},
        margin_noise=margin,
        seconds=costs.seconds(facts, run.rounds, None, run.dims, costs.gram_seconds(facts)),
        memory=costs.memory(facts, None, extra=3 * costs.NUMBER * columns**2 + _copied(facts, scale)),
    )


def _ending(scale: str) -> dict[str, Any]:
    """The last half of the points is averaged; steps along smooth features average by themselves."""
    return {"output": "last" if scale == "shapes" else "average"}


def _shaped(facts: Facts, scale: str) -> dict[str, Any]:
    """What the recipe is told of smooth features."""
    if scale != "shapes":
        return {"targets": True} if centred(facts, scale) else {}
    functions = 1 if facts.features == "linear" else CONSTANTS.functions
    return {"features": facts.smooth_features, "functions": functions, "level": facts.shapes_level}


def _copied(facts: Facts, scale: str) -> int:
    """Bytes of the features, which are a copy."""
    return costs.NUMBER * facts.n * facts.smooth_features if scale == "shapes" else 0


@dp_sgd.filling(
    evidence="measured: a9a .840 in one pass, all records .764; .846 in 10 passes at epsilon 0.5 (private_tables)",
    shortfall=(0.004, 0.026),
)
def batches(facts: Facts) -> Choice | Refusal:
    """Poisson batches of n / 100."""
    run = sampled_run(facts, facts.the_clip, facts.parameters)
    step = allowed_step(run)
    arguments = {"clip": facts.the_clip, "step": step, "batch_size": run.batch_size}
    return run.choice(arguments, margin_noise=walk(run, step))


@dp_comp_minibatch.filling(
    evidence="Theorem 14 (000); measured on validation rows: a9a .835 with m = 20, DP-SGD .846; IMDB .800 with m = 500",
    shortfall=(0.011, 0.05),
    research=True,
)
def sketched_batches(facts: Facts) -> Choice | Refusal:
    """Poisson batches, a fresh count-sketch every round."""
    run = sampled_run(facts, facts.the_clip, facts.narrow_size)
    return sketched(run, {"m": run.dims, "batch_size": run.batch_size})


@priv_sgd.filling(
    evidence="Theorem 12 (000); measured: lending R2 .439 with 3000 rows and m = 20, on batches .436, in blocks .26",
    shortfall=(0.012, 0.06),
)
def sketched_sums(facts: Facts) -> Choice | Refusal:
    """All records, a fresh count-sketch every round."""
    run = full_run(facts, facts.the_clip, facts.narrow_size, CONSTANTS.sampled_rounds)
    return run if isinstance(run, Refusal) else sketched(run, {"m": run.dims})


def preferred(facts: Facts) -> str:
    """Which preparation of DP-GD the facts ask for."""
    solvable = facts.of_loss.curvature is not None and facts.outputs == 1
    if facts.free and shaped(facts):
        few = facts.smooth_features < SMALL and facts.b >= facts.smooth_statistics
        return "shapes and statistics bought" if solvable and few and facts.step is None else "shapes and step bought"
    if not facts.free and facts.scale in ("auto", "none"):
        return "step bought"
    if facts.scale == "none":
        return "step bought"
    started = facts.public is not None and facts.public.labelled  # a start is better in columns that are scaled
    several = facts.sparse and facts.scale == "auto" and facts.outputs > 1 and not started
    if several and facts.b < CONSTANTS.several_b * math.sqrt(facts.d):
        return "plain"
    if facts.scale == "columns" or (facts.sparse and facts.scale == "auto"):
        return "columns and step bought"
    if solvable and facts.free and facts.d < SMALL and facts.b >= CONSTANTS.statistics_b * facts.d**2:
        return "statistics bought"
    if facts.scale == "moments" or facts.b >= CONSTANTS.moments_b * facts.d:
        return "moments and step bought"
    return "step bought" if facts.d <= CONSTANTS.small else "columns and step bought"


def shaped(facts: Facts) -> bool:
    """Whether histograms of the columns are worth their price: as asked, or where they stand out of their noise."""
    if facts.sparse or facts.scale not in ("auto", "shapes"):
        return False
    wide = facts.d > SMALL or costs.NUMBER * facts.n * facts.smooth_features > CONSTANTS.copied
    if wide and facts.scale == "auto" and facts.features == "auto":
        return False
    required = facts.scale == "shapes" or facts.features == "smooth"
    least = CONSTANTS.shapes_b[facts.outputs > 1]
    return required or facts.shapes >= (least if facts.ranged else max(least, CONSTANTS.shapes_levels[-1]))


def _cannot_prepare(facts: Facts, scale: str) -> str | None:
    """Why this preparation is not for these facts."""
    if scale != "none" and not facts.free and (facts.scale == "auto" or facts.constraint is not None):
        return NO_RESCALING
    if facts.scale not in ("auto", scale):
        by_public = facts.scale == "none" and facts.public is not None
        return "columns were scaled by public rows" if by_public else f"scale={facts.scale!r} was asked for"
    if scale == "shapes" and facts.sparse:
        return "smooth features are for dense rows"
    if scale == "moments" and facts.sparse and facts.d > SMALL:
        return f"CSR rows of more than {SMALL} columns are not centred"
    return None


def _looks(facts: Facts, scale: str, automatic: bool) -> int:
    """Passes over the data before the loop."""
    spectrum = 1 if min(facts.n, facts.d) <= GRAM_LIMIT else CONSTANTS.lanczos_passes
    targets = scale == "shapes" or centred(facts, scale)
    return int(scale != "none") + int(targets) + (spectrum if automatic else 0)


def _rounds(facts: Facts, scale: str) -> int:
    """T of the bought step."""
    if scale == "none":
        scaled_by_public = facts.public is not None and not facts.sparse  # rows that were scaled by public moments
        return CONSTANTS.scaled_rounds if scaled_by_public else CONSTANTS.unscaled_rounds
    if facts.sparse and facts.d > CONSTANTS.small:
        low, high = CONSTANTS.text_rounds
        return min(max(round(facts.tau * facts.b / (CONSTANTS.text_unit * facts.the_clip)), low), high)
    return CONSTANTS.scaled_rounds


def _prepared(facts: Facts, scale: str) -> Choice | Refusal:
    reason = _cannot_prepare(facts, scale)
    if reason is not None:
        return Refusal(reason)
    automatic = facts.step is None
    spent = spent_on(facts, scale) + (Lambda().share if automatic else 0)
    columns = facts.smooth_features if scale == "shapes" else facts.d
    dims = (columns + (scale in ("moments", "shapes"))) * facts.outputs
    looks = _looks(facts, scale, automatic)
    run = full_run(facts, facts.the_clip, dims, _rounds(facts, scale), 1 - spent, looks)
    if isinstance(run, Refusal):
        return run
    numbers = facts.of_loss.curvature is not None and not facts.of_loss.labelled()
    averaged = numbers and not facts.sparse and (scale != "none" or facts.public is not None)
    arguments: dict[str, Any] = {"clip": facts.the_clip, "scale": scale, "output": "average" if averaged else "last"}
    arguments |= _shaped(facts, scale)
    if facts.step is not None:
        margin = walk(run, facts.step)
        arguments["step"] = facts.step
    else:
        # the longest stable step is d times 1.8 / h at most, as the spectrum allows; or what tau allows
        margin = min(walk(run, CONSTANTS.longest * dims / facts.smooth), facts.tau * math.sqrt(1 / (1 - spent)))
        arguments |= {"step": "auto", "tau": facts.tau}
    large = automatic and looks < CONSTANTS.lanczos_passes
    return run.choice(
        arguments,
        margin_noise=margin * AVERAGED["tail" if averaged else "last"],
        seconds=costs.seconds(facts, run.rounds + looks, None, dims, costs.gram_seconds(facts) if large else 0.0),
        memory=costs.memory(
            facts, None, extra=_copied(facts, scale) + (costs.NUMBER * min(facts.n, columns) ** 2 if large else 0)
        ),
    )
